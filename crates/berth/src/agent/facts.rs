//! What a node is: found on the machine, read from a file, or said on the command line.

use std::fs;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use anyhow::{Context, bail};
use berth_api::engine::{Amounts, NodeFacts, NodeId, Timestamp, TraitValue};
use clap::Args;

use super::say::say;

/// What is said of the node. Whatever is not said is found on the machine.
#[derive(Args, Clone, Debug)]
pub(crate) struct FactArgs {
    /// The node's name.
    #[arg(long, value_name = "NAME")]
    pub(super) node: String,
    /// All facts, in TOML or JSON as in the API; nothing is looked for then. Read again every
    /// minute.
    #[arg(long, value_name = "FILE")]
    facts: Option<PathBuf>,
    /// The zone it is in.
    #[arg(long)]
    zone: Option<String>,
    /// The rack it is in.
    #[arg(long)]
    rack: Option<String>,
    /// A label. May be given several times.
    #[arg(long = "label", value_name = "KEY=VALUE", value_parser = pair)]
    labels: Vec<(String, String)>,
    /// A trait: a switch, or a word with `=`. May be given several times. Only instances that ask
    /// for it are placed there.
    #[arg(long = "trait", value_name = "KEY[=VALUE]")]
    traits: Vec<String>,
    /// Cores, such as 8 or 0.5.
    #[arg(long, value_name = "CORES", value_parser = cores)]
    cpu: Option<u32>,
    /// Memory, such as 16GiB.
    #[arg(long, value_name = "SIZE")]
    memory: Option<Mebibytes>,
    /// Disk, such as 100GiB.
    #[arg(long, value_name = "SIZE")]
    disk: Option<Mebibytes>,
    /// Megabits per second of the network.
    #[arg(long, value_name = "MBPS", value_parser = clap::value_parser!(u32).range(..=i64::from(Amounts::MAX)))]
    bandwidth: Option<u32>,
}

/// An amount of memory or disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Mebibytes(u32);

impl FromStr for Mebibytes {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wrong = || {
            format!(
                "{text:?} is no size; give a whole number with MiB, GiB or TiB, such as 16GiB, of \
                 at most {} MiB",
                Amounts::MAX
            )
        };
        let digits = text.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(text.len());
        let number: u64 = text[..digits].parse().map_err(|_| wrong())?;
        let unit: u64 = match text[digits..].trim() {
            "MiB" | "Mi" | "M" => 1,
            "GiB" | "Gi" | "G" => 1 << 10,
            "TiB" | "Ti" | "T" => 1 << 20,
            _ => return Err(wrong()),
        };
        let size = number.checked_mul(unit).filter(|size| *size <= u64::from(Amounts::MAX));
        Ok(Self(u32::try_from(size.ok_or_else(wrong)?).map_err(|_| wrong())?))
    }
}

/// Thousandths of a core from `8` or `0.5`.
fn cores(text: &str) -> Result<u32, String> {
    let wrong =
        || format!("{text:?} is no number of cores; give one above 0, such as 8, 0.5 or 1.25");
    let (whole, part) = text.split_once('.').unwrap_or((text, "0"));
    if part.is_empty() || part.len() > 3 || !part.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(wrong());
    }
    let thousandths: u32 = format!("{part:0<3}").parse().map_err(|_| wrong())?;
    let whole: u32 = whole.parse().map_err(|_| wrong())?;
    let milli = whole.checked_mul(1000).and_then(|whole| whole.checked_add(thousandths));
    milli.filter(|milli| (1..=Amounts::MAX).contains(milli)).ok_or_else(wrong)
}

fn pair(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err(format!("{text:?} is no label; give it as KEY=VALUE")),
    }
}

/// Where facts come from, and which of them the server knows.
pub(super) struct FactSource {
    arguments: FactArgs,
    machine: Machine,
    node: NodeId,
    current: NodeFacts,
    said: Option<NodeFacts>,
}

impl FactSource {
    /// Collects facts for the first time.
    pub(super) fn new(arguments: FactArgs, machine: Machine) -> anyhow::Result<Self> {
        let current = collect(&arguments, &machine)?;
        Ok(Self { node: current.id.clone(), arguments, machine, current, said: None })
    }

    /// The node.
    pub(super) const fn node(&self) -> &NodeId {
        &self.node
    }

    /// The facts.
    pub(super) const fn current(&self) -> &NodeFacts {
        &self.current
    }

    /// The facts, when the server was last told others.
    pub(super) fn changed(&self) -> Option<&NodeFacts> {
        (self.said.as_ref() != Some(&self.current)).then_some(&self.current)
    }

    /// The server was told.
    pub(super) fn said(&mut self) {
        self.said = Some(self.current.clone());
    }

    /// Collects facts anew. A file that cannot be read leaves them as they are.
    pub(super) fn look_again(&mut self) {
        match collect(&self.arguments, &self.machine) {
            Ok(facts) => self.current = facts,
            Err(error) => say!("the facts stay as they are: {error:#}"),
        }
    }
}

/// What was found on the machine.
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
    /// Looks at the machine. `folder` is on the disk that instances use.
    pub(super) fn find(
        folder: &Path,
        driver: &'static str,
        driver_needs_kvm: bool,
    ) -> anyhow::Result<Self> {
        let cores = std::thread::available_parallelism()?.get();
        let memory = fs::read_to_string("/proc/meminfo").context("/proc/meminfo")?;
        let memory = number_after(&memory, "MemTotal:").context("/proc/meminfo has no MemTotal")?;
        let memory_mib = clamped(memory >> 10);
        let disk = rustix::fs::statvfs(folder).context("the state directory's disk")?;
        let mebibytes = |blocks: u64| clamped(blocks.saturating_mul(disk.f_frsize) >> 20);
        let boot = fs::read_to_string("/proc/stat").unwrap_or_default();
        let processor = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").ok();
        let capacity = Amounts::new(clamped(cores as u64 * 1000), memory_mib);
        Ok(Self {
            capacity: capacity
                .with_disk(mebibytes(disk.f_blocks))
                .with_bandwidth(fastest_network()),
            // The host itself needs some; a sixteenth, as far as 2 GiB.
            reserve: Amounts::new(0, (memory_mib / 16).min(2048)),
            // In whole GiB, so that it is the same after a restart, more or less.
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

/// The speed of the fastest network card; 0 where none says, as in most virtual machines.
fn fastest_network() -> u32 {
    let cards = fs::read_dir("/sys/class/net").into_iter().flatten().flatten();
    let speed = |card: fs::DirEntry| fs::read_to_string(card.path().join("speed")).ok();
    // A card that is down says -1.
    cards.filter_map(speed).filter_map(|text| text.trim().parse().ok()).max().map_or(0, clamped)
}

fn number_after(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse().ok()
}

fn clamped(number: u64) -> u32 {
    u32::try_from(number.min(u64::from(Amounts::MAX))).unwrap_or(Amounts::MAX)
}

fn collect(arguments: &FactArgs, machine: &Machine) -> anyhow::Result<NodeFacts> {
    let mut facts = match &arguments.facts {
        Some(file) => read(file)?,
        None => found(&arguments.node, machine),
    };
    if facts.id.as_str() != arguments.node {
        bail!("the facts are of node {}, and this agent's is {}", facts.id, arguments.node);
    }
    let mut capacity = facts.capacity.unwrap_or_default();
    if let Some(cpu) = arguments.cpu {
        capacity.cpu_milli = cpu;
    }
    if let Some(Mebibytes(memory)) = arguments.memory {
        capacity.memory_mib = memory;
        // Who says how much there is means all of it.
        facts.system_reserve.memory_mib = 0;
    }
    if let Some(Mebibytes(disk)) = arguments.disk {
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

fn found(node: &str, machine: &Machine) -> NodeFacts {
    let mut facts = NodeFacts::new(node, machine.capacity);
    facts.system_reserve = machine.reserve;
    facts.scratch_mib = machine.scratch_mib;
    facts.last_boot = machine.last_boot;
    facts.is_virtual = machine.is_virtual;
    // To the engine, a node without KVM can boot nothing; with a driver that needs none, it can.
    // A label says what was found: a trait would keep away all who do not ask for it.
    facts.kvm = machine.kvm || !machine.driver_needs_kvm;
    facts.labels.insert("kvm".to_owned(), machine.kvm.to_string());
    facts.labels.insert("driver".to_owned(), machine.driver.to_owned());
    facts.labels.insert("arch".to_owned(), std::env::consts::ARCH.to_owned());
    if let Some(kernel) = &machine.kernel {
        facts.labels.insert("kernel".to_owned(), kernel.clone());
    }
    facts
}

fn read(file: &Path) -> anyhow::Result<NodeFacts> {
    let shown = file.display();
    let text = fs::read_to_string(file).with_context(|| format!("{shown} cannot be read"))?;
    let facts = if file.extension().is_some_and(|extension| extension == "json") {
        serde_json::from_str(&text).map_err(anyhow::Error::new)
    } else {
        toml::from_str(&text).map_err(anyhow::Error::new)
    };
    facts.with_context(|| format!("{shown} does not hold facts of a node"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_need_a_unit_and_cores_may_be_parts() {
        assert_eq!("16GiB".parse(), Ok(Mebibytes(16_384)));
        assert_eq!("100 MiB".parse(), Ok(Mebibytes(100)));
        for wrong in ["16", "GiB", "1.5GiB", "-1MiB", "99999999TiB", "1KB"] {
            assert!(wrong.parse::<Mebibytes>().is_err(), "{wrong}");
        }
        assert_eq!(cores("8"), Ok(8000));
        assert_eq!(cores("0.25"), Ok(250));
        for wrong in ["0", "x", "1.", "1.2345", "-1", "99999999999"] {
            assert!(cores(wrong).is_err(), "{wrong}");
        }
    }
}
