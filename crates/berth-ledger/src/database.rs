//! What a database must be able to do: read rows under locks, write what changed, keep the log.
//!
//! One implementation per database, each only SQL. Every rule is in `unit_of_work`; a backend that decided
//! anything would duplicate them.

use berth_engine::{Group, NodeFacts, NodeId, Volume};

use crate::error::Fault;
use crate::model::{
    AuditEntry, AuditFilter, Claim, ClaimKey, Document, Micros, NodeVersion, Pool, Quota, QuotaUse,
    Segment, StoredPolicy, TenantHoldings, TenantRemoval, Text, UnmetDemand, Workload,
};
use crate::unit_of_work::{Keys, RequestRow, Rows, UnlockedReadKeys, UnlockedReads};

/// Events to be appended, as one segment.
pub(crate) struct NewSegment {
    pub(crate) count: i64,
    pub(crate) at: Micros,
    pub(crate) origin: Text,
    pub(crate) body: String,
}

/// A receipt to be appended to its chain.
pub(crate) struct NewReceipt {
    pub(crate) chain: Text,
    pub(crate) n: i64,
    pub(crate) at: Micros,
    pub(crate) hash: [u8; 32],
    pub(crate) count: i64,
    pub(crate) body: String,
}

/// A chain as stored.
#[derive(Clone, Debug)]
pub(crate) struct ChainRow {
    pub(crate) id: Text,
    pub(crate) length: i64,
    pub(crate) head: Vec<u8>,
    pub(crate) base: i64,
    pub(crate) base_hash: Vec<u8>,
}

/// A receipt as stored.
pub(crate) struct ReceiptRow {
    pub(crate) chain: Text,
    pub(crate) n: i64,
    pub(crate) at: Micros,
    pub(crate) hash: Vec<u8>,
    pub(crate) count: i64,
    pub(crate) body: String,
}

/// How far the event log reaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LogEnds {
    /// The oldest event that is kept.
    pub(crate) first: i64,
    /// The number that the next event gets.
    pub(crate) next: i64,
}

/// One thing of a snapshot, in the order in which a fleet can apply it.
#[derive(Clone)]
pub enum SnapshotItem {
    /// The active policy: name, hash, body.
    Policy(String, String, String),
    /// An environment's secrets: tenant, absent for those without one; environment; version.
    Secrets(Option<Text>, Text, Text),
    /// A group.
    Group(Group),
    /// A node, and the version that a plan on it is based on.
    Node(Box<NodeFacts>, NodeVersion),
    /// A volume.
    Volume(Volume),
    /// A pool.
    Pool(Pool),
    /// A tenant's limits.
    Quota(Text, Quota),
    /// A workload.
    Workload(Workload),
    /// A claim.
    Claim(Box<Claim>),
}

/// Takes a snapshot's items as they are read.
pub(crate) type TakeItem<'a> = dyn FnMut(SnapshotItem) -> Result<(), Fault> + 'a;

/// One connection to one database.
pub(crate) trait Database: Queries + Send {
    // A write, in this order.

    /// Begins a transaction that will write; `exclusive` waits until no other writer is active.
    fn begin(&mut self, exclusive: bool) -> Result<(), Fault>;
    /// Reads rows without locking them.
    fn read_unlocked(&mut self, keys: &UnlockedReadKeys) -> Result<UnlockedReads, Fault>;
    /// Locks rows in the one lock order, reads them, then reads the clock.
    fn lock(&mut self, keys: &Keys) -> Result<Rows, Fault>;
    /// Writes what changed, each row guarded by what was read.
    fn flush(&mut self, rows: &Rows) -> Result<(), Fault>;
    /// The chains that a new one names as its predecessors, newest first.
    fn chains(&mut self) -> Result<Vec<ChainRow>, Fault>;
    /// Adds a new chain. Its first receipt follows.
    fn add_chain(&mut self, id: &Text, at: Micros) -> Result<(), Fault>;
    /// Appends to the event log and to the chains.
    fn append(
        &mut self,
        segment: Option<&NewSegment>,
        receipts: &[NewReceipt],
    ) -> Result<(), Fault>;
    /// Makes all of it durable.
    fn commit(&mut self) -> Result<(), Fault>;
    /// Rolls back. Never fails: a connection that cannot is dropped.
    fn rollback(&mut self);
    /// Opens the connection again if it is gone.
    fn reconnect(&mut self) -> Result<(), Fault>;
    /// Commits something that leaves nothing, to see whether commits are answered. After a failure it may
    /// cost more, and must prove more.
    fn probe_write(&mut self, is_failing: bool) -> Result<(), Fault>;

    // Reads, each a transaction of its own.

    /// The highest fence that was given out on any node.
    fn highest_fence(&mut self) -> Result<i64, Fault>;
    /// Settings under which acknowledged commits can be lost.
    fn durability_warnings(&mut self) -> Result<Vec<DurabilityWarning>, Fault> {
        Ok(Vec::new())
    }
    /// The database's clock.
    fn clock(&mut self) -> Result<Micros, Fault>;
    /// Gives numbers to segments that committed without one. Returns how far the log reaches.
    fn number_events(&mut self) -> Result<LogEnds, Fault>;
    /// Segments that hold events after this one, in order; about as many events as asked for.
    fn segments_after(&mut self, cursor: i64, limit: i64) -> Result<Vec<Segment>, Fault>;
    /// Everything, as of one moment. Returns the number of the last event that is in it.
    fn snapshot(&mut self, take: &mut TakeItem<'_>) -> Result<i64, Fault>;
    /// One claim.
    fn claim(&mut self, key: ClaimKey) -> Result<Option<Claim>, Fault>;
    /// The claims of a tenant, or of one of its workloads.
    fn claims_of(&mut self, tenant: &str, workload: Option<&str>) -> Result<Vec<ClaimKey>, Fault>;
    /// Tenants that are being removed.
    fn tenant_removals(&mut self) -> Result<Vec<(Text, TenantRemoval)>, Fault>;
    /// Everything that belongs to a tenant, as of one moment.
    fn tenant_holdings(&mut self, tenant: &str) -> Result<TenantHoldings, Fault>;
    /// Nodes that have an expired claim.
    fn expired_nodes(&mut self) -> Result<Vec<NodeId>, Fault>;
    /// Nodes, groups and tenants whose counters are not the sum of their claims, in one snapshot.
    fn drifted(&mut self) -> Result<crate::drift::DriftedRows, Fault>;
    /// Nodes with a heartbeat since then, and its time.
    fn heartbeats_since(&mut self, at: i64) -> Result<Vec<(NodeId, i64)>, Fault>;
    /// Unmet demand, most recent first.
    fn demand(&mut self) -> Result<Vec<UnmetDemand>, Fault>;
    /// Receipts of a chain from this one on, at most as many as asked for.
    fn receipts(&mut self, chain: &str, from: i64, limit: i64) -> Result<Vec<ReceiptRow>, Fault>;

    // Maintenance.

    /// Drops events before this one, answers and resting values older than that, and receipts
    /// before that time; returns the number of deleted rows.
    fn forget(&mut self, what: &crate::retention::RetentionCutoffs) -> Result<u64, Fault>;
    /// Drops answers kept for a tenant and counts of its unmet demand, at most so many of each.
    /// Returns how many.
    fn forget_tenant(&mut self, tenant: &str, limit: usize) -> Result<u64, Fault>;
    /// All rows of the wanted tables, as of one moment. Returns the number of the last event
    /// that is in them.
    fn dump(
        &mut self,
        wanted: &dyn Fn(&str) -> bool,
        take: &mut crate::schema::TakeRow<'_>,
    ) -> Result<i64, Fault>;
    /// Puts rows of an export into an empty ledger, as one transaction.
    fn load(&mut self, rows: &mut crate::schema::NextRow<'_>) -> Result<(), Fault>;
}

/// A setting of the database under which acknowledged commits can be lost, or writes have to wait.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DurabilityWarning {
    /// `synchronous_commit` is off. The ledger's connections switch it on.
    SynchronousCommitOff,
    /// `synchronous_commit` is local: commits do not wait for a standby.
    SynchronousCommitLocal,
    /// The URL names several hosts, and the primary has no synchronous standby.
    NoSynchronousStandby {
        /// How many hosts.
        hosts: usize,
    },
    /// The primary waits for synchronous standbys of which none is connected.
    StandbyNotConnected {
        /// The value of `synchronous_standby_names`.
        names: String,
    },
}

impl DurabilityWarning {
    /// What to do about it.
    #[must_use]
    pub const fn remedy(&self) -> &'static str {
        match self {
            Self::SynchronousCommitOff => "set synchronous_commit = on in PostgreSQL",
            Self::SynchronousCommitLocal => {
                "set synchronous_commit = on in PostgreSQL, for the server and the role"
            }
            Self::NoSynchronousStandby { .. } => {
                "set synchronous_mode in Patroni, or synchronous_standby_names in PostgreSQL"
            }
            Self::StandbyNotConnected { .. } => {
                "start a standby; patronictl list shows the state of each"
            }
        }
    }
}

impl std::fmt::Display for DurabilityWarning {
    fn fmt(&self, text: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::SynchronousCommitOff => text.write_str(
                "synchronous_commit is off in PostgreSQL; Berth uses on for its own connections",
            ),
            Self::SynchronousCommitLocal => text.write_str(
                "synchronous_commit is local in PostgreSQL: commits do not wait for a standby, \
                 so a failover can lose acknowledged placements",
            ),
            Self::NoSynchronousStandby { hosts } => write!(
                text,
                "the database URL names {hosts} hosts, but the primary has no synchronous standby, \
                 so a failover can lose acknowledged placements",
            ),
            Self::StandbyNotConnected { names } => write!(
                text,
                "no synchronous standby is connected (synchronous_standby_names is {names:?}): \
                 writes wait until one is",
            ),
        }
    }
}

/// What a database must be able to look up. Each is a transaction of its own.
pub(crate) trait Queries {
    /// One document.
    fn document(&mut self, kind: &str, id: &str) -> Result<Option<Document>, Fault>;
    /// Documents of a kind after this id, in the order of their ids; at least as many as asked for
    /// if there are.
    fn documents(&mut self, kind: &str, after: &str, limit: usize) -> Result<Vec<Document>, Fault>;
    /// Entries of the audit log before this one, newest first; at least as many as asked for if
    /// there are.
    fn audit(
        &mut self,
        before: i64,
        limit: usize,
        filter: &AuditFilter,
    ) -> Result<Vec<AuditEntry>, Fault>;
    /// All policies, in the order of their names.
    fn policies(&mut self) -> Result<Vec<StoredPolicy>, Fault>;
    /// When which policy was activated, newest first; at least as many as asked for if there
    /// are.
    fn policy_history(&mut self, limit: usize) -> Result<Vec<(i64, String, Micros)>, Fault>;
    /// One node, and the version that a plan on it is based on.
    fn node(&mut self, id: &NodeId) -> Result<Option<(NodeFacts, NodeVersion)>, Fault>;
    /// All pools, in the order of their ids, each with how many of its values are in use.
    fn pools(&mut self) -> Result<Vec<(Pool, i64)>, Fault>;
    /// All tenants with limits, in the order of their names.
    fn quotas(&mut self) -> Result<Vec<QuotaUse>, Fault>;
    /// All workloads, in the order of tenant and name.
    fn workloads(&mut self) -> Result<Vec<Workload>, Fault>;
    /// Claims after this one, in the order of their keys; at least as many as asked for if there
    /// are.
    fn claims_page(&mut self, after: Option<ClaimKey>, limit: usize) -> Result<Vec<Claim>, Fault>;
    /// Receipts with decisions up to a place and with it, newest first: so many that they have as
    /// many decisions as asked for, or some of them. None means that there are no more.
    fn receipts_until(
        &mut self,
        place: &ReceiptPlace,
        decisions: usize,
    ) -> Result<Vec<ReceiptRow>, Fault>;
    /// The answer that was given to a request, if it is kept.
    fn answer(&mut self, request_id: &str, tenant: &str) -> Result<Option<RequestRow>, Fault>;
}

/// A place among all receipts: in the order of time, then chain, then number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ReceiptPlace {
    pub(crate) at: i64,
    pub(crate) chain: String,
    pub(crate) n: i64,
}
