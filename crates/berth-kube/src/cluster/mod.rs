//! The cluster as the scheduler knows it, and where its pods go. Pure: no I/O, no clock.
//!
//! Objects of the API server come in through `put_…` and `remove_…`; [`Cluster::place`] filters,
//! scores and **reserves** in one step, so that the next pod sees what the last one took. The
//! engine sieves by its columns and scores by its policy; Kubernetes' own rules stand in [`rules`],
//! exact to the byte. Nothing is ever reserved that [`rules::first_failure`] did not let through.

mod bits;
pub mod budgets;
mod classes;
mod explain;
mod facts;
mod gangs;
pub mod node;
mod nodes;
pub mod outcome;
pub mod permits;
mod place;
pub mod pod;
mod pods;
mod preempt;
pub mod quantity;
pub mod resources;
mod rules;
pub mod selector;
mod spreads;
mod state;
mod terms;
#[cfg(test)]
mod tests;
mod topology;
pub mod vm;
pub mod volumes;

use std::collections::BTreeMap;
use std::sync::Arc;

use berth_engine::{Engine, Policy};
use rustc_hash::FxHashMap;

use budgets::Budgets;
use classes::Classes;
use nodes::Nodes;
use pods::Pods;
use spreads::Spreads;
use terms::Terms;
use topology::Topologies;
use vm::Vms;
use volumes::Volumes;

pub use pods::PodState;

/// What becomes of pods whose containers state neither requests nor limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Missing {
    /// What is not stated counts as zero.
    #[default]
    Zero,
    /// They are refused.
    Refuse,
}

/// How a cluster is scheduled.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The name by which pods ask for this scheduler.
    pub scheduler: String,
    /// How the engine scores.
    pub policy: Policy,
    /// What becomes of pods that do not say what they need.
    pub missing: Missing,
}

/// A cluster: its nodes, its pods, and who holds what.
pub struct Cluster {
    settings: Settings,
    engine: Engine,
    nodes: Nodes,
    pods: Pods,
    classes: Classes,
    topologies: Topologies,
    terms: Terms,
    spreads: Spreads,
    volumes: Volumes,
    budgets: Budgets,
    vms: Vms,
    /// Pods that a node was promised to, by the node's name.
    promises: FxHashMap<Arc<str>, Vec<Arc<str>>>,
    /// How many pods that count are of each priority.
    priorities: BTreeMap<i32, usize>,
    news: bool,
    /// Whether somebody was refused who may get a place when others come.
    waits_for_others: bool,
    /// Kept so that a scan allocates nothing.
    found: Vec<place::Found>,
    /// Rises with every change of who is where.
    changes: u64,
    /// The last refusal, for pods that would get the same.
    refused: Option<explain::Refused>,
}

impl Cluster {
    /// An empty cluster.
    #[must_use]
    pub fn new(settings: Settings) -> Self {
        Self {
            engine: Engine::new(settings.policy.clone()),
            settings,
            nodes: Nodes::default(),
            pods: Pods::default(),
            classes: Classes::default(),
            topologies: Topologies::default(),
            terms: Terms::default(),
            spreads: Spreads::default(),
            volumes: Volumes::default(),
            budgets: Budgets::default(),
            vms: Vms::default(),
            promises: FxHashMap::default(),
            priorities: BTreeMap::new(),
            news: false,
            waits_for_others: false,
            found: Vec::new(),
            changes: 0,
            refused: None,
        }
    }

    /// Changes the policy. What is reserved stays.
    pub fn set_policy(&mut self, policy: Policy) {
        self.engine.set_policy(policy.clone());
        self.settings.policy = policy;
        self.news = true;
        self.changes += 1;
    }
}
