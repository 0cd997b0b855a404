//! What holds on all nodes.

use super::*;

#[test]
fn a_pod_without_claims_has_no_requirements() {
    let mut world = TestVolumes::new();
    let (web, n1) = (pod("web", &[]), node("n1", "a"));
    assert!(world.0.prepare(&web).is_ok_and(|it| it.is_empty()));
    assert_eq!(world.0.try_reserve(&web, &n1), Ok(VolumePlan::default()));
}

#[test]
fn a_claim_that_cannot_be_used_says_why_and_names_itself() {
    let n1 = node("n1", "a");
    let deleting = json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}});
    let lost = json!({"spec": {"volumeName": "v1"}, "status": {"phase": "Lost"}});
    let named = json!({"spec": {"volumeName": "v1"}});
    let none = json!({"spec": {"storageClassName": null}});
    let cases = [
        (None, "volume_claim_missing", "claim prod/data does not exist"),
        (Some(("disk", deleting)), "volume_claim_deleting", "claim prod/data is being deleted"),
        (Some(("disk", lost)), "volume_claim_lost", "claim prod/data has lost its volume v1"),
        (
            Some(("now", json!({}))),
            "volume_claim_unbound",
            "claim prod/data is not bound yet; its class now binds immediately",
        ),
        (
            Some(("", json!({}))),
            "volume_claim_unbound",
            "claim prod/data has no storage class and is not bound",
        ),
        (
            Some(("", none)),
            "volume_claim_unbound",
            "claim prod/data has no storage class and is not bound",
        ),
        (
            Some(("disk", named)),
            "volume_claim_unbound",
            "claim prod/data names volume v1 and is not bound to it yet",
        ),
        (
            Some(("gold", json!({}))),
            "volume_class_missing",
            "storage class gold of claim prod/data does not exist",
        ),
    ];
    for (claim, code, text) in cases {
        let mut world = TestVolumes::new();
        if let Some((class, more)) = claim {
            world.claim("data", class, &more);
        }
        let web = pod("web", &["data"]);
        assert_eq!(world.verdict(&web, &n1), Err(code), "{text}");
        assert_eq!(world.text(&web, &n1), text);
    }
}

#[test]
fn a_claim_bound_to_a_volume_that_is_gone_is_refused() {
    let mut world = TestVolumes::new();
    world.bound_claim("data", "disk", "v1");
    let (web, n1) = (pod("web", &["data"]), node("n1", "a"));
    assert_eq!(world.verdict(&web, &n1), Err("volume_missing"));
    world.volume("v1", "disk", "10Gi", &json!({}));
    assert_eq!(world.verdict(&web, &n1), Ok(()));
    world.0.remove_volume("v1");
    assert_eq!(world.verdict(&web, &n1), Err("volume_missing"));
}

#[test]
fn a_bound_claim_needs_no_class() {
    let mut world = TestVolumes::default();
    world.volume("v1", "", "10Gi", &json!({}));
    world.bound_claim("data", "gone", "v1");
    assert_eq!(world.verdict(&pod("web", &["data"]), &node("n1", "a")), Ok(()));
}

#[test]
fn the_old_annotation_for_the_class_comes_before_the_field() {
    let mut world = TestVolumes::new();
    let old =
        json!({"metadata": {"annotations": {"volume.beta.kubernetes.io/storage-class": "disk"}}});
    world.claim("data", "now", &old);
    assert_eq!(world.verdict(&pod("web", &["data"]), &node("n1", "a")), Ok(()));
}

#[test]
fn a_claim_for_one_pod_is_refused_to_the_second_until_the_first_goes() {
    let mut world = TestVolumes::new();
    let n1 = node("n1", "a");
    world.claim("data", "disk", &json!({"spec": {"accessModes": ["ReadWriteOncePod"]}}));
    let (first, second) = (pod("first", &["data"]), pod("second", &["data"]));
    assert_eq!(world.0.reserve(&first, &n1), makes(&["data"]));
    // The first may ask again: it is its own.
    assert_eq!(world.verdict(&first, &n1), Ok(()));
    assert_eq!(world.verdict(&second, &n1), Err("volume_claim_in_use"));
    assert_eq!(
        world.text(&second, &n1),
        "claim prod/data is ReadWriteOncePod and in use by prod/first"
    );
    // As if the first were gone.
    assert!(world.0.prepare_without(&second, &[first.id]).is_ok());
    world.0.release(&first);
    assert_eq!(world.verdict(&second, &n1), Ok(()));
}

#[test]
fn a_claim_for_one_pod_is_in_use_by_a_pod_that_was_found_bound() {
    let mut world = TestVolumes::new();
    let n1 = node("n1", "a");
    // The pod is seen before its claim.
    world.0.reserve(&bound_pod("first", "n1", &["data"]), &n1);
    world.claim("data", "disk", &json!({"spec": {"accessModes": ["ReadWriteOncePod"]}}));
    assert_eq!(world.verdict(&pod("second", &["data"]), &n1), Err("volume_claim_in_use"));
}

#[test]
fn a_claim_of_an_earlier_pods_ephemeral_volume_is_rejected() {
    let mut world = TestVolumes::new();
    let n1 = node("n1", "a");
    let web = pod("web-0", &["web-0-scratch"]);
    world.claim("web-0-scratch", "disk", &owned_by("the one before"));
    assert_eq!(world.verdict(&web, &n1), Err("volume_claim_foreign"));
    world.claim("web-0-scratch", "disk", &owned_by("web-0"));
    assert_eq!(world.verdict(&web, &n1), Ok(()));
    // A claim without an owner that merely has such a name is an ordinary one.
    world.claim("web-0-scratch", "disk", &json!({}));
    assert_eq!(world.verdict(&web, &n1), Ok(()));
}

#[test]
fn only_what_may_let_a_pod_fit_counts_as_a_change() {
    let mut world = TestVolumes::new();
    assert!(world.0.take_changed());
    assert!(!world.0.take_changed());
    world.claim("data", "disk", &json!({}));
    assert!(world.0.take_changed());
    // The same again, and what no rule looks at.
    world.claim("data", "disk", &json!({"metadata": {"labels": {"seen": "twice"}}}));
    world.class("disk", "disk.csi", &json!({}));
    assert!(!world.0.take_changed());
    world.local("v1", "n1", "10Gi");
    assert!(world.0.take_changed());
    world.0.remove_volume("v1");
    world.0.remove_claim(&key("data"));
    world.0.remove_class("local");
    assert!(!world.0.take_changed());
    // Preemption lifts pods and puts them back; that must not wake those who were refused.
    let (web, n1) = (pod("web", &["data"]), node("n1", "a"));
    world.claim("data", "disk", &json!({}));
    world.0.take_changed();
    world.0.reserve(&web, &n1);
    world.0.release(&web);
    assert!(!world.0.take_changed());
}
