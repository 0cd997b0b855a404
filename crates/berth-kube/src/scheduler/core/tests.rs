//! The core without an API server: messages in, actions out.

use std::sync::Arc;

use berth_engine::{Policy, Timestamp};
use k8s_openapi::api::core::v1 as core;
use prometheus_client::registry::Registry;
use serde_json::{Value, json};

use super::SchedulerCore;
use crate::cluster::observed_pod::ObservedPod;
use crate::cluster::{MissingRequests, Settings};
use crate::scheduler::drain::DrainTracker;
use crate::scheduler::messages::{Action, ActionResult, Change, Message, SyncStatus};
use crate::scheduler::metrics::Metrics;
use crate::scheduler::queue::Moment;

struct Fixture {
    core: SchedulerCore,
    millis: u64,
}

impl Fixture {
    /// A cluster with these nodes of one CPU, and a core that leads.
    fn new(nodes: &[&str]) -> Self {
        let mut fixture = Self::unsynced(&[]);
        for node in nodes {
            fixture.node(node);
        }
        fixture.send(Message::LeadershipChanged(true));
        fixture
    }

    fn unsynced(kinds: &[&'static str]) -> Self {
        let policy = Policy::builtin("balanced").unwrap();
        let settings = Settings {
            scheduler: "berth".to_owned(),
            policy,
            missing_requests: MissingRequests::Zero,
            ignored_pod_fields: Vec::new(),
        };
        let metrics = Arc::new(Metrics::new(&mut Registry::default()));
        let status = Arc::new(SyncStatus::new(kinds));
        let core = SchedulerCore::new(settings, DrainTracker::new(1), status, metrics);
        Self { core, millis: 0 }
    }

    fn now(&self) -> Moment {
        Moment { millis: self.millis, date: Timestamp(0) }
    }

    fn send(&mut self, message: Message) -> Vec<Action> {
        let (mut actions, now) = (Vec::new(), self.now());
        let _ = self.core.handle_message(message, now, &mut actions);
        actions
    }

    fn schedule(&mut self) -> Vec<Action> {
        let (mut actions, now) = (Vec::new(), self.now());
        self.core.refresh_queue(now);
        self.core.schedule_batch(now, 100, &mut actions);
        actions
    }

    fn after(&mut self, millis: u64) -> Vec<Action> {
        self.millis += millis;
        self.schedule()
    }

    fn node(&mut self, name: &str) {
        let node = json!({
            "metadata": {"name": name},
            "status": {"allocatable": {"cpu": "1", "memory": "1Gi", "pods": "10"}},
        });
        let node: core::Node = serde_json::from_value(node).unwrap();
        self.send(Message::Change(Change::Node(Box::new(node))));
    }

    fn pod(&mut self, name: &str, version: u64, cpu: &str, more: Value) -> Vec<Action> {
        self.send(Message::Change(Change::Pod(pod(name, version, cpu, more))))
    }

    fn pending(&self) -> usize {
        self.core.counts().pending
    }
}

/// A pod; its uid is its name. `more` is its node, or its labels.
fn pod(name: &str, version: u64, cpu: &str, more: Value) -> Box<ObservedPod> {
    let pod = json!({
        "metadata": {
            "name": name, "namespace": "default", "uid": name,
            "resourceVersion": version.to_string(), "labels": more["labels"],
        },
        "spec": {
            "schedulerName": "berth", "nodeName": more["node"],
            "containers": [{"name": "c", "resources": {"requests": {"cpu": cpu}}}],
        },
        "status": {"phase": "Pending"},
    });
    Box::new(serde_json::from_value(pod).unwrap())
}

/// The actions in short.
fn short(actions: &[Action]) -> Vec<String> {
    actions
        .iter()
        .map(|action| match action {
            Action::Bind(it) => format!("bind {} to {}", it.pod.name, it.node),
            Action::BindGang { gang, members } => {
                format!("bind {} of {}", members.len(), gang.name)
            }
            Action::Preempt(it) => format!("preempt for {}", it.pod.name),
            Action::ReleaseClaims { claims, .. } => format!("release {} claims", claims.len()),
            Action::ClearNomination { pod, .. } => format!("clear nomination of {}", pod.name),
            Action::NotifyUnschedulable(notice) => format!("notify {}", notice.pod.name),
            Action::Cordon { node } => format!("cordon {node}"),
            Action::Evict { pod, .. } => format!("evict {}", pod.name),
            Action::WriteDrainStatus(status) => format!("status of {}", status.node),
            Action::WarnOfNode { node, .. } => format!("report {node}"),
            other => format!("{other:?}"),
        })
        .collect()
}

#[test]
fn nothing_is_scheduled_before_all_kinds_are_synced_and_this_replica_leads() {
    let mut fixture = Fixture::unsynced(&["nodes", "pods"]);
    fixture.node("n1");
    fixture.pod("a", 1, "1", json!({}));
    fixture.send(Message::LeadershipChanged(true));
    fixture.send(Message::Synced("nodes"));
    assert!(fixture.schedule().is_empty());
    fixture.send(Message::Synced("pods"));
    fixture.send(Message::LeadershipChanged(false));
    assert!(fixture.schedule().is_empty());
    fixture.send(Message::LeadershipChanged(true));
    assert_eq!(short(&fixture.schedule()), ["bind a to n1"]);
}

#[test]
fn an_older_version_of_a_pod_is_ignored() {
    let mut fixture = Fixture::new(&["n1"]);
    fixture.pod("a", 10, "1", json!({"node": "n1"}));
    fixture.pod("a", 9, "1", json!({}));
    fixture.pod("b", 11, "1", json!({}));
    assert_eq!(short(&fixture.schedule()), ["notify b"]);
}

#[test]
fn a_reservation_is_kept_until_the_watch_shows_the_pod_or_it_is_unreserved() {
    let mut fixture = Fixture::new(&["n1"]);
    fixture.pod("a", 1, "1", json!({}));
    assert_eq!(short(&fixture.schedule()), ["bind a to n1"]);
    fixture.pod("b", 2, "1", json!({}));
    // Its condition changed; it is still without a node, as the watch sees it.
    fixture.pod("a", 3, "1", json!({}));
    assert_eq!(short(&fixture.schedule()), ["notify b"]);
    fixture.millis += 500;
    let notified = fixture.send(Message::ActionCompleted(ActionResult::BindFailed {
        uid: "a".into(),
        reason: "binding to n1 was refused".to_owned(),
    }));
    assert_eq!(short(&notified), ["notify a"]);
    // The waiting pod takes the capacity; the other one is in backoff for a second.
    assert_eq!(short(&fixture.after(500)), ["bind b to n1"]);
    assert_eq!(short(&fixture.after(60_500)), ["notify a"]);
}

#[test]
fn a_pod_that_the_watch_shows_on_a_node_gets_no_bind_failure_notice() {
    let mut fixture = Fixture::new(&["n1"]);
    fixture.pod("a", 1, "1", json!({}));
    fixture.schedule();
    fixture.pod("a", 2, "1", json!({"node": "n1"}));
    let reason = "binding was refused: it is bound".to_owned();
    let result = ActionResult::BindFailed { uid: "a".into(), reason };
    assert!(fixture.send(Message::ActionCompleted(result)).is_empty());
    assert!(fixture.after(60_000).is_empty());
}

#[test]
fn a_deleted_pod_does_not_come_back_by_a_late_update() {
    let mut fixture = Fixture::new(&["n1"]);
    fixture.pod("a", 1, "1", json!({}));
    fixture.schedule();
    fixture.send(Message::ActionCompleted(ActionResult::PodDeleted { uid: "a".into() }));
    fixture.pod("a", 2, "1", json!({}));
    assert!(fixture.after(60_000).is_empty());
    fixture.pod("b", 3, "1", json!({}));
    assert_eq!(short(&fixture.schedule()), ["bind b to n1"]);
}

#[test]
fn a_pod_that_was_bound_elsewhere_is_accounted_there() {
    let mut fixture = Fixture::new(&["n1", "n2"]);
    fixture.pod("a", 1, "1", json!({}));
    let bound = short(&fixture.schedule());
    let other = if bound == ["bind a to n1"] { "n2" } else { "n1" };
    let changed = pod("a", 5, "1", json!({"node": other}));
    let result = ActionResult::PodChanged { uid: "a".into(), pod: changed };
    fixture.send(Message::ActionCompleted(result));
    fixture.pod("b", 6, "1", json!({}));
    let free = if other == "n2" { "n1" } else { "n2" };
    assert_eq!(short(&fixture.schedule()), [format!("bind b to {free}")]);
}

#[test]
fn an_action_that_was_skipped_without_leadership_is_retried_with_it() {
    let mut fixture = Fixture::new(&["n1"]);
    fixture.pod("a", 1, "1", json!({}));
    fixture.schedule();
    fixture.send(Message::LeadershipChanged(false));
    fixture.send(Message::ActionCompleted(ActionResult::NotLeader { uid: "a".into() }));
    assert!(fixture.schedule().is_empty());
    fixture.send(Message::LeadershipChanged(true));
    assert_eq!(short(&fixture.schedule()), ["bind a to n1"]);
}

#[test]
fn a_relist_deletes_pods_that_are_not_in_it_unless_they_are_newer() {
    let mut fixture = Fixture::new(&["n1"]);
    for (name, version) in [("old", 5), ("listed", 6), ("newer", 9)] {
        fixture.pod(name, version, "100m", json!({"node": "n1"}));
    }
    let uids = ["listed"].into_iter().map(Arc::from).collect();
    fixture.send(Message::Relisted { uids, version: Some(7) });
    assert_eq!(fixture.core.counts().pods, 2);
    fixture.pod("next", 10, "850m", json!({}));
    assert_eq!(short(&fixture.schedule()), ["notify next"]);
    fixture.pod("small", 11, "800m", json!({}));
    assert_eq!(short(&fixture.schedule()), ["bind small to n1"]);
}

#[test]
fn the_same_reason_is_published_once_in_five_minutes_and_another_at_once() {
    let mut fixture = Fixture::new(&["n1"]);
    fixture.pod("a", 1, "5", json!({}));
    assert_eq!(short(&fixture.schedule()), ["notify a"]);
    assert_eq!((notices_in(&mut fixture, 299), notices_in(&mut fixture, 120)), (0, 1));
    // Another reason: there are no nodes any more.
    let deleted = crate::cluster::pod::Key::new("", "n1");
    fixture.send(Message::Change(Change::NodeDeleted(deleted)));
    assert_eq!(notices_in(&mut fixture, 70), 1);
    assert_eq!(fixture.core.last_notices["a"].code, "no_nodes");
}

/// The number of actions within this many seconds.
fn notices_in(fixture: &mut Fixture, seconds: u64) -> usize {
    (0..seconds).map(|_| fixture.after(1_000).len()).sum()
}

#[test]
fn a_gang_with_a_failed_binding_is_scheduled_again_as_a_whole() {
    let mut fixture = Fixture::new(&["n1", "n2"]);
    let gang = json!({"labels": {"berth.dev/gang": "g", "berth.dev/gang-size": "2"}});
    fixture.pod("g1", 1, "1", gang.clone());
    assert_eq!(short(&fixture.schedule()), ["notify g1"]);
    fixture.pod("g2", 2, "1", gang);
    assert_eq!(short(&fixture.schedule()), ["bind 2 of g"]);
    for uid in ["g1", "g2"] {
        let reason = "none is bound".to_owned();
        let result = ActionResult::BindFailed { uid: uid.into(), reason };
        fixture.send(Message::ActionCompleted(result));
    }
    assert_eq!(fixture.pending(), 2);
    assert!(fixture.schedule().is_empty());
    assert_eq!(short(&fixture.after(2_000)), ["bind 2 of g"]);
}

#[test]
fn a_pod_whose_labels_were_corrected_is_retried_at_once() {
    let mut fixture = Fixture::new(&["n1"]);
    let wrong = json!({"labels": {"berth.dev/gang": "g", "berth.dev/gang-size": "many"}});
    fixture.pod("a", 1, "1", wrong);
    assert_eq!(short(&fixture.schedule()), ["notify a"]);
    let right = json!({"labels": {"berth.dev/gang": "g", "berth.dev/gang-size": "1"}});
    fixture.pod("a", 2, "1", right);
    assert_eq!(short(&fixture.schedule()), ["bind 1 of g"]);
}
