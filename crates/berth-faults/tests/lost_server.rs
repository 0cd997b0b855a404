//! PostgreSQL goes away in the middle and comes back: clients see errors or delays and never a
//! false refusal, the same ledger goes on by itself, and what was sent again is done once.

#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use berth_faults::{Book, Load, Proxy, Stage, finish, set_up, wait_until};
use berth_ledger::{Backend, Ledger, Options};
use berth_pgtemp::Options as ServerOptions;
use fastrand::Rng;

const SEED: u64 = 20_260_702;
const THREADS: u32 = 6;

/// Answers that every client must get after each fault.
const PROGRESS: u64 = 5;

/// A load in this process, while something happens to its database.
fn under_load(backend: Backend, options: Options, happen: impl FnOnce(&Mutex<Book>)) -> Book {
    let ledger = Ledger::open(backend, options).unwrap();
    let nodes = set_up(&ledger).unwrap();
    let threads = THREADS;
    let load = Load { ledger, nodes, seed: SEED, round: 1, threads, acknowledges_early: false };
    let (book, stop) = (Mutex::new(Book::default()), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| load.run(&stop, &|message| held(&book).note(1, message)));
        let happened = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| happen(&book)));
        stop.store(true, Ordering::Relaxed);
        if let Err(panic) = happened {
            std::panic::resume_unwind(panic);
        }
    });
    book.into_inner().unwrap()
}

fn held(book: &Mutex<Book>) -> MutexGuard<'_, Book> {
    book.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Waits until every client has got some more answers.
fn everyone_gets_on(book: &Mutex<Book>) {
    let before = held(book).done_by_thread.clone();
    let got_on = || {
        let now = held(book).done_by_thread.clone();
        (0..THREADS).all(|thread| {
            let then = before.get(&thread).copied().unwrap_or(0);
            now.get(&thread).is_some_and(|now| *now >= then + PROGRESS)
        })
    };
    let well = wait_until(Duration::from_secs(40), got_on);
    assert!(well, "service did not resume: {:?}", held(book).last_failure);
}

fn the_server_is_killed(patience: Duration, down_ms: std::ops::Range<u64>) -> Book {
    let mut stage = Stage::postgres(ServerOptions::default()).unwrap();
    let backend = stage.backend();
    let mut random = Rng::with_seed(SEED);
    let options = Options { patience, ..Options::default() };
    let mut book = under_load(backend, options, |book| {
        let server = stage.server().unwrap();
        for _ in 0..4 {
            everyone_gets_on(book);
            std::thread::sleep(Duration::from_millis(random.u64(0..400)));
            server.kill().unwrap();
            std::thread::sleep(Duration::from_millis(random.u64(down_ms.clone())));
            server.restart().unwrap();
        }
        everyone_gets_on(book);
    });
    assert_eq!(finish(&stage, &mut book).unwrap(), [""; 0]);
    println!("{} acknowledged, errors {:?}", book.done, book.failed);
    book
}

#[test]
fn a_short_outage_is_only_a_delay() {
    let book = the_server_is_killed(Duration::from_secs(20), 0..500);
    assert!(book.failed.is_empty(), "{:?}", book.last_failure);
}

#[test]
fn a_long_outage_shows_as_errors_and_ends_by_itself() {
    let book = the_server_is_killed(Duration::from_millis(300), 600..1500);
    assert!(book.failed.contains_key("unreachable"), "{:?}", book.failed);
    let others: Vec<_> = book.failed.keys().filter(|kind| *kind != "unreachable").collect();
    assert!(others.is_empty(), "{:?}", book.last_failure);
}

/// The worst moment: the commit is done and its answer is lost, and then the database stays away
/// for longer than the writer waits.
#[test]
fn a_commit_whose_answer_is_lost_is_done_once_and_service_resumes() {
    let mut stage = Stage::postgres(ServerOptions::default()).unwrap();
    let url = stage.url();
    let port = url.rsplit(':').next().and_then(|rest| rest.split('/').next()).unwrap();
    let port: u16 = port.parse().unwrap();
    let proxy = Proxy::start(SocketAddr::from(([127, 0, 0, 1], port))).unwrap();
    let through = url.replace(&format!(":{port}/"), &format!(":{}/", proxy.address().port()));
    let options = Options { patience: Duration::from_millis(200), ..Options::default() };
    let mut random = Rng::with_seed(SEED);
    let mut book = under_load(Backend::Postgres(through), options, |book| {
        for _ in 0..8 {
            everyone_gets_on(book);
            std::thread::sleep(Duration::from_millis(random.u64(0..60)));
            proxy.swallow_answers();
            std::thread::sleep(Duration::from_millis(150));
            proxy.cut();
            std::thread::sleep(Duration::from_millis(400));
            proxy.mend();
        }
        everyone_gets_on(book);
    });
    assert!(stage.server().is_some());
    stage.wait_until_left().unwrap();
    assert_eq!(finish(&stage, &mut book).unwrap(), [""; 0]);
    let others: Vec<_> = book.failed.keys().filter(|kind| *kind != "unreachable").collect();
    assert!(others.is_empty(), "{:?}", book.last_failure);
    println!("{} acknowledged, errors {:?}", book.done, book.failed);
}
