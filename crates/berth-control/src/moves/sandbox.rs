//! A private copy of the fleet on which moves are planned.
//!
//! It is built from the catalogue rather than from the placer's replica: copying that would block
//! placements, and it does not hold the original requests. Only references are taken under the
//! catalogue's lock.

use std::sync::Arc;

use berth_engine::elastic::{
    Account, ElasticSettings, Free, ReliefInstance, ReliefPlan, watermark_free,
};
use berth_engine::{
    Effort, Engine, EvacuationInstance, EvacuationPlan, ExplanationPage, Group, InstanceId,
    InstanceRequest, InvalidRequest, NodeFacts, NodeId, PlaceError, Policy, RebalanceInstance,
    RebalancePlan, RebalanceTerms, Refusal, Timestamp, Used, Volume,
};
use berth_ledger::{ClaimKey, ClaimState, Role, Text, invariant_ok};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::catalog::ClaimEntry;
use crate::control_plane::ControlPlane;
use crate::error::{ControlError, ControlResult};
use crate::fleet_replica::engine_id;
use crate::workload::WorkloadKey;

fn stopping() -> ControlError {
    ControlError::unavailable("stopping", "the server is stopping")
}

/// The state of the fleet at one moment.
#[derive(Clone)]
pub(crate) struct FleetSnapshot {
    nodes: Vec<(Arc<NodeFacts>, i64)>,
    /// What is used on each of them.
    used: Vec<Used>,
    claims: Vec<Arc<ClaimEntry>>,
    groups: Vec<Group>,
    volumes: Vec<Volume>,
    environments: Vec<(Option<Text>, Text)>,
    /// Workloads that may temporarily run with fewer members than desired.
    tolerant_workloads: FxHashSet<WorkloadKey>,
    policy: Policy,
    now: Timestamp,
}

impl FleetSnapshot {
    /// Takes a snapshot.
    ///
    /// # Errors
    /// When the server is stopping.
    pub(crate) async fn take(control: &ControlPlane) -> ControlResult<Self> {
        control.wait_for_read_your_writes().await;
        let policy =
            control.placer.query_replica(|replica| replica.engine().policy().clone()).await;
        let policy = policy.ok_or_else(stopping)?;
        let now = Timestamp(control.now().as_second());
        let catalog = control.catalog.read();
        let nodes = catalog.nodes.values().map(|node| (Arc::clone(&node.facts), node.heard_at()));
        let tolerant = catalog.workloads.values().filter(|workload| {
            let wanted = workload.replicas.unwrap_or(0);
            workload.body.rolling.surge_and_unavailable(wanted).1 > 0
        });
        Ok(Self {
            used: catalog.nodes.values().map(|node| node.room.used).collect(),
            nodes: nodes.collect(),
            claims: catalog.claims.values().cloned().collect(),
            groups: catalog.groups.values().cloned().collect(),
            volumes: catalog.volumes.values().cloned().collect(),
            environments: catalog.secrets.keys().cloned().collect(),
            tolerant_workloads: tolerant.map(|workload| workload.key.clone()).collect(),
            policy,
            now,
        })
    }

    /// Runs a planner on a thread that may block.
    ///
    /// # Errors
    /// When the server is stopping.
    pub(crate) async fn plan<T: Send + 'static>(
        self,
        work: impl FnOnce(Self) -> T + Send + 'static,
    ) -> ControlResult<T> {
        tokio::task::spawn_blocking(move || work(self)).await.map_err(|_| stopping())
    }

    /// What each node has left below its watermark.
    pub(super) fn headroom(&self, settings: &ElasticSettings) -> Headroom {
        let free = self.rooms().map(|(facts, used)| {
            (facts.id.clone(), watermark_free(facts, used, settings.on(facts).watermark))
        });
        Headroom(free.collect())
    }

    /// Every node and what is used on it.
    pub(crate) fn rooms(&self) -> impl Iterator<Item = (&NodeFacts, &Used)> {
        self.nodes.iter().map(|(facts, _)| &**facts).zip(&self.used)
    }

    /// Every claim, in order of instance and role.
    pub(crate) fn claims(&self) -> &[Arc<ClaimEntry>] {
        &self.claims
    }

    /// When it was taken.
    pub(crate) const fn now(&self) -> Timestamp {
        self.now
    }

    /// The same fleet under another policy, with hosts keeping for themselves what that says.
    pub(crate) fn under(&self, policy: Policy) -> Self {
        let nodes = self
            .nodes
            .iter()
            .map(|(facts, heard_at)| (crate::elastic::facts_under(&policy, facts), *heard_at));
        Self { nodes: nodes.collect(), policy, ..self.clone() }
    }

    /// The policy that plans are made by.
    pub(crate) const fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Builds the sandbox. Takes about a microsecond for each claim, so do not call it on a thread
    /// that serves requests.
    pub(crate) fn build(self) -> Sandbox {
        let mut engine = Engine::new(self.policy);
        let fleet = engine.fleet_mut();
        let mut nodes = Vec::with_capacity(self.nodes.len());
        for (facts, heard_at) in self.nodes {
            // Facts were validated when they were stored.
            if fleet.add_node(&facts).is_ok() {
                fleet.heartbeat(&facts.id, Timestamp(heard_at));
                nodes.push(facts.id.clone());
            }
        }
        // Before the claims: adding a group later would search all claims for its members.
        self.groups.into_iter().for_each(|group| fleet.put_group(group));
        self.volumes.into_iter().for_each(|volume| fleet.put_volume(volume));
        for (tenant, env) in &self.environments {
            match tenant {
                Some(tenant) => fleet.set_tenant_secrets(tenant, env, true),
                None => fleet.set_secrets(env, true),
            }
        }
        let mut claims = FxHashMap::default();
        claims.reserve(self.claims.len());
        for claim in self.claims {
            let id = engine_id(claim.key);
            let request = as_placed(id, &claim);
            // A claim on a node that is not in the fleet takes no room.
            if fleet.claim(&request, &claim.node).is_ok() {
                claims.insert(id, claim);
            }
        }
        Sandbox {
            engine,
            nodes,
            claims,
            tolerant_workloads: self.tolerant_workloads,
            now: self.now,
        }
    }
}

/// What nodes have left below their watermarks.
pub(super) struct Headroom(FxHashMap<NodeId, Free>);

impl Headroom {
    /// What a node has left; an unknown node can take nothing.
    pub(super) fn of(&self, node: &NodeId) -> Free {
        let nothing = Free { cpu: i64::MIN, memory: i64::MIN };
        self.0.get(node).copied().unwrap_or(nothing)
    }
}

/// A fleet on which plans are tried; nothing that is done to it is stored.
pub(crate) struct Sandbox {
    engine: Engine,
    /// All nodes, in order of id.
    pub(super) nodes: Vec<NodeId>,
    claims: FxHashMap<InstanceId, Arc<ClaimEntry>>,
    tolerant_workloads: FxHashSet<WorkloadKey>,
    now: Timestamp,
}

impl Sandbox {
    /// Plans to empty nodes together.
    pub(super) fn plan_evacuation(&mut self, nodes: &[NodeId], effort: Effort) -> EvacuationPlan {
        let claims = &self.claims;
        let instance = |id: InstanceId| {
            claims
                .get(&id)
                .map_or(EvacuationInstance::Unknown, |claim| evacuation_instance(claims, claim))
        };
        self.engine.plan_evacuation(nodes, instance, effort, self.now)
    }

    /// Plans to relieve a node.
    #[expect(clippy::too_many_arguments, reason = "as the engine is asked")]
    pub(super) fn plan_relief(
        &mut self,
        node: &NodeId,
        account: &Account,
        instances: &[ReliefInstance],
        below_watermark: &dyn Fn(&NodeId) -> Free,
        closed: &dyn Fn(&NodeId) -> bool,
        most: usize,
        now: Timestamp,
    ) -> ReliefPlan {
        self.engine.plan_relief(node, account, instances, below_watermark, closed, most, now)
    }

    /// Plans moves towards a goal.
    pub(super) fn plan_rebalance(
        &mut self,
        terms: RebalanceTerms,
        instances: &[RebalanceInstance],
        below_watermark: &dyn Fn(&NodeId) -> Free,
    ) -> RebalancePlan {
        self.engine.plan_rebalance(terms, instances, below_watermark, self.now)
    }

    /// Why an instance could not run on a node if all its volumes were there; absent if it could.
    pub(super) fn check_with_volumes(
        &mut self,
        id: InstanceId,
        node: &NodeId,
    ) -> Result<Option<Refusal>, InvalidRequest> {
        let Some(claim) = self.claims.get(&id).cloned() else { return Ok(None) };
        let fleet = self.engine.fleet_mut();
        fleet.release(id);
        for volume in &claim.request.volumes {
            let tenant = Some(claim.request.tenant.clone());
            let (id, home) = (volume.clone(), node.clone());
            fleet.put_volume(Volume { id, tenant, home, attached_to: None });
        }
        let request = as_placed(id, &claim);
        match self.engine.place(&request, self.now) {
            Ok(_) => Ok(None),
            Err(PlaceError::Refused(refusal)) => Ok(Some(*refusal)),
            Err(PlaceError::Invalid(invalid)) => Err(invalid),
        }
    }

    /// Where an instance would be placed if it were requested now and were not running already.
    /// The sandbox is unchanged afterwards.
    pub(crate) fn place_again(&mut self, request: &InstanceRequest) -> Result<NodeId, PlaceError> {
        let roles = [Role::Primary, Role::MigrationTarget, Role::MigrationSource];
        let own = roles.map(|role| engine_id(ClaimKey { instance: request.id, role }));
        let fleet = self.engine.fleet_mut();
        let lifted = own.map(|id| fleet.release(id).map(|node| (id, node)));
        let placed = self.engine.place(request, self.now);
        for (id, node) in lifted.into_iter().flatten() {
            if let Some(claim) = self.claims.get(&id) {
                let back = self.engine.fleet_mut().claim(&as_placed(id, claim), &node);
                invariant_ok!(back, "sandbox_returns_what_it_lifted", instance = id, node);
            }
        }
        placed.map(|placement| placement.node)
    }

    /// What would be decided for a request, and the verdicts on some nodes in order of id.
    pub(crate) fn explain(
        &mut self,
        request: &InstanceRequest,
        from: usize,
        limit: usize,
    ) -> Result<ExplanationPage, PlaceError> {
        self.engine.explain_page(request, self.now, from, limit)
    }

    /// The claim of an instance of a plan.
    pub(crate) fn claim(&self, id: InstanceId) -> Option<&ClaimEntry> {
        self.claims.get(&id).map(|claim| &**claim)
    }

    /// Whether an instance's workload tolerates its absence for a while. An instance without a
    /// workload moves in one step, so it never blocks itself.
    pub(super) fn tolerates_absence(&self, claim: &ClaimEntry) -> bool {
        claim.workload().is_none_or(|workload| self.tolerant_workloads.contains(&workload))
    }
}

/// A claim's request with the resources that it is charged for now.
fn as_placed(id: InstanceId, claim: &ClaimEntry) -> InstanceRequest {
    InstanceRequest {
        id,
        name: claim.name.as_deref().map(str::to_owned),
        resources: claim.amounts,
        ..InstanceRequest::clone(&claim.request)
    }
}

/// The request that places an instance elsewhere at the size it is charged for. Elastic bounds are
/// left out: they may have changed since, and its class may be oversold.
pub(super) fn request_as_charged(claim: &ClaimEntry) -> InstanceRequest {
    InstanceRequest { elastic: None, ..as_placed(claim.key.instance, claim) }
}

/// What a claim needs when its node is evacuated.
fn evacuation_instance(
    claims: &FxHashMap<InstanceId, Arc<ClaimEntry>>,
    claim: &ClaimEntry,
) -> EvacuationInstance {
    let target = ClaimKey { instance: claim.key.instance, role: Role::MigrationTarget };
    // A target that is being released is not a destination any more.
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
