//! Whether a gain is one, judged on data that nothing was learned from.

use serde::Serialize;

use super::goal::{Goal, Measure};
use crate::SeededRng;

/// How often the observations are drawn again, for the interval.
const DRAWS: usize = 4000;

/// Of so many draws, as many below the interval as above it: it holds 95 of 100.
const OUTSIDE_PERMILLE: usize = 25;

/// Fewer independent observations tell nothing.
const FEWEST_BLOCKS: usize = 4;

/// Both policies by one measure, summed over all cases, and by how much the tuned one is better.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Comparison {
    /// The measure.
    pub measure: &'static str,
    /// The policy that the search began with.
    pub base: u64,
    /// The tuned policy.
    pub tuned: u64,
    /// How much less the tuned policy has; negative if it has more.
    pub gain: i64,
    /// The gain is at least this, with 97.5 of 100 redrawn samples.
    pub low: i64,
    /// The gain is at most this, with 97.5 of 100 redrawn samples.
    pub high: i64,
}

/// Whether the tuned policy can be recommended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "verdict", rename_all = "snake_case")]
pub enum Verdict {
    /// It is better by this measure on data that it has not seen, and not worse by a more important one.
    Recommended {
        /// The measure.
        measure: &'static str,
    },
    /// It must not be recommended.
    NotRecommended {
        /// Why.
        reason: String,
    },
}

/// Results by case: the piece each case is from, and the values of the goal's measures.
pub(super) type Values = Vec<(usize, Vec<u64>)>;

/// Compares two policies by every measure of the goal.
pub(super) fn compare(goal: &Goal, base: &Values, tuned: &Values, seed: u64) -> Vec<Comparison> {
    let measures = goal.0.iter().enumerate();
    measures.map(|(at, measure)| compare_by(*measure, at, base, tuned, seed)).collect()
}

fn compare_by(measure: Measure, at: usize, base: &Values, tuned: &Values, seed: u64) -> Comparison {
    let sum = |values: &Values| values.iter().map(|(_, values)| values[at]).sum::<u64>();
    let gains = gains_by_block(at, base, tuned);
    let gain: i64 = gains.iter().sum();
    let mut rng = SeededRng::new(seed);
    // Blocks are drawn again as a whole: cases of one block are not independent.
    let mut sums: Vec<i64> = (0..DRAWS)
        .map(|_| {
            let draw = |_: &i64| {
                let drawn = usize::try_from(rng.below(gains.len() as u64)).unwrap_or(0);
                gains[drawn]
            };
            gains.iter().map(draw).sum()
        })
        .collect();
    sums.sort_unstable();
    let outside = DRAWS * OUTSIDE_PERMILLE / 1000;
    // Few observations vary more than their own redraws do.
    let widened = |bound: i64| {
        let count = i64::try_from(gains.len()).unwrap_or(i64::MAX / 2);
        gain + (bound - gain) * (count + 1) / (count - 1).max(1)
    };
    Comparison {
        measure: measure.name(),
        base: sum(base),
        tuned: sum(tuned),
        gain,
        low: widened(sums[outside]),
        high: widened(sums[DRAWS - 1 - outside]),
    }
}

fn gains_by_block(at: usize, base: &Values, tuned: &Values) -> Vec<i64> {
    let mut gains = std::collections::BTreeMap::new();
    for ((block, base), (_, tuned)) in base.iter().zip(tuned) {
        let gain = i64::try_from(base[at]).unwrap_or(i64::MAX)
            - i64::try_from(tuned[at]).unwrap_or(i64::MAX);
        *gains.entry(*block).or_insert(0) += gain;
    }
    gains.into_values().collect()
}

/// Recommends a policy if it is surely better by one measure, and not worse by any before it.
pub(super) fn judge(comparisons: &[Comparison], blocks: usize) -> Verdict {
    if blocks < FEWEST_BLOCKS {
        return not_recommended(format!(
            "the traces have {blocks} independent pieces to judge by; at least {FEWEST_BLOCKS} are \
             needed: give a longer trace"
        ));
    }
    for comparison in comparisons {
        let Comparison { measure, gain, low, .. } = comparison;
        if *gain < 0 {
            return not_recommended(format!(
                "it does not generalise: on data that it has not seen, {measure} is {} instead of {}",
                comparison.tuned, comparison.base
            ));
        }
        if *low > 0 {
            return Verdict::Recommended { measure };
        }
    }
    not_recommended(
        "on data that it has not seen, no gain is certain: every interval includes 0".to_owned(),
    )
}

pub(super) fn not_recommended(reason: String) -> Verdict {
    Verdict::NotRecommended { reason }
}
