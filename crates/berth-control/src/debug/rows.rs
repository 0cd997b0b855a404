//! The ledger's part of a dump, from its rows. Tokens and keys are documents too: only those kinds
//! are taken that are named here.

use std::collections::BTreeMap;

use berth_api::TicketState;
use berth_engine::elastic::{Permit, Size, WatermarkRule};
use berth_engine::{
    Amounts, CpuCapMode, Group, InstanceId, Limits, NodeFacts, NodeId, Room, Timestamp, Used,
    Volume,
};
use berth_ledger::{ClaimKey, ClaimState, Ledger, LedgerError, Micros, Quota, Role, SlotKey, Text};
use serde::Deserialize;
use serde::de::{DeserializeOwned, IgnoredAny};
use serde_json::{Map, Value};
use uuid::Uuid;

use super::dump::{
    ClaimDump, ClassDump, Copies, GroupDump, NodeDump, PolicyDump, PoolValueDump, QuotaDump,
    SlotDump, StoredRecord, TenantUseDump, TicketDump, WorkloadDump,
};
use crate::moves::drain::DrainRecord;
use crate::moves::migration::{self, MigrationRecord};
use crate::moves::volume::VolumeMoveRecord;
use crate::moves::{drain, volume};
use crate::state::tickets;

/// Tables that are read.
const TABLES: [&str; 13] = [
    "policy",
    "node",
    "node_room",
    "node_class",
    "claim",
    "placement_group",
    "placement_group_domain",
    "volume",
    "tenant",
    "workload",
    "slot",
    "pool_value",
    "document",
];

/// Versions of secrets have a table of their own.
const ENVIRONMENTS: &str = "env_secrets";

/// What the ledger says.
#[derive(Default)]
pub(super) struct Rows {
    pub(super) cursor: i64,
    pub(super) policy: Option<PolicyDump>,
    pub(super) nodes: BTreeMap<NodeId, NodeDump>,
    pub(super) claims: Vec<ClaimDump>,
    pub(super) migrations: Vec<StoredRecord<MigrationRecord>>,
    pub(super) drains: Vec<StoredRecord<DrainRecord>>,
    pub(super) volume_moves: Vec<StoredRecord<VolumeMoveRecord>>,
    pub(super) workloads: Vec<WorkloadDump>,
    pub(super) groups: BTreeMap<String, GroupDump>,
    pub(super) volumes: Vec<Volume>,
    pub(super) volume_marks: BTreeMap<String, NodeId>,
    pub(super) quotas: Vec<QuotaDump>,
    pub(super) slots: Vec<SlotDump>,
    pub(super) pool_values: Vec<PoolValueDump>,
    pub(super) tickets: Vec<TicketDump>,
    pub(super) environments: BTreeMap<String, String>,
    pub(super) tenant_environments: BTreeMap<String, BTreeMap<String, String>>,
    facts: BTreeMap<NodeId, NodeFacts>,
}

type Row = Map<String, Value>;
type RowResult = Result<(), LedgerError>;

impl Rows {
    /// Reads them, as of one moment. Waits for the database.
    pub(super) fn read(ledger: &Ledger) -> Result<Self, LedgerError> {
        let mut rows = Self::default();
        let tables: Vec<&str> = TABLES.into_iter().chain([ENVIRONMENTS]).collect();
        let cursor = ledger.rows(&tables, |table, row| rows.take(table, row))?;
        rows.cursor = cursor;
        rows.claims.sort_by_key(|claim| (claim.instance, claim.role));
        Ok(rows)
    }

    fn take(&mut self, table: &'static str, row: Row) -> RowResult {
        match table {
            "policy" => self.policy(read(table, row)?),
            "node" => self.node(read(table, row)?),
            "node_room" => self.room(read(table, row)?),
            "node_class" => self.class(read(table, row)?),
            "claim" => self.claim(read(table, row)?),
            "placement_group" => self.group(row),
            "placement_group_domain" => self.domain(read(table, row)?),
            "volume" => self.volume(read(table, row)?),
            "tenant" => self.tenant(read(table, row)?),
            "workload" => self.workload(read(table, row)?),
            "slot" => self.slot(read(table, row)?),
            "pool_value" => self.pool_value(read(table, row)?),
            "document" => self.document(read(table, row)?),
            _ => {
                let row: EnvironmentRow = read(table, row)?;
                let environments = match row.owner.as_str() {
                    "" => &mut self.environments,
                    _ => self.tenant_environments.entry(row.owner).or_default(),
                };
                environments.insert(row.env, row.version);
                Ok(())
            }
        }
    }

    fn policy(&mut self, row: PolicyRow) -> RowResult {
        if row.active != 0 {
            let body = parse("policy", &row.body)?;
            self.policy = Some(PolicyDump { name: row.name, hash: row.hash, body });
        }
        Ok(())
    }

    fn node(&mut self, row: NodeRow) -> RowResult {
        let mut facts: NodeFacts = parse("node", &row.facts)?;
        facts.heartbeat_at = Timestamp(row.heartbeat_at);
        self.facts.insert(NodeId::new(&row.id), facts);
        Ok(())
    }

    fn room(&mut self, row: RoomRow) -> RowResult {
        let id = NodeId::new(&row.node);
        let facts = self.facts.remove(&id);
        let facts = facts.ok_or_else(|| corrupt("node_room", "a node without facts"))?;
        let room = Room {
            limits: Limits {
                cpu: row.limit_cpu,
                memory: row.limit_memory,
                disk: row.limit_disk,
                bandwidth: row.limit_bandwidth,
            },
            used: Used {
                cpu: row.used_cpu,
                memory: row.used_memory,
                disk: row.used_disk,
                bandwidth: row.used_bandwidth,
                instances: row.used_instances,
                capped: row.used_capped,
            },
            overhead_mib: row.overhead_mib,
            instance_limit: row.limit_instances,
            cpu_cap_mode: row.cap_mode,
        };
        let node = NodeDump {
            facts,
            generation: row.constraint_gen,
            rules_gen: row.rules_gen,
            fence: row.fence,
            room,
            classes: BTreeMap::new(),
            copies: Copies::default(),
            compute_unit: Size::ZERO,
            watermark: WatermarkRule::default(),
            account: None,
        };
        self.nodes.insert(id, node);
        Ok(())
    }

    fn class(&mut self, row: ClassRow) -> RowResult {
        if let Some(node) = self.nodes.get_mut(&NodeId::new(&row.node)) {
            node.classes.insert(row.class, ClassDump { limit: row.lim, used: row.used });
        }
        Ok(())
    }

    fn claim(&mut self, row: ClaimRow) -> RowResult {
        let role = Role::from_number(row.role).ok_or_else(|| corrupt("claim", "its role"))?;
        let state = ClaimState::from_number(row.state);
        let ties = row.ties.as_deref().map(|ties| parse("claim", ties)).transpose()?;
        let permit = row.permit.as_deref().map(|text| parse::<Permit>("claim", text));
        self.claims.push(ClaimDump {
            instance: InstanceId(uuid(&row.instance)?),
            role,
            node: NodeId::new(&row.node),
            tenant: row.tenant,
            workload: row.workload,
            state: state.ok_or_else(|| corrupt("claim", "its state"))?,
            charged: Amounts::new(row.cpu, row.memory)
                .with_disk(row.disk)
                .with_bandwidth(row.bandwidth),
            capped: row.capped != 0,
            lease_until: row.lease_until,
            fence: row.fence,
            request_id: row.request_id,
            batch: row.batch.as_deref().map(uuid).transpose()?,
            name: row.name,
            spec: parse("claim", &row.spec)?,
            ties,
            release_id: row.release_id,
            secrets_version: row.secrets_version,
            created_at: row.created_at,
            permit: permit.transpose()?,
        });
        Ok(())
    }

    fn group(&mut self, mut row: Row) -> RowResult {
        let home = row.remove("home").and_then(|home| home.as_str().map(str::to_owned));
        let group: Group = read("placement_group", row)?;
        let members = BTreeMap::new();
        self.groups.insert(group.id.clone(), GroupDump { group, home, members });
        Ok(())
    }

    fn domain(&mut self, row: DomainRow) -> RowResult {
        let group = self.groups.get_mut(&row.placement_group);
        let group =
            group.ok_or_else(|| corrupt("placement_group_domain", "a group that is not there"))?;
        group.members.insert(row.domain, row.members);
        Ok(())
    }

    fn volume(&mut self, row: VolumeRow) -> RowResult {
        let attached_to = row.attached_to.as_deref().map(uuid).transpose()?.map(InstanceId);
        let (id, tenant, home) = (row.id, row.tenant, NodeId::new(&row.home));
        if let Some(to) = row.moving_to {
            self.volume_marks.insert(id.clone(), NodeId::new(&to));
        }
        self.volumes.push(Volume { id, tenant, home, attached_to });
        Ok(())
    }

    fn tenant(&mut self, row: TenantRow) -> RowResult {
        self.quotas.push(QuotaDump {
            tenant: row.tenant,
            limits: Quota {
                cpu_milli: row.limit_cpu,
                memory_mib: row.limit_memory,
                disk_mib: row.limit_disk,
                instances: row.limit_instances,
            },
            used: TenantUseDump {
                cpu_milli: row.used_cpu,
                memory_mib: row.used_memory,
                disk_mib: row.used_disk,
                instances: row.used_instances,
            },
        });
        Ok(())
    }

    fn workload(&mut self, row: WorkloadRow) -> RowResult {
        let WorkloadRow { tenant, name, revision, replicas, body } = row;
        let body = parse("workload", &body)?;
        self.workloads.push(WorkloadDump { tenant, name, revision, replicas, body });
        Ok(())
    }

    fn slot(&mut self, row: SlotRow) -> RowResult {
        let (tenant, workload) = (Text::from(row.tenant), Text::from(row.workload));
        let slot = SlotKey { tenant, workload, revision: row.revision, slot: row.slot };
        let holder = claim_key("slot", &row.instance, row.role)?;
        self.slots.push(SlotDump { slot, holder });
        Ok(())
    }

    fn pool_value(&mut self, row: PoolValueRow) -> RowResult {
        // One that rests is nobody's.
        if let (None, Some(instance), Some(role)) = (row.released_at, &row.instance, row.role) {
            let holder = claim_key("pool_value", instance, role)?;
            let value = row.value.replace('-', "");
            self.pool_values.push(PoolValueDump { pool: row.pool, value, holder });
        }
        Ok(())
    }

    fn document(&mut self, row: DocumentRow) -> RowResult {
        let (id, revision) = (row.id, row.rev);
        match row.kind.as_str() {
            migration::KIND if id != migration::GUARD => {
                let record = parse("document", &row.body)?;
                self.migrations.push(StoredRecord { id, revision, record });
            }
            drain::KIND => {
                let record = parse("document", &row.body)?;
                self.drains.push(StoredRecord { id, revision, record });
            }
            volume::KIND => {
                let record = parse("document", &row.body)?;
                self.volume_moves.push(StoredRecord { id, revision, record });
            }
            tickets::KIND => {
                let StoredTicket { ticket } = parse("document", &row.body)?;
                let placed = ticket.placed.map(|placed| placed.instances.len());
                let (document, id, state) = (id, ticket.id, ticket.state);
                self.tickets.push(TicketDump { document, id, state, placed });
            }
            // Tokens and keys must not be in a dump, nor what tickets ask for.
            _ => {}
        }
        Ok(())
    }
}

fn corrupt(table: &str, why: impl std::fmt::Display) -> LedgerError {
    LedgerError::Corrupt(format!("a row of {table} cannot be read: {why}"))
}

fn read<T: DeserializeOwned>(table: &str, row: Row) -> Result<T, LedgerError> {
    serde_json::from_value(Value::Object(row)).map_err(|error| corrupt(table, error))
}

fn parse<T: DeserializeOwned>(table: &str, text: &str) -> Result<T, LedgerError> {
    serde_json::from_str(text).map_err(|error| corrupt(table, error))
}

fn claim_key(table: &str, instance: &str, role: i64) -> Result<ClaimKey, LedgerError> {
    let role = Role::from_number(role).ok_or_else(|| corrupt(table, "its role"))?;
    Ok(ClaimKey { instance: InstanceId(uuid(instance)?), role })
}

fn uuid(hex: &str) -> Result<Uuid, LedgerError> {
    Uuid::try_parse(hex).map_err(|error| corrupt("claim", error))
}

#[derive(Deserialize)]
struct PolicyRow {
    hash: String,
    name: String,
    body: String,
    active: i64,
}

#[derive(Deserialize)]
struct NodeRow {
    id: String,
    facts: String,
    heartbeat_at: i64,
}

#[derive(Deserialize)]
struct RoomRow {
    node: String,
    constraint_gen: i64,
    rules_gen: i64,
    fence: i64,
    limit_cpu: i64,
    limit_memory: i64,
    limit_disk: i64,
    limit_bandwidth: i64,
    limit_instances: u32,
    overhead_mib: u32,
    cap_mode: CpuCapMode,
    used_cpu: i64,
    used_memory: i64,
    used_disk: i64,
    used_bandwidth: i64,
    used_instances: u32,
    used_capped: u32,
}

#[derive(Deserialize)]
struct ClassRow {
    node: String,
    class: String,
    lim: i64,
    used: i64,
}

#[derive(Deserialize)]
struct ClaimRow {
    instance: String,
    role: i64,
    node: String,
    #[serde(rename = "owner")]
    tenant: String,
    workload: Option<String>,
    state: i64,
    cpu: u32,
    memory: u32,
    disk: u32,
    bandwidth: u32,
    capped: i64,
    lease_until: Option<Micros>,
    fence: i64,
    request_id: String,
    batch: Option<String>,
    name: Option<String>,
    spec: String,
    ties: Option<String>,
    release_id: Option<String>,
    secrets_version: Option<String>,
    created_at: Micros,
    permit: Option<String>,
}

#[derive(Deserialize)]
struct DomainRow {
    placement_group: String,
    domain: String,
    members: i64,
}

#[derive(Deserialize)]
struct VolumeRow {
    id: String,
    #[serde(rename = "owner")]
    tenant: Option<String>,
    home: String,
    attached_to: Option<String>,
    moving_to: Option<String>,
}

#[derive(Deserialize)]
struct TenantRow {
    #[serde(rename = "owner")]
    tenant: String,
    limit_cpu: Option<i64>,
    limit_memory: Option<i64>,
    limit_disk: Option<i64>,
    limit_instances: Option<i64>,
    used_cpu: i64,
    used_memory: i64,
    used_disk: i64,
    used_instances: i64,
}

#[derive(Deserialize)]
struct WorkloadRow {
    #[serde(rename = "owner")]
    tenant: String,
    name: String,
    revision: i64,
    replicas: i64,
    body: String,
}

#[derive(Deserialize)]
struct SlotRow {
    #[serde(rename = "owner")]
    tenant: String,
    workload: String,
    revision: i64,
    slot: i64,
    instance: String,
    role: i64,
}

#[derive(Deserialize)]
struct PoolValueRow {
    pool: String,
    value: String,
    instance: Option<String>,
    role: Option<i64>,
    released_at: Option<i64>,
}

/// A ticket, as much of it as a dump has.
#[derive(Deserialize)]
struct StoredTicket {
    ticket: TicketRow,
}

#[derive(Deserialize)]
struct TicketRow {
    id: String,
    state: TicketState,
    placed: Option<PlacedRow>,
}

#[derive(Deserialize)]
struct PlacedRow {
    instances: Vec<IgnoredAny>,
}

#[derive(Deserialize)]
struct DocumentRow {
    kind: String,
    id: String,
    rev: i64,
    body: String,
}

#[derive(Deserialize)]
struct EnvironmentRow {
    env: String,
    version: String,
    owner: String,
}
