//! A fleet in racks and zones, and requests for it.
//!
//! A fleet has zones and racks, five hardware shapes, traits, networks, platforms, planned reboots
//! and images, and nodes about half full. The request shapes have hard and soft groups, affinity
//! rules, locality hints, platforms, networks, traits, further classes and images.

use berth_engine::affinity::{AffinityError, Rule, Strength, Topology};
use berth_engine::elastic::InvalidPermitRequest;
use berth_engine::{
    Amounts, BootOutcome, CapacityType, ClaimError, Fleet, Group, GroupKind, Hint, InstanceId,
    InstanceRequest, InvalidNode, InvalidRequest, LinkState, Locality, Network, NodeFacts, NodeId,
    Platform, PlatformVersion, Timestamp, TraitValue,
};

use thiserror::Error;

/// A simulation that could not be set up; except for `Full`, a defect of this crate.
#[derive(Debug, Error)]
pub enum SimulationError {
    /// A node that cannot be stored.
    #[error("the simulated node cannot be stored")]
    Node(#[from] InvalidNode),
    /// An instance that cannot be claimed.
    #[error("the simulated instance cannot be claimed")]
    Claim(#[from] ClaimError),
    /// A rule that cannot be read.
    #[error("the simulated rule cannot be read")]
    Rule(#[from] AffinityError),
    /// A request that is not valid.
    #[error("the simulated request is not valid")]
    Request(#[from] InvalidRequest),
    /// A permit request that is not valid.
    #[error("the simulated permit request is not valid")]
    PermitRequest(#[from] InvalidPermitRequest),
    /// The fleet cannot hold the instances at the start.
    #[error("the simulated fleet has no place for instance {0}; use more nodes, or a lower fill")]
    Full(u32),
}

/// The time of all generated fleets: 2026-01-01.
pub const NOW: Timestamp = Timestamp(1_767_225_600);

const NODES_PER_RACK: u64 = 40;
const ZONES: u64 = 3;
const TENANTS: u64 = 50;
const IMAGES: u64 = 40;

/// A small deterministic random number generator: the same numbers on every machine.
pub struct SeededRng(u64);

impl SeededRng {
    /// A generator with this seed.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next number.
    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `bound`.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.draw() % bound.max(1)
    }

    pub(crate) fn below_u32(&mut self, bound: u32) -> u32 {
        u32::try_from(self.below(u64::from(bound))).unwrap_or(0)
    }

    pub(crate) fn one_in(&mut self, chances: u64) -> bool {
        self.below(chances) == 0
    }
}

/// Nodes `0..nodes`, empty.
pub fn add_nodes(fleet: &mut Fleet, nodes: u64, seed: u64) -> Result<(), SimulationError> {
    let mut rng = SeededRng::new(seed);
    for number in 0..nodes {
        fleet.add_node(&node(number, &mut rng, NOW))?;
    }
    Ok(())
}

/// The facts of nodes `0..nodes`, as agents would report them at that time.
#[must_use]
pub fn nodes_at(nodes: u64, seed: u64, at: Timestamp) -> Vec<NodeFacts> {
    let mut rng = SeededRng::new(seed);
    (0..nodes).map(|number| node(number, &mut rng, at)).collect()
}

/// The name of a node.
pub fn node_id(number: u64) -> NodeId {
    NodeId::from(format!("node-{number:06}"))
}

fn node(number: u64, rng: &mut SeededRng, now: Timestamp) -> NodeFacts {
    let shapes = [(16, 64), (32, 128), (64, 256), (96, 384), (64, 512)];
    let (cores, memory_gib) = shapes[usize::try_from(rng.below(5)).unwrap_or(0)];
    let capacity = Amounts::new(cores * 1000, memory_gib * 1024)
        .with_disk(cores * 64 * 1024)
        .with_bandwidth(25_000);
    let mut facts = NodeFacts::new(node_id(number).as_str(), capacity);
    let rack = number / NODES_PER_RACK;
    facts.zone = Some(format!("zone-{}", rack % ZONES));
    facts.rack = Some(format!("rack-{rack:04}"));
    facts.heartbeat_at = now.plus(-i64::from(rng.below_u32(20)));
    facts.system_reserve = Amounts::new(1000, 2048);
    facts.labels.insert("hall".to_owned(), format!("h{}", rack % 7));
    if rng.one_in(10) {
        facts.traits.insert("ssd".to_owned(), TraitValue::Bool(true));
    }
    if rng.one_in(10) {
        facts.capacity_type = CapacityType::Spot;
    }
    if rng.one_in(20) {
        facts.extra.insert("gpu".to_owned(), 8);
    }
    let network = |tag: &str, up: bool| Network {
        tag: tag.to_owned(),
        link: if up { LinkState::Up } else { LinkState::Down },
    };
    let storage_up = !rng.one_in(20);
    facts.networks = vec![network("external", true), network("storage", storage_up)];
    let days_old = i64::from(rng.below_u32(400));
    facts.platform = Some(Platform {
        version: PlatformVersion::new(7, if days_old < 200 { 1 } else { 0 }),
        built_at: now.plus(-days_old * Timestamp::DAY),
    });
    facts.last_boot = Some(now.plus(-days_old * Timestamp::DAY / 2));
    if rng.one_in(4) {
        facts.next_reboot = Some(now.plus(i64::from(rng.below_u32(90)) * Timestamp::DAY));
    }
    facts.hardware_class = i32::try_from(rng.below(4)).unwrap_or(0);
    let image = |rng: &mut SeededRng| format!("image-{}", rng.below(IMAGES));
    facts.cached_images = vec![image(rng), image(rng)];
    facts.cached_images.dedup();
    if rng.one_in(50) {
        let failed_at = now.plus(-i64::from(rng.below_u32(7200)));
        facts.boots = vec![BootOutcome::new(failed_at, true)];
    }
    facts.reserved = rng.one_in(100);
    facts
}

/// Fills every node to about half of its memory. Returns how many instances that took.
pub fn fill_half(fleet: &mut Fleet, nodes: u64, seed: u64) -> Result<u64, SimulationError> {
    let mut rng = SeededRng::new(seed ^ 0xf111);
    let mut instances = 0;
    for number in 0..nodes {
        let id = node_id(number);
        let Some(facts) = fleet.node(&id) else { continue };
        let memory = u64::from(facts.capacity.unwrap_or_default().memory_mib);
        let target = memory * (40 + rng.below(20)) / 100;
        let mut used = 0;
        while used < target {
            let request = initial_instance(instances, nodes, &mut rng);
            used += u64::from(request.resources.memory_mib) + 64;
            fleet.claim(&request, &id)?;
            instances += 1;
        }
    }
    Ok(instances)
}

/// An instance of the initial fill: one of about thirty replicas, scattered over the fleet.
fn initial_instance(number: u64, nodes: u64, rng: &mut SeededRng) -> InstanceRequest {
    let workload = rng.below(nodes / 3);
    let cores = 1u32 << (workload % 4);
    let mut request = InstanceRequest::new(
        InstanceId::from_u128(u128::from(number) + 1),
        &format!("owner-{}", workload % TENANTS),
        Amounts::new(cores * 1000, cores * 4096).with_disk(cores * 8192).with_bandwidth(100),
    );
    let role = ["web", "db", "cache", "job"][(workload % 4) as usize];
    request.workload = Some(format!("workload-{workload}"));
    request.tags.insert("role".to_owned(), role.to_owned());
    request.tags.insert("app".to_owned(), format!("app-{}", workload / 2));
    request.image = Some(format!("image-{}", workload % IMAGES));
    request
}

/// The groups that [`shapes`] use.
pub fn add_groups(fleet: &mut Fleet) {
    let group = |id: &str, kind, strength, topology, max_per_domain| Group {
        id: id.to_owned(),
        tenant: None,
        kind,
        strength,
        topology,
        max_per_domain,
    };
    for group in [
        group("apart-node", GroupKind::Apart, Strength::Hard, Topology::Node, None),
        group("two-per-rack", GroupKind::Apart, Strength::Hard, Topology::Rack, Some(2)),
        group("soft-apart", GroupKind::Apart, Strength::Soft, Topology::Node, None),
        group("together-zone", GroupKind::Together, Strength::Hard, Topology::Zone, None),
        group("soft-together", GroupKind::Together, Strength::Soft, Topology::Node, None),
    ] {
        fleet.put_group(group);
    }
}

/// The request shapes of the benchmark. An id and nothing else distinguishes two requests of the
/// same shape.
pub fn shapes() -> Result<Vec<InstanceRequest>, SimulationError> {
    let mut shapes = Vec::new();
    for number in 0..24u32 {
        let cores = 1 << (number % 4);
        let mut request = InstanceRequest::new(
            InstanceId::default(),
            &format!("owner-{}", number % 10),
            Amounts::new(cores * 1000, cores * (2048 << (number % 3))).with_disk(cores * 10_240),
        );
        request.workload = Some(format!("bench-{number}"));
        request.image = Some(format!("image-{}", number % 20));
        request.tags.insert("role".to_owned(), "web".to_owned());
        request.tags.insert("shape".to_owned(), format!("s{number}"));
        add_special_rule(&mut request, number)?;
        shapes.push(request);
    }
    Ok(shapes)
}

/// Adds a special rule to most shapes, as in a mixed fleet.
fn add_special_rule(request: &mut InstanceRequest, number: u32) -> Result<(), SimulationError> {
    match number {
        1 => request.groups = vec!["apart-node".to_owned()],
        3 => request.affinity = vec![Rule::parse("role!=~db")?],
        4 => request.networks = vec![vec!["external".to_owned()], vec!["storage".to_owned()]],
        5 => request.capacity_type = Some(CapacityType::Spot),
        6 => drop(request.traits.insert("ssd".to_owned(), TraitValue::Bool(true))),
        7 => request.groups = vec!["soft-apart".to_owned()],
        9 => drop(request.extra.insert("gpu".to_owned(), 1)),
        10 => request.resources.bandwidth_mbps = 500,
        11 => request.groups = vec!["two-per-rack".to_owned()],
        13 => {
            let oldest = NOW.plus(-180 * Timestamp::DAY);
            request.platform.min.insert(PlatformVersion::new(7, 0), oldest);
        }
        14 => request.affinity = vec![Rule::parse("shape!=s14")?],
        15 => {
            request.locality = Locality {
                near: Vec::new(),
                far: vec![Hint::Tag("role".to_owned(), "db".to_owned())],
                strict: false,
            };
        }
        17 => request.groups = vec!["together-zone".to_owned()],
        18 => request.affinity = vec![Rule::parse("role==~web*@rack")?],
        19 => request.exclude_virtual = true,
        21 => request.groups = vec!["soft-together".to_owned()],
        22 => request.priority = 10,
        _ => {}
    }
    Ok(())
}
