//! The engine and a plain oracle agree on every decision, whatever happened before it.
//!
//! A case is a policy, a fleet and a sequence of steps, each drawn from a seed of its own, so that
//! a failing case shrinks to the few nodes and steps that matter.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that panics has failed")]

mod oracle;

use berth_engine::affinity::{Strength, Topology};
use berth_engine::filter::FILTERS;
use berth_engine::{
    Amounts, BootOutcome, Group, GroupKind, InstanceRequest, NodeFacts, NodeId, NodeState, Policy,
    Reuse, Timestamp,
};
use oracle::policies::policy;
use oracle::random::{ENVS, GROUPS, Rng, VOLUMES, Wildness, group, load, node, state, volume};
use oracle::requests::{instance_id, request};
use oracle::twin::Twin;
use oracle::{config, filters};
use proptest::collection::vec;
use proptest::prelude::{Strategy, any, proptest};
use proptest::test_runner::TestCaseError;

/// Seeds of everything.
#[derive(Clone, Debug)]
struct Case {
    setting: u64,
    nodes: Vec<u64>,
    shapes: Vec<u64>,
    residents: Vec<u64>,
    steps: Vec<u64>,
}

fn cases(most_nodes: usize) -> impl Strategy<Value = Case> {
    let seed = || any::<u64>().no_shrink();
    let nodes = (1..=most_nodes).prop_flat_map(move |count| vec(seed(), 1..=count));
    (seed(), nodes, vec(seed(), 1..=4), vec(seed(), 0..=20), vec(seed(), 10..=40)).prop_map(
        |(setting, nodes, shapes, residents, steps)| Case {
            setting,
            nodes,
            shapes,
            residents,
            steps,
        },
    )
}

/// A case under way.
struct Run {
    twin: Twin,
    wild: Wildness,
    shapes: Vec<u64>,
    /// Instances so far; each gets the next number.
    number: u64,
}

impl Run {
    fn start(case: &Case) -> Self {
        let wild = Wildness::draw(case.setting);
        let mut twin = Twin::new(policy(case.setting ^ 0xb0));
        for seed in &case.nodes {
            twin.add_node(&node(*seed, wild, twin.now));
        }
        twin.furnish(case.setting);
        let mut run = Self { twin, wild, shapes: case.shapes.clone(), number: 0 };
        for seed in &case.residents {
            run.settle(&mut Rng::new(*seed));
        }
        run
    }

    /// A shape of this case, or now and then one of its own.
    fn shape(&self, rng: &mut Rng) -> u64 {
        if rng.chance(10) { rng.next() } else { rng.pick(&self.shapes) }
    }

    /// An instance that is simply there, whether it should be or not.
    fn settle(&mut self, rng: &mut Rng) {
        let request = request(self.shape(rng), self.number, self.wild);
        self.number += 1;
        let node = self.some_node(rng).id;
        self.twin.claim(&request, &node);
    }

    fn some_node(&self, rng: &mut Rng) -> NodeFacts {
        rng.pick(&self.twin.world.nodes)
    }

    fn step(&mut self, seed: u64) -> Result<(), String> {
        let mut rng = Rng::new(seed);
        match rng.below(100) {
            0..50 => self.place(&mut rng)?,
            50..58 => self.release(&mut rng),
            58..62 => self.change_node(&mut rng),
            62..65 => self.move_node(&mut rng),
            65..69 => self.empty_and_remove(&mut rng),
            69..74 => {
                for _ in 0..=rng.below(4) {
                    let facts = node(rng.next(), self.wild, self.twin.now);
                    self.twin.add_node(&facts);
                }
            }
            74..77 => {
                let id = self.some_node(&mut rng).id;
                let at = self.twin.now.plus(-i64::from(rng.number(0, 200)));
                self.twin.heartbeat(&id, at);
            }
            77..82 => (0..=rng.below(3)).for_each(|_| self.boot(&mut rng)),
            82..84 => {
                let id = self.some_node(&mut rng).id;
                self.twin.set_state(&id, state(&mut rng));
            }
            84..88 => {
                let id = rng.pick(&GROUPS);
                self.twin.put_group(group(id, rng.next()));
            }
            88..89 => {
                let id = rng.pick(&VOLUMES);
                let volume = volume(id, rng.next(), &self.twin.world.nodes);
                self.twin.put_volume(volume);
            }
            89..90 => self.twin.set_secrets(rng.pick(&ENVS), rng.chance(50)),
            90..91 => self.twin.set_free_addresses(rng.pick(&[None, None, Some(0), Some(7)])),
            91..92 => self.settle(&mut rng),
            _ => self.pass_time(&mut rng),
        }
        Ok(())
    }

    /// Places, twice or thrice the same class in a row, and claims what was found.
    fn place(&mut self, rng: &mut Rng) -> Result<(), String> {
        let shape = self.shape(rng);
        for _ in 0..=rng.below(3) {
            let request = request(shape, self.number, self.wild);
            self.number += 1;
            let reuse = rng.pick(&[
                Reuse::Ranking,
                Reuse::Ranking,
                Reuse::Ranking,
                Reuse::Mask,
                Reuse::Nothing,
            ]);
            if let Some(node) = self.twin.place(&request, reuse)?
                && rng.chance(85)
            {
                self.twin.claim(&request, &node);
            }
        }
        Ok(())
    }

    fn release(&mut self, rng: &mut Rng) {
        let placed = &self.twin.world.placed;
        if !placed.is_empty() {
            let id = placed[rng.below(placed.len())].0.id;
            self.twin.release(id);
        }
    }

    fn change_node(&mut self, rng: &mut Rng) {
        let old = self.some_node(rng);
        let drawn = node(rng.next(), self.wild, self.twin.now);
        let facts = NodeFacts { id: old.id, zone: old.zone, rack: old.rack, ..drawn };
        self.twin.add_node(&facts);
    }

    /// The same node in another rack or zone, or in none.
    fn move_node(&mut self, rng: &mut Rng) {
        let mut facts = self.some_node(rng);
        let elsewhere = node(rng.next(), self.wild, self.twin.now);
        facts.rack = elsewhere.rack;
        if rng.chance(50) {
            facts.zone = elsewhere.zone;
        }
        self.twin.add_node(&facts);
    }

    fn empty_and_remove(&mut self, rng: &mut Rng) {
        let id: NodeId = self.some_node(rng).id;
        if rng.chance(70) {
            let here: Vec<_> = self.twin.world.on(&id).map(|other| other.id).collect();
            here.into_iter().for_each(|other| self.twin.release(other));
        }
        if self.twin.world.nodes.len() > 1 {
            self.twin.remove_node(&id);
        }
    }

    /// A boot ends, or a host becomes more or less busy.
    fn boot(&mut self, rng: &mut Rng) {
        let id = self.some_node(rng).id;
        if rng.chance(40) {
            let measured = rng.chance(80).then(|| load(rng));
            self.twin.set_load(&id, measured);
            return;
        }
        let at = self.twin.now.plus(-i64::from(rng.number(0, 400)));
        let outcome = match rng.number(0, 5) {
            0 => BootOutcome::failed_for(at, "t0"),
            1 => BootOutcome::failed_for(at, "t1"),
            _ => BootOutcome::new(at, rng.chance(70)),
        };
        self.twin.record_boot(&id, outcome);
    }

    /// Seconds, hours or days; most nodes are heard of meanwhile. Now and then back a little.
    fn pass_time(&mut self, rng: &mut Rng) {
        let spans = [1, 45, 61, 100, 900, 3700, Timestamp::DAY, 8 * Timestamp::DAY];
        let seconds = rng.pick(&spans);
        if rng.chance(20) {
            self.twin.now = self.twin.now.plus(-seconds);
            return;
        }
        self.twin.now = self.twin.now.plus(seconds);
        let nodes: Vec<NodeId> = self.twin.world.nodes.iter().map(|n| n.id.clone()).collect();
        for id in nodes.iter().filter(|_| rng.chance(90)) {
            self.twin.heartbeat(id, self.twin.now);
        }
    }
}

fn run(case: &Case) -> Result<(), TestCaseError> {
    let mut run = Run::start(case);
    for seed in &case.steps {
        run.step(*seed).map_err(TestCaseError::fail)?;
    }
    Ok(())
}

#[test]
fn the_oracle_knows_every_filter_in_its_order() {
    assert_eq!(FILTERS.map(|filter| filter.name), filters::NAMES);
}

proptest! {
    #![proptest_config(config("proptest-regressions/agreement.txt", 60))]

    #[test]
    fn engine_and_oracle_agree_on_large_fleets(case in cases(150)) {
        run(&case)?;
    }
}

proptest! {
    #![proptest_config(config("proptest-regressions/agreement_small.txt", 600))]

    #[test]
    fn engine_and_oracle_agree_on_small_fleets(case in cases(12)) {
        run(&case)?;
    }
}

/// Nodes that differ in name, zone and rack alone, and a class that has a ranking.
fn warmed(nodes: &[(&str, &str, &str)], class: &InstanceRequest) -> Twin {
    let policy = Policy::builtin("balanced").expect("a built-in policy");
    let mut twin = Twin::new(policy);
    twin.furnish(1);
    nodes.iter().for_each(|node| twin.add_node(&plain_node(*node, twin.now)));
    (0..4).for_each(|number| ask(&mut twin, class, number));
    twin
}

fn plain_node((id, zone, rack): (&str, &str, &str), now: Timestamp) -> NodeFacts {
    let capacity = Amounts::new(8000, 16_384).with_disk(65_536);
    NodeFacts {
        heartbeat_at: now,
        zone: Some(zone.to_owned()),
        rack: Some(rack.to_owned()),
        ..NodeFacts::new(id, capacity)
    }
}

fn plain_class() -> InstanceRequest {
    let mut class = InstanceRequest::new(instance_id(0), "acme", Amounts::new(500, 512));
    class.workload = Some("web".to_owned());
    class
}

fn ask(twin: &mut Twin, class: &InstanceRequest, number: u64) {
    let request = InstanceRequest { id: instance_id(number), ..class.clone() };
    twin.place(&request, Reuse::Ranking).unwrap_or_else(|problem| panic!("{problem}"));
}

#[test]
fn a_ranking_notices_that_a_group_changed_its_rules() {
    let apart = |most| Group { max_per_domain: Some(most), ..hard_apart("g0") };
    let mut class = plain_class();
    class.groups = vec!["g0".to_owned()];
    let mut twin = warmed(&[("a", "z0", "r0"), ("b", "z1", "r0")], &class);
    for most in [0, 1, 2, 0, 3] {
        twin.put_group(apart(most));
        (10..14).for_each(|number| ask(&mut twin, &class, number));
    }
}

fn hard_apart(id: &str) -> Group {
    Group {
        kind: GroupKind::Apart,
        strength: Strength::Hard,
        topology: Topology::Node,
        ..group(id, 0)
    }
}

#[test]
fn a_ranking_notices_that_ids_moved_up() {
    let mut twin = warmed(&[("c", "z0", "r0"), ("a", "z1", "r0")], &plain_class());
    twin.set_state(&NodeId::new("a"), NodeState::Cordoned);
    (10..14).for_each(|number| ask(&mut twin, &plain_class(), number));
    // As good as the other, in another block, and first by id, but no longer by the old ranks.
    twin.add_node(&plain_node(("b", "z1", "r0"), twin.now));
    ask(&mut twin, &plain_class(), 20);
}

#[test]
fn a_ranking_notices_that_a_replica_left_with_its_node() {
    let nodes = [("a", "z0", "r0"), ("b", "z0", "r0"), ("c", "z0", "r1"), ("d", "z1", "r0")];
    let mut twin = warmed(&nodes, &plain_class());
    let resident = InstanceRequest { id: instance_id(30), ..plain_class() };
    twin.claim(&resident, &NodeId::new("a"));
    (10..14).for_each(|number| ask(&mut twin, &plain_class(), number));
    twin.release(resident.id);
    assert!(twin.remove_node(&NodeId::new("a")));
    ask(&mut twin, &plain_class(), 20);
}

#[test]
fn a_ranking_notices_that_a_node_with_a_replica_changed_racks() {
    let nodes = [("a", "z0", "r0"), ("b", "z0", "r0"), ("c", "z0", "r1"), ("d", "z0", "r1")];
    let mut twin = warmed(&nodes, &plain_class());
    let resident = InstanceRequest { id: instance_id(30), ..plain_class() };
    twin.claim(&resident, &NodeId::new("a"));
    (10..14).for_each(|number| ask(&mut twin, &plain_class(), number));
    twin.add_node(&plain_node(("a", "z0", "r1"), twin.now));
    ask(&mut twin, &plain_class(), 20);
    twin.release(resident.id);
    ask(&mut twin, &plain_class(), 21);
}
