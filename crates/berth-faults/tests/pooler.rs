//! A connection pooler between ledger and database: one that keeps sessions works, and may be lost; one
//! that does not is refused before anything is written.

#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use berth_faults::{Fixture, History, Load, Pooler, finish, set_up, wait_until};
use berth_ledger::{Backend, Ledger, LedgerError, Options};
use berth_pgtemp::Options as ServerOptions;

/// Acknowledgements to wait for after each loss.
const PROGRESS: u64 = 50;

fn open(url: &str) -> Result<Ledger, LedgerError> {
    Ledger::open(Backend::Postgres(url.to_owned()), Options::default())
}

fn tables(fixture: &Fixture) -> String {
    let count = "SELECT count(*) FROM pg_tables WHERE schemaname = 'public'";
    fixture.rows(count).unwrap()[0][0].clone()
}

#[test]
fn a_pooler_that_changes_sessions_is_refused_with_the_reason() {
    let fixture = Fixture::postgres(ServerOptions::quick()).unwrap();
    let kinds = [
        ("transaction", ""),
        ("transaction", "default_pool_size = 1"),
        ("transaction", "min_pool_size = 5"),
        // Each transaction gets the session that was idle for longest.
        ("transaction", "min_pool_size = 5\nserver_round_robin = 1"),
        // Nothing of a session is kept.
        ("transaction", "server_reset_query_always = 1"),
        ("statement", ""),
    ];
    for (mode, settings) in kinds {
        let pooler = Pooler::start(&fixture.url(), mode, settings).unwrap();
        for _ in 0..5 {
            let error = open(&pooler.url()).err();
            assert!(
                matches!(error, Some(LedgerError::TransactionPooling)),
                "{mode} {settings:?}: {error:?}"
            );
            let text = error.unwrap().to_string();
            assert!(text.contains("advisory locks") && text.contains("pool_mode = session"));
        }
    }
    assert_eq!(tables(&fixture), "0", "nothing was written");
}

#[test]
fn a_pooler_in_transaction_mode_is_refused_while_others_use_it() {
    let fixture = Fixture::postgres(ServerOptions::quick()).unwrap();
    let pooler = Pooler::start(&fixture.url(), "transaction", "default_pool_size = 4").unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    // Each attempt is itself a client of the pooler that looks like another server.
                    let _ = open(&pooler.url());
                }
            });
        }
        let refused = (0..20).map(|_| open(&pooler.url()).err());
        let refused: Vec<_> = refused.collect();
        stop.store(true, Ordering::Relaxed);
        for error in refused {
            assert!(matches!(error, Some(LedgerError::TransactionPooling)), "{error:?}");
        }
    });
}

/// The check must never refuse what works.
#[test]
fn direct_connections_and_poolers_that_keep_sessions_are_never_refused() {
    let fixture = Fixture::postgres(ServerOptions::quick()).unwrap();
    let small = "default_pool_size = 20\nmin_pool_size = 5";
    let pooler = Pooler::start(&fixture.url(), "session", small).unwrap();
    let direct = fixture.url();
    let twice = direct.replace("@127.0.0.1", "@localhost:1,127.0.0.1");
    std::thread::scope(|scope| {
        for url in [direct, pooler.url(), twice] {
            for _ in 0..2 {
                let url = url.clone();
                scope.spawn(move || {
                    for _ in 0..10 {
                        drop(open(&url).unwrap());
                    }
                });
            }
        }
    });
}

/// Runs a load through poolers while they are killed and come back.
fn under_load(url: &str, lose: impl FnOnce(&mut dyn FnMut())) -> History {
    let options = Options { retry_budget: Duration::from_secs(20), ..Options::default() };
    let ledger = Ledger::open(Backend::Postgres(url.to_owned()), options).unwrap();
    let nodes = set_up(&ledger).unwrap();
    let load = Load { ledger, nodes, seed: 7, round: 1, threads: 4, acknowledges_early: false };
    let (history, stop) = (Mutex::new(History::default()), AtomicBool::new(false));
    let held = || history.lock().unwrap_or_else(PoisonError::into_inner);
    let mut make_progress = || {
        let before = held().done;
        let well = wait_until(Duration::from_secs(60), || held().done >= before + PROGRESS);
        assert!(well, "service did not resume: {:?}", held().last_failure);
    };
    std::thread::scope(|scope| {
        scope.spawn(|| load.run(&stop, &|message| held().record(1, message)));
        let lost = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            lose(&mut make_progress);
        }));
        stop.store(true, Ordering::Relaxed);
        if let Err(panic) = lost {
            std::panic::resume_unwind(panic);
        }
    });
    history.into_inner().unwrap()
}

#[test]
fn a_ledger_behind_a_pooler_in_session_mode_survives_its_loss() {
    let fixture = Fixture::postgres(ServerOptions::default()).unwrap();
    let mut pooler = Pooler::start(&fixture.url(), "session", "").unwrap();
    let mut history = under_load(&pooler.url(), |make_progress| {
        for _ in 0..3 {
            make_progress();
            pooler.kill();
            std::thread::sleep(Duration::from_millis(300));
            pooler.restart().unwrap();
        }
        make_progress();
    });
    drop(pooler);
    fixture.wait_until_left().unwrap();
    assert_eq!(finish(&fixture, &mut history).unwrap(), [""; 0]);
    assert!(history.failed.is_empty(), "{:?}", history.last_failure);
}

#[test]
fn with_two_poolers_in_the_url_one_may_be_lost() {
    let fixture = Fixture::postgres(ServerOptions::default()).unwrap();
    let mut poolers = [0, 1].map(|_| Pooler::start(&fixture.url(), "session", "").unwrap());
    let hosts = format!("{},{}", poolers[0].address(), poolers[1].address());
    let url = format!("postgres://postgres@{hosts}/postgres");
    let mut history = under_load(&url, |make_progress| {
        for round in 0..4 {
            make_progress();
            poolers[round % 2].kill();
            make_progress();
            poolers[round % 2].restart().unwrap();
        }
    });
    drop(poolers);
    fixture.wait_until_left().unwrap();
    assert_eq!(finish(&fixture, &mut history).unwrap(), [""; 0]);
    assert!(history.failed.is_empty(), "{:?}", history.last_failure);
}
