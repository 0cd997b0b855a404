//! Fields of pods that this version does not know.

use berth_kube::cluster::Settings;
use berth_kube_fake::samples;
use serde_json::json;

use crate::support::{
    Replica, add, add_nodes, add_pod, bound, condition, eventually, has_event, is_bound, settings,
    start_with,
};

#[tokio::test]
async fn a_pod_with_an_unknown_field_is_refused_and_never_bound() {
    let further_pod_fields = vec!["placement".to_owned()];
    let options = berth_kube_fake::Options { further_pod_fields, ..Default::default() };
    let fake = start_with(options).await;
    add_nodes(&fake, &["n1"], 1_000).await;
    let mut pod = samples::pod("default", "later", "berth", 100, 64);
    pod["spec"]["placement"] = json!({"rack": "r1"});
    add(&fake, pod).await;
    // Both ways to learn of a pod: the list of a new leader, and the watch.
    let replica = Replica::start(&fake, |_| {}).await;
    let mut pod = samples::pod("default", "watched", "berth", 100, 64);
    pod["spec"]["placement"] = json!({"rack": "r1"});
    add(&fake, pod).await;
    for name in ["later", "watched"] {
        eventually("it is told", || has_event(&fake, name, "FailedScheduling")).await;
        let told = condition(&fake, name, "PodScheduled").unwrap();
        let message = told["message"].as_str().unwrap();
        assert!(message.starts_with("spec.placement is unknown"), "{message}");
        assert!(message.contains("--ignore-pod-fields placement"), "{message}");
    }
    add_pod(&fake, "plain", 100).await;
    assert_eq!(bound(&fake, "plain").await, "n1");
    assert!(!is_bound(&fake, "later") && !is_bound(&fake, "watched"));
    replica.stop().await;

    let ignoring = Settings { ignored_pod_fields: vec!["placement".to_owned()], ..settings() };
    let replica = Replica::start(&fake, |options| options.settings = ignoring).await;
    assert_eq!(bound(&fake, "later").await, "n1");
    assert_eq!(bound(&fake, "watched").await, "n1");
    replica.stop().await;
}
