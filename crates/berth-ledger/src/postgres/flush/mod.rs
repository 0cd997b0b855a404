//! Writing what changed: one statement a table and kind of change, over all its rows.
//!
//! Every counter is guarded in SQL once more, and every write must find the row that was read: a
//! count of rows other than expected undoes the transaction. A row that was not there is inserted
//! and never merged: a transaction that finds another's row is retried and reads it.

use super::batch::{Batch, cells};
use super::pipeline::Call;
use crate::database::{NewReceipt, NewSegment};
use crate::encoding;
use crate::error::Fault;
use crate::model::{Claim, ClaimKey, Text};
use crate::schema::Column;
use crate::unit_of_work::{NodeRow, Rows, delta};

mod claims;
mod rest;
mod service;

/// The statements that write what changed, in the lock order.
pub(super) fn statements(rows: &Rows) -> Result<Vec<Call>, Fault> {
    let mut calls = Vec::new();
    groups(rows, &mut calls)?;
    members(rows, &mut calls)?;
    nodes(rows, &mut calls)?;
    facts(rows, &mut calls)?;
    classes(rows, &mut calls)?;
    tenants(rows, &mut calls)?;
    rest::pools(rows, &mut calls)?;
    rest::values(rows, &mut calls)?;
    rest::volumes(rows, &mut calls)?;
    rest::slots(rows, &mut calls)?;
    claims::write(rows, &mut calls)?;
    claims::requests(rows, &mut calls)?;
    rest::workloads(rows, &mut calls)?;
    rest::secrets_and_policies(rows, &mut calls)?;
    service::documents(rows, &mut calls)?;
    rest::demand(rows, &mut calls)?;
    service::added(rows, &mut calls)?;
    Ok(calls)
}

fn groups(rows: &Rows, calls: &mut Vec<Call>) -> Result<(), Fault> {
    let mut added = Batch::of("placement_group");
    let mut changed = Batch::of("placement_group");
    let mut gone = Batch::new(&[Column::Text("id")]);
    for change in rows.groups.changes() {
        let id = &**change.key;
        let Some(row) = change.now else {
            gone.push(cells![id])?;
            continue;
        };
        let group = &row.group;
        let batch = if change.before.is_none() { &mut added } else { &mut changed };
        batch.push(cells![
            id,
            group.tenant.as_deref(),
            encoding::kind_name(group.kind),
            encoding::strength_name(group.strength),
            group.topology.name(),
            group.max_per_domain,
            row.home.as_deref(),
        ])?;
    }
    calls.extend(gone.guarded(
        "placement_group",
        "DELETE FROM placement_group AS t USING {u} WHERE t.id = u.id",
    ));
    let sql = "UPDATE placement_group AS t SET owner = u.owner, kind = u.kind, strength = u.strength, \
         topology = u.topology, max_per_domain = u.max_per_domain, home = u.home \
         FROM {u} WHERE t.id = u.id";
    calls.extend(changed.guarded("placement_group", sql));
    calls.extend(added.insert("placement_group", ""));
    Ok(())
}

fn members(rows: &Rows, calls: &mut Vec<Call>) -> Result<(), Fault> {
    const DOMAIN: &[Column] = &[
        Column::Text("placement_group"),
        Column::Text("domain"),
        Column::Int("members"),
        Column::Int("before"),
    ];
    let mut added = Batch::of("placement_group_domain");
    let (mut changed, mut gone) = (Batch::new(DOMAIN), Batch::new(DOMAIN));
    for change in rows.domains.changes() {
        let (group, domain) = (&*change.key.0, &*change.key.1);
        match (change.before, change.now) {
            (None, Some(&members)) => added.push(cells![group, domain, members])?,
            (Some(&before), Some(&members)) => {
                changed.push(cells![group, domain, members, before])?;
            }
            (before, None) => gone.push(cells![group, domain, 0i64, before.copied()])?,
        }
    }
    let sql = "DELETE FROM placement_group_domain AS t USING {u} \
         WHERE t.placement_group = u.placement_group AND t.domain = u.domain AND t.members = u.before";
    calls.extend(gone.guarded("placement_group_domain", sql));
    let sql = "UPDATE placement_group_domain AS t SET members = u.members FROM {u} \
         WHERE t.placement_group = u.placement_group AND t.domain = u.domain AND t.members = u.before";
    calls.extend(changed.guarded("placement_group_domain", sql));
    calls.extend(added.insert("placement_group_domain", ""));
    let (mut added, mut gone) =
        (Batch::of("placement_group_member"), Batch::of("placement_group_member"));
    for change in rows.members.changes() {
        let (group, key) = (&*change.key.0, change.key.1);
        let batch = if change.now.is_some() { &mut added } else { &mut gone };
        batch.push(cells![group, *key.instance.0.as_bytes(), key.role.number()])?;
    }
    let sql = "DELETE FROM placement_group_member AS t USING {u} \
         WHERE t.placement_group = u.placement_group AND t.instance = u.instance AND t.role = u.role";
    calls.extend(gone.guarded("placement_group_member", sql));
    calls.extend(added.insert("placement_group_member", ""));
    Ok(())
}

/// What the guard on a node's counters reads.
const COUNTERS: &[Column] = &[
    Column::Text("node"),
    Column::Int("cpu"),
    Column::Int("memory"),
    Column::Int("disk"),
    Column::Int("bandwidth"),
    Column::Int("instances"),
    Column::Int("capped"),
    Column::Int("rules_gen"),
    Column::Int("fence"),
    Column::Int("constraint_gen"),
    Column::Int("over_cpu"),
    Column::Int("over_memory"),
    Column::Int("over_disk"),
    Column::Int("over_bandwidth"),
    Column::Int("over_instances"),
];

/// The guarded update that every claim goes through.
const COUNT: &str = "UPDATE node_room AS t SET used_cpu = t.used_cpu + u.cpu, \
    used_memory = t.used_memory + u.memory, used_disk = t.used_disk + u.disk, \
    used_bandwidth = t.used_bandwidth + u.bandwidth, \
    used_instances = t.used_instances + u.instances, used_capped = t.used_capped + u.capped, \
    rules_gen = u.rules_gen, fence = u.fence \
    FROM {u} WHERE t.node = u.node AND t.constraint_gen = u.constraint_gen \
    AND (u.over_cpu = 1 OR t.used_cpu + u.cpu <= t.limit_cpu) \
    AND (u.over_memory = 1 OR t.used_memory + u.memory \
        + (t.used_instances + u.instances) * t.overhead_mib <= t.limit_memory) \
    AND (u.over_disk = 1 OR t.used_disk + u.disk <= t.limit_disk) \
    AND (u.over_bandwidth = 1 OR t.used_bandwidth + u.bandwidth <= t.limit_bandwidth) \
    AND (u.over_instances = 1 OR t.used_instances + u.instances <= t.limit_instances)";

/// All of a node's row, and the generation it must have had.
const NODE: &[Column] = &[
    Column::Text("node"),
    Column::Text("state"),
    Column::Int("known"),
    Column::Text("zone"),
    Column::Text("rack"),
    Column::Int("constraint_gen"),
    Column::Int("rules_gen"),
    Column::Int("fence"),
    Column::Int("limit_cpu"),
    Column::Int("limit_memory"),
    Column::Int("limit_disk"),
    Column::Int("limit_bandwidth"),
    Column::Int("limit_instances"),
    Column::Int("overhead_mib"),
    Column::Text("cap_mode"),
    Column::Int("used_cpu"),
    Column::Int("used_memory"),
    Column::Int("used_disk"),
    Column::Int("used_bandwidth"),
    Column::Int("used_instances"),
    Column::Int("used_capped"),
    Column::Int("before"),
];

fn nodes(rows: &Rows, calls: &mut Vec<Call>) -> Result<(), Fault> {
    let (mut counted, mut gone) = (Batch::new(COUNTERS), Batch::new(&[Column::Text("node")]));
    let (mut added, mut changed) = (Batch::of("node_room"), Batch::new(NODE));
    for change in rows.nodes.changes() {
        let id = change.key.as_str();
        match (change.before, change.now) {
            (Some(before), Some(now)) if delta::only_counters(before, now) => {
                counted.push(counters(id, before, now))?;
            }
            (Some(before), Some(now)) => {
                let guard = cells![before.constraint_gen];
                changed.push(node_cells(id, now).into_iter().chain(guard))?;
            }
            (None, Some(now)) => added.push(node_cells(id, now))?,
            (_, None) => gone.push(cells![id])?,
        }
    }
    let sql = "DELETE FROM node_room AS t USING {u} WHERE t.node = u.node AND t.used_instances = 0";
    calls.extend(gone.guarded("node_room", sql));
    calls.extend(counted.guarded("node_room", COUNT));
    let sql = "UPDATE node_room AS t SET state = u.state, known = u.known, zone = u.zone, \
         rack = u.rack, constraint_gen = u.constraint_gen, rules_gen = u.rules_gen, \
         fence = u.fence, limit_cpu = u.limit_cpu, limit_memory = u.limit_memory, \
         limit_disk = u.limit_disk, limit_bandwidth = u.limit_bandwidth, \
         limit_instances = u.limit_instances, overhead_mib = u.overhead_mib, \
         cap_mode = u.cap_mode, used_cpu = u.used_cpu, used_memory = u.used_memory, \
         used_disk = u.used_disk, used_bandwidth = u.used_bandwidth, \
         used_instances = u.used_instances, used_capped = u.used_capped \
         FROM {u} WHERE t.node = u.node AND t.constraint_gen = u.before";
    calls.extend(changed.guarded("node_room", sql));
    calls.extend(added.insert("node_room", ""));
    Ok(())
}

fn counters(id: &str, before: &NodeRow, now: &NodeRow) -> [crate::schema::Cell; 15] {
    let delta = delta::of(before, now);
    cells![
        id,
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
    ]
}

fn node_cells(id: &str, now: &NodeRow) -> [crate::schema::Cell; 21] {
    let room = &now.room;
    cells![
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
    ]
}

fn facts(rows: &Rows, calls: &mut Vec<Call>) -> Result<(), Fault> {
    const FACTS: &[Column] = &[Column::Text("id"), Column::Text("facts")];
    let (mut added, mut changed) = (Batch::of("node"), Batch::new(FACTS));
    let mut gone = Batch::new(&[Column::Text("id")]);
    let mut touched: std::collections::BTreeSet<&str> =
        rows.heartbeats.keys().map(|node| node.as_str()).collect();
    for change in rows.facts.changes() {
        let id = change.key.as_str();
        touched.insert(id);
        let Some(row) = change.now else {
            gone.push(cells![id])?;
            continue;
        };
        let facts = serde_json::to_string(&row.facts)?;
        match change.before {
            Some(_) => changed.push(cells![id, facts])?,
            None => added.push(cells![id, facts, row.facts.heartbeat_at.0])?,
        }
    }
    let mut heard = Batch::new(&[Column::Text("id"), Column::Int("heartbeat_at")]);
    for (node, at) in &rows.heartbeats {
        heard.push(cells![node.as_str(), *at])?;
    }
    if !touched.is_empty() {
        // Heartbeats come without the node's lock: all that follows, in one order.
        let ids: Vec<String> = touched.into_iter().map(str::to_owned).collect();
        let sql = "SELECT 1 FROM node WHERE id = ANY($1) ORDER BY id COLLATE \"C\" FOR UPDATE";
        calls.push(Call::new("node", sql, vec![Box::new(ids)]));
    }
    calls.extend(gone.statement("node", "DELETE FROM node AS t USING {u} WHERE t.id = u.id"));
    let sql = "UPDATE node AS t SET facts = u.facts FROM {u} WHERE t.id = u.id";
    calls.extend(changed.guarded("node", sql));
    calls.extend(added.insert("node", ""));
    let sql = "UPDATE node AS t SET heartbeat_at = greatest(t.heartbeat_at, u.heartbeat_at) \
         FROM {u} WHERE t.id = u.id";
    calls.extend(heard.statement("node", sql));
    Ok(())
}

fn classes(rows: &Rows, calls: &mut Vec<Call>) -> Result<(), Fault> {
    const CLASS: &[Column] = &[
        Column::Text("node"),
        Column::Text("class"),
        Column::Int("lim"),
        Column::Int("more"),
        Column::Int("before"),
        Column::Int("over"),
    ];
    let (mut added, mut changed) = (Batch::of("node_class"), Batch::new(CLASS));
    let mut gone = Batch::new(&[Column::Text("node"), Column::Text("class")]);
    for change in rows.classes.changes() {
        let (node, class) = (change.key.0.as_str(), &*change.key.1);
        match (change.before, change.now) {
            (None, Some(now)) => added.push(cells![node, class, now.limit, now.used])?,
            (Some(before), Some(now)) => {
                let (more, over) = (now.used - before.used, now.used > now.limit);
                changed.push(cells![node, class, now.limit, more, before.limit, over])?;
            }
            (_, None) => gone.push(cells![node, class])?,
        }
    }
    let sql = "DELETE FROM node_class AS t USING {u} WHERE t.node = u.node AND t.class = u.class";
    calls.extend(gone.guarded("node_class", sql));
    let sql = "UPDATE node_class AS t SET lim = u.lim, used = t.used + u.more FROM {u} \
         WHERE t.node = u.node AND t.class = u.class AND t.lim = u.before \
         AND (u.over = 1 OR t.used + u.more <= u.lim)";
    calls.extend(changed.guarded("node_class", sql));
    calls.extend(added.insert("node_class", ""));
    Ok(())
}

fn tenants(rows: &Rows, calls: &mut Vec<Call>) -> Result<(), Fault> {
    const TENANT: &[Column] = &[
        Column::Text("owner"),
        Column::Int("limit_cpu"),
        Column::Int("limit_memory"),
        Column::Int("limit_disk"),
        Column::Int("limit_instances"),
        Column::Int("used_cpu"),
        Column::Int("used_memory"),
        Column::Int("used_disk"),
        Column::Int("used_instances"),
        Column::Text("removal"),
        Column::Int("before"),
    ];
    let (mut added, mut changed) = (Batch::of("tenant"), Batch::new(TENANT));
    let mut gone = Batch::new(&[Column::Text("owner")]);
    for change in rows.tenants.changes() {
        let tenant = &**change.key;
        let Some(now) = change.now else {
            gone.push(cells![tenant])?;
            continue;
        };
        let quota = &now.quota;
        let removal = now.removal.as_ref().map(serde_json::to_string).transpose()?;
        let row = cells![
            tenant,
            quota.cpu_milli,
            quota.memory_mib,
            quota.disk_mib,
            quota.instances,
            now.cpu,
            now.memory,
            now.disk,
            now.instances,
            removal,
        ];
        match change.before {
            Some(before) => changed.push(row.into_iter().chain(cells![before.instances]))?,
            None => added.push(row)?,
        }
    }
    calls.extend(
        gone.guarded("tenant", "DELETE FROM tenant AS t USING {u} WHERE t.owner = u.owner"),
    );
    let sql = "UPDATE tenant AS t SET limit_cpu = u.limit_cpu, limit_memory = u.limit_memory, \
         limit_disk = u.limit_disk, limit_instances = u.limit_instances, used_cpu = u.used_cpu, \
         used_memory = u.used_memory, used_disk = u.used_disk, \
         used_instances = u.used_instances, removal = u.removal \
         FROM {u} WHERE t.owner = u.owner AND t.used_instances = u.before";
    calls.extend(changed.guarded("tenant", sql));
    calls.extend(added.insert("tenant", ""));
    Ok(())
}

/// Adds a new chain, without receipts.
pub(super) fn chain(id: &Text, at: i64) -> Call {
    let sql = "INSERT INTO chain (id, length, head, base, base_hash, started_at) \
         VALUES ($1, 0, '', 0, '', $2)";
    Call::new("chain", sql, vec![Box::new(id.to_string()), Box::new(at)])
}

/// Appends to the event log and to the chains. A segment gets its number once it is committed.
pub(super) fn append(segment: Option<&NewSegment>, receipts: &[NewReceipt]) -> Vec<Call> {
    let mut calls = Vec::with_capacity(1 + 2 * receipts.len());
    if let Some(segment) = segment {
        let sql = "INSERT INTO event_segment (first, count, at, origin, body) \
             VALUES (NULL, $1, $2, $3, $4)";
        calls.push(Call::new(
            "event_segment",
            sql,
            vec![
                Box::new(segment.count),
                Box::new(segment.at.0),
                Box::new(segment.origin.to_string()),
                Box::new(segment.body.clone()),
            ],
        ));
    }
    for receipt in receipts {
        let (chain, hash) = (receipt.chain.to_string(), receipt.hash.to_vec());
        let sql = "INSERT INTO receipt (chain, n, at, hash, count, body) \
             VALUES ($1, $2, $3, $4, $5, $6)";
        calls.push(Call::new(
            "receipt",
            sql,
            vec![
                Box::new(chain.clone()),
                Box::new(receipt.n),
                Box::new(receipt.at.0),
                Box::new(hash.clone()),
                Box::new(receipt.count),
                Box::new(receipt.body.clone()),
            ],
        ));
        let sql = "UPDATE chain SET length = $2 + 1, head = $3 WHERE id = $1 AND length = $2";
        let values: Vec<super::pipeline::Value> =
            vec![Box::new(chain), Box::new(receipt.n), Box::new(hash)];
        calls.push(Call::new("chain", sql, values).counted(1));
    }
    calls
}
