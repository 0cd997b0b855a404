//! What must hold when all is said and done: of a state, of gangs, and of a list of bindings.

use std::collections::BTreeMap;

use serde_json::Value;

use super::Violation;
use super::devices::check_devices;
use super::facts::{Node, Pod};
use super::requests::{Amounts, add};
use super::rules::{PodFindings, clashing, facts, gang, placement};
use super::selector::text;
use super::world::World;

/// Rules that hold at the moment of placement only, or that [`nodes`] judges over all pods.
const NOT_LASTING: [&str; 5] = ["spread", "resources", "pods", "ports", "gates"];

/// Everything that is wrong with a state: nodes with more than they have, ports that clash, pods
/// where their own rules or those of their neighbours do not let them be, volumes that are not
/// reachable. Facts of nodes are taken to be what they were when pods were placed.
pub(crate) fn check_final(nodes: &[Value], pods: &[Value], others: &[Value]) -> Vec<Violation> {
    let mut world = World::new(nodes, pods, others);
    let mut found = Vec::new();
    for node in world.nodes.values() {
        let here: Vec<&Pod> = world.pods_on(&node.name).collect();
        found.extend(over_capacity(node, &here));
        for (at, pod) in here.iter().enumerate() {
            for other in &here[at + 1..] {
                if let Some(port) = clashing(pod, other) {
                    let mut one = PodFindings::new(pod, &node.name);
                    one.add("ports", format!("port {port:?} is used by {} too", other.key));
                    found.extend(one.all);
                }
            }
        }
    }
    let bound: Vec<Pod> = world.pods.values().filter(|it| it.counts()).cloned().collect();
    for pod in bound {
        let Some(name) = pod.node.clone() else { continue };
        let Some(node) = world.nodes.get(&name) else {
            let mut one = PodFindings::new(&pod, &name);
            one.add("node", "there is no such node".to_owned());
            found.extend(one.all);
            continue;
        };
        // Most pods say nothing of others, and need no look at them.
        if pod.required_affinity.is_empty()
            && pod.away.is_empty()
            && pod.spec.get("volumes").is_none()
        {
            let mut one = PodFindings::new(&pod, &name);
            facts(&pod, node, &mut one);
            found.extend(one.all);
            continue;
        }
        world.remove_pod(&pod.key);
        let all = placement(&world, &pod, &name).into_iter();
        found.extend(all.filter(|it| !NOT_LASTING.contains(&it.rule)));
        world.bind_again(pod);
    }
    found.extend(check_gangs(pods, others));
    found.extend(check_devices(&world, pods, others));
    found
}

fn over_capacity(node: &Node, here: &[&Pod]) -> Vec<Violation> {
    let wrong = |rule: &'static str, text: String| Violation {
        rule,
        pod: String::new(),
        node: node.name.clone(),
        text,
    };
    let mut used = Amounts::new();
    let mut found = Vec::new();
    for pod in here {
        match &pod.asked {
            Ok(asked) => add(&mut used, asked),
            Err(why) => found.push(wrong("unreadable", format!("{}: {why}", pod.key))),
        }
    }
    let has = match &node.allocatable {
        Ok(has) => has.clone(),
        Err(why) => return vec![wrong("unreadable", why.clone())],
    };
    let most = |name: &str| has.get(name).copied().unwrap_or(0);
    for (name, used) in used {
        if used > most(&name) {
            found.push(wrong("resources", format!("{name}: {used} used of {}", most(&name))));
        }
    }
    if here.len() as i128 > most("pods") {
        found.push(wrong("pods", format!("{} are there of {}", here.len(), most("pods"))));
    }
    found
}

/// Gangs of which some pods were bound, and fewer than they have, or than their group says. `others` may hold
/// PodGroups and Workloads.
pub(crate) fn check_gangs(pods: &[Value], others: &[Value]) -> Vec<Violation> {
    let groups: Vec<&Value> =
        others.iter().filter(|it| matches!(text(it, "/kind"), "PodGroup" | "Workload")).collect();
    let mut gangs: BTreeMap<String, (usize, usize)> = BTreeMap::new();
    for pod in pods {
        let Some((name, size)) = gang(pod, &groups) else { continue };
        let entry = gangs.entry(name).or_default();
        entry.0 = entry.0.max(size.parse().unwrap_or(0));
        entry.1 += usize::from(!text(pod, "/spec/nodeName").is_empty());
    }
    let broken = gangs.into_iter().filter(|(_, (size, bound))| *bound > 0 && bound < size);
    broken
        .map(|(name, (size, bound))| Violation {
            rule: "gang",
            pod: name,
            node: String::new(),
            text: format!("{bound} of its {size} pods are bound"),
        })
        .collect()
}

/// A binding that was made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Binding {
    /// The uid of the pod.
    pub(crate) uid: String,
    /// The node.
    pub(crate) node: String,
}

/// Pods that were bound more than once, or are bound where no binding put them.
pub(crate) fn check_bindings(bindings: &[Binding], pods: &[Value]) -> Vec<Violation> {
    let mut by_uid: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for it in bindings {
        by_uid.entry(&it.uid).or_default().push(&it.node);
    }
    let mut found = Vec::new();
    let wrong = |pod: &str, node: &str, text: String| Violation {
        rule: "bound-once",
        pod: pod.to_owned(),
        node: node.to_owned(),
        text,
    };
    for (uid, nodes) in by_uid.iter().filter(|(_, nodes)| nodes.len() > 1) {
        found.push(wrong(uid, nodes[0], format!("it was bound {} times: {nodes:?}", nodes.len())));
    }
    for pod in pods {
        let (uid, node) = (text(pod, "/metadata/uid"), text(pod, "/spec/nodeName"));
        if let Some(nodes) = by_uid.get(uid).filter(|nodes| nodes[0] != node) {
            let text = format!("the binding says {}, the pod says {node:?}", nodes[0]);
            found.push(wrong(&Pod::read(pod).key, node, text));
        }
    }
    found
}
