//! What the catalogue knows of a claim, a member of a workload and a node. Plain data; it changes
//! nothing by itself.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use berth_api::InstanceSlot;
use berth_engine::elastic::Permit;
use berth_engine::{Amounts, InstanceRequest, NodeFacts, NodeId, Room};
use berth_ledger::{ClaimKey, ClaimState, HeldValue, Micros, Role, Slot, Text};

use crate::workload::WorkloadKey;

/// A claim as readers see it.
#[derive(Clone, Debug)]
pub struct ClaimEntry {
    /// Which.
    pub key: ClaimKey,
    /// The node.
    pub node: NodeId,
    /// Where it stands.
    pub state: ClaimState,
    /// Its fence.
    pub fence: i64,
    /// Its lease, while held.
    pub lease_until: Option<Micros>,
    /// What it is charged.
    pub amounts: Amounts,
    /// Its name.
    pub name: Option<Text>,
    /// What it asked for, shared by all of its class; id and name are not in it.
    pub request: Arc<InstanceRequest>,
    /// Values held from pools.
    pub values: Vec<HeldValue>,
    /// When it was granted.
    pub created_at: Micros,
    /// Its slot in its workload.
    pub slot: Option<Slot>,
    /// How large it may be, if it is elastic.
    pub permit: Option<Permit>,
}

impl ClaimEntry {
    /// The slot that it has as a member of a workload, with the slot's identity.
    #[must_use]
    pub fn instance_slot(&self) -> Option<InstanceSlot> {
        let Slot { revision, slot } = self.slot?;
        let workload = self.request.workload.as_deref()?;
        let id = berth_ledger::slot_id(&self.request.tenant, workload, slot);
        Some(InstanceSlot { id, slot, revision })
    }

    /// The workload that it is a member of.
    #[must_use]
    pub fn workload(&self) -> Option<WorkloadKey> {
        let workload = self.request.workload.as_deref().filter(|_| self.slot.is_some())?;
        Some((Text::from(self.request.tenant.as_str()), Text::from(workload)))
    }
}

/// A member of a workload, as much of its claim as its workload is judged by: a hundred thousand of
/// them are looked at in one pass.
#[derive(Clone, Debug)]
pub struct MemberEntry {
    /// Its claim.
    pub key: ClaimKey,
    /// The node.
    pub node: NodeId,
    /// Its slot.
    pub slot: Slot,
    /// Its claim's fence.
    pub fence: i64,
    /// Its claim's state.
    pub state: ClaimState,
}

impl MemberEntry {
    /// An instance that moves has a second claim, which is no second member.
    pub(super) fn of(claim: &ClaimEntry) -> Option<Self> {
        let slot = claim.slot.filter(|_| claim.key.role == Role::Primary)?;
        let (key, node) = (claim.key, claim.node.clone());
        Some(Self { key, node, slot, fence: claim.fence, state: claim.state })
    }
}

/// When an agent was last heard, in whole seconds. Thousands of agents report at once: noting one must
/// not keep others from reading the catalogue.
#[derive(Debug, Default)]
pub(super) struct Heartbeat(AtomicI64);

impl Heartbeat {
    pub(super) const fn new(at: i64) -> Self {
        Self(AtomicI64::new(at))
    }

    pub(super) fn record(&self, at: i64) {
        self.0.fetch_max(at, Ordering::Relaxed);
    }

    fn get(&self) -> i64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl Clone for Heartbeat {
    fn clone(&self) -> Self {
        Self::new(self.get())
    }
}

/// A node as readers see it.
#[derive(Clone, Debug)]
pub struct NodeEntry {
    /// What is stated of it.
    pub facts: Arc<NodeFacts>,
    /// The generation of its facts.
    pub generation: i64,
    /// When its agent was last heard.
    pub(super) heartbeat: Heartbeat,
    /// Its use and limits.
    pub room: Room,
    /// What is on it.
    pub claims: BTreeSet<ClaimKey>,
}

impl NodeEntry {
    /// When its agent was last heard, in whole seconds.
    #[must_use]
    pub fn heard_at(&self) -> i64 {
        self.heartbeat.get()
    }
}
