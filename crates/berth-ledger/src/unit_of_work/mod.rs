//! The unit of work of one transaction: operations applied in order to locked rows.
//!
//! Pure. Every rule of the ledger is here, once, for all databases: a backend reads the rows that
//! [`Keys`] name under locks, the work decides, and the backend writes what changed, guarded once
//! more. Nothing here may read a clock, draw a number or know SQL.

mod admin;
mod charge;
mod commit;
pub(crate) mod delta;
mod lifecycle;
mod limits;
mod migrate;
mod permit;
mod preempt;
mod reconcile;
mod required_keys;
mod rows;
mod service;
mod sizes;
mod slot;
mod table;
mod tenant;
mod view;
mod volume;

use std::collections::BTreeSet;

use berth_engine::NodeId;
use rustc_hash::FxHashMap;

use crate::model::{Answer, ClaimKey, DecisionRecord, EventBody, Op, Pool, SlotKey, Text};

pub(crate) use required_keys::{
    UnlockedReadKeys, UnlockedReads, required_keys, unlocked_read_keys,
};
pub(crate) use rows::{
    ClassRow, DocumentRow, FactsRow, GroupRow, Keys, NodeRow, PolicyRow, PoolRow,
    REMOVED_GENERATION, RequestRow, Rows, StoredAnswer, TenantRow, ValueRow, VolumeRow,
    generation_of,
};
pub(crate) use sizes::{only_size, only_steps};
pub(crate) use table::Change;

/// The work of one transaction.
pub(crate) struct UnitOfWork {
    pub(crate) rows: Rows,
    /// What happened, in order.
    pub(crate) events: Vec<EventBody>,
    /// What was granted, in order.
    pub(crate) decisions: Vec<DecisionRecord>,
    /// What was refused, in order.
    pub(crate) refusals: Vec<DecisionRecord>,
    /// A required row was not locked: retry.
    pub(crate) must_restart: bool,
    /// Group domains that were locked, and groups of which all were.
    locked_domains: BTreeSet<(Text, Text)>,
    locked_groups: BTreeSet<Text>,
    /// Claims that were read before locking, so that everything they touch is locked.
    claims_read_unlocked: BTreeSet<ClaimKey>,
    /// Whether no other writer is in progress.
    exclusive: bool,
    /// Slots that were locked.
    locked_slots: BTreeSet<SlotKey>,
    /// Claims that had a slot before its holder, and were locked with it.
    locked_predecessors: BTreeSet<ClaimKey>,
    /// The receipt that the decisions will be in, as `chain/number`.
    receipt: String,
    /// Fence and generation of rules of the nodes that the current operation has touched, as they
    /// were before it: the claims of one plan do not stand in each other's way.
    generations_before: FxHashMap<NodeId, (i64, i64)>,
    /// Values taken since the last mark, to be put back when a plan fails.
    taken_values: Vec<(Text, u128)>,
    /// Pools as the dry run at hand assumes them.
    assumed_pools: Vec<Pool>,
    /// The highest fence that this process knows of, on any node.
    highest_fence: i64,
}

impl UnitOfWork {
    /// Work on these rows, whose decisions go into that receipt, and whose fences are above all that
    /// are known.
    pub(crate) fn new(rows: Rows, keys: &Keys, receipt: String, highest_fence: i64) -> Self {
        Self {
            rows,
            events: Vec::new(),
            decisions: Vec::new(),
            refusals: Vec::new(),
            must_restart: false,
            locked_domains: keys.domains.clone(),
            locked_groups: keys.whole.groups.clone(),
            claims_read_unlocked: keys.claims_read_unlocked.clone(),
            exclusive: keys.exclusive,
            locked_slots: keys.slots.clone(),
            locked_predecessors: keys.slot_predecessors.clone(),
            receipt,
            generations_before: FxHashMap::default(),
            taken_values: Vec::new(),
            assumed_pools: Vec::new(),
            highest_fence,
        }
    }

    /// Applies one operation. One that fails changes nothing.
    pub(crate) fn apply(&mut self, op: &Op) -> Answer {
        if let Err(excess) = limits::check(op) {
            return limits::refusal(op, &excess);
        }
        match op {
            Op::Commit(plan) => self.commit(plan),
            Op::DryRun(plan, assumed) => self.dry_run(plan, assumed),
            Op::Advance(advance) => Answer::Claim(self.advance(advance)),
            Op::Release(release) => Answer::Claim(self.release(release)),
            Op::StopMember(stop) => Answer::Claim(self.stop_member(stop)),
            Op::Preempt(preempt) => self.preempt(preempt),
            Op::Resize(resize) => Answer::Claim(self.resize(resize)),
            Op::Move(to) => Answer::Claim(self.relocate(to)),
            Op::Permit(ask) => Answer::Permit(Box::new(self.permit(ask))),
            Op::Bounds(bounds) => Answer::Permit(Box::new(self.set_bounds(bounds))),
            Op::Hold(hold) => Answer::Claim(self.hold(hold)),
            Op::Switch(switch) => Answer::Claim(self.switch(switch)),
            Op::Adopt(adopt) => Answer::Claim(self.adopt(adopt)),
            Op::Reap(node) => Answer::Reaped(self.reap(node)),
            Op::ReconcileNode(node) => Answer::Drifts(self.reconcile_node(node)),
            Op::ReconcileGroup(group) => Answer::Drifts(self.reconcile_group(group)),
            Op::ReconcileTenant(tenant) => Answer::Drifts(self.reconcile_tenant(tenant)),
            Op::PutNode { .. }
            | Op::ChangeFacts { .. }
            | Op::SetNodeState { .. }
            | Op::SetHealth { .. }
            | Op::RemoveNode { .. }
            | Op::SetReserve { .. }
            | Op::RefuseReport { .. }
            | Op::Heartbeats(_)
            | Op::SetLoads(_)
            | Op::PutGroup(_)
            | Op::RemoveGroup(_)
            | Op::PutVolume(_)
            | Op::RemoveVolume(_)
            | Op::MarkVolume { .. }
            | Op::PutPool(_)
            | Op::RemovePool(_)
            | Op::PutQuota { .. }
            | Op::RemoveQuota(_)
            | Op::PutWorkload { .. }
            | Op::RemoveWorkload { .. }
            | Op::SetScheduling(_)
            | Op::PutSecrets { .. }
            | Op::PutPolicy { .. }
            | Op::ActivatePolicy { .. }
            | Op::PutDocument { .. }
            | Op::RemoveDocument { .. }
            | Op::QuarantineTicket(_)
            | Op::Record(_)
            | Op::Demand(_)
            | Op::StartTenantRemoval(_)
            | Op::EndTenantRemoval { .. } => Answer::Outcome(self.administer(op)),
            Op::ForTenants(made) => self.make_for_tenants(made),
            Op::IfUnanswered(request) => self.apply_unanswered(request),
            Op::Audited(by) => self.apply_audited(by),
            Op::WithDocuments(with) => self.with_documents(with),
        }
    }

    /// Whatever was done so far stays.
    fn keep(&mut self) {
        self.rows.keep();
        self.taken_values.clear();
        self.generations_before.clear();
    }

    /// Takes back what was done since the last [`UnitOfWork::keep`].
    fn undo(&mut self, events: usize) {
        self.rows.undo();
        self.generations_before.clear();
        self.events.truncate(events);
        while let Some((pool, value)) = self.taken_values.pop() {
            self.rows.free_values.entry(pool).or_default().push(value);
        }
    }
}
