//! Starting the service: open the ledger, load what is there, start the loops.

use std::sync::Arc;

use arc_swap::ArcSwap;
use berth_api::{NewToken, Role};
use berth_engine::Policy;
use berth_ledger::{
    Answer, Audited, Backend, Expect, Ledger, LedgerError, Op, Outcome, Scheduling, Text,
};
use thiserror::Error;
use tokio_util::sync::CancellationToken;

use super::{Service, Settings, heartbeats, liveness, now};
use crate::access::{Caller, TOKEN_KIND, TokenError, TokenRecord, Tokens};
use crate::catalog::{Catalog, LocalityKey};
use crate::drain::{self, Drains};
use crate::elastic::{self, Signer};
use crate::feed::Feed;
use crate::housekeeping::{Chores, Housekeeper};
use crate::http::Permissions;
use crate::metrics::Metrics;
use crate::migrations::{self, Migrations};
use crate::placer::{Placer, PlacerOptions, StartError};
use crate::queue::{self, Queue};
use crate::volume_moves::{self, VolumeMoves};
use crate::workloads::{self, Degradations};

/// How a service is started.
pub struct ServiceOptions {
    /// The database.
    pub backend: Backend,
    /// How the claim path works.
    pub placer: PlacerOptions,
    /// What can change while it runs.
    pub settings: Settings,
    /// What any server does beside placing.
    pub chores: Chores,
    /// Whether callers on this machine need no token.
    pub no_sign_in: bool,
}

impl ServiceOptions {
    /// Options for a database, with defaults for everything else.
    #[must_use]
    pub fn new(backend: Backend, policy: Policy) -> Self {
        Self {
            backend,
            placer: PlacerOptions::new(policy),
            settings: Settings::default(),
            chores: Chores::default(),
            no_sign_in: false,
        }
    }
}

/// A service cannot start.
#[derive(Debug, Error)]
pub enum ServiceError {
    /// The claim path cannot start.
    #[error("the claim path cannot start")]
    Placer(#[from] StartError),
    /// The ledger cannot be used.
    #[error("the ledger cannot be used")]
    Ledger(#[from] LedgerError),
    /// A thread cannot be started.
    #[error("a thread cannot be started")]
    Thread(#[from] std::io::Error),
    /// The first token cannot be made.
    #[error("the first token cannot be made")]
    Token(#[from] TokenError),
    /// What is stored of the service cannot be used.
    #[error("what is stored of the service cannot be used: {0}")]
    Stored(String),
}

impl Service {
    /// Opens the ledger, loads what is there and starts the loops, on the runtime it is called on.
    /// Waits for the database.
    ///
    /// # Errors
    /// When the ledger cannot be opened or read, or a thread cannot be started.
    pub fn start(mut options: ServiceOptions) -> Result<Arc<Self>, ServiceError> {
        let (catalog, notes, documents) = Catalog::start()?;
        options.placer.notes = Some(notes);
        let metrics = Arc::new(Metrics::new());
        options.placer.metrics = Some(Arc::clone(&metrics));
        let placer = Placer::start(options.backend, &options.placer)?;
        let ledger = placer.ledger().clone();
        store_first_policy(&ledger, &options.placer.policy)?;
        let locality = locality_key(&ledger)?;
        let tokens = Tokens::load(&ledger)?;
        let counted = Arc::clone(&metrics);
        let round = move || counted.loop_ran("housekeeping");
        let chores = Arc::new(ArcSwap::from_pointee(options.chores));
        let housekeeper = Housekeeper::start_with(ledger.clone(), Arc::clone(&chores), round)?;
        let service = Arc::new(Self {
            feed: Feed::start(ledger.clone())?,
            queue: Queue::load(&ledger)?,
            placer,
            catalog,
            tokens,
            heartbeats: super::Heartbeats::default(),
            permissions: Permissions::default(),
            settings: ArcSwap::from_pointee(options.settings),
            chores,
            metrics,
            drains: Drains::load(&ledger)?,
            volume_moves: VolumeMoves::load(&ledger)?,
            migrations: Migrations::load(&ledger)?,
            heard_permits: elastic::HeardPermits::default(),
            signer: Signer::load(&ledger)?,
            evacuations: crate::evacuation::Evacuations::default(),
            degraded: Degradations::load(&ledger)?,
            listening_since: std::sync::atomic::AtomicI64::new(now().as_second()),
            mostly_silent: std::sync::atomic::AtomicBool::new(false),
            locality,
            no_sign_in: options.no_sign_in,
            draining: CancellationToken::new(),
            stopping: CancellationToken::new(),
            ledger,
        });
        tokio::spawn(heartbeats::keep_writing(Arc::clone(&service)));
        tokio::spawn(liveness::keep_watching(Arc::clone(&service)));
        tokio::spawn(queue::keep_granting(Arc::clone(&service)));
        tokio::spawn(drain::keep_emptying(Arc::clone(&service)));
        tokio::spawn(volume_moves::keep_moving(Arc::clone(&service)));
        tokio::spawn(migrations::keep_migrating(Arc::clone(&service)));
        tokio::spawn(crate::relief::keep_relieving(Arc::clone(&service)));
        tokio::spawn(elastic::keep_reserves(Arc::clone(&service)));
        tokio::spawn(workloads::keep_running(Arc::clone(&service)));
        tokio::spawn(crate::evacuation::keep_checking(Arc::clone(&service)));
        tokio::spawn(follow_documents(Arc::clone(&service), documents));
        tokio::spawn(keep_house(Arc::clone(&service), housekeeper));
        Ok(service)
    }

    /// The first token of a new ledger; absent when there is one already.
    ///
    /// # Errors
    /// When it cannot be stored.
    pub fn first_token(&self) -> Result<Option<String>, ServiceError> {
        if !self.tokens.is_empty() {
            return Ok(None);
        }
        // Of several servers that start at once on a new ledger, one makes it.
        let (kind, id) = (Text::from("secret"), Text::from("first-token"));
        let (body, expect) = ("{}".to_owned(), Expect::Absent);
        let mark = Op::PutDocument { kind, id, body, expect };
        if self.ledger.administer(mark)? != Outcome::Done {
            return Ok(None);
        }
        self.admin_token("first admin").map(Some)
    }

    /// Makes and stores a token of an admin. Waits for the database.
    ///
    /// # Errors
    /// When it cannot be stored.
    pub fn admin_token(&self, name: &str) -> Result<String, ServiceError> {
        let (name, role) = (name.to_owned(), Role::Admin);
        let new = NewToken { name, role, namespaces: Vec::new(), node: None, expires_in_s: None };
        let (record, secret) = TokenRecord::make(&new, now())?;
        store_token(&self.ledger, &record, &Caller::local("berth up"))?;
        self.tokens.put(record);
        Ok(secret)
    }
}

/// Stores a token, without a server: for the first one, and for whoever lost all of theirs.
///
/// # Errors
/// When the ledger cannot be written.
pub fn store_token(
    ledger: &Ledger,
    record: &TokenRecord,
    caller: &Caller,
) -> Result<(), ServiceError> {
    let body = serde_json::to_string(record)
        .map_err(|error| ServiceError::Stored(format!("a token: {error}")))?;
    let op = Op::PutDocument {
        kind: Text::from(TOKEN_KIND),
        id: Text::from(record.token.id.as_str()),
        body,
        expect: Expect::Absent,
    };
    let by = Audited {
        actor: Text::from(caller.actor()),
        origin: Text::from(caller.origin()),
        action: Text::from("token.create"),
        subject: Text::from(format!("{} ({})", record.token.name, record.token.role.name())),
        request_id: None,
        op,
    };
    match ledger.call(Op::Audited(Box::new(by)))? {
        Answer::Outcome(Outcome::Done) => Ok(()),
        other => Err(ServiceError::Stored(format!("a token: {other:?}"))),
    }
}

/// A new ledger has no policy: the one the server was started with becomes its first.
fn store_first_policy(ledger: &Ledger, policy: &Policy) -> Result<(), ServiceError> {
    if ledger.policies()?.iter().any(|stored| stored.active) {
        return Ok(());
    }
    let (name, hash) = (policy.name().to_owned(), policy.hash().to_string());
    let body = policy.to_json();
    match ledger.administer(Op::ActivatePolicy { name, hash, body, expect: None })? {
        Outcome::Impossible(why) => Err(ServiceError::Stored(why)),
        Outcome::Done | Outcome::Unchanged | Outcome::Stale { .. } => Ok(()),
    }
}

/// The key that all servers of a ledger make marks of places with; the first to come makes it.
fn locality_key(ledger: &Ledger) -> Result<LocalityKey, ServiceError> {
    const KIND: &str = "secret";
    const ID: &str = "locality";
    let wrong = |why: String| ServiceError::Stored(format!("the key of localities: {why}"));
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

/// Takes in tokens and waiting requests that other servers changed.
async fn follow_documents(
    service: Arc<Service>,
    mut documents: tokio::sync::mpsc::UnboundedReceiver<crate::catalog::DocumentChange>,
) {
    loop {
        let changed = tokio::select! {
            () = service.stopping.cancelled() => return,
            changed = documents.recv() => changed,
        };
        let Some((kind, id)) = changed else { return };
        let known = Arc::clone(&service);
        // One after the other, so that the last change is the last one read.
        let _ = tokio::task::spawn_blocking(move || match &*kind {
            TOKEN_KIND => known.tokens.reload(&known.ledger, &id),
            queue::KIND => known.queue.reload(&known.ledger, &id),
            drain::KIND => known.drain_changed(&id),
            volume_moves::KIND => known.volume_move_changed(&id),
            migrations::KIND => known.migrations.reload(&known.ledger, &id),
            Scheduling::KIND => known.degraded.reload(&known.ledger, &id),
            _ => {}
        })
        .await;
    }
}

/// Keeps the housekeeper until the server stops.
async fn keep_house(service: Arc<Service>, housekeeper: Housekeeper) {
    service.stopping.cancelled().await;
    let _ = tokio::task::spawn_blocking(move || drop(housekeeper)).await;
}
