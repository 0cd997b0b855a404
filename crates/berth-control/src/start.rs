//! Starting the control plane: open the ledger, load what is there, start the loops.

use std::sync::Arc;

use arc_swap::ArcSwap;
use berth_engine::Policy;
use berth_ledger::{Backend, Expect, Ledger, Op, Outcome, Text};
use tokio_util::sync::CancellationToken;

use crate::catalog::{Catalog, LocalityKey};
use crate::clock::now;
use crate::control_plane::ControlPlane;
use crate::documents::{self, DocumentChange, DocumentFollower};
use crate::elastic;
use crate::error::StartError;
use crate::feed::Feed;
use crate::liveness;
use crate::maintenance::{MaintenanceConfig, MaintenanceWorker};
use crate::metrics::Metrics;
use crate::moves::drain::{self, Drains};
use crate::moves::migration::{self, Migrations};
use crate::moves::volume::{self, VolumeMoves};
use crate::moves::{evacuation, relief};
use crate::placer::{Placer, PlacerOptions};
use crate::queue;
use crate::settings::Settings;
use crate::state::{Degradations, Heartbeats, PermitCache, PermitSigner, Queue};
use crate::workloads;

/// How a control plane is started.
pub struct ControlOptions {
    /// The database.
    pub backend: Backend,
    /// How the claim path works.
    pub placer: PlacerOptions,
    /// What can change while it runs.
    pub settings: Settings,
    /// What any server does beside placing.
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
        let (catalog, notes, documents) = Catalog::start()?;
        options.placer.notes = Some(notes);
        let metrics = Arc::new(Metrics::new());
        options.placer.metrics = Some(Arc::clone(&metrics));
        let placer = Placer::start(options.backend, &options.placer)?;
        let ledger = placer.ledger().clone();
        store_first_policy(&ledger, &options.placer.policy)?;
        let locality = locality_key(&ledger)?;
        let counted = Arc::clone(&metrics);
        let round = move || counted.loop_ran("maintenance");
        let maintenance = Arc::new(ArcSwap::from_pointee(options.maintenance));
        let maintenance_worker =
            MaintenanceWorker::start_with(ledger.clone(), Arc::clone(&maintenance), round)?;
        let control = Arc::new(Self {
            feed: Feed::start(ledger.clone())?,
            queue: Queue::default(),
            placer,
            catalog,
            heartbeats: Heartbeats::default(),
            settings: ArcSwap::from_pointee(options.settings),
            maintenance,
            metrics,
            drains: Drains::default(),
            volume_moves: VolumeMoves::default(),
            migrations: Arc::new(Migrations::default()),
            permit_cache: PermitCache::default(),
            permit_signer: PermitSigner::load(&ledger)?,
            evacuations: crate::moves::evacuation::Evacuations::default(),
            degraded: Degradations::default(),
            listening_since: std::sync::atomic::AtomicI64::new(now().as_second()),
            mostly_silent: std::sync::atomic::AtomicBool::new(false),
            locality,
            draining: CancellationToken::new(),
            stopping: CancellationToken::new(),
            ledger,
        });
        let mut followers = options.followers;
        followers.extend(control.followers());
        for follower in &followers {
            follower.refresh_all(&control.ledger)?;
        }
        tokio::spawn(liveness::keep_writing_heartbeats(Arc::clone(&control)));
        tokio::spawn(liveness::keep_watching(Arc::clone(&control)));
        tokio::spawn(queue::keep_granting(Arc::clone(&control)));
        tokio::spawn(drain::run(Arc::clone(&control)));
        tokio::spawn(volume::run(Arc::clone(&control)));
        tokio::spawn(migration::run(Arc::clone(&control)));
        tokio::spawn(relief::run(Arc::clone(&control)));
        tokio::spawn(elastic::keep_reserves(Arc::clone(&control)));
        tokio::spawn(workloads::keep_running(Arc::clone(&control)));
        tokio::spawn(evacuation::run(Arc::clone(&control)));
        let (changed, stopping) = (Arc::downgrade(&control), control.stopping.clone());
        let applied = move |change: &DocumentChange| {
            if let Some(control) = changed.upgrade() {
                control.document_changed(change);
            }
        };
        let ledger = control.ledger.clone();
        tokio::spawn(documents::sync(ledger, followers, documents, applied, stopping));
        tokio::spawn(run_maintenance(Arc::clone(&control), maintenance_worker));
        Ok(control)
    }
}

/// A new ledger has no policy: the one the server was started with becomes its first.
fn store_first_policy(ledger: &Ledger, policy: &Policy) -> Result<(), StartError> {
    if ledger.policies()?.iter().any(|stored| stored.active) {
        return Ok(());
    }
    let (name, hash) = (policy.name().to_owned(), policy.hash().to_string());
    let body = policy.to_json();
    match ledger.administer(Op::ActivatePolicy { name, hash, body, expect: None })? {
        Outcome::Impossible(why) => Err(StartError::Stored(why)),
        Outcome::Done | Outcome::Unchanged | Outcome::Stale { .. } => Ok(()),
    }
}

/// The key that all servers of a ledger make marks of places with; the first to come makes it.
fn locality_key(ledger: &Ledger) -> Result<LocalityKey, StartError> {
    const KIND: &str = "secret";
    const ID: &str = "locality";
    let wrong = |why: String| StartError::Stored(format!("the key of localities: {why}"));
    loop {
        if let Some(document) = ledger.document(KIND, ID)? {
            let bytes: [u8; 32] =
                serde_json::from_str(&document.body).map_err(|error| wrong(error.to_string()))?;
            return Ok(LocalityKey::new(bytes));
        }
        let mut bytes = [0_u8; 32];
        getrandom::fill(&mut bytes).map_err(|error| wrong(error.to_string()))?;
        let body = serde_json::to_string(&bytes).map_err(|error| wrong(error.to_string()))?;
        let (kind, id) = (Text::from(KIND), Text::from(ID));
        // Another server may be first; then its key is read.
        ledger.administer(Op::PutDocument { kind, id, body, expect: Expect::Absent })?;
    }
}

/// Keeps the maintenance_worker until the server stops.
async fn run_maintenance(control: Arc<ControlPlane>, maintenance_worker: MaintenanceWorker) {
    control.stopping.cancelled().await;
    let _ = tokio::task::spawn_blocking(move || drop(maintenance_worker)).await;
}
