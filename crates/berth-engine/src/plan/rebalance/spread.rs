//! Spreading: moves instances from the fullest node to where that lowers the measure, repeatedly.
//!
//! A node without a worthwhile move is skipped until all others have none either; then all are tried
//! once more, since much may have changed. The plan ends when no node has a worthwhile move, so a plan
//! for its result is empty.

use std::cmp::Reverse;

use super::measure::{Load, PPM_OF_NODE, percent};
use super::rebalance_state::RebalanceState;
use super::{RebalanceTerms, StopReason};
use crate::fleet::NodeIndex;
use crate::units;

/// How many of the best destinations of an instance are tried against the rules of others.
const TRIED: usize = 8;

/// Moves that gain at least this many tenths of the best count as equally good: the cheapest is made.
const AS_GOOD_TENTHS: i128 = 9;

/// A move that would lower the measure.
#[derive(Clone, Copy)]
struct Proposal {
    place: usize,
    to: NodeIndex,
    gain: i128,
}

struct Spread<'b, 'e> {
    state: &'b mut RebalanceState<'e>,
    min_gain: i128,
    onto_empty: bool,
    /// The smallest shares that a destination has.
    least: [u64; 2],
    /// Nodes that had no worthwhile move when they were last tried.
    passed_over: Vec<bool>,
}

pub(super) fn run(state: &mut RebalanceState<'_>, terms: &RebalanceTerms) -> StopReason {
    let nodes = state.in_service().map(|(index, _)| index.as_usize() + 1).max().unwrap_or(0);
    let min_gain = u128::from(terms.min_gain_ppm.max(1)) * PPM_OF_NODE;
    let mut spread = Spread {
        state,
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
            let Some((source, before, moves)) = self.next_move() else {
                if !std::mem::take(&mut moved_since) {
                    return StopReason::NothingToGain;
                }
                self.passed_over.fill(false);
                continue;
            };
            if self.state.moves_made() == budget {
                self.state.undo(moves.place);
                return StopReason::Budget;
            }
            self.record_move(moves, source, before);
            moved_since = true;
        }
    }

    /// Makes a move from the fullest node that has one; says from where, and how that stood.
    fn next_move(&mut self) -> Option<(NodeIndex, Load, Proposal)> {
        for (source, load) in self.fullest_first() {
            if let Some(moves) = self.move_from(source, load) {
                return Some((source, load, moves));
            }
            self.passed_over[source.as_usize()] = true;
        }
        None
    }

    /// The nodes that were not passed over; of equals, the one whose id comes first.
    fn fullest_first(&self) -> Vec<(NodeIndex, Load)> {
        let open = self.state.in_service().filter(|(index, _)| {
            !self.passed_over[index.as_usize()] && !self.state.instances(*index).is_empty()
        });
        let mut open: Vec<(NodeIndex, Load)> =
            open.map(|(index, row)| (index, Load::of(row))).collect();
        // They come in order of id, and a stable sort keeps that.
        open.sort_by_cached_key(|(_, load)| Reverse(load.larger_share()));
        open
    }

    fn least_shares(&self) -> [u64; 2] {
        let open =
            self.state.in_service().filter(|(_, row)| self.onto_empty || !row.instances.is_empty());
        let shares = open.map(|(_, row)| Load::of(row).shares());
        shares.fold([u64::MAX; 2], |least, [cpu, memory]| [least[0].min(cpu), least[1].min(memory)])
    }

    /// Makes the best move from a node, if one is worth it.
    fn move_from(&mut self, source: NodeIndex, load: Load) -> Option<Proposal> {
        let mut proposals: Vec<Proposal> = Vec::new();
        for number in 0..self.state.instances(source).len() {
            let place = self.state.instances(source)[number];
            self.propose(place, source, load, &mut proposals);
        }
        while let Some(best) = proposals.iter().map(|proposal| proposal.gain).max() {
            let as_good = |proposal: &Proposal| {
                proposal.gain.saturating_mul(10) >= best.saturating_mul(AS_GOOD_TENTHS)
            };
            let ranked = proposals.iter().enumerate().filter(|(_, p)| as_good(p)).map(|(at, p)| {
                let movable = &self.state.movables[p.place];
                let cost = (movable.priority, movable.cost);
                ((cost, Reverse(p.gain), movable.id, self.state.rank(p.to)), at)
            });
            let (_, at) = ranked.min()?;
            let chosen = proposals.swap_remove(at);
            if self.state.try_move(chosen.place, chosen.to) {
                return Some(chosen);
            }
        }
        None
    }

    /// Adds the best places for one instance, if it has any.
    fn propose(&mut self, place: usize, source: NodeIndex, load: Load, found: &mut Vec<Proposal>) {
        let (here, scale) = (self.state.size_on(place, source), self.state.scale);
        // The hypervisor's overhead may be less elsewhere.
        let sizes = [here, self.state.size_of(place)];
        if scale.most_gain(sizes, load, self.least) < self.min_gain {
            return;
        }
        let drop = scale.term(load).saturating_sub(scale.term(load.without(here)));
        let drop = i128::try_from(drop).unwrap_or(i128::MAX);
        let mut places: Vec<Proposal> = Vec::new();
        for to in self.state.destinations(place, self.onto_empty) {
            let Some(there) = self.state.load(to) else { continue };
            if scale.most_gain(sizes, load, there.shares()) < self.min_gain {
                continue;
            }
            let with = there.with(self.state.size_on(place, to));
            // Or the destination would be the next source.
            if with.larger_share() >= load.larger_share() {
                continue;
            }
            let rise = scale.term(with).saturating_sub(scale.term(there));
            let gain = drop.saturating_sub(i128::try_from(rise).unwrap_or(i128::MAX));
            if gain >= self.min_gain {
                places.push(Proposal { place, to, gain });
            }
        }
        places.sort_by_key(|proposal| (Reverse(proposal.gain), self.state.rank(proposal.to)));
        found.extend(places.into_iter().take(TRIED));
    }

    fn record_move(&mut self, moves: Proposal, source: NodeIndex, before: Load) {
        let state = &mut *self.state;
        // By the measure as it is shown, so that gains add up.
        let value = |exact: u128| u64::try_from(exact / PPM_OF_NODE).unwrap_or(u64::MAX);
        let measure = state.unevenness();
        let gain = value(measure.saturating_add_signed(moves.gain)).saturating_sub(value(measure));
        let (cost, there) = (state.movables[moves.place].cost, state.load(moves.to));
        let (Some(here), Some(there)) = (state.load(source), there) else { return };
        let there_before = there.without(state.size_on(moves.place, moves.to));
        let use_of = |load: Load| percent(load.larger_share());
        let why = format!(
            "evens out {} ({} used, then {}) and {} ({} used, then {}): gains {gain} ppm of a full \
             node for about {} to copy",
            state.name(source),
            use_of(before),
            use_of(here),
            state.name(moves.to),
            use_of(there_before),
            use_of(there),
            units::size(i64::try_from(cost).unwrap_or(i64::MAX)),
        );
        state.record_move(moves.place, gain, why);
    }
}
