//! Benchmark of the scheduling logic: the real event loop without an API server.
//!
//! Queue, cluster and loop are those of the service. A second thread stands in for the API server: it
//! accepts each binding and reports it back as a watch would.

use std::sync::{Arc, mpsc as blocking};
use std::time::Duration;

use berth_engine::Timestamp;
use k8s_openapi::api::core::v1 as core;
use prometheus_client::registry::Registry;
use rustc_hash::FxHashMap;
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::core::SchedulerCore;
use super::core::event_loop::run_event_loop;
use super::drain::DrainTracker;
use super::messages::{Action, Change, Message, SyncStatus};
use super::metrics::Metrics;
use super::queue::Moment;
use crate::cluster::Settings;

/// The result of a benchmark.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct BenchmarkResult {
    /// Nodes in the cluster.
    pub nodes: usize,
    /// Pods to schedule.
    pub pods: usize,
    /// Pods that were bound.
    pub placed: usize,
    /// Pods that were unschedulable.
    pub refused: usize,
    /// Pods per second, from the first pod created until the last was decided and shown on its node.
    pub pods_per_s: u64,
    /// Microseconds from the creation of the first pod to the decision on a pod: the median.
    pub p50_us: u64,
    /// The 99th percentile.
    pub p99_us: u64,
    /// The maximum.
    pub max_us: u64,
}

/// Feeds nodes, then pods, to the event loop, and measures until every pod is bound or refused.
///
/// # Errors
/// When a thread cannot be started.
pub fn run_benchmark(
    settings: Settings,
    nodes: Vec<core::Node>,
    pods: Vec<core::Pod>,
) -> std::io::Result<BenchmarkResult> {
    let metrics = Arc::new(Metrics::new(&mut Registry::default()));
    let mut core = SchedulerCore::new(
        settings,
        DrainTracker::new(1),
        Arc::new(SyncStatus::default()),
        metrics,
    );
    let (inbox, mut messages) = mpsc::channel(8_192);
    let (decisions, decided) = blocking::channel();
    let (node_count, pod_count) = (nodes.len(), pods.len());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
    let clock = Instant::now();
    let moment = || Moment {
        millis: u64::try_from(clock.elapsed().as_millis()).unwrap_or(u64::MAX),
        date: Timestamp(0),
    };
    let mut actions = Vec::new();
    let lead = [Message::LeadershipChanged(true)].into_iter();
    let nodes = nodes.into_iter().map(|it| Message::Change(Change::Node(Box::new(it))));
    for message in nodes.chain(lead) {
        let _ = core.handle_message(message, moment(), &mut actions);
    }
    let stub = ApiServerStub { by_uid: FxHashMap::default(), inbox, decided };
    let thread = std::thread::Builder::new().name("api-server-stub".to_owned());
    let stub = thread.spawn(move || stub.run(pods))?;
    // The stub ends when every pod was decided, and then stops the core.
    let submit = |action| drop(decisions.send((action, Instant::now())));
    runtime.block_on(run_event_loop(&mut core, &mut messages, moment, submit));
    let ended = Instant::now();
    let Ok(log) = stub.join() else {
        return Err(std::io::Error::other("the thread that stands for the API server panicked"));
    };
    Ok(log.summarize(node_count, pod_count, ended))
}

/// Stands in for the API server.
struct ApiServerStub {
    by_uid: FxHashMap<Arc<str>, Box<core::Pod>>,
    inbox: mpsc::Sender<Message>,
    decided: blocking::Receiver<(Action, Instant)>,
}

/// The decisions it received.
struct AttemptLog {
    began: Instant,
    placed: usize,
    refused: usize,
    latencies: Vec<Duration>,
}

impl ApiServerStub {
    fn run(mut self, pods: Vec<core::Pod>) -> AttemptLog {
        let total = pods.len();
        let began = Instant::now();
        let mut log =
            AttemptLog { began, placed: 0, refused: 0, latencies: Vec::with_capacity(total) };
        for pod in pods {
            let uid: Arc<str> = pod.metadata.uid.as_deref().unwrap_or_default().into();
            self.by_uid.insert(uid, Box::new(pod.clone()));
            // The core stops only after the message below.
            let _ = self.inbox.blocking_send(Message::Change(Change::Pod(Box::new(pod.into()))));
            while let Ok(decision) = self.decided.try_recv() {
                self.record(decision, &mut log);
            }
        }
        while log.latencies.len() < total {
            let Ok(decision) = self.decided.recv() else { break };
            self.record(decision, &mut log);
        }
        let _ = self.inbox.blocking_send(Message::Stop);
        log
    }

    fn record(&mut self, (action, at): (Action, Instant), log: &mut AttemptLog) {
        let latency = at.duration_since(log.began);
        match action {
            Action::Bind(reservation) => {
                log.placed += 1;
                log.latencies.push(latency);
                self.bind(&reservation.uid, &reservation.node);
            }
            Action::BindGang { members, .. } => {
                for member in members {
                    log.placed += 1;
                    log.latencies.push(latency);
                    self.bind(&member.uid, &member.node);
                }
            }
            Action::NotifyUnschedulable(notice) if notice.first => {
                log.refused += 1;
                log.latencies.push(latency);
            }
            Action::NotifyUnschedulable(_)
            | Action::Preempt(_)
            | Action::ClearNomination { .. }
            | Action::ReleaseClaims { .. }
            | Action::Cordon { .. }
            | Action::Evict { .. }
            | Action::WarnOfNode { .. }
            | Action::WriteDrainStatus(_)
            | Action::StorePermit(_)
            | Action::Migrate { .. }
            | Action::EvictForPressure(_)
            | Action::DeleteMigration { .. }
            | Action::NotifyPolicy(_) => {}
        }
    }

    /// The binding succeeds at once, and the watch shows it.
    fn bind(&mut self, uid: &Arc<str>, node: &Arc<str>) {
        let Some(mut pod) = self.by_uid.remove(uid) else { return };
        pod.spec.get_or_insert_default().node_name = Some(node.to_string());
        pod.metadata.resource_version = pod.metadata.resource_version.map(|it| format!("{it}0"));
        let _ = self.inbox.blocking_send(Message::Change(Change::Pod(Box::new((*pod).into()))));
    }
}

impl AttemptLog {
    fn summarize(mut self, nodes: usize, pods: usize, ended: Instant) -> BenchmarkResult {
        let all_us =
            u64::try_from(ended.duration_since(self.began).as_micros()).unwrap_or(u64::MAX);
        self.latencies.sort_unstable();
        let micros = |it: &Duration| u64::try_from(it.as_micros()).unwrap_or(u64::MAX);
        let last = self.latencies.len().saturating_sub(1);
        let at = |percent: usize| self.latencies.get(last * percent / 100).map_or(0, micros);
        let count = u64::try_from(self.latencies.len()).unwrap_or(u64::MAX);
        BenchmarkResult {
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
