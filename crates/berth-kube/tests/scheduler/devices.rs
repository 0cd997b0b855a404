//! Claims of devices: allocated and reserved before the pod is bound, taken back if it is not.

use berth_kube_fake::{FakeApi, Options, Rule, samples};
use serde_json::{Value, json};

use crate::checker::check_final;
use crate::support::{
    Replica, add, add_nodes, add_pod, bound, condition, eventually, is_bound, start_with,
};

const MANIFEST: &str = include_str!("../../../../deploy/kubernetes/scheduler/10-rbac.yaml");
const FINALIZER: &str = "resource.kubernetes.io/delete-protection";

fn class() -> Value {
    let selector = json!({"cel": {"expression": "device.driver == 'gpu.example.com'"}});
    json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass",
        "metadata": {"name": "gpu"}, "spec": {"selectors": [selector]},
    })
}

fn slice(node: &str, devices: &[&str]) -> Value {
    let devices: Vec<Value> = devices
        .iter()
        .map(|it| json!({"name": it, "capacity": {"memory": {"value": "40Gi"}}}))
        .collect();
    json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": node},
        "spec": {
            "driver": "gpu.example.com", "nodeName": node, "devices": devices,
            "pool": {"name": node, "generation": 1, "resourceSliceCount": 1},
        },
    })
}

/// What a claim asks for: one device, and more.
fn request(more: &Value) -> Value {
    let mut exactly = json!({"deviceClassName": "gpu", "allocationMode": "ExactCount", "count": 1});
    for (key, value) in more.as_object().into_iter().flatten() {
        exactly[key] = value.clone();
    }
    json!({"devices": {"requests": [{"name": "r", "exactly": exactly}]}})
}

fn claim(name: &str, more: &Value) -> Value {
    json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": "default"}, "spec": request(more),
    })
}

fn user(name: &str, reference: Value) -> Value {
    let mut pod = samples::pod("default", name, "berth", 100, 64);
    pod["spec"]["resourceClaims"] = json!([reference]);
    pod["spec"]["resourceClaims"][0]["name"] = json!("device");
    pod
}

async fn add_user(fake: &FakeApi, name: &str, claim: &str) -> String {
    add(fake, user(name, json!({"resourceClaimName": claim}))).await
}

/// Two nodes of which the second has these devices.
async fn cluster(devices: &[&str]) -> FakeApi {
    let fake = start_with(Options { claim_controller: true, ..Options::default() }).await;
    prepare(&fake, devices).await;
    fake
}

async fn prepare(fake: &FakeApi, devices: &[&str]) {
    add_nodes(fake, &["n1", "n2"], 4_000).await;
    fake.create(class()).await.unwrap();
    fake.create(slice("n2", devices)).await.unwrap();
}

fn claim_of(fake: &FakeApi, name: &str) -> Value {
    fake.get("resourceclaims", "default", name).unwrap_or_default()
}

fn device_of(claim: &Value) -> &str {
    claim["status"]["allocation"]["devices"]["results"][0]["device"].as_str().unwrap_or_default()
}

fn message(fake: &FakeApi, name: &str) -> String {
    let found = condition(fake, name, "PodScheduled").unwrap_or_default();
    found["message"].as_str().unwrap_or_default().to_owned()
}

async fn told(fake: &FakeApi, name: &str, text: &str) {
    eventually(&format!("{name} is told {text}"), || message(fake, name).contains(text)).await;
    assert!(!is_bound(fake, name));
}

fn check(fake: &FakeApi) {
    let (nodes, pods) = (fake.list("nodes"), fake.list("pods"));
    let found = check_final(&nodes, &pods, &fake.list("resourceclaims"));
    assert!(found.is_empty(), "{found:#?}");
}

#[tokio::test]
async fn a_claim_is_allocated_and_reserved_before_its_pod_is_bound() {
    let fake = cluster(&["a"]).await;
    fake.create(claim("one", &json!({}))).await.unwrap();
    let replica = Replica::start(&fake, |_| {}).await;
    let uid = add_user(&fake, "p", "one").await;
    assert_eq!(bound(&fake, "p").await, "n2");
    let claim = claim_of(&fake, "one");
    assert_eq!(device_of(&claim), "a");
    assert_eq!(claim["metadata"]["finalizers"], json!([FINALIZER]));
    let consumer = json!({"resource": "pods", "name": "p", "uid": uid});
    assert_eq!(claim["status"]["reservedFor"], json!([consumer]));
    check(&fake);
    replica.stop().await;
}

#[tokio::test]
async fn a_claim_from_a_template_is_waited_for_and_goes_with_its_pod() {
    let fake = cluster(&["a"]).await;
    let replica = Replica::start(&fake, |_| {}).await;
    add(&fake, user("p", json!({"resourceClaimTemplateName": "gpus"}))).await;
    told(&fake, "p", "was not created from template gpus yet").await;
    let template = json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate",
        "metadata": {"name": "gpus", "namespace": "default"}, "spec": {"spec": request(&json!({}))},
    });
    fake.create(template).await.unwrap();
    assert_eq!(bound(&fake, "p").await, "n2");
    check(&fake);
    let now = json!({"gracePeriodSeconds": 0});
    fake.delete_with("pods", "default", "p", now).await.unwrap();
    eventually("the claim is gone", || fake.count("resourceclaims") == 0).await;
    replica.stop().await;
}

#[tokio::test]
async fn a_pod_waits_for_a_device_that_matches_and_is_told_what_is_there() {
    let fake = cluster(&["a"]).await;
    let large = "device.capacity['gpu.example.com'].memory.isGreaterThan(quantity('60Gi'))";
    let selectors = json!({"selectors": [{"cel": {"expression": large}}]});
    fake.create(claim("one", &selectors)).await.unwrap();
    let replica = Replica::start(&fake, |_| {}).await;
    add_user(&fake, "p", "one").await;
    told(&fake, "p", "none of 1 devices here matches class gpu and its selectors").await;
    let mut more = slice("n1", &["x"]);
    more["spec"]["devices"][0]["capacity"]["memory"]["value"] = json!("80Gi");
    fake.create(more).await.unwrap();
    assert_eq!(bound(&fake, "p").await, "n1");
    check(&fake);
    replica.stop().await;
}

#[tokio::test]
async fn pods_that_share_a_claim_are_bound_where_its_devices_are() {
    let fake = cluster(&["a"]).await;
    fake.create(claim("one", &json!({}))).await.unwrap();
    let replica = Replica::start(&fake, |_| {}).await;
    for name in ["p", "q", "r"] {
        add_user(&fake, name, "one").await;
    }
    for name in ["p", "q", "r"] {
        assert_eq!(bound(&fake, name).await, "n2");
    }
    let claim = claim_of(&fake, "one");
    assert_eq!(claim["status"]["reservedFor"].as_array().map(Vec::len), Some(3));
    check(&fake);
    replica.stop().await;
}

#[tokio::test]
async fn of_two_pods_one_gets_the_last_device_and_the_other_gets_it_later() {
    let fake = cluster(&["a"]).await;
    let replica = Replica::start(&fake, |_| {}).await;
    for (pod, of) in [("p", "one"), ("q", "two")] {
        fake.create(claim(of, &json!({}))).await.unwrap();
        add_user(&fake, pod, of).await;
    }
    eventually("one is bound", || is_bound(&fake, "p") || is_bound(&fake, "q")).await;
    let (first, second) = if is_bound(&fake, "p") { ("p", "q") } else { ("q", "p") };
    told(&fake, second, "0 of 1 matching devices of class gpu free, 1 requested").await;
    check(&fake);
    let now = json!({"gracePeriodSeconds": 0});
    fake.delete_with("pods", "default", first, now).await.unwrap();
    assert_eq!(bound(&fake, second).await, "n2");
    check(&fake);
    replica.stop().await;
}

#[tokio::test]
async fn a_binding_that_is_refused_leaves_no_trace_on_the_claim() {
    let rules = MANIFEST.replace("[pods/binding]", "[pods/none]");
    assert_ne!(rules, MANIFEST);
    let rbac = Some(Rule::from_yaml(&rules, "berth-system").unwrap());
    let fake = start_with(Options { rbac, audit: true, ..Options::default() }).await;
    prepare(&fake, &["a"]).await;
    fake.create(claim("one", &json!({}))).await.unwrap();
    let replica = Replica::start(&fake, |_| {}).await;
    add_user(&fake, "p", "one").await;
    told(&fake, "p", "binding to n2 was refused").await;
    let written = |fake: &FakeApi| {
        let writes =
            fake.audit().into_iter().filter(|it| it.resource.starts_with("resourceclaims"));
        writes.filter(|it| it.subresource == "status" && it.code == 200).count()
    };
    assert!(written(&fake) >= 2, "it was written and taken back");
    replica.stop().await;
    let claim = claim_of(&fake, "one");
    assert_eq!(device_of(&claim), "", "{claim}");
    assert!(claim["status"]["reservedFor"].as_array().is_none_or(Vec::is_empty), "{claim}");
    assert!(claim["metadata"]["finalizers"].is_null(), "{claim}");
}

#[tokio::test]
async fn a_scheduler_that_stopped_between_allocation_and_binding_is_continued() {
    let fake = cluster(&["a", "b"]).await;
    fake.create(slice("n1", &["x"])).await.unwrap();
    let leave = |name: &'static str, node: &'static str, device: &'static str, uid: String| {
        let result = json!({
            "request": "r", "driver": "gpu.example.com", "pool": node, "device": device,
        });
        let field = json!({"key": "metadata.name", "operator": "In", "values": [node]});
        let status = json!({
            "allocation": {
                "devices": {"results": [result]},
                "nodeSelector": {"nodeSelectorTerms": [{"matchFields": [field]}]},
            },
            "reservedFor": [{"resource": "pods", "name": format!("{name}-pod"), "uid": uid}],
        });
        json!({"metadata": {"finalizers": [FINALIZER]}, "status": status})
    };
    for (name, node, device) in [("kept", "n2", "b"), ("stuck", "n1", "x")] {
        fake.create(claim(name, &json!({}))).await.unwrap();
        let uid = add_user(&fake, &format!("{name}-pod"), name).await;
        let patch = leave(name, node, device, uid);
        let metadata = json!({"metadata": patch["metadata"]});
        fake.merge("resourceclaims", "default", name, metadata).await.unwrap();
        fake.merge_status("resourceclaims", "default", name, json!({"status": patch["status"]}))
            .await
            .unwrap();
    }
    // The node of one of them takes no pods any more.
    fake.merge("nodes", "", "n1", json!({"spec": {"unschedulable": true}})).await.unwrap();
    let replica = Replica::start(&fake, |_| {}).await;
    assert_eq!(bound(&fake, "kept-pod").await, "n2");
    assert_eq!(device_of(&claim_of(&fake, "kept")), "b");
    assert_eq!(bound(&fake, "stuck-pod").await, "n2");
    assert_eq!(device_of(&claim_of(&fake, "stuck")), "a");
    check(&fake);
    replica.stop().await;
}

#[tokio::test]
async fn what_is_missing_or_not_supported_is_named() {
    let fake = cluster(&["a"]).await;
    let replica = Replica::start(&fake, |_| {}).await;
    for (name, more, text) in [
        ("class", json!({"deviceClassName": "fpga"}), "device class fpga does not exist"),
        ("admin", json!({"adminAccess": true}), "adminAccess of request r is not supported"),
        (
            "share",
            json!({"capacity": {"requests": {"memory": "1Gi"}}}),
            "capacity of request r (consumable capacity) is not supported",
        ),
        (
            "cel",
            json!({"selectors": [{"cel": {"expression": "isURL('x')"}}]}),
            "it calls isURL(), which this scheduler does not know",
        ),
    ] {
        fake.create(claim(name, &more)).await.unwrap();
        add_user(&fake, &format!("{name}-pod"), name).await;
        told(&fake, &format!("{name}-pod"), text).await;
    }
    add_user(&fake, "none-pod", "none").await;
    told(&fake, "none-pod", "resource claim default/none does not exist").await;
    replica.stop().await;
}

#[tokio::test]
async fn a_cluster_without_the_api_schedules_other_pods() {
    let fake = start_with(Options { devices: false, ..Options::default() }).await;
    add_nodes(&fake, &["n1"], 4_000).await;
    let replica = Replica::start(&fake, |_| {}).await;
    add_pod(&fake, "plain", 100).await;
    assert_eq!(bound(&fake, "plain").await, "n1");
    add_user(&fake, "p", "one").await;
    told(&fake, "p", "or the cluster does not serve resource.k8s.io/v1").await;
    replica.stop().await;
}

#[tokio::test]
async fn the_permissions_of_the_manifests_are_enough_for_claims() {
    let rbac = Some(Rule::from_yaml(MANIFEST, "berth-system").unwrap());
    let options = Options { rbac, audit: true, claim_controller: true, ..Options::default() };
    let fake = start_with(options).await;
    prepare(&fake, &["a"]).await;
    fake.create(claim("one", &json!({}))).await.unwrap();
    let replica = Replica::start(&fake, |_| {}).await;
    add_user(&fake, "p", "one").await;
    bound(&fake, "p").await;
    replica.stop().await;
    let denied: Vec<_> = fake.audit().into_iter().filter(|it| it.code == 403).collect();
    assert!(denied.is_empty(), "{denied:#?}");
}

#[tokio::test]
async fn no_device_has_two_claims_while_requests_fail_and_answers_are_lost() {
    let options = Options {
        claim_controller: true,
        error_rate_permille: 50,
        lost_reply_permille: 50,
        ..Options::default()
    };
    let fake = start_with(options).await;
    prepare(&fake, &["a", "b", "c"]).await;
    fake.create(slice("n1", &["x", "y", "z"])).await.unwrap();
    let replica = Replica::start(&fake, |_| {}).await;
    let names: Vec<String> = (0..12).map(|at| format!("c{at}")).collect();
    for name in &names {
        fake.create(claim(name, &json!({}))).await.unwrap();
        add_user(&fake, &format!("{name}-pod"), name).await;
    }
    // Pods end at all times; each device is used by one after the other.
    let mut left: Vec<String> = names.iter().map(|it| format!("{it}-pod")).collect();
    while !left.is_empty() {
        eventually("one of them is bound", || left.iter().any(|it| is_bound(&fake, it))).await;
        check(&fake);
        let at = left.iter().position(|it| is_bound(&fake, it)).unwrap();
        let now = json!({"gracePeriodSeconds": 0});
        fake.delete_with("pods", "default", &left.remove(at), now).await.unwrap();
    }
    replica.stop().await;
}
