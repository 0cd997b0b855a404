//! Preemption: which pods of lower priority to delete so that a pod fits.
//!
//! Tried on the state itself: pods are taken off a node, the filters decide, and as many as possible
//! are put back. What is proposed has passed all filters. Of a gang, all pods are victims or none.

use std::cmp::Reverse;
use std::sync::Arc;

use berth_engine::Timestamp;
use rustc_hash::{FxHashMap, FxHashSet};

use super::Cluster;
use super::eligibility::has_bit;
use super::filters::first_failure;
use super::outcome::{Outcome, Preemption, Victim};
use super::pod::{Key, Pod};
use super::pod_store::PodEntry;

/// Candidates that are compared.
const CANDIDATES_MAX: usize = 128;
/// Nodes that are tried to find them.
const NODES_MAX: usize = 1024;

/// A node with the victims that make a pod fit.
struct PreemptionCandidate {
    name: Arc<str>,
    victims: Vec<Victim>,
    started: Vec<i64>,
}

/// A pod that may become a victim.
struct VictimCandidate {
    pod: Arc<Pod>,
    /// Whether it is on the node, and not elsewhere.
    is_here: bool,
    breaks_budget: bool,
}

impl PreemptionCandidate {
    /// The cost, smallest first: budgets violated, priorities, number, age.
    fn cost(&self) -> impl Ord + use<> {
        let broken = self.victims.iter().filter(|it| it.breaks_budget).count();
        let highest = self.victims.iter().map(|it| it.priority).max();
        let sum: i64 = self.victims.iter().map(|it| i64::from(it.priority) + (1 << 31)).sum();
        let oldest = self.started.iter().copied().min();
        (broken, highest, sum, self.victims.len(), Reverse(oldest), Arc::clone(&self.name))
    }
}

impl Cluster {
    /// Proposes victims of lower priority; if there are none, explains the refusal.
    pub(super) fn preempt(&mut self, uid: &str, now: Timestamp) -> Outcome {
        let refusal = Box::new(self.build_refusal(uid, now));
        let Some(entry) = self.pods.get(uid).cloned() else { return Outcome::NotPending };
        let lower = self.priorities.range(..entry.pod.priority).next().is_some();
        if !entry.pod.preempts
            || !lower
            || self.has_no_victims(&entry)
            || self.awaits_victims(&entry)
        {
            return Outcome::Refused(refusal);
        }
        // Without victims, the pod fits once terminating pods are gone: it waits.
        let found = self.best_preemption(&entry).filter(|it| !it.victims.is_empty());
        let Some(found) = found else {
            self.mark_no_victims(&entry);
            return Outcome::Refused(refusal);
        };
        self.nominate(uid, &found.name);
        let unnominated = self.clear_lower_nominations(&entry, &found.name);
        let preemption = Preemption {
            unnominated,
            pod: entry.pod.key.clone(),
            uid: Arc::clone(&entry.pod.uid),
            node: found.name,
            victims: found.victims,
        };
        Outcome::Preempt(Box::new(preemption), refusal)
    }

    /// Whether victims on its nominated node are still terminating.
    fn awaits_victims(&self, entry: &PodEntry) -> bool {
        let index = entry.nominated.as_ref().and_then(|node| self.nodes.index_of(node));
        let Some(node) = index.and_then(|index| self.nodes.get(index)) else { return false };
        let pods = node.pods.iter().filter_map(|uid| self.pods.get(uid));
        let mut terminating =
            pods.filter(|it| it.pod.deleting && it.pod.priority < entry.pod.priority);
        terminating.next().is_some()
    }

    /// Clears nominations of pods of lower priority for the same node.
    fn clear_lower_nominations(
        &mut self,
        entry: &PodEntry,
        node: &Arc<str>,
    ) -> Vec<(Key, Arc<str>)> {
        let lower = |uid: &&Arc<str>| {
            self.pods.get(uid).is_some_and(|it| it.pod.priority < entry.pod.priority)
        };
        let nominated = self.nominations.get(node).into_iter().flatten();
        let uids: Vec<Arc<str>> = nominated.filter(lower).cloned().collect();
        let mut unnominated = Vec::new();
        for uid in uids {
            self.clear_nomination(&uid);
            unnominated.extend(self.pods.get(&uid).map(|it| (it.pod.key.clone(), uid)));
        }
        unnominated
    }

    fn best_preemption(&mut self, entry: &PodEntry) -> Option<PreemptionCandidate> {
        let (changed, generation) = (self.changed, self.generation);
        let nodes = self.nodes_with_victims(entry).into_iter();
        let candidates =
            nodes.filter_map(|index| self.dry_run_preemption(entry, index)).take(CANDIDATES_MAX);
        let best = candidates.min_by_key(PreemptionCandidate::cost);
        // All pods are back, so nothing has changed.
        (self.changed, self.generation) = (changed, generation);
        best
    }

    /// Nodes that would have the resources without their pods of lower priority, those with the least
    /// important pods first.
    fn nodes_with_victims(&mut self, entry: &PodEntry) -> Vec<usize> {
        let eligible =
            self.eligibility.get(&entry.pod.node_requirements, &self.nodes).words.to_vec();
        let mut found = Vec::new();
        for (index, node) in self.nodes.present().filter(|(index, _)| has_bit(&eligible, *index)) {
            let mut used = node.used.clone();
            let mut highest = None;
            for other in node.pods.iter().filter_map(|uid| self.pods.get(uid)) {
                if self.is_preemptible(other, entry) {
                    used.add(&other.requested, -1);
                    highest = highest.max(Some(other.pod.priority));
                }
            }
            if highest.is_some()
                && entry.requested.first_shortage(&used, &node.node.allocatable).is_none()
            {
                found.push((highest, index));
            }
        }
        found.sort_unstable();
        found.truncate(NODES_MAX);
        found.into_iter().map(|(_, index)| index).collect()
    }

    /// The victims on one node, if preemption helps there at all.
    fn dry_run_preemption(
        &mut self,
        entry: &PodEntry,
        index: usize,
    ) -> Option<PreemptionCandidate> {
        let node = self.nodes.get(index)?;
        let name = Arc::clone(&node.node.name);
        let others = node.pods.iter().filter_map(|uid| self.pods.get(uid));
        let lower =
            others.filter(|it| self.is_preemptible(it, entry)).map(|it| Arc::clone(&it.pod));
        // A terminating pod is no victim, and is not reprieved.
        let (terminating, mut lower): (Vec<_>, Vec<_>) = lower.partition(|it| it.deleting);
        // The most important first: they are reprieved first.
        lower.sort_by_key(|it| {
            (Reverse(it.priority), it.started.unwrap_or(i64::MAX), it.key.clone())
        });
        self.devices.begin_dry_run();
        for pod in lower.iter().chain(&terminating) {
            self.unaccount(&pod.uid);
        }
        let option = self.reprieve_victims(entry, index, name, &lower);
        for pod in lower.iter().chain(&terminating) {
            self.account(&pod.uid, index);
        }
        self.devices.end_dry_run();
        option
    }

    /// With all of them off the node, puts back those that can stay.
    fn reprieve_victims(
        &mut self,
        entry: &PodEntry,
        index: usize,
        name: Arc<str>,
        lower: &[Arc<Pod>],
    ) -> Option<PreemptionCandidate> {
        if !self.fits(entry, index) {
            return None;
        }
        let (mut victims, mut started) = (Vec::new(), Vec::new());
        for unit in self.units(lower) {
            for pod in unit.iter().filter(|it| it.is_here) {
                self.account(&pod.pod.uid, index);
            }
            if self.fits(entry, index) {
                continue;
            }
            for VictimCandidate { pod, is_here, breaks_budget } in unit {
                if is_here {
                    self.unaccount(&pod.uid);
                }
                let (pod_key, uid) = (pod.key.clone(), Arc::clone(&pod.uid));
                victims.push(Victim { pod: pod_key, uid, priority: pod.priority, breaks_budget });
                started.push(pod.started.unwrap_or(i64::MAX));
            }
        }
        // The pod may need one of those elsewhere, such as by affinity.
        let elsewhere: Vec<(Arc<str>, usize)> = victims
            .iter()
            .filter_map(|it| Some((Arc::clone(&it.uid), self.pods.get(&it.uid)?.assigned?)))
            .collect();
        elsewhere.iter().for_each(|(uid, _)| self.unaccount(uid));
        let fits = elsewhere.is_empty() || self.fits(entry, index);
        elsewhere.iter().for_each(|(uid, at)| self.account(uid, *at));
        fits.then_some(PreemptionCandidate { name, victims, started })
    }

    /// The pods that are reprieved or preempted together: gangs as a whole, with their pods elsewhere, and
    /// all others one by one. Those that would break a budget come first.
    fn units(&self, lower: &[Arc<Pod>]) -> Vec<Vec<VictimCandidate>> {
        let mut all = lower.to_vec();
        let mut gangs: FxHashMap<Key, Vec<usize>> = FxHashMap::default();
        for (at, pod) in lower.iter().enumerate() {
            let Some(key) = pod.gang_key() else { continue };
            if let Some(positions) = gangs.get_mut(&key) {
                positions.push(at);
                continue;
            }
            let Some(members) = self.preemption_unit(pod) else { continue };
            // Those on the node are taken off it, so that they are not among the accounted.
            let first = all.len();
            all.extend(members);
            gangs.insert(key, std::iter::once(at).chain(first..all.len()).collect());
        }
        let (breaking, fine) = self.budgets.split(&all);
        let broken: FxHashSet<usize> = breaking.iter().copied().collect();
        let candidate = |at: usize| VictimCandidate {
            pod: Arc::clone(&all[at]),
            is_here: at < lower.len(),
            breaks_budget: broken.contains(&at),
        };
        let mut units = Vec::new();
        for at in breaking.into_iter().chain(fine) {
            match all[at].gang_key().filter(|key| gangs.contains_key(key)) {
                None => units.push(vec![candidate(at)]),
                Some(key) => {
                    // The first of its members brings all; the others find none left.
                    let positions = std::mem::take(gangs.entry(key).or_default());
                    if !positions.is_empty() {
                        units.push(positions.into_iter().map(candidate).collect());
                    }
                }
            }
        }
        units
    }

    /// Whether a pod may be preempted for another: with its whole gang, or not at all. A reservation cannot.
    fn is_preemptible(&self, other: &PodEntry, entry: &PodEntry) -> bool {
        let is_lower =
            |other: &PodEntry| other.pod.priority < entry.pod.priority && !other.reserved;
        if !is_lower(other) || other.pod.gang.is_none() {
            return is_lower(other);
        }
        let Some(unit) = self.preemption_unit(&other.pod) else { return true };
        let is_own = entry.pod.gang_key().is_some_and(|own| other.pod.gang_key() == Some(own));
        !is_own && unit.iter().filter_map(|it| self.pods.get(&it.uid)).all(is_lower)
    }

    fn fits(&mut self, entry: &PodEntry, index: usize) -> bool {
        let Ok(prepared) = self.prepare_pod(entry) else { return false };
        first_failure(self, &prepared, index).is_none()
    }
}
