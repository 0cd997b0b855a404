//! The control plane as one handle: what handlers and reconcilers share.

use std::sync::Arc;

use arc_swap::ArcSwap;
use berth_api::Role;
use berth_engine::{CheckError, InstanceRequest, NodeId};
use berth_ledger::{
    Answer, Audited, ClaimRejection, ClaimStatus, Job, Ledger, LedgerError, Op, Outcome, Text,
};
use jiff::Timestamp;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use crate::caller::Caller;
use crate::catalog::{Catalog, LocalityKey};
use crate::documents::{DocumentChange, DocumentFollower};
use crate::error::{ControlError, ControlResult};
use crate::feed::Feed;
use crate::maintenance::MaintenanceConfig;
use crate::metrics::Metrics;
use crate::placer::Placer;
use crate::settings::Settings;
use crate::state::instance_ids::InstanceIdKey;
use crate::state::{
    Degradations, MoveRecords, NodeLiveness, Permits, Queue, RefusedReports, drains, volume_moves,
};
use crate::tenant_limits::{LimitKind, LimitedRequest, TenantLimits};
use crate::workload::WorkloadKey;

/// The handle that callers and reconcilers share.
pub struct ControlPlane {
    /// The ledger, which is authoritative.
    pub ledger: Ledger,
    /// A copy of it for readers.
    pub catalog: Arc<Catalog>,
    /// The change feed.
    pub feed: Feed,
    /// Requests that wait for room.
    pub queue: Queue,
    /// Records of everything that changes its node.
    pub moves: MoveRecords,
    /// Workloads whose members cannot be placed.
    pub degraded: Degradations,
    /// The permits of elastic instances.
    pub permits: Permits,
    /// Reports of agents that were refused.
    pub refused_reports: RefusedReports,
    /// Settings, and the way to a stop.
    pub lifecycle: Lifecycle,
    /// The claim path.
    pub(crate) placer: Placer,
    pub(crate) liveness: NodeLiveness,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) locality: LocalityKey,
    pub(crate) instance_ids: InstanceIdKey,
    /// What tenants may still ask for.
    pub(crate) tenant_limits: TenantLimits,
}

/// What changes while a control plane runs: its settings, and whether it is to stop.
pub struct Lifecycle {
    settings: ArcSwap<Settings>,
    pub(crate) maintenance: Arc<ArcSwap<MaintenanceConfig>>,
    draining: CancellationToken,
    stopping: CancellationToken,
}

impl Lifecycle {
    pub(crate) fn new(settings: Settings, maintenance: MaintenanceConfig) -> Self {
        Self {
            settings: ArcSwap::from_pointee(settings),
            maintenance: Arc::new(ArcSwap::from_pointee(maintenance)),
            draining: CancellationToken::new(),
            stopping: CancellationToken::new(),
        }
    }

    /// The settings in force.
    #[must_use]
    pub fn settings(&self) -> Arc<Settings> {
        self.settings.load_full()
    }

    /// Puts other settings in force.
    pub fn configure(&self, settings: Settings, maintenance: MaintenanceConfig) {
        self.settings.store(Arc::new(settings));
        self.maintenance.store(Arc::new(maintenance));
    }

    /// Cancelled when the server is about to stop: it still serves, and reports that it is not ready.
    #[must_use]
    pub const fn draining(&self) -> &CancellationToken {
        &self.draining
    }

    /// Cancelled when the server stops: streams and loops end.
    #[must_use]
    pub const fn stopping(&self) -> &CancellationToken {
        &self.stopping
    }

    /// Ends streams and loops.
    pub fn stop(&self) {
        self.stopping.cancel();
    }
}

impl ControlPlane {
    /// The time.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        crate::clock::now()
    }

    /// Takes what a request of a tenant costs.
    ///
    /// # Errors
    /// When it asks for more than it may; the error says when to ask again.
    pub fn admit(
        &self,
        caller: &Caller,
        tenant: &str,
        kind: LimitKind,
        cost: usize,
    ) -> ControlResult<()> {
        let rates = self.lifecycle.settings().tenant_rates;
        let request = LimitedRequest { caller, tenant, kind, cost };
        self.tenant_limits.admit(&rates, &self.metrics, &request)
    }

    /// Charges a tenant for a refusal.
    pub(crate) fn charge_refusal(&self, caller: &Caller, tenant: &str) {
        let rates = self.lifecycle.settings().tenant_rates;
        self.tenant_limits.charge_refusal(&rates, caller, tenant);
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
    /// When it cannot be done.
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
    /// When it is refused.
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

    /// Records that a node's agent was heard, in whole seconds.
    pub fn record_heartbeat(&self, node: &NodeId, at: i64) {
        self.liveness.record_heartbeat(node, at);
        self.catalog.record_heartbeat(node, at);
    }

    /// Makes indices of places for tenants.
    #[must_use]
    pub const fn locality(&self) -> &LocalityKey {
        &self.locality
    }

    /// Checks whether an instance could run on a node now. Absent while the server stops.
    pub async fn check_node(
        &self,
        instance: InstanceRequest,
        node: NodeId,
    ) -> Option<Result<(), CheckError>> {
        let now = berth_engine::Timestamp(self.now().as_second());
        self.placer
            .query_replica(move |replica| replica.engine().check(&instance, &node, now))
            .await
    }

    /// The caches of documents that the control plane itself needs.
    pub(crate) fn followers(&self) -> Vec<Arc<dyn DocumentFollower>> {
        let migrations: Arc<dyn DocumentFollower> = Arc::clone(&self.moves.migrations) as _;
        vec![
            Arc::clone(&self.queue.tickets) as _,
            Arc::clone(&self.moves.drains.records) as _,
            Arc::clone(&self.moves.volume_moves.records) as _,
            migrations,
            Arc::clone(&self.degraded.documents) as _,
        ]
    }

    /// Has reconcilers look at what a changed document concerns.
    pub(crate) fn document_changed(&self, change: &DocumentChange) {
        match change {
            DocumentChange::Changed(kind, node) if &**kind == drains::KIND => {
                self.mark_workloads_dirty(&NodeId::new(node));
            }
            DocumentChange::Changed(kind, volume) if &**kind == volume_moves::KIND => {
                // Workloads that wait may have waited for it.
                if !self.moves.volume_moves.is_stopping(volume) {
                    self.catalog.mark_dirty(self.degraded.keys());
                }
            }
            DocumentChange::Changed(..) => {}
            DocumentChange::Reloaded => {
                let workloads: Vec<WorkloadKey> =
                    self.catalog.read().workloads.keys().cloned().collect();
                self.catalog.mark_dirty(workloads);
            }
        }
    }

    /// Has workloads with members on a node looked at: it is being emptied, or no longer is.
    fn mark_workloads_dirty(&self, node: &NodeId) {
        let touched: Vec<WorkloadKey> = {
            let catalog = self.catalog.read();
            let claims = catalog.nodes.get(node).into_iter().flat_map(|node| &node.claims);
            let claims = claims.filter_map(|key| catalog.claims.get(key));
            claims.filter_map(|claim| claim.workload()).collect()
        };
        self.catalog.mark_dirty(touched);
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
