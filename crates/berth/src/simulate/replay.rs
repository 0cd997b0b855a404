//! `berth simulate replay`: traces of real arrivals under policies and simple rules, side by side. It
//! uses no server and reads no clock, except to tell how fast it was.

use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, bail};
use berth_sim::packing::{Chooser, FleetNode, Options, Outcome, Trace, replay};
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;

use super::report::{write_charts, write_html};
use super::source::{FleetArgs, Source};
use crate::cmdutil::{Cell, Table};

/// Options of `berth simulate replay`.
#[derive(Args)]
pub(crate) struct Replay {
    /// Traces: CSV files with time,event,vm_id,cpu_milli,memory_mib, plain or compressed with gzip; events
    /// of a server as `berth events -o json` prints them; files of `berth export`; or `synthetic`, such as
    /// synthetic:hours=24,arrivals=600,lifetime=240,diurnal=40.
    #[arg(required = true, value_name = "TRACE")]
    traces: Vec<String>,
    #[command(flatten)]
    fleet: FleetArgs,
    /// Policy: a built-in one, a file that ends in .toml, or a simple rule such as first-fit. May be
    /// given more than once. Default: all built-in policies and simple rules.
    #[arg(long = "policy", value_name = "POLICY")]
    policies: Vec<String>,
    /// Seed of the rules that draw.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Write a report with charts: one HTML page that needs no other file.
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Write each chart into this folder, as SVG.
    #[arg(long, value_name = "DIR")]
    svg: Option<PathBuf>,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

/// What one policy made of a trace, and how long it took.
#[derive(Serialize)]
pub(super) struct TimedOutcome {
    #[serde(flatten)]
    pub(super) outcome: Outcome,
    pub(super) decisions_per_s: u64,
}

/// What policies made of one trace.
#[derive(Serialize)]
pub(super) struct TraceReport {
    pub(super) trace: String,
    /// Where the nodes come from.
    pub(super) nodes_file: String,
    pub(super) nodes: usize,
    pub(super) skipped_lines: usize,
    pub(super) outcomes: Vec<TimedOutcome>,
}

impl Replay {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let choosers = choosers(&self.policies)?;
        let mut reports = Vec::new();
        for spec in &self.traces {
            let report = self.replay_trace(spec, &choosers)?;
            if !self.json {
                print_report(&report);
            }
            reports.push(report);
        }
        if let Some(file) = &self.html {
            write_html(file, &reports)?;
        }
        if let Some(folder) = &self.svg {
            write_charts(folder, &reports)?;
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

    fn replay_trace(&self, spec: &str, choosers: &[Chooser]) -> anyhow::Result<TraceReport> {
        let source = Source::load(spec, &self.fleet)?;
        let nodes = source.fleet(&self.fleet)?;
        let mut outcomes = Vec::new();
        for chooser in choosers {
            outcomes.push(time_replay(&source.trace, nodes, chooser, self.seed)?);
        }
        Ok(TraceReport {
            nodes: nodes.len(),
            skipped_lines: source.trace.skipped.len(),
            trace: source.name,
            nodes_file: source.nodes_from,
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
        report.trace,
        first.arrived,
        report.nodes,
        report.nodes_file,
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
pub(crate) fn tenths_of_milli(milli: u64) -> String {
    let tenths = (milli + 50) / 100;
    format!("{}.{}", tenths / 10, tenths % 10)
}
