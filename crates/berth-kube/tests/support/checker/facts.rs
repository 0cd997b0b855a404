//! Nodes and pods, read once from their JSON.

use std::collections::BTreeSet;

use serde_json::Value;

use super::requests::{self, Amounts};
use super::selector::{Labels, labels, list, selects, text};

/// A node.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    /// Its name.
    pub(crate) name: String,
    /// Its labels.
    pub(crate) labels: Labels,
    /// Its taints.
    pub(crate) taints: Vec<Value>,
    /// Whether it is cordoned.
    pub(crate) cordoned: bool,
    /// Features that it declares.
    pub(crate) features: BTreeSet<String>,
    /// What pods may ask for; why it cannot be read.
    pub(crate) allocatable: Result<Amounts, String>,
}

impl Node {
    /// A node from its object.
    pub(crate) fn read(node: &Value) -> Self {
        Self {
            name: text(node, "/metadata/name").to_owned(),
            labels: labels(node.pointer("/metadata/labels")),
            taints: list(node, "/spec/taints").to_vec(),
            cordoned: node.pointer("/spec/unschedulable") == Some(&Value::Bool(true)),
            features: list(node, "/status/declaredFeatures")
                .iter()
                .filter_map(|it| it.as_str().map(str::to_owned))
                .collect(),
            allocatable: requests::allocatable(node),
        }
    }
}

/// A rule about other pods.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Term {
    /// The namespace of the pod that has it.
    pub(crate) home: String,
    /// As it was written.
    pub(crate) written: Value,
    /// The labels of the pod that has it, as far as the rule speaks of them.
    own: Labels,
}

impl Term {
    fn read(term: &Value, home: &str, labels: &Labels) -> Self {
        let keys = list(term, "/matchLabelKeys").iter().chain(list(term, "/mismatchLabelKeys"));
        let keys: BTreeSet<&str> = keys.filter_map(Value::as_str).collect();
        let own = labels.iter().filter(|(key, _)| keys.contains(key.as_str()));
        Self {
            home: home.to_owned(),
            written: term.clone(),
            own: own.map(|(key, value)| (key.clone(), value.clone())).collect(),
        }
    }

    /// The label of nodes by which it goes.
    pub(crate) fn topology(&self) -> &str {
        text(&self.written, "/topologyKey")
    }

    /// Labels of the pod that has it, which the rule refers to.
    pub(crate) fn own(&self) -> &Labels {
        &self.own
    }

    /// Whether it speaks of a pod with these labels in a namespace with those.
    pub(crate) fn is_about(&self, namespace: &str, of_namespace: &Labels, labels: &Labels) -> bool {
        let named = list(&self.written, "/namespaces");
        let selector = self.written.get("namespaceSelector").filter(|it| !it.is_null());
        let here = match selector {
            None if named.is_empty() => namespace == self.home,
            _ => {
                named.iter().any(|it| it.as_str() == Some(namespace))
                    || selects(selector, of_namespace)
            }
        };
        let equal = |key: &Value, wanted: bool| {
            let key = key.as_str().unwrap_or_default();
            let Some(own) = self.own.get(key) else { return true };
            (labels.get(key) == Some(own)) == wanted
        };
        here && selects(self.written.get("labelSelector"), labels)
            && list(&self.written, "/matchLabelKeys").iter().all(|it| equal(it, true))
            && list(&self.written, "/mismatchLabelKeys").iter().all(|it| equal(it, false))
    }
}

/// A port of the host: its number, protocol and address.
pub(crate) type Port = (i64, String, String);

/// A pod.
#[derive(Clone, Debug)]
pub(crate) struct Pod {
    /// `namespace/name`.
    pub(crate) key: String,
    /// Its namespace.
    pub(crate) namespace: String,
    /// Its labels.
    pub(crate) labels: Labels,
    /// The node that it is bound to.
    pub(crate) node: Option<String>,
    /// The node that it was nominated for.
    pub(crate) nominated: Option<String>,
    /// Whether it has ended, and holds nothing any more.
    pub(crate) ended: bool,
    /// Whether it is about to go.
    pub(crate) deleting: bool,
    /// Its priority.
    pub(crate) priority: i64,
    /// What it asks for; why it cannot be read.
    pub(crate) asked: Result<Amounts, String>,
    /// Ports of the host.
    pub(crate) ports: BTreeSet<Port>,
    /// Must be near these.
    pub(crate) required_affinity: Vec<Term>,
    /// Must be away from.
    pub(crate) away: Vec<Term>,
    /// Its `spec`.
    pub(crate) spec: Value,
}

impl Pod {
    /// A pod from its object.
    pub(crate) fn read(pod: &Value) -> Self {
        const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
        let namespace = match text(pod, "/metadata/namespace") {
            "" => "default",
            other => other,
        };
        let own = labels(pod.pointer("/metadata/labels"));
        let terms = |kind: &str| {
            let terms = list(pod, &format!("/spec/affinity/{kind}/{REQUIRED}")).iter();
            terms.map(|it| Term::read(it, namespace, &own)).collect()
        };
        let name = |pointer: &str| Some(text(pod, pointer)).filter(|it| !it.is_empty());
        Self {
            key: format!("{namespace}/{}", text(pod, "/metadata/name")),
            namespace: namespace.to_owned(),
            node: name("/spec/nodeName").map(str::to_owned),
            nominated: name("/status/nominatedNodeName").map(str::to_owned),
            ended: matches!(text(pod, "/status/phase"), "Succeeded" | "Failed"),
            deleting: pod.pointer("/metadata/deletionTimestamp").is_some_and(|it| !it.is_null()),
            priority: pod.pointer("/spec/priority").and_then(Value::as_i64).unwrap_or(0),
            asked: requests::of_pod(pod),
            ports: ports(pod),
            required_affinity: terms("podAffinity"),
            away: terms("podAntiAffinity"),
            labels: own,
            spec: pod.get("spec").cloned().unwrap_or_default(),
        }
    }

    /// Whether it holds something on a node.
    pub(crate) fn counts(&self) -> bool {
        self.node.is_some() && !self.ended
    }

    /// Whether a node is one of those that its node selector and its node affinity ask for.
    pub(crate) fn asks_for(&self, node: &Node) -> bool {
        let wanted = labels(self.spec.get("nodeSelector"));
        let pointer = "/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution";
        let required = self.spec.pointer(pointer).filter(|it| !it.is_null());
        wanted.iter().all(|(key, value)| node.labels.get(key) == Some(value))
            && required.is_none_or(|it| super::selector::selects_node(it, &node.name, &node.labels))
    }

    /// The first of the node's taints that keeps it away.
    pub(crate) fn untolerated<'a>(&self, node: &'a Node) -> Option<&'a Value> {
        let hard = |it: &&Value| matches!(text(it, "/effect"), "NoSchedule" | "NoExecute");
        let tolerations = list(&self.spec, "/tolerations");
        let mut taints = node.taints.iter().filter(hard);
        taints.find(|it| !super::selector::tolerates(tolerations, it))
    }
}

fn ports(pod: &Value) -> BTreeSet<Port> {
    let sidecars = list(pod, "/spec/initContainers").iter();
    let sidecars = sidecars.filter(|it| text(it, "/restartPolicy") == "Always");
    let containers = list(pod, "/spec/containers").iter().chain(sidecars);
    let ports = containers.flat_map(|it| list(it, "/ports")).filter_map(|it| {
        let number = it.get("hostPort")?.as_i64().filter(|it| *it > 0)?;
        let or = |found: &str, other: &str| {
            if found.is_empty() { other.to_owned() } else { found.to_owned() }
        };
        let address = or(text(it, "/hostIP"), "0.0.0.0");
        Some((number, or(text(it, "/protocol"), "TCP"), address))
    });
    ports.collect()
}

/// Whether two ports cannot be on one node.
pub(crate) fn clash(a: &Port, b: &Port) -> bool {
    let all = |port: &Port| port.2 == "0.0.0.0";
    a.0 == b.0 && a.1 == b.1 && (a.2 == b.2 || all(a) || all(b))
}
