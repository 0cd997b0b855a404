//! A core that is told JSON objects, and asked about pods of the namespace `default` by name.

#![allow(dead_code, reason = "every test binary uses some of it")]

use std::collections::BTreeMap;

use berth_engine::{Policy, Timestamp};
use berth_kube::cluster::devices::DeviceKind;
use berth_kube::cluster::outcome::{GangOutcome, Outcome, PodExplanation, Preemption, Refusal};
use berth_kube::cluster::pod::Key;
use berth_kube::cluster::pod_groups::GroupKind;
use berth_kube::cluster::{Cluster, MissingRequests, PodState, Settings};
use serde_json::Value;

/// No rule goes by the time.
pub(crate) const NOW: Timestamp = Timestamp(1_700_000_000);

/// A core, and what it was told.
pub(crate) struct Core {
    /// The core itself.
    pub(crate) cluster: Cluster,
    pods: BTreeMap<String, Value>,
}

fn typed<T: serde::de::DeserializeOwned>(value: &Value) -> T {
    serde_json::from_value(value.clone()).expect("an object of its kind")
}

fn text<'a>(value: &'a Value, pointer: &str) -> &'a str {
    value.pointer(pointer).and_then(Value::as_str).expect("a text")
}

impl Core {
    /// A core that was told these objects.
    pub(crate) fn of(objects: &[Value]) -> Self {
        Self::with(objects, MissingRequests::Zero)
    }

    /// The same, and what becomes of pods that do not say what they need.
    pub(crate) fn with(objects: &[Value], missing_requests: MissingRequests) -> Self {
        let policy = Policy::builtin("balanced").expect("a built-in policy");
        let settings = Settings {
            scheduler: "berth".to_owned(),
            policy,
            missing_requests,
            ignored_pod_fields: Vec::new(),
        };
        let mut core = Self { cluster: Cluster::new(settings), pods: BTreeMap::new() };
        objects.iter().for_each(|it| core.tell(it));
        core
    }

    /// A core with a policy as the scheduler uses it.
    pub(crate) fn by_policy(name: &str, objects: &[Value]) -> Self {
        let mut core = Self::of(&[]);
        core.cluster.set_policy(berth_kube::cluster::policies::builtin(name).expect("a policy"));
        objects.iter().for_each(|it| core.tell(it));
        core
    }

    /// Tells of an object as it is now.
    pub(crate) fn tell(&mut self, object: &Value) {
        match text(object, "/kind") {
            "Node" => self.cluster.put_node(&typed(object)),
            "Namespace" => {
                let labels = serde_json::from_value(object["metadata"]["labels"].clone());
                let labels = labels.unwrap_or_default();
                self.cluster.put_namespace(text(object, "/metadata/name"), &labels);
            }
            "Pod" => drop(self.pod(object)),
            "PodDisruptionBudget" => self.cluster.put_budget(&typed(object)),
            "ResourceClaim" => self.cluster.devices().put(DeviceKind::Claim, object),
            "ResourceSlice" => self.cluster.devices().put(DeviceKind::Slice, object),
            "DeviceClass" => self.cluster.devices().put(DeviceKind::Class, object),
            "PodGroup" => self.cluster.put_group(GroupKind::PodGroup, object),
            "Workload" => self.cluster.put_group(GroupKind::Workload, object),
            other => panic!("{other} is not told here"),
        }
    }

    /// Tells of a pod, and returns where it stands.
    pub(crate) fn pod(&mut self, pod: &Value) -> PodState {
        self.pods.insert(text(pod, "/metadata/name").to_owned(), pod.clone());
        self.cluster.put_pod(&typed(pod))
    }

    /// A pod's object as it was told last, with a patch put over it, is told.
    pub(crate) fn change(&mut self, name: &str, patch: &Value) {
        let pod = super::objects::patched(self.pods[name].clone(), patch);
        self.pod(&pod);
    }

    /// A pod is gone.
    pub(crate) fn remove(&mut self, name: &str) {
        let pod = self.pods.remove(name).expect("a pod");
        let key = Key::new(text(&pod, "/metadata/namespace"), name);
        self.cluster.remove_pod(&key, text(&pod, "/metadata/uid"));
    }

    /// The API server's id of a pod.
    pub(crate) fn uid(&self, name: &str) -> String {
        text(&self.pods[name], "/metadata/uid").to_owned()
    }

    /// Tries to place a pod.
    pub(crate) fn schedule(&mut self, name: &str) -> Outcome {
        self.cluster.schedule_pod(&self.uid(name), NOW)
    }

    /// The node that a pod gets, which is held for it from now on.
    pub(crate) fn node_of(&mut self, name: &str) -> String {
        match self.schedule(name) {
            Outcome::Reserved(it) => it.node.to_string(),
            other => panic!("{name} got no place: {other:?}"),
        }
    }

    /// Why a pod gets no node, though others need not go.
    pub(crate) fn refusal(&mut self, name: &str) -> Refusal {
        match self.schedule(name) {
            Outcome::Refused(it) => *it,
            other => panic!("{name} was not refused: {other:?}"),
        }
    }

    /// Who has to go for a pod.
    pub(crate) fn preemption(&mut self, name: &str) -> Preemption {
        match self.schedule(name) {
            Outcome::Preempt(it, _) => *it,
            other => panic!("nobody has to go for {name}: {other:?}"),
        }
    }

    /// The node on which others have to go for a pod, and who.
    pub(crate) fn victims(&mut self, name: &str) -> (String, Vec<String>) {
        let it = self.preemption(name);
        let victims = it.victims.iter().map(|it| it.pod.name.to_string()).collect();
        (it.node.to_string(), victims)
    }

    /// Everything about a pod.
    pub(crate) fn explain(&mut self, name: &str) -> PodExplanation {
        let namespace = text(&self.pods[name], "/metadata/namespace").to_owned();
        self.cluster.explain(&Key::new(&namespace, name), NOW).expect("a pod")
    }

    /// All nodes that a pod could go to, by name.
    pub(crate) fn nodes_for(&mut self, name: &str) -> Vec<String> {
        let table = self.explain(name).table;
        table.iter().filter(|it| it.removed_by.is_empty()).map(|it| it.node.to_string()).collect()
    }

    /// Tries to place a gang.
    pub(crate) fn gang(&mut self, name: &str) -> GangOutcome {
        self.cluster.schedule_gang("default", name, NOW)
    }
}
