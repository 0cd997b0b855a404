//! Tests of the catalogue's content: events that come late, and what they say of nodes and members.

use berth_engine::elastic::{Overcommit, Permit, Size};
use berth_engine::{Amounts, Elastic, InstanceId, InstanceRequest, NodeFacts, NodeState};
use berth_ledger::{ClaimKey, ClaimState, Role, Slot, Spec};
use serde_json::json;

use super::*;

const FENCE: i64 = 6;

fn id() -> InstanceId {
    InstanceId::from_u128(1)
}

fn apply(catalog: &mut CatalogState, at_s: i64, event: EventBody) {
    catalog.apply(Micros(at_s * 1_000_000), event, &mut state::ChangeSet::default());
}

/// A node, and an elastic member of a workload on it.
fn catalog() -> CatalogState {
    let mut catalog = CatalogState::default();
    let facts = Box::new(NodeFacts::new("n", Amounts::new(8000, 16_384)));
    apply(&mut catalog, 1, EventBody::NodeChanged { constraint_gen: 1, facts });
    apply(&mut catalog, 1000, allocated(FENCE));
    catalog
}

fn permit(seq: u64) -> Permit {
    Permit { seq, ..Permit::placed(Size::new(1000, 1024), Overcommit::NONE) }
}

fn allocated(fence: i64) -> EventBody {
    let mut request = InstanceRequest::new(id(), "acme", Amounts::new(1000, 1024));
    request.workload = Some("web".to_owned());
    request.elastic = Some(Elastic::new(Amounts::new(1, 1), Amounts::new(4000, 4096)));
    let event = json!({
        "kind": "instance.allocated", "instance_id": id(), "role": "primary", "node_id": "n",
        "fence": fence, "state": ClaimState::Active.name(), "resources": request.resources,
        "spec_hash": "", "spec_no": 0,
    });
    let mut event: EventBody = serde_json::from_value(event).unwrap();
    if let EventBody::Allocated(allocated) = &mut event {
        allocated.spec = Some(Spec::of(&request));
        allocated.slot = Some(Slot { revision: 3, slot: 0 });
        allocated.permit = Some(Box::new(permit(5)));
    }
    event
}

/// An event about the size of the member, as one of the log: without a fence in the first ones.
fn sized(kind: &str, cpu_milli: u32, fence: Option<i64>, seq: u64) -> EventBody {
    let mut event = json!({
        "kind": kind, "instance_id": id(), "role": "primary", "node_id": "n", "owner": "acme",
        "resources": Amounts::new(cpu_milli, 1024), "permit": permit(seq),
        "min": Amounts::new(1, 1), "max": Amounts::new(cpu_milli, 8000),
    });
    if let Some(fence) = fence {
        event["fence"] = fence.into();
    }
    serde_json::from_value(event).unwrap()
}

/// What the member and its node are charged, and the most that the member may have.
fn sizes(catalog: &CatalogState) -> (u32, i64, u32) {
    let claim = &catalog.claims[&ClaimKey::primary(id())];
    let max = claim.request.elastic.as_ref().unwrap().max.cpu_milli;
    (claim.amounts.cpu_milli, catalog.nodes[&NodeId::new("n")].room.used.cpu, max)
}

#[test]
fn a_size_that_comes_late_does_not_change_a_claim_that_moved_since() {
    for kind in ["instance.resized", "instance.bounds", "instance.permit"] {
        let mut catalog = catalog();
        let before = sizes(&catalog);
        apply(&mut catalog, 1001, sized(kind, 5000, Some(FENCE - 1), 9));
        assert_eq!(sizes(&catalog), before, "{kind} of its last claim");
        apply(&mut catalog, 1002, sized(kind, 3000, Some(FENCE), 6));
        assert_eq!((sizes(&catalog).0, sizes(&catalog).1), (3000, 3000), "{kind}");
    }
}

#[test]
fn sizes_of_a_log_without_fences_are_taken_in() {
    for kind in ["instance.resized", "instance.bounds"] {
        let mut catalog = catalog();
        apply(&mut catalog, 1001, sized(kind, 3000, None, 6));
        assert_eq!((sizes(&catalog).0, sizes(&catalog).1), (3000, 3000), "{kind}");
    }
}

#[test]
fn bounds_that_come_late_do_not_undo_newer_ones() {
    let mut catalog = catalog();
    apply(&mut catalog, 1001, sized("instance.bounds", 3000, Some(FENCE), 7));
    apply(&mut catalog, 1002, sized("instance.bounds", 2000, Some(FENCE), 6));
    assert_eq!(sizes(&catalog), (3000, 3000, 3000));
}

#[test]
fn a_node_that_another_server_brought_back_counts_as_heard() {
    let mut catalog = catalog();
    let state = |state: NodeState, constraint_gen: i64| {
        let (node_id, reason) = (NodeId::new("n"), None);
        EventBody::NodeState { node_id, state, constraint_gen, reason }
    };
    let heard_at = |catalog: &CatalogState| catalog.nodes[&NodeId::new("n")].heard_at();
    catalog.record_heartbeat(&NodeId::new("n"), 500);
    apply(&mut catalog, 1000, state(NodeState::Lost, 2));
    assert_eq!(heard_at(&catalog), 500);
    apply(&mut catalog, 1010, state(NodeState::Cordoned, 3));
    assert_eq!(heard_at(&catalog), 500, "an operator says nothing of its agent");
    apply(&mut catalog, 1020, state(NodeState::Lost, 4));
    apply(&mut catalog, 1030, state(NodeState::Active, 5));
    assert_eq!(heard_at(&catalog), 1030);
    apply(&mut catalog, 1040, state(NodeState::Degraded, 6));
    assert_eq!(heard_at(&catalog), 1030, "it was not lost");
}

#[test]
fn members_that_end_are_counted_by_revision_unless_they_ran_for_long() {
    let mut catalog = catalog();
    let key = (Text::from("acme"), Text::from("web"));
    let end = |catalog: &mut CatalogState, at_s: i64, fence: i64| {
        apply(catalog, at_s - 5, allocated(fence));
        let (node_id, tenant) = (NodeId::new("n"), Text::from("acme"));
        let (role, reason) = (Role::Primary, Text::from("exited"));
        let instance_id = id();
        let released = EventBody::Released { instance_id, role, node_id, tenant, fence, reason };
        apply(catalog, at_s, released);
        catalog.crashes[&key].of(3).map(|history| history.count)
    };
    assert_eq!(end(&mut catalog, 1100, FENCE), Some(1));
    assert_eq!(end(&mut catalog, 1200, FENCE + 1), Some(2));
    apply(&mut catalog, 1210, allocated(FENCE + 2));
    assert_eq!(end(&mut catalog, 1811, FENCE + 2), None);
}
