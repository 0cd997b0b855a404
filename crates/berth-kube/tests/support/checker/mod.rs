//! An independent judge of placements: it reads objects as `kubectl get -o json` prints them, follows
//! Kubernetes' documentation, and shares no code with what it judges.
//!
//! [`check_final`] tells what must hold of any state whose nodes did not change under its pods;
//! [`check_placement`] judges one placement against the state just before it, so that a sequence of
//! bindings can be replayed in order; [`check_bindings`] that nobody was bound twice, or half a gang.

#![allow(dead_code, unused_imports, reason = "every test binary uses some of it")]

mod devices;
mod facts;
mod final_state;
mod pod_affinity;
mod quantity;
mod requests;
mod rules;
mod selector;
mod spread;
mod volumes;
mod world;

use std::fmt;

use serde_json::Value;

pub(crate) use final_state::{Binding, check_bindings, check_final, check_gangs};
pub(crate) use world::World;

/// A rule that is broken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Violation {
    /// The rule's name.
    pub(crate) rule: &'static str,
    /// The pod, as `namespace/name`.
    pub(crate) pod: String,
    /// The node.
    pub(crate) node: String,
    /// What is wrong.
    pub(crate) text: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} on {} breaks {}: {}", self.pod, self.node, self.rule, self.text)
    }
}

/// Every rule that a pod would break if it were bound to a node now. The pod itself is looked at as
/// if it were nowhere. Pods that were nominated for the node (`status.nominatedNodeName`) and are of
/// no lower priority hold their place there.
pub(crate) fn check_placement(world: &World, pod: &Value, node: &str) -> Vec<Violation> {
    let pod = facts::Pod::read(pod);
    let lifted = world.pods.get(&pod.key).filter(|it| it.node.is_some()).map(|_| {
        let mut world = world.clone();
        world.remove_pod(&pod.key);
        world
    });
    let world = lifted.as_ref().unwrap_or(world);
    let mut found = rules::placement(world, &pod, node);
    if found.is_empty()
        && let Some(then) = rules::with_nominated(world, &pod, node)
    {
        found = rules::placement(&then, &pod, node);
        for it in &mut found {
            it.text.push_str(" (with those nominated)");
        }
    }
    found
}
