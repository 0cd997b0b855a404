//! What the planner hands to the ledger: claims to be granted together or not at all.

use std::sync::Arc;

use berth_engine::affinity::Rule;
use berth_engine::{Demand, InstanceId, InstanceRequest, NodeFacts, NodeId, Policy};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::claim::{ClaimKey, Role, SlotKey, Spec, Text};

/// Default lease of a claim, in seconds.
pub const DEFAULT_LEASE_S: u32 = 120;

/// What the planner knew of a node. A plan made on other knowledge is a conflict, and is replanned.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct NodeVersion {
    /// Generation of its facts.
    pub constraint_gen: i64,
    /// Generation of the hard rules of the instances there.
    pub rules_gen: i64,
    /// The highest fence given out there: a higher one means that an instance was placed since.
    pub fence: i64,
    /// Its zone.
    pub zone: Option<Text>,
    /// Its rack.
    pub rack: Option<Text>,
}

impl NodeVersion {
    /// What is known of a node with these facts and generations.
    #[must_use]
    pub fn of(facts: &NodeFacts, constraint_gen: i64, rules_gen: i64, fence: i64) -> Self {
        let (zone, rack) = (facts.zone.as_deref(), facts.rack.as_deref());
        let (zone, rack) = (zone.map(Text::from), rack.map(Text::from));
        Self { constraint_gen, rules_gen, fence, zone, rack }
    }
}

/// One claim to be granted.
#[derive(Clone, Debug)]
pub struct PlannedClaim {
    /// Which claim.
    pub key: ClaimKey,
    /// What the instance asked for.
    pub request: Arc<InstanceRequest>,
    /// The same as stored.
    pub spec: Spec,
    /// What it needs of the node.
    pub demand: Demand,
    /// The node.
    pub node: NodeId,
    /// What the planner knew of the node.
    pub node_version: NodeVersion,
    /// For an instance with a hard rule about its rack or zone: the other nodes there, each with
    /// the highest fence that the planner knew of.
    pub neighbours: Vec<(NodeId, i64)>,
    /// The node's total.
    pub score: i64,
    /// Pools it takes a value from.
    pub pools: Vec<Text>,
    /// The slot it takes in its workload.
    pub slot: Option<SlotKey>,
    /// The claim that has the slot now and hands it over.
    pub takes_over: Option<ClaimKey>,
    /// The release it will run.
    pub release_id: Option<Text>,
    /// The version of the secrets it is given: those of its environment when it was planned.
    pub secrets_version: Option<Text>,
    /// For a member of a workload, the version of the workload that it was planned by; 0 if there was
    /// none. Absent: it does not depend on one.
    pub workload_version: Option<i64>,
    /// The policy that it was planned by, under the hash that the ledger has it; empty if none was in
    /// force. Absent: it does not depend on one.
    pub policy: Option<Text>,
}

impl PlannedClaim {
    /// An instance on a node, under a policy.
    #[must_use]
    pub fn new(
        request: Arc<InstanceRequest>,
        policy: &Policy,
        node: NodeId,
        node_version: NodeVersion,
    ) -> Self {
        let spec = Spec::of(&request);
        Self::with_spec(request, spec, policy, node, node_version)
    }

    /// The same with the stored form of the request given.
    #[must_use]
    pub fn with_spec(
        request: Arc<InstanceRequest>,
        spec: Spec,
        policy: &Policy,
        node: NodeId,
        node_version: NodeVersion,
    ) -> Self {
        Self {
            key: ClaimKey { instance: request.id, role: Role::Primary },
            demand: Demand::new(&request, policy),
            spec,
            request,
            node,
            node_version,
            neighbours: Vec::new(),
            score: 0,
            pools: Vec::new(),
            slot: None,
            takes_over: None,
            release_id: None,
            secrets_version: None,
            workload_version: None,
            policy: None,
        }
    }
}

impl PlannedClaim {
    /// The environment whose secrets it is given, if it is given any.
    pub(crate) fn secrets_env(&self) -> Option<&str> {
        self.request.env.as_deref().filter(|_| self.secrets_version.is_some())
    }

    /// The workload that it was planned as a member of.
    pub(crate) fn guarded_workload(&self) -> Option<&str> {
        self.request.workload.as_deref().filter(|_| self.workload_version.is_some())
    }

    /// Whether the instance has a hard rule about other instances.
    #[must_use]
    pub fn has_hard_rules(&self) -> bool {
        let request = &self.request;
        request.affinity.iter().any(Rule::is_hard)
            || (request.locality.strict && !request.locality.is_empty())
    }
}

/// Where a plan came from; kept in its receipt.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Basis {
    /// The policy that was active, by hash.
    pub policy: String,
    /// The last event that the planner's fleet had taken in.
    pub fleet_version: i64,
    /// The planner's clock, in whole seconds; 0 in receipts without it.
    #[serde(default)]
    pub now: i64,
    /// Instances in that fleet that the planner had claimed and the ledger had not granted yet, where
    /// it was counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub in_flight: Option<u32>,
}

/// Claims to be granted together or not at all.
#[derive(Clone, Debug)]
pub struct Plan {
    /// A retry under the same id gets the first answer.
    pub request_id: Text,
    /// The tenant.
    pub tenant: Text,
    /// Hash of what was asked; the same id with another is refused.
    pub body_hash: [u8; 16],
    /// Hash of the request as its caller wrote it, by which a ticket of the same id is known. Absent:
    /// it is no request that could have a ticket.
    pub request_hash: Option<[u8; 16]>,
    /// Whether it is known to wait under a ticket, which a grant takes the place of. If it is not known,
    /// the commit finds out, and takes longer.
    pub has_ticket: bool,
    /// The batch, when there is one.
    pub batch: Option<Uuid>,
    /// How long the claims may stay unbound.
    pub lease_s: u32,
    /// The claims.
    pub claims: Vec<PlannedClaim>,
    /// Where the plan came from.
    pub basis: Basis,
}

impl Plan {
    /// A plan of one tenant, with the default lease.
    #[must_use]
    pub fn new(request_id: &str, tenant: &str, claims: Vec<PlannedClaim>) -> Self {
        let mut plan = Self {
            request_id: Text::from(request_id),
            tenant: Text::from(tenant),
            body_hash: [0; 16],
            request_hash: None,
            has_ticket: false,
            batch: None,
            lease_s: DEFAULT_LEASE_S,
            claims,
            basis: Basis::default(),
        };
        plan.body_hash = plan.hash_of_body();
        plan
    }

    /// A hash of what was asked for: the instances and what they want, not where they were put.
    #[must_use]
    pub fn hash_of_body(&self) -> [u8; 16] {
        hash_of_asked(self.claims.iter().map(|claim| (claim.key.instance, &claim.spec)))
    }
}

/// A hash of what was asked for. A plan that places only some of it is still known by all of it.
pub fn hash_of_asked<'a>(asked: impl Iterator<Item = (InstanceId, &'a Spec)>) -> [u8; 16] {
    let mut hasher = blake3::Hasher::new();
    for (instance, spec) in asked {
        hasher.update(instance.0.as_bytes());
        hasher.update(spec.as_str().as_bytes());
    }
    half_hash_of(&hasher)
}

/// The first sixteen bytes of a hash.
pub(crate) fn half_hash_of(hasher: &blake3::Hasher) -> [u8; 16] {
    let mut half = [0; 16];
    half.copy_from_slice(&hasher.finalize().as_bytes()[..16]);
    half
}
