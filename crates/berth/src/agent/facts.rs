//! The facts of the node: detected on the machine, read from a file, or given as flags.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use berth_api::engine::{Amounts, NodeFacts, NodeId, Timestamp, TraitValue};
use clap::Args;

use crate::cmdutil::{args, file};

/// Facts of the node that override what is detected on the machine.
#[derive(Args, Clone, Debug)]
pub(crate) struct FactArgs {
    /// Name of the node.
    #[arg(long, value_name = "NAME")]
    pub(super) node: String,
    /// All facts, in TOML, YAML or JSON as in the API; nothing is detected then. Read again every minute.
    #[arg(long, value_name = "FILE")]
    facts: Option<PathBuf>,
    /// Zone of the node.
    #[arg(long)]
    zone: Option<String>,
    /// Rack of the node.
    #[arg(long)]
    rack: Option<String>,
    /// Label; may be repeated.
    #[arg(long = "label", value_name = "KEY=VALUE", value_parser = args::pair)]
    labels: Vec<(String, String)>,
    /// Trait, with or without a value; may be repeated. Only instances that require it are placed there.
    #[arg(long = "trait", value_name = "KEY[=VALUE]")]
    traits: Vec<String>,
    /// Cores, such as 8 or 0.5.
    #[arg(long, value_name = "CORES", value_parser = cores)]
    cpu: Option<u32>,
    /// Memory, such as 16GiB.
    #[arg(long, value_name = "SIZE", value_parser = args::size_capacity)]
    memory: Option<u32>,
    /// Disk, such as 100GiB.
    #[arg(long, value_name = "SIZE", value_parser = args::size_capacity)]
    disk: Option<u32>,
    /// Bandwidth, such as 10Gbit.
    #[arg(long, value_name = "RATE", value_parser = args::bandwidth_capacity)]
    bandwidth: Option<u32>,
}

/// Cores; a node without any is a mistake.
fn cores(text: &str) -> Result<u32, String> {
    match args::cpu_capacity(text)? {
        0 => Err("CPU is 0; accepted is more than 0, such as 8 or 0.5".to_owned()),
        milli => Ok(milli),
    }
}

/// The source of facts, and what the server knows of them.
pub(super) struct FactSource {
    arguments: FactArgs,
    machine: Machine,
    node: NodeId,
    current: NodeFacts,
    reported: Option<NodeFacts>,
}

impl FactSource {
    /// Collects facts for the first time.
    pub(super) fn new(arguments: FactArgs, machine: Machine) -> anyhow::Result<Self> {
        let current = collect(&arguments, &machine)?;
        Ok(Self { node: current.id.clone(), arguments, machine, current, reported: None })
    }

    /// The node.
    pub(super) const fn node(&self) -> &NodeId {
        &self.node
    }

    /// The facts.
    pub(super) const fn current(&self) -> &NodeFacts {
        &self.current
    }

    /// The facts, if they differ from what the server knows.
    pub(super) fn unreported(&self) -> Option<&NodeFacts> {
        (self.reported.as_ref() != Some(&self.current)).then_some(&self.current)
    }

    /// Notes that the server knows the current facts.
    pub(super) fn mark_reported(&mut self) {
        self.reported = Some(self.current.clone());
    }

    /// Collects facts again. If that fails, the old ones stay.
    pub(super) fn refresh(&mut self) {
        match collect(&self.arguments, &self.machine) {
            Ok(facts) => self.current = facts,
            Err(error) => {
                tracing::warn!("failed to refresh facts: {error:#}; keeping the old ones")
            }
        }
    }
}

/// What was detected on the machine.
#[derive(Clone, Debug)]
pub(super) struct Machine {
    capacity: Amounts,
    reserve: Amounts,
    scratch_mib: u32,
    last_boot: Option<Timestamp>,
    kernel: Option<String>,
    kvm: bool,
    is_virtual: bool,
    driver: &'static str,
    driver_needs_kvm: bool,
}

impl Machine {
    /// Inspects the machine. `folder` is on the disk that instances use.
    pub(super) fn detect(
        folder: &Path,
        driver: &'static str,
        driver_needs_kvm: bool,
    ) -> anyhow::Result<Self> {
        let cores = std::thread::available_parallelism()?.get();
        let memory = fs::read_to_string("/proc/meminfo").context("/proc/meminfo")?;
        let memory = number_after(&memory, "MemTotal:").context("/proc/meminfo has no MemTotal")?;
        let memory_mib = clamp_amount(memory >> 10);
        let disk = rustix::fs::statvfs(folder).context("the state directory's disk")?;
        let mebibytes = |blocks: u64| clamp_amount(blocks.saturating_mul(disk.f_frsize) >> 20);
        let boot = fs::read_to_string("/proc/stat").unwrap_or_default();
        let processor = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").ok();
        let capacity = Amounts::new(clamp_amount(cores as u64 * 1000), memory_mib);
        Ok(Self {
            capacity: capacity
                .with_disk(mebibytes(disk.f_blocks))
                .with_bandwidth(fastest_network()),
            // The host itself needs some: a sixteenth, at most 2 GiB.
            reserve: Amounts::new(0, (memory_mib / 16).min(2048)),
            // In whole GiB, so that it seldom changes across restarts.
            scratch_mib: mebibytes(disk.f_bavail) >> 10 << 10,
            last_boot: number_after(&boot, "btime")
                .and_then(|seconds| Some(Timestamp(i64::try_from(seconds).ok()?))),
            kernel: kernel.map(|kernel| kernel.trim().to_owned()),
            kvm: Path::new("/dev/kvm").exists(),
            is_virtual: processor.lines().any(|line| {
                line.starts_with("flags") && line.split(' ').any(|flag| flag == "hypervisor")
            }),
            driver,
            driver_needs_kvm,
        })
    }
}

/// The speed of the fastest network card; 0 if unknown, as in most virtual machines.
fn fastest_network() -> u32 {
    let cards = fs::read_dir("/sys/class/net").into_iter().flatten().flatten();
    let speed = |card: fs::DirEntry| fs::read_to_string(card.path().join("speed")).ok();
    // A card that is down reports -1.
    cards
        .filter_map(speed)
        .filter_map(|text| text.trim().parse().ok())
        .max()
        .map_or(0, clamp_amount)
}

fn number_after(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse().ok()
}

fn clamp_amount(number: u64) -> u32 {
    u32::try_from(number.min(u64::from(Amounts::MAX))).unwrap_or(Amounts::MAX)
}

fn collect(arguments: &FactArgs, machine: &Machine) -> anyhow::Result<NodeFacts> {
    let mut facts = match &arguments.facts {
        Some(path) => file::node(path)?,
        None => facts_of_machine(&arguments.node, machine),
    };
    if facts.id.as_str() != arguments.node {
        bail!(
            "the facts are of node {}, but the node of this agent is {}",
            facts.id,
            arguments.node
        );
    }
    let mut capacity = facts.capacity.unwrap_or_default();
    if let Some(cpu) = arguments.cpu {
        capacity.cpu_milli = cpu;
    }
    if let Some(memory) = arguments.memory {
        capacity.memory_mib = memory;
        // A given amount is meant to be used in full.
        facts.system_reserve.memory_mib = 0;
    }
    if let Some(disk) = arguments.disk {
        capacity.disk_mib = disk;
    }
    if let Some(bandwidth) = arguments.bandwidth {
        capacity.bandwidth_mbps = bandwidth;
    }
    facts.capacity = Some(capacity);
    facts.zone = arguments.zone.clone().or(facts.zone);
    facts.rack = arguments.rack.clone().or(facts.rack);
    facts.labels.extend(arguments.labels.iter().cloned());
    for text in &arguments.traits {
        let (name, value) = match text.split_once('=') {
            Some((name, value)) => (name, TraitValue::Text(value.to_owned())),
            None => (text.as_str(), TraitValue::Bool(true)),
        };
        facts.traits.insert(name.to_owned(), value);
    }
    facts.validate()?;
    Ok(facts)
}

fn facts_of_machine(node: &str, machine: &Machine) -> NodeFacts {
    let mut facts = NodeFacts::new(node, machine.capacity);
    facts.system_reserve = machine.reserve;
    facts.scratch_mib = machine.scratch_mib;
    facts.last_boot = machine.last_boot;
    facts.is_virtual = machine.is_virtual;
    // The engine places nothing on a node without KVM, which is wrong for a driver that needs none.
    // A label has what was detected: a trait would repel all instances that do not require it.
    facts.kvm = machine.kvm || !machine.driver_needs_kvm;
    facts.labels.insert("kvm".to_owned(), machine.kvm.to_string());
    facts.labels.insert("driver".to_owned(), machine.driver.to_owned());
    facts.labels.insert("arch".to_owned(), std::env::consts::ARCH.to_owned());
    if let Some(kernel) = &machine.kernel {
        facts.labels.insert("kernel".to_owned(), kernel.clone());
    }
    facts
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        facts: FactArgs,
    }

    #[test]
    fn sizes_may_have_units_and_cores_may_be_parts() {
        let parse = |flag: &str, value: &str| {
            Line::try_parse_from(["agent", "--node", "a", flag, value]).map(|line| line.facts)
        };
        assert_eq!(parse("--memory", "16GiB").unwrap().memory, Some(16_384));
        assert_eq!(parse("--disk", "100 MiB").unwrap().disk, Some(100));
        for wrong in ["GiB", "-1MiB", "99999999TiB", "1XB"] {
            assert!(parse("--memory", wrong).is_err(), "{wrong}");
        }
        assert_eq!(parse("--cpu", "8").unwrap().cpu, Some(8000));
        assert_eq!(parse("--cpu", "0.25").unwrap().cpu, Some(250));
        for wrong in ["0", "x", "1.", "-1", "99999999999"] {
            assert!(parse("--cpu", wrong).is_err(), "{wrong}");
        }
    }
}
