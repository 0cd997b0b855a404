//! The rows a transaction works on, and which of them it needs.

use std::collections::{BTreeMap, BTreeSet};

use berth_engine::affinity::Topology;
use berth_engine::{Group, InstanceId, NodeFacts, NodeId, NodeState, Room};
use serde::{Deserialize, Serialize};

use super::table::Table;
use crate::model::{
    Claim, ClaimKey, ClaimStatus, Grant, Micros, NodeSnapshot, Plan, Pool, Quota, QuotaUse,
    SlotKey, TenantRemoval, TenantUse, Text, UnmetDemand, Workload,
};

/// Everything a guard reads of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NodeRow {
    pub(crate) state: NodeState,
    /// Whether its capacity is known.
    pub(crate) known: bool,
    pub(crate) zone: Option<Text>,
    pub(crate) rack: Option<Text>,
    pub(crate) constraint_gen: i64,
    pub(crate) rules_gen: i64,
    pub(crate) fence: i64,
    pub(crate) room: Room,
}

impl NodeRow {
    /// The row as planners get it.
    pub(crate) fn now(&self, node: &NodeId) -> Box<NodeSnapshot> {
        Box::new(NodeSnapshot {
            node: node.clone(),
            state: self.state,
            constraint_gen: self.constraint_gen,
            rules_gen: self.rules_gen,
            room: self.room,
        })
    }

    /// The domain the node is in; a rack belongs to its zone.
    pub(crate) fn domain(&self, node: &NodeId, topology: Topology) -> Option<Text> {
        domain_of(node, self.zone.as_deref(), self.rack.as_deref(), topology)
    }
}

/// The domain of a node in that zone and rack.
pub(crate) fn domain_of(
    node: &NodeId,
    zone: Option<&str>,
    rack: Option<&str>,
    topology: Topology,
) -> Option<Text> {
    match topology {
        Topology::Node => Some(Text::from(node.as_str())),
        // Equal rack names in two zones are two racks, as in the engine.
        Topology::Rack => rack.map(|rack| Text::from(format!("{}/{rack}", zone.unwrap_or("")))),
        Topology::Zone => zone.map(Text::from),
    }
}

/// A node's facts as stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FactsRow {
    pub(crate) facts: NodeFacts,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ClassRow {
    pub(crate) limit: i64,
    pub(crate) used: i64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct GroupRow {
    pub(crate) group: Group,
    /// Where a group that stays together is.
    pub(crate) home: Option<Text>,
}

#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub(crate) struct TenantRow {
    pub(crate) quota: Quota,
    pub(crate) cpu: i64,
    pub(crate) memory: i64,
    pub(crate) disk: i64,
    pub(crate) instances: i64,
    /// Set while it is being removed.
    pub(crate) removal: Option<TenantRemoval>,
}

impl TenantRow {
    /// The row as readers get it.
    pub(crate) fn used_by(self, tenant: Text) -> QuotaUse {
        let used = TenantUse {
            cpu_milli: self.cpu,
            memory_mib: self.memory,
            disk_mib: self.disk,
            instances: self.instances,
        };
        QuotaUse { tenant, quota: self.quota, used }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct VolumeRow {
    /// The only tenant it is there for.
    pub(crate) tenant: Option<Text>,
    pub(crate) home: NodeId,
    pub(crate) attached_to: Option<InstanceId>,
    /// The node that it is copied to for the last time: nobody may begin to use it.
    pub(crate) moving_to: Option<NodeId>,
}

impl VolumeRow {
    /// Whether this tenant's instances may use it; for others it is not there.
    pub(crate) fn is_for(&self, tenant: &str) -> bool {
        self.tenant.as_deref().is_none_or(|only| only == tenant)
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PoolRow {
    pub(crate) pool: Pool,
    /// Where the search for a free value goes on.
    pub(crate) next: u128,
}

/// A value that a claim takes, or gives back when it has a time of release. Never read: the write
/// itself is guarded by the holder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ValueRow {
    pub(crate) authorize: ClaimKey,
    pub(crate) released_at: Option<Micros>,
}

/// An answer that a retry gets again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum StoredAnswer {
    Granted(Grant),
    #[serde(rename = "stands")]
    Status(ClaimStatus),
    /// It waits under a ticket, or did until that was closed.
    Ticket {
        /// The ticket as it was closed; absent while it has a document of its own.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        closed: Option<String>,
    },
}

impl StoredAnswer {
    /// The answer as stored.
    pub(crate) fn text(&self) -> Result<String, serde_json::Error> {
        match self {
            Self::Granted(grant) => Ok(crate::model::granted_answer(grant)),
            Self::Status(_) | Self::Ticket { .. } => serde_json::to_string(self),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RequestRow {
    pub(crate) body_hash: [u8; 16],
    pub(crate) answer: StoredAnswer,
    pub(crate) at: Micros,
}

impl RequestRow {
    /// Whether it is only the ticket of this very request: a grant takes its place.
    pub(crate) fn is_ticket_of(&self, plan: &Plan) -> bool {
        matches!(self.answer, StoredAnswer::Ticket { .. })
            && plan.request_hash == Some(self.body_hash)
    }
}

/// A request's id and tenant.
pub(crate) type RequestKey = (Text, Text);

/// An environment's tenant, empty for none, and its name.
pub(crate) type EnvironmentKey = (Text, Text);

/// A workload's tenant and name.
pub(crate) type WorkloadKey = (Text, Text);

/// A policy as stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PolicyRow {
    pub(crate) name: String,
    pub(crate) body: String,
    pub(crate) at: Micros,
    pub(crate) active: bool,
}

/// A document as stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DocumentRow {
    pub(crate) rev: i64,
    pub(crate) body: String,
    pub(crate) at: Micros,
}

/// An entry to be added to the audit log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AuditRow {
    pub(crate) actor: Text,
    pub(crate) origin: Text,
    pub(crate) action: Text,
    pub(crate) subject: Text,
    pub(crate) request_id: Option<Text>,
}

/// All rows that a transaction works on.
#[derive(Default)]
pub(crate) struct Rows {
    /// The database's clock, read while all locks are held.
    pub(crate) now: Micros,
    pub(crate) groups: Table<Text, GroupRow>,
    pub(crate) domains: Table<(Text, Text), i64>,
    pub(crate) members: Table<(Text, ClaimKey), ()>,
    pub(crate) nodes: Table<NodeId, NodeRow>,
    pub(crate) facts: Table<NodeId, FactsRow>,
    pub(crate) classes: Table<(NodeId, Text), ClassRow>,
    pub(crate) tenants: Table<Text, TenantRow>,
    pub(crate) pools: Table<Text, PoolRow>,
    pub(crate) values: Table<(Text, u128), ValueRow>,
    pub(crate) volumes: Table<Text, VolumeRow>,
    pub(crate) slots: Table<SlotKey, ClaimKey>,
    pub(crate) claims: Table<ClaimKey, Claim>,
    pub(crate) requests: Table<RequestKey, RequestRow>,
    pub(crate) workloads: Table<WorkloadKey, Workload>,
    pub(crate) secrets: Table<EnvironmentKey, Text>,
    pub(crate) policies: Table<Text, PolicyRow>,
    /// The policy in force when the transaction began.
    pub(crate) active_policy: Option<Text>,
    /// The highest generation that a removed node or workload had, where that was asked.
    pub(crate) removed_generation: i64,
    /// Versions of workloads that are only read.
    pub(crate) workload_versions: BTreeMap<WorkloadKey, i64>,
    pub(crate) demand: Table<String, UnmetDemand>,
    pub(crate) documents: Table<(Text, Text), DocumentRow>,
    pub(crate) heartbeats: BTreeMap<NodeId, i64>,
    /// Entries for the audit log.
    pub(crate) audit: Vec<AuditRow>,
    /// Policies that were activated, to be added to their history.
    pub(crate) activated: Vec<Text>,
    /// Free values to give out, per pool, in the order to be given.
    pub(crate) free_values: BTreeMap<Text, Vec<u128>>,
    /// Pools of which values are in use, where that was asked.
    pub(crate) pools_in_use: BTreeSet<Text>,
    /// Workloads that have slots taken, where that was asked.
    pub(crate) workloads_in_use: BTreeSet<(Text, Text)>,
    /// Tenants that hold something, where that was asked.
    pub(crate) tenants_in_use: BTreeSet<Text>,
}

/// Rows of which every claim is needed, so that their sums can be taken.
#[derive(Clone, Debug, Default)]
pub(crate) struct WholeRows {
    pub(crate) nodes: BTreeSet<NodeId>,
    pub(crate) groups: BTreeSet<Text>,
    pub(crate) tenants: BTreeSet<Text>,
}

macro_rules! each_table {
    ($rows:ident, $table:ident => $do:expr) => {{
        {
            let $table = &mut $rows.groups;
            $do;
        }
        {
            let $table = &mut $rows.domains;
            $do;
        }
        {
            let $table = &mut $rows.members;
            $do;
        }
        {
            let $table = &mut $rows.nodes;
            $do;
        }
        {
            let $table = &mut $rows.facts;
            $do;
        }
        {
            let $table = &mut $rows.classes;
            $do;
        }
        {
            let $table = &mut $rows.tenants;
            $do;
        }
        {
            let $table = &mut $rows.pools;
            $do;
        }
        {
            let $table = &mut $rows.values;
            $do;
        }
        {
            let $table = &mut $rows.volumes;
            $do;
        }
        {
            let $table = &mut $rows.slots;
            $do;
        }
        {
            let $table = &mut $rows.claims;
            $do;
        }
        {
            let $table = &mut $rows.requests;
            $do;
        }
        {
            let $table = &mut $rows.workloads;
            $do;
        }
        {
            let $table = &mut $rows.secrets;
            $do;
        }
        {
            let $table = &mut $rows.policies;
            $do;
        }
        {
            let $table = &mut $rows.demand;
            $do;
        }
        {
            let $table = &mut $rows.documents;
            $do;
        }
    }};
}

impl Rows {
    /// Whatever was set so far stays.
    pub(crate) fn keep(&mut self) {
        each_table!(self, table => table.keep());
    }

    /// Takes back what was set since the last [`Rows::keep`].
    pub(crate) fn undo(&mut self) {
        each_table!(self, table => table.undo());
    }
}

/// Which rows a transaction needs, each set in the order in which it is locked.
#[derive(Clone, Debug, Default)]
pub(crate) struct Keys {
    pub(crate) groups: BTreeSet<Text>,
    pub(crate) domains: BTreeSet<(Text, Text)>,
    pub(crate) nodes: BTreeSet<NodeId>,
    /// Nodes whose facts are needed in addition to their counters.
    pub(crate) facts: BTreeSet<NodeId>,
    pub(crate) classes: BTreeSet<(NodeId, Text)>,
    /// Nodes of which all classes are needed.
    pub(crate) whole_classes: BTreeSet<NodeId>,
    pub(crate) tenants: BTreeSet<Text>,
    /// Pools, and how many values are wanted of each.
    pub(crate) pools: BTreeMap<Text, usize>,
    /// The same of pools as a dry run assumes them, under a key that no pool has.
    pub(crate) assumed_pools: BTreeMap<Text, (Pool, usize)>,
    pub(crate) volumes: BTreeSet<Text>,
    pub(crate) slots: BTreeSet<SlotKey>,
    pub(crate) claims: BTreeSet<ClaimKey>,
    /// Those of the claims that had a slot before its holder.
    pub(crate) slot_predecessors: BTreeSet<ClaimKey>,
    /// Claims that were read before locking.
    pub(crate) claims_read_unlocked: BTreeSet<ClaimKey>,
    pub(crate) requests: BTreeSet<RequestKey>,
    pub(crate) workloads: BTreeSet<WorkloadKey>,
    /// Workloads that must stay as they are until the commit.
    pub(crate) workloads_shared: BTreeSet<WorkloadKey>,
    pub(crate) secrets: BTreeSet<EnvironmentKey>,
    /// Environments whose secrets are only read: they are changed while no other writer is in progress.
    pub(crate) secrets_read: BTreeSet<EnvironmentKey>,
    /// All policies are needed.
    pub(crate) policies: bool,
    pub(crate) demand: BTreeSet<String>,
    /// Documents, by kind and id.
    pub(crate) documents: BTreeSet<(Text, Text)>,
    /// Nodes, groups and tenants of which every claim is needed.
    pub(crate) whole: WholeRows,
    /// Pools and workloads whose use must be known.
    pub(crate) pools_in_use: BTreeSet<Text>,
    pub(crate) workloads_in_use: BTreeSet<(Text, Text)>,
    /// Tenants of which it must be known whether they hold anything.
    pub(crate) tenants_in_use: BTreeSet<Text>,
    /// Whether the generations of what was removed matter, since something may be added.
    pub(crate) removed_generation: bool,
    /// No other writer may be in progress: some count is taken over claims that no lock covers.
    pub(crate) exclusive: bool,
}

/// Kind and id of the document with the highest generation that any removed node or workload had. What
/// is added starts above it, so that a generation never means two things.
pub(crate) const REMOVED_GENERATION: (&str, &str) = ("generation", "removed");

/// The generation in that document.
pub(crate) fn generation_of(body: &str) -> i64 {
    body.parse().unwrap_or(0)
}

/// The key of that document.
pub(crate) fn removed_generation_key() -> (Text, Text) {
    (Text::from(REMOVED_GENERATION.0), Text::from(REMOVED_GENERATION.1))
}
