//! Small days, by both rules.

#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

use super::{Options, Outcome, Rule, TargetPolicy, simulate_day};

fn small(seed: u64) -> Options {
    let options = Options::new(30, 600, seed, TargetPolicy::Tent.policy().unwrap());
    Options { hours: 8, ..options }
}

fn day(seed: u64, rule: Rule) -> Outcome {
    simulate_day(&small(seed), rule).unwrap()
}

#[test]
fn nothing_is_sold_twice_and_nobody_comes_back() {
    for seed in 1..=3 {
        let day = day(seed, Rule::Berth);
        assert_eq!((day.violations, day.node_minutes_above.over_full), (0, 0), "{day:?}");
        assert_eq!(day.migrations.ping_pong, 0, "{day:?}");
        assert_eq!(day.migrations.failed_no_room, 0, "a place that is held is there: {day:?}");
        assert!(day.migrations.done > 50, "a day without pressure proves nothing: {day:?}");
    }
}

#[test]
fn the_same_seed_gives_the_same_day() {
    let hours = |seed, rule| simulate_day(&Options { hours: 2, ..small(seed) }, rule).unwrap();
    for rule in [Rule::Berth, Rule::Seed] {
        assert_eq!(hours(1, rule), hours(1, rule));
    }
    assert_ne!(hours(1, Rule::Berth), hours(2, Rule::Berth));
}

#[test]
fn the_day_fills_the_fleet_as_it_should() {
    let day = simulate_day(&Options { hours: 24, ..small(1) }, Rule::Berth).unwrap();
    assert!((720..=790).contains(&day.mean_fill_permille), "{day:?}");
    assert!(day.peak_fill_permille > 800, "{day:?}");
    assert!(day.peak_fill_permille < 1000, "all nodes together never need more: {day:?}");
}

#[test]
fn the_seeds_rule_fails_where_places_are_not_held_and_passes_instances_to_and_fro() {
    let (berth, seed) = (day(1, Rule::Berth), day(1, Rule::Seed));
    assert_eq!(seed.violations, 0, "{seed:?}");
    assert!(seed.migrations.failed_no_room > seed.migrations.done, "{seed:?}");
    assert!(seed.migrations.ping_pong > 0, "{seed:?}");
    assert!(seed.node_minutes_above.either > 2 * berth.node_minutes_above.either);
    let held = Options { seed_holds: true, ..small(1) };
    let held = simulate_day(&held, Rule::Seed).unwrap();
    assert_eq!((held.migrations.failed_no_room, held.violations), (0, 0), "{held:?}");
    assert!(held.migrations.ping_pong > 0, "{held:?}");
    assert!(held.migrations.started > 2 * berth.migrations.started, "{held:?}");
}

#[test]
fn an_even_fleet_needs_few_migrations() {
    let policy = TargetPolicy::Even.policy().unwrap();
    let even = Options { hours: 8, ..Options::new(30, 600, 1, policy) };
    let (even, tent) = (simulate_day(&even, Rule::Berth).unwrap(), day(1, Rule::Berth));
    assert_eq!((even.violations, even.migrations.ping_pong), (0, 0));
    assert!(even.migrations.started < tent.migrations.started, "{even:?} {tent:?}");
}

#[test]
fn what_fails_is_left_alone_for_longer_each_time() {
    let hopeless = Options { failing_permille: 1000, ..small(1) };
    let hopeless = simulate_day(&hopeless, Rule::Berth).unwrap();
    assert_eq!((hopeless.migrations.done, hopeless.violations), (0, 0), "{hopeless:?}");
    // Twice as long each time: eight hours are over after nine times.
    assert!((2..=10).contains(&hopeless.per_instance.max), "{hopeless:?}");
}
