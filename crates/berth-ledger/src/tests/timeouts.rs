//! A database that stops to answer is noticed, whatever it was asked.

use std::sync::mpsc;
use std::time::{Duration, Instant};

use berth_pgtemp::{Options as ServerOptions, TempPostgres};

use super::{new_database, raw, server};
use crate::database::Database as _;
use crate::error::Fault;
use crate::postgres::{Isolation, Postgres};
use crate::{Backend, Ledger, LedgerError, Op, Options, Pool};

#[test]
#[allow(clippy::disallowed_methods, reason = "a stopwatch")]
fn a_snapshot_whose_next_row_does_not_come_ends_long_before_the_database_would_end_it() {
    let server = server();
    let url = new_database(&server);
    let answer_within = Some(Duration::from_secs(1));
    let mut tables = Postgres::open(&url, Isolation::ReadCommitted, answer_within).unwrap();
    // All statements are prepared.
    tables.snapshot(&mut |_| Ok(())).unwrap();
    let mut holder = raw(&url);
    holder.script("test", "BEGIN; LOCK TABLE claim IN ACCESS EXCLUSIVE MODE").unwrap();
    let began = Instant::now();
    let fault = tables.snapshot(&mut |_| Ok(())).unwrap_err();
    assert!(matches!(fault, Fault::Disconnected(_)), "{fault:?}");
    // The database gives up after 10 s, and a frozen one never does.
    assert!(began.elapsed() < Duration::from_secs(6), "{:?}", began.elapsed());
    drop(holder);
    tables.rollback();
    tables.snapshot(&mut |_| Ok(())).unwrap();
}

fn probe(ledger: &Ledger, within: Duration) -> Option<Result<(), LedgerError>> {
    let (answers, answered) = mpsc::sync_channel(1);
    ledger.probe_write(within, Box::new(move |answer| drop(answers.send(answer))));
    answered.recv_timeout(Duration::from_millis(900)).ok()
}

#[test]
fn a_write_probe_shows_that_commits_wait_for_a_standby_and_leaves_nothing() {
    let server = TempPostgres::start(ServerOptions::quick()).unwrap();
    let ledger = Ledger::open(Backend::Postgres(server.url()), Options::default()).unwrap();
    ledger.administer(Op::PutPool(Pool::parse("p", "10.0.0.0/24").unwrap())).unwrap();
    // What a session did last is shown while it has nothing to do.
    let probes = || {
        let sql = "SELECT count(*) FROM pg_stat_activity WHERE pid <> pg_backend_pid() \
             AND query LIKE 'SELECT pg_logical_emit_message%'";
        server.psql(sql).unwrap()
    };
    let events = ledger.newest_event().unwrap();
    assert!(matches!(probe(&ledger, Duration::from_secs(3600)), Some(Ok(()))));
    assert_eq!(probes(), "0", "something was committed recently");
    assert!(matches!(probe(&ledger, Duration::ZERO), Some(Ok(()))));
    assert_eq!(probes(), "1");
    assert_eq!(ledger.newest_event().unwrap(), events);

    let set = |sql: &str| {
        server.psql(sql).unwrap();
        server.psql("SELECT pg_reload_conf()").unwrap();
    };
    set("ALTER SYSTEM SET synchronous_standby_names = 'away'");
    // The server takes a moment to read it.
    let is_stuck = (0..50).any(|_| {
        std::thread::sleep(Duration::from_millis(20));
        probe(&ledger, Duration::ZERO).is_none()
    });
    assert!(is_stuck);
    assert!(ledger.newest_event().is_ok(), "reads are answered");
    let unanswered = ledger.writer_unanswered_for();
    assert!(unanswered.is_some_and(|time| time >= Duration::from_millis(800)), "{unanswered:?}");
    set("ALTER SYSTEM RESET synchronous_standby_names");
    let is_back = (0..50).any(|_| matches!(probe(&ledger, Duration::ZERO), Some(Ok(()))));
    assert!(is_back && ledger.writer_unanswered_for().is_none());
}

#[test]
fn the_loss_of_the_connection_for_hints_is_counted_and_shown_until_it_is_back() {
    let mut server = TempPostgres::start(ServerOptions::quick()).unwrap();
    let options = Options { hints: true, ..Options::default() };
    let ledger = Ledger::open(Backend::Postgres(server.url()), options).unwrap();
    let wait_until = |is_so: &dyn Fn() -> bool| {
        (0..1500).any(|_| {
            std::thread::sleep(Duration::from_millis(20));
            is_so()
        })
    };
    assert!(wait_until(&|| ledger.are_hints_exchanged() == Some(true)));
    assert_eq!(ledger.hint_failures(), 0);
    server.stop().unwrap();
    assert!(wait_until(&|| ledger.are_hints_exchanged() == Some(false)));
    assert!(ledger.hint_failures() > 0);
    server.restart().unwrap();
    assert!(wait_until(&|| ledger.are_hints_exchanged() == Some(true)));
    let without = Ledger::open(Backend::Postgres(server.url()), Options::default()).unwrap();
    assert_eq!(without.are_hints_exchanged(), None);
}
