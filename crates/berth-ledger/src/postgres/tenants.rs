//! What belongs to a tenant, and the removal of one.

use tokio_postgres::Row;

use super::pipeline::{Call, Value};
use super::read::list;
use super::rows::{claim_key_from, get, node_id, text};
use super::session::Session;
use crate::encoding::claim_state;
use crate::error::Fault;
use crate::model::{TenantClaim, TenantHoldings, TenantRemoval, Text};
use crate::schema::OWNED;

pub(super) fn removal_from(row: &Row, column: usize) -> Result<Option<TenantRemoval>, Fault> {
    let stored: Option<&str> = get(row, column)?;
    Ok(stored.map(serde_json::from_str).transpose()?)
}

/// The statement that finds tenants to which a row of any table belongs, apart from their own.
pub(super) fn in_use() -> String {
    let tables =
        OWNED.map(|table| format!("EXISTS (SELECT 1 FROM {table} AS t WHERE t.owner = u.owner)"));
    let any = tables.join(" OR ");
    format!("SELECT u.owner FROM unnest($1::text[]) AS u(owner) WHERE {any}")
}

pub(super) fn removals(session: &mut Session) -> Result<Vec<(Text, TenantRemoval)>, Fault> {
    let sql = "SELECT owner, removal FROM tenant WHERE removal IS NOT NULL \
         ORDER BY owner COLLATE \"C\"";
    let found =
        list(session, Call::bare("tenant", sql), |row| Ok((text(row, 0)?, removal_from(row, 1)?)))?;
    let removals = found.into_iter();
    Ok(removals.filter_map(|(tenant, removal)| Some((tenant, removal?))).collect())
}

fn of(what: &'static str, sql: &'static str, tenant: &str) -> Call {
    Call::new(what, sql, vec![Box::new(tenant.to_owned())])
}

/// What belongs to a tenant. The transaction, of one moment, is the caller's.
pub(super) fn holdings(session: &mut Session, tenant: &str) -> Result<TenantHoldings, Fault> {
    let sql = "SELECT removal FROM tenant WHERE owner = $1";
    let own = list(session, of("tenant", sql, tenant), |row| removal_from(row, 0))?.pop();
    let sql = "SELECT instance, role, node, state FROM claim WHERE owner = $1 \
         ORDER BY instance, role";
    let claims = list(session, of("claim", sql, tenant), |row| {
        let state = claim_state(get(row, 3)?)?;
        Ok(TenantClaim { key: claim_key_from(row, 0)?, node: node_id(row, 2)?, state })
    })?;
    let mut names = |what, sql| list(session, of(what, sql, tenant), |row| text(row, 0));
    let workloads = names(
        "workload",
        "SELECT name FROM workload WHERE owner = $1 ORDER BY name COLLATE \"C\"",
    )?;
    let groups = names(
        "placement_group",
        "SELECT id FROM placement_group WHERE owner = $1 ORDER BY id COLLATE \"C\"",
    )?;
    let volumes =
        names("volume", "SELECT id FROM volume WHERE owner = $1 ORDER BY id COLLATE \"C\"")?;
    let pools = names("pool", "SELECT id FROM pool WHERE owner = $1 ORDER BY id COLLATE \"C\"")?;
    let secrets = names(
        "env_secrets",
        "SELECT env FROM env_secrets WHERE owner = $1 ORDER BY env COLLATE \"C\"",
    )?;
    let mut count = |what, sql| {
        let counts = list(session, of(what, sql, tenant), |row| get::<i64>(row, 0))?;
        Ok::<i64, Fault>(counts.into_iter().sum())
    };
    Ok(TenantHoldings {
        has_quota: own.as_ref().is_some_and(Option::is_none),
        removal: own.flatten(),
        claims,
        workloads,
        groups,
        volumes,
        pools,
        secrets,
        answers: count("request", "SELECT count(*) FROM request WHERE owner = $1")?,
        demand: count("demand", "SELECT count(*) FROM demand WHERE owner = $1")?,
    })
}

/// Each statement is a transaction of its own: none needs the other.
pub(super) fn forget(session: &mut Session, tenant: &str, limit: usize) -> Result<u64, Fault> {
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let mut gone = 0;
    for (what, sql) in [
        (
            "request",
            "WITH gone AS (DELETE FROM request WHERE ctid = ANY (ARRAY(SELECT ctid FROM request \
             WHERE owner = $1 LIMIT $2)) RETURNING 1) SELECT count(*) FROM gone",
        ),
        (
            "demand",
            "WITH gone AS (DELETE FROM demand WHERE ctid = ANY (ARRAY(SELECT ctid FROM demand \
             WHERE owner = $1 LIMIT $2)) RETURNING 1) SELECT count(*) FROM gone",
        ),
    ] {
        let values: Vec<Value> = vec![Box::new(tenant.to_owned()), Box::new(limit)];
        let counts = list(session, Call::new(what, sql, values), |row| get::<i64>(row, 0))?;
        gone += u64::try_from(counts.into_iter().sum::<i64>()).unwrap_or(0);
    }
    Ok(gone)
}
