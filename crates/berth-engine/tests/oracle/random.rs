//! Numbers from seeds, and random nodes, groups and volumes.
//!
//! Everything is drawn from a seed of its own, so that leaving one thing out of a failing case
//! leaves the others as they were.

use berth_engine::affinity::{Strength, Topology};
use berth_engine::{
    Amounts, BootOutcome, CapacityType, CpuCapMode, Group, GroupKind, InstanceId, LinkState,
    MeasuredLoad, Network, NodeFacts, NodeId, NodeState, OtherUsage, Platform, PlatformVersion,
    Ratios, Timestamp, TraitValue, Volume,
};

/// When a case begins.
pub const START: Timestamp = Timestamp(1_700_000_000);

/// Splitmix64: small, seeded, good enough.
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub fn below(&mut self, bound: usize) -> usize {
        let drawn = self.next() % (bound.max(1) as u64);
        usize::try_from(drawn).expect("below a usize")
    }

    pub fn number(&mut self, low: u32, high: u32) -> u32 {
        let drawn = self.next() % u64::from(high - low + 1);
        low + u32::try_from(drawn).expect("below a u32")
    }

    pub fn chance(&mut self, percent: u64) -> bool {
        self.next() % 100 < percent
    }

    pub fn pick<T: Clone>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())].clone()
    }

    /// A moment around the start, some days before or after.
    pub fn moment(&mut self, days_before: u32, days_after: u32) -> Timestamp {
        let span = (days_before + days_after) * 86_400;
        START.plus(i64::from(self.number(0, span)) - i64::from(days_before) * Timestamp::DAY)
    }
}

pub const TENANTS: [&str; 2] = ["acme", "bolt"];
pub const WORKLOADS: [&str; 3] = ["web", "db", "cache"];
pub const IMAGES: [&str; 3] = ["img-a", "img-b", "img-c"];
pub const NAMES: [&str; 5] = ["web-1", "web-2", "db-1", "abcd1234", "00000000"];
pub const GROUPS: [&str; 4] = ["g0", "g1", "g2", "g3"];
pub const VOLUMES: [&str; 3] = ["v0", "v1", "v2"];
pub const ENVS: [&str; 2] = ["prod", "dev"];
pub const TRAITS: [&str; 2] = ["ssd", "arch"];
pub const TAGS: [&str; 3] = ["net-a", "net-b", "net-c"];

/// How often a fact is out of the ordinary, in percent. Zero gives fleets of equals, where ties
/// and rankings matter most.
#[derive(Clone, Copy, Debug)]
pub struct Wildness(pub u64);

impl Wildness {
    pub fn draw(seed: u64) -> Self {
        Self(Rng::new(seed).pick(&[0, 1, 2, 5, 15]))
    }
}

/// An id that may sort anywhere; two seeds in five hundred share one.
pub fn node_id(seed: u64) -> String {
    format!("n{:03x}", Rng::new(seed ^ 0x1d).next() % 512)
}

/// A node drawn from a seed.
pub fn node(seed: u64, wild: Wildness, now: Timestamp) -> NodeFacts {
    let mut rng = Rng::new(seed);
    let capacity = Amounts::new(rng.pick(&[4000, 8000]), rng.pick(&[4096, 8192]))
        .with_disk(rng.pick(&[40_000, 60_000]))
        .with_bandwidth(rng.pick(&[1000, 10_000]));
    let mut facts = NodeFacts::new(&node_id(seed), capacity);
    facts.heartbeat_at = now.plus(-i64::from(rng.number(0, 30)));
    facts.zone = rng.chance(85).then(|| rng.pick(&["z0", "z1", "z2"]).to_owned());
    facts.rack = rng.chance(85).then(|| rng.pick(&["r0", "r1", "r2"]).to_owned());
    if wild.0 == 0 {
        let alike = Amounts::new(8000, 8192).with_disk(60_000);
        facts.capacity = Some(alike.with_bandwidth(10_000));
        return facts;
    }
    facts.ratios.cpu_permille = rng.pick(&[1000, 1000, 2000]);
    if rng.chance(30) {
        facts.cached_images = vec![rng.pick(&IMAGES).to_owned()];
    }
    if rng.chance(20) {
        facts.extra.insert("gpu".to_owned(), rng.number(0, 4));
    }
    if rng.chance(20) {
        facts.instance_limit = rng.number(1, 4);
    }
    unusual_life(&mut rng, wild, now, &mut facts);
    unusual_size(&mut rng, wild, &mut facts);
    unusual_kind(&mut rng, wild, &mut facts);
    if rng.chance(60) {
        facts.load = Some(load(&mut rng));
    }
    facts
}

/// How busy a node is; not always in whole steps, which are a matter of who keeps it.
pub fn load(rng: &mut Rng) -> MeasuredLoad {
    let share = |rng: &mut Rng| u16::try_from(rng.number(0, 1000)).expect("small");
    MeasuredLoad { cpu_permille: share(rng), memory_permille: rng.chance(50).then(|| share(rng)) }
}

fn unusual_life(rng: &mut Rng, Wildness(odds): Wildness, now: Timestamp, facts: &mut NodeFacts) {
    if rng.chance(odds) {
        facts.state = state(rng);
    }
    if rng.chance(odds) {
        facts.heartbeat_at = now.plus(-i64::from(rng.number(50, 5000)));
    }
    if rng.chance(3 * odds) {
        facts.platform = Some(Platform {
            version: PlatformVersion::new(7, u16::try_from(rng.below(3)).expect("small")),
            built_at: rng.moment(20, 0),
        });
    }
    if rng.chance(3 * odds) {
        facts.next_reboot = Some(rng.moment(3, 25));
        facts.last_boot = rng.chance(30).then(|| rng.moment(20, 5));
    }
    if rng.chance(2 * odds) {
        let boots = rng.below(4);
        let boot = |rng: &mut Rng| {
            let at = now.plus(-i64::from(rng.number(0, 10_000)));
            BootOutcome::new(at, rng.chance(60))
        };
        facts.boots = (0..boots).map(|_| boot(rng)).collect();
        facts.boots.sort_by_key(|boot| boot.at);
    }
}

fn unusual_size(rng: &mut Rng, Wildness(odds): Wildness, facts: &mut NodeFacts) {
    if rng.chance(odds / 2) {
        facts.capacity = rng.chance(40).then(|| Amounts::new(0, 8192));
    }
    if rng.chance(odds) {
        facts.system_reserve = Amounts::new(rng.number(0, 2000), rng.number(0, 5000));
    }
    if rng.chance(odds) {
        facts.other = OtherUsage {
            cpu_milli: rng.number(0, 3000),
            memory_kib: u64::from(rng.number(0, 3_000_000)),
            cpu_unit_milli: rng.pick(&[1, 1000, 750]),
            memory_unit_mib: rng.pick(&[1, 1024]),
        };
    }
    if rng.chance(odds) {
        facts.ratios = ratios(rng);
    }
    if rng.chance(2 * odds) {
        facts.vmm_overhead_mib = rng.pick(&[0, 64, 100, 1000]);
    }
    if rng.chance(odds) {
        facts.extra.insert("tpu".to_owned(), rng.number(0, 2));
    }
    if rng.chance(odds / 2) {
        facts.watermarks.cpu_permille = rng.pick(&[0, 1001, 800]);
    }
}

fn unusual_kind(rng: &mut Rng, Wildness(odds): Wildness, facts: &mut NodeFacts) {
    facts.kvm = !rng.chance(odds / 2);
    facts.reserved = rng.chance(odds / 2);
    facts.headnode = rng.chance(odds / 2);
    facts.is_virtual = rng.chance(odds);
    facts.reservoir = rng.chance(odds);
    if rng.chance(2 * odds) {
        facts.capacity_type = CapacityType::Spot;
    }
    if rng.chance(odds) {
        facts.hardware_class = rng.pick(&[-3, 1, 2, 9]);
    }
    if rng.chance(odds) {
        facts.scratch_mib = rng.number(400, 600);
    }
    if rng.chance(odds) {
        facts.overlay_loss_ppm = rng.pick(&[1000, 1001, 60_000, 1_000_001]);
    }
    if rng.chance(3 * odds) {
        facts.cpu_cap_mode =
            rng.pick(&[CpuCapMode::Capped, CpuCapMode::Uncapped, CpuCapMode::Mixed]);
    }
    if rng.chance(odds) {
        let name = rng.pick(&TRAITS).to_owned();
        facts.traits.insert(name, trait_value(rng));
    }
    if rng.chance(3 * odds) {
        facts.networks = TAGS
            .iter()
            .map(|tag| Network {
                tag: (*tag).to_owned(),
                link: rng.pick(&[LinkState::Up, LinkState::Up, LinkState::Down]),
            })
            .collect();
    }
    if rng.chance(3 * odds) {
        let tier = rng.pick(&["gold", "silver"]).to_owned();
        facts.labels.insert("tier".to_owned(), tier);
    }
}

pub fn state(rng: &mut Rng) -> NodeState {
    rng.pick(&[
        NodeState::Joining,
        NodeState::Active,
        NodeState::Active,
        NodeState::Cordoned,
        NodeState::Draining,
        NodeState::Degraded,
        NodeState::Lost,
    ])
}

pub fn ratios(rng: &mut Rng) -> Ratios {
    Ratios {
        cpu_permille: rng.pick(&[1000, 1004, 1006, 4000, 0]),
        memory_permille: rng.pick(&[1000, 1000, 1333]),
        disk_permille: rng.pick(&[1000, 1500]),
    }
}

pub fn trait_value(rng: &mut Rng) -> TraitValue {
    match rng.below(4) {
        0 => TraitValue::Bool(true),
        1 => TraitValue::Bool(false),
        2 => TraitValue::Text("x86".to_owned()),
        _ => TraitValue::List(vec!["x86".to_owned(), "arm".to_owned()]),
    }
}

/// A group of this name with random rules.
pub fn group(id: &str, seed: u64) -> Group {
    let mut rng = Rng::new(seed);
    Group {
        id: id.to_owned(),
        tenant: None,
        kind: rng.pick(&[GroupKind::Together, GroupKind::Apart]),
        strength: rng.pick(&[Strength::Hard, Strength::Soft]),
        topology: rng.pick(&[Topology::Node, Topology::Node, Topology::Rack, Topology::Zone]),
        max_per_domain: rng.chance(50).then(|| rng.number(0, 4)),
    }
}

/// A volume of this name, on one of the nodes or on a node that is gone.
pub fn volume(id: &str, seed: u64, nodes: &[NodeFacts]) -> Volume {
    let mut rng = Rng::new(seed);
    let home = match nodes.len() {
        0 => NodeId::new("gone"),
        _ if rng.chance(10) => NodeId::new("gone"),
        count => nodes[rng.below(count)].id.clone(),
    };
    Volume {
        tenant: None,
        id: id.to_owned(),
        home,
        attached_to: rng.chance(5).then(|| InstanceId::from_u128(9)),
    }
}
