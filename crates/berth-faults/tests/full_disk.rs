//! A full disk shows as errors and never as "no room", takes nothing back that was acknowledged,
//! and once there is space the same ledger goes on by itself.
//!
//! Needs the right to mount a small disk. Without it these tests say so and check nothing.

#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use berth_faults::{Book, Load, SmallDisk, Stage, finish, set_up, wait_until};
use berth_ledger::{Backend, Ledger, Options};

const SEED: u64 = 20_260_703;

/// A small disk, or none and a word about it.
fn small_disk(size_mib: u32) -> Option<SmallDisk> {
    match SmallDisk::mount(size_mib) {
        Ok(disk) => Some(disk),
        Err(why) => {
            println!("SKIPPED, nothing was checked: {why}");
            eprintln!("SKIPPED, nothing was checked: {why}");
            None
        }
    }
}

fn failures(book: &Mutex<Book>) -> u64 {
    book.lock().unwrap().failed.values().sum()
}

/// Loads until errors come, lets `make_space`, and waits until requests are granted again.
fn fill_and_recover(backend: Backend, make_space: impl FnOnce(&Ledger)) -> Book {
    let options = Options { patience: Duration::from_millis(500), ..Options::default() };
    let ledger = Ledger::open(backend, options).unwrap();
    let nodes = set_up(&ledger).unwrap();
    let (book, stop) = (Mutex::new(Book::default()), AtomicBool::new(false));
    let load = Load {
        ledger: ledger.clone(),
        nodes,
        seed: SEED,
        round: 1,
        threads: 4,
        acknowledges_early: false,
    };
    std::thread::scope(|scope| {
        scope.spawn(|| load.run(&stop, &|message| book.lock().unwrap().note(1, message)));
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let full = wait_until(Duration::from_secs(60), || failures(&book) >= 8);
            assert!(full, "the disk did not fill up");
            let before = book.lock().unwrap().done;
            make_space(&ledger);
            let resumed = || book.lock().unwrap().done >= before + 40;
            let well = wait_until(Duration::from_secs(60), resumed);
            let book = book.lock().unwrap();
            assert!(well, "service did not resume: {:?}", book.last_failure);
        }));
        stop.store(true, Ordering::Relaxed);
        if let Err(panic) = outcome {
            std::panic::resume_unwind(panic);
        }
    });
    let book = book.into_inner().unwrap();
    println!("{} acknowledged, errors {:?}", book.done, book.failed);
    println!("{:?}", book.last_failure);
    let expected = |kind: &str| ["storage_full", "unreachable"].contains(&kind);
    assert!(book.failed.keys().all(|kind| expected(kind)), "{:?}", book.last_failure);
    assert_eq!(book.refused, [""; 0], "a full disk is not a full fleet");
    book
}

#[test]
fn sqlite_on_a_full_disk_fails_and_goes_on_when_there_is_space() {
    let Some(disk) = small_disk(14) else { return };
    let stage = Stage::sqlite_in(disk.path());
    // A reserve, so that the check afterwards has space whatever the load left.
    let (ballast, reserve) =
        (disk.ballast("ballast", 5).unwrap(), disk.ballast("reserve", 2).unwrap());
    let mut book = fill_and_recover(stage.backend(), |_| ballast.remove().unwrap());
    assert!(book.failed.contains_key("storage_full"), "{:?}", book.failed);
    reserve.remove().unwrap();
    assert_eq!(finish(&stage, &mut book).unwrap(), [""; 0]);
}

#[test]
fn postgres_on_a_full_disk_fails_and_goes_on_when_there_is_space() {
    let Some(disk) = small_disk(320) else { return };
    let wal = [("min_wal_size", "32MB"), ("max_wal_size", "48MB"), ("wal_init_zero", "on")];
    let settings = wal.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    let mut stage = Stage::postgres(berth_pgtemp::Options {
        settings: settings.collect(),
        parent: Some(disk.path().to_owned()),
        ..berth_pgtemp::Options::default()
    })
    .unwrap();
    let backend = stage.backend();
    let free = disk.free_mib().unwrap();
    let ballast = disk.ballast("ballast", free.saturating_sub(6)).unwrap();
    let mut book = fill_and_recover(backend, |_| {
        ballast.remove().unwrap();
        let server = stage.server().unwrap();
        // It may have given up on the full disk; that it does not start itself again is its way.
        if !wait_until(Duration::from_secs(5), || server.psql("SELECT 1").is_ok()) {
            println!("the server gave up: {}", server.log_tail());
            server.restart().unwrap();
        }
    });
    assert_eq!(finish(&stage, &mut book).unwrap(), [""; 0]);
}
