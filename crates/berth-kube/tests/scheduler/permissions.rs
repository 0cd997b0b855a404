//! The rights in the manifests are enough, and asked for no more.

use std::time::Duration;

use berth_kube::leader_election::Candidate;
use berth_kube_fake::{FakeApi, Options, Rule, samples};
use serde_json::json;

use crate::elastic::support::{ElasticReplica, policy, run_vm};
use crate::support::{Replica, add, add_nodes, add_pod, bound, eventually, has_event, late_class};

const MANIFEST: &str = include_str!("../../../../deploy/kubernetes/scheduler/10-rbac.yaml");

async fn strict() -> FakeApi {
    let rules = Rule::from_yaml(MANIFEST, "berth-system").unwrap();
    let options = Options {
        rbac: Some(rules),
        audit: true,
        kubelet: true,
        volume_binder: true,
        ..Options::default()
    };
    let fake = FakeApi::start(options).await.unwrap();
    let namespace =
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "berth-system"}});
    fake.create(namespace).await.unwrap();
    fake
}

#[tokio::test]
async fn the_permissions_of_the_manifests_are_enough() {
    let fake = strict().await;
    add_nodes(&fake, &["n1", "n2", "n3"], 2_000).await;
    let class = json!({
        "apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass",
        "metadata": {"name": "high"}, "value": 100,
    });
    fake.create(class).await.unwrap();
    fake.create(late_class("example.dev/disks")).await.unwrap();
    fake.create(samples::virtual_machine_definition()).await.unwrap();
    fake.create(samples::pod_group_definition()).await.unwrap();
    fake.create(samples::workload_definition()).await.unwrap();
    let replica = Replica::start(&fake, |options| {
        let mut candidate = Candidate::new("berth-system", "berth-scheduler", "only");
        candidate.retry_period = Duration::from_millis(100);
        options.lease = Some(candidate);
    })
    .await;
    // A volume, a full cluster, one that has no place, one that makes room, a node that is emptied.
    let claim = json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim",
        "metadata": {"name": "data", "namespace": "default"},
        "spec": {
            "accessModes": ["ReadWriteOnce"], "storageClassName": "late",
            "resources": {"requests": {"storage": "1Gi"}},
        },
    });
    fake.create(claim).await.unwrap();
    let mut pod = samples::pod("default", "stored", "berth", 2_000, 64);
    pod["spec"]["volumes"] =
        json!([{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]);
    pod["spec"]["terminationGracePeriodSeconds"] = json!(1);
    add(&fake, pod).await;
    bound(&fake, "stored").await;
    for name in ["a", "b"] {
        let mut pod = samples::pod("default", name, "berth", 2_000, 64);
        pod["spec"]["terminationGracePeriodSeconds"] = json!(1);
        add(&fake, pod).await;
        bound(&fake, name).await;
    }
    add_pod(&fake, "huge", 9_000).await;
    eventually("it is told", || has_event(&fake, "huge", "FailedScheduling")).await;
    let mut pod = samples::pod("default", "important", "berth", 2_000, 64);
    pod["spec"]["priorityClassName"] = json!("high");
    // Without a controller it would not be told to leave.
    pod["metadata"]["ownerReferences"] = json!([{
        "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "r-1",
        "controller": true,
    }]);
    add(&fake, pod).await;
    let node = bound(&fake, "important").await;
    add_nodes(&fake, &["n4"], 4_000).await;
    // Nobody made these pods, so they go when the time is over.
    let wish = json!({"metadata": {"annotations": {"berth.dev/drain": "1s"}}});
    fake.merge("nodes", "", &node, wish).await.unwrap();
    eventually("it is empty", || has_event(&fake, &node, "Drained")).await;
    replica.stop().await;
    let denied: Vec<_> = fake.audit().into_iter().filter(|it| it.code == 403).collect();
    assert!(denied.is_empty(), "{denied:#?}");
}

#[tokio::test]
async fn the_permissions_of_the_manifests_are_enough_for_elastic_pods() {
    let fake = strict().await;
    fake.create(samples::virtual_machine_definition()).await.unwrap();
    fake.create(samples::virtual_machine_migration_definition()).await.unwrap();
    let map = json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": "berth-scheduler", "namespace": "berth-system"},
        "data": {"policy": "balanced"},
    });
    fake.create(map).await.unwrap();
    add_nodes(&fake, &["n1"], 8_000).await;
    let berth = ElasticReplica::start(&fake, |options| {
        let mut candidate = Candidate::new("berth-system", "berth-scheduler", "only");
        candidate.retry_period = Duration::from_millis(100);
        options.lease = Some(candidate);
        options.settings.policy = policy("");
        options.policy_config_map = Some(("berth-system".to_owned(), "berth-scheduler".to_owned()));
    })
    .await;
    eventually("the policy is read", || has_event(&fake, "berth-scheduler", "PolicyApplied")).await;
    let migrates = json!({"autoscaling.neon.tech/auto-migration-enabled": "true"});
    run_vm(&fake, "db", 1, migrates).await;
    let mut pod = samples::pod("default", "web", "berth", 1_000, 1024);
    pod["metadata"]["annotations"] =
        json!({"berth.dev/elastic-min": "1,1Gi", "berth.dev/elastic-max": "4,4Gi"});
    add(&fake, pod).await;
    bound(&fake, "web").await;
    berth.granted("web", 2, 2).await;
    add_nodes(&fake, &["n2"], 8_000).await;
    berth.granted("db", 6, 6).await;
    let migrations = "virtualmachinemigrations.vm.neon.tech";
    eventually("a migration", || fake.count(migrations) == 1).await;
    berth.replica.stop().await;
    let denied: Vec<_> = fake.audit().into_iter().filter(|it| it.code == 403).collect();
    assert!(denied.is_empty(), "{denied:#?}");
}
