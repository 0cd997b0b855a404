//! The core, against the independent checker: whatever happened before, every place that is given is
//! legal, every refusal is right, nothing depends on history, and one seed replays it all.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that panics has failed")]

#[path = "../support/checker/mod.rs"]
mod checker;
#[path = "../support/objects.rs"]
mod objects;

mod model;
mod random;
mod steps;

use model::Model;
use proptest::collection::vec;
use proptest::prelude::{ProptestConfig, Strategy, any, proptest};

/// Seeds of everything: of the first state, and of each step.
#[derive(Clone, Debug)]
struct Case {
    setting: u64,
    steps: Vec<u64>,
}

fn cases(steps: std::ops::RangeInclusive<usize>) -> impl Strategy<Value = Case> {
    let seed = || any::<u64>().no_shrink();
    (seed(), vec(seed(), steps)).prop_map(|(setting, steps)| Case { setting, steps })
}

fn run(case: &Case) -> Model {
    let mut model = Model::start(case.setting);
    for seed in &case.steps {
        steps::step(&mut model, *seed);
    }
    model
}

/// A fraction of what `PROPTEST_CASES` asks for: a case is a whole history.
fn fraction(of: u32) -> ProptestConfig {
    let all = ProptestConfig::default();
    ProptestConfig { cases: (all.cases / of).max(1), max_shrink_iters: 5_000, ..all }
}

proptest! {
    #![proptest_config(fraction(4))]

    #[test]
    fn every_reservation_is_valid_and_every_refusal_is_correct(case in cases(1..=120)) {
        run(&case);
    }
}

proptest! {
    #![proptest_config(fraction(32))]

    #[test]
    fn the_same_history_gives_the_same_answers(case in cases(60..=120)) {
        assert_eq!(run(&case).log, run(&case).log);
    }
}

/// A test that never comes to a preemption says nothing about it.
#[test]
fn histories_come_to_every_kind_of_outcome() {
    let wanted = [
        "to be placed: Reserved(Reservation",
        "to be placed: Refused",
        "to be placed: Preempt",
        "to be placed: NotPending",
        "to be placed: Reserved([Reservation",
        "gang is refused",
        "is given up",
        "node is gone",
        "starts again",
        "do not go",
    ];
    let mut seen = vec![0; wanted.len()];
    for setting in 0..16_u64 {
        let mut rng = random::Rng(setting);
        let steps = (0..100).map(|_| rng.next()).collect();
        let log = run(&Case { setting, steps }).log.join("\n");
        for (count, words) in seen.iter_mut().zip(wanted) {
            *count += match words {
                "gang is refused" => log.matches("scheduled all together or not at all").count(),
                "node is gone" => {
                    log.lines().filter(|it| it.starts_with("node") && it.ends_with("gone")).count()
                }
                _ => log.matches(words).count(),
            };
        }
    }
    let missing: Vec<_> = wanted.iter().zip(&seen).filter(|(_, count)| **count < 2).collect();
    assert!(missing.is_empty(), "too seldom: {missing:?} of {seen:?}");
}
