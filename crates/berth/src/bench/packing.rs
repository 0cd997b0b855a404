//! `berth bench packing`: how well policies pack the traces in a folder, next to simple rules.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use berth_sim::packing::{Chooser, FleetNode, Outcome, ReadError, Trace, read_fleet, read_trace};
use clap::Args;
use serde::Serialize;

use crate::simulate::{choosers, files_named, nodes_with_spare, outcome_table, replay_all};

/// Nodes in addition to the volume of a trace, where nothing states the size of its fleet.
const DEFAULT_SPARE_PERCENT: u32 = 3;

/// Options of `berth bench packing`.
#[derive(Args)]
pub(crate) struct PackingBench {
    /// Folder with traces: each folder in it with files events*.csv and nodes*.csv, plain or compressed.
    #[arg(long, value_name = "DIR")]
    traces: PathBuf,
    /// Policy: a built-in one, a file that ends in .toml, or a simple rule. May be given more than once.
    /// Default: all built-in policies and simple rules.
    #[arg(long = "policy", value_name = "POLICY")]
    policies: Vec<String>,
    /// Number of nodes to use of every file, from its first. May be given more than once: each is a fleet
    /// of its own.
    #[arg(long, value_name = "NUMBER", conflicts_with = "spare", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    node_count: Vec<u32>,
    /// Nodes in addition to those that a trace needs by volume alone, in percent; may be given more than
    /// once. Default: the sizes that REFERENCE.md in the folder states, or 3.
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u32).range(0..=1000))]
    spare: Vec<u32>,
    /// Seed of the rules that draw.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

/// One policy on one slice.
#[derive(Serialize)]
struct SliceResult {
    slice: String,
    policy: String,
    nodes: u64,
    rejected: u64,
    rejected_cpu_milli: u64,
    rejected_memory_mib: u64,
    mean_nodes: f64,
    peak_nodes: u64,
    /// Absent if none was rejected.
    placed_before_first_rejection: Option<u64>,
    stranded_cpu_percent: f64,
    violations: u64,
    bound_mean_nodes: f64,
    decisions_per_s: u64,
    digest: String,
}

#[derive(Serialize)]
struct Report {
    results: Vec<SliceResult>,
    /// Files that were left out, and why.
    skipped: Vec<String>,
}

impl PackingBench {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let choosers = choosers(&self.policies)?;
        let mut report = Report { results: Vec::new(), skipped: Vec::new() };
        let stated = StatedSizes::read(&self.traces)?;
        for folder in folders_with_traces(&self.traces)? {
            for events in files_named(&folder, "events")? {
                self.measure_trace(&events, &stated, &choosers, &mut report)?;
            }
        }
        if report.results.is_empty() {
            for skipped in &report.skipped {
                eprintln!("{skipped}");
            }
            bail!(
                "no trace to replay in {}: expected folders with files events*.csv and nodes*.csv",
                self.traces.display()
            );
        }
        if self.json {
            println!("{}", serde_json::to_string(&report)?);
        }
        Ok(())
    }

    /// Replays one trace on each of its fleets.
    fn measure_trace(
        &self,
        events: &Path,
        stated: &StatedSizes,
        choosers: &[Chooser],
        report: &mut Report,
    ) -> anyhow::Result<()> {
        let folder = events.parent().unwrap_or(&self.traces);
        let trace = match read_trace(events, false) {
            Ok(trace) => trace,
            Err(error @ (ReadError::Line { .. } | ReadError::Column { .. })) => {
                report.skipped.push(error.to_string());
                return Ok(());
            }
            Err(error) => return Err(error.into()),
        };
        for file in files_named(folder, "nodes")? {
            let nodes = read_fleet(&file, false)?;
            for count in self.fleet_sizes(&trace, &nodes, stated.of(events, &file)) {
                let slice = slice_name(&self.traces, events, &file, count);
                let results = replay_all(&trace, &nodes[..count], choosers, self.seed)
                    .with_context(|| format!("cannot replay {slice}"))?;
                if !self.json {
                    println!("{slice}");
                    let rows = results.iter().map(|(outcome, speed)| (outcome, *speed));
                    anstream::println!("{}", outcome_table(rows).text(None));
                }
                let results = results.into_iter();
                report
                    .results
                    .extend(results.map(|(outcome, speed)| slice_result(&slice, outcome, speed)));
            }
        }
        Ok(())
    }

    /// How many nodes of a file to use, a fleet each, in the order in which they are asked for.
    fn fleet_sizes(&self, trace: &Trace, nodes: &[FleetNode], stated: Vec<usize>) -> Vec<usize> {
        let with_spare = |spare: &u32| nodes_with_spare(trace, nodes, *spare);
        let mut sizes: Vec<usize> = if !self.node_count.is_empty() {
            self.node_count.iter().map(|count| *count as usize).collect()
        } else if !self.spare.is_empty() {
            self.spare.iter().map(with_spare).collect()
        } else if stated.is_empty() {
            vec![with_spare(&DEFAULT_SPARE_PERCENT)]
        } else {
            stated
        };
        for size in &mut sizes {
            *size = (*size).min(nodes.len());
        }
        sizes.dedup();
        sizes
    }
}

/// Fleets that a folder's `REFERENCE.md` has results for. Its lines have the form
/// `FOLDER/events.csv.gz with FOLDER/nodes.csv.gz: …; fleet 56`; all others are ignored.
struct StatedSizes(Vec<(PathBuf, PathBuf, usize)>);

impl StatedSizes {
    fn read(root: &Path) -> anyhow::Result<Self> {
        let path = root.join("REFERENCE.md");
        let text = match std::fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
            Err(error) => {
                return Err(error).with_context(|| format!("cannot read {}", path.display()));
            }
        };
        let stated = |line: &str| {
            let (events, rest) = line.trim_start_matches('#').trim().split_once(" with ")?;
            let (nodes, _) = rest.split_once(": ")?;
            let (_, size) = rest.rsplit_once("; fleet ")?;
            Some((PathBuf::from(events), PathBuf::from(nodes), size.trim().parse().ok()?))
        };
        Ok(Self(text.lines().filter_map(stated).collect()))
    }

    /// The sizes for these files, whatever folder the traces were in when the results were made.
    fn of(&self, events: &Path, nodes: &Path) -> Vec<usize> {
        let is_same = |stated: &Path, file: &Path| {
            let folder =
                |path: &Path| path.parent().and_then(Path::file_name).map(ToOwned::to_owned);
            stated.file_name() == file.file_name() && folder(stated) == folder(file)
        };
        let of_these = |(stated, beside, _): &&(PathBuf, PathBuf, usize)| {
            is_same(stated, events) && is_same(beside, nodes)
        };
        self.0.iter().filter(of_these).map(|(_, _, size)| *size).collect()
    }
}

/// The folder itself and those in it, if they have files of events.
fn folders_with_traces(root: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let entries = std::fs::read_dir(root)
        .with_context(|| format!("cannot list the folder {}", root.display()))?;
    let mut folders = vec![root.to_owned()];
    for entry in entries {
        let path = entry?.path();
        if path.is_dir() {
            folders.push(path);
        }
    }
    folders.sort();
    let mut found = Vec::new();
    for folder in folders {
        if !files_named(&folder, "events")?.is_empty() && !files_named(&folder, "nodes")?.is_empty()
        {
            found.push(folder);
        }
    }
    Ok(found)
}

/// Such as `azure2017/nodes_homog@723`; with the name of the events if it is not simply `events`.
fn slice_name(root: &Path, events: &Path, nodes: &Path, count: usize) -> String {
    let stem = |path: &Path| {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        name.split('.').next().unwrap_or_default().to_owned()
    };
    let folder = events.parent().and_then(|folder| folder.strip_prefix(root).ok());
    let mut parts: Vec<String> = Vec::new();
    if let Some(folder) = folder.filter(|folder| !folder.as_os_str().is_empty()) {
        parts.push(folder.display().to_string());
    }
    if stem(events) != "events" {
        parts.push(stem(events));
    }
    parts.push(format!("{}@{count}", stem(nodes)));
    parts.join("/")
}

#[expect(clippy::float_arithmetic, clippy::cast_precision_loss, reason = "figures for people")]
fn slice_result(slice: &str, outcome: Outcome, decisions_per_s: u64) -> SliceResult {
    SliceResult {
        slice: slice.to_owned(),
        policy: outcome.policy,
        nodes: outcome.nodes,
        rejected: outcome.rejected,
        rejected_cpu_milli: outcome.rejected_cpu_milli,
        rejected_memory_mib: outcome.rejected_memory_mib,
        mean_nodes: outcome.mean_nodes_milli as f64 / 1000.0,
        peak_nodes: outcome.peak_nodes,
        placed_before_first_rejection: outcome.placed_before_first_rejection,
        stranded_cpu_percent: outcome.stranded_cpu_ppm as f64 / 10_000.0,
        violations: outcome.violations,
        bound_mean_nodes: outcome.bound_mean_nodes_milli as f64 / 1000.0,
        decisions_per_s,
        digest: outcome.digest,
    }
}
