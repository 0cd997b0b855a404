//! The brain by itself: it is told something, and says what is to be done.

use std::sync::Arc;

use berth_engine::{Policy, Timestamp};
use k8s_openapi::api::core::v1 as core;
use prometheus_client::registry::Registry;
use serde_json::{Value, json};

use super::{Brain, Moment, Status};
use crate::cluster::pod::Key;
use crate::cluster::{Missing, Settings};
use crate::scheduler::drain::Drains;
use crate::scheduler::messages::{Change, Message, Report, Work};
use crate::scheduler::metrics::Metrics;

fn brain() -> Brain {
    let settings = Settings {
        scheduler: "berth".to_owned(),
        policy: Policy::builtin("balanced").expect("it is built in"),
        missing: Missing::Zero,
    };
    let metrics = Arc::new(Metrics::new(&mut Registry::default()));
    Brain::new(settings, Drains::new(1), Arc::new(Status::default()), metrics)
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

/// One that fills a node and is of low priority. The later it started, the sooner it has to go.
fn low(name: &str, node: &str, cpu: &str, started: &str) -> Message {
    let spec = json!({"nodeName": node, "priority": -1});
    pod_with(name, cpu, spec, json!({"phase": "Running", "startTime": started}))
}

fn gone(name: &str) -> Message {
    Message::Change(Change::PodGone(Key::new("default", name), name.into()))
}

fn was_told_to_go_for(name: &str) -> Message {
    Message::Report(Report::Preempted { uid: name.into(), done: true })
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

/// Tells the brain, lets it place whom it can, and returns who is to be bound or told.
fn after(
    brain: &mut Brain,
    messages: impl IntoIterator<Item = Message>,
    millis: u64,
) -> Vec<String> {
    let now = Moment { millis, date: Timestamp(0) };
    let mut work = Vec::new();
    for message in messages {
        assert!(brain.hear(message, now, &mut work).is_continue());
    }
    brain.settle(now);
    brain.step(now, 100, &mut work);
    let said = work.into_iter().map(|work| match work {
        Work::Bind(it) => format!("bind {} to {}", it.pod, it.node),
        Work::Tell(it) => format!("tell {}", it.pod),
        Work::Preempt(it) => format!("make room on {} for {}", it.node, it.pod),
        other => format!("{other:?}"),
    });
    said.collect()
}

#[test]
fn what_was_told_before_leadership_was_lost_is_told_again_by_whoever_leads() {
    let mut brain = brain();
    let first = [node("n1"), pod("large", "8"), Message::Lead(true)];
    assert_eq!(after(&mut brain, first, 0), ["tell default/large"]);
    // It is not told twice, however often it is tried.
    assert_eq!(after(&mut brain, [node("n2")], 2_000), [""; 0]);
    // The hands do not write for one who does not lead; so it may never have been written.
    assert_eq!(after(&mut brain, [Message::Lead(false)], 10_000), [""; 0]);
    assert_eq!(after(&mut brain, [Message::Lead(true)], 20_000), ["tell default/large"]);
}

#[test]
fn while_those_who_were_told_to_go_are_there_nobody_else_is_told() {
    let mut brain = brain();
    let first = [
        node("n1"),
        low("low-1", "n1", "4", "2026-01-01T00:00:00Z"),
        pod("high", "4"),
        Message::Lead(true),
    ];
    let told = ["tell default/high", "make room on n1 for default/high"];
    assert_eq!(after(&mut brain, first, 0), told);
    assert_eq!(after(&mut brain, [was_told_to_go_for("high")], 1), [""; 0]);
    // That it goes has not been seen yet, and now another could go that hurts less.
    let cheaper = [node("n2"), low("low-2", "n2", "4", "2026-01-02T00:00:00Z")];
    assert_eq!(after(&mut brain, cheaper, 2_000), [""; 0]);
    assert_eq!(after(&mut brain, [gone("low-1")], 10_000), ["bind default/high to n1"]);
}

#[test]
fn two_who_are_promised_one_node_wait_for_the_victims_of_both() {
    let mut brain = brain();
    let started = "2026-01-01T00:00:00Z";
    let lows = ["low-1", "low-2", "low-3", "low-4"].map(|name| low(name, "n1", "1", started));
    let rest = [node("n1"), pod("high-1", "1"), pod("high-2", "1"), Message::Lead(true)];
    let room = |name: &str| format!("make room on n1 for default/{name}");
    let said = after(&mut brain, lows.into_iter().chain(rest), 0);
    assert!(said.contains(&room("high-1")) && said.contains(&room("high-2")), "{said:?}");
    let done = [was_told_to_go_for("high-1"), was_told_to_go_for("high-2")];
    assert_eq!(after(&mut brain, done, 1), [""; 0]);
    // One has been seen to go. Its room is promised twice until the other has gone as well.
    assert_eq!(after(&mut brain, [gone("low-4")], 2_000), [""; 0]);
    let said = after(&mut brain, [gone("low-3")], 10_000);
    assert_eq!(said, ["bind default/high-1 to n1", "bind default/high-2 to n1"]);
}

/// A pod of that name as an API server tells of it: which one it is, and when it was so.
fn version_of(name: &str, uid: &str, version: u64, spec: Value) -> Message {
    let Message::Change(Change::Pod(mut pod)) = pod_with(name, "4", spec, json!({})) else {
        unreachable!("it is a pod")
    };
    pod.metadata.uid = Some(uid.to_owned());
    pod.metadata.resource_version = Some(version.to_string());
    Message::Change(Change::Pod(pod))
}

fn fresh(uids: &[&str], version: u64) -> Message {
    let uids = uids.iter().map(|uid| Arc::from(*uid)).collect();
    Message::Fresh { uids, version: Some(version) }
}

#[test]
fn a_pod_that_went_while_all_were_listed_does_not_come_back_with_the_list() {
    let mut brain = brain();
    let there = || version_of("old", "old", 5, json!({"nodeName": "n1"}));
    assert_eq!(after(&mut brain, [node("n1"), there(), pod("new", "4")], 0), [""; 0]);
    // The list is as of version 7; the watch has told of 8 before the list has come.
    let takeover = [Message::Listing, gone("old"), there(), fresh(&["old", "new"], 7)];
    assert_eq!(after(&mut brain, takeover, 1), [""; 0]);
    assert_eq!(after(&mut brain, [Message::Lead(true)], 2), ["bind default/new to n1"]);
}

#[test]
fn an_older_pod_of_the_same_name_does_not_take_the_place_of_the_newer() {
    let mut brain = brain();
    let second = version_of("a", "second", 9, json!({}));
    let first = version_of("a", "first", 5, json!({"nodeName": "n1"}));
    let takeover = [node("n1"), Message::Listing, second, first, fresh(&["first"], 7)];
    assert_eq!(after(&mut brain, takeover, 0), [""; 0]);
    assert_eq!(after(&mut brain, [Message::Lead(true)], 1), ["bind default/a to n1"]);
    assert_eq!(brain.counts().pods, 1);
}

#[test]
fn a_newer_pod_of_the_same_name_takes_the_place_of_the_older() {
    let mut brain = brain();
    let first = version_of("a", "first", 5, json!({"nodeName": "n1"}));
    let second = version_of("a", "second", 9, json!({}));
    let said = after(&mut brain, [node("n1"), Message::Lead(true), first, second], 0);
    assert_eq!(said, ["bind default/a to n1"]);
    assert_eq!(brain.counts().pods, 1);
}

#[test]
fn a_look_at_a_pod_that_has_gone_since_does_not_bring_it_back() {
    let mut brain = brain();
    let told = [node("n1"), pod("a", "4"), Message::Lead(true)];
    assert_eq!(after(&mut brain, told, 0), ["bind default/a to n1"]);
    let Message::Change(Change::Pod(seen)) = version_of("a", "a", 5, json!({"nodeName": "n1"}))
    else {
        unreachable!("it is a pod")
    };
    let changed = Message::Report(Report::Changed { uid: "a".into(), pod: seen });
    assert_eq!(after(&mut brain, [gone("a"), changed], 1), [""; 0]);
    assert_eq!(after(&mut brain, [pod("b", "4")], 2), ["bind default/b to n1"]);
}
