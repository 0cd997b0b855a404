//! The policy in a ConfigMap: applied at once, and an invalid one kept out.

use berth_kube_fake::FakeApi;
use serde_json::{Value, json};

use super::support::{ElasticReplica, cluster};
use crate::support::{add_nodes, add_pod, bound, events, eventually, has_event, is_bound};

const NAME: &str = "berth-scheduler-policy";

const POLICY: &str = r#"
name = "small"
[elastic.watermark]
cpu_permille = 500
[[elastic.nodes]]
labels = { "kubernetes.io/hostname" = "n1" }
system = { cpu_milli = 1000, memory_mib = 0 }
compute_unit = { cpu_milli = 500, memory_mib = 512 }
"#;

async fn write(fake: &FakeApi, text: &str) {
    let data = json!({"data": {"policy.toml": text}});
    fake.merge("configmaps", "default", NAME, data).await.unwrap();
}

fn has_policy(state: &Value, name: &str) -> bool {
    state["policy"] == json!(name)
}

#[tokio::test]
async fn a_changed_policy_is_applied_at_once_and_an_invalid_one_is_kept_out_with_an_event() {
    let fake = cluster().await;
    add_nodes(&fake, &["n1"], 4_000).await;
    let berth = ElasticReplica::start(&fake, |options| {
        options.policy_config_map = Some(("default".to_owned(), NAME.to_owned()));
    })
    .await;
    // Without it, the policy of the settings counts.
    add_pod(&fake, "first", 500).await;
    bound(&fake, "first").await;
    berth.until("the settings' policy", |it| has_policy(it, "balanced")).await;
    let map = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": NAME, "namespace": "default"},
        "data": {"policy.toml": POLICY},
    });
    fake.create(map).await.unwrap();
    let state = berth.until("the policy is in use", |it| has_policy(it, "small")).await;
    let node = &state["nodes"]["n1"];
    assert_eq!(node["compute_unit"], json!({"cpu_milli": 500, "memory_mib": 512}));
    let cpu = &node["account"]["cpu"];
    // Half of what the system leaves.
    assert_eq!(
        (&cpu["total"], &cpu["system"], &cpu["watermark"]),
        (&json!(4000), &json!(1000), &json!(1500))
    );
    eventually("an event says so", || has_event(&fake, NAME, "PolicyApplied")).await;
    // What the system keeps is no room for pods.
    add_pod(&fake, "large", 3_000).await;
    eventually("it does not fit", || has_event(&fake, "large", "FailedScheduling")).await;
    write(&fake, &POLICY.replace("cpu_permille = 500", "cpu_permille = 5000")).await;
    eventually("an event names the error", || {
        let all = events(&fake, NAME);
        all.iter().any(|(reason, note)| {
            reason == "PolicyInvalid" && note.contains("cpu_permille") && note.contains("5000")
        })
    })
    .await;
    let state = berth.state().await;
    assert_eq!(state["nodes"]["n1"]["account"]["cpu"]["watermark"], json!(1500));
    assert!(!is_bound(&fake, "large"));
    write(&fake, &POLICY.replace("system = { cpu_milli = 1000, memory_mib = 0 }\n", "")).await;
    bound(&fake, "large").await;
    let state = berth.state().await;
    assert_eq!(state["nodes"]["n1"]["account"]["cpu"]["system"], json!(0));
    fake.delete("configmaps", "default", NAME).await.unwrap();
    tokio::time::sleep(std::time::Duration::from_millis(300)).await;
    assert!(has_policy(&berth.state().await, "small"), "the last one stays");
    berth.replica.stop().await;
}
