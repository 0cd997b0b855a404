//! The scheduler's cluster state, and the choice of a node for each pod. Pure: no I/O, no clock.
//!
//! API objects come in through `put_…` and `remove_…`; [`Cluster::schedule_pod`] filters, scores and
//! **reserves** in one step, so that the next pod sees what the last one took. The engine preselects
//! nodes by its columns and scores them by its policy; Kubernetes' own rules are in [`filters`], exact
//! to the byte. Nothing is ever reserved that [`filters::first_failure`] has not accepted.

mod cache;
mod declared_features;
pub mod devices;
pub mod disruption_budgets;
pub mod elastic;
mod eligibility;
mod engine_types;
mod explain;
mod filters;
mod gangs;
mod interner;
pub mod node;
mod node_store;
pub mod observed_pod;
pub mod outcome;
mod overfull;
pub mod pod;
mod pod_affinity;
pub mod pod_groups;
mod pod_store;
pub mod policies;
mod preemption;
pub mod quantity;
mod rejections;
pub mod resources;
mod scheduling;
pub mod selector;
mod shared_nodes;
#[cfg(test)]
mod tests;
mod ties;
mod topology;
mod topology_spread;
mod unstated_load;
pub mod volumes;

use std::collections::BTreeMap;
use std::sync::Arc;

use berth_engine::{Engine, Policy};
use rustc_hash::FxHashMap;

use devices::Devices;
use disruption_budgets::Budgets;
use elastic::ElasticObjects;
use eligibility::EligibilityCache;
use node_store::NodeStore;
use pod_affinity::AffinityIndex;
use pod_groups::PodGroups;
use pod_store::PodStore;
use topology::Topologies;
use topology_spread::SpreadIndex;
use volumes::Volumes;

pub use pod_store::PodState;

/// How to treat pods whose containers declare neither requests nor limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum MissingRequests {
    /// Missing requests count as zero.
    #[default]
    Zero,
    /// Such pods are unschedulable.
    Refuse,
}

/// How pods are scheduled.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The scheduler name that pods ask for.
    pub scheduler: String,
    /// The engine's scoring policy.
    pub policy: Policy,
    /// How to treat pods without requests and limits.
    pub missing_requests: MissingRequests,
    /// Fields of a pod's spec that may be ignored although they are unknown.
    pub ignored_pod_fields: Vec<String>,
}

/// The state of a cluster: nodes, pods, and what each pod uses.
pub struct Cluster {
    settings: Settings,
    engine: Engine,
    nodes: NodeStore,
    pods: PodStore,
    eligibility: EligibilityCache,
    topologies: Topologies,
    affinity: AffinityIndex,
    spreads: SpreadIndex,
    volumes: Volumes,
    devices: Devices,
    budgets: Budgets,
    elastic: ElasticObjects,
    groups: PodGroups,
    overfull: overfull::OverfullNodes,
    unstated: unstated_load::UnstatedLoad,
    interner: interner::Interner,
    /// Pods that are nominated to a node, by the node's name.
    nominations: FxHashMap<Arc<str>, Vec<Arc<str>>>,
    /// The number of accounted pods of each priority.
    priorities: BTreeMap<i32, usize>,
    /// Whether something changed that may make an unschedulable pod schedulable.
    changed: bool,
    /// Whether a refused pod may become schedulable when other pods are placed.
    waits_for_others: bool,
    /// A buffer, so that a scan does not allocate.
    found: Vec<scheduling::ScoredNode>,
    /// Increases with every change of what is where.
    generation: u64,
    /// The last refusal, for pods that would get the same.
    refused: Option<explain::CachedRefusal>,
}

impl Cluster {
    /// An empty cluster.
    #[must_use]
    pub fn new(settings: Settings) -> Self {
        Self {
            engine: Engine::new(settings.policy.clone()),
            unstated: unstated_load::UnstatedLoad::new(&settings.policy),
            settings,
            interner: interner::Interner::default(),
            nodes: NodeStore::default(),
            pods: PodStore::default(),
            eligibility: EligibilityCache::default(),
            topologies: Topologies::default(),
            affinity: AffinityIndex::default(),
            spreads: SpreadIndex::default(),
            volumes: Volumes::default(),
            devices: Devices::default(),
            budgets: Budgets::default(),
            elastic: ElasticObjects::default(),
            groups: PodGroups::default(),
            overfull: overfull::OverfullNodes::default(),
            nominations: FxHashMap::default(),
            priorities: BTreeMap::new(),
            changed: false,
            waits_for_others: false,
            found: Vec::new(),
            generation: 0,
            refused: None,
        }
    }

    /// Changes the policy. Reservations stay.
    pub fn set_policy(&mut self, policy: Policy) {
        self.engine.set_policy(policy.clone());
        self.unstated = unstated_load::UnstatedLoad::new(&policy);
        for (index, node) in self.nodes.present() {
            for pod in node.pods.iter().filter_map(|uid| self.pods.get(uid)) {
                self.unstated.add(index, &node.node, &pod.requested, 1);
            }
        }
        self.settings.policy = policy;
        self.apply_policy_to_nodes();
        self.mark_changed();
    }

    /// The policy.
    #[must_use]
    pub const fn policy(&self) -> &Policy {
        &self.settings.policy
    }

    /// Records a change that may make an unschedulable pod schedulable.
    fn mark_changed(&mut self) {
        self.changed = true;
        self.generation += 1;
    }
}
