//! The brain without an API server: messages in, work out.

use std::sync::Arc;

use berth_engine::{Policy, Timestamp};
use k8s_openapi::api::core::v1 as core;
use prometheus_client::registry::Registry;
use serde_json::{Value, json};

use super::{Brain, Moment, Status};
use crate::cluster::{Missing, Settings};
use crate::scheduler::drain::Drains;
use crate::scheduler::messages::{Change, Message, Report, Work};
use crate::scheduler::metrics::Metrics;

struct World {
    brain: Brain,
    millis: u64,
}

impl World {
    /// A cluster with these nodes of one CPU, and a brain that leads.
    fn new(nodes: &[&str]) -> Self {
        let mut world = Self::waiting(&[]);
        for node in nodes {
            world.node(node);
        }
        world.hear(Message::Lead(true));
        world
    }

    fn waiting(kinds: &[&'static str]) -> Self {
        let policy = Policy::builtin("balanced").unwrap();
        let settings = Settings { scheduler: "berth".to_owned(), policy, missing: Missing::Zero };
        let metrics = Arc::new(Metrics::new(&mut Registry::default()));
        let status = Arc::new(Status::waiting_for(kinds));
        Self { brain: Brain::new(settings, Drains::new(1), status, metrics), millis: 0 }
    }

    fn now(&self) -> Moment {
        Moment { millis: self.millis, date: Timestamp(0) }
    }

    fn hear(&mut self, message: Message) -> Vec<Work> {
        let (mut work, now) = (Vec::new(), self.now());
        let _ = self.brain.hear(message, now, &mut work);
        work
    }

    fn step(&mut self) -> Vec<Work> {
        let (mut work, now) = (Vec::new(), self.now());
        self.brain.settle(now);
        self.brain.step(now, 100, &mut work);
        work
    }

    fn after(&mut self, millis: u64) -> Vec<Work> {
        self.millis += millis;
        self.step()
    }

    fn node(&mut self, name: &str) {
        let node = json!({
            "metadata": {"name": name},
            "status": {"allocatable": {"cpu": "1", "memory": "1Gi", "pods": "10"}},
        });
        let node: core::Node = serde_json::from_value(node).unwrap();
        self.hear(Message::Change(Change::Node(Box::new(node))));
    }

    fn pod(&mut self, name: &str, version: u64, cpu: &str, more: Value) -> Vec<Work> {
        self.hear(Message::Change(Change::Pod(pod(name, version, cpu, more))))
    }

    fn pending(&self) -> usize {
        self.brain.counts().pending
    }
}

/// A pod; its uid is its name. `more` is its node, or its labels.
fn pod(name: &str, version: u64, cpu: &str, more: Value) -> Box<core::Pod> {
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

/// What is to be done, in short.
fn short(work: &[Work]) -> Vec<String> {
    work.iter()
        .map(|work| match work {
            Work::Bind(it) => format!("bind {} to {}", it.pod.name, it.node),
            Work::BindGang { gang, members } => format!("bind {} of {}", members.len(), gang.name),
            Work::Preempt(it) => format!("preempt for {}", it.pod.name),
            Work::Unnominate { pod, .. } => format!("unnominate {}", pod.name),
            Work::Tell(notice) => format!("tell {}", notice.pod.name),
            Work::Cordon { node } => format!("cordon {node}"),
            Work::Evict { pod, .. } => format!("evict {}", pod.name),
            Work::DrainStatus(status) => format!("status of {}", status.node),
        })
        .collect()
}

#[test]
fn nothing_is_placed_before_everything_was_listed_and_we_lead() {
    let mut world = World::waiting(&["nodes", "pods"]);
    world.node("n1");
    world.pod("a", 1, "1", json!({}));
    world.hear(Message::Lead(true));
    world.hear(Message::Listed("nodes"));
    assert!(world.step().is_empty());
    world.hear(Message::Listed("pods"));
    world.hear(Message::Lead(false));
    assert!(world.step().is_empty());
    world.hear(Message::Lead(true));
    assert_eq!(short(&world.step()), ["bind a to n1"]);
}

#[test]
fn an_older_state_of_a_pod_undoes_nothing() {
    let mut world = World::new(&["n1"]);
    world.pod("a", 10, "1", json!({"node": "n1"}));
    world.pod("a", 9, "1", json!({}));
    world.pod("b", 11, "1", json!({}));
    assert_eq!(short(&world.step()), ["tell b"]);
}

#[test]
fn a_reserved_place_is_kept_until_the_watch_shows_the_pod_there_or_it_is_given_up() {
    let mut world = World::new(&["n1"]);
    world.pod("a", 1, "1", json!({}));
    assert_eq!(short(&world.step()), ["bind a to n1"]);
    world.pod("b", 2, "1", json!({}));
    // Its condition changed; it is still without a node, as the watch sees it.
    world.pod("a", 3, "1", json!({}));
    assert_eq!(short(&world.step()), ["tell b"]);
    world.millis += 500;
    let told = world.hear(Message::Report(Report::Failed {
        uid: "a".into(),
        why: "binding to n1 was refused".to_owned(),
    }));
    assert_eq!(short(&told), ["tell a"]);
    // Whoever waits takes the place; the other one keeps away for a second.
    assert_eq!(short(&world.after(500)), ["bind b to n1"]);
    assert_eq!(short(&world.after(60_500)), ["tell a"]);
}

#[test]
fn a_pod_that_the_watch_shows_on_a_node_is_not_told_that_it_could_not_be_bound() {
    let mut world = World::new(&["n1"]);
    world.pod("a", 1, "1", json!({}));
    world.step();
    world.pod("a", 2, "1", json!({"node": "n1"}));
    let why = "binding was refused: it is bound".to_owned();
    let told = world.hear(Message::Report(Report::Failed { uid: "a".into(), why }));
    assert!(told.is_empty());
    assert!(world.after(60_000).is_empty());
}

#[test]
fn a_pod_that_was_seen_to_be_gone_does_not_come_back_by_old_news() {
    let mut world = World::new(&["n1"]);
    world.pod("a", 1, "1", json!({}));
    world.step();
    world.hear(Message::Report(Report::Gone { uid: "a".into() }));
    world.pod("a", 2, "1", json!({}));
    assert!(world.after(60_000).is_empty());
    world.pod("b", 3, "1", json!({}));
    assert_eq!(short(&world.step()), ["bind b to n1"]);
}

#[test]
fn a_pod_that_another_bound_elsewhere_counts_there() {
    let mut world = World::new(&["n1", "n2"]);
    world.pod("a", 1, "1", json!({}));
    let given = short(&world.step());
    let other = if given == ["bind a to n1"] { "n2" } else { "n1" };
    let seen = pod("a", 5, "1", json!({"node": other}));
    world.hear(Message::Report(Report::Changed { uid: "a".into(), pod: seen }));
    world.pod("b", 6, "1", json!({}));
    let free = if other == "n2" { "n1" } else { "n2" };
    assert_eq!(short(&world.step()), [format!("bind b to {free}")]);
}

#[test]
fn what_was_not_tried_because_we_did_not_lead_is_placed_when_we_do() {
    let mut world = World::new(&["n1"]);
    world.pod("a", 1, "1", json!({}));
    world.step();
    world.hear(Message::Lead(false));
    world.hear(Message::Report(Report::NotLeading { uid: "a".into() }));
    assert!(world.step().is_empty());
    world.hear(Message::Lead(true));
    assert_eq!(short(&world.step()), ["bind a to n1"]);
}

#[test]
fn a_fresh_list_removes_what_is_not_in_it_unless_it_is_newer() {
    let mut world = World::new(&["n1"]);
    for (name, version) in [("old", 5), ("listed", 6), ("newer", 9)] {
        world.pod(name, version, "100m", json!({"node": "n1"}));
    }
    let uids = ["listed"].into_iter().map(Arc::from).collect();
    world.hear(Message::Fresh { uids, version: Some(7) });
    assert_eq!(world.brain.counts().pods, 2);
    world.pod("next", 10, "850m", json!({}));
    assert_eq!(short(&world.step()), ["tell next"]);
    world.pod("small", 11, "800m", json!({}));
    assert_eq!(short(&world.step()), ["bind small to n1"]);
}

#[test]
fn the_same_refusal_is_told_once_in_five_minutes_and_another_at_once() {
    let mut world = World::new(&["n1"]);
    world.pod("a", 1, "5", json!({}));
    assert_eq!(short(&world.step()), ["tell a"]);
    assert_eq!((told_in(&mut world, 299), told_in(&mut world, 120)), (0, 1));
    // Another reason: there is no node any more.
    let gone = crate::cluster::pod::Key::new("", "n1");
    world.hear(Message::Change(Change::NodeGone(gone)));
    assert_eq!(told_in(&mut world, 70), 1);
    assert_eq!(world.brain.told["a"].code, "no_nodes");
}

/// How often something is told in so many seconds.
fn told_in(world: &mut World, seconds: u64) -> usize {
    (0..seconds).map(|_| world.after(1_000).len()).sum()
}

#[test]
fn a_gang_of_which_one_could_not_be_bound_is_placed_again_as_a_whole() {
    let mut world = World::new(&["n1", "n2"]);
    let gang = json!({"labels": {"berth.dev/gang": "g", "berth.dev/gang-size": "2"}});
    world.pod("g1", 1, "1", gang.clone());
    assert_eq!(short(&world.step()), ["tell g1"]);
    world.pod("g2", 2, "1", gang);
    assert_eq!(short(&world.step()), ["bind 2 of g"]);
    for uid in ["g1", "g2"] {
        let why = "none is bound".to_owned();
        world.hear(Message::Report(Report::Failed { uid: uid.into(), why }));
    }
    assert_eq!(world.pending(), 2);
    assert!(world.step().is_empty());
    assert_eq!(short(&world.after(2_000)), ["bind 2 of g"]);
}

#[test]
fn a_pod_whose_labels_were_mended_is_tried_at_once() {
    let mut world = World::new(&["n1"]);
    let wrong = json!({"labels": {"berth.dev/gang": "g", "berth.dev/gang-size": "many"}});
    world.pod("a", 1, "1", wrong);
    assert_eq!(short(&world.step()), ["tell a"]);
    let right = json!({"labels": {"berth.dev/gang": "g", "berth.dev/gang-size": "1"}});
    world.pod("a", 2, "1", right);
    assert_eq!(short(&world.step()), ["bind 1 of g"]);
}
