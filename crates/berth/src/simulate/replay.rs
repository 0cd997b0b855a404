//! `berth simulate replay`: traces of real arrivals under policies and simple rules, side by side. It
//! uses no server and reads no clock, except to tell how fast it was.

use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, bail};
use berth_sim::packing::{
    Chooser, FleetNode, Options, Outcome, Trace, read_fleet, read_trace, replay, volume_bound,
};
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;

use crate::cmdutil::{Cell, Table};

/// Options of `berth simulate replay`.
#[derive(Args)]
pub(crate) struct Replay {
    /// Files with events: time,event,vm_id,cpu_milli,memory_mib. CSV, plain or compressed with gzip.
    #[arg(required = true, value_name = "TRACE")]
    traces: Vec<PathBuf>,
    /// File with nodes: node_id,cpu_milli,memory_mib. The only file nodes*.csv beside the trace if not
    /// given.
    #[arg(long, value_name = "FILE")]
    nodes: Option<PathBuf>,
    /// Number of nodes to use, from the first of the file. Default: as many as the trace needs by
    /// volume, and --spare percent more.
    #[arg(long, value_name = "NUMBER", conflicts_with = "spare", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    node_count: Option<u32>,
    /// Nodes in addition to those that the trace needs by volume alone, in percent.
    #[arg(long, value_name = "PERCENT", default_value_t = 5, value_parser = clap::value_parser!(u32).range(0..=1000))]
    spare: u32,
    /// Policy: a built-in one, a file that ends in .toml, or a simple rule such as first-fit. May be
    /// given more than once. Default: all built-in policies and simple rules.
    #[arg(long = "policy", value_name = "POLICY")]
    policies: Vec<String>,
    /// Seed of the rules that draw.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Leave out malformed lines instead of stopping at the first.
    #[arg(long)]
    skip_bad: bool,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

/// What one policy made of a trace, and how long it took.
#[derive(Serialize)]
struct TimedOutcome {
    #[serde(flatten)]
    outcome: Outcome,
    decisions_per_s: u64,
}

#[derive(Serialize)]
struct TraceReport {
    trace: PathBuf,
    nodes_file: PathBuf,
    nodes: usize,
    skipped_lines: usize,
    outcomes: Vec<TimedOutcome>,
}

impl Replay {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let choosers = choosers(&self.policies)?;
        let mut reports = Vec::new();
        for path in &self.traces {
            let report = self.replay_trace(path, &choosers)?;
            if !self.json {
                print_report(&report);
            }
            reports.push(report);
        }
        if self.json {
            println!("{}", serde_json::to_string(&reports)?);
        }
        let violations: u64 = reports
            .iter()
            .flat_map(|report| &report.outcomes)
            .map(|timed| timed.outcome.violations)
            .sum();
        if violations > 0 {
            bail!("nodes held more than they have {violations} times; accepted is 0");
        }
        Ok(())
    }

    fn replay_trace(&self, path: &Path, choosers: &[Chooser]) -> anyhow::Result<TraceReport> {
        let trace = read_trace(path, self.skip_bad)?;
        for damage in &trace.skipped {
            eprintln!("left out {}: {damage}", path.display());
        }
        let nodes_file = match &self.nodes {
            Some(file) => file.clone(),
            None => nodes_beside(path)?,
        };
        let nodes = read_fleet(&nodes_file, self.skip_bad)?;
        let count = self
            .node_count
            .map_or_else(|| nodes_with_spare(&trace, &nodes, self.spare), |count| count as usize);
        let Some(nodes) = nodes.get(..count) else {
            bail!(
                "{} has {} nodes, and {count} are needed: use --node-count with at most as many, or a \
                 file with more",
                nodes_file.display(),
                nodes.len()
            );
        };
        let mut outcomes = Vec::new();
        for chooser in choosers {
            outcomes.push(time_replay(&trace, nodes, chooser, self.seed)?);
        }
        let skipped_lines = trace.skipped.len();
        Ok(TraceReport {
            trace: path.to_owned(),
            nodes_file,
            nodes: count,
            skipped_lines,
            outcomes,
        })
    }
}

/// Policies and rules by name; all of them if none is named.
pub(crate) fn choosers(names: &[String]) -> anyhow::Result<Vec<Chooser>> {
    if names.is_empty() {
        let all = berth_engine::BUILTIN_POLICIES.iter().chain(&berth_sim::packing::PEERS);
        return all.map(|name| Ok(Chooser::named(name)?)).collect();
    }
    let chooser = |name: &String| {
        if Path::new(name).extension().is_some_and(|extension| extension == "toml") {
            let text = std::fs::read_to_string(name)
                .with_context(|| format!("cannot read the policy file {name}"))?;
            return Ok(Chooser::from_toml(name, &text)?);
        }
        Ok(Chooser::named(name)?)
    };
    names.iter().map(chooser).collect()
}

/// The only file of nodes in the folder of a trace.
fn nodes_beside(trace: &Path) -> anyhow::Result<PathBuf> {
    let folder = trace.parent().unwrap_or(Path::new("."));
    let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    let mut found = files_named(folder, "nodes")?;
    match (found.pop(), found.len()) {
        (Some(file), 0) => Ok(file),
        (None, _) => bail!("no file nodes*.csv beside {}: name one with --nodes", trace.display()),
        (Some(_), others) => {
            bail!(
                "{} files nodes*.csv beside {}: choose one with --nodes",
                others + 1,
                trace.display()
            )
        }
    }
}

/// The CSV files of a folder whose names begin so, plain or compressed, in the order of their names.
pub(crate) fn files_named(folder: &Path, prefix: &str) -> anyhow::Result<Vec<PathBuf>> {
    let entries = std::fs::read_dir(folder)
        .with_context(|| format!("cannot list the folder {}", folder.display()))?;
    let mut files = Vec::new();
    for entry in entries {
        let path = entry?.path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if name.starts_with(prefix) && (name.ends_with(".csv") || name.ends_with(".csv.gz")) {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

/// How many nodes the trace needs by volume alone, and some percent more.
pub(crate) fn nodes_with_spare(trace: &Trace, nodes: &[FleetNode], percent: u32) -> usize {
    let needed = volume_bound(trace, nodes).peak_nodes.saturating_mul(100 + u64::from(percent));
    usize::try_from(needed.div_ceil(100)).unwrap_or(usize::MAX)
}

fn time_replay(
    trace: &Trace,
    nodes: &[FleetNode],
    chooser: &Chooser,
    seed: u64,
) -> anyhow::Result<TimedOutcome> {
    let bar = progress_bar(trace, chooser);
    let start = now();
    let outcome =
        replay(trace, nodes, chooser, Options { seed }, |done| bar.set_position(done as u64))?;
    let micros = start.elapsed().as_micros().max(1);
    bar.finish_and_clear();
    let decisions_per_s = u128::from(outcome.arrived) * 1_000_000 / micros;
    Ok(TimedOutcome {
        outcome,
        decisions_per_s: u64::try_from(decisions_per_s).unwrap_or(u64::MAX),
    })
}

/// Replays under each policy, and returns the results with the decisions a second.
pub(crate) fn replay_all(
    trace: &Trace,
    nodes: &[FleetNode],
    choosers: &[Chooser],
    seed: u64,
) -> anyhow::Result<Vec<(Outcome, u64)>> {
    let timed = choosers.iter().map(|chooser| {
        let TimedOutcome { outcome, decisions_per_s } = time_replay(trace, nodes, chooser, seed)?;
        Ok((outcome, decisions_per_s))
    });
    timed.collect()
}

/// On standard error, and only if it is a terminal.
fn progress_bar(trace: &Trace, chooser: &Chooser) -> ProgressBar {
    let bar = ProgressBar::new(trace.events.len() as u64);
    if let Ok(style) = ProgressStyle::with_template("{msg:24} {wide_bar} {percent:>3} %  {eta}") {
        bar.set_style(style);
    }
    bar.set_message(chooser.name().to_owned());
    bar
}

#[expect(clippy::disallowed_methods, reason = "how fast it was is part of the report")]
fn now() -> Instant {
    Instant::now()
}

fn print_report(report: &TraceReport) {
    let Some(first) = report.outcomes.first().map(|timed| &timed.outcome) else { return };
    println!(
        "{}: {} instances on {} nodes of {}; by volume alone {} nodes at the peak, {} on average",
        report.trace.display(),
        first.arrived,
        report.nodes,
        report.nodes_file.display(),
        first.bound_peak_nodes,
        tenths_of_milli(first.bound_mean_nodes_milli),
    );
    anstream::println!(
        "{}",
        outcome_table(report.outcomes.iter().map(|timed| (&timed.outcome, timed.decisions_per_s)))
            .text(None)
    );
}

/// The results side by side, a policy a row.
pub(crate) fn outcome_table<'a>(outcomes: impl Iterator<Item = (&'a Outcome, u64)>) -> Table {
    let mut table = Table::new(&[
        "POLICY",
        "REJECTED",
        "CPU",
        "MEMORY",
        "BEFORE FIRST",
        "MEAN NODES",
        "PEAK",
        "NEVER USED",
        "STRANDED CPU",
        "VIOLATIONS",
        "DECISIONS/S",
    ]);
    for (outcome, decisions_per_s) in outcomes {
        let before = outcome.placed_before_first_rejection;
        let cells = [
            outcome.policy.clone(),
            outcome.rejected.to_string(),
            format!("{} cores", outcome.rejected_cpu_milli / 1000),
            format!("{} GiB", outcome.rejected_memory_mib / 1024),
            before.map_or_else(|| "-".to_owned(), |before| before.to_string()),
            tenths_of_milli(outcome.mean_nodes_milli),
            outcome.peak_nodes.to_string(),
            outcome.never_used_nodes.to_string(),
            format!(
                "{}.{:02} %",
                outcome.stranded_cpu_ppm / 10_000,
                outcome.stranded_cpu_ppm / 100 % 100
            ),
            outcome.violations.to_string(),
            decisions_per_s.to_string(),
        ];
        table.row(cells.map(Cell::from));
    }
    table
}

/// Thousandths as a number with one decimal.
fn tenths_of_milli(milli: u64) -> String {
    let tenths = (milli + 50) / 100;
    format!("{}.{}", tenths / 10, tenths % 10)
}
