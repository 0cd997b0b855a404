//! Making room: who has to go so that a pod of higher priority can come.
//!
//! Tried out on the books themselves: pods are lifted off a node, the one feasibility function is
//! asked, and as many as possible are put back. What is proposed has been asked in full.

use std::cmp::Reverse;
use std::sync::Arc;

use berth_engine::Timestamp;

use super::Cluster;
use super::outcome::{Outcome, Preemption, Victim};
use super::pod::{Key, Pod};
use super::pods::PodEntry;
use super::rules::first_failure;

/// Nodes on which room could be made, of which the best is taken.
const TRIED: usize = 128;
/// Nodes that are tried out in full to find those.
const LOOKED_AT: usize = 1024;

/// A way to make room.
struct Room {
    name: Arc<str>,
    victims: Vec<Victim>,
    started: Vec<i64>,
}

impl Room {
    /// The less it hurts, the smaller: budgets kept, low priorities, few, young.
    fn hurts(&self) -> impl Ord + use<> {
        let broken = self.victims.iter().filter(|it| it.breaks_budget).count();
        let highest = self.victims.iter().map(|it| it.priority).max();
        let sum: i64 = self.victims.iter().map(|it| i64::from(it.priority) + (1 << 31)).sum();
        let oldest = self.started.iter().copied().min();
        (broken, highest, sum, self.victims.len(), Reverse(oldest), Arc::clone(&self.name))
    }
}

impl Cluster {
    /// Looks for pods of lower priority that could go; without any, says why there is no place.
    pub(super) fn make_room(&mut self, uid: &str, now: Timestamp) -> Outcome {
        let refusal = Box::new(self.refuse(uid, now));
        let Some(entry) = self.pods.get(uid).cloned() else { return Outcome::NotPending };
        let lesser = self.priorities.range(..entry.pod.priority).next().is_some();
        if !entry.pod.preempts
            || !lesser
            || self.knows_no_room(&entry)
            || self.waits_for_room(&entry)
        {
            return Outcome::Refused(refusal);
        }
        // Where nobody has to be told to go, somebody is about to: it waits.
        let found = self.cheapest_room(&entry).filter(|room| !room.victims.is_empty());
        let Some(found) = found else {
            self.note_no_room(&entry);
            return Outcome::Refused(refusal);
        };
        self.promise(uid, &found.name);
        let unpromised = self.break_lesser_promises(&entry, &found.name);
        let preemption = Preemption {
            unpromised,
            pod: entry.pod.key.clone(),
            uid: Arc::clone(&entry.pod.uid),
            node: found.name,
            victims: found.victims,
        };
        Outcome::Preempt(Box::new(preemption), refusal)
    }

    /// Whether room is being made for it already: those who have to go are about to.
    fn waits_for_room(&self, entry: &PodEntry) -> bool {
        let place = entry.promised.as_ref().and_then(|node| self.nodes.find(node));
        let Some(node) = place.and_then(|place| self.nodes.get(place)) else { return false };
        let pods = node.pods.iter().filter_map(|uid| self.pods.get(uid));
        let mut going = pods.filter(|it| it.pod.deleting && it.pod.priority < entry.pod.priority);
        going.next().is_some()
    }

    /// Pods of lower priority that were promised the node look for another.
    fn break_lesser_promises(&mut self, entry: &PodEntry, node: &Arc<str>) -> Vec<(Key, Arc<str>)> {
        let lesser = |uid: &&Arc<str>| {
            self.pods.get(uid).is_some_and(|it| it.pod.priority < entry.pod.priority)
        };
        let promised = self.promises.get(node).into_iter().flatten();
        let uids: Vec<Arc<str>> = promised.filter(lesser).cloned().collect();
        let mut unpromised = Vec::new();
        for uid in uids {
            self.forget_promise(&uid);
            unpromised.extend(self.pods.get(&uid).map(|it| (it.pod.key.clone(), uid)));
        }
        unpromised
    }

    fn cheapest_room(&mut self, entry: &PodEntry) -> Option<Room> {
        let (news, changes) = (self.news, self.changes);
        let places = self.places_with_lesser(entry).into_iter();
        let options = places.filter_map(|place| self.room_on(entry, place)).take(TRIED);
        let best = options.min_by_key(Room::hurts);
        // Whoever was lifted is back: nothing has changed.
        (self.news, self.changes) = (news, changes);
        best
    }

    /// Nodes that would have the resources without their pods of lower priority, those with the
    /// least important ones first.
    fn places_with_lesser(&mut self, entry: &PodEntry) -> Vec<usize> {
        let open = self.classes.get(&entry.pod.needs, &self.nodes).words.to_vec();
        let is_open =
            |place: &usize| open.get(place / 64).is_some_and(|word| word >> (place % 64) & 1 == 1);
        let mut found = Vec::new();
        for (place, node) in self.nodes.present().filter(|(place, _)| is_open(place)) {
            let mut used = node.used.clone();
            let mut highest = None;
            for other in node.pods.iter().filter_map(|uid| self.pods.get(uid)) {
                if is_lesser(other, entry) {
                    used.add(&other.asked, -1);
                    highest = highest.max(Some(other.pod.priority));
                }
            }
            if highest.is_some() && entry.asked.lacking(&used, &node.node.allocatable).is_none() {
                found.push((highest, place));
            }
        }
        found.sort_unstable();
        found.truncate(LOOKED_AT);
        found.into_iter().map(|(_, place)| place).collect()
    }

    /// Who would have to go from one node, if that helps at all.
    fn room_on(&mut self, entry: &PodEntry, place: usize) -> Option<Room> {
        let node = self.nodes.get(place)?;
        let name = Arc::clone(&node.node.name);
        let others = node.pods.iter().filter_map(|uid| self.pods.get(uid));
        let lesser = others.filter(|it| is_lesser(it, entry)).map(|it| Arc::clone(&it.pod));
        // Who goes anyway is no victim, and need not be put back.
        let (going, mut lesser): (Vec<_>, Vec<_>) = lesser.partition(|it| it.deleting);
        // The most important first: they are the first to be put back.
        lesser.sort_by_key(|it| {
            (Reverse(it.priority), it.started.unwrap_or(i64::MAX), it.key.clone())
        });
        for pod in lesser.iter().chain(&going) {
            self.detach(&pod.uid);
        }
        let option = self.without_all(entry, place, name, &lesser);
        for pod in lesser.iter().chain(&going) {
            self.attach(&pod.uid, place);
        }
        option
    }

    /// With all of them lifted: puts back whoever can stay.
    fn without_all(
        &mut self,
        entry: &PodEntry,
        place: usize,
        name: Arc<str>,
        lesser: &[Arc<Pod>],
    ) -> Option<Room> {
        if !self.fits(entry, place) {
            return None;
        }
        let (breaking, fine) = self.budgets.split(lesser);
        let (mut victims, mut started) = (Vec::new(), Vec::new());
        let marked = breaking.into_iter().map(|at| (at, true));
        for (at, breaks_budget) in marked.chain(fine.into_iter().map(|at| (at, false))) {
            let pod = &lesser[at];
            self.attach(&pod.uid, place);
            if self.fits(entry, place) {
                continue;
            }
            self.detach(&pod.uid);
            let (key, uid) = (pod.key.clone(), Arc::clone(&pod.uid));
            victims.push(Victim { pod: key, uid, priority: pod.priority, breaks_budget });
            started.push(pod.started.unwrap_or(i64::MAX));
        }
        Some(Room { name, victims, started })
    }

    fn fits(&mut self, entry: &PodEntry, place: usize) -> bool {
        let Ok(asking) = self.asking(entry) else { return false };
        first_failure(self, &asking, place).is_none()
    }
}

/// Whether a pod may have to go for another. One that is not bound yet is not there to go.
fn is_lesser(other: &PodEntry, entry: &PodEntry) -> bool {
    other.pod.priority < entry.pod.priority && !other.reserved
}
