//! Adding, changing and removing nodes.
//!
//! A change of facts refreshes that node's columns and bumps its constraint generation; claims do
//! not. Nothing here reads any other node.

use std::hash::{Hash, Hasher};
use std::sync::{Arc, Weak};

use rustc_hash::FxHasher;
use serde::{Deserialize, Serialize};

use super::changes::{Change, ChangeKind};
use super::columns::{Column, LANES, NodeIndex};
use super::index::Location;
use super::rows::{ExtraClass, NodeRow, Profile};
use super::{Fleet, FleetChange, NO_DOMAIN, Symbol};
use crate::affinity::Topology;
use crate::model::{
    BootOutcome, InstanceId, InvalidNode, Limits, MeasuredLoad, NodeFacts, NodeId, NodeState,
    Timestamp, Used,
};

/// Boots that are remembered per node; enough for the decay to have made older ones worthless.
const BOOTS_KEPT: usize = 8;

/// How much of something is used, of how much that may be promised.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct UsedOf {
    /// In use; may exceed the limit when facts changed or reality was recorded.
    pub used: i64,
    /// May be promised, ratios and reserves applied; negative when the reserve exceeds capacity.
    pub limit: i64,
}

/// What is used on a node and what may be promised there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct NodeUsage {
    /// CPU.
    pub cpu_milli: UsedOf,
    /// Memory, the hypervisor's overhead included.
    pub memory_mib: UsedOf,
    /// Disk.
    pub disk_mib: UsedOf,
    /// Bandwidth.
    pub bandwidth_mbps: UsedOf,
    /// Instances.
    pub instances: UsedOf,
}

impl Fleet {
    /// Adds a node, or replaces what is known of it. What runs there stays.
    ///
    /// # Errors
    /// When the facts cannot be stored; nothing has changed then.
    pub fn add_node(&mut self, facts: &NodeFacts) -> Result<(), InvalidNode> {
        self.put_node(facts)?;
        self.journal.record(|| FleetChange::AddNode(Box::new(facts.clone())));
        Ok(())
    }

    pub(crate) fn put_node(&mut self, facts: &NodeFacts) -> Result<NodeIndex, InvalidNode> {
        facts.validate()?;
        let zone = self.domains.zone_number(facts.zone.as_deref());
        let rack = self.domains.rack_number(zone, facts.rack.as_deref());
        let index = match self.index_of(&facts.id) {
            Some(index) if self.row(index).is_some_and(|row| row.zone == zone) => {
                self.move_instances(index, Location { index: index.0, rack, zone });
                index
            }
            // Blocks belong to one zone, so a node that changes zone changes its index.
            Some(old) => self.relocate(old, rack, zone),
            None => self.new_index(&facts.id, zone),
        };
        let old = self.rows[index.as_usize()].take();
        if let Some(old) = &old {
            self.unindex_facts(index, old);
        }
        let row = self.row_from(facts, rack, zone, old);
        self.ranges.add(&row);
        for image in &row.cached_images {
            self.index.add_cached_image(*image, index.0);
        }
        self.domains.add(index, rack, zone);
        self.rows[index.as_usize()] = Some(row);
        self.columns.present.set(index, true);
        self.refresh(index);
        self.log_fact_change(index);
        Ok(index)
    }

    /// What is known of a node.
    #[must_use]
    pub fn node(&self, id: &NodeId) -> Option<NodeFacts> {
        let row = self.row(self.index_of(id)?)?;
        let text = |symbol: Symbol| self.texts.text(symbol).to_owned();
        Some(NodeFacts {
            id: row.id.clone(),
            state: row.state,
            state_reason: None,
            heartbeat_at: row.heartbeat_at,
            capacity: row.capacity_known.then_some(row.capacity),
            extra: (row.extra.iter().filter(|class| class.stated))
                .map(|class| (text(class.name), class.limit))
                .collect(),
            system_reserve: row.system_reserve,
            policy_reserve: row.policy_reserve,
            ratios: row.ratios,
            vmm_overhead_mib: row.vmm_overhead_mib,
            instance_limit: row.instance_limit,
            other: row.other,
            labels: row.labels.iter().map(|&(key, value)| (text(key), text(value))).collect(),
            traits: row.profile.traits.clone(),
            zone: self.domains.zone_name(row.zone).map(str::to_owned),
            rack: self.domains.rack_name(row.rack).map(str::to_owned),
            capacity_type: row.capacity_type,
            platform: row.platform,
            last_boot: row.last_boot,
            next_reboot: row.next_reboot,
            hardware_class: row.hardware_class,
            kvm: row.kvm,
            scratch_mib: row.scratch_mib,
            overlay_loss_ppm: row.overlay_loss_ppm,
            networks: row.profile.networks.clone(),
            reserved: row.reserved,
            headnode: row.headnode,
            is_virtual: row.is_virtual,
            reservoir: row.reservoir,
            cpu_cap_mode: row.cpu_cap_mode,
            cached_images: row.cached_images.iter().map(|&image| text(image)).collect(),
            boots: row.boots.clone(),
            watermarks: row.watermarks,
            load: row.load,
            overridden: std::collections::BTreeMap::new(),
        })
    }

    /// What is used on a node and what may be promised there.
    #[must_use]
    pub fn usage(&self, id: &NodeId) -> Option<NodeUsage> {
        let row = self.row(self.index_of(id)?)?;
        let amount = |used, limit| UsedOf { used, limit };
        Some(NodeUsage {
            cpu_milli: amount(row.used.cpu, row.limits.cpu),
            memory_mib: amount(row.memory_used(), row.limits.memory),
            disk_mib: amount(row.used.disk, row.limits.disk),
            bandwidth_mbps: amount(row.used.bandwidth, row.limits.bandwidth),
            instances: amount(row.used.instances.into(), row.instance_limit.into()),
        })
    }

    /// What is charged to a node, as the sum of its instances; without overheads, which follow from
    /// their number.
    #[must_use]
    pub fn used(&self, id: &NodeId) -> Option<Used> {
        self.row(self.index_of(id)?).map(|row| row.used)
    }

    /// The instances on a node, in order of id.
    #[must_use]
    pub fn instances_on(&self, id: &NodeId) -> Vec<InstanceId> {
        let row = self.index_of(id).and_then(|index| self.row(index));
        let numbers = row.map_or(&[][..], |row| &row.instances);
        let rows = numbers.iter().filter_map(|&number| self.instance_at(number));
        let mut ids: Vec<InstanceId> = rows.map(|instance| instance.id).collect();
        ids.sort_unstable();
        ids
    }

    /// The generation of a node's facts; a plan made on another generation is re-checked.
    #[must_use]
    pub fn constraint_gen(&self, id: &NodeId) -> Option<u64> {
        self.row(self.index_of(id)?).map(|row| row.constraint_gen)
    }

    /// The other nodes in a node's rack or zone, in order of id; none where it is in no such domain.
    #[must_use]
    pub fn neighbours(&self, id: &NodeId, topology: Topology) -> Vec<NodeId> {
        let Some(index) = self.index_of(id) else { return Vec::new() };
        let domain = self.domain(index, topology);
        if topology == Topology::Node || domain == NO_DOMAIN {
            return Vec::new();
        }
        let same = |other: &(&NodeId, NodeIndex)| {
            other.1 != index && self.domain(other.1, topology) == domain
        };
        self.nodes_in_order().filter(same).map(|(id, _)| id.clone()).collect()
    }

    /// Removes an empty node. Returns whether it was there and is gone.
    pub fn remove_node(&mut self, id: &NodeId) -> bool {
        let gone = self.drop_node(id);
        if gone {
            self.journal.record(|| FleetChange::RemoveNode(id.clone()));
        }
        gone
    }

    /// Removes an empty node without telling followers.
    pub(super) fn drop_node(&mut self, id: &NodeId) -> bool {
        let Some(index) = self.index_of(id) else {
            return false;
        };
        if self.row(index).is_some_and(|row| !row.instances.is_empty()) {
            return false;
        }
        self.vacate(index);
        self.indexes_by_id.remove(id);
        self.rules_gen += 1;
        self.log_fact_change(index);
        true
    }

    /// Records a heartbeat of a node's agent. Returns whether the node is known.
    pub fn heartbeat(&mut self, id: &NodeId, at: Timestamp) -> bool {
        let Some(index) = self.index_of(id) else { return false };
        let Some(row) = self.rows[index.as_usize()].as_mut() else { return false };
        row.heartbeat_at = row.heartbeat_at.max(at);
        self.journal.record(|| FleetChange::Heartbeat(row.id.clone(), at));
        self.heartbeats.push(index);
        // Without decisions the list is never drained; each node is needed only once.
        if self.heartbeats.len() > 2 * self.indexes_by_id.len() {
            self.heartbeats.sort_unstable();
            self.heartbeats.dedup();
        }
        true
    }

    /// Records how a boot ended. Returns whether the node is known.
    pub fn record_boot(&mut self, id: &NodeId, outcome: BootOutcome) -> bool {
        let Some(index) = self.index_of(id) else { return false };
        let Some(row) = self.rows[index.as_usize()].as_mut() else { return false };
        row.boots.push(outcome.clone());
        row.boots.sort_by_key(|boot| boot.at);
        keep_newest(&mut row.boots);
        self.journal.record(|| FleetChange::Boot(id.clone(), outcome));
        self.changes.push(Change::new(index, ChangeKind::Facts));
        true
    }

    /// Changes what is known of how busy a node is. Returns whether the node is known.
    pub fn set_load(&mut self, id: &NodeId, load: Option<MeasuredLoad>) -> bool {
        let Some(index) = self.index_of(id) else { return false };
        let Some(row) = self.rows[index.as_usize()].as_mut() else { return false };
        if row.load != load {
            row.load = load;
            self.journal.record(|| FleetChange::SetLoad(id.clone(), load));
            self.changes.push(Change::new(index, ChangeKind::Facts));
        }
        true
    }

    /// Changes the state of a node. Returns whether the node is known.
    pub fn set_state(&mut self, id: &NodeId, state: NodeState) -> bool {
        let Some(index) = self.index_of(id) else { return false };
        let Some(row) = self.rows[index.as_usize()].as_mut() else { return false };
        row.state = state;
        self.generation += 1;
        row.constraint_gen = self.generation;
        self.load.count(index, Some(row));
        self.journal.record(|| FleetChange::SetState(id.clone(), state));
        self.log_fact_change(index);
        true
    }

    /// Closes a node to new instances for a plan, or reopens it with what the first call returned.
    pub(crate) fn swap_state(
        &mut self,
        index: NodeIndex,
        to: (NodeState, u64),
    ) -> (NodeState, u64) {
        let Some(row) = self.rows.get_mut(index.as_usize()) else { return to };
        let was = (row.state, row.constraint_gen);
        (row.state, row.constraint_gen) = to;
        self.load.count(index, Some(row));
        self.log_fact_change(index);
        was
    }

    /// Puts every node's position in the order of ids into its column, if ids came or went.
    pub(crate) fn update_ranks(&mut self) {
        if !self.ranks_stale {
            return;
        }
        self.ranks_stale = false;
        self.rank_gen += 1;
        for (rank, &index) in self.indexes_by_id.values().enumerate() {
            self.columns.rank.set(index, u32::try_from(rank).unwrap_or(u32::MAX));
        }
    }

    fn row_from(
        &mut self,
        facts: &NodeFacts,
        rack: u32,
        zone: u32,
        old: Option<NodeRow>,
    ) -> NodeRow {
        let (used, instances, old_extra) = old.map_or_else(
            || (Used::default(), Vec::new(), Vec::new()),
            |old| (old.used, old.instances, old.extra),
        );
        let mut boots = facts.boots.clone();
        boots.sort_by_key(|boot| boot.at);
        keep_newest(&mut boots);
        // One counter for all nodes: a node that was removed and added again gets a new generation.
        self.generation += 1;
        let constraint_gen = self.generation;
        let texts = &mut self.texts;
        let labels =
            facts.labels.iter().map(|(key, value)| (texts.acquire(key), texts.acquire(value)));
        let labels = labels.collect();
        let cached_images = facts.cached_images.iter().map(|image| texts.acquire(image)).collect();
        let extra = self.extra_classes(facts, &old_extra);
        let mut row = NodeRow {
            id: facts.id.clone(),
            state: facts.state,
            capacity_type: facts.capacity_type,
            cpu_cap_mode: facts.cpu_cap_mode,
            capacity_known: facts.capacity.is_some(),
            kvm: facts.kvm,
            reserved: facts.reserved,
            headnode: facts.headnode,
            is_virtual: facts.is_virtual,
            reservoir: facts.reservoir,
            heartbeat_at: facts.heartbeat_at,
            capacity: facts.capacity.unwrap_or_default(),
            system_reserve: facts.system_reserve,
            policy_reserve: facts.policy_reserve,
            ratios: facts.ratios,
            vmm_overhead_mib: facts.vmm_overhead_mib,
            instance_limit: facts.instance_limit,
            other: facts.other,
            labels,
            profile: self.shared_profile(facts),
            zone,
            rack,
            platform: facts.platform,
            last_boot: facts.last_boot,
            next_reboot: facts.next_reboot,
            hardware_class: facts.hardware_class,
            scratch_mib: facts.scratch_mib,
            overlay_loss_ppm: facts.overlay_loss_ppm,
            cached_images,
            boots,
            watermarks: facts.watermarks,
            load: facts.load,
            extra,
            limits: Limits::default(),
            used,
            instances,
            constraint_gen,
        };
        row.limits = row.compute_limits();
        row
    }

    /// Classes the facts state, and classes still in use though no longer stated.
    fn extra_classes(&mut self, facts: &NodeFacts, old: &[ExtraClass]) -> Vec<ExtraClass> {
        let used_before = |name: Symbol| old.iter().find(|class| class.name == name);
        let mut classes: Vec<ExtraClass> = Vec::new();
        for (name, &limit) in &facts.extra {
            let name = self.texts.acquire(name);
            let used = used_before(name).map_or(0, |class| class.used);
            classes.push(ExtraClass { name, limit, used, stated: true });
        }
        for class in old {
            if class.used != 0 && !classes.iter().any(|kept| kept.name == class.name) {
                self.texts.acquire_again(class.name);
                let (name, used) = (class.name, class.used);
                classes.push(ExtraClass { name, limit: 0, used, stated: false });
            }
            self.texts.release(class.name);
        }
        classes
    }

    fn shared_profile(&mut self, facts: &NodeFacts) -> Arc<Profile> {
        let mut hasher = FxHasher::default();
        facts.traits.hash(&mut hasher);
        facts.networks.hash(&mut hasher);
        let alike = self.profiles.entry(hasher.finish()).or_default();
        let same = |profile: &Arc<Profile>| {
            profile.traits == facts.traits && profile.networks == facts.networks
        };
        if let Some(shared) = alike.iter().filter_map(Weak::upgrade).find(same) {
            return shared;
        }
        let profile =
            Arc::new(Profile { traits: facts.traits.clone(), networks: facts.networks.clone() });
        alike.retain(|shared| shared.strong_count() > 0);
        alike.push(Arc::downgrade(&profile));
        if self.profiles.len() > 2 * self.indexes_by_id.len() + 16 {
            self.profiles.retain(|_, alike| alike.iter().any(|shared| shared.strong_count() > 0));
        }
        profile
    }

    /// Takes back what an old row put into the indexes; its instances stay.
    fn unindex_facts(&mut self, index: NodeIndex, old: &NodeRow) {
        self.ranges.remove(old);
        self.domains.remove(index, old.rack, old.zone);
        for image in &old.cached_images {
            self.index.remove_cached_image(*image, index.0);
            self.texts.release(*image);
        }
        for &(key, value) in &old.labels {
            self.texts.release(key);
            self.texts.release(value);
        }
        for class in &old.extra {
            let text = self.texts.text(class.name);
            if let Some(column) = self.extra.get_mut(text) {
                column.set(index, 0);
            }
        }
    }

    fn new_index(&mut self, id: &NodeId, zone: u32) -> NodeIndex {
        let last = self.indexes_by_id.last_key_value().map(|(last, _)| last);
        let is_last = last.is_none_or(|last| last < id);
        let index = self.free_index(zone);
        self.indexes_by_id.insert(id.clone(), index);
        // The usual load is in order of ids; then no other node's rank moves.
        if is_last && !self.ranks_stale {
            let rank = u32::try_from(self.indexes_by_id.len() - 1).unwrap_or(u32::MAX);
            let above = self.highest_rank().max(rank);
            self.columns.rank.set(index, above);
        } else {
            self.ranks_stale = true;
        }
        index
    }

    fn highest_rank(&self) -> u32 {
        let mut ids = self.indexes_by_id.values().rev();
        ids.nth(1).map_or(0, |&index| self.columns.rank.get(index).saturating_add(1))
    }

    fn free_index(&mut self, zone: u32) -> NodeIndex {
        let blocks = &self.columns.zone_of_block;
        for (block, _) in blocks.iter().enumerate().rev().filter(|(_, of)| **of == zone).take(1) {
            let free = !self.columns.present.words()[block];
            if free != 0 {
                return NodeIndex::at(block, free.trailing_zeros() as usize);
            }
        }
        let reusable = self.columns.zone_of_block.iter().zip(self.columns.present.words());
        let hole = reusable.enumerate().find(|(_, (of, word))| **of == zone && **word != u64::MAX);
        if let Some((block, (_, word))) = hole {
            return NodeIndex::at(block, (!word).trailing_zeros() as usize);
        }
        self.columns.add_block(zone);
        let blocks = self.columns.zone_of_block.len();
        (0..LANES).for_each(|_| self.rows.push_empty());
        for column in self.extra.values_mut() {
            column.grow(blocks);
        }
        NodeIndex::at(blocks - 1, 0)
    }

    /// Updates all counts by location when the instances of a node change theirs.
    fn move_instances(&mut self, index: NodeIndex, to: Location) {
        let Some(row) = self.row(index) else { return };
        let from = Location { index: index.0, rack: row.rack, zone: row.zone };
        if (from.index, from.rack, from.zone) == (to.index, to.rack, to.zone) {
            return;
        }
        self.rules_gen += 1;
        let instances = self.row(index).map(|row| row.instances.clone()).unwrap_or_default();
        for number in instances {
            let Some(instance) = self.instances[number as usize].as_mut() else { continue };
            instance.host.set_index(NodeIndex(to.index));
            let instance = instance.clone();
            let tags = self.tag_sets.tags(instance.tags);
            self.index.remove(&instance, tags, from);
            self.index.add(&instance, tags, to);
            self.move_groups(&instance, from, to);
        }
    }

    /// Moves a node and its instances to an index in another zone's blocks.
    fn relocate(&mut self, old: NodeIndex, rack: u32, zone: u32) -> NodeIndex {
        let moved = self.free_index(zone);
        self.move_instances(old, Location { index: moved.0, rack, zone });
        let Some(mut row) = self.rows[old.as_usize()].clone() else { return old };
        self.acquire_texts_again(&row);
        self.vacate(old);
        row.zone = zone;
        row.rack = rack;
        self.indexes_by_id.insert(row.id.clone(), moved);
        self.columns.present.set(moved, true);
        self.domains.add(moved, rack, zone);
        self.ranges.add(&row);
        for image in &row.cached_images {
            self.index.add_cached_image(*image, moved.0);
        }
        self.rows[moved.as_usize()] = Some(row);
        self.ranks_stale = true;
        self.log_fact_change(old);
        moved
    }

    /// One more use of every text a row holds, since vacating its old index releases one.
    fn acquire_texts_again(&mut self, row: &NodeRow) {
        let labels = row.labels.iter().flat_map(|&(key, value)| [key, value]);
        let classes = row.extra.iter().map(|class| class.name);
        let symbols: Vec<Symbol> =
            labels.chain(row.cached_images.iter().copied()).chain(classes).collect();
        for symbol in symbols {
            self.texts.acquire_again(symbol);
        }
    }

    fn vacate(&mut self, index: NodeIndex) {
        let Some(row) = self.rows[index.as_usize()].take() else {
            return;
        };
        self.unindex_facts(index, &row);
        self.load.count(index, None);
        for class in &row.extra {
            self.texts.release(class.name);
        }
        for column in [
            &mut self.columns.cpu,
            &mut self.columns.memory,
            &mut self.columns.disk,
            &mut self.columns.bandwidth,
        ] {
            column.set(index, i32::MIN);
        }
        self.columns.rank.set(index, u32::MAX);
        self.columns.rack.set(index, super::NO_DOMAIN);
        for bits in [
            &mut self.columns.present,
            &mut self.columns.open,
            &mut self.columns.takes_capped,
            &mut self.columns.takes_uncapped,
        ] {
            bits.set(index, false);
        }
    }

    /// Puts a row's numbers into the columns.
    pub(super) fn refresh(&mut self, index: NodeIndex) {
        let Some(row) = self.rows[index.as_usize()].as_ref() else {
            return;
        };
        self.load.count(index, Some(row));
        let columns = &mut self.columns;
        columns.rack.set(index, row.rack);
        columns.cpu.set(index, clamp_to_lane(row.limits.cpu - row.used.cpu));
        columns.memory.set(index, clamp_to_lane(row.memory_room()));
        columns.disk.set(index, clamp_to_lane(row.limits.disk - row.used.disk));
        columns.bandwidth.set(index, clamp_to_lane(row.limits.bandwidth - row.used.bandwidth));
        columns.open.set(index, row.used.instances < row.instance_limit);
        columns.takes_capped.set(index, row.takes(true));
        columns.takes_uncapped.set(index, row.takes(false));
        for class in &row.extra {
            let room = clamp_to_lane(i64::from(class.limit) - class.used);
            let name = self.texts.text(class.name);
            if let Some(column) = self.extra.get_mut(name) {
                column.set(index, room);
            } else {
                let mut column = Column::new(0);
                column.grow(self.columns.zone_of_block.len());
                column.set(index, room);
                self.extra.insert(name.to_owned(), column);
            }
        }
    }
}

/// A room as a lane holds it. No request exceeds `i32::MAX`, so the ends lose nothing.
fn clamp_to_lane(room: i64) -> i32 {
    i32::try_from(room).unwrap_or(if room < 0 { i32::MIN } else { i32::MAX })
}

fn keep_newest(boots: &mut Vec<BootOutcome>) {
    let excess = boots.len().saturating_sub(BOOTS_KEPT);
    boots.drain(..excess);
}
