//! Searches a policy for traces: weights and shapes are varied, and what is best on one time of the traces
//! is judged on another that the search has not seen. Filters and every other rule stay as they are. The
//! same traces, seed and number of evaluations give the same policy.

mod cases;
mod goal;
mod knobs;
mod verdict;

use std::cmp::Ordering;

use berth_engine::Policy;
use serde::Serialize;
use thiserror::Error;

use super::chooser::Chooser;
use super::fleet::FleetNode;
use super::replay::{Options, ReplayError, replay};
use super::trace::Trace;
use crate::SeededRng;
use cases::{Case, Cases};
use knobs::Knobs;

pub use goal::{Goal, GoalError, Measure};
pub use verdict::{Comparison, Verdict};

/// The best candidates of the search that are compared once more, on a time of their own.
const FINALISTS: usize = 4;

/// A trace to learn from, and the nodes to take fleets from.
#[derive(Clone, Copy)]
pub struct TuneSource<'a> {
    /// The trace.
    pub trace: &'a Trace,
    /// As many nodes as the largest fleet may have.
    pub nodes: &'a [FleetNode],
}

/// A search that could not be made.
#[derive(Debug, Error)]
pub enum TuneError {
    /// A replay failed.
    #[error(transparent)]
    Replay(#[from] ReplayError),
    /// The policy to begin with has no text that can be varied.
    #[error("the policy to begin with cannot be varied")]
    Policy(#[from] berth_engine::PolicyError),
    /// Nothing arrives.
    #[error("the traces are too short: no arrivals in the {0} part")]
    TooShort(&'static str),
}

/// What a search came to.
#[derive(Clone, Debug, Serialize)]
pub struct Tuned {
    /// The best policy that was found, as TOML; the one it began with if none was better.
    pub policy_toml: String,
    /// Policies that were tried.
    pub evaluated: u64,
    /// Replays that judge the policy, none of which the search has seen.
    pub unseen_replays: usize,
    /// Both policies on what was learned from: always an optimistic figure.
    pub learned: Vec<Comparison>,
    /// Both policies on data that the search has not seen.
    pub unseen: Vec<Comparison>,
    /// Whether the policy is recommended.
    #[serde(flatten)]
    pub verdict: Verdict,
}

/// Searches a policy that is better than `base`. `go_on` is asked before each evaluation, with how many
/// there were; the search ends when it says no.
///
/// # Errors
/// When the traces are too short, or an amount is beyond the engine's limits.
pub fn tune(
    sources: &[TuneSource<'_>],
    base: &Policy,
    goal: &Goal,
    seed: u64,
    go_on: &mut dyn FnMut(u64) -> bool,
) -> Result<Tuned, TuneError> {
    let cases = Cases::of(sources, seed);
    for (part, cases) in
        [("first", &cases.learning), ("middle", &cases.choosing), ("last", &cases.judging)]
    {
        if cases.is_empty() {
            return Err(TuneError::TooShort(part));
        }
    }
    let knobs = Knobs::new(base, cases.learning.iter().flat_map(|case| &case.trace.demands))?;
    let mut search =
        Search { goal, seed, learning: &cases.learning, ranked: Vec::new(), evaluated: 0 };
    search.run(base, &knobs, go_on)?;
    let base_values = values(&cases.choosing, base, goal, seed)?;
    let mut best = (total(&base_values), base.clone());
    for candidate in search.ranked.iter().take(FINALISTS) {
        let sums = total(&values(&cases.choosing, &candidate.policy, goal, seed)?);
        if sums < best.0 {
            best = (sums, candidate.policy.clone());
        }
    }
    let tuned = best.1;
    let evaluated = search.evaluated;
    let compare = |cases: &[Case]| -> Result<Vec<Comparison>, TuneError> {
        let base = values(cases, base, goal, seed)?;
        let tuned = values(cases, &tuned, goal, seed)?;
        Ok(verdict::compare(goal, &base, &tuned, seed))
    };
    let (learned, unseen) = (compare(&cases.learning)?, compare(&cases.judging)?);
    let verdict = if tuned.hash() == base.hash() {
        verdict::not_recommended(
            "no policy that was tried is better on a time that the search did not learn from"
                .to_owned(),
        )
    } else {
        let mut blocks: Vec<usize> = cases.judging.iter().map(|case| case.block).collect();
        blocks.dedup();
        verdict::judge(&unseen, blocks.len())
    };
    let unseen_replays = cases.judging.len();
    Ok(Tuned { policy_toml: tuned.to_toml(), evaluated, unseen_replays, learned, unseen, verdict })
}

/// A policy that was tried, and its sums over all cases to learn from.
struct Candidate {
    policy: Policy,
    sums: Vec<u64>,
}

struct Search<'a> {
    goal: &'a Goal,
    seed: u64,
    learning: &'a [Case],
    /// The best first; at most as many as are compared once more.
    ranked: Vec<Candidate>,
    evaluated: u64,
}

impl Search<'_> {
    /// Starts with the given policy, and varies the best so far.
    fn run(
        &mut self,
        base: &Policy,
        knobs: &Knobs,
        go_on: &mut dyn FnMut(u64) -> bool,
    ) -> Result<(), TuneError> {
        let mut rng = SeededRng::new(self.seed);
        self.try_policy(base.clone())?;
        while go_on(self.evaluated) {
            // Mostly the best, sometimes another good one, so that the search does not stay in one corner.
            let from = if rng.below(4) == 0 { rng.below(self.ranked.len() as u64) } else { 0 };
            let from = self.ranked.get(usize::try_from(from).unwrap_or(0));
            let varied = knobs.vary(from.map_or(base, |from| &from.policy), &mut rng);
            self.try_policy(varied)?;
        }
        Ok(())
    }

    fn try_policy(&mut self, policy: Policy) -> Result<(), TuneError> {
        self.evaluated += 1;
        if self.ranked.iter().any(|known| known.policy.hash() == policy.hash()) {
            return Ok(());
        }
        let limit = self.ranked.get(FINALISTS - 1).map(|worst| worst.sums[0]);
        let mut sums = vec![0; self.goal.0.len()];
        for case in self.learning {
            let values = case_values(case, &policy, self.goal, self.seed)?;
            sums.iter_mut().zip(values).for_each(|(sum, value)| *sum += value);
            // It can only get worse.
            if limit.is_some_and(|limit| sums[0] > limit) {
                return Ok(());
            }
        }
        let at = self.ranked.partition_point(|known| known.sums.cmp(&sums) != Ordering::Greater);
        self.ranked.insert(at, Candidate { policy, sums });
        self.ranked.truncate(FINALISTS);
        Ok(())
    }
}

fn values(
    cases: &[Case],
    policy: &Policy,
    goal: &Goal,
    seed: u64,
) -> Result<verdict::Values, TuneError> {
    cases.iter().map(|case| Ok((case.block, case_values(case, policy, goal, seed)?))).collect()
}

fn case_values(
    case: &Case,
    policy: &Policy,
    goal: &Goal,
    seed: u64,
) -> Result<Vec<u64>, TuneError> {
    let chooser = Chooser::of_policy(policy.name(), policy.clone());
    let outcome = replay(&case.trace, &case.nodes, &chooser, Options { seed }, |_| ())?;
    Ok(goal.0.iter().map(|measure| measure.of(&outcome)).collect())
}

fn total(values: &verdict::Values) -> Vec<u64> {
    let measures = values.first().map_or(0, |(_, values)| values.len());
    (0..measures).map(|at| values.iter().map(|(_, values)| values[at]).sum()).collect()
}
