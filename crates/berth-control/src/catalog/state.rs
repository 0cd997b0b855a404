//! The catalogue's content, and how each event changes it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use berth_engine::elastic::Permit;
use berth_engine::{
    Amounts, Group, InstanceRequest, MeasuredLoad, NodeFacts, NodeId, NodeState, Policy, Room,
    Volume,
};
use berth_ledger::{
    Allocation, Claim, ClaimKey, ClaimState, EventBody, Micros, Role, SnapshotItem, Spec, Text,
};
use rustc_hash::FxHashMap;

use super::entries::{ClaimEntry, Heartbeat, MemberEntry, NodeEntry};
use crate::workload::{CrashHistories, CrashHistory, Definition, WorkloadKey};

/// Requests as parsed before, by their stored text; a million claims share a few.
pub(crate) const SPECS: usize = 4096;

/// What an event changes.
#[derive(Default)]
pub(super) struct ChangeSet {
    /// Nodes whose claims or state changed.
    pub(super) nodes: Vec<NodeId>,
    /// Workloads whose members, or what is wanted of them, changed.
    pub(super) workloads: Vec<WorkloadKey>,
    /// Whether an instance shrank.
    pub(super) made_room: bool,
    /// How many events were about instances of each tenant.
    pub(super) written: FxHashMap<String, usize>,
}

impl ChangeSet {
    fn claim(&mut self, claim: &ClaimEntry) {
        match self.written.get_mut(&claim.request.tenant) {
            Some(count) => *count += 1,
            None => drop(self.written.insert(claim.request.tenant.clone(), 1)),
        }
        self.nodes.push(claim.node.clone());
        self.workloads.extend(claim.workload());
    }
}

/// Everything that readers ask for.
#[derive(Default)]
pub struct CatalogState {
    /// Nodes, by id.
    pub nodes: BTreeMap<NodeId, NodeEntry>,
    /// Rises when the facts of a node change, or a node goes.
    pub(super) facts_version: u64,
    /// Claims, by instance and role.
    pub claims: BTreeMap<ClaimKey, Arc<ClaimEntry>>,
    /// Claims of each tenant.
    pub by_tenant: FxHashMap<Text, BTreeSet<ClaimKey>>,
    /// Instances with a name, by tenant and name. Names need not be unique.
    named: FxHashMap<Text, FxHashMap<Text, BTreeSet<ClaimKey>>>,
    /// Groups, by id.
    pub groups: BTreeMap<String, Group>,
    /// Volumes, by id.
    pub volumes: BTreeMap<String, Volume>,
    /// The policy in force, once one was stored.
    pub policy: Option<Arc<Policy>>,
    /// The same under the hash that the ledger has it; empty while it has none.
    pub policy_in_force: Text,
    /// What should run, by tenant and name.
    pub workloads: BTreeMap<WorkloadKey, Arc<Definition>>,
    /// Claims with a slot, by the workload they are members of.
    pub members: FxHashMap<WorkloadKey, Vec<MemberEntry>>,
    /// Members that ended without a release.
    pub crashes: FxHashMap<WorkloadKey, CrashHistories>,
    /// The current version of each environment's secrets, by tenant, absent for those without one,
    /// and environment.
    pub secrets: BTreeMap<(Option<Text>, Text), Text>,
    specs: FxHashMap<Spec, Arc<InstanceRequest>>,
    /// Claims that went, with their fence, until the log has passed them.
    gone: [FxHashMap<ClaimKey, i64>; 2],
    /// Nodes that were removed, with the generation of their facts, until the log has passed them.
    gone_nodes: [FxHashMap<NodeId, i64>; 2],
}

impl CatalogState {
    /// The catalog of a snapshot.
    #[must_use]
    pub fn of(items: impl IntoIterator<Item = SnapshotItem>) -> Self {
        let mut catalog = Self::default();
        items.into_iter().for_each(|item| catalog.load(item));
        catalog
    }

    /// Replaces everything by a snapshot; tombstones are kept. Returns what was here.
    pub(super) fn replace(&mut self, fresh: Self) -> Self {
        let (gone, crashes) = (std::mem::take(&mut self.gone), std::mem::take(&mut self.crashes));
        let gone_nodes = std::mem::take(&mut self.gone_nodes);
        let facts_version = self.facts_version + 1;
        std::mem::replace(self, Self { gone, gone_nodes, crashes, facts_version, ..fresh })
    }

    pub(super) fn record_heartbeat(&self, node: &NodeId, at: i64) {
        if let Some(entry) = self.nodes.get(node) {
            entry.heartbeat.record(at);
        }
    }

    /// What went before the last time the log was read to its end cannot come up again.
    pub(super) fn rotate_tombstones(&mut self) {
        let [fresh, old] = &mut self.gone;
        *old = std::mem::take(fresh);
        let [fresh, old] = &mut self.gone_nodes;
        *old = std::mem::take(fresh);
    }

    pub(crate) fn load(&mut self, item: SnapshotItem) {
        match item {
            SnapshotItem::Policy(_, hash, body) => self.set_policy(&hash, &body),
            SnapshotItem::Group(group) => drop(self.groups.insert(group.id.clone(), group)),
            SnapshotItem::Node(facts, seen) => self.put_node(*facts, seen.constraint_gen),
            SnapshotItem::Volume(volume) => drop(self.volumes.insert(volume.id.clone(), volume)),
            SnapshotItem::Claim(claim) => self.load_claim(*claim),
            SnapshotItem::Secrets(tenant, env, version) => {
                self.secrets.insert((tenant, env), version);
            }
            SnapshotItem::Workload(workload) => self.define(&workload),
            SnapshotItem::Pool(_) | SnapshotItem::Quota(..) => {}
        }
    }

    fn set_policy(&mut self, hash: &str, body: &str) {
        // One that cannot be read is reported by the planner, which must not go on without it.
        let Ok(policy) = Policy::from_stored(body) else { return };
        (self.policy, self.policy_in_force) = (Some(Arc::new(policy)), Text::from(hash));
    }

    fn put_node(&mut self, facts: NodeFacts, generation: i64) {
        let id = facts.id.clone();
        // An older event of a node that was removed since.
        if self.gone_nodes.iter().any(|gone| gone.get(&id).is_some_and(|it| *it >= generation)) {
            return;
        }
        self.facts_version += 1;
        let mut room = Room::of(&facts);
        let heard_at = facts.heartbeat_at.0;
        if let Some(entry) = self.nodes.get_mut(&id) {
            // Events may come twice, and the second time late.
            if entry.generation > generation {
                return;
            }
            room.used = entry.room.used;
            (entry.room, entry.generation) = (room, generation);
            entry.heartbeat.record(heard_at);
            entry.facts = Arc::new(facts);
            return;
        }
        let (facts, claims) = (Arc::new(facts), BTreeSet::new());
        let heartbeat = Heartbeat::new(heard_at);
        self.nodes.insert(id, NodeEntry { facts, generation, heartbeat, room, claims });
    }

    fn request(&mut self, spec: &Spec) -> Option<Arc<InstanceRequest>> {
        if let Some(known) = self.specs.get(spec) {
            return Some(Arc::clone(known));
        }
        // What the ledger stored can be decoded; if not, the planner reports it and reloads.
        let request = Arc::new(spec.request().ok()?);
        if self.specs.len() >= SPECS {
            self.specs.clear();
        }
        self.specs.insert(spec.clone(), Arc::clone(&request));
        Some(request)
    }

    fn load_claim(&mut self, claim: Claim) {
        let Some(request) = self.request(&claim.spec) else { return };
        let slot = claim.slot();
        let values = claim.holdings.map(|ties| ties.values).unwrap_or_default();
        self.put_claim(ClaimEntry {
            key: claim.key,
            node: claim.node,
            state: claim.state,
            fence: claim.fence,
            lease_until: claim.lease_until,
            amounts: claim.amounts,
            name: claim.name,
            request,
            values,
            created_at: claim.created_at,
            slot,
            permit: claim.permit.as_deref().copied(),
        });
    }

    fn put_claim(&mut self, entry: ClaimEntry) {
        self.drop_claim(entry.key);
        if let Some(node) = self.nodes.get_mut(&entry.node) {
            node.room.used.charge(&entry.amounts, entry.request.cpu_capped, 1);
            node.claims.insert(entry.key);
        }
        if let Some(workload) = entry.workload() {
            self.add_member(workload, &entry);
        }
        let tenant = Text::from(entry.request.tenant.as_str());
        if let Some(name) = entry.name.clone().filter(|_| entry.key.role == Role::Primary) {
            let named = self.named.entry(tenant.clone()).or_default();
            named.entry(name).or_default().insert(entry.key);
        }
        self.by_tenant.entry(tenant).or_default().insert(entry.key);
        self.claims.insert(entry.key, Arc::new(entry));
    }

    /// Members are kept in order of their slots, in which they are judged fastest.
    fn add_member(&mut self, workload: WorkloadKey, claim: &ClaimEntry) {
        let Some(member) = MemberEntry::of(claim) else { return };
        let members = self.members.entry(workload).or_default();
        let at = members.partition_point(|other| other.slot <= member.slot);
        members.insert(at, member);
    }

    fn drop_claim(&mut self, key: ClaimKey) -> Option<Arc<ClaimEntry>> {
        let entry = self.claims.remove(&key)?;
        if let Some(node) = self.nodes.get_mut(&entry.node)
            && node.claims.remove(&key)
        {
            node.room.used.charge(&entry.amounts, entry.request.cpu_capped, -1);
        }
        if let Some(workload) = entry.workload()
            && let Some(members) = self.members.get_mut(&workload)
        {
            members.retain(|member| member.key != key);
            if members.is_empty() {
                self.members.remove(&workload);
            }
        }
        let tenant = entry.request.tenant.as_str();
        self.unname(tenant, &entry);
        if let Some(claims) = self.by_tenant.get_mut(tenant) {
            claims.remove(&key);
            if claims.is_empty() {
                self.by_tenant.remove(tenant);
            }
        }
        Some(entry)
    }

    fn unname(&mut self, tenant: &str, entry: &ClaimEntry) {
        let (Some(name), Some(names)) = (&entry.name, self.named.get_mut(tenant)) else { return };
        if let Some(claims) = names.get_mut(name) {
            claims.remove(&entry.key);
            if claims.is_empty() {
                names.remove(name);
            }
        }
        if names.is_empty() {
            self.named.remove(tenant);
        }
    }

    /// The instances of a tenant that have this name.
    pub fn named(&self, tenant: &str, name: &str) -> impl Iterator<Item = &ClaimEntry> {
        let keys = self.named.get(tenant).and_then(|names| names.get(name));
        let keys = keys.into_iter().flatten();
        keys.filter_map(|key| self.claims.get(key)).map(AsRef::as_ref)
    }

    fn define(&mut self, row: &berth_ledger::Workload) {
        match Definition::read(row) {
            Ok(found) => drop(self.workloads.insert(found.key.clone(), Arc::new(found))),
            Err(error) => {
                let (tenant, name) = (&row.tenant, &row.name);
                tracing::error!(%error, tenant, name, "a stored workload cannot be read");
            }
        }
    }

    /// Takes in what happened, and notes what it changes.
    pub(super) fn apply(&mut self, at: Micros, body: EventBody, changes: &mut ChangeSet) {
        match body {
            EventBody::Allocated(allocated) => self.allocated(at, *allocated, changes),
            EventBody::State { instance_id, role, state, fence, lease_until, .. } => {
                let key = ClaimKey { instance: instance_id, role };
                self.edit(key, changes, |claim| {
                    // States only go forward; an older event that comes again changes nothing.
                    if claim.fence == fence && claim.state <= state {
                        (claim.state, claim.lease_until) = (state, lease_until);
                    }
                });
            }
            EventBody::Resized { instance_id, role, fence, resources, .. } => {
                self.resized(ClaimKey { instance: instance_id, role }, fence, resources, changes);
            }
            EventBody::Permit { instance_id, fence, resources, permit, .. } => {
                let key = ClaimKey::primary(instance_id);
                self.permitted(key, fence, resources, *permit, changes);
            }
            EventBody::Bounds { instance_id, fence, resources, permit, min, max, .. } => {
                let key = ClaimKey::primary(instance_id);
                // Events of earlier releases have no fence.
                let fence = fence.or_else(|| Some(self.claims.get(&key)?.fence));
                if fence.is_some_and(|it| self.permitted(key, it, resources, *permit, changes)) {
                    self.rebound(key, min, max);
                }
            }
            EventBody::Released { instance_id, role, fence, reason, .. } => {
                let key = ClaimKey { instance: instance_id, role };
                self.released(at, key, fence, &reason, changes);
            }
            EventBody::NodeChanged { constraint_gen, facts } => {
                self.touch_node(&facts.id, changes);
                self.put_node(*facts, constraint_gen);
            }
            EventBody::NodeState { node_id, state, constraint_gen, reason } => {
                self.set_state(at, &node_id, state, reason, constraint_gen);
                self.touch_node(&node_id, changes);
            }
            EventBody::NodeLoad { node_id, load } => self.set_load(&node_id, load),
            EventBody::NodeRemoved { node_id, constraint_gen } => {
                self.node_removed(node_id, constraint_gen, changes);
            }
            EventBody::GroupChanged { group } => {
                self.groups.insert(group.id.clone(), group);
            }
            EventBody::GroupRemoved { group_id } => drop(self.groups.remove(&*group_id)),
            EventBody::VolumeChanged { volume } => {
                self.volumes.insert(volume.id.clone(), volume);
            }
            EventBody::VolumeRemoved { volume_id } => drop(self.volumes.remove(&*volume_id)),
            EventBody::PolicyChanged { hash, body, .. } => self.set_policy(&hash, &body),
            EventBody::WorkloadChanged { tenant, name, workload, .. } => {
                self.workload_changed((tenant, name), workload.as_deref(), changes);
            }
            EventBody::SecretsChanged { tenant, env, version } => {
                self.set_secrets((tenant, env), version)
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
    }

    fn node_removed(&mut self, node: NodeId, removed: Option<i64>, changes: &mut ChangeSet) {
        if let Some(removed) = removed {
            // It was added again since.
            if self.nodes.get(&node).is_some_and(|entry| entry.generation > removed) {
                return;
            }
            self.gone_nodes[0].insert(node.clone(), removed);
        }
        self.nodes.remove(&node);
        self.facts_version += 1;
        changes.nodes.push(node);
    }

    fn workload_changed(
        &mut self,
        key: WorkloadKey,
        workload: Option<&berth_ledger::Workload>,
        changes: &mut ChangeSet,
    ) {
        match workload {
            Some(workload) => self.define(workload),
            None => {
                self.workloads.remove(&key);
                self.crashes.remove(&key);
            }
        }
        changes.workloads.push(key);
    }

    fn set_secrets(&mut self, key: (Option<Text>, Text), version: Option<Text>) {
        match version {
            Some(version) => drop(self.secrets.insert(key, version)),
            None => drop(self.secrets.remove(&key)),
        }
    }

    /// The current version of the secrets of a tenant's environment: its own, or else those without
    /// a tenant.
    #[must_use]
    pub fn secrets_of(&self, tenant: &str, env: &str) -> Option<&Text> {
        let (tenant, env) = (Text::from(tenant), Text::from(env));
        let own = self.secrets.get(&(Some(tenant), env.clone()));
        own.or_else(|| self.secrets.get(&(None, env)))
    }

    /// A node changed, and with it what can be said of the members on it.
    fn touch_node(&self, node: &NodeId, changes: &mut ChangeSet) {
        changes.nodes.push(node.clone());
        let Some(entry) = self.nodes.get(node) else { return };
        let claims = entry.claims.iter().filter_map(|key| self.claims.get(key));
        changes.workloads.extend(claims.filter_map(|claim| claim.workload()));
    }

    fn edit(&mut self, key: ClaimKey, changes: &mut ChangeSet, edit: impl FnOnce(&mut ClaimEntry)) {
        if let Some(claim) = self.claims.get_mut(&key) {
            edit(Arc::make_mut(claim));
            changes.claim(claim);
            if let Some(workload) = claim.workload()
                && let Some(members) = self.members.get_mut(&workload)
                && let Some(member) = members.iter_mut().find(|member| member.key == key)
            {
                member.state = claim.state;
            }
        }
    }

    fn allocated(&mut self, at: Micros, allocated: Allocation, changes: &mut ChangeSet) {
        let key = ClaimKey { instance: allocated.instance_id, role: allocated.role };
        let known = self.claims.get(&key).map(|claim| claim.fence);
        let gone = self.gone.iter().filter_map(|gone| gone.get(&key).copied()).max();
        if known.max(gone).is_some_and(|fence| fence >= allocated.fence) {
            return;
        }
        let Some(request) = allocated.spec.as_ref().and_then(|spec| self.request(spec)) else {
            return;
        };
        changes.nodes.extend(self.claims.get(&key).map(|claim| claim.node.clone()));
        for volume in &request.volumes {
            if let Some(volume) = self.volumes.get_mut(volume) {
                volume.attached_to = Some(key.instance);
            }
        }
        let entry = ClaimEntry {
            key,
            node: allocated.node_id,
            state: allocated.state,
            fence: allocated.fence,
            lease_until: allocated.lease_until,
            amounts: allocated.resources,
            name: allocated.name,
            request,
            values: allocated.values,
            created_at: at,
            slot: allocated.slot,
            permit: allocated.permit.as_deref().copied(),
        };
        changes.claim(&entry);
        self.put_claim(entry);
    }

    fn resized(
        &mut self,
        key: ClaimKey,
        fence: Option<i64>,
        resources: Amounts,
        changes: &mut ChangeSet,
    ) {
        let is_same = |claim: &&Arc<ClaimEntry>| fence.is_none_or(|fence| claim.fence == fence);
        let Some(claim) = self.claims.get(&key).filter(is_same) else { return };
        changes.claim(claim);
        let entry = ClaimEntry { amounts: resources, ..ClaimEntry::clone(claim) };
        self.put_claim(entry);
    }

    /// Takes in a permit, and returns whether it is of the claim that is here, and no older than the
    /// one that is known.
    fn permitted(
        &mut self,
        key: ClaimKey,
        fence: i64,
        resources: Amounts,
        permit: Permit,
        changes: &mut ChangeSet,
    ) -> bool {
        let Some(claim) = self.claims.get_mut(&key).filter(|claim| claim.fence == fence) else {
            return false;
        };
        // Events may come twice, and the second time late.
        if claim.permit.is_some_and(|known| known.seq > permit.seq) {
            return false;
        }
        changes.claim(claim);
        let before = claim.amounts;
        changes.made_room |= before.cpu_milli > resources.cpu_milli;
        changes.made_room |= before.memory_mib > resources.memory_mib;
        let entry = Arc::make_mut(claim);
        (entry.amounts, entry.permit) = (resources, Some(permit));
        if let Some(node) = self.nodes.get_mut(&claim.node) {
            node.room.used.charge(&before, claim.request.cpu_capped, -1);
            node.room.used.charge(&resources, claim.request.cpu_capped, 1);
        }
        true
    }

    fn rebound(&mut self, key: ClaimKey, min: Amounts, max: Amounts) {
        if let Some(claim) = self.claims.get_mut(&key) {
            let request = Arc::make_mut(&mut Arc::make_mut(claim).request);
            if let Some(elastic) = request.elastic.as_mut() {
                (elastic.min, elastic.max) = (min, max);
            }
        }
    }

    fn released(
        &mut self,
        at: Micros,
        key: ClaimKey,
        fence: i64,
        reason: &str,
        changes: &mut ChangeSet,
    ) {
        if self.claims.get(&key).is_some_and(|claim| claim.fence > fence) {
            return;
        }
        self.gone[0].insert(key, fence);
        let Some(claim) = self.drop_claim(key) else { return };
        for volume in &claim.request.volumes {
            if let Some(volume) = self.volumes.get_mut(volume)
                && volume.attached_to == Some(key.instance)
            {
                volume.attached_to = None;
            }
        }
        self.record_crash(at, &claim, reason);
        changes.claim(&claim);
        if key.role == Role::MigrationSource
            && let Some(moved) = self.claims.get(&ClaimKey::primary(key.instance))
        {
            // It may be started there now.
            changes.nodes.push(moved.node.clone());
        }
    }

    /// Whether an instance is placed and must not be started yet: it may still run in the place that it
    /// left.
    #[must_use]
    pub fn awaits_stop_elsewhere(&self, claim: &ClaimEntry) -> bool {
        claim.key.role == Role::Primary
            && claim.state == ClaimState::Binding
            && self.claims.contains_key(&ClaimKey::source(claim.key.instance))
    }

    /// Records a member that ended without a release.
    fn record_crash(&mut self, at: Micros, claim: &ClaimEntry, reason: &str) {
        let is_planned =
            claim.state == ClaimState::Releasing || crate::workload::is_planned_release(reason);
        let member = claim.workload().zip(claim.slot).filter(|_| !is_planned);
        let Some((workload, slot)) = member else { return };
        let crashes = self.crashes.entry(workload).or_default();
        if at.0 > claim.created_at.plus_seconds(CrashHistory::FORGOTTEN_AFTER_S).0 {
            crashes.clear(slot.revision);
        } else {
            crashes.add(slot.revision, at);
        }
    }

    fn set_state(
        &mut self,
        at: Micros,
        node: &NodeId,
        state: NodeState,
        reason: Option<Text>,
        generation: i64,
    ) {
        if let Some(entry) = self.nodes.get_mut(node)
            && entry.generation <= generation
        {
            entry.generation = generation;
            // The server that brought it back has heard it. The heartbeat gets here later than the
            // event, and until then the node would be found silent once more.
            if entry.facts.state == NodeState::Lost
                && matches!(state, NodeState::Active | NodeState::Degraded)
            {
                entry.heartbeat.record(at.seconds());
            }
            let facts = Arc::make_mut(&mut entry.facts);
            facts.state = state;
            facts.state_reason = reason.map(|reason| reason.to_string());
        }
    }

    fn set_load(&mut self, node: &NodeId, load: Option<MeasuredLoad>) {
        if let Some(entry) = self.nodes.get_mut(node) {
            Arc::make_mut(&mut entry.facts).load = load;
        }
    }
}
