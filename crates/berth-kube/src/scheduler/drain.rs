//! Drains of nodes that carry `berth.dev/drain` as an annotation or a taint.
//!
//! Pure bookkeeping: which nodes, since when, until when, which pods are being evicted and which cannot
//! be. The states are those of drains of Berth's own fleets: running, blocked, done; after the deadline
//! pods are evicted even if no other node can take them. Disruption budgets always hold.

use std::collections::BTreeMap;
use std::sync::Arc;

use berth_engine::Timestamp;
use jiff::SignedDuration;
use k8s_openapi::api::core::v1 as core;
use rustc_hash::FxHashMap;

use super::messages::{Action, DrainRecord, DrainState, DrainStatus, EvictionOutcome};
use super::queue::{Millis, Moment};

/// The annotation or taint of a node to drain; its value may be a deadline.
pub const DRAIN: &str = "berth.dev/drain";
/// The annotation with the progress of the drain by the scheduler of the default name; those of other names
/// append theirs, so that several schedulers of one cluster do not overwrite each other.
pub const DRAIN_STATUS: &str = "berth.dev/drain-status";
/// The default name.
const DEFAULT_SCHEDULER: &str = "berth";
/// The longest name of a scheduler that fits into the annotation.
pub const SCHEDULER_NAME_MAX: usize = 48;

/// How often nodes are checked.
const PASS_INTERVAL_MS: Millis = 1_000;
/// When a pod that no other node can take is checked again.
const NO_NODE_RETRY_MS: Millis = 10_000;
/// When a failed eviction is retried.
const EVICTION_RETRY_MS: Millis = 5_000;
/// How long an evicted pod is assumed to be unscheduled.
const RESCHEDULING_MS: Millis = 10_000;
/// Pods checked against all other nodes in one pass, which takes time away from scheduling.
const CHECKS_PER_PASS: usize = 16;
/// When a cordon is requested again.
const CORDON_RETRY_MS: Millis = 10_000;
/// The least time between two statuses that differ only in numbers.
const STATUS_INTERVAL_MS: Millis = 2_000;

/// A node that is being drained.
#[derive(Debug)]
struct NodeDrain {
    since: jiff::Timestamp,
    deadline: Option<jiff::Timestamp>,
    total: usize,
    /// The value of the annotation or taint, if it is invalid.
    invalid: Option<String>,
    /// Whether the node is cordoned.
    is_cordoned: bool,
    cordon_requested: Option<Millis>,
    reported: Option<(DrainRecord, Millis)>,
}

/// A pod that could not be evicted.
#[derive(Debug)]
struct StuckPod {
    reason: String,
    retry_at: Millis,
    since: Millis,
}

/// A pod of this scheduler on a node that is being drained.
#[derive(Clone, Debug)]
pub(super) struct DrainingPod {
    pub(super) uid: Arc<str>,
    pub(super) key: crate::cluster::pod::Key,
    pub(super) priority: i32,
    pub(super) terminating: bool,
    /// Whether it has no controller that would recreate it.
    pub(super) unmanaged: bool,
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct DrainTracker {
    /// The name of the scheduler, and the annotation with its progress.
    scheduler: String,
    status_key: Arc<str>,
    nodes: BTreeMap<Arc<str>, NodeDrain>,
    /// Nodes whose drain ended and that still carry a status.
    ended: Vec<Arc<str>>,
    stuck: FxHashMap<Arc<str>, StuckPod>,
    /// Pods that are being evicted, or were a short time ago: until when they count.
    evicting: FxHashMap<Arc<str>, Millis>,
    max_concurrent: usize,
    next_pass: Millis,
}

impl DrainTracker {
    /// No drains; at most this many pods are evicted at a time.
    pub(crate) fn new(max_concurrent: usize) -> Self {
        let (scheduler, status_key) = (DEFAULT_SCHEDULER.to_owned(), DRAIN_STATUS.into());
        Self { max_concurrent: max_concurrent.max(1), scheduler, status_key, ..Self::default() }
    }

    /// The same for the pods of a scheduler with this name.
    pub(crate) fn for_scheduler(mut self, name: &str) -> Self {
        name.clone_into(&mut self.scheduler);
        if name != DEFAULT_SCHEDULER {
            self.status_key = format!("{DRAIN_STATUS}.{name}").into();
        }
        self
    }

    /// A node was added or updated.
    pub(crate) fn put_node(&mut self, node: &core::Node, now: Moment) {
        let Some(name) = node.metadata.name.as_deref() else { return };
        let annotations = node.metadata.annotations.as_ref();
        let taints = node.spec.iter().flat_map(|it| it.taints.iter().flatten());
        let taint = taints.into_iter().find(|it| it.key == DRAIN);
        let annotated = annotations.and_then(|it| it.get(DRAIN));
        let value = annotated.or_else(|| taint.and_then(|it| it.value.as_ref()));
        let written = annotations.and_then(|it| it.get(&*self.status_key));
        let is_requested = annotated.is_some() || taint.is_some();
        if !is_requested || value.is_some_and(|it| it == "false") {
            let was_draining = self.nodes.remove(name).is_some();
            let has_status = was_draining || written.is_some();
            if has_status && !self.ended.iter().any(|it| **it == *name) {
                self.ended.push(name.into());
            }
            return;
        }
        let keeps_off = taint.is_some_and(|it| matches!(&*it.effect, "NoSchedule" | "NoExecute"));
        let is_cordoned =
            keeps_off || node.spec.as_ref().and_then(|it| it.unschedulable).unwrap_or(false);
        let drain = self.nodes.entry(name.into()).or_insert_with(|| {
            let before = written.and_then(|it| serde_json::from_str::<DrainRecord>(it).ok());
            NodeDrain {
                since: before.as_ref().map_or_else(|| to_jiff(now.date), |it| it.since),
                deadline: None,
                total: before.as_ref().map_or(0, |it| it.total),
                is_cordoned,
                invalid: None,
                cordon_requested: None,
                reported: before.map(|it| (it, now.millis)),
            }
        });
        drain.is_cordoned = is_cordoned;
        drain.deadline = value.and_then(|it| parse_deadline(it, drain.since));
        let is_invalid = |it: &&String| !it.is_empty() && *it != "true" && drain.deadline.is_none();
        drain.invalid = value.filter(is_invalid).cloned();
    }

    pub(crate) fn remove_node(&mut self, name: &str) {
        self.nodes.remove(name);
        self.ended.retain(|it| **it != *name);
    }

    /// A pod was deleted. Its eviction still counts for a while.
    pub(crate) fn forget_pod(&mut self, uid: &str) {
        self.stuck.remove(uid);
    }

    /// Records the answer to an eviction.
    pub(crate) fn record_eviction(
        &mut self,
        uid: &Arc<str>,
        outcome: EvictionOutcome,
        now: Moment,
    ) {
        let (reason, delay) = match outcome {
            EvictionOutcome::Accepted => {
                self.stuck.remove(uid);
                self.evicting.insert(Arc::clone(uid), now.millis.saturating_add(RESCHEDULING_MS));
                return;
            }
            EvictionOutcome::BlockedByBudget { after_s, reason } => {
                (reason, after_s.saturating_mul(1_000))
            }
            EvictionOutcome::Failed { reason } => (reason, EVICTION_RETRY_MS),
        };
        self.evicting.remove(uid);
        self.delay_pod(uid, reason, delay, now);
    }

    fn delay_pod(&mut self, uid: &Arc<str>, reason: String, delay: Millis, now: Moment) {
        let retry_at = now.millis.saturating_add(delay);
        let since = self.stuck.get(uid).map_or(now.millis, |it| it.since);
        self.stuck.insert(Arc::clone(uid), StuckPod { reason, retry_at, since });
    }

    /// When the next pass is due.
    pub(crate) fn next_check(&self) -> Option<Millis> {
        (!self.nodes.is_empty() || !self.ended.is_empty()).then_some(self.next_pass)
    }

    /// Begins a pass, if one is due.
    pub(super) fn begin_pass(&mut self, now: Moment) -> bool {
        let due = self.next_check().is_some_and(|at| at <= now.millis);
        if due {
            self.next_pass = now.millis.saturating_add(PASS_INTERVAL_MS);
            self.evicting.retain(|_, until| *until > now.millis);
        }
        due
    }

    /// Nodes that are being drained.
    pub(super) fn nodes(&self) -> Vec<Arc<str>> {
        self.nodes.keys().cloned().collect()
    }

    /// Decides which pods of a node are evicted now. `count_other_nodes` returns how many other nodes
    /// could take a pod, or why none can.
    pub(super) fn plan_evictions(
        &mut self,
        node: &Arc<str>,
        mut pods: Vec<DrainingPod>,
        now: Moment,
        actions: &mut Vec<Action>,
        mut count_other_nodes: impl FnMut(&DrainingPod) -> Result<usize, String>,
    ) {
        let Some(drain) = self.nodes.get_mut(node) else { return };
        drain.total = drain.total.max(pods.len());
        // A mistyped value evicts nothing.
        if drain.invalid.is_some() {
            self.report_status(node, &pods, now, actions);
            return;
        }
        if !drain.is_cordoned {
            let requested =
                drain.cordon_requested.is_some_and(|at| now.millis < at + CORDON_RETRY_MS);
            if !requested {
                drain.cordon_requested = Some(now.millis);
                actions.push(Action::Cordon { node: Arc::clone(node) });
            }
            return;
        }
        let overdue = drain.deadline.is_some_and(|end| end <= to_jiff(now.date));
        // Pods that were never stuck come first, then those that are stuck for longest: a pod that fits
        // nowhere must not block the others.
        pods.sort_by_key(|it| {
            (self.stuck.get(&it.uid).map(|it| it.since), it.priority, it.key.clone())
        });
        let terminating =
            |it: &&DrainingPod| it.terminating && !self.evicting.contains_key(&it.uid);
        let mut busy = self.evicting.len() + pods.iter().filter(terminating).count();
        let mut checked = 0;
        for pod in pods.iter().filter(|it| !it.terminating) {
            if busy >= self.max_concurrent || checked >= CHECKS_PER_PASS {
                break;
            }
            let is_delayed = self.stuck.get(&pod.uid).is_some_and(|it| it.retry_at > now.millis);
            if is_delayed || self.evicting.contains_key(&pod.uid) {
                continue;
            }
            if !overdue {
                checked += 1;
                match count_other_nodes(pod) {
                    // Every pod that is being evicted takes at most one of these nodes.
                    Ok(nodes) if nodes > busy => {}
                    Ok(_) => continue,
                    Err(reason) => {
                        self.delay_pod(&pod.uid, reason, NO_NODE_RETRY_MS, now);
                        continue;
                    }
                }
            }
            busy += 1;
            // Until the answer arrives, the eviction counts without limit.
            self.evicting.insert(Arc::clone(&pod.uid), Millis::MAX);
            actions.push(Action::Evict { pod: pod.key.clone(), uid: Arc::clone(&pod.uid) });
        }
        self.report_status(node, &pods, now, actions);
    }

    fn report_status(
        &mut self,
        node: &Arc<str>,
        pods: &[DrainingPod],
        now: Moment,
        actions: &mut Vec<Action>,
    ) {
        let Some(drain) = self.nodes.get_mut(node) else { return };
        let is_stuck = |it: &&DrainingPod| {
            !it.terminating
                && !self.evicting.contains_key(&it.uid)
                && self.stuck.contains_key(&it.uid)
        };
        let stuck: Vec<&DrainingPod> = pods.iter().filter(is_stuck).collect();
        let (left, total) = (pods.len(), drain.total);
        let reason = stuck.first().and_then(|it| self.stuck.get(&it.uid));
        let reason = reason.map(|it| it.reason.as_str()).unwrap_or_default();
        let (state, message) = match (left, stuck.len()) {
            _ if drain.invalid.is_some() => {
                let value = drain.invalid.as_deref().unwrap_or_default();
                let message = format!(
                    "{DRAIN} is {value:?}, so no pods are evicted; accepted: empty, true, false, a \
                     duration such as 30m, or a timestamp"
                );
                (DrainState::Blocked, message)
            }
            (0, _) => (DrainState::Done, format!("no pods of scheduler {} remain", self.scheduler)),
            (left, stuck) if left == stuck => (
                DrainState::Blocked,
                format!("{left} of {total} pods remain, and none can be evicted: {reason}"),
            ),
            (left, 0) => (DrainState::Running, format!("{left} of {total} pods remain")),
            (left, stuck) => (
                DrainState::Running,
                format!("{left} of {total} pods remain; {stuck} cannot be evicted now"),
            ),
        };
        let (since, deadline) = (drain.since, drain.deadline);
        let record = DrainRecord { state, message, since, deadline, total, left };
        let (is_due, is_event) = match &drain.reported {
            None => (true, true),
            Some((before, _)) if *before == record => (false, false),
            Some((before, at)) => {
                let changed = before.state != record.state;
                (changed || now.millis >= at.saturating_add(STATUS_INTERVAL_MS), changed)
            }
        };
        if is_due {
            drain.reported = Some((record.clone(), now.millis));
            let node = Arc::clone(node);
            let key = Arc::clone(&self.status_key);
            let status = DrainStatus { node, key, record: Some(record), is_event };
            actions.push(Action::WriteDrainStatus(status));
        }
    }

    /// Removes the status from nodes whose drain ended.
    pub(super) fn clear_ended_statuses(&mut self, actions: &mut Vec<Action>) {
        for node in self.ended.drain(..) {
            let key = Arc::clone(&self.status_key);
            let status = DrainStatus { node, key, record: None, is_event: false };
            actions.push(Action::WriteDrainStatus(status));
        }
    }
}

fn to_jiff(at: Timestamp) -> jiff::Timestamp {
    jiff::Timestamp::from_second(at.0).unwrap_or_default()
}

/// A deadline: a duration since the beginning, or a timestamp.
fn parse_deadline(value: &str, since: jiff::Timestamp) -> Option<jiff::Timestamp> {
    let duration = value.parse::<SignedDuration>().ok().filter(SignedDuration::is_positive);
    duration.and_then(|it| since.checked_add(it).ok()).or_else(|| value.parse().ok())
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

    fn cordoned(value: &str) -> core::Node {
        node(serde_json::json!({
            "metadata": {"name": "n", "annotations": {DRAIN: value}},
            "spec": {"unschedulable": true},
        }))
    }

    fn pods(names: &[&str]) -> Vec<DrainingPod> {
        let pod = |name: &&str| DrainingPod {
            uid: (**name).into(),
            key: Key::new("default", name),
            priority: 0,
            terminating: false,
            unmanaged: false,
        };
        names.iter().map(pod).collect()
    }

    fn evictions(actions: &[Action]) -> Vec<String> {
        let name = |action: &Action| match action {
            Action::Evict { pod, .. } => Some(pod.name.to_string()),
            _ => None,
        };
        actions.iter().filter_map(name).collect()
    }

    fn last_message(actions: &[Action]) -> String {
        let message = |action: &Action| match action {
            Action::WriteDrainStatus(DrainStatus { record: Some(record), .. }) => {
                Some(record.message.clone())
            }
            _ => None,
        };
        actions.iter().filter_map(message).next_back().unwrap_or_default()
    }

    #[test]
    fn a_node_is_cordoned_before_its_pods_are_evicted() {
        let mut drains = DrainTracker::new(4);
        let open = serde_json::json!({"metadata": {"name": "n", "annotations": {DRAIN: ""}}});
        drains.put_node(&node(open), at(0));
        let mut actions = Vec::new();
        drains.plan_evictions(&"n".into(), pods(&["a"]), at(0), &mut actions, |_| Ok(9));
        assert_eq!(actions, [Action::Cordon { node: "n".into() }]);
        let tainted = serde_json::json!({
            "metadata": {"name": "n"},
            "spec": {"taints": [{"key": DRAIN, "effect": "NoSchedule"}]},
        });
        drains.put_node(&node(tainted), at(1));
        actions.clear();
        drains.plan_evictions(&"n".into(), pods(&["a"]), at(1), &mut actions, |_| Ok(9));
        assert_eq!(evictions(&actions), ["a"]);
    }

    #[test]
    fn evictions_are_limited_and_never_more_than_other_nodes_can_take() {
        let mut drains = DrainTracker::new(3);
        drains.put_node(&cordoned(""), at(0));
        let (mut actions, all) = (Vec::new(), ["a", "b", "c", "d"]);
        drains.plan_evictions(&"n".into(), pods(&all), at(0), &mut actions, |_| Ok(9));
        assert_eq!(evictions(&actions), ["a", "b", "c"]);

        let mut drains = DrainTracker::new(3);
        drains.put_node(&cordoned(""), at(0));
        actions.clear();
        drains.plan_evictions(&"n".into(), pods(&all), at(0), &mut actions, |_| Ok(2));
        assert_eq!(evictions(&actions), ["a", "b"]);
    }

    #[test]
    fn a_pod_that_no_other_node_can_take_stays_until_the_deadline() {
        let mut drains = DrainTracker::new(3);
        drains.put_node(&cordoned("30m"), at(0));
        let (mut actions, none) = (Vec::new(), |_: &DrainingPod| Err("no node".to_owned()));
        drains.plan_evictions(&"n".into(), pods(&["a"]), at(0), &mut actions, none);
        assert!(evictions(&actions).is_empty());
        let message = "1 of 1 pods remain, and none can be evicted: no node";
        assert_eq!(last_message(&actions), message);
        drains.plan_evictions(&"n".into(), pods(&["a"]), at(1799), &mut actions, none);
        assert!(evictions(&actions).is_empty());
        drains.plan_evictions(&"n".into(), pods(&["a"]), at(1810), &mut actions, none);
        assert_eq!(evictions(&actions), ["a"]);
    }

    #[test]
    fn a_pod_blocked_by_a_budget_lets_others_go_first_and_is_retried() {
        let mut drains = DrainTracker::new(1);
        drains.put_node(&cordoned(""), at(0));
        let mut actions = Vec::new();
        drains.plan_evictions(&"n".into(), pods(&["a", "b"]), at(0), &mut actions, |_| Ok(9));
        let blocked =
            EvictionOutcome::BlockedByBudget { after_s: 7, reason: "a budget".to_owned() };
        drains.record_eviction(&"a".into(), blocked, at(1));
        drains.plan_evictions(&"n".into(), pods(&["a", "b"]), at(1), &mut actions, |_| Ok(9));
        drains.record_eviction(&"b".into(), EvictionOutcome::Accepted, at(2));
        assert_eq!(evictions(&actions), ["a", "b"]);
        for second in [2, 30] {
            assert!(drains.begin_pass(at(second)));
            drains.plan_evictions(&"n".into(), pods(&["a"]), at(second), &mut actions, |_| Ok(9));
        }
        assert_eq!(evictions(&actions), ["a", "b", "a"]);
    }

    #[test]
    fn start_and_total_survive_a_restart() {
        let mut drains = DrainTracker::new(1);
        drains.put_node(&cordoned("1h"), at(100));
        let mut actions = Vec::new();
        drains.plan_evictions(&"n".into(), pods(&["a", "b"]), at(100), &mut actions, |_| Ok(9));
        let Some(Action::WriteDrainStatus(status)) = actions.pop() else { panic!("no status") };
        let record = status.record.unwrap();
        let mut later = cordoned("1h");
        let written = serde_json::to_string(&record).unwrap();
        later.metadata.annotations.as_mut().unwrap().insert(DRAIN_STATUS.to_owned(), written);
        let mut drains = DrainTracker::new(1);
        drains.put_node(&later, at(2_000));
        drains.plan_evictions(&"n".into(), Vec::new(), at(2_000), &mut actions, |_| Ok(9));
        let Some(Action::WriteDrainStatus(status)) = actions.pop() else { panic!("no status") };
        let done = status.record.unwrap();
        assert_eq!((done.since, done.deadline, done.total), (record.since, record.deadline, 2));
        assert_eq!((done.state, done.left), (DrainState::Done, 0));
        assert!(status.is_event);
    }

    #[test]
    fn the_status_is_removed_when_a_drain_is_cancelled() {
        let mut drains = DrainTracker::new(1);
        drains.put_node(&cordoned(""), at(0));
        drains.put_node(&node(serde_json::json!({"metadata": {"name": "n"}})), at(1));
        let mut actions = Vec::new();
        drains.clear_ended_statuses(&mut actions);
        let (node, key) = ("n".into(), DRAIN_STATUS.into());
        let status = DrainStatus { node, key, record: None, is_event: false };
        assert_eq!(actions, [Action::WriteDrainStatus(status)]);
    }

    #[test]
    fn a_deadline_is_a_duration_or_a_timestamp() {
        let since = jiff::Timestamp::from_second(1_000_000).unwrap();
        let cases = [
            ("30m", Some(1_001_800)),
            ("1h30m", Some(1_005_400)),
            ("1970-01-12T13:46:41Z", Some(1_000_001)),
            ("-5m", None),
            ("soon", None),
            ("", None),
        ];
        for (value, expected) in cases {
            let found = parse_deadline(value, since).map(|it| it.as_second());
            assert_eq!(found, expected, "{value:?}");
        }
    }
}
