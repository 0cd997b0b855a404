//! Carries out the actions of the core by requests to the API server, and reports the outcomes.
//!
//! Makes no scheduling decisions. Every change to the cluster first checks that this replica still
//! leads.

mod binder;
mod devices;
mod drains;
mod elastic;
mod event_recorder;
mod failure;
mod gangs;
mod preemption;
mod volumes;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use kube::{Api, Client};
use tokio::sync::{Semaphore, mpsc};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::messages::{Action, ActionResult, Message, NodeWarning, RecalledBindings};
use super::metrics::Metrics;
use crate::client::backoff_delay;
use crate::cluster::observed_pod::ObservedPod;
use crate::leader_election::Leadership;
pub(crate) use event_recorder::EVENTS_MAX;
use event_recorder::EventRecorder;
pub(crate) use failure::ApiFailure;

/// Retries of a request after transient failures.
const RETRIES: u32 = 6;
/// The reason of a request that was not sent.
const NOT_LEADER: &str = "this replica is not the leader any more";

/// Timeouts and limits of concurrency.
#[derive(Clone, Debug)]
pub(crate) struct Limits {
    /// Pods that are bound concurrently.
    pub(crate) binds: usize,
    /// Timeout of one request.
    pub(crate) request: Duration,
    /// How long volumes may take to be bound or provisioned.
    pub(crate) volumes: Duration,
    /// Events and conditions written per second.
    pub(crate) notices_per_s: u32,
}

/// See the module.
#[derive(Clone)]
pub(crate) struct ApiExecutor {
    inner: Arc<Inner>,
}

struct Inner {
    client: Client,
    leadership: Leadership,
    limits: Limits,
    permits: Semaphore,
    inbox: mpsc::Sender<Message>,
    /// The scheduler name.
    name: String,
    metrics: Arc<Metrics>,
    events: EventRecorder,
    recalled: RecalledBindings,
    tasks: TaskTracker,
    /// Cancelled when nothing new may be started.
    stopping: CancellationToken,
}

impl ApiExecutor {
    pub(crate) fn new(
        client: Client,
        (name, identity): (&str, &str),
        (leadership, recalled): (Leadership, RecalledBindings),
        limits: Limits,
        inbox: mpsc::Sender<Message>,
        metrics: Arc<Metrics>,
    ) -> Self {
        let permits = Semaphore::new(limits.binds);
        let events = EventRecorder::start(
            client.clone(),
            name,
            identity,
            limits.notices_per_s,
            leadership.clone(),
            Arc::clone(&metrics),
        );
        let (tasks, stopping) = (TaskTracker::new(), CancellationToken::new());
        let name = name.to_owned();
        let inner = Inner {
            client,
            leadership,
            limits,
            permits,
            inbox,
            name,
            metrics,
            events,
            recalled,
            tasks,
            stopping,
        };
        Self { inner: Arc::new(inner) }
    }

    /// Executes actions until the channel is closed.
    pub(crate) async fn run(&self, mut actions: mpsc::UnboundedReceiver<Action>) {
        let (statuses, mut written) = mpsc::unbounded_channel();
        let writer = self.clone();
        self.inner.tasks.spawn(async move {
            while let Some(status) = written.recv().await {
                writer.write_drain_status(status).await;
            }
        });
        while let Some(action) = actions.recv().await {
            let executor = self.clone();
            match action {
                Action::NotifyUnschedulable(notice) => {
                    self.inner.events.record_unschedulable(notice)
                }
                // In order: an older status must not overwrite a newer one.
                Action::WriteDrainStatus(status) => drop(statuses.send(status)),
                other => drop(self.inner.tasks.spawn(async move { executor.execute(other).await })),
            }
        }
    }

    /// Starts nothing new, and waits for everything in progress.
    pub(crate) async fn shut_down(&self) {
        self.inner.stopping.cancel();
        self.inner.tasks.close();
        self.inner.tasks.wait().await;
    }

    async fn execute(&self, action: Action) {
        match action {
            Action::Bind(reservation) => self.bind_pod(*reservation).await,
            Action::BindGang { gang, members } => self.bind_gang(&gang, members).await,
            Action::Preempt(preemption) => self.preempt(*preemption).await,
            Action::ReleaseClaims { uid, claims } => self.release_claims(&uid, claims).await,
            Action::ClearNomination { pod, uid } => self.clear_nomination(&pod, &uid).await,
            Action::NotifyUnschedulable(notice) => self.inner.events.record_unschedulable(notice),
            Action::Cordon { node } => self.cordon_node(&node).await,
            Action::Evict { pod, uid } => self.evict_pod(&pod, &uid).await,
            Action::WriteDrainStatus(status) => self.write_drain_status(status).await,
            Action::StorePermit(write) => self.store_permit(*write).await,
            Action::Migrate { leaver, timeout_s } => self.migrate(*leaver, timeout_s).await,
            Action::EvictForPressure(leaver) => self.evict_for_pressure(*leaver).await,
            Action::DeleteMigration { migration, is_late } => {
                self.delete_migration(&migration, is_late).await;
            }
            Action::NotifyPolicy(notice) => self.inner.events.record_policy(notice),
            Action::WarnOfNode { node, warning, note } => {
                let (reason, action) = match warning {
                    NodeWarning::Overfull => ("NodeOverfull", "Scheduling"),
                    NodeWarning::PressureStays => ("PressureStays", "Relieving"),
                };
                self.inner.events.record_node_event(&node, true, (reason, action), note);
            }
        }
    }

    fn is_leader(&self) -> bool {
        !self.inner.stopping.is_cancelled() && self.inner.leadership.is_leader()
    }

    fn pods(&self, namespace: &str) -> Api<ObservedPod> {
        Api::namespaced(self.inner.client.clone(), namespace)
    }

    /// Sends a result to the core, which has stopped if this fails.
    async fn send_result(&self, result: ActionResult) {
        let _ = self.inner.inbox.send(Message::ActionCompleted(result)).await;
    }

    /// Sends a request with a timeout, and counts failures.
    async fn call<T>(
        &self,
        verb: &'static str,
        request: impl Future<Output = Result<T, kube::Error>>,
    ) -> Result<T, ApiFailure> {
        call(&self.inner.metrics, self.inner.limits.request, verb, request).await
    }

    /// Retries a request after transient failures, as long as this replica leads.
    async fn retry<T, F, R>(&self, request: F) -> Result<T, ApiFailure>
    where
        F: Fn() -> R,
        R: Future<Output = Result<T, ApiFailure>>,
    {
        let mut failures = 0;
        loop {
            if !self.is_leader() {
                return Err(ApiFailure::Rejected(NOT_LEADER.to_owned()));
            }
            match request().await {
                Err(failure) if failure.is_transient() && failures < RETRIES => failures += 1,
                answer => return answer,
            }
            tokio::time::sleep(backoff_delay(failures)).await;
        }
    }
}

async fn call<T>(
    metrics: &Metrics,
    timeout: Duration,
    verb: &'static str,
    request: impl Future<Output = Result<T, kube::Error>>,
) -> Result<T, ApiFailure> {
    let error = match tokio::time::timeout(timeout, request).await {
        Ok(Ok(answer)) => return Ok(answer),
        Ok(Err(error)) => error,
        Err(_) => {
            metrics.record_api_error(verb, "timeout");
            return Err(ApiFailure::timed_out(timeout));
        }
    };
    let (failure, code) = ApiFailure::classify(&error);
    metrics.record_api_error(verb, &code);
    Err(failure)
}
