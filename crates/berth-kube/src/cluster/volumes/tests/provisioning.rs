//! Volumes that are made where the pod goes.

use super::*;

fn capacity(world: &mut TestVolumes, name: &str, zone: &str, more: &Value) {
    let base = json!({"metadata": {"name": name, "namespace": "storage"},
        "storageClassName": "disk",
        "nodeTopology": {"matchLabels": {"topology.kubernetes.io/zone": zone}}});
    world.0.put_csi_capacity(&read(with(base, more)));
}

fn driver(world: &mut TestVolumes, measured: bool) {
    let driver = json!({"metadata": {"name": "disk.csi"}, "spec": {"storageCapacity": measured}});
    world.0.put_csi_driver(&read(driver));
}

#[test]
fn a_volume_is_provisioned_where_none_is_free() {
    let mut world = TestVolumes::new();
    let (web, n1) = (pod("web", &["data"]), node("n1", "a"));
    world.claim("data", "disk", &json!({}));
    assert_eq!(world.0.try_reserve(&web, &n1), Ok(makes(&["data"])));
    world.0.release(&web);
    world.volume("v1", "disk", "10Gi", &json!({}));
    assert_eq!(world.0.try_reserve(&web, &n1), Ok(binds(&[("data", "v1")])));
}

#[test]
fn a_class_restricted_to_zones_provisions_volumes_only_there() {
    let mut world = TestVolumes::new();
    let zones = |values: &[&str]| {
        json!({"allowedTopologies": [{"matchLabelExpressions": [
            {"key": "topology.kubernetes.io/zone", "values": values}]}]})
    };
    world.class("disk", "disk.csi", &zones(&["a", "b"]));
    world.claim("data", "disk", &json!({}));
    let web = pod("web", &["data"]);
    assert_eq!(world.verdict(&web, &node("n1", "a")), Ok(()));
    assert_eq!(world.verdict(&web, &node("n2", "b")), Ok(()));
    assert_eq!(world.verdict(&web, &node("n3", "c")), Err("volume_topology"));
    assert_eq!(
        world.text(&web, &node("n3", "c")),
        "claim prod/data: class disk provisions no volumes here"
    );
    world.class("disk", "disk.csi", &json!({"allowedTopologies": [{}]}));
    assert_eq!(world.verdict(&web, &node("n1", "a")), Err("volume_topology"));
}

#[test]
fn a_claim_with_a_selector_gets_only_existing_volumes() {
    let mut world = TestVolumes::new();
    let (web, n1) = (pod("web", &["data"]), node("n1", "a"));
    world.claim("data", "disk", &json!({"spec": {"selector": {"matchLabels": {"tier": "fast"}}}}));
    assert_eq!(world.verdict(&web, &n1), Err("no_volume"));
    world.volume("v1", "disk", "10Gi", &json!({"metadata": {"labels": {"tier": "fast"}}}));
    assert_eq!(world.verdict(&web, &n1), Ok(()));
}

#[test]
fn a_claim_whose_volume_is_being_provisioned_for_a_node_fits_only_there() {
    let mut world = TestVolumes::new();
    let web = pod("web", &["data"]);
    let selected =
        json!({"metadata": {"annotations": {"volume.kubernetes.io/selected-node": "n1"}}});
    world.claim("data", "disk", &selected);
    world.volume("v1", "disk", "10Gi", &json!({}));
    assert_eq!(world.verdict(&web, &node("n2", "a")), Err("volume_other_node"));
    assert_eq!(
        world.text(&web, &node("n2", "a")),
        "claim prod/data: its volume is being provisioned for node n1"
    );
    // What is being made is not replaced by what is free.
    assert_eq!(world.0.try_reserve(&web, &node("n1", "a")), Ok(makes(&["data"])));
}

#[test]
fn a_claim_provisioned_for_one_pod_binds_the_next_pod_to_that_node() {
    let mut world = TestVolumes::new();
    let (n1, n2) = (node("n1", "a"), node("n2", "a"));
    world.claim("data", "disk", &json!({}));
    let (first, second) = (pod("first", &["data"]), pod("second", &["data"]));
    world.0.reserve(&first, &n1);
    assert_eq!(world.verdict(&second, &n2), Err("volume_other_node"));
    assert_eq!(world.verdict(&second, &n1), Ok(()));
    world.0.release(&first);
    assert_eq!(world.verdict(&second, &n2), Ok(()));
}

#[test]
fn a_pod_that_is_reserved_elsewhere_releases_its_first_reservation() {
    let mut world = TestVolumes::new();
    let (n1, n2) = (node("n1", "a"), node("n2", "a"));
    world.claim("data", "disk", &json!({}));
    let web = pod("web", &["data"]);
    assert_eq!(world.0.try_reserve(&web, &n1), Ok(makes(&["data"])));
    assert_eq!(world.0.try_reserve(&web, &n2), Ok(makes(&["data"])));
    assert_eq!(world.verdict(&pod("next", &["data"]), &n1), Err("volume_other_node"));
}

#[test]
fn reported_capacity_counts_if_the_driver_publishes_it() {
    let mut world = TestVolumes::new();
    let web = pod("web", &["data"]);
    let (n1, n2) = (node("n1", "a"), node("n2", "b"));
    world.claim("data", "disk", &json!({}));
    capacity(&mut world, "a", "a", &json!({"capacity": "9Gi"}));
    assert_eq!(world.verdict(&web, &n1), Ok(()), "the driver does not report capacity");
    driver(&mut world, true);
    assert_eq!(world.verdict(&web, &n1), Err("no_volume_capacity"));
    assert_eq!(
        world.text(&web, &n1),
        "claim prod/data: 10Gi of class disk, the largest that can be provisioned here: 9Gi"
    );
    assert_eq!(world.verdict(&web, &n2), Err("no_volume_capacity"), "nothing is known of it");
    capacity(&mut world, "b", "b", &json!({"capacity": "10Gi"}));
    assert_eq!(world.verdict(&web, &n2), Ok(()));
    // The largest single volume says more than the sum of what is free.
    capacity(&mut world, "b", "b", &json!({"capacity": "100Gi", "maximumVolumeSize": "5Gi"}));
    assert_eq!(world.verdict(&web, &n2), Err("no_volume_capacity"));
    capacity(&mut world, "b", "b", &json!({"capacity": "100Gi", "nodeTopology": null}));
    assert_eq!(world.verdict(&web, &n2), Err("no_volume_capacity"), "it speaks of no node");
    capacity(&mut world, "b", "b", &json!({"capacity": "100Gi", "storageClassName": "now"}));
    assert_eq!(world.verdict(&web, &n2), Err("no_volume_capacity"), "of another class");
    driver(&mut world, false);
    assert_eq!(world.verdict(&web, &n2), Ok(()));
}

#[test]
fn only_a_capacity_that_grows_counts_as_a_change() {
    let mut world = TestVolumes::new();
    capacity(&mut world, "a", "a", &json!({"capacity": "9Gi"}));
    world.0.take_changed();
    capacity(&mut world, "a", "a", &json!({"capacity": "8Gi"}));
    assert!(!world.0.take_changed());
    capacity(&mut world, "a", "a", &json!({"capacity": "10Gi"}));
    assert!(world.0.take_changed());
    capacity(&mut world, "a", "b", &json!({"capacity": "10Gi"}));
    assert!(world.0.take_changed(), "for other nodes");
    world.0.remove_csi_capacity(&Key::new("storage", "a"));
    assert!(!world.0.take_changed());
    driver(&mut world, true);
    world.claim("data", "disk", &json!({}));
    assert_eq!(world.verdict(&pod("web", &["data"]), &node("n1", "b")), Err("no_volume_capacity"));
    world.0.take_changed();
    world.0.remove_csi_driver("disk.csi");
    assert!(world.0.take_changed());
}

#[test]
fn a_claim_whose_provisioner_gave_up_on_the_node_may_go_elsewhere() {
    let mut world = TestVolumes::new();
    let (n1, n2) = (node("n1", "a"), node("n2", "a"));
    let web = pod("web", &["data"]);
    world.claim("data", "disk", &json!({}));
    world.0.reserve(&web, &n1);
    let selected =
        json!({"metadata": {"annotations": {"volume.kubernetes.io/selected-node": "n1"}}});
    world.claim("data", "disk", &selected);
    world.0.take_changed();
    assert_eq!(world.verdict(&pod("next", &["data"]), &n2), Err("volume_other_node"));
    world.claim("data", "disk", &json!({}));
    assert!(world.0.take_changed());
    assert_eq!(world.verdict(&pod("next", &["data"]), &n2), Ok(()));
}
