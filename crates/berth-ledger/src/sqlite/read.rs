//! Reads outside the claim path: the event log, snapshots, lists, and housekeeping.

use berth_engine::{NodeFacts, NodeId, Timestamp, Volume};
use rusqlite::types::ValueRef;
use rusqlite::{Connection, Row};

use super::lock::{demand_from, workload_from};
use super::rows::{CLAIM, POOL, claim_from, claim_key_from, group_from, names, pool_from, text};
use crate::database::{ChainRow, LogEnds, ReceiptRow, SnapshotItem, TakeItem};
use crate::drift::{self, DriftedRows};
use crate::encoding;
use crate::error::Fault;
use crate::model::{ClaimKey, Micros, NodeVersion, Quota, REFUSALS, Segment, UnmetDemand};
use crate::retention::RetentionCutoffs;
use crate::schema::{Cell, NextRow, TABLES, TakeRow};

/// Calls back for each row of a query.
pub(super) fn for_each_row(
    connection: &Connection,
    sql: &str,
    parameters: impl rusqlite::Params,
    mut take: impl FnMut(&Row<'_>) -> Result<(), Fault>,
) -> Result<(), Fault> {
    let mut statement = connection.prepare_cached(sql)?;
    let mut rows = statement.query(parameters)?;
    while let Some(row) = rows.next()? {
        take(row)?;
    }
    Ok(())
}

pub(super) fn log_ends(connection: &Connection) -> Result<LogEnds, Fault> {
    let mut statement = connection.prepare_cached("SELECT first_event, next_event FROM ledger")?;
    Ok(statement.query_row([], |row| Ok(LogEnds { first: row.get(0)?, next: row.get(1)? }))?)
}

/// What is stored as text. A body that is none is for its reader to find unreadable: it must not hide
/// the segments after it.
fn lossy_text(value: ValueRef<'_>) -> String {
    match value {
        ValueRef::Text(bytes) | ValueRef::Blob(bytes) => {
            String::from_utf8_lossy(bytes).into_owned()
        }
        ValueRef::Null | ValueRef::Integer(_) | ValueRef::Real(_) => String::new(),
    }
}

pub(super) fn segments_after(
    connection: &Connection,
    cursor: i64,
    limit: i64,
) -> Result<Vec<Segment>, Fault> {
    // The segment that holds the event after the cursor may begin before it.
    let sql = "SELECT first, count, at, origin, body FROM event_segment WHERE first >= \
         (SELECT coalesce(max(first), 0) FROM event_segment WHERE first <= ?1 + 1) \
         AND first + count > ?1 + 1 ORDER BY first";
    let mut statement = connection.prepare_cached(sql)?;
    let mut rows = statement.query([cursor])?;
    let (mut segments, mut events) = (Vec::new(), 0);
    while let Some(row) = rows.next()? {
        let count: i64 = row.get(1)?;
        segments.push(Segment {
            first: row.get(0)?,
            count,
            at: Micros(row.get(2)?),
            origin: text(row, 3)?,
            body: lossy_text(row.get_ref(4)?),
        });
        events += count;
        if events >= limit {
            break;
        }
    }
    Ok(segments)
}

/// Nodes with what a plan on them rests on, as [`node_version_from`] reads them.
pub(super) const NODES: &str = "SELECT n.facts, n.heartbeat_at, r.constraint_gen, r.rules_gen, \
    r.fence FROM node n JOIN node_room r ON r.node = n.id";

pub(super) fn node_version_from(row: &Row<'_>) -> Result<(NodeFacts, NodeVersion), Fault> {
    let facts = row.get_ref(0)?.as_str().map_err(Fault::corrupt)?;
    let mut facts: NodeFacts = serde_json::from_str(facts)?;
    facts.heartbeat_at = Timestamp(row.get(1)?);
    let seen = NodeVersion::of(&facts, row.get(2)?, row.get(3)?, row.get(4)?);
    Ok((facts, seen))
}

pub(super) fn snapshot(connection: &Connection, take: &mut TakeItem<'_>) -> Result<(), Fault> {
    for_each_row(connection, "SELECT name, hash, body FROM policy WHERE active = 1", [], |row| {
        take(SnapshotItem::Policy(row.get(0)?, row.get(1)?, row.get(2)?))
    })?;
    for_each_row(connection, "SELECT owner, env, version FROM env_secrets", [], |row| {
        let tenant = Some(text(row, 0)?).filter(|tenant| !tenant.is_empty());
        take(SnapshotItem::Secrets(tenant, text(row, 1)?, text(row, 2)?))
    })?;
    let groups =
        "SELECT id, owner, kind, strength, topology, max_per_domain, home FROM placement_group";
    for_each_row(connection, groups, [], |row| take(SnapshotItem::Group(group_from(row)?.group)))?;
    for_each_row(connection, &format!("{NODES} ORDER BY n.id"), [], |row| {
        let (facts, seen) = node_version_from(row)?;
        take(SnapshotItem::Node(Box::new(facts), seen))
    })?;
    for_each_row(connection, "SELECT id, home, attached_to, owner FROM volume", [], |row| {
        let attached_to = row.get_ref(2)?.as_blob_or_null().map_err(Fault::corrupt)?;
        take(SnapshotItem::Volume(Volume {
            id: row.get(0)?,
            tenant: row.get(3)?,
            home: NodeId::new(&text(row, 1)?),
            attached_to: attached_to.map(encoding::parse_instance).transpose()?,
        }))
    })?;
    let pools = format!("SELECT {POOL} FROM pool");
    for_each_row(connection, &pools, [], |row| take(SnapshotItem::Pool(pool_from(row)?.pool)))?;
    let quotas = "SELECT owner, limit_cpu, limit_memory, limit_disk, limit_instances FROM tenant \
         WHERE removal IS NULL";
    for_each_row(connection, quotas, [], |row| {
        let quota = Quota {
            cpu_milli: row.get(1)?,
            memory_mib: row.get(2)?,
            disk_mib: row.get(3)?,
            instances: row.get(4)?,
        };
        take(SnapshotItem::Quota(text(row, 0)?, quota))
    })?;
    let workloads = "SELECT owner, name, revision, replicas, body FROM workload";
    for_each_row(connection, workloads, [], |row| {
        take(SnapshotItem::Workload(workload_from(row)?))
    })?;
    for_each_row(connection, &format!("SELECT {CLAIM} FROM claim"), [], |row| {
        take(SnapshotItem::Claim(Box::new(claim_from(row)?)))
    })
}

pub(super) fn claims_of(
    connection: &Connection,
    tenant: &str,
    workload: Option<&str>,
) -> Result<Vec<ClaimKey>, Fault> {
    let sql = "SELECT instance, role FROM claim \
         WHERE owner = ?1 AND (?2 IS NULL OR workload = ?2) ORDER BY instance, role";
    let mut keys = Vec::new();
    for_each_row(connection, sql, (tenant, workload), |row| {
        keys.push(claim_key_from(row, 0)?);
        Ok(())
    })?;
    Ok(keys)
}

pub(super) fn expired_nodes(connection: &Connection, now: Micros) -> Result<Vec<NodeId>, Fault> {
    let sql = "SELECT DISTINCT node FROM claim WHERE state = 0 AND lease_until <= ?1 ORDER BY node";
    let mut nodes = Vec::new();
    for_each_row(connection, sql, [now.0], |row| {
        nodes.push(NodeId::new(&text(row, 0)?));
        Ok(())
    })?;
    Ok(nodes)
}

pub(super) fn drifted(connection: &mut Connection) -> Result<DriftedRows, Fault> {
    let snapshot = connection.transaction()?;
    let mut drifted = DriftedRows {
        nodes: names(&snapshot, drift::NODES)?.into_iter().collect(),
        tenants: names(&snapshot, drift::TENANTS)?.into_iter().collect(),
        ..DriftedRows::default()
    };
    let mut counters = drift::DriftCounters::default();
    for_each_row(&snapshot, drift::HOLDINGS, [], |row| {
        let holdings = row.get_ref(1)?.as_str().map_err(Fault::corrupt)?;
        counters.claim(&text(row, 0)?, &serde_json::from_str(holdings)?);
        Ok(())
    })?;
    for_each_row(&snapshot, drift::CLASSES, [], |row| {
        counters.class(&text(row, 0)?, &text(row, 1)?, row.get(2)?);
        Ok(())
    })?;
    for_each_row(&snapshot, drift::DOMAINS, [], |row| {
        counters.domain(&text(row, 0)?, &text(row, 1)?, row.get(2)?);
        Ok(())
    })?;
    counters.report(&mut drifted);
    Ok(drifted)
}

pub(super) fn highest_fence(connection: &Connection) -> Result<i64, Fault> {
    let sql = "SELECT coalesce(max(fence), 0) FROM node_room";
    Ok(connection.query_row(sql, [], |row| row.get(0))?)
}

pub(super) fn heartbeats_since(
    connection: &Connection,
    at: i64,
) -> Result<Vec<(NodeId, i64)>, Fault> {
    let mut heard = Vec::new();
    for_each_row(
        connection,
        "SELECT id, heartbeat_at FROM node WHERE heartbeat_at >= ?1",
        [at],
        |row| {
            heard.push((NodeId::new(&text(row, 0)?), row.get(1)?));
            Ok(())
        },
    )?;
    Ok(heard)
}

pub(super) fn demand(connection: &Connection) -> Result<Vec<UnmetDemand>, Fault> {
    let sql = "SELECT owner, code, spec, times, first_at, last_at FROM demand \
         ORDER BY last_at DESC, shape";
    let mut demand = Vec::new();
    for_each_row(connection, sql, [], |row| {
        demand.push(demand_from(row)?);
        Ok(())
    })?;
    Ok(demand)
}

pub(super) fn chains(connection: &Connection) -> Result<Vec<ChainRow>, Fault> {
    let sql = "SELECT id, length, head, base, base_hash FROM chain ORDER BY started_at DESC, id";
    let mut chains = Vec::new();
    for_each_row(connection, sql, [], |row| {
        chains.push(ChainRow {
            id: text(row, 0)?,
            length: row.get(1)?,
            head: row.get(2)?,
            base: row.get(3)?,
            base_hash: row.get(4)?,
        });
        Ok(())
    })?;
    Ok(chains)
}

/// The columns of a receipt, in the order in which [`receipt_from`] reads them.
pub(super) const RECEIPT: &str = "chain, n, at, hash, count, body";

pub(super) fn receipt_from(row: &Row<'_>) -> Result<ReceiptRow, Fault> {
    Ok(ReceiptRow {
        chain: text(row, 0)?,
        n: row.get(1)?,
        at: Micros(row.get(2)?),
        hash: row.get(3)?,
        count: row.get(4)?,
        body: row.get(5)?,
    })
}

pub(super) fn receipts(
    connection: &Connection,
    chain: &str,
    from: i64,
    limit: i64,
) -> Result<Vec<ReceiptRow>, Fault> {
    let sql =
        format!("SELECT {RECEIPT} FROM receipt WHERE chain = ?1 AND n >= ?2 ORDER BY n LIMIT ?3");
    let mut receipts = Vec::new();
    for_each_row(connection, &sql, (chain, from, limit), |row| {
        receipts.push(receipt_from(row)?);
        Ok(())
    })?;
    Ok(receipts)
}

pub(super) fn forget(connection: &mut Connection, what: &RetentionCutoffs) -> Result<u64, Fault> {
    let transaction =
        connection.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)?;
    let mut gone = 0;
    gone += transaction
        .execute("DELETE FROM event_segment WHERE first + count <= ?1", [what.events_before])?;
    // The oldest event that is really there; segments are kept or dropped whole.
    transaction.execute(
        "UPDATE ledger SET first_event = \
         coalesce((SELECT min(first) FROM event_segment), next_event)",
        [],
    )?;
    gone += transaction.execute("DELETE FROM request WHERE at < ?1", [what.answers_before.0])?;
    gone += transaction.execute(
        "DELETE FROM pool_value WHERE released_at IS NOT NULL AND released_at < ?1 - 1000000 * \
         (SELECT quarantine_s FROM pool WHERE pool.id = pool_value.pool)",
        [what.now.0],
    )?;
    let of_refusals = format!("%{REFUSALS}");
    for (before, chains) in [(what.receipts_before, "%"), (what.refusals_before, &of_refusals)] {
        let Some(before) = before else { continue };
        // The newest receipt of every chain stays: it is what the next one is tied to. What is gone
        // already is not read again.
        transaction.execute(
            "UPDATE chain SET (base, base_hash) = (SELECT n + 1, hash FROM receipt \
             WHERE chain = chain.id AND at < ?1 AND n < chain.length - 1 ORDER BY n DESC LIMIT 1) \
             WHERE id LIKE ?2 AND EXISTS (SELECT 1 FROM receipt WHERE chain = chain.id AND at < ?1 \
             AND n < chain.length - 1)",
            (before.0, chains),
        )?;
        gone += transaction.execute(
            "DELETE FROM receipt WHERE n < (SELECT base FROM chain WHERE chain.id = receipt.chain)",
            [],
        )?;
    }
    if let Some(before) = what.audit_before {
        gone += super::service::forget(&transaction, before)?;
    }
    transaction.commit()?;
    Ok(u64::try_from(gone).unwrap_or(u64::MAX))
}

fn select_all(table: usize) -> String {
    let columns: Vec<&str> = TABLES[table].columns.iter().map(|column| column.name()).collect();
    format!("SELECT {} FROM {} ORDER BY 1, 2", columns.join(", "), TABLES[table].table)
}

pub(super) fn dump(
    connection: &mut Connection,
    wanted: &dyn Fn(&str) -> bool,
    take: &mut TakeRow<'_>,
) -> Result<i64, Fault> {
    let transaction = connection.transaction()?;
    let next = log_ends(&transaction)?.next;
    for (number, shape) in TABLES.iter().enumerate().filter(|(_, shape)| wanted(shape.table)) {
        for_each_row(&transaction, &select_all(number), [], |row| {
            let mut cells = Vec::with_capacity(shape.columns.len());
            for column in 0..shape.columns.len() {
                cells.push(match row.get_ref(column)? {
                    ValueRef::Null => Cell::Null,
                    ValueRef::Integer(number) => Cell::Int(number),
                    ValueRef::Text(text) => Cell::Text(String::from_utf8_lossy(text).into_owned()),
                    ValueRef::Blob(bytes) => Cell::Bytes(bytes.to_vec()),
                    ValueRef::Real(_) => return Err(Fault::corrupt("a fraction")),
                });
            }
            take(number, cells)
        })?;
    }
    Ok(next - 1)
}

pub(super) fn load(connection: &mut Connection, next: &mut NextRow<'_>) -> Result<(), Fault> {
    let transaction =
        connection.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)?;
    transaction.execute("DELETE FROM ledger", [])?;
    while let Some((table, cells)) = next()? {
        let shape = &TABLES[table];
        let columns: Vec<&str> = shape.columns.iter().map(|column| column.name()).collect();
        let places: Vec<String> = (1..=columns.len()).map(|place| format!("?{place}")).collect();
        let (columns, places) = (columns.join(", "), places.join(", "));
        let sql = format!("INSERT INTO {} ({columns}) VALUES ({places})", shape.table);
        let mut statement = transaction.prepare_cached(&sql)?;
        for (place, cell) in cells.iter().enumerate() {
            match cell {
                Cell::Null => statement.raw_bind_parameter(place + 1, rusqlite::types::Null)?,
                Cell::Int(number) => statement.raw_bind_parameter(place + 1, number)?,
                Cell::Text(text) => statement.raw_bind_parameter(place + 1, text)?,
                Cell::Bytes(bytes) => statement.raw_bind_parameter(place + 1, bytes)?,
            }
        }
        statement.raw_execute()?;
    }
    transaction.commit()?;
    Ok(())
}
