//! A fleet of our own to plan on, made from the catalogue.
//!
//! Not a copy of the planner's: that would hold up decisions for as long as the copy takes, and
//! would not know what instances asked for. Under the catalogue's lock only references are taken.

use std::sync::Arc;

use berth_engine::elastic::{Account, Free, ReliefInstance, ReliefPlan};
use berth_engine::{
    Effort, Engine, EvacuationInstance, EvacuationPlan, Group, InstanceId, InstanceRequest,
    InvalidRequest, NodeFacts, NodeId, PlaceError, Policy, RebalanceInstance, RebalancePlan,
    RebalanceTerms, Refusal, Timestamp, Used, Volume,
};
use berth_ledger::{ClaimKey, ClaimState, Role, Text};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::catalog::ClaimEntry;
use crate::control_plane::ControlPlane;
use crate::fleet_replica::engine_id;
use crate::workload::WorkloadKey;

/// What a fleet is made of, as it was at one moment.
#[derive(Clone)]
pub(crate) struct Snapshot {
    nodes: Vec<(Arc<NodeFacts>, i64)>,
    /// What is used on each of them.
    used: Vec<Used>,
    claims: Vec<Arc<ClaimEntry>>,
    groups: Vec<Group>,
    volumes: Vec<Volume>,
    environments: Vec<Text>,
    /// Workloads that may run with fewer members than wanted for a while.
    may_lack: FxHashSet<WorkloadKey>,
    policy: Policy,
    now: Timestamp,
}

impl Snapshot {
    /// Takes it; absent when the server is stopping.
    pub(crate) async fn take(control: &ControlPlane) -> Option<Self> {
        control.settled().await;
        let policy = control.placer.look(|replica| replica.engine().policy().clone()).await?;
        let now = Timestamp(control.now().as_second());
        let books = control.catalog.books();
        let nodes = books.nodes.values().map(|node| (Arc::clone(&node.facts), node.heard_at));
        let may_lack = books.workloads.values().filter(|workload| {
            let wanted = workload.replicas.unwrap_or(0);
            workload.body.rolling.surge_and_unavailable(wanted).1 > 0
        });
        Some(Self {
            used: books.nodes.values().map(|node| node.room.used).collect(),
            nodes: nodes.collect(),
            claims: books.claims.values().cloned().collect(),
            groups: books.groups.values().cloned().collect(),
            volumes: books.volumes.values().cloned().collect(),
            environments: books.secrets.keys().cloned().collect(),
            may_lack: may_lack.map(|workload| workload.key.clone()).collect(),
            policy,
            now,
        })
    }

    /// Every node and what is used on it.
    pub(crate) fn rooms(&self) -> impl Iterator<Item = (&NodeFacts, &Used)> {
        self.nodes.iter().map(|(facts, _)| &**facts).zip(&self.used)
    }

    /// Every claim, in order of instance and role.
    pub(crate) fn claims(&self) -> &[Arc<ClaimEntry>] {
        &self.claims
    }

    /// The moment.
    pub(crate) const fn now(&self) -> Timestamp {
        self.now
    }

    /// The same fleet under another policy, with hosts keeping for themselves what that says.
    pub(crate) fn under(&self, policy: Policy) -> Self {
        let nodes = self.nodes.iter().map(|(facts, heard_at)| {
            (crate::elastic::reserved_by(policy.elastic(), facts), *heard_at)
        });
        Self { nodes: nodes.collect(), policy, ..self.clone() }
    }

    /// The policy that plans are made by.
    pub(crate) const fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Makes the fleet. It takes about a microsecond for each claim: not for a thread that serves.
    pub(crate) fn build(self) -> Scratch {
        let mut engine = Engine::new(self.policy);
        let fleet = engine.fleet_mut();
        let mut nodes = Vec::with_capacity(self.nodes.len());
        for (facts, heard_at) in self.nodes {
            // Facts were checked when they were stored.
            if fleet.add_node(&facts).is_ok() {
                fleet.heartbeat(&facts.id, Timestamp(heard_at));
                nodes.push(facts.id.clone());
            }
        }
        // Before the claims: a group that comes later looks for its members everywhere.
        self.groups.into_iter().for_each(|group| fleet.put_group(group));
        self.volumes.into_iter().for_each(|volume| fleet.put_volume(volume));
        self.environments.iter().for_each(|env| fleet.set_secrets(env, true));
        let mut claims = FxHashMap::default();
        claims.reserve(self.claims.len());
        for claim in self.claims {
            let id = engine_id(claim.key);
            let request = as_placed(id, &claim);
            // One on a node that is not there holds nothing.
            if fleet.claim(&request, &claim.node).is_ok() {
                claims.insert(id, claim);
            }
        }
        Scratch { engine, nodes, claims, may_lack: self.may_lack, now: self.now }
    }
}

/// A fleet to plan on.
pub(crate) struct Scratch {
    engine: Engine,
    /// All nodes, in order of id.
    pub(super) nodes: Vec<NodeId>,
    claims: FxHashMap<InstanceId, Arc<ClaimEntry>>,
    may_lack: FxHashSet<WorkloadKey>,
    now: Timestamp,
}

impl Scratch {
    /// Plans to empty nodes together.
    pub(super) fn plan(&mut self, nodes: &[NodeId], effort: Effort) -> EvacuationPlan {
        let claims = &self.claims;
        let guest = |id: InstanceId| {
            claims.get(&id).map_or(EvacuationInstance::Unknown, |claim| guest(claims, claim))
        };
        self.engine.plan_evacuation(nodes, guest, effort, self.now)
    }

    /// Plans to relieve a node.
    #[expect(clippy::too_many_arguments, reason = "as the engine is asked")]
    pub(crate) fn relieve(
        &mut self,
        node: &NodeId,
        account: &Account,
        guests: &[ReliefInstance],
        below_watermark: &dyn Fn(&NodeId) -> Free,
        closed: &dyn Fn(&NodeId) -> bool,
        most: usize,
        now: Timestamp,
    ) -> ReliefPlan {
        self.engine.plan_relief(node, account, guests, below_watermark, closed, most, now)
    }

    /// Plans moves towards a goal.
    pub(crate) fn rebalance(
        &mut self,
        terms: RebalanceTerms,
        guests: &[RebalanceInstance],
        below_watermark: &dyn Fn(&NodeId) -> Free,
    ) -> RebalancePlan {
        self.engine.plan_rebalance(terms, guests, below_watermark, self.now)
    }

    /// Why an instance could not run on a node if all its volumes lived there; absent: it could.
    pub(super) fn beside(
        &mut self,
        id: InstanceId,
        node: &NodeId,
    ) -> Result<Option<Refusal>, InvalidRequest> {
        let Some(claim) = self.claims.get(&id).cloned() else { return Ok(None) };
        let fleet = self.engine.fleet_mut();
        fleet.release(id);
        for volume in &claim.request.volumes {
            let owner = Some(claim.request.owner.clone());
            let (id, home) = (volume.clone(), node.clone());
            fleet.put_volume(Volume { id, owner, home, attached_to: None });
        }
        let request = as_placed(id, &claim);
        match self.engine.place(&request, self.now) {
            Ok(_) => Ok(None),
            Err(PlaceError::Refused(refusal)) => Ok(Some(*refusal)),
            Err(PlaceError::Invalid(invalid)) => Err(invalid),
        }
    }

    /// Where an instance would go if it came now as this request; nothing of it is where it was
    /// meanwhile. Afterwards everything is as before.
    pub(crate) fn place_anew(&mut self, request: &InstanceRequest) -> Result<NodeId, PlaceError> {
        let roles = [Role::Primary, Role::MigrationTarget, Role::MigrationSource];
        let own = roles.map(|role| engine_id(ClaimKey { instance: request.id, role }));
        let fleet = self.engine.fleet_mut();
        let lifted = own.map(|id| fleet.release(id).map(|node| (id, node)));
        let placed = self.engine.place(request, self.now);
        for (id, node) in lifted.into_iter().flatten() {
            if let Some(claim) = self.claims.get(&id) {
                // It was there a moment ago.
                let _ = self.engine.fleet_mut().claim(&as_placed(id, claim), &node);
            }
        }
        placed.map(|placement| placement.node)
    }

    /// The claim of an instance of a plan.
    pub(crate) fn claim(&self, id: InstanceId) -> Option<&ClaimEntry> {
        self.claims.get(&id).map(|claim| &**claim)
    }

    /// Whether an instance's workload may be without it for a while. One of no workload is moved in
    /// one step, and so is never in its own way.
    pub(super) fn may_lack(&self, claim: &ClaimEntry) -> bool {
        claim.workload().is_none_or(|workload| self.may_lack.contains(&workload))
    }
}

/// A claim's request, with what it is charged by now.
fn as_placed(id: InstanceId, claim: &ClaimEntry) -> InstanceRequest {
    InstanceRequest {
        id,
        name: claim.name.as_deref().map(str::to_owned),
        resources: claim.amounts,
        ..InstanceRequest::clone(&claim.request)
    }
}

/// What a claim needs when its node is emptied.
fn guest(
    claims: &FxHashMap<InstanceId, Arc<ClaimEntry>>,
    claim: &ClaimEntry,
) -> EvacuationInstance {
    let target = ClaimKey { instance: claim.key.instance, role: Role::MigrationTarget };
    // A place that is being given back is nowhere to go.
    let held = claims.get(&engine_id(target)).is_some_and(|it| it.state == ClaimState::Binding);
    let moves_already = claim.key.role == Role::Primary && held;
    if moves_already
        || claim.key.role == Role::MigrationSource
        || claim.state == ClaimState::Releasing
    {
        EvacuationInstance::Leaving
    } else {
        EvacuationInstance::Requested(Arc::clone(&claim.request))
    }
}
