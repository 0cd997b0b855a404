//! Nodes that are being emptied, because they carry `berth.dev/drain` as an annotation or a taint.
//!
//! Pure bookkeeping: which nodes, since when, by when, who was told to go and who cannot. The same
//! words as drains of Berth's own fleets: running, blocked, done; a deadline after which those go, too,
//! that have no other place. Disruption budgets hold before and after it.

use std::collections::BTreeMap;
use std::sync::Arc;

use berth_engine::Timestamp;
use jiff::SignedDuration;
use k8s_openapi::api::core::v1 as core;
use rustc_hash::FxHashMap;
use serde::{Deserialize, Serialize};

use super::brain::Moment;
use super::messages::{Evicted, Work};
use super::queue::Millis;

/// The annotation or taint of a node that is to be emptied; its value may say by when.
pub const DRAIN: &str = "berth.dev/drain";
/// The annotation that says how far it is.
pub const DRAIN_STATUS: &str = "berth.dev/drain-status";

/// How often nodes that are being emptied are looked at.
const LOOK_EVERY_MS: Millis = 1_000;
/// One that has no other place is looked at again after this long.
const AGAIN_MS: Millis = 10_000;
/// One whose eviction failed is tried again after this long.
const RETRY_MS: Millis = 5_000;
/// For this long a pod that went is taken to have no other place yet.
const SETTLING_MS: Millis = 10_000;
/// Pods whose other places are looked for in one look: it takes time from those who wait for a place.
const LOOK_MOST: usize = 16;
/// How often a cordon is asked for again.
const CORDON_AGAIN_MS: Millis = 10_000;
/// The least time between two reports that only differ in numbers.
const REPORT_MS: Millis = 2_000;

/// How far a drain is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DrainState {
    /// Pods are leaving.
    Running,
    /// Pods are left, and none of them can leave.
    Blocked,
    /// It is empty.
    Done,
}

/// How far a drain is, as it is written on the node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DrainRecord {
    /// How far it is.
    pub state: DrainState,
    /// The same in one sentence.
    pub message: String,
    /// When it was begun.
    pub since: jiff::Timestamp,
    /// By when it should be done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline: Option<jiff::Timestamp>,
    /// How many pods were there.
    pub total: usize,
    /// How many are left.
    pub left: usize,
}

/// How far a node is, to be written on it; without a record, what was written is taken away.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DrainStatus {
    pub(crate) node: Arc<str>,
    pub(crate) record: Option<DrainRecord>,
    /// Whether the node is told so by an event, too.
    pub(crate) is_event: bool,
}

/// A node that is being emptied.
#[derive(Debug)]
struct Draining {
    since: jiff::Timestamp,
    deadline: Option<jiff::Timestamp>,
    total: usize,
    /// What it was told, where that means nothing.
    invalid: Option<String>,
    /// Whether no new pods come.
    is_closed: bool,
    cordon_asked: Option<Millis>,
    reported: Option<(DrainRecord, Millis)>,
}

/// A pod that could not leave.
#[derive(Debug)]
struct Stuck {
    why: String,
    again: Millis,
    since: Millis,
}

/// A pod of ours on a node that is being emptied.
#[derive(Clone, Debug)]
pub(super) struct Leaver {
    pub(super) uid: Arc<str>,
    pub(super) key: crate::cluster::pod::Key,
    pub(super) priority: i32,
    /// Whether it is already on its way out.
    pub(super) leaving: bool,
    /// Whether it has no controller, which would make another in its place.
    pub(super) alone: bool,
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Drains {
    nodes: BTreeMap<Arc<str>, Draining>,
    /// Nodes that are not emptied any more, and still say so.
    ended: Vec<Arc<str>>,
    stuck: FxHashMap<Arc<str>, Stuck>,
    /// Pods that are being told, or went a short time ago: until when they count.
    going: FxHashMap<Arc<str>, Millis>,
    at_once: usize,
    next: Millis,
}

impl Drains {
    /// None; so many pods are told to go at once.
    pub(crate) fn new(at_once: usize) -> Self {
        Self { at_once: at_once.max(1), ..Self::default() }
    }

    /// A node is as follows.
    pub(crate) fn put_node(&mut self, node: &core::Node, now: Moment) {
        let Some(name) = node.metadata.name.as_deref() else { return };
        let annotations = node.metadata.annotations.as_ref();
        let taints = node.spec.iter().flat_map(|it| it.taints.iter().flatten());
        let taint = taints.into_iter().find(|it| it.key == DRAIN);
        let annotated = annotations.and_then(|it| it.get(DRAIN));
        let told = annotated.or_else(|| taint.and_then(|it| it.value.as_ref()));
        let written = annotations.and_then(|it| it.get(DRAIN_STATUS));
        let is_told = annotated.is_some() || taint.is_some();
        if !is_told || told.is_some_and(|it| it == "false") {
            let was = self.nodes.remove(name).is_some();
            if (was || written.is_some()) && !self.ended.iter().any(|it| **it == *name) {
                self.ended.push(name.into());
            }
            return;
        }
        let keeps_off = taint.is_some_and(|it| matches!(&*it.effect, "NoSchedule" | "NoExecute"));
        let is_closed =
            keeps_off || node.spec.as_ref().and_then(|it| it.unschedulable).unwrap_or(false);
        let draining = self.nodes.entry(name.into()).or_insert_with(|| {
            let before = written.and_then(|it| serde_json::from_str::<DrainRecord>(it).ok());
            Draining {
                since: before.as_ref().map_or_else(|| date(now.date), |it| it.since),
                deadline: None,
                total: before.as_ref().map_or(0, |it| it.total),
                is_closed,
                invalid: None,
                cordon_asked: None,
                reported: before.map(|it| (it, now.millis)),
            }
        });
        draining.is_closed = is_closed;
        draining.deadline = told.and_then(|it| deadline(it, draining.since));
        let unclear = |it: &&String| !it.is_empty() && *it != "true" && draining.deadline.is_none();
        draining.invalid = told.filter(unclear).cloned();
    }

    pub(crate) fn remove_node(&mut self, name: &str) {
        self.nodes.remove(name);
        self.ended.retain(|it| **it != *name);
    }

    /// A pod has gone. That it went still counts for a while.
    pub(crate) fn forget(&mut self, uid: &str) {
        self.stuck.remove(uid);
    }

    /// What became of an eviction.
    pub(crate) fn evicted(&mut self, uid: &Arc<str>, outcome: Evicted, now: Moment) {
        let (why, wait) = match outcome {
            Evicted::Goes => {
                self.stuck.remove(uid);
                self.going.insert(Arc::clone(uid), now.millis.saturating_add(SETTLING_MS));
                return;
            }
            Evicted::Kept { after_s, why } => (why, after_s.saturating_mul(1_000)),
            Evicted::Failed { why } => (why, RETRY_MS),
        };
        self.going.remove(uid);
        self.hold(uid, why, wait, now);
    }

    fn hold(&mut self, uid: &Arc<str>, why: String, wait: Millis, now: Moment) {
        let again = now.millis.saturating_add(wait);
        let since = self.stuck.get(uid).map_or(now.millis, |it| it.since);
        self.stuck.insert(Arc::clone(uid), Stuck { why, again, since });
    }

    /// When nodes are to be looked at next.
    pub(crate) fn next_at(&self) -> Option<Millis> {
        (!self.nodes.is_empty() || !self.ended.is_empty()).then_some(self.next)
    }

    /// Whether nodes are to be looked at now.
    pub(super) fn is_due(&mut self, now: Moment) -> bool {
        let due = self.next_at().is_some_and(|at| at <= now.millis);
        if due {
            self.next = now.millis.saturating_add(LOOK_EVERY_MS);
            self.going.retain(|_, until| *until > now.millis);
        }
        due
    }

    /// Nodes that are being emptied.
    pub(super) fn nodes(&self) -> Vec<Arc<str>> {
        self.nodes.keys().cloned().collect()
    }

    /// Decides who of a node is told to go now. `other_places` says on how many other nodes a pod
    /// could be, or why on none.
    pub(super) fn empty(
        &mut self,
        node: &Arc<str>,
        mut leavers: Vec<Leaver>,
        now: Moment,
        work: &mut Vec<Work>,
        mut other_places: impl FnMut(&Leaver) -> Result<usize, String>,
    ) {
        let Some(draining) = self.nodes.get_mut(node) else { return };
        draining.total = draining.total.max(leavers.len());
        // Nobody is sent away for a slip of the pen.
        if draining.invalid.is_some() {
            self.report(node, &leavers, now, work);
            return;
        }
        if !draining.is_closed {
            let asked = draining.cordon_asked.is_some_and(|at| now.millis < at + CORDON_AGAIN_MS);
            if !asked {
                draining.cordon_asked = Some(now.millis);
                work.push(Work::Cordon { node: Arc::clone(node) });
            }
            return;
        }
        let overdue = draining.deadline.is_some_and(|end| end <= date(now.date));
        // Those never refused come first, then those that waited longest: one that fits nowhere must
        // not keep the others from their turn.
        leavers.sort_by_key(|it| {
            (self.stuck.get(&it.uid).map(|it| it.since), it.priority, it.key.clone())
        });
        let mut busy = self.going.len()
            + leavers.iter().filter(|it| it.leaving && !self.going.contains_key(&it.uid)).count();
        let mut looked = 0;
        for leaver in leavers.iter().filter(|it| !it.leaving) {
            if busy >= self.at_once || looked >= LOOK_MOST {
                break;
            }
            let waits = self.stuck.get(&leaver.uid).is_some_and(|it| it.again > now.millis);
            if waits || self.going.contains_key(&leaver.uid) {
                continue;
            }
            if !overdue {
                looked += 1;
                match other_places(leaver) {
                    // Everyone who is on the way takes at most one of these places.
                    Ok(places) if places > busy => {}
                    Ok(_) => continue,
                    Err(why) => {
                        self.hold(&leaver.uid, why, AGAIN_MS, now);
                        continue;
                    }
                }
            }
            busy += 1;
            // Until the answer is there it counts as going.
            self.going.insert(Arc::clone(&leaver.uid), Millis::MAX);
            work.push(Work::Evict { pod: leaver.key.clone(), uid: Arc::clone(&leaver.uid) });
        }
        self.report(node, &leavers, now, work);
    }

    fn report(&mut self, node: &Arc<str>, leavers: &[Leaver], now: Moment, work: &mut Vec<Work>) {
        let Some(draining) = self.nodes.get_mut(node) else { return };
        let stuck = |it: &&Leaver| {
            !it.leaving && !self.going.contains_key(&it.uid) && self.stuck.contains_key(&it.uid)
        };
        let blocked: Vec<&Leaver> = leavers.iter().filter(stuck).collect();
        let (left, total) = (leavers.len(), draining.total);
        let why = blocked.first().and_then(|it| self.stuck.get(&it.uid)).map(|it| it.why.as_str());
        let (state, message) = match (left, blocked.len()) {
            _ if draining.invalid.is_some() => {
                let told = draining.invalid.as_deref().unwrap_or_default();
                let message = format!(
                    "{DRAIN} is {told:?}, so nobody is told to go; accepted is nothing, true, false, a \
                     duration such as 30m, or a date"
                );
                (DrainState::Blocked, message)
            }
            (0, _) => (DrainState::Done, "it is empty".to_owned()),
            (left, blocked) if left == blocked => (
                DrainState::Blocked,
                format!(
                    "{left} of {total} pods are left, and none can leave: {}",
                    why.unwrap_or_default()
                ),
            ),
            (left, 0) => (DrainState::Running, format!("{left} of {total} pods are left")),
            (left, blocked) => (
                DrainState::Running,
                format!("{left} of {total} pods are left, {blocked} of them cannot leave"),
            ),
        };
        let (since, deadline) = (draining.since, draining.deadline);
        let record = DrainRecord { state, message, since, deadline, total, left };
        let (is_news, is_event) = match &draining.reported {
            None => (true, true),
            Some((before, _)) if *before == record => (false, false),
            Some((before, at)) => {
                let other = before.state != record.state;
                (other || now.millis >= at.saturating_add(REPORT_MS), other)
            }
        };
        if is_news {
            draining.reported = Some((record.clone(), now.millis));
            let node = Arc::clone(node);
            work.push(Work::DrainStatus(DrainStatus { node, record: Some(record), is_event }));
        }
    }

    /// Nodes that are not emptied any more are told so once.
    pub(super) fn end(&mut self, work: &mut Vec<Work>) {
        for node in self.ended.drain(..) {
            let status = DrainStatus { node, record: None, is_event: false };
            work.push(Work::DrainStatus(status));
        }
    }
}

fn date(at: Timestamp) -> jiff::Timestamp {
    jiff::Timestamp::from_second(at.0).unwrap_or_default()
}

/// By when: a duration from the beginning, or a date.
fn deadline(told: &str, since: jiff::Timestamp) -> Option<jiff::Timestamp> {
    let by_duration = told.parse::<SignedDuration>().ok().filter(SignedDuration::is_positive);
    by_duration.and_then(|it| since.checked_add(it).ok()).or_else(|| told.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::pod::Key;

    fn at(second: i64) -> Moment {
        Moment { millis: u64::try_from(second * 1_000).unwrap(), date: Timestamp(second) }
    }

    fn node(json: serde_json::Value) -> core::Node {
        serde_json::from_value(json).unwrap()
    }

    fn closed(value: &str) -> core::Node {
        node(serde_json::json!({
            "metadata": {"name": "n", "annotations": {DRAIN: value}},
            "spec": {"unschedulable": true},
        }))
    }

    fn leavers(names: &[&str]) -> Vec<Leaver> {
        let leaver = |name: &&str| Leaver {
            uid: (**name).into(),
            key: Key::new("default", name),
            priority: 0,
            leaving: false,
            alone: false,
        };
        names.iter().map(leaver).collect()
    }

    fn evictions(work: &[Work]) -> Vec<String> {
        let name = |work: &Work| match work {
            Work::Evict { pod, .. } => Some(pod.name.to_string()),
            _ => None,
        };
        work.iter().filter_map(name).collect()
    }

    fn last_message(work: &[Work]) -> String {
        let message = |work: &Work| match work {
            Work::DrainStatus(DrainStatus { record: Some(record), .. }) => {
                Some(record.message.clone())
            }
            _ => None,
        };
        work.iter().filter_map(message).next_back().unwrap_or_default()
    }

    #[test]
    fn a_node_that_still_takes_pods_is_closed_before_anyone_leaves() {
        let mut drains = Drains::new(4);
        let open = serde_json::json!({"metadata": {"name": "n", "annotations": {DRAIN: ""}}});
        drains.put_node(&node(open), at(0));
        let mut work = Vec::new();
        drains.empty(&"n".into(), leavers(&["a"]), at(0), &mut work, |_| Ok(9));
        assert_eq!(work, [Work::Cordon { node: "n".into() }]);
        let tainted = serde_json::json!({
            "metadata": {"name": "n"},
            "spec": {"taints": [{"key": DRAIN, "effect": "NoSchedule"}]},
        });
        drains.put_node(&node(tainted), at(1));
        work.clear();
        drains.empty(&"n".into(), leavers(&["a"]), at(1), &mut work, |_| Ok(9));
        assert_eq!(evictions(&work), ["a"]);
    }

    #[test]
    fn only_so_many_leave_at_once_and_only_as_many_as_there_are_places() {
        let mut drains = Drains::new(3);
        drains.put_node(&closed(""), at(0));
        let (mut work, all) = (Vec::new(), ["a", "b", "c", "d"]);
        drains.empty(&"n".into(), leavers(&all), at(0), &mut work, |_| Ok(9));
        assert_eq!(evictions(&work), ["a", "b", "c"]);

        let mut drains = Drains::new(3);
        drains.put_node(&closed(""), at(0));
        work.clear();
        drains.empty(&"n".into(), leavers(&all), at(0), &mut work, |_| Ok(2));
        assert_eq!(evictions(&work), ["a", "b"]);
    }

    #[test]
    fn a_pod_without_another_place_stays_until_the_deadline() {
        let mut drains = Drains::new(3);
        drains.put_node(&closed("30m"), at(0));
        let (mut work, none) = (Vec::new(), |_: &Leaver| Err("nowhere".to_owned()));
        drains.empty(&"n".into(), leavers(&["a"]), at(0), &mut work, none);
        assert!(evictions(&work).is_empty());
        assert_eq!(last_message(&work), "1 of 1 pods are left, and none can leave: nowhere");
        drains.empty(&"n".into(), leavers(&["a"]), at(1799), &mut work, none);
        assert!(evictions(&work).is_empty());
        drains.empty(&"n".into(), leavers(&["a"]), at(1810), &mut work, none);
        assert_eq!(evictions(&work), ["a"]);
    }

    #[test]
    fn one_that_a_budget_keeps_lets_others_go_first_and_is_tried_again_when_told() {
        let mut drains = Drains::new(1);
        drains.put_node(&closed(""), at(0));
        let mut work = Vec::new();
        drains.empty(&"n".into(), leavers(&["a", "b"]), at(0), &mut work, |_| Ok(9));
        let kept = Evicted::Kept { after_s: 7, why: "a budget".to_owned() };
        drains.evicted(&"a".into(), kept, at(1));
        drains.empty(&"n".into(), leavers(&["a", "b"]), at(1), &mut work, |_| Ok(9));
        drains.evicted(&"b".into(), Evicted::Goes, at(2));
        assert_eq!(evictions(&work), ["a", "b"]);
        for second in [2, 30] {
            assert!(drains.is_due(at(second)));
            drains.empty(&"n".into(), leavers(&["a"]), at(second), &mut work, |_| Ok(9));
        }
        assert_eq!(evictions(&work), ["a", "b", "a"]);
    }

    #[test]
    fn since_when_and_how_many_survive_a_restart() {
        let mut drains = Drains::new(1);
        drains.put_node(&closed("1h"), at(100));
        let mut work = Vec::new();
        drains.empty(&"n".into(), leavers(&["a", "b"]), at(100), &mut work, |_| Ok(9));
        let Some(Work::DrainStatus(status)) = work.pop() else { panic!("no status") };
        let record = status.record.unwrap();
        let mut later = closed("1h");
        let written = serde_json::to_string(&record).unwrap();
        later.metadata.annotations.as_mut().unwrap().insert(DRAIN_STATUS.to_owned(), written);
        let mut drains = Drains::new(1);
        drains.put_node(&later, at(2_000));
        drains.empty(&"n".into(), Vec::new(), at(2_000), &mut work, |_| Ok(9));
        let Some(Work::DrainStatus(status)) = work.pop() else { panic!("no status") };
        let done = status.record.unwrap();
        assert_eq!((done.since, done.deadline, done.total), (record.since, record.deadline, 2));
        assert_eq!((done.state, done.left), (DrainState::Done, 0));
        assert!(status.is_event);
    }

    #[test]
    fn a_node_that_is_not_emptied_any_more_loses_its_status() {
        let mut drains = Drains::new(1);
        drains.put_node(&closed(""), at(0));
        drains.put_node(&node(serde_json::json!({"metadata": {"name": "n"}})), at(1));
        let mut work = Vec::new();
        drains.end(&mut work);
        let status = DrainStatus { node: "n".into(), record: None, is_event: false };
        assert_eq!(work, [Work::DrainStatus(status)]);
    }

    #[test]
    fn a_deadline_is_a_duration_or_a_date() {
        let since = jiff::Timestamp::from_second(1_000_000).unwrap();
        let cases = [
            ("30m", Some(1_001_800)),
            ("1h30m", Some(1_005_400)),
            ("1970-01-12T13:46:41Z", Some(1_000_001)),
            ("-5m", None),
            ("soon", None),
            ("", None),
        ];
        for (told, expected) in cases {
            let found = deadline(told, since).map(|it| it.as_second());
            assert_eq!(found, expected, "{told:?}");
        }
    }
}
