//! A copy of a fleet that applies what was recorded is in the same state.

use std::sync::Arc;

use berth_engine::affinity::{Strength, Topology};
use berth_engine::{
    Amounts, Batch, BootOutcome, Engine, Fleet, Group, GroupKind, InstanceId, InstanceRequest,
    MeasuredLoad, NodeFacts, NodeId, NodeState, Policy, Timestamp, Volume,
};

fn request(id: u128, memory_mib: u32) -> InstanceRequest {
    InstanceRequest::new(InstanceId::from_u128(id), "acme", Amounts::new(100, memory_mib))
}

fn node(name: &str) -> NodeFacts {
    NodeFacts::new(name, Amounts::new(8000, 16_384).with_disk(65_536))
}

/// One change of every kind.
fn change_everything(fleet: &mut Fleet) -> Result<(), Box<dyn std::error::Error>> {
    let group = Group {
        id: "g".to_owned(),
        tenant: None,
        kind: GroupKind::Apart,
        strength: Strength::Hard,
        topology: Topology::Rack,
        max_per_domain: None,
    };
    fleet.put_group(group.clone());
    fleet.put_group(Group { id: "empty".to_owned(), ..group });
    for name in ["a", "b", "c", "d"] {
        fleet.add_node(&node(name))?;
    }
    let volume = |id: &str| Volume {
        id: id.to_owned(),
        tenant: None,
        home: NodeId::new("a"),
        attached_to: None,
    };
    fleet.put_volume(volume("v"));
    fleet.put_volume(volume("unused"));
    let mut first = request(1, 1000);
    first.groups.push("g".to_owned());
    first.volumes.push("v".to_owned());
    fleet.claim(&first, &NodeId::new("a"))?;
    fleet.claim_shared(&Arc::new(request(2, 2000)), &NodeId::new("b"))?;
    fleet.claim(&request(3, 500), &NodeId::new("b"))?;
    fleet.resize(InstanceId::from_u128(2), Amounts::new(50, 700));
    fleet.release(InstanceId::from_u128(3));
    fleet.remove_node(&NodeId::new("d"));
    fleet.heartbeat(&NodeId::new("a"), Timestamp(9));
    fleet.record_boot(&NodeId::new("b"), BootOutcome::new(Timestamp(3), true));
    let load = MeasuredLoad { cpu_permille: 300, memory_permille: None };
    fleet.set_load(&NodeId::new("a"), Some(load));
    fleet.set_load(&NodeId::new("a"), Some(load));
    fleet.set_state(&NodeId::new("c"), NodeState::Cordoned);
    fleet.remove_group("empty");
    fleet.remove_volume("unused");
    fleet.set_secrets("prod", true);
    fleet.set_free_addresses(Some(5));
    Ok(())
}

#[test]
fn a_copy_that_applies_every_change_is_in_the_same_state() -> Result<(), Box<dyn std::error::Error>>
{
    let mut fleet = Fleet::new();
    fleet.add_node(&node("before"))?;
    let mut copy = fleet.clone();
    fleet.record_changes();
    change_everything(&mut fleet)?;
    let changes = fleet.take_changes();
    assert_eq!(
        (changes.len(), fleet.recorded_changes()),
        (22, 0),
        "what changes nothing is no change"
    );
    changes.iter().for_each(|change| copy.apply_change(change));
    assert_eq!(copy.fingerprint(), fleet.fingerprint());
    for name in ["a", "b", "c", "before"] {
        assert_eq!(copy.node(&NodeId::new(name)), fleet.node(&NodeId::new(name)));
    }
    assert!(copy.take_changes().is_empty(), "a copy records nothing by itself");
    Ok(())
}

#[test]
fn what_failed_and_what_a_plan_tried_is_not_recorded() -> Result<(), Box<dyn std::error::Error>> {
    let mut engine = Engine::new(Policy::builtin("balanced")?);
    engine.fleet_mut().add_node(&node("a"))?;
    engine.fleet_mut().record_changes();
    let batch = Batch::new(vec![request(1, 9000), request(2, 9000)]);
    engine.place_batch(&batch, Timestamp(0))?;
    assert!(engine.try_batch(&batch, Timestamp(0))?.is_none());
    assert!(engine.fleet_mut().claim(&request(1, 1), &NodeId::new("unknown")).is_err());
    assert!(engine.fleet_mut().release(InstanceId::from_u128(7)).is_none());
    assert!(engine.fleet_mut().take_changes().is_empty());
    let fits = Batch::new(vec![request(1, 1000), request(2, 1000)]);
    let expected = engine.place_batch(&fits, Timestamp(0))?.placements;
    assert_eq!(engine.try_batch(&fits, Timestamp(0))?, Some(expected));
    Ok(())
}
