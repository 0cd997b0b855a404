//! Writing what claims hold in addition to room, and what operators state.

use super::{Batch, Call, Column, Fault, Rows, cells};

pub(super) fn pools(rows: &Rows, calls: &mut Vec<Call>) -> Result<(), Fault> {
    let (mut added, mut changed) = (Batch::of("pool"), Batch::of("pool"));
    let mut gone = Vec::new();
    for change in rows.pools.changes() {
        let id = &**change.key;
        let Some(row) = change.now else {
            gone.push(id.to_owned());
            continue;
        };
        let pool = &row.pool;
        let batch = if change.before.is_none() { &mut added } else { &mut changed };
        batch.push(cells![
            id,
            pool.kind.name(),
            pool.first.to_be_bytes(),
            pool.last.to_be_bytes(),
            row.next.to_be_bytes(),
            pool.quarantine_s,
            pool.tenant.as_deref(),
        ])?;
    }
    if !gone.is_empty() {
        let sql = "DELETE FROM pool_value WHERE pool = ANY($1)";
        calls.push(Call::new("pool_value", sql, vec![Box::new(gone.clone())]));
        let rows = gone.len();
        let sql = "DELETE FROM pool WHERE id = ANY($1)";
        calls.push(Call::new("pool", sql, vec![Box::new(gone)]).counted(rows));
    }
    let sql = "UPDATE pool AS t SET kind = u.kind, first = u.first, last = u.last, \
         next = u.next, quarantine_s = u.quarantine_s, owner = u.owner FROM {u} WHERE t.id = u.id";
    calls.extend(changed.guarded("pool", sql));
    calls.extend(added.insert("pool", ""));
    Ok(())
}

/// Takes values that are free or have rested, and lets others rest.
pub(super) fn values(rows: &Rows, calls: &mut Vec<Call>) -> Result<(), Fault> {
    let (mut taken, mut given_back) = (Batch::of("pool_value"), Batch::of("pool_value"));
    for change in rows.values.changes() {
        let Some(row) = change.now else { continue };
        let batch = if row.released_at.is_none() { &mut taken } else { &mut given_back };
        batch.push(cells![
            &*change.key.0,
            change.key.1.to_be_bytes(),
            *row.authorize.instance.0.as_bytes(),
            row.authorize.role.number(),
            row.released_at.map(|at| at.0),
        ])?;
    }
    // The row is not there only if the value was taken in this very transaction.
    let sql = "INSERT INTO pool_value AS t (pool, value, instance, role, released_at) \
         SELECT u.pool, u.value, u.instance, u.role, u.released_at FROM {u} \
         ON CONFLICT (pool, value) DO UPDATE SET instance = NULL, role = NULL, \
         released_at = excluded.released_at \
         WHERE t.instance = excluded.instance AND t.role = excluded.role";
    calls.extend(given_back.guarded("pool_value", sql));
    let sql = "INSERT INTO pool_value AS t (pool, value, instance, role, released_at) \
         SELECT u.pool, u.value, u.instance, u.role, u.released_at FROM {u} \
         ON CONFLICT (pool, value) DO UPDATE SET instance = excluded.instance, \
         role = excluded.role, released_at = NULL WHERE t.released_at IS NOT NULL";
    calls.extend(taken.guarded("pool_value", sql));
    Ok(())
}

pub(super) fn volumes(rows: &Rows, calls: &mut Vec<Call>) -> Result<(), Fault> {
    let (mut added, mut changed) = (Batch::of("volume"), Batch::of("volume"));
    let mut gone = Batch::new(&[Column::Text("id")]);
    for change in rows.volumes.changes() {
        let id = &**change.key;
        let Some(row) = change.now else {
            gone.push(cells![id])?;
            continue;
        };
        let batch = if change.before.is_none() { &mut added } else { &mut changed };
        let attached_to = row.attached_to.map(|instance| instance.0.into_bytes());
        let moving_to = row.moving_to.as_ref().map(|node| node.as_str());
        batch.push(cells![id, row.tenant.as_deref(), row.home.as_str(), attached_to, moving_to])?;
    }
    calls.extend(gone.guarded("volume", "DELETE FROM volume AS t USING {u} WHERE t.id = u.id"));
    let sql = "UPDATE volume AS t SET owner = u.owner, home = u.home, \
         attached_to = u.attached_to, moving_to = u.moving_to FROM {u} WHERE t.id = u.id";
    calls.extend(changed.guarded("volume", sql));
    calls.extend(added.insert("volume", ""));
    Ok(())
}

pub(super) fn slots(rows: &Rows, calls: &mut Vec<Call>) -> Result<(), Fault> {
    const SLOT: &[Column] = &[
        Column::Text("owner"),
        Column::Text("workload"),
        Column::Int("revision"),
        Column::Int("slot"),
    ];
    let (mut added, mut changed) = (Batch::of("slot"), Batch::of("slot"));
    let mut gone = Batch::new(SLOT);
    for change in rows.slots.changes() {
        let key = change.key;
        let place = cells![&*key.tenant, &*key.workload, key.revision, key.slot];
        let Some(authorize) = change.now else {
            gone.push(place)?;
            continue;
        };
        let batch = if change.before.is_none() { &mut added } else { &mut changed };
        let authorize = cells![*authorize.instance.0.as_bytes(), authorize.role.number()];
        batch.push(place.into_iter().chain(authorize))?;
    }
    let sql = "DELETE FROM slot AS t USING {u} WHERE t.owner = u.owner \
         AND t.workload = u.workload AND t.revision = u.revision AND t.slot = u.slot";
    calls.extend(gone.guarded("slot", sql));
    let sql = "UPDATE slot AS t SET instance = u.instance, role = u.role FROM {u} \
         WHERE t.owner = u.owner AND t.workload = u.workload AND t.revision = u.revision \
         AND t.slot = u.slot";
    calls.extend(changed.guarded("slot", sql));
    calls.extend(added.insert("slot", ""));
    Ok(())
}

pub(super) fn workloads(rows: &Rows, calls: &mut Vec<Call>) -> Result<(), Fault> {
    let (mut added, mut changed) = (Batch::of("workload"), Batch::of("workload"));
    let mut gone = Batch::new(&[Column::Text("owner"), Column::Text("name")]);
    for change in rows.workloads.changes() {
        let Some(row) = change.now else {
            gone.push(cells![&*change.key.0, &*change.key.1])?;
            continue;
        };
        let batch = if change.before.is_none() { &mut added } else { &mut changed };
        let (tenant, name, body) = (row.tenant.as_str(), row.name.as_str(), row.body.as_str());
        batch.push(cells![tenant, name, row.revision, row.replicas, body])?;
    }
    let sql = "DELETE FROM workload AS t USING {u} WHERE t.owner = u.owner AND t.name = u.name";
    calls.extend(gone.guarded("workload", sql));
    let sql = "UPDATE workload AS t SET revision = u.revision, replicas = u.replicas, \
         body = u.body FROM {u} WHERE t.owner = u.owner AND t.name = u.name";
    calls.extend(changed.guarded("workload", sql));
    calls.extend(added.insert("workload", ""));
    Ok(())
}

pub(super) fn secrets_and_policies(rows: &Rows, calls: &mut Vec<Call>) -> Result<(), Fault> {
    let (mut added, mut changed) = (Batch::of("env_secrets"), Batch::of("env_secrets"));
    let mut gone = Batch::new(&[Column::Text("env"), Column::Text("owner")]);
    for change in rows.secrets.changes() {
        let (tenant, env) = (&*change.key.0, &*change.key.1);
        match (change.before, change.now) {
            (_, None) => gone.push(cells![env, tenant])?,
            (None, Some(version)) => added.push(cells![env, &**version, tenant])?,
            (Some(_), Some(version)) => changed.push(cells![env, &**version, tenant])?,
        }
    }
    let sql = "DELETE FROM env_secrets AS t USING {u} WHERE t.owner = u.owner AND t.env = u.env";
    calls.extend(gone.guarded("env_secrets", sql));
    let sql = "UPDATE env_secrets AS t SET version = u.version FROM {u} \
         WHERE t.owner = u.owner AND t.env = u.env";
    calls.extend(changed.guarded("env_secrets", sql));
    calls.extend(added.insert("env_secrets", ""));
    let (mut added, mut changed) = (Batch::of("policy"), Batch::of("policy"));
    for change in rows.policies.changes() {
        let Some(row) = change.now else { continue };
        let batch = if change.before.is_none() { &mut added } else { &mut changed };
        let (hash, name, body) = (&**change.key, row.name.as_str(), row.body.as_str());
        batch.push(cells![hash, name, body, row.at.0, row.active])?;
    }
    let sql = "UPDATE policy AS t SET name = u.name, body = u.body, at = u.at, active = u.active \
         FROM {u} WHERE t.hash = u.hash";
    calls.extend(changed.guarded("policy", sql));
    calls.extend(added.insert("policy", ""));
    Ok(())
}

pub(super) fn demand(rows: &Rows, calls: &mut Vec<Call>) -> Result<(), Fault> {
    let (mut added, mut changed) = (Batch::of("demand"), Batch::of("demand"));
    for change in rows.demand.changes() {
        let Some(row) = change.now else { continue };
        let batch = if change.before.is_none() { &mut added } else { &mut changed };
        let (tenant, code, spec) = (row.tenant.as_str(), row.code.as_str(), row.spec.as_str());
        let shape = change.key.as_str();
        batch.push(cells![shape, tenant, code, spec, row.times, row.first_at, row.last_at])?;
    }
    let sql = "UPDATE demand AS t SET times = u.times, last_at = u.last_at \
         FROM {u} WHERE t.shape = u.shape";
    calls.extend(changed.guarded("demand", sql));
    calls.extend(added.insert("demand", ""));
    Ok(())
}
