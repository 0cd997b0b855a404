//! The objects of an imagined API server, told to the core and to the checker alike, and what the
//! core holds next to them.

use std::collections::{BTreeMap, BTreeSet};

use berth_engine::{Policy, Timestamp};
use berth_kube::cluster::outcome::{PodExplanation, Reservation};
use berth_kube::cluster::pod::Key;
use berth_kube::cluster::pod_groups::GroupKind;
use berth_kube::cluster::{Cluster, MissingRequests, PodState, Settings};
use serde_json::{Value, json};

use crate::checker::{Violation, World, check_placement};
use crate::objects::{namespace, patched};
use crate::random::{NAMESPACES, Rng, any_node, any_pod};

/// No rule goes by the time.
pub(crate) const NOW: Timestamp = Timestamp(1_700_000_000);
const GOING: &str = "2026-01-01T00:00:00Z";

/// A cluster under test, and all that is true of it.
pub(crate) struct Model {
    pub(crate) core: Cluster,
    pub(crate) world: World,
    pub(crate) policy: &'static str,
    pub(crate) wild: u64,
    /// Nodes take everybody, as long as there is room: then priorities matter.
    pub(crate) plain: bool,
    pub(crate) nodes: BTreeMap<String, Value>,
    pub(crate) namespaces: BTreeMap<String, Value>,
    /// PodGroups by `namespace/name`.
    pub(crate) groups: BTreeMap<String, Value>,
    /// Pods as the API server has them, by `namespace/name`.
    pub(crate) pods: BTreeMap<String, Value>,
    /// Places that are held and not yet bound.
    pub(crate) reserved: BTreeMap<String, String>,
    /// Pods that were refused, and nothing new was told since.
    pub(crate) refused: BTreeSet<String>,
    /// What happened, in words.
    pub(crate) log: Vec<String>,
}

fn core(policy: &str) -> Cluster {
    let policy = Policy::builtin(policy).expect("a built-in policy");
    Cluster::new(Settings {
        scheduler: "berth".to_owned(),
        policy,
        missing_requests: MissingRequests::Zero,
        ignored_pod_fields: Vec::new(),
    })
}

fn typed<T: serde::de::DeserializeOwned>(value: &Value) -> T {
    serde_json::from_value(value.clone()).expect("an object of its kind")
}

/// The key of a pod, as the core has it.
pub(crate) fn key(key: &str) -> Key {
    let (namespace, name) = key.split_once('/').expect("namespace/name");
    Key::new(namespace, name)
}

/// The uid of a pod's object.
pub(crate) fn uid(pod: &Value) -> &str {
    pod["metadata"]["uid"].as_str().expect("a uid")
}

fn labels(object: &Value) -> BTreeMap<String, String> {
    serde_json::from_value(object["metadata"]["labels"].clone()).unwrap_or_default()
}

impl Model {
    pub(crate) fn start(seed: u64) -> Self {
        let mut rng = Rng(seed);
        let policy = rng.pick(&["balanced", "pack", "spread", "neon"]);
        let (wild, plain) = (rng.pick(&[0, 5, 10, 20, 35]), rng.chance(50));
        let mut model = Self {
            core: core(policy),
            world: World::default(),
            policy,
            wild,
            plain,
            nodes: BTreeMap::new(),
            namespaces: BTreeMap::new(),
            groups: BTreeMap::new(),
            pods: BTreeMap::new(),
            reserved: BTreeMap::new(),
            refused: BTreeSet::new(),
            log: Vec::new(),
        };
        for name in NAMESPACES {
            model.relabel_namespace(name, &mut rng);
        }
        for number in 0..rng.below(if plain { 4 } else { 8 }) {
            let name = format!("n{number}");
            model.put_node(any_node(&name, plain, &mut rng));
        }
        model
    }

    pub(crate) fn put_node(&mut self, node: Value) {
        let name = node["metadata"]["name"].as_str().expect("a name").to_owned();
        self.log.push(format!("node {name} is {node}"));
        self.core.put_node(&typed(&node));
        self.world.put_node(&node);
        self.nodes.insert(name, node);
    }

    /// A PodGroup, of the namespace and the name that its gang has.
    pub(crate) fn put_group(&mut self, namespace: &str, name: &str, policy: &Value) {
        let group = json!({
            "kind": "PodGroup", "metadata": {"namespace": namespace, "name": name},
            "spec": {"schedulingPolicy": policy},
        });
        self.log.push(format!("group {group}"));
        self.core.put_group(GroupKind::PodGroup, &group);
        self.groups.insert(format!("{namespace}/{name}"), group);
    }

    /// The gang of a pod that goes as a whole.
    fn gang_of(&self, pod: &Value) -> Option<String> {
        let namespace = pod["metadata"]["namespace"].as_str()?;
        if let Some(name) = pod["metadata"]["labels"]["berth.dev/gang"].as_str() {
            return Some(format!("{namespace}/{name}"));
        }
        let name = pod["spec"]["schedulingGroup"]["podGroupName"].as_str()?;
        let key = format!("{namespace}/{name}");
        let basic = !self.groups[&key]["spec"]["schedulingPolicy"]["basic"].is_null();
        Some(format!("group {key}")).filter(|_| !basic)
    }

    /// Whether both are of one gang that goes as a whole.
    pub(crate) fn same_gang(&self, a: &Value, b: &Value) -> bool {
        let gang = self.gang_of(a);
        gang.is_some() && gang == self.gang_of(b)
    }

    /// The pods that would have to go with a pod, itself included: those of its gang that have a place and
    /// are not going.
    pub(crate) fn unit(&self, key: &str) -> Vec<String> {
        let pod = &self.pods[key];
        let counts = |it: &&String| {
            let other = &self.pods[*it];
            let placed = other["spec"]["nodeName"]
                .as_str()
                .is_some_and(|node| self.nodes.contains_key(node));
            let goes_too = self.same_gang(pod, other)
                && !is_ended(other)
                && !is_going(other)
                && (placed || self.reserved.contains_key(*it));
            **it == *key || goes_too
        };
        self.pods.keys().filter(counts).cloned().collect()
    }

    pub(crate) fn remove_node(&mut self, name: &str) {
        self.log.push(format!("node {name} is gone"));
        self.core.remove_node(name);
        self.world.remove_node(name);
        self.nodes.remove(name);
    }

    pub(crate) fn relabel_namespace(&mut self, name: &str, rng: &mut Rng) {
        let object =
            namespace(name, &rng.pick(&[json!({}), json!({"team": "x"}), json!({"team": "y"})]));
        self.log.push(format!("namespace {name} is {object}"));
        self.core.put_namespace(name, &labels(&object));
        self.world.put_other(&object);
        self.namespaces.insert(name.to_owned(), object);
    }

    /// Tells of a pod as it is now. A place that is held counts for the checker, too.
    pub(crate) fn put_pod(&mut self, key: &str, pod: Value) -> PodState {
        self.log.push(format!("pod {key} is {pod}"));
        self.refused.remove(key);
        let state = self.core.put_pod(&typed(&pod));
        if !pod["spec"]["nodeName"].is_null() || state == PodState::Ended {
            self.reserved.remove(key);
        }
        self.world.put_pod(&with_node(&pod, self.reserved.get(key)));
        self.pods.insert(key.to_owned(), pod);
        state
    }

    pub(crate) fn patch_pod(&mut self, key: &str, patch: &Value) {
        let pod = patched(self.pods[key].clone(), patch);
        self.put_pod(key, pod);
    }

    pub(crate) fn remove_pod(&mut self, name: &str) {
        self.log.push(format!("pod {name} is gone"));
        let pod = self.pods.remove(name).expect("a pod");
        self.core.remove_pod(&key(name), uid(&pod));
        self.world.remove_pod(name);
        self.reserved.remove(name);
        self.refused.remove(name);
    }

    pub(crate) fn begin_deletion(&mut self, key: &str) {
        self.patch_pod(key, &json!({"metadata": {"deletionTimestamp": GOING}}));
    }

    /// A place was given.
    pub(crate) fn hold(&mut self, reservation: &Reservation) {
        let key = reservation.pod.to_string();
        self.reserved.insert(key.clone(), reservation.node.to_string());
        let pod = with_node(&self.pods[&key], self.reserved.get(&key));
        self.world.put_pod(&pod);
    }

    /// A place is given back.
    pub(crate) fn unreserve(&mut self, key: &str) {
        self.log.push(format!("the place of {key} is given up"));
        self.reserved.remove(key);
        self.core.unreserve(uid(&self.pods[key]));
        self.world.put_pod(&self.pods[key]);
    }

    /// Whether the core should call a pod pending.
    pub(crate) fn is_pending(&self, key: &str) -> bool {
        let pod = &self.pods[key];
        let gates = pod["spec"]["schedulingGates"].as_array();
        pod["spec"]["nodeName"].is_null()
            && !self.reserved.contains_key(key)
            && !is_ended(pod)
            && !is_going(pod)
            && pod["spec"]["schedulerName"] == "berth"
            && gates.is_none_or(Vec::is_empty)
    }

    /// Nodes on which a pod would break no rule, by the checker.
    pub(crate) fn legal_nodes(&self, pod: &Value) -> Vec<String> {
        let is_legal = |name: &&String| check_placement(&self.world, pod, name).is_empty();
        self.nodes.keys().filter(is_legal).cloned().collect()
    }

    /// What a pod would break on a node.
    pub(crate) fn violations(&self, key: &str, node: &str) -> Vec<Violation> {
        check_placement(&self.world, &self.pods[key], node)
    }

    /// A core that was told the same objects again, in an order of its own. What was held is bound.
    pub(crate) fn rebuilt(&self, rng: &mut Rng) -> Cluster {
        let mut core = core(self.policy);
        let mut told: Vec<&Value> = self.nodes.values().chain(self.namespaces.values()).collect();
        told.extend(self.groups.values());
        let pods: Vec<Value> =
            self.pods.iter().map(|(key, pod)| with_node(pod, self.reserved.get(key))).collect();
        told.extend(&pods);
        for last in (1..told.len()).rev() {
            told.swap(last, rng.below(last + 1));
        }
        for object in told {
            match object["kind"].as_str() {
                Some("Node") => core.put_node(&typed(object)),
                Some("Pod") => drop(core.put_pod(&typed(object))),
                Some("PodGroup") => core.put_group(GroupKind::PodGroup, object),
                _ => {
                    let name = object["metadata"]["name"].as_str().expect("a name");
                    core.put_namespace(name, &labels(object));
                }
            }
        }
        core
    }

    /// The core says the same as one that was told everything again, about pods that wait and about
    /// one that nobody has seen.
    pub(crate) fn compare_with_rebuilt(&mut self, rng: &mut Rng) {
        // A place held on a node that is gone is told by nobody.
        if self.reserved.values().any(|it| !self.nodes.contains_key(it)) {
            return;
        }
        let mut fresh = self.rebuilt(rng);
        let waiting: Vec<String> = self.pods.keys().cloned().collect();
        for _ in 0..2.min(waiting.len()) {
            let name = rng.pick(&waiting);
            let both = (self.core.explain(&key(&name), NOW), fresh.explain(&key(&name), NOW));
            self.must_agree(&name, both);
        }
        let mut probe = any_pod(1_000_000, 30, rng);
        probe["spec"]["schedulingGates"] = Value::Null;
        let name = format!("{}/p1000000", probe["metadata"]["namespace"].as_str().expect("one"));
        let ask = |core: &mut Cluster| {
            core.put_pod(&typed(&probe));
            let answer = core.explain(&key(&name), NOW);
            core.remove_pod(&key(&name), uid(&probe));
            answer
        };
        self.hear_news();
        let both = (ask(&mut self.core), ask(&mut fresh));
        assert!(!self.core.take_changed(), "a probe is no news\n{}", self.story());
        self.must_agree(&probe.to_string(), both);
    }

    /// The one that was refused may be tried again, if there is news.
    pub(crate) fn hear_news(&mut self) {
        if self.core.take_changed() {
            self.refused.clear();
        }
    }

    fn must_agree(&self, what: &str, both: (Option<PodExplanation>, Option<PodExplanation>)) {
        let (Some(this), Some(fresh)) = both else { panic!("{what} is not known") };
        let seen = |it: &PodExplanation| {
            let line = it.refusal.as_ref().map(|it| it.line.clone());
            (it.node.clone(), it.best.clone(), line, it.table.clone())
        };
        let (mut this, fresh) = (seen(&this), seen(&fresh));
        // A pod whose node is gone is nowhere for a core that never saw the node.
        if this.0.as_ref().is_some_and(|it| !self.nodes.contains_key(&**it)) {
            this.0 = None;
        }
        assert_eq!(this, fresh, "a core told again sees {what} otherwise\n{}", self.story());
    }

    /// What happened so far.
    pub(crate) fn story(&self) -> String {
        format!("policy {}, wild {}\n{}", self.policy, self.wild, self.log.join("\n"))
    }
}

/// A pod's object as if the place that is held were bound.
fn with_node(pod: &Value, node: Option<&String>) -> Value {
    let mut pod = pod.clone();
    if let Some(node) = node {
        pod["spec"]["nodeName"] = node.as_str().into();
    }
    pod
}

pub(crate) fn is_ended(pod: &Value) -> bool {
    matches!(pod["status"]["phase"].as_str(), Some("Succeeded" | "Failed"))
}

pub(crate) fn is_going(pod: &Value) -> bool {
    !pod["metadata"]["deletionTimestamp"].is_null()
}
