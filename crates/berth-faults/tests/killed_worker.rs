//! A worker that is killed at any moment loses nothing it has acknowledged and leaves nothing half
//! done, on either database; and a worker that acknowledges too early is found out.

#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

use std::path::Path;
use std::time::Duration;

use berth_faults::{Fixture, History, Worker, check, finish, setting};
use fastrand::Rng;

/// One seed replays the moments; what the machine does in between is its own.
const SEED: u64 = 20_260_701;

/// Rounds between two checks. Not one: a worker must also recover what another left behind.
const CHECK_EVERY: u32 = 3;

fn program() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_fault-worker"))
}

/// Kills in one run: few by default, 200 or as many as asked for in a soak.
fn kills() -> u32 {
    setting("BERTH_KILLS").map_or(12, |kills| kills.parse().unwrap_or(200))
}

/// Starts a worker and kills it at a random moment, now and then while it is still starting.
fn one_round(fixture: &Fixture, history: &mut History, random: &mut Rng, round: u32, mode: &str) {
    let url = fixture.url();
    let arguments = [mode, &url, &SEED.to_string(), &round.to_string()];
    let mut worker = Worker::start(program(), &arguments).unwrap();
    if round % 4 == 1 {
        std::thread::sleep(Duration::from_millis(random.u64(0..120)));
    } else {
        worker.wait_for_answer(round, history).unwrap();
        std::thread::sleep(Duration::from_millis(random.u64(0..900)));
    }
    worker.kill_and_record(round, history).unwrap();
}

fn nothing_is_lost(fixture: &Fixture) {
    let (mut history, mut random) = (History::default(), Rng::with_seed(SEED));
    let kills = kills();
    for round in 1..=kills {
        one_round(fixture, &mut history, &mut random, round, "load");
        let large = round > 40 && round % (CHECK_EVERY * 8) != 0;
        if round % CHECK_EVERY == 0 && !large {
            fixture.wait_until_left().unwrap();
            let violations = check(fixture, &mut history).unwrap();
            assert_eq!(violations, [""; 0], "after kill {round}");
        }
    }
    fixture.wait_until_left().unwrap();
    assert_eq!(finish(fixture, &mut history).unwrap(), [""; 0]);
    assert!(history.failed.is_empty(), "nothing failed but the worker: {:?}", history.last_failure);
    println!(
        "{kills} kills, {} acknowledged, {} claims left",
        history.done,
        history.claims().len()
    );
    assert!(history.done > u64::from(kills), "the worker must get to work");
}

#[test]
fn a_killed_worker_loses_nothing_on_sqlite() {
    nothing_is_lost(&Fixture::sqlite().unwrap());
}

#[test]
fn a_killed_worker_loses_nothing_on_postgres() {
    nothing_is_lost(&Fixture::postgres(berth_pgtemp::Options::default()).unwrap());
}

fn is_found_out(fixture: &Fixture) {
    let (mut history, mut random) = (History::default(), Rng::with_seed(SEED));
    for round in 2..=20 {
        one_round(fixture, &mut history, &mut random, round, "load-early");
        fixture.wait_until_left().unwrap();
        let violations = check(fixture, &mut history).unwrap();
        if violations.iter().any(|violation| violation.contains("acknowledged")) {
            println!("found out after {} kills: {}", round - 1, violations[0]);
            return;
        }
    }
    panic!("a worker that acknowledges before it commits was not found out");
}

#[test]
fn a_worker_that_acknowledges_too_early_is_found_out_on_sqlite() {
    is_found_out(&Fixture::sqlite().unwrap());
}

#[test]
fn a_worker_that_acknowledges_too_early_is_found_out_on_postgres() {
    is_found_out(&Fixture::postgres(berth_pgtemp::Options::default()).unwrap());
}

#[test]
fn every_kind_of_damage_is_found() {
    let fixture = Fixture::sqlite().unwrap();
    let (mut history, mut random) = (History::default(), Rng::with_seed(SEED));
    one_round(&fixture, &mut history, &mut random, 2, "load");
    assert_eq!(finish(&fixture, &mut history).unwrap(), [""; 0]);
    let Fixture::Sqlite { file, .. } = &fixture else { unreachable!("it was made above") };
    let (whole, one) = (file.with_extension("whole"), "WHERE instance = (SELECT min(instance)");
    std::fs::copy(file, &whole).unwrap();
    for (damage, violation) in [
        (format!("DELETE FROM claim {one} FROM claim)"), "acknowledged and lost"),
        (format!("UPDATE claim SET state = 3 {one} FROM claim)"), "acknowledged and not so"),
        ("UPDATE node_room SET used_cpu = used_cpu + 1 WHERE used_cpu > 0".to_owned(), "node"),
        ("UPDATE tenant SET used_memory = used_memory + 1".to_owned(), "tenant"),
        ("UPDATE placement_group_domain SET members = members + 1".to_owned(), "group in"),
        ("DELETE FROM placement_group_member".to_owned(), "members listed"),
        (format!("DELETE FROM pool_value {one} FROM pool_value)"), "values of"),
        ("DELETE FROM event_segment WHERE id = 60".to_owned(), "a segment begins at"),
        ("UPDATE ledger SET next_event = next_event + 1".to_owned(), "the next event is"),
        (format!("UPDATE claim SET fence = fence + 1 {one} FROM claim)"), "was told and is"),
        ("DELETE FROM receipt WHERE n = 3".to_owned(), "receipts"),
    ] {
        std::fs::copy(&whole, file).unwrap();
        fixture.execute(&damage).unwrap();
        let violations = check(&fixture, &mut history.clone()).unwrap();
        let found = violations.iter().any(|text| text.contains(violation));
        assert!(found, "{damage}: {violations:?}");
    }
}
