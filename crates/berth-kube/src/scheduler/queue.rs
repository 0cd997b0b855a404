//! Which pod is next: by priority, then age, then name. Those that were refused wait.
//!
//! Pure: time is an argument. A refused entry first backs off, whatever happens; then it waits until
//! something has changed that may help it, at most [`LONGEST_MS`].

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::sync::Arc;

use rustc_hash::FxHashMap;

use crate::cluster::pod::Key;

/// Milliseconds of a clock that only goes forward.
pub(crate) type Millis = u64;

/// How long the first refusal keeps an entry away; every further one twice as long.
const BACK_OFF_MS: Millis = 1_000;
/// The longest back-off.
const BACK_OFF_MAX_MS: Millis = 10_000;
/// After this long an entry is tried though nothing seems to have changed.
const LONGEST_MS: Millis = 60_000;

/// Who waits: a pod, or a gang as one.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Who {
    /// A pod, by its uid.
    Pod(Arc<str>),
    /// A gang, by its namespace and name.
    Gang(Key),
}

/// Where an entry stands among the others: the smallest is next.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Rank {
    priority: Reverse<i32>,
    created: i64,
    name: Key,
}

impl Rank {
    pub(crate) fn new(priority: i32, created: i64, name: Key) -> Self {
        Self { priority: Reverse(priority), created, name }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// It is in line.
    Ready,
    /// It was refused and keeps away until then.
    BackingOff(Millis),
    /// It waits for news, until then at most.
    Parked(Millis),
    /// It was taken out of line and is being worked on.
    Taken,
}

#[derive(Debug)]
struct Entry {
    rank: Rank,
    state: State,
    refusals: u32,
    /// The news that there were when it was tried last.
    saw: u64,
}

/// How many entries are in which state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Lengths {
    pub(crate) ready: usize,
    pub(crate) backing_off: usize,
    pub(crate) parked: usize,
}

/// All that wait for a place.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    entries: FxHashMap<Who, Entry>,
    ready: BTreeSet<(Rank, Who)>,
    backing_off: BTreeSet<(Millis, Who)>,
    parked: BTreeSet<(Millis, Who)>,
    news: u64,
}

impl Queue {
    /// Puts one in line. One that is there keeps its state, and gets this rank.
    pub(crate) fn add(&mut self, who: Who, rank: Rank) {
        if let Some(entry) = self.entries.get_mut(&who) {
            if entry.rank != rank {
                let old = std::mem::replace(&mut entry.rank, rank.clone());
                if entry.state == State::Ready {
                    self.ready.remove(&(old, who.clone()));
                    self.ready.insert((rank, who));
                }
            }
            return;
        }
        let entry = Entry { rank: rank.clone(), state: State::Ready, refusals: 0, saw: self.news };
        self.ready.insert((rank, who.clone()));
        self.entries.insert(who, entry);
    }

    /// Takes one out for good.
    pub(crate) fn remove(&mut self, who: &Who) {
        let Some(entry) = self.entries.remove(who) else { return };
        match entry.state {
            State::Ready => drop(self.ready.remove(&(entry.rank, who.clone()))),
            State::BackingOff(at) => drop(self.backing_off.remove(&(at, who.clone()))),
            State::Parked(at) => drop(self.parked.remove(&(at, who.clone()))),
            State::Taken => {}
        }
    }

    /// The next in line. It stays known, and out of line, until it is put back or removed.
    pub(crate) fn take(&mut self) -> Option<Who> {
        let (_, who) = self.ready.pop_first()?;
        if let Some(entry) = self.entries.get_mut(&who) {
            entry.state = State::Taken;
            entry.saw = self.news;
        }
        Some(who)
    }

    /// One that was taken has no place: it backs off, then waits for news.
    pub(crate) fn refuse(&mut self, who: &Who, now: Millis) {
        let Some(entry) = self.entries.get_mut(who).filter(|it| it.state == State::Taken) else {
            return;
        };
        let doubled = BACK_OFF_MS.checked_shl(entry.refusals).unwrap_or(BACK_OFF_MAX_MS);
        let until = now.saturating_add(doubled.min(BACK_OFF_MAX_MS));
        entry.refusals = entry.refusals.saturating_add(1).min(32);
        entry.state = State::BackingOff(until);
        self.backing_off.insert((until, who.clone()));
    }

    /// One that was taken waits for news without having been refused, such as for victims to go.
    pub(crate) fn park(&mut self, who: &Who, now: Millis) {
        let Some(entry) = self.entries.get_mut(who).filter(|it| it.state == State::Taken) else {
            return;
        };
        if entry.saw < self.news {
            entry.state = State::Ready;
            self.ready.insert((entry.rank.clone(), who.clone()));
            return;
        }
        let until = now.saturating_add(LONGEST_MS);
        entry.state = State::Parked(until);
        self.parked.insert((until, who.clone()));
    }

    /// One that was taken is tried again at once.
    pub(crate) fn put_back(&mut self, who: &Who) {
        if self.entries.get(who).is_some_and(|it| it.state == State::Taken) {
            self.make_ready(who);
        }
    }

    /// One that waits has changed itself: what was found out about it is of no worth any more.
    pub(crate) fn renew(&mut self, who: &Who) {
        let Some(entry) = self.entries.get_mut(who) else { return };
        entry.refusals = 0;
        match entry.state {
            State::BackingOff(at) => {
                self.backing_off.remove(&(at, who.clone()));
                self.make_ready(who);
            }
            State::Parked(at) => {
                self.parked.remove(&(at, who.clone()));
                self.make_ready(who);
            }
            State::Ready | State::Taken => {}
        }
    }

    /// Something has changed that may help those that were refused.
    pub(crate) fn news(&mut self) {
        self.news += 1;
        for (_, who) in std::mem::take(&mut self.parked) {
            self.make_ready(&who);
        }
    }

    /// Lets time pass.
    pub(crate) fn tick(&mut self, now: Millis) {
        while let Some((at, _)) = self.backing_off.first() {
            if *at > now {
                break;
            }
            let Some((_, who)) = self.backing_off.pop_first() else { break };
            let Some(entry) = self.entries.get_mut(&who) else { continue };
            if entry.saw < self.news {
                self.make_ready(&who);
            } else {
                let until = now.saturating_add(LONGEST_MS);
                entry.state = State::Parked(until);
                self.parked.insert((until, who));
            }
        }
        while let Some((at, _)) = self.parked.first() {
            if *at > now {
                break;
            }
            let Some((_, who)) = self.parked.pop_first() else { break };
            self.make_ready(&who);
        }
    }

    fn make_ready(&mut self, who: &Who) {
        if let Some(entry) = self.entries.get_mut(who) {
            entry.state = State::Ready;
            self.ready.insert((entry.rank.clone(), who.clone()));
        }
    }

    /// Whether one is in line.
    pub(crate) fn is_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// When time alone puts one in line next.
    pub(crate) fn next_at(&self) -> Option<Millis> {
        let first = |set: &BTreeSet<(Millis, Who)>| set.first().map(|(at, _)| *at);
        first(&self.backing_off).into_iter().chain(first(&self.parked)).min()
    }

    pub(crate) fn lengths(&self) -> Lengths {
        Lengths {
            ready: self.ready.len(),
            backing_off: self.backing_off.len(),
            parked: self.parked.len(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(uid: &str) -> Who {
        Who::Pod(uid.into())
    }

    fn add(queue: &mut Queue, uid: &str, priority: i32, created: i64) {
        queue.add(pod(uid), Rank::new(priority, created, Key::new("default", uid)));
    }

    fn take_all(queue: &mut Queue) -> Vec<String> {
        let mut names = Vec::new();
        while let Some(who) = queue.take() {
            match who {
                Who::Pod(uid) => names.push(uid.to_string()),
                Who::Gang(key) => names.push(key.to_string()),
            }
        }
        names
    }

    #[test]
    fn priority_goes_before_age_and_age_before_name() {
        let mut queue = Queue::default();
        add(&mut queue, "young", 0, 20);
        add(&mut queue, "b", 0, 10);
        add(&mut queue, "a", 0, 10);
        add(&mut queue, "urgent", 100, 30);
        queue.add(
            Who::Gang(Key::new("default", "gang")),
            Rank::new(50, 0, Key::new("default", "gang")),
        );
        assert_eq!(take_all(&mut queue), ["urgent", "default/gang", "a", "b", "young"]);
    }

    #[test]
    fn a_refused_pod_backs_off_twice_as_long_each_time_up_to_ten_seconds() {
        let mut queue = Queue::default();
        add(&mut queue, "a", 0, 0);
        let mut now = 0;
        for wait in [1_000, 2_000, 4_000, 8_000, 10_000, 10_000] {
            assert_eq!(queue.take(), Some(pod("a")));
            queue.refuse(&pod("a"), now);
            queue.news();
            queue.tick(now + wait - 1);
            assert!(!queue.is_ready(), "after {wait} ms less one");
            now += wait;
            queue.tick(now);
            assert!(queue.is_ready(), "after {wait} ms");
        }
    }

    #[test]
    fn without_news_a_refused_pod_waits_a_minute_and_with_news_not() {
        let mut queue = Queue::default();
        add(&mut queue, "a", 0, 0);
        queue.take();
        queue.refuse(&pod("a"), 0);
        queue.tick(1_000);
        assert_eq!(queue.lengths(), Lengths { ready: 0, backing_off: 0, parked: 1 });
        assert_eq!(queue.next_at(), Some(61_000));
        queue.tick(61_000);
        assert_eq!(queue.take(), Some(pod("a")));
        queue.refuse(&pod("a"), 61_000);
        queue.tick(63_000);
        assert!(!queue.is_ready());
        queue.news();
        assert_eq!(queue.take(), Some(pod("a")));
    }

    #[test]
    fn news_that_come_while_a_pod_is_being_tried_are_not_lost() {
        let mut queue = Queue::default();
        add(&mut queue, "a", 0, 0);
        queue.take();
        queue.news();
        queue.park(&pod("a"), 0);
        assert!(queue.is_ready());
    }

    #[test]
    fn a_pod_that_has_changed_is_tried_at_once_and_its_refusals_are_forgotten() {
        let mut queue = Queue::default();
        add(&mut queue, "a", 0, 0);
        for now in 0..5 {
            queue.take();
            queue.refuse(&pod("a"), now);
            queue.renew(&pod("a"));
        }
        queue.take();
        queue.refuse(&pod("a"), 100);
        assert_eq!(queue.next_at(), Some(1_100));
    }

    #[test]
    fn what_is_removed_never_comes_back() {
        let mut queue = Queue::default();
        add(&mut queue, "a", 0, 0);
        add(&mut queue, "b", 0, 0);
        assert_eq!(queue.take(), Some(pod("a")));
        queue.remove(&pod("a"));
        queue.refuse(&pod("a"), 0);
        queue.remove(&pod("b"));
        queue.news();
        queue.tick(1_000_000);
        assert_eq!(take_all(&mut queue), Vec::<String>::new());
    }

    #[test]
    fn a_new_rank_moves_an_entry_in_line() {
        let mut queue = Queue::default();
        add(&mut queue, "a", 0, 0);
        add(&mut queue, "b", 0, 1);
        add(&mut queue, "b", 9, 1);
        assert_eq!(take_all(&mut queue), ["b", "a"]);
    }
}
