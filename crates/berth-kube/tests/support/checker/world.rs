//! The cluster at one moment, as the checker sees it: objects, and who is where.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::facts::{Node, Pod, Term};
use super::selector::{Labels, labels, text};

/// How many pods are on each node, by the node's name.
pub(crate) type ByNode = BTreeMap<String, i64>;

/// A rule that pods on nodes have: the rule, and how many on each node have it.
#[derive(Clone, Debug)]
pub(crate) struct Carried {
    /// The rule.
    pub(crate) term: Term,
    /// Who has it.
    pub(crate) by_node: ByNode,
}

/// Pods of one namespace with the same labels: how many on each node.
#[derive(Clone, Debug, Default)]
pub(crate) struct Kind {
    /// All of them.
    pub(crate) all: ByNode,
    /// Those that are not about to go.
    pub(crate) staying: ByNode,
}

/// The cluster at one moment.
#[derive(Clone, Debug, Default)]
pub(crate) struct World {
    /// Nodes by name.
    pub(crate) nodes: BTreeMap<String, Node>,
    /// Pods by `namespace/name`.
    pub(crate) pods: BTreeMap<String, Pod>,
    /// Pods that hold something, by node.
    pub(crate) on_node: BTreeMap<String, BTreeSet<String>>,
    /// Pods that hold something, by what rules can tell of them.
    pub(crate) kinds: BTreeMap<(String, Labels), Kind>,
    /// What pods that hold something must be away from.
    pub(crate) away: BTreeMap<(String, String, Labels), Carried>,
    /// Pods that wait for a node that they were nominated for, by node.
    pub(crate) nominated: BTreeMap<String, BTreeSet<String>>,
    /// Labels of namespaces.
    pub(crate) namespaces: BTreeMap<String, Labels>,
    /// Everything else, by kind and `namespace/name`.
    pub(crate) others: BTreeMap<(String, String), Value>,
}

impl World {
    /// A cluster of these objects. `others` may hold namespaces, volumes, claims and storage
    /// classes, each with its `kind`.
    pub(crate) fn new(nodes: &[Value], pods: &[Value], others: &[Value]) -> Self {
        let mut world = Self::default();
        nodes.iter().for_each(|it| world.put_node(it));
        others.iter().for_each(|it| world.put_other(it));
        pods.iter().for_each(|it| world.put_pod(it));
        world
    }

    /// A node as it is now.
    pub(crate) fn put_node(&mut self, node: &Value) {
        let node = Node::read(node);
        self.nodes.insert(node.name.clone(), node);
    }

    /// A node is gone. Pods that are bound to it count nowhere until it is back.
    pub(crate) fn remove_node(&mut self, name: &str) {
        self.nodes.remove(name);
    }

    /// A namespace, a volume, a claim or a storage class as it is now.
    pub(crate) fn put_other(&mut self, object: &Value) {
        let name = text(object, "/metadata/name");
        if text(object, "/kind") == "Namespace" {
            self.namespaces.insert(name.to_owned(), labels(object.pointer("/metadata/labels")));
        }
        self.others.insert(other_key(object), object.clone());
    }

    /// Such an object is gone.
    pub(crate) fn remove_other(&mut self, object: &Value) {
        if text(object, "/kind") == "Namespace" {
            self.namespaces.remove(text(object, "/metadata/name"));
        }
        self.others.remove(&other_key(object));
    }

    /// A pod as it is now.
    pub(crate) fn put_pod(&mut self, pod: &Value) {
        self.put(Pod::read(pod));
    }

    /// A pod is gone. The key is `namespace/name`.
    pub(crate) fn remove_pod(&mut self, key: &str) {
        if let Some(pod) = self.pods.remove(key) {
            self.count(&pod, -1);
        }
    }

    /// A pod is bound.
    pub(crate) fn bind(&mut self, key: &str, node: &str) {
        if let Some(mut pod) = self.pods.get(key).cloned() {
            pod.node = Some(node.to_owned());
            self.put(pod);
        }
    }

    /// Labels of a namespace; of one that nobody told of: none.
    pub(crate) fn labels_of_namespace(&self, name: &str) -> &Labels {
        static NONE: Labels = Labels::new();
        self.namespaces.get(name).unwrap_or(&NONE)
    }

    /// Pods that hold something on a node.
    pub(crate) fn pods_on(&self, node: &str) -> impl Iterator<Item = &Pod> {
        self.on_node.get(node).into_iter().flatten().filter_map(|key| self.pods.get(key))
    }

    /// A pod that was taken out for a moment is back.
    pub(crate) fn bind_again(&mut self, pod: Pod) {
        self.put(pod);
    }

    fn put(&mut self, pod: Pod) {
        self.remove_pod(&pod.key);
        self.count(&pod, 1);
        self.pods.insert(pod.key.clone(), pod);
    }

    fn count(&mut self, pod: &Pod, by: i64) {
        if let (None, Some(node), false) = (&pod.node, &pod.nominated, pod.ended || pod.deleting) {
            let waiting = self.nominated.entry(node.clone()).or_default();
            note(waiting, &pod.key, by);
        }
        let Some(node) = pod.node.clone().filter(|_| pod.counts()) else { return };
        note(self.on_node.entry(node.clone()).or_default(), &pod.key, by);
        let kind = self.kinds.entry((pod.namespace.clone(), pod.labels.clone())).or_default();
        tally(&mut kind.all, &node, by);
        if !pod.deleting {
            tally(&mut kind.staying, &node, by);
        }
        for term in &pod.away {
            // The labels of the pod are part of it where the rule refers to them.
            let key = (term.home.clone(), term.written.to_string(), term.own().clone());
            let fresh = || Carried { term: term.clone(), by_node: ByNode::new() };
            tally(&mut self.away.entry(key).or_insert_with(fresh).by_node, &node, by);
        }
    }
}

fn other_key(object: &Value) -> (String, String) {
    let name = text(object, "/metadata/name");
    let name = match text(object, "/metadata/namespace") {
        "" => name.to_owned(),
        namespace => format!("{namespace}/{name}"),
    };
    (text(object, "/kind").to_owned(), name)
}

fn note(set: &mut BTreeSet<String>, key: &str, by: i64) {
    if by > 0 {
        set.insert(key.to_owned());
    } else {
        set.remove(key);
    }
}

fn tally(counts: &mut ByNode, node: &str, by: i64) {
    let count = counts.entry(node.to_owned()).or_default();
    *count += by;
    if *count == 0 {
        counts.remove(node);
    }
}
