//! Elastic pods: resized in place by the API server's own subresource, or machines of `vm.neon.tech`, with agents
//! that speak the wire protocol, and a policy that is watched.

use serde_json::{Value, json};
use tokio::time::Instant;

use crate::api::{condition, node_of, text};
use crate::cluster::{Cluster, NAMESPACE, eventually};
use crate::kubelets::{node, now};
use crate::objects::{pod, template};

const GRANT_PATIENCE: std::time::Duration = std::time::Duration::from_secs(120);

/// A pod of one CPU and 1 GiB that may have eight times as much.
fn resizable(case: &str, name: &str, wanted: Option<&str>) -> Value {
    let mut made = template(case, name, 1_000, 1_024);
    made["spec"]["containers"][0]["resources"]["limits"] = json!({ "cpu": "2", "memory": "2Gi" });
    made["metadata"]["annotations"] =
        json!({ "berth.dev/elastic-min": "1,1Gi", "berth.dev/elastic-max": "8,8Gi" });
    if let Some(wanted) = wanted {
        made["metadata"]["annotations"]["berth.dev/elastic-use"] = wanted.into();
    }
    pod(case, name, &made)
}

async fn want(cluster: &Cluster, case: &str, name: &str, size: &str) {
    let wish = json!({ "metadata": { "annotations": { "berth.dev/elastic-use": size } } });
    cluster.api.merge("Pod", (case, name), "", &wish).await.unwrap();
}

/// Waits until a pod requests this much CPU, and its kubelet says that it has it.
async fn has_cpu(cluster: &Cluster, case: &str, name: &str, cpu: &str) {
    eventually(&format!("{case}/{name} has {cpu} CPUs"), async || {
        let pod = cluster.recorder.pod(case, name)?;
        let asked = &pod["spec"]["containers"][0]["resources"]["requests"]["cpu"];
        let given = &pod["status"]["containerStatuses"][0]["allocatedResources"]["cpu"];
        (*asked == json!(cpu) && given == asked).then_some(())
    })
    .await;
}

async fn prepare(cluster: &Cluster, case: &str, cpu_milli: u64) {
    cluster.add_namespace(case).await;
    cluster.add_nodes(case, vec![node(&format!("{case}-0"), cpu_milli, 32_768, &json!({}))]).await;
}

/// It grows as far as the node goes, others wait for the room, and have it when it shrinks.
pub(crate) async fn a_pod_is_resized_in_place_as_its_annotation_says(cluster: &Cluster) {
    let case = "resized";
    prepare(cluster, case, 4_000).await;
    cluster.api.create(resizable(case, "web", Some("2,2Gi"))).await;
    cluster.bound(case, "web").await;
    has_cpu(cluster, case, "web", "2").await;
    want(cluster, case, "web", "8,8Gi").await;
    has_cpu(cluster, case, "web", "4").await;
    let grown = cluster.recorder.pod(case, "web").unwrap();
    let limits = &grown["spec"]["containers"][0]["resources"]["limits"];
    assert_eq!(limits["cpu"], json!("5"), "limits keep their distance: {limits}");
    cluster.api.create(pod(case, "other", &template(case, "other", 1_500, 64))).await;
    eventually("the other waits", async || {
        let pod = cluster.recorder.pod(case, "other")?;
        text(condition(&pod, "PodScheduled")?, "/message").contains("short of cpu").then_some(())
    })
    .await;
    want(cluster, case, "web", "2,2Gi").await;
    cluster.bound(case, "other").await;
    has_cpu(cluster, case, "web", "2").await;
    assert!(cluster.notes(case, "web", "ResizeFailed").await.is_empty());
    cluster.finish(case, case).await;
}

/// A quota allows less than the node: the pod stays as it is, and an event says why.
pub(crate) async fn a_resize_that_a_quota_refuses_is_reported(cluster: &Cluster) {
    let case = "quota";
    prepare(cluster, case, 8_000).await;
    let quota = json!({
        "apiVersion": "v1", "kind": "ResourceQuota",
        "metadata": { "name": "small", "namespace": case },
        "spec": { "hard": { "requests.cpu": "3" } },
    });
    cluster.api.create(quota).await;
    cluster.api.create(resizable(case, "web", Some("3,3Gi"))).await;
    has_cpu(cluster, case, "web", "3").await;
    want(cluster, case, "web", "4,4Gi").await;
    let notes = eventually("an event says why", async || {
        Some(cluster.notes(case, "web", "ResizeFailed").await).filter(|it| !it.is_empty())
    })
    .await;
    assert!(notes[0].contains("exceeded quota"), "{notes:?}");
    has_cpu(cluster, case, "web", "3").await;
    cluster.finish(case, case).await;
}

/// What a scheduler answers to an agent: the code, and the answer.
async fn ask(cluster: &Cluster, (case, pod): (&str, &str), size: u32) -> Option<(u16, Value)> {
    let body = json!({
        "protoVersion": 7, "pod": { "name": pod, "namespace": case },
        "computeUnit": { "vCPUs": 1, "mem": "1Gi" },
        "resources": { "vCPUs": size, "mem": format!("{size}Gi") },
        "metrics": { "loadAvg1M": 0.5 },
    });
    cluster.parts.post_wire(&cluster.leader().await, &body.to_string()).await
}

/// Asks for a size until the answer is this permit.
async fn granted(cluster: &Cluster, pod: (&str, &str), size: u32, permit: u32) {
    let since = Instant::now();
    loop {
        let answer = ask(cluster, pod, size).await;
        if let Some((200, answer)) = &answer
            && answer["permit"]["vCPUs"] == json!(permit)
        {
            return;
        }
        let waited = since.elapsed();
        assert!(waited < GRANT_PATIENCE, "{pod:?} never had {permit} of {size}: {answer:?}");
        tokio::time::sleep(std::time::Duration::from_millis(250)).await;
    }
}

/// Everything that the leader knows.
async fn state(cluster: &Cluster) -> Option<Value> {
    let text = cluster.parts.ask(&cluster.leader().await, "/debug/state").await?;
    serde_json::from_str(&text).ok()
}

/// An agent asks for more; the leader is killed, and the next one counts what was granted.
pub(crate) async fn an_agent_grows_a_pod_over_a_change_of_leader(cluster: &Cluster) {
    let case = "agent";
    prepare(cluster, case, 6_000).await;
    cluster.api.create(resizable(case, "web", None)).await;
    cluster.bound(case, "web").await;
    let web = (case, "web");
    granted(cluster, web, 3, 3).await;
    has_cpu(cluster, case, "web", "3").await;
    let other = template(case, "other", 1_000, 64);
    cluster.api.create(pod(case, "other", &other)).await;
    cluster.bound(case, "other").await;
    let killed = cluster.leader().await;
    cluster.parts.kill(&killed);
    // Five are left beside the other pod, whoever leads.
    granted(cluster, web, 8, 5).await;
    has_cpu(cluster, case, "web", "5").await;
    granted(cluster, web, 2, 2).await;
    has_cpu(cluster, case, "web", "2").await;
    let state = eventually("a leader knows it", async || state(cluster).await).await;
    let charge = &state["pods"]["agent/web"]["charge"]["cpu_milli"];
    assert_eq!(*charge, json!(2_000), "{:#}", state["pods"]["agent/web"]);
    cluster.finish(case, case).await;
}

/// The definitions of machines and their migrations, as far as their kind is concerned.
fn definition(kind: &str, plural: &str) -> Value {
    let schema = json!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true });
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": { "name": format!("{plural}.vm.neon.tech") },
        "spec": {
            "group": "vm.neon.tech", "scope": "Namespaced",
            "names": { "kind": kind, "plural": plural, "singular": kind.to_lowercase() },
            "versions": [{
                "name": "v1", "served": true, "storage": true,
                "schema": { "openAPIV3Schema": schema }, "subresources": { "status": {} },
            }],
        },
    })
}

/// Installs the definitions, which schedulers find within a minute.
async fn install_machines(cluster: &Cluster) {
    for (kind, plural) in [
        ("VirtualMachine", "virtualmachines"),
        ("VirtualMachineMigration", "virtualmachinemigrations"),
    ] {
        cluster.api.apply(&definition(kind, plural)).await.unwrap();
    }
    eventually("the leader has found migrations", async || {
        (state(cluster).await?["migrations_served"] == json!(true)).then_some(())
    })
    .await;
}

/// The pod of a machine.
fn runner(case: &str, vm: &str, name: &str) -> Value {
    let mut made = template(case, vm, 100, 64);
    made["metadata"]["labels"]["vm.neon.tech/name"] = vm.into();
    pod(case, name, &made)
}

/// A machine of one CPU and 1 GiB that may have eight times as much, and its pod.
async fn run_machine(cluster: &Cluster, case: &str, name: &str, moves: bool) {
    let amounts = json!({ "min": 1, "use": 1, "max": 8 });
    let machine = json!({
        "apiVersion": "vm.neon.tech/v1", "kind": "VirtualMachine",
        "metadata": { "name": name, "namespace": case, "labels": {
            "autoscaling.neon.tech/enabled": "true",
            "autoscaling.neon.tech/auto-migration-enabled": moves.to_string(),
        } },
        "spec": { "guest": { "cpus": amounts, "memorySlotSize": "1Gi", "memorySlots": amounts } },
    });
    // Just after the definition was made the API server may not serve it.
    eventually("the machine is created", async || cluster.api.try_create(&machine).await.ok())
        .await;
    let key = format!("{case}/{name}");
    eventually("the leader knows the machine", async || {
        let state = state(cluster).await?;
        state["virtual_machines"][&key].is_object().then_some(())
    })
    .await;
    cluster.api.create(runner(case, name, name)).await;
    cluster.bound(case, name).await;
}

/// The permit that is stored on a machine, in CPUs.
async fn stored(cluster: &Cluster, case: &str, name: &str) -> Option<u64> {
    let machine = cluster.api.get("VirtualMachine", case, name).await?;
    let permit = text(&machine, "/metadata/annotations/berth.dev~1permit").to_owned();
    let permit: Value = serde_json::from_str(&permit).ok()?;
    Some(permit["granted"]["cpu_milli"].as_u64()? / 1_000)
}

/// A machine's permit is an annotation of it, and what the next leader goes by.
pub(crate) async fn permits_of_machines_are_stored_on_them(cluster: &Cluster) {
    let case = "machines";
    install_machines(cluster).await;
    prepare(cluster, case, 10_000).await;
    run_machine(cluster, case, "db", false).await;
    granted(cluster, (case, "db"), 6, 6).await;
    assert_eq!(stored(cluster, case, "db").await, Some(6));
    let large = template(case, "large", 5_000, 64);
    cluster.api.create(pod(case, "large", &large)).await;
    eventually("there is no room beside six CPUs", async || {
        let pod = cluster.recorder.pod(case, "large")?;
        text(condition(&pod, "PodScheduled")?, "/message").contains("short of cpu").then_some(())
    })
    .await;
    let killed = cluster.leader().await;
    cluster.parts.kill(&killed);
    // Without a word of its agent it counts with its permit, and the other pod still waits.
    eventually("a leader knows the permit", async || {
        let state = state(cluster).await?;
        let is_leader = state["counts"]["leader"] == json!(true);
        let permit = &state["pods"]["machines/db"]["permit"]["granted"]["cpu_milli"];
        (is_leader && *permit == json!(6_000)).then_some(())
    })
    .await;
    assert_eq!(node_of(&cluster.recorder.pod(case, "large").unwrap()), "");
    granted(cluster, (case, "db"), 2, 2).await;
    cluster.bound(case, "large").await;
    granted(cluster, (case, "db"), 8, 5).await;
    assert_eq!(stored(cluster, case, "db").await, Some(5));
    cluster.finish(case, case).await;
}

/// A ConfigMap with a policy, applied and told of.
async fn set_policy(cluster: &Cluster, data: Value, reason: &str) -> String {
    let map = json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": { "name": "berth-scheduler", "namespace": NAMESPACE }, "data": data,
    });
    let before = cluster.notes(NAMESPACE, "berth-scheduler", reason).await.len();
    if let Err(error) = cluster.api.try_create(&map).await {
        assert!(error.to_string().contains("already exists"), "{error}");
        let absent = json!({ "policy": null, "policy.toml": null });
        let mut fields = json!({ "data": absent });
        for (key, value) in map["data"].as_object().unwrap() {
            fields["data"][key] = value.clone();
        }
        cluster.api.merge("ConfigMap", (NAMESPACE, "berth-scheduler"), "", &fields).await.unwrap();
    }
    eventually(&format!("an event {reason}"), async || {
        let notes = cluster.notes(NAMESPACE, "berth-scheduler", reason).await;
        (notes.len() > before).then(|| notes.last().cloned().unwrap_or_default())
    })
    .await
}

/// A policy that is applied at once: half of the node is the watermark, and a machine leaves by a migration. An
/// invalid one is kept out.
pub(crate) async fn a_policy_of_a_config_map_relieves_a_node(cluster: &Cluster) {
    let case = "relief";
    install_machines(cluster).await;
    prepare(cluster, case, 8_000).await;
    run_machine(cluster, case, "stays", false).await;
    run_machine(cluster, case, "moves", true).await;
    granted(cluster, (case, "stays"), 2, 2).await;
    granted(cluster, (case, "moves"), 3, 3).await;
    cluster.add_nodes(case, vec![node("relief-1", 16_000, 65_536, &json!({}))]).await;
    let wrong = "name = \"half\"\n[elastic.watermark]\ncpu_permille = 5000\n";
    let note = set_policy(cluster, json!({ "policy.toml": wrong }), "PolicyInvalid").await;
    assert!(note.contains("cpu_permille"), "{note}");
    let half = "name = \"half\"\n[elastic.watermark]\ncpu_permille = 500\n\
                [elastic.migration]\ncooldown_s = 0\n";
    let note = set_policy(cluster, json!({ "policy.toml": half }), "PolicyApplied").await;
    assert!(note.contains("half"), "{note}");
    let migration = eventually("a migration", async || {
        cluster.api.list("VirtualMachineMigration", case).await.pop()
    })
    .await;
    assert_eq!(migration["spec"]["vmName"], json!("moves"), "{migration}");
    let name = text(&migration, "/metadata/name");
    let begun = json!({ "status": { "phase": "Pending", "targetPodName": "target" } });
    let at = (case, name);
    cluster.api.merge("VirtualMachineMigration", at, "/status", &begun).await.unwrap();
    let key = format!("{case}/{name}");
    eventually("the leader knows the target", async || {
        let state = state(cluster).await?;
        (state["migrations"][&key]["target_pod"] == json!("target")).then_some(())
    })
    .await;
    cluster.api.create(runner(case, "moves", "target")).await;
    assert_eq!(cluster.bound(case, "target").await, "relief-1");
    let done = json!({ "status": { "phase": "Succeeded", "conditions": [
        { "type": "Available", "status": "True", "lastTransitionTime": now() },
    ] } });
    cluster.api.merge("VirtualMachineMigration", at, "/status", &done).await.unwrap();
    cluster.api.delete("Pod", case, "moves", &json!({})).await;
    eventually("the node is relieved", async || {
        (state(cluster).await?["nodes"]["relief-0"]["must_shed"] == json!(false)).then_some(())
    })
    .await;
    granted(cluster, (case, "target"), 3, 3).await;
    assert_eq!(node_of(&cluster.recorder.pod(case, "stays").unwrap()), "relief-0");
    set_policy(cluster, json!({ "policy": "balanced" }), "PolicyApplied").await;
    cluster.finish(case, case).await;
}
