//! One placement against the state just before it: every rule, each told on its own.

use serde_json::Value;

use super::facts::{Node, Pod, clash};
use super::requests::Amounts;
use super::selector::{list, text, tolerates};
use super::world::World;
use super::{Violation, pod_affinity, spread, volumes};

/// What is wrong with a pod on a node.
pub(crate) struct PodFindings<'a> {
    pod: &'a Pod,
    node: &'a str,
    /// All that was found.
    pub(crate) all: Vec<Violation>,
}

impl<'a> PodFindings<'a> {
    /// Nothing so far.
    pub(crate) fn new(pod: &'a Pod, node: &'a str) -> Self {
        Self { pod, node, all: Vec::new() }
    }

    /// Notes a violation.
    pub(crate) fn add(&mut self, rule: &'static str, text: String) {
        let (pod, node) = (self.pod.key.clone(), self.node.to_owned());
        self.all.push(Violation { rule, pod, node, text });
    }
}

/// Every rule that a pod would break on a node, the pod itself being nowhere.
pub(crate) fn placement(world: &World, pod: &Pod, node: &str) -> Vec<Violation> {
    let mut found = PodFindings::new(pod, node);
    let Some(at) = world.nodes.get(node) else {
        found.add("node", "there is no such node".to_owned());
        return found.all;
    };
    if !list(&pod.spec, "/schedulingGates").is_empty() {
        found.add("gates", "its scheduling gates are not open".to_owned());
    }
    facts(pod, at, &mut found);
    load(world, pod, at, &mut found);
    pod_affinity::check(world, pod, at, &mut found);
    spread::check(world, pod, at, &mut found);
    volumes::check(world, pod, at, &mut found);
    found.all
}

/// What depends on the node alone.
pub(crate) fn facts(pod: &Pod, node: &Node, found: &mut PodFindings<'_>) {
    let cordon = serde_json::json!({
        "key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"
    });
    if node.cordoned && !tolerates(list(&pod.spec, "/tolerations"), &cordon) {
        found.add("cordon", "the node is cordoned".to_owned());
    }
    if let Some(taint) = pod.untolerated(node) {
        found.add("taints", format!("{taint} is not tolerated"));
    }
    if !pod.asks_for(node) {
        found.add("node-affinity", "the pod does not ask for this node".to_owned());
    }
    for feature in needed_features(&pod.spec).filter(|it| !node.features.contains(*it)) {
        found.add("features", format!("the node does not declare {feature}"));
    }
}

/// Features of the node that follow from a pod's spec.
fn needed_features(spec: &Value) -> impl Iterator<Item = &'static str> {
    let all = |kinds: &[&str], under: &'static str| -> Vec<Value> {
        let containers = kinds.iter().flat_map(|kind| list(spec, kind));
        containers.flat_map(|it| list(it, under).to_vec()).collect()
    };
    let rules = all(&["/containers", "/initContainers"], "/restartPolicyRules");
    let restarts = rules.iter().any(|it| text(it, "/action") == "RestartAllContainers");
    let is = |field: &str, value: bool| spec.get(field) == Some(&Value::Bool(value));
    let users = is("hostNetwork", true) && is("hostUsers", false);
    let mounts = all(&["/containers", "/initContainers", "/ephemeralContainers"], "/volumeMounts");
    let options = mounts.iter().any(|it| !list(it, "/bindMountOptions").is_empty());
    let needed = [
        (restarts, "RestartAllContainersOnContainerExits"),
        (users, "UserNamespacesHostNetworkSupport"),
        (options, "VolumeBindMountOptions"),
    ];
    needed.into_iter().filter(|(needed, _)| *needed).map(|(_, feature)| feature)
}

fn load(world: &World, pod: &Pod, node: &Node, found: &mut PodFindings<'_>) {
    let (asked, has) = match (&pod.asked, &node.allocatable) {
        (Ok(asked), Ok(has)) => (asked, has),
        (Err(why), _) | (_, Err(why)) => return found.add("unreadable", why.clone()),
    };
    let others: Vec<&Pod> = world.pods_on(&node.name).filter(|it| it.key != pod.key).collect();
    let most = has.get("pods").copied().unwrap_or(0);
    if others.len() as i128 + 1 > most {
        found.add("pods", format!("{} are there, and {most} is the most", others.len()));
    }
    for (name, asked) in asked.iter().filter(|(_, asked)| **asked > 0) {
        let used: i128 = others.iter().map(|it| amount(&it.asked, name)).sum();
        let most = has.get(name).copied().unwrap_or(0);
        if used + asked > most {
            found.add("resources", format!("{name}: {used} used, {asked} asked, {most} there"));
        }
    }
    for other in others {
        if let Some(port) = clashing(pod, other) {
            found.add("ports", format!("port {port:?} is used by {}", other.key));
        }
    }
}

/// What a pod has of one resource.
pub(crate) fn amount(asked: &Result<Amounts, String>, name: &str) -> i128 {
    asked.as_ref().ok().and_then(|it| it.get(name)).copied().unwrap_or(0)
}

/// A port that both use.
pub(crate) fn clashing<'a>(pod: &'a Pod, other: &Pod) -> Option<&'a super::facts::Port> {
    pod.ports.iter().find(|mine| other.ports.iter().any(|its| clash(mine, its)))
}

/// The pods that were nominated for a node and are of no lower priority hold their place there:
/// with them on it, the placement must be right as well.
pub(crate) fn with_nominated(world: &World, pod: &Pod, node: &str) -> Option<World> {
    let waiting = world.nominated.get(node)?.iter().filter_map(|key| world.pods.get(key));
    let waiting = waiting.filter(|it| it.key != pod.key && it.priority >= pod.priority);
    let keys: Vec<String> = waiting.map(|it| it.key.clone()).collect();
    if keys.is_empty() {
        return None;
    }
    let mut then = world.clone();
    keys.iter().for_each(|key| then.bind(key, node));
    Some(then)
}

/// The name of the gang that a pod belongs to, and its size as written. Of a group of Kubernetes the size
/// is the minimum that its object says, and 0 for none; without the object it is more than there can be.
pub(crate) fn gang(pod: &Value, groups: &[&Value]) -> Option<(String, String)> {
    if let Some((name, minimum)) = group_of(pod, groups) {
        return Some((name, minimum.map_or_else(|| u32::MAX.to_string(), |it| it.to_string())));
    }
    let find = |key: &str| {
        let of = |part: &str| pod.pointer(part).and_then(|it| it.get(key)).and_then(Value::as_str);
        of("/metadata/labels").or(of("/metadata/annotations")).map(str::to_owned)
    };
    let name = find("berth.dev/gang").filter(|it| !it.is_empty())?;
    let namespace = text(pod, "/metadata/namespace");
    Some((format!("{namespace}/{name}"), find("berth.dev/gang-size").unwrap_or_default()))
}

/// The group of Kubernetes that a pod belongs to, and its minimum; absent: nothing says it.
fn group_of(pod: &Value, groups: &[&Value]) -> Option<(String, Option<u64>)> {
    let namespace = text(pod, "/metadata/namespace");
    let object = |kind: &str, name: &str| {
        groups.iter().copied().find(|it| {
            text(it, "/kind") == kind
                && text(it, "/metadata/namespace") == namespace
                && text(it, "/metadata/name") == name
        })
    };
    let minimum = |policy: &Value| match (policy.get("basic"), policy.pointer("/gang/minCount")) {
        (Some(_), None) => Some(0),
        (None, Some(minimum)) => minimum.as_u64(),
        _ => None,
    };
    if let Some(workload) = pod.pointer("/spec/workloadRef") {
        let (name, group) = (text(workload, "/name"), text(workload, "/podGroup"));
        let replica = text(workload, "/podGroupReplicaKey");
        let found = object("Workload", name).map(|it| list(it, "/spec/podGroups")).unwrap_or(&[]);
        let found = found.iter().find(|it| text(it, "/name") == group);
        let minimum = found.and_then(|it| minimum(it.get("policy")?));
        return Some((format!("{namespace}/{name}/{group}/{replica} (Workload)"), minimum));
    }
    let group = pod.pointer("/spec/schedulingGroup")?;
    let name = text(group, "/podGroupName");
    let found = object("PodGroup", name);
    let minimum = found.and_then(|it| minimum(it.pointer("/spec/schedulingPolicy")?));
    Some((format!("{namespace}/{name} (PodGroup)"), minimum))
}
