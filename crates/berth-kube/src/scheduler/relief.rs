//! Departures of pods from nodes under pressure, as far as no object shows them yet: which began, what is
//! held for them, and what is left alone after a failure.
//!
//! Pure bookkeeping. What the API server knows is read from there, so little is lost with a leader.

use std::sync::Arc;

use berth_engine::elastic::MigrationSettings;
use rustc_hash::FxHashMap;

use super::queue::{Millis, Moment};
use crate::cluster::elastic::migrations::backoff_s;
use crate::cluster::elastic::relief::{Departure, Leaver, ReliefLimits, StuckNode};
use crate::cluster::pod::Key;

/// How often nodes are checked.
const PASS_INTERVAL_MS: Millis = 1_000;
/// How long a departure counts until an object shows it.
const SHOWN_WITHIN_MS: Millis = 30_000;
/// How long a pod that is gone is assumed to be unscheduled.
const RESCHEDULING_MS: Millis = 10_000;
/// How long a node is under pressure that nothing relieves before that is reported, and how often it is.
const STUCK_FOR_MS: Millis = 5_000;
const REPEAT_STUCK_MS: Millis = 300_000;

#[derive(Debug)]
struct Departing {
    leaver: Leaver,
    until: Millis,
}

#[derive(Debug)]
struct Rest {
    failures: usize,
    until: Millis,
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct ReliefTracker {
    /// By pod uid.
    departing: FxHashMap<Arc<str>, Departing>,
    /// Machines, and pods without one, whose departure failed.
    resting: FxHashMap<Key, Rest>,
    /// Nodes whose pressure nothing relieves, and when that is reported next.
    stuck: FxHashMap<Arc<str>, Millis>,
    next_pass: Millis,
}

/// What is left alone after a failure: the machine, or the pod.
fn subject(leaver: &Leaver) -> &Key {
    match &leaver.departure {
        Departure::Migrate { vm } => vm,
        Departure::Evict => &leaver.pod,
    }
}

impl ReliefTracker {
    /// When the next pass is due.
    pub(super) const fn next_check(&self) -> Millis {
        self.next_pass
    }

    /// Begins a pass, if one is due.
    pub(super) fn begin_pass(&mut self, now: Moment) -> bool {
        if self.next_pass > now.millis {
            return false;
        }
        self.next_pass = now.millis.saturating_add(PASS_INTERVAL_MS);
        self.departing.retain(|_, it| it.until > now.millis);
        // A day after the last failure it is forgotten.
        self.resting.retain(|_, it| it.until.saturating_add(86_400_000) > now.millis);
        true
    }

    /// What a plan has to take into account.
    pub(super) fn limits(&self, now: Moment) -> ReliefLimits {
        let mut limits = ReliefLimits::default();
        for Departing { leaver, .. } in self.departing.values() {
            limits.open_total += 1;
            for node in [&leaver.from, &leaver.to] {
                *limits.open.entry(Arc::clone(node)).or_default() += 1;
            }
            let held = limits.held.entry(Arc::clone(&leaver.to)).or_default();
            *held = held.plus(leaver.frees);
            limits.resting.insert(leaver.pod.clone());
        }
        let resting = self.resting.iter().filter(|(_, it)| it.until > now.millis);
        limits.resting.extend(resting.map(|(key, _)| key.clone()));
        limits
    }

    /// A departure begins.
    pub(super) fn start(&mut self, leaver: Leaver, now: Moment) {
        let until = now.millis.saturating_add(SHOWN_WITHIN_MS);
        self.departing.insert(Arc::clone(&leaver.uid), Departing { leaver, until });
    }

    /// A departure did not begin: it is left alone, longer each time.
    pub(super) fn record_failure(&mut self, uid: &str, limits: MigrationSettings, now: Moment) {
        if let Some(departing) = self.departing.remove(uid) {
            self.rest(subject(&departing.leaver).clone(), limits, now);
        }
    }

    /// A machine or pod is left alone, longer each time.
    pub(super) fn rest(&mut self, subject: Key, limits: MigrationSettings, now: Moment) {
        let rest = self.resting.entry(subject).or_insert(Rest { failures: 0, until: 0 });
        rest.failures += 1;
        let millis = u64::try_from(backoff_s(limits, rest.failures)).unwrap_or(0) * 1000;
        rest.until = now.millis.saturating_add(millis);
    }

    /// An object shows the migration of a machine.
    pub(super) fn observe_migration(&mut self, vm: &Key) {
        let is_it = |it: &Departing| matches!(&it.leaver.departure, Departure::Migrate { vm: of } if of == vm);
        self.departing.retain(|_, it| !is_it(it));
    }

    /// A pod is gone. Its replacement is scheduled soon.
    pub(super) fn forget_pod(&mut self, uid: &str, now: Moment) {
        if let Some(departing) = self.departing.get_mut(uid) {
            departing.until = now.millis.saturating_add(RESCHEDULING_MS);
        }
    }

    /// Which of the nodes whose pressure nothing relieves are to be reported now.
    pub(super) fn stuck_to_report(&mut self, all: Vec<StuckNode>, now: Moment) -> Vec<StuckNode> {
        self.stuck.retain(|node, _| all.iter().any(|it| it.node == *node));
        let mut reported = Vec::new();
        for stuck in all {
            let first = now.millis.saturating_add(STUCK_FOR_MS);
            let due = self.stuck.entry(Arc::clone(&stuck.node)).or_insert(first);
            if *due <= now.millis {
                *due = now.millis.saturating_add(REPEAT_STUCK_MS);
                reported.push(stuck);
            }
        }
        reported
    }

    /// Nodes whose pressure nothing relieves.
    pub(super) fn stuck_nodes(&self) -> Vec<Arc<str>> {
        let mut all: Vec<Arc<str>> = self.stuck.keys().cloned().collect();
        all.sort();
        all
    }

    /// Departures that no object shows yet: pod, source and target.
    pub(super) fn departures(&self) -> Vec<(String, Arc<str>, Arc<str>)> {
        let shown = |Departing { leaver, .. }: &Departing| {
            (leaver.pod.to_string(), Arc::clone(&leaver.from), Arc::clone(&leaver.to))
        };
        let mut all: Vec<_> = self.departing.values().map(shown).collect();
        all.sort();
        all
    }

    /// What is left alone now.
    pub(super) fn resting(&self, now: Moment) -> Vec<String> {
        let resting = self.resting.iter().filter(|(_, it)| it.until > now.millis);
        let mut all: Vec<String> = resting.map(|(key, _)| key.to_string()).collect();
        all.sort();
        all
    }
}

#[cfg(test)]
mod tests {
    use berth_engine::Timestamp;
    use berth_engine::elastic::Size;

    use super::*;

    fn at(second: u64) -> Moment {
        Moment { millis: second * 1000, date: Timestamp(i64::try_from(second).unwrap()) }
    }

    fn leaver(vm: Option<Key>) -> Leaver {
        Leaver {
            pod: Key::new("shop", "p"),
            uid: "p".into(),
            from: "a".into(),
            to: "b".into(),
            frees: Size::new(1000, 1024),
            departure: vm.map_or(Departure::Evict, |vm| Departure::Migrate { vm }),
        }
    }

    #[test]
    fn a_departure_counts_on_both_nodes_until_an_object_shows_it() {
        let (mut tracker, vm) = (ReliefTracker::default(), Key::new("shop", "vm"));
        assert!(tracker.begin_pass(at(0)) && !tracker.begin_pass(at(0)));
        tracker.start(leaver(Some(vm.clone())), at(0));
        let limits = tracker.limits(at(0));
        assert_eq!((limits.open["a"], limits.open["b"], limits.open_total), (1, 1, 1));
        assert_eq!(limits.held["b"], Size::new(1000, 1024));
        tracker.observe_migration(&vm);
        assert_eq!(tracker.limits(at(0)).open_total, 0);
        tracker.start(leaver(None), at(0));
        assert!(tracker.begin_pass(at(40)));
        assert_eq!(tracker.limits(at(40)).open_total, 0, "an answer that never came");
    }

    #[test]
    fn what_fails_is_left_alone_for_longer_each_time() {
        let limits = MigrationSettings { backoff_s: 10, ..MigrationSettings::default() };
        let mut tracker = ReliefTracker::default();
        tracker.start(leaver(None), at(0));
        tracker.record_failure("p", limits, at(0));
        assert!(!tracker.resting(at(9)).is_empty() && tracker.resting(at(10)).is_empty());
        tracker.start(leaver(None), at(10));
        tracker.record_failure("p", limits, at(10));
        assert!(!tracker.resting(at(29)).is_empty() && tracker.resting(at(30)).is_empty());
    }
}
