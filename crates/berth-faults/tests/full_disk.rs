//! A full disk shows as errors and never as "no room", takes nothing back that was acknowledged,
//! and once there is space the same ledger goes on by itself.
//!
//! Needs the right to mount a small disk. Without it these tests say so and check nothing; what they print is shown
//! at the end of every run (`.config/nextest.toml`).

#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use berth_faults::{
    Fixture, History, Load, RecoveryTimes, SmallDisk, finish, set_up, setting, wait_until,
};
use berth_ledger::{Backend, Ledger, Options};

const SEED: u64 = 20_260_703;

/// A small disk, or none and a word about it.
fn small_disk(size_mib: u32) -> Option<SmallDisk> {
    match SmallDisk::mount(size_mib) {
        Ok(disk) => Some(disk),
        Err(why) => {
            let must_be_there = why.is_tool_missing && setting("CI").is_some();
            assert!(!must_be_there, "{why}");
            println!("SKIPPED, nothing was checked: {why}");
            eprintln!("SKIPPED, nothing was checked: {why}");
            None
        }
    }
}

fn failures(history: &Mutex<History>) -> u64 {
    history.lock().unwrap().failed.values().sum()
}

/// Loads until errors come, lets `make_space`, and waits until requests are granted again.
fn fill_and_recover(backend: Backend, make_space: impl FnOnce(&Ledger)) -> History {
    let options = Options { retry_budget: Duration::from_millis(500), ..Options::default() };
    let ledger = Ledger::open(backend, options).unwrap();
    let nodes = set_up(&ledger).unwrap();
    let (history, stop) = (Mutex::new(History::default()), AtomicBool::new(false));
    let load = Load {
        ledger: ledger.clone(),
        nodes,
        seed: SEED,
        round: 1,
        threads: 4,
        acknowledges_early: false,
    };
    std::thread::scope(|scope| {
        scope.spawn(|| load.run(&stop, &|message| history.lock().unwrap().record(1, message)));
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let full = wait_until(Duration::from_secs(60), || failures(&history) >= 8);
            assert!(full, "the disk did not fill up");
            let before = history.lock().unwrap().done;
            make_space(&ledger);
            let resumed = || history.lock().unwrap().done >= before + 40;
            let mut times = RecoveryTimes::default();
            let well = times.wait_until(Duration::from_secs(60), resumed);
            let history = history.lock().unwrap();
            println!("there is space again: {times}");
            assert!(well, "service did not resume: {:?}", history.last_failure);
        }));
        stop.store(true, Ordering::Relaxed);
        if let Err(panic) = outcome {
            std::panic::resume_unwind(panic);
        }
    });
    let history = history.into_inner().unwrap();
    println!("{} acknowledged, errors {:?}", history.done, history.failed);
    println!("{:?}", history.last_failure);
    let expected = |kind: &str| ["storage_full", "unreachable"].contains(&kind);
    assert!(history.failed.keys().all(|kind| expected(kind)), "{:?}", history.last_failure);
    assert_eq!(history.refused, [""; 0], "a full disk is not a full fleet");
    history
}

#[test]
fn sqlite_on_a_full_disk_fails_and_goes_on_when_there_is_space() {
    let Some(disk) = small_disk(14) else { return };
    let fixture = Fixture::sqlite_in(disk.path());
    // A reserve, so that the check afterwards has space whatever the load left.
    let (ballast, reserve) =
        (disk.ballast("ballast", 5).unwrap(), disk.ballast("reserve", 2).unwrap());
    let mut history = fill_and_recover(fixture.backend(), |_| ballast.remove().unwrap());
    assert!(history.failed.contains_key("storage_full"), "{:?}", history.failed);
    reserve.remove().unwrap();
    assert_eq!(finish(&fixture, &mut history).unwrap(), [""; 0]);
}

#[test]
fn postgres_on_a_full_disk_fails_and_goes_on_when_there_is_space() {
    let Some(disk) = small_disk(320) else { return };
    let wal = [("min_wal_size", "32MB"), ("max_wal_size", "48MB"), ("wal_init_zero", "on")];
    let settings = wal.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    let mut fixture = Fixture::postgres(berth_pgtemp::Options {
        settings: settings.collect(),
        parent: Some(disk.path().to_owned()),
        ..berth_pgtemp::Options::default()
    })
    .unwrap();
    let backend = fixture.backend();
    let free = disk.free_mib().unwrap();
    let ballast = disk.ballast("ballast", free.saturating_sub(6)).unwrap();
    let mut history = fill_and_recover(backend, |_| {
        ballast.remove().unwrap();
        let server = fixture.server().unwrap();
        // It may have given up on the full disk; that it does not start itself again is its way.
        if !wait_until(Duration::from_secs(5), || server.psql("SELECT 1").is_ok()) {
            println!("the server gave up: {}", server.log_tail());
            server.restart().unwrap();
        }
    });
    assert_eq!(finish(&fixture, &mut history).unwrap(), [""; 0]);
}
