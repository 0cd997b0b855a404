//! The control plane as one handle: what handlers and reconcilers share.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use berth_api::Role;
use berth_engine::NodeId;
use berth_ledger::{
    Answer, Audited, ClaimRejection, ClaimStatus, Job, Ledger, LedgerError, Op, Outcome, Text,
};
use jiff::Timestamp;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use crate::caller::Caller;
use crate::catalog::{Catalog, LocalityKey};
use crate::documents::{DocumentChange, DocumentFollower};
use crate::error::ControlError;
use crate::feed::Feed;
use crate::maintenance::MaintenanceConfig;
use crate::metrics::Metrics;
use crate::placer::Placer;
use crate::settings::Settings;
use crate::state::drains::{self, Drains};
use crate::state::evacuations::Evacuations;
use crate::state::migrations::Migrations;
use crate::state::volume_moves::{self, VolumeMoves};
use crate::state::{Degradations, Heartbeats, PermitCache, PermitSigner, Queue};
use crate::workload::WorkloadKey;

/// Everything a handler needs.
pub struct ControlPlane {
    /// The claim path.
    pub placer: Placer,
    /// The truth.
    pub ledger: Ledger,
    /// A copy of it for readers.
    pub catalog: Arc<Catalog>,
    /// The change feed.
    pub feed: Feed,
    /// Requests that wait for room.
    pub queue: Queue,
    /// What agents were heard of.
    pub heartbeats: Heartbeats,
    /// What can change while it runs.
    pub settings: ArcSwap<Settings>,
    /// What it does beside placing; can change while it runs.
    pub maintenance: Arc<ArcSwap<MaintenanceConfig>>,
    /// What is counted.
    pub metrics: Arc<Metrics>,
    /// Nodes that are being emptied.
    pub drains: Drains,
    /// Whether each node could be emptied.
    pub evacuations: Evacuations,
    /// Volumes that move.
    pub volume_moves: VolumeMoves,
    /// Instances that move while they run.
    pub migrations: Arc<Migrations>,
    /// What agents said last of their instances.
    pub permit_cache: PermitCache,
    /// Signs what agents may do unasked.
    pub permit_signer: PermitSigner,
    /// Workloads whose members cannot be placed.
    pub degraded: Degradations,
    /// When it began to listen to agents, in whole seconds.
    pub(crate) listening_since: AtomicI64,
    /// Whether most nodes are silent, so that none of them counts as gone.
    pub(crate) mostly_silent: AtomicBool,
    /// Makes marks of places for tenants.
    pub locality: LocalityKey,
    /// Set when the server is about to stop: it still serves, and says that it is not ready.
    pub draining: CancellationToken,
    /// Set when the server is to stop: streams end, loops end.
    pub stopping: CancellationToken,
}

impl ControlPlane {
    /// The time.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        crate::clock::now()
    }

    /// Does an operation for a caller; who, what and from where are in the audit log.
    ///
    /// # Errors
    /// When the ledger does not know what became of it.
    pub async fn call(
        &self,
        caller: &Caller,
        action: &'static str,
        subject: impl Into<Text>,
        request_id: Option<Text>,
        op: Op,
    ) -> Result<Answer, LedgerError> {
        let op = Op::Audited(Box::new(Audited {
            actor: Text::from(caller.actor()),
            origin: Text::from(caller.origin()),
            action: Text::from(action),
            subject: subject.into(),
            request_id,
            op,
        }));
        self.submit(op).await
    }

    /// Does an operation of the server's own, which no audit log needs.
    ///
    /// # Errors
    /// As [`ControlPlane::call`].
    pub async fn submit(&self, op: Op) -> Result<Answer, LedgerError> {
        let (sender, receiver) = oneshot::channel();
        let reply = Box::new(move |answer| drop(sender.send(answer)));
        self.ledger.submit([Job { op, reply }]);
        receiver.await.unwrap_or(Err(LedgerError::Closed))
    }

    /// Does an administrative operation. Returns whether anything changed.
    ///
    /// # Errors
    /// When it cannot be done, as the caller is told.
    pub async fn administer(
        &self,
        caller: &Caller,
        action: &'static str,
        subject: impl Into<Text>,
        op: Op,
    ) -> Result<bool, ControlError> {
        match self.call(caller, action, subject, None, op).await? {
            Answer::Outcome(Outcome::Done) => Ok(true),
            Answer::Outcome(Outcome::Unchanged) => Ok(false),
            Answer::Outcome(Outcome::Impossible(why)) => {
                Err(ControlError::conflict("impossible", why))
            }
            Answer::Outcome(Outcome::Stale { current }) => {
                Err(ControlError::stale(current.map(|current| current.to_string())))
            }
            other => Err(unexpected(&other)),
        }
    }

    /// A step in a claim's life, for a caller.
    ///
    /// # Errors
    /// When it is refused, as the caller is told.
    pub async fn step(
        &self,
        caller: &Caller,
        action: &'static str,
        subject: String,
        op: Op,
    ) -> Result<Result<ClaimStatus, ClaimRejection>, ControlError> {
        match self.call(caller, action, subject, None, op).await? {
            Answer::Claim(standing) => Ok(standing),
            other => Err(unexpected(&other)),
        }
    }

    /// Reads from the ledger on a thread that may wait.
    ///
    /// # Errors
    /// When the ledger cannot be read.
    pub async fn read<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Ledger) -> Result<T, LedgerError> + Send + 'static,
    ) -> Result<T, ControlError> {
        let ledger = self.ledger.clone();
        let done = tokio::task::spawn_blocking(move || read(&ledger)).await;
        Ok(done.unwrap_or(Err(LedgerError::Closed))?)
    }

    /// Seconds of silence after which a node's members count as gone: never, while most nodes are
    /// silent.
    #[must_use]
    pub fn gone_after_s(&self) -> i64 {
        let settings = self.settings.load();
        let gone_after = if self.mostly_silent.load(Ordering::Relaxed) {
            Duration::MAX
        } else {
            settings.lost_after.saturating_add(settings.lost_grace)
        };
        i64::try_from(gone_after.as_secs()).unwrap_or(i64::MAX)
    }

    /// When this server began to listen to agents, in whole seconds.
    #[must_use]
    pub fn listening_since(&self) -> i64 {
        self.listening_since.load(Ordering::Relaxed)
    }

    /// Begins to listen to agents anew: whoever was not heard so far is not lost yet.
    pub(crate) fn restart_listening(&self) {
        self.listening_since.store(self.now().as_second(), Ordering::Relaxed);
    }

    /// Notes whether most nodes are silent.
    pub(crate) fn record_silence(&self, mostly: bool) {
        if self.mostly_silent.swap(mostly, Ordering::Relaxed) != mostly {
            if !mostly {
                // Agents are heard again one by one: each gets its time to speak first.
                self.restart_listening();
            }
            tracing::warn!(mostly, "most nodes fell silent, or were heard again");
        }
    }

    /// The caches of documents that the control plane itself needs.
    pub(crate) fn followers(&self) -> Vec<Arc<dyn DocumentFollower>> {
        let migrations: Arc<dyn DocumentFollower> = Arc::clone(&self.migrations) as _;
        vec![
            Arc::clone(&self.queue.tickets) as _,
            Arc::clone(&self.drains.records) as _,
            Arc::clone(&self.volume_moves.records) as _,
            migrations,
            Arc::clone(&self.degraded.documents) as _,
        ]
    }

    /// Has reconcilers look at what a changed document concerns.
    pub(crate) fn document_changed(&self, change: &DocumentChange) {
        match change {
            DocumentChange::Changed(kind, node) if &**kind == drains::KIND => {
                self.touch_workloads_on(&NodeId::new(node));
            }
            DocumentChange::Changed(kind, volume) if &**kind == volume_moves::KIND => {
                // Workloads that wait may have waited for it.
                if !self.volume_moves.is_stopping(volume) {
                    self.catalog.touch(self.degraded.keys());
                }
            }
            DocumentChange::Changed(..) => {}
            DocumentChange::Reloaded => {
                let workloads: Vec<WorkloadKey> =
                    self.catalog.read().workloads.keys().cloned().collect();
                self.catalog.touch(workloads);
            }
        }
    }

    /// Has workloads with members on a node looked at: it is being emptied, or no longer is.
    fn touch_workloads_on(&self, node: &NodeId) {
        let touched: Vec<WorkloadKey> = {
            let catalog = self.catalog.read();
            let claims = catalog.nodes.get(node).into_iter().flat_map(|node| &node.claims);
            let claims = claims.filter_map(|key| catalog.claims.get(key));
            claims.filter_map(|claim| claim.workload()).collect()
        };
        self.catalog.touch(touched);
    }

    /// Reads a document that this server just changed, so that what follows sees it.
    pub(crate) async fn refresh_document(&self, follower: Arc<dyn DocumentFollower>, id: &str) {
        let (ledger, id) = (self.ledger.clone(), id.to_owned());
        let change = DocumentChange::Changed(Text::from(follower.kind()), Text::from(&*id));
        let read = tokio::task::spawn_blocking(move || follower.refresh(&ledger, &id)).await;
        match read {
            Ok(Ok(())) => self.document_changed(&change),
            // The feed brings the same change, and has it retried.
            Ok(Err(error)) => tracing::warn!(%error, ?change, "failed to read a changed document"),
            Err(_) => {}
        }
    }

    /// Waits until what this server has committed is in the catalogue.
    pub async fn wait_for_read_your_writes(&self) {
        self.placer.wait_for_read_your_writes().await;
    }

    /// The node that a caller may speak for: any for operators, its own for an agent. Others' nodes
    /// are hidden from agents.
    ///
    /// # Errors
    /// When it may not.
    pub fn node_for(&self, caller: &Caller, node: &NodeId) -> Result<(), ControlError> {
        match (caller.role, caller.node()) {
            (Role::Agent, Some(own)) if own == node => Ok(()),
            (Role::Agent, _) => Err(ControlError::not_found("node", node.as_str())),
            _ => Ok(()),
        }
    }
}

/// An answer that the ledger never gives to what was asked.
#[must_use]
pub fn unexpected(answer: &Answer) -> ControlError {
    ControlError::from(LedgerError::Corrupt(format!("an answer of another kind: {answer:?}")))
}
