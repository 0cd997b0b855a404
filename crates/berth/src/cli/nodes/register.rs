//! `berth nodes register`: one node, from flags or from a file.

use std::path::PathBuf;

use berth_api::Node;
use berth_api::engine::{Amounts, CapacityType, LinkState, Network, NodeFacts, TraitValue};
use clap::{ArgGroup, Args};

use crate::cli::resource::path_of;
use crate::cmdutil::{CmdResult, Failure, RawJson, Session, args, file};

const EXAMPLES: &str = "\
Examples:
  berth nodes register host-1 --cpu 32 --memory 128GiB --disk 2TiB --zone z1 --rack r1 --trait ssd
  berth nodes register -f host-1.yaml

An agent registers its node by itself; see berth agent --help.";

#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
#[command(group = ArgGroup::new("source").required(true).multiple(true).args(["name", "file"]))]
pub(crate) struct RegisterArgs {
    /// Name of the node.
    name: Option<String>,
    /// All facts of the node, in JSON, YAML or TOML; `-` reads standard input.
    #[arg(long, short, value_name = "FILE")]
    file: Option<PathBuf>,
    /// Cores.
    #[arg(long, value_parser = args::cpu_capacity, value_name = "CORES")]
    cpu: Option<u32>,
    /// Memory.
    #[arg(long, value_parser = args::size_capacity, value_name = "SIZE")]
    memory: Option<u32>,
    /// Local disk.
    #[arg(long, value_parser = args::size_capacity, value_name = "SIZE")]
    disk: Option<u32>,
    /// Bandwidth.
    #[arg(long, value_parser = args::bandwidth_capacity, value_name = "RATE")]
    bandwidth: Option<u32>,
    /// Extra resource and its amount, such as gpu=1; may be repeated.
    #[arg(long, value_parser = args::class, value_name = "CLASS=N")]
    extra: Vec<(String, u32)>,
    /// Zone.
    #[arg(long)]
    zone: Option<String>,
    /// Rack within the zone.
    #[arg(long)]
    rack: Option<String>,
    /// Label; may be repeated.
    #[arg(long = "label", value_parser = args::pair, value_name = "KEY=VALUE")]
    labels: Vec<(String, String)>,
    /// Trait; may be repeated.
    #[arg(long = "trait", value_parser = args::trait_value, value_name = "NAME[=VALUE]")]
    traits: Vec<(String, TraitValue)>,
    /// Network that is up; may be repeated.
    #[arg(long = "network", value_name = "NETWORK")]
    networks: Vec<String>,
    /// Capacity type: spot or on-demand.
    #[arg(long, value_parser = args::api_value::<CapacityType>("spot or on-demand"), value_name = "TYPE")]
    capacity: Option<CapacityType>,
}

impl RegisterArgs {
    fn facts(&self) -> CmdResult<NodeFacts> {
        let mut facts = match (&self.file, &self.name) {
            (Some(path), _) => file::node(path)?,
            (None, Some(name)) => NodeFacts::new(name, Amounts::default()),
            (None, None) => {
                return Err(Failure::usage("no node is given").accepted("a name, or -f FILE"));
            }
        };
        if let Some(name) = &self.name {
            facts.id = name.as_str().into();
        }
        let mut capacity = facts.capacity.unwrap_or_default();
        capacity.cpu_milli = self.cpu.unwrap_or(capacity.cpu_milli);
        capacity.memory_mib = self.memory.unwrap_or(capacity.memory_mib);
        capacity.disk_mib = self.disk.unwrap_or(capacity.disk_mib);
        capacity.bandwidth_mbps = self.bandwidth.unwrap_or(capacity.bandwidth_mbps);
        if self.file.is_none() && (capacity.cpu_milli == 0 || capacity.memory_mib == 0) {
            return Err(Failure::usage("the capacity of the node is not given")
                .accepted("--cpu and --memory, such as --cpu 32 --memory 128GiB"));
        }
        if capacity != Amounts::default() {
            facts.capacity = Some(capacity);
        }
        facts.extra.extend(self.extra.iter().cloned());
        facts.labels.extend(self.labels.iter().cloned());
        facts.traits.extend(self.traits.iter().cloned());
        let up = |tag: &String| Network { tag: tag.clone(), link: LinkState::Up };
        facts.networks.extend(self.networks.iter().map(up));
        facts.zone = self.zone.clone().or(facts.zone);
        facts.rack = self.rack.clone().or(facts.rack);
        facts.capacity_type = self.capacity.unwrap_or(facts.capacity_type);
        Ok(facts)
    }

    pub(crate) async fn run(self, session: &Session) -> CmdResult {
        let facts = self.facts()?;
        let raw: RawJson = session.client.put(&path_of::<Node>(facts.id.as_str()), &facts).await?;
        if session.out.quiet && !session.out.is_data() {
            session.out.line(facts.id.as_str());
            return Ok(());
        }
        session.print::<Node>(&raw)
    }
}
