//! Topology spread: for every distinct constraint, the number of matching pods in each domain.
//!
//! Which nodes count depends on the pod (its node affinity and tolerations), so that is part of what
//! makes a constraint distinct. Counts follow pods one by one; after a change of nodes they are
//! recomputed when they are needed.

use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::eligibility::NodeBits;
use super::node::{Effect, untolerated};
use super::node_store::NodeStore;
use super::pod::{NodeRequirements, Pod};
use super::pod_affinity::{AffinityIndex, CountChange, LabelSet, SetId};
use super::selector::Selector;
use super::topology::{NO_DOMAIN, Topologies, TopologyId, count_in, count_mut};

/// Constraints that are kept; beyond this, the least recently used are dropped.
const CONSTRAINTS_MAX: usize = 2048;

/// The number of a constraint.
pub(super) type SpreadId = usize;

/// What makes a constraint distinct.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct SpreadKey {
    namespace: Arc<str>,
    selector: Option<Selector>,
    topology: TopologyId,
    /// Nodes count only if they have all of these labels.
    all: Vec<TopologyId>,
    /// Nodes count only if this affinity matches them.
    by_affinity: Option<Arc<NodeRequirements>>,
    /// Nodes count only if these tolerations cover their taints.
    by_taints: Option<Arc<NodeRequirements>>,
}

/// A constraint with its counts per domain.
#[derive(Clone, Debug)]
pub(super) struct SpreadCounts {
    key: SpreadKey,
    /// Its topology key.
    pub(super) topology: TopologyId,
    eligible: NodeBits,
    /// Matching pods, by domain.
    pub(super) counts: Vec<i64>,
    /// Nodes that count, by domain.
    nodes: Vec<u32>,
    /// The version of the nodes that this was computed for.
    version: u64,
    used: u64,
}

/// A constraint prepared for a pod.
#[derive(Clone, Copy, Debug)]
pub(super) struct PreparedSpread {
    /// The constraint.
    pub(super) id: SpreadId,
    /// Its topology key.
    pub(super) topology: TopologyId,
    /// Domains with more matching pods than this are rejected, if the constraint is hard.
    pub(super) limit: i64,
    /// Whether it must hold (`DoNotSchedule`).
    pub(super) hard: bool,
    /// The largest allowed difference to the minimum.
    pub(super) max_skew: i64,
    /// The minimum over all domains.
    pub(super) least: i64,
    /// The number of domains.
    pub(super) domains: i64,
    /// With fewer domains than this, the minimum counts as 0.
    pub(super) min_domains: i64,
}

impl PreparedSpread {
    /// The limit if this many more pods were in a domain.
    pub(super) fn limit_with(&self, spread: &SpreadCounts, domain: u32, more: i64) -> i64 {
        self.limit - self.least + spread.least(self.min_domains, Some((domain, more))).0
    }
}

/// All constraints.
#[derive(Clone, Debug, Default)]
pub(super) struct SpreadIndex {
    all: Vec<Option<SpreadCounts>>,
    by_key: FxHashMap<SpreadKey, SpreadId>,
    /// Constraints that each set of labels counts for.
    of_set: FxHashMap<SetId, Vec<SpreadId>>,
    uses: u64,
}

impl SpreadIndex {
    /// A constraint.
    pub(super) fn get(&self, id: SpreadId) -> Option<&SpreadCounts> {
        self.all.get(id)?.as_ref()
    }

    /// Prepares the constraints of a pod.
    pub(super) fn prepare(
        &mut self,
        pod: &Pod,
        set: SetId,
        nodes: &NodeStore,
        terms: &AffinityIndex,
        topologies: &mut Topologies,
    ) -> Vec<PreparedSpread> {
        let ids = |hard: bool, topologies: &mut Topologies| {
            let of = pod.spread.iter().filter(|it| it.hard == hard);
            of.map(|it| topologies.id_of(&it.topology)).collect::<Vec<_>>()
        };
        let (hard, soft) = (ids(true, topologies), ids(false, topologies));
        let own = terms.set(set);
        let mut ready = Vec::with_capacity(pod.spread.len());
        for constraint in &pod.spread {
            let mut all = if constraint.hard { hard.clone() } else { soft.clone() };
            all.sort_unstable();
            all.dedup();
            let key = SpreadKey {
                namespace: Arc::clone(&pod.key.namespace),
                selector: constraint.selector.clone(),
                topology: topologies.id_of(&constraint.topology),
                all,
                by_affinity: constraint.by_affinity.then(|| Arc::clone(&pod.node_requirements)),
                by_taints: constraint.by_taints.then(|| Arc::clone(&pod.node_requirements)),
            };
            let id = self.acquire(key, nodes, terms, topologies);
            let Some(counts) = self.get(id) else { continue };
            let (min_domains, max_skew) = (constraint.min_domains, constraint.max_skew);
            let (least, domains) = counts.least(min_domains, None);
            let counts_itself = own.is_some_and(|own| counts.counts_set(own));
            let limit = least + max_skew - i64::from(counts_itself);
            let (topology, hard) = (counts.topology, constraint.hard);
            let one =
                PreparedSpread { id, topology, limit, hard, max_skew, least, domains, min_domains };
            ready.push(one);
        }
        ready
    }

    /// Adds a pod that is not terminating to the counts, or removes it.
    pub(super) fn count_pod(
        &mut self,
        set: SetId,
        index: usize,
        step: CountChange,
        topologies: &Topologies,
    ) {
        for id in self.of_set.get(&set).into_iter().flatten() {
            let Some(spread) = self.all[*id].as_mut().filter(|it| it.eligible.get(index)) else {
                continue;
            };
            let domain = topologies.domain(spread.topology, index);
            // The node lost its label; the counts are recomputed when they are needed.
            if domain != NO_DOMAIN {
                let count = count_mut(&mut spread.counts, domain);
                *count += if step == CountChange::Add { 1 } else { -1 };
            }
        }
    }

    /// Whether any constraint counts pods with these labels.
    pub(super) fn is_relevant(&self, set: SetId) -> bool {
        self.of_set.get(&set).is_some_and(|ids| !ids.is_empty())
    }

    /// Registers a new label set.
    pub(super) fn add_set(&mut self, id: SetId, set: &LabelSet) {
        if self.of_set.contains_key(&id) {
            return;
        }
        let all = self.all.iter().enumerate().filter_map(|(at, it)| Some((at, it.as_ref()?)));
        let ids: Vec<_> = all.filter(|(_, it)| it.counts_set(set)).map(|(at, _)| at).collect();
        self.of_set.insert(id, ids);
    }

    /// Removes a label set.
    pub(super) fn remove_set(&mut self, id: SetId) {
        self.of_set.remove(&id);
    }

    fn acquire(
        &mut self,
        key: SpreadKey,
        nodes: &NodeStore,
        terms: &AffinityIndex,
        topologies: &Topologies,
    ) -> SpreadId {
        self.uses += 1;
        let uses = self.uses;
        if let Some(id) = self.by_key.get(&key).copied()
            && let Some(spread) = self.all[id].as_mut()
        {
            spread.used = uses;
            if spread.version != nodes.version() {
                spread.recount(nodes, terms, topologies);
            }
            return id;
        }
        if self.by_key.len() >= CONSTRAINTS_MAX {
            self.drop_unused();
        }
        let mut spread = SpreadCounts {
            topology: key.topology,
            key: key.clone(),
            eligible: NodeBits::default(),
            counts: Vec::new(),
            nodes: Vec::new(),
            version: nodes.version(),
            used: uses,
        };
        spread.recount(nodes, terms, topologies);
        let free = self.all.iter().position(Option::is_none);
        let id = free.unwrap_or(self.all.len());
        for (set_id, set) in terms.sets() {
            if spread.counts_set(set) {
                self.of_set.entry(set_id).or_default().push(id);
            }
        }
        if free.is_some() {
            self.all[id] = Some(spread);
        } else {
            self.all.push(Some(spread));
        }
        self.by_key.insert(key, id);
        id
    }

    /// Drops the half that was used longest ago.
    fn drop_unused(&mut self) {
        let mut used: Vec<u64> = self.all.iter().flatten().map(|it| it.used).collect();
        used.sort_unstable();
        let from = used.get(used.len() / 2).copied().unwrap_or(0);
        for slot in &mut self.all {
            if slot.as_ref().is_some_and(|it| it.used < from)
                && let Some(spread) = slot.take()
            {
                self.by_key.remove(&spread.key);
            }
        }
        let all = &self.all;
        for ids in self.of_set.values_mut() {
            ids.retain(|id| all[*id].is_some());
        }
    }
}

impl SpreadCounts {
    /// Whether pods with these labels count.
    fn counts_set(&self, set: &LabelSet) -> bool {
        set.namespace == self.key.namespace
            && self.key.selector.as_ref().is_some_and(|it| it.matches(&set.labels))
    }

    /// Matching pods in a domain.
    pub(super) fn in_domain(&self, domain: u32) -> i64 {
        count_in(&self.counts, domain)
    }

    /// Whether a pod with these labels counts on a node.
    pub(super) fn counts_at(&self, set: &LabelSet, index: usize) -> bool {
        self.eligible.get(index) && self.counts_set(set)
    }

    /// The minimum over the domains with nodes that count, if this many more pods were in one of them,
    /// and the number of such domains; with too few of them the minimum is 0.
    fn least(&self, min_domains: i64, more: Option<(u32, i64)>) -> (i64, i64) {
        let (mut least, mut domains) = (i64::MAX, 0);
        for (domain, _) in self.nodes.iter().enumerate().filter(|(_, nodes)| **nodes > 0) {
            domains += 1;
            let more = more.filter(|it| it.0 as usize == domain).map_or(0, |it| it.1);
            least = least.min(self.counts.get(domain).copied().unwrap_or(0) + more);
        }
        (if domains == 0 || domains < min_domains { 0 } else { least }, domains)
    }

    fn recount(&mut self, nodes: &NodeStore, terms: &AffinityIndex, topologies: &Topologies) {
        self.version = nodes.version();
        self.eligible.clear();
        self.counts.clear();
        self.nodes.clear();
        self.counts.resize(topologies.count(self.topology), 0);
        for (index, entry) in nodes.present() {
            let node = &entry.node;
            let has_all = self.key.all.iter().all(|id| topologies.domain(*id, index) != NO_DOMAIN);
            let selected =
                self.key.by_affinity.as_ref().is_none_or(|it| it.selects(&node.name, &node.labels));
            let tolerated = self.key.by_taints.as_ref().is_none_or(|it| {
                let hard = |effect| effect != Effect::PreferNoSchedule;
                untolerated(&node.taints, &it.tolerations, hard).is_none()
            });
            if has_all && selected && tolerated {
                self.eligible.set(index, true);
                *count_mut(&mut self.nodes, topologies.domain(self.topology, index)) += 1;
            }
        }
        for (_, set) in terms.sets() {
            if !self.counts_set(set) {
                continue;
            }
            for (index, (_, staying)) in &set.at {
                if self.eligible.get(*index) {
                    let domain = topologies.domain(self.topology, *index);
                    *count_mut(&mut self.counts, domain) += i64::from(*staying);
                }
            }
        }
    }
}
