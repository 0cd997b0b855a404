//! Starting the control plane: open the ledger, load what is there, start the loops.

use std::sync::Arc;
use std::time::Duration;

use berth_engine::Policy;
use berth_ledger::{Backend, Ledger, Op, Outcome};
use tokio::sync::watch;

use crate::catalog::{Catalog, LocalityKey};
use crate::control_plane::{ControlPlane, Lifecycle};
use crate::documents::{self, DocumentChange, DocumentFollower};
use crate::elastic::ReserveReconciler;
use crate::error::StartError;
use crate::explanation_queue::ExplanationQueues;
use crate::feed::Feed;
use crate::kept_lists::KeptLists;
use crate::liveness::{HeartbeatWriter, LivenessMonitor};
use crate::loop_runner::{self, BackgroundLoop};
use crate::maintenance::{MaintenanceConfig, MaintenanceLoop};
use crate::metrics::Metrics;
use crate::moves::drain::DrainReconciler;
use crate::moves::evacuation::EvacuationChecker;
use crate::moves::migration::MigrationDriver;
use crate::moves::relief::ReliefReconciler;
use crate::moves::volume::VolumeMoveDriver;
use crate::placer::{Placer, PlacerOptions};
use crate::policy_warnings::{self, QuarantinedPolicy};
use crate::queue::TicketGranter;
use crate::resource_lists::ListRefresher;
use crate::settings::Settings;
use crate::state::instance_ids::InstanceIdKey;
use crate::state::{
    CrashRecords, Degradations, MoveRecords, NodeLiveness, Permits, Queue, RefusedReports,
    load_secret,
};
use crate::supervision::{ThreadMonitor, ThreadWork};
use crate::tenant_limits::TenantLimits;
use crate::tenant_requests::TenantRequests;
use crate::tenants::TenantRemovalReconciler;
use crate::workloads::WorkloadReconciler;

/// How a control plane is started.
pub struct ControlOptions {
    /// The database.
    pub backend: Backend,
    /// How the claim path works.
    pub placer: PlacerOptions,
    /// What can change while it runs.
    pub settings: Settings,
    /// How often maintenance is done, and what is kept.
    pub maintenance: MaintenanceConfig,
    /// Caches of documents beyond the control plane's own.
    pub followers: Vec<Arc<dyn DocumentFollower>>,
}

impl ControlOptions {
    /// Options for a database, with defaults for everything else.
    #[must_use]
    pub fn new(backend: Backend, policy: Policy) -> Self {
        Self {
            backend,
            placer: PlacerOptions::new(policy),
            settings: Settings::default(),
            maintenance: MaintenanceConfig::default(),
            followers: Vec::new(),
        }
    }
}

impl ControlPlane {
    /// Opens the ledger, loads what is there and starts the loops, on the runtime it is called on.
    /// Waits for the database.
    ///
    /// # Errors
    /// When the ledger cannot be opened or read, or a thread cannot be started.
    pub fn start(mut options: ControlOptions) -> Result<Arc<Self>, StartError> {
        let metrics = Arc::new(Metrics::new());
        let supervisor = Arc::clone(&options.placer.supervisor);
        let (catalog, notes, documents) = Catalog::start(&supervisor, Some(Arc::clone(&metrics)))?;
        options.placer.notes = Some(notes);
        options.placer.metrics = Some(Arc::clone(&metrics));
        let placer = Placer::start(options.backend, &options.placer)?;
        let ledger = placer.ledger().clone();
        let quarantined_policy = store_first_policy(&ledger, &options.placer.policy)?;
        let clock = options.placer.database_clock;
        let control = Arc::new(Self {
            catalog,
            feed: Feed::start(ledger.clone(), &supervisor, Some(Arc::clone(&metrics)))?,
            queue: Queue::default(),
            moves: MoveRecords::default(),
            degraded: Degradations::default(),
            crashes: CrashRecords::default(),
            permits: Permits::load(&ledger)?,
            refused_reports: RefusedReports::default(),
            lifecycle: Lifecycle::new(options.settings, options.maintenance),
            placer,
            liveness: NodeLiveness::new(clock.now().as_second()),
            clock,
            metrics,
            locality: LocalityKey::new(load_secret(&ledger, "locality")?),
            instance_ids: InstanceIdKey::load(&ledger)?,
            tenant_limits: TenantLimits::default(),
            tenant_requests: TenantRequests::default(),
            supervisor,
            removals_started: watch::Sender::new(0),
            explanations: ExplanationQueues::default(),
            quarantined_policy,
            kept_lists: KeptLists::default(),
            ledger,
        });
        let mut followers = options.followers;
        followers.extend(control.followers());
        for follower in &followers {
            follower.refresh_all(&control.ledger)?;
        }
        // So that they are in memory even if the database is lost at once.
        control.kept_lists.refresh(&control.ledger, Duration::ZERO)?;
        control.merge_all_crashes();
        control.start_loops();
        let (changed, stopping) = (Arc::downgrade(&control), control.lifecycle.stopping().clone());
        let applied = move |change: &DocumentChange| {
            if let Some(control) = changed.upgrade() {
                control.document_changed(change);
            }
        };
        let ledger = control.ledger.clone();
        let monitor = control.monitor("documents", ThreadWork::ReadsDatabase);
        tokio::spawn(documents::sync(ledger, followers, documents, applied, stopping, monitor));
        Ok(control)
    }

    fn start_loops(self: &Arc<Self>) {
        self.start_loop(HeartbeatWriter(Arc::clone(self)));
        self.start_loop(LivenessMonitor::new(Arc::clone(self)));
        self.start_loop(TicketGranter::new(Arc::clone(self)));
        self.start_loop(DrainReconciler::new(Arc::clone(self)));
        self.start_loop(VolumeMoveDriver(Arc::clone(self)));
        self.start_loop(MigrationDriver(Arc::clone(self)));
        self.start_loop(ReliefReconciler(Arc::clone(self)));
        self.start_loop(ReserveReconciler(Arc::clone(self)));
        self.start_loop(WorkloadReconciler::new(Arc::clone(self)));
        self.start_loop(EvacuationChecker::new(Arc::clone(self)));
        self.start_loop(TenantRemovalReconciler::new(Arc::clone(self)));
        self.start_loop(ListRefresher(Arc::clone(self)));
        self.start_loop(MaintenanceLoop::new(
            self.ledger.clone(),
            Arc::clone(&self.lifecycle.maintenance),
        ));
    }

    fn start_loop<L: BackgroundLoop>(&self, work: L) {
        let (metrics, stopping) = (Arc::clone(&self.metrics), self.lifecycle.stopping().clone());
        let monitor = self.monitor(L::NAME, ThreadWork::RunsPasses);
        tokio::spawn(loop_runner::run(work, metrics, stopping, monitor));
    }

    fn monitor(&self, name: &'static str, work: ThreadWork) -> ThreadMonitor {
        self.supervisor.monitor(name, work, Some(Arc::clone(&self.metrics)))
    }
}

/// A new ledger has no policy: the one the server was started with becomes its first. It also takes
/// the place of an active policy that exceeds a limit, which stays stored but is no longer in force:
/// that one is returned, also by later starts.
fn store_first_policy(
    ledger: &Ledger,
    policy: &Policy,
) -> Result<Option<QuarantinedPolicy>, StartError> {
    let (name, hash) = (policy.name().to_owned(), policy.hash().to_string());
    let stored = ledger.policies()?;
    let mut quarantined = None;
    if let Some(active) = stored.iter().find(|stored| stored.active) {
        quarantined = QuarantinedPolicy::find(active, &hash);
        if quarantined.is_none() {
            policy_warnings::log_at_start(active);
            return Ok(QuarantinedPolicy::before(ledger, &stored, active)?);
        }
        tracing::error!(?quarantined, "active policy quarantined");
    }
    let body = policy.to_json();
    match ledger.administer(Op::ActivatePolicy { name, hash, body, expect: None })? {
        Outcome::Impossible(why) => Err(StartError::Stored(why)),
        Outcome::Done | Outcome::Unchanged | Outcome::Stale { .. } | Outcome::TenantRemoving(_) => {
            Ok(quarantined)
        }
    }
}
