//! Weights of scorers as text: reading, checking and writing.

use std::collections::BTreeMap;

use super::{PolicyError, out_of_range};
use crate::policy::{Policy, ScorerId, Weight, WeightStep, WrittenWeight};
use crate::score::SCORERS;

/// The weights above zero at some load, in the order of scorers.
pub(super) fn check_weights(
    scores: &BTreeMap<String, WrittenWeight>,
    errors: &mut Vec<PolicyError>,
) -> Vec<Weight> {
    let mut weights = Vec::new();
    for (name, written) in scores {
        let key = format!("scores.{name}");
        let Some(scorer) = ScorerId::named(name) else {
            errors.push(PolicyError::UnknownName {
                key,
                value: name.clone(),
                accepted: SCORERS.map(|scorer| scorer.name).join(", "),
            });
            continue;
        };
        let steps = match written {
            WrittenWeight::Constant(weight) => {
                weight_of(&key, *weight, errors).map(|w| vec![(0, w)])
            }
            WrittenWeight::Steps(steps) => check_steps(&key, steps, errors),
        };
        let weight = steps.map(|steps| Weight { scorer, steps });
        weights.extend(weight.filter(|weight| weight.most() > 0));
    }
    weights.sort_unstable_by_key(|weight| weight.scorer);
    let sum: u32 = weights.iter().map(Weight::most).sum();
    if sum > Policy::MAX_WEIGHT_SUM * 1000 {
        let accepted = format!("at most {} in sum", Policy::MAX_WEIGHT_SUM);
        errors.push(out_of_range("scores", format!("{} in sum", sum / 1000), &accepted));
    }
    weights
}

/// A weight in thousandths, if it is one.
fn weight_of(key: &str, weight: f64, errors: &mut Vec<PolicyError>) -> Option<u32> {
    let read = permille(weight, Policy::MAX_WEIGHT);
    if read.is_none() {
        let accepted = format!("0 to {} with at most three decimals", Policy::MAX_WEIGHT);
        errors.push(out_of_range(key, weight, &accepted));
    }
    read
}

/// Steps by rising load, each with its weight, both in thousandths.
fn check_steps(
    key: &str,
    steps: &[WeightStep],
    errors: &mut Vec<PolicyError>,
) -> Option<Vec<(u32, u32)>> {
    let known = errors.len();
    if steps.is_empty() || steps.len() > Policy::MAX_WEIGHT_STEPS {
        let accepted = format!("1 to {} steps", Policy::MAX_WEIGHT_STEPS);
        errors.push(out_of_range(key, format!("{} steps", steps.len()), &accepted));
    }
    let mut read: Vec<(u32, u32)> = Vec::new();
    for (place, step) in steps.iter().enumerate() {
        let from = permille(step.from_load, 1);
        let is_later = read.last().is_none_or(|(last, _)| from.is_some_and(|from| from > *last));
        if from.is_none() || !is_later {
            let accepted = "0 to 1 with at most three decimals, above that of the step before";
            errors.push(out_of_range(
                &format!("{key}[{place}].from_load"),
                step.from_load,
                accepted,
            ));
        }
        let weight = weight_of(&format!("{key}[{place}].weight"), step.weight, errors);
        read.extend(from.zip(weight));
    }
    (errors.len() == known).then_some(read)
}

/// A number as written, in thousandths. The only floats in this crate: they end here, before any
/// decision.
#[expect(clippy::float_arithmetic, reason = "reading a decimal, not deciding")]
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "range is checked")]
fn permille(number: f64, most: u32) -> Option<u32> {
    let scaled = number * 1000.0;
    let in_range = (0.0..=f64::from(most) * 1000.0).contains(&scaled);
    let is_whole = (scaled - scaled.round()).abs() < 1e-6;
    (in_range && is_whole).then(|| scaled.round() as u32)
}

/// A weight as it is written: a number where it is the same at every load.
#[expect(clippy::float_arithmetic, reason = "writing a decimal, not deciding")]
pub(super) fn as_written(weight: &Weight) -> WrittenWeight {
    let decimal = |permille: u32| f64::from(permille) / 1000.0;
    match weight.steps[..] {
        [(0, weight)] => WrittenWeight::Constant(decimal(weight)),
        _ => {
            let steps = weight.steps.iter();
            let step = |&(from, weight): &(u32, u32)| WeightStep {
                weight: decimal(weight),
                from_load: decimal(from),
            };
            WrittenWeight::Steps(steps.map(step).collect())
        }
    }
}
