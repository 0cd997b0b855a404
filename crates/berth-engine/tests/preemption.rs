//! Preemption: which instances are proposed, which never are, and that the proposal works.

mod common;

use berth_engine::{CheckError, Engine, Fix, InstanceId, InstanceRequest, NodeId, NodeState};
use common::{NOW, builtin, claim, engine, node, node_with, place, refusal, request, request_of};

/// Two full nodes; a holds priorities 1 and 5, b holds 2 and 3.
fn full_of_priorities() -> Engine {
    let nodes = [node("a", 1000, 1024), node("b", 1000, 1024)];
    let mut engine = engine(builtin("balanced"), &nodes);
    for (number, priority, id) in [(71, 1, "a"), (75, 5, "a"), (72, 2, "b"), (73, 3, "b")] {
        let mut resident = request_of("globex", number, 0, 512);
        resident.priority = priority;
        claim(&mut engine, &resident, id);
    }
    engine
}

fn urgent(priority: i32, memory_mib: u32) -> InstanceRequest {
    let mut wanted = request(1, 0, memory_mib);
    wanted.priority = priority;
    wanted
}

#[test]
fn preemption_proposes_the_least_important_and_works_when_applied() {
    // For half a node, priority 1 goes. For a whole one 2 and 3 go rather than 1 and 5.
    let table: [(u32, &str, &[u128], i32); 2] = [(512, "a", &[71], 1), (1024, "b", &[72, 73], 3)];
    for (memory_mib, node, victims, highest) in table {
        let mut engine = full_of_priorities();
        let wanted = urgent(9, memory_mib);
        assert_eq!(refusal(&mut engine, &wanted).code, "no_capacity_memory");
        let proposed = engine.propose_preemption(&wanted, NOW, &|_| true).unwrap();
        assert_eq!(proposed.node.as_str(), node);
        let expected: Vec<InstanceId> = victims.iter().map(|n| InstanceId::from_u128(*n)).collect();
        assert_eq!(proposed.victims, expected);
        assert_eq!(proposed.highest_priority, highest);
        assert_eq!(engine.fleet().instance_count(), 4, "a proposal, not an act");
        for victim in proposed.victims {
            engine.fleet_mut().release(victim);
        }
        assert_eq!(place(&mut engine, &wanted), node);
    }
}

#[test]
fn preemption_never_proposes_an_equal_or_a_higher_priority() {
    let mut engine = full_of_priorities();
    assert_eq!(engine.propose_preemption(&urgent(1, 512), NOW, &|_| true), None);
    assert_eq!(engine.propose_preemption(&urgent(0, 512), NOW, &|_| true), None);
    let proposed = engine.propose_preemption(&urgent(2, 512), NOW, &|_| true).unwrap();
    assert_eq!(proposed.victims, [InstanceId::from_u128(71)]);
    // A whole node needs two victims, and priority 3 has only 2 and 1 below it, on two nodes.
    assert_eq!(engine.propose_preemption(&urgent(3, 1024), NOW, &|_| true), None);
}

#[test]
fn preemption_buys_only_room_and_spares_whom_it_need_not_release() {
    let mut engine = full_of_priorities();
    for id in ["a", "b"] {
        engine.fleet_mut().set_state(&NodeId::new(id), NodeState::Draining);
    }
    assert_eq!(engine.propose_preemption(&urgent(9, 512), NOW, &|_| true), None);

    // The small one is less important, but releasing it does not help: only the large one goes.
    let mut engine = common::engine(builtin("balanced"), &[node("a", 1000, 1024)]);
    for (number, priority, memory_mib) in [(71, 1, 100), (72, 2, 924)] {
        let mut resident = request_of("globex", number, 0, memory_mib);
        resident.priority = priority;
        claim(&mut engine, &resident, "a");
    }
    let proposed = engine.propose_preemption(&urgent(9, 900), NOW, &|_| true).unwrap();
    assert_eq!(proposed.victims, [InstanceId::from_u128(72)]);
}

#[test]
fn preemption_spares_what_is_leaving_already_and_what_the_caller_may_not_release() {
    let mut engine = full_of_priorities();
    let first = InstanceId::from_u128(71);
    let second = engine.propose_preemption(&urgent(9, 512), NOW, &|id| id != first).unwrap();
    assert_eq!(second.victims, [InstanceId::from_u128(72)]);
    // Its room is free soon without another victim: nobody may count on it.
    engine.fleet_mut().set_leaving(first, true);
    let proposed = engine.propose_preemption(&urgent(9, 512), NOW, &|_| true).unwrap();
    assert_eq!(proposed.victims, [InstanceId::from_u128(72)]);
    assert_eq!(engine.propose_preemption(&urgent(9, 512), NOW, &|_| false), None);
}

#[test]
fn a_victim_counts_with_its_overhead_until_it_has_stopped() {
    let host = |id: &str| {
        node_with(id, 1000, 1024, |facts| {
            facts.vmm_overhead_mib = 24;
            facts.instance_limit = 1;
        })
    };
    let mut full = engine(builtin("balanced"), &[host("a")]);
    claim(&mut full, &request_of("globex", 71, 0, 1000), "a");
    // One instance at most: while the victim stops there would be two.
    assert_eq!(full.propose_preemption(&urgent(9, 500), NOW, &|_| true), None);

    let roomy = node_with("a", 1000, 1024, |facts| facts.vmm_overhead_mib = 24);
    let mut full = engine(builtin("balanced"), &[roomy]);
    claim(&mut full, &request_of("globex", 71, 0, 1000), "a");
    let victims = [InstanceId::from_u128(71)];
    // 1024 less the overhead of both.
    for (memory_mib, fits) in [(976, true), (977, false)] {
        let proposed = full.propose_preemption(&urgent(9, memory_mib), NOW, &|_| true);
        assert_eq!(proposed.is_some(), fits, "{memory_mib}");
        let wanted = urgent(9, memory_mib);
        let checked = full.place_preempting(&wanted, &NodeId::new("a"), &victims, NOW);
        assert_eq!(checked.is_ok(), fits, "{memory_mib}: {checked:?}");
    }
    let checked = full.place_preempting(&urgent(9, 976), &NodeId::new("a"), &[], NOW);
    assert!(matches!(checked, Err(CheckError::Removed { code: "no_capacity_memory", .. })));
}

#[test]
fn a_refusal_names_the_preemption_that_would_help_and_only_then() {
    let fixes = |priority: i32| {
        let refused = refusal(&mut full_of_priorities(), &urgent(priority, 512));
        let preempts = |fix: &&Fix| matches!(fix, Fix::Free { preempts: true, .. });
        refused.fixes.iter().filter(preempts).map(ToString::to_string).collect::<Vec<_>>()
    };
    assert_eq!(fixes(1), [""; 0]);
    let named = format!("preempt {} on a", InstanceId::from_u128(71));
    assert_eq!(fixes(2), [named]);
}
