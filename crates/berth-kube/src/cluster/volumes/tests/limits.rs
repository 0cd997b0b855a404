//! How many volumes a node takes.

use super::*;

fn limit(world: &mut TestVolumes, node: &str, count: Option<i32>) {
    let driver = json!({"name": "disk.csi", "nodeID": node, "topologyKeys": [],
        "allocatable": {"count": count}});
    let node = json!({"metadata": {"name": node}, "spec": {"drivers": [driver]}});
    world.0.put_csi_node(&read(node));
}

/// A claim that is bound to a volume of the driver with this handle.
fn attached(world: &mut TestVolumes, claim: &str, handle: &str) {
    let volume = format!("{claim}-volume");
    let csi = json!({"spec": {"csi": {"driver": "disk.csi", "volumeHandle": handle}}});
    world.volume(&volume, "disk", "10Gi", &csi);
    world.bound_claim(claim, "disk", &volume);
}

#[test]
fn a_node_takes_no_more_volumes_of_a_driver_than_its_attach_limit() {
    let mut world = TestVolumes::new();
    let (n1, n2) = (node("n1", "a"), node("n2", "a"));
    limit(&mut world, "n1", Some(2));
    for claim in ["a", "b", "c"] {
        attached(&mut world, claim, claim);
    }
    world.0.reserve(&bound_pod("one", "n1", &["a"]), &n1);
    let two = pod("two", &["b", "c"]);
    assert_eq!(world.verdict(&two, &n1), Err("volume_attach_limit"));
    assert_eq!(world.text(&two, &n1), "disk.csi has 1 of 2 volumes attached, 2 more requested");
    assert_eq!(world.verdict(&two, &n2), Ok(()), "a node that says nothing has no limit");
    assert_eq!(world.verdict(&pod("three", &["b"]), &n1), Ok(()));
    world.0.release(&bound_pod("one", "n1", &["a"]));
    assert_eq!(world.verdict(&two, &n1), Ok(()));
}

#[test]
fn a_volume_that_is_attached_for_another_pod_counts_once() {
    let mut world = TestVolumes::new();
    let n1 = node("n1", "a");
    limit(&mut world, "n1", Some(1));
    attached(&mut world, "a", "shared");
    attached(&mut world, "b", "other");
    let (first, second) = (bound_pod("first", "n1", &["a"]), bound_pod("second", "n1", &["a"]));
    world.0.reserve(&first, &n1);
    assert_eq!(world.verdict(&pod("third", &["a"]), &n1), Ok(()));
    assert_eq!(world.verdict(&pod("third", &["b"]), &n1), Err("volume_attach_limit"));
    world.0.reserve(&second, &n1);
    world.0.release(&first);
    assert_eq!(world.verdict(&pod("third", &["b"]), &n1), Err("volume_attach_limit"));
    world.0.release(&second);
    assert_eq!(world.verdict(&pod("third", &["b"]), &n1), Ok(()));
}

#[test]
fn volumes_to_be_provisioned_count_once_before_and_after() {
    let mut world = TestVolumes::new();
    let n1 = node("n1", "a");
    limit(&mut world, "n1", Some(2));
    for claim in ["a", "b", "c"] {
        world.claim(claim, "disk", &json!({}));
    }
    for (name, claim) in [("one", "a"), ("two", "b")] {
        assert_eq!(world.0.try_reserve(&pod(name, &[claim]), &n1), Ok(makes(&[claim])));
    }
    let three = pod("three", &["c"]);
    assert_eq!(world.verdict(&three, &n1), Err("volume_attach_limit"));
    // Bound, and the volume seen after the claim.
    world.bound_claim("a", "disk", "a-volume");
    assert_eq!(world.verdict(&three, &n1), Err("volume_attach_limit"));
    attached(&mut world, "a", "handle-a");
    assert_eq!(world.verdict(&three, &n1), Err("volume_attach_limit"));
    world.0.release(&pod("one", &["a"]));
    assert_eq!(world.verdict(&three, &n1), Ok(()));
}

#[test]
fn pods_that_were_found_before_their_claims_volumes_and_classes_count_when_those_are_seen() {
    let mut world = TestVolumes::default();
    let n1 = node("n1", "a");
    limit(&mut world, "n1", Some(2));
    world.0.reserve(&bound_pod("one", "n1", &["a"]), &n1);
    world.0.reserve(&bound_pod("two", "n1", &["b"]), &n1);
    attached(&mut world, "a", "handle-a");
    world.claim("b", "disk", &json!({}));
    world.claim("c", "disk", &json!({}));
    world.class("disk", "disk.csi", &json!({}));
    assert_eq!(world.verdict(&pod("three", &["c"]), &n1), Err("volume_attach_limit"));
}

#[test]
fn a_pod_that_adds_no_volume_fits_where_the_limit_is_already_exceeded() {
    let mut world = TestVolumes::new();
    let n1 = node("n1", "a");
    attached(&mut world, "a", "a");
    attached(&mut world, "b", "b");
    world.local("v1", "n1", "10Gi");
    world.bound_claim("c", "local", "v1");
    world.0.reserve(&bound_pod("one", "n1", &["a", "b"]), &n1);
    limit(&mut world, "n1", Some(1));
    assert_eq!(world.verdict(&pod("two", &["a"]), &n1), Ok(()));
    assert_eq!(world.verdict(&pod("two", &["c"]), &n1), Ok(()));
}

#[test]
fn limits_can_be_checked_as_if_some_pods_were_gone() {
    let mut world = TestVolumes::new();
    let n1 = node("n1", "a");
    limit(&mut world, "n1", Some(1));
    attached(&mut world, "a", "a");
    attached(&mut world, "b", "b");
    let (one, two) = (bound_pod("one", "n1", &["a"]), bound_pod("two", "n1", &["a"]));
    world.0.reserve(&one, &n1);
    world.0.reserve(&two, &n1);
    let prepared = world.0.prepare(&pod("three", &["b"])).expect("its claim is bound");
    let without = |gone: &[_]| world.0.check_without(&prepared, &n1, gone).is_ok();
    assert!(!without(&[]));
    assert!(!without(&[one.id]), "the other still has it attached");
    assert!(without(&[one.id, two.id]));
}

#[test]
fn a_removed_limit_counts_as_a_change() {
    let mut world = TestVolumes::new();
    limit(&mut world, "n1", Some(1));
    world.0.take_changed();
    limit(&mut world, "n1", Some(1));
    assert!(!world.0.take_changed());
    limit(&mut world, "n1", None);
    assert!(world.0.take_changed());
    world.0.remove_csi_node("n1");
    assert!(!world.0.take_changed(), "it had none");
}
