//! Which rows an operation needs, so that all can be locked in one order before anything is done.

use std::collections::BTreeSet;

use berth_engine::NodeId;
use berth_engine::affinity::Topology;
use rustc_hash::FxHashMap;

use super::rows::{Keys, domain_of, removed_generation_key};
use crate::model::{
    Assumptions, AvailabilityGuard, Claim, ClaimKey, Expect, Op, Plan, PlannedClaim, Preempt,
    Release, Role, Text,
};

/// What must be read without locks to know what to lock.
#[derive(Clone, Debug, Default)]
pub(crate) struct UnlockedReadKeys {
    pub(crate) claims: BTreeSet<ClaimKey>,
    pub(crate) groups: BTreeSet<Text>,
    /// Nodes whose expired claims are wanted.
    pub(crate) expired_on: BTreeSet<NodeId>,
}

impl UnlockedReadKeys {
    pub(crate) fn is_empty(&self) -> bool {
        self.claims.is_empty() && self.groups.is_empty() && self.expired_on.is_empty()
    }
}

/// What was seen without a lock; it may have changed since.
#[derive(Default)]
pub(crate) struct UnlockedReads {
    pub(crate) claims: FxHashMap<ClaimKey, Claim>,
    pub(crate) topologies: FxHashMap<Text, Topology>,
}

/// What must be read before locking. With `check_repeats` it also looks for earlier answers and
/// claims of the same plans; otherwise a unique key violation reveals them, which is rare.
pub(crate) fn unlocked_read_keys(ops: &[Op], check_repeats: bool) -> UnlockedReadKeys {
    let mut keys = UnlockedReadKeys::default();
    for op in ops {
        match op.bare() {
            Op::Commit(plan) | Op::DryRun(plan, _) => {
                let groups = plan.claims.iter().flat_map(|claim| &claim.request.groups);
                keys.groups.extend(groups.map(|group| Text::from(group.as_str())));
                // Whether they still have the slot that is handed over, and who had it before them.
                keys.claims.extend(plan.claims.iter().filter_map(|claim| claim.takes_over));
                if check_repeats {
                    keys.claims.extend(plan.claims.iter().map(|claim| claim.key));
                }
            }
            Op::Preempt(preempt) => {
                let claims = preempt.plan.claims.iter();
                let groups = claims.clone().flat_map(|claim| &claim.request.groups);
                keys.groups.extend(groups.map(|group| Text::from(group.as_str())));
                keys.claims.extend(claims.map(|claim| claim.key));
                for victim in &preempt.victims {
                    keys.claims.extend(all(ClaimKey::primary(victim.instance)));
                }
            }
            Op::Release(release) => keys.claims.extend(all(release.key)),
            Op::StopMember(stop) => keys.claims.extend(all(stop.release.key)),
            Op::Resize(resize) => drop(keys.claims.insert(resize.key)),
            Op::Permit(ask) => drop(keys.claims.insert(ClaimKey::primary(ask.instance))),
            Op::Bounds(bounds) => drop(keys.claims.insert(ClaimKey::primary(bounds.instance))),
            Op::Switch(switch) => keys.claims.extend(all(ClaimKey::primary(switch.instance))),
            Op::Hold(hold) => {
                keys.claims.extend(all(hold.to.key));
                keys.groups.extend(hold.to.request.groups.iter().map(|g| Text::from(g.as_str())));
            }
            Op::Move(to) => {
                keys.claims.extend(all(to.to.key));
                keys.groups.extend(to.to.request.groups.iter().map(|g| Text::from(g.as_str())));
            }
            Op::Adopt(adopt) => {
                keys.claims.extend(all(ClaimKey::primary(adopt.request.id)));
                keys.groups.extend(adopt.request.groups.iter().map(|g| Text::from(g.as_str())));
            }
            Op::Reap(node) => drop(keys.expired_on.insert(node.clone())),
            _ => {}
        }
    }
    keys
}

/// All claims an instance may have.
fn all(key: ClaimKey) -> [ClaimKey; 3] {
    Role::ALL.map(|role| ClaimKey { instance: key.instance, role })
}

/// The rows that operations need.
pub(crate) fn required_keys(ops: &[Op], unlocked: &UnlockedReads, check_repeats: bool) -> Keys {
    let mut keys = Keys::default();
    for claim in unlocked.claims.values() {
        keys.add_claim(claim);
    }
    for op in ops {
        keys.add(op.bare(), unlocked, check_repeats);
        keys.tenants.extend(op.made_for().cloned());
        keys.requests.extend(op.unanswered_request());
        keys.documents
            .extend(op.documents().map(|written| (written.kind.clone(), written.id.clone())));
    }
    if !keys.workloads.is_empty() {
        // One strength a table keeps the order of locks the same for everyone.
        keys.workloads.append(&mut keys.workloads_shared);
    }
    keys
}

impl Keys {
    fn add(&mut self, op: &Op, unlocked: &UnlockedReads, check_repeats: bool) {
        match op {
            Op::Commit(plan) | Op::DryRun(plan, _) => {
                if check_repeats || plan.has_ticket {
                    self.requests.insert((plan.request_id.clone(), plan.tenant.clone()));
                }
                if check_repeats {
                    self.claims.extend(plan.claims.iter().map(|claim| claim.key));
                }
                for claim in &plan.claims {
                    self.add_planned(claim, &plan.tenant, unlocked);
                }
                if let Op::DryRun(_, assumed) = op {
                    self.add_assumed(plan, assumed);
                }
            }
            Op::Preempt(preempt) => self.add_preemption(preempt, unlocked),
            Op::Advance(advance) => drop(self.claims.insert(advance.key)),
            Op::Release(release) => self.add_release(release),
            Op::StopMember(stop) => {
                self.add_release(&stop.release);
                self.add_guard(&stop.guard);
            }
            Op::Resize(resize) => {
                let tenant = resize.tenant.clone().unwrap_or_default();
                self.requests.insert((resize.request_id.clone(), tenant));
                self.claims.insert(resize.key);
            }
            Op::Permit(ask) => {
                let key = ClaimKey::primary(ask.instance);
                self.claims.extend([key, ClaimKey::target(ask.instance)]);
            }
            Op::Bounds(bounds) => {
                let key = ClaimKey::primary(bounds.instance);
                self.claims.extend([key, ClaimKey::target(bounds.instance)]);
            }
            Op::Switch(switch) => self.claims.extend(all(ClaimKey::primary(switch.instance))),
            Op::Hold(hold) => {
                self.claims.extend(all(hold.to.key));
                let tenant = Text::from(hold.to.request.tenant.as_str());
                self.add_planned(&hold.to, &tenant, unlocked);
            }
            Op::Move(to) => {
                self.requests.insert((to.request_id.clone(), Text::default()));
                self.claims.extend(all(to.to.key));
                if let Some(guard) = &to.guard {
                    self.claims.extend(&guard.running);
                    self.workloads_shared.insert((guard.tenant.clone(), guard.workload.clone()));
                }
                let tenant = Text::from(to.to.request.tenant.as_str());
                self.add_planned(&to.to, &tenant, unlocked);
            }
            Op::Adopt(adopt) => {
                let tenant = Text::from(adopt.request.tenant.as_str());
                self.requests.insert((adopt.request_id.clone(), Text::default()));
                self.claims.extend(all(ClaimKey::primary(adopt.request.id)));
                self.add_request(&adopt.request, &adopt.node, &tenant);
                // Where the node is, is known only once its row is read: all of its domains.
                for group in &adopt.request.groups {
                    self.whole.groups.insert(Text::from(group.as_str()));
                }
            }
            Op::Reap(node) => drop(self.nodes.insert(node.clone())),
            Op::PutWorkload { expect, .. } => {
                // Members that were planned without it have no row to lock. Whether it is new is found
                // out the second time, unless the caller says so.
                self.exclusive |= check_repeats || *expect == Expect::Absent;
                self.add_administration(op);
            }
            _ => self.add_administration(op),
        }
    }

    fn add_release(&mut self, release: &Release) {
        let tenant = release.tenant.clone().unwrap_or_default();
        self.requests.insert((release.request_id.clone(), tenant));
        self.claims.extend(all(release.key));
    }

    /// In one order with the one that is stopped, so that two servers that each stop a member the other
    /// counts on do not wait for each other.
    fn add_guard(&mut self, guard: &AvailabilityGuard) {
        self.claims.extend(&guard.running);
        self.workloads_shared.insert((guard.tenant.clone(), guard.workload.clone()));
    }

    fn add_preemption(&mut self, preempt: &Preempt, unlocked: &UnlockedReads) {
        let plan = &preempt.plan;
        self.requests.insert((plan.request_id.clone(), plan.tenant.clone()));
        self.claims.extend(plan.claims.iter().map(|claim| claim.key));
        for claim in &plan.claims {
            self.add_planned(claim, &plan.tenant, unlocked);
        }
        for victim in &preempt.victims {
            self.claims.extend(all(ClaimKey::primary(victim.instance)));
            if let Some(guard) = &victim.guard {
                self.add_guard(guard);
            }
        }
    }

    fn add_administration(&mut self, op: &Op) {
        self.tenants.extend(super::tenant::tenant_of(op));
        match op {
            Op::ReconcileNode(node) => {
                self.nodes.insert(node.clone());
                self.whole.nodes.insert(node.clone());
            }
            Op::ReconcileGroup(group) | Op::RemoveGroup(group) => {
                self.groups.insert(group.clone());
                self.whole.groups.insert(group.clone());
            }
            Op::PutGroup(group) => {
                self.groups.insert(Text::from(group.id.as_str()));
                self.whole.groups.insert(Text::from(group.id.as_str()));
            }
            Op::ReconcileTenant(tenant) | Op::PutQuota { tenant, .. } => {
                self.tenants.insert(tenant.clone());
                self.whole.tenants.insert(tenant.clone());
                self.exclusive = true;
            }
            Op::RemoveQuota(tenant) => drop(self.tenants.insert(tenant.clone())),
            Op::StartTenantRemoval(start) => {
                self.tenants.insert(start.tenant.clone());
                self.whole.tenants.insert(start.tenant.clone());
                self.exclusive = true;
            }
            Op::EndTenantRemoval { tenant, .. } => {
                self.tenants.insert(tenant.clone());
                self.tenants_in_use.insert(tenant.clone());
                self.exclusive = true;
            }
            Op::PutVolume(volume) => drop(self.volumes.insert(Text::from(volume.id.as_str()))),
            Op::RemoveVolume(volume) | Op::MarkVolume { volume, .. } => {
                self.volumes.insert(volume.clone());
            }
            Op::PutPool(pool) => drop(self.pools.entry(pool.id.clone()).or_insert(0)),
            Op::RemovePool(pool) => {
                self.pools.entry(pool.clone()).or_insert(0);
                self.pools_in_use.insert(pool.clone());
                self.exclusive = true;
            }
            Op::PutWorkload { workload, .. } => {
                let key = (workload.tenant.as_str(), workload.name.as_str());
                self.workloads.insert((Text::from(key.0), Text::from(key.1)));
                self.removed_generation = true;
            }
            Op::SetScheduling(scheduling) => drop(self.documents.insert(scheduling.document())),
            Op::RemoveWorkload { tenant, name, .. } => {
                self.workloads.insert((tenant.clone(), name.clone()));
                self.workloads_in_use.insert((tenant.clone(), name.clone()));
                self.documents.insert(removed_generation_key());
                self.exclusive = true;
            }
            Op::PutSecrets { tenant, env, .. } => {
                self.secrets.insert((tenant.clone().unwrap_or_default(), env.clone()));
                // Claims read it without a lock, also where there is no row yet.
                self.exclusive = true;
            }
            Op::PutPolicy { .. } => self.policies = true,
            Op::ActivatePolicy { .. } => {
                self.policies = true;
                // Every claim depends on it, and none locks it.
                self.exclusive = true;
            }
            Op::PutDocument { kind, id, .. } | Op::RemoveDocument { kind, id, .. } => {
                self.documents.insert((kind.clone(), id.clone()));
            }
            Op::Demand(demand) => drop(self.demand.insert(super::admin::shape(demand))),
            _ => self.add_node_administration(op),
        }
    }

    fn add_node_administration(&mut self, op: &Op) {
        self.removed_generation |=
            matches!(op, Op::PutNode { .. } | Op::ChangeFacts { create: Some(_), .. });
        if matches!(op, Op::RemoveNode { .. }) {
            self.documents.insert(removed_generation_key());
        }
        match op {
            Op::PutNode { facts, .. } => {
                self.nodes.insert(facts.id.clone());
                self.facts.insert(facts.id.clone());
                self.whole_classes.insert(facts.id.clone());
            }
            Op::ChangeFacts { node, .. }
            | Op::SetNodeState { node, .. }
            | Op::SetHealth { node, .. }
            | Op::RemoveNode { node, .. }
            | Op::SetReserve { node, .. } => {
                self.nodes.insert(node.clone());
                self.facts.insert(node.clone());
                self.whole_classes.insert(node.clone());
            }
            Op::SetLoads(loads) => {
                let nodes = loads.iter().map(|(node, _)| node.clone());
                self.nodes.extend(nodes.clone());
                self.facts.extend(nodes);
            }
            _ => {}
        }
    }

    fn add_planned(&mut self, planned: &PlannedClaim, tenant: &Text, unlocked: &UnlockedReads) {
        self.add_request(&planned.request, &planned.node, tenant);
        let (zone, rack) =
            (planned.node_version.zone.as_deref(), planned.node_version.rack.as_deref());
        for group in &planned.request.groups {
            let group = Text::from(group.as_str());
            let topology = unlocked.topologies.get(&group).copied();
            if let Some(domain) = topology.and_then(|t| domain_of(&planned.node, zone, rack, t)) {
                self.domains.insert((group, domain));
            }
        }
        for pool in &planned.pools {
            *self.pools.entry(pool.clone()).or_insert(0) += 1;
        }
        self.slots.extend(planned.slot.clone());
        self.add_slot_predecessors(planned.takes_over.as_slice());
        if let Some(workload) = planned.guarded_workload() {
            self.workloads_shared.insert((tenant.clone(), Text::from(workload)));
        }
        if let Some(env) = planned.secrets_env() {
            // Its tenant's own, or else those of all tenants.
            for owner in [tenant.clone(), Text::default()] {
                self.secrets_read.insert((owner, Text::from(env)));
            }
        }
        self.nodes.extend(planned.neighbours.iter().map(|(node, _)| node.clone()));
    }

    fn add_request(
        &mut self,
        request: &berth_engine::InstanceRequest,
        node: &NodeId,
        tenant: &Text,
    ) {
        self.nodes.insert(node.clone());
        self.tenants.insert(tenant.clone());
        self.groups.extend(request.groups.iter().map(|group| Text::from(group.as_str())));
        self.volumes.extend(request.volumes.iter().map(|volume| Text::from(volume.as_str())));
        let classes = request.extra.keys();
        self.classes.extend(classes.map(|class| (node.clone(), Text::from(class.as_str()))));
    }

    /// Values of pools as a dry run assumes them: found in addition to those of the pools as they are.
    fn add_assumed(&mut self, plan: &Plan, assumed: &Assumptions) {
        for pool in plan.claims.iter().flat_map(|claim| &claim.pools) {
            if let Some(pool) = assumed.pool(pool) {
                self.assumed_pools.entry(pool.assumed_key()).or_insert((pool.clone(), 0)).1 += 1;
            }
        }
    }

    /// Everything that an existing claim touches.
    fn add_claim(&mut self, claim: &Claim) {
        self.claims.insert(claim.key);
        self.claims_read_unlocked.insert(claim.key);
        self.nodes.insert(claim.node.clone());
        self.tenants.insert(claim.tenant.clone());
        let Some(holdings) = claim.holdings.as_deref() else { return };
        for place in &holdings.groups {
            self.groups.insert(place.group.clone());
            self.domains.extend(place.domain.clone().map(|domain| (place.group.clone(), domain)));
        }
        let classes = holdings.classes.keys();
        self.classes.extend(classes.map(|class| (claim.node.clone(), Text::from(class.as_str()))));
        self.volumes.extend(holdings.volumes.iter().cloned());
        self.slots.extend(holdings.slot.clone());
        self.add_slot_predecessors(&holdings.slot_predecessors);
    }

    /// Claims that have a slot again if its holder goes.
    fn add_slot_predecessors(&mut self, claims: &[ClaimKey]) {
        self.claims.extend(claims);
        self.slot_predecessors.extend(claims);
    }
}
