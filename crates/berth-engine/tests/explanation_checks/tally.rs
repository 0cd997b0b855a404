//! How many refusals had a fix, and how many fixes worked.

use std::collections::BTreeMap;
use std::fmt;

use berth_engine::{Fix, Refusal};

use crate::fleets::Scene;
use crate::oracle::decide::Why;
use crate::waiting::Verdict;

/// Failures that are kept to be read.
const KEPT: usize = 12;

/// Good ones of all.
#[derive(Clone, Copy, Debug, Default)]
struct Share {
    good: usize,
    all: usize,
}

impl Share {
    fn note(&mut self, good: bool) {
        self.all += 1;
        self.good += usize::from(good);
    }

    fn is_at_least(self, percent: usize) -> bool {
        self.good * 100 >= self.all * percent
    }
}

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let permille = (self.good * 1000).checked_div(self.all).unwrap_or(1000);
        write!(f, "{} of {} ({}.{} %)", self.good, self.all, permille / 10, permille % 10)
    }
}

/// Everything that was counted.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    with_fix: [Share; 2],
    fixes: BTreeMap<(bool, String), Share>,
    without: BTreeMap<(bool, String), usize>,
    /// Proposals of which less would not be enough, and of batches more would not fit.
    best: BTreeMap<(bool, String), Share>,
    /// Refusals that say rightly whether waiting may help, and how many the oracle cannot decide.
    waiting: Share,
    undecided: usize,
    /// Counts on.
    number: usize,
    failures: Vec<String>,
}

impl Tally {
    pub(crate) fn refusal(&mut self, refusal: &Refusal, batch: bool) {
        self.with_fix[usize::from(batch)].note(!refusal.fixes.is_empty());
        if refusal.fixes.is_empty() {
            let filters: Vec<&str> = refusal.counts.iter().map(|count| &*count.filter).collect();
            *self.without.entry((batch, filters.join(" "))).or_default() += 1;
        }
    }

    pub(crate) fn fix(&mut self, fix: &Fix, worked: bool, batch: bool) {
        self.fixes.entry((batch, kind(fix))).or_default().note(worked);
    }

    /// The next of a series of numbers.
    pub(crate) const fn next(&mut self) -> usize {
        self.number += 1;
        self.number
    }

    pub(crate) fn best(&mut self, fix: &Fix, is_best: bool, batch: bool) {
        self.best.entry((batch, kind(fix))).or_default().note(is_best);
    }

    pub(crate) fn waiting(&mut self, scene: &Scene, refusal: &Refusal, verdict: Verdict) {
        if verdict == Verdict::Unknown {
            self.undecided += 1;
            return;
        }
        let is_right = refusal.waiting_may_help == (verdict == Verdict::MayHelp);
        self.waiting.note(is_right);
        if !is_right && self.failures.len() < KEPT {
            let said = refusal.waiting_may_help;
            self.failures
                .push(format!("seed {}: waiting {said}, {verdict:?}\n{refusal}", scene.seed));
        }
    }

    pub(crate) fn failed(&mut self, scene: &Scene, fix: &Fix, problem: &str) {
        if self.failures.len() < KEPT {
            self.failures.push(format!("seed {}: {fix}\n    {problem}", scene.seed));
        }
    }

    fn fixes_of(&self, batch: bool) -> Share {
        let of = self.fixes.iter().filter(|((of, _), _)| *of == batch);
        of.fold(Share::default(), |sum, (_, share)| Share {
            good: sum.good + share.good,
            all: sum.all + share.all,
        })
    }

    /// At least 99 % of fixes work, of single requests all; at least 95 % of refusals have one; 99 % of
    /// what is proposed is no more than it must be; and all say rightly whether waiting may help.
    pub(crate) fn assert_goals(&self) {
        let [one, batch] = self.with_fix;
        assert!(one.all > 100 && batch.all > 100, "too few refusals: the test shows nothing");
        assert!(self.fixes_of(false).is_at_least(100), "{self}");
        assert!(self.fixes_of(true).is_at_least(99), "{self}");
        assert!(one.is_at_least(95) && batch.is_at_least(95), "{self}");
        assert!(self.best.values().all(|share| share.is_at_least(99)), "{self}");
        assert!(self.waiting.is_at_least(100), "{self}");
        assert!(self.undecided * 20 < self.waiting.all, "{self}");
    }
}

fn kind(fix: &Fix) -> String {
    let value = serde_json::to_value(fix).expect("a fix is data");
    value["kind"].as_str().expect("a kind").to_owned()
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (batch, name) in [(false, "single"), (true, "batch")] {
            let [one, several] = self.with_fix;
            let with = if batch { several } else { one };
            writeln!(
                f,
                "{name}: refusals with a fix {with}, fixes that work {}",
                self.fixes_of(batch)
            )?;
            for ((_, kind), share) in self.fixes.iter().filter(|((of, _), _)| *of == batch) {
                writeln!(f, "  {kind:<10} {share}")?;
            }
            let mut without: Vec<_> =
                self.without.iter().filter(|((of, _), _)| *of == batch).collect();
            without.sort_by_key(|(_, count)| std::cmp::Reverse(**count));
            for ((_, filters), count) in without.iter().take(KEPT) {
                writeln!(f, "  {count} without a fix: {filters}")?;
            }
        }
        let (waiting, undecided) = (self.waiting, self.undecided);
        writeln!(f, "waiting: said rightly {waiting}, not decided {undecided}")?;
        for ((batch, kind), share) in &self.best {
            let of = if *batch { "batch" } else { "single" };
            writeln!(f, "{of}: {kind} of which less is not enough {share}")?;
        }
        self.failures.iter().try_for_each(|failure| writeln!(f, "  {failure}"))
    }
}

/// The counts and nearest misses of a refusal are what the oracle counts.
pub(crate) fn check_counts(refusal: &Refusal, why: &Why) {
    let counts = refusal.counts.iter().map(|count| (count.filter.clone(), count.removed));
    let nearest = refusal.nearest.iter().map(|miss| {
        let node = miss.node.clone().expect("operators see nodes");
        (miss.filter.clone(), node, miss.evidence.shortfall().map(i128::from))
    });
    let found = Why {
        filter: refusal.filter.clone(),
        counts: counts.collect(),
        nearest: nearest.collect(),
        best_relaxation: refusal.best_relaxation.clone(),
    };
    assert_eq!(found, *why);
}
