//! PostgreSQL goes away in the middle and comes back: clients see errors or delays and never a
//! false refusal, the same ledger goes on by itself, and what was sent again is done once.

#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use berth_faults::{Fixture, History, Load, Proxy, RecoveryTimes, finish, set_up};
use berth_ledger::{Backend, Ledger, Options};
use berth_pgtemp::Options as ServerOptions;
use fastrand::Rng;

const SEED: u64 = 20_260_702;
const THREADS: u32 = 6;

/// Answers that every client must get after each fault.
const PROGRESS: u64 = 5;

/// A load in this process, while something happens to its database.
fn under_load(backend: Backend, options: Options, happen: impl FnOnce(&Mutex<History>)) -> History {
    let ledger = Ledger::open(backend, options).unwrap();
    let nodes = set_up(&ledger).unwrap();
    let threads = THREADS;
    let load = Load { ledger, nodes, seed: SEED, round: 1, threads, acknowledges_early: false };
    let (history, stop) = (Mutex::new(History::default()), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| load.run(&stop, &|message| held(&history).record(1, message)));
        let happened = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| happen(&history)));
        stop.store(true, Ordering::Relaxed);
        if let Err(panic) = happened {
            std::panic::resume_unwind(panic);
        }
    });
    history.into_inner().unwrap()
}

fn held(history: &Mutex<History>) -> MutexGuard<'_, History> {
    history.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Promised are 2 s (median), on a machine that does nothing else.
const RECOVERY_MEDIAN_MAX: Duration = Duration::from_secs(8);

/// Waits until every client has got some more answers, which is timed.
fn everyone_gets_on(history: &Mutex<History>, times: &mut RecoveryTimes) {
    let before = held(history).done_by_thread.clone();
    let got_on = || {
        let now = held(history).done_by_thread.clone();
        (0..THREADS).all(|thread| {
            let then = before.get(&thread).copied().unwrap_or(0);
            now.get(&thread).is_some_and(|now| *now >= then + PROGRESS)
        })
    };
    let well = times.wait_until(Duration::from_secs(90), got_on);
    assert!(well, "service did not resume: {:?}", held(history).last_failure);
}

fn the_server_is_killed(patience: Duration, down_ms: std::ops::Range<u64>) -> History {
    let mut fixture = Fixture::postgres(ServerOptions::default()).unwrap();
    let backend = fixture.backend();
    let mut random = Rng::with_seed(SEED);
    let options = Options { retry_budget: patience, ..Options::default() };
    let (mut times, mut undisturbed) = (RecoveryTimes::default(), RecoveryTimes::default());
    let mut history = under_load(backend, options, |history| {
        let server = fixture.server().unwrap();
        everyone_gets_on(history, &mut undisturbed);
        for _ in 0..4 {
            std::thread::sleep(Duration::from_millis(random.u64(0..400)));
            server.kill().unwrap();
            std::thread::sleep(Duration::from_millis(random.u64(down_ms.clone())));
            server.restart().unwrap();
            everyone_gets_on(history, &mut times);
        }
    });
    assert_eq!(finish(&fixture, &mut history).unwrap(), [""; 0]);
    println!("{} acknowledged, errors {:?}", history.done, history.failed);
    println!("server killed: {times} (undisturbed {:.0?})", undisturbed.median());
    assert!(times.median() < RECOVERY_MEDIAN_MAX, "{times}");
    history
}

#[test]
fn a_short_outage_is_only_a_delay() {
    let history = the_server_is_killed(Duration::from_secs(20), 0..500);
    assert!(history.failed.is_empty(), "{:?}", history.last_failure);
}

#[test]
fn a_long_outage_shows_as_errors_and_ends_by_itself() {
    let history = the_server_is_killed(Duration::from_millis(300), 600..1500);
    assert!(history.failed.contains_key("unreachable"), "{:?}", history.failed);
    let others: Vec<_> = history.failed.keys().filter(|kind| *kind != "unreachable").collect();
    assert!(others.is_empty(), "{:?}", history.last_failure);
}

/// The worst moment: the commit is done and its answer is lost, and then the database stays away
/// for longer than the writer waits.
#[test]
fn a_commit_whose_answer_is_lost_is_done_once_and_service_resumes() {
    let mut fixture = Fixture::postgres(ServerOptions::default()).unwrap();
    let (proxy, through) = Proxy::to_database(&fixture.url()).unwrap();
    let options = Options { retry_budget: Duration::from_millis(200), ..Options::default() };
    let mut random = Rng::with_seed(SEED);
    let (mut times, mut undisturbed) = (RecoveryTimes::default(), RecoveryTimes::default());
    let mut history = under_load(through, options, |history| {
        everyone_gets_on(history, &mut undisturbed);
        for _ in 0..8 {
            std::thread::sleep(Duration::from_millis(random.u64(0..60)));
            proxy.swallow_answers();
            std::thread::sleep(Duration::from_millis(150));
            proxy.cut();
            std::thread::sleep(Duration::from_millis(400));
            proxy.mend();
            everyone_gets_on(history, &mut times);
        }
    });
    assert!(fixture.server().is_some());
    fixture.wait_until_left().unwrap();
    assert_eq!(finish(&fixture, &mut history).unwrap(), [""; 0]);
    let others: Vec<_> = history.failed.keys().filter(|kind| *kind != "unreachable").collect();
    assert!(others.is_empty(), "{:?}", history.last_failure);
    println!("{} acknowledged, errors {:?}", history.done, history.failed);
    println!("connections cut: {times} (undisturbed {:.0?})", undisturbed.median());
    assert!(times.median() < RECOVERY_MEDIAN_MAX, "{times}");
}

/// Each answer takes longer than the writer waits, and then does not.
#[test]
fn service_resumes_when_a_slow_connection_is_quick_again() {
    let mut fixture = Fixture::postgres(ServerOptions::default()).unwrap();
    let (proxy, through) = Proxy::to_database(&fixture.url()).unwrap();
    let options = Options { retry_budget: Duration::from_millis(300), ..Options::default() };
    let (mut times, mut undisturbed) = (RecoveryTimes::default(), RecoveryTimes::default());
    let mut history = under_load(through, options, |history| {
        everyone_gets_on(history, &mut undisturbed);
        for _ in 0..4 {
            proxy.delay(Duration::from_millis(500));
            std::thread::sleep(Duration::from_secs(2));
            proxy.delay(Duration::ZERO);
            everyone_gets_on(history, &mut times);
        }
    });
    assert!(fixture.server().is_some());
    fixture.wait_until_left().unwrap();
    assert_eq!(finish(&fixture, &mut history).unwrap(), [""; 0]);
    let others: Vec<_> = history.failed.keys().filter(|kind| *kind != "unreachable").collect();
    assert!(others.is_empty(), "{:?}", history.last_failure);
    println!("{} acknowledged, errors {:?}", history.done, history.failed);
    println!("connections slow: {times} (undisturbed {:.0?})", undisturbed.median());
    assert!(times.median() < RECOVERY_MEDIAN_MAX, "{times}");
}
