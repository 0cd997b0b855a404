//! The scheduler with real controllers: many rules at once, gangs, preemption, volumes, drains.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::api::{condition, node_of, text};
use crate::cluster::{Cluster, eventually};
use crate::kubelets::{RUNS_FOR, node};
use crate::objects::{budget, deployment, job, pod, priority_class, template};

/// The nodes of a mixed pool: three zones, some with disks, some tainted.
fn mixed_nodes(pool: &str, count: usize) -> Vec<Value> {
    let make = |number: usize| {
        let zone = ["a", "b", "c"][number % 3];
        let disk = if number.is_multiple_of(5) { "ssd" } else { "hdd" };
        let labels = json!({ "topology.kubernetes.io/zone": zone, "disk": disk });
        let mut made = node(&format!("{pool}-{number}"), 4_000, 8_192, &labels);
        if number % 10 == 7 {
            made["spec"]["taints"] =
                json!([{ "key": "dedicated", "value": "batch", "effect": "NoSchedule" }]);
        }
        made
    };
    (0..count).map(make).collect()
}

fn about(app: &str, topology: &str) -> Value {
    json!([{ "labelSelector": { "matchLabels": { "app": app } }, "topologyKey": topology }])
}

/// Deployments with all kinds of rules, and how many pods each has.
fn mixed_workloads(name: &str) -> Vec<(Value, usize)> {
    let of = |app: &str, cpu: u64, memory: u64, change: &dyn Fn(&mut Value)| {
        let mut made = template(name, app, cpu, memory);
        change(&mut made["spec"]);
        made
    };
    let zone = "topology.kubernetes.io/zone";
    let host = "kubernetes.io/hostname";
    let plain = of("plain", 250, 256, &|_| {});
    let disks = of("disks", 500, 512, &|spec| spec["nodeSelector"]["disk"] = "ssd".into());
    let batch = of("batch", 500, 512, &|spec| {
        spec["tolerations"] = json!([{ "key": "dedicated", "operator": "Exists" }]);
        spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"] = json!({
            "nodeSelectorTerms": [{ "matchExpressions": [
                { "key": zone, "operator": "NotIn", "values": ["b"] },
            ] }],
        });
    });
    let apart = of("apart", 100, 64, &|spec| {
        spec["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"] =
            about("apart", host);
    });
    let near = of("near", 100, 64, &|spec| {
        spec["affinity"]["podAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"] =
            about("near", zone);
    });
    let spread = of("spread", 100, 64, &|spec| {
        spec["topologySpreadConstraints"] = json!([{
            "maxSkew": 1, "topologyKey": zone, "whenUnsatisfiable": "DoNotSchedule",
            "labelSelector": { "matchLabels": { "app": "spread" } },
        }]);
    });
    let ports = of("ports", 100, 64, &|spec| {
        spec["containers"][0]["ports"] = json!([{ "containerPort": 80, "hostPort": 8080 }]);
    });
    let all = [
        (plain, 120),
        (disks, 15),
        (batch, 20),
        (apart, 30),
        (near, 20),
        (spread, 31),
        (ports, 35),
    ];
    all.into_iter().map(|(made, count)| (deployment(name, count, &made), count)).collect()
}

/// Pods with many rules on 50 nodes: each finds its place, and scaling keeps the rules.
pub(crate) async fn mixed_workloads_are_placed_by_the_rules(cluster: &Cluster) {
    let name = "mixed";
    cluster.add_namespace(name).await;
    cluster.add_nodes(name, mixed_nodes(name, 50)).await;
    let workloads = mixed_workloads(name);
    let mut count: usize = workloads.iter().map(|it| it.1).sum();
    cluster.create_all(workloads.into_iter().map(|it| it.0).collect()).await;
    cluster.all_bound(name, count).await;
    // Who is deleted is up to the ReplicaSet, which knows no spread: it grows.
    for (app, replicas, before) in [("plain", 60, 120), ("spread", 46, 31), ("apart", 44, 30)] {
        cluster.api.scale("Deployment", name, app, replicas).await;
        count = count + replicas - before;
    }
    cluster.all_bound(name, count).await;
    cluster.finish(name, name).await;
}

/// A pod without a place has a condition and an event that the API server accepts, and is bound when a node
/// joins.
pub(crate) async fn an_unschedulable_pod_says_why_and_is_bound_later(cluster: &Cluster) {
    let name = "refused";
    cluster.add_namespace(name).await;
    cluster.add_nodes(name, vec![node("refused-0", 1_000, 1_024, &json!({}))]).await;
    cluster.api.create(pod(name, "large", &template(name, "large", 6_000, 64))).await;
    let message = eventually("it has a condition", async || {
        let pod = cluster.recorder.pod(name, "large")?;
        let found = condition(&pod, "PodScheduled").filter(|it| it["reason"] == "Unschedulable");
        found.map(|it| text(it, "/message").to_owned())
    })
    .await;
    assert!(message.contains("short of cpu"), "{message}");
    let notes = eventually("it has an event", async || {
        Some(cluster.notes(name, "large", "FailedScheduling").await).filter(|it| !it.is_empty())
    })
    .await;
    assert!(notes[0].contains("short of cpu"), "{notes:?}");
    let (code, text) = cluster.berth(&["explain", "pod", "refused/large"]).await;
    assert_eq!(code, Some(3), "{text}");
    assert!(text.contains("short of cpu"), "{text}");
    cluster.add_nodes(name, vec![node("refused-1", 8_000, 1_024, &json!({}))]).await;
    assert_eq!(cluster.bound(name, "large").await, "refused-1");
    let (code, text) = cluster.berth(&["explain", "pod", "refused/large"]).await;
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("is on refused-1"), "{text}");
    eventually("another event says where it went", async || {
        let notes = cluster.notes(name, "large", "Scheduled").await;
        notes.iter().any(|it| it.ends_with("to refused-1")).then_some(())
    })
    .await;
    cluster.finish(name, name).await;
}

/// The pods of a real Job are a gang: none is bound while there is room for some, all when there is room.
pub(crate) async fn a_job_is_bound_as_a_gang(cluster: &Cluster) {
    let name = "gang";
    cluster.add_namespace(name).await;
    let nodes = |from: usize, to: usize| -> Vec<Value> {
        (from..to).map(|it| node(&format!("{name}-{it}"), 2_000, 4_096, &json!({}))).collect()
    };
    cluster.add_nodes(name, nodes(0, 3)).await;
    let mut train = template(name, "train", 1_000, 64);
    train["metadata"]["annotations"] =
        json!({ "berth.dev/gang": "train", "berth.dev/gang-size": "8", RUNS_FOR: "2000" });
    cluster.api.create(job(name, 8, 8, &train)).await;
    eventually("its pods are refused together", async || {
        let pods = cluster.recorder.pods(name);
        let refused = pods.iter().filter(|it| condition(it, "PodScheduled").is_some()).count();
        (pods.len() == 8 && refused == 8).then_some(())
    })
    .await;
    assert!(cluster.recorder.pods(name).iter().all(|it| node_of(it).is_empty()));
    // Six of the eight would have fitted, and others may use the room.
    cluster.api.create(pod(name, "other", &template(name, "other", 1_000, 64))).await;
    cluster.bound(name, "other").await;
    cluster.add_nodes(name, nodes(3, 5)).await;
    eventually("the Job is complete", async || {
        let job = cluster.api.get("Job", name, "train").await?;
        (job["status"]["succeeded"] == json!(8)).then_some(())
    })
    .await;
    cluster.finish(name, name).await;
}

/// A PodGroup of Kubernetes 1.36, with a minimum.
pub(crate) async fn a_pod_group_is_bound_from_its_minimum_on(cluster: &Cluster) {
    let name = "podgroup";
    cluster.add_namespace(name).await;
    cluster.add_nodes(name, vec![node("podgroup-0", 3_000, 4_096, &json!({}))]).await;
    let group = json!({
        "apiVersion": "scheduling.k8s.io/v1alpha2", "kind": "PodGroup",
        "metadata": { "name": "workers", "namespace": name },
        "spec": { "schedulingPolicy": { "gang": { "minCount": 3 } } },
    });
    cluster.api.create(group).await;
    let mut member = template(name, "worker", 1_000, 64);
    member["spec"]["schedulingGroup"] = json!({ "podGroupName": "workers" });
    for number in 0..2 {
        cluster.api.create(pod(name, &format!("worker-{number}"), &member)).await;
    }
    eventually("they wait for the third", async || {
        let pods = cluster.recorder.pods(name);
        let refused = pods.iter().filter(|it| condition(it, "PodScheduled").is_some()).count();
        (refused == 2).then_some(())
    })
    .await;
    assert!(cluster.recorder.pods(name).iter().all(|it| node_of(it).is_empty()));
    cluster.api.create(pod(name, "worker-2", &member)).await;
    cluster.all_bound(name, 3).await;
    cluster.finish(name, name).await;
}

/// A pod of high priority takes the place of one that no budget protects.
pub(crate) async fn preemption_spares_what_a_budget_protects(cluster: &Cluster) {
    let name = "preempt";
    cluster.add_namespace(name).await;
    let nodes = (0..4).map(|it| node(&format!("{name}-{it}"), 2_000, 4_096, &json!({})));
    cluster.add_nodes(name, nodes.collect()).await;
    for (class, value) in [("real-low", 10), ("real-high", 1_000)] {
        cluster.api.create(priority_class(class, value)).await;
    }
    let of = |app: &str, class: &str| {
        let mut made = template(name, app, 1_000, 64);
        made["spec"]["priorityClassName"] = class.into();
        made
    };
    cluster.api.create(budget(name, "guarded", 4)).await;
    cluster.api.create(deployment(name, 4, &of("guarded", "real-low"))).await;
    cluster.rolled_out("Deployment", name, "guarded", 4).await;
    cluster.api.create(deployment(name, 4, &of("free", "real-low"))).await;
    cluster.rolled_out("Deployment", name, "free", 4).await;
    let allowed = async || {
        let budget = cluster.api.get("PodDisruptionBudget", name, "guarded").await?;
        (budget["status"]["currentHealthy"] == json!(4)).then_some(())
    };
    eventually("the budget counts its pods", allowed).await;
    let names = |app: &str| -> BTreeSet<String> {
        let pods = cluster.live_pods(name);
        let of_app = pods.iter().filter(|it| it["metadata"]["labels"]["app"] == app);
        of_app.map(|it| text(it, "/metadata/name").to_owned()).collect()
    };
    let guarded = names("guarded");
    cluster.api.create(deployment(name, 3, &of("important", "real-high"))).await;
    cluster.rolled_out("Deployment", name, "important", 3).await;
    assert_eq!(names("guarded"), guarded, "pods with a budget were preempted");
    let free: Vec<Value> = cluster.live_pods(name);
    let bound = free.iter().filter(|it| !node_of(it).is_empty()).count();
    assert_eq!(bound, 8, "room for eight");
    // The replacements of the victims wait.
    cluster.api.scale("Deployment", name, "free", 1).await;
    cluster.all_bound(name, 8).await;
    cluster.finish(name, name).await;
}

/// A Job with more pods than room: each gets its turn as others end.
pub(crate) async fn pods_of_a_job_take_turns(cluster: &Cluster) {
    let name = "turns";
    cluster.add_namespace(name).await;
    let nodes = (0..2).map(|it| node(&format!("{name}-{it}"), 2_000, 4_096, &json!({})));
    cluster.add_nodes(name, nodes.collect()).await;
    let mut worker = template(name, "worker", 1_000, 64);
    worker["metadata"]["annotations"] = json!({ RUNS_FOR: "300" });
    cluster.api.create(job(name, 24, 12, &worker)).await;
    eventually("the Job is complete", async || {
        let job = cluster.api.get("Job", name, "worker").await?;
        (job["status"]["succeeded"] == json!(24)).then_some(())
    })
    .await;
    cluster.finish(name, name).await;
}

/// A drain by annotation: pods leave within their budget and run elsewhere.
pub(crate) async fn a_drain_moves_pods_within_their_budget(cluster: &Cluster) {
    let name = "drain";
    cluster.add_namespace(name).await;
    let nodes = (0..4).map(|it| node(&format!("{name}-{it}"), 4_000, 8_192, &json!({})));
    cluster.add_nodes(name, nodes.collect()).await;
    cluster.api.create(budget(name, "web", 7)).await;
    cluster.api.create(deployment(name, 8, &template(name, "web", 500, 64))).await;
    cluster.rolled_out("Deployment", name, "web", 8).await;
    let drained = node_of(&cluster.live_pods(name)[0]).to_owned();
    let start = json!({ "metadata": { "annotations": { "berth.dev/drain": "" } } });
    cluster.api.merge("Node", ("", &drained), "", &start).await.unwrap();
    eventually("no pod is there", async || {
        let pods = cluster.live_pods(name);
        let left = pods.iter().filter(|it| node_of(it) == drained).count();
        (left == 0 && pods.len() == 8).then_some(())
    })
    .await;
    cluster.rolled_out("Deployment", name, "web", 8).await;
    let node = cluster.api.get("Node", "", &drained).await.unwrap();
    assert_eq!(node["spec"]["unschedulable"], json!(true));
    cluster.finish(name, name).await;
}
