//! Volumes that exist: bound, promised, and free.

use super::*;

#[test]
fn a_bound_volume_keeps_its_pod_where_its_affinity_says() {
    let mut world = TestVolumes::new();
    world.local("v1", "n1", "10Gi");
    world.bound_claim("data", "local", "v1");
    let web = pod("web", &["data"]);
    assert_eq!(world.verdict(&web, &node("n1", "a")), Ok(()));
    assert_eq!(world.verdict(&web, &node("n2", "a")), Err("volume_node_affinity"));
    assert_eq!(
        world.text(&web, &node("n2", "a")),
        "claim prod/data: the node affinity of volume v1 excludes it"
    );
    assert_eq!(world.0.reserve(&web, &node("n1", "a")), VolumePlan::default());
}

#[test]
fn old_zone_labels_of_a_volume_bind_it_to_those_zones() {
    let n_a = node("n1", "a");
    let no_zone = Node::read(&read(json!({"metadata": {"name": "n3"}})));
    for label in ["topology.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/zone"] {
        let mut world = TestVolumes::new();
        world.volume("v1", "disk", "10Gi", &json!({"metadata": {"labels": {label: "a__b"}}}));
        world.bound_claim("data", "disk", "v1");
        let web = pod("web", &["data"]);
        assert_eq!(world.verdict(&web, &n_a), Ok(()), "{label}");
        assert_eq!(world.verdict(&web, &node("n2", "b")), Ok(()), "{label}");
        assert_eq!(world.verdict(&web, &node("n2", "c")), Err("volume_zone"), "{label}");
        assert_eq!(world.verdict(&web, &no_zone), Ok(()), "a cluster without zones: {label}");
    }
}

#[test]
fn an_unbound_claim_takes_the_smallest_volume_that_fits_and_then_the_first_name() {
    let mut world = TestVolumes::new();
    let n1 = node("n1", "a");
    for (name, size) in [("v5", "5Gi"), ("v40", "40Gi"), ("v20b", "20Gi"), ("v20a", "20Gi")] {
        world.local(name, "n1", size);
    }
    world.local("v10", "n2", "10Gi");
    world.claim("data", "local", &json!({}));
    let web = pod("web", &["data"]);
    assert_eq!(world.0.reserve(&web, &n1), binds(&[("data", "v20a")]));
    world.0.release(&web);
    assert_eq!(world.0.reserve(&web, &node("n2", "a")), binds(&[("data", "v10")]));
}

#[test]
fn a_volume_that_is_smaller_than_requested_is_not_used() {
    let mut world = TestVolumes::new();
    let (web, n1) = (pod("web", &["data"]), node("n1", "a"));
    world.local("v1", "n1", "9Gi");
    world.claim("data", "local", &json!({}));
    assert_eq!(world.verdict(&web, &n1), Err("no_volume"));
    assert_eq!(
        world.text(&web, &n1),
        "claim prod/data: 10Gi of class local, the largest unclaimed volume here has 9Gi"
    );
    assert_eq!(
        world.text(&web, &node("n2", "a")),
        "claim prod/data: 10Gi of class local, no unclaimed volume here"
    );
    world.local("v1", "n1", "10Gi");
    assert_eq!(world.verdict(&web, &n1), Ok(()));
}

#[test]
fn a_volume_must_match_in_class_mode_access_labels_and_state() {
    let n1 = node("n1", "a");
    let fast = json!({"spec": {"selector": {"matchLabels": {"tier": "fast"}}}});
    let cases = [
        ("as it is", json!({}), json!({}), Ok(())),
        ("class", json!({}), json!({"spec": {"storageClassName": "disk"}}), Err("no_volume")),
        ("block", json!({}), json!({"spec": {"volumeMode": "Block"}}), Err("no_volume")),
        (
            "both block",
            json!({"spec": {"volumeMode": "Block"}}),
            json!({"spec": {"volumeMode": "Block"}}),
            Ok(()),
        ),
        (
            "the default is a file system",
            json!({}),
            json!({"spec": {"volumeMode": "Filesystem"}}),
            Ok(()),
        ),
        (
            "access",
            json!({"spec": {"accessModes": ["ReadWriteMany"]}}),
            json!({}),
            Err("no_volume"),
        ),
        (
            "more access than asked for",
            json!({}),
            json!({"spec": {"accessModes": ["ReadWriteMany", "ReadWriteOnce"]}}),
            Ok(()),
        ),
        ("labels", fast.clone(), json!({}), Err("no_volume")),
        ("labels that match", fast, json!({"metadata": {"labels": {"tier": "fast"}}}), Ok(())),
        ("phase", json!({}), json!({"status": {"phase": "Released"}}), Err("no_volume")),
        (
            "deleting",
            json!({}),
            json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}),
            Err("no_volume"),
        ),
        (
            "attributes",
            json!({"spec": {"volumeAttributesClassName": "quick"}}),
            json!({}),
            Err("no_volume"),
        ),
        (
            "another claim's",
            json!({}),
            json!({"spec": {"claimRef": {"namespace": "prod", "name": "other"}}}),
            Err("no_volume"),
        ),
        (
            "a claim's of this name that is gone",
            json!({}),
            json!({"spec": {"claimRef": {"namespace": "prod", "name": "data", "uid": "old"}}}),
            Err("no_volume"),
        ),
    ];
    for (name, claim, volume, expected) in cases {
        let mut world = TestVolumes::new();
        world.claim("data", "local", &claim);
        world.volume("v1", "local", "10Gi", &volume);
        assert_eq!(world.verdict(&pod("web", &["data"]), &n1), expected, "{name}");
    }
}

#[test]
fn a_volume_that_names_the_claim_is_preferred_to_a_smaller_free_one() {
    let mut world = TestVolumes::new();
    let (web, n1) = (pod("web", &["data"]), node("n1", "a"));
    world.local("small", "n1", "10Gi");
    world.local("small2", "n2", "10Gi");
    let for_data = json!({"spec": {"claimRef": {"namespace": "prod", "name": "data"}}});
    world.volume("kept", "local", "80Gi", &with(on("kubernetes.io/hostname", "n1"), &for_data));
    world.claim("data", "local", &json!({}));
    assert_eq!(world.verdict(&web, &node("n2", "a")), Err("volume_node_affinity"));
    assert_eq!(world.0.reserve(&web, &n1), binds(&[("data", "kept")]));
}

#[test]
fn a_volume_that_names_the_claim_and_does_not_satisfy_it_does_not_exclude_others() {
    let for_data = json!({"spec": {"claimRef": {"namespace": "prod", "name": "data"}}});
    let (web, n1) = (pod("web", &["data"]), node("n1", "a"));
    let going = json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}});
    for (size, more) in [("9Gi", json!({})), ("10Gi", going)] {
        let mut world = TestVolumes::new();
        world.volume("kept", "local", size, &with(for_data.clone(), &more));
        world.local("v1", "n1", "40Gi");
        world.claim("data", "local", &json!({}));
        assert_eq!(world.0.try_reserve(&web, &n1), Ok(binds(&[("data", "v1")])), "{size}");
    }
}

#[test]
fn of_two_pods_that_need_one_volume_the_second_is_refused_until_the_first_is_released() {
    let mut world = TestVolumes::new();
    let n1 = node("n1", "a");
    world.local("v1", "n1", "10Gi");
    world.claim("a", "local", &json!({}));
    world.claim("b", "local", &json!({}));
    let (first, second) = (pod("first", &["a"]), pod("second", &["b"]));
    // Both looked before either took it.
    let prepared = world.0.prepare(&second).expect("its claim waits");
    assert!(world.0.fits(&prepared, &n1));
    assert_eq!(world.0.try_reserve(&first, &n1), Ok(binds(&[("a", "v1")])));
    assert!(!world.0.fits(&prepared, &n1));
    assert_eq!(world.0.try_reserve(&second, &n1).map_err(|it| it.code), Err("no_volume"));
    // A late message from before it was taken changes nothing.
    world.0.remove_volume("other");
    world.volume(
        "v1",
        "local",
        "10Gi",
        &with(on("kubernetes.io/hostname", "n1"), &json!({"metadata": {"labels": {"a": "b"}}})),
    );
    assert_eq!(world.verdict(&second, &n1), Err("no_volume"));
    world.0.release(&first);
    assert_eq!(world.0.try_reserve(&second, &n1), Ok(binds(&[("b", "v1")])));
}

#[test]
fn two_claims_of_one_pod_take_two_volumes() {
    let mut world = TestVolumes::new();
    let (web, n1) = (pod("web", &["big", "small"]), node("n1", "a"));
    world.claim("big", "local", &json!({"spec": {"resources": {"requests": {"storage": "20Gi"}}}}));
    world.claim("small", "local", &json!({}));
    world.local("v20", "n1", "20Gi");
    assert_eq!(world.verdict(&web, &n1), Err("no_volume"));
    world.local("v30", "n1", "30Gi");
    assert_eq!(world.0.try_reserve(&web, &n1), Ok(binds(&[("small", "v20"), ("big", "v30")])));
}

#[test]
fn two_pods_that_share_a_claim_share_the_decision_until_both_are_gone() {
    let mut world = TestVolumes::new();
    let (n1, n2) = (node("n1", "a"), node("n2", "a"));
    world.local("v1", "n1", "10Gi");
    world.local("v2", "n2", "10Gi");
    world.claim("data", "local", &json!({}));
    world.claim("rest", "local", &json!({}));
    let (first, second) = (pod("first", &["data"]), pod("second", &["data"]));
    assert_eq!(world.0.try_reserve(&first, &n1), Ok(binds(&[("data", "v1")])));
    assert_eq!(world.verdict(&second, &n2), Err("volume_node_affinity"));
    assert_eq!(world.0.try_reserve(&second, &n1), Ok(binds(&[("data", "v1")])));
    world.0.release(&first);
    assert_eq!(world.verdict(&pod("third", &["rest"]), &n1), Err("no_volume"));
    world.0.release(&second);
    assert_eq!(world.verdict(&pod("third", &["rest"]), &n1), Ok(()));
}

#[test]
fn a_volume_stays_taken_while_claim_and_volume_are_seen_bound_one_after_the_other() {
    let n1 = node("n1", "a");
    let bound = json!({"spec": {"claimRef": {"namespace": "prod", "name": "data", "uid": "data-uid"}},
        "status": {"phase": "Bound"}});
    let bound = with(on("kubernetes.io/hostname", "n1"), &bound);
    for claim_first in [true, false] {
        let mut world = TestVolumes::new();
        world.local("v1", "n1", "10Gi");
        world.claim("data", "local", &json!({}));
        world.claim("rest", "local", &json!({}));
        let (first, second) = (pod("first", &["data"]), pod("second", &["rest"]));
        world.0.reserve(&first, &n1);
        for step in [claim_first, !claim_first] {
            if step {
                world.bound_claim("data", "local", "v1");
            } else {
                world.volume("v1", "local", "10Gi", &bound);
            }
            assert_eq!(world.verdict(&second, &n1), Err("no_volume"));
            assert_eq!(world.verdict(&pod("third", &["data"]), &n1), Ok(()));
        }
        // The pod goes; what is bound stays bound.
        world.0.release(&first);
        assert_eq!(world.verdict(&second, &n1), Err("no_volume"));
        assert_eq!(world.verdict(&pod("third", &["data"]), &n1), Ok(()));
    }
}

#[test]
fn a_claim_whose_chosen_volume_was_taken_is_decided_again() {
    let mut world = TestVolumes::new();
    let (web, n1) = (pod("web", &["data"]), node("n1", "a"));
    world.local("v1", "n1", "10Gi");
    world.local("v2", "n1", "20Gi");
    world.claim("data", "local", &json!({}));
    assert_eq!(world.0.try_reserve(&web, &n1), Ok(binds(&[("data", "v1")])));
    let other = json!({"spec": {"claimRef": {"namespace": "prod", "name": "other", "uid": "o"}}});
    world.volume("v1", "local", "10Gi", &with(on("kubernetes.io/hostname", "n1"), &other));
    let next = pod("next", &["data"]);
    assert_eq!(world.0.try_reserve(&next, &n1), Ok(binds(&[("data", "v2")])));
    world.0.release(&next);
    world.0.release(&web);
    assert_eq!(world.0.try_reserve(&web, &n1), Ok(binds(&[("data", "v2")])));
}

#[test]
fn a_recreated_claim_does_not_inherit_decisions() {
    let mut world = TestVolumes::new();
    let (web, n1) = (pod("web", &["data"]), node("n1", "a"));
    world.local("v1", "n1", "10Gi");
    world.claim("data", "local", &json!({}));
    world.claim("rest", "local", &json!({}));
    world.0.reserve(&web, &n1);
    assert_eq!(world.verdict(&pod("next", &["rest"]), &n1), Err("no_volume"));
    world.claim("data", "local", &json!({"metadata": {"uid": "another"}}));
    assert_eq!(world.verdict(&pod("next", &["rest"]), &n1), Ok(()));
}

#[test]
fn a_pod_that_is_seen_bound_where_it_was_reserved_keeps_its_decision() {
    let mut world = TestVolumes::new();
    let n1 = node("n1", "a");
    world.local("v1", "n1", "10Gi");
    world.claim("data", "local", &json!({}));
    world.claim("rest", "local", &json!({}));
    world.0.reserve(&pod("web", &["data"]), &n1);
    assert_eq!(world.0.reserve(&bound_pod("web", "n1", &["data"]), &n1), VolumePlan::default());
    assert_eq!(world.verdict(&pod("next", &["rest"]), &n1), Err("no_volume"));
}

#[test]
fn a_volume_whose_affinity_has_alternatives_is_found_from_each() {
    let mut world = TestVolumes::new();
    let term = |key: &str, value: &str| json!({"matchExpressions": [{"key": key, "operator": "In", "values": [value]}]});
    let terms =
        json!([term("kubernetes.io/hostname", "n1"), term("topology.kubernetes.io/zone", "b")]);
    let affinity = json!({"spec": {"nodeAffinity": {"required": {"nodeSelectorTerms": terms}}}});
    world.volume("v1", "local", "10Gi", &affinity);
    world.claim("data", "local", &json!({}));
    let web = pod("web", &["data"]);
    for (node, expected) in
        [(node("n1", "a"), Ok(())), (node("n2", "b"), Ok(())), (node("n2", "a"), Err("no_volume"))]
    {
        assert_eq!(world.verdict(&web, &node), expected, "{}", node.name);
    }
}

#[test]
fn a_decision_for_a_bound_pod_stands_until_the_watch_shows_it() {
    let mut world = TestVolumes::new();
    let n1 = node("n1", "a");
    world.local("v1", "n1", "10Gi");
    world.claim("data", "local", &json!({}));
    world.claim("rest", "local", &json!({}));
    world.0.reserve(&pod("web", &["data"]), &n1);
    // It is bound, so its volume was; claim and volume are seen so later. Lifted, put back, gone.
    let bound = bound_pod("web", "n1", &["data"]);
    for _ in 0..2 {
        world.0.reserve(&bound, &n1);
        world.0.release(&bound);
        assert_eq!(world.verdict(&pod("next", &["rest"]), &n1), Err("no_volume"));
    }
    assert_eq!(world.verdict(&pod("again", &["data"]), &n1), Ok(()));
    // The claim goes, and with it what was decided for it.
    world.0.remove_claim(&key("data"));
    assert_eq!(world.verdict(&pod("next", &["rest"]), &n1), Ok(()));
}

#[test]
fn a_pod_that_is_put_back_where_it_was_keeps_the_volume_of_its_plan() {
    let mut world = TestVolumes::new();
    let (web, n1) = (pod("web", &["data"]), node("n1", "a"));
    world.local("v20", "n1", "20Gi");
    world.claim("data", "local", &json!({}));
    assert_eq!(world.0.try_reserve(&web, &n1), Ok(binds(&[("data", "v20")])));
    // A better one comes while the plan is carried out; then the pod's labels change.
    world.local("v10", "n1", "10Gi");
    world.0.release(&web);
    assert_eq!(world.0.try_reserve(&web, &n1), Ok(binds(&[("data", "v20")])));
    // Unless another claim got it in between.
    world.claim(
        "rest",
        "local",
        &json!({"spec": {"resources": {"requests": {"storage": "20Gi"}}}}),
    );
    world.0.release(&web);
    assert_eq!(world.0.try_reserve(&pod("next", &["rest"]), &n1), Ok(binds(&[("rest", "v20")])));
    assert_eq!(world.0.try_reserve(&web, &n1), Ok(binds(&[("data", "v10")])));
}
