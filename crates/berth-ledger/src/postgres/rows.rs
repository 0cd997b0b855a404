//! Rows of PostgreSQL as the ledger's own types.

use berth_engine::{Amounts, Group, NodeId, Room, Used};
use tokio_postgres::Row;
use tokio_postgres::types::FromSql;

use crate::encoding;
use crate::error::Fault;
use crate::model::{
    Claim, ClaimKey, Micros, Pool, PoolKind, Quota, Role, Spec, Text, UnmetDemand, Workload,
};
use crate::unit_of_work::{GroupRow, NodeRow, PoolRow};

/// The columns of a claim `c`, in the order in which [`claim_from`] reads them.
pub(super) const CLAIM: &str = "c.instance, c.role, c.node, c.owner, c.workload, c.state, c.cpu, \
    c.memory, c.disk, c.bandwidth, c.capped, c.lease_until, c.fence, c.request_id, c.batch, \
    c.name, c.spec, c.ties, c.release_id, c.secrets_version, c.created_at, c.permit";

/// The columns of a node's counters, in the order in which [`node_from`] reads them.
pub(super) const ROOM: &str = "node, state, known, zone, rack, constraint_gen, rules_gen, fence, \
    limit_cpu, limit_memory, limit_disk, limit_bandwidth, limit_instances, overhead_mib, cap_mode, \
    used_cpu, used_memory, used_disk, used_bandwidth, used_instances, used_capped";

/// The columns of a group, in the order in which [`group_from`] reads them.
pub(super) const GROUP: &str = "id, owner, kind, strength, topology, max_per_domain, home";

/// The columns of a pool, in the order in which [`pool_from`] reads them.
pub(super) const POOL: &str = "id, kind, first, last, quarantine_s, next, owner";

/// The columns of a workload, in the order in which [`workload_from`] reads them.
pub(super) const WORKLOAD: &str = "owner, name, revision, replicas, body";

/// The columns of unmet demand, in the order in which [`demand_from`] reads them.
pub(super) const DEMAND: &str = "owner, code, spec, times, first_at, last_at";

/// A value of a row, of the type that the schema gives its column.
pub(super) fn get<'a, T: FromSql<'a>>(row: &'a Row, column: usize) -> Result<T, Fault> {
    row.try_get(column).map_err(Fault::corrupt)
}

pub(super) fn text(row: &Row, column: usize) -> Result<Text, Fault> {
    get::<&str>(row, column).map(Text::from)
}

pub(super) fn optional_text(row: &Row, column: usize) -> Result<Option<Text>, Fault> {
    Ok(get::<Option<&str>>(row, column)?.map(Text::from))
}

pub(super) fn node_id(row: &Row, column: usize) -> Result<NodeId, Fault> {
    get::<&str>(row, column).map(NodeId::new)
}

fn amount(row: &Row, column: usize) -> Result<u32, Fault> {
    encoding::to_u32(get(row, column)?)
}

fn flag(row: &Row, column: usize) -> Result<bool, Fault> {
    Ok(get::<i64>(row, column)? != 0)
}

/// Two columns: instance and role.
pub(super) fn claim_key_from(row: &Row, column: usize) -> Result<ClaimKey, Fault> {
    let role = get(row, column + 1)?;
    let role = Role::from_number(role).ok_or_else(|| Fault::corrupt(format!("role {role}")))?;
    Ok(ClaimKey { instance: encoding::parse_instance(get(row, column)?)?, role })
}

pub(super) fn claim_from(row: &Row) -> Result<Claim, Fault> {
    let state = encoding::claim_state(get(row, 5)?)?;
    let batch: Option<&[u8]> = get(row, 14)?;
    let (holdings, permit): (Option<&str>, Option<&str>) = (get(row, 17)?, get(row, 21)?);
    Ok(Claim {
        key: claim_key_from(row, 0)?,
        node: node_id(row, 2)?,
        tenant: text(row, 3)?,
        workload: optional_text(row, 4)?,
        state,
        amounts: Amounts {
            cpu_milli: amount(row, 6)?,
            memory_mib: amount(row, 7)?,
            disk_mib: amount(row, 8)?,
            bandwidth_mbps: amount(row, 9)?,
        },
        capped: flag(row, 10)?,
        lease_until: get::<Option<i64>>(row, 11)?.map(Micros),
        fence: get(row, 12)?,
        request_id: text(row, 13)?,
        batch: batch.map(encoding::parse_uuid).transpose()?,
        name: optional_text(row, 15)?,
        spec: Spec::stored(get(row, 16)?),
        holdings: holdings.map(serde_json::from_str).transpose()?,
        release_id: optional_text(row, 18)?,
        secrets_version: optional_text(row, 19)?,
        created_at: Micros(get(row, 20)?),
        permit: permit.map(serde_json::from_str).transpose()?,
    })
}

pub(super) fn node_from(row: &Row) -> Result<(NodeId, NodeRow), Fault> {
    let counters = NodeRow {
        state: encoding::parse_state(get(row, 1)?)?,
        known: flag(row, 2)?,
        zone: optional_text(row, 3)?,
        rack: optional_text(row, 4)?,
        constraint_gen: get(row, 5)?,
        rules_gen: get(row, 6)?,
        fence: get(row, 7)?,
        room: Room {
            limits: berth_engine::Limits {
                cpu: get(row, 8)?,
                memory: get(row, 9)?,
                disk: get(row, 10)?,
                bandwidth: get(row, 11)?,
            },
            instance_limit: amount(row, 12)?,
            overhead_mib: amount(row, 13)?,
            cpu_cap_mode: encoding::parse_cap_mode(get(row, 14)?)?,
            used: Used {
                cpu: get(row, 15)?,
                memory: get(row, 16)?,
                disk: get(row, 17)?,
                bandwidth: get(row, 18)?,
                instances: amount(row, 19)?,
                capped: amount(row, 20)?,
            },
        },
    };
    Ok((node_id(row, 0)?, counters))
}

pub(super) fn group_from(row: &Row) -> Result<GroupRow, Fault> {
    let most: Option<i64> = get(row, 5)?;
    Ok(GroupRow {
        group: Group {
            id: get(row, 0)?,
            tenant: get(row, 1)?,
            kind: encoding::parse_group_kind(get(row, 2)?)?,
            strength: encoding::parse_strength(get(row, 3)?)?,
            topology: encoding::parse_topology(get(row, 4)?)?,
            max_per_domain: most.map(encoding::to_u32).transpose()?,
        },
        home: optional_text(row, 6)?,
    })
}

pub(super) fn pool_from(row: &Row) -> Result<PoolRow, Fault> {
    let kind: &str = get(row, 1)?;
    let known = PoolKind::named(kind).ok_or_else(|| Fault::corrupt(format!("pool kind {kind}")))?;
    Ok(PoolRow {
        pool: Pool {
            id: text(row, 0)?,
            kind: known,
            first: encoding::parse_value(get(row, 2)?)?,
            last: encoding::parse_value(get(row, 3)?)?,
            quarantine_s: encoding::to_u32(get(row, 4)?)?,
            tenant: optional_text(row, 6)?,
        },
        next: encoding::parse_value(get(row, 5)?)?,
    })
}

/// Four columns: the limits of CPU, memory, disk and instances.
pub(super) fn quota_from(row: &Row, column: usize) -> Result<Quota, Fault> {
    Ok(Quota {
        cpu_milli: get(row, column)?,
        memory_mib: get(row, column + 1)?,
        disk_mib: get(row, column + 2)?,
        instances: get(row, column + 3)?,
    })
}

pub(super) fn workload_from(row: &Row) -> Result<Workload, Fault> {
    Ok(Workload {
        tenant: get(row, 0)?,
        name: get(row, 1)?,
        revision: get(row, 2)?,
        replicas: get(row, 3)?,
        body: get(row, 4)?,
    })
}

/// Columns of [`DEMAND`], after so many others.
pub(super) fn demand_from(row: &Row, column: usize) -> Result<UnmetDemand, Fault> {
    Ok(UnmetDemand {
        tenant: get(row, column)?,
        code: get(row, column + 1)?,
        spec: get(row, column + 2)?,
        times: get(row, column + 3)?,
        first_at: get(row, column + 4)?,
        last_at: get(row, column + 5)?,
    })
}
