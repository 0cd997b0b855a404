//! `berth tune`: searches a policy for traces, and says whether it holds on data that it has not seen.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use berth_engine::Policy;
use berth_sim::packing::{Comparison, Goal, TuneSource, Tuned, Verdict, tune};
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};

use super::source::{FleetArgs, Source};
use crate::cmdutil::{Cell, Table, args};

/// Search a policy for traces, and judge it on data that the search has not seen.
///
/// Weights of scorers of room and the usual shapes are varied; filters and all other rules stay as they
/// are. The first part of each trace is learned from, a later one decides among the best, and the last
/// judges. Fails if no policy can be recommended.
///
/// Example: berth tune events.csv.gz --nodes nodes.csv.gz --goal 'min rejected, then min nodes' --budget 5m
#[derive(Args)]
pub(crate) struct Tune {
    /// Traces: see berth simulate replay.
    #[arg(required = true, value_name = "TRACE")]
    traces: Vec<String>,
    /// File with nodes, of which fleets of several sizes are taken: node_id,cpu_milli,memory_mib. Default:
    /// the nodes of a log, or the only file nodes*.csv in the folder of the trace.
    #[arg(long, value_name = "FILE")]
    nodes: Option<PathBuf>,
    /// What the policy should be good at, the most important first.
    #[arg(long, default_value = "min rejected, then min nodes")]
    goal: Goal,
    /// How long to search, such as 5m; or how many policies to try, which always gives the same result.
    #[arg(long, default_value = "5m", value_parser = budget)]
    budget: Budget,
    /// Policy to begin with: a built-in one, or a file.
    #[arg(long, value_name = "POLICY", default_value = "pack")]
    from: String,
    /// Seed of the search.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Leave out malformed lines instead of stopping at the first.
    #[arg(long)]
    skip_bad: bool,
    /// Write the policy into this file, if it is recommended.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug)]
enum Budget {
    Time(Duration),
    Policies(u64),
}

fn budget(text: &str) -> Result<Budget, String> {
    if let Ok(count) = text.parse() {
        return Ok(Budget::Policies(count));
    }
    let seconds = args::duration(text)
        .map_err(|error| format!("{error}; or a number of policies to try, such as 200"))?;
    Ok(Budget::Time(Duration::from_secs(seconds.into())))
}

impl Tune {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let base = match std::path::Path::new(&self.from).extension() {
            Some(_) => {
                let text = std::fs::read_to_string(&self.from)
                    .with_context(|| format!("cannot read the policy file {}", self.from))?;
                Policy::from_toml(&text)?
            }
            None => Policy::builtin(&self.from)?,
        };
        let sources = self.load()?;
        let sources: Vec<TuneSource<'_>> = sources
            .iter()
            .map(|source| TuneSource { trace: &source.trace, nodes: &source.nodes })
            .collect();
        let bar = self.progress_bar();
        let start = now();
        let mut go_on = |tried: u64| {
            bar.set_message(format!("{tried} policies"));
            match self.budget {
                Budget::Policies(count) => {
                    bar.set_position(tried.min(count));
                    tried < count
                }
                Budget::Time(time) => {
                    let passed = start.elapsed();
                    bar.set_position(passed.as_secs().min(time.as_secs()));
                    passed < time
                }
            }
        };
        let tuned = tune(&sources, &base, &self.goal, self.seed, &mut go_on)?;
        bar.finish_and_clear();
        self.report(&base, &tuned)
    }

    /// Traces with all nodes that fleets may be taken from.
    fn load(&self) -> anyhow::Result<Vec<Source>> {
        // Fleets are sized here by what each piece of a trace needs.
        let fleet = FleetArgs {
            nodes: self.nodes.clone(),
            skip_bad: self.skip_bad,
            spare: Some(100),
            ..FleetArgs::default()
        };
        self.traces.iter().map(|spec| Source::load(spec, &fleet)).collect()
    }

    /// On standard error, and only if it is a terminal.
    fn progress_bar(&self) -> ProgressBar {
        let length = match self.budget {
            Budget::Time(time) => time.as_secs(),
            Budget::Policies(count) => count,
        };
        let bar = ProgressBar::new(length);
        if let Ok(style) = ProgressStyle::with_template("{msg:16} {wide_bar} {percent:>3} %") {
            bar.set_style(style);
        }
        bar
    }

    fn report(&self, base: &Policy, tuned: &Tuned) -> anyhow::Result<()> {
        if self.json {
            println!("{}", serde_json::to_string(tuned)?);
        } else {
            print(base, tuned);
        }
        match &tuned.verdict {
            Verdict::Recommended { .. } => {}
            Verdict::NotRecommended { reason } => bail!("no policy is recommended: {reason}"),
        }
        if let Some(file) = &self.out {
            std::fs::write(file, &tuned.policy_toml)
                .with_context(|| format!("cannot write the policy {}", file.display()))?;
        }
        Ok(())
    }
}

fn print(base: &Policy, tuned: &Tuned) {
    println!(
        "{} policies tried; judged by {} replays of times that the search has not seen",
        tuned.evaluated, tuned.unseen_replays
    );
    let mut table = Table::new(&["DATA", "MEASURE", base.name(), "TUNED", "GAIN", "95 % INTERVAL"]);
    for (data, comparisons) in [("learned from", &tuned.learned), ("unseen", &tuned.unseen)] {
        for comparison in comparisons {
            let Comparison { measure, base, tuned, gain, low, high } = comparison;
            let interval = format!("{low} to {high}");
            let cells = [
                data.to_owned(),
                (*measure).to_owned(),
                base.to_string(),
                tuned.to_string(),
                gain.to_string(),
                if data == "unseen" { interval } else { String::new() },
            ];
            table.row(cells.map(Cell::from));
        }
    }
    anstream::println!("{}", table.text(None));
    println!("nodes are in thousandths, CPU in thousandths of a core, memory in MiB\n");
    if let Verdict::Recommended { measure } = &tuned.verdict {
        println!("recommended: it is surely better by {measure}, and worse by nothing before it\n");
        println!("{}", tuned.policy_toml.trim_end());
    }
}

#[expect(clippy::disallowed_methods, reason = "the budget may be a time")]
fn now() -> Instant {
    Instant::now()
}
