//! The control plane as one handle: what handlers and reconcilers share.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use berth_api::Role;
use berth_engine::{CheckError, InstanceRequest, MeasuredLoad, NodeId};
use berth_ledger::{
    Answer, Audited, ClaimRejection, ClaimStatus, Job, Ledger, LedgerError, Op, Outcome,
    READERS_MAX, READS_MAX, Text, WAITING_MAX,
};
use jiff::Timestamp;
use tokio::sync::{oneshot, watch};
use tokio_util::sync::CancellationToken;

use crate::caller::Caller;
use crate::catalog::{Catalog, LocalityKey};
use crate::clock::DatabaseClock;
use crate::documents::{DocumentChange, DocumentFollower};
use crate::error::{ControlError, ControlResult};
use crate::explanation_queue::{EXPLANATIONS_MAX, ExplanationQueues};
use crate::feed::Feed;
use crate::kept_lists::KeptLists;
use crate::maintenance::MaintenanceConfig;
use crate::metrics::Metrics;
use crate::patience::{read_within_patience, within_patience};
use crate::placer::{Placer, QueueLength};
use crate::policy_warnings::{PolicyWarning, QuarantinedPolicy, policy_warnings};
use crate::settings::Settings;
use crate::state::instance_ids::InstanceIdKey;
use crate::state::{
    CrashRecords, Degradations, MoveRecords, NodeLiveness, Permits, Queue, RefusedReports,
    crash_records, degradations, drains, volume_moves,
};
use crate::supervision::{Problem, Supervisor, ThreadMonitor, ThreadWork, UnreadableEvents};
use crate::tenant_limits::{LimitKind, LimitedRequest, TenantLimits};
use crate::tenant_requests::{RequestKind, TenantRequest, TenantRequests};
use crate::workload::{CrashHistories, WorkloadKey};

/// A transaction that takes longer than this means that the database does not answer.
const WRITER_STALLED: Duration = Duration::from_millis(1500);

/// A commit as recent as this shows that the database takes commits.
const RECENT_COMMIT: Duration = Duration::from_millis(500);

/// Instances of a refused batch that cost as much as one more refusal.
const INSTANCES_PER_REFUSAL: usize = 16;

/// Events that are as large as the record of a refusal.
const EVENTS_PER_REFUSAL: usize = 4;

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
    /// How often members of workloads ended without a release, as the ledger has it.
    pub crashes: CrashRecords,
    /// The permits of elastic instances.
    pub permits: Permits,
    /// Reports of agents that were refused.
    pub refused_reports: RefusedReports,
    /// Settings, and the way to a stop.
    pub lifecycle: Lifecycle,
    /// The database's clock.
    pub clock: Arc<DatabaseClock>,
    /// The claim path.
    pub(crate) placer: Placer,
    pub(crate) liveness: NodeLiveness,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) locality: LocalityKey,
    pub(crate) instance_ids: InstanceIdKey,
    /// What tenants may still ask for.
    pub(crate) tenant_limits: TenantLimits,
    /// What tenants have under way.
    pub(crate) tenant_requests: TenantRequests,
    /// Watches over the threads that all requests share.
    pub(crate) supervisor: Arc<Supervisor>,
    /// Rises when the removal of a tenant begins.
    pub(crate) removals_started: watch::Sender<u64>,
    /// Explanations that are derived on request.
    pub(crate) explanations: ExplanationQueues,
    /// The policy whose place another took because it exceeds a limit.
    pub(crate) quarantined_policy: Option<QuarantinedPolicy>,
    /// Lists that are read from the database, as they were read last.
    pub(crate) kept_lists: KeptLists,
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
    /// The time, by the database's clock: all servers judge by the same.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// What an operator should know about the policy in force.
    #[must_use]
    pub fn policy_warnings(&self) -> Vec<PolicyWarning> {
        let policy = self.catalog.policy();
        let quarantined = self.quarantined_policy.as_ref();
        policy.map(|policy| policy_warnings(&policy, quarantined)).unwrap_or_default()
    }

    /// Everything that keeps this server from serving: threads that ended or stalled, and a database that
    /// does not answer.
    #[must_use]
    pub fn problems(&self) -> Vec<Problem> {
        let mut problems = self.supervisor.problems();
        problems.extend(self.stalled_writer().map(|busy| Problem::Unanswered("ledger", busy)));
        problems
    }

    /// For how long the database has not answered a writer, if that is too long.
    fn stalled_writer(&self) -> Option<Duration> {
        self.ledger.writer_unanswered_for().filter(|time| *time > WRITER_STALLED)
    }

    /// Fails if the database takes no commits. Unless something was committed a moment ago, that is found
    /// out with a commit that leaves nothing; it may wait for as long as the database does.
    ///
    /// # Errors
    /// When the database did not answer.
    pub async fn probe_write(&self) -> ControlResult<()> {
        let (sender, receiver) = oneshot::channel();
        let reply = Box::new(move |answer| drop(sender.send(answer)));
        self.ledger.probe_write(RECENT_COMMIT, reply);
        Ok(receiver.await.unwrap_or(Err(LedgerError::Closed))?)
    }

    /// The thread that has been busy with one thing for longer than this, and for how long.
    #[must_use]
    pub fn stalled_thread(&self, limit: Duration) -> Option<(&'static str, Duration)> {
        self.supervisor.stalled_thread(limit)
    }

    /// The monitor of a task that runs as long as the server does.
    #[must_use]
    pub fn monitor_task(&self, name: &'static str) -> ThreadMonitor {
        let metrics = Some(Arc::clone(&self.metrics));
        self.supervisor.monitor(name, ThreadWork::RunsPasses, metrics)
    }

    /// Every thread and loop by name, and whether it runs, neither stalled nor without its database.
    #[must_use]
    pub fn threads(&self) -> BTreeMap<&'static str, bool> {
        let mut threads = self.supervisor.threads();
        if self.stalled_writer().is_some() {
            threads.insert("ledger", false);
        }
        // The server serves without them: nothing waits for a hint, and the log only grows.
        let background = [
            ("ledger-hints", self.ledger.are_hints_exchanged()),
            ("ledger-log", self.ledger.is_log_copied()),
        ];
        threads.extend(background.into_iter().filter_map(|(name, is_up)| Some((name, is_up?))));
        threads
    }

    /// Parts of the log that could not be read.
    #[must_use]
    pub fn unreadable_events(&self) -> Vec<UnreadableEvents> {
        self.supervisor.unreadable_events()
    }

    /// How old what this server has in memory is; absent while the database answers.
    #[must_use]
    pub fn staleness(&self) -> Option<Duration> {
        self.supervisor.database_away_for()
    }

    /// Cancelled when a thread ended without which the server cannot serve.
    #[must_use]
    pub fn thread_ended(&self) -> &CancellationToken {
        self.supervisor.ended()
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

    /// Whether a placement would be let in now, before its body is read. Of callers that place for several
    /// tenants only the body says for which.
    ///
    /// # Errors
    /// When it would be turned away; the error says when to ask again.
    pub fn check_admission(&self, caller: &Caller) -> ControlResult<()> {
        let tenant = match caller.tenants() {
            Some([tenant]) if caller.is_tenant() => Some(Text::from(tenant.as_str())),
            _ => None,
        };
        let checked = self.placer.check_admission(tenant.as_ref());
        checked.map_err(|overload| ControlError::from(&overload))
    }

    /// A place for a request of a tenant, to be kept until it is answered; absent for others.
    ///
    /// # Errors
    /// When too many of the tenant's requests are under way.
    pub fn enter_request(
        &self,
        caller: &Caller,
        kind: RequestKind,
    ) -> ControlResult<Option<TenantRequest>> {
        let tenant = caller.tenants().filter(|_| caller.is_tenant()).and_then(<[String]>::first);
        let entered = tenant.map(|tenant| self.tenant_requests.enter(tenant, kind)).transpose();
        entered.inspect_err(|_| self.metrics.limited("requests"))
    }

    /// How long the queues between callers, threads and the database are.
    #[must_use]
    pub fn queue_lengths(&self) -> Vec<QueueLength> {
        let mut lengths = self.placer.queue_lengths();
        let (connections, reads) = self.ledger.reader_counts();
        let writers = self.ledger.origins().len();
        let settings = self.lifecycle.settings();
        let [of_requests, of_decisions] = self.explanations.lengths();
        let more = [
            ("ledger_operations", self.ledger.waiting_operations(), WAITING_MAX * writers),
            ("ledger_reads", reads, READS_MAX),
            ("ledger_readers", connections, READERS_MAX),
            ("tickets", self.queue.waiting(), settings.queue_total),
            ("explanations_of_requests", of_requests, EXPLANATIONS_MAX),
            ("explanations_of_decisions", of_decisions, EXPLANATIONS_MAX),
        ];
        lengths.extend(more.map(|(queue, length, limit)| QueueLength { queue, length, limit }));
        lengths
    }

    /// Turns a tenant away that has left too much in the log, before it changes anything else. What
    /// gives something back is let in.
    ///
    /// # Errors
    /// When more was written for one of its tenants than is allowed; the error says when to ask again.
    pub fn admit_change(&self, caller: &Caller, gives_back: bool) -> ControlResult<()> {
        let rates = self.lifecycle.settings().tenant_rates;
        for tenant in caller.tenants().unwrap_or_default() {
            // The change itself counts too: not all that it leaves has the name of a tenant.
            let written = self.catalog.take_events_written(tenant).saturating_add(1);
            self.tenant_limits.charge(&rates, tenant, LimitKind::Events, written);
        }
        if gives_back {
            return Ok(());
        }
        let mut tenants = caller.tenants().unwrap_or_default().iter();
        tenants.try_for_each(|tenant| self.admit(caller, tenant, LimitKind::Events, 0))
    }

    /// Charges a tenant for a request that was refused: for the explanation, and for its record if it
    /// leaves one, which is as large as several events.
    pub(crate) fn charge_refusal(
        &self,
        caller: &Caller,
        tenant: &str,
        instances: usize,
        is_recorded: bool,
    ) {
        if !caller.is_tenant() {
            return;
        }
        let rates = self.lifecycle.settings().tenant_rates;
        let share = instances / INSTANCES_PER_REFUSAL;
        self.tenant_limits.charge(&rates, tenant, LimitKind::Refusals, 1 + share);
        if is_recorded {
            let events = EVENTS_PER_REFUSAL + share;
            self.tenant_limits.charge(&rates, tenant, LimitKind::Events, events);
        }
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
        within_patience(&self.ledger, receiver).await
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
            Answer::Outcome(Outcome::TenantRemoving(tenant)) => {
                Err(ControlError::tenant_removing(&tenant))
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

    /// Reads from the ledger on a thread that may wait, within the ledger's patience.
    ///
    /// # Errors
    /// When the ledger cannot be read in time.
    pub async fn read<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Ledger) -> Result<T, LedgerError> + Send + 'static,
    ) -> Result<T, ControlError> {
        Ok(read_within_patience(&self.ledger, read).await?)
    }

    /// The same for what goes through much of the ledger and takes as long as there is to read. Each of its
    /// reads is bounded.
    ///
    /// # Errors
    /// When the ledger cannot be read.
    pub async fn read_at_length<T: Send + 'static>(
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

    /// Records how busy a node is, as its agent says with a heartbeat.
    pub fn record_load(&self, node: &NodeId, load: Option<MeasuredLoad>) {
        self.liveness.record_load(node, load);
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
        self.placer.query_explainer(move |engine| engine.check(&instance, &node, now)).await
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
            Arc::clone(&self.crashes.documents) as _,
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
            DocumentChange::Changed(kind, id) if &**kind == crash_records::KIND => {
                if let Some(stored) = self.crashes.documents.get(id) {
                    self.merge_crashes(id, &stored.value);
                }
            }
            DocumentChange::Changed(..) => {}
            DocumentChange::Reloaded => {
                self.merge_all_crashes();
                let workloads: Vec<WorkloadKey> =
                    self.catalog.read().workloads.keys().cloned().collect();
                self.catalog.mark_dirty(workloads);
            }
        }
    }

    /// Takes in how often members of all workloads ended.
    pub(crate) fn merge_all_crashes(&self) {
        for (id, stored) in self.crashes.documents.all() {
            self.merge_crashes(&id, &stored.value);
        }
    }

    fn merge_crashes(&self, id: &str, stored: &CrashHistories) {
        if let Some(key) = degradations::key_of(id) {
            self.catalog.merge_crashes(&key, stored);
            self.catalog.mark_dirty([key]);
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
        let id = id.to_owned();
        let change = DocumentChange::Changed(Text::from(follower.kind()), Text::from(&*id));
        let read = move |ledger: &Ledger| follower.refresh(ledger, &id);
        match read_within_patience(&self.ledger, read).await {
            Ok(()) => self.document_changed(&change),
            // The feed brings the same change, and has it retried.
            Err(error) => tracing::warn!(%error, ?change, "failed to read a changed document"),
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
