//! Claims of devices: where pods go, who has to go for them, and what they are told.

use serde_json::{Value, json};

use crate::core::Core;
use crate::objects::{node, patched, pod, pod_on};

fn class() -> Value {
    let selector = json!({"cel": {"expression": "device.driver == 'gpu.example.com'"}});
    json!({"kind": "DeviceClass", "metadata": {"name": "gpu"}, "spec": {"selectors": [selector]}})
}

fn slice(node: &str, devices: &[&str]) -> Value {
    let devices: Vec<Value> = devices
        .iter()
        .map(|it| json!({"name": it, "attributes": {"model": {"string": "A100"}}}))
        .collect();
    json!({
        "kind": "ResourceSlice", "metadata": {"name": node, "resourceVersion": "1"},
        "spec": {
            "driver": "gpu.example.com", "nodeName": node, "devices": devices,
            "pool": {"name": node, "generation": 1, "resourceSliceCount": 1},
        },
    })
}

fn claim(name: &str, selector: &str) -> Value {
    let selectors = json!([{"cel": {"expression": selector}}]);
    let request = json!({"deviceClassName": "gpu", "selectors": selectors});
    json!({
        "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": "default", "uid": name, "resourceVersion": "1"},
        "spec": {"devices": {"requests": [{"name": "r", "exactly": request}]}},
    })
}

/// A claim that has a device of a node, for a pod.
fn allocated(name: &str, node: &str, device: &str, pod: &str) -> Value {
    let result = json!({
        "request": "r", "driver": "gpu.example.com", "pool": node, "device": device,
    });
    let field = json!({"key": "metadata.name", "operator": "In", "values": [node]});
    let status = json!({
        "allocation": {
            "devices": {"results": [result]},
            "nodeSelector": {"nodeSelectorTerms": [{"matchFields": [field]}]},
        },
        "reservedFor": [{"resource": "pods", "name": pod, "uid": format!("uid-{pod}")}],
    });
    let version = json!({"metadata": {"resourceVersion": "2"}, "status": status});
    patched(claim(name, "true"), &version)
}

fn user(name: &str, claim: &str) -> Value {
    let claims = json!([{"name": "c", "resourceClaimName": claim}]);
    pod(name, &json!({"spec": {"resourceClaims": claims}}))
}

fn user_on(node: &str, name: &str, claim: &str, priority: i64) -> Value {
    let claims = json!([{"name": "c", "resourceClaimName": claim}]);
    let spec = json!({"spec": {"resourceClaims": claims, "priority": priority}});
    patched(pod_on(node, name, &json!({})), &spec)
}

fn nodes() -> Vec<Value> {
    vec![node("n1", &json!({})), node("n2", &json!({})), class(), slice("n2", &["a"])]
}

#[test]
fn a_pod_goes_where_its_devices_are_and_the_others_are_told_what_is_missing() {
    let mut core = Core::of(&nodes());
    for name in ["one", "two"] {
        core.tell(&claim(name, "device.attributes['gpu.example.com'].model == 'A100'"));
    }
    core.tell(&user("p", "one"));
    core.tell(&user("q", "two"));
    assert_eq!(core.nodes_for("p"), ["n2"]);
    assert_eq!(core.node_of("p"), "n2");
    let refusal = core.refusal("q");
    assert_eq!(refusal.code, "devices_unavailable");
    assert_eq!(
        refusal.line,
        "0/2 nodes are available: 2 without the devices that it claims (nearest n2: claim \
         default/two, request r: 0 of 1 matching devices of class gpu free, 1 requested)"
    );
    assert_eq!(
        refusal.help,
        ["Free a device, add a node that has one, or relax the selectors of the claim."]
    );
    // The reservation is no secret to explanations, which change nothing.
    assert!(core.nodes_for("q").is_empty());
    core.remove("p");
    assert_eq!(core.node_of("q"), "n2");
}

#[test]
fn a_claim_for_which_no_device_matches_says_so() {
    let mut core = Core::of(&nodes());
    core.tell(&claim("one", "device.attributes['gpu.example.com'].model == 'H100'"));
    core.tell(&user("p", "one"));
    let line = core.refusal("p").line;
    let text = "request r: none of 1 devices here matches class gpu and its selectors";
    assert!(line.contains(text), "{line}");
    core.tell(&claim("two", "device.attributes['gpu.example.com'].color == 'red'"));
    core.tell(&user("q", "two"));
    let refusal = core.refusal("q");
    assert!(refusal.line.contains("CEL runtime error: No such key: color"), "{}", refusal.line);
}

#[test]
fn a_pod_without_its_claim_or_class_waits_with_a_reason() {
    let mut core = Core::of(&[node("n1", &json!({}))]);
    core.tell(&user("p", "one"));
    assert_eq!(core.refusal("p").code, "device_claim_missing");
    core.tell(&claim("one", "true"));
    let refusal = core.refusal("p");
    assert_eq!(refusal.code, "device_class_missing");
    assert_eq!(
        refusal.line,
        "resource claim default/one, request r: device class gpu does not exist"
    );
    core.tell(&class());
    core.tell(&slice("n1", &["a"]));
    assert_eq!(core.node_of("p"), "n1");
}

#[test]
fn a_pod_of_lower_priority_is_preempted_for_its_device() {
    let mut core = Core::of(&nodes());
    core.tell(&allocated("one", "n2", "a", "low"));
    core.tell(&user_on("n2", "low", "one", 0));
    core.tell(&claim("two", "true"));
    core.tell(&patched(user("high", "two"), &json!({"spec": {"priority": 10}})));
    assert_eq!(core.victims("high"), ("n2".to_owned(), vec!["low".to_owned()]));
    // It is gone, but the claim has the device until Kubernetes' controller takes it.
    core.remove("low");
    assert_eq!(core.refusal("high").code, "devices_unavailable");
    let free = json!({"metadata": {"resourceVersion": "3"}});
    core.tell(&patched(claim("one", "true"), &free));
    assert_eq!(core.node_of("high"), "n2");
}

#[test]
fn a_pod_that_others_depend_on_by_a_shared_claim_frees_no_device() {
    let mut core = Core::of(&nodes());
    let mut shared = allocated("one", "n2", "a", "low");
    let consumers = shared["status"]["reservedFor"].as_array_mut().unwrap();
    consumers.push(json!({"resource": "pods", "name": "peer", "uid": "uid-peer"}));
    core.tell(&shared);
    core.tell(&user_on("n2", "low", "one", 0));
    core.tell(&user_on("n2", "peer", "one", 20));
    core.tell(&claim("two", "true"));
    core.tell(&patched(user("high", "two"), &json!({"spec": {"priority": 10}})));
    assert_eq!(core.refusal("high").code, "devices_unavailable");
}

#[test]
fn an_explanation_of_a_bound_pod_leaves_its_devices_in_use() {
    let mut core = Core::of(&nodes());
    core.tell(&allocated("one", "n2", "a", "p"));
    core.tell(&user_on("n2", "p", "one", 0));
    assert_eq!(core.nodes_for("p"), ["n2"]);
    core.tell(&claim("two", "true"));
    core.tell(&user("q", "two"));
    assert_eq!(core.refusal("q").code, "devices_unavailable");
}

#[test]
fn a_group_with_claims_of_its_own_is_refused_by_name() {
    let group = json!({
        "apiVersion": "scheduling.k8s.io/v1alpha2", "kind": "PodGroup",
        "metadata": {"name": "g", "namespace": "default"},
        "spec": {
            "schedulingPolicy": {"basic": {}},
            "resourceClaims": [{"name": "c", "resourceClaimName": "one"}],
        },
    });
    let mut core = Core::of(&nodes());
    core.tell(&group);
    core.tell(&pod("p", &json!({"spec": {"schedulingGroup": {"podGroupName": "g"}}})));
    let outcome = format!("{:?}", core.gang("podgroup/g"));
    assert!(outcome.contains("spec.resourceClaims is not supported"), "{outcome}");
}

#[test]
fn an_extended_resource_that_only_a_class_provides_is_refused_by_the_feature() {
    let mut class = class();
    class["spec"]["extendedResourceName"] = json!("example.com/gpu");
    let mut core = Core::of(&[node("n1", &json!({})), class]);
    let requests = |name: &str| {
        let amounts = json!({"cpu": "5", "memory": "1Mi", name: "1"});
        json!({"spec": {"containers": [{
            "name": "main", "resources": {"requests": amounts, "limits": {name: "1"}},
        }]}})
    };
    for (name, resource) in
        [("stated", "example.com/gpu"), ("implicit", "deviceclass.resource.kubernetes.io/gpu")]
    {
        core.tell(&pod(name, &requests(resource)));
        let refusal = core.refusal(name);
        assert_eq!(refusal.code, "device_feature_unsupported");
        let expected = format!(
            "0/1 nodes are available: 1 where {resource} of DeviceClass gpu would have to be claimed \
             (extendedResourceName is not supported)"
        );
        assert!(refusal.line.starts_with(&expected), "{}", refusal.line);
        assert!(refusal.line.contains("short of cpu"), "{}", refusal.line);
        assert!(!refusal.line.contains(&format!("short of {resource}")), "{}", refusal.line);
        assert_eq!(refusal.shape, None, "a node like those that are there would not help");
    }
    // A resource that no class has is short, as ever; a device plugin's counts.
    core.tell(&pod("other", &requests("example.com/fpga")));
    assert!(core.refusal("other").line.contains("example.com/fpga"));
    let plugin = json!({"status": {"allocatable": {"cpu": "8", "example.com/gpu": "1"}}});
    core.tell(&node("n2", &plugin));
    assert_eq!(core.node_of("stated"), "n2");
}
