//! Which devices a claim gets.

use super::*;

#[test]
fn a_claim_gets_the_first_free_device_that_class_and_selectors_match() {
    let mut world = World::new();
    world.slice("n1", json!([gpu("a", "A100", 1), gpu("b", "H100", 1), gpu("c", "H100", 2)]));
    let selectors = cel("device.attributes['gpu.example.com'].model == 'H100'");
    world.claim("one", json!([request("r", json!({ "selectors": selectors }))]));
    let plan = world.reserve(&pod("p", &["one"]), "n1").unwrap();
    assert_eq!((&*plan.claims[0].claim.name, &*plan.claims[0].uid), ("one", "one-uid"));
    let result = serde_json::to_value(plan.claims[0].allocation.as_deref().unwrap()).unwrap();
    let field = json!({"key": "metadata.name", "operator": "In", "values": ["n1"]});
    assert_eq!(
        result,
        json!({
            "devices": {"results": [{
                "request": "r", "driver": "gpu.example.com", "pool": "n1", "device": "b",
            }]},
            "nodeSelector": {"nodeSelectorTerms": [{"matchFields": [field]}]},
        })
    );
}

#[test]
fn a_device_has_one_claim_and_the_refusal_counts_what_is_free() {
    let mut world = World::new();
    world.slice("n1", json!([gpu("a", "A100", 1)]));
    world.claim("one", json!([request("r", json!({}))]));
    world.claim("two", json!([request("r", json!({}))]));
    assert_eq!(world.devices_for(&pod("p", &["one"]), "n1").unwrap(), ["r=a"]);
    assert_eq!(
        world.refusal(&pod("q", &["two"]), "n1"),
        "claim default/two, request r: 0 of 1 matching devices of class gpu free, 1 requested"
    );
    assert_eq!(
        world.refusal(&pod("q", &["two"]), "n2"),
        "claim default/two, request r: none of 0 devices here matches class gpu"
    );
    // Two claims of one pod do not share one either.
    world.slice("n3", json!([gpu("x", "A100", 1)]));
    world.claim("three", json!([request("r", json!({}))]));
    let text = world.refusal(&pod("q", &["two", "three"]), "n3");
    assert!(text.starts_with("no combination of free devices"), "{text}");
}

#[test]
fn counts_and_all_take_as_many_as_they_say() {
    let mut world = World::new();
    world.slice("n1", json!([gpu("a", "A100", 1), gpu("b", "A100", 1), gpu("c", "H100", 1)]));
    world.claim("two", json!([request("r", json!({"count": 2}))]));
    assert_eq!(world.devices_for(&pod("p", &["two"]), "n1").unwrap(), ["r=a", "r=b"]);
    let all = json!({"allocationMode": "All", "count": null});
    world.claim("all", json!([request("r", all.clone())]));
    let text = world.refusal(&pod("q", &["all"]), "n1");
    assert!(text.contains("1 of 3 matching devices of class gpu free, 3 requested"), "{text}");
    world.devices.release(&pod("p", &["two"]));
    assert_eq!(world.devices_for(&pod("q", &["all"]), "n1").unwrap(), ["r=a", "r=b", "r=c"]);
    world.claim("none", json!([request("r", all)]));
    assert!(world.refusal(&pod("s", &["none"]), "n2").contains("none of 0 devices"));
    world.claim("many", json!([request("r", json!({"count": 40}))]));
    assert!(world.refusal(&pod("t", &["many"]), "n1").contains("at most 32 per claim"));
}

#[test]
fn constraints_hold_over_all_devices_of_their_requests() {
    let devices = json!([
        gpu("a1", "A", 1),
        gpu("a2", "A", 2),
        gpu("b2", "B", 2),
        gpu("b3", "B", 3),
        gpu("c3", "C", 3),
    ]);
    let mut world = World::new();
    world.slice("n1", devices);
    let pair = json!([
        request(
            "r",
            json!({"selectors": cel("device.attributes['gpu.example.com'].model != 'C'")})
        ),
        request(
            "s",
            json!({"selectors": cel("device.attributes['gpu.example.com'].model != 'A'")})
        ),
    ]);
    let same = json!({"matchAttribute": "gpu.example.com/group"});
    let with = |constraint: Value| json!({"requests": pair, "constraints": [constraint]});
    let mut get = |name: &str, constraint: Value| {
        world.claim_of(name, with(constraint), json!({}));
        let found = world.devices_for(&pod(name, &[name]), "n1");
        world.devices.release(&pod(name, &[name]));
        found
    };
    assert_eq!(get("same", same).unwrap(), ["r=a2", "s=b2"]);
    let distinct = json!({"distinctAttribute": "gpu.example.com/model", "requests": ["r", "s"]});
    assert_eq!(get("distinct", distinct).unwrap(), ["r=a1", "s=b2"]);
    let missing = json!({"matchAttribute": "other.example.com/group"});
    assert!(get("missing", missing).unwrap_err().starts_with("no combination"));
    // A constraint on other requests does not matter.
    let others = json!({"matchAttribute": "other.example.com/group", "requests": ["t"]});
    assert_eq!(get("others", others).unwrap(), ["r=a1", "s=b2"]);
}

#[test]
fn the_first_alternative_that_is_available_is_taken_and_earlier_ones_are_preferred() {
    let mut world = World::new();
    world.slice("n1", json!([gpu("a", "A100", 1)]));
    world.slice("n2", json!([gpu("h", "H100", 1)]));
    let of = |name: &str, model: &str| {
        let selector = format!("device.attributes['gpu.example.com'].model == '{model}'");
        json!({"name": name, "deviceClassName": "gpu", "selectors": cel(&selector)})
    };
    let alternatives = json!([of("best", "H100"), of("good", "A100")]);
    world.claim("one", json!([{"name": "r", "firstAvailable": alternatives}]));
    let prepared = world.devices.prepare(&pod("p", &["one"])).unwrap();
    assert!(prepared.has_preferences());
    let preference = |on: &str| world.devices.preference(&prepared, &node(on));
    assert!(preference("n2") > preference("n1") && preference("n1") > preference("n3"));
    assert_eq!(world.devices_for(&pod("p", &["one"]), "n1").unwrap(), ["r/good=a"]);
    world.devices.release(&pod("p", &["one"]));
    assert_eq!(world.devices_for(&pod("p", &["one"]), "n2").unwrap(), ["r/best=h"]);
}

#[test]
fn configuration_of_classes_and_of_the_claim_is_passed_on() {
    let opaque = |text: &str| json!({"driver": "gpu.example.com", "parameters": {"is": text}});
    let mut world = World::new();
    world.class("gpu", "true", &json!([{"opaque": opaque("class")}]));
    world.class("other", "true", &json!([]));
    world.slice("n1", json!([gpu("a", "A", 1), gpu("b", "B", 1)]));
    let requests =
        json!([request("r", json!({})), request("s", json!({"deviceClassName": "other"}))]);
    let config = json!([
        {"opaque": opaque("all")},
        {"requests": ["s"], "opaque": opaque("s")},
        {"requests": ["r", "s"], "opaque": opaque("both")},
    ]);
    world.claim_of("one", json!({"requests": requests, "config": config}), json!({}));
    let plan = world.reserve(&pod("p", &["one"]), "n1").unwrap();
    let result = serde_json::to_value(plan.claims[0].allocation.as_deref().unwrap()).unwrap();
    let expected = json!([
        {"source": "FromClass", "requests": ["r"], "opaque": opaque("class")},
        {"source": "FromClaim", "opaque": opaque("all")},
        {"source": "FromClaim", "requests": ["s"], "opaque": opaque("s")},
        {"source": "FromClaim", "opaque": opaque("both")},
    ]);
    assert_eq!(result["devices"]["config"], expected);
}

#[test]
fn pools_are_used_once_all_their_slices_are_there() {
    let mut world = World::new();
    world.claim("one", json!([request("r", json!({}))]));
    let part = |pool: i64, count: i64, device: &str| {
        json!({
            "nodeName": "n1", "devices": [gpu(device, "A", 1)],
            "pool": {"name": "p", "generation": pool, "resourceSliceCount": count},
        })
    };
    world.slice_of("s1", part(1, 2, "a"));
    let text = world.refusal(&pod("p", &["one"]), "n1");
    assert!(text.ends_with("pool gpu.example.com/p is being updated (1 of 2 slices)"), "{text}");
    world.slice_of("s2", part(1, 2, "b"));
    assert_eq!(world.devices_for(&pod("p", &["one"]), "n1").unwrap(), ["r=a"]);
    world.devices.release(&pod("p", &["one"]));
    // A newer generation replaces the older one, even while it is incomplete.
    world.slice_of("s3", part(2, 1, "c"));
    assert_eq!(world.devices_for(&pod("p", &["one"]), "n1").unwrap(), ["r=c"]);
    world.devices.release(&pod("p", &["one"]));
    world.slice_of("s4", part(2, 1, "c"));
    world.devices.remove(DeviceKind::Slice, &Key::new("", "s3"));
    world.slice_of("s5", part(3, 2, "c"));
    world.slice_of("s6", part(3, 2, "c"));
    let text = world.refusal(&pod("p", &["one"]), "n1");
    assert!(text.contains("two of its devices have the same name"), "{text}");
}

#[test]
fn slices_say_on_which_nodes_their_devices_can_be_used() {
    let labelled = |value: &str| {
        let expression = json!({"key": "rack", "operator": "In", "values": [value]});
        json!({"nodeSelectorTerms": [{"matchExpressions": [expression]}]})
    };
    let mut world = World::new();
    let mut device = gpu("far", "A", 1);
    device["nodeName"] = json!("n2");
    let mut near = gpu("near", "A", 1);
    near["nodeSelector"] = labelled("r1");
    world.slice_of("mixed", json!({"perDeviceNodeSelection": true, "devices": [device, near]}));
    let other = json!({"nodeSelector": labelled("r2"), "devices": [gpu("other", "A", 1)]});
    world.slice_of("other", other);
    world.slice_of("shared", json!({"allNodes": true, "devices": [gpu("shared", "A", 1)]}));
    world.slice_of("unknown", json!({"devices": [gpu("unknown", "A", 1)]}));
    world.claim("one", json!([request("r", json!({"count": 2}))]));
    world.claim("two", json!([request("r", json!({}))]));
    let plan = world.reserve(&pod("p", &["one"]), "n1").unwrap();
    let result = serde_json::to_value(plan.claims[0].allocation.as_deref().unwrap()).unwrap();
    assert_eq!(result["devices"]["results"][0]["device"], "near");
    assert_eq!(result["devices"]["results"][1]["device"], "shared");
    assert_eq!(result["nodeSelector"], labelled("r1"));
    assert!(world.refusal(&pod("q", &["two"]), "n1").contains("0 of 2 matching"));
    assert_eq!(world.devices_for(&pod("q", &["two"]), "n2").unwrap(), ["r=far"]);
}

#[test]
fn tainted_devices_need_a_toleration() {
    let mut world = World::new();
    let mut tainted = gpu("a", "A", 1);
    tainted["taints"] = json!([{"key": "sick", "value": "yes", "effect": "NoSchedule"}]);
    world.slice("n1", json!([tainted]));
    world.claim("one", json!([request("r", json!({}))]));
    let text = world.refusal(&pod("p", &["one"]), "n1");
    assert!(text.ends_with("none of 1 devices here matches class gpu, 1 more tainted"), "{text}");
    let tolerations = json!([{"key": "sick", "operator": "Exists", "effect": "NoSchedule"}]);
    world.claim("two", json!([request("r", json!({ "tolerations": tolerations }))]));
    let plan = world.reserve(&pod("q", &["two"]), "n1").unwrap();
    let result = serde_json::to_value(plan.claims[0].allocation.as_deref().unwrap()).unwrap();
    assert_eq!(result["devices"]["results"][0]["tolerations"], tolerations);
    world.devices.release(&pod("q", &["two"]));
    // A rule taints devices from outside.
    let taint = json!({"key": "service", "effect": "NoExecute"});
    let rule = json!({"deviceSelector": {"pool": "n1"}, "taint": taint});
    world.put(DeviceKind::TaintRule, json!({"metadata": {"name": "rule"}, "spec": rule}));
    assert!(world.refusal(&pod("q", &["two"]), "n1").contains("1 more tainted"));
    world.devices.remove(DeviceKind::TaintRule, &Key::new("", "rule"));
    assert_eq!(world.devices_for(&pod("q", &["two"]), "n1").unwrap(), ["r=a"]);
}

#[test]
fn a_selector_that_fails_on_a_device_says_where_and_why() {
    let mut world = World::new();
    world.slice("n1", json!([gpu("a", "A", 1)]));
    let selectors = cel("device.attributes['gpu.example.com'].color == 'red'");
    world.claim("one", json!([request("r", json!({ "selectors": selectors }))]));
    assert_eq!(
        world.refusal(&pod("p", &["one"]), "n1"),
        "claim default/one, request r: selector #0 on device gpu.example.com/n1/a: CEL runtime \
         error: No such key: color"
    );
    // A device that was found before it does not matter.
    let either = "device.attributes['gpu.example.com'].model == 'A' || \
                  device.attributes['gpu.example.com'].color == 'red'";
    world.slice("n1", json!([gpu("a", "A", 1), gpu("b", "B", 1)]));
    world.claim("two", json!([request("r", json!({ "selectors": cel(either) }))]));
    assert_eq!(world.devices_for(&pod("q", &["two"]), "n1").unwrap(), ["r=a"]);
}

#[test]
fn a_search_without_end_is_ended() {
    let mut world = World::new();
    let devices: Vec<Value> = (0..40).map(|at| gpu(&format!("d{at}"), "A", at)).collect();
    world.slice("n1", json!(devices));
    let constraints = json!([
        {"distinctAttribute": "gpu.example.com/group"},
        {"matchAttribute": "gpu.example.com/model", "requests": ["r"]},
        {"matchAttribute": "other.example.com/none", "requests": ["s"]},
    ]);
    let requests = json!([request("r", json!({"count": 12})), request("s", json!({}))]);
    world.claim_of("one", json!({"requests": requests, "constraints": constraints}), json!({}));
    let text = world.refusal(&pod("p", &["one"]), "n1");
    assert_eq!(text, "the search for devices was ended after 20000 steps");
}
