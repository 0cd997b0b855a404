//! Chooses a node for a pod and reserves it in the same step.
//!
//! The eligibility cache and the engine's columns leave a set of nodes with scores; affinity and
//! spreading are checked domain by domain; preferences are added on one scale. The best node is then
//! checked by the function that decides, and the next best if it fails. All nodes are considered.

use std::sync::Arc;

use berth_engine::Timestamp;

use super::cache::reservation;
use super::eligibility::has_bit;
use super::filters::{FilterFailure, PreparedPod, first_failure};
use super::outcome::{DevicePlan, Outcome, Reservation, VolumePlan};
use super::pod_affinity::AffinityIndex;
use super::pod_store::PodEntry;
use super::ties::TieBreaker;
use super::topology::{NO_DOMAIN, Topologies, count_in};
use super::{Cluster, MissingRequests, engine_types};

/// The score of a preference that is met in full, compared to the engine's totals: above every score
/// of the built-in policies except those for the pod's own preferences.
const PREFERENCE_SCORE: i64 = 60_000_000;
/// `PreferNoSchedule` taints count one and a half times as much, as in kube-scheduler.
const TAINT_SCORE: i64 = 90_000_000;

/// Candidates that are checked one by one before all are.
const CHECKED_SINGLY: usize = 8;

/// A candidate node with its score.
#[derive(Clone, Copy, Debug)]
pub(super) struct ScoredNode {
    pub(super) index: usize,
    pub(super) total: i64,
    /// Its rank among those of the same score.
    tie: u64,
}

impl ScoredNode {
    fn order(&self) -> (i64, u64) {
        (self.total, self.tie)
    }
}

/// Why there is no node for a pod.
pub(super) enum SchedulingFailure {
    /// For a reason that does not depend on nodes.
    PodRejected(FilterFailure),
    /// Every node was rejected.
    NodesRejected,
}

impl Cluster {
    /// Filters, scores and reserves in one step.
    pub fn schedule_pod(&mut self, uid: &str, now: Timestamp) -> Outcome {
        let pending = |entry: &&PodEntry| entry.is_pending(&self.settings.scheduler);
        let Some(entry) = self.pods.get(uid).filter(pending) else { return Outcome::NotPending };
        let uid = Arc::clone(&entry.pod.uid);
        match self.choose_node(&uid, now) {
            Ok(index) => match self.reserve(&uid, index) {
                Some(reservation) => Outcome::Reserved(Box::new(reservation)),
                None => Outcome::NotPending,
            },
            Err(SchedulingFailure::PodRejected(failure)) => {
                Outcome::Refused(Box::new(self.refuse_pod(&uid, &failure)))
            }
            Err(SchedulingFailure::NodesRejected) => self.preempt(&uid, now),
        }
    }

    /// Reserves a node for a pod.
    pub(super) fn reserve(&mut self, uid: &str, index: usize) -> Option<Reservation> {
        self.clear_nomination(uid);
        self.account(uid, index);
        let entry = self.pods.get_mut(uid).filter(|entry| entry.assigned == Some(index))?;
        entry.reserved = true;
        let node = &self.nodes.get(index)?.node;
        let volumes = if entry.pod.claims.is_empty() {
            VolumePlan::default()
        } else {
            // Accounting has reserved them; reserving again returns the same plan.
            match self.volumes.try_reserve(&entry.pod, node) {
                Ok(plan) => plan,
                // It was accepted a moment ago; whatever the cause, it must not be bound like this.
                Err(why) => {
                    tracing::warn!(pod = %entry.pod.key, %why, "failed to reserve accepted volumes");
                    self.unaccount(uid);
                    return None;
                }
            }
        };
        let devices = if entry.pod.device_claims.is_empty() {
            DevicePlan::default()
        } else {
            match self.devices.try_reserve(&entry.pod, node) {
                Ok(plan) => plan,
                Err(why) => {
                    tracing::warn!(pod = %entry.pod.key, %why, "failed to reserve accepted devices");
                    self.unaccount(uid);
                    return None;
                }
            }
        };
        Some(reservation(entry, &node.name, volumes, devices))
    }

    /// The best node for a pod. Reserves nothing.
    pub(super) fn choose_node(
        &mut self,
        uid: &str,
        now: Timestamp,
    ) -> Result<usize, SchedulingFailure> {
        let Some(entry) = self.pods.get(uid).cloned() else {
            return Err(SchedulingFailure::NodesRejected);
        };
        let prepared = self.prepare_pod(&entry).map_err(SchedulingFailure::PodRejected)?;
        if let Some(index) = self.choose_node_fast(&prepared, now) {
            return Ok(index);
        }
        let mut found = std::mem::take(&mut self.found);
        self.find_candidates(&prepared, now, &mut found);
        let mut chosen = self.pick_feasible(&prepared, &mut found);
        if chosen.is_none() {
            self.add_memory_overcommitted(&prepared, &mut found);
            chosen = self.pick_feasible(&prepared, &mut found);
        }
        self.found = found;
        let hard = entry.pod.spread.iter().any(|it| it.hard);
        self.waits_for_others |=
            chosen.is_none() && (hard || !entry.pod.required_affinity.is_empty());
        chosen.ok_or(SchedulingFailure::NodesRejected)
    }

    /// The best node for a pod without affinity and preferences, which most pods are: the same result
    /// without a list of candidates. `None`: the general path is needed.
    fn choose_node_fast(&mut self, prepared: &PreparedPod<'_>, now: Timestamp) -> Option<usize> {
        let entry = prepared.entry;
        let pod_terms = &entry.pod_terms;
        let eligible = self.eligibility.get(&entry.pod.node_requirements, &self.nodes);
        let concerned = self.affinity.set(pod_terms.set).is_none_or(|set| !set.terms.is_empty());
        let is_simple = entry.nominated.is_none()
            && entry.pod.preferred_nodes.is_empty()
            && prepared.spread.is_empty()
            && pod_terms.required_affinity.is_empty()
            && pod_terms.anti_affinity.is_empty()
            && pod_terms.preferred_affinity.is_empty()
            && eligible.prefer_no_schedule.is_empty()
            && !prepared.devices.has_preferences()
            && !concerned;
        if !is_simple {
            return None;
        }
        let mut best: Option<ScoredNode> = None;
        let (nodes, ties) = (&self.nodes, TieBreaker::new(entry.pod.id));
        let unstated = &self.unstated;
        let consider = |index: usize, total: i32, _rank: u32| {
            let total = i64::from(total) - unstated.penalty(index);
            // Most nodes score less than the best so far, and need no rank.
            if best.is_some_and(|best| total < best.total) {
                return;
            }
            let found = ScoredNode { index, total, tie: nodes.tie_rank(ties, index) };
            if best.is_none_or(|best| best.order() < found.order()) {
                best = Some(found);
            }
        };
        self.engine
            .for_each_candidate(
                &engine_types::instance_request(entry),
                now,
                eligible.words,
                consider,
            )
            .ok()?;
        best.map(|best| best.index).filter(|index| first_failure(self, prepared, *index).is_none())
    }

    /// The best candidate that passes all filters.
    fn pick_feasible(
        &self,
        prepared: &PreparedPod<'_>,
        found: &mut Vec<ScoredNode>,
    ) -> Option<usize> {
        // A nominated node comes first: pods were preempted for it.
        let nominated =
            prepared.entry.nominated.as_ref().and_then(|node| self.nodes.index_of(node));
        if let Some(index) = nominated
            && found.iter().any(|it| it.index == index)
            && first_failure(self, prepared, index).is_none()
        {
            return Some(index);
        }
        let mut unchecked = CHECKED_SINGLY;
        while let Some(best) = best_candidate(found) {
            let index = found[best].index;
            if first_failure(self, prepared, index).is_none() {
                return Some(index);
            }
            found.swap_remove(best);
            unchecked -= 1;
            if unchecked == 0 {
                found.retain(|it| first_failure(self, prepared, it.index).is_none());
                return best_candidate(found).map(|best| found[best].index);
            }
        }
        None
    }

    /// Prepares a pod for the filters.
    ///
    /// # Errors
    /// When no node can take it, for a reason that does not depend on nodes.
    pub(super) fn prepare_pod<'a>(
        &mut self,
        entry: &'a PodEntry,
    ) -> Result<PreparedPod<'a>, FilterFailure> {
        let pod = &entry.pod;
        if let (MissingRequests::Refuse, Some((container, what)), None) =
            (self.settings.missing_requests, &pod.requests.undeclared, self.vm_of(pod))
        {
            let text = format!(
                "container {container} declares neither a request nor a limit for {what}, and this \
                 scheduler is configured to refuse such pods"
            );
            return Err(FilterFailure::new("requests", "requests_missing", text));
        }
        let ignored = &self.settings.ignored_pod_fields;
        if let Some(field) = pod.unknown_fields.iter().find(|it| !ignored.contains(it)) {
            let text = format!(
                "spec.{field} is unknown to this scheduler and may constrain where the pod can run; \
                 upgrade Berth, remove the field, use another schedulerName, or ignore it with \
                 --ignore-pod-fields {field}"
            );
            return Err(FilterFailure::new("pod-fields", "pod_field_unknown", text));
        }
        let volumes = self.volumes.prepare(pod).map_err(|why| {
            let text = format!("{}; {}", why.text, why.help);
            FilterFailure::new("volumes", why.code, text)
        })?;
        let devices = self
            .devices
            .prepare(pod)
            .map_err(|why| FilterFailure::new("devices", why.code, why.text))?;
        let spread = if pod.spread.is_empty() {
            Vec::new()
        } else {
            let (nodes, terms) = (&self.nodes, &self.affinity);
            self.spreads.prepare(pod, entry.pod_terms.set, nodes, terms, &mut self.topologies)
        };
        Ok(PreparedPod {
            entry,
            spread,
            volumes,
            devices,
            is_first_match: is_first_match(entry, &self.affinity),
        })
    }

    /// Finds candidates by bits and columns, with their scores and preferences.
    pub(super) fn find_candidates(
        &mut self,
        prepared: &PreparedPod<'_>,
        now: Timestamp,
        found: &mut Vec<ScoredNode>,
    ) {
        found.clear();
        let eligible = self.eligibility.get(&prepared.entry.pod.node_requirements, &self.nodes);
        let request = engine_types::instance_request(prepared.entry);
        let (nodes, ties) = (&self.nodes, TieBreaker::new(prepared.entry.pod.id));
        let unstated = &self.unstated;
        let consider = |index: usize, total: i32, _rank: u32| {
            let tie = nodes.tie_rank(ties, index);
            let total = i64::from(total) - unstated.penalty(index);
            found.push(ScoredNode { index, total, tie });
        };
        // A request that is invalid for the engine has no candidates.
        let _ = self.engine.for_each_candidate(&request, now, eligible.words, consider);
        self.retain_by_affinity(prepared, found);
        if !prepared.volumes.is_empty() {
            let fits = |it: &ScoredNode| {
                let node = self.nodes.get(it.index).map(|entry| &entry.node);
                node.is_some_and(|node| self.volumes.fits(&prepared.volumes, node))
            };
            found.retain(fits);
        }
        if !prepared.devices.is_empty() {
            let fits = |it: &ScoredNode| {
                let node = self.nodes.get(it.index).map(|entry| &entry.node);
                node.is_some_and(|node| self.devices.fits(&prepared.devices, node))
            };
            found.retain(fits);
        }
        self.add_preferences(prepared, found);
    }

    /// Adds nodes whose memory is overcommitted, for a pod that requests none: Kubernetes' rules allow
    /// it, while every instance of the engine uses memory. They come last.
    pub(super) fn add_memory_overcommitted(
        &mut self,
        prepared: &PreparedPod<'_>,
        found: &mut Vec<ScoredNode>,
    ) {
        let node_requirements = &prepared.entry.pod.node_requirements;
        if prepared.entry.requested.memory > 0 {
            return;
        }
        let eligible = self.eligibility.get(node_requirements, &self.nodes).words;
        let ties = TieBreaker::new(prepared.entry.pod.id);
        for (index, node) in self.nodes.present().filter(|(index, _)| has_bit(eligible, *index)) {
            let overfull = node.used.memory > node.node.allocatable.memory;
            if overfull && !found.iter().any(|it| it.index == index) {
                let tie = ties.rank(node.name_hash);
                found.push(ScoredNode { index, total: i64::from(i32::MIN), tie });
            }
        }
    }

    /// Drops nodes that fail affinity or spreading: the same tests as in the filters, over whole
    /// columns.
    fn retain_by_affinity(&self, prepared: &PreparedPod<'_>, found: &mut Vec<ScoredNode>) {
        let (terms, topologies) = (&self.affinity, &self.topologies);
        let pod_terms = &prepared.entry.pod_terms;
        let of =
            |domains: &[u32], it: &ScoredNode| domains.get(it.index).copied().unwrap_or(NO_DOMAIN);
        for term in terms.set(pod_terms.set).into_iter().flat_map(|set| &set.terms) {
            if let Some(term) = terms.term(*term).filter(|term| term.anti_affinity_total > 0) {
                let domains = topologies.domains(term.topology);
                found.retain(|it| term.anti_affinity_in(of(domains, it)) == 0);
            }
        }
        for term in pod_terms.anti_affinity.iter().filter_map(|id| terms.term(*id)) {
            if term.total > 0 {
                let domains = topologies.domains(term.topology);
                found.retain(|it| term.matching_in(of(domains, it)) == 0);
            }
        }
        for term in pod_terms.required_affinity.iter().filter_map(|id| terms.term(*id)) {
            let domains = topologies.domains(term.topology);
            found.retain(|it| {
                let domain = of(domains, it);
                domain != NO_DOMAIN && (prepared.is_first_match || term.matching_in(domain) > 0)
            });
        }
        for constraint in prepared.spread.iter().filter(|it| it.hard) {
            let Some(spread) = self.spreads.get(constraint.id) else { continue };
            let domains = topologies.domains(constraint.topology);
            found.retain(|it| {
                let domain = of(domains, it);
                domain != NO_DOMAIN && spread.in_domain(domain) <= constraint.limit
            });
        }
    }

    /// Adds the pod's preferences to the scores, each kind scaled from nothing to full.
    fn add_preferences(&mut self, prepared: &PreparedPod<'_>, found: &mut [ScoredNode]) {
        let pod = &prepared.entry.pod;
        if !pod.preferred_nodes.is_empty() {
            let raw = |index: usize| {
                let Some(entry) = self.nodes.get(index) else { return 0 };
                let (name, labels) = (&entry.node.name, &entry.node.labels);
                let preferred =
                    pod.preferred_nodes.iter().filter(|(_, term)| term.matches(name, labels));
                preferred.map(|(weight, _)| weight).sum()
            };
            add_scaled(found, PREFERENCE_SCORE, raw);
        }
        let prefer_no_schedule =
            self.eligibility.get(&pod.node_requirements, &self.nodes).prefer_no_schedule;
        if !prefer_no_schedule.is_empty() {
            add_scaled(found, TAINT_SCORE, |index| {
                -prefer_no_schedule.get(&index).map_or(0, |it| i64::from(*it))
            });
        }
        let preferred_affinity = preferred_affinity(prepared.entry, &self.affinity);
        if !preferred_affinity.is_empty() {
            add_scaled(found, PREFERENCE_SCORE, |index| {
                sum_preferences(&preferred_affinity, index, &self.topologies)
            });
        }
        if prepared.devices.has_preferences() {
            add_scaled(found, PREFERENCE_SCORE, |index| {
                let node = self.nodes.get(index).map(|entry| &entry.node);
                node.map_or(0, |node| self.devices.preference(&prepared.devices, node))
            });
        }
        for constraint in prepared.spread.iter().filter(|it| !it.hard) {
            let Some(spread) = self.spreads.get(constraint.id) else { continue };
            // Nodes without the label score below the fullest domain.
            let worst = spread.counts.iter().max().map_or(1, |most| most + 1);
            add_scaled(found, PREFERENCE_SCORE, |index| {
                let domain = self.topologies.domain(constraint.topology, index);
                if domain == NO_DOMAIN { -worst } else { -spread.in_domain(domain) }
            });
        }
    }
}

/// The position of the highest score.
fn best_candidate(found: &[ScoredNode]) -> Option<usize> {
    found.iter().enumerate().max_by_key(|(_, it)| it.order()).map(|(at, _)| at)
}

/// Whether a pod would be the first of the group that it has affinity to.
fn is_first_match(entry: &PodEntry, terms: &AffinityIndex) -> bool {
    let required_affinity = &entry.pod_terms.required_affinity;
    let unmatched = |id: &usize| terms.term(*id).is_none_or(|term| term.total == 0);
    !required_affinity.is_empty()
        && required_affinity.iter().all(unmatched)
        && required_affinity.iter().all(|id| terms.is_match(entry.pod_terms.set, *id))
}

/// A preference: the topology, the counts per domain, and the weight of one.
type Preference<'a> = (usize, PreferenceCounts<'a>, i64);

enum PreferenceCounts<'a> {
    Pods(&'a [u32]),
    Weights(&'a [i64]),
}

/// The pod's own preferences, and those of other pods about it.
fn preferred_affinity<'a>(entry: &PodEntry, terms: &'a AffinityIndex) -> Vec<Preference<'a>> {
    let own = entry.pod_terms.preferred_affinity.iter().filter_map(|(weight, id)| {
        let term = terms.term(*id).filter(|term| term.total > 0)?;
        Some((term.topology, PreferenceCounts::Pods(&term.matching), *weight))
    });
    let set = terms.set(entry.pod_terms.set);
    let others = set.into_iter().flat_map(|set| &set.terms).filter_map(|id| {
        let term = terms.term(*id).filter(|term| term.preferring > 0)?;
        Some((term.topology, PreferenceCounts::Weights(&term.preference), 1))
    });
    own.chain(others).collect()
}

fn sum_preferences(
    preferred_affinity: &[Preference<'_>],
    index: usize,
    topologies: &Topologies,
) -> i64 {
    let mut sum = 0;
    for (topology, counts, weight) in preferred_affinity {
        let domain = topologies.domain(*topology, index);
        if domain != NO_DOMAIN {
            sum += weight
                * match counts {
                    PreferenceCounts::Pods(counts) => i64::from(count_in(counts, domain)),
                    PreferenceCounts::Weights(counts) => count_in(counts, domain),
                };
        }
    }
    sum
}

/// Fractional bits of a share.
const POINT: u32 = 20;

/// Adds a value to each score, scaled so that the lowest adds nothing and the highest `full`.
fn add_scaled(found: &mut [ScoredNode], full: i64, raw: impl Fn(usize) -> i64) {
    let values: Vec<i64> = found.iter().map(|it| raw(it.index)).collect();
    let (Some(low), Some(high)) = (values.iter().min(), values.iter().max()) else { return };
    let span = high.saturating_sub(*low);
    if span == 0 {
        return;
    }
    // One division for all: each share is a product in fixed-point arithmetic.
    let factor = i128::from(full << POINT) / i128::from(span);
    let factor = i64::try_from(factor).unwrap_or(0);
    for (it, value) in found.iter_mut().zip(&values) {
        it.total = it.total.saturating_add(((value - low).saturating_mul(factor)) >> POINT);
    }
}
