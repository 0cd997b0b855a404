//! Rules about other pods: whom a pod must be near, whom it must be away from, and who must be
//! away from it.

use super::facts::{Node, Pod, Term};
use super::rules::PodFindings;
use super::world::{ByNode, World};

/// Judges one placement.
pub(crate) fn check(world: &World, pod: &Pod, node: &Node, found: &mut PodFindings<'_>) {
    away(world, pod, node, found);
    of_others(world, pod, node, found);
    if !pod.required_affinity.is_empty() {
        check_affinity(world, pod, node, found);
    }
}

/// How many of the counted pods are in the same domain as a node.
fn in_domain(world: &World, counts: &ByNode, key: &str, node: &Node) -> i64 {
    let Some(value) = node.labels.get(key) else { return 0 };
    let near = counts.iter().filter(|(name, _)| {
        world.nodes.get(*name).is_some_and(|it| it.labels.get(key) == Some(value))
    });
    near.map(|(_, count)| count).sum()
}

/// Whether a rule speaks of pods of such a kind.
fn is_about(world: &World, term: &Term, kind: &(String, super::selector::Labels)) -> bool {
    term.is_about(&kind.0, world.labels_of_namespace(&kind.0), &kind.1)
}

fn away(world: &World, pod: &Pod, node: &Node, found: &mut PodFindings<'_>) {
    for term in &pod.away {
        let kinds = world.kinds.iter().filter(|(kind, _)| is_about(world, term, kind));
        let near: i64 = kinds.map(|(_, it)| in_domain(world, &it.all, term.topology(), node)).sum();
        if near > 0 {
            let text = format!("{near} pods in its {} match {}", term.topology(), term.written);
            found.add("anti-affinity", text);
        }
    }
}

fn of_others(world: &World, pod: &Pod, node: &Node, found: &mut PodFindings<'_>) {
    let of_namespace = world.labels_of_namespace(&pod.namespace);
    for carried in world.away.values().filter(|it| !it.by_node.is_empty()) {
        let term = &carried.term;
        if term.is_about(&pod.namespace, of_namespace, &pod.labels) {
            let near = in_domain(world, &carried.by_node, term.topology(), node);
            if near > 0 {
                let text = format!("{near} pods in its {} have {}", term.topology(), term.written);
                found.add("anti-affinity-of-others", text);
            }
        }
    }
}

/// The one that matches counts only if it matches every term. Where nobody does, a pod that matches
/// itself is the first of them.
fn check_affinity(world: &World, pod: &Pod, node: &Node, found: &mut PodFindings<'_>) {
    let all = |kind: &(String, super::selector::Labels)| {
        pod.required_affinity.iter().all(|term| is_about(world, term, kind))
    };
    let matching: Vec<&ByNode> =
        world.kinds.iter().filter(|(kind, _)| all(kind)).map(|(_, it)| &it.all).collect();
    let somewhere = |term: &Term| {
        let mut names = matching.iter().flat_map(|it| it.keys());
        names.any(|name| {
            world.nodes.get(name).is_some_and(|it| it.labels.contains_key(term.topology()))
        })
    };
    let first = !pod.required_affinity.iter().any(somewhere)
        && all(&(pod.namespace.clone(), pod.labels.clone()));
    for term in &pod.required_affinity {
        let key = term.topology();
        if !node.labels.contains_key(key) {
            found.add("affinity", format!("the node has no label {key}"));
        } else if !first && !matching.iter().any(|it| in_domain(world, it, key, node) > 0) {
            found.add("affinity", format!("nobody in its {key} matches {}", term.written));
        }
    }
}
