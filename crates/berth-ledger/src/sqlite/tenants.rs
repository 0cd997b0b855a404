//! What belongs to a tenant, and the removal of one.

use berth_engine::NodeId;
use rusqlite::{Connection, Row};

use super::read::for_each_row;
use super::rows::{claim_key_from, text};
use crate::encoding::claim_state;
use crate::error::Fault;
use crate::model::{TenantClaim, TenantHoldings, TenantRemoval, Text};
use crate::schema::OWNED;

pub(super) fn removal_from(row: &Row<'_>, column: usize) -> Result<Option<TenantRemoval>, Fault> {
    let stored: Option<String> = row.get(column)?;
    Ok(stored.map(|stored| serde_json::from_str(&stored)).transpose()?)
}

/// Whether a row of any table belongs to a tenant, apart from its own.
pub(super) fn is_in_use(connection: &Connection, tenant: &str) -> Result<bool, Fault> {
    for table in OWNED {
        let sql = format!("SELECT 1 FROM {table} WHERE owner = ?1 LIMIT 1");
        if connection.prepare_cached(&sql)?.exists([tenant])? {
            return Ok(true);
        }
    }
    Ok(false)
}

pub(super) fn removals(connection: &Connection) -> Result<Vec<(Text, TenantRemoval)>, Fault> {
    let sql = "SELECT owner, removal FROM tenant WHERE removal IS NOT NULL ORDER BY owner";
    let mut found = Vec::new();
    for_each_row(connection, sql, [], |row| {
        let tenant = text(row, 0)?;
        found.extend(removal_from(row, 1)?.map(|removal| (tenant, removal)));
        Ok(())
    })?;
    Ok(found)
}

pub(super) fn holdings(connection: &mut Connection, tenant: &str) -> Result<TenantHoldings, Fault> {
    let snapshot = connection.transaction()?;
    let mut held = TenantHoldings::default();
    let sql = "SELECT removal FROM tenant WHERE owner = ?1";
    for_each_row(&snapshot, sql, [tenant], |row| {
        held.removal = removal_from(row, 0)?;
        held.has_quota = held.removal.is_none();
        Ok(())
    })?;
    let sql = "SELECT instance, role, node, state FROM claim WHERE owner = ?1 \
         ORDER BY instance, role";
    for_each_row(&snapshot, sql, [tenant], |row| {
        let (key, node) = (claim_key_from(row, 0)?, NodeId::new(&text(row, 2)?));
        let state = claim_state(row.get(3)?)?;
        held.claims.push(TenantClaim { key, node, state });
        Ok(())
    })?;
    let names = |sql: &str| {
        let mut names = Vec::new();
        for_each_row(&snapshot, sql, [tenant], |row| {
            names.push(text(row, 0)?);
            Ok(())
        })?;
        Ok::<Vec<Text>, Fault>(names)
    };
    held.workloads = names("SELECT name FROM workload WHERE owner = ?1 ORDER BY name")?;
    held.groups = names("SELECT id FROM placement_group WHERE owner = ?1 ORDER BY id")?;
    held.volumes = names("SELECT id FROM volume WHERE owner = ?1 ORDER BY id")?;
    held.pools = names("SELECT id FROM pool WHERE owner = ?1 ORDER BY id")?;
    held.secrets = names("SELECT env FROM env_secrets WHERE owner = ?1 ORDER BY env")?;
    let count = |sql: &str| Ok::<i64, Fault>(snapshot.query_row(sql, [tenant], |row| row.get(0))?);
    held.answers = count("SELECT count(*) FROM request WHERE owner = ?1")?;
    held.demand = count("SELECT count(*) FROM demand WHERE owner = ?1")?;
    Ok(held)
}

pub(super) fn forget(
    connection: &mut Connection,
    tenant: &str,
    limit: usize,
) -> Result<u64, Fault> {
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let transaction =
        connection.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)?;
    let mut gone = transaction.execute(
        "DELETE FROM request WHERE rowid IN (SELECT rowid FROM request WHERE owner = ?1 LIMIT ?2)",
        (tenant, limit),
    )?;
    gone += transaction.execute(
        "DELETE FROM demand WHERE shape IN (SELECT shape FROM demand WHERE owner = ?1 LIMIT ?2)",
        (tenant, limit),
    )?;
    transaction.commit()?;
    Ok(u64::try_from(gone).unwrap_or(u64::MAX))
}
