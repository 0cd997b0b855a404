//! A pod as the API server sent it: the typed object, and the fields of its spec that the types lack.
//!
//! A field that nobody here knows may constrain where the pod can run. Deserialization drops such fields
//! without a word, so they are recorded: a pod that has one is refused, and never bound as if the
//! field were not there.

use std::borrow::Cow;
use std::fmt::Formatter;

use k8s_openapi::api::core::v1 as core;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::core::Resource;
use serde::de::value::MapAccessDeserializer;
use serde::de::{
    Deserialize, DeserializeSeed, Deserializer, IntoDeserializer as _, MapAccess, Visitor,
};
use serde_json::Value;

/// Parts of a spec within which every field may constrain scheduling.
const SCHEDULING_PARTS: [&str; 7] = [
    "affinity",
    "resourceClaims",
    "resources",
    "schedulingGates",
    "schedulingGroup",
    "tolerations",
    "topologySpreadConstraints",
];

/// A pod, and what the typed object lacks.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ObservedPod {
    /// The typed object.
    pub pod: core::Pod,
    /// `spec.workloadRef`, which only Kubernetes 1.35 has.
    pub workload: Option<WorkloadRef>,
    /// Fields of `spec` that may constrain scheduling and are unknown here, such as `foo.bar`.
    pub unknown_fields: Vec<String>,
}

/// `spec.workloadRef`: the group of a pod within a Workload object.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, serde::Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct WorkloadRef {
    /// The Workload's name.
    pub name: String,
    /// The name of the group within it.
    pub pod_group: String,
    /// Which replica of the group.
    #[serde(default)]
    pub pod_group_replica_key: String,
}

impl From<core::Pod> for ObservedPod {
    fn from(pod: core::Pod) -> Self {
        Self { pod, ..Self::default() }
    }
}

/// Parses a pod directly into the typed object: by way of a `Value` it would take several times as many
/// allocations, for each event of each pod.
impl<'de> Deserialize<'de> for ObservedPod {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let RawPod { metadata, spec, status } = RawPod::deserialize(deserializer)?;
        let RawSpec { spec, workload, unknown_fields } = spec.unwrap_or_default();
        Ok(Self { pod: core::Pod { metadata, spec, status }, workload, unknown_fields })
    }
}

#[derive(serde::Deserialize)]
struct RawPod {
    #[serde(default)]
    metadata: ObjectMeta,
    spec: Option<RawSpec>,
    status: Option<core::PodStatus>,
}

/// A spec, and what the typed object lacks.
#[derive(Default)]
struct RawSpec {
    spec: Option<core::PodSpec>,
    workload: Option<WorkloadRef>,
    unknown_fields: Vec<String>,
}

impl<'de> Deserialize<'de> for RawSpec {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(SpecVisitor)
    }
}

struct SpecVisitor;

impl<'de> Visitor<'de> for SpecVisitor {
    type Value = RawSpec;

    fn expecting(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        f.write_str("the spec of a pod")
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<RawSpec, A::Error> {
        let (mut raw, mut reference) = (RawSpec::default(), None);
        let mut record = |path: serde_ignored::Path<'_>| {
            let path = path.to_string();
            let parts = path.split('.').filter(|it| *it != "?").collect::<Vec<_>>();
            if may_constrain(&parts) {
                raw.unknown_fields.push(parts.join("."));
            }
        };
        let fields = MapAccessDeserializer::new(KnownFields { map, reference: &mut reference });
        raw.spec = Some(serde_ignored::deserialize(fields, &mut record)?);
        match reference.map(serde_json::from_value) {
            Some(Ok(workload)) => raw.workload = workload,
            // A form of it that is not known yet.
            Some(Err(_)) => raw.unknown_fields.push("workloadRef".to_owned()),
            None => {}
        }
        Ok(raw)
    }
}

/// The fields of a spec without `workloadRef`, which the typed object lacks and which is kept here.
struct KnownFields<'a, A> {
    map: A,
    reference: &'a mut Option<Value>,
}

/// The name of a field, which is borrowed where the input allows it.
#[derive(serde::Deserialize)]
struct FieldName<'a>(#[serde(borrow)] Cow<'a, str>);

impl<'de, A: MapAccess<'de>> MapAccess<'de> for KnownFields<'_, A> {
    type Error = A::Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, A::Error> {
        while let Some(FieldName(name)) = self.map.next_key()? {
            if name == "workloadRef" {
                *self.reference = Some(self.map.next_value()?);
            } else {
                return seed.deserialize(name.into_deserializer()).map(Some);
            }
        }
        Ok(None)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, A::Error> {
        self.map.next_value_seed(seed)
    }
}

/// Whether an unknown field at this path within the spec may constrain scheduling.
fn may_constrain(path: &[&str]) -> bool {
    match path {
        [_] => true,
        [part, ..] if SCHEDULING_PARTS.contains(part) => true,
        ["containers" | "initContainers", _, part, ..] => matches!(*part, "resources" | "ports"),
        // A kind of volume.
        ["volumes", _, _] => true,
        _ => false,
    }
}

impl Resource for ObservedPod {
    type DynamicType = ();
    type Scope = k8s_openapi::NamespaceResourceScope;

    fn kind(dt: &()) -> Cow<'_, str> {
        <core::Pod as Resource>::kind(dt)
    }

    fn group(dt: &()) -> Cow<'_, str> {
        <core::Pod as Resource>::group(dt)
    }

    fn version(dt: &()) -> Cow<'_, str> {
        <core::Pod as Resource>::version(dt)
    }

    fn plural(dt: &()) -> Cow<'_, str> {
        <core::Pod as Resource>::plural(dt)
    }

    fn meta(&self) -> &ObjectMeta {
        &self.pod.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.pod.metadata
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn unknown(spec: &Value) -> Result<Vec<String>, serde_json::Error> {
        let pod = json!({"metadata": {"name": "a"}, "spec": spec});
        Ok(serde_json::from_value::<ObservedPod>(pod)?.unknown_fields)
    }

    /// Does not compile with types that have a field more: who raises their version decides here, and in
    /// the filters, whether it constrains scheduling.
    #[test]
    fn every_field_of_the_typed_spec_was_considered() {
        let spec = core::PodSpec::default();
        let core::PodSpec {
            // Read by the filters, by the scores, or by gangs.
            affinity: _,
            containers: _,
            ephemeral_containers: _,
            host_network: _,
            host_users: _,
            init_containers: _,
            node_name: _,
            node_selector: _,
            overhead: _,
            preemption_policy: _,
            priority: _,
            resource_claims: _,
            resources: _,
            scheduler_name: _,
            scheduling_gates: _,
            scheduling_group: _,
            tolerations: _,
            topology_spread_constraints: _,
            volumes: _,
            // Turned into others on admission, by the priority and the runtime class.
            priority_class_name: _,
            runtime_class_name: _,
            // Kubernetes schedules pods of any operating system anywhere; the kubelet rejects a wrong one.
            os: _,
            // For the kubelet, the network, or after the pod was scheduled.
            active_deadline_seconds: _,
            automount_service_account_token: _,
            dns_config: _,
            dns_policy: _,
            enable_service_links: _,
            eviction_responders: _,
            host_aliases: _,
            host_ipc: _,
            host_pid: _,
            hostname: _,
            hostname_override: _,
            image_pull_secrets: _,
            readiness_gates: _,
            restart_policy: _,
            security_context: _,
            service_account: _,
            service_account_name: _,
            set_hostname_as_fqdn: _,
            share_process_namespace: _,
            subdomain: _,
            termination_grace_period_seconds: _,
        } = spec;
    }

    #[test]
    fn unknown_fields_that_may_constrain_scheduling_are_recorded() -> Result<(), serde_json::Error>
    {
        let container = |field: &str, value: Value| json!({"containers": [{"name": "a"}, {"name": "b", field: value}]});
        let spread =
            json!({"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"});
        let mut wide = spread.clone();
        wide["minZones"] = 2.into();
        let with = |part: &str, value: Value| json!({"containers": [], part: value});
        let cases = [
            (with("nodeName", json!("n1")), None),
            (with("placement", json!({"rack": "r1"})), Some("placement")),
            (with("placement", Value::Null), Some("placement")),
            (with("topologySpreadConstraints", json!([spread])), None),
            (
                with("topologySpreadConstraints", json!([wide])),
                Some("topologySpreadConstraints.0.minZones"),
            ),
            (
                with("affinity", json!({"rackAffinity": {"name": "r1"}})),
                Some("affinity.rackAffinity"),
            ),
            (
                with("schedulingGroup", json!({"compositePodGroupName": "a"})),
                Some("schedulingGroup.compositePodGroupName"),
            ),
            (
                with("tolerations", json!([{"key": "a", "during": "night"}])),
                Some("tolerations.0.during"),
            ),
            (container("resources", json!({"shares": 2})), Some("containers.1.resources.shares")),
            (
                container("ports", json!([{"containerPort": 1, "hostRange": 2}])),
                Some("containers.1.ports.0.hostRange"),
            ),
            (container("greeting", json!("hello")), None),
            (with("volumes", json!([{"name": "v", "tape": {}}])), Some("volumes.0.tape")),
            (with("volumes", json!([{"name": "v", "emptyDir": {"color": "red"}}])), None),
            (with("workloadRef", json!({"name": "w", "podGroup": "g"})), None),
            (with("workloadRef", json!({"name": "w", "shape": "ring"})), Some("workloadRef")),
        ];
        for (spec, expected) in cases {
            assert_eq!(unknown(&spec)?, Vec::from_iter(expected), "{spec}");
        }
        Ok(())
    }

    #[test]
    fn an_observed_pod_is_the_typed_pod() -> Result<(), serde_json::Error> {
        let json = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a", "namespace": "b"},
            "spec": {"containers": [{"name": "main"}], "nodeName": "n1"},
            "status": {"phase": "Running"},
        });
        let observed: ObservedPod = serde_json::from_value(json.clone())?;
        assert_eq!(observed, ObservedPod::from(serde_json::from_value::<core::Pod>(json)?));
        Ok(())
    }
}
