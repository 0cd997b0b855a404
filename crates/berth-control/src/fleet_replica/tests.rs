//! Tests of the replica: what it keeps of claims that are gone, and of those that are going.

use berth_engine::elastic::{Overcommit, Permit, Size};
use berth_engine::{Amounts, Fix, NodeFacts, PlaceError, Timestamp};

use super::*;

fn replica() -> FleetReplica {
    let mut replica = FleetReplica::new(Policy::builtin("balanced").unwrap());
    let facts = Box::new(NodeFacts::new("n", Amounts::new(8000, 16_384).with_disk(100_000)));
    replica.apply(&EventBody::NodeChanged { constraint_gen: 1, facts }).unwrap();
    replica
}

fn id() -> InstanceId {
    InstanceId::from_u128(1)
}

fn allocated(fence: i64) -> EventBody {
    let request = InstanceRequest::new(id(), "acme", Amounts::new(1000, 1024));
    let json = serde_json::json!({
        "kind": "instance.allocated",
        "instance_id": id(),
        "role": "primary",
        "node_id": "n",
        "fence": fence,
        "state": ClaimState::Held.name(),
        "resources": request.resources,
        "spec_hash": "",
        "spec_no": 0,
    });
    let mut event: EventBody = serde_json::from_value(json).unwrap();
    if let EventBody::Allocated(allocated) = &mut event {
        allocated.spec = Some(Spec::of(&request));
    }
    event
}

fn released(fence: i64) -> EventBody {
    EventBody::Released {
        instance_id: id(),
        role: Role::Primary,
        node_id: NodeId::new("n"),
        tenant: Text::from("acme"),
        fence,
        reason: Text::from("test"),
    }
}

/// The same for the member of a workload that has a slot, with another stored request.
fn member(fence: i64, spec: Option<Spec>) -> EventBody {
    let mut event = allocated(fence);
    if let EventBody::Allocated(allocated) = &mut event {
        allocated.slot = Some(berth_ledger::Slot { revision: 1, slot: 3 });
        allocated.spec = spec;
    }
    event
}

#[test]
fn a_slot_whose_request_cannot_be_read_is_an_error_also_where_the_instance_is_known() {
    let mut replica = replica();
    let mut request = InstanceRequest::new(id(), "acme", Amounts::new(1000, 1024));
    request.workload = Some("web".to_owned());
    replica.apply(&member(1, Some(Spec::of(&request)))).unwrap();
    assert!(replica.slots.has(id()));
    for (fence, spec) in [(2, Some(Spec::stored("{".to_owned()))), (3, None)] {
        let error = replica.apply(&member(fence, spec)).unwrap_err();
        assert!(matches!(error, LedgerError::Corrupt(_)), "{error}");
    }
    let expected = berth_ledger::invariants::expect_violations("slot_is_of_a_workload");
    request.workload = None;
    replica.apply(&member(4, Some(Spec::of(&request)))).unwrap();
    assert_eq!(expected.count(), 1);
}

#[test]
fn a_claim_that_is_gone_is_remembered_until_it_was_sealed_and_forgotten() {
    let mut replica = replica();
    assert!(!replica.seal_tombstones());
    for event in [allocated(5), released(5), allocated(5)] {
        replica.apply(&event).unwrap();
    }
    assert_eq!(replica.engine.fleet().node_of(id()), None, "an old allocation came back");
    replica.purge_tombstones();
    assert_eq!(replica.remembered(), 1, "what was not sealed is not forgotten");
    assert!(replica.seal_tombstones());
    replica.apply(&allocated(5)).unwrap();
    assert_eq!(replica.engine.fleet().node_of(id()), None);
    replica.purge_tombstones();
    assert_eq!(replica.remembered(), 0);
    assert!(!replica.seal_tombstones());
}

#[test]
fn an_instance_that_was_asked_to_stop_is_not_proposed_for_release() {
    let mut replica = replica();
    replica.apply(&allocated(5)).unwrap();
    let wanted = InstanceRequest::new(InstanceId::from_u128(2), "acme", Amounts::new(1000, 16_000));
    let releases = |replica: &mut FleetReplica| match replica.engine.place(&wanted, Timestamp(0)) {
        Err(PlaceError::Refused(refusal)) => {
            refusal.fixes.iter().any(|fix| matches!(fix, Fix::Free { .. }))
        }
        other => panic!("{other:?}"),
    };
    assert!(releases(&mut replica));
    let state = serde_json::json!({
        "kind": "instance.state", "instance_id": id(), "role": "primary", "node_id": "n",
        "state": ClaimState::Releasing.name(), "fence": 5,
    });
    replica.apply(&serde_json::from_value(state).unwrap()).unwrap();
    assert!(!releases(&mut replica));
}

#[test]
fn a_claim_that_came_back_is_not_forgotten() {
    let mut replica = replica();
    for event in [allocated(5), released(5)] {
        replica.apply(&event).unwrap();
    }
    assert!(replica.seal_tombstones());
    replica.apply(&allocated(6)).unwrap();
    replica.purge_tombstones();
    assert_eq!(replica.remembered(), 1);
    replica.apply(&released(5)).unwrap();
    assert!(replica.engine.fleet().node_of(id()).is_some(), "an old release took it away");
}

#[test]
fn facts_that_come_late_do_not_undo_newer_ones() {
    let mut replica = replica();
    let changed = |generation: i64, cpu_milli: u32| {
        let facts = NodeFacts::new("n", Amounts::new(cpu_milli, 16_384));
        EventBody::NodeChanged { constraint_gen: generation, facts: Box::new(facts) }
    };
    let cpu = |replica: &FleetReplica| {
        replica.engine.fleet().node(&NodeId::new("n")).unwrap().capacity.unwrap().cpu_milli
    };
    replica.apply(&changed(7, 4000)).unwrap();
    replica.apply(&changed(6, 2000)).unwrap();
    assert_eq!(cpu(&replica), 4000);
    let cordoned = EventBody::NodeState {
        node_id: NodeId::new("n"),
        state: berth_engine::NodeState::Cordoned,
        constraint_gen: 6,
        reason: None,
    };
    replica.apply(&cordoned).unwrap();
    assert_eq!(replica.seen(&NodeId::new("n")).constraint_gen, 7);
    replica.apply(&changed(8, 8000)).unwrap();
    assert_eq!(cpu(&replica), 8000);
}

#[test]
fn a_size_that_comes_late_does_not_change_a_claim_that_moved_since() {
    let charged = |replica: &FleetReplica| replica.engine.fleet().used(&NodeId::new("n")).unwrap();
    let event = |kind: &str, cpu_milli: u32, fence: Option<i64>| {
        let mut event = serde_json::json!({
            "kind": kind, "instance_id": id(), "role": "primary", "node_id": "n", "owner": "acme",
            "resources": Amounts::new(cpu_milli, 1024),
            "permit": Permit::placed(Size::new(1000, 1024), Overcommit::NONE),
            "min": Amounts::new(1, 1), "max": Amounts::new(8000, 8000),
        });
        if let Some(fence) = fence {
            event["fence"] = fence.into();
        }
        serde_json::from_value::<EventBody>(event).unwrap()
    };
    for kind in ["instance.resized", "instance.bounds"] {
        let mut replica = replica();
        replica.apply(&allocated(6)).unwrap();
        replica.apply(&event(kind, 5000, Some(5))).unwrap();
        assert_eq!(charged(&replica).cpu, 1000, "{kind} of its last claim");
        replica.apply(&event(kind, 3000, Some(6))).unwrap();
        assert_eq!(charged(&replica).cpu, 3000, "{kind}");
        replica.apply(&event(kind, 2000, None)).unwrap();
        assert_eq!(charged(&replica).cpu, 2000, "{kind} of a log without fences");
    }
}

fn node_event(kind: &str, generation: i64) -> EventBody {
    let facts = NodeFacts::new("m", Amounts::new(8000, 16_384).with_disk(100_000));
    match kind {
        "changed" => EventBody::NodeChanged { constraint_gen: generation, facts: Box::new(facts) },
        _ => EventBody::NodeRemoved { node_id: facts.id, constraint_gen: Some(generation) },
    }
}

#[test]
fn an_older_event_neither_brings_a_removed_node_back_nor_removes_the_one_that_took_its_name() {
    let is_there = |replica: &mut FleetReplica, event: EventBody| {
        replica.apply(&event).unwrap();
        replica.engine.fleet().node(&NodeId::new("m")).is_some()
    };
    let mut replica = replica();
    for (kind, generation, expected) in [
        ("changed", 3, true),
        ("removed", 3, false),
        // Of another server, before the removal that was made here.
        ("changed", 2, false),
        ("changed", 3, false),
        ("changed", 4, true),
        // Again, from the log.
        ("removed", 3, true),
        ("removed", 4, false),
    ] {
        assert_eq!(
            is_there(&mut replica, node_event(kind, generation)),
            expected,
            "{kind} {generation}"
        );
    }
    assert!(replica.seal_tombstones());
    assert!(
        !is_there(&mut replica, node_event("changed", 4)),
        "sealed, and the log has not passed"
    );
    replica.purge_tombstones();
    assert!(!replica.seal_tombstones(), "nothing is remembered for ever");
    assert!(is_there(&mut replica, node_event("changed", 5)));
}
