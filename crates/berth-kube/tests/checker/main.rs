//! The independent checker notices every kind of broken state: a control for each of its rules.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that panics has failed")]

#[path = "../support/checker/mod.rs"]
mod checker;
#[path = "../support/objects.rs"]
mod objects;

mod devices;
mod history;
mod nodes;
mod pod_affinity;
mod resources;
mod topology_spread;

use checker::{World, check_placement};
use serde_json::Value;

/// The names of the rules that a placement breaks.
fn broken(
    nodes: &[Value],
    pods: &[Value],
    others: &[Value],
    pod: &Value,
    node: &str,
) -> Vec<&'static str> {
    let world = World::new(nodes, pods, others);
    let mut rules: Vec<_> = check_placement(&world, pod, node).iter().map(|it| it.rule).collect();
    rules.dedup();
    rules
}
