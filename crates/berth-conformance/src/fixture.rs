//! One database at one level of isolation, and everything a scenario does to it before and after.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak, mpsc};

use anyhow::{Context, bail};
use berth_engine::{Amounts, Group, NodeFacts, Timestamp};
use berth_ledger::{
    Backend, ClaimKey, EventBody, Isolation, Job, Ledger, Op, Options, Outcome, Release, Text,
};
use berth_pgtemp::TempPostgres;
use tempfile::TempDir;

use crate::invariants::{Violation, ViolationKind};
use crate::ledger_state::LedgerState;
use crate::naive;
use crate::protocol::{Claimant, Settings};
use crate::raw_sql::RawSql;
use crate::timing::wall_clock_s;

/// One server for all tests of this process; it goes with the last of them.
static SERVER: Mutex<Weak<TempPostgres>> = Mutex::new(Weak::new());

/// Databases made so far.
static DATABASES: AtomicU32 = AtomicU32::new(0);

/// Which database, at which level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Database {
    /// SQLite, which has one writer and so one level.
    Sqlite,
    /// PostgreSQL.
    Postgres(Isolation),
}

/// A database of its own for one scenario. Dropping it leaves nothing behind.
pub struct Fixture {
    /// Which database, at which level.
    pub database: Database,
    /// What makes the claims.
    pub claimant: Claimant,
    url: String,
    ledger: Option<Ledger>,
    sql_connection: RawSql,
    _folder: Option<TempDir>,
    server: Option<Arc<TempPostgres>>,
}

impl fmt::Display for Fixture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.claimant {
            Claimant::Placer => {}
            Claimant::Naive => f.write_str("naive claims on ")?,
        }
        match self.database {
            Database::Sqlite => f.write_str("SQLite"),
            Database::Postgres(isolation) => write!(f, "PostgreSQL at {isolation}"),
        }
    }
}

fn server() -> anyhow::Result<Arc<TempPostgres>> {
    let mut shared = SERVER.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(server) = shared.upgrade() {
        return Ok(server);
    }
    let mut options = berth_pgtemp::Options::quick();
    options.settings.push(("shared_buffers".to_owned(), "32MB".to_owned()));
    let server = Arc::new(TempPostgres::start(options)?);
    *shared = Arc::downgrade(&server);
    Ok(server)
}

impl Fixture {
    /// An empty ledger.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn new(database: Database) -> anyhow::Result<Self> {
        match database {
            Database::Sqlite => {
                let folder = tempfile::tempdir()?;
                let path: PathBuf = folder.path().join("ledger.db");
                Self::on_sqlite(folder, &path)
            }
            Database::Postgres(isolation) => {
                let (server, url) = Self::database()?;
                Self::on_postgres(server, url, isolation)
            }
        }
    }

    fn on_sqlite(folder: TempDir, path: &Path) -> anyhow::Result<Self> {
        Ok(Self {
            database: Database::Sqlite,
            claimant: Claimant::Placer,
            url: format!("sqlite:{}", path.display()),
            ledger: Some(Ledger::open(Backend::Sqlite(path.to_owned()), Options::default())?),
            sql_connection: RawSql::sqlite(path)?,
            _folder: Some(folder),
            server: None,
        })
    }

    fn on_postgres(
        server: Arc<TempPostgres>,
        url: String,
        isolation: Isolation,
    ) -> anyhow::Result<Self> {
        let options = Options { isolation, ..Options::default() };
        Ok(Self {
            database: Database::Postgres(isolation),
            claimant: Claimant::Placer,
            ledger: Some(Ledger::open(Backend::Postgres(url.clone()), options)?),
            sql_connection: RawSql::postgres(&url)?,
            url,
            _folder: None,
            server: Some(server),
        })
    }

    /// A ledger made from SQL, as an earlier version left it, opened by this one.
    ///
    /// # Errors
    /// When it cannot be made or opened.
    pub fn restored(database: Database, sql: &str) -> anyhow::Result<Self> {
        match database {
            Database::Sqlite => {
                let folder = tempfile::tempdir()?;
                let path: PathBuf = folder.path().join("ledger.db");
                RawSql::sqlite(&path)?.run(sql)?;
                Self::on_sqlite(folder, &path)
            }
            Database::Postgres(isolation) => {
                let (server, url) = Self::database()?;
                RawSql::postgres(&url)?.run(sql)?;
                Self::on_postgres(server, url, isolation)
            }
        }
    }

    /// Empty naive tables on PostgreSQL.
    ///
    /// # Errors
    /// When they cannot be made.
    pub fn naive(isolation: Isolation) -> anyhow::Result<Self> {
        let (server, url) = Self::database()?;
        let sql_connection = RawSql::postgres(&url)?;
        sql_connection.run(naive::TABLES)?;
        Ok(Self {
            database: Database::Postgres(isolation),
            claimant: Claimant::Naive,
            url,
            ledger: None,
            sql_connection,
            _folder: None,
            server: Some(server),
        })
    }

    fn database() -> anyhow::Result<(Arc<TempPostgres>, String)> {
        let server = server()?;
        let number = DATABASES.fetch_add(1, Ordering::Relaxed);
        let url = server.create_database(&format!("stage_{number}"))?;
        Ok((server, url))
    }

    /// The settings of a worker on this fixture.
    #[must_use]
    pub fn settings(&self) -> Settings {
        let isolation = match self.database {
            Database::Sqlite => Isolation::default(),
            Database::Postgres(isolation) => isolation,
        };
        Settings {
            url: self.url.clone(),
            isolation: isolation.to_string(),
            claimant: self.claimant,
            policy: "pack".to_owned(),
            clock_offset_s: 0,
            follow_every_ms: 50,
        }
    }

    /// The test's own handle to the ledger.
    ///
    /// # Errors
    /// When the fixture has none.
    pub fn ledger(&self) -> anyhow::Result<&Ledger> {
        self.ledger.as_ref().context("naive tables are no ledger")
    }

    /// A plain SQL connection to the database.
    #[must_use]
    pub const fn sql_connection(&self) -> &RawSql {
        &self.sql_connection
    }

    /// Ends every connection of others to this database. SQLite has no connections to lose.
    ///
    /// # Errors
    /// When the server refuses.
    pub fn drop_connections(&self) -> anyhow::Result<()> {
        if self.server.is_some() {
            self.sql_connection.rows(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
                 WHERE datname = current_database() AND pid <> pg_backend_pid()",
            )?;
        }
        Ok(())
    }

    /// A node with this much CPU and memory, no overhead, plenty of disk, in a rack.
    #[must_use]
    pub fn facts(name: &str, cpu_milli: u32, memory_mib: u32, rack: &str) -> NodeFacts {
        let capacity = Amounts::new(cpu_milli, memory_mib).with_disk(1_000_000);
        let mut facts = NodeFacts::new(name, capacity);
        facts.vmm_overhead_mib = 0;
        facts.instance_limit = 10_000;
        facts.ratios.cpu_permille = 1000;
        facts.zone = Some("zone".to_owned());
        facts.rack = Some(rack.to_owned());
        // Fresh for an hour to come, also to planners whose clock is off.
        facts.heartbeat_at = Timestamp(wall_clock_s() + 3600);
        facts
    }

    /// Adds a node, or changes what is known of it.
    ///
    /// # Errors
    /// When it cannot be.
    pub fn put_node(&self, facts: NodeFacts) -> anyhow::Result<()> {
        match self.claimant {
            Claimant::Placer => self.administer(Op::put_node(facts)),
            Claimant::Naive => {
                let memory = facts.capacity.unwrap_or_default().memory_mib;
                let id = facts.id;
                self.sql_connection
                    .run(&format!("INSERT INTO naive_node VALUES ('{id}', {memory})"))
            }
        }
    }

    /// Defines a group.
    ///
    /// # Errors
    /// When it cannot be.
    pub fn put_group(&self, group: Group) -> anyhow::Result<()> {
        match self.claimant {
            Claimant::Placer => self.administer(Op::PutGroup(group)),
            Claimant::Naive => {
                let kind = serde_json::to_value(group.kind)?;
                let (id, kind) = (group.id, kind.as_str().unwrap_or_default().to_owned());
                self.sql_connection
                    .run(&format!("INSERT INTO naive_group VALUES ('{id}', '{kind}')"))
            }
        }
    }

    /// Does an administrative operation.
    ///
    /// # Errors
    /// When it cannot be done.
    pub fn administer(&self, op: Op) -> anyhow::Result<()> {
        match self.ledger()?.administer(op)? {
            Outcome::Done | Outcome::Unchanged => Ok(()),
            Outcome::Impossible(why) => bail!("{self}: {why}"),
            Outcome::TenantRemoving(tenant) => bail!("{self}: tenant {tenant} is being removed"),
            Outcome::Stale { current } => bail!("{self}: it is at {current:?} already"),
        }
    }

    /// The state of the ledger.
    ///
    /// # Errors
    /// When they cannot be read.
    pub fn state(&self) -> anyhow::Result<LedgerState> {
        match self.claimant {
            Claimant::Placer => LedgerState::of_ledger(&self.sql_connection),
            Claimant::Naive => LedgerState::of_naive(&self.sql_connection),
        }
    }

    /// The states in the documents of migrations, by instance.
    ///
    /// # Errors
    /// When they cannot be read.
    pub fn migration_states(&self) -> anyhow::Result<BTreeMap<String, String>> {
        let rows =
            self.sql_connection.rows("SELECT id, body FROM document WHERE kind = 'migration'")?;
        let state = |row: &Vec<Option<String>>| {
            let id = row.first()?.clone()?;
            let body: serde_json::Value = serde_json::from_str(row.get(1)?.as_deref()?).ok()?;
            Some((id, body.get("state")?.as_str()?.to_owned()))
        };
        Ok(rows.iter().filter_map(state).collect())
    }

    /// Every violated invariant, by the tables and by the ledger's own reconciler.
    ///
    /// # Errors
    /// When they cannot be read.
    pub fn violations(&self) -> anyhow::Result<Vec<Violation>> {
        let mut violations = self.state()?.violations();
        if let Some(ledger) = &self.ledger {
            for drift in ledger.reconcile()? {
                violations.push(Violation::new(
                    ViolationKind::Drift,
                    format!("reconcile found {drift:?}"),
                ));
            }
        }
        Ok(violations)
    }

    /// Ends every claim, in one go.
    ///
    /// # Errors
    /// When one cannot be ended.
    pub fn clear(&self) -> anyhow::Result<()> {
        let Some(ledger) = &self.ledger else {
            return self.sql_connection.run("DELETE FROM naive_claim");
        };
        static CLEARED: AtomicU32 = AtomicU32::new(0);
        let (sender, answers) = mpsc::channel();
        let mut jobs = Vec::new();
        for claim in self.state()?.claims {
            let instance = u128::from_str_radix(&claim.instance, 16)?;
            let instance = berth_engine::InstanceId::from_u128(instance);
            let key = match claim.role {
                0 => ClaimKey::primary(instance),
                _ => ClaimKey::target(instance),
            };
            let number = CLEARED.fetch_add(1, Ordering::Relaxed);
            let release = Release {
                request_id: Text::from(format!("clear-{number}")),
                key,
                tenant: None,
                fence: None,
                confirmed: true,
                reason: Text::from("the next round"),
            };
            let sender = sender.clone();
            let reply = Box::new(move |answer| drop(sender.send(answer)));
            jobs.push(Job { op: Op::Release(release), reply });
        }
        drop(sender);
        ledger.submit(jobs);
        for answer in answers {
            answer?;
        }
        Ok(())
    }

    /// Every event, in order; their numbers must be without gaps.
    ///
    /// # Errors
    /// When they cannot be read, or a number is missing.
    pub fn events(&self) -> anyhow::Result<Vec<berth_ledger::Event>> {
        let (ledger, mut cursor, mut events) = (self.ledger()?, 0, Vec::new());
        loop {
            let page = ledger.events_after(cursor, 5000)?;
            for event in &page.events {
                if event.seq != cursor + 1 {
                    bail!("{self}: event {} follows event {cursor}", event.seq);
                }
                cursor = event.seq;
            }
            if page.events.is_empty() {
                return Ok(events);
            }
            events.extend(page.events);
        }
    }

    /// Violations in the log: replayed from the first event, it must give the claims.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn log_violations(&self) -> anyhow::Result<Vec<Violation>> {
        let mut replayed = BTreeMap::new();
        for event in self.events()? {
            match event.body {
                EventBody::Allocated(allocated) => {
                    let key = (hex(allocated.instance_id), allocated.role.number());
                    replayed.insert(key, (allocated.node_id.to_string(), allocated.fence));
                }
                EventBody::Released { instance_id, role, .. } => {
                    replayed.remove(&(hex(instance_id), role.number()));
                }
                _ => {}
            }
        }
        let mut stored = BTreeMap::new();
        for claim in self.state()?.claims {
            stored.insert((claim.instance, claim.role), (claim.node, claim.fence));
        }
        let differs = replayed != stored;
        let text = format!("the log gives {} claims, the table {}", replayed.len(), stored.len());
        Ok(differs.then(|| Violation::new(ViolationKind::Drift, text)).into_iter().collect())
    }
}

/// An instance's id as the tables have it.
fn hex(instance: berth_engine::InstanceId) -> String {
    format!("{:032x}", instance.0.as_u128())
}
