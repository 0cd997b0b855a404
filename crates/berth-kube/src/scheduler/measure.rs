//! How fast the scheduler's own logic is: the real loop, without an API server.
//!
//! The same queue, cluster and loop as in service. A second thread stands for the API server: it takes
//! each binding and tells it back as a watch would.

use std::sync::{Arc, mpsc as blocking};
use std::time::Duration;

use berth_engine::Timestamp;
use k8s_openapi::api::core::v1 as core;
use prometheus_client::registry::Registry;
use rustc_hash::FxHashMap;
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::brain::drive::drive;
use super::brain::{Brain, Moment, Status};
use super::drain::Drains;
use super::messages::{Change, Message, Work};
use super::metrics::Metrics;
use crate::cluster::Settings;

/// What was measured.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Measured {
    /// Nodes there were.
    pub nodes: usize,
    /// Pods there were.
    pub pods: usize,
    /// Pods that were bound.
    pub placed: usize,
    /// Pods that had no place.
    pub refused: usize,
    /// Pods a second, from the first that was told of until the last was decided and seen on its node.
    pub pods_per_s: u64,
    /// Microseconds from when the first pod was told of to when a pod was decided: half of all pods
    /// took no longer.
    pub p50_us: u64,
    /// The same for 99 of a hundred.
    pub p99_us: u64,
    /// The same for all.
    pub max_us: u64,
}

/// Feeds nodes, then pods, to the real loop, and measures until every pod is bound or refused.
///
/// # Errors
/// When a thread cannot be started.
pub fn measure(
    settings: Settings,
    nodes: Vec<core::Node>,
    pods: Vec<core::Pod>,
) -> std::io::Result<Measured> {
    let metrics = Arc::new(Metrics::new(&mut Registry::default()));
    let mut brain = Brain::new(settings, Drains::new(1), Arc::new(Status::default()), metrics);
    let (inbox, mut told) = mpsc::channel(8_192);
    let (decisions, decided) = blocking::channel();
    let (node_count, pod_count) = (nodes.len(), pods.len());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
    let clock = Instant::now();
    let moment = || Moment {
        millis: u64::try_from(clock.elapsed().as_millis()).unwrap_or(u64::MAX),
        date: Timestamp(0),
    };
    let mut work = Vec::new();
    let lead = [Message::Lead(true)].into_iter();
    let nodes = nodes.into_iter().map(|it| Message::Change(Change::Node(Box::new(it))));
    for message in nodes.chain(lead) {
        let _ = brain.hear(message, moment(), &mut work);
    }
    let outside = Outside { by_uid: FxHashMap::default(), inbox, decided };
    let thread = std::thread::Builder::new().name("outside".to_owned());
    let outside = thread.spawn(move || outside.play(pods))?;
    // The other side ends when it has heard of every pod, and then tells the brain to stop.
    let hand_out = |work| drop(decisions.send((work, Instant::now())));
    runtime.block_on(drive(&mut brain, &mut told, moment, hand_out));
    let ended = Instant::now();
    let Ok(seen) = outside.join() else {
        return Err(std::io::Error::other("the thread that stands for the API server panicked"));
    };
    Ok(seen.measured(node_count, pod_count, ended))
}

/// Stands for the API server.
struct Outside {
    by_uid: FxHashMap<Arc<str>, Box<core::Pod>>,
    inbox: mpsc::Sender<Message>,
    decided: blocking::Receiver<(Work, Instant)>,
}

/// What it saw.
struct Seen {
    began: Instant,
    placed: usize,
    refused: usize,
    latencies: Vec<Duration>,
}

impl Outside {
    fn play(mut self, pods: Vec<core::Pod>) -> Seen {
        let total = pods.len();
        let began = Instant::now();
        let mut seen = Seen { began, placed: 0, refused: 0, latencies: Vec::with_capacity(total) };
        for pod in pods {
            let uid: Arc<str> = pod.metadata.uid.as_deref().unwrap_or_default().into();
            self.by_uid.insert(uid, Box::new(pod.clone()));
            // The brain ends only when it is told to, below.
            let _ = self.inbox.blocking_send(Message::Change(Change::Pod(Box::new(pod))));
            while let Ok(decision) = self.decided.try_recv() {
                self.hear(decision, &mut seen);
            }
        }
        while seen.latencies.len() < total {
            let Ok(decision) = self.decided.recv() else { break };
            self.hear(decision, &mut seen);
        }
        let _ = self.inbox.blocking_send(Message::Stop);
        seen
    }

    fn hear(&mut self, (work, at): (Work, Instant), seen: &mut Seen) {
        let took = at.duration_since(seen.began);
        match work {
            Work::Bind(reservation) => {
                seen.placed += 1;
                seen.latencies.push(took);
                self.bind(&reservation.uid, &reservation.node);
            }
            Work::BindGang { members, .. } => {
                for member in members {
                    seen.placed += 1;
                    seen.latencies.push(took);
                    self.bind(&member.uid, &member.node);
                }
            }
            Work::Tell(notice) if notice.first => {
                seen.refused += 1;
                seen.latencies.push(took);
            }
            Work::Tell(_)
            | Work::Preempt(_)
            | Work::Unnominate { .. }
            | Work::Cordon { .. }
            | Work::Evict { .. }
            | Work::DrainStatus(_) => {}
        }
    }

    /// The binding succeeds at once, and the watch tells of it.
    fn bind(&mut self, uid: &Arc<str>, node: &Arc<str>) {
        let Some(mut pod) = self.by_uid.remove(uid) else { return };
        pod.spec.get_or_insert_default().node_name = Some(node.to_string());
        pod.metadata.resource_version = pod.metadata.resource_version.map(|it| format!("{it}0"));
        let _ = self.inbox.blocking_send(Message::Change(Change::Pod(pod)));
    }
}

impl Seen {
    fn measured(mut self, nodes: usize, pods: usize, ended: Instant) -> Measured {
        let all_us =
            u64::try_from(ended.duration_since(self.began).as_micros()).unwrap_or(u64::MAX);
        self.latencies.sort_unstable();
        let micros = |it: &Duration| u64::try_from(it.as_micros()).unwrap_or(u64::MAX);
        let last = self.latencies.len().saturating_sub(1);
        let at = |percent: usize| self.latencies.get(last * percent / 100).map_or(0, micros);
        let count = u64::try_from(self.latencies.len()).unwrap_or(u64::MAX);
        Measured {
            nodes,
            pods,
            placed: self.placed,
            refused: self.refused,
            pods_per_s: count.saturating_mul(1_000_000) / all_us.max(1),
            p50_us: at(50),
            p99_us: at(99),
            max_us: at(100),
        }
    }
}
