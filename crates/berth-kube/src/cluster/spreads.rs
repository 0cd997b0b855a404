//! How pods are spread: for every distinct constraint, how many pods count in each domain.
//!
//! Which nodes count depends on who asks (its node affinity, its tolerations), so that is part of
//! what makes a constraint distinct. Counts follow pods one by one; when nodes' facts change, the
//! counts are made anew at the next question.

use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::bits::Bits;
use super::node::{Effect, untolerated};
use super::nodes::Nodes;
use super::pod::{Needs, Pod};
use super::selector::Selector;
use super::terms::{LabelSet, SetId, Step, Terms};
use super::topology::{NOWHERE, Topologies, TopologyId, at, at_mut};

/// Constraints that are kept; beyond it those that nobody asked about lately are dropped.
const KEPT: usize = 2048;

/// A constraint by its number.
pub(super) type SpreadId = usize;

/// What makes a constraint distinct.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct SpreadKey {
    namespace: Arc<str>,
    selector: Option<Selector>,
    topology: TopologyId,
    /// Nodes without any of these labels do not count.
    all: Vec<TopologyId>,
    /// Whose affinity nodes must match to count.
    by_affinity: Option<Arc<Needs>>,
    /// Whose tolerations nodes' taints must be covered by to count.
    by_taints: Option<Arc<Needs>>,
}

/// A constraint with its counts.
#[derive(Clone, Debug)]
pub(super) struct SpreadCounts {
    key: SpreadKey,
    /// Its label of nodes.
    pub(super) topology: TopologyId,
    eligible: Bits,
    /// Pods that count, by domain.
    pub(super) counts: Vec<i64>,
    /// Nodes that count, by domain.
    nodes: Vec<u32>,
    /// The facts of nodes that this was made from.
    version: u64,
    used: u64,
}

/// A constraint of a pod, made ready.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ready {
    /// Which.
    pub(super) id: SpreadId,
    /// Its label of nodes.
    pub(super) topology: TopologyId,
    /// A domain with more than this many is out; only where it must hold.
    pub(super) limit: i64,
    /// Whether it must hold.
    pub(super) hard: bool,
    /// By how many a domain may be ahead.
    pub(super) max_skew: i64,
    /// The fewest in any domain.
    pub(super) least: i64,
    /// How many domains there are.
    pub(super) domains: i64,
    /// With fewer domains than this, the emptiest counts as empty.
    pub(super) min_domains: i64,
}

impl Ready {
    /// The limit if so many more were in a domain.
    pub(super) fn limit_with(&self, spread: &SpreadCounts, domain: u32, more: i64) -> i64 {
        self.limit - self.least + spread.least(self.min_domains, Some((domain, more))).0
    }
}

/// All constraints.
#[derive(Clone, Debug, Default)]
pub(super) struct Spreads {
    all: Vec<Option<SpreadCounts>>,
    by_key: FxHashMap<SpreadKey, SpreadId>,
    /// Constraints that each set of labels counts for.
    of_set: FxHashMap<SetId, Vec<SpreadId>>,
    uses: u64,
}

impl Spreads {
    /// A constraint.
    pub(super) fn get(&self, id: SpreadId) -> Option<&SpreadCounts> {
        self.all.get(id)?.as_ref()
    }

    /// Makes a pod's constraints ready to be asked about nodes.
    pub(super) fn ready(
        &mut self,
        pod: &Pod,
        set: SetId,
        nodes: &Nodes,
        terms: &Terms,
        topologies: &mut Topologies,
    ) -> Vec<Ready> {
        let ids = |hard: bool, topologies: &mut Topologies| {
            let of = pod.spread.iter().filter(|it| it.hard == hard);
            of.map(|it| topologies.of(&it.topology)).collect::<Vec<_>>()
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
                topology: topologies.of(&constraint.topology),
                all,
                by_affinity: constraint.by_affinity.then(|| Arc::clone(&pod.needs)),
                by_taints: constraint.by_taints.then(|| Arc::clone(&pod.needs)),
            };
            let id = self.keep(key, nodes, terms, topologies);
            let Some(counts) = self.get(id) else { continue };
            let (min_domains, max_skew) = (constraint.min_domains, constraint.max_skew);
            let (least, domains) = counts.least(min_domains, None);
            let counts_itself = own.is_some_and(|own| counts.counts_set(own));
            let limit = least + max_skew - i64::from(counts_itself);
            let (topology, hard) = (counts.topology, constraint.hard);
            let one = Ready { id, topology, limit, hard, max_skew, least, domains, min_domains };
            ready.push(one);
        }
        ready
    }

    /// Counts a pod that is not about to go, or no longer.
    pub(super) fn count(&mut self, set: SetId, place: usize, step: Step, topologies: &Topologies) {
        for id in self.of_set.get(&set).into_iter().flatten() {
            let Some(spread) = self.all[*id].as_mut().filter(|it| it.eligible.get(place)) else {
                continue;
            };
            let domain = topologies.domain(spread.topology, place);
            // A node that lost its label since; all is counted anew at the next question.
            if domain != NOWHERE {
                let count = at_mut(&mut spread.counts, domain);
                *count += if step == Step::Come { 1 } else { -1 };
            }
        }
    }

    /// Whether any constraint counts pods with these labels.
    pub(super) fn concerns(&self, set: SetId) -> bool {
        self.of_set.get(&set).is_some_and(|ids| !ids.is_empty())
    }

    /// Tells of a set of labels that came.
    pub(super) fn set_came(&mut self, id: SetId, set: &LabelSet) {
        if self.of_set.contains_key(&id) {
            return;
        }
        let all = self.all.iter().enumerate().filter_map(|(at, it)| Some((at, it.as_ref()?)));
        let ids: Vec<_> = all.filter(|(_, it)| it.counts_set(set)).map(|(at, _)| at).collect();
        self.of_set.insert(id, ids);
    }

    /// Tells of a set of labels that went.
    pub(super) fn set_went(&mut self, id: SetId) {
        self.of_set.remove(&id);
    }

    fn keep(
        &mut self,
        key: SpreadKey,
        nodes: &Nodes,
        terms: &Terms,
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
        if self.by_key.len() >= KEPT {
            self.drop_unused();
        }
        let mut spread = SpreadCounts {
            topology: key.topology,
            key: key.clone(),
            eligible: Bits::default(),
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

    /// Drops the half that was asked about longest ago.
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

    /// Pods that count in a domain.
    pub(super) fn in_domain(&self, domain: u32) -> i64 {
        at(&self.counts, domain)
    }

    /// Whether a pod with these labels counts on a node.
    pub(super) fn counts_at(&self, set: &LabelSet, place: usize) -> bool {
        self.eligible.get(place) && self.counts_set(set)
    }

    /// The fewest in any domain that has nodes that count, if so many more were in one, and how many
    /// such domains there are; with too few of them the fewest is none.
    fn least(&self, min_domains: i64, more: Option<(u32, i64)>) -> (i64, i64) {
        let (mut least, mut domains) = (i64::MAX, 0);
        for (domain, _) in self.nodes.iter().enumerate().filter(|(_, nodes)| **nodes > 0) {
            domains += 1;
            let more = more.filter(|it| it.0 as usize == domain).map_or(0, |it| it.1);
            least = least.min(self.counts.get(domain).copied().unwrap_or(0) + more);
        }
        (if domains == 0 || domains < min_domains { 0 } else { least }, domains)
    }

    fn recount(&mut self, nodes: &Nodes, terms: &Terms, topologies: &Topologies) {
        self.version = nodes.version();
        self.eligible.clear();
        self.counts.clear();
        self.nodes.clear();
        self.counts.resize(topologies.count(self.topology), 0);
        for (place, entry) in nodes.present() {
            let node = &entry.node;
            let has_all = self.key.all.iter().all(|id| topologies.domain(*id, place) != NOWHERE);
            let selected =
                self.key.by_affinity.as_ref().is_none_or(|it| it.selects(&node.name, &node.labels));
            let tolerated = self.key.by_taints.as_ref().is_none_or(|it| {
                let hard = |effect| effect != Effect::PreferNoSchedule;
                untolerated(&node.taints, &it.tolerations, hard).is_none()
            });
            if has_all && selected && tolerated {
                self.eligible.set(place, true);
                *at_mut(&mut self.nodes, topologies.domain(self.topology, place)) += 1;
            }
        }
        for (_, set) in terms.sets() {
            if !self.counts_set(set) {
                continue;
            }
            for (place, (_, staying)) in &set.at {
                if self.eligible.get(*place) {
                    let domain = topologies.domain(self.topology, *place);
                    *at_mut(&mut self.counts, domain) += i64::from(*staying);
                }
            }
        }
    }
}
