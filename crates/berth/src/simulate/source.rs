//! Where a trace comes from: a table of events, the log of a server, an export of a ledger, or a
//! description of one to make up.

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use berth_control::feed::FeedEvent;
use berth_ledger::{Backend, Ledger, Options};
use berth_sim::packing::{
    FleetNode, LogTrace, Synthetic, Trace, is_event_log, read_event_log, read_fleet, read_trace,
    synthetic_fleet, volume_bound,
};
use clap::Args;
use serde_json::Value;

/// How the first line of an export begins.
const EXPORT: &str = "{\"berth_export\":";

/// Events of an export that are read at once.
const PAGE: usize = 10_000;

/// Which fleet a trace is replayed on.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct FleetArgs {
    /// File with nodes: node_id,cpu_milli,memory_mib. Default: the nodes of a log, or the only file
    /// nodes*.csv in the folder of the trace.
    #[arg(long, value_name = "FILE")]
    pub(crate) nodes: Option<PathBuf>,
    /// Number of nodes to use, from the first of the file. Default: all nodes of a log; otherwise as many
    /// as the trace needs by volume, and --spare percent more.
    #[arg(long, value_name = "NUMBER", conflicts_with = "spare", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(crate) node_count: Option<u32>,
    /// Nodes in addition to those that the trace needs by volume alone, in percent [default: 5]
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u32).range(0..=1000))]
    pub(crate) spare: Option<u32>,
    /// Leave out malformed lines instead of stopping at the first.
    #[arg(long)]
    pub(crate) skip_bad: bool,
}

/// Nodes in addition to the volume of a trace unless said otherwise.
const DEFAULT_SPARE_PERCENT: u32 = 5;

/// A trace, and all nodes there are for it.
pub(crate) struct Source {
    /// What it is called in results.
    pub(crate) name: String,
    pub(crate) trace: Trace,
    /// Where the nodes come from.
    pub(crate) nodes_from: String,
    pub(crate) nodes: Vec<FleetNode>,
    /// Whether the nodes are those that the trace was recorded on.
    has_own_fleet: bool,
}

impl Source {
    /// Reads a trace and its nodes. Lines that are left out are reported.
    pub(crate) fn load(spec: &str, fleet: &FleetArgs) -> anyhow::Result<Self> {
        let mut source = if let Some(description) = Synthetic::parse(spec) {
            made_up(spec, description?.trace(), fleet)?
        } else {
            from_file(Path::new(spec), fleet)?
        };
        for damage in &source.trace.skipped {
            eprintln!("left out {spec}: {damage}");
        }
        if let Some(file) = &fleet.nodes {
            source.nodes = read_fleet(file, fleet.skip_bad)?;
            source.nodes_from = file.display().to_string();
            source.has_own_fleet = false;
        }
        if source.nodes.is_empty() {
            bail!("{spec} tells of no node: name a file of nodes with --nodes");
        }
        Ok(source)
    }

    /// The nodes to replay on.
    pub(crate) fn fleet(&self, fleet: &FleetArgs) -> anyhow::Result<&[FleetNode]> {
        let count = match (fleet.node_count, fleet.spare) {
            (Some(count), _) => count as usize,
            (None, None) if self.has_own_fleet => self.nodes.len(),
            (None, spare) => {
                let spare = spare.unwrap_or(DEFAULT_SPARE_PERCENT);
                nodes_with_spare(&self.trace, &self.nodes, spare)
            }
        };
        self.nodes.get(..count).with_context(|| {
            format!(
                "{} has {} nodes, and {count} are needed: use --node-count with at most as many, or a \
                 file with more",
                self.nodes_from,
                self.nodes.len()
            )
        })
    }
}

fn made_up(spec: &str, trace: Trace, fleet: &FleetArgs) -> anyhow::Result<Source> {
    if trace.demands.is_empty() {
        bail!("{spec}: nothing arrives in this time; use more hours or arrivals");
    }
    let needed = volume_bound(&trace, &synthetic_fleet(1)).peak_nodes;
    let spare = u64::from(fleet.spare.unwrap_or(DEFAULT_SPARE_PERCENT));
    let count = (needed * (100 + spare)).div_ceil(100).max(fleet.node_count.unwrap_or(0).into());
    Ok(Source {
        name: spec.to_owned(),
        trace,
        nodes_from: "equal nodes of 64 cores and 192 GiB".to_owned(),
        nodes: synthetic_fleet(usize::try_from(count)?),
        has_own_fleet: false,
    })
}

fn from_file(path: &Path, fleet: &FleetArgs) -> anyhow::Result<Source> {
    let name = path.display().to_string();
    let is_log = is_event_log(path)?;
    let (trace, nodes, nodes_from) = if is_log && is_export(path)? {
        let (trace, nodes) = read_export(path)?;
        (trace, nodes, name.clone())
    } else if is_log {
        let (trace, nodes) = read_event_log(path, fleet.skip_bad)?;
        (trace, nodes, name.clone())
    } else {
        let trace = read_trace(path, fleet.skip_bad)?;
        match &fleet.nodes {
            Some(_) => (trace, Vec::new(), String::new()),
            None => {
                let file = nodes_beside(path)?;
                (trace, read_fleet(&file, fleet.skip_bad)?, file.display().to_string())
            }
        }
    };
    Ok(Source { name, trace, nodes_from, nodes, has_own_fleet: is_log })
}

fn is_export(path: &Path) -> anyhow::Result<bool> {
    let file = std::fs::File::open(path).with_context(|| format!("opening {}", path.display()))?;
    let mut line = String::new();
    // An export is text; what is not is no export.
    Ok(BufReader::new(file).read_line(&mut line).is_ok() && line.starts_with(EXPORT))
}

/// Imports the export into a ledger that is thrown away, and reads its log.
fn read_export(path: &Path) -> anyhow::Result<(Trace, Vec<FleetNode>)> {
    let name = path.display();
    let folder = tempfile::tempdir().context("creating a folder for the ledger of the export")?;
    let backend = Backend::Sqlite(folder.path().join("export.db"));
    let ledger = Ledger::open(backend, Options { writers: 1, ..Options::default() })
        .context("creating a ledger for the export")?;
    let file = std::fs::File::open(path).with_context(|| format!("opening {name}"))?;
    ledger
        .import(&mut BufReader::new(file))
        .with_context(|| format!("reading the export {name}"))?;
    let mut log = LogTrace::default();
    let mut cursor = 0;
    loop {
        let page = ledger.events_after(cursor, PAGE)?;
        if page.events.is_empty() {
            break;
        }
        for event in page.events {
            let seq = event.seq;
            let event =
                FeedEvent::of(event).with_context(|| format!("{name}: event {seq} is damaged"))?;
            let body = Value::Object(event.body().clone());
            log.add(event.at, &event.kind, &body).map_err(|expected| {
                anyhow::anyhow!("{name}: event {}: expected {expected}", event.seq)
            })?;
        }
        cursor = page.cursor;
    }
    let (trace, nodes) = log.finish();
    if trace.demands.is_empty() {
        bail!("{name}: no arrivals in the log of the export");
    }
    Ok((trace, nodes))
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
