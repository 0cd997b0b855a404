//! Pods with bounds in annotations, which are resized in place.

use berth_kube_fake::{FakeApi, Rule, samples};
use serde_json::{Value, json};

use super::support::ElasticReplica;
use crate::support::{add, add_nodes, add_pod, bound, eventually, has_event, start_with};

const MANIFEST: &str = include_str!("../../../../../deploy/kubernetes/scheduler/10-rbac.yaml");

async fn cluster() -> FakeApi {
    start_with(berth_kube_fake::Options { kubelet: true, ..Default::default() }).await
}

async fn add_resizable(fake: &FakeApi, name: &str, annotations: Value) {
    let mut pod = samples::pod("default", name, "berth", 1_000, 1024);
    let container = &mut pod["spec"]["containers"][0];
    container["resources"]["limits"] = json!({"cpu": "1", "memory": "2Gi"});
    pod["spec"]["containers"].as_array_mut().unwrap().push(json!({
        "name": "side", "image": "example.invalid/side:1",
        "resources": {"requests": {"cpu": "500m", "memory": "512Mi"}},
    }));
    pod["metadata"]["annotations"] = annotations;
    add(fake, pod).await;
    bound(fake, name).await;
}

fn resources(fake: &FakeApi, pod: &str, container: usize) -> Value {
    fake.get("pods", "default", pod).unwrap()["spec"]["containers"][container]["resources"].clone()
}

#[tokio::test]
async fn a_permit_resizes_the_pod_and_the_spec_is_what_a_new_leader_goes_by() {
    let fake = cluster().await;
    add_nodes(&fake, &["n1"], 6_000).await;
    let berth = ElasticReplica::start(&fake, |_| {}).await;
    let bounds = json!({"berth.dev/elastic-min": "1,1Gi", "berth.dev/elastic-max": "8,8Gi"});
    add_resizable(&fake, "web", bounds).await;
    berth.granted("web", 3, 3).await;
    // The limits keep their distance from the requests; the other container stays as it is.
    let expected = json!({
        "requests": {"cpu": "3", "memory": "3221225472"},
        "limits": {"cpu": "3", "memory": "4294967296"},
    });
    assert_eq!(resources(&fake, "web", 0), expected);
    assert_eq!(resources(&fake, "web", 1)["requests"]["cpu"], json!("500m"));
    // 500m of 6 are the other container's, so that 5 are left.
    berth.granted("web", 8, 5).await;
    add_pod(&fake, "other", 1_000).await;
    berth.granted("web", 2, 2).await;
    bound(&fake, "other").await;
    berth.replica.stop().await;
    let second = ElasticReplica::start(&fake, |_| {}).await;
    let state = second.until("it leads", |it| it["counts"]["leader"] == json!(true)).await;
    let pod = &state["pods"]["default/web"];
    assert_eq!(pod["permit"]["granted"]["cpu_milli"], json!(2000));
    assert_eq!(pod["charge"]["cpu_milli"], json!(2500));
    second.replica.stop().await;
}

#[tokio::test]
async fn an_annotation_asks_for_a_size_where_there_is_no_agent() {
    let fake = cluster().await;
    add_nodes(&fake, &["n1"], 4_000).await;
    let berth = ElasticReplica::start(&fake, |_| {}).await;
    let annotations = json!({
        "berth.dev/elastic-min": "1,1Gi", "berth.dev/elastic-max": "8,8Gi",
        "berth.dev/elastic-use": "2,2Gi",
    });
    add_resizable(&fake, "web", annotations).await;
    let cpu = || resources(&fake, "web", 0)["requests"]["cpu"].clone();
    eventually("it has the size", || cpu() == json!("2")).await;
    let wish = json!({"metadata": {"annotations": {"berth.dev/elastic-use": "8,8Gi"}}});
    fake.merge("pods", "default", "web", wish).await.unwrap();
    // In whole units of the policy, 250m and 1 GiB, as far as the node goes.
    eventually("it has what there is", || cpu() == json!("3500m")).await;
    let (code, answer) = berth.ask("web", 1).await;
    assert_eq!(code, 400);
    assert!(answer.as_str().unwrap().contains("berth.dev/elastic-use"), "{answer}");
    berth.replica.stop().await;
}

#[tokio::test]
async fn invalid_bounds_are_named_to_the_agent_and_nothing_is_resized() {
    let fake = cluster().await;
    add_nodes(&fake, &["n1"], 4_000).await;
    let berth = ElasticReplica::start(&fake, |_| {}).await;
    let bounds = json!({"berth.dev/elastic-min": "1,1Gi", "berth.dev/elastic-max": "many"});
    add_resizable(&fake, "web", bounds).await;
    berth.until("it is known", |it| it["pods"]["default/web"]["node"] == json!("n1")).await;
    let (code, answer) = berth.ask("web", 2).await;
    assert_eq!(code, 400);
    assert!(answer.as_str().unwrap().contains("berth.dev/elastic-max is \"many\""), "{answer}");
    assert_eq!(resources(&fake, "web", 0)["requests"]["cpu"], json!("1"));
    berth.replica.stop().await;
}

#[tokio::test]
async fn a_resize_that_is_forbidden_as_by_a_quota_is_an_event() {
    let rules = MANIFEST.replace("[pods/resize]", "[pods/none]");
    assert_ne!(rules, MANIFEST);
    let rbac = Some(Rule::from_yaml(&rules, "berth-system").unwrap());
    let options = berth_kube_fake::Options { kubelet: true, rbac, ..Default::default() };
    let fake = start_with(options).await;
    add_nodes(&fake, &["n1"], 4_000).await;
    let berth = ElasticReplica::start(&fake, |_| {}).await;
    let annotations = json!({
        "berth.dev/elastic-min": "1,1Gi", "berth.dev/elastic-max": "8,8Gi",
        "berth.dev/elastic-use": "2,2Gi",
    });
    add_resizable(&fake, "web", annotations).await;
    eventually("an event", || has_event(&fake, "web", "ResizeFailed")).await;
    assert_eq!(resources(&fake, "web", 0)["requests"]["cpu"], json!("1"));
    berth.replica.stop().await;
}
