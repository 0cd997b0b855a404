//! The state of a rebalance plan in the making: which instances may move, and where they are.
//!
//! The fleet itself holds where instances are; this adds what the fleet does not know. Whether a node
//! can take an instance is decided by the engine, never here.

use rustc_hash::FxHashMap;

use super::measure::{Load, PPM_OF_NODE, Scale, ppm};
use super::{RebalanceGoal, RebalanceInstance, RebalanceMeasure, RebalanceMove};
use crate::affinity::{Operator, Strength, Topology};
use crate::elastic::{Free, Size};
use crate::engine::Engine;
use crate::filter::passes_neighbour_tests;
use crate::fleet::{InstanceRow, NO_DOMAIN, NodeIndex, NodeRow};
use crate::model::{GroupKind, InstanceId, InstanceRequest, NodeId, PPM, Timestamp};
use crate::plan::evacuate::replacement;
use crate::prepared_request::PreparedRequest;

/// An instance that may move.
pub(super) struct Movable {
    pub(super) id: InstanceId,
    home: NodeIndex,
    pub(super) at: NodeIndex,
    /// The same request under another id: both exist during the move.
    pub(super) replacement: InstanceRequest,
    size: Size,
    pub(super) cost: u64,
    pub(super) copy_mib: u32,
    pub(super) priority: i32,
}

/// An instance with rules about others, which must still hold after another instance moved.
struct DependentInstance {
    id: InstanceId,
    request: InstanceRequest,
    /// The widest scope of its rules.
    scope: Topology,
}

/// What a plan knows about a node in addition to its row.
struct NodeEntry {
    in_service: bool,
    below_watermark: Free,
    /// Instances here that may still move.
    instances: Vec<usize>,
    was_empty: bool,
}

/// A plan in the making.
pub(super) struct RebalanceState<'e> {
    pub(super) engine: &'e mut Engine,
    pub(super) movables: Vec<Movable>,
    pub(super) scale: Scale,
    nodes: Vec<NodeEntry>,
    /// By tenant, since rules concern only instances of the same tenant.
    dependents: FxHashMap<String, Vec<DependentInstance>>,
    moves: Vec<RebalanceMove>,
    now: Timestamp,
}

impl<'e> RebalanceState<'e> {
    pub(super) fn new(
        engine: &'e mut Engine,
        instances: &[RebalanceInstance],
        below_watermark: &dyn Fn(&NodeId) -> Free,
        now: Timestamp,
    ) -> Self {
        engine.catch_up(now);
        let mut nodes: Vec<NodeEntry> = Vec::new();
        let present = engine.fleet.columns().present.words().len() * crate::fleet::LANES;
        for index in (0u32..).take(present).map(NodeIndex) {
            let row = engine.fleet.row(index).filter(|_| engine.is_eligible(index));
            nodes.push(NodeEntry {
                in_service: row.is_some(),
                below_watermark: row
                    .map_or(Free { cpu: 0, memory: 0 }, |row| below_watermark(&row.id)),
                instances: Vec::new(),
                was_empty: row.is_none_or(|row| row.instances.is_empty()),
            });
        }
        let mut instances: Vec<&RebalanceInstance> = instances.iter().collect();
        instances.sort_by_key(|instance| instance.id);
        instances.dedup_by_key(|instance| instance.id);
        let mut movables = Vec::new();
        let mut dependents: FxHashMap<String, Vec<DependentInstance>> = FxHashMap::default();
        for instance in instances {
            let Some(row) = engine.fleet.instance(instance.id) else { continue };
            if let Some(dependent) = dependent(engine, row, instance) {
                dependents.entry(dependent.request.tenant.clone()).or_default().push(dependent);
            }
            if let Some(movable) =
                movable(engine, row, instance).filter(|m| nodes[m.at.as_usize()].in_service)
            {
                nodes[movable.at.as_usize()].instances.push(movables.len());
                movables.push(movable);
            }
        }
        let mut state = Self {
            engine,
            movables,
            scale: Scale::default(),
            nodes,
            dependents,
            moves: Vec::new(),
            now,
        };
        state.scale = Scale::of(state.in_service().map(|(_, row)| Load::of(row)));
        state
    }

    /// The nodes that take part, in order of id.
    pub(super) fn in_service(&self) -> impl Iterator<Item = (NodeIndex, &NodeRow)> {
        let fleet = &self.engine.fleet;
        let indexes =
            fleet.nodes_in_order().filter(|(_, index)| self.nodes[index.as_usize()].in_service);
        indexes.filter_map(|(_, index)| fleet.row(index).map(|row| (index, row)))
    }

    /// Instances on a node that may still move.
    pub(super) fn instances(&self, index: NodeIndex) -> &[usize] {
        &self.nodes[index.as_usize()].instances
    }

    /// Whether some instance on a node cannot be moved by this plan, or not again.
    pub(super) fn is_pinned(&self, index: NodeIndex) -> bool {
        let there = self.engine.fleet.row(index).map_or(0, |row| row.instances.len());
        there > self.instances(index).len()
    }

    pub(super) fn is_empty(&self, index: NodeIndex) -> bool {
        self.engine.fleet.row(index).is_none_or(|row| row.instances.is_empty())
    }

    pub(super) fn load(&self, index: NodeIndex) -> Option<Load> {
        self.engine.fleet.row(index).map(Load::of)
    }

    /// The place of a node in the order of ids.
    pub(super) fn rank(&self, index: NodeIndex) -> u32 {
        self.engine.fleet.columns().rank.get(index)
    }

    pub(super) fn name(&self, index: NodeIndex) -> NodeId {
        self.engine.fleet.row(index).map_or_else(|| NodeId::new(""), |row| row.id.clone())
    }

    pub(super) fn moves_made(&self) -> usize {
        self.moves.len()
    }

    /// What an instance takes of a node, the hypervisor's overhead included.
    pub(super) fn size_on(&self, place: usize, index: NodeIndex) -> Size {
        let overhead = self.engine.fleet.row(index).map_or(0, |row| row.vmm_overhead_mib);
        self.movables[place].size.plus(Size::new(0, overhead))
    }

    /// What an instance takes of any node at least.
    pub(super) fn size_of(&self, place: usize) -> Size {
        self.movables[place].size
    }

    /// Nodes other than its own that can take an instance while it still runs and stay below their
    /// watermark with it, in order of id.
    pub(super) fn destinations(&mut self, place: usize, onto_empty: bool) -> Vec<NodeIndex> {
        let mut indexes = self.engine.candidates(&self.movables[place].replacement, self.now);
        indexes.retain(|&index| {
            index != self.movables[place].at
                && self.nodes[index.as_usize()].in_service
                && (onto_empty || !self.is_empty(index))
                && self.stays_below_watermark(place, index)
                && !self.crowds_replicas(place, index)
                && !self.leaves_group_domain(place, index)
        });
        indexes
    }

    /// Whether a node stays within its watermark with one more instance: CPU may be at the mark,
    /// memory must be below it, as in `Account::must_shed`.
    fn stays_below_watermark(&self, place: usize, index: NodeIndex) -> bool {
        let free = self.nodes[index.as_usize()].below_watermark;
        let left = free.recharged(Size::ZERO, self.size_on(place, index));
        left.cpu >= 0 && left.memory > 0
    }

    /// Whether a node, or its rack or zone, would hold more replicas of the instance's workload than
    /// the one that it leaves: that would undo the spread of their placement.
    fn crowds_replicas(&self, place: usize, to: NodeIndex) -> bool {
        let (fleet, movable) = (&self.engine.fleet, &self.movables[place]);
        let texts = fleet.texts();
        let workload = movable.replacement.workload.as_deref().and_then(|name| texts.find(name));
        let tenant = texts.find(&movable.replacement.tenant);
        let presence = tenant.zip(workload).and_then(|(o, w)| fleet.index().workload(o, w));
        let Some(presence) = presence else { return false };
        let levels = [
            (Topology::Node, &presence.nodes),
            (Topology::Rack, &presence.racks),
            (Topology::Zone, &presence.zones),
        ];
        levels.into_iter().any(|(topology, counts)| {
            let [from, to] = [movable.at, to].map(|index| fleet.domain(index, topology));
            let known = topology == Topology::Node || (from != NO_DOMAIN && to != NO_DOMAIN);
            known && from != to && counts.count(to) >= counts.count(from)
        })
    }

    /// Whether it would leave the domain of a group that must be together. The engine allows any
    /// domain with members, and if they are in two already, the remaining ones may be separated.
    fn leaves_group_domain(&self, place: usize, to: NodeIndex) -> bool {
        let (fleet, movable) = (&self.engine.fleet, &self.movables[place]);
        let groups = movable.replacement.groups.iter().filter_map(|id| fleet.group(id));
        let mut homes = groups
            .filter(|group| group.kind == GroupKind::Together && group.strength == Strength::Hard);
        homes.any(|group| {
            fleet.domain(movable.at, group.topology) != fleet.domain(to, group.topology)
        })
    }

    /// Moves an instance if the rules hold afterwards: its own once it has left its old node, and
    /// those of instances that depend on it.
    pub(super) fn try_move(&mut self, place: usize, to: NodeIndex) -> bool {
        let from = self.movables[place].at;
        let affected = self.affected_dependents(place, from, to);
        let satisfied: Vec<usize> =
            affected.into_iter().filter(|&dependent| self.rules_hold(place, dependent)).collect();
        if !self.rules_allow(place, to) {
            return false;
        }
        self.relocate(place, to);
        if satisfied.iter().all(|&dependent| self.rules_hold(place, dependent)) {
            self.nodes[from.as_usize()].instances.retain(|&instance| instance != place);
            return true;
        }
        self.relocate(place, from);
        false
    }

    /// Takes a move back.
    pub(super) fn undo(&mut self, place: usize) {
        let home = self.movables[place].home;
        self.relocate(place, home);
        self.nodes[home.as_usize()].instances.push(place);
    }

    /// Notes a move that was made.
    pub(super) fn record_move(&mut self, place: usize, gain: u64, why: String) {
        let movable = &self.movables[place];
        self.moves.push(RebalanceMove {
            instance: movable.id,
            from: self.name(movable.home),
            to: self.name(movable.at),
            cost: movable.cost,
            gain,
            why,
        });
    }

    fn relocate(&mut self, place: usize, to: NodeIndex) {
        let from = self.movables[place].at;
        let (here, there) = (self.size_on(place, from), self.size_on(place, to));
        for (index, was, is) in [(from, here, Size::ZERO), (to, Size::ZERO, there)] {
            let node = &mut self.nodes[index.as_usize()];
            node.below_watermark = node.below_watermark.recharged(was, is);
        }
        if let Some(detached) = self.engine.fleet.detach_instance(self.movables[place].id) {
            self.engine.fleet.attach_instance(detached, to);
        }
        self.movables[place].at = to;
    }

    /// Whether an instance may be on a node once it has left its old one. Then it has its own id again,
    /// which rules may name.
    fn rules_allow(&mut self, place: usize, to: NodeIndex) -> bool {
        let (node, movable) = (self.name(to), &mut self.movables[place]);
        let Some(detached) = self.engine.fleet.detach_instance(movable.id) else { return false };
        let spare = std::mem::replace(&mut movable.replacement.id, movable.id);
        let allowed = self.engine.check(&movable.replacement, &node, self.now).is_ok();
        movable.replacement.id = spare;
        self.engine.fleet.attach_instance(detached, movable.at);
        allowed
    }

    /// The tenant's instances whose rules may be affected by a move.
    fn affected_dependents(&self, place: usize, from: NodeIndex, to: NodeIndex) -> Vec<usize> {
        let Some(dependents) = self.dependents.get(&self.movables[place].replacement.tenant) else {
            return Vec::new();
        };
        let fleet = &self.engine.fleet;
        let sees = |dependent: &DependentInstance| {
            let at = fleet
                .instance(dependent.id)
                .map(|row| fleet.domain(row.host.index(), dependent.scope));
            [from, to].iter().any(|index| at == Some(fleet.domain(*index, dependent.scope)))
        };
        let near = dependents.iter().enumerate().filter(|(_, dependent)| sees(dependent));
        near.map(|(number, _)| number).collect()
    }

    /// Whether the rules of a dependent instance hold where it is.
    fn rules_hold(&mut self, place: usize, dependent: usize) -> bool {
        let tenant = &self.movables[place].replacement.tenant;
        let Some(dependent) = self.dependents.get(tenant).and_then(|of| of.get(dependent)) else {
            return true;
        };
        let Some(at) = self.engine.fleet.instance(dependent.id).map(|row| row.host.index()) else {
            return true;
        };
        let Some(detached) = self.engine.fleet.detach_instance(dependent.id) else { return true };
        let prepared = PreparedRequest::new(
            &dependent.request,
            &self.engine.policy,
            &self.engine.fleet,
            self.now,
        );
        let satisfied = passes_neighbour_tests(&prepared, at);
        self.engine.fleet.attach_instance(detached, at);
        satisfied
    }

    /// The exact measure of spreading.
    pub(super) fn unevenness(&self) -> u128 {
        self.in_service().map(|(_, row)| self.scale.term(Load::of(row))).sum()
    }

    pub(super) fn measure(&self, goal: RebalanceGoal) -> RebalanceMeasure {
        let count = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
        let nodes = count(self.in_service().count());
        let used = || self.in_service().filter(|(_, row)| !row.instances.is_empty());
        let in_use = count(used().count());
        let shares = || used().map(|(_, row)| ppm(Load::of(row).larger_share()));
        let value_ppm = match goal {
            RebalanceGoal::Consolidate => {
                (u64::from(in_use) * u64::from(PPM)).checked_div(nodes.into()).unwrap_or(0)
            }
            RebalanceGoal::Spread => {
                u64::try_from(self.unevenness() / PPM_OF_NODE).unwrap_or(u64::MAX)
            }
        };
        let (fullest_ppm, emptiest_ppm) =
            (shares().max().unwrap_or(0), shares().min().unwrap_or(0));
        RebalanceMeasure { value_ppm, fullest_ppm, emptiest_ppm, nodes, in_use }
    }

    /// Nodes that hold nothing any more, in order of id.
    pub(super) fn emptied(&self) -> Vec<NodeId> {
        let empty = self.in_service().filter(|(_, row)| row.instances.is_empty());
        let emptied = empty.filter(|(index, _)| !self.nodes[index.as_usize()].was_empty);
        emptied.map(|(_, row)| row.id.clone()).collect()
    }

    /// Moves every instance back and returns the planned moves.
    pub(super) fn finish(mut self) -> Vec<RebalanceMove> {
        for place in 0..self.movables.len() {
            if self.movables[place].at != self.movables[place].home {
                self.undo(place);
            }
        }
        self.moves
    }
}

/// An instance that may move, if it can.
fn movable(engine: &Engine, row: &InstanceRow, instance: &RebalanceInstance) -> Option<Movable> {
    let has_volumes = row.rare.as_ref().is_some_and(|rare| !rare.volumes.is_empty());
    if !instance.movable || has_volumes || !instance.request.volumes.is_empty() {
        return None;
    }
    let replacement = request_as_charged(engine, row, instance);
    engine.validate(&replacement).ok()?;
    Some(Movable {
        id: row.id,
        home: row.host.index(),
        at: row.host.index(),
        replacement,
        size: Size::of(&row.resources),
        cost: instance.cost(),
        copy_mib: instance.copy_mib,
        priority: instance.priority,
    })
}

/// An instance whose rules may be broken by the move of another although that one's own rules hold. A
/// hard `!=` and groups bind both sides, so only one-sided rules need to be checked.
fn dependent(
    engine: &Engine,
    row: &InstanceRow,
    instance: &RebalanceInstance,
) -> Option<DependentInstance> {
    let rules = instance.request.affinity.iter();
    let together = rules.filter(|rule| rule.is_hard() && rule.operator() == Operator::Same);
    let hints = instance.request.locality.strict.then_some(Topology::Node);
    let scope = together.map(crate::affinity::Rule::scope).chain(hints).max()?;
    let request = InstanceRequest { id: row.id, ..request_as_charged(engine, row, instance) };
    Some(DependentInstance { id: row.id, request, scope })
}

/// The request for a replacement, with what the instance is charged now.
fn request_as_charged(
    engine: &Engine,
    row: &InstanceRow,
    instance: &RebalanceInstance,
) -> InstanceRequest {
    let request = replacement(engine, row, InstanceRequest::clone(&instance.request));
    // Its bounds apply to what it uses, which may be more than it is charged.
    InstanceRequest { elastic: None, ..request }
}
