//! The scheduling queue: active entries by priority, then age, then name; entries in backoff and
//! unschedulable entries wait.
//!
//! Pure: time is an argument. A refused entry first backs off, whatever happens; then it waits until the
//! cluster changes, at most [`UNSCHEDULABLE_MAX_MS`].

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::sync::Arc;

use berth_engine::Timestamp;
use rustc_hash::FxHashMap;

use super::debug_state::{QueueEntryState, QueueState};
use crate::cluster::pod::Key;

/// Milliseconds of a monotonic clock.
pub(crate) type Millis = u64;

/// A point in time: by a monotonic clock, and by the calendar.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moment {
    pub(crate) millis: Millis,
    pub(crate) date: Timestamp,
}

/// The backoff after the first refusal; it doubles with each further one.
const BACKOFF_MS: Millis = 1_000;
/// The longest backoff.
const BACKOFF_MAX_MS: Millis = 10_000;
/// After this time an entry is retried even if nothing changed.
const UNSCHEDULABLE_MAX_MS: Millis = 60_000;

/// What is queued: a pod, or a whole gang.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum QueueKey {
    /// A pod, by uid.
    Pod(Arc<str>),
    /// A gang, by namespace and name.
    Gang(Key),
}

/// The order of entries: the smallest is next.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct QueueRank {
    priority: Reverse<i32>,
    created: i64,
    name: Key,
}

impl QueueRank {
    pub(crate) fn new(priority: i32, created: i64, name: Key) -> Self {
        Self { priority: Reverse(priority), created, name }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// It can be tried.
    Active,
    /// It was refused, and waits at least until then.
    Backoff(Millis),
    /// It waits for a change in the cluster, at most until then.
    Unschedulable(Millis),
    /// It was popped, and is being worked on.
    InFlight,
}

#[derive(Debug)]
struct Entry {
    rank: QueueRank,
    state: State,
    refusals: u32,
    /// The move cycle in which it was tried last.
    tried_in: u64,
}

/// The number of entries in each state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct QueueLengths {
    pub(crate) active: usize,
    pub(crate) backoff: usize,
    pub(crate) unschedulable: usize,
}

/// All pods and gangs that wait for a node.
#[derive(Debug, Default)]
pub(crate) struct SchedulingQueue {
    entries: FxHashMap<QueueKey, Entry>,
    active: BTreeSet<(QueueRank, QueueKey)>,
    backoff: BTreeSet<(Millis, QueueKey)>,
    unschedulable: BTreeSet<(Millis, QueueKey)>,
    /// Counts calls of [`Self::move_all_to_active`], so that a change during an attempt is not missed.
    move_cycle: u64,
}

impl SchedulingQueue {
    /// Adds an entry. An existing one keeps its state and gets the new rank.
    pub(crate) fn add(&mut self, key: QueueKey, rank: QueueRank) {
        if let Some(entry) = self.entries.get_mut(&key) {
            if entry.rank != rank {
                let old = std::mem::replace(&mut entry.rank, rank.clone());
                if entry.state == State::Active {
                    self.active.remove(&(old, key.clone()));
                    self.active.insert((rank, key));
                }
            }
            return;
        }
        let entry = Entry {
            rank: rank.clone(),
            state: State::Active,
            refusals: 0,
            tried_in: self.move_cycle,
        };
        self.active.insert((rank, key.clone()));
        self.entries.insert(key, entry);
    }

    /// Removes an entry.
    pub(crate) fn remove(&mut self, key: &QueueKey) {
        let Some(entry) = self.entries.remove(key) else { return };
        match entry.state {
            State::Active => drop(self.active.remove(&(entry.rank, key.clone()))),
            State::Backoff(at) => drop(self.backoff.remove(&(at, key.clone()))),
            State::Unschedulable(at) => drop(self.unschedulable.remove(&(at, key.clone()))),
            State::InFlight => {}
        }
    }

    /// Takes the next active entry. It stays in flight until it is requeued or removed.
    pub(crate) fn pop(&mut self) -> Option<QueueKey> {
        let (_, key) = self.active.pop_first()?;
        if let Some(entry) = self.entries.get_mut(&key) {
            entry.state = State::InFlight;
            entry.tried_in = self.move_cycle;
        }
        Some(key)
    }

    /// An entry in flight was refused: it backs off, then waits for a change.
    pub(crate) fn requeue_with_backoff(&mut self, key: &QueueKey, now: Millis) {
        let Some(entry) = self.entries.get_mut(key).filter(|it| it.state == State::InFlight) else {
            return;
        };
        let doubled = BACKOFF_MS.checked_shl(entry.refusals).unwrap_or(BACKOFF_MAX_MS);
        let until = now.saturating_add(doubled.min(BACKOFF_MAX_MS));
        entry.refusals = entry.refusals.saturating_add(1).min(32);
        entry.state = State::Backoff(until);
        self.backoff.insert((until, key.clone()));
    }

    /// An entry in flight waits for a change without backoff, for example for victims to terminate.
    pub(crate) fn requeue_unschedulable(&mut self, key: &QueueKey, now: Millis) {
        let Some(entry) = self.entries.get_mut(key).filter(|it| it.state == State::InFlight) else {
            return;
        };
        if entry.tried_in < self.move_cycle {
            entry.state = State::Active;
            self.active.insert((entry.rank.clone(), key.clone()));
            return;
        }
        let until = now.saturating_add(UNSCHEDULABLE_MAX_MS);
        entry.state = State::Unschedulable(until);
        self.unschedulable.insert((until, key.clone()));
    }

    /// An entry in flight is retried at once.
    pub(crate) fn requeue(&mut self, key: &QueueKey) {
        if self.entries.get(key).is_some_and(|it| it.state == State::InFlight) {
            self.activate(key);
        }
    }

    /// An entry itself changed, so earlier refusals do not count any more.
    pub(crate) fn reset_backoff(&mut self, key: &QueueKey) {
        let Some(entry) = self.entries.get_mut(key) else { return };
        entry.refusals = 0;
        match entry.state {
            State::Backoff(at) => {
                self.backoff.remove(&(at, key.clone()));
                self.activate(key);
            }
            State::Unschedulable(at) => {
                self.unschedulable.remove(&(at, key.clone()));
                self.activate(key);
            }
            State::Active | State::InFlight => {}
        }
    }

    /// The cluster changed in a way that may make refused entries schedulable.
    pub(crate) fn move_all_to_active(&mut self) {
        self.move_cycle += 1;
        for (_, key) in std::mem::take(&mut self.unschedulable) {
            self.activate(&key);
        }
    }

    /// Moves entries whose time has come.
    pub(crate) fn flush_expired(&mut self, now: Millis) {
        while let Some((at, _)) = self.backoff.first() {
            if *at > now {
                break;
            }
            let Some((_, key)) = self.backoff.pop_first() else { break };
            let Some(entry) = self.entries.get_mut(&key) else { continue };
            if entry.tried_in < self.move_cycle {
                self.activate(&key);
            } else {
                let until = now.saturating_add(UNSCHEDULABLE_MAX_MS);
                entry.state = State::Unschedulable(until);
                self.unschedulable.insert((until, key));
            }
        }
        while let Some((at, _)) = self.unschedulable.first() {
            if *at > now {
                break;
            }
            let Some((_, key)) = self.unschedulable.pop_first() else { break };
            self.activate(&key);
        }
    }

    fn activate(&mut self, key: &QueueKey) {
        if let Some(entry) = self.entries.get_mut(key) {
            entry.state = State::Active;
            self.active.insert((entry.rank.clone(), key.clone()));
        }
    }

    /// Whether an entry can be tried.
    pub(crate) fn has_active(&self) -> bool {
        !self.active.is_empty()
    }

    /// When the next entry expires.
    pub(crate) fn next_expiry(&self) -> Option<Millis> {
        let first = |set: &BTreeSet<(Millis, QueueKey)>| set.first().map(|(at, _)| *at);
        first(&self.backoff).into_iter().chain(first(&self.unschedulable)).min()
    }

    /// All entries, those first that are tried first.
    pub(crate) fn state(&self, now: Millis) -> Vec<QueueEntryState> {
        let mut entries: Vec<(&QueueKey, &Entry)> = self.entries.iter().collect();
        let order = |entry: &Entry| match entry.state {
            State::InFlight => (QueueState::InFlight, 0),
            State::Active => (QueueState::Active, 0),
            State::Backoff(at) => (QueueState::Backoff, at),
            State::Unschedulable(at) => (QueueState::Unschedulable, at),
        };
        entries.sort_by(|(a, x), (b, y)| (order(x), &x.rank, a).cmp(&(order(y), &y.rank, b)));
        let state = |(key, entry): (&QueueKey, &Entry)| {
            let (key, is_gang) = match key {
                QueueKey::Pod(uid) => (uid.to_string(), false),
                QueueKey::Gang(key) => (key.to_string(), true),
            };
            let (state, at) = order(entry);
            let due_in_ms = (at > 0).then(|| at.saturating_sub(now));
            let QueueRank { priority: Reverse(priority), created, name } = &entry.rank;
            QueueEntryState {
                key,
                name: name.to_string(),
                is_gang,
                state,
                due_in_ms,
                priority: *priority,
                created: *created,
                refusals: entry.refusals,
            }
        };
        entries.into_iter().map(state).collect()
    }

    pub(crate) fn lengths(&self) -> QueueLengths {
        QueueLengths {
            active: self.active.len(),
            backoff: self.backoff.len(),
            unschedulable: self.unschedulable.len(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(uid: &str) -> QueueKey {
        QueueKey::Pod(uid.into())
    }

    fn add(queue: &mut SchedulingQueue, uid: &str, priority: i32, created: i64) {
        queue.add(pod(uid), QueueRank::new(priority, created, Key::new("default", uid)));
    }

    fn pop_all(queue: &mut SchedulingQueue) -> Vec<String> {
        let mut names = Vec::new();
        while let Some(key) = queue.pop() {
            match key {
                QueueKey::Pod(uid) => names.push(uid.to_string()),
                QueueKey::Gang(key) => names.push(key.to_string()),
            }
        }
        names
    }

    #[test]
    fn entries_are_ordered_by_priority_then_age_then_name() {
        let mut queue = SchedulingQueue::default();
        add(&mut queue, "young", 0, 20);
        add(&mut queue, "b", 0, 10);
        add(&mut queue, "a", 0, 10);
        add(&mut queue, "urgent", 100, 30);
        queue.add(
            QueueKey::Gang(Key::new("default", "gang")),
            QueueRank::new(50, 0, Key::new("default", "gang")),
        );
        assert_eq!(pop_all(&mut queue), ["urgent", "default/gang", "a", "b", "young"]);
    }

    #[test]
    fn the_backoff_doubles_up_to_ten_seconds() {
        let mut queue = SchedulingQueue::default();
        add(&mut queue, "a", 0, 0);
        let mut now = 0;
        for wait in [1_000, 2_000, 4_000, 8_000, 10_000, 10_000] {
            assert_eq!(queue.pop(), Some(pod("a")));
            queue.requeue_with_backoff(&pod("a"), now);
            queue.move_all_to_active();
            queue.flush_expired(now + wait - 1);
            assert!(!queue.has_active(), "after {wait} ms less one");
            now += wait;
            queue.flush_expired(now);
            assert!(queue.has_active(), "after {wait} ms");
        }
    }

    #[test]
    fn an_unschedulable_pod_waits_a_minute_or_until_the_cluster_changes() {
        let mut queue = SchedulingQueue::default();
        add(&mut queue, "a", 0, 0);
        queue.pop();
        queue.requeue_with_backoff(&pod("a"), 0);
        queue.flush_expired(1_000);
        assert_eq!(queue.lengths(), QueueLengths { active: 0, backoff: 0, unschedulable: 1 });
        assert_eq!(queue.next_expiry(), Some(61_000));
        queue.flush_expired(61_000);
        assert_eq!(queue.pop(), Some(pod("a")));
        queue.requeue_with_backoff(&pod("a"), 61_000);
        queue.flush_expired(63_000);
        assert!(!queue.has_active());
        queue.move_all_to_active();
        assert_eq!(queue.pop(), Some(pod("a")));
    }

    #[test]
    fn a_change_during_an_attempt_is_not_missed() {
        let mut queue = SchedulingQueue::default();
        add(&mut queue, "a", 0, 0);
        queue.pop();
        queue.move_all_to_active();
        queue.requeue_unschedulable(&pod("a"), 0);
        assert!(queue.has_active());
    }

    #[test]
    fn a_pod_that_changed_is_retried_at_once_without_backoff() {
        let mut queue = SchedulingQueue::default();
        add(&mut queue, "a", 0, 0);
        for now in 0..5 {
            queue.pop();
            queue.requeue_with_backoff(&pod("a"), now);
            queue.reset_backoff(&pod("a"));
        }
        queue.pop();
        queue.requeue_with_backoff(&pod("a"), 100);
        assert_eq!(queue.next_expiry(), Some(1_100));
    }

    #[test]
    fn a_removed_entry_never_comes_back() {
        let mut queue = SchedulingQueue::default();
        add(&mut queue, "a", 0, 0);
        add(&mut queue, "b", 0, 0);
        assert_eq!(queue.pop(), Some(pod("a")));
        queue.remove(&pod("a"));
        queue.requeue_with_backoff(&pod("a"), 0);
        queue.remove(&pod("b"));
        queue.move_all_to_active();
        queue.flush_expired(1_000_000);
        assert_eq!(pop_all(&mut queue), Vec::<String>::new());
    }

    #[test]
    fn a_new_rank_moves_an_active_entry() {
        let mut queue = SchedulingQueue::default();
        add(&mut queue, "a", 0, 0);
        add(&mut queue, "b", 0, 1);
        add(&mut queue, "b", 9, 1);
        assert_eq!(pop_all(&mut queue), ["b", "a"]);
    }
}
