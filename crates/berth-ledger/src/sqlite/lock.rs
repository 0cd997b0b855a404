//! Reading the rows a transaction works on. `BEGIN IMMEDIATE` has locked all of them already.

use berth_engine::NodeId;
use rusqlite::{Connection, OptionalExtension};

use super::cache::NodeCache;
use super::rows::{
    CLAIM, POOL, claim, claim_from, claim_key_from, facts, group_from, node, optional_text,
    pool_from, text,
};
use crate::encoding;
use crate::error::Fault;
use crate::model::{Claim, Micros, Quota, Text, UnmetDemand, Workload};
use crate::unit_of_work::{
    ClassRow, FactsRow, Keys, PolicyRow, REMOVED_GENERATION, RequestRow, Rows, TenantRow,
    UnlockedReadKeys, UnlockedReads, VolumeRow, generation_of,
};

pub(super) fn read_unlocked(
    connection: &Connection,
    keys: &UnlockedReadKeys,
    now: Micros,
) -> Result<UnlockedReads, Fault> {
    let mut unlocked = UnlockedReads::default();
    for &key in &keys.claims {
        unlocked.claims.extend(claim(connection, key)?.map(|claim| (key, claim)));
    }
    for id in &keys.groups {
        let mut statement =
            connection.prepare_cached("SELECT topology FROM placement_group WHERE id = ?1")?;
        let name: Option<String> = statement.query_row([&**id], |row| row.get(0)).optional()?;
        if let Some(name) = name {
            unlocked.topologies.insert(Text::clone(id), encoding::parse_topology(&name)?);
        }
    }
    for node in &keys.expired_on {
        let sql = format!(
            "SELECT {CLAIM} FROM claim WHERE node = ?1 AND state = 0 AND lease_until <= ?2"
        );
        for claim in claims(connection, &sql, (node.as_str(), now.0))? {
            unlocked.claims.insert(claim.key, claim);
        }
    }
    Ok(unlocked)
}

fn claims(
    connection: &Connection,
    sql: &str,
    parameters: impl rusqlite::Params,
) -> Result<Vec<Claim>, Fault> {
    let mut statement = connection.prepare_cached(sql)?;
    let mut rows = statement.query(parameters)?;
    let mut claims = Vec::new();
    while let Some(row) = rows.next()? {
        claims.push(claim_from(row)?);
    }
    Ok(claims)
}

pub(super) fn read(
    connection: &Connection,
    keys: &Keys,
    cache: &mut NodeCache,
) -> Result<Rows, Fault> {
    let mut rows = Rows::default();
    groups(connection, keys, &mut rows)?;
    nodes(connection, keys, &mut rows, cache)?;
    tenants(connection, keys, &mut rows)?;
    pools_and_volumes(connection, keys, &mut rows)?;
    claims_and_requests(connection, keys, &mut rows)?;
    rest(connection, keys, &mut rows)?;
    rows.active_policy = match cache.policy() {
        Some(known) => known.clone(),
        None => cache.put_policy(active_policy(connection)?),
    };
    Ok(rows)
}

fn active_policy(connection: &Connection) -> Result<Option<Text>, Fault> {
    let sql = "SELECT hash FROM policy WHERE active = 1";
    let mut statement = connection.prepare_cached(sql)?;
    let mut found = statement.query([])?;
    found.next()?.map(|row| text(row, 0)).transpose()
}

fn groups(connection: &Connection, keys: &Keys, rows: &mut Rows) -> Result<(), Fault> {
    for id in &keys.groups {
        let mut statement = connection.prepare_cached(
            "SELECT id, owner, kind, strength, topology, max_per_domain, home FROM placement_group WHERE id = ?1",
        )?;
        let mut found = statement.query([&**id])?;
        if let Some(row) = found.next()? {
            rows.groups.load(Text::clone(id), group_from(row)?);
        }
    }
    for key in &keys.domains {
        let mut statement = connection.prepare_cached(
            "SELECT members FROM placement_group_domain WHERE placement_group = ?1 AND domain = ?2",
        )?;
        let members: Option<i64> =
            statement.query_row((&*key.0, &*key.1), |row| row.get(0)).optional()?;
        if let Some(members) = members {
            rows.domains.load(key.clone(), members);
        }
    }
    for id in &keys.whole.groups {
        let mut statement = connection.prepare_cached(
            "SELECT domain, members FROM placement_group_domain WHERE placement_group = ?1",
        )?;
        let mut found = statement.query([&**id])?;
        while let Some(row) = found.next()? {
            rows.domains.load((Text::clone(id), text(row, 0)?), row.get(1)?);
        }
        let mut statement = connection.prepare_cached(
            "SELECT instance, role FROM placement_group_member WHERE placement_group = ?1",
        )?;
        let mut found = statement.query([&**id])?;
        while let Some(row) = found.next()? {
            let key = claim_key_from(row, 0)?;
            rows.members.load((Text::clone(id), key), ());
            if let Some(claim) = claim(connection, key)? {
                rows.claims.load(key, claim);
            }
        }
    }
    Ok(())
}

fn nodes(
    connection: &Connection,
    keys: &Keys,
    rows: &mut Rows,
    cache: &mut NodeCache,
) -> Result<(), Fault> {
    for id in &keys.nodes {
        if let Some(row) = cache.get(id) {
            rows.nodes.load(id.clone(), row.clone());
        } else if let Some(row) = node(connection, id)? {
            cache.put(id, &row);
            rows.nodes.load(id.clone(), row);
        }
    }
    for id in &keys.facts {
        if let Some(facts) = facts(connection, id)? {
            rows.facts.load(id.clone(), FactsRow { facts });
        }
    }
    for (id, class) in &keys.classes {
        let mut statement = connection
            .prepare_cached("SELECT lim, used FROM node_class WHERE node = ?1 AND class = ?2")?;
        let row = |row: &rusqlite::Row<'_>| Ok(ClassRow { limit: row.get(0)?, used: row.get(1)? });
        if let Some(row) = statement.query_row((id.as_str(), &**class), row).optional()? {
            rows.classes.load((id.clone(), Text::clone(class)), row);
        }
    }
    for id in keys.whole_classes.iter().chain(&keys.whole.nodes) {
        let mut statement =
            connection.prepare_cached("SELECT class, lim, used FROM node_class WHERE node = ?1")?;
        let mut found = statement.query([id.as_str()])?;
        while let Some(row) = found.next()? {
            let class = ClassRow { limit: row.get(1)?, used: row.get(2)? };
            rows.classes.load((id.clone(), text(row, 0)?), class);
        }
    }
    for id in &keys.whole.nodes {
        let sql = format!("SELECT {CLAIM} FROM claim WHERE node = ?1");
        for claim in claims(connection, &sql, [id.as_str()])? {
            rows.claims.load(claim.key, claim);
        }
    }
    Ok(())
}

fn tenants(connection: &Connection, keys: &Keys, rows: &mut Rows) -> Result<(), Fault> {
    for tenant in &keys.tenants {
        let mut statement = connection.prepare_cached(
            "SELECT limit_cpu, limit_memory, limit_disk, limit_instances, used_cpu, used_memory, \
             used_disk, used_instances, removal FROM tenant WHERE owner = ?1",
        )?;
        let mut found = statement.query([&**tenant])?;
        if let Some(row) = found.next()? {
            rows.tenants.load(Text::clone(tenant), tenant_from(row)?);
        }
    }
    for tenant in &keys.tenants_in_use {
        if super::tenants::is_in_use(connection, tenant)? {
            rows.tenants_in_use.insert(Text::clone(tenant));
        }
    }
    for tenant in &keys.whole.tenants {
        let sql = format!("SELECT {CLAIM} FROM claim WHERE owner = ?1");
        for claim in claims(connection, &sql, [&**tenant])? {
            rows.claims.load(claim.key, claim);
        }
    }
    Ok(())
}

fn pools_and_volumes(connection: &Connection, keys: &Keys, rows: &mut Rows) -> Result<(), Fault> {
    for id in keys.pools.keys() {
        let sql = format!("SELECT {POOL} FROM pool WHERE id = ?1");
        let mut statement = connection.prepare_cached(&sql)?;
        let mut found = statement.query([&**id])?;
        if let Some(row) = found.next()? {
            rows.pools.load(Text::clone(id), pool_from(row)?);
        }
    }
    for id in &keys.pools_in_use {
        let mut statement = connection.prepare_cached(
            "SELECT 1 FROM pool_value WHERE pool = ?1 AND released_at IS NULL LIMIT 1",
        )?;
        if statement.exists([&**id])? {
            rows.pools_in_use.insert(Text::clone(id));
        }
    }
    for id in &keys.volumes {
        let mut statement = connection.prepare_cached(
            "SELECT home, attached_to, owner, moving_to FROM volume WHERE id = ?1",
        )?;
        let mut found = statement.query([&**id])?;
        if let Some(row) = found.next()? {
            let home = NodeId::new(&text(row, 0)?);
            let attached_to = row.get_ref(1)?.as_blob_or_null().map_err(Fault::corrupt)?;
            let attached_to = attached_to.map(encoding::parse_instance).transpose()?;
            let tenant = optional_text(row, 2)?;
            let moving_to = optional_text(row, 3)?.map(|node| NodeId::new(&node));
            let row = VolumeRow { tenant, home, attached_to, moving_to };
            rows.volumes.load(Text::clone(id), row);
        }
    }
    for key in &keys.slots {
        let mut statement = connection.prepare_cached(
            "SELECT instance, role FROM slot \
             WHERE owner = ?1 AND workload = ?2 AND revision = ?3 AND slot = ?4",
        )?;
        let mut found = statement.query((&*key.tenant, &*key.workload, key.revision, key.slot))?;
        if let Some(row) = found.next()? {
            rows.slots.load(key.clone(), claim_key_from(row, 0)?);
        }
    }
    Ok(())
}

fn claims_and_requests(connection: &Connection, keys: &Keys, rows: &mut Rows) -> Result<(), Fault> {
    for &key in &keys.claims {
        if let Some(claim) = claim(connection, key)? {
            memberships(connection, &claim, rows)?;
            rows.claims.load(key, claim);
        }
    }
    for key in &keys.requests {
        let mut statement = connection.prepare_cached(
            "SELECT body_hash, answer, at FROM request WHERE request_id = ?1 AND owner = ?2",
        )?;
        let mut found = statement.query((&*key.0, &*key.1))?;
        if let Some(row) = found.next()? {
            let hash = row.get_ref(0)?.as_blob().map_err(Fault::corrupt)?;
            let answer = row.get_ref(1)?.as_str().map_err(Fault::corrupt)?;
            let row = RequestRow {
                body_hash: encoding::parse_half_hash(hash)?,
                answer: serde_json::from_str(answer)?,
                at: Micros(row.get(2)?),
            };
            rows.requests.load(key.clone(), row);
        }
    }
    Ok(())
}

/// Where a claim is a member, so that it can leave.
fn memberships(connection: &Connection, claim: &Claim, rows: &mut Rows) -> Result<(), Fault> {
    for place in claim.holdings.iter().flat_map(|holdings| &holdings.groups) {
        let mut statement = connection.prepare_cached(
            "SELECT 1 FROM placement_group_member WHERE placement_group = ?1 AND instance = ?2 AND role = ?3",
        )?;
        let (instance, role) = (claim.key.instance.0.as_bytes(), claim.key.role.number());
        if statement.exists((&*place.group, instance, role))? {
            rows.members.load((Text::clone(&place.group), claim.key), ());
        }
    }
    Ok(())
}

fn rest(connection: &Connection, keys: &Keys, rows: &mut Rows) -> Result<(), Fault> {
    for key in &keys.workloads {
        let mut statement = connection.prepare_cached(
            "SELECT owner, name, revision, replicas, body FROM workload WHERE owner = ?1 AND name = ?2",
        )?;
        if let Some(row) = statement.query_row((&*key.0, &*key.1), workload_from).optional()? {
            rows.workloads.load(key.clone(), row);
        }
    }
    for key in &keys.workloads_shared {
        let sql = "SELECT revision FROM workload WHERE owner = ?1 AND name = ?2";
        let mut statement = connection.prepare_cached(sql)?;
        let version = statement.query_row((&*key.0, &*key.1), |row| row.get(0)).optional()?;
        rows.workload_versions.extend(version.map(|version| (key.clone(), version)));
    }
    for key in &keys.workloads_in_use {
        let mut statement = connection
            .prepare_cached("SELECT 1 FROM slot WHERE owner = ?1 AND workload = ?2 LIMIT 1")?;
        if statement.exists((&*key.0, &*key.1))? {
            rows.workloads_in_use.insert(key.clone());
        }
    }
    for key in keys.secrets.union(&keys.secrets_read) {
        let sql = "SELECT version FROM env_secrets WHERE owner = ?1 AND env = ?2";
        let mut statement = connection.prepare_cached(sql)?;
        let mut found = statement.query((&*key.0, &*key.1))?;
        if let Some(row) = found.next()? {
            rows.secrets.load(key.clone(), text(row, 0)?);
        }
    }
    if keys.policies {
        let mut statement =
            connection.prepare_cached("SELECT hash, name, body, at, active FROM policy")?;
        let mut found = statement.query([])?;
        while let Some(row) = found.next()? {
            let policy = PolicyRow {
                name: row.get(1)?,
                body: row.get(2)?,
                at: Micros(row.get(3)?),
                active: row.get(4)?,
            };
            rows.policies.load(text(row, 0)?, policy);
        }
    }
    if keys.removed_generation {
        let sql = "SELECT body FROM document WHERE kind = ?1 AND id = ?2";
        let mut statement = connection.prepare_cached(sql)?;
        let mut found = statement.query(REMOVED_GENERATION)?;
        if let Some(row) = found.next()? {
            let body = row.get_ref(0)?.as_str().map_err(Fault::corrupt)?;
            rows.removed_generation = generation_of(body);
        }
    }
    super::service::load(connection, keys, rows)?;
    for shape in &keys.demand {
        let sql = "SELECT owner, code, spec, times, first_at, last_at FROM demand WHERE shape = ?1";
        let mut statement = connection.prepare_cached(sql)?;
        if let Some(row) = statement.query_row([shape], demand_from).optional()? {
            rows.demand.load(shape.clone(), row);
        }
    }
    Ok(())
}

pub(super) fn tenant_from(row: &rusqlite::Row<'_>) -> Result<TenantRow, Fault> {
    Ok(TenantRow {
        quota: Quota {
            cpu_milli: row.get(0)?,
            memory_mib: row.get(1)?,
            disk_mib: row.get(2)?,
            instances: row.get(3)?,
        },
        cpu: row.get(4)?,
        memory: row.get(5)?,
        disk: row.get(6)?,
        instances: row.get(7)?,
        removal: super::tenants::removal_from(row, 8)?,
    })
}

pub(super) fn workload_from(row: &rusqlite::Row<'_>) -> rusqlite::Result<Workload> {
    Ok(Workload {
        tenant: row.get(0)?,
        name: row.get(1)?,
        revision: row.get(2)?,
        replicas: row.get(3)?,
        body: row.get(4)?,
    })
}

pub(super) fn demand_from(row: &rusqlite::Row<'_>) -> rusqlite::Result<UnmetDemand> {
    Ok(UnmetDemand {
        tenant: row.get(0)?,
        code: row.get(1)?,
        spec: row.get(2)?,
        times: row.get(3)?,
        first_at: row.get(4)?,
        last_at: row.get(5)?,
    })
}
