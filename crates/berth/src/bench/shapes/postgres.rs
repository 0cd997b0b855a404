//! The shapes in PostgreSQL, on a server that is started for the purpose and waits for its disk.
//!
//! Only what the server calls a conflict is one; any other error ends the benchmark.

use std::time::Duration;

use berth_pgtemp::{Options, TempPostgres};
use tokio::runtime::{Builder, Runtime};
use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, Error, NoTls, Statement};

use super::load::{Answer, Claim, Claimant};
use super::{Audit, Case, Database, Level, Shape};

const TABLES: &str = "
    CREATE TABLE node (id bigint PRIMARY KEY, capacity bigint NOT NULL, used bigint NOT NULL);
    CREATE TABLE claim (id bigint PRIMARY KEY, node bigint NOT NULL, amount bigint NOT NULL);
    CREATE INDEX claim_by_node ON claim (node) INCLUDE (amount);";

const FILL: &str =
    "INSERT INTO node SELECT id, $1, 0 FROM generate_series(0::bigint, $2::bigint - 1) AS id";

const AUDIT: &str = "
    WITH taken AS (
        SELECT node.capacity, node.used, coalesce(sum(claim.amount), 0)::bigint AS amount
        FROM node LEFT JOIN claim ON claim.node = node.id GROUP BY node.id)
    SELECT (SELECT count(*) FROM claim),
           coalesce(sum(greatest(amount - capacity, 0)), 0)::bigint,
           coalesce(sum(abs(amount - used)), 0)::bigint
    FROM taken";

const GUARDED_UPDATE: &str =
    "UPDATE node SET used = used + 1 WHERE id = $1 AND used + 1 <= capacity";
const INSERT: &str = "INSERT INTO claim VALUES ($1, $2, 1)";
const GUARDED_STATEMENT: &str = "
    WITH guard AS (
        UPDATE node SET used = used + 1 WHERE id = $2 AND used + 1 <= capacity RETURNING id)
    INSERT INTO claim SELECT $1::bigint, id, 1 FROM guard";
const LOCK: &str = "SELECT used, capacity FROM node WHERE id = $1 FOR UPDATE";
const COUNT: &str = "UPDATE node SET used = used + 1 WHERE id = $1";
const SUM: &str = "SELECT coalesce(sum(amount), 0)::bigint FROM claim WHERE node = $1";
const CONDITIONAL_INSERT: &str = "
    INSERT INTO claim SELECT $1::bigint, $2::bigint, 1
    WHERE (SELECT coalesce(sum(amount), 0) FROM claim WHERE node = $2) + 1
       <= (SELECT capacity FROM node WHERE id = $2)";

/// A server with the tables of the benchmark.
pub(super) struct Postgres {
    server: TempPostgres,
    session: Session,
}

/// A connection and the thread-bound machinery that drives it.
struct Session {
    runtime: Runtime,
    client: Client,
}

impl Session {
    fn open(url: &str) -> anyhow::Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let (client, connection) = runtime.block_on(tokio_postgres::connect(url, NoTls))?;
        // A lost connection also shows as an error of the statement that needed it.
        runtime.spawn(connection);
        Ok(Self { runtime, client })
    }

    fn batch(&self, sql: &str) -> anyhow::Result<()> {
        Ok(self.runtime.block_on(self.client.batch_execute(sql))?)
    }
}

impl Postgres {
    pub(super) fn new() -> anyhow::Result<Self> {
        let server = TempPostgres::start(Options::default())?;
        let session = Session::open(&server.url())?;
        session.batch(TABLES)?;
        Ok(Self { server, session })
    }
}

impl Database for Postgres {
    fn version(&self) -> anyhow::Result<String> {
        let asked = self.session.client.query_one("SHOW server_version", &[]);
        let version: String = self.session.runtime.block_on(asked)?.try_get(0)?;
        Ok(format!("PostgreSQL {version}"))
    }

    fn cases(&self) -> Vec<Case> {
        let shapes = [
            Shape::GuardedUpdate,
            Shape::GuardedStatement,
            Shape::LockedCounter,
            Shape::LockedSum,
            Shape::ConditionalInsert,
        ];
        let ways = [
            (Level::ReadCommitted, false),
            (Level::RepeatableRead, false),
            (Level::RepeatableRead, true),
            (Level::Serializable, false),
            (Level::Serializable, true),
        ];
        let all = shapes
            .into_iter()
            .flat_map(|shape| ways.map(|(level, retries)| Case { shape, level, retries }));
        all.collect()
    }

    fn reset(&mut self, nodes: u64, capacity: i64) -> anyhow::Result<()> {
        self.session.batch("TRUNCATE node, claim")?;
        let nodes = i64::try_from(nodes)?;
        let fill = async { self.session.client.execute(FILL, &[&capacity, &nodes]).await };
        self.session.runtime.block_on(fill)?;
        // So that neither old dirt nor a plan made for an empty table is part of what is measured.
        self.session.batch("VACUUM ANALYZE node")?;
        self.session.batch("CHECKPOINT")
    }

    fn connect(&self, case: Case, pause: Duration) -> anyhow::Result<Box<dyn Claimant>> {
        let session = Session::open(&self.server.url())?;
        session.batch(&format!("SET default_transaction_isolation = '{}'", name(case.level)))?;
        let (runtime, client) = (&session.runtime, &session.client);
        let statements = match case.shape {
            Shape::GuardedUpdate => vec![GUARDED_UPDATE, INSERT],
            Shape::GuardedStatement => vec![GUARDED_STATEMENT],
            Shape::LockedCounter => vec![LOCK, COUNT, INSERT],
            Shape::LockedSum => vec![LOCK, SUM, INSERT],
            Shape::ConditionalInsert => vec![CONDITIONAL_INSERT],
        };
        let prepared: Result<Vec<Statement>, Error> =
            statements.into_iter().map(|sql| runtime.block_on(client.prepare(sql))).collect();
        let prepared = prepared?;
        Ok(Box::new(PostgresClient { session, shape: case.shape, pause, prepared }))
    }

    fn audit(&mut self) -> anyhow::Result<Audit> {
        let row = self.session.runtime.block_on(self.session.client.query_one(AUDIT, &[]))?;
        let number = |column: usize| -> anyhow::Result<u64> {
            Ok(u64::try_from(row.try_get::<_, i64>(column)?)?)
        };
        Ok(Audit { claims: number(0)?, oversold: number(1)?, drift: number(2)? })
    }
}

/// What PostgreSQL calls a level. SQLite's ways are never asked for here.
fn name(level: Level) -> &'static str {
    match level {
        Level::ReadCommitted | Level::Immediate | Level::Deferred => "read committed",
        Level::RepeatableRead => "repeatable read",
        Level::Serializable => "serializable",
    }
}

struct PostgresClient {
    session: Session,
    shape: Shape,
    pause: Duration,
    prepared: Vec<Statement>,
}

impl Claimant for PostgresClient {
    fn claim(&mut self, claim: Claim) -> anyhow::Result<Answer> {
        match self.session.runtime.block_on(self.attempt(claim)) {
            Ok(true) => Ok(Answer::Granted),
            Ok(false) => Ok(Answer::Refused),
            Err(error) if is_conflict(&error) => {
                // Without a transaction of our own, nothing is open and this is a mere warning.
                self.session.batch("ROLLBACK")?;
                Ok(Answer::Conflict)
            }
            Err(error) => Err(error.into()),
        }
    }
}

fn is_conflict(error: &Error) -> bool {
    let code = error.code();
    code == Some(&SqlState::T_R_SERIALIZATION_FAILURE)
        || code == Some(&SqlState::T_R_DEADLOCK_DETECTED)
}

impl PostgresClient {
    /// Whether the claim was granted. A refusal commits too: above READ COMMITTED, what was read
    /// is only true if the transaction commits.
    async fn attempt(&self, claim: Claim) -> Result<bool, Error> {
        let client = &self.session.client;
        if self.shape == Shape::GuardedStatement {
            let inserted = client.execute(&self.prepared[0], &[&claim.id, &claim.node]).await?;
            return Ok(inserted == 1);
        }
        client.batch_execute("BEGIN").await?;
        let granted = match self.shape {
            Shape::GuardedUpdate => self.guarded_update(claim).await?,
            Shape::LockedCounter => self.locked_counter(claim).await?,
            Shape::LockedSum => self.locked_sum(claim).await?,
            Shape::GuardedStatement | Shape::ConditionalInsert => {
                client.execute(&self.prepared[0], &[&claim.id, &claim.node]).await? == 1
            }
        };
        if granted && !self.pause.is_zero() {
            tokio::time::sleep(self.pause).await;
        }
        client.batch_execute("COMMIT").await?;
        Ok(granted)
    }

    async fn guarded_update(&self, claim: Claim) -> Result<bool, Error> {
        let client = &self.session.client;
        if client.execute(&self.prepared[0], &[&claim.node]).await? == 0 {
            return Ok(false);
        }
        client.execute(&self.prepared[1], &[&claim.id, &claim.node]).await?;
        Ok(true)
    }

    async fn locked_counter(&self, claim: Claim) -> Result<bool, Error> {
        let client = &self.session.client;
        let row = client.query_one(&self.prepared[0], &[&claim.node]).await?;
        let (used, capacity): (i64, i64) = (row.try_get(0)?, row.try_get(1)?);
        if used >= capacity {
            return Ok(false);
        }
        client.execute(&self.prepared[1], &[&claim.node]).await?;
        client.execute(&self.prepared[2], &[&claim.id, &claim.node]).await?;
        Ok(true)
    }

    async fn locked_sum(&self, claim: Claim) -> Result<bool, Error> {
        let client = &self.session.client;
        let row = client.query_one(&self.prepared[0], &[&claim.node]).await?;
        let capacity: i64 = row.try_get(1)?;
        let row = client.query_one(&self.prepared[1], &[&claim.node]).await?;
        let taken: i64 = row.try_get(0)?;
        if taken >= capacity {
            return Ok(false);
        }
        client.execute(&self.prepared[2], &[&claim.id, &claim.node]).await?;
        Ok(true)
    }
}
