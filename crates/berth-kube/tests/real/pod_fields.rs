//! Fields of pods as this version of Kubernetes has them: all are known, and those that name features of nodes or
//! compare numbers decide where a pod goes.

use std::collections::BTreeSet;

use berth_kube::cluster::observed_pod::ObservedPod;
use http::Request;
use serde_json::{Value, json};

use crate::api::{condition, text};
use crate::cluster::{Cluster, eventually};
use crate::kubelets::node;
use crate::objects::{pod, template};

/// How deep an example of a schema goes: objects of pods do not contain themselves, but JSON does.
const DEPTH: usize = 40;

/// An example of a schema with every field of it.
fn example(schemas: &Value, schema: &Value, depth: usize) -> Value {
    if depth == 0 {
        return Value::Null;
    }
    let name = |it: &Value| text(it, "/$ref").rsplit('/').next().unwrap_or_default().to_owned();
    let referred = match name(schema) {
        it if it.is_empty() => name(&schema["allOf"][0]),
        it => it,
    };
    if !referred.is_empty() {
        return match referred.rsplit('.').next().unwrap_or_default() {
            "Quantity" => json!("1"),
            "IntOrString" => json!(1),
            "Time" | "MicroTime" => json!("2026-01-01T00:00:00Z"),
            _ => example(schemas, &schemas[&referred], depth - 1),
        };
    }
    match text(schema, "/type") {
        "string" => json!("a"),
        "integer" | "number" => json!(1),
        "boolean" => json!(true),
        "array" => json!([example(schemas, &schema["items"], depth - 1)]),
        _ => {
            let mut made = json!({});
            for (field, of) in schema["properties"].as_object().into_iter().flatten() {
                made[field] = example(schemas, of, depth - 1);
            }
            let values = &schema["additionalProperties"];
            if values.is_object() {
                made["a"] = example(schemas, values, depth - 1);
            }
            made
        }
    }
}

/// A pod with every field that this API server serves: none of them is unknown, so that none refuses a pod.
pub(crate) async fn every_field_of_a_pod_is_known(cluster: &Cluster) {
    let request = Request::get("/openapi/v3/api/v1").body(Vec::new()).unwrap();
    let document = cluster.api.client.request_text(request).await.unwrap();
    let document: Value = serde_json::from_str(&document).unwrap();
    let schemas = &document["components"]["schemas"];
    let spec = example(schemas, &schemas["io.k8s.api.core.v1.PodSpec"], DEPTH);
    let fields: BTreeSet<&String> = spec.as_object().unwrap().keys().collect();
    for expected in ["schedulingGroup", "resourceClaims", "topologySpreadConstraints", "resources"]
    {
        assert!(spec[expected].is_object() || spec[expected].is_array(), "{fields:?}");
    }
    let mut full = json!({ "metadata": { "name": "full", "namespace": "default" }, "spec": spec });
    let observed: ObservedPod = serde_json::from_value(full.clone()).unwrap();
    assert_eq!(observed.unknown_fields, Vec::<String>::new(), "of {} fields", fields.len());
    // The same pod with a field of a later version.
    full["spec"]["affinity"]["rackAffinity"] = json!({ "required": [] });
    let observed: ObservedPod = serde_json::from_value(full.clone()).unwrap();
    assert_eq!(observed.unknown_fields, ["affinity.rackAffinity"]);
    println!("        {} fields of the spec of a pod are known", fields.len());
}

/// A pod that needs a feature waits until a node declares it.
pub(crate) async fn a_pod_goes_where_its_features_are_declared(cluster: &Cluster) {
    let name = "features";
    cluster.add_namespace(name).await;
    let mut old = node("features-old", 8_000, 8_192, &json!({}));
    old["status"]["declaredFeatures"] = json!(["GuaranteedQoSPodCPUResize"]);
    cluster.add_nodes(name, vec![old, node("features-none", 8_000, 8_192, &json!({}))]).await;
    let mut restarts = template(name, "restarts", 100, 64);
    restarts["spec"]["restartPolicy"] = "Never".into();
    let container = &mut restarts["spec"]["containers"][0];
    container["restartPolicy"] = "Never".into();
    container["restartPolicyRules"] = json!([{
        "action": "RestartAllContainers", "exitCodes": { "operator": "In", "values": [42] },
    }]);
    let mut host = template(name, "host", 100, 64);
    host["spec"]["hostNetwork"] = true.into();
    host["spec"]["hostUsers"] = false.into();
    let features = [
        ("restarts", restarts, "RestartAllContainersOnContainerExits"),
        ("host", host, "UserNamespacesHostNetworkSupport"),
    ];
    for (app, made, feature) in &features {
        cluster.api.create(pod(name, app, made)).await;
        let message = eventually("it is refused", async || {
            let pod = cluster.recorder.pod(name, app)?;
            condition(&pod, "PodScheduled").map(|it| text(it, "/message").to_owned())
        })
        .await;
        assert!(message.contains(feature), "{message}");
        let node_name = format!("features-{app}");
        let mut declares = node(&node_name, 8_000, 8_192, &json!({}));
        declares["status"]["declaredFeatures"] = json!([feature]);
        cluster.add_nodes(name, vec![declares]).await;
        assert_eq!(cluster.bound(name, app).await, node_name);
    }
    // Others go anywhere.
    cluster.api.create(pod(name, "plain", &template(name, "plain", 100, 64))).await;
    cluster.bound(name, "plain").await;
    cluster.finish(name, name).await;
}

/// Tolerations with `Gt` and `Lt`.
pub(crate) async fn tolerations_compare_numbers(cluster: &Cluster) {
    let name = "compare";
    cluster.add_namespace(name).await;
    let tainted = |level: u32| {
        let mut made = node(&format!("compare-{level}"), 8_000, 8_192, &json!({}));
        made["spec"]["taints"] =
            json!([{ "key": "sla", "value": level.to_string(), "effect": "NoSchedule" }]);
        made
    };
    cluster.add_nodes(name, vec![tainted(900), tainted(950)]).await;
    for (app, operator, value, expected) in
        [("above", "Gt", "920", "compare-950"), ("below", "Lt", "920", "compare-900")]
    {
        let mut made = template(name, app, 100, 64);
        made["spec"]["tolerations"] =
            json!([{ "key": "sla", "operator": operator, "value": value }]);
        cluster.api.create(pod(name, app, &made)).await;
        assert_eq!(cluster.bound(name, app).await, expected);
    }
    cluster.finish(name, name).await;
}
