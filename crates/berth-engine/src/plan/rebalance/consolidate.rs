//! Consolidating: moves all instances of the emptiest node to nodes that are in use anyway, or none.
//!
//! A node that is only half emptied gains nothing, so its moves are planned and undone together. An
//! instance moves at most once: a node that received one is not emptied by the same plan.

use std::cmp::Reverse;

use super::rebalance_state::RebalanceState;
use super::{RebalanceTerms, StopReason};
use crate::fleet::NodeIndex;
use crate::plan::evacuate::has_placement_rules;
use crate::units;

/// How many of the best destinations of an instance are tried against the rules of others.
const TRIED: usize = 8;

pub(super) fn run(state: &mut RebalanceState<'_>, terms: &RebalanceTerms) -> StopReason {
    let sources = sources(state);
    let budget = terms.budget as usize;
    loop {
        let (mut emptied_any, mut too_many) = (false, false);
        for &source in &sources {
            if state.is_empty(source) || state.is_pinned(source) {
                continue;
            }
            if state.instances(source).len() > budget.saturating_sub(state.moves_made()) {
                too_many = true;
            } else if empty(state, source) {
                emptied_any = true;
            }
        }
        // Once more after a success: an instance without room in one arrangement may have some in
        // another.
        match (emptied_any, too_many) {
            (true, _) => {}
            (false, true) => return StopReason::Budget,
            (false, false) => return StopReason::NothingToGain,
        }
    }
}

/// Nodes whose instances may all leave, those with the least memory to copy first.
fn sources(state: &RebalanceState<'_>) -> Vec<NodeIndex> {
    let free = state.in_service().map(|(index, _)| index);
    let mut free: Vec<NodeIndex> =
        free.filter(|&index| !state.is_empty(index) && !state.is_pinned(index)).collect();
    free.sort_by_cached_key(|&index| {
        let instances = state.instances(index).iter();
        let copied: u64 = instances.map(|&place| u64::from(state.movables[place].copy_mib)).sum();
        (copied, state.rank(index))
    });
    free
}

/// Moves all instances off a node, or none. Returns whether it is empty now.
fn empty(state: &mut RebalanceState<'_>, source: NodeIndex) -> bool {
    let mut instances = state.instances(source).to_vec();
    instances.sort_by_cached_key(|&place| {
        let movable = &state.movables[place];
        let memory = movable.replacement.resources.memory_mib;
        (!has_placement_rules(&movable.replacement), Reverse(memory), movable.id)
    });
    for moved in 0..instances.len() {
        if !move_off(state, instances[moved]) {
            for &place in instances[..moved].iter().rev() {
                state.undo(place);
            }
            return false;
        }
    }
    record_move(state, source, &instances);
    true
}

/// Moves one instance to the fullest node that may take it. Nodes that cannot be emptied come
/// first: instances there are not in the way of a later move.
fn move_off(state: &mut RebalanceState<'_>, place: usize) -> bool {
    let mut indexes = state.destinations(place, false);
    indexes.sort_by_cached_key(|&index| {
        let share = state.load(index).map_or(0, super::measure::Load::larger_share);
        (!state.is_pinned(index), Reverse(share), state.rank(index))
    });
    indexes.into_iter().take(TRIED).any(|index| state.try_move(place, index))
}

fn record_move(state: &mut RebalanceState<'_>, source: NodeIndex, instances: &[usize]) {
    let limits = state.engine.fleet().row(source).map(|row| row.limits).unwrap_or_default();
    let (cpu, memory) = (limits.cpu.max(0), u64::try_from(limits.memory).unwrap_or(0));
    let (count, node) = (instances.len() as u64, state.name(source));
    let size = |mib: u64| units::size(i64::try_from(mib).unwrap_or(i64::MAX));
    let (each, rest) =
        (memory.checked_div(count).unwrap_or(0), memory.checked_rem(count).unwrap_or(0));
    for (number, &place) in (0u64..).zip(instances) {
        let (gain, cost) = (each + u64::from(number < rest), state.movables[place].cost);
        let why = format!(
            "move {} of {count} that empty {node} and free {} and {} there: gains {} of that for \
             about {} to copy",
            number + 1,
            size(memory),
            units::cpu(cpu),
            size(gain),
            size(cost)
        );
        state.record_move(place, gain, why);
    }
}
