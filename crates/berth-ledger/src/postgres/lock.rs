//! Reading the rows a transaction works on, each locked before it is read, in the one lock order.
//!
//! Order: groups that stay together, other groups, their domains, nodes, their classes, tenants,
//! pools, volumes, slots, claims; within a table by key, byte by byte. All statements are sent at
//! once: none needs the answer of another, and each sees what was committed before it ran.
//!
//! A group that stays together is locked to be changed, since its home may be. Other groups are
//! only kept from being changed, so that their members do not wait for each other; their domains
//! have rows of their own. A transaction that needs all of some group locks all its groups to be
//! changed: one strength a statement keeps the order the same for everyone.
//!
//! Nothing here may change a row, and nothing may be read that a lock taken earlier, or a unique
//! key met later, does not keep from changing.

use std::collections::BTreeSet;

use tokio_postgres::Row;

use super::batch::{Batch, cells};
use super::pipeline::{Call, Value};
use super::rows::{
    CLAIM, DEMAND, GROUP, POOL, ROOM, claim_from, claim_key_from, demand_from, get, group_from,
    node_from, node_id, optional_text, pool_from, quota_from, text, workload_from,
};
use crate::encoding;
use crate::error::Fault;
use crate::model::{ClaimKey, Micros, Text};
use crate::schema::Column;
use crate::unit_of_work::{
    ClassRow, DocumentRow, FactsRow, Keys, PolicyRow, REMOVED_GENERATION, RequestRow, Rows,
    TenantRow, UnlockedReadKeys, UnlockedReads, VolumeRow, generation_of,
};

/// The database's clock, in microseconds.
pub(super) const CLOCK: &str = "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint";

/// The same, and the policy in force, which is not locked: a transaction that changes it holds the
/// writer lock alone, and this one has its share of that lock.
const CLOCK_AND_POLICY: &str = "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint, \
     (SELECT hash FROM policy WHERE active = 1)";

/// How the rows of a statement are to be taken in.
#[derive(Clone, Copy)]
enum Load {
    /// Locked, and read by another statement.
    Nothing,
    Groups,
    Domains,
    Members,
    Nodes,
    Facts,
    Classes,
    Tenants,
    TenantsInUse,
    Pools,
    PoolsInUse,
    Volumes,
    Slots,
    Claims,
    Requests,
    Workloads,
    WorkloadVersions,
    WorkloadsInUse,
    Secrets,
    Policies,
    Documents,
    Demand,
    RemovedGeneration,
    Clock,
}

/// The statements that lock and read what a transaction needs.
pub(super) struct Plan {
    loads: Vec<Load>,
    pub(super) calls: Vec<Call>,
}

/// Whether a row can have this in its key. The database would refuse the question, where the work
/// has an answer to the caller.
fn is_storable_name(name: &str) -> bool {
    !name.contains('\0')
}

fn texts<T: AsRef<str>>(names: impl IntoIterator<Item = T>) -> Value {
    let names = names.into_iter().filter(|name| is_storable_name(name.as_ref()));
    let names: Vec<String> = names.map(|name| name.as_ref().to_owned()).collect();
    Box::new(names)
}

fn claim_keys<'a>(keys: impl IntoIterator<Item = &'a ClaimKey>) -> Result<Batch, Fault> {
    let mut batch = Batch::new(&[Column::Bytes("instance"), Column::Int("role")]);
    for key in keys {
        batch.push(cells![*key.instance.0.as_bytes(), key.role.number()])?;
    }
    Ok(batch)
}

fn text_pairs<'a>(
    columns: &'static [Column],
    pairs: impl IntoIterator<Item = (&'a str, &'a str)>,
) -> Result<Batch, Fault> {
    let mut batch = Batch::new(columns);
    for (first, second) in
        pairs.into_iter().filter(|pair| is_storable_name(pair.0) && is_storable_name(pair.1))
    {
        batch.push(cells![first, second])?;
    }
    Ok(batch)
}

impl Plan {
    /// Plans the reading. Pools known to be large are drawn from and not searched, so theirs is
    /// no lock.
    pub(super) fn new(keys: &Keys, large_pools: &BTreeSet<Text>) -> Result<Self, Fault> {
        let mut plan = Self { loads: Vec::new(), calls: Vec::new() };
        plan.groups(keys)?;
        plan.nodes(keys)?;
        plan.pools(keys, large_pools);
        plan.volumes_and_slots(keys)?;
        plan.claims(keys)?;
        plan.rest(keys)?;
        // Last, so that it is read when all locks are held.
        plan.add(Load::Clock, Some(Call::bare("clock", CLOCK_AND_POLICY)));
        Ok(plan)
    }

    fn add(&mut self, load: Load, call: Option<Call>) {
        if let Some(call) = call {
            self.loads.push(load);
            self.calls.push(call);
        }
    }

    /// Reads rows by name; nothing if there are no names.
    fn by_name<T: AsRef<str>>(
        &mut self,
        load: Load,
        what: &'static str,
        names: impl ExactSizeIterator<Item = T>,
        sql: String,
    ) {
        if names.len() > 0 {
            self.add(load, Some(Call::new(what, sql, vec![texts(names)])));
        }
    }

    fn groups(&mut self, keys: &Keys) -> Result<(), Fault> {
        let together = "SELECT 1 FROM placement_group WHERE id = ANY($1) AND kind = 'together' \
             ORDER BY id COLLATE \"C\" FOR UPDATE";
        self.by_name(Load::Nothing, "placement_group", keys.groups.iter(), together.to_owned());
        let strength = if keys.whole.groups.is_empty() { "SHARE" } else { "UPDATE" };
        let sql = format!(
            "SELECT {GROUP} FROM placement_group WHERE id = ANY($1) ORDER BY id COLLATE \"C\" FOR {strength}"
        );
        self.by_name(Load::Groups, "placement_group", keys.groups.iter(), sql);
        let pairs = keys.domains.iter().map(|(group, domain)| (&**group, &**domain));
        let pairs = text_pairs(&[Column::Text("placement_group"), Column::Text("domain")], pairs)?;
        let sql = "SELECT t.placement_group, t.domain, t.members FROM placement_group_domain AS t JOIN {u} \
             ON t.placement_group = u.placement_group AND t.domain = u.domain \
             ORDER BY t.placement_group COLLATE \"C\", t.domain COLLATE \"C\" FOR UPDATE OF t";
        self.add(Load::Domains, pairs.statement("placement_group_domain", sql));
        let whole = || keys.whole.groups.iter();
        let sql = "SELECT placement_group, domain, members FROM placement_group_domain WHERE placement_group = ANY($1)";
        self.by_name(Load::Domains, "placement_group_domain", whole(), sql.to_owned());
        let sql = "SELECT placement_group, instance, role FROM placement_group_member WHERE placement_group = ANY($1)";
        self.by_name(Load::Members, "placement_group_member", whole(), sql.to_owned());
        let sql = format!(
            "SELECT {CLAIM} FROM placement_group_member AS m JOIN claim AS c \
             ON c.instance = m.instance AND c.role = m.role WHERE m.placement_group = ANY($1)"
        );
        self.by_name(Load::Claims, "claim", whole(), sql);
        Ok(())
    }

    fn nodes(&mut self, keys: &Keys) -> Result<(), Fault> {
        let sql = format!(
            "SELECT {ROOM} FROM node_room WHERE node = ANY($1) \
             ORDER BY node COLLATE \"C\" FOR UPDATE"
        );
        self.by_name(Load::Nodes, "node_room", keys.nodes.iter().map(|id| id.as_str()), sql);
        let sql = "SELECT id, facts, heartbeat_at FROM node WHERE id = ANY($1)";
        let facts = keys.facts.iter().map(|id| id.as_str());
        self.by_name(Load::Facts, "node", facts, sql.to_owned());
        let pairs = keys.classes.iter().map(|(node, class)| (node.as_str(), &**class));
        let pairs = text_pairs(&[Column::Text("node"), Column::Text("class")], pairs)?;
        let sql = "SELECT t.node, t.class, t.lim, t.used FROM node_class AS t JOIN {u} \
             ON t.node = u.node AND t.class = u.class \
             ORDER BY t.node COLLATE \"C\", t.class COLLATE \"C\" FOR UPDATE OF t";
        self.add(Load::Classes, pairs.statement("node_class", sql));
        // A node's classes change only under its lock.
        let whole: BTreeSet<&str> =
            keys.whole_classes.iter().chain(&keys.whole.nodes).map(|id| id.as_str()).collect();
        let sql = "SELECT node, class, lim, used FROM node_class WHERE node = ANY($1)";
        self.by_name(Load::Classes, "node_class", whole.iter(), sql.to_owned());
        let whole = keys.whole.nodes.iter().map(|id| id.as_str());
        let sql = format!("SELECT {CLAIM} FROM claim AS c WHERE c.node = ANY($1)");
        self.by_name(Load::Claims, "claim", whole, sql);
        let sql = "SELECT owner, limit_cpu, limit_memory, limit_disk, limit_instances, used_cpu, \
             used_memory, used_disk, used_instances, removal FROM tenant WHERE owner = ANY($1) \
             ORDER BY owner COLLATE \"C\" FOR UPDATE";
        self.by_name(Load::Tenants, "tenant", keys.tenants.iter(), sql.to_owned());
        let sql = format!("SELECT {CLAIM} FROM claim AS c WHERE c.owner = ANY($1)");
        self.by_name(Load::Claims, "claim", keys.whole.tenants.iter(), sql);
        let in_use = keys.tenants_in_use.iter();
        self.by_name(Load::TenantsInUse, "tenant", in_use, super::tenants::in_use());
        Ok(())
    }

    fn pools(&mut self, keys: &Keys, large: &BTreeSet<Text>) {
        // One that no one draws from is about to be changed.
        let drawn = |(id, wanted): &(&Text, &usize)| **wanted > 0 && large.contains(*id);
        let (drawn, searched): (Vec<_>, Vec<_>) = keys.pools.iter().partition(drawn);
        let sql = format!(
            "SELECT {POOL} FROM pool WHERE id = ANY($1) ORDER BY id COLLATE \"C\" FOR UPDATE"
        );
        self.by_name(Load::Pools, "pool", searched.iter().map(|(id, _)| &***id), sql);
        let sql = format!("SELECT {POOL} FROM pool WHERE id = ANY($1)");
        self.by_name(Load::Pools, "pool", drawn.iter().map(|(id, _)| &***id), sql);
        let sql = "SELECT u.id FROM unnest($1::text[]) AS u(id) WHERE EXISTS \
             (SELECT 1 FROM pool_value AS v WHERE v.pool = u.id AND v.released_at IS NULL)";
        let in_use = keys.pools_in_use.iter();
        self.by_name(Load::PoolsInUse, "pool_value", in_use, sql.to_owned());
    }

    fn volumes_and_slots(&mut self, keys: &Keys) -> Result<(), Fault> {
        let sql = "SELECT id, home, attached_to, owner, moving_to FROM volume WHERE id = ANY($1) \
             ORDER BY id COLLATE \"C\" FOR UPDATE";
        self.by_name(Load::Volumes, "volume", keys.volumes.iter(), sql.to_owned());
        let mut slots = Batch::new(&[
            Column::Text("owner"),
            Column::Text("workload"),
            Column::Int("revision"),
            Column::Int("slot"),
        ]);
        for key in &keys.slots {
            slots.push(cells![&*key.tenant, &*key.workload, key.revision, key.slot])?;
        }
        let sql = "SELECT t.owner, t.workload, t.revision, t.slot, t.instance, t.role \
             FROM slot AS t JOIN {u} ON t.owner = u.owner AND t.workload = u.workload \
             AND t.revision = u.revision AND t.slot = u.slot ORDER BY t.owner COLLATE \"C\", \
             t.workload COLLATE \"C\", t.revision, t.slot FOR UPDATE OF t";
        self.add(Load::Slots, slots.statement("slot", sql));
        Ok(())
    }

    fn claims(&mut self, keys: &Keys) -> Result<(), Fault> {
        let sql = format!(
            "SELECT {CLAIM} FROM claim AS c JOIN {{u}} ON c.instance = u.instance \
             AND c.role = u.role ORDER BY c.instance, c.role FOR UPDATE OF c"
        );
        self.add(Load::Claims, claim_keys(&keys.claims)?.statement("claim", &sql));
        if !keys.groups.is_empty() {
            // Where these claims are members, so that they can leave.
            let sql = "SELECT m.placement_group, m.instance, m.role FROM {u} JOIN claim AS c \
                 ON c.instance = u.instance AND c.role = u.role \
                 CROSS JOIN LATERAL json_array_elements(c.ties::json -> 'groups') AS g \
                 JOIN placement_group_member AS m ON m.placement_group = g ->> 'group' \
                 AND m.instance = c.instance AND m.role = c.role WHERE c.ties IS NOT NULL";
            self.add(
                Load::Members,
                claim_keys(&keys.claims)?.statement("placement_group_member", sql),
            );
        }
        let pairs = keys.requests.iter().map(|(id, tenant)| (&**id, &**tenant));
        let pairs = text_pairs(&[Column::Text("request_id"), Column::Text("owner")], pairs)?;
        // A ticket gives way to a grant, so it is locked, where there is one.
        let sql = "SELECT t.request_id, t.owner, t.body_hash, t.answer, t.at FROM request AS t \
             JOIN {u} ON t.request_id = u.request_id AND t.owner = u.owner \
             ORDER BY t.request_id COLLATE \"C\", t.owner COLLATE \"C\" FOR UPDATE OF t";
        self.add(Load::Requests, pairs.statement("request", sql));
        Ok(())
    }

    fn rest(&mut self, keys: &Keys) -> Result<(), Fault> {
        let columns = &[Column::Text("owner"), Column::Text("name")];
        let pairs = keys.workloads.iter().map(|(tenant, name)| (&**tenant, &**name));
        let sql = "SELECT t.owner, t.name, t.revision, t.replicas, t.body FROM workload AS t \
             JOIN {u} ON t.owner = u.owner AND t.name = u.name \
             ORDER BY t.owner COLLATE \"C\", t.name COLLATE \"C\" FOR UPDATE OF t";
        self.add(Load::Workloads, text_pairs(columns, pairs)?.statement("workload", sql));
        let pairs = keys.workloads_shared.iter().map(|(tenant, name)| (&**tenant, &**name));
        let sql = "SELECT t.owner, t.name, t.revision FROM workload AS t \
             JOIN {u} ON t.owner = u.owner AND t.name = u.name \
             ORDER BY t.owner COLLATE \"C\", t.name COLLATE \"C\" FOR SHARE OF t";
        let shared = text_pairs(columns, pairs)?.statement("workload", sql);
        self.add(Load::WorkloadVersions, shared);
        let pairs = keys.workloads_in_use.iter().map(|(tenant, name)| (&**tenant, &**name));
        let sql = "SELECT u.owner, u.name FROM {u} WHERE EXISTS (SELECT 1 FROM slot AS s \
             WHERE s.owner = u.owner AND s.workload = u.name)";
        self.add(Load::WorkloadsInUse, text_pairs(columns, pairs)?.statement("slot", sql));
        let columns = &[Column::Text("owner"), Column::Text("env")];
        let pairs = keys.secrets.iter().map(|(tenant, env)| (&**tenant, &**env));
        let sql = "SELECT t.owner, t.env, t.version FROM env_secrets AS t \
             JOIN {u} ON t.owner = u.owner AND t.env = u.env \
             ORDER BY t.owner COLLATE \"C\", t.env COLLATE \"C\" FOR UPDATE OF t";
        self.add(Load::Secrets, text_pairs(columns, pairs)?.statement("env_secrets", sql));
        let pairs = keys.secrets_read.iter().map(|(tenant, env)| (&**tenant, &**env));
        let sql = "SELECT t.owner, t.env, t.version FROM env_secrets AS t \
             JOIN {u} ON t.owner = u.owner AND t.env = u.env";
        self.add(Load::Secrets, text_pairs(columns, pairs)?.statement("env_secrets", sql));
        if keys.policies {
            // A policy that is not there yet has no row to lock; the ledger's own stands in.
            let writer_lock = Call::bare("ledger", "SELECT 1 FROM ledger FOR UPDATE");
            self.add(Load::Nothing, Some(writer_lock));
            let sql = "SELECT hash, name, body, at, active FROM policy";
            self.add(Load::Policies, Some(Call::bare("policy", sql)));
        }
        if keys.removed_generation {
            // After the rows that it is about: whoever removed one of them has raised it.
            let sql = "SELECT body FROM document WHERE kind = $1 AND id = $2";
            let (kind, id) = REMOVED_GENERATION;
            let values: Vec<Value> = vec![Box::new(kind.to_owned()), Box::new(id.to_owned())];
            self.add(Load::RemovedGeneration, Some(Call::new("document", sql, values)));
        }
        let pairs = keys.documents.iter().map(|(kind, id)| (&**kind, &**id));
        let pairs = text_pairs(&[Column::Text("kind"), Column::Text("id")], pairs)?;
        let sql = "SELECT t.kind, t.id, t.rev, t.body, t.at FROM document AS t JOIN {u} \
             ON t.kind = u.kind AND t.id = u.id ORDER BY t.kind, t.id FOR UPDATE OF t";
        self.add(Load::Documents, pairs.statement("document", sql));
        let sql = format!(
            "SELECT shape, {DEMAND} FROM demand WHERE shape = ANY($1) \
             ORDER BY shape COLLATE \"C\" FOR UPDATE"
        );
        self.by_name(Load::Demand, "demand", keys.demand.iter(), sql);
        Ok(())
    }

    /// Takes in the answers, in the order of the calls.
    pub(super) fn load(&self, answers: impl IntoIterator<Item = Vec<Row>>) -> Result<Rows, Fault> {
        let mut rows = Rows::default();
        for (load, answer) in self.loads.iter().zip(answers) {
            for row in &answer {
                load.take(row, &mut rows)?;
            }
        }
        Ok(rows)
    }
}

impl Load {
    fn take(self, row: &Row, rows: &mut Rows) -> Result<(), Fault> {
        match self {
            Self::Nothing => {}
            Self::Groups => rows.groups.load(text(row, 0)?, group_from(row)?),
            Self::Domains => rows.domains.load((text(row, 0)?, text(row, 1)?), get(row, 2)?),
            Self::Members => rows.members.load((text(row, 0)?, claim_key_from(row, 1)?), ()),
            Self::Nodes => {
                let (id, counters) = node_from(row)?;
                rows.nodes.load(id, counters);
            }
            Self::Facts => {
                let mut facts: berth_engine::NodeFacts = serde_json::from_str(get(row, 1)?)?;
                // Signs of life are apart from the facts, since they come often.
                let heard_at = berth_engine::Timestamp(get(row, 2)?);
                facts.heartbeat_at = facts.heartbeat_at.max(heard_at);
                rows.facts.load(node_id(row, 0)?, FactsRow { facts });
            }
            Self::Classes => {
                let class = ClassRow { limit: get(row, 2)?, used: get(row, 3)? };
                rows.classes.load((node_id(row, 0)?, text(row, 1)?), class);
            }
            Self::Tenants => rows.tenants.load(text(row, 0)?, tenant_from(row)?),
            Self::TenantsInUse => drop(rows.tenants_in_use.insert(text(row, 0)?)),
            Self::Pools => rows.pools.load(text(row, 0)?, pool_from(row)?),
            Self::PoolsInUse => drop(rows.pools_in_use.insert(text(row, 0)?)),
            Self::Volumes => rows.volumes.load(text(row, 0)?, volume_from(row)?),
            Self::Slots => {
                let key = crate::model::SlotKey {
                    tenant: text(row, 0)?,
                    workload: text(row, 1)?,
                    revision: get(row, 2)?,
                    slot: get(row, 3)?,
                };
                rows.slots.load(key, claim_key_from(row, 4)?);
            }
            Self::Claims => {
                let claim = claim_from(row)?;
                rows.claims.load(claim.key, claim);
            }
            Self::Requests => {
                rows.requests.load((text(row, 0)?, text(row, 1)?), request_from(row)?);
            }
            Self::Workloads => {
                rows.workloads.load((text(row, 0)?, text(row, 1)?), workload_from(row)?);
            }
            Self::WorkloadVersions => {
                rows.workload_versions.insert((text(row, 0)?, text(row, 1)?), get(row, 2)?);
            }
            Self::WorkloadsInUse => {
                rows.workloads_in_use.insert((text(row, 0)?, text(row, 1)?));
            }
            Self::Secrets => {
                rows.secrets.load((text(row, 0)?, text(row, 1)?), text(row, 2)?);
            }
            Self::Policies => rows.policies.load(text(row, 0)?, policy_from(row)?),
            Self::Documents => {
                rows.documents.load((text(row, 0)?, text(row, 1)?), document_from(row)?);
            }
            Self::Demand => rows.demand.load(get(row, 0)?, demand_from(row, 1)?),
            Self::RemovedGeneration => rows.removed_generation = generation_of(get(row, 0)?),
            Self::Clock => {
                rows.now = Micros(get(row, 0)?);
                rows.active_policy = optional_text(row, 1)?;
            }
        }
        Ok(())
    }
}

pub(super) fn tenant_from(row: &Row) -> Result<TenantRow, Fault> {
    Ok(TenantRow {
        quota: quota_from(row, 1)?,
        cpu: get(row, 5)?,
        memory: get(row, 6)?,
        disk: get(row, 7)?,
        instances: get(row, 8)?,
        removal: super::tenants::removal_from(row, 9)?,
    })
}

fn volume_from(row: &Row) -> Result<VolumeRow, Fault> {
    let attached_to: Option<&[u8]> = get(row, 2)?;
    let attached_to = attached_to.map(encoding::parse_instance).transpose()?;
    let moving_to = optional_text(row, 4)?.map(|node| berth_engine::NodeId::new(&node));
    let (tenant, home) = (optional_text(row, 3)?, node_id(row, 1)?);
    Ok(VolumeRow { tenant, home, attached_to, moving_to })
}

fn request_from(row: &Row) -> Result<RequestRow, Fault> {
    Ok(RequestRow {
        body_hash: encoding::parse_half_hash(get(row, 2)?)?,
        answer: serde_json::from_str(get(row, 3)?)?,
        at: Micros(get(row, 4)?),
    })
}

fn document_from(row: &Row) -> Result<DocumentRow, Fault> {
    Ok(DocumentRow { rev: get(row, 2)?, body: get(row, 3)?, at: Micros(get(row, 4)?) })
}

fn policy_from(row: &Row) -> Result<PolicyRow, Fault> {
    Ok(PolicyRow {
        name: get(row, 1)?,
        body: get(row, 2)?,
        at: Micros(get(row, 3)?),
        active: get::<i64>(row, 4)? != 0,
    })
}

/// The statements that read rows without locking them.
pub(super) fn read_unlocked(keys: &UnlockedReadKeys) -> Result<Vec<Call>, Fault> {
    let mut calls = Vec::new();
    if !keys.groups.is_empty() {
        let sql = "SELECT id, topology FROM placement_group WHERE id = ANY($1)";
        calls.push(Call::new("placement_group", sql, vec![texts(&keys.groups)]));
    }
    let sql = format!(
        "SELECT {CLAIM} FROM claim AS c JOIN {{u}} ON c.instance = u.instance AND c.role = u.role"
    );
    calls.extend(claim_keys(&keys.claims)?.statement("claim", &sql));
    if !keys.expired_on.is_empty() {
        let sql = format!(
            "SELECT {CLAIM} FROM claim AS c WHERE c.node = ANY($1) AND c.state = 0 \
             AND c.lease_until <= ({CLOCK})"
        );
        let nodes = keys.expired_on.iter().map(|node| node.as_str());
        calls.push(Call::new("claim", sql, vec![texts(nodes)]));
    }
    Ok(calls)
}

/// The rows that they returned.
pub(super) fn unlocked(calls: &[Call], answers: &[Vec<Row>]) -> Result<UnlockedReads, Fault> {
    let mut unlocked = UnlockedReads::default();
    for (call, answer) in calls.iter().zip(answers) {
        for row in answer {
            if call.what == "placement_group" {
                unlocked.topologies.insert(text(row, 0)?, encoding::parse_topology(get(row, 1)?)?);
            } else {
                let claim = claim_from(row)?;
                unlocked.claims.insert(claim.key, claim);
            }
        }
    }
    Ok(unlocked)
}
