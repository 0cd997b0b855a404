//! Events: what changed, in order. Many events of one transaction are stored as one segment.
//!
//! An event records what happened, never what should happen: followers rebuild a fleet from it.

use std::collections::BTreeMap;

use berth_engine::elastic::Permit;
use berth_engine::{
    Amounts, Group, InstanceId, MeasuredLoad, NodeFacts, NodeId, NodeState, Volume,
};
use rustc_hash::FxHashMap;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::claim::{ClaimState, HeldValue, Micros, Role, Slot, Spec, Text};
use super::op::Workload;

/// What happened.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "kind")]
pub enum EventBody {
    /// A claim was granted, or an instance that was found was recorded.
    #[serde(rename = "instance.allocated")]
    Allocated(Box<Allocation>),
    /// A claim went on in its life.
    #[serde(rename = "instance.state")]
    State {
        /// The instance.
        instance_id: InstanceId,
        /// Which of its claims.
        role: Role,
        /// The node.
        node_id: NodeId,
        /// Its state now.
        state: ClaimState,
        /// The tenant; empty in events of the first logs.
        #[serde(default)]
        #[serde(rename = "owner", alias = "tenant")]
        tenant: Text,
        /// Its fence.
        fence: i64,
        /// Its lease, while held.
        lease_until: Option<Micros>,
    },
    /// What an instance is charged has changed.
    #[serde(rename = "instance.resized")]
    Resized {
        /// The instance.
        instance_id: InstanceId,
        /// Which of its claims.
        role: Role,
        /// The node.
        node_id: NodeId,
        /// The tenant; empty in events of the first logs.
        #[serde(default)]
        #[serde(rename = "owner", alias = "tenant")]
        tenant: Text,
        /// Its fence; absent in events of the first logs.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        fence: Option<i64>,
        /// What it is charged now.
        resources: Amounts,
    },
    /// How large an instance may be has changed, or how large it would be.
    #[serde(rename = "instance.permit")]
    Permit {
        /// The instance.
        instance_id: InstanceId,
        /// The node.
        node_id: NodeId,
        /// The tenant.
        #[serde(rename = "owner", alias = "tenant")]
        tenant: Text,
        /// Its fence.
        fence: i64,
        /// What it is charged now.
        resources: Amounts,
        /// Its permit.
        permit: Box<Permit>,
    },
    /// Between which sizes an instance may be has changed.
    #[serde(rename = "instance.bounds")]
    Bounds {
        /// The instance.
        instance_id: InstanceId,
        /// The node.
        node_id: NodeId,
        /// The tenant.
        #[serde(rename = "owner", alias = "tenant")]
        tenant: Text,
        /// Its fence; absent in events of the first logs.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        fence: Option<i64>,
        /// What it is charged now.
        resources: Amounts,
        /// Its permit.
        permit: Box<Permit>,
        /// The least it runs with.
        min: Amounts,
        /// The most it may grow to.
        max: Amounts,
    },
    /// A claim is gone, and with it all it held.
    #[serde(rename = "instance.released")]
    Released {
        /// The instance.
        instance_id: InstanceId,
        /// Which of its claims.
        role: Role,
        /// The node it was on.
        node_id: NodeId,
        /// The tenant.
        #[serde(rename = "owner", alias = "tenant")]
        tenant: Text,
        /// Its fence.
        fence: i64,
        /// Why.
        reason: Text,
    },
    /// A lease expired before the claim was bound; the release follows.
    #[serde(rename = "lease.expired")]
    LeaseExpired {
        /// The instance.
        instance_id: InstanceId,
        /// The node it was on.
        node_id: NodeId,
        /// The tenant; empty in events of the first logs.
        #[serde(default)]
        #[serde(rename = "owner", alias = "tenant")]
        tenant: Text,
        /// When.
        expired_at: Micros,
    },
    /// A node came, or what is known of it changed.
    #[serde(rename = "node.changed")]
    NodeChanged {
        /// Generation of its facts.
        constraint_gen: i64,
        /// What is known now.
        facts: Box<NodeFacts>,
    },
    /// A node's state changed.
    #[serde(rename = "node.state")]
    NodeState {
        /// The node.
        node_id: NodeId,
        /// Its state.
        state: NodeState,
        /// Generation of its facts.
        constraint_gen: i64,
        /// Why it is degraded, or was when it was lost.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reason: Option<Text>,
    },
    /// How busy a node is, as the policy's score counts it.
    #[serde(rename = "node.load")]
    NodeLoad {
        /// The node.
        node_id: NodeId,
        /// Its load in whole steps; absent: no longer known.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        load: Option<MeasuredLoad>,
    },
    /// An agent reported an instance that its node was not given, and that was not recorded.
    #[serde(rename = "node.report_refused")]
    ReportRefused {
        /// The node.
        node_id: NodeId,
        /// The instance.
        instance_id: InstanceId,
        /// Why: a stable code.
        code: Text,
    },
    /// A node is gone.
    #[serde(rename = "node.removed")]
    NodeRemoved {
        /// The node.
        node_id: NodeId,
        /// Generation of its last facts; absent in events of earlier releases.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        constraint_gen: Option<i64>,
    },
    /// A group was defined or changed.
    #[serde(rename = "group.changed")]
    GroupChanged {
        /// The group.
        group: Group,
    },
    /// A group is gone.
    #[serde(rename = "group.removed")]
    GroupRemoved {
        /// The group.
        group_id: Text,
    },
    /// A volume was defined or moved.
    #[serde(rename = "volume.changed")]
    VolumeChanged {
        /// The volume.
        volume: Volume,
    },
    /// A volume is gone.
    #[serde(rename = "volume.removed")]
    VolumeRemoved {
        /// The volume.
        volume_id: Text,
    },
    /// A pool was defined, changed or removed.
    #[serde(rename = "pool.changed")]
    PoolChanged {
        /// The pool.
        pool_id: Text,
        /// Whether it is there.
        present: bool,
    },
    /// A tenant's limits changed.
    #[serde(rename = "quota.changed")]
    QuotaChanged {
        /// The tenant.
        #[serde(rename = "owner", alias = "tenant")]
        tenant: Text,
    },
    /// The removal of a tenant has begun.
    #[serde(rename = "tenant.removing")]
    TenantRemoving {
        /// The tenant.
        tenant: Text,
    },
    /// A tenant is gone, and with it all it held.
    #[serde(rename = "tenant.removed")]
    TenantRemoved {
        /// The tenant.
        tenant: Text,
    },
    /// A workload was stored or removed.
    #[serde(rename = "workload.changed")]
    WorkloadChanged {
        /// The tenant.
        #[serde(rename = "owner", alias = "tenant")]
        tenant: Text,
        /// Its name.
        name: Text,
        /// Its revision; absent when it is gone.
        revision: Option<i64>,
        /// The workload as it is now; absent when it is gone, and in events of the first logs.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        workload: Option<Box<Workload>>,
    },
    /// Members of a workload cannot be placed.
    #[serde(rename = "env.scheduling_failed")]
    SchedulingFailed {
        /// The tenant.
        #[serde(rename = "owner", alias = "tenant")]
        tenant: Text,
        /// The environment, if it has one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        env: Option<Text>,
        /// The workload.
        workload: Text,
        /// Why: a stable code.
        code: Text,
        /// Why, in one sentence.
        message: Text,
    },
    /// Members of a workload that could not be placed are placed, or no longer wanted.
    #[serde(rename = "env.scheduling_recovered")]
    SchedulingRecovered {
        /// The tenant.
        #[serde(rename = "owner", alias = "tenant")]
        tenant: Text,
        /// The environment, if it has one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        env: Option<Text>,
        /// The workload.
        workload: Text,
        /// What was wrong: a stable code.
        code: Text,
    },
    /// An environment's secrets changed.
    #[serde(rename = "secrets.changed")]
    SecretsChanged {
        /// The tenant; absent: those of tenants that have none of their own.
        #[serde(rename = "owner", alias = "tenant")]
        #[serde(default, skip_serializing_if = "Option::is_none")]
        tenant: Option<Text>,
        /// The environment.
        env: Text,
        /// Their version; absent: none.
        version: Option<Text>,
    },
    /// Another policy is active.
    #[serde(rename = "policy.changed")]
    PolicyChanged {
        /// Its name.
        name: String,
        /// The hash of its content.
        hash: String,
        /// Its content, as JSON.
        body: String,
    },
    /// The active policy exceeded a limit of this version, and another was activated in its place.
    #[serde(rename = "policy.quarantined")]
    PolicyQuarantined {
        /// Its name.
        name: String,
        /// The hash of its content.
        hash: String,
        /// How long it is, in bytes.
        bytes: u64,
        /// How long it may be, in bytes.
        limit: u64,
    },
    /// A waiting request exceeded a limit of this version, and was closed as refused.
    #[serde(rename = "ticket.quarantined")]
    TicketQuarantined {
        /// The tenant.
        #[serde(rename = "owner", alias = "tenant")]
        tenant: Text,
        /// The ticket.
        ticket: Text,
        /// Which limit it exceeded: the field, what was found and what is accepted.
        excess: Text,
    },
    /// A document was stored, changed or removed. The content is left out, since it may be secret.
    #[serde(rename = "document.changed")]
    DocumentChanged {
        /// What it is.
        document: Text,
        /// Its name among those of its kind.
        id: Text,
        /// Its revision; absent when it is gone.
        revision: Option<i64>,
    },
    /// A counter was not the sum of its claims: a bug, corrected.
    #[serde(rename = "ledger.drift")]
    Drift {
        /// The row.
        row: String,
        /// Per counter: stored minus true.
        amounts: BTreeMap<String, i64>,
    },
}

impl EventBody {
    /// The fence of a claim that was granted or released.
    pub(crate) fn fence(&self) -> Option<i64> {
        match self {
            Self::Allocated(allocation) => Some(allocation.fence),
            Self::Released { fence, .. } => Some(*fence),
            _ => None,
        }
    }
}

/// A claim that was granted, with what a follower needs to know of it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Allocation {
    /// The instance.
    pub instance_id: InstanceId,
    /// Which of its claims.
    pub role: Role,
    /// The node.
    pub node_id: NodeId,
    /// Its fence.
    pub fence: i64,
    /// Its state.
    pub state: ClaimState,
    /// Its lease, while held.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease_until: Option<Micros>,
    /// Its address on the overlay.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub overlay_ipv6: Option<String>,
    /// All values it took from pools.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub values: Vec<HeldValue>,
    /// What it is charged.
    pub resources: Amounts,
    /// The release it runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub release_id: Option<Text>,
    /// The version of its secrets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secrets_version_id: Option<Text>,
    /// Hash of what it asked for.
    pub spec_hash: String,
    /// Its name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<Text>,
    /// Its slot in its workload; `seat` is its name in what is stored.
    #[serde(rename = "seat", default, skip_serializing_if = "Option::is_none")]
    pub slot: Option<Slot>,
    /// Recorded as found by an agent, without a guard.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub adopted: bool,
    /// The node it came from, when it was moved.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub moved_from: Option<NodeId>,
    /// How large it may be, if it is elastic.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub permit: Option<Box<Permit>>,
    /// Nodes whose generation of hard rules this claim raised, and to what.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rules: Vec<(NodeId, i64)>,
    /// Which of the segment's requests it is.
    pub(crate) spec_no: u32,
    /// What it asked for; filled in when a segment is read.
    #[serde(skip)]
    pub spec: Option<Spec>,
}

/// One event, with its number in the log and its time.
#[derive(Clone, Debug)]
pub struct Event {
    /// Its number: dense, from 1.
    pub seq: i64,
    /// When, by the database's clock.
    pub at: Micros,
    /// The writer's chain.
    pub origin: Text,
    /// What happened.
    pub body: EventBody,
}

/// Events after a cursor.
#[derive(Clone, Debug)]
pub struct EventPage {
    /// In order, without gaps.
    pub events: Vec<Event>,
    /// Where to go on: the number of the last event of this page.
    pub cursor: i64,
}

/// The events of one transaction, as stored.
#[derive(Clone, Debug)]
pub struct Segment {
    /// Number of its first event.
    pub first: i64,
    /// How many events it holds.
    pub count: i64,
    /// When.
    pub at: Micros,
    /// The writer's chain.
    pub origin: Text,
    /// JSON.
    pub body: String,
}

#[derive(Deserialize)]
struct PackedBody<'a> {
    #[serde(borrow)]
    specs: Vec<&'a RawValue>,
    events: Vec<EventBody>,
}

impl Segment {
    /// The events in it.
    ///
    /// # Errors
    /// When the body is not a segment.
    pub fn events(&self) -> Result<Vec<Event>, serde_json::Error> {
        let unpacked: PackedBody<'_> = serde_json::from_str(&self.body)?;
        let specs: Vec<Spec> =
            unpacked.specs.iter().map(|spec| Spec::stored(spec.get().to_owned())).collect();
        let mut events = Vec::with_capacity(unpacked.events.len());
        for (seq, mut body) in (self.first..).zip(unpacked.events) {
            if let EventBody::Allocated(allocated) = &mut body {
                allocated.spec = specs.get(allocated.spec_no as usize).cloned();
            }
            events.push(Event { seq, at: self.at, origin: Text::clone(&self.origin), body });
        }
        Ok(events)
    }
}

/// Requests that a segment or receipt holds once each, however many instances share them.
#[derive(Default)]
pub(crate) struct SpecList {
    texts: String,
    numbers: FxHashMap<Spec, u32>,
}

impl SpecList {
    /// The number of a request in this list.
    pub(crate) fn number(&mut self, spec: &Spec) -> u32 {
        if let Some(&number) = self.numbers.get(spec) {
            return number;
        }
        let number = u32::try_from(self.numbers.len()).unwrap_or(u32::MAX);
        if number > 0 {
            self.texts.push(',');
        }
        self.texts.push_str(spec.as_str());
        self.numbers.insert(spec.clone(), number);
        number
    }

    /// A JSON object of the list and a further member that is already JSON.
    pub(crate) fn with_items(&self, name: &str, items: &str) -> String {
        let mut body = String::with_capacity(self.texts.len() + items.len() + 32);
        body.push_str("{\"specs\":[");
        body.push_str(&self.texts);
        body.push_str("],\"");
        body.push_str(name);
        body.push_str("\":[");
        body.push_str(items);
        body.push_str("]}");
        body
    }
}

/// Stores events as one segment's body.
pub(crate) fn pack(events: &mut [EventBody]) -> Result<String, serde_json::Error> {
    let mut specs = SpecList::default();
    let mut items = String::with_capacity(events.len() * 384);
    for event in events.iter_mut() {
        if !items.is_empty() {
            items.push(',');
        }
        if let EventBody::Allocated(allocated) = event {
            if let Some(spec) = &allocated.spec {
                allocated.spec_no = specs.number(spec);
            }
            super::json::allocated(&mut items, allocated);
        } else {
            items.push_str(&serde_json::to_string(event)?);
        }
    }
    Ok(specs.with_items("events", &items))
}
