//! The steps of an evacuation plan: every instance in turn, then those that fit once others have
//! moved, then a search, then those that must be released before their replacement is placed.

use std::cmp::Reverse;

use super::{Effort, EvacuationInstance, EvacuationPlan, MoveOutcome, PlannedMove};
use crate::engine::{Engine, NodeChoice, Reuse};
use crate::explain::{Fix, Refusal};
use crate::fleet::{InstanceRow, NodeIndex};
use crate::model::{InstanceId, InstanceRequest, InvalidRequest, NodeId, Timestamp};
use crate::plan::search::{self, Budget};

/// Rounds in which those left behind are tried again after others moved. A longer chain of
/// instances that wait for each other is not worth its cost.
const ROUNDS: usize = 16;

/// The state of one instance in the plan.
enum MoveState {
    /// No target found yet.
    Waiting,
    /// Moved to this node.
    Moved(NodeIndex),
    /// Moved to this node, but only after its release; with the reason, if it was explained.
    LeftFirst(NodeIndex, Option<Box<Refusal>>),
    /// It cannot be planned.
    Out(MoveOutcome),
}

/// An instance that is to move.
struct Evacuee {
    id: InstanceId,
    from: NodeIndex,
    /// The same request without volumes and under another id: both exist during the move.
    replacement: InstanceRequest,
    volumes: Vec<String>,
    state: MoveState,
    /// When it moved, among the others.
    turn: usize,
}

impl Evacuee {
    const fn is_waiting(&self) -> bool {
        matches!(self.state, MoveState::Waiting)
    }
}

/// A plan in the making. Between steps, every instance is where its state says.
pub(super) struct EvacuationPlanner<'e> {
    engine: &'e mut Engine,
    indexes: &'e [NodeIndex],
    evacuees: Vec<Evacuee>,
    effort: Effort,
    explained: usize,
    turns: usize,
    now: Timestamp,
}

impl<'e> EvacuationPlanner<'e> {
    /// All instances on these nodes, the hardest to place first; those with volumes last, since they
    /// need manual intervention.
    pub(super) fn new(
        engine: &'e mut Engine,
        indexes: &'e [NodeIndex],
        instance_info: &dyn Fn(InstanceId) -> EvacuationInstance,
        effort: Effort,
        now: Timestamp,
    ) -> Self {
        let rows = indexes.iter().filter_map(|index| engine.fleet.row(*index));
        let numbers = rows.flat_map(|row| row.instances.iter().copied());
        let instances = numbers.filter_map(|number| engine.fleet.instance_at(number));
        let mut evacuees: Vec<Evacuee> =
            instances.filter_map(|row| evacuee(engine, row, instance_info(row.id))).collect();
        evacuees.sort_by_cached_key(|evacuee| {
            let memory = evacuee.replacement.resources.memory_mib;
            let easy = !has_placement_rules(&evacuee.replacement);
            (!evacuee.volumes.is_empty(), easy, Reverse(memory), evacuee.id)
        });
        Self { engine, indexes, evacuees, effort, explained: 0, turns: 0, now }
    }

    /// Moves every instance that can be moved.
    pub(super) fn run(&mut self) {
        self.place_replacements();
        if self.without_volumes().any(Evacuee::is_waiting) {
            self.search();
        }
        for _ in 0..ROUNDS {
            let left = self.release_before_replacing();
            if !left || !self.evacuees.iter().any(Evacuee::is_waiting) {
                break;
            }
            self.place_replacements();
        }
    }

    /// Instances that no volume holds.
    fn without_volumes(&self) -> impl Iterator<Item = &Evacuee> {
        self.evacuees.iter().filter(|evacuee| evacuee.volumes.is_empty())
    }

    /// Places replacements while the old ones still count, until no more can be placed.
    fn place_replacements(&mut self) {
        for _ in 0..ROUNDS {
            let (mut moved, mut waiting) = (false, false);
            for place in 0..self.evacuees.len() {
                let evacuee = &self.evacuees[place];
                if !evacuee.is_waiting() || !evacuee.volumes.is_empty() {
                    continue;
                }
                match self.engine.pick(&evacuee.replacement, self.now, Reuse::Ranking) {
                    Some(picked) => {
                        self.move_to(place, picked.index, MoveState::Moved(picked.index));
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

    /// Searches for a placement of all replacements at once when the first pass left some unplaced.
    fn search(&mut self) {
        if self.effort.search_budget == 0 {
            return;
        }
        let places: Vec<usize> = (0..self.evacuees.len())
            .filter(|&place| self.evacuees[place].volumes.is_empty())
            .filter(|&place| !matches!(self.evacuees[place].state, MoveState::Out(_)))
            .collect();
        let found_first: Vec<(usize, usize, NodeIndex)> = self.moved_in_order();
        self.move_back(&places);
        let requests: Vec<InstanceRequest> =
            places.iter().map(|&place| self.evacuees[place].replacement.clone()).collect();
        let order: Vec<usize> = (0..requests.len()).collect();
        let mut budget = Budget::new(self.effort.search_budget);
        let quorum = requests.len();
        let found =
            search::search_exact(self.engine, &requests, &order, quorum, &mut budget, self.now);
        if let Some(found) = found
            && self.follow(&places, &found)
        {
            return;
        }
        // The first pass stands. Its choices are still valid: the fleet is as it was then.
        self.move_back(&places);
        for (_, place, index) in found_first {
            self.move_to(place, index, MoveState::Moved(index));
        }
    }

    fn moved_in_order(&self) -> Vec<(usize, usize, NodeIndex)> {
        let moved = |(place, evacuee): (usize, &Evacuee)| match evacuee.state {
            MoveState::Moved(index) => Some((evacuee.turn, place, index)),
            MoveState::Waiting | MoveState::LeftFirst(..) | MoveState::Out(_) => None,
        };
        let mut moved: Vec<_> = self.evacuees.iter().enumerate().filter_map(moved).collect();
        moved.sort_unstable();
        moved
    }

    /// Makes the moves that a search found, in an order in which each is allowed. Whether all
    /// could be made.
    fn follow(&mut self, places: &[usize], found: &[Option<NodeChoice>]) -> bool {
        let mut rest: Vec<(usize, NodeIndex)> = places
            .iter()
            .zip(found)
            .filter_map(|(place, picked)| picked.map(|picked| (*place, picked.index)))
            .collect();
        loop {
            let before = rest.len();
            rest.retain(|&(place, index)| {
                let allowed = self.allows(place, index);
                if allowed {
                    self.move_to(place, index, MoveState::Moved(index));
                }
                !allowed
            });
            if rest.is_empty() || rest.len() == before {
                return rest.is_empty();
            }
        }
    }

    fn allows(&self, place: usize, index: NodeIndex) -> bool {
        let request = &self.evacuees[place].replacement;
        let node = self.engine.fleet.row(index).map(|row| row.id.clone());
        node.is_some_and(|node| self.engine.check(request, &node, self.now).is_ok())
    }

    /// Tries, for every instance left, whether a replacement can be placed once the old one is
    /// released. Returns whether any was moved.
    fn release_before_replacing(&mut self) -> bool {
        let mut any = false;
        for place in 0..self.evacuees.len() {
            if !self.evacuees[place].is_waiting() {
                continue;
            }
            let has_volumes = !self.evacuees[place].volumes.is_empty();
            let request = &self.evacuees[place].replacement;
            // An instance before it may have made room in this round.
            if !has_volumes
                && let Some(picked) = self.engine.pick(request, self.now, Reuse::Ranking)
            {
                self.move_to(place, picked.index, MoveState::Moved(picked.index));
                any = true;
                continue;
            }
            let Some(index) = self.target_without(place) else { continue };
            let refusal = if has_volumes { None } else { self.explain(place) };
            self.move_to(place, index, MoveState::LeftFirst(index, refusal));
            any = true;
        }
        any
    }

    /// Where a replacement would go if the old one were not there.
    fn target_without(&mut self, place: usize) -> Option<NodeIndex> {
        let evacuee = &self.evacuees[place];
        let detached = self.engine.fleet.detach_instance(evacuee.id)?;
        let picked = self.engine.pick(&evacuee.replacement, self.now, Reuse::Mask);
        self.engine.fleet.attach_instance(detached, evacuee.from);
        picked.map(|picked| picked.index)
    }

    fn move_to(&mut self, place: usize, index: NodeIndex, state: MoveState) {
        let evacuee = &mut self.evacuees[place];
        evacuee.state = state;
        evacuee.turn = self.turns;
        self.turns += 1;
        if let Some(detached) = self.engine.fleet.detach_instance(evacuee.id) {
            self.engine.fleet.attach_instance(detached, index);
        }
    }

    fn move_back(&mut self, places: &[usize]) {
        for &place in places {
            let from = self.evacuees[place].from;
            match self.evacuees[place].state {
                MoveState::Moved(_) | MoveState::LeftFirst(..) => {
                    self.move_to(place, from, MoveState::Waiting)
                }
                MoveState::Waiting | MoveState::Out(_) => {}
            }
        }
    }

    /// Why no node can take a replacement now; `None` when enough was explained.
    fn explain(&mut self, place: usize) -> Option<Box<Refusal>> {
        if self.explained >= self.effort.explained {
            return None;
        }
        self.explained += 1;
        let evacuee = &self.evacuees[place];
        let mut refusal = if self.effort.fixes {
            self.engine.refusal(&evacuee.replacement, self.now)
        } else {
            self.engine.diagnosis(&evacuee.replacement, self.now)
        };
        refusal.instance = evacuee.id;
        let emptied: Vec<NodeId> = self.indexes.iter().map(|index| self.name(*index)).collect();
        refusal.fixes.retain(|fix| !contradicts_plan(fix, &emptied, &self.evacuees));
        Some(Box::new(refusal))
    }

    /// Explains the instances without a target, in the final state of the plan.
    fn explain_unplaced(&mut self) -> Vec<(usize, Option<Box<Refusal>>)> {
        let mut explained: Vec<(usize, Option<Box<Refusal>>)> = Vec::new();
        for place in 0..self.evacuees.len() {
            if !self.evacuees[place].is_waiting() {
                continue;
            }
            let evacuee = &self.evacuees[place];
            let same =
                |other: &usize| self.evacuees[*other].replacement.same_class(&evacuee.replacement);
            let known = explained.iter().find(|(other, _)| same(other)).map(|(_, why)| why.clone());
            let mut why = known.unwrap_or_else(|| self.explain(place));
            if let Some(refusal) = &mut why {
                refusal.instance = self.evacuees[place].id;
            }
            explained.push((place, why));
        }
        explained
    }

    fn name(&self, index: NodeIndex) -> NodeId {
        self.engine.fleet.row(index).map_or_else(|| NodeId::new(""), |row| row.id.clone())
    }

    /// Undoes everything and returns the plan.
    pub(super) fn finish(mut self) -> EvacuationPlan {
        let mut refusals = self.explain_unplaced();
        let mut moves: Vec<((bool, usize), PlannedMove)> = Vec::new();
        for place in 0..self.evacuees.len() {
            let state = std::mem::replace(&mut self.evacuees[place].state, MoveState::Waiting);
            let moved_to = match &state {
                MoveState::Moved(index) | MoveState::LeftFirst(index, _) => Some(*index),
                MoveState::Waiting | MoveState::Out(_) => None,
            };
            let why = refusals.iter_mut().find(|(of, _)| *of == place);
            let why = why.and_then(|(_, why)| why.take());
            let to = moved_to.map(|index| self.name(index));
            let evacuee = &self.evacuees[place];
            let outcome = outcome(state, to, why, &evacuee.volumes);
            let from = self.name(evacuee.from);
            let order = (moved_to.is_none(), evacuee.turn);
            moves.push((order, PlannedMove { instance: evacuee.id, from, outcome }));
            if moved_to.is_some()
                && let Some(detached) = self.engine.fleet.detach_instance(evacuee.id)
            {
                self.engine.fleet.attach_instance(detached, evacuee.from);
            }
        }
        moves.sort_by_key(|(order, _)| *order);
        EvacuationPlan { moves: moves.into_iter().map(|(_, planned)| planned).collect() }
    }
}

fn outcome(
    state: MoveState,
    to: Option<NodeId>,
    why: Option<Box<Refusal>>,
    volumes: &[String],
) -> MoveOutcome {
    match (state, to) {
        (MoveState::Out(outcome), _) => outcome,
        (_, to) if !volumes.is_empty() => {
            MoveOutcome::VolumeNeedsMove { volumes: volumes.to_vec(), to, refusal: why }
        }
        (MoveState::Moved(_), Some(to)) => MoveOutcome::Moves { to },
        (MoveState::LeftFirst(_, refusal), after_release) => {
            MoveOutcome::Refused { refusal, after_release }
        }
        (MoveState::Waiting | MoveState::Moved(_), _) => {
            MoveOutcome::Refused { refusal: why, after_release: None }
        }
    }
}

/// An instance and the request for its replacement.
fn evacuee(
    engine: &Engine,
    row: &InstanceRow,
    instance_info: EvacuationInstance,
) -> Option<Evacuee> {
    let (id, from) = (row.id, row.host.index());
    let (request, is_known) = match instance_info {
        EvacuationInstance::Requested(request) => (InstanceRequest::clone(&request), true),
        EvacuationInstance::Unknown => (InstanceRequest::new(id, "", row.resources), false),
        EvacuationInstance::Leaving => return None,
    };
    let mut replacement = replacement(engine, row, request);
    let volumes = std::mem::take(&mut replacement.volumes);
    let invalid = |error: InvalidRequest| MoveState::Out(MoveOutcome::Invalid(error));
    let state = if is_known {
        engine.validate(&replacement).map_or_else(invalid, |()| MoveState::Waiting)
    } else {
        MoveState::Out(MoveOutcome::RequestUnknown)
    };
    Some(Evacuee { id, from, replacement, volumes, state, turn: 0 })
}

/// The request for the replacement of an instance.
pub(in crate::plan) fn replacement(
    engine: &Engine,
    row: &InstanceRow,
    request: InstanceRequest,
) -> InstanceRequest {
    // What it is charged now may differ from its request, and an instance that shares a request with
    // others has a name of its own.
    let name = row.rare.as_ref().and_then(|rare| rare.name);
    InstanceRequest {
        id: temporary_id(engine, row.id),
        resources: row.resources,
        name: name.map(|name| engine.fleet.texts().text(name).to_owned()),
        // It moves with its present size: its bounds apply to what it uses, and may have changed.
        elastic: None,
        ..request
    }
}

/// An unused id, since the fleet holds one claim per id.
pub(in crate::plan) fn temporary_id(engine: &Engine, id: InstanceId) -> InstanceId {
    // Not the complement, which may stand for the instance's own move to another node.
    let mut number = id.0.as_u128() ^ (0x5a << 120);
    while engine.fleet.instance(InstanceId::from_u128(number)).is_some() {
        number = number.wrapping_add(1);
    }
    InstanceId::from_u128(number)
}

/// Whether rules, and not only its size, restrict the nodes of an instance.
pub(in crate::plan) fn has_placement_rules(request: &InstanceRequest) -> bool {
    !request.groups.is_empty()
        || !request.extra.is_empty()
        || !request.traits.is_empty()
        || request.locality.strict
        || request.affinity.iter().any(crate::affinity::Rule::is_hard)
}

/// Whether a fix would undo the plan, by using a node that is to be emptied or by releasing an
/// instance that the plan moves.
fn contradicts_plan(fix: &Fix, emptied: &[NodeId], evacuees: &[Evacuee]) -> bool {
    let is_emptied = |node: &Option<NodeId>| node.as_ref().is_some_and(|n| emptied.contains(n));
    match fix {
        Fix::Free { instances, node, .. } => {
            let moves = |id: &InstanceId| evacuees.iter().any(|evacuee| evacuee.id == *id);
            is_emptied(node) || instances.iter().any(moves)
        }
        Fix::Mend { node, .. } | Fix::Shrink { node, .. } | Fix::Relax { node, .. } => {
            is_emptied(node)
        }
        Fix::AddNode { .. }
        | Fix::Fewer { .. }
        | Fix::Count { .. }
        | Fix::ChangePool { .. }
        | Fix::RaiseQuota { .. }
        | Fix::SetPool { .. } => false,
        Fix::Combined { changes } => {
            changes.iter().any(|one| contradicts_plan(one, emptied, evacuees))
        }
    }
}
