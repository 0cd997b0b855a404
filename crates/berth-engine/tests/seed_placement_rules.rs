//! The placement rules of seed 000: who is eligible, what is hard, what is soft, how ties end, and
//! which reason a refusal carries. The curves of the autoscaling seed (research/neon.md) follow.

mod common;

use berth_engine::{
    Amounts, Batch, BatchMode, BootOutcome, Engine, InstanceId, InstanceRequest, NodeFacts, NodeId,
    NodeState, OtherUsage, Policy, Ratios, Reuse, SearchEnd, Timestamp, Volume,
};
use common::{
    NOW, builtin, claim, engine, node, node_with, place, place_and_claim, place_at, policy,
    refusal, removal, request, scores, survivors, values, values_at,
};

fn replica(number: u128, memory_mib: u32) -> InstanceRequest {
    let mut wanted = request(number, 100, memory_mib);
    wanted.workload = Some("web".to_owned());
    wanted
}

fn volume(id: &str, home: &str) -> Volume {
    Volume { tenant: None, id: id.to_owned(), home: NodeId::new(home), attached_to: None }
}

fn with_volumes(number: u128, volumes: &[&str]) -> InstanceRequest {
    let mut wanted = request(number, 100, 512);
    wanted.volumes = volumes.iter().map(|id| (*id).to_owned()).collect();
    wanted
}

fn failed(at: Timestamp) -> BootOutcome {
    BootOutcome::new(at, true)
}

// Hard: memory.

#[test]
fn memory_with_its_overhead_may_fill_a_node_and_not_exceed_it() {
    let host = node_with("a", 4000, 2048, |facts| facts.vmm_overhead_mib = 64);
    let mut engine = engine(builtin("balanced"), &[host]);
    assert_eq!(place(&mut engine, &request(1, 0, 1984)), "a");
    let over = request(1, 0, 1985);
    let reason = "memory: needs 1.93 GiB plus 64 MiB overhead, has just 1 MiB less than that free";
    assert_eq!(removal(&mut engine, &over, "a"), ("memory".into(), reason.into()));

    // Two of 960 cost 1024 each; there is nothing left for a third, however small.
    place_and_claim(&mut engine, &request(2, 0, 960));
    place_and_claim(&mut engine, &request(3, 0, 960));
    let refused = refusal(&mut engine, &request(4, 0, 1));
    assert_eq!(refused.code, "no_capacity_memory");
    let nearest = refused.nearest[0].evidence.to_string();
    assert_eq!(nearest, "memory: needs 1 MiB plus 64 MiB overhead, has none free: short by 65 MiB");
}

#[test]
fn the_default_overhead_is_64_mib_and_the_default_disk_4_gib() {
    let facts = NodeFacts::new("a", Amounts::new(1, 1));
    assert_eq!(facts.vmm_overhead_mib, 64);
    let wanted = InstanceRequest::new(InstanceId::from_u128(1), "acme", Amounts::new(1, 1));
    assert_eq!(wanted.resources.disk_mib, 4096);
}

#[test]
fn no_policy_may_switch_the_memory_cap_off() {
    let error = Policy::from_toml("name = 'x'\n[filters]\noff = ['memory']").unwrap_err();
    assert!(error.to_string().contains("filters.off names \"memory\""));
}

#[test]
fn a_released_instance_gives_its_memory_back() {
    let mut engine = engine(builtin("balanced"), &[node("a", 4000, 1024)]);
    place_and_claim(&mut engine, &request(1, 0, 1024));
    assert_eq!(refusal(&mut engine, &request(2, 0, 1024)).code, "no_capacity_memory");
    engine.fleet_mut().release(InstanceId::from_u128(1));
    assert_eq!(place(&mut engine, &request(2, 0, 1024)), "a");
}

// Hard: eligibility.

#[test]
fn a_node_is_eligible_only_if_it_is_active_fresh_sized_equipped_and_connected() {
    type Change = fn(&mut NodeFacts);
    let table: [(&str, Change, &str, &str); 12] = [
        ("joining", |n| n.state = NodeState::Joining, "node-active", "no_nodes_active"),
        ("cordoned", |n| n.state = NodeState::Cordoned, "node-active", "no_nodes_active"),
        ("draining", |n| n.state = NodeState::Draining, "node-active", "no_nodes_active"),
        ("degraded", |n| n.state = NodeState::Degraded, "node-active", "no_nodes_active"),
        ("lost", |n| n.state = NodeState::Lost, "node-active", "no_nodes_active"),
        ("silent", |n| n.heartbeat_at = NOW.plus(-91), "heartbeat-fresh", "no_nodes_fresh"),
        ("unsized", |n| n.capacity = None, "capacity-known", "no_nodes_sized"),
        ("empty", |n| n.capacity = Some(Amounts::new(0, 0)), "capacity-known", "no_nodes_sized"),
        ("no kvm", |n| n.kvm = false, "kvm", "no_nodes_kvm"),
        ("no scratch", |n| n.scratch_mib = 1023, "scratch-disk", "no_nodes_scratch"),
        ("lossy", |n| n.overlay_loss_ppm = 50_001, "overlay-healthy", "no_nodes_overlay"),
        (
            "over-reserved",
            |n| n.system_reserve = Amounts::new(0, 4097),
            "facts-valid",
            "no_nodes_valid",
        ),
    ];
    let rules = "name = 'x'\n[filters]\nmin_scratch_mib = 1024";
    for (case, change, filter, code) in table {
        let host = node_with("a", 1000, 4096, change);
        let mut engine = engine(policy(rules), &[host]);
        let wanted = request(1, 0, 1);
        assert_eq!(removal(&mut engine, &wanted, "a").0, filter, "{case}");
        let refused = refusal(&mut engine, &wanted);
        assert_eq!((&*refused.code, refused.nodes), (code, 1), "{case}");
    }
}

#[test]
fn a_node_at_the_very_limit_of_every_rule_is_eligible() {
    let host = node_with("a", 1, 1, |facts| {
        facts.heartbeat_at = NOW.plus(-90);
        facts.scratch_mib = 1024;
        facts.overlay_loss_ppm = 50_000;
    });
    let rules = "name = 'x'\n[filters]\nmin_scratch_mib = 1024";
    let mut engine = engine(policy(rules), &[host]);
    assert_eq!(place(&mut engine, &request(1, 0, 1)), "a");
}

#[test]
fn a_node_falls_silent_as_time_passes_and_returns_with_its_heartbeat() {
    let mut engine = engine(builtin("balanced"), &[node("a", 1000, 1024)]);
    let wanted = request(1, 0, 1);
    assert_eq!(place_at(&mut engine, &wanted, NOW.plus(90)), "a");
    assert!(engine.place(&wanted, NOW.plus(91)).is_err());
    engine.fleet_mut().heartbeat(&NodeId::new("a"), NOW.plus(91));
    assert_eq!(place_at(&mut engine, &wanted, NOW.plus(91)), "a");
}

#[test]
fn a_degraded_node_takes_instances_only_when_the_operator_says_so() {
    let degraded = node_with("a", 1000, 1024, |facts| facts.state = NodeState::Degraded);
    let mut engine = engine(builtin("balanced"), &[degraded]);
    let wanted = request(1, 0, 1);
    assert_eq!(removal(&mut engine, &wanted, "a").1, "is degraded, not active");
    engine.set_policy(policy("name = 'x'\n[filters]\nadmit_degraded = true"));
    assert_eq!(place(&mut engine, &wanted), "a");
}

#[test]
fn a_draining_node_keeps_what_it_has_and_gets_nothing_new() {
    let nodes = [node("a", 1000, 4096), node("b", 1000, 4096)];
    let mut engine = engine(builtin("balanced"), &nodes);
    claim(&mut engine, &request(1, 0, 512), "a");
    engine.fleet_mut().set_state(&NodeId::new("a"), NodeState::Draining);
    for number in 2..10 {
        assert_eq!(place_and_claim(&mut engine, &request(number, 0, 512)), "b");
    }
    let stays = engine.fleet().node_of(InstanceId::from_u128(1));
    assert_eq!(stays, Some(&NodeId::new("a")));
    assert_eq!(
        refusal(&mut engine, &request(10, 0, 512)).code,
        "no_capacity_memory",
        "b is full, and a is no way out"
    );
}

// Hard: volumes.

#[test]
fn an_instance_goes_where_its_volumes_are_whatever_the_scores() {
    let nodes = ["a", "b", "c"].map(|id| node(id, 1000, 4096));
    let mut engine = engine(builtin("balanced"), &nodes);
    engine.fleet_mut().put_volume(volume("data", "c"));
    engine.fleet_mut().put_volume(volume("logs", "c"));
    // A second replica would rather not be on c, but its volume is there.
    claim(&mut engine, &replica(1, 512), "c");
    let mut wanted = with_volumes(2, &["data", "logs"]);
    wanted.workload = Some("web".to_owned());
    assert_eq!(survivors(&mut engine, &wanted), ["c"]);
    assert_eq!(place(&mut engine, &wanted), "c");
    let reason = "is not the home of volume data, which is c";
    let removed = removal(&mut engine, &wanted, "a");
    assert_eq!(removed, ("volume-home".into(), reason.into()));
}

#[test]
fn a_volume_of_another_owner_is_not_there() {
    let mut engine = engine(builtin("balanced"), &[node("a", 4000, 4096), node("b", 4000, 4096)]);
    let owned = |tenant: &str| Volume { tenant: Some(tenant.to_owned()), ..volume("data", "a") };
    engine.fleet_mut().put_volume(owned("somebody else"));
    let wanted = with_volumes(1, &["data"]);
    let invalid = engine.place(&wanted, NOW).unwrap_err();
    let unknown = with_volumes(1, &["nothing"]);
    let same = engine.place(&unknown, NOW).unwrap_err();
    assert_eq!(invalid.to_string().replace("data", "nothing"), same.to_string());
    // One that is there all the same does not get hold of it.
    engine.fleet_mut().claim(&wanted, &NodeId::new("b")).unwrap();
    assert_eq!(engine.fleet().volume("data").unwrap().attached_to, None);
    engine.fleet_mut().release(wanted.id);
    engine.fleet_mut().put_volume(owned(&wanted.tenant));
    assert_eq!(engine.place(&wanted, NOW).unwrap().node, NodeId::new("a"));
    engine.fleet_mut().claim(&wanted, &NodeId::new("a")).unwrap();
    assert_eq!(engine.fleet().volume("data").unwrap().attached_to, Some(wanted.id));
}

#[test]
fn volumes_with_different_homes_fit_no_node() {
    let mut engine = engine(builtin("balanced"), &[node("a", 1000, 4096), node("b", 1000, 4096)]);
    engine.fleet_mut().put_volume(volume("data", "a"));
    engine.fleet_mut().put_volume(volume("logs", "b"));
    let refused = refusal(&mut engine, &with_volumes(1, &["data", "logs"]));
    assert_eq!(refused.code, "volume_locality_no_node");
    assert_eq!(refused.counts[0].removed, 2);
}

#[test]
fn a_volume_serves_one_instance_at_a_time() {
    let mut engine = engine(builtin("balanced"), &[node("a", 1000, 4096)]);
    engine.fleet_mut().put_volume(volume("data", "a"));
    place_and_claim(&mut engine, &with_volumes(1, &["data"]));
    let second = with_volumes(2, &["data"]);
    assert_eq!(refusal(&mut engine, &second).code, "volume_in_use");
    engine.fleet_mut().release(InstanceId::from_u128(1));
    assert_eq!(place(&mut engine, &second), "a");
}

#[test]
fn two_replicas_on_one_volume_do_not_fit_in_a_batch_either() {
    let mut engine = engine(builtin("balanced"), &[node("a", 1000, 4096)]);
    engine.fleet_mut().put_volume(volume("data", "a"));
    let batch = Batch::new(vec![with_volumes(1, &["data"]), with_volumes(2, &["data"])]);
    let outcome = engine.place_batch(&batch, NOW).unwrap();
    assert_eq!(outcome.end, SearchEnd::DoesNotFit);
    assert!(outcome.placements.is_empty());
    assert_eq!(outcome.refused[0].0, InstanceId::from_u128(2));
    assert_eq!(outcome.refused[0].1.code, "volume_in_use");
    let free = engine.fleet().volume("data").unwrap().attached_to;
    assert_eq!(free, None, "a batch that was refused leaves no trace");
}

// Soft: CPU, spread, failures.

#[test]
fn cpu_scores_one_minus_used_over_allocatable_and_never_refuses() {
    // Four cores at the default ratio of four: 16000 may be promised. The used share rounds down.
    let mut engine = engine(scores("cpu-pressure = 1"), &[node("a", 4000, 4096)]);
    let wanted = request(1, 4000, 1);
    let used_then_value = [
        (0, 1_000_000),
        (4000, 750_000),
        (1, 749_938),
        (7999, 250_000),
        (3999, 63),
        (1, 0),
        (16_000, 0),
    ];
    for (number, (more, value)) in (10..).zip(used_then_value) {
        claim(&mut engine, &request(number, more, 1), "a");
        let found = values(&mut engine, &wanted, "cpu-pressure");
        assert_eq!(found, [value], "after {more} mCPU more");
        assert_eq!(place(&mut engine, &wanted), "a", "CPU is soft");
    }
}

#[test]
fn the_less_loaded_of_two_nodes_is_preferred() {
    let nodes = [node("a", 4000, 4096), node("b", 4000, 4096)];
    let mut engine = engine(scores("cpu-pressure = 1"), &nodes);
    claim(&mut engine, &request(1, 1000, 1), "a");
    assert_eq!(place_and_claim(&mut engine, &request(2, 2000, 1)), "b");
    assert_eq!(place_and_claim(&mut engine, &request(3, 100, 1)), "a");
}

#[test]
fn replicas_take_nodes_of_their_own_until_capacity_forces_packing() {
    // Node a is fullest, and so the favourite of every other score; e has room for nothing.
    let nodes = ["a", "b", "c", "d", "e"].map(|id| node(id, 4000, 2048));
    let mut engine = engine(builtin("balanced"), &nodes);
    claim(&mut engine, &request(100, 0, 1024), "a");
    claim(&mut engine, &request(101, 0, 2048), "e");
    engine.fleet_mut().record_boot(&NodeId::new("d"), failed(NOW));
    let first: std::collections::BTreeSet<String> =
        (1..=4).map(|number| place_and_claim(&mut engine, &replica(number, 512))).collect();
    assert_eq!(first.len(), 4, "four replicas on four nodes: {first:?}");
    assert!(!first.contains("e"));
    // A fifth and sixth replica must share; a seventh node would have taken them.
    let fifth = place_and_claim(&mut engine, &replica(5, 512));
    assert!(first.contains(&fifth));
    let sixth = place_and_claim(&mut engine, &replica(6, 512));
    assert_ne!(sixth, fifth, "shared evenly, too");
    engine.fleet_mut().add_node(&node("z", 4000, 2048)).unwrap();
    assert_eq!(place(&mut engine, &replica(7, 512)), "z");
}

#[test]
fn a_recent_failure_lowers_a_nodes_score_and_fades_by_half_each_half_life() {
    let mut engine = engine(scores("recent-failures = 1"), &[node("a", 1000, 4096)]);
    let a = NodeId::new("a");
    engine.fleet_mut().record_boot(&a, failed(NOW));
    let wanted = request(1, 0, 1);
    // 1 / (1 + what is left of the failure): 1, a half, a quarter, and nothing after ten halvings.
    for (half_lives, value) in [(0, 500_000), (1, 666_666), (2, 800_000), (10, 1_000_000)] {
        let now = NOW.plus(half_lives * 3600);
        engine.fleet_mut().heartbeat(&a, now);
        let found = values_at(&mut engine, &wanted, "recent-failures", now);
        assert_eq!(found, [value], "after {half_lives} half-lives");
    }
}

#[test]
fn a_node_with_a_recent_failure_comes_last_until_it_fades_and_is_never_refused_for_it() {
    let nodes = [node("a", 1000, 4096), node("b", 1000, 4096)];
    let mut engine = engine(builtin("balanced"), &nodes);
    let (a, b) = (NodeId::new("a"), NodeId::new("b"));
    engine.fleet_mut().record_boot(&a, failed(NOW));
    let wanted = request(1, 0, 1);
    assert_eq!(place(&mut engine, &wanted), "b");
    engine.fleet_mut().set_state(&b, NodeState::Draining);
    assert_eq!(place(&mut engine, &wanted), "a", "there may be no other node");
    engine.fleet_mut().set_state(&b, NodeState::Active);
    let later = NOW.plus(11 * 3600);
    engine.fleet_mut().heartbeat(&a, later);
    engine.fleet_mut().heartbeat(&b, later);
    assert_eq!(place_at(&mut engine, &wanted, later), "a", "forgotten");
}

#[test]
fn repeated_failures_are_a_score_too_once_the_sick_filter_is_off() {
    // The seed wants repeated failures soft. RFD 24 removes a node whose two newest boots failed,
    // and so do our defaults; `off = ["not-sick"]` is the seed's reading.
    let mut engine = engine(builtin("balanced"), &[node("a", 1000, 4096)]);
    for minutes in [1, 2] {
        let outcome = failed(NOW.plus(-60 * minutes));
        engine.fleet_mut().record_boot(&NodeId::new("a"), outcome);
    }
    let wanted = request(1, 0, 1);
    assert_eq!(refusal(&mut engine, &wanted).code, "no_nodes_healthy");
    engine.set_policy(policy(
        "name = 'seed'\n[filters]\noff = ['not-sick']\n[scores]\nrecent-failures = 1",
    ));
    assert_eq!(place(&mut engine, &wanted), "a");
}

// Determinism.

#[test]
fn ties_go_to_the_smallest_id_by_text_in_whatever_order_nodes_came() {
    let ids = ["node-9", "node-10", "node-2"];
    for turn in 0..3 {
        let mut nodes = ids.map(|id| node(id, 1000, 4096));
        nodes.rotate_left(turn);
        let mut engine = engine(builtin("balanced"), &nodes);
        assert_eq!(place(&mut engine, &request(1, 0, 1)), "node-10");
    }
}

fn mixed_fleet(reversed: bool) -> Engine {
    let mut nodes: Vec<NodeFacts> = (0..20)
        .map(|n: u32| {
            node_with(&format!("n{n:02}"), 4000 + 1000 * (n % 3), 8192, |facts| {
                facts.zone = Some(format!("z{}", n % 2));
                facts.rack = Some(format!("r{}", n % 5));
                facts.vmm_overhead_mib = 64;
            })
        })
        .collect();
    if reversed {
        nodes.reverse();
    }
    engine(builtin("balanced"), &nodes)
}

fn hundred() -> Vec<InstanceRequest> {
    let each = |number: u32| {
        let mut wanted = request(u128::from(number), 250 * (1 + number % 4), 512 + number % 7);
        wanted.workload = Some(format!("w{}", number % 6));
        wanted
    };
    (1..=100).map(each).collect()
}

#[test]
fn a_hundred_instances_are_placed_within_memory_and_the_same_every_time() {
    let run = |reversed: bool, reuse: Reuse| -> Vec<String> {
        let mut engine = mixed_fleet(reversed);
        let mut chosen = Vec::new();
        for wanted in hundred() {
            let placed = engine.place_with(&wanted, NOW, reuse).unwrap();
            let again = engine.check(&wanted, &placed.node, NOW);
            assert_eq!(again, Ok(()), "the re-check agrees with the choice");
            engine.fleet_mut().claim(&wanted, &placed.node).unwrap();
            chosen.push(placed.node.as_str().to_owned());
        }
        chosen
    };
    let first = run(false, Reuse::Ranking);
    for (reversed, reuse) in [
        (false, Reuse::Ranking),
        (true, Reuse::Ranking),
        (false, Reuse::Mask),
        (true, Reuse::Nothing),
    ] {
        assert_eq!(run(reversed, reuse), first, "{reversed} {reuse:?}");
    }
    let mut used = std::collections::BTreeMap::<&str, u32>::new();
    for (wanted, node) in hundred().iter().zip(&first) {
        *used.entry(node).or_default() += wanted.resources.memory_mib + 64;
    }
    assert!(used.values().all(|mib| *mib <= 8192), "{used:?}");
    assert_eq!(first.len(), 100);
}

#[test]
fn a_batch_of_a_hundred_goes_where_one_by_one_would_go() {
    let mut one_by_one = mixed_fleet(false);
    let expected: Vec<String> =
        hundred().iter().map(|wanted| place_and_claim(&mut one_by_one, wanted)).collect();
    let mut together = mixed_fleet(false);
    let outcome = together.place_batch(&Batch::new(hundred()), NOW).unwrap();
    assert_eq!(outcome.end, SearchEnd::Greedy);
    let placed = outcome.placements.iter().map(|placed| placed.node.as_str());
    assert_eq!(placed.collect::<Vec<_>>(), expected);
    assert_eq!(together.fleet().instance_count(), 0, "nothing is claimed");
}

#[test]
fn a_batch_may_settle_for_fewer() {
    let mut engine = engine(builtin("balanced"), &[node("a", 1000, 1024)]);
    let three = || (1..=3).map(|number| request(number, 0, 512)).collect();
    let placed = |mode, engine: &mut Engine| {
        let batch = Batch::new(three()).with_mode(mode);
        engine.place_batch(&batch, NOW).unwrap().placements.len()
    };
    assert_eq!(placed(BatchMode::AllOrNothing, &mut engine), 0);
    assert_eq!(placed(BatchMode::AtLeast(2), &mut engine), 2);
    assert_eq!(placed(BatchMode::AtLeast(3), &mut engine), 0);
    assert_eq!(placed(BatchMode::BestEffort, &mut engine), 2);
}

// Refusals.

#[test]
fn every_reason_of_the_seed_is_given_when_it_holds() {
    type Case = fn(&mut Engine) -> InstanceRequest;
    let table: [(&str, Case); 6] = [
        ("no_capacity_memory", |_| request(1, 0, 4097)),
        ("volume_locality_no_node", |engine| {
            engine.fleet_mut().put_volume(volume("data", "elsewhere"));
            with_volumes(1, &["data"])
        }),
        ("no_nodes_active", |engine| {
            let fleet = engine.fleet_mut();
            fleet.set_state(&NodeId::new("a"), NodeState::Draining);
            request(1, 0, 1)
        }),
        ("ipam_exhausted", |engine| {
            engine.fleet_mut().set_free_addresses(Some(0));
            request(1, 0, 1)
        }),
        ("volume_in_use", |engine| {
            engine.fleet_mut().put_volume(volume("data", "a"));
            claim(engine, &with_volumes(9, &["data"]), "a");
            with_volumes(1, &["data"])
        }),
        ("secrets_missing", |_| {
            let mut wanted = request(1, 0, 1);
            wanted.env = Some("prod".to_owned());
            wanted.needs_secrets = true;
            wanted
        }),
    ];
    for (code, case) in table {
        let mut engine = engine(builtin("balanced"), &[node("a", 1000, 4096)]);
        let wanted = case(&mut engine);
        let refused = refusal(&mut engine, &wanted);
        assert_eq!(refused.code, code);
        assert!(!refused.remedy.is_empty());
        let removed: usize = refused.counts.iter().map(|count| count.removed).sum();
        assert_eq!(removed, 1, "{code}: the one node is accounted for");
    }
}

#[test]
fn a_fleet_without_nodes_has_no_active_ones() {
    let mut engine = Engine::new(builtin("balanced"));
    let refused = refusal(&mut engine, &request(1, 0, 1));
    assert_eq!((&*refused.code, refused.nodes), ("no_nodes_active", 0));
}

#[test]
fn an_instance_that_needs_secrets_waits_for_its_environment_to_have_them() {
    let mut engine = engine(builtin("balanced"), &[node("a", 1000, 4096)]);
    let mut wanted = request(1, 0, 1);
    wanted.env = Some("prod".to_owned());
    assert_eq!(place(&mut engine, &wanted), "a", "it needs none yet");
    wanted.needs_secrets = true;
    let refused = refusal(&mut engine, &wanted);
    assert_eq!(refused.code, "secrets_missing");
    assert!(!refused.waiting_may_help, "somebody has to act");
    engine.fleet_mut().set_secrets("staging", true);
    assert_eq!(refusal(&mut engine, &wanted).code, "secrets_missing");
    engine.fleet_mut().set_secrets("prod", true);
    assert_eq!(place(&mut engine, &wanted), "a");
    engine.fleet_mut().set_secrets("prod", false);
    assert_eq!(refusal(&mut engine, &wanted).code, "secrets_missing");
    // Those of another tenant are not its own.
    engine.fleet_mut().set_tenant_secrets("another", "prod", true);
    assert_eq!(refusal(&mut engine, &wanted).code, "secrets_missing");
    engine.fleet_mut().set_tenant_secrets(&wanted.tenant, "prod", true);
    assert_eq!(place(&mut engine, &wanted), "a");
    engine.fleet_mut().set_tenant_secrets(&wanted.tenant, "prod", false);
    assert_eq!(refusal(&mut engine, &wanted).code, "secrets_missing");
}

#[test]
fn the_last_address_is_given_out_and_then_no_more() {
    let mut engine = engine(builtin("balanced"), &[node("a", 1000, 4096)]);
    engine.fleet_mut().set_free_addresses(Some(1));
    assert_eq!(place(&mut engine, &request(1, 0, 1)), "a");
    engine.fleet_mut().set_free_addresses(Some(0));
    let refused = refusal(&mut engine, &request(1, 0, 1));
    assert_eq!(refused.code, "ipam_exhausted");
    assert!(refused.waiting_may_help, "somebody may release one");
    engine.fleet_mut().set_free_addresses(None);
    assert_eq!(place(&mut engine, &request(1, 0, 1)), "a", "not counted here");
}

// The autoscaling scheduler's curve and accounting, as far as they concern placement.

/// A node whose CPU is not overcommitted.
fn plain_cpu(id: &str, cpu_milli: u32, memory_mib: u32) -> NodeFacts {
    node_with(id, cpu_milli, memory_mib, |facts| {
        facts.ratios = Ratios { cpu_permille: 1000, ..Ratios::default() };
    })
}

#[test]
fn the_tent_rises_from_a_half_to_one_at_four_fifths_and_falls_to_nothing() {
    // Memory stays at its own peak of four fifths, so that the CPU decides.
    for (used, value) in
        [(0, 500_000), (4000, 750_000), (8000, 1_000_000), (9000, 500_000), (10_000, 0)]
    {
        let mut engine = engine(scores("tent = 1"), &[plain_cpu("a", 10_000, 1000)]);
        claim(&mut engine, &request(10, used, 800), "a");
        let found = values(&mut engine, &request(1, 0, 1), "tent");
        assert_eq!(found, [value], "{used} of 10000 mCPU");
    }
}

#[test]
fn the_tent_of_a_node_half_the_largest_is_half_as_high() {
    let nodes = [plain_cpu("large", 20_000, 2000), plain_cpu("small", 10_000, 1000)];
    let mut engine = engine(scores("tent = 1"), &nodes);
    claim(&mut engine, &request(10, 4000, 800), "small");
    // 75 % by its use, times a half by its size. The memory of the same node would be at 50 %.
    let found = values(&mut engine, &request(1, 0, 1), "tent");
    assert_eq!(found, [500_000, 375_000]);
}

#[test]
fn usage_of_others_is_charged_in_whole_units_above_the_rounding_margin() {
    // Examples 11 and 12: what is left, as the largest request that fits.
    let hard_cpu = "name = 'x'\n[filters]\ncpu = 'hard'";
    // CPU capacity and raw usage of others, then what is left.
    for (capacity, raw, left) in [
        (7910, 0, 7000),
        (7300, 0, 6000),
        (7910, 410, 7000),
        (7910, 411, 6000),
        (7920, 810, 6000),
        (7920, 1080, 6000),
    ] {
        let mut host = plain_cpu("a", capacity, 1024);
        host.system_reserve = Amounts::new(500, 0);
        host.other = OtherUsage { cpu_milli: raw, cpu_unit_milli: 1000, ..OtherUsage::default() };
        let mut engine = engine(policy(hard_cpu), &[host]);
        assert_eq!(place(&mut engine, &request(1, left, 1)), "a", "{capacity} {raw}");
        let more = refusal(&mut engine, &request(1, left + 1, 1));
        assert_eq!(more.code, "no_capacity_cpu", "{capacity} {raw}");
    }
    // Memory in slots of 1 GiB. The log's margin of 947252 KiB is 925 whole MiB of capacity.
    for (capacity, raw_mib, slots_left) in [
        (30_976, 0, 29),
        (29 * 1024 + 925 + 512, 3132, 29 - 3),
        (29 * 1024 + 925 + 512, 4176, 29 - 4),
    ] {
        let mut host = node("a", 1000, capacity);
        host.system_reserve = Amounts::new(0, 512);
        host.other = OtherUsage {
            memory_kib: raw_mib << 10,
            memory_unit_mib: 1024,
            ..OtherUsage::default()
        };
        let mut engine = engine(policy(hard_cpu), &[host]);
        let left = slots_left * 1024;
        assert_eq!(place(&mut engine, &request(1, 0, left)), "a", "{capacity} {raw_mib}");
        let more = refusal(&mut engine, &request(1, 0, left + 1));
        assert_eq!(more.code, "no_capacity_memory", "{capacity} {raw_mib}");
    }
}
