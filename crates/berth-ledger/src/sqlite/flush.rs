//! Writing what changed. Every counter is guarded in SQL once more, and every write must find the
//! row that was read: a count of rows other than expected undoes the transaction.

use rusqlite::{Connection, Params};

use crate::database::{NewReceipt, NewSegment};
use crate::encoding;
use crate::error::Fault;
use crate::model::{Claim, ClaimKey, Text};
use crate::unit_of_work::{Change, NodeRow, Rows};
use crate::unit_of_work::{ValueRow, delta};

pub(super) fn write(connection: &Connection, rows: &Rows) -> Result<(), Fault> {
    groups(connection, rows)?;
    nodes(connection, rows)?;
    classes(connection, rows)?;
    tenants(connection, rows)?;
    pools_and_volumes(connection, rows)?;
    claims(connection, rows)?;
    requests(connection, rows)?;
    rest(connection, rows)?;
    super::service::write(connection, rows)
}

/// Runs a statement that must change exactly one row.
pub(super) fn execute_one(
    connection: &Connection,
    sql: &str,
    parameters: impl Params,
    what: impl FnOnce() -> String,
) -> Result<(), Fault> {
    match connection.prepare_cached(sql)?.execute(parameters)? {
        1 => Ok(()),
        _ => Err(Fault::Guard(what())),
    }
}

fn groups(connection: &Connection, rows: &Rows) -> Result<(), Fault> {
    for change in rows.groups.changes() {
        let id = &**change.key;
        let Some(row) = change.now else {
            execute_one(connection, "DELETE FROM placement_group WHERE id = ?1", [id], || {
                format!("group {id}")
            })?;
            continue;
        };
        let group = &row.group;
        let sql = "INSERT INTO placement_group (id, owner, kind, strength, topology, max_per_domain, home) \
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7) ON CONFLICT (id) DO UPDATE SET owner = ?2, \
             kind = ?3, strength = ?4, topology = ?5, max_per_domain = ?6, home = ?7";
        let values = (
            id,
            &group.tenant,
            encoding::kind_name(group.kind),
            encoding::strength_name(group.strength),
            group.topology.name(),
            group.max_per_domain,
            row.home.as_deref(),
        );
        execute_one(connection, sql, values, || format!("group {id}"))?;
    }
    for change in rows.domains.changes() {
        let (group, domain) = (&*change.key.0, &*change.key.1);
        let what = || format!("group {group} in {domain}");
        match (change.before, change.now) {
            (None, Some(members)) => {
                let sql = "INSERT INTO placement_group_domain (placement_group, domain, members) VALUES (?1, ?2, ?3)";
                execute_one(connection, sql, (group, domain, members), what)?;
            }
            (Some(before), Some(members)) => {
                let sql = "UPDATE placement_group_domain SET members = ?3 \
                     WHERE placement_group = ?1 AND domain = ?2 AND members = ?4";
                execute_one(connection, sql, (group, domain, members, before), what)?;
            }
            (_, None) => {
                let sql =
                    "DELETE FROM placement_group_domain WHERE placement_group = ?1 AND domain = ?2";
                execute_one(connection, sql, (group, domain), what)?;
            }
        }
    }
    for change in rows.members.changes() {
        let (group, key) = (&*change.key.0, change.key.1);
        let sql = match change.now {
            Some(()) => {
                "INSERT INTO placement_group_member (placement_group, instance, role) VALUES (?1, ?2, ?3)"
            }
            None => {
                "DELETE FROM placement_group_member WHERE placement_group = ?1 AND instance = ?2 AND role = ?3"
            }
        };
        let values = (group, key.instance.0.as_bytes(), key.role.number());
        connection.prepare_cached(sql)?.execute(values)?;
    }
    Ok(())
}

fn nodes(connection: &Connection, rows: &Rows) -> Result<(), Fault> {
    for change in rows.nodes.changes() {
        match (change.before, change.now) {
            (Some(before), Some(now)) if delta::only_counters(before, now) => {
                counters(connection, &change, before, now)?;
            }
            (_, Some(now)) => whole_node(connection, &change, now)?,
            (_, None) => {
                let id = change.key.as_str();
                let sql = "DELETE FROM node_room WHERE node = ?1 AND used_instances = 0";
                execute_one(connection, sql, [id], || format!("node {id}"))?;
            }
        }
    }
    for change in rows.facts.changes() {
        let id = change.key.as_str();
        let Some(row) = change.now else {
            connection.execute("DELETE FROM node WHERE id = ?1", [id])?;
            continue;
        };
        let facts = serde_json::to_string(&row.facts)?;
        let sql = "INSERT INTO node (id, facts, heartbeat_at) VALUES (?1, ?2, ?3) \
             ON CONFLICT (id) DO UPDATE SET facts = ?2";
        connection.prepare_cached(sql)?.execute((id, facts, row.facts.heartbeat_at.0))?;
    }
    for (node, at) in &rows.heartbeats {
        let sql = "UPDATE node SET heartbeat_at = max(heartbeat_at, ?2) WHERE id = ?1";
        connection.prepare_cached(sql)?.execute((node.as_str(), at))?;
    }
    Ok(())
}

/// The guarded update that every claim goes through.
fn counters(
    connection: &Connection,
    change: &Change<'_, berth_engine::NodeId, NodeRow>,
    before: &NodeRow,
    now: &NodeRow,
) -> Result<(), Fault> {
    let sql = "UPDATE node_room SET used_cpu = used_cpu + ?2, used_memory = used_memory + ?3, \
         used_disk = used_disk + ?4, used_bandwidth = used_bandwidth + ?5, \
         used_instances = used_instances + ?6, used_capped = used_capped + ?7, \
         rules_gen = ?8, fence = ?9 \
         WHERE node = ?1 AND constraint_gen = ?10 \
         AND (?11 OR used_cpu + ?2 <= limit_cpu) \
         AND (?12 OR used_memory + ?3 + (used_instances + ?6) * overhead_mib <= limit_memory) \
         AND (?13 OR used_disk + ?4 <= limit_disk) \
         AND (?14 OR used_bandwidth + ?5 <= limit_bandwidth) \
         AND (?15 OR used_instances + ?6 <= limit_instances)";
    let delta = delta::of(before, now);
    let parameters = rusqlite::params![
        change.key.as_str(),
        delta.cpu,
        delta.memory,
        delta.disk,
        delta.bandwidth,
        delta.instances,
        delta.capped,
        now.rules_gen,
        now.fence,
        before.constraint_gen,
        delta.over.cpu,
        delta.over.memory,
        delta.over.disk,
        delta.over.bandwidth,
        delta.over.instances,
    ];
    execute_one(connection, sql, parameters, || format!("node {}", change.key))
}

fn whole_node(
    connection: &Connection,
    change: &Change<'_, berth_engine::NodeId, NodeRow>,
    now: &NodeRow,
) -> Result<(), Fault> {
    let (room, id) = (&now.room, change.key.as_str());
    let guard = change.before.map_or(0, |before| before.constraint_gen);
    let sql = "INSERT INTO node_room (node, state, known, zone, rack, constraint_gen, rules_gen, \
         fence, limit_cpu, limit_memory, limit_disk, limit_bandwidth, limit_instances, \
         overhead_mib, cap_mode, used_cpu, used_memory, used_disk, used_bandwidth, \
         used_instances, used_capped) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, \
         ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20, ?21) ON CONFLICT (node) DO UPDATE SET \
         state = ?2, known = ?3, zone = ?4, rack = ?5, constraint_gen = ?6, rules_gen = ?7, \
         fence = ?8, limit_cpu = ?9, limit_memory = ?10, limit_disk = ?11, limit_bandwidth = ?12, \
         limit_instances = ?13, overhead_mib = ?14, cap_mode = ?15, used_cpu = ?16, \
         used_memory = ?17, used_disk = ?18, used_bandwidth = ?19, used_instances = ?20, \
         used_capped = ?21 WHERE node_room.constraint_gen = ?22";
    let parameters = rusqlite::params![
        id,
        now.state.name(),
        now.known,
        now.zone.as_deref(),
        now.rack.as_deref(),
        now.constraint_gen,
        now.rules_gen,
        now.fence,
        room.limits.cpu,
        room.limits.memory,
        room.limits.disk,
        room.limits.bandwidth,
        room.instance_limit,
        room.overhead_mib,
        encoding::cap_mode_name(room.cpu_cap_mode),
        room.used.cpu,
        room.used.memory,
        room.used.disk,
        room.used.bandwidth,
        room.used.instances,
        room.used.capped,
        guard,
    ];
    execute_one(connection, sql, parameters, || format!("node {id}"))
}

fn classes(connection: &Connection, rows: &Rows) -> Result<(), Fault> {
    for change in rows.classes.changes() {
        let (node, class) = (change.key.0.as_str(), &*change.key.1);
        let what = || format!("class {class} of node {node}");
        match (change.before, change.now) {
            (None, Some(now)) => {
                let sql = "INSERT INTO node_class (node, class, lim, used) VALUES (?1, ?2, ?3, ?4)";
                execute_one(connection, sql, (node, class, now.limit, now.used), what)?;
            }
            (Some(before), Some(now)) => {
                let sql = "UPDATE node_class SET lim = ?3, used = used + ?4 \
                     WHERE node = ?1 AND class = ?2 AND lim = ?5 AND (?6 OR used + ?4 <= ?3)";
                let more = now.used - before.used;
                let over = now.used > now.limit;
                execute_one(
                    connection,
                    sql,
                    (node, class, now.limit, more, before.limit, over),
                    what,
                )?;
            }
            (_, None) => {
                let sql = "DELETE FROM node_class WHERE node = ?1 AND class = ?2";
                execute_one(connection, sql, (node, class), what)?;
            }
        }
    }
    Ok(())
}

fn tenants(connection: &Connection, rows: &Rows) -> Result<(), Fault> {
    for change in rows.tenants.changes() {
        let tenant = &**change.key;
        let Some(now) = change.now else {
            connection.execute("DELETE FROM tenant WHERE owner = ?1", [tenant])?;
            continue;
        };
        let sql = "INSERT INTO tenant (owner, limit_cpu, limit_memory, limit_disk, \
             limit_instances, used_cpu, used_memory, used_disk, used_instances, removal) \
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?11) ON CONFLICT (owner) DO UPDATE SET \
             limit_cpu = ?2, limit_memory = ?3, limit_disk = ?4, limit_instances = ?5, \
             used_cpu = ?6, used_memory = ?7, used_disk = ?8, used_instances = ?9, \
             removal = ?11 WHERE tenant.used_instances = ?10";
        let quota = &now.quota;
        let guard = change.before.map_or(0, |before| before.instances);
        let parameters = (
            tenant,
            quota.cpu_milli,
            quota.memory_mib,
            quota.disk_mib,
            quota.instances,
            now.cpu,
            now.memory,
            now.disk,
            now.instances,
            guard,
            now.removal.as_ref().map(serde_json::to_string).transpose()?,
        );
        execute_one(connection, sql, parameters, || format!("tenant {tenant}"))?;
    }
    Ok(())
}

fn pools_and_volumes(connection: &Connection, rows: &Rows) -> Result<(), Fault> {
    for change in rows.pools.changes() {
        let id = &**change.key;
        let Some(row) = change.now else {
            connection.execute("DELETE FROM pool_value WHERE pool = ?1", [id])?;
            connection.execute("DELETE FROM pool WHERE id = ?1", [id])?;
            continue;
        };
        let pool = &row.pool;
        let sql = "INSERT INTO pool (id, kind, first, last, next, quarantine_s, owner) \
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7) ON CONFLICT (id) DO UPDATE SET \
             kind = ?2, first = ?3, last = ?4, next = ?5, quarantine_s = ?6, owner = ?7";
        let values = (
            id,
            pool.kind.name(),
            pool.first.to_be_bytes(),
            pool.last.to_be_bytes(),
            row.next.to_be_bytes(),
            pool.quarantine_s,
            pool.tenant.as_deref(),
        );
        connection.prepare_cached(sql)?.execute(values)?;
    }
    for change in rows.values.changes() {
        if let Some(row) = change.now {
            value(connection, change.key, row)?;
        }
    }
    for change in rows.volumes.changes() {
        let id = &**change.key;
        let Some(row) = change.now else {
            connection.execute("DELETE FROM volume WHERE id = ?1", [id])?;
            continue;
        };
        let sql = "INSERT INTO volume (id, home, attached_to, owner, moving_to) \
             VALUES (?1, ?2, ?3, ?4, ?5) ON CONFLICT (id) DO UPDATE SET home = ?2, \
             attached_to = ?3, owner = ?4, moving_to = ?5";
        let attached_to = row.attached_to.map(|instance| *instance.0.as_bytes());
        let moving_to = row.moving_to.as_ref().map(|node| node.as_str());
        let values = (id, row.home.as_str(), attached_to, row.tenant.as_deref(), moving_to);
        connection.prepare_cached(sql)?.execute(values)?;
    }
    for change in rows.slots.changes() {
        let key = change.key;
        let what = || format!("slot {} of workload {}", key.slot, key.workload);
        let place = (&*key.tenant, &*key.workload, key.revision, key.slot);
        match change.now {
            Some(authorize) => {
                let sql = "INSERT INTO slot (owner, workload, revision, slot, instance, role) \
                     VALUES (?1, ?2, ?3, ?4, ?5, ?6) ON CONFLICT (owner, workload, revision, slot) \
                     DO UPDATE SET instance = ?5, role = ?6";
                let instance = authorize.instance.0.as_bytes();
                let role = authorize.role.number();
                let values = (place.0, place.1, place.2, place.3, instance, role);
                execute_one(connection, sql, values, what)?;
            }
            None => {
                let sql = "DELETE FROM slot \
                     WHERE owner = ?1 AND workload = ?2 AND revision = ?3 AND slot = ?4";
                execute_one(connection, sql, place, what)?;
            }
        }
    }
    Ok(())
}

/// Takes a value that is free or has rested, or lets one rest.
fn value(connection: &Connection, key: &(Text, u128), row: &ValueRow) -> Result<(), Fault> {
    let (pool, value) = (&*key.0, key.1.to_be_bytes());
    let authorize = (row.authorize.instance.0.as_bytes(), row.authorize.role.number());
    let what = || format!("value of pool {pool}");
    match row.released_at {
        None => {
            let sql = "INSERT INTO pool_value (pool, value, instance, role, released_at) \
                 VALUES (?1, ?2, ?3, ?4, NULL) ON CONFLICT (pool, value) DO UPDATE SET \
                 instance = ?3, role = ?4, released_at = NULL \
                 WHERE pool_value.released_at IS NOT NULL";
            execute_one(connection, sql, (pool, value, authorize.0, authorize.1), what)
        }
        Some(at) => {
            // A value that was taken and given back in one transaction has no row yet.
            let sql = "INSERT INTO pool_value (pool, value, instance, role, released_at) \
                 VALUES (?1, ?2, NULL, NULL, ?5) ON CONFLICT (pool, value) DO UPDATE SET \
                 instance = NULL, role = NULL, released_at = ?5 \
                 WHERE pool_value.instance = ?3 AND pool_value.role = ?4";
            execute_one(connection, sql, (pool, value, authorize.0, authorize.1, at.0), what)
        }
    }
}

fn claims(connection: &Connection, rows: &Rows) -> Result<(), Fault> {
    for change in rows.claims.changes() {
        match (change.before, change.now) {
            (None, Some(claim)) => insert_claim(connection, claim)?,
            (Some(before), Some(claim)) => {
                if crate::unit_of_work::only_steps(before, claim) {
                    step_claim(connection, before, claim)?;
                } else if crate::unit_of_work::only_size(before, claim) {
                    size_claim(connection, before, claim)?;
                } else {
                    delete_claim(connection, change.key)?;
                    insert_claim(connection, claim)?;
                }
            }
            (_, None) => delete_claim(connection, change.key)?,
        }
    }
    Ok(())
}

fn permit(claim: &Claim) -> Result<Option<String>, Fault> {
    Ok(claim.permit.as_ref().map(serde_json::to_string).transpose()?)
}

fn insert_claim(connection: &Connection, claim: &Claim) -> Result<(), Fault> {
    let sql = "INSERT INTO claim (instance, role, node, owner, workload, state, cpu, memory, disk, \
         bandwidth, capped, lease_until, fence, request_id, batch, name, spec, ties, release_id, \
         secrets_version, created_at, permit) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, \
         ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20, ?21, ?22)";
    let holdings = claim.holdings.as_ref().map(serde_json::to_string).transpose()?;
    let amounts = &claim.amounts;
    connection.prepare_cached(sql)?.execute(rusqlite::params![
        claim.key.instance.0.as_bytes(),
        claim.key.role.number(),
        claim.node.as_str(),
        &*claim.tenant,
        claim.workload.as_deref(),
        claim.state.number(),
        amounts.cpu_milli,
        amounts.memory_mib,
        amounts.disk_mib,
        amounts.bandwidth_mbps,
        claim.capped,
        claim.lease_until.map(|until| until.0),
        claim.fence,
        &*claim.request_id,
        claim.batch.as_ref().map(|batch| batch.as_bytes()),
        claim.name.as_deref(),
        claim.spec.as_str(),
        holdings,
        claim.release_id.as_deref(),
        claim.secrets_version.as_deref(),
        claim.created_at.0,
        permit(claim)?,
    ])?;
    Ok(())
}

/// A step of a claim's life, conditional on the fence and state that were read.
fn step_claim(connection: &Connection, before: &Claim, now: &Claim) -> Result<(), Fault> {
    let sql = "UPDATE claim SET state = ?3, lease_until = ?4, fence = ?5, ties = ?6 \
         WHERE instance = ?1 AND role = ?2 AND fence = ?7 AND state = ?8";
    let holdings = now.holdings.as_ref().map(serde_json::to_string).transpose()?;
    let parameters = (
        now.key.instance.0.as_bytes(),
        now.key.role.number(),
        now.state.number(),
        now.lease_until.map(|until| until.0),
        now.fence,
        holdings,
        before.fence,
        before.state.number(),
    );
    execute_one(connection, sql, parameters, || format!("claim {}", now.key))
}

/// Another size of a claim, conditional on the fence that was read.
fn size_claim(connection: &Connection, before: &Claim, now: &Claim) -> Result<(), Fault> {
    let sql = "UPDATE claim SET cpu = ?3, memory = ?4, permit = ?5 \
         WHERE instance = ?1 AND role = ?2 AND fence = ?6";
    let parameters = (
        now.key.instance.0.as_bytes(),
        now.key.role.number(),
        now.amounts.cpu_milli,
        now.amounts.memory_mib,
        permit(now)?,
        before.fence,
    );
    execute_one(connection, sql, parameters, || format!("claim {}", now.key))
}

fn delete_claim(connection: &Connection, key: &ClaimKey) -> Result<(), Fault> {
    let sql = "DELETE FROM claim WHERE instance = ?1 AND role = ?2";
    let parameters = (key.instance.0.as_bytes(), key.role.number());
    execute_one(connection, sql, parameters, || format!("claim {key}"))
}

fn requests(connection: &Connection, rows: &Rows) -> Result<(), Fault> {
    for change in rows.requests.changes() {
        let Some(row) = change.now else { continue };
        let answer = row.answer.text()?;
        let values = (&*change.key.0, &*change.key.1, row.body_hash, answer, row.at.0);
        // Only a ticket gives way to another answer.
        if change.before.is_some() {
            let sql = "UPDATE request SET body_hash = ?3, answer = ?4, at = ?5 \
                 WHERE request_id = ?1 AND owner = ?2";
            execute_one(connection, sql, values, || format!("request {}", change.key.0))?;
            continue;
        }
        let sql = "INSERT INTO request (request_id, owner, body_hash, answer, at) \
             VALUES (?1, ?2, ?3, ?4, ?5)";
        connection.prepare_cached(sql)?.execute(values)?;
    }
    Ok(())
}

fn rest(connection: &Connection, rows: &Rows) -> Result<(), Fault> {
    for change in rows.workloads.changes() {
        let Some(row) = change.now else {
            let key = (&*change.key.0, &*change.key.1);
            connection.execute("DELETE FROM workload WHERE owner = ?1 AND name = ?2", key)?;
            continue;
        };
        let sql = "INSERT INTO workload (owner, name, revision, replicas, body) \
             VALUES (?1, ?2, ?3, ?4, ?5) ON CONFLICT (owner, name) DO UPDATE SET \
             revision = ?3, replicas = ?4, body = ?5";
        let values = (&row.tenant, &row.name, row.revision, row.replicas, &row.body);
        connection.prepare_cached(sql)?.execute(values)?;
    }
    for change in rows.secrets.changes() {
        let (tenant, env) = (&*change.key.0, &*change.key.1);
        let Some(version) = change.now else {
            let sql = "DELETE FROM env_secrets WHERE owner = ?1 AND env = ?2";
            connection.execute(sql, (tenant, env))?;
            continue;
        };
        let sql = "INSERT INTO env_secrets (env, version, owner) VALUES (?1, ?2, ?3) \
             ON CONFLICT (owner, env) DO UPDATE SET version = ?2";
        connection.prepare_cached(sql)?.execute((env, &**version, tenant))?;
    }
    for change in rows.policies.changes() {
        let Some(row) = change.now else { continue };
        let sql = "INSERT INTO policy (hash, name, body, at, active) VALUES (?1, ?2, ?3, ?4, ?5) \
             ON CONFLICT (hash) DO UPDATE SET name = ?2, body = ?3, at = ?4, active = ?5";
        let values = (&**change.key, &row.name, &row.body, row.at.0, row.active);
        connection.prepare_cached(sql)?.execute(values)?;
    }
    for change in rows.demand.changes() {
        let Some(row) = change.now else { continue };
        let sql = "INSERT INTO demand (shape, owner, code, spec, times, first_at, last_at) \
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7) ON CONFLICT (shape) DO UPDATE SET \
             times = ?5, last_at = ?7";
        let values =
            (change.key, &row.tenant, &row.code, &row.spec, row.times, row.first_at, row.last_at);
        connection.prepare_cached(sql)?.execute(values)?;
    }
    Ok(())
}

pub(super) fn append(
    connection: &Connection,
    segment: Option<&NewSegment>,
    receipts: &[NewReceipt],
) -> Result<(), Fault> {
    if let Some(segment) = segment {
        let sql = "UPDATE ledger SET next_event = next_event + ?1 RETURNING next_event";
        let next: i64 =
            connection.prepare_cached(sql)?.query_row([segment.count], |row| row.get(0))?;
        let sql = "INSERT INTO event_segment (first, count, at, origin, body) \
             VALUES (?1, ?2, ?3, ?4, ?5)";
        let first = next - segment.count;
        let values = (first, segment.count, segment.at.0, &*segment.origin, &segment.body);
        connection.prepare_cached(sql)?.execute(values)?;
    }
    for receipt in receipts {
        let sql = "INSERT INTO receipt (chain, n, at, hash, count, body) \
             VALUES (?1, ?2, ?3, ?4, ?5, ?6)";
        let (chain, hash) = (&*receipt.chain, &receipt.hash);
        let values = (chain, receipt.n, receipt.at.0, hash, receipt.count, &receipt.body);
        connection.prepare_cached(sql)?.execute(values)?;
        let sql = "UPDATE chain SET length = ?2 + 1, head = ?3 WHERE id = ?1 AND length = ?2";
        execute_one(connection, sql, (chain, receipt.n, hash), || format!("chain {chain}"))?;
    }
    Ok(())
}
