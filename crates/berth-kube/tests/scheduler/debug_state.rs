//! The form of `/debug/state`.

use berth_kube_fake::{Options, samples};
use serde_json::{Value, json};

use crate::support::{Replica, add, add_nodes, add_pod, bound, eventually, has_event, start_with};

/// Every field of the document, as the reference lists them.
const FIELDS: [&str; 29] = [
    "at",
    "counts",
    "departures",
    "devices",
    "disruption_budgets",
    "drains",
    "elastic",
    "gangs",
    "migrations",
    "migrations_served",
    "nodes",
    "nominations",
    "notices",
    "other_scheduler_seen_ms_ago",
    "overfull_nodes",
    "permit_writes",
    "pod_groups",
    "pods",
    "policy",
    "queue",
    "recalled",
    "resize_retries",
    "resting",
    "scheduler",
    "schema",
    "stuck_nodes",
    "violations",
    "virtual_machines",
    "volumes",
];

fn keys(value: &Value) -> Vec<&str> {
    let mut keys: Vec<&str> = value.as_object().unwrap().keys().map(String::as_str).collect();
    keys.sort_unstable();
    keys
}

async fn state(replica: &Replica) -> Value {
    let (code, text) = replica.get("/debug/state", "*/*").await;
    assert_eq!(code, 200, "{text}");
    serde_json::from_str(&text).unwrap()
}

async fn until(replica: &Replica, what: &str, is_so: impl Fn(&Value) -> bool) -> Value {
    for _ in 0..600 {
        let state = state(replica).await;
        if is_so(&state) {
            return state;
        }
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    panic!("never came: {what}: {:#}", state(replica).await);
}

#[tokio::test]
async fn the_document_has_the_documented_form_and_does_not_contradict_itself() {
    let fake = start_with(Options { kubelet: true, ..Options::default() }).await;
    add_nodes(&fake, &["n1", "n2"], 2_000).await;
    let budget = json!({
        "apiVersion": "policy/v1", "kind": "PodDisruptionBudget",
        "metadata": {"name": "guard", "namespace": "default"},
        "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "web"}}},
    });
    fake.create(budget).await.unwrap();
    let replica = Replica::start(&fake, |_| {}).await;
    add_pod(&fake, "runs", 1_500).await;
    let on = bound(&fake, "runs").await;
    let waits = add_pod(&fake, "waits", 3_000).await;
    eventually("it is refused", || has_event(&fake, "waits", "FailedScheduling")).await;
    let mut member = samples::pod("default", "member", "berth", 100, 64);
    member["metadata"]["annotations"] =
        json!({"berth.dev/gang": "train", "berth.dev/gang-size": "2"});
    let member_uid = add(&fake, member).await;
    // Another scheduler fills the node, with a pod that has more than what is left.
    let mut foreign = samples::pod("default", "theirs", "default-scheduler", 1_000, 64);
    foreign["spec"]["nodeName"] = json!(on);
    add(&fake, foreign).await;
    let told = until(&replica, "all is known", |it| {
        it["overfull_nodes"][&on].is_string()
            && it["gangs"]["default/train"] == json!([member_uid])
            && it["notices"][&member_uid].is_object()
    })
    .await;
    assert_eq!(keys(&told), FIELDS);
    assert_eq!(told["schema"], json!(2));
    assert_eq!(told["violations"], json!([]));
    assert_eq!(told["overfull_nodes"][&on], json!("its pods request 2500m of 2 cpu"));
    assert!(told["other_scheduler_seen_ms_ago"].is_u64());
    assert_eq!(told["disruption_budgets"]["default/guard"], json!({"allowed": 0, "disrupted": []}));
    let notice = &told["notices"][&waits];
    assert_eq!(keys(notice), ["code", "line", "next_in_ms", "published_ms_ago"]);
    assert_eq!(notice["code"], json!("no_capacity_cpu"));
    let queue = told["queue"].as_array().unwrap();
    let named = |name: &str| queue.iter().find(|it| it["name"] == json!(name)).unwrap();
    assert_eq!(
        keys(named("default/waits")),
        ["created", "due_in_ms", "is_gang", "key", "name", "priority", "refusals", "state"]
    );
    assert_eq!(named("default/waits")["key"], json!(waits));
    assert!(named("default/waits")["refusals"].as_u64().unwrap() > 0);
    assert_eq!(named("default/train")["is_gang"], json!(true));
    for waiting in queue {
        let states = [json!("backoff"), json!("unschedulable"), json!("active")];
        assert!(states.contains(&waiting["state"]), "{waiting}");
    }
    assert_eq!(keys(&told["volumes"]), ["attached", "decisions", "used_claims"]);
    assert_eq!(keys(&told["devices"]), ["deallocating", "decisions", "in_use"]);
    replica.stop().await;
}

#[test]
fn the_reference_describes_every_field() {
    let reference = include_str!("../../../../docs/kubernetes-reference.md");
    for field in FIELDS {
        assert!(reference.contains(&format!("`{field}`")), "{field} is not in the reference");
    }
}
