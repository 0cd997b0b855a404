//! What is not supported is refused by its name.

use super::*;

#[test]
fn claims_that_ask_for_what_is_not_supported_are_refused_by_name() {
    for (devices, part) in [
        (
            json!({"requests": [request("r", json!({"adminAccess": true}))]}),
            "adminAccess of request r",
        ),
        (
            json!({"requests": [request("r", json!({"capacity": {"requests": {"memory": "1Gi"}}}))]}),
            "capacity of request r (consumable capacity)",
        ),
        (
            json!({"requests": [request("r", json!({"derivedAttributes": [{"name": "a", "expression": "1"}]}))]}),
            "derivedAttributes of request r",
        ),
        (
            json!({"requests": [request("r", json!({"allocationMode": "Half"}))]}),
            "allocationMode of request r is \"Half\"; accepted: ExactCount, All",
        ),
        (json!({"requests": [request("r", json!({"shape": "round"}))]}), "shape is not supported"),
        (json!({"requests": [{"name": "r"}]}), "request r is of an unknown kind"),
        (
            json!({"requests": [request("r", json!({"selectors": [{"rego": "x"}]}))]}),
            "is not supported",
        ),
        (
            json!({"requests": [request("r", json!({}))], "constraints": [{"requests": ["r"]}]}),
            "a constraint is of an unknown kind",
        ),
        (
            json!({"requests": [request("r", json!({"deviceClassName": "fpga"}))]}),
            "device class fpga does not exist",
        ),
        (
            json!({"requests": [request("r", json!({"selectors": cel("ip('::1') == 1")}))]}),
            "selector #0: CEL compile error: it calls ip(), which this scheduler does not know",
        ),
    ] {
        let mut world = World::new();
        world.slice("n1", json!([gpu("a", "A", 1)]));
        world.claim_of("one", devices, json!({}));
        let text = world.refusal(&pod("p", &["one"]), "n1");
        assert!(text.starts_with("resource claim default/one"), "{text}");
        assert!(text.contains(part), "{text} lacks {part}");
    }
}

#[test]
fn devices_that_need_what_is_not_supported_are_not_used_and_the_refusal_says_so() {
    for (field, value, part) in [
        ("consumesCounters", json!([{"counterSet": "c", "counters": {}}]), "consumesCounters"),
        ("allowMultipleAllocations", json!(true), "allowMultipleAllocations (consumable capacity)"),
        ("bindingConditions", json!(["ready"]), "bindingConditions"),
        ("nodeAllocatableResources", json!({"cpu": {}}), "nodeAllocatableResources"),
        ("compatibilityGroups", json!(["g"]), "compatibilityGroups"),
    ] {
        let mut world = World::new();
        let mut device = gpu("a", "A", 1);
        device[field] = value;
        world.slice("n1", json!([device, gpu("b", "A", 1)]));
        world.claim("one", json!([request("r", json!({}))]));
        world.claim("two", json!([request("r", json!({}))]));
        assert_eq!(world.devices_for(&pod("p", &["one"]), "n1").unwrap(), ["r=b"], "{field}");
        let text = world.refusal(&pod("q", &["two"]), "n1");
        assert!(text.contains(&format!("others need {part}")), "{text}");
    }
}

#[test]
fn claims_that_are_not_usable_say_why() {
    let mut world = World::new();
    let with = |claim: Value, statuses: Value| {
        Pod::read(&read::<ObservedPod>(json!({
            "metadata": {"name": "p", "namespace": "default", "uid": "p"},
            "spec": {"containers": [], "resourceClaims": [claim]},
            "status": {"resourceClaimStatuses": statuses},
        })))
    };
    let template = json!({"name": "c", "resourceClaimTemplateName": "t"});
    let code = |world: &mut World, pod: &Pod| world.devices.prepare(pod).err().map(|it| it.code);
    let none = with(template.clone(), json!([]));
    assert_eq!(code(&mut world, &none), Some("device_claim_not_created"));
    let needless = with(template.clone(), json!([{"name": "c"}]));
    assert_eq!(code(&mut world, &needless), None);
    let made = with(template, json!([{"name": "c", "resourceClaimName": "one"}]));
    assert_eq!(code(&mut world, &made), Some("device_claim_missing"));
    world.claim("one", json!([request("r", json!({}))]));
    assert_eq!(code(&mut world, &made), Some("device_claim_foreign"));
    assert_eq!(
        code(&mut world, &with(json!({"name": "c"}), json!([]))),
        Some("device_claim_unknown")
    );
    assert_eq!(code(&mut world, &pod("p", &["one"])), None);
    let metadata = json!({
        "name": "one", "namespace": "default", "uid": "one-uid", "deletionTimestamp": "2026-01-01T00:00:00Z",
    });
    world.put(DeviceKind::Claim, json!({"metadata": metadata, "spec": {}}));
    assert_eq!(code(&mut world, &pod("p", &["one"])), Some("device_claim_deleting"));
}
