//! Lists and housekeeping, outside the claim path.

use berth_engine::NodeId;
use tokio_postgres::Row;

use super::lock::CLOCK;
use super::pipeline::{Call, Value};
use super::rows::{CLAIM, DEMAND, claim_from, claim_key_from, demand_from, get, node_id, text};
use super::session::Session;
use crate::database::{ChainRow, ReceiptRow};
use crate::drift::{self, DriftedRows};
use crate::error::Fault;
use crate::model::{Claim, ClaimKey, Micros, REFUSALS, UnmetDemand};
use crate::retention::RetentionCutoffs;

pub(super) fn list<T>(
    session: &mut Session,
    call: Call,
    read: impl Fn(&Row) -> Result<T, Fault>,
) -> Result<Vec<T>, Fault> {
    session.rows(call)?.iter().map(read).collect()
}

pub(super) fn clock(session: &mut Session) -> Result<Micros, Fault> {
    let times = list(session, Call::bare("clock", CLOCK), |row| get(row, 0))?;
    times.first().map(|at| Micros(*at)).ok_or_else(|| Fault::corrupt("no time"))
}

pub(super) fn highest_fence(session: &mut Session) -> Result<i64, Fault> {
    let sql = "SELECT coalesce(max(fence), 0) FROM node_room";
    let fences = list(session, Call::bare("node_room", sql), |row| get(row, 0))?;
    Ok(fences.first().copied().unwrap_or(0))
}

pub(super) fn claim(session: &mut Session, key: ClaimKey) -> Result<Option<Claim>, Fault> {
    let sql = format!("SELECT {CLAIM} FROM claim AS c WHERE c.instance = $1 AND c.role = $2");
    let instance = key.instance.0.as_bytes().to_vec();
    let values: Vec<Value> = vec![Box::new(instance), Box::new(key.role.number())];
    Ok(list(session, Call::new("claim", sql, values), claim_from)?.pop())
}

pub(super) fn claims_of(
    session: &mut Session,
    tenant: &str,
    workload: Option<&str>,
) -> Result<Vec<ClaimKey>, Fault> {
    let sql = "SELECT instance, role FROM claim WHERE owner = $1 \
         AND ($2::text IS NULL OR workload = $2) ORDER BY instance, role";
    let values: Vec<Value> =
        vec![Box::new(tenant.to_owned()), Box::new(workload.map(str::to_owned))];
    list(session, Call::new("claim", sql, values), |row| claim_key_from(row, 0))
}

pub(super) fn expired_nodes(session: &mut Session) -> Result<Vec<NodeId>, Fault> {
    let sql = format!(
        "SELECT DISTINCT node COLLATE \"C\" AS node FROM claim \
         WHERE state = 0 AND lease_until <= ({CLOCK}) ORDER BY 1"
    );
    list(session, Call::new("claim", sql, Vec::new()), |row| node_id(row, 0))
}

/// Names of all nodes, groups and tenants with counters.
/// Counters that are not the sum of their claims. The transaction, of one moment, is the caller's.
pub(super) fn drifted(session: &mut Session) -> Result<DriftedRows, Fault> {
    let nodes = list(session, Call::bare("node_room", drift::NODES), |row| node_id(row, 0))?;
    let tenants = list(session, Call::bare("tenant", drift::TENANTS), |row| text(row, 0))?;
    let mut drifted = DriftedRows {
        nodes: nodes.into_iter().collect(),
        tenants: tenants.into_iter().collect(),
        ..DriftedRows::default()
    };
    let mut counters = drift::DriftCounters::default();
    session.each(&Call::bare("claim", drift::HOLDINGS), &mut |row| {
        counters.claim(get(row, 0)?, &serde_json::from_str(get(row, 1)?)?);
        Ok(())
    })?;
    session.each(&Call::bare("node_class", drift::CLASSES), &mut |row| {
        counters.class(get(row, 0)?, get(row, 1)?, get(row, 2)?);
        Ok(())
    })?;
    session.each(&Call::bare("placement_group_domain", drift::DOMAINS), &mut |row| {
        counters.domain(get(row, 0)?, get(row, 1)?, get(row, 2)?);
        Ok(())
    })?;
    counters.report(&mut drifted);
    Ok(drifted)
}

pub(super) fn heartbeats_since(
    session: &mut Session,
    at: i64,
) -> Result<Vec<(NodeId, i64)>, Fault> {
    let sql = "SELECT id, heartbeat_at FROM node WHERE heartbeat_at >= $1 \
         ORDER BY id COLLATE \"C\"";
    let call = Call::new("node", sql, vec![Box::new(at)]);
    list(session, call, |row| Ok((node_id(row, 0)?, get(row, 1)?)))
}

pub(super) fn demand(session: &mut Session) -> Result<Vec<UnmetDemand>, Fault> {
    let sql = format!("SELECT {DEMAND} FROM demand ORDER BY last_at DESC, shape COLLATE \"C\"");
    list(session, Call::new("demand", sql, Vec::new()), |row| demand_from(row, 0))
}

pub(super) fn chains(session: &mut Session) -> Result<Vec<ChainRow>, Fault> {
    let sql = "SELECT id, length, head, base, base_hash FROM chain \
         ORDER BY started_at DESC, id COLLATE \"C\"";
    list(session, Call::bare("chain", sql), |row| {
        Ok(ChainRow {
            id: text(row, 0)?,
            length: get(row, 1)?,
            head: get(row, 2)?,
            base: get(row, 3)?,
            base_hash: get(row, 4)?,
        })
    })
}

/// The columns of a receipt, in the order in which [`receipt_from`] reads them.
pub(super) const RECEIPT: &str = "chain, n, at, hash, count, body";

pub(super) fn receipt_from(row: &Row) -> Result<ReceiptRow, Fault> {
    Ok(ReceiptRow {
        chain: text(row, 0)?,
        n: get(row, 1)?,
        at: Micros(get(row, 2)?),
        hash: get(row, 3)?,
        count: get(row, 4)?,
        body: get(row, 5)?,
    })
}

pub(super) fn receipts(
    session: &mut Session,
    chain: &str,
    from: i64,
    limit: i64,
) -> Result<Vec<ReceiptRow>, Fault> {
    let sql =
        format!("SELECT {RECEIPT} FROM receipt WHERE chain = $1 AND n >= $2 ORDER BY n LIMIT $3");
    let values: Vec<Value> = vec![Box::new(chain.to_owned()), Box::new(from), Box::new(limit)];
    list(session, Call::new("receipt", sql, values), receipt_from)
}

/// A statement that returns how many rows it deleted.
fn counting(what: &'static str, sql: &'static str, values: Vec<Value>) -> Call {
    let sql = format!("WITH gone AS ({sql} RETURNING 1) SELECT count(*) FROM gone");
    Call::new(what, sql, values)
}

/// The statements that drop what need not be kept, as one transaction. Those whose first row is a
/// count return the number of deleted rows.
pub(super) fn forget(session: &mut Session, what: &RetentionCutoffs) -> Result<u64, Fault> {
    let before = what.events_before;
    let mut calls = vec![
        Call::bare("ledger", "BEGIN ISOLATION LEVEL READ COMMITTED"),
        Call::bare("ledger", "SET LOCAL statement_timeout = 0"),
        // No segment gets a number while it is asked which is the oldest.
        Call::bare("ledger", "SELECT 0::bigint FROM ledger FOR UPDATE"),
        counting(
            "event_segment",
            "DELETE FROM event_segment WHERE first < $1 AND first + count <= $1",
            vec![Box::new(before)],
        ),
        // The oldest event that is really there; segments are kept or dropped whole.
        Call::bare(
            "ledger",
            "UPDATE ledger SET first_event = \
             coalesce((SELECT min(first) FROM event_segment), next_event)",
        ),
        counting(
            "request",
            "DELETE FROM request WHERE at < $1",
            vec![Box::new(what.answers_before.0)],
        ),
        counting(
            "pool_value",
            "DELETE FROM pool_value AS v USING pool AS p WHERE p.id = v.pool \
             AND v.released_at IS NOT NULL AND v.released_at < $1 - 1000000 * p.quarantine_s",
            vec![Box::new(what.now.0)],
        ),
    ];
    let of_refusals = format!("%{REFUSALS}");
    for (before, chains) in [(what.receipts_before, "%"), (what.refusals_before, &of_refusals)] {
        let Some(before) = before else { continue };
        // The newest receipt of every chain stays: it is what the next one is tied to.
        let sql = "UPDATE chain AS t SET base = r.n + 1, base_hash = r.hash FROM \
             (SELECT DISTINCT ON (o.chain) o.chain, o.n, o.hash FROM receipt AS o \
             JOIN chain AS c ON c.id = o.chain \
             WHERE o.at < $1 AND c.id LIKE $2 AND o.n < c.length - 1 \
             ORDER BY o.chain, o.n DESC) AS r WHERE r.chain = t.id";
        let values: Vec<Value> = vec![Box::new(before.0), Box::new(chains.to_owned())];
        calls.push(Call::new("chain", sql, values));
        calls.push(counting(
            "receipt",
            "DELETE FROM receipt AS r USING chain AS c WHERE c.id = r.chain AND r.n < c.base",
            Vec::new(),
        ));
    }
    if let Some(before) = what.audit_before {
        // From the oldest on, so that what stays need not be read; the newest stays.
        let sql = "DELETE FROM audit WHERE n < coalesce(\
             (SELECT n FROM audit WHERE at >= $1 ORDER BY n LIMIT 1), \
             (SELECT max(n) FROM audit))";
        calls.push(counting("audit", sql, vec![Box::new(before.0)]));
    }
    calls.push(Call::bare("ledger", "COMMIT"));
    let mut gone: i64 = 0;
    for row in session.all(&calls)?.iter().flatten() {
        gone += get::<i64>(row, 0)?;
    }
    Ok(u64::try_from(gone).unwrap_or(0))
}
