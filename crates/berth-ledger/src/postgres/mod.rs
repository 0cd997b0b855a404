//! The ledger on PostgreSQL: any number of servers write at once, and none is primary.
//!
//! Only SQL and its translation: no rule of the ledger is here. A write costs two round trips: one
//! begins, locks and reads, the other writes and commits.
//!
//! **Locks.** Every guard reads rows that it has locked, in the one lock order. Where there is no
//! row yet, a unique key decides: the second transaction is retried and finds it.
//!
//! **The writer lock.** Every writer takes this advisory lock shared; one that counts over claims that
//! no row lock covers takes it exclusively. It is taken before the transaction's first snapshot: at the
//! higher isolation levels a writer that took its snapshot before it waited would not see what it
//! waited for. There the session holds the lock, not the transaction, and releases it after the commit.
//!
//! **Isolation.** Transactions that conclude something from rows that are *not* there (alone, or
//! all of a group, or all policies) run at READ COMMITTED whatever is asked for: they hold a lock
//! that keeps such rows from coming, and must see those that came while they waited for it. The
//! others only conclude from rows they lock, and from unique keys.

mod batch;
mod copy;
mod durability;
mod fault;
mod flush;
mod hosts;
mod isolation;
mod lists;
mod lock;
mod log;
mod migrate;
mod notify;
mod pipeline;
mod pooler;
mod read;
mod rows;
mod session;
mod tenants;
mod tls;
mod values;

pub(crate) use migrate::schema_version;
pub(crate) use notify::exchange_hints;

use std::collections::BTreeSet;
use std::time::Duration;

use berth_engine::NodeId;
use tokio_postgres::Row;

use crate::database::{
    ChainRow, Database, DurabilityWarning, LogEnds, NewReceipt, NewSegment, ReceiptRow, TakeItem,
};
use crate::drift::DriftedRows;
use crate::error::Fault;
use crate::model::{
    Claim, ClaimKey, Micros, Pool, Segment, TenantHoldings, TenantRemoval, Text, UnmetDemand,
};
use crate::pool_search::{PoolCursors, find_free_values};
use crate::retention::RetentionCutoffs;
use crate::schema::{NextRow, TakeRow};
use crate::unit_of_work::{Keys, Rows, UnlockedReadKeys, UnlockedReads};
pub use isolation::{InvalidIsolation, Isolation};
use pipeline::Call;
use session::{Session, Target};

/// The writer lock: "berth" and a number.
pub(crate) const WRITER_LOCK: i64 = 0x62_6572_7468_0001;

/// Writes a record to PostgreSQL's own log and no row, so that the commit waits for the disk and for
/// synchronous standbys as any other does.
const WRITE_PROBE: &str = "SELECT pg_logical_emit_message(true, 'berth', 'write probe')";

/// Ends sessions whose probe still waits for a standby: each would keep its connection for as long as the
/// standby is away.
const END_STUCK_PROBES: &str = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
    WHERE pid <> pg_backend_pid() AND usename = current_user AND datname = current_database() \
    AND state = 'active' AND query_start < now() - interval '10 s' \
    AND query = 'SELECT pg_logical_emit_message(true, ''berth'', ''write probe'')'";

/// One connection to a PostgreSQL ledger. Must not be used on a thread that runs async tasks: it
/// waits.
pub(crate) struct Postgres {
    target: Target,
    isolation: Isolation,
    /// None once it was lost.
    session: Option<Session>,
    /// Whether the transaction that was asked for must be alone.
    exclusive: bool,
    /// Whether a transaction is open in the database.
    open: bool,
    /// Whether the session itself, and not its transaction, holds the writer lock.
    session_holds_writer_lock: bool,
    /// What the transaction will write, sent with its commit.
    writes: Vec<Call>,
    /// Where this writer draws values of large pools.
    cursors: PoolCursors,
    /// Pools that were large when last seen, which need no lock.
    large_pools: BTreeSet<Text>,
}

/// A statement about the writer lock.
fn writer_lock(sql: &'static str) -> Call {
    Call::new("the writer lock", sql, vec![Box::new(WRITER_LOCK)])
}

/// Fails if the URL leads to something that no ledger can be on.
pub(crate) fn verify(url: &str, answer_within: Option<Duration>) -> Result<(), Fault> {
    pooler::refuse_transaction_pooling(&session::configure(url, answer_within)?)
}

impl Postgres {
    /// Opens a ledger, and creates or migrates its schema.
    pub(crate) fn open(
        url: &str,
        isolation: Isolation,
        answer_within: Option<Duration>,
    ) -> Result<Self, Fault> {
        let target = session::configure(url, answer_within)?;
        let mut session = Session::connect(&target)?;
        migrate::run(&mut session)?;
        session.apply_settings()?;
        Ok(Self {
            target,
            isolation,
            session: Some(session),
            exclusive: false,
            open: false,
            session_holds_writer_lock: false,
            writes: Vec::new(),
            cursors: PoolCursors::default(),
            large_pools: BTreeSet::new(),
        })
    }

    /// Does something with the connection, opened again if it is gone and nothing is in progress. A
    /// connection that is lost in the process is dropped.
    fn with<T>(&mut self, act: impl FnOnce(&mut Session) -> Result<T, Fault>) -> Result<T, Fault> {
        // A new connection would not hold the writer lock.
        if !self.open && !self.session_holds_writer_lock {
            self.reconnect()?;
        }
        let session = self.session.as_mut();
        let session =
            session.ok_or_else(|| Fault::Disconnected("the connection is gone".to_owned()))?;
        let done = act(session);
        if matches!(done, Err(Fault::Disconnected(_))) || session.is_closed() {
            self.drop_session();
        }
        done
    }

    fn drop_session(&mut self) {
        self.session = None;
        self.open = false;
        self.session_holds_writer_lock = false;
    }

    /// The statements that take the writer lock and begin a transaction.
    fn begin_calls(&mut self, keys: &Keys) -> Vec<Call> {
        if self.exclusive {
            let begin = Call::bare("transaction", Isolation::ReadCommitted.begin());
            return vec![begin, writer_lock("SELECT pg_advisory_xact_lock($1)")];
        }
        let counts_absence = !keys.whole.groups.is_empty()
            || !keys.whole.nodes.is_empty()
            || !keys.whole.tenants.is_empty()
            || keys.policies;
        let level = if counts_absence { Isolation::ReadCommitted } else { self.isolation };
        let begin = Call::bare("transaction", level.begin());
        match level {
            Isolation::ReadCommitted => {
                vec![begin, writer_lock("SELECT pg_advisory_xact_lock_shared($1)")]
            }
            Isolation::RepeatableRead | Isolation::Serializable => {
                self.session_holds_writer_lock = true;
                vec![writer_lock("SELECT pg_advisory_lock_shared($1)"), begin]
            }
        }
    }

    /// Takes note of which pools are large. One that no longer is was read without its lock.
    fn note_large_pools(&mut self, keys: &Keys, rows: &Rows) -> Result<(), Fault> {
        for (id, &wanted) in &keys.pools {
            let large = rows.pools.get(id).is_some_and(|row| !row.pool.is_searched());
            if large {
                self.large_pools.insert(Text::clone(id));
            } else if self.large_pools.remove(id) && wanted > 0 {
                return Err(Fault::Retry(format!("pool {id} was large and no longer is")));
            }
        }
        Ok(())
    }

    /// Everything as of one moment: no writer is in progress while events get their numbers and the
    /// moment is fixed, then they go on.
    fn read_snapshot(&mut self, take: &mut TakeItem<'_>) -> Result<i64, Fault> {
        self.read_at_numbered_event(|session| log::snapshot(session, take))
    }

    /// Reads as of a moment at which every event has its number. Returns the last event's number.
    fn read_at_numbered_event(
        &mut self,
        read: impl FnOnce(&mut Session) -> Result<(), Fault>,
    ) -> Result<i64, Fault> {
        self.reconnect()?;
        self.session_holds_writer_lock = true;
        self.with(|session| session.rows(writer_lock("SELECT pg_advisory_lock($1)")))?;
        self.with(log::number)?;
        self.begin_read_transaction()?;
        let next = self.with(log::ends)?.0.next;
        self.with(|session| session.rows(writer_lock("SELECT pg_advisory_unlock($1)")))?;
        self.session_holds_writer_lock = false;
        self.with(read)?;
        self.end("COMMIT")?;
        Ok(next - 1)
    }

    /// Begins a transaction that sees one moment and may take its time. It reads whole tables, so
    /// the ways of doing that are open to it.
    fn begin_read_transaction(&mut self) -> Result<(), Fault> {
        let begin = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY";
        let settings = "SELECT set_config('statement_timeout', '0', true), \
             set_config('enable_seqscan', 'on', true), set_config('enable_hashjoin', 'on', true), \
             set_config('enable_mergejoin', 'on', true)";
        let calls = [Call::bare("transaction", begin), Call::bare("transaction", settings)];
        self.with(|session| session.all(&calls))?;
        self.open = true;
        Ok(())
    }

    /// Reads as of one moment.
    fn in_read_transaction<T>(
        &mut self,
        read: impl FnOnce(&mut Session) -> Result<T, Fault>,
    ) -> Result<T, Fault> {
        let done = self.begin_read_transaction();
        let done = done.and_then(|()| self.with(read));
        let done = done.and_then(|found| self.end("COMMIT").map(|()| found));
        self.rollback_on_error(done)
    }

    fn end(&mut self, how: &'static str) -> Result<(), Fault> {
        let ended = self.with(|session| session.rows(Call::bare("transaction", how)));
        self.open = false;
        ended.map(drop)
    }

    fn load_rows(&mut self, rows: &mut NextRow<'_>) -> Result<(), Fault> {
        self.with(|session| {
            session.all(&[
                Call::bare("transaction", Isolation::ReadCommitted.begin()),
                Call::bare("transaction", "SET LOCAL statement_timeout = 0"),
                writer_lock("SELECT pg_advisory_xact_lock($1)"),
            ])
        })?;
        self.open = true;
        self.with(|session| copy::load(session, rows))?;
        self.end("COMMIT")
    }

    /// Rolls back after an error.
    fn rollback_on_error<T>(&mut self, done: Result<T, Fault>) -> Result<T, Fault> {
        if done.is_err() {
            self.rollback();
        }
        done
    }
}

impl Database for Postgres {
    fn begin(&mut self, exclusive: bool) -> Result<(), Fault> {
        // Sent with the locks, which saves a round trip; see `lock`.
        self.exclusive = exclusive;
        self.writes.clear();
        Ok(())
    }

    fn read_unlocked(&mut self, keys: &UnlockedReadKeys) -> Result<UnlockedReads, Fault> {
        // Before the transaction, so that its snapshot, if it has one, is of a later moment.
        let calls = lock::read_unlocked(keys)?;
        let answers = self.with(|session| session.all(&calls))?;
        lock::unlocked(&calls, &answers)
    }

    fn lock(&mut self, keys: &Keys) -> Result<Rows, Fault> {
        // First, since a lost connection also loses the writer lock.
        self.reconnect()?;
        let mut calls = self.begin_calls(keys);
        let begun = calls.len();
        let mut plan = lock::Plan::new(keys, &self.large_pools)?;
        calls.append(&mut plan.calls);
        // What follows the first error is undone by `rollback`, so it counts as open before.
        let answers = self.with(|session| session.all(&calls));
        self.open = self.session.is_some();
        let answers: Vec<Vec<Row>> = answers?;
        let mut rows = plan.load(answers.into_iter().skip(begun))?;
        self.note_large_pools(keys, &rows)?;
        let mut cursors = std::mem::take(&mut self.cursors);
        let offered = self.with(|session| {
            let read_taken = |pool: &Pool, from, to| values::read_taken(session, pool, from, to);
            find_free_values(keys, &mut rows, &mut cursors, read_taken)
        });
        self.cursors = cursors;
        offered.map(|()| rows)
    }

    fn flush(&mut self, rows: &Rows) -> Result<(), Fault> {
        self.writes.extend(flush::statements(rows)?);
        Ok(())
    }

    fn chains(&mut self) -> Result<Vec<ChainRow>, Fault> {
        self.with(read::chains)
    }

    fn add_chain(&mut self, id: &Text, at: Micros) -> Result<(), Fault> {
        self.writes.push(flush::chain(id, at.0));
        Ok(())
    }

    fn append(
        &mut self,
        segment: Option<&NewSegment>,
        receipts: &[NewReceipt],
    ) -> Result<(), Fault> {
        self.writes.extend(flush::append(segment, receipts));
        Ok(())
    }

    fn commit(&mut self) -> Result<(), Fault> {
        if !self.open {
            return Err(Fault::Disconnected("the transaction is gone".to_owned()));
        }
        let mut calls = std::mem::take(&mut self.writes);
        // A write that fails, or does not find its rows, undoes all of them: the commit after it
        // is then a rollback, and the error is the write's.
        calls.push(Call::bare("commit", "COMMIT"));
        if self.session_holds_writer_lock {
            calls.push(writer_lock("SELECT pg_advisory_unlock_shared($1)"));
        }
        let done = self.with(|session| session.all(&calls));
        match done {
            Ok(_) => {
                self.open = false;
                self.session_holds_writer_lock = false;
                Ok(())
            }
            Err(fault) => {
                if matches!(fault, Fault::Duplicate(_) | Fault::Guard(_)) {
                    // Perhaps a value was taken after all: draw elsewhere.
                    self.cursors.clear();
                }
                Err(fault)
            }
        }
    }

    fn rollback(&mut self) {
        self.writes.clear();
        let script = match (self.open, self.session_holds_writer_lock) {
            (false, false) => return,
            (true, false) => "ROLLBACK",
            (_, true) => "ROLLBACK; SELECT pg_advisory_unlock_all()",
        };
        let undone = self.session.as_mut().map(|session| session.script("rollback", script));
        if !matches!(undone, Some(Ok(()))) {
            self.drop_session();
        }
        self.open = false;
        self.session_holds_writer_lock = false;
    }

    fn reconnect(&mut self) -> Result<(), Fault> {
        if self.session.as_ref().is_some_and(|session| !session.is_closed()) {
            return Ok(());
        }
        self.drop_session();
        let mut session = Session::connect(&self.target)?;
        session.apply_settings()?;
        self.session = Some(session);
        Ok(())
    }

    fn probe_write(&mut self, is_failing: bool) -> Result<(), Fault> {
        if is_failing {
            self.with(|session| session.script("write probe", END_STUCK_PROBES))?;
        }
        self.with(|session| session.script("write probe", WRITE_PROBE))
    }

    fn highest_fence(&mut self) -> Result<i64, Fault> {
        self.with(read::highest_fence)
    }

    fn durability_warnings(&mut self) -> Result<Vec<DurabilityWarning>, Fault> {
        let hosts = self.target.host_count();
        self.with(|session| durability::check(session, hosts))
    }

    fn clock(&mut self) -> Result<Micros, Fault> {
        self.with(read::clock)
    }

    fn number_events(&mut self) -> Result<LogEnds, Fault> {
        self.with(log::number)
    }

    fn segments_after(&mut self, cursor: i64, limit: i64) -> Result<Vec<Segment>, Fault> {
        self.with(|session| log::segments_after(session, cursor, limit))
    }

    fn snapshot(&mut self, take: &mut TakeItem<'_>) -> Result<i64, Fault> {
        let done = self.read_snapshot(take);
        self.rollback_on_error(done)
    }

    fn claim(&mut self, key: ClaimKey) -> Result<Option<Claim>, Fault> {
        self.with(|session| read::claim(session, key))
    }

    fn claims_of(&mut self, tenant: &str, workload: Option<&str>) -> Result<Vec<ClaimKey>, Fault> {
        self.with(|session| read::claims_of(session, tenant, workload))
    }

    fn tenant_removals(&mut self) -> Result<Vec<(Text, TenantRemoval)>, Fault> {
        self.with(tenants::removals)
    }

    fn tenant_holdings(&mut self, tenant: &str) -> Result<TenantHoldings, Fault> {
        self.in_read_transaction(|session| tenants::holdings(session, tenant))
    }

    fn forget_tenant(&mut self, tenant: &str, limit: usize) -> Result<u64, Fault> {
        self.with(|session| tenants::forget(session, tenant, limit))
    }

    fn expired_nodes(&mut self) -> Result<Vec<NodeId>, Fault> {
        self.with(read::expired_nodes)
    }

    fn drifted(&mut self) -> Result<DriftedRows, Fault> {
        self.in_read_transaction(read::drifted)
    }

    fn heartbeats_since(&mut self, at: i64) -> Result<Vec<(NodeId, i64)>, Fault> {
        self.with(|session| read::heartbeats_since(session, at))
    }

    fn demand(&mut self) -> Result<Vec<UnmetDemand>, Fault> {
        self.with(read::demand)
    }

    fn receipts(&mut self, chain: &str, from: i64, limit: i64) -> Result<Vec<ReceiptRow>, Fault> {
        self.with(|session| read::receipts(session, chain, from, limit))
    }

    fn forget(&mut self, what: &RetentionCutoffs) -> Result<u64, Fault> {
        self.with(|session| read::forget(session, what))
    }

    fn dump(
        &mut self,
        wanted: &dyn Fn(&str) -> bool,
        take: &mut TakeRow<'_>,
    ) -> Result<i64, Fault> {
        let done = self.read_at_numbered_event(|session| copy::dump(session, wanted, take));
        self.rollback_on_error(done)
    }

    fn load(&mut self, rows: &mut NextRow<'_>) -> Result<(), Fault> {
        let done = self.load_rows(rows);
        self.rollback_on_error(done)
    }
}

/// What tests of the whole crate need of a connection.
#[cfg(test)]
pub(crate) mod testing {
    pub(crate) use super::migrate::make_first;
    pub(crate) use super::session::{Session, configure};

    impl super::Postgres {
        /// Times that this connection waited for an answer.
        pub(crate) fn round_trips(&self) -> u32 {
            self.session.as_ref().map_or(0, |session| session.round_trips)
        }

        /// Statements that this connection has run.
        pub(crate) fn statements(&self) -> u32 {
            self.session.as_ref().map_or(0, |session| session.statements_run)
        }

        /// Runs SQL on this connection.
        pub(crate) fn script(&mut self, sql: &str) {
            self.with(|session| session.script("test", sql)).unwrap();
        }
    }
}
