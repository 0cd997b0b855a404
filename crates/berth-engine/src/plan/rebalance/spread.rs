//! Spreading: the fullest node gives something to where it lowers the measure, again and again.
//!
//! A node that has nothing worth moving is passed over until all others have nothing either; then
//! all are asked once more, since much may have changed. The plan ends when nobody has anything, so
//! the same question about its result has the same answer.

use std::cmp::Reverse;

use super::board::Board;
use super::measure::{Load, PPM_OF_NODE, percent};
use super::{RebalanceTerms, StopReason};
use crate::fleet::Slot;

/// Of so many best destinations of an instance one must be allowed by the rules of others.
const TRIED: usize = 8;

/// Moves that gain at least so many tenths of the best are as good: the cheapest is made.
const AS_GOOD_TENTHS: i128 = 9;

/// A move that would lower the measure.
#[derive(Clone, Copy)]
struct Proposal {
    place: usize,
    to: Slot,
    gain: i128,
}

struct Spread<'b, 'e> {
    board: &'b mut Board<'e>,
    min_gain: i128,
    onto_empty: bool,
    /// The smallest shares that a destination has.
    least: [u64; 2],
    /// Nodes that had nothing to give when they were last asked.
    passed_over: Vec<bool>,
}

pub(super) fn run(board: &mut Board<'_>, terms: &RebalanceTerms) -> StopReason {
    let nodes = board.in_service().map(|(slot, _)| slot.index() + 1).max().unwrap_or(0);
    let min_gain = u128::from(terms.min_gain_ppm.max(1)) * PPM_OF_NODE;
    let mut spread = Spread {
        board,
        min_gain: i128::try_from(min_gain).unwrap_or(i128::MAX),
        onto_empty: terms.onto_empty,
        least: [0; 2],
        passed_over: vec![false; nodes],
    };
    spread.run(terms.budget as usize)
}

impl Spread<'_, '_> {
    fn run(&mut self, budget: usize) -> StopReason {
        let mut moved_since = false;
        loop {
            self.least = self.least_shares();
            let Some((source, before, made)) = self.next_move() else {
                if !std::mem::take(&mut moved_since) {
                    return StopReason::NothingToGain;
                }
                self.passed_over.fill(false);
                continue;
            };
            if self.board.moves_made() == budget {
                self.board.undo(made.place);
                return StopReason::Budget;
            }
            self.note(made, source, before);
            moved_since = true;
        }
    }

    /// Makes a move from the fullest node that has one; says from where, and how that stood.
    fn next_move(&mut self) -> Option<(Slot, Load, Proposal)> {
        for (source, load) in self.fullest_first() {
            if let Some(made) = self.move_from(source, load) {
                return Some((source, load, made));
            }
            self.passed_over[source.index()] = true;
        }
        None
    }

    /// The nodes that were not passed over; of equals, the one whose id comes first.
    fn fullest_first(&self) -> Vec<(Slot, Load)> {
        let open = self.board.in_service().filter(|(slot, _)| {
            !self.passed_over[slot.index()] && !self.board.guests(*slot).is_empty()
        });
        let mut open: Vec<(Slot, Load)> = open.map(|(slot, row)| (slot, Load::of(row))).collect();
        // They come in order of id, and a stable sort keeps that.
        open.sort_by_cached_key(|(_, load)| Reverse(load.larger_share()));
        open
    }

    fn least_shares(&self) -> [u64; 2] {
        let open =
            self.board.in_service().filter(|(_, row)| self.onto_empty || !row.instances.is_empty());
        let shares = open.map(|(_, row)| Load::of(row).shares());
        shares.fold([u64::MAX; 2], |least, [cpu, memory]| [least[0].min(cpu), least[1].min(memory)])
    }

    /// Makes the best move from a node, if one is worth it.
    fn move_from(&mut self, source: Slot, load: Load) -> Option<Proposal> {
        let mut proposals: Vec<Proposal> = Vec::new();
        for number in 0..self.board.guests(source).len() {
            let place = self.board.guests(source)[number];
            self.propose(place, source, load, &mut proposals);
        }
        while let Some(best) = proposals.iter().map(|proposal| proposal.gain).max() {
            let as_good = |proposal: &Proposal| {
                proposal.gain.saturating_mul(10) >= best.saturating_mul(AS_GOOD_TENTHS)
            };
            let ranked = proposals.iter().enumerate().filter(|(_, p)| as_good(p)).map(|(at, p)| {
                let mover = &self.board.movers[p.place];
                let cost = (mover.priority, mover.cost);
                ((cost, Reverse(p.gain), mover.id, self.board.rank(p.to)), at)
            });
            let (_, at) = ranked.min()?;
            let chosen = proposals.swap_remove(at);
            if self.board.try_move(chosen.place, chosen.to) {
                return Some(chosen);
            }
        }
        None
    }

    /// Adds the best places for one instance, if it has any.
    fn propose(&mut self, place: usize, source: Slot, load: Load, found: &mut Vec<Proposal>) {
        let (here, scale) = (self.board.size_on(place, source), self.board.scale);
        // The hypervisor's overhead may be less elsewhere.
        let sizes = [here, self.board.size_of(place)];
        if scale.most_gain(sizes, load, self.least) < self.min_gain {
            return;
        }
        let drop = scale.term(load).saturating_sub(scale.term(load.without(here)));
        let drop = i128::try_from(drop).unwrap_or(i128::MAX);
        let mut places: Vec<Proposal> = Vec::new();
        for to in self.board.destinations(place, self.onto_empty) {
            let Some(there) = self.board.load(to) else { continue };
            if scale.most_gain(sizes, load, there.shares()) < self.min_gain {
                continue;
            }
            let with = there.with(self.board.size_on(place, to));
            // Or it would be the next to give something away.
            if with.larger_share() >= load.larger_share() {
                continue;
            }
            let rise = scale.term(with).saturating_sub(scale.term(there));
            let gain = drop.saturating_sub(i128::try_from(rise).unwrap_or(i128::MAX));
            if gain >= self.min_gain {
                places.push(Proposal { place, to, gain });
            }
        }
        places.sort_by_key(|proposal| (Reverse(proposal.gain), self.board.rank(proposal.to)));
        found.extend(places.into_iter().take(TRIED));
    }

    fn note(&mut self, made: Proposal, source: Slot, before: Load) {
        let board = &mut *self.board;
        // By the measure as it is shown, so that gains add up.
        let value = |exact: u128| u64::try_from(exact / PPM_OF_NODE).unwrap_or(u64::MAX);
        let measure = board.unevenness();
        let gain = value(measure.saturating_add_signed(made.gain)).saturating_sub(value(measure));
        let (cost, there) = (board.movers[made.place].cost, board.load(made.to));
        let (Some(here), Some(there)) = (board.load(source), there) else { return };
        let there_before = there.without(board.size_on(made.place, made.to));
        let use_of = |load: Load| percent(load.larger_share());
        let why = format!(
            "evens out {} ({} used, then {}) and {} ({} used, then {}): gains {gain} ppm of a full \
             node for about {cost} MiB to copy",
            board.name(source),
            use_of(before),
            use_of(here),
            board.name(made.to),
            use_of(there_before),
            use_of(there),
        );
        board.note(made.place, gain, why);
    }
}
