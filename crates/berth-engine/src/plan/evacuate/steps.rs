//! The steps of a plan to empty nodes: everybody in turn, then whoever can go once others have
//! gone, then a search, then whoever can only go before its replacement comes.

use std::cmp::Reverse;

use super::{Effort, EvacuationPlan, Guest, MoveOutcome, PlannedMove};
use crate::engine::{Engine, Picked, Reuse};
use crate::explain::{Fix, Refusal};
use crate::fleet::{InstanceRow, Slot};
use crate::model::{InstanceId, InstanceRequest, InvalidRequest, NodeId, Timestamp};
use crate::plan::search::{self, Budget};

/// Rounds in which those left behind are tried again after others moved. A longer chain of
/// instances that wait for each other is not worth its cost.
const ROUNDS: usize = 16;

/// How an instance stands.
enum Stand {
    /// It has found no place yet.
    Waits,
    /// It is there now.
    Moved(Slot),
    /// It is there now, but had to leave first; and why, if that was asked for.
    LeftFirst(Slot, Option<Box<Refusal>>),
    /// It cannot be tried.
    Out(MoveOutcome),
}

/// An instance that is to move.
struct Mover {
    id: InstanceId,
    from: Slot,
    /// The same again, without volumes, and under another id: both are there for a while.
    replacement: InstanceRequest,
    volumes: Vec<String>,
    stand: Stand,
    /// When it moved, among the others.
    turn: usize,
}

impl Mover {
    const fn waits(&self) -> bool {
        matches!(self.stand, Stand::Waits)
    }
}

/// A plan in the making. Between steps, every instance is where its stand says.
pub(super) struct Moving<'e> {
    engine: &'e mut Engine,
    slots: &'e [Slot],
    movers: Vec<Mover>,
    effort: Effort,
    explained: usize,
    turns: usize,
    now: Timestamp,
}

impl<'e> Moving<'e> {
    /// Everybody on these nodes, the hardest to place first; those with volumes last, since they
    /// wait for somebody and the others need not.
    pub(super) fn new(
        engine: &'e mut Engine,
        slots: &'e [Slot],
        guest: &dyn Fn(InstanceId) -> Guest,
        effort: Effort,
        now: Timestamp,
    ) -> Self {
        let rows = slots.iter().filter_map(|slot| engine.fleet.row(*slot));
        let numbers = rows.flat_map(|row| row.instances.iter().copied());
        let instances = numbers.filter_map(|number| engine.fleet.instance_at(number));
        let mut movers: Vec<Mover> =
            instances.filter_map(|row| mover(engine, row, guest(row.id))).collect();
        movers.sort_by_cached_key(|mover| {
            let memory = mover.replacement.resources.memory_mib;
            let easy = !is_choosy(&mover.replacement);
            (!mover.volumes.is_empty(), easy, Reverse(memory), mover.id)
        });
        Self { engine, slots, movers, effort, explained: 0, turns: 0, now }
    }

    /// Moves whoever can be moved.
    pub(super) fn run(&mut self) {
        self.move_beside();
        if self.free_movers().any(Mover::waits) {
            self.search();
        }
        for _ in 0..ROUNDS {
            let left = self.let_leave_first();
            if !left || !self.movers.iter().any(Mover::waits) {
                break;
            }
            self.move_beside();
        }
    }

    /// Instances that no volume holds.
    fn free_movers(&self) -> impl Iterator<Item = &Mover> {
        self.movers.iter().filter(|mover| mover.volumes.is_empty())
    }

    /// Places replacements while the old ones still count, until nobody more can be placed.
    fn move_beside(&mut self) {
        for _ in 0..ROUNDS {
            let (mut moved, mut waiting) = (false, false);
            for place in 0..self.movers.len() {
                let mover = &self.movers[place];
                if !mover.waits() || !mover.volumes.is_empty() {
                    continue;
                }
                match self.engine.pick(&mover.replacement, self.now, Reuse::Ranking) {
                    Some(picked) => {
                        self.move_to(place, picked.slot, Stand::Moved(picked.slot));
                        moved = true;
                    }
                    None => waiting = true,
                }
            }
            if !(moved && waiting) {
                break;
            }
        }
    }

    /// Looks for another way when the first left somebody behind, all replacements at once.
    fn search(&mut self) {
        if self.effort.search_budget == 0 {
            return;
        }
        let places: Vec<usize> = (0..self.movers.len())
            .filter(|&place| self.movers[place].volumes.is_empty())
            .filter(|&place| !matches!(self.movers[place].stand, Stand::Out(_)))
            .collect();
        let found_first: Vec<(usize, usize, Slot)> = self.moved_in_order();
        self.put_back(&places);
        let requests: Vec<InstanceRequest> =
            places.iter().map(|&place| self.movers[place].replacement.clone()).collect();
        let order: Vec<usize> = (0..requests.len()).collect();
        let mut budget = Budget::new(self.effort.search_budget);
        let quorum = requests.len();
        let found = search::exact(self.engine, &requests, &order, quorum, &mut budget, self.now);
        if let Some(found) = found
            && self.follow(&places, &found)
        {
            return;
        }
        // The first try stands. What it chose is still right: the fleet is as it was then.
        self.put_back(&places);
        for (_, place, slot) in found_first {
            self.move_to(place, slot, Stand::Moved(slot));
        }
    }

    fn moved_in_order(&self) -> Vec<(usize, usize, Slot)> {
        let moved = |(place, mover): (usize, &Mover)| match mover.stand {
            Stand::Moved(slot) => Some((mover.turn, place, slot)),
            Stand::Waits | Stand::LeftFirst(..) | Stand::Out(_) => None,
        };
        let mut moved: Vec<_> = self.movers.iter().enumerate().filter_map(moved).collect();
        moved.sort_unstable();
        moved
    }

    /// Makes the moves that a search found, in an order in which each is allowed. Whether all
    /// could be made.
    fn follow(&mut self, places: &[usize], found: &[Option<Picked>]) -> bool {
        let mut rest: Vec<(usize, Slot)> = places
            .iter()
            .zip(found)
            .filter_map(|(place, picked)| picked.map(|picked| (*place, picked.slot)))
            .collect();
        loop {
            let before = rest.len();
            rest.retain(|&(place, slot)| {
                let allowed = self.allows(place, slot);
                if allowed {
                    self.move_to(place, slot, Stand::Moved(slot));
                }
                !allowed
            });
            if rest.is_empty() || rest.len() == before {
                return rest.is_empty();
            }
        }
    }

    fn allows(&self, place: usize, slot: Slot) -> bool {
        let request = &self.movers[place].replacement;
        let node = self.engine.fleet.row(slot).map(|row| row.id.clone());
        node.is_some_and(|node| self.engine.check(request, &node, self.now).is_ok())
    }

    /// Tries, for everybody left, whether a replacement can be placed once the old one is gone.
    /// Whether anybody moved.
    fn let_leave_first(&mut self) -> bool {
        let mut any = false;
        for place in 0..self.movers.len() {
            if !self.movers[place].waits() {
                continue;
            }
            let has_volumes = !self.movers[place].volumes.is_empty();
            let request = &self.movers[place].replacement;
            // Somebody before it may have made way in this very round.
            if !has_volumes
                && let Some(picked) = self.engine.pick(request, self.now, Reuse::Ranking)
            {
                self.move_to(place, picked.slot, Stand::Moved(picked.slot));
                any = true;
                continue;
            }
            let Some(slot) = self.place_without_it(place) else { continue };
            let refusal = if has_volumes { None } else { self.explain(place) };
            self.move_to(place, slot, Stand::LeftFirst(slot, refusal));
            any = true;
        }
        any
    }

    /// Where a replacement would go if the old one were not there.
    fn place_without_it(&mut self, place: usize) -> Option<Slot> {
        let mover = &self.movers[place];
        let lifted = self.engine.fleet.lift(mover.id)?;
        let picked = self.engine.pick(&mover.replacement, self.now, Reuse::Mask);
        self.engine.fleet.set_down(lifted, mover.from);
        picked.map(|picked| picked.slot)
    }

    fn move_to(&mut self, place: usize, slot: Slot, stand: Stand) {
        let mover = &mut self.movers[place];
        mover.stand = stand;
        mover.turn = self.turns;
        self.turns += 1;
        if let Some(lifted) = self.engine.fleet.lift(mover.id) {
            self.engine.fleet.set_down(lifted, slot);
        }
    }

    fn put_back(&mut self, places: &[usize]) {
        for &place in places {
            let from = self.movers[place].from;
            match self.movers[place].stand {
                Stand::Moved(_) | Stand::LeftFirst(..) => self.move_to(place, from, Stand::Waits),
                Stand::Waits | Stand::Out(_) => {}
            }
        }
    }

    /// Why no node can take a replacement as things are; nothing when enough was explained.
    fn explain(&mut self, place: usize) -> Option<Box<Refusal>> {
        if self.explained >= self.effort.explained {
            return None;
        }
        self.explained += 1;
        let mover = &self.movers[place];
        let mut refusal = if self.effort.fixes {
            self.engine.refusal(&mover.replacement, self.now)
        } else {
            self.engine.diagnosis(&mover.replacement, self.now)
        };
        refusal.instance = mover.id;
        let emptied: Vec<NodeId> = self.slots.iter().map(|slot| self.name(*slot)).collect();
        refusal.fixes.retain(|fix| !is_of_the_plan(fix, &emptied, &self.movers));
        Some(Box::new(refusal))
    }

    /// Why those are left who have no place, as things are in the end.
    fn explain_the_rest(&mut self) -> Vec<(usize, Option<Box<Refusal>>)> {
        let mut explained: Vec<(usize, Option<Box<Refusal>>)> = Vec::new();
        for place in 0..self.movers.len() {
            if !self.movers[place].waits() {
                continue;
            }
            let mover = &self.movers[place];
            let same =
                |other: &usize| self.movers[*other].replacement.same_class(&mover.replacement);
            let known = explained.iter().find(|(other, _)| same(other)).map(|(_, why)| why.clone());
            let mut why = known.unwrap_or_else(|| self.explain(place));
            if let Some(refusal) = &mut why {
                refusal.instance = self.movers[place].id;
            }
            explained.push((place, why));
        }
        explained
    }

    fn name(&self, slot: Slot) -> NodeId {
        self.engine.fleet.row(slot).map_or_else(|| NodeId::new(""), |row| row.id.clone())
    }

    /// Takes everything back and says what was found.
    pub(super) fn finish(mut self) -> EvacuationPlan {
        let mut refusals = self.explain_the_rest();
        let mut moves: Vec<((bool, usize), PlannedMove)> = Vec::new();
        for place in 0..self.movers.len() {
            let stand = std::mem::replace(&mut self.movers[place].stand, Stand::Waits);
            let moved_to = match &stand {
                Stand::Moved(slot) | Stand::LeftFirst(slot, _) => Some(*slot),
                Stand::Waits | Stand::Out(_) => None,
            };
            let why = refusals.iter_mut().find(|(of, _)| *of == place);
            let why = why.and_then(|(_, why)| why.take());
            let to = moved_to.map(|slot| self.name(slot));
            let mover = &self.movers[place];
            let outcome = outcome(stand, to, why, &mover.volumes);
            let from = self.name(mover.from);
            let order = (moved_to.is_none(), mover.turn);
            moves.push((order, PlannedMove { instance: mover.id, from, outcome }));
            if moved_to.is_some()
                && let Some(lifted) = self.engine.fleet.lift(mover.id)
            {
                self.engine.fleet.set_down(lifted, mover.from);
            }
        }
        moves.sort_by_key(|(order, _)| *order);
        EvacuationPlan { moves: moves.into_iter().map(|(_, planned)| planned).collect() }
    }
}

fn outcome(
    stand: Stand,
    to: Option<NodeId>,
    why: Option<Box<Refusal>>,
    volumes: &[String],
) -> MoveOutcome {
    match (stand, to) {
        (Stand::Out(outcome), _) => outcome,
        (_, to) if !volumes.is_empty() => {
            MoveOutcome::VolumeNeedsMove { volumes: volumes.to_vec(), to, refusal: why }
        }
        (Stand::Moved(_), Some(to)) => MoveOutcome::Moves { to },
        (Stand::LeftFirst(_, refusal), after_release) => {
            MoveOutcome::Refused { refusal, after_release }
        }
        (Stand::Waits | Stand::Moved(_), _) => {
            MoveOutcome::Refused { refusal: why, after_release: None }
        }
    }
}

/// An instance as it stands, and what would be asked for in its place.
fn mover(engine: &Engine, row: &InstanceRow, guest: Guest) -> Option<Mover> {
    let (id, from) = (row.id, row.host.slot());
    let (request, is_known) = match guest {
        Guest::Asks(request) => (InstanceRequest::clone(&request), true),
        Guest::Unknown => (InstanceRequest::new(id, "", row.resources), false),
        Guest::Leaves => return None,
    };
    let mut replacement = replacement(engine, row, request);
    let volumes = std::mem::take(&mut replacement.volumes);
    let invalid = |error: InvalidRequest| Stand::Out(MoveOutcome::Invalid(error));
    let stand = if is_known {
        engine.validate(&replacement).map_or_else(invalid, |()| Stand::Waits)
    } else {
        Stand::Out(MoveOutcome::RequestUnknown)
    };
    Some(Mover { id, from, replacement, volumes, stand, turn: 0 })
}

/// What would be asked for in the place of an instance that asked for `request`.
pub(in crate::plan) fn replacement(
    engine: &Engine,
    row: &InstanceRow,
    request: InstanceRequest,
) -> InstanceRequest {
    // What it is charged now may not be what it was granted, and who shares a request with others
    // has a name of its own.
    let name = row.rare.as_ref().and_then(|rare| rare.name);
    InstanceRequest {
        id: spare_id(engine, row.id),
        resources: row.resources,
        name: name.map(|name| engine.fleet.texts().text(name).to_owned()),
        // It moves as it is: its bounds are about what it uses, and may have changed since.
        elastic: None,
        ..request
    }
}

/// An id that nobody has: the engine knows one claim by each.
pub(in crate::plan) fn spare_id(engine: &Engine, id: InstanceId) -> InstanceId {
    // Not the complement, which may stand for the instance's own move to another node.
    let mut number = id.0.as_u128() ^ (0x5a << 120);
    while engine.fleet.instance(InstanceId::from_u128(number)).is_some() {
        number = number.wrapping_add(1);
    }
    InstanceId::from_u128(number)
}

/// Whether rules leave an instance fewer nodes than its size does.
pub(in crate::plan) fn is_choosy(request: &InstanceRequest) -> bool {
    !request.groups.is_empty()
        || !request.extra.is_empty()
        || !request.traits.is_empty()
        || request.locality.strict
        || request.affinity.iter().any(crate::affinity::Rule::is_hard)
}

/// Whether a fix would undo the plan: nobody is helped by opening the node that is to be emptied,
/// nor by releasing what has just been moved out of the way.
fn is_of_the_plan(fix: &Fix, emptied: &[NodeId], movers: &[Mover]) -> bool {
    let is_emptied = |node: &Option<NodeId>| node.as_ref().is_some_and(|n| emptied.contains(n));
    match fix {
        Fix::Free { instances, node, .. } => {
            let moves = |id: &InstanceId| movers.iter().any(|mover| mover.id == *id);
            is_emptied(node) || instances.iter().any(moves)
        }
        Fix::Mend { node, .. } | Fix::Shrink { node, .. } | Fix::Relax { node, .. } => {
            is_emptied(node)
        }
        Fix::AddNode { .. } => false,
    }
}
