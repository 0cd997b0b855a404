//! The fleet: nodes, instances, groups and volumes, and how much of everything is used.
//!
//! Rows are the truth, columns and postings are derived from them in step. A claim touches one
//! node. Nothing here decides: see `filter` and `score`.

mod changes;
mod chunks;
mod claims;
mod columns;
mod domains;
mod fingerprint;
mod ids;
mod index;
mod interner;
mod journal;
mod load;
mod nodes;
mod posting;
mod ranges;
mod resident_rules;
mod rows;
mod shapes;
mod what_if;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Weak};

use rustc_hash::{FxHashMap, FxHashSet};

pub(crate) use changes::{Availability, Change, ChangeKind, Claimant};
pub(crate) use columns::{Bits, Block, Column, Columns, LANES, NodeIndex, lanes};
pub(crate) use domains::{Domains, Lanes, NO_DOMAIN};
pub(crate) use index::Index;
pub(crate) use interner::{Interner, Symbol, TagSets};
pub(crate) use posting::{Posting, Presence};
pub(crate) use rows::{InstanceRow, NodePlace, NodeRow, Profile};
pub(crate) use shapes::{CPU_UNIT_MILLI, MEMORY_UNIT_MIB};
pub(crate) use what_if::TriedNode;

pub(crate) use claims::DetachedInstance;

pub use claims::ClaimError;
pub use journal::FleetChange;
pub use nodes::{NodeUsage, UsedOf};
pub use resident_rules::ResidentRuleCounts;
pub use shapes::UsualShape;

use crate::affinity::Topology;
use crate::model::{Amounts, Group, InstanceId, NodeId, Volume};
use changes::{Changes, FactChanges};
use chunks::Chunks;
use ids::IdTable;
pub(crate) use ranges::Ranges;

/// Placed instances by row number.
type InstanceRows = Chunks<InstanceRow, 512>;

/// A group and where its members are.
#[derive(Clone, Debug)]
pub(crate) struct GroupRow {
    pub(crate) group: Group,
    pub(crate) presence: Presence,
}

/// Tells one fleet from another, including its own copy: a follower of a fleet's log must notice when
/// it is given another fleet.
#[derive(Debug, Default)]
pub(crate) struct FleetIdentity(Arc<()>);

impl Clone for FleetIdentity {
    fn clone(&self) -> Self {
        Self::default()
    }
}

impl FleetIdentity {
    /// The same identity again, for followers to keep.
    pub(crate) fn share(&self) -> Self {
        Self(Arc::clone(&self.0))
    }

    pub(crate) fn is_same_as(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

/// Nodes and what runs on them.
#[derive(Clone, Debug)]
pub struct Fleet {
    identity: FleetIdentity,
    rows: Chunks<NodeRow, LANES>,
    columns: Columns,
    extra: BTreeMap<String, Column<i32>>,
    indexes_by_id: BTreeMap<NodeId, NodeIndex>,
    ranks_stale: bool,
    domains: Domains,
    profiles: FxHashMap<u64, Vec<Weak<Profile>>>,
    generation: u64,
    texts: Interner,
    tag_sets: TagSets,
    instances: InstanceRows,
    free_instances: Vec<u32>,
    instances_by_id: IdTable,
    index: Index,
    groups: BTreeMap<String, GroupRow>,
    volumes: BTreeMap<String, Volume>,
    secrets: BTreeMap<String, bool>,
    /// Tenants and environments that have secrets of their own.
    tenant_secrets: BTreeSet<(String, String)>,
    free_addresses: Option<u64>,
    ranges: Ranges,
    changes: Changes,
    fact_changes: FactChanges,
    heartbeats: Vec<NodeIndex>,
    /// Instances that are going already: asked to stop, or being moved.
    leaving: FxHashSet<InstanceId>,
    rules_gen: u64,
    rank_gen: u64,
    load: load::FleetLoad,
    shapes: shapes::HeldShapes,
    journal: journal::Journal,
}

impl Default for Fleet {
    fn default() -> Self {
        Self::new()
    }
}

impl Fleet {
    /// An empty fleet.
    #[must_use]
    pub fn new() -> Self {
        Self {
            identity: FleetIdentity::default(),
            rows: Chunks::new(),
            columns: Columns::new(),
            extra: BTreeMap::new(),
            indexes_by_id: BTreeMap::new(),
            ranks_stale: false,
            domains: Domains::default(),
            profiles: FxHashMap::default(),
            generation: 0,
            texts: Interner::default(),
            tag_sets: TagSets::default(),
            instances: InstanceRows::new(),
            free_instances: Vec::new(),
            instances_by_id: IdTable::default(),
            index: Index::default(),
            groups: BTreeMap::new(),
            volumes: BTreeMap::new(),
            secrets: BTreeMap::new(),
            tenant_secrets: BTreeSet::new(),
            free_addresses: None,
            ranges: Ranges::default(),
            changes: Changes::new(),
            fact_changes: FactChanges::new(),
            heartbeats: Vec::new(),
            leaving: FxHashSet::default(),
            rules_gen: 0,
            rank_gen: 0,
            load: load::FleetLoad::default(),
            shapes: shapes::HeldShapes::default(),
            journal: journal::Journal::default(),
        }
    }

    /// How many nodes there are.
    #[must_use]
    pub fn node_count(&self) -> usize {
        self.indexes_by_id.len()
    }

    /// How full the active nodes are, in thousandths: the larger of CPU and memory in use, of what they
    /// may promise.
    #[must_use]
    pub fn load_permille(&self) -> u32 {
        self.load.permille()
    }

    /// The sizes that hold most of what is placed, those that hold most first.
    #[must_use]
    pub fn usual_shapes(&self) -> &[UsualShape] {
        self.shapes.usual()
    }

    /// Rises when the usual shapes change.
    pub(crate) const fn shapes_version(&self) -> u64 {
        self.shapes.version()
    }

    /// How many instances are placed.
    #[must_use]
    pub fn instance_count(&self) -> usize {
        self.instances_by_id.len()
    }

    /// The node an instance is on.
    #[must_use]
    pub fn node_of(&self, instance: InstanceId) -> Option<&NodeId> {
        let row = self.instance(instance)?;
        self.row(row.host.index()).map(|node| &node.id)
    }

    /// Instances that a tenant could release to have less, by id, each with what it is charged: none
    /// that is going already, and none that would be replaced.
    #[must_use]
    pub fn releasable_instances(&self, tenant: &str) -> Vec<(InstanceId, Amounts)> {
        let Some(tenant) = self.texts.find(tenant) else { return Vec::new() };
        let is_free = |row: &&InstanceRow| row.tenant == tenant && self.is_releasable(row);
        let rows = self.instances.iter().filter(is_free);
        let mut found: Vec<_> = rows.map(|row| (row.id, row.resources)).collect();
        found.sort_unstable_by_key(|(id, _)| *id);
        found
    }

    /// The tenant of an instance that is placed.
    #[must_use]
    pub fn tenant_of(&self, instance: InstanceId) -> Option<&str> {
        self.instance(instance).map(|row| self.texts.text(row.tenant))
    }

    /// The name of an instance that is placed, if it has one.
    #[must_use]
    pub fn instance_name(&self, instance: InstanceId) -> Option<&str> {
        let name = self.instance(instance)?.rare.as_ref()?.name?;
        Some(self.texts().text(name))
    }

    /// A group as it was defined.
    #[must_use]
    pub fn group(&self, id: &str) -> Option<&Group> {
        self.groups.get(id).map(|row| &row.group)
    }

    /// Defines a group, or changes its rules. Members stay.
    pub fn put_group(&mut self, group: Group) {
        self.journal.record(|| FleetChange::PutGroup(Box::new(group.clone())));
        self.rules_gen += 1;
        match self.groups.get_mut(&group.id) {
            Some(row) => row.group = group,
            None => {
                let presence = self.presence_of(&group.id);
                self.groups.insert(group.id.clone(), GroupRow { group, presence });
            }
        }
    }

    /// Where the members of a group are that was not defined yet when they were claimed.
    fn presence_of(&self, group: &str) -> Presence {
        let mut presence = Presence::default();
        let Some(group) = self.texts.find(group) else { return presence };
        for instance in self.instances.iter() {
            let member = |rare: &rows::RareAttributes| rare.groups.contains(&group);
            let node = self.row(instance.host.index());
            if let (Some(true), Some(node)) = (instance.rare.as_deref().map(member), node) {
                presence.add(instance.host.index().0, node.rack, node.zone);
            }
        }
        presence
    }

    /// Removes a group without members. Returns whether it is gone.
    pub fn remove_group(&mut self, id: &str) -> bool {
        let empty = self.groups.get(id).is_some_and(|row| row.presence.nodes.is_empty());
        if empty {
            self.journal.record(|| FleetChange::RemoveGroup(id.to_owned()));
            self.rules_gen += 1;
            self.groups.remove(id);
        }
        empty
    }

    /// Removes a volume that is not in use. Returns whether it was removed.
    pub fn remove_volume(&mut self, id: &str) -> bool {
        let unused = self.volumes.get(id).is_some_and(|volume| volume.attached_to.is_none());
        if unused {
            self.journal.record(|| FleetChange::RemoveVolume(id.to_owned()));
            self.volumes.remove(id);
        }
        unused
    }

    /// A volume.
    #[must_use]
    pub fn volume(&self, id: &str) -> Option<&Volume> {
        self.volumes.get(id)
    }

    /// Defines a volume, or moves it.
    pub fn put_volume(&mut self, volume: Volume) {
        self.journal.record(|| FleetChange::PutVolume(Box::new(volume.clone())));
        self.restore_volume(volume);
    }

    /// Puts a volume back as it was before a plan claimed and undid.
    pub(crate) fn restore_volume(&mut self, volume: Volume) {
        self.volumes.insert(volume.id.clone(), volume);
    }

    /// States that an instance is going already, or that it stays after all. What is going holds its
    /// room until it is released; it is never proposed for release.
    pub fn set_leaving(&mut self, id: InstanceId, leaving: bool) {
        if leaving {
            self.leaving.insert(id);
        } else {
            self.leaving.remove(&id);
        }
        self.journal.record(|| FleetChange::SetLeaving(id, leaving));
    }

    pub(crate) fn is_leaving(&self, id: InstanceId) -> bool {
        self.leaving.contains(&id)
    }

    /// States that another instance would take this one's place at once if it were released, as with a
    /// member of a workload. Its release is never proposed: it would bring no room.
    pub fn set_replaced(&mut self, id: InstanceId, replaced: bool) {
        let Some(number) = self.instances_by_id.find(id, &self.instances) else { return };
        if let Some(row) = self.instances[number as usize].as_mut() {
            row.host.set_replaced(replaced);
            self.journal.record(|| FleetChange::SetReplaced(id, replaced));
        }
    }

    /// Whether the release of an instance would bring the room that it has.
    pub(crate) fn is_releasable(&self, row: &InstanceRow) -> bool {
        !row.host.is_replaced() && !self.is_leaving(row.id)
    }

    /// States whether environments of this name have a current bundle of secrets, unless their
    /// tenant has one of its own.
    pub fn set_secrets(&mut self, env: &str, present: bool) {
        self.journal.record(|| FleetChange::SetSecrets(env.to_owned(), present));
        self.secrets.insert(env.to_owned(), present);
    }

    /// States whether an environment of a tenant has a current bundle of secrets of its own.
    pub fn set_tenant_secrets(&mut self, tenant: &str, env: &str, present: bool) {
        let key = (tenant.to_owned(), env.to_owned());
        self.journal
            .record(|| FleetChange::SetTenantSecrets(tenant.to_owned(), env.to_owned(), present));
        if present {
            self.tenant_secrets.insert(key);
        } else {
            self.tenant_secrets.remove(&key);
        }
    }

    /// States how many overlay addresses are left, or that they are not counted here. From then on
    /// every claim takes one and every release gives one back.
    pub fn set_free_addresses(&mut self, free: Option<u64>) {
        self.journal.record(|| FleetChange::SetFreeAddresses(free));
        self.free_addresses = free;
    }

    pub(crate) fn has_secrets(&self, tenant: &str, env: Option<&str>) -> bool {
        env.is_some_and(|env| {
            self.secrets.get(env).copied().unwrap_or(false)
                || self.tenant_secrets.contains(&(tenant.to_owned(), env.to_owned()))
        })
    }

    pub(crate) const fn free_addresses(&self) -> Option<u64> {
        self.free_addresses
    }

    pub(crate) const fn identity(&self) -> &FleetIdentity {
        &self.identity
    }

    pub(crate) const fn columns(&self) -> &Columns {
        &self.columns
    }

    pub(crate) fn extra_column(&self, class: &str) -> Option<&Column<i32>> {
        self.extra.get(class)
    }

    pub(crate) const fn index(&self) -> &Index {
        &self.index
    }

    pub(crate) const fn tag_sets(&self) -> &TagSets {
        &self.tag_sets
    }

    pub(crate) const fn texts(&self) -> &Interner {
        &self.texts
    }

    pub(crate) const fn domains(&self) -> &Domains {
        &self.domains
    }

    pub(crate) const fn ranges(&self) -> &Ranges {
        &self.ranges
    }

    /// Whether a placed instance has a hard rule that tells others apart by their id or name.
    #[must_use]
    pub fn has_rules_on_instances(&self) -> bool {
        self.index.has_rules_on_instances()
    }

    pub(crate) fn row(&self, index: NodeIndex) -> Option<&NodeRow> {
        self.rows.get(index.as_usize())
    }

    pub(crate) fn index_of(&self, node: &NodeId) -> Option<NodeIndex> {
        self.indexes_by_id.get(node).copied()
    }

    /// A node's position: a small number that stays the same until the node is removed or changes its
    /// zone.
    #[must_use]
    pub fn position_of(&self, node: &NodeId) -> Option<usize> {
        self.index_of(node).map(NodeIndex::as_usize)
    }

    /// How many positions there are, empty ones included: a multiple of 64.
    #[must_use]
    pub fn position_count(&self) -> usize {
        self.columns.zone_of_block.len() * LANES
    }

    /// The most that any node's hypervisor takes per instance, and no less than the default.
    pub(crate) fn largest_overhead(&self) -> u32 {
        self.rows.iter().map(|row| row.vmm_overhead_mib).fold(64, u32::max)
    }

    /// All nodes in order of id.
    pub(crate) fn nodes_in_order(&self) -> impl Iterator<Item = (&NodeId, NodeIndex)> {
        self.indexes_by_id.iter().map(|(id, &index)| (id, index))
    }

    pub(crate) fn instance(&self, id: InstanceId) -> Option<&InstanceRow> {
        let row = self.instances_by_id.find(id, &self.instances)?;
        self.instance_at(row)
    }

    pub(crate) fn instance_at(&self, row: u32) -> Option<&InstanceRow> {
        self.instances.get(row as usize)
    }

    pub(crate) fn group_row(&self, id: &str) -> Option<&GroupRow> {
        self.groups.get(id)
    }

    /// The domain a node is in at one level.
    pub(crate) fn domain(&self, index: NodeIndex, topology: Topology) -> u32 {
        match topology {
            Topology::Node => index.0,
            Topology::Rack => self.columns.rack.get(index),
            Topology::Zone => self.columns.zone_of_block[index.block()],
        }
    }

    pub(crate) const fn changes_end(&self) -> u64 {
        self.changes.end()
    }

    pub(crate) fn changes_since(&self, place: u64) -> Option<impl Iterator<Item = Change> + '_> {
        self.changes.since(place)
    }

    /// Sets a node's availability after a logged change.
    pub(crate) fn set_availability(&mut self, number: u64, after: Availability) {
        self.changes.set_availability(number, after);
    }

    /// The same for changes of facts alone, which are rarer and so reach further back.
    pub(crate) const fn fact_changes_end(&self) -> u64 {
        self.fact_changes.end()
    }

    pub(crate) fn fact_changes_since(
        &self,
        place: u64,
    ) -> Option<impl Iterator<Item = NodeIndex> + '_> {
        self.fact_changes.since(place)
    }

    /// Logs that a node's eligibility or points changed with time.
    pub(crate) fn log_eligibility_change(&mut self, index: NodeIndex, after: Availability) {
        self.changes.push(Change { index, kind: ChangeKind::Eligibility, after });
    }

    /// Nodes with a heartbeat since the last call. A heartbeat changes nothing unless the node was
    /// silent for too long, so it does not go through the change log, which every ranking follows.
    pub(crate) fn take_heartbeats(&mut self) -> Vec<NodeIndex> {
        std::mem::take(&mut self.heartbeats)
    }

    /// Rises when a group's rules change, or a node leaves its place: what no repair can follow.
    pub(crate) const fn rules_gen(&self) -> u64 {
        self.rules_gen
    }

    /// Rises when nodes change places in the order of ids.
    pub(crate) const fn rank_gen(&self) -> u64 {
        self.rank_gen
    }

    fn log_fact_change(&mut self, index: NodeIndex) {
        self.changes.push(Change::new(index, ChangeKind::Facts));
        self.fact_changes.push(index);
    }
}
