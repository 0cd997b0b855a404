//! The fleet in memory, from the ledger's log: a snapshot, then every event in order.
//!
//! It repeats what the ledger decided and decides nothing. An event may come twice, once from the
//! own writer and once from the log: the fence says which of two claims is the newer.

use std::collections::hash_map::Entry;
use std::sync::Arc;

use berth_engine::affinity::{Rule, Topology};
use berth_engine::{Engine, InstanceId, InstanceRequest, NodeId, Policy};
use berth_ledger::{
    Allocation, Claim, ClaimKey, ClaimState, EventBody, LedgerError, NodeVersion, Role,
    SnapshotItem, Spec, Text, invariant_ok,
};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::slots::Slots;

/// What is known of a node's row in the ledger.
#[derive(Clone, Debug, Default)]
struct NodeRevision {
    /// As of the log.
    seen: NodeVersion,
    /// How often our own plans in flight will raise its rules.
    expected: i64,
}

impl NodeRevision {
    fn expect(&mut self, by: i64) {
        self.expected = (self.expected + by).max(0);
    }
}

/// An engine that follows a ledger.
pub struct FleetReplica {
    engine: Engine,
    nodes: FxHashMap<NodeId, NodeRevision>,
    /// The fence of every claim that is here, or was lately.
    fences: FxHashMap<InstanceId, i64>,
    /// Tombstones of claims, with their fence, and those of the last seal: kept until no event of
    /// their allocation can come any more.
    released: Vec<(InstanceId, i64)>,
    sealed: Vec<(InstanceId, i64)>,
    /// The same of nodes, with the generation of their facts: fresh ones, and those of the last seal.
    removed_nodes: [FxHashMap<NodeId, i64>; 2],
    /// Claims of our own plans that the ledger has not granted yet.
    planned: FxHashSet<InstanceId>,
    /// Requests as parsed before, by their stored text: a million claims share a few.
    specs: FxHashMap<Spec, InstanceRequest>,
    /// Slots of workloads that are taken.
    pub slots: Slots,
    /// The current version of each environment's secrets.
    secrets: FxHashMap<(Option<Text>, Text), Text>,
    /// The policy in force, under the hash that the ledger has it; empty while it has none.
    policy_in_force: Text,
    /// The last event that was taken in.
    pub cursor: i64,
}

/// Parsed requests that are kept.
pub(crate) const SPECS: usize = 4096;

/// Distinguishes the place where an instance was from the place where it goes.
const SOURCE: u128 = 0x5bd1_e995_9e37_79b9_7f4a_7c15_f39c_c060;

/// The engine's id for a claim. A migration target is a second claim of the same instance, and the
/// engine knows one claim per id.
#[must_use]
pub(crate) fn engine_id(key: ClaimKey) -> InstanceId {
    match key.role {
        Role::Primary => key.instance,
        Role::MigrationTarget => InstanceId::from_u128(!key.instance.0.as_u128()),
        Role::MigrationSource => InstanceId::from_u128(!key.instance.0.as_u128() ^ SOURCE),
    }
}

impl FleetReplica {
    /// An empty replica.
    #[must_use]
    pub fn new(policy: Policy) -> Self {
        Self {
            engine: Engine::new(policy),
            nodes: FxHashMap::default(),
            fences: FxHashMap::default(),
            released: Vec::new(),
            sealed: Vec::new(),
            removed_nodes: Default::default(),
            planned: FxHashSet::default(),
            specs: FxHashMap::default(),
            slots: Slots::default(),
            secrets: FxHashMap::default(),
            policy_in_force: Text::default(),
            cursor: 0,
        }
    }

    /// The engine, to plan with.
    pub const fn engine(&mut self) -> &mut Engine {
        &mut self.engine
    }

    /// What a plan on this node rests on.
    #[must_use]
    pub fn seen(&self, node: &NodeId) -> NodeVersion {
        let Some(mark) = self.nodes.get(node) else { return NodeVersion::default() };
        NodeVersion { rules_gen: mark.seen.rules_gen + mark.expected, ..mark.seen.clone() }
    }

    /// The other nodes that an instance's hard rules about racks and zones are about, if it goes
    /// to this node, each with the highest fence that is known there.
    #[must_use]
    pub fn neighbours(&self, request: &InstanceRequest, node: &NodeId) -> Vec<(NodeId, i64)> {
        let hard = request.affinity.iter().filter(|rule| rule.is_hard());
        let widest = hard.map(Rule::scope).max_by_key(|scope| match scope {
            Topology::Node => 0,
            Topology::Rack => 1,
            Topology::Zone => 2,
        });
        let Some(scope) = widest else { return Vec::new() };
        let others = self.engine.fleet().neighbours(node, scope);
        others
            .into_iter()
            .map(|other| {
                let fence = self.nodes.get(&other).map_or(0, |mark| mark.seen.fence);
                (other, fence)
            })
            .collect()
    }

    /// Takes in one thing of a snapshot.
    ///
    /// # Errors
    /// When what is stored cannot be read.
    pub fn load(&mut self, item: SnapshotItem) -> Result<(), LedgerError> {
        match item {
            SnapshotItem::Policy(_, hash, body) => self.set_policy(&hash, &body)?,
            SnapshotItem::Secrets(tenant, env, version) => {
                self.set_secrets((tenant, env), Some(version));
            }
            SnapshotItem::Group(group) => self.engine.fleet_mut().put_group(group),
            SnapshotItem::Node(facts, seen) => {
                self.put_node(&facts, seen.constraint_gen)?;
                self.nodes.insert(facts.id, NodeRevision { seen, expected: 0 });
            }
            SnapshotItem::Volume(volume) => self.engine.fleet_mut().put_volume(volume),
            SnapshotItem::Claim(claim) => self.load_claim(&claim)?,
            SnapshotItem::Workload(workload) => self.slots.define(&workload),
            SnapshotItem::Pool(_) | SnapshotItem::Quota(..) => {}
        }
        Ok(())
    }

    fn load_claim(&mut self, claim: &Claim) -> Result<(), LedgerError> {
        let id = engine_id(claim.key);
        self.fences.insert(id, claim.fence);
        if let Some(slot) = claim.holdings.as_deref().and_then(|ties| ties.slot.as_ref()) {
            let key = (slot.tenant.clone(), slot.workload.clone());
            self.slots.take(id, key, slot.in_workload());
        }
        let name = claim.name.as_deref();
        self.place(id, name, &claim.spec, &claim.node, Some(claim.amounts))?;
        self.note_replaced(id);
        self.note_leaving(claim.key, claim.state);
        Ok(())
    }

    /// Notes that an instance is going already, so that it is never proposed for release: it was
    /// asked to stop, or is moving, and then neither of its claims is a place of its own.
    fn note_leaving(&mut self, key: ClaimKey, state: ClaimState) {
        let fleet = self.engine.fleet_mut();
        if state == ClaimState::Releasing || key.role != Role::Primary {
            fleet.set_leaving(engine_id(key), true);
        }
        if key.role == Role::MigrationTarget {
            fleet.set_leaving(engine_id(ClaimKey::primary(key.instance)), true);
        }
    }

    /// Notes that an instance has a slot of a stored workload: its reconciler would replace it, so its
    /// release is not proposed either.
    fn note_replaced(&mut self, id: InstanceId) {
        if self.slots.has(id) {
            self.engine.fleet_mut().set_replaced(id, true);
        }
    }

    /// Puts an instance on a node in memory.
    fn place(
        &mut self,
        id: InstanceId,
        name: Option<&str>,
        spec: &Spec,
        node: &NodeId,
        amounts: Option<berth_engine::Amounts>,
    ) -> Result<(), LedgerError> {
        if self.specs.len() >= SPECS && !self.specs.contains_key(spec) {
            self.specs.clear();
        }
        let request = match self.specs.entry(spec.clone()) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(unknown) => {
                unknown.insert(spec.request().map_err(|error| corrupt(&error))?)
            }
        };
        request.id = id;
        request.name = name.map(str::to_owned);
        if let Some(amounts) = amounts {
            request.resources = amounts;
        }
        self.engine.fleet_mut().claim(request, node).map_err(|error| corrupt(&error))
    }

    fn put_node(
        &mut self,
        facts: &berth_engine::NodeFacts,
        constraint_gen: i64,
    ) -> Result<(), LedgerError> {
        self.engine.fleet_mut().add_node(facts).map_err(|error| corrupt(&error))?;
        let mark = self.nodes.entry(facts.id.clone()).or_default();
        mark.seen.constraint_gen = constraint_gen;
        mark.seen.zone = facts.zone.as_deref().map(Text::from);
        mark.seen.rack = facts.rack.as_deref().map(Text::from);
        Ok(())
    }

    /// Takes in what happened. What was taken in before changes nothing.
    ///
    /// # Errors
    /// When what is stored cannot be read.
    pub fn apply(&mut self, body: &EventBody) -> Result<(), LedgerError> {
        match body {
            EventBody::Allocated(allocated) => self.allocated(allocated)?,
            EventBody::Released { instance_id, role, fence, .. } => {
                self.released(ClaimKey { instance: *instance_id, role: *role }, *fence);
            }
            EventBody::Resized { instance_id, role, fence, resources, .. } => {
                self.resized(ClaimKey { instance: *instance_id, role: *role }, *fence, *resources);
            }
            EventBody::Permit { instance_id, fence, resources, .. } => {
                self.resized(ClaimKey::primary(*instance_id), Some(*fence), *resources);
            }
            EventBody::Bounds { instance_id, fence, resources, .. } => {
                self.resized(ClaimKey::primary(*instance_id), *fence, *resources);
            }
            EventBody::NodeChanged { .. }
            | EventBody::NodeState { .. }
            | EventBody::NodeLoad { .. }
            | EventBody::NodeRemoved { .. } => self.apply_node_event(body)?,
            EventBody::GroupChanged { group } => self.engine.fleet_mut().put_group(group.clone()),
            EventBody::GroupRemoved { group_id } => {
                self.engine.fleet_mut().remove_group(group_id);
            }
            EventBody::VolumeChanged { volume } => {
                self.engine.fleet_mut().put_volume(volume.clone());
            }
            EventBody::VolumeRemoved { volume_id } => {
                self.engine.fleet_mut().remove_volume(volume_id);
            }
            EventBody::SecretsChanged { tenant, env, version } => {
                self.set_secrets((tenant.clone(), env.clone()), version.clone());
            }
            EventBody::PolicyChanged { hash, body, .. } => self.set_policy(hash, body)?,
            EventBody::WorkloadChanged { tenant, name, workload, .. } => match workload {
                Some(workload) => self.slots.define(workload),
                None => self.slots.undefine(tenant, name),
            },
            EventBody::State { instance_id, role, state, .. } => {
                self.note_leaving(ClaimKey { instance: *instance_id, role: *role }, *state);
            }
            EventBody::LeaseExpired { .. }
            | EventBody::PoolChanged { .. }
            | EventBody::QuotaChanged { .. }
            | EventBody::TenantRemoving { .. }
            | EventBody::TenantRemoved { .. }
            | EventBody::SchedulingFailed { .. }
            | EventBody::SchedulingRecovered { .. }
            | EventBody::ReportRefused { .. }
            | EventBody::PolicyQuarantined { .. }
            | EventBody::TicketQuarantined { .. }
            | EventBody::DocumentChanged { .. }
            | EventBody::Drift { .. } => {}
        }
        Ok(())
    }

    fn apply_node_event(&mut self, body: &EventBody) -> Result<(), LedgerError> {
        match body {
            // Events may come twice, and the second time late.
            EventBody::NodeChanged { constraint_gen, facts }
                if self.has_later_facts(&facts.id, *constraint_gen) => {}
            EventBody::NodeState { node_id, constraint_gen, .. }
                if self.has_later_facts(node_id, *constraint_gen) => {}
            EventBody::NodeChanged { constraint_gen, facts } => {
                self.put_node(facts, *constraint_gen)?;
            }
            EventBody::NodeState { node_id, state, constraint_gen, .. } => {
                self.engine.fleet_mut().set_state(node_id, *state);
                if let Some(mark) = self.nodes.get_mut(node_id) {
                    mark.seen.constraint_gen = *constraint_gen;
                }
            }
            EventBody::NodeLoad { node_id, load } => {
                self.engine.fleet_mut().set_load(node_id, *load);
            }
            EventBody::NodeRemoved { node_id, constraint_gen } => {
                self.node_removed(node_id, *constraint_gen);
            }
            _ => {}
        }
        Ok(())
    }

    fn node_removed(&mut self, node: &NodeId, removed: Option<i64>) {
        if let Some(removed) = removed {
            // It was added again since.
            if self.nodes.get(node).is_some_and(|known| known.seen.constraint_gen > removed) {
                return;
            }
            self.removed_nodes[0].insert(node.clone(), removed);
        }
        self.engine.fleet_mut().remove_node(node);
        self.nodes.remove(node);
    }

    fn has_later_facts(&self, node: &NodeId, constraint_gen: i64) -> bool {
        let known = self.nodes.get(node).map(|known| known.seen.constraint_gen);
        let mut removed = self.removed_nodes.iter().filter_map(|removed| removed.get(node));
        known.is_some_and(|known| known > constraint_gen)
            || removed.any(|removed| *removed >= constraint_gen)
    }

    fn allocated(&mut self, allocated: &Allocation) -> Result<(), LedgerError> {
        let key = ClaimKey { instance: allocated.instance_id, role: allocated.role };
        let id = engine_id(key);
        if self.fences.get(&id).is_some_and(|known| *known >= allocated.fence) {
            return Ok(());
        }
        self.fences.insert(id, allocated.fence);
        let was_planned = self.planned.remove(&id);
        if let Some(mark) = self.nodes.get_mut(&allocated.node_id) {
            mark.seen.fence = mark.seen.fence.max(allocated.fence);
        }
        for (node, rules_gen) in &allocated.rules {
            if let Some(mark) = self.nodes.get_mut(node) {
                mark.seen.rules_gen = mark.seen.rules_gen.max(*rules_gen);
                mark.expect(-i64::from(was_planned));
            }
        }
        self.assign_slot(id, allocated)?;
        if let Some(at) = self.engine.fleet().node_of(id) {
            if *at == allocated.node_id {
                self.note_replaced(id);
                return Ok(());
            }
            self.engine.fleet_mut().release(id);
        }
        let spec = allocated.spec.as_ref().ok_or_else(without_request)?;
        let name = allocated.name.as_deref();
        self.place(id, name, spec, &allocated.node_id, Some(allocated.resources))?;
        self.note_replaced(id);
        self.note_leaving(key, allocated.state);
        Ok(())
    }

    fn released(&mut self, key: ClaimKey, fence: i64) {
        let id = engine_id(key);
        if self.fences.get(&id).is_some_and(|known| *known > fence) {
            return;
        }
        // The fence stays until the log has passed: an older allocation may yet be read.
        self.fences.insert(id, fence);
        self.released.push((id, fence));
        self.slots.free(id);
        self.engine.fleet_mut().release(id);
        // A move that came to nothing leaves the instance where it is.
        if key.role == Role::MigrationTarget {
            let primary = engine_id(ClaimKey::primary(key.instance));
            self.engine.fleet_mut().set_leaving(primary, false);
        }
    }

    /// The slot of a claim that was granted is taken.
    fn assign_slot(&mut self, id: InstanceId, allocated: &Allocation) -> Result<(), LedgerError> {
        let Some(slot) = allocated.slot else { return Ok(()) };
        let spec = allocated.spec.as_ref().ok_or_else(without_request)?;
        let parsed = || spec.request().map_err(|error| corrupt(&error));
        let request = self.specs.get(spec).cloned().map_or_else(parsed, Ok)?;
        let workload = request.workload.as_deref();
        if let Some(workload) = invariant_ok!(workload, "slot_is_of_a_workload", instance = id) {
            let key = (Text::from(request.tenant.as_str()), Text::from(workload));
            self.slots.take(id, key, slot);
        }
        Ok(())
    }

    fn set_policy(&mut self, hash: &str, body: &str) -> Result<(), LedgerError> {
        let policy = Policy::from_stored(body);
        self.engine.set_policy(policy.map_err(|error| corrupt(&error))?);
        self.policy_in_force = Text::from(hash);
        Ok(())
    }

    /// The policy that plans are made by, under the hash that the ledger has it; empty while it has
    /// none in force.
    #[must_use]
    pub fn policy_in_force(&self) -> Text {
        self.policy_in_force.clone()
    }

    fn set_secrets(&mut self, key: (Option<Text>, Text), version: Option<Text>) {
        let fleet = self.engine.fleet_mut();
        match &key {
            (Some(tenant), env) => fleet.set_tenant_secrets(tenant, env, version.is_some()),
            (None, env) => fleet.set_secrets(env, version.is_some()),
        }
        match version {
            Some(version) => drop(self.secrets.insert(key, version)),
            None => drop(self.secrets.remove(&key)),
        }
    }

    /// The pool that every instance on a node takes an address of, if it is not among those named.
    pub(crate) fn overlay_pool(&mut self, node: &NodeId, named: &[Text]) -> Option<Text> {
        let engine = self.engine();
        if !engine.policy().defaults().has_overlay_pool() {
            return None;
        }
        let facts = engine.fleet().node(node)?;
        let pool = engine.policy().defaults().overlay_pool(&facts)?;
        (!named.iter().any(|known| **known == *pool)).then(|| Text::from(pool))
    }

    /// The current version of the secrets of an instance's environment, if it needs any: its
    /// tenant's own, or else those without a tenant.
    #[must_use]
    pub fn secrets_of(&self, instance: &InstanceRequest) -> Option<Text> {
        let env = instance.env.as_deref().filter(|_| instance.needs_secrets)?;
        let (tenant, env) = (Text::from(instance.tenant.as_str()), Text::from(env));
        let own = self.secrets.get(&(Some(tenant), env.clone()));
        own.or_else(|| self.secrets.get(&(None, env))).cloned()
    }

    /// Sets apart the claims that are gone by now, unless others are set apart already. Returns
    /// whether there are any.
    pub fn seal_tombstones(&mut self) -> bool {
        let [fresh, sealed] = &mut self.removed_nodes;
        if self.sealed.is_empty() && sealed.is_empty() {
            self.sealed = std::mem::take(&mut self.released);
            *sealed = std::mem::take(fresh);
        }
        !self.sealed.is_empty() || !self.removed_nodes[1].is_empty()
    }

    /// Removes sealed tombstones. No event of their allocation may come after this: it would be taken
    /// for a new claim.
    pub fn purge_tombstones(&mut self) {
        self.removed_nodes[1].clear();
        for (id, fence) in std::mem::take(&mut self.sealed) {
            // One that came back since has a higher fence, and is here.
            if self.fences.get(&id) == Some(&fence) {
                self.fences.remove(&id);
            }
        }
    }

    /// Whether a claim, or a later one of the same instance, is here or was lately.
    #[must_use]
    pub(crate) fn is_known(&self, key: ClaimKey, fence: i64) -> bool {
        self.fences.get(&engine_id(key)).is_some_and(|known| *known >= fence)
    }

    /// Claims whose fence is remembered: those that are here, and those that went lately.
    #[must_use]
    pub fn remembered(&self) -> usize {
        self.fences.len()
    }

    /// Claims of our own plans that the ledger has not granted yet.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.planned.len()
    }

    /// What is used on some nodes, and whether plans of our own in flight are among it; absent where
    /// a node is not known.
    #[must_use]
    pub fn use_of(&self, nodes: &[NodeId]) -> Vec<(Option<berth_engine::Used>, bool)> {
        let fleet = self.engine.fleet();
        let planned: FxHashSet<&NodeId> =
            self.planned.iter().filter_map(|id| fleet.node_of(*id)).collect();
        nodes.iter().map(|node| (fleet.used(node), planned.contains(node))).collect()
    }

    fn resized(&mut self, key: ClaimKey, fence: Option<i64>, resources: berth_engine::Amounts) {
        // One that moved since is as large as the claim that it has now.
        let known = self.fences.get(&engine_id(key)).copied();
        if fence.is_some_and(|fence| known != Some(fence)) {
            return;
        }
        // The engine forgets what it need not know, so the request comes from what is stored.
        self.engine.fleet_mut().resize(engine_id(key), resources);
    }

    /// Notes that an instance was claimed by a plan of our own, before the ledger has said so.
    pub fn plan(&mut self, request: &Arc<InstanceRequest>, node: &NodeId) -> bool {
        let claimed = self.engine.fleet_mut().claim_shared(request, node).is_ok();
        if claimed {
            self.planned.insert(request.id);
        }
        claimed
    }

    /// Whether an instance is where a plan of our own put it, and the ledger has not said so yet.
    #[must_use]
    pub fn is_planned(&self, id: InstanceId) -> bool {
        self.planned.contains(&id)
    }

    /// Takes in a claim as the ledger has it, of an instance that was taken off its node in memory.
    ///
    /// # Errors
    /// When what is stored cannot be read.
    pub fn restore_claim(&mut self, claim: &Claim) -> Result<(), LedgerError> {
        let is_newer = |known: &i64| *known > claim.fence;
        if self.fences.get(&engine_id(claim.key)).is_some_and(is_newer) {
            return Ok(());
        }
        self.load_claim(claim)
    }

    /// Expects that a claim with a hard rule raises the rules of these nodes; or, with -1, that it
    /// does not after all.
    pub fn expect_rules<'a>(&mut self, nodes: impl Iterator<Item = &'a NodeId>, by: i64) {
        for node in nodes {
            if let Some(mark) = self.nodes.get_mut(node) {
                mark.expect(by);
            }
        }
    }

    /// Takes back a plan that the ledger did not grant. What the log has confirmed meanwhile stays.
    pub fn take_back(&mut self, id: InstanceId) {
        if self.planned.remove(&id) {
            self.slots.free(id);
            self.engine.fleet_mut().release(id);
        }
    }

    /// Claims what the log will tell of later, as a plan of our own that is under way. Returns the
    /// id to take it back by; absent when the instance is there already.
    ///
    /// # Errors
    /// When what is stored cannot be read.
    pub fn apply_provisional(
        &mut self,
        plan: &Allocation,
    ) -> Result<Option<InstanceId>, LedgerError> {
        let id = engine_id(ClaimKey { instance: plan.instance_id, role: plan.role });
        let is_new = self.engine.fleet().node_of(id).is_none();
        let Some(spec) = plan.spec.as_ref().filter(|_| is_new) else { return Ok(None) };
        if !self.nodes.contains_key(&plan.node_id) {
            return Ok(None);
        }
        self.place(id, plan.name.as_deref(), spec, &plan.node_id, Some(plan.resources))?;
        self.planned.insert(id);
        Ok(Some(id))
    }

    /// Notes that every node was heard.
    pub fn refresh_all_heartbeats(&mut self, at: berth_engine::Timestamp) {
        for node in self.nodes.keys() {
            self.engine.fleet_mut().heartbeat(node, at);
        }
    }

    /// Takes in a claim as the ledger has it, unless something newer is known.
    ///
    /// # Errors
    /// When what is stored cannot be read.
    pub fn apply_claim(&mut self, claim: &Claim) -> Result<(), LedgerError> {
        let id = engine_id(claim.key);
        if self.fences.get(&id).is_some_and(|known| *known >= claim.fence) {
            return Ok(());
        }
        self.planned.remove(&id);
        self.engine.fleet_mut().release(id);
        self.load_claim(claim)
    }
}

fn without_request() -> LedgerError {
    LedgerError::Corrupt("an allocation without its request".to_owned())
}

fn corrupt(error: &dyn std::fmt::Display) -> LedgerError {
    LedgerError::Corrupt(error.to_string())
}

#[cfg(test)]
mod tests;
