//! What must hold when a run is over.
//!
//! The bindings that the API server accepted are replayed in its order, with the pods that went in
//! between, and each is judged against the state just before it. That is exact for all rules but
//! one: nodes never lose room but by a binding, and Berth sees a pod go only after it went.
//!
//! The exception is topology spread. Berth decides one after the other, but requests overtake each
//! other on their way, and what a killed leader had decided may never happen. So it is judged at
//! the end: with every pod that counts in place, no zone may be ahead by more than `maxSkew`.
//! Exactly then there is an order of the bindings in which each was right. A scheduler that follows
//! the rule gets there from whatever part of a killed leader's decisions was carried out: it fills
//! the emptiest zone first, and no zone holds more than its share of all.

use std::collections::{BTreeMap, BTreeSet};

use berth_kube_fake::{Binding, DeletedPod};
use serde_json::Value;

use crate::checker::{self, Violation, World, check_bindings, check_final, check_placement};
use crate::run::{Record, uids};
use crate::workloads::{Fate, GANG, Size};

fn text<'a>(value: &'a Value, pointer: &str) -> &'a str {
    value.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

fn key(pod: &Value) -> String {
    format!("{}/{}", text(pod, "/metadata/namespace"), text(pod, "/metadata/name"))
}

fn uid(pod: &Value) -> &str {
    text(pod, "/metadata/uid")
}

fn node(pod: &Value) -> &str {
    text(pod, "/spec/nodeName")
}

/// A pod as it was before it had a node.
fn unbound(pod: &Value) -> Value {
    let mut pod = pod.clone();
    pod["spec"]["nodeName"] = Value::Null;
    pod["status"] = Value::Null;
    pod["metadata"]["deletionTimestamp"] = Value::Null;
    pod
}

/// What is left to be done.
pub(crate) fn unfinished(size: Size, pods: &[Value], events: &[Value]) -> Vec<String> {
    let told: BTreeMap<&str, &str> = events
        .iter()
        .filter(|it| text(it, "/reason") == "FailedScheduling")
        .map(|it| (text(it, "/regarding/uid"), text(it, "/note")))
        .collect();
    let mut left = Vec::new();
    let mut ganged = 0;
    for pod in pods {
        let name = text(pod, "/metadata/name");
        match Fate::of(pod) {
            Some(Fate::Bound | Fate::Contended | Fate::There | Fate::Low)
                if node(pod).is_empty() =>
            {
                let note = told.get(uid(pod)).copied().unwrap_or("no event says why");
                left.push(format!("{name} is not bound: {note}"));
            }
            Some(Fate::Fleeting) => left.push(format!("{name} is still there")),
            Some(Fate::Hopeless) if !node(pod).is_empty() => {
                left.push(format!("{name} is bound to {}, of all nodes", node(pod)));
            }
            Some(Fate::Ganged) if !node(pod).is_empty() => ganged += 1,
            None => left.push(format!("{name} is not one of ours")),
            Some(_) => {}
        }
        if node(pod).is_empty() {
            left.extend(unexplained(pod, &told).map(|it| format!("{name} {it}")));
        }
    }
    if ganged != size.gangs() * GANG {
        left.push(format!("{ganged} pods of gangs are bound of {}", size.gangs() * GANG));
    }
    left
}

/// What a pod without a place should have been told and was not.
fn unexplained(pod: &Value, told: &BTreeMap<&str, &str>) -> Option<&'static str> {
    let conditions = pod.pointer("/status/conditions").and_then(Value::as_array);
    let mut conditions = conditions.into_iter().flatten();
    let Some(condition) = conditions.find(|it| text(it, "/type") == "PodScheduled") else {
        return Some("has no condition");
    };
    let first_line = text(condition, "/message").lines().next().unwrap_or_default();
    let is_clear = text(condition, "/status") == "False"
        && text(condition, "/reason") == "Unschedulable"
        && !first_line.is_empty();
    match (is_clear, told.contains_key(uid(pod))) {
        (false, _) => Some("has a condition that does not say why"),
        (true, false) => Some("has no event"),
        (true, true) => None,
    }
}

/// Everything that is wrong with a run, the worst first.
pub(crate) fn judge(record: &Record) -> Vec<String> {
    let Record { nodes, pods, bindings, departures, .. } = record;
    let everybody: Vec<&Value> = pods.iter().chain(departures.iter().map(|it| &it.pod)).collect();
    let copies: Vec<Value> = everybody.iter().map(|it| (*it).clone()).collect();
    let list: Vec<checker::Binding> = bindings
        .iter()
        .map(|it| checker::Binding { uid: it.uid.clone(), node: it.node.clone() })
        .collect();
    let mut found: Vec<String> = words(check_bindings(&list, &copies)).collect();
    found.extend(out_of_thin_air(&everybody, bindings));
    found.extend(words(replay(nodes, &everybody, bindings, departures)));
    found.extend(words(check_final(nodes, pods, &[])));
    found.extend(words(spreads(nodes, pods)));
    found.extend(driven_out(departures));
    found.extend(unfinished(record.size, pods, &record.events));
    found
}

fn words(found: Vec<Violation>) -> impl Iterator<Item = String> {
    found.into_iter().map(|it| it.to_string())
}

/// Pods that are on a node though nobody has bound them, and bindings of pods that nobody knows.
fn out_of_thin_air(everybody: &[&Value], bindings: &[Binding]) -> Vec<String> {
    let bound = uids(bindings);
    let known: BTreeSet<&str> = everybody.iter().map(|it| uid(it)).collect();
    let were_there = |pod: &Value| matches!(Fate::of(pod), Some(Fate::There | Fate::Low));
    let unbound = everybody
        .iter()
        .filter(|it| !node(it).is_empty() && !were_there(it) && !bound.contains(uid(it)))
        .map(|it| format!("{} is on {}, and nobody has bound it", key(it), node(it)));
    let unknown = bound
        .iter()
        .filter(|it| !known.contains(*it))
        .map(|it| format!("{it} was bound, and is nobody"));
    unbound.chain(unknown).collect()
}

enum Happened<'a> {
    Bound(&'a Binding),
    Gone(&'a Value),
}

fn replay(
    nodes: &[Value],
    everybody: &[&Value],
    bindings: &[Binding],
    departures: &[DeletedPod],
) -> Vec<Violation> {
    let by_uid: BTreeMap<&str, &Value> = everybody.iter().map(|it| (uid(it), *it)).collect();
    let bound = uids(bindings);
    // Those who were there before anything was bound.
    let first = everybody.iter().filter(|it| !node(it).is_empty() && !bound.contains(uid(it)));
    let first: Vec<Value> = first
        .map(|it| {
            let mut pod = unbound(it);
            pod["spec"]["nodeName"] = it["spec"]["nodeName"].clone();
            pod
        })
        .collect();
    let mut world = World::new(nodes, &first, &[]);
    let mut history: Vec<(u64, Happened<'_>)> =
        bindings.iter().map(|it| (it.seq, Happened::Bound(it))).collect();
    history.extend(departures.iter().map(|it| (it.seq, Happened::Gone(&it.pod))));
    history.sort_by_key(|(seq, _)| *seq);
    let mut found = Vec::new();
    for (_, happened) in history {
        match happened {
            Happened::Gone(pod) => world.remove_pod(&key(pod)),
            Happened::Bound(binding) => {
                let Some(pod) = by_uid.get(binding.uid.as_str()) else { continue };
                let mut pod = unbound(pod);
                let broken = check_placement(&world, &pod, &binding.node);
                found.extend(broken.into_iter().filter(|it| it.rule != "spread"));
                pod["spec"]["nodeName"] = binding.node.clone().into();
                world.put_pod(&pod);
            }
        }
    }
    found
}

/// See the module.
fn spreads(nodes: &[Value], pods: &[Value]) -> Vec<Violation> {
    let mut world = World::new(nodes, pods, &[]);
    let spread = |pod: &&Value| {
        let constraints = pod.pointer("/spec/topologySpreadConstraints");
        constraints.is_some_and(|it| !it.is_null()) && !node(pod).is_empty()
    };
    let mut found = Vec::new();
    for pod in pods.iter().filter(spread) {
        world.remove_pod(&key(pod));
        let broken = check_placement(&world, &unbound(pod), node(pod)).into_iter();
        found.extend(broken.filter(|it| it.rule == "spread"));
        world.put_pod(pod);
    }
    found
}

/// Pods that had to go though nobody may have wanted it.
fn driven_out(departures: &[DeletedPod]) -> Vec<String> {
    let wrong = departures
        .iter()
        .filter(|it| !matches!(Fate::of(&it.pod), Some(Fate::Low | Fate::Fleeting)));
    wrong.map(|it| format!("{} had to go", key(&it.pod))).collect()
}
