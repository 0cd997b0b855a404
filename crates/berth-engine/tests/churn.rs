//! A ranking that is repaired says what a scan says, whatever comes and goes.
//!
//! Few nodes, a handful of classes and almost nothing but claims and releases: every change meets
//! rankings that have seen the ones before it, and the last instance of a tag, group or workload
//! comes and goes often.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that panics has failed")]

mod oracle;

use berth_engine::affinity::{Rule, Strength, Topology};
use berth_engine::policy::Policy;
use berth_engine::{
    Amounts, Batch, BootOutcome, CpuCapMode, Engine, Group, GroupKind, Hint, InstanceId,
    InstanceRequest, Locality, NodeFacts, NodeId, NodeState, Reuse, Timestamp,
};
use oracle::config;
use oracle::random::START;
use proptest::bool::weighted as chance;
use proptest::collection::vec;
use proptest::option::weighted;
use proptest::prelude::{Just, Strategy, any, prop_assert_eq, prop_oneof, proptest};
use proptest::sample::{Index, select};
use proptest::test_runner::TestCaseError;

const RULES: [&str; 10] = [
    "role==~x",
    "role!=~y",
    "role!=x",
    "role==y",
    "workload!=~w*",
    "workload!=w1",
    "role!=~x@rack",
    "role!=y@rack",
    "image!=i",
    "instance!=named",
];

const GROUPS: [(&str, GroupKind, Strength); 4] = [
    ("soft-apart", GroupKind::Apart, Strength::Soft),
    ("hard-apart", GroupKind::Apart, Strength::Hard),
    ("soft-together", GroupKind::Together, Strength::Soft),
    ("hard-together", GroupKind::Together, Strength::Hard),
];

/// Everything that neighbours can add to a total.
const SOCIABLE: &str = "
name = 'sociable'
[options]
owner_spread = true
[scores]
spread-racks = 10
fewest-of-owner = 5
spread-zones = 3
spread-nodes = 4
affinity = 5
locality = 5
memory-pack = 3
next-reboot = 2
recent-failures = 2
newest-platform = 1
image-cached = 2
";

/// A built-in policy, or the sociable one.
fn policy(name: &str) -> Policy {
    Policy::builtin(name).or_else(|_| Policy::from_toml(SOCIABLE)).expect("a policy")
}

fn name_of(place: usize) -> NodeId {
    NodeId::new(&format!("n{place:02}"))
}

/// A node without a name; the name is its place in the fleet.
fn nodes() -> impl Strategy<Value = NodeFacts> {
    let domains =
        (weighted(0.7, select(&["z1", "z2"])), weighted(0.7, select(&["r1", "r2", "r3"])));
    let limits = (select(&[4, 20]), select(&[CpuCapMode::Mixed, CpuCapMode::Uniform]));
    let facts = (weighted(0.3, 0..2_000_000i64), any::<bool>(), weighted(0.3, Just(2)));
    (domains, limits, facts, weighted(0.2, 0..300i64)).prop_map(
        |((zone, rack), (limit, mode), (reboot, has_image, gpus), failure)| NodeFacts {
            heartbeat_at: START,
            zone: zone.map(str::to_owned),
            rack: rack.map(str::to_owned),
            instance_limit: limit,
            cpu_cap_mode: mode,
            next_reboot: reboot.map(|seconds| START.plus(seconds)),
            cached_images: if has_image { vec!["i".to_owned()] } else { Vec::new() },
            extra: gpus.into_iter().map(|count| ("gpu".to_owned(), count)).collect(),
            boots: failure
                .map(|age| BootOutcome::new(START.plus(-age), true))
                .into_iter()
                .collect(),
            ..NodeFacts::new("unnamed", Amounts::new(16_000, 20_000).with_disk(100_000))
        },
    )
}

/// A request without an id: a class.
fn classes() -> impl Strategy<Value = InstanceRequest> {
    let who = (select(&["a", "a", "b"]), weighted(0.7, select(&["w1", "w2"])));
    let size = (select(&[100, 4000]), select(&[500, 3000]), weighted(0.2, Just(1)));
    let looks = (weighted(0.5, select(&["x", "y"])), weighted(0.3, Just("i")), chance(0.2));
    let ties = (vec(select(&RULES), 0..=1), weighted(0.3, select(&GROUPS)), hints());
    (who, size, looks, ties).prop_map(
        |(
            (tenant, workload),
            (cpu, memory, gpus),
            (role, image, capped),
            (rules, group, hints),
        )| {
            let nobody = InstanceId::from_u128(0);
            let role = role.map(|role| ("role".to_owned(), role.to_owned()));
            InstanceRequest {
                workload: workload.map(str::to_owned),
                extra: gpus.into_iter().map(|count| ("gpu".to_owned(), count)).collect(),
                tags: role.into_iter().collect(),
                image: image.map(str::to_owned),
                cpu_capped: capped,
                affinity: rules.into_iter().map(|text| Rule::parse(text).unwrap()).collect(),
                groups: group.into_iter().map(|(id, ..)| id.to_owned()).collect(),
                locality: hints.unwrap_or_default(),
                ..InstanceRequest::new(nobody, tenant, Amounts::new(cpu, memory))
            }
        },
    )
}

fn hints() -> impl Strategy<Value = Option<Locality>> {
    let role = |role: &str| Hint::Tag("role".to_owned(), role.to_owned());
    let tagged = select(vec![role("x"), role("y")]);
    let named = (1..20u128).prop_map(|number| Hint::Instance(InstanceId::from_u128(number)));
    let hint = prop_oneof![3 => tagged, 1 => named].boxed();
    let locality = (vec(hint.clone(), 0..=1), vec(hint, 0..=2), chance(0.15));
    let locality = locality.prop_map(|(near, far, strict)| Locality { near, far, strict });
    weighted(0.5, locality)
}

/// What happens next.
#[derive(Clone, Debug)]
enum Change {
    Nothing,
    /// An instance of a class comes to a node, whether it should or not.
    Come(Index, Index),
    /// An instance leaves.
    Go(Index),
    /// Three of a class are placed together and not claimed.
    Batch(Index),
    /// A node is cordoned or taken back.
    Cordon(Index, bool),
    /// Seconds pass, and all nodes but one are heard of.
    Pass(i64, Index),
    /// A boot ends.
    Boot(Index, bool),
}

/// A change, and the class that is asked for after it; it may be claimed where it should go. About
/// as many come as go, so that there are often none or one of a kind.
type Step = (Change, Index, bool);

fn steps() -> impl Strategy<Value = Step> {
    let index = any::<Index>;
    let change = prop_oneof![
        60 => Just(Change::Nothing),
        30 => (index(), index()).prop_map(|(class, node)| Change::Come(class, node)),
        75 => index().prop_map(Change::Go),
        12 => index().prop_map(Change::Batch),
        1 => (index(), any::<bool>()).prop_map(|(node, out)| Change::Cordon(node, out)),
        1 => (select(&[1, 30, 61, 100]), index()).prop_map(|(span, node)| Change::Pass(span, node)),
        1 => (index(), any::<bool>()).prop_map(|(node, failed)| Change::Boot(node, failed)),
    ];
    (change, index(), chance(0.3))
}

/// A fleet, the classes in it, and what happens.
#[derive(Clone, Debug)]
struct Case {
    policy: &'static str,
    nodes: Vec<NodeFacts>,
    classes: Vec<InstanceRequest>,
    most_per_domain: Option<u32>,
    steps: Vec<Step>,
}

fn cases(
    nodes: impl Strategy<Value = Vec<NodeFacts>>,
    most_steps: usize,
) -> impl Strategy<Value = Case> {
    let classes = vec(classes(), 1..=5);
    let most = weighted(0.5, Just(2));
    let policies = select(&["balanced", "pack", "spread", "neon", "sociable"]);
    (policies, nodes, classes, most, vec(steps(), 1..=most_steps)).prop_map(
        |(policy, nodes, classes, most_per_domain, steps)| Case {
            policy,
            nodes,
            classes,
            most_per_domain,
            steps,
        },
    )
}

fn few_nodes() -> impl Strategy<Value = Vec<NodeFacts>> {
    vec(nodes(), 3..=4)
}

/// More nodes than a block of columns holds, alike but for a few, in two zones of three racks.
fn two_zones() -> impl Strategy<Value = Vec<NodeFacts>> {
    vec(nodes(), 1..=4).prop_map(|kinds| {
        let kind = |place: usize| {
            kinds[if place.is_multiple_of(9) { place % kinds.len() } else { 0 }].clone()
        };
        let node = |place: usize| NodeFacts {
            zone: Some(format!("z{}", place % 2)),
            rack: Some(format!("r{}", place % 3)),
            ..kind(place)
        };
        (0..70).map(node).collect()
    })
}

/// A case under way.
struct Run<'a> {
    engine: Engine,
    case: &'a Case,
    now: Timestamp,
    placed: Vec<InstanceId>,
    /// The number of the newest instance.
    number: u128,
}

impl<'a> Run<'a> {
    fn start(case: &'a Case) -> Self {
        let mut engine = Engine::new(policy(case.policy));
        for (id, kind, strength) in GROUPS {
            engine.fleet_mut().put_group(Group {
                id: id.to_owned(),
                tenant: None,
                kind,
                strength,
                topology: Topology::Node,
                max_per_domain: case.most_per_domain,
            });
        }
        for (place, facts) in case.nodes.iter().enumerate() {
            let facts = NodeFacts { id: name_of(place), ..facts.clone() };
            engine.fleet_mut().add_node(&facts).expect("storable facts");
        }
        Self { engine, case, now: START, placed: Vec::new(), number: 0 }
    }

    fn node(&self, which: &Index) -> NodeId {
        name_of(which.index(self.case.nodes.len()))
    }

    /// The next instance of a class; every seventh has the name that a rule asks for.
    fn next(&mut self, class: &Index) -> InstanceRequest {
        self.number += 1;
        InstanceRequest {
            id: InstanceId::from_u128(self.number),
            name: self.number.is_multiple_of(7).then(|| "named".to_owned()),
            ..class.get(&self.case.classes).clone()
        }
    }

    fn claim(&mut self, request: &InstanceRequest, node: &NodeId) {
        self.engine.fleet_mut().claim(request, node).expect("a known node and a new instance");
        self.placed.push(request.id);
    }

    fn change(&mut self, change: &Change) {
        match change {
            Change::Nothing => {}
            Change::Come(class, node) => {
                let (request, node) = (self.next(class), self.node(node));
                self.claim(&request, &node);
            }
            Change::Go(_) if self.placed.is_empty() => {}
            Change::Go(which) => {
                let id = self.placed.swap_remove(which.index(self.placed.len()));
                self.engine.fleet_mut().release(id);
            }
            Change::Batch(class) => {
                let requests = (0..3).map(|_| self.next(class)).collect();
                let batch = Batch { search_budget: 30, ..Batch::new(requests) };
                self.engine.place_batch(&batch, self.now).expect("valid requests");
            }
            Change::Cordon(node, out) => {
                let state = if *out { NodeState::Cordoned } else { NodeState::Active };
                let node = self.node(node);
                self.engine.fleet_mut().set_state(&node, state);
            }
            Change::Pass(seconds, silent) => {
                self.now = self.now.plus(*seconds);
                let silent = self.node(silent);
                let heard = (0..self.case.nodes.len()).map(name_of).filter(|id| *id != silent);
                for id in heard {
                    self.engine.fleet_mut().heartbeat(&id, self.now);
                }
            }
            Change::Boot(node, failed) => {
                let (node, outcome) = (self.node(node), BootOutcome::new(self.now, *failed));
                self.engine.fleet_mut().record_boot(&node, outcome);
            }
        }
    }

    fn answer(&mut self, request: &InstanceRequest, reuse: Reuse) -> Option<(NodeId, i64)> {
        let placed = self.engine.place_with(request, self.now, reuse).ok();
        placed.map(|placed| (placed.node, placed.score))
    }

    fn step(&mut self, (change, asked, is_claimed): &Step) -> Result<(), TestCaseError> {
        self.change(change);
        let request = self.next(asked);
        let ranked = self.answer(&request, Reuse::Ranking);
        let scanned = self.answer(&request, Reuse::Mask);
        prop_assert_eq!(&ranked, &scanned, "after {:?} for {:?}", change, request);
        if let (Some((node, _)), true) = (ranked, is_claimed) {
            self.claim(&request, &node);
        }
        Ok(())
    }

    /// In the end, an engine that has seen nothing of all this says the same of every class.
    fn end(mut self) -> Result<(), TestCaseError> {
        for class in &self.case.classes {
            let request = InstanceRequest { id: InstanceId::from_u128(0), ..class.clone() };
            let ranked = self.answer(&request, Reuse::Ranking);
            let fleet = self.engine.fleet().clone();
            let mut fresh = Engine::with_fleet(fleet, policy(self.case.policy));
            let scanned = fresh.place_with(&request, self.now, Reuse::Nothing).ok();
            prop_assert_eq!(ranked, scanned.map(|placed| (placed.node, placed.score)));
        }
        Ok(())
    }
}

fn run(case: &Case) -> Result<(), TestCaseError> {
    let mut run = Run::start(case);
    for step in &case.steps {
        run.step(step)?;
    }
    run.end()
}

proptest! {
    #![proptest_config(config("proptest-regressions/churn.txt", 300))]

    #[test]
    fn rankings_and_scans_agree_on_a_few_busy_nodes(case in cases(few_nodes(), 150)) {
        run(&case)?;
    }
}

proptest! {
    #![proptest_config(config("proptest-regressions/churn_zones.txt", 60))]

    #[test]
    fn rankings_and_scans_agree_over_zones_and_racks(case in cases(two_zones(), 150)) {
        run(&case)?;
    }
}
