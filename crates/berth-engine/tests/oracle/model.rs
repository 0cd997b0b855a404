//! The world as it was told: facts, placed requests, groups, volumes, secrets.

use std::collections::BTreeMap;

use berth_engine::affinity::{Candidate, Rule, Topology};
use berth_engine::{
    BootOutcome, Group, InstanceId, InstanceRequest, MeasuredLoad, NodeFacts, NodeId, NodeState,
    Timestamp, Volume,
};

/// Boots that are remembered of a node.
const BOOTS_KEPT: usize = 8;

/// Everything there is.
#[derive(Clone, Debug, Default)]
pub struct World {
    /// In order of id.
    pub nodes: Vec<NodeFacts>,
    /// In the order in which they came.
    pub placed: Vec<(InstanceRequest, NodeId)>,
    pub groups: Vec<Group>,
    pub volumes: Vec<Volume>,
    pub secrets: BTreeMap<String, bool>,
    pub free_addresses: Option<u64>,
}

/// What may be promised on a node, and what is.
#[derive(Clone, Copy, Debug, Default)]
pub struct Room {
    pub limit: i128,
    pub used: i128,
}

impl Room {
    pub fn free(self) -> i128 {
        self.limit - self.used
    }
}

impl World {
    pub fn put_node(&mut self, facts: NodeFacts) {
        self.nodes.retain(|node| node.id != facts.id);
        self.nodes.push(facts);
        self.nodes.sort_by(|a, b| a.id.cmp(&b.id));
    }

    pub fn node(&self, id: &NodeId) -> Option<&NodeFacts> {
        self.nodes.iter().find(|node| node.id == *id)
    }

    fn node_mut(&mut self, id: &NodeId) -> Option<&mut NodeFacts> {
        self.nodes.iter_mut().find(|node| node.id == *id)
    }

    /// Only an empty node can be removed.
    pub fn remove_node(&mut self, id: &NodeId) -> bool {
        let there = self.node(id).is_some();
        let goes = there && self.on(id).count() == 0;
        if goes {
            self.nodes.retain(|node| node.id != *id);
        }
        goes
    }

    pub fn heartbeat(&mut self, id: &NodeId, at: Timestamp) {
        if let Some(node) = self.node_mut(id) {
            node.heartbeat_at = node.heartbeat_at.max(at);
        }
    }

    pub fn set_load(&mut self, id: &NodeId, load: Option<MeasuredLoad>) {
        if let Some(node) = self.node_mut(id) {
            node.load = load;
        }
    }

    pub fn record_boot(&mut self, id: &NodeId, outcome: BootOutcome) {
        if let Some(node) = self.node_mut(id) {
            node.boots.push(outcome);
            node.boots.sort_by_key(|boot| boot.at);
            while node.boots.len() > BOOTS_KEPT {
                node.boots.remove(0);
            }
        }
    }

    pub fn set_state(&mut self, id: &NodeId, state: NodeState) {
        if let Some(node) = self.node_mut(id) {
            node.state = state;
        }
    }

    pub fn put_group(&mut self, group: Group) {
        self.groups.retain(|other| other.id != group.id);
        self.groups.push(group);
    }

    pub fn group(&self, id: &str) -> Option<&Group> {
        self.groups.iter().find(|group| group.id == id)
    }

    pub fn put_volume(&mut self, volume: Volume) {
        self.volumes.retain(|other| other.id != volume.id);
        self.volumes.push(volume);
    }

    pub fn volumes_of(&self, request: &InstanceRequest) -> Vec<&Volume> {
        let named = |id: &String| self.volumes.iter().find(|volume| volume.id == *id);
        request.volumes.iter().filter_map(named).collect()
    }

    pub fn claim(&mut self, request: &InstanceRequest, node: &NodeId) {
        self.free_addresses = self.free_addresses.map(|free| free.saturating_sub(1));
        for volume in &mut self.volumes {
            if request.volumes.contains(&volume.id) {
                volume.attached_to.get_or_insert(request.id);
            }
        }
        self.placed.push((request.clone(), node.clone()));
    }

    pub fn release(&mut self, id: InstanceId) -> Option<(InstanceRequest, NodeId)> {
        for volume in &mut self.volumes {
            if volume.attached_to == Some(id) {
                volume.attached_to = None;
            }
        }
        let place = self.placed.iter().position(|(request, _)| request.id == id)?;
        self.free_addresses = self.free_addresses.map(|free| free.saturating_add(1));
        Some(self.placed.remove(place))
    }

    /// What runs on a node.
    pub fn on<'a>(&'a self, id: &'a NodeId) -> impl Iterator<Item = &'a InstanceRequest> {
        let here = self.placed.iter().filter(move |(_, node)| node == id);
        here.map(|(request, _)| request)
    }

    fn sum(&self, node: &NodeFacts, of: impl Fn(&InstanceRequest) -> u32) -> i128 {
        self.on(&node.id).map(|request| i128::from(of(request))).sum()
    }

    pub fn cpu(&self, node: &NodeFacts) -> Room {
        let (have, keep) = (node.capacity.unwrap_or_default(), node.system_reserve);
        let left = after_others(
            have.cpu_milli.into(),
            keep.cpu_milli.into(),
            node.other.cpu_milli.into(),
            node.other.cpu_unit_milli.into(),
        );
        Room {
            limit: promised(left, node.ratios.cpu_permille),
            used: self.sum(node, |request| request.resources.cpu_milli),
        }
    }

    /// The hypervisor's overhead counts for every instance that is there.
    pub fn memory(&self, node: &NodeFacts) -> Room {
        let (have, keep) = (node.capacity.unwrap_or_default(), node.system_reserve);
        let left_kib = after_others(
            i128::from(have.memory_mib) * 1024,
            i128::from(keep.memory_mib) * 1024,
            node.other.memory_kib.into(),
            i128::from(node.other.memory_unit_mib) * 1024,
        );
        let overhead = i128::from(node.vmm_overhead_mib) * self.count_on(node);
        Room {
            limit: promised(left_kib.div_euclid(1024), node.ratios.memory_permille),
            used: self.sum(node, |request| request.resources.memory_mib) + overhead,
        }
    }

    pub fn disk(&self, node: &NodeFacts) -> Room {
        let (have, keep) = (node.capacity.unwrap_or_default(), node.system_reserve);
        let left = i128::from(have.disk_mib) - i128::from(keep.disk_mib);
        Room {
            limit: promised(left, node.ratios.disk_permille),
            used: self.sum(node, |request| request.resources.disk_mib),
        }
    }

    pub fn bandwidth(&self, node: &NodeFacts) -> Room {
        let (have, keep) = (node.capacity.unwrap_or_default(), node.system_reserve);
        Room {
            limit: i128::from(have.bandwidth_mbps) - i128::from(keep.bandwidth_mbps),
            used: self.sum(node, |request| request.resources.bandwidth_mbps),
        }
    }

    pub fn class(&self, node: &NodeFacts, name: &str) -> Room {
        Room {
            limit: node.extra.get(name).copied().unwrap_or(0).into(),
            used: self.sum(node, |request| request.extra.get(name).copied().unwrap_or(0)),
        }
    }

    pub fn count_on(&self, node: &NodeFacts) -> i128 {
        self.sum(node, |_| 1)
    }

    /// The domain a node is in; a rack belongs to its zone.
    pub fn domain(&self, id: &NodeId, topology: Topology) -> Option<String> {
        let node = self.node(id)?;
        match topology {
            Topology::Node => Some(id.to_string()),
            Topology::Rack => node.rack.as_ref().map(|rack| format!("{:?} {rack}", node.zone)),
            Topology::Zone => node.zone.clone(),
        }
    }

    /// How many of some instances are in the same domain as a node; none if it is in none.
    pub fn in_domain(
        &self,
        node: &NodeFacts,
        topology: Topology,
        counts: impl Fn(&InstanceRequest) -> bool,
    ) -> i64 {
        let Some(here) = self.domain(&node.id, topology) else {
            return 0;
        };
        let there = |(request, at): &&(InstanceRequest, NodeId)| {
            counts(request) && self.domain(at, topology).as_ref() == Some(&here)
        };
        self.placed.iter().filter(there).map(|_| 1).sum()
    }
}

/// Whether a rule is about an instance.
pub fn selects(rule: &Rule, instance: &InstanceRequest) -> bool {
    let tags: Vec<(&str, &str)> =
        instance.tags.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
    rule.selects(&Candidate {
        id: &instance.id.to_string(),
        name: instance.name.as_deref(),
        workload: instance.workload.as_deref(),
        image: instance.image.as_deref(),
        tags: &tags,
    })
}

/// Whole units left after the reserve and what others use, charged in whole units on the sum.
fn after_others(total: i128, system: i128, raw: i128, unit: i128) -> i128 {
    let unit = unit.max(1);
    let left = total - system;
    if left < 0 {
        return left;
    }
    let whole = left / unit * unit;
    let margin = left - whole;
    let charged_units = ((raw - margin).max(0) + unit - 1) / unit;
    whole - charged_units * unit
}

/// A deficit is real and is not multiplied.
fn promised(left: i128, permille: u32) -> i128 {
    if left < 0 { left } else { left * i128::from(permille) / 1000 }
}
