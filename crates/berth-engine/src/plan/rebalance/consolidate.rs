//! Consolidating: the emptiest node gives all it has to nodes that are in use anyway, or nothing.
//!
//! A node that is half emptied has gained nothing, so its moves are planned together and taken back
//! together. What has arrived somewhere stays there: a node that took somebody in is not emptied by
//! the same plan.

use std::cmp::Reverse;

use super::board::Board;
use super::{RebalanceTerms, StopReason};
use crate::fleet::Slot;
use crate::plan::evacuate::is_choosy;

/// Of so many best destinations of an instance one must be allowed by the rules of others.
const TRIED: usize = 8;

pub(super) fn run(board: &mut Board<'_>, terms: &RebalanceTerms) -> StopReason {
    let sources = sources(board);
    let budget = terms.budget as usize;
    loop {
        let (mut emptied_any, mut too_many) = (false, false);
        for &source in &sources {
            if board.is_empty(source) || board.is_pinned(source) {
                continue;
            }
            if board.guests(source).len() > budget.saturating_sub(board.moves_made()) {
                too_many = true;
            } else if empty(board, source) {
                emptied_any = true;
            }
        }
        // Once more after a success: who found no room in one arrangement may in another.
        match (emptied_any, too_many) {
            (true, _) => {}
            (false, true) => return StopReason::Budget,
            (false, false) => return StopReason::NothingToGain,
        }
    }
}

/// Nodes whose instances may all leave, those with the least memory to copy first.
fn sources(board: &Board<'_>) -> Vec<Slot> {
    let free = board.in_service().map(|(slot, _)| slot);
    let mut free: Vec<Slot> =
        free.filter(|&slot| !board.is_empty(slot) && !board.is_pinned(slot)).collect();
    free.sort_by_cached_key(|&slot| {
        let guests = board.guests(slot).iter();
        let copied: u64 = guests.map(|&place| u64::from(board.movers[place].copy_mib)).sum();
        (copied, board.rank(slot))
    });
    free
}

/// Moves everybody off a node, or nobody. Whether it is empty now.
fn empty(board: &mut Board<'_>, source: Slot) -> bool {
    let mut guests = board.guests(source).to_vec();
    guests.sort_by_cached_key(|&place| {
        let mover = &board.movers[place];
        let memory = mover.replacement.resources.memory_mib;
        (!is_choosy(&mover.replacement), Reverse(memory), mover.id)
    });
    for moved in 0..guests.len() {
        if !move_off(board, guests[moved]) {
            for &place in guests[..moved].iter().rev() {
                board.undo(place);
            }
            return false;
        }
    }
    note(board, source, &guests);
    true
}

/// Moves one instance to the fullest node that may take it. Nodes that cannot be emptied come
/// first: what goes there is in nobody's way.
fn move_off(board: &mut Board<'_>, place: usize) -> bool {
    let mut slots = board.destinations(place, false);
    slots.sort_by_cached_key(|&slot| {
        let share = board.load(slot).map_or(0, super::measure::Load::larger_share);
        (!board.is_pinned(slot), Reverse(share), board.rank(slot))
    });
    slots.into_iter().take(TRIED).any(|slot| board.try_move(place, slot))
}

fn note(board: &mut Board<'_>, source: Slot, guests: &[usize]) {
    let limits = board.engine.fleet().row(source).map(|row| row.limits).unwrap_or_default();
    let (cpu, memory) = (limits.cpu.max(0), u64::try_from(limits.memory).unwrap_or(0));
    let (count, node) = (guests.len() as u64, board.name(source));
    let (each, rest) =
        (memory.checked_div(count).unwrap_or(0), memory.checked_rem(count).unwrap_or(0));
    for (number, &place) in (0u64..).zip(guests) {
        let (gain, cost) = (each + u64::from(number < rest), board.movers[place].cost);
        let why = format!(
            "move {} of {count} that empty {node} and free {memory} MiB and {cpu} mCPU there: gains \
             {gain} MiB of that for about {cost} MiB to copy",
            number + 1
        );
        board.note(place, gain, why);
    }
}
