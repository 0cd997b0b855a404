//! The event log: numbers for what has committed, and everything as of one of them.
//!
//! Transactions become visible in another order than they drew their segment's id in, so a reader
//! of "id greater than the last I saw" would miss late commits. Segments therefore commit without
//! a number, and readers of the log number what has become visible, one reader at a time. A number
//! once given is visible to every reader that sees a higher one.
//!
//! The order is that of the ids, and that is causal: an id is drawn when all locks are held, so
//! of two transactions that touch one row the later has the higher id, and who sees the later sees
//! the earlier too.

use berth_engine::{NodeFacts, Timestamp, Volume};
use tokio_postgres::Row;

use super::pipeline::Call;
use super::rows::{
    CLAIM, GROUP, POOL, WORKLOAD, claim_from, get, group_from, node_id, pool_from, quota_from,
    text, workload_from,
};
use super::session::Session;
use crate::database::{LogEnds, SnapshotItem, TakeItem};
use crate::encoding;
use crate::error::Fault;
use crate::model::{Micros, NodeVersion, Segment};

/// The advisory lock of the sequencer: "berth" and a number.
const SEQUENCER: i64 = 0x62_6572_7468_0002;

/// Segments that are numbered in one transaction.
const ROUND: i64 = 5000;

/// Numbers segments in the order of their ids, from where the last numbering ended.
const NUMBER: &str = "WITH waiting AS \
    (SELECT id, count FROM event_segment WHERE first IS NULL ORDER BY id LIMIT $1), \
    numbered AS (SELECT w.id, (SELECT next_event FROM ledger) \
        + (sum(w.count) OVER (ORDER BY w.id) - w.count)::bigint AS first FROM waiting AS w), \
    done AS (UPDATE event_segment AS e SET first = n.first FROM numbered AS n \
        WHERE e.id = n.id RETURNING e.count) \
    UPDATE ledger SET next_event = next_event + (SELECT sum(count) FROM done)::bigint \
    WHERE EXISTS (SELECT 1 FROM waiting)";

/// How far the log reaches, and whether segments wait for a number.
pub(super) fn ends(session: &mut Session) -> Result<(LogEnds, bool), Fault> {
    let sql = "SELECT first_event, next_event, \
         EXISTS (SELECT 1 FROM event_segment WHERE first IS NULL) FROM ledger";
    let rows = session.rows(Call::bare("ledger", sql))?;
    let row = rows.first().ok_or_else(|| Fault::corrupt("a ledger without its own row"))?;
    Ok((LogEnds { first: get(row, 0)?, next: get(row, 1)? }, get(row, 2)?))
}

/// Gives numbers to all segments that have committed. Returns how far the log reaches.
///
/// Waits while another process numbers, rather than relying on it: a process that has committed and
/// then reads the log must find its own events.
pub(super) fn number(session: &mut Session) -> Result<LogEnds, Fault> {
    loop {
        let (ends, waiting) = ends(session)?;
        if !waiting {
            return Ok(ends);
        }
        // One round trip, so that no slow client holds the lock; the numbering sees what was
        // committed when the lock was obtained, not before. An error undoes it at the commit.
        let lock = "SELECT pg_advisory_xact_lock($1)";
        session.all(&[
            Call::bare("event_segment", "BEGIN ISOLATION LEVEL READ COMMITTED"),
            Call::new("event_segment", lock, vec![Box::new(SEQUENCER)]),
            Call::new("event_segment", NUMBER, vec![Box::new(ROUND)]),
            Call::bare("event_segment", "COMMIT"),
        ])?;
    }
}

/// Segments that hold events after this one. Numbers are dense, so they bound the answer.
pub(super) fn segments_after(
    session: &mut Session,
    cursor: i64,
    limit: i64,
) -> Result<Vec<Segment>, Fault> {
    // The segment that holds the event after the cursor may begin before it.
    let sql = "WITH wanted AS (SELECT greatest($1, first_event - 1) AS after FROM ledger) \
         SELECT e.first, e.count, e.at, e.origin, e.body FROM event_segment AS e, wanted AS w \
         WHERE e.first >= (SELECT coalesce(max(first), 0) FROM event_segment \
             WHERE first <= (SELECT after + 1 FROM wanted)) \
         AND e.first - $2 <= w.after AND e.first + e.count > w.after + 1 ORDER BY e.first";
    let call = Call::new("event_segment", sql, vec![Box::new(cursor), Box::new(limit.max(1))]);
    let segment = |row: &Row| {
        Ok(Segment {
            first: get(row, 0)?,
            count: get(row, 1)?,
            at: Micros(get(row, 2)?),
            origin: text(row, 3)?,
            body: get(row, 4)?,
        })
    };
    session.rows(call)?.iter().map(segment).collect()
}

/// Nodes with what a plan on them rests on, as [`node_version_from`] reads them.
pub(super) const NODES: &str = "SELECT n.facts, n.heartbeat_at, r.constraint_gen, r.rules_gen, \
    r.fence FROM node AS n JOIN node_room AS r ON r.node = n.id";

pub(super) fn node_version_from(row: &Row) -> Result<(NodeFacts, NodeVersion), Fault> {
    let mut facts: NodeFacts = serde_json::from_str(get(row, 0)?)?;
    facts.heartbeat_at = Timestamp(get(row, 1)?);
    let seen = NodeVersion::of(&facts, get(row, 2)?, get(row, 3)?, get(row, 4)?);
    Ok((facts, seen))
}

/// Hands over everything, in the order in which a fleet can apply it.
pub(super) fn snapshot(session: &mut Session, take: &mut TakeItem<'_>) -> Result<(), Fault> {
    let mut each =
        |what: &'static str, sql: String, read: fn(&Row) -> Result<SnapshotItem, Fault>| {
            session.each(&Call::new(what, sql, Vec::new()), &mut |row| take(read(row)?))
        };
    let policies = "SELECT name, hash, body FROM policy WHERE active = 1";
    each("policy", policies.to_owned(), |row| {
        Ok(SnapshotItem::Policy(get(row, 0)?, get(row, 1)?, get(row, 2)?))
    })?;
    each("env_secrets", "SELECT owner, env, version FROM env_secrets".to_owned(), |row| {
        let tenant = Some(text(row, 0)?).filter(|tenant| !tenant.is_empty());
        Ok(SnapshotItem::Secrets(tenant, text(row, 1)?, text(row, 2)?))
    })?;
    each("placement_group", format!("SELECT {GROUP} FROM placement_group"), |row| {
        Ok(SnapshotItem::Group(group_from(row)?.group))
    })?;
    each("node", format!("{NODES} ORDER BY n.id COLLATE \"C\""), |row| {
        let (facts, seen) = node_version_from(row)?;
        Ok(SnapshotItem::Node(Box::new(facts), seen))
    })?;
    each("volume", "SELECT id, home, attached_to, owner FROM volume".to_owned(), |row| {
        let attached_to: Option<&[u8]> = get(row, 2)?;
        let attached_to = attached_to.map(encoding::parse_instance).transpose()?;
        let (id, tenant, home) = (get(row, 0)?, get(row, 3)?, node_id(row, 1)?);
        Ok(SnapshotItem::Volume(Volume { id, tenant, home, attached_to }))
    })?;
    each("pool", format!("SELECT {POOL} FROM pool"), |row| {
        Ok(SnapshotItem::Pool(pool_from(row)?.pool))
    })?;
    let quotas = "SELECT owner, limit_cpu, limit_memory, limit_disk, limit_instances FROM tenant \
         WHERE removal IS NULL";
    each("tenant", quotas.to_owned(), |row| {
        Ok(SnapshotItem::Quota(text(row, 0)?, quota_from(row, 1)?))
    })?;
    each("workload", format!("SELECT {WORKLOAD} FROM workload"), |row| {
        Ok(SnapshotItem::Workload(workload_from(row)?))
    })?;
    each("claim", format!("SELECT {CLAIM} FROM claim AS c"), |row| {
        Ok(SnapshotItem::Claim(Box::new(claim_from(row)?)))
    })
}
