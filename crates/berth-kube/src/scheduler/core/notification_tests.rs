//! The core without an API server: what is published, nominated and kept through a relist.

use std::sync::Arc;

use berth_engine::{Policy, Timestamp};
use k8s_openapi::api::core::v1 as core;
use prometheus_client::registry::Registry;
use serde_json::{Value, json};

use super::SchedulerCore;
use crate::cluster::pod::Key;
use crate::cluster::{MissingRequests, Settings};
use crate::scheduler::drain::DrainTracker;
use crate::scheduler::messages::{Action, ActionResult, Change, Message, SyncStatus};
use crate::scheduler::metrics::Metrics;
use crate::scheduler::queue::Moment;

fn new_core() -> SchedulerCore {
    let settings = Settings {
        scheduler: "berth".to_owned(),
        policy: Policy::builtin("balanced").expect("it is built in"),
        missing_requests: MissingRequests::Zero,
        ignored_pod_fields: Vec::new(),
    };
    let metrics = Arc::new(Metrics::new(&mut Registry::default()));
    let status = Arc::new(SyncStatus::default());
    SchedulerCore::new(settings, DrainTracker::new(1), status, metrics)
}

fn pod(name: &str, cpu: &str) -> Message {
    pod_with(name, cpu, json!({}), json!({}))
}

fn pod_with(name: &str, cpu: &str, spec: Value, status: Value) -> Message {
    let mut pod = json!({
        "metadata": {"name": name, "namespace": "default", "uid": name, "resourceVersion": "1"},
        "spec": {"schedulerName": "berth", "containers": [{
            "name": "main", "resources": {"requests": {"cpu": cpu}}
        }]},
        "status": status,
    });
    for (field, value) in spec.as_object().into_iter().flatten() {
        pod["spec"][field] = value.clone();
    }
    Message::Change(Change::Pod(Box::new(read(pod))))
}

/// A pod of low priority that fills a node. The later it started, the sooner it is preempted.
fn low(name: &str, node: &str, cpu: &str, started: &str) -> Message {
    let spec = json!({"nodeName": node, "priority": -1});
    pod_with(name, cpu, spec, json!({"phase": "Running", "startTime": started}))
}

fn deleted(name: &str) -> Message {
    Message::Change(Change::PodDeleted(Key::new("default", name), name.into()))
}

fn victims_were_deleted_for(name: &str) -> Message {
    let result = ActionResult::Preempted { uid: name.into(), done: true };
    Message::ActionCompleted(result)
}

fn node(name: &str) -> Message {
    let node = json!({
        "metadata": {"name": name}, "status": {"allocatable": {"cpu": "4", "pods": "10"}}
    });
    Message::Change(Change::Node(Box::new(read::<core::Node>(node))))
}

fn read<K: serde::de::DeserializeOwned>(value: Value) -> K {
    serde_json::from_value(value).expect("it is written as Kubernetes writes it")
}

/// Sends messages, schedules a batch, and returns the actions in short.
fn after(
    core: &mut SchedulerCore,
    messages: impl IntoIterator<Item = Message>,
    millis: u64,
) -> Vec<String> {
    let now = Moment { millis, date: Timestamp(0) };
    let mut actions = Vec::new();
    for message in messages {
        assert!(core.handle_message(message, now, &mut actions).is_continue());
    }
    core.refresh_queue(now);
    core.schedule_batch(now, 100, &mut actions);
    let lines = actions.into_iter().map(|action| match action {
        Action::Bind(it) => format!("bind {} to {}", it.pod, it.node),
        Action::NotifyUnschedulable(it) => format!("notify {}", it.pod),
        Action::Preempt(it) => format!("preempt on {} for {}", it.node, it.pod),
        other => format!("{other:?}"),
    });
    lines.collect()
}

#[test]
fn notices_from_before_a_loss_of_leadership_are_published_again_by_the_next_leader() {
    let mut core = new_core();
    let first = [node("n1"), pod("large", "8"), Message::LeadershipChanged(true)];
    assert_eq!(after(&mut core, first, 0), ["notify default/large"]);
    // It is not published twice, however often it is tried.
    assert_eq!(after(&mut core, [node("n2")], 2_000), [""; 0]);
    // The executor writes nothing without leadership, so it may never have been written.
    assert_eq!(after(&mut core, [Message::LeadershipChanged(false)], 10_000), [""; 0]);
    assert_eq!(
        after(&mut core, [Message::LeadershipChanged(true)], 20_000),
        ["notify default/large"]
    );
}

#[test]
fn news_that_comes_too_soon_after_the_last_notice_is_published_when_it_may_be() {
    let mut core = new_core();
    let member = |name: &str| {
        let Message::Change(Change::Pod(mut pod)) = pod_with(name, "1", json!({}), json!({}))
        else {
            unreachable!("it is a pod")
        };
        let labels = [("berth.dev/gang", "g"), ("berth.dev/gang-size", "4")];
        let labels = labels.map(|(key, value)| (key.to_owned(), value.to_owned()));
        pod.pod.metadata.labels = Some(labels.into());
        Message::Change(Change::Pod(pod))
    };
    let first = [node("n1"), member("a"), Message::LeadershipChanged(true)];
    assert_eq!(after(&mut core, first, 0), ["notify default/a"]);
    assert_eq!(after(&mut core, [member("b")], 1_000), ["notify default/b"]);
    assert_eq!(after(&mut core, [member("c")], 2_000), ["notify default/c"]);
    // By now all of them know of three, though nothing was tried again since.
    assert_eq!(after(&mut core, [], 29_000), [""; 0]);
    assert_eq!(after(&mut core, [], 30_000), ["notify default/a"]);
    assert_eq!(after(&mut core, [], 31_000), ["notify default/b"]);
    assert_eq!(after(&mut core, [], 32_000), [""; 0]);
}

#[test]
fn while_victims_are_terminating_no_further_pods_are_preempted() {
    let mut core = new_core();
    let first = [
        node("n1"),
        low("low-1", "n1", "4", "2026-01-01T00:00:00Z"),
        pod("high", "4"),
        Message::LeadershipChanged(true),
    ];
    let expected = ["notify default/high", "preempt on n1 for default/high"];
    assert_eq!(after(&mut core, first, 0), expected);
    assert_eq!(after(&mut core, [victims_were_deleted_for("high")], 1), [""; 0]);
    // The watch has not shown that it terminates, and now there is a cheaper victim.
    let cheaper = [node("n2"), low("low-2", "n2", "4", "2026-01-02T00:00:00Z")];
    assert_eq!(after(&mut core, cheaper, 2_000), [""; 0]);
    assert_eq!(after(&mut core, [deleted("low-1")], 10_000), ["bind default/high to n1"]);
}

#[test]
fn two_pods_nominated_to_one_node_wait_for_the_victims_of_both() {
    let mut core = new_core();
    let started = "2026-01-01T00:00:00Z";
    let lows = ["low-1", "low-2", "low-3", "low-4"].map(|name| low(name, "n1", "1", started));
    let rest =
        [node("n1"), pod("high-1", "1"), pod("high-2", "1"), Message::LeadershipChanged(true)];
    let room = |name: &str| format!("preempt on n1 for default/{name}");
    let lines = after(&mut core, lows.into_iter().chain(rest), 0);
    assert!(lines.contains(&room("high-1")) && lines.contains(&room("high-2")), "{lines:?}");
    let done = [victims_were_deleted_for("high-1"), victims_were_deleted_for("high-2")];
    assert_eq!(after(&mut core, done, 1), [""; 0]);
    // One victim is gone. Its room is nominated twice until the other one is gone as well.
    assert_eq!(after(&mut core, [deleted("low-4")], 2_000), [""; 0]);
    // Then they are tried at once, although they were refused a moment ago.
    let lines = after(&mut core, [deleted("low-3")], 2_001);
    assert_eq!(lines, ["bind default/high-1 to n1", "bind default/high-2 to n1"]);
}

/// A version of a pod as the API server reports it.
fn version_of(name: &str, uid: &str, version: u64, spec: Value) -> Message {
    let Message::Change(Change::Pod(mut pod)) = pod_with(name, "4", spec, json!({})) else {
        unreachable!("it is a pod")
    };
    pod.pod.metadata.uid = Some(uid.to_owned());
    pod.pod.metadata.resource_version = Some(version.to_string());
    Message::Change(Change::Pod(pod))
}

fn relisted(uids: &[&str], version: u64) -> Message {
    let uids = uids.iter().map(|uid| Arc::from(*uid)).collect();
    Message::Relisted { uids, version: Some(version) }
}

#[test]
fn a_pod_deleted_during_a_relist_does_not_come_back_with_the_list() {
    let mut core = new_core();
    let there = || version_of("old", "old", 5, json!({"nodeName": "n1"}));
    assert_eq!(after(&mut core, [node("n1"), there(), pod("new", "4")], 0), [""; 0]);
    // The list is of version 7; the watch has reported version 8 before the list arrives.
    let relist = [Message::RelistStarted, deleted("old"), there(), relisted(&["old", "new"], 7)];
    assert_eq!(after(&mut core, relist, 1), [""; 0]);
    assert_eq!(after(&mut core, [Message::LeadershipChanged(true)], 2), ["bind default/new to n1"]);
}

#[test]
fn an_older_pod_does_not_replace_a_newer_one_of_the_same_name() {
    let mut core = new_core();
    let second = version_of("a", "second", 9, json!({}));
    let first = version_of("a", "first", 5, json!({"nodeName": "n1"}));
    let relist = [node("n1"), Message::RelistStarted, second, first, relisted(&["first"], 7)];
    assert_eq!(after(&mut core, relist, 0), [""; 0]);
    assert_eq!(after(&mut core, [Message::LeadershipChanged(true)], 1), ["bind default/a to n1"]);
    assert_eq!(core.counts().pods, 1);
}

#[test]
fn a_newer_pod_replaces_an_older_one_of_the_same_name() {
    let mut core = new_core();
    let first = version_of("a", "first", 5, json!({"nodeName": "n1"}));
    let second = version_of("a", "second", 9, json!({}));
    let lines = after(&mut core, [node("n1"), Message::LeadershipChanged(true), first, second], 0);
    assert_eq!(lines, ["bind default/a to n1"]);
    assert_eq!(core.counts().pods, 1);
}

#[test]
fn a_late_read_of_a_deleted_pod_does_not_bring_it_back() {
    let mut core = new_core();
    let messages = [node("n1"), pod("a", "4"), Message::LeadershipChanged(true)];
    assert_eq!(after(&mut core, messages, 0), ["bind default/a to n1"]);
    let Message::Change(Change::Pod(seen)) = version_of("a", "a", 5, json!({"nodeName": "n1"}))
    else {
        unreachable!("it is a pod")
    };
    let result = ActionResult::PodChanged { uid: "a".into(), pod: seen };
    let changed = Message::ActionCompleted(result);
    assert_eq!(after(&mut core, [deleted("a"), changed], 1), [""; 0]);
    assert_eq!(after(&mut core, [pod("b", "4")], 2), ["bind default/b to n1"]);
}
