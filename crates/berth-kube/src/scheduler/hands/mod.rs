//! Does what the brain wants done, by requests to the API server, and reports what became of it.
//!
//! Decides nothing about places. Whatever changes the cluster first asks whether we still lead.

mod bind;
mod failure;
mod gang;
mod nodes;
mod preempt;
mod tell;
mod volumes;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1 as core;
use kube::{Api, Client};
use tokio::sync::{Semaphore, mpsc};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::messages::{Message, Report, Work};
use super::metrics::Metrics;
use crate::lease::Leadership;
pub(crate) use failure::Failure;
use tell::Teller;

/// How patient we are, and how much is done at once.
#[derive(Clone, Debug)]
pub(crate) struct Limits {
    /// Pods that are bound at once.
    pub(crate) binds: usize,
    /// How long one request may take.
    pub(crate) request: Duration,
    /// How long volumes may take to be bound or made.
    pub(crate) volumes: Duration,
    /// Events and conditions that are written in a second.
    pub(crate) notices_per_s: u32,
}

/// See the module.
#[derive(Clone)]
pub(crate) struct Hands {
    inner: Arc<Inner>,
}

struct Inner {
    client: Client,
    leadership: Leadership,
    limits: Limits,
    permits: Semaphore,
    brain: mpsc::Sender<Message>,
    metrics: Arc<Metrics>,
    teller: Teller,
    tasks: TaskTracker,
    /// Nothing new is begun.
    stopping: CancellationToken,
}

impl Hands {
    pub(crate) fn new(
        client: Client,
        (name, identity): (&str, &str),
        leadership: Leadership,
        limits: Limits,
        brain: mpsc::Sender<Message>,
        metrics: Arc<Metrics>,
    ) -> Self {
        let permits = Semaphore::new(limits.binds);
        let teller = Teller::start(
            client.clone(),
            name,
            identity,
            limits.notices_per_s,
            leadership.clone(),
            Arc::clone(&metrics),
        );
        let (tasks, stopping) = (TaskTracker::new(), CancellationToken::new());
        let inner =
            Inner { client, leadership, limits, permits, brain, metrics, teller, tasks, stopping };
        Self { inner: Arc::new(inner) }
    }

    /// Takes work until there is no more.
    pub(crate) async fn work(&self, mut orders: mpsc::UnboundedReceiver<Work>) {
        let (statuses, mut written) = mpsc::unbounded_channel();
        let writer = self.clone();
        self.inner.tasks.spawn(async move {
            while let Some(status) = written.recv().await {
                writer.drain_status(status).await;
            }
        });
        while let Some(work) = orders.recv().await {
            let hands = self.clone();
            match work {
                Work::Tell(notice) => hands.inner.teller.unschedulable(notice),
                // A later one must not be overtaken by an earlier one.
                Work::DrainStatus(status) => drop(statuses.send(status)),
                other => drop(self.inner.tasks.spawn(async move { hands.one(other).await })),
            }
        }
    }

    /// Begins nothing new, and waits until all that was begun has ended.
    pub(crate) async fn finish(&self) {
        self.inner.stopping.cancel();
        self.inner.tasks.close();
        self.inner.tasks.wait().await;
    }

    async fn one(&self, work: Work) {
        match work {
            Work::Bind(reservation) => self.bind_pod(*reservation).await,
            Work::BindGang { gang, members } => self.bind_gang(&gang, members).await,
            Work::Preempt(preemption) => self.preempt(*preemption).await,
            Work::Unnominate { pod, uid } => self.unnominate(&pod, &uid).await,
            Work::Tell(notice) => self.inner.teller.unschedulable(notice),
            Work::Cordon { node } => self.cordon(&node).await,
            Work::Evict { pod, uid } => self.evict(&pod, &uid).await,
            Work::DrainStatus(status) => self.drain_status(status).await,
        }
    }

    fn leads(&self) -> bool {
        !self.inner.stopping.is_cancelled() && self.inner.leadership.leads()
    }

    fn pods(&self, namespace: &str) -> Api<core::Pod> {
        Api::namespaced(self.inner.client.clone(), namespace)
    }

    /// Tells the brain; when it has ended, nobody needs to know.
    async fn report(&self, report: Report) {
        let _ = self.inner.brain.send(Message::Report(report)).await;
    }

    /// Asks the API server, not for longer than is sensible, and counts failures.
    async fn ask<T>(
        &self,
        verb: &'static str,
        request: impl Future<Output = Result<T, kube::Error>>,
    ) -> Result<T, Failure> {
        ask(&self.inner.metrics, self.inner.limits.request, verb, request).await
    }
}

async fn ask<T>(
    metrics: &Metrics,
    patience: Duration,
    verb: &'static str,
    request: impl Future<Output = Result<T, kube::Error>>,
) -> Result<T, Failure> {
    let error = match tokio::time::timeout(patience, request).await {
        Ok(Ok(answer)) => return Ok(answer),
        Ok(Err(error)) => error,
        Err(_) => {
            metrics.api_error(verb, "timeout");
            return Err(Failure::timed_out(patience));
        }
    };
    let (failure, code) = Failure::read(&error);
    metrics.api_error(verb, &code);
    Err(failure)
}

/// How long to wait after so many failures in a row.
fn back_off(failures: u32) -> Duration {
    let doubled = Duration::from_millis(50).saturating_mul(1 << failures.min(8));
    doubled.min(Duration::from_secs(5))
}
