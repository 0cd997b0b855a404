//! Rows of SQLite as the ledger's own types.

use berth_engine::{Amounts, Group, NodeFacts, NodeId, Room, Used};
use rusqlite::{Connection, OptionalExtension, Row};

use crate::encoding;
use crate::error::Fault;
use crate::model::{Claim, ClaimKey, Micros, Pool, PoolKind, Role, Spec, Text};
use crate::unit_of_work::{GroupRow, NodeRow, PoolRow};

/// The columns of a claim, in the order in which [`claim_from`] reads them.
pub(super) const CLAIM: &str = "instance, role, node, owner, workload, state, cpu, memory, disk, \
    bandwidth, capped, lease_until, fence, request_id, batch, name, spec, ties, release_id, \
    secrets_version, created_at, permit";

/// The columns of a node's counters, in the order in which [`node_from`] reads them.
pub(super) const ROOM: &str = "state, known, zone, rack, constraint_gen, rules_gen, fence, \
    limit_cpu, limit_memory, limit_disk, limit_bandwidth, limit_instances, overhead_mib, cap_mode, \
    used_cpu, used_memory, used_disk, used_bandwidth, used_instances, used_capped";

pub(super) fn text(row: &Row<'_>, column: usize) -> Result<Text, Fault> {
    Ok(Text::from(row.get_ref(column)?.as_str().map_err(Fault::corrupt)?))
}

pub(super) fn optional_text(row: &Row<'_>, column: usize) -> Result<Option<Text>, Fault> {
    let text = row.get_ref(column)?.as_str_or_null().map_err(Fault::corrupt)?;
    Ok(text.map(Text::from))
}

fn bytes<'a>(row: &'a Row<'_>, column: usize) -> Result<&'a [u8], Fault> {
    row.get_ref(column)?.as_blob().map_err(Fault::corrupt)
}

pub(super) fn claim_key_from(row: &Row<'_>, column: usize) -> Result<ClaimKey, Fault> {
    let role = row.get(column + 1)?;
    let role = Role::from_number(role).ok_or_else(|| Fault::corrupt(format!("role {role}")))?;
    Ok(ClaimKey { instance: encoding::parse_instance(bytes(row, column)?)?, role })
}

pub(super) fn claim_from(row: &Row<'_>) -> Result<Claim, Fault> {
    let state = encoding::claim_state(row.get(5)?)?;
    let amount = |column: usize| -> Result<u32, Fault> { encoding::to_u32(row.get(column)?) };
    let batch = row.get_ref(14)?.as_blob_or_null().map_err(Fault::corrupt)?;
    let permit = row.get_ref(21)?.as_str_or_null().map_err(Fault::corrupt)?;
    let holdings = row.get_ref(17)?.as_str_or_null().map_err(Fault::corrupt)?;
    Ok(Claim {
        key: claim_key_from(row, 0)?,
        node: NodeId::new(row.get_ref(2)?.as_str().map_err(Fault::corrupt)?),
        tenant: text(row, 3)?,
        workload: optional_text(row, 4)?,
        state,
        amounts: Amounts {
            cpu_milli: amount(6)?,
            memory_mib: amount(7)?,
            disk_mib: amount(8)?,
            bandwidth_mbps: amount(9)?,
        },
        capped: row.get(10)?,
        lease_until: row.get::<_, Option<i64>>(11)?.map(Micros),
        fence: row.get(12)?,
        request_id: text(row, 13)?,
        batch: batch.map(encoding::parse_uuid).transpose()?,
        name: optional_text(row, 15)?,
        spec: Spec::stored(row.get(16)?),
        holdings: holdings.map(serde_json::from_str).transpose()?,
        release_id: optional_text(row, 18)?,
        secrets_version: optional_text(row, 19)?,
        created_at: Micros(row.get(20)?),
        permit: permit.map(serde_json::from_str).transpose()?,
    })
}

pub(super) fn claim(connection: &Connection, key: ClaimKey) -> Result<Option<Claim>, Fault> {
    let sql = format!("SELECT {CLAIM} FROM claim WHERE instance = ?1 AND role = ?2");
    let mut statement = connection.prepare_cached(&sql)?;
    let mut rows = statement.query((key.instance.0.as_bytes(), key.role.number()))?;
    rows.next()?.map(claim_from).transpose()
}

pub(super) fn node_from(row: &Row<'_>) -> Result<NodeRow, Fault> {
    let amount = |column: usize| -> Result<u32, Fault> { encoding::to_u32(row.get(column)?) };
    let name = |column: usize| -> Result<&str, Fault> {
        row.get_ref(column)?.as_str().map_err(Fault::corrupt)
    };
    Ok(NodeRow {
        state: encoding::parse_state(name(0)?)?,
        known: row.get(1)?,
        zone: optional_text(row, 2)?,
        rack: optional_text(row, 3)?,
        constraint_gen: row.get(4)?,
        rules_gen: row.get(5)?,
        fence: row.get(6)?,
        room: Room {
            limits: berth_engine::Limits {
                cpu: row.get(7)?,
                memory: row.get(8)?,
                disk: row.get(9)?,
                bandwidth: row.get(10)?,
            },
            instance_limit: amount(11)?,
            overhead_mib: amount(12)?,
            cpu_cap_mode: encoding::parse_cap_mode(name(13)?)?,
            used: Used {
                cpu: row.get(14)?,
                memory: row.get(15)?,
                disk: row.get(16)?,
                bandwidth: row.get(17)?,
                instances: amount(18)?,
                capped: amount(19)?,
            },
        },
    })
}

pub(super) fn node(connection: &Connection, id: &NodeId) -> Result<Option<NodeRow>, Fault> {
    let sql = format!("SELECT {ROOM} FROM node_room WHERE node = ?1");
    let mut statement = connection.prepare_cached(&sql)?;
    let mut rows = statement.query([id.as_str()])?;
    rows.next()?.map(node_from).transpose()
}

pub(super) fn facts(connection: &Connection, id: &NodeId) -> Result<Option<NodeFacts>, Fault> {
    let sql = "SELECT facts, heartbeat_at FROM node WHERE id = ?1";
    let mut statement = connection.prepare_cached(sql)?;
    let read = |row: &Row<'_>| Ok((row.get::<_, String>(0)?, row.get::<_, i64>(1)?));
    let Some((facts, heard_at)) = statement.query_row([id.as_str()], read).optional()? else {
        return Ok(None);
    };
    let mut facts: NodeFacts = serde_json::from_str(&facts)?;
    // Signs of life are apart from the facts, since they come often.
    facts.heartbeat_at = facts.heartbeat_at.max(berth_engine::Timestamp(heard_at));
    Ok(Some(facts))
}

/// Columns: id, tenant, kind, strength, topology, max_per_domain, home.
pub(super) fn group_from(row: &Row<'_>) -> Result<GroupRow, Fault> {
    let name = |column: usize| -> Result<&str, Fault> {
        row.get_ref(column)?.as_str().map_err(Fault::corrupt)
    };
    Ok(GroupRow {
        group: Group {
            id: row.get(0)?,
            tenant: row.get(1)?,
            kind: encoding::parse_group_kind(name(2)?)?,
            strength: encoding::parse_strength(name(3)?)?,
            topology: encoding::parse_topology(name(4)?)?,
            max_per_domain: row.get(5)?,
        },
        home: optional_text(row, 6)?,
    })
}

/// Columns of a pool, as [`pool_from`] reads them.
pub(super) const POOL: &str = "id, kind, first, last, quarantine_s, next, owner";

pub(super) fn pool_from(row: &Row<'_>) -> Result<PoolRow, Fault> {
    let kind = String::from_utf8_lossy(row.get_ref(1)?.as_bytes().map_err(Fault::corrupt)?);
    let known =
        PoolKind::named(&kind).ok_or_else(|| Fault::corrupt(format!("pool kind {kind}")))?;
    Ok(PoolRow {
        pool: Pool {
            id: text(row, 0)?,
            kind: known,
            first: encoding::parse_value(bytes(row, 2)?)?,
            last: encoding::parse_value(bytes(row, 3)?)?,
            quarantine_s: encoding::to_u32(row.get(4)?)?,
            tenant: optional_text(row, 6)?,
        },
        next: encoding::parse_value(bytes(row, 5)?)?,
    })
}

/// A stored list of nothing but names.
pub(super) fn names<T: From<String>>(connection: &Connection, sql: &str) -> Result<Vec<T>, Fault> {
    let mut statement = connection.prepare_cached(sql)?;
    let mut rows = statement.query([])?;
    let mut names = Vec::new();
    while let Some(row) = rows.next()? {
        let name: String = row.get(0)?;
        names.push(T::from(name));
    }
    Ok(names)
}
