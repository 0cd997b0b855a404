//! Every fix that a refusal proposes is applied here, and the placement then works, where the fix
//! says it would.

mod common;

use std::collections::BTreeMap;

use berth_engine::affinity::{Rule, Strength, Topology};
use berth_engine::{
    Amounts, CapacityType, CpuCapMode, Engine, Fix, Group, GroupKind, Hint, InstanceId,
    InstanceRequest, LinkState, Locality, Network, NodeFacts, NodeId, NodeState, Platform,
    PlatformBounds, PlatformVersion, Ratios, Timestamp, TraitValue, Volume,
};
use common::{
    NOW, builtin, claim, engine, node, node_with, place, policy, refusal, request, request_of,
};

fn fix(engine: &mut Engine, wanted: &InstanceRequest, is_it: fn(&Fix) -> bool) -> Fix {
    let fixes = refusal(engine, wanted).fixes;
    let found = fixes.iter().find(|fix| is_it(fix));
    found.unwrap_or_else(|| panic!("{fixes:?}")).clone()
}

fn is_shrink(fix: &Fix) -> bool {
    matches!(fix, Fix::Shrink { .. })
}

fn is_free(fix: &Fix) -> bool {
    matches!(fix, Fix::Free { .. })
}

fn is_mend(fix: &Fix) -> bool {
    matches!(fix, Fix::Mend { .. })
}

fn is_add_node(fix: &Fix) -> bool {
    matches!(fix, Fix::AddNode { .. })
}

// Shrink.

#[test]
fn a_request_shrunk_as_proposed_fits_and_one_mib_more_does_not() {
    let roomy = |id, memory_mib| node_with(id, 1000, memory_mib, |n| n.vmm_overhead_mib = 64);
    let nodes = [roomy("a", 4096), roomy("b", 3072)];
    let mut engine = engine(builtin("balanced"), &nodes);
    claim(&mut engine, &request(70, 0, 2000), "a");
    let mut wanted = request(1, 500, 4000);
    let proposed = fix(&mut engine, &wanted, is_shrink);
    // a has 4096 - 2064 - 64 = 1968 left, b has 3072 - 64: less must be given up on b.
    let resources = Amounts::new(500, 3008).with_disk(1);
    let node = Some(NodeId::new("b"));
    assert_eq!(proposed, Fix::Shrink { resources, extra: BTreeMap::new(), node });
    wanted.resources = resources;
    assert_eq!(place(&mut engine, &wanted), "b");
    wanted.resources.memory_mib += 1;
    assert_eq!(refusal(&mut engine, &wanted).code, "no_capacity_memory");
}

#[test]
fn every_scarce_resource_is_shrunk_together() {
    let host = node_with("a", 1000, 1024, |facts| {
        facts.capacity = Some(Amounts::new(1000, 1024).with_disk(10_000).with_bandwidth(100));
    });
    let mut engine = engine(builtin("pack"), &[host]);
    let mut wanted = request(1, 5000, 2048);
    wanted.image_mib = 500;
    wanted.resources = wanted.resources.with_disk(20_000).with_bandwidth(200);
    let Fix::Shrink { resources, .. } = fix(&mut engine, &wanted, is_shrink) else {
        panic!("not a shrink");
    };
    // Its one core, not the four that its ratio makes of it: one instance fits into its host.
    let fitted = Amounts::new(1000, 1024).with_disk(9500).with_bandwidth(100);
    assert_eq!(resources, fitted);
    wanted.resources = resources;
    assert_eq!(place(&mut engine, &wanted), "a");
}

// Relax: each rule a request can have.

struct Relaxation {
    filter: &'static str,
    change: &'static str,
    prepare: fn(&mut Engine, &mut InstanceRequest),
    apply: fn(&mut InstanceRequest),
}

const OLD: Timestamp = Timestamp(1000);

fn relaxation(
    filter: &'static str,
    change: &'static str,
    prepare: fn(&mut Engine, &mut InstanceRequest),
    apply: fn(&mut InstanceRequest),
) -> Relaxation {
    Relaxation { filter, change, prepare, apply }
}

/// Rules about what a node is.
fn rules_about_facts() -> Vec<Relaxation> {
    vec![
        relaxation(
            "capacity-type",
            "drop capacity_type spot",
            |_, wanted| wanted.capacity_type = Some(CapacityType::Spot),
            |wanted| wanted.capacity_type = None,
        ),
        relaxation(
            "platform",
            "drop the platform bounds",
            |_, wanted| {
                let version = PlatformVersion::new(7, 0);
                wanted.platform.min = BTreeMap::from([(version, OLD.plus(1))]);
            },
            |wanted| wanted.platform = PlatformBounds::default(),
        ),
        relaxation(
            "traits",
            "drop trait gpu",
            |_, wanted| {
                let gpu = ("gpu".to_owned(), TraitValue::Bool(true));
                wanted.traits = BTreeMap::from([gpu]);
            },
            |wanted| wanted.traits.clear(),
        ),
        relaxation(
            "networks",
            "drop network r1 or r2",
            |_, wanted| {
                let set = |tags: &[&str]| tags.iter().map(|tag| (*tag).to_owned()).collect();
                wanted.networks = vec![set(&["overlay"]), set(&["r1", "r2"])];
            },
            |wanted| wanted.networks.truncate(1),
        ),
        relaxation(
            "overprovision-ratios",
            "drop the ratios",
            |_, wanted| {
                let doubled = Ratios { memory_permille: 2000, ..Ratios::default() };
                wanted.ratios = Some(doubled);
            },
            |wanted| wanted.ratios = None,
        ),
        relaxation(
            "not-virtual",
            "accept virtual nodes",
            |_, wanted| wanted.exclude_virtual = true,
            |wanted| wanted.exclude_virtual = false,
        ),
    ]
}

/// Rules about other instances, volumes, caps and secrets.
fn rules_about_others() -> Vec<Relaxation> {
    vec![
        relaxation(
            "groups",
            "leave group quorum",
            |engine, wanted| {
                engine.fleet_mut().put_group(Group {
                    id: "quorum".to_owned(),
                    tenant: None,
                    kind: GroupKind::Apart,
                    strength: Strength::Hard,
                    topology: Topology::Node,
                    max_per_domain: None,
                });
                wanted.groups = vec!["quorum".to_owned()];
                let mut member = request(70, 0, 1);
                member.groups.clone_from(&wanted.groups);
                claim(engine, &member, "a");
            },
            |wanted| wanted.groups.clear(),
        ),
        relaxation(
            "affinity",
            "make role==db soft with ~, or drop it",
            |_, wanted| wanted.affinity = rules(&["role==db"]),
            |wanted| wanted.affinity = rules(&["role==~db"]),
        ),
        relaxation(
            "strict-locality",
            "drop strict, so that near and far are only preferred",
            |engine, wanted| {
                claim(engine, &request(70, 0, 1), "a");
                wanted.locality = Locality {
                    far: vec![Hint::Instance(InstanceId::from_u128(70))],
                    near: Vec::new(),
                    strict: true,
                };
            },
            |wanted| wanted.locality.strict = false,
        ),
        relaxation(
            "volume-home",
            "do without volume data",
            |engine, wanted| {
                engine.fleet_mut().put_volume(Volume {
                    tenant: None,
                    id: "data".to_owned(),
                    home: NodeId::new("elsewhere"),
                    attached_to: None,
                });
                wanted.volumes = vec!["data".to_owned()];
            },
            |wanted| wanted.volumes.clear(),
        ),
        relaxation(
            "cpu-cap-mixing",
            "cap the CPU",
            |engine, _| {
                let capped = host(|facts| facts.cpu_cap_mode = CpuCapMode::Capped);
                let added = engine.fleet_mut().add_node(&capped);
                assert_eq!(added, Ok(()));
            },
            |wanted| wanted.cpu_capped = true,
        ),
        relaxation(
            "secrets-present",
            "drop needs_secrets",
            |_, wanted| wanted.needs_secrets = true,
            |wanted| wanted.needs_secrets = false,
        ),
    ]
}

fn rules(expressions: &[&str]) -> Vec<Rule> {
    let parsed = expressions.iter().map(|text| Rule::parse(text));
    parsed.map(|rule| rule.unwrap_or_else(|error| panic!("{error}"))).collect()
}

/// An old virtual node with one network.
fn host(change: impl FnOnce(&mut NodeFacts)) -> NodeFacts {
    node_with("a", 1000, 4096, |facts| {
        facts.is_virtual = true;
        facts.networks = vec![Network { tag: "overlay".to_owned(), link: LinkState::Up }];
        facts.platform = Some(Platform { version: PlatformVersion::new(7, 0), built_at: OLD });
        change(facts);
    })
}

#[test]
fn each_rule_relaxed_as_proposed_lets_the_request_in() {
    for case in rules_about_facts().into_iter().chain(rules_about_others()) {
        let mut engine = engine(builtin("balanced"), &[host(|_| {})]);
        let mut wanted = request(1, 100, 512);
        assert_eq!(place(&mut engine, &wanted), "a", "without the rule it fits");
        (case.prepare)(&mut engine, &mut wanted);
        let refused = refusal(&mut engine, &wanted);
        let expected = Fix::Relax {
            filter: case.filter.into(),
            change: case.change.to_owned(),
            node: Some(NodeId::new("a")),
        };
        let relaxing: Vec<&Fix> =
            refused.fixes.iter().filter(|fix| matches!(fix, Fix::Relax { .. })).collect();
        assert_eq!(relaxing, [&expected], "and nothing else needs relaxing");
        (case.apply)(&mut wanted);
        assert_eq!(place(&mut engine, &wanted), "a", "{}", case.filter);
    }
}

#[test]
fn no_single_relaxation_is_proposed_where_two_rules_stand_in_the_way() {
    let mut engine = engine(builtin("balanced"), &[host(|_| {})]);
    let mut wanted = request(1, 100, 512);
    wanted.exclude_virtual = true;
    wanted.capacity_type = Some(CapacityType::Spot);
    let fixes = refusal(&mut engine, &wanted).fixes;
    assert!(!fixes.iter().any(|fix| matches!(fix, Fix::Relax { .. })));
}

// Free.

#[test]
fn releasing_the_proposed_instances_makes_room_and_the_owners_own_come_first() {
    let nodes = [node("a", 1000, 4096), node("b", 1000, 4096)];
    let mut engine = engine(builtin("balanced"), &nodes);
    // On a one release of another tenant would do; on b it takes two of the tenant's own.
    claim(&mut engine, &request_of("globex", 70, 0, 4096), "a");
    claim(&mut engine, &request(71, 0, 1024), "b");
    claim(&mut engine, &request(72, 0, 1024), "b");
    claim(&mut engine, &request(73, 0, 2048), "b");
    let wanted = request(1, 0, 3072);
    let proposed = fix(&mut engine, &wanted, is_free);
    let Fix::Free { instances, tenants, node, .. } = proposed else {
        panic!("not a release");
    };
    assert_eq!(tenants, ["acme"]);
    assert_eq!(node, Some(NodeId::new("b")));
    assert_eq!(instances.len(), 2);
    assert!(instances.contains(&InstanceId::from_u128(73)));
    for instance in instances {
        engine.fleet_mut().release(instance);
    }
    assert_eq!(place(&mut engine, &wanted), "b");
}

#[test]
fn others_are_released_only_when_the_owners_own_do_not_help() {
    let mut engine = engine(builtin("balanced"), &[node("a", 1000, 4096)]);
    claim(&mut engine, &request(71, 0, 96), "a");
    claim(&mut engine, &request_of("globex", 70, 0, 4000), "a");
    let wanted = request(1, 0, 2048);
    let proposed = fix(&mut engine, &wanted, is_free);
    let expected = Fix::Free {
        instances: vec![InstanceId::from_u128(70)],
        names: Vec::new(),
        tenants: vec!["globex".to_owned()],
        node: Some(NodeId::new("a")),
        preempts: false,
    };
    assert_eq!(proposed, expected);
    engine.fleet_mut().release(InstanceId::from_u128(70));
    assert_eq!(place(&mut engine, &wanted), "a");
}

#[test]
fn an_instance_slot_is_freed_like_any_other_room() {
    let host = node_with("a", 1000, 4096, |facts| facts.instance_limit = 1);
    let mut engine = engine(builtin("balanced"), &[host]);
    claim(&mut engine, &request(70, 0, 1), "a");
    let wanted = request(1, 0, 1);
    assert_eq!(refusal(&mut engine, &wanted).code, "no_capacity_instances");
    let Fix::Free { instances, .. } = fix(&mut engine, &wanted, is_free) else {
        panic!("not a release");
    };
    assert_eq!(instances, [InstanceId::from_u128(70)]);
    engine.fleet_mut().release(instances[0]);
    assert_eq!(place(&mut engine, &wanted), "a");
}

// Mend.

#[test]
fn a_node_mended_as_proposed_takes_the_request() {
    type Change = fn(&mut NodeFacts);
    type Mend = fn(&mut Engine);
    let table: [(&str, Change, Mend); 6] = [
        (
            "node-active",
            |facts| facts.state = NodeState::Draining,
            |engine| {
                let fleet = engine.fleet_mut();
                fleet.set_state(&NodeId::new("a"), NodeState::Active);
            },
        ),
        (
            "heartbeat-fresh",
            |facts| facts.heartbeat_at = NOW.plus(-1000),
            |engine| assert!(engine.fleet_mut().heartbeat(&NodeId::new("a"), NOW)),
        ),
        ("kvm", |facts| facts.kvm = false, replace_a),
        ("overlay-healthy", |facts| facts.overlay_loss_ppm = 1_000_000, replace_a),
        ("not-reserved", |facts| facts.reserved = true, replace_a),
        ("not-headnode", |facts| facts.headnode = true, replace_a),
    ];
    for (filter, change, mend) in table {
        // b is out for a reason that mending does not cure.
        let nodes = [node_with("a", 1000, 4096, change), node("b", 1000, 256)];
        let mut engine = engine(builtin("balanced"), &nodes);
        let wanted = request(1, 0, 512);
        let Fix::Mend { filter: of, node, .. } = fix(&mut engine, &wanted, is_mend) else {
            panic!("not a mend");
        };
        assert_eq!((&*of, node), (filter, Some(NodeId::new("a"))));
        mend(&mut engine);
        assert_eq!(place(&mut engine, &wanted), "a", "{filter}");
    }
}

/// States node a as it should be.
fn replace_a(engine: &mut Engine) {
    let added = engine.fleet_mut().add_node(&node("a", 1000, 4096));
    assert_eq!(added, Ok(()));
}

#[test]
fn mending_is_not_proposed_where_it_is_not_known_to_help() {
    type Change = fn(&mut NodeFacts);
    // Of unknown size it may lack memory too; drained and silent, one cure is not enough.
    let table: [Change; 2] = [
        |facts| facts.capacity = None,
        |facts| {
            facts.state = NodeState::Draining;
            facts.heartbeat_at = NOW.plus(-1000);
        },
    ];
    for change in table {
        let mut engine = engine(builtin("balanced"), &[node_with("a", 1000, 4096, change)]);
        let fixes = refusal(&mut engine, &request(1, 0, 512)).fixes;
        assert!(!fixes.iter().any(is_mend), "{fixes:?}");
    }
}

// Add a node.

#[test]
fn a_node_added_as_proposed_takes_the_request() {
    let mut engine = engine(builtin("balanced"), &[node("a", 1000, 1024)]);
    let mut wanted = request(1, 3000, 8192);
    wanted.resources.disk_mib = 2000;
    wanted.image_mib = 100;
    let proposed = fix(&mut engine, &wanted, is_add_node);
    let Fix::AddNode { shape, .. } = proposed else {
        panic!("not a node");
    };
    // The usual overhead of 64 MiB comes on top of the memory, the image on top of the disk.
    assert_eq!(Amounts { cpu_milli: 0, ..shape }, Amounts::new(0, 8256).with_disk(2100));
    let mut added = NodeFacts::new("new", shape);
    added.heartbeat_at = NOW;
    engine.fleet_mut().add_node(&added).unwrap();
    assert_eq!(place(&mut engine, &wanted), "new");
    assert_eq!(added.vmm_overhead_mib, 64);
}

#[test]
fn a_node_is_proposed_with_room_for_what_the_policy_adds() {
    let mut engine = engine(builtin("triton"), &[node("a", 1000, 1024)]);
    let wanted = request(1, 3000, 8192);
    let Fix::AddNode { shape, .. } = fix(&mut engine, &wanted, is_add_node) else {
        panic!("not a node");
    };
    assert_eq!(shape.disk_mib, 1 + 10_240);
    let mut added = NodeFacts::new("new", shape);
    added.heartbeat_at = NOW;
    engine.fleet_mut().add_node(&added).unwrap();
    assert_eq!(place(&mut engine, &wanted), "new");
}

#[test]
fn no_node_is_proposed_where_a_new_one_cannot_help() {
    let mut engine = engine(builtin("balanced"), &[node("a", 1000, 1024)]);
    let mut secret = request(1, 0, 512);
    secret.needs_secrets = true;
    let mut tied = request(2, 0, 512);
    tied.affinity = rules(&["role==db"]);
    engine.fleet_mut().put_volume(Volume {
        tenant: None,
        id: "data".to_owned(),
        home: NodeId::new("elsewhere"),
        attached_to: None,
    });
    let mut stored = request(3, 0, 512);
    stored.volumes = vec!["data".to_owned()];
    for wanted in [secret, tied, stored] {
        let fixes = refusal(&mut engine, &wanted).fixes;
        assert!(!fixes.iter().any(is_add_node), "{fixes:?}");
    }
}

#[test]
fn a_proposed_node_is_no_larger_than_it_must_be_and_has_every_fact_that_is_asked_for() {
    let mut engine =
        engine(policy("name = 'p'\n[filters]\ncpu = 'hard'"), &[node("a", 1000, 1024)]);
    let mut wanted = request(1, 3000, 8192);
    wanted.resources = wanted.resources.with_disk(2000).with_bandwidth(100);
    wanted.ratios = Some(Ratios { cpu_permille: 2000, memory_permille: 1500, disk_permille: 900 });
    wanted.extra.insert("gpu".to_owned(), 2);
    wanted.platform.min = BTreeMap::from([(PlatformVersion::new(7, 3), OLD)]);
    wanted.platform.max = BTreeMap::from([(PlatformVersion::new(7, 3), OLD.plus(9))]);
    let Fix::AddNode { facts, count: 1, shape } = fix(&mut engine, &wanted, is_add_node) else {
        panic!("not a node");
    };
    assert_eq!(facts.capacity, Some(shape));
    let takes = |facts: &NodeFacts| {
        let mut with = engine.clone();
        with.fleet_mut().add_node(facts).unwrap();
        with.place(&wanted, NOW).is_ok()
    };
    assert!(takes(&facts), "{facts:?}");
    for less in [
        Amounts { cpu_milli: shape.cpu_milli - 1, ..shape },
        Amounts { memory_mib: shape.memory_mib - 1, ..shape },
        Amounts { disk_mib: shape.disk_mib - 1, ..shape },
        Amounts { bandwidth_mbps: shape.bandwidth_mbps - 1, ..shape },
    ] {
        let smaller = NodeFacts { capacity: Some(less), ..(*facts).clone() };
        assert!(!takes(&smaller), "{less:?} is enough, and {shape:?} was proposed");
    }
    let mut fewer_classes = (*facts).clone();
    fewer_classes.extra.insert("gpu".to_owned(), 1);
    assert!(!takes(&fewer_classes));
}
