//! The fleet while a plan is made: who may move, who is where, and what it takes to put all back.
//!
//! The fleet itself holds where everybody is; what is here beside it is only what it does not know.
//! Whether a node can take an instance is asked of the engine, never decided here.

use rustc_hash::FxHashMap;

use super::measure::{Load, PPM_OF_NODE, Scale, ppm};
use super::{RebalanceGoal, RebalanceGuest, RebalanceMeasure, RebalanceMove};
use crate::affinity::{Operator, Strength, Topology};
use crate::elastic::{Free, Size};
use crate::engine::Engine;
use crate::filter::passes_neighbour_tests;
use crate::fleet::{InstanceRow, NO_DOMAIN, NodeRow, Slot};
use crate::model::{GroupKind, InstanceId, InstanceRequest, NodeId, PPM, Timestamp};
use crate::plan::evacuate::replacement;
use crate::prepared_request::Ask;

/// An instance that may move.
pub(super) struct Mover {
    pub(super) id: InstanceId,
    home: Slot,
    pub(super) at: Slot,
    /// The same again under another id: both are there for a while.
    pub(super) replacement: InstanceRequest,
    size: Size,
    pub(super) cost: u64,
    pub(super) copy_mib: u32,
    pub(super) priority: i32,
}

/// An instance that needs others near, or far: whoever moves must not leave it without.
struct Keeper {
    id: InstanceId,
    request: InstanceRequest,
    /// As far as its rules look.
    scope: Topology,
}

/// What is known of a node beside its row.
struct Seat {
    in_service: bool,
    below_watermark: Free,
    /// Who is here and may still move.
    guests: Vec<usize>,
    was_empty: bool,
}

/// A plan in the making.
pub(super) struct Board<'e> {
    pub(super) engine: &'e mut Engine,
    pub(super) movers: Vec<Mover>,
    pub(super) scale: Scale,
    seats: Vec<Seat>,
    /// By owner, since nobody sees the instances of others.
    keepers: FxHashMap<String, Vec<Keeper>>,
    made: Vec<RebalanceMove>,
    now: Timestamp,
}

impl<'e> Board<'e> {
    pub(super) fn new(
        engine: &'e mut Engine,
        guests: &[RebalanceGuest],
        below_watermark: &dyn Fn(&NodeId) -> Free,
        now: Timestamp,
    ) -> Self {
        engine.catch_up(now);
        let mut seats: Vec<Seat> = Vec::new();
        let present = engine.fleet.columns().present.words().len() * crate::fleet::LANES;
        for slot in (0u32..).take(present).map(Slot) {
            let row = engine.fleet.row(slot).filter(|_| engine.is_eligible(slot));
            seats.push(Seat {
                in_service: row.is_some(),
                below_watermark: row
                    .map_or(Free { cpu: 0, memory: 0 }, |row| below_watermark(&row.id)),
                guests: Vec::new(),
                was_empty: row.is_none_or(|row| row.instances.is_empty()),
            });
        }
        let mut guests: Vec<&RebalanceGuest> = guests.iter().collect();
        guests.sort_by_key(|guest| guest.id);
        guests.dedup_by_key(|guest| guest.id);
        let mut movers = Vec::new();
        let mut keepers: FxHashMap<String, Vec<Keeper>> = FxHashMap::default();
        for guest in guests {
            let Some(row) = engine.fleet.instance(guest.id) else { continue };
            if let Some(keeper) = keeper(engine, row, guest) {
                keepers.entry(keeper.request.owner.clone()).or_default().push(keeper);
            }
            if let Some(mover) =
                mover(engine, row, guest).filter(|m| seats[m.at.index()].in_service)
            {
                seats[mover.at.index()].guests.push(movers.len());
                movers.push(mover);
            }
        }
        let mut board =
            Self { engine, movers, scale: Scale::default(), seats, keepers, made: Vec::new(), now };
        board.scale = Scale::of(board.in_service().map(|(_, row)| Load::of(row)));
        board
    }

    /// The nodes that take part, in order of id.
    pub(super) fn in_service(&self) -> impl Iterator<Item = (Slot, &NodeRow)> {
        let fleet = &self.engine.fleet;
        let slots = fleet.slots_in_order().filter(|(_, slot)| self.seats[slot.index()].in_service);
        slots.filter_map(|(_, slot)| fleet.row(slot).map(|row| (slot, row)))
    }

    /// Who is on a node and may still move.
    pub(super) fn guests(&self, slot: Slot) -> &[usize] {
        &self.seats[slot.index()].guests
    }

    /// Whether somebody on a node cannot be moved by this plan, or not any more.
    pub(super) fn is_pinned(&self, slot: Slot) -> bool {
        let there = self.engine.fleet.row(slot).map_or(0, |row| row.instances.len());
        there > self.guests(slot).len()
    }

    pub(super) fn is_empty(&self, slot: Slot) -> bool {
        self.engine.fleet.row(slot).is_none_or(|row| row.instances.is_empty())
    }

    pub(super) fn load(&self, slot: Slot) -> Option<Load> {
        self.engine.fleet.row(slot).map(Load::of)
    }

    /// The place of a node in the order of ids.
    pub(super) fn rank(&self, slot: Slot) -> u32 {
        self.engine.fleet.columns().rank.get(slot)
    }

    pub(super) fn name(&self, slot: Slot) -> NodeId {
        self.engine.fleet.row(slot).map_or_else(|| NodeId::new(""), |row| row.id.clone())
    }

    pub(super) fn moves_made(&self) -> usize {
        self.made.len()
    }

    /// What an instance takes of a node, the hypervisor's overhead included.
    pub(super) fn size_on(&self, place: usize, slot: Slot) -> Size {
        let overhead = self.engine.fleet.row(slot).map_or(0, |row| row.vmm_overhead_mib);
        self.movers[place].size.plus(Size::new(0, overhead))
    }

    /// What an instance takes of any node at least.
    pub(super) fn size_of(&self, place: usize) -> Size {
        self.movers[place].size
    }

    /// Nodes other than its own that can take an instance while it still runs and that stay calm
    /// with it, in order of id.
    pub(super) fn destinations(&mut self, place: usize, onto_empty: bool) -> Vec<Slot> {
        let mut slots = self.engine.candidates(&self.movers[place].replacement, self.now);
        slots.retain(|&slot| {
            slot != self.movers[place].at
                && self.seats[slot.index()].in_service
                && (onto_empty || !self.is_empty(slot))
                && self.stays_calm(place, slot)
                && !self.crowds(place, slot)
                && !self.leaves_home(place, slot)
        });
        slots
    }

    /// Whether a node is not above its watermark with one more: CPU may be at the mark, memory must
    /// be below it, as nodes are judged elsewhere.
    fn stays_calm(&self, place: usize, slot: Slot) -> bool {
        let free = self.seats[slot.index()].below_watermark;
        let left = free.recharged(Size::ZERO, self.size_on(place, slot));
        left.cpu >= 0 && left.memory > 0
    }

    /// Whether a node, or its rack or zone, would hold more replicas of the instance's workload than
    /// the one that it leaves: that would undo what placing them had taken care of.
    fn crowds(&self, place: usize, to: Slot) -> bool {
        let (fleet, mover) = (&self.engine.fleet, &self.movers[place]);
        let texts = fleet.texts();
        let workload = mover.replacement.workload.as_deref().and_then(|name| texts.find(name));
        let owner = texts.find(&mover.replacement.owner);
        let presence = owner.zip(workload).and_then(|(o, w)| fleet.index().workload(o, w));
        let Some(presence) = presence else { return false };
        let levels = [
            (Topology::Node, &presence.nodes),
            (Topology::Rack, &presence.racks),
            (Topology::Zone, &presence.zones),
        ];
        levels.into_iter().any(|(topology, counts)| {
            let [from, to] = [mover.at, to].map(|slot| fleet.domain(slot, topology));
            let known = topology == Topology::Node || (from != NO_DOMAIN && to != NO_DOMAIN);
            known && from != to && counts.count(to) >= counts.count(from)
        })
    }

    /// Whether it would leave the domain of a group that must be together. The engine lets it go to
    /// any domain with members, and if they are in two already, those it leaves may be left alone.
    fn leaves_home(&self, place: usize, to: Slot) -> bool {
        let (fleet, mover) = (&self.engine.fleet, &self.movers[place]);
        let groups = mover.replacement.groups.iter().filter_map(|id| fleet.group(id));
        let mut homes = groups
            .filter(|group| group.kind == GroupKind::Together && group.strength == Strength::Hard);
        homes
            .any(|group| fleet.domain(mover.at, group.topology) != fleet.domain(to, group.topology))
    }

    /// Moves an instance for good, as far as the plan goes, if the rules hold afterwards: its own
    /// once it is gone from where it was, and those of others who need it near, or far.
    pub(super) fn try_move(&mut self, place: usize, to: Slot) -> bool {
        let from = self.movers[place].at;
        let concerned = self.concerned(place, from, to);
        let content: Vec<usize> =
            concerned.into_iter().filter(|k| self.is_content(place, *k)).collect();
        if !self.may_be_there(place, to) {
            return false;
        }
        self.put(place, to);
        if content.iter().all(|&keeper| self.is_content(place, keeper)) {
            self.seats[from.index()].guests.retain(|&guest| guest != place);
            return true;
        }
        self.put(place, from);
        false
    }

    /// Takes a move back.
    pub(super) fn undo(&mut self, place: usize) {
        let home = self.movers[place].home;
        self.put(place, home);
        self.seats[home.index()].guests.push(place);
    }

    /// Notes a move that was made.
    pub(super) fn note(&mut self, place: usize, gain: u64, why: String) {
        let mover = &self.movers[place];
        self.made.push(RebalanceMove {
            instance: mover.id,
            from: self.name(mover.home),
            to: self.name(mover.at),
            cost: mover.cost,
            gain,
            why,
        });
    }

    fn put(&mut self, place: usize, to: Slot) {
        let from = self.movers[place].at;
        let (here, there) = (self.size_on(place, from), self.size_on(place, to));
        for (slot, was, is) in [(from, here, Size::ZERO), (to, Size::ZERO, there)] {
            let seat = &mut self.seats[slot.index()];
            seat.below_watermark = seat.below_watermark.recharged(was, is);
        }
        if let Some(lifted) = self.engine.fleet.lift(self.movers[place].id) {
            self.engine.fleet.set_down(lifted, to);
        }
        self.movers[place].at = to;
    }

    /// Whether an instance may be on a node when it is no longer where it was. Then it is known by
    /// its own id again, which rules may name.
    fn may_be_there(&mut self, place: usize, to: Slot) -> bool {
        let (node, mover) = (self.name(to), &mut self.movers[place]);
        let Some(lifted) = self.engine.fleet.lift(mover.id) else { return false };
        let spare = std::mem::replace(&mut mover.replacement.id, mover.id);
        let allowed = self.engine.check(&mover.replacement, &node, self.now).is_ok();
        mover.replacement.id = spare;
        self.engine.fleet.set_down(lifted, mover.at);
        allowed
    }

    /// Those of the owner's instances whose rules may see that one of them moves.
    fn concerned(&self, place: usize, from: Slot, to: Slot) -> Vec<usize> {
        let Some(keepers) = self.keepers.get(&self.movers[place].replacement.owner) else {
            return Vec::new();
        };
        let fleet = &self.engine.fleet;
        let sees = |keeper: &Keeper| {
            let at =
                fleet.instance(keeper.id).map(|row| fleet.domain(row.host.slot(), keeper.scope));
            [from, to].iter().any(|slot| at == Some(fleet.domain(*slot, keeper.scope)))
        };
        let near = keepers.iter().enumerate().filter(|(_, keeper)| sees(keeper));
        near.map(|(number, _)| number).collect()
    }

    /// Whether the rules of an instance of the mover's owner hold where it is.
    fn is_content(&mut self, place: usize, keeper: usize) -> bool {
        let owner = &self.movers[place].replacement.owner;
        let Some(keeper) = self.keepers.get(owner).and_then(|of| of.get(keeper)) else {
            return true;
        };
        let Some(at) = self.engine.fleet.instance(keeper.id).map(|row| row.host.slot()) else {
            return true;
        };
        let Some(lifted) = self.engine.fleet.lift(keeper.id) else { return true };
        let ask = Ask::new(&keeper.request, &self.engine.policy, &self.engine.fleet, self.now);
        let content = passes_neighbour_tests(&ask, at);
        self.engine.fleet.set_down(lifted, at);
        content
    }

    /// The measure of spreading, exactly.
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
        let emptied = empty.filter(|(slot, _)| !self.seats[slot.index()].was_empty);
        emptied.map(|(_, row)| row.id.clone()).collect()
    }

    /// Puts everybody back and says what was found.
    pub(super) fn finish(mut self) -> Vec<RebalanceMove> {
        for place in 0..self.movers.len() {
            if self.movers[place].at != self.movers[place].home {
                self.undo(place);
            }
        }
        self.made
    }
}

/// An instance that may move, if it can.
fn mover(engine: &Engine, row: &InstanceRow, guest: &RebalanceGuest) -> Option<Mover> {
    let has_volumes = row.rare.as_ref().is_some_and(|rare| !rare.volumes.is_empty());
    if !guest.movable || has_volumes || !guest.request.volumes.is_empty() {
        return None;
    }
    let replacement = as_charged(engine, row, guest);
    engine.validate(&replacement).ok()?;
    Some(Mover {
        id: row.id,
        home: row.host.slot(),
        at: row.host.slot(),
        replacement,
        size: Size::of(&row.resources),
        cost: guest.cost(),
        copy_mib: guest.copy_mib,
        priority: guest.priority,
    })
}

/// An instance whose rules another's move may break although the mover's own rules hold. A hard
/// `!=` and groups bind both sides, so only what looks at others one-sidedly is kept an eye on.
fn keeper(engine: &Engine, row: &InstanceRow, guest: &RebalanceGuest) -> Option<Keeper> {
    let rules = guest.request.affinity.iter();
    let together = rules.filter(|rule| rule.is_hard() && rule.operator() == Operator::Same);
    let hints = guest.request.locality.strict.then_some(Topology::Node);
    let scope = together.map(crate::affinity::Rule::scope).chain(hints).max()?;
    let request = InstanceRequest { id: row.id, ..as_charged(engine, row, guest) };
    Some(Keeper { id: row.id, request, scope })
}

/// What would be asked for in an instance's place.
fn as_charged(engine: &Engine, row: &InstanceRow, guest: &RebalanceGuest) -> InstanceRequest {
    let request = replacement(engine, row, InstanceRequest::clone(&guest.request));
    // Its bounds are about what it uses, which may be more than it is charged.
    InstanceRequest { elastic: None, ..request }
}
