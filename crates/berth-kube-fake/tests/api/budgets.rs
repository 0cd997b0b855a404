//! Evictions within disruption budgets.

use berth_kube_fake::{FakeApi, Options, samples};
use serde_json::{Value, json};

use crate::support::{Plain, eventually, post, start_with};

fn budget(name: &str, spec: Value) -> Value {
    let mut spec = spec;
    spec["selector"] = json!({ "matchLabels": { "app": "web" } });
    json!({ "apiVersion": "policy/v1", "kind": "PodDisruptionBudget",
            "metadata": { "name": name, "namespace": "default" }, "spec": spec })
}

async fn with_pods(count: usize) -> FakeApi {
    let (fake, _client) = start_with(Options { kubelet: true, ..Options::default() }).await;
    fake.create(samples::node("n", 1000, 1000)).await.unwrap();
    for at in 0..count {
        let mut pod = samples::pod("default", &format!("p{at}"), "berth", 1, 1);
        pod["metadata"]["labels"] = json!({ "app": "web" });
        pod["spec"]["nodeName"] = json!("n");
        fake.create(pod).await.unwrap();
    }
    eventually("all run", || {
        fake.list("pods").iter().all(|pod| pod["status"]["phase"] == "Running")
    })
    .await;
    fake
}

async fn evict(fake: &FakeApi, name: &str, query: &str) -> Plain {
    let body = json!({ "apiVersion": "policy/v1", "kind": "Eviction",
                       "metadata": { "name": name, "namespace": "default" } });
    post(fake, &format!("/api/v1/namespaces/default/pods/{name}/eviction{query}"), &body).await
}

fn status(fake: &FakeApi, name: &str, field: &str) -> i64 {
    let budget = fake.get("PodDisruptionBudget", "default", name).unwrap();
    budget["status"][field].as_i64().unwrap_or(-1)
}

#[tokio::test]
async fn evictions_stop_where_the_budget_ends() {
    let fake = with_pods(3).await;
    fake.create(budget("b", json!({ "minAvailable": 2 }))).await.unwrap();
    eventually("one may go", || status(&fake, "b", "disruptionsAllowed") == 1).await;
    assert_eq!(evict(&fake, "p0", "?dryRun=All").await.code, 201);
    assert_eq!(status(&fake, "b", "disruptionsAllowed"), 1, "a dry run spends nothing");
    assert_eq!(evict(&fake, "p0", "").await.code, 201);
    let refused = evict(&fake, "p1", "").await;
    assert_eq!((refused.code, refused.json()["reason"].clone()), (429, json!("TooManyRequests")));
    assert_eq!(refused.json()["details"]["causes"][0]["reason"], "DisruptionBudget");
    assert_eq!(evict(&fake, "p1", "?dryRun=All").await.code, 429);
    eventually("the first is gone", || fake.get("Pod", "default", "p0").is_none()).await;
    eventually("none may go", || status(&fake, "b", "currentHealthy") == 2).await;
    assert_eq!(evict(&fake, "p1", "").await.code, 429);
    assert_eq!(evict(&fake, "p9", "").await.code, 404);
}

#[tokio::test]
async fn a_budget_that_nobody_looked_at_yet_asks_to_wait() {
    let (fake, _client) = start_with(Options { budgets: false, ..Options::default() }).await;
    let mut pod = samples::pod("default", "p0", "berth", 1, 1);
    pod["metadata"]["labels"] = json!({ "app": "web" });
    fake.create(pod).await.unwrap();
    fake.set_phase("default", "p0", "Running").await.unwrap();
    fake.create(budget("b", json!({ "minAvailable": 0 }))).await.unwrap();
    let waiting = evict(&fake, "p0", "").await;
    assert_eq!(waiting.code, 429);
    assert_eq!(waiting.headers["retry-after"], "10");
}

#[tokio::test]
async fn two_budgets_for_one_pod_are_an_error() {
    let fake = with_pods(1).await;
    for name in ["a", "b"] {
        fake.create(budget(name, json!({ "minAvailable": 0 }))).await.unwrap();
    }
    let refused = evict(&fake, "p0", "").await;
    assert_eq!((refused.code, refused.json()["reason"].clone()), (500, json!("InternalError")));
}

#[tokio::test]
async fn what_is_not_healthy_goes_as_the_policy_says() {
    let fake = with_pods(2).await;
    fake.set_ready("default", "p0", false).await.unwrap();
    fake.create(budget("b", json!({ "minAvailable": 2 }))).await.unwrap();
    eventually("seen", || status(&fake, "b", "desiredHealthy") == 2).await;
    assert_eq!(evict(&fake, "p0", "").await.code, 429, "too few are healthy");
    let always = json!({ "spec": { "unhealthyPodEvictionPolicy": "AlwaysAllow" } });
    fake.merge("PodDisruptionBudget", "default", "b", always).await.unwrap();
    assert_eq!(evict(&fake, "p0", "").await.code, 201);
    assert_eq!(evict(&fake, "p1", "").await.code, 429);
}

#[tokio::test]
async fn a_share_is_of_what_the_controllers_want() {
    let options = Options { kubelet: true, controllers: true, ..Options::default() };
    let (fake, _client) = start_with(options).await;
    fake.create(samples::node("n", 1000, 1000)).await.unwrap();
    let mut set = samples::replica_set("default", "web", 5);
    set["spec"]["template"]["spec"]["nodeName"] = json!("n");
    fake.create(set).await.unwrap();
    fake.create(budget("share", json!({ "minAvailable": "50%" }))).await.unwrap();
    fake.create(budget("most", json!({ "maxUnavailable": "30%" }))).await.unwrap();
    eventually("half of five, rounded up, stay", || {
        status(&fake, "share", "desiredHealthy") == 3
            && status(&fake, "share", "disruptionsAllowed") == 2
    })
    .await;
    eventually("a third of five, rounded up, may go", || {
        status(&fake, "most", "desiredHealthy") == 3
    })
    .await;
}

#[tokio::test]
async fn pending_pods_need_no_budget() {
    let (fake, _client) = start_with(Options::default()).await;
    let mut pod = samples::pod("default", "p0", "berth", 1, 1);
    pod["metadata"]["labels"] = json!({ "app": "web" });
    fake.create(pod).await.unwrap();
    fake.create(budget("b", json!({ "minAvailable": 9 }))).await.unwrap();
    assert_eq!(evict(&fake, "p0", "").await.code, 201);
    assert!(fake.get("Pod", "default", "p0").is_none());
}
