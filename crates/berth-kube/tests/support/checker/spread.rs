//! Topology spread constraints with `DoNotSchedule`, judged at the moment of placement.

use std::collections::BTreeMap;

use serde_json::Value;

use super::facts::{Node, Pod};
use super::rules::PodFindings;
use super::selector::{Labels, list, selects, text};
use super::world::World;

/// Judges one placement.
pub(crate) fn check(world: &World, pod: &Pod, node: &Node, found: &mut PodFindings<'_>) {
    let all = list(&pod.spec, "/topologySpreadConstraints").iter();
    let hard: Vec<&Value> =
        all.filter(|it| text(it, "/whenUnsatisfiable") != "ScheduleAnyway").collect();
    for constraint in &hard {
        if let Err(why) = one(world, pod, node, constraint, &hard) {
            found.add("spread", why);
        }
    }
}

fn counts_pod(constraint: &Value, pod: &Pod, labels: &Labels) -> bool {
    let same = |key: &Value| {
        let key = key.as_str().unwrap_or_default();
        pod.labels.get(key).is_none_or(|own| labels.get(key) == Some(own))
    };
    selects(constraint.get("labelSelector"), labels)
        && list(constraint, "/matchLabelKeys").iter().all(same)
}

/// Whether pods on a node count, and the node makes its domain exist.
fn counts_node(constraint: &Value, pod: &Pod, node: &Node, hard: &[&Value]) -> bool {
    let labelled = hard.iter().all(|it| node.labels.contains_key(text(it, "/topologyKey")));
    let by_affinity = text(constraint, "/nodeAffinityPolicy") != "Ignore";
    let by_taints = text(constraint, "/nodeTaintsPolicy") == "Honor";
    labelled
        && (!by_affinity || pod.asks_for(node))
        && (!by_taints || pod.untolerated(node).is_none())
}

fn one(
    world: &World,
    pod: &Pod,
    node: &Node,
    constraint: &Value,
    hard: &[&Value],
) -> Result<(), String> {
    let key = text(constraint, "/topologyKey");
    let Some(here) = node.labels.get(key) else {
        return Err(format!("the node has no label {key}"));
    };
    let mut domains: BTreeMap<&str, i64> = BTreeMap::new();
    let eligible = world.nodes.values().filter(|it| counts_node(constraint, pod, it, hard));
    let kinds = world.kinds.iter().filter(|((namespace, labels), _)| {
        *namespace == pod.namespace && counts_pod(constraint, pod, labels)
    });
    let kinds: Vec<_> = kinds.map(|(_, kind)| &kind.staying).collect();
    for it in eligible {
        let count = kinds.iter().map(|kind| kind.get(&it.name).copied().unwrap_or(0)).sum::<i64>();
        if let Some(value) = it.labels.get(key) {
            *domains.entry(value).or_default() += count;
        }
    }
    let number = |name: &str| constraint.get(name).and_then(Value::as_i64);
    let enough = i64::try_from(domains.len()).unwrap_or(0) >= number("minDomains").unwrap_or(1);
    let least = domains.values().min().copied().filter(|_| enough).unwrap_or(0);
    let itself = i64::from(counts_pod(constraint, pod, &pod.labels));
    let count = domains.get(here.as_str()).copied().unwrap_or(0);
    let most = number("maxSkew").unwrap_or(1);
    if count + itself - least > most {
        return Err(format!(
            "{count} are in its {key}, {least} in the emptiest, maxSkew is {most}: {domains:?}"
        ));
    }
    Ok(())
}
