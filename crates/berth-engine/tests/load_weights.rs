//! Weights that depend on how full the fleet is, and the usual shapes that `slot-loss` keeps room for.

#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

use berth_engine::{
    Amounts, Audience, Engine, InstanceId, InstanceRequest, NodeFacts, NodeId, NodeVerdict, Policy,
    Reuse, Timestamp, UsualShape,
};

const NOW: Timestamp = Timestamp(1_767_225_600);

fn engine(policy: &str, nodes: &[(&str, u32, u32)]) -> Engine {
    let mut engine = Engine::new(Policy::from_toml(policy).unwrap());
    for (name, cpu, memory) in nodes {
        let mut facts = NodeFacts::new(name, Amounts::new(*cpu, *memory).with_disk(1 << 30));
        facts.ratios.cpu_permille = 1000;
        facts.vmm_overhead_mib = 0;
        facts.heartbeat_at = NOW;
        engine.fleet_mut().add_node(&facts).unwrap();
    }
    engine
}

fn request(id: u128, cpu: u32, memory: u32) -> InstanceRequest {
    InstanceRequest::new(InstanceId::from_u128(id), "acme", Amounts::new(cpu, memory))
}

fn claim(engine: &mut Engine, id: u128, cpu: u32, memory: u32, node: &str) {
    engine.fleet_mut().claim(&request(id, cpu, memory), &NodeId::new(node)).unwrap();
}

/// Where a request goes, however much of earlier results may be used.
fn place(engine: &mut Engine, wanted: &InstanceRequest) -> String {
    let chosen = [Reuse::Nothing, Reuse::Mask, Reuse::Ranking]
        .map(|reuse| engine.place_with(wanted, NOW, reuse).unwrap().node);
    assert!(chosen.iter().all(|node| *node == chosen[0]), "{chosen:?}");
    chosen[0].as_str().to_owned()
}

#[test]
fn a_weight_counts_from_its_load_on() {
    let policy = "name = 'p'\n[scores]\nmemory-spread = 1\n\
        memory-pack = { weight = 3, from_load = 0.5 }";
    let mut engine = engine(policy, &[("a", 10_000, 10_000), ("b", 10_000, 10_000)]);
    claim(&mut engine, 1, 1000, 1000, "b");
    assert_eq!(place(&mut engine, &request(9, 1000, 1000)), "a", "below the load it spreads");
    claim(&mut engine, 2, 9000, 1000, "b");
    assert_eq!(engine.fleet().load_permille(), 500);
    for _ in 0..2 {
        // The class has a ranking by now, which must follow the load.
        assert_eq!(place(&mut engine, &request(9, 0, 1000)), "b", "from the load on it packs");
    }
    engine.fleet_mut().release(InstanceId::from_u128(1));
    assert_eq!(engine.fleet().load_permille(), 450);
    assert_eq!(place(&mut engine, &request(9, 0, 1000)), "a", "and back");
}

#[test]
fn an_explanation_shows_the_load_that_a_weight_was_chosen_by() {
    let policy = "name = 'p'\n[scores]\nmemory-pack = 1\n\
        slot-loss = [{ weight = 2 }, { weight = 8, from_load = 0.8 }]";
    let mut engine = engine(policy, &[("a", 10_000, 10_000)]);
    let labels = |engine: &mut Engine| {
        let table = engine.explain(&request(9, 1000, 500), NOW).unwrap().table;
        let NodeVerdict::Scored { terms, .. } = &table[0] else { panic!("{table:?}") };
        terms.iter().map(|term| (term.label(), term.weight_permille)).collect::<Vec<_>>()
    };
    let plain = ("memory-pack".to_owned(), 1000);
    assert_eq!(labels(&mut engine), [plain.clone(), ("slot-loss at 0 % load".to_owned(), 2000)]);
    claim(&mut engine, 1, 1000, 8460, "a");
    assert_eq!(labels(&mut engine), [plain, ("slot-loss at 84 % load".to_owned(), 8000)]);
}

#[test]
fn room_for_the_usual_size_stays_whole() {
    let policy = "name = 'p'\n[filters]\ncpu = 'hard'\n[scores]\nslot-loss = 1";
    let nodes = [("a", 16_000, 32_768), ("b", 16_000, 32_768), ("c", 16_000, 32_768)];
    let mut engine = engine(policy, &nodes);
    // Eight gibibytes come most often; c has room that is too small for another.
    for (id, node) in [(1, "c"), (2, "c"), (3, "c"), (4, "b")] {
        claim(&mut engine, id, 4000, 8192, node);
    }
    claim(&mut engine, 5, 1000, 2048, "c");
    let usual: Vec<_> = engine
        .fleet()
        .usual_shapes()
        .iter()
        .map(|s| (s.cpu_milli, s.memory_mib, s.weight))
        .collect();
    assert_eq!(usual, [(4000, 8192, 4), (1000, 2048, 1)]);
    assert_eq!(place(&mut engine, &request(9, 1000, 2048)), "c");
}

#[test]
fn a_policy_may_pin_the_usual_shapes() {
    let policy = "name = 'p'\n[filters]\ncpu = 'hard'\n[scores]\nslot-loss = 1\n\
        [[shapes]]\ncpu_milli = 8000\nmemory_mib = 8192\nweight = 3\n\
        [[shapes]]\ncpu_milli = 1000\nmemory_mib = 1024";
    let parsed = Policy::from_toml(policy).unwrap();
    let of = |cpu_milli, memory_mib, weight| UsualShape { cpu_milli, memory_mib, weight };
    assert_eq!(parsed.shapes(), [of(8000, 8192, 3), of(1000, 1024, 1)]);
    assert_eq!(Policy::from_toml(&parsed.to_toml()).unwrap(), parsed);
    let mut engine = engine(policy, &[("a", 16_000, 16_384), ("b", 16_000, 16_384)]);
    claim(&mut engine, 1, 2000, 2048, "b");
    assert_eq!(place(&mut engine, &request(9, 1000, 1024)), "b", "a keeps room for two large ones");
}

#[test]
fn the_same_weights_written_in_two_ways_are_the_same_policy() {
    let one = Policy::from_toml("name='p'\n[scores]\nslot-loss = { weight = 1, from_load = 0.8 }");
    let other =
        Policy::from_toml("name='p'\n[scores]\nslot-loss = [{ weight = 1.0, from_load = 0.8 }]");
    assert_eq!(one.clone().unwrap(), other.unwrap());
    let one = one.unwrap();
    assert_eq!(Policy::from_json(&one.to_json()).unwrap(), one);
    assert_eq!(Policy::from_toml(&one.to_toml()).unwrap(), one);
    assert!(one.uses("slot-loss") && !one.uses("memory-pack"));
    let plain = Policy::from_toml("name='p'\n[scores]\nslot-loss = 1").unwrap();
    let step = Policy::from_toml("name='p'\n[scores]\nslot-loss = { weight = 1 }").unwrap();
    assert_eq!(plain.hash(), step.hash(), "a step from load 0 is a plain weight");
}

#[test]
fn operators_see_the_usual_shapes_in_an_explanation_and_tenants_do_not() {
    let weights =
        "name = 'p'\n[scores]\nmemory-pack = 1\nslot-loss = { weight = 1, from_load = 0.9 }";
    let mut of_shapes = engine(weights, &[("a", 10_000, 10_240)]);
    claim(&mut of_shapes, 1, 1000, 2048, "a");
    let explanation = of_shapes.explain(&request(9, 1000, 512), NOW).unwrap();
    let shape = UsualShape { cpu_milli: 1000, memory_mib: 2048, weight: 1 };
    assert_eq!(explanation.usual_shapes, [shape], "below its load, too");
    let seen = explanation.redacted_for(Audience::Tenant("acme"), of_shapes.policy());
    assert_eq!(seen.usual_shapes, []);
    let mut plain = engine("name = 'p'\n[scores]\nmemory-pack = 1", &[("a", 10_000, 10_240)]);
    claim(&mut plain, 1, 1000, 2048, "a");
    assert_eq!(plain.explain(&request(9, 1000, 512), NOW).unwrap().usual_shapes, []);
}
