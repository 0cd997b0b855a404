//! Claims: one instance on one node, with all it holds there.
//!
//! A claim is recorded without checks: whether it is allowed is decided by the planner. Adding and
//! removing the same claims in any order leaves every column and posting unchanged.

use std::sync::Arc;

use thiserror::Error;

use super::changes::{Change, ChangeKind, Claimant};
use super::columns::NodeIndex;
use super::index::Location;
use super::rows::{ExtraClass, Host, InstanceRow, NodeRow, RareAttributes};
use super::{Fleet, FleetChange, Symbol};
use crate::model::{Amounts, InstanceId, InstanceRequest, NodeId};

/// A claim that cannot be recorded.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ClaimError {
    /// The node is not known.
    #[error("node {0} is not known; register it first")]
    UnknownNode(NodeId),
    /// The instance already has a claim.
    #[error("instance {id} is already on node {node}; release it first")]
    AlreadyPlaced {
        /// The instance.
        id: InstanceId,
        /// Where it is.
        node: NodeId,
    },
}

/// An instance that is detached from its node for a plan. It must be attached again.
#[must_use]
#[derive(Debug)]
pub(crate) struct DetachedInstance(InstanceRow);

impl Fleet {
    /// Records that an instance holds its resources on a node.
    ///
    /// # Errors
    /// When the node is unknown or the instance is already placed; nothing has changed then.
    pub fn claim(&mut self, request: &InstanceRequest, node: &NodeId) -> Result<(), ClaimError> {
        let index = self.claimable(request, node)?;
        self.claim_at(request, index);
        self.journal.record(|| FleetChange::Claim(Arc::new(request.clone()), node.clone()));
        Ok(())
    }

    /// [`Fleet::claim`] of a request that is shared, and so need not be copied for followers.
    ///
    /// # Errors
    /// As [`Fleet::claim`].
    pub fn claim_shared(
        &mut self,
        request: &Arc<InstanceRequest>,
        node: &NodeId,
    ) -> Result<(), ClaimError> {
        let index = self.claimable(request, node)?;
        self.claim_at(request, index);
        self.journal.record(|| FleetChange::Claim(Arc::clone(request), node.clone()));
        Ok(())
    }

    /// The place of a node, if the instance may be recorded there.
    fn claimable(&self, request: &InstanceRequest, node: &NodeId) -> Result<NodeIndex, ClaimError> {
        let index = self.index_of(node).ok_or_else(|| ClaimError::UnknownNode(node.clone()))?;
        match self.node_of(request.id) {
            Some(at) => Err(ClaimError::AlreadyPlaced { id: request.id, node: at.clone() }),
            None => Ok(index),
        }
    }

    pub(crate) fn claim_at(&mut self, request: &InstanceRequest, index: NodeIndex) {
        if self.row(index).is_none() {
            return;
        }
        let instance = self.instance_row(request, index);
        self.attach_volumes(&instance);
        let claimant = Claimant::new(&request.tenant, request.workload.as_deref());
        self.insert_instance(instance, index, claimant);
    }

    /// Records a row on its node, everywhere but in its volumes and texts.
    fn insert_instance(&mut self, instance: InstanceRow, index: NodeIndex, claimant: Claimant) {
        let Some(place) = self.place(index) else { return };
        let number = match self.free_instances.pop() {
            Some(number) => number,
            None => {
                self.instances.push_empty();
                u32::try_from(self.instances.len() - 1).unwrap_or(u32::MAX)
            }
        };
        self.free_addresses = self.free_addresses.map(|free| free.saturating_sub(1));
        self.index.add(&instance, self.tag_sets.tags(instance.tags), place);
        self.join_groups(&instance, place);
        if let Some(row) = self.rows[index.as_usize()].as_mut() {
            charge(row, &instance, 1);
            row.instances.push(number);
        }
        self.shapes.add(&instance.resources);
        let id = instance.id;
        self.instances[number as usize] = Some(instance);
        self.instances_by_id.insert(id, number, &self.instances);
        self.refresh(index);
        self.changes.push(Change::new(index, ChangeKind::Claim(claimant)));
    }

    /// Changes what an instance is charged. Returns whether it is placed.
    pub fn resize(&mut self, id: InstanceId, resources: Amounts) -> bool {
        let Some(number) = self.instances_by_id.find(id, &self.instances) else { return false };
        let Some(instance) = self.instances[number as usize].as_mut() else { return false };
        let (index, old) = (instance.host.index(), instance.clone());
        instance.resources = resources;
        self.journal.record(|| FleetChange::Resize(id, resources));
        let claimant = (instance.tenant, instance.workload);
        if let Some(row) = self.rows[index.as_usize()].as_mut() {
            row.used.charge(&old.resources, old.host.is_cpu_capped(), -1);
            row.used.charge(&resources, old.host.is_cpu_capped(), 1);
        }
        self.shapes.remove(&old.resources);
        self.shapes.add(&resources);
        self.refresh(index);
        let workload = claimant.1.map(|workload| self.texts.text(workload));
        let claimant = Claimant::new(self.texts.text(claimant.0), workload);
        self.changes.push(Change::new(index, ChangeKind::Claim(claimant)));
        true
    }

    /// Takes an instance off its node. Returns the node it was on.
    pub fn release(&mut self, id: InstanceId) -> Option<NodeId> {
        let node = self.undo_claim(id)?;
        if !self.leaving.is_empty() {
            self.leaving.remove(&id);
        }
        self.journal.record(|| FleetChange::Release(id));
        Some(node)
    }

    /// Undoes what a plan claimed while it searched; followers never learn of it.
    pub(crate) fn undo_claim(&mut self, id: InstanceId) -> Option<NodeId> {
        let instance = self.remove_instance(id)?;
        self.detach_volumes(&instance);
        self.release_texts(&instance);
        self.row(instance.host.index()).map(|row| row.id.clone())
    }

    /// Takes a row off its node, everywhere but in its volumes and texts.
    fn remove_instance(&mut self, id: InstanceId) -> Option<InstanceRow> {
        let number = self.instances_by_id.remove(id, &self.instances)?;
        let instance = self.instances[number as usize].take()?;
        let index = instance.host.index();
        let place = self.place(index)?;
        self.free_addresses = self.free_addresses.map(|free| free.saturating_add(1));
        self.index.remove(&instance, self.tag_sets.tags(instance.tags), place);
        self.leave_groups(&instance, place);
        let row = self.rows[index.as_usize()].as_mut()?;
        charge(row, &instance, -1);
        if let Some(at) = row.instances.iter().position(|&other| other == number) {
            row.instances.swap_remove(at);
        }
        self.shapes.remove(&instance.resources);
        self.refresh(index);
        self.drop_unused_classes(index);
        let workload = instance.workload.map(|workload| self.texts.text(workload));
        let claimant = Claimant::new(self.texts.text(instance.tenant), workload);
        self.changes.push(Change::new(index, ChangeKind::Claim(claimant)));
        self.free_instances.push(number);
        Some(instance)
    }

    /// Takes an instance off its node for a while: for plans, which put it down again, here or
    /// elsewhere. It keeps its volumes meanwhile. Unlike a release and a new claim this needs no
    /// request, so the instance comes back exactly as it was recorded.
    pub(crate) fn detach_instance(&mut self, id: InstanceId) -> Option<DetachedInstance> {
        self.remove_instance(id).map(DetachedInstance)
    }

    /// Puts a lifted instance on a node.
    pub(crate) fn attach_instance(&mut self, detached: DetachedInstance, index: NodeIndex) {
        let DetachedInstance(mut instance) = detached;
        instance.host.set_index(index);
        if let Some(rare) = &instance.rare {
            self.add_extra_classes(rare, index);
        }
        let workload = instance.workload.map(|workload| self.texts.text(workload));
        let claimant = Claimant::new(self.texts.text(instance.tenant), workload);
        self.insert_instance(instance, index, claimant);
    }

    fn place(&self, index: NodeIndex) -> Option<Location> {
        let row = self.row(index)?;
        Some(Location { index: index.0, rack: row.rack, zone: row.zone })
    }

    fn instance_row(&mut self, request: &InstanceRequest, index: NodeIndex) -> InstanceRow {
        let apart_rules = self.resident_rules_of(request);
        let texts = &mut self.texts;
        let tags = request.tags.iter();
        let tags: Vec<(Symbol, Symbol)> =
            tags.map(|(key, value)| (texts.acquire(key), texts.acquire(value))).collect();
        // The set holds one use of each text; a set that is there already has its own.
        if self.tag_sets.find(&tags).is_some() {
            for symbol in tags.iter().flat_map(|&(key, value)| [key, value]) {
                texts.release(symbol);
            }
        }
        let tag_set = self.tag_sets.acquire(&tags);
        let rare = RareAttributes {
            name: request.name.as_deref().map(|name| texts.acquire(name)),
            extra: (request.extra.iter().filter(|(_, n)| **n != 0))
                .map(|(name, &n)| (texts.acquire(name), n))
                .collect(),
            groups: request.groups.iter().map(|group| texts.acquire(group)).collect(),
            apart_rules,
            volumes: request.volumes.iter().map(|volume| texts.acquire(volume)).collect(),
        };
        self.add_extra_classes(&rare, index);
        InstanceRow {
            id: request.id,
            tenant: self.texts.acquire(&request.tenant),
            workload: request.workload.as_deref().map(|name| self.texts.acquire(name)),
            image: request.image.as_deref().map(|name| self.texts.acquire(name)),
            host: Host::new(index, request.cpu_capped),
            priority: request.priority,
            resources: request.resources,
            tags: tag_set,
            rare: (rare != RareAttributes::default()).then(|| Box::new(rare)),
        }
    }

    /// Makes room in the row for classes the node never stated: reality is recorded, not refused.
    fn add_extra_classes(&mut self, rare: &RareAttributes, index: NodeIndex) {
        for &(name, _) in &rare.extra {
            let known = |row: &NodeRow| row.extra.iter().any(|class| class.name == name);
            if self.row(index).is_some_and(|row| !known(row)) {
                self.texts.acquire_again(name);
                if let Some(row) = self.rows[index.as_usize()].as_mut() {
                    row.extra.push(ExtraClass { name, limit: 0, used: 0, stated: false });
                }
            }
        }
    }

    /// Forgets classes that no fact names and no instance uses any more.
    fn drop_unused_classes(&mut self, index: NodeIndex) {
        let Some(row) = self.rows[index.as_usize()].as_mut() else { return };
        let is_unused = |class: &mut ExtraClass| !class.stated && class.used == 0;
        for class in row.extra.extract_if(.., is_unused).collect::<Vec<_>>() {
            if let Some(column) = self.extra.get_mut(self.texts.text(class.name)) {
                column.set(index, 0);
            }
            self.texts.release(class.name);
        }
    }

    fn release_texts(&mut self, instance: &InstanceRow) {
        let texts = &mut self.texts;
        let tags = self.tag_sets.tags(instance.tags).iter();
        let tags: Vec<Symbol> = tags.flat_map(|&(key, value)| [key, value]).collect();
        if self.tag_sets.release(instance.tags) {
            for symbol in tags {
                texts.release(symbol);
            }
        }
        texts.release(instance.tenant);
        let mut rest: Vec<Symbol> = instance.workload.into_iter().chain(instance.image).collect();
        if let Some(rare) = &instance.rare {
            rest.extend(rare.name);
            rest.extend(rare.extra.iter().map(|&(name, _)| name));
            rest.extend(rare.groups.iter().chain(&rare.volumes));
        }
        for symbol in rest {
            texts.release(symbol);
        }
    }

    fn join_groups(&mut self, instance: &InstanceRow, place: Location) {
        for group in instance.rare.iter().flat_map(|rare| &rare.groups) {
            if let Some(row) = self.groups.get_mut(self.texts.text(*group)) {
                row.presence.add(place.index, place.rack, place.zone);
            }
        }
    }

    fn leave_groups(&mut self, instance: &InstanceRow, place: Location) {
        for group in instance.rare.iter().flat_map(|rare| &rare.groups) {
            if let Some(row) = self.groups.get_mut(self.texts.text(*group)) {
                row.presence.remove(place.index, place.rack, place.zone);
            }
        }
    }

    pub(super) fn move_groups(&mut self, instance: &InstanceRow, from: Location, to: Location) {
        self.leave_groups(instance, from);
        self.join_groups(instance, to);
    }

    fn attach_volumes(&mut self, instance: &InstanceRow) {
        for volume in instance.rare.iter().flat_map(|rare| &rare.volumes) {
            if let Some(volume) = self.volumes.get_mut(self.texts.text(*volume))
                && volume.is_for(self.texts.text(instance.tenant))
            {
                // The first user keeps it: two claims on one volume are an inconsistency, and
                // releasing the second must not make the volume look free.
                volume.attached_to.get_or_insert(instance.id);
            }
        }
    }

    fn detach_volumes(&mut self, instance: &InstanceRow) {
        for volume in instance.rare.iter().flat_map(|rare| &rare.volumes) {
            if let Some(volume) = self.volumes.get_mut(self.texts.text(*volume))
                && volume.attached_to == Some(instance.id)
            {
                volume.attached_to = None;
            }
        }
    }
}

impl NodeRow {
    /// The row as it would be without an instance, for what-ifs.
    pub(crate) fn uncharge(&mut self, instance: &InstanceRow) {
        charge(self, instance, -1);
    }

    /// Adds what an instance uses.
    pub(crate) fn charge(&mut self, instance: &InstanceRow) {
        charge(self, instance, 1);
    }
}

/// Adds (`sign` 1) or takes off (`sign` -1) what an instance uses.
fn charge(row: &mut NodeRow, instance: &InstanceRow, sign: i64) {
    row.used.charge(&instance.resources, instance.host.is_cpu_capped(), sign);
    for &(name, amount) in instance.rare.iter().flat_map(|rare| &rare.extra) {
        if let Some(class) = row.extra.iter_mut().find(|class| class.name == name) {
            class.used += sign * i64::from(amount);
        }
    }
}
