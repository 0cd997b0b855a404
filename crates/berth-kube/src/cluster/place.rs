//! Choosing a node for a pod, and reserving it in the same step.
//!
//! The class of the pod and the engine's columns leave a set of nodes with totals; neighbours are
//! looked at domain by domain; wishes are added on one scale. The best node is then asked by the one
//! function that decides, and the next best if it says no. All nodes are looked at, always.

use std::cmp::Reverse;
use std::sync::Arc;

use berth_engine::Timestamp;

use super::outcome::{Outcome, Reservation, VolumePlan};
use super::pods::PodEntry;
use super::rules::{Asking, Failure, first_failure};
use super::state::reservation;
use super::terms::Terms;
use super::topology::{NOWHERE, Topologies, at};
use super::{Cluster, Missing, facts};

/// What a wish that is met in full is worth, beside the engine's totals: above every score of the
/// built-in policies but those for the caller's own wishes.
const WISH: i64 = 60_000_000;
/// Taints that would rather keep a pod away count half as much again, as in kube-scheduler.
const SHUNNED: i64 = 90_000_000;

/// Proposals that are asked one by one before all are.
const PATIENCE: usize = 8;

/// A node that may take the pod.
#[derive(Clone, Copy, Debug)]
pub(super) struct Found {
    pub(super) place: usize,
    pub(super) total: i64,
    /// Where it comes in the order of names.
    rank: u32,
}

impl Found {
    /// Of equals, the one whose name comes first.
    fn order(&self) -> (i64, Reverse<u32>) {
        (self.total, Reverse(self.rank))
    }
}

/// Why a pod has no place on any node.
pub(super) enum NoPlace {
    /// For a reason that has nothing to do with nodes.
    Anywhere(Failure),
    /// Every node said no.
    Everywhere,
}

impl Cluster {
    /// Filters, scores and reserves, in one step.
    pub fn place(&mut self, uid: &str, now: Timestamp) -> Outcome {
        let pending = |entry: &&PodEntry| entry.is_pending(&self.settings.scheduler);
        let Some(entry) = self.pods.get(uid).filter(pending) else { return Outcome::NotPending };
        let uid = Arc::clone(&entry.pod.uid);
        match self.choose(&uid, now) {
            Ok(place) => match self.reserve(&uid, place) {
                Some(reservation) => Outcome::Reserved(Box::new(reservation)),
                None => Outcome::NotPending,
            },
            Err(NoPlace::Anywhere(failure)) => {
                Outcome::Refused(Box::new(self.refuse_anywhere(&uid, &failure)))
            }
            Err(NoPlace::Everywhere) => self.make_room(&uid, now),
        }
    }

    /// Holds a node for a pod.
    pub(super) fn reserve(&mut self, uid: &str, place: usize) -> Option<Reservation> {
        self.forget_promise(uid);
        self.attach(uid, place);
        let entry = self.pods.get_mut(uid).filter(|entry| entry.at == Some(place))?;
        entry.reserved = true;
        let node = &self.nodes.get(place)?.node;
        let volumes = if entry.pod.claims.is_empty() {
            VolumePlan::default()
        } else {
            // What was reserved by attaching it; asking again changes nothing.
            match self.volumes.try_reserve(&entry.pod, node) {
                Ok(plan) => plan,
                // It was let through a moment ago; whatever this is, it must not be bound so.
                Err(why) => {
                    tracing::warn!(pod = %entry.pod.key, %why, "volumes that fit cannot be had");
                    self.detach(uid);
                    return None;
                }
            }
        };
        Some(reservation(entry, &node.name, volumes))
    }

    /// The best node for a pod. Nothing is reserved.
    pub(super) fn choose(&mut self, uid: &str, now: Timestamp) -> Result<usize, NoPlace> {
        let Some(entry) = self.pods.get(uid).cloned() else { return Err(NoPlace::Everywhere) };
        let asking = self.asking(&entry).map_err(NoPlace::Anywhere)?;
        if let Some(place) = self.choose_simply(&asking, now) {
            return Ok(place);
        }
        let mut found = std::mem::take(&mut self.found);
        self.scan(&asking, now, &mut found);
        let mut chosen = self.decide(&asking, &mut found);
        if chosen.is_none() {
            self.add_overfull(&asking, &mut found);
            chosen = self.decide(&asking, &mut found);
        }
        self.found = found;
        let hard = entry.pod.spread.iter().any(|it| it.hard);
        self.waits_for_others |= chosen.is_none() && (hard || !entry.pod.beside.is_empty());
        chosen.ok_or(NoPlace::Everywhere)
    }

    /// The best node for a pod that says nothing of other pods and wishes for nothing, as most do:
    /// the same answer, without a list. Absent: the long way has to be gone.
    fn choose_simply(&mut self, asking: &Asking<'_>, now: Timestamp) -> Option<usize> {
        let entry = asking.entry;
        let carried = &entry.carried;
        let open = self.classes.get(&entry.pod.needs, &self.nodes);
        let concerned = self.terms.set(carried.set).is_none_or(|set| !set.terms.is_empty());
        let is_simple = entry.promised.is_none()
            && entry.pod.likes.is_empty()
            && asking.spread.is_empty()
            && carried.beside.is_empty()
            && carried.away.is_empty()
            && carried.wishes.is_empty()
            && open.shunned.is_empty()
            && !concerned;
        if !is_simple {
            return None;
        }
        let mut best: Option<Found> = None;
        let see = |place: usize, total: i32, rank: u32| {
            let found = Found { place, total: i64::from(total), rank };
            if best.is_none_or(|best| best.order() < found.order()) {
                best = Some(found);
            }
        };
        self.engine.for_each_candidate(&facts::of_pod(entry), now, open.words, see).ok()?;
        best.map(|best| best.place).filter(|place| first_failure(self, asking, *place).is_none())
    }

    /// Asks the best of those found, then the next.
    fn decide(&self, asking: &Asking<'_>, found: &mut Vec<Found>) -> Option<usize> {
        // What was promised is asked first: others went for it.
        let promised = asking.entry.promised.as_ref().and_then(|node| self.nodes.find(node));
        if let Some(place) = promised
            && found.iter().any(|it| it.place == place)
            && first_failure(self, asking, place).is_none()
        {
            return Some(place);
        }
        let mut patience = PATIENCE;
        while let Some(best) = top(found) {
            let place = found[best].place;
            if first_failure(self, asking, place).is_none() {
                return Some(place);
            }
            found.swap_remove(best);
            patience -= 1;
            if patience == 0 {
                found.retain(|it| first_failure(self, asking, it.place).is_none());
                return top(found).map(|best| found[best].place);
            }
        }
        None
    }

    /// A pod made ready to be asked about nodes.
    ///
    /// # Errors
    /// When no node could take it, for a reason that has nothing to do with nodes.
    pub(super) fn asking<'a>(&mut self, entry: &'a PodEntry) -> Result<Asking<'a>, Failure> {
        let pod = &entry.pod;
        if let (Missing::Refuse, Some((container, what)), None) =
            (self.settings.missing, &pod.asked.unsaid, self.vms.of(pod))
        {
            let text = format!(
                "container {container} states neither a request nor a limit of {what}, and this \
                 scheduler was told to refuse such pods"
            );
            let (rule, code) = ("requests".into(), "requests_missing");
            return Err(Failure { rule, code, text, short: None });
        }
        if let Some(claim) = &pod.device_claim {
            let text = format!(
                "it has the resource claim {claim:?}, and this scheduler allocates no devices; use \
                 another schedulerName for such pods"
            );
            let (rule, code) = ("resource-claims".into(), "resource_claims_unsupported");
            return Err(Failure { rule, code, text, short: None });
        }
        let volumes = self.volumes.prepare(pod).map_err(|why| {
            let text = format!("{}; {}", why.text, why.help);
            Failure { rule: "volumes".into(), code: why.code, text, short: None }
        })?;
        let spread = if pod.spread.is_empty() {
            Vec::new()
        } else {
            let (nodes, terms) = (&self.nodes, &self.terms);
            self.spreads.ready(pod, entry.carried.set, nodes, terms, &mut self.topologies)
        };
        Ok(Asking { entry, spread, volumes, seeds: seeds(entry, &self.terms) })
    }

    /// Finds nodes by bits and columns, with their totals and wishes.
    pub(super) fn scan(&mut self, asking: &Asking<'_>, now: Timestamp, found: &mut Vec<Found>) {
        found.clear();
        let open = self.classes.get(&asking.entry.pod.needs, &self.nodes);
        let request = facts::of_pod(asking.entry);
        let see = |place: usize, total: i32, rank: u32| {
            found.push(Found { place, total: i64::from(total), rank });
        };
        // A request that means nothing to the engine has no candidates.
        let _ = self.engine.for_each_candidate(&request, now, open.words, see);
        self.keep_by_neighbours(asking, found);
        if !asking.volumes.is_empty() {
            let fits = |it: &Found| {
                let node = self.nodes.get(it.place).map(|entry| &entry.node);
                node.is_some_and(|node| self.volumes.fits(&asking.volumes, node))
            };
            found.retain(fits);
        }
        self.add_wishes(asking, found);
    }

    /// Adds nodes on which more memory is used than there is, for a pod that asks for none: by
    /// Kubernetes' rules they may take it, while the engine knows no instance without memory. They
    /// come last.
    pub(super) fn add_overfull(&mut self, asking: &Asking<'_>, found: &mut Vec<Found>) {
        let needs = &asking.entry.pod.needs;
        if asking.entry.asked.memory > 0 {
            return;
        }
        let open = self.classes.get(needs, &self.nodes).words;
        let is_open =
            |place: usize| open.get(place / 64).is_some_and(|it| it >> (place % 64) & 1 == 1);
        for (place, node) in self.nodes.present().filter(|(place, _)| is_open(*place)) {
            let overfull = node.used.memory > node.node.allocatable.memory;
            if overfull && !found.iter().any(|it| it.place == place) {
                let rank = u32::try_from(place).unwrap_or(u32::MAX);
                found.push(Found { place, total: i64::from(i32::MIN), rank });
            }
        }
    }

    /// Leaves out nodes that rules about other pods remove: the same tests as the rules', over
    /// whole columns.
    fn keep_by_neighbours(&self, asking: &Asking<'_>, found: &mut Vec<Found>) {
        let (terms, topologies) = (&self.terms, &self.topologies);
        let carried = &asking.entry.carried;
        let of = |domains: &[u32], it: &Found| domains.get(it.place).copied().unwrap_or(NOWHERE);
        for term in terms.set(carried.set).into_iter().flat_map(|set| &set.terms) {
            if let Some(term) = terms.term(*term).filter(|term| term.away_total > 0) {
                let domains = topologies.domains(term.topology);
                found.retain(|it| term.away_in(of(domains, it)) == 0);
            }
        }
        for term in carried.away.iter().filter_map(|id| terms.term(*id)) {
            if term.total > 0 {
                let domains = topologies.domains(term.topology);
                found.retain(|it| term.matching_in(of(domains, it)) == 0);
            }
        }
        for term in carried.beside.iter().filter_map(|id| terms.term(*id)) {
            let domains = topologies.domains(term.topology);
            found.retain(|it| {
                let domain = of(domains, it);
                domain != NOWHERE && (asking.seeds || term.matching_in(domain) > 0)
            });
        }
        for ready in asking.spread.iter().filter(|it| it.hard) {
            let Some(spread) = self.spreads.get(ready.id) else { continue };
            let domains = topologies.domains(ready.topology);
            found.retain(|it| {
                let domain = of(domains, it);
                domain != NOWHERE && spread.in_domain(domain) <= ready.limit
            });
        }
    }

    /// Adds what the pod wishes, each kind of wish on a scale from nothing to all.
    fn add_wishes(&mut self, asking: &Asking<'_>, found: &mut [Found]) {
        let pod = &asking.entry.pod;
        if !pod.likes.is_empty() {
            let raw = |place: usize| {
                let Some(entry) = self.nodes.get(place) else { return 0 };
                let (name, labels) = (&entry.node.name, &entry.node.labels);
                let liked = pod.likes.iter().filter(|(_, term)| term.matches(name, labels));
                liked.map(|(weight, _)| weight).sum()
            };
            add_scaled(found, WISH, raw);
        }
        let shunned = self.classes.get(&pod.needs, &self.nodes).shunned;
        if !shunned.is_empty() {
            add_scaled(found, SHUNNED, |place| -shunned.get(&place).map_or(0, |it| i64::from(*it)));
        }
        let wishes = wishes(asking.entry, &self.terms);
        if !wishes.is_empty() {
            add_scaled(found, WISH, |place| sum_of(&wishes, place, &self.topologies));
        }
        for ready in asking.spread.iter().filter(|it| !it.hard) {
            let Some(spread) = self.spreads.get(ready.id) else { continue };
            // Without the label it is worse than the fullest.
            let worst = spread.counts.iter().max().map_or(1, |most| most + 1);
            add_scaled(found, WISH, |place| {
                let domain = self.topologies.domain(ready.topology, place);
                if domain == NOWHERE { -worst } else { -spread.in_domain(domain) }
            });
        }
    }
}

/// The place in the list of the highest total; of equals the node whose name comes first.
fn top(found: &[Found]) -> Option<usize> {
    found.iter().enumerate().max_by_key(|(_, it)| it.order()).map(|(at, _)| at)
}

/// Whether a pod would be the first of those that it must be beside.
fn seeds(entry: &PodEntry, terms: &Terms) -> bool {
    let beside = &entry.carried.beside;
    let nobody = |id: &usize| terms.term(*id).is_none_or(|term| term.total == 0);
    !beside.is_empty()
        && beside.iter().all(nobody)
        && beside.iter().all(|id| terms.is_match(entry.carried.set, *id))
}

/// A wish: the label of nodes, what each domain counts, and the weight of one.
type Wish<'a> = (usize, Counts<'a>, i64);

enum Counts<'a> {
    Pods(&'a [u32]),
    Weights(&'a [i64]),
}

/// The pod's own wishes, and those of others that concern it.
fn wishes<'a>(entry: &PodEntry, terms: &'a Terms) -> Vec<Wish<'a>> {
    let own = entry.carried.wishes.iter().filter_map(|(weight, id)| {
        let term = terms.term(*id).filter(|term| term.total > 0)?;
        Some((term.topology, Counts::Pods(&term.matching), *weight))
    });
    let set = terms.set(entry.carried.set);
    let others = set.into_iter().flat_map(|set| &set.terms).filter_map(|id| {
        let term = terms.term(*id).filter(|term| term.wishing > 0)?;
        Some((term.topology, Counts::Weights(&term.wish), 1))
    });
    own.chain(others).collect()
}

fn sum_of(wishes: &[Wish<'_>], place: usize, topologies: &Topologies) -> i64 {
    let mut sum = 0;
    for (topology, counts, weight) in wishes {
        let domain = topologies.domain(*topology, place);
        if domain != NOWHERE {
            sum += weight
                * match counts {
                    Counts::Pods(counts) => i64::from(at(counts, domain)),
                    Counts::Weights(counts) => at(counts, domain),
                };
        }
    }
    sum
}

/// Bits behind the point of a share.
const POINT: u32 = 20;

/// Adds a value to each total, scaled so that the lowest gets nothing and the highest all.
fn add_scaled(found: &mut [Found], full: i64, raw: impl Fn(usize) -> i64) {
    let values: Vec<i64> = found.iter().map(|it| raw(it.place)).collect();
    let (Some(low), Some(high)) = (values.iter().min(), values.iter().max()) else { return };
    let span = high.saturating_sub(*low);
    if span == 0 {
        return;
    }
    // One division for all: the share of each is a product, with the point at the twentieth bit.
    let factor = i128::from(full << POINT) / i128::from(span);
    let factor = i64::try_from(factor).unwrap_or(0);
    for (it, value) in found.iter_mut().zip(&values) {
        it.total = it.total.saturating_add(((value - low).saturating_mul(factor)) >> POINT);
    }
}
