//! From a decision to a claim that has devices, and back.

use super::*;

/// Two claims that compete for one device.
fn contested() -> (World, Pod, Pod) {
    let mut world = World::new();
    world.slice("n1", json!([gpu("a", "A", 1)]));
    world.claim("one", json!([request("r", json!({}))]));
    world.claim("two", json!([request("r", json!({}))]));
    (world, pod("p", &["one"]), pod("q", &["two"]))
}

fn is_free(world: &mut World, by: &Pod) -> bool {
    let prepared = world.devices.prepare(by).unwrap();
    world.devices.fits(&prepared, &node("n1"))
}

#[test]
fn a_decision_that_is_dropped_before_it_is_submitted_frees_the_device() {
    let (mut world, p, q) = contested();
    world.reserve(&p, "n1").unwrap();
    assert!(!is_free(&mut world, &q));
    world.devices.take_changed();
    world.devices.release(&p);
    assert!(is_free(&mut world, &q) && world.devices.take_changed());
}

#[test]
fn a_decision_that_is_being_written_outlives_its_pod_until_the_executor_is_done() {
    let (mut world, p, q) = contested();
    world.reserve(&p, "n1").unwrap();
    world.devices.mark_submitted(p.id);
    world.devices.release(&p);
    assert!(!is_free(&mut world, &q), "the claim may be written at any time");
    // The pod is put back where it was: the same devices.
    assert_eq!(world.devices_for(&p, "n1").unwrap(), ["r=a"]);
    world.devices.release(&p);
    world.devices.settle(p.id, &key("one"), None);
    assert!(is_free(&mut world, &q));
}

#[test]
fn a_written_decision_counts_until_the_api_server_shows_it() {
    let (mut world, p, q) = contested();
    world.reserve(&p, "n1").unwrap();
    world.devices.mark_submitted(p.id);
    let version = world.version + 2;
    world.devices.settle(p.id, &key("one"), Some(version));
    let bound = bound(&p, "n1");
    world.devices.release(&bound);
    assert!(!is_free(&mut world, &q), "the pod is gone, but its claim has the device");
    // The finalizer comes first, then the devices.
    world.claim("one", json!([request("r", json!({}))]));
    assert!(!is_free(&mut world, &q), "an older version says nothing");
    world.devices.take_changed();
    assert_eq!(world.allocated("one", "n1", &["a"], &["p"]), version);
    assert!(!is_free(&mut world, &q) && !world.devices.take_changed());
    // Kubernetes' controller deallocates it.
    world.claim("one", json!([request("r", json!({}))]));
    assert!(is_free(&mut world, &q) && world.devices.take_changed());
}

#[test]
fn pods_share_a_claim_where_its_devices_are() {
    let mut world = World::new();
    world.slice("n1", json!([gpu("a", "A", 1)]));
    world.slice("n2", json!([gpu("b", "A", 1)]));
    world.claim("one", json!([request("r", json!({}))]));
    let (p, q) = (pod("p", &["one"]), pod("q", &["one"]));
    assert_eq!(world.devices_for(&p, "n2").unwrap(), ["r=b"]);
    // Still being written: the second pod writes the same.
    assert_eq!(world.devices_for(&q, "n2").unwrap(), ["r=b"]);
    assert_eq!(
        world.refusal(&q, "n1"),
        "claim default/one has devices that this node cannot reach"
    );
    world.devices.release(&p);
    assert_eq!(
        world.refusal(&p, "n1"),
        "claim default/one has devices that this node cannot reach"
    );
    world.devices.release(&q);
    world.allocated("one", "n1", &["a"], &["other"]);
    let plan = world.reserve(&p, "n1").unwrap();
    assert_eq!((plan.claims.len(), plan.claims[0].allocation.is_none()), (1, true));
}

#[test]
fn a_claim_that_is_deleted_or_made_again_ends_the_decision() {
    let (mut world, p, q) = contested();
    world.reserve(&p, "n1").unwrap();
    world.devices.mark_submitted(p.id);
    world.devices.remove(DeviceKind::Claim, &key("one"));
    assert!(is_free(&mut world, &q));
    world.claim("one", json!([request("r", json!({}))]));
    world.devices.release(&p);
    world.reserve(&p, "n1").unwrap();
    let metadata = json!({"name": "one", "namespace": "default", "uid": "another"});
    world.put(DeviceKind::Claim, json!({"metadata": metadata, "spec": {}}));
    assert!(is_free(&mut world, &q));
}

#[test]
fn in_a_dry_run_devices_of_pods_that_are_gone_count_as_free() {
    let (mut world, p, q) = contested();
    world.allocated("one", "n1", &["a"], &["p"]);
    let p = bound(&p, "n1");
    world.devices.begin_dry_run();
    world.devices.release(&p);
    assert!(is_free(&mut world, &q));
    world.devices.reserve(&p, &node("n1"));
    assert!(!is_free(&mut world, &q), "the pod was put back");
    world.devices.release(&p);
    world.devices.end_dry_run();
    assert!(!is_free(&mut world, &q));
    // Another pod uses the claim as well.
    world.allocated("one", "n1", &["a"], &["p", "other"]);
    world.devices.begin_dry_run();
    world.devices.release(&p);
    assert!(!is_free(&mut world, &q));
    world.devices.end_dry_run();
}

#[test]
fn a_claim_that_keeps_its_only_pod_from_being_scheduled_is_released_once() {
    let (mut world, p, _) = contested();
    assert!(world.devices.release_stuck_claims(&p).is_empty(), "it has no devices");
    world.allocated("one", "n1", &["a"], &["p", "other"]);
    assert!(world.devices.release_stuck_claims(&p).is_empty(), "another pod uses it");
    world.allocated("one", "n1", &["a"], &["p"]);
    let released = world.devices.release_stuck_claims(&p);
    assert_eq!(released.iter().map(|it| &*it.claim.name).collect::<Vec<_>>(), ["one"]);
    assert!(world.devices.release_stuck_claims(&p).is_empty(), "it is being released");
    assert_eq!(world.refusal(&p, "n1"), "resource claim default/one is being deallocated");
    let version = world.version + 1;
    world.devices.settle_release(&key("one"), Some(version));
    assert_eq!(world.refusal(&p, "n1"), "resource claim default/one is being deallocated");
    world.claim("one", json!([request("r", json!({}))]));
    assert_eq!(world.devices_for(&p, "n1").unwrap(), ["r=a"]);
    // If that failed, the claim is as it was.
    world.devices.release(&p);
    world.allocated("one", "n1", &["a"], &["p"]);
    assert_eq!(world.devices.release_stuck_claims(&p).len(), 1);
    world.devices.settle_release(&key("one"), None);
    assert!(world.reserve(&p, "n1").is_ok());
}
