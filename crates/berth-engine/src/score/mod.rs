//! What makes one node better than another, in parts per million, each term kept apart.
//!
//! A scorer returns `0..=1_000_000` for a node; a policy weighs it; the weighted terms add up (or,
//! by policy, multiply). Integers only, equal inputs give equal scores, and a scorer never removes
//! a node. Scores that compare nodes compare them with the whole fleet, not with the survivors of
//! the filters, so that a node's term does not depend on which others were filtered out; the few that
//! rank survivors, as Triton does, are marked `Relative` and cost a slower path.

mod blocks;
mod facts;
mod load;
mod neighbours;
mod place;
mod relative;
mod scale;
mod slots;
mod weighted;

use crate::example::Example;
use crate::fleet::{Lanes, NodeIndex, NodeRow};
use crate::model::{PPM, Timestamp};
use crate::policy::{Combine, Policy};
use crate::prepared_request::PreparedRequest;

pub(crate) use blocks::{BlockScorer, BlockScores};
pub(crate) use facts::{load_expires_at, next_failure_step};
pub(crate) use neighbours::rack_value;
pub(crate) use place::notices_of;
pub(crate) use scale::Scale;
pub(crate) use slots::usual_shapes;
pub(crate) use weighted::WeightedScorers;

pub use crate::policy::ScorerId;

/// What a scorer depends on, and so when its value must be recomputed.
#[derive(Clone, Copy)]
pub(crate) enum ScorerKind {
    /// The node's facts, the fleet's spans and the time.
    Facts(fn(&NodeRow, &Scale, &Policy, Timestamp) -> u32),
    /// What is used on the node.
    Load(LoadValue),
    /// Where other instances are: most nodes have the default value, and the exceptions are listed.
    Sparse(Sparse),
    /// The node's zone.
    Zone(fn(&PreparedRequest<'_>, u32) -> u32),
    /// The node's usage together with the request.
    Dense(DenseValue),
    /// The node's usage together with the request, for 64 nodes at a time.
    Blocks(BlockScorer),
    /// All nodes that passed the filters, together.
    Relative(fn(&PreparedRequest<'_>, &[NodeIndex]) -> Vec<u32>),
}

/// The value of a node by its usage and the request together.
pub(crate) type DenseValue = fn(&PreparedRequest<'_>, &NodeRow) -> u32;

/// The value of a node by what is used on it.
pub(crate) type LoadValue = fn(&NodeRow, &Scale, &Policy) -> u32;

/// A scorer with few exceptions.
#[derive(Clone, Copy)]
pub(crate) struct Sparse {
    /// The value of one node.
    pub(crate) value: fn(&PreparedRequest<'_>, NodeIndex) -> u32,
    /// The value of every node that is not an exception.
    pub(crate) default: fn(&PreparedRequest<'_>) -> u32,
    /// Lists every node whose value differs from the default.
    pub(crate) exceptions: fn(&PreparedRequest<'_>, &mut Exceptions<'_>),
}

/// Collects exceptions and what they add to the totals. A node that is listed twice changes from one
/// value to the next: first as part of its rack, for example, then on its own.
pub(crate) struct Exceptions<'a> {
    weight_permille: u32,
    changes: &'a mut Vec<(Lanes, i32)>,
}

impl<'a> Exceptions<'a> {
    pub(crate) const fn new(weight_permille: u32, changes: &'a mut Vec<(Lanes, i32)>) -> Self {
        Self { weight_permille, changes }
    }

    /// Lists nodes of one block that have another value.
    pub(crate) fn list(&mut self, nodes: Lanes, from: u32, to: u32) {
        let delta = term(to, self.weight_permille) - term(from, self.weight_permille);
        if delta != 0 {
            self.changes.push((nodes, delta));
        }
    }
}

/// A scorer.
pub struct Scorer {
    /// Its stable name.
    pub name: &'static str,
    /// How the value is computed, in one line.
    pub formula: &'static str,
    /// What it is good for.
    pub about: &'static str,
    /// What the formula leaves out; often nothing.
    pub notes: &'static str,
    /// Settings of the policy that it reads.
    pub settings: &'static [&'static str],
    /// A fleet in which it tells nodes apart, for the reference.
    pub(crate) example: Example,
    pub(crate) kind: ScorerKind,
}

impl ScorerId {
    /// The scorer itself.
    #[must_use]
    pub fn scorer(self) -> &'static Scorer {
        SCORERS[usize::from(self.0)]
    }

    /// All scorers in order.
    pub fn all() -> impl Iterator<Item = Self> {
        (0..SCORERS.len()).map(|place| Self(u8::try_from(place).unwrap_or(u8::MAX)))
    }

    /// The scorer with this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::all().find(|id| id.scorer().name == name)
    }
}

/// Every scorer.
pub static SCORERS: [&Scorer; 28] = [
    &load::CPU_PRESSURE,
    &load::CPU_PACK,
    &load::MEMORY_PACK,
    &load::MEMORY_SPREAD,
    &load::DISK_PACK,
    &load::DISK_SPREAD,
    &load::TENT,
    &load::FRAGMENTATION,
    &slots::SLOT_LOSS,
    &neighbours::SPREAD_NODES,
    &neighbours::SPREAD_RACKS,
    &neighbours::SPREAD_ZONES,
    &neighbours::AFFINITY,
    &neighbours::LOCALITY,
    &neighbours::FEWEST_OF_OWNER,
    &neighbours::IMAGE_CACHED,
    &place::PREFERRED_PLACE,
    &facts::RECENT_FAILURES,
    &facts::NEWEST_PLATFORM,
    &facts::NEXT_REBOOT,
    &facts::HARDWARE_CLASS,
    &facts::CAPACITY_PREFERENCE,
    &facts::RESERVOIR,
    &facts::MEASURED_LOAD,
    &relative::MEMORY_PACK_RANK,
    &relative::DISK_PACK_RANK,
    &relative::SPARE_LARGEST,
    &relative::RANDOM,
];

/// A value times its weight, rounded down.
pub(crate) fn term(value: u32, weight_permille: u32) -> i32 {
    let points = u64::from(value) * u64::from(weight_permille) / 1000;
    i32::try_from(points).unwrap_or(i32::MAX)
}

/// The terms that depend on the node's facts and the time, added up.
pub(crate) fn fact_points(row: &NodeRow, scale: &Scale, policy: &Policy, now: Timestamp) -> i32 {
    let mut total = 0;
    for (id, weight) in policy.weights() {
        if let ScorerKind::Facts(value) = id.scorer().kind {
            total += term(value(row, scale, policy, now), weight);
        }
    }
    total
}

/// The terms that depend on what is used on the node, added up.
pub(crate) fn load_points(
    scorers: &WeightedScorers,
    row: &NodeRow,
    scale: &Scale,
    policy: &Policy,
) -> i32 {
    let each = scorers.load.iter();
    each.map(|(value, weight)| term(value(row, scale, policy), *weight)).sum()
}

/// The sparse terms of one node, added up.
pub(crate) fn sparse_points(
    scorers: &WeightedScorers,
    prepared: &PreparedRequest<'_>,
    index: NodeIndex,
) -> i32 {
    let each = scorers.sparse.iter();
    each.map(|(sparse, weight)| term((sparse.value)(prepared, index), *weight)).sum()
}

/// The dense terms of one node, added up.
pub(crate) fn dense_points(
    scorers: &WeightedScorers,
    prepared: &PreparedRequest<'_>,
    row: &NodeRow,
) -> i32 {
    let each = scorers.dense.iter();
    each.map(|(value, weight)| term(value(prepared, row), *weight)).sum()
}

/// Every term of some nodes, in the policy's order of scorers: the readable, slow way.
pub(crate) fn all_values(
    prepared: &PreparedRequest<'_>,
    scale: &Scale,
    nodes: &[NodeIndex],
) -> Vec<Vec<u32>> {
    let mut values = vec![Vec::new(); nodes.len()];
    for (id, _) in prepared.policy.weights() {
        if let ScorerKind::Relative(compare) = id.scorer().kind {
            for (of_node, value) in values.iter_mut().zip(compare(prepared, nodes)) {
                of_node.push(value);
            }
            continue;
        }
        let value = one_scorer(prepared, scale, id);
        for (of_node, &index) in values.iter_mut().zip(nodes) {
            of_node.push(value(index));
        }
    }
    values
}

/// One scorer's value of a node, for scorers that do not compare nodes.
fn one_scorer<'a>(
    prepared: &'a PreparedRequest<'_>,
    scale: &'a Scale,
    id: ScorerId,
) -> impl Fn(NodeIndex) -> u32 + 'a {
    let kind = id.scorer().kind;
    let in_blocks =
        if let ScorerKind::Blocks(prepare) = kind { Some(prepare(prepared)) } else { None };
    move |index| {
        let Some(row) = prepared.fleet.row(index) else {
            return 0;
        };
        match kind {
            ScorerKind::Facts(value) => value(row, scale, prepared.policy, prepared.now),
            ScorerKind::Load(value) => value(row, scale, prepared.policy),
            ScorerKind::Sparse(sparse) => (sparse.value)(prepared, index),
            ScorerKind::Zone(value) => value(prepared, row.zone),
            ScorerKind::Dense(value) => value(prepared, row),
            ScorerKind::Blocks(_) => {
                in_blocks.as_ref().map_or(0, |values| values.value(prepared.fleet.columns(), index))
            }
            ScorerKind::Relative(_) => 0,
        }
    }
}

/// The totals of some nodes, without keeping their terms.
pub(crate) fn all_totals(
    prepared: &PreparedRequest<'_>,
    scale: &Scale,
    nodes: &[NodeIndex],
) -> Vec<i32> {
    let combiner = Combiner::new(prepared.policy);
    let mut totals = vec![combiner.start(); nodes.len()];
    for (id, weight) in prepared.policy.weights() {
        if let ScorerKind::Relative(compare) = id.scorer().kind {
            for (total, value) in totals.iter_mut().zip(compare(prepared, nodes)) {
                *total = combiner.with(*total, value, weight);
            }
            continue;
        }
        let value = one_scorer(prepared, scale, id);
        for (total, &index) in totals.iter_mut().zip(nodes) {
            *total = combiner.with(*total, value(index), weight);
        }
    }
    totals
}

/// A node's total from its values, by the policy's way of combining.
pub(crate) fn combine(policy: &Policy, values: &[u32]) -> i32 {
    let combiner = Combiner::new(policy);
    let weighted = policy.weights().zip(values);
    weighted
        .fold(combiner.start(), |total, ((_, weight), &value)| combiner.with(total, value, weight))
}

/// How terms become a total, one after the other.
struct Combiner {
    combine: Combine,
    heaviest: u64,
}

impl Combiner {
    fn new(policy: &Policy) -> Self {
        let heaviest = policy.weights().map(|(_, weight)| weight).max().unwrap_or(1).max(1);
        Self { combine: policy.combine, heaviest: u64::from(heaviest) }
    }

    const fn start(&self) -> i32 {
        match self.combine {
            Combine::Sum => 0,
            Combine::Product => PPM.cast_signed(),
        }
    }

    fn with(&self, total: i32, value: u32, weight: u32) -> i32 {
        match self.combine {
            Combine::Sum => total + term(value, weight),
            Combine::Product => {
                // A weight says how far a zero pulls down: the heaviest scorer to nothing.
                let full = u64::from(PPM);
                let missing = full - u64::from(value);
                let factor = full - missing * u64::from(weight) / self.heaviest;
                let product = u64::from(total.unsigned_abs()) * factor / full;
                i32::try_from(product).unwrap_or(i32::MAX)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_kebab_case() {
        let names: std::collections::BTreeSet<_> = SCORERS.iter().map(|s| s.name).collect();
        assert_eq!(names.len(), SCORERS.len());
        for name in names {
            assert!(name.chars().all(|c| c.is_ascii_lowercase() || c == '-'), "{name}");
        }
    }
}
