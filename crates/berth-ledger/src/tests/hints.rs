//! Servers on PostgreSQL tell each other of commits.

use std::time::Duration;

use berth_pgtemp::{Options as ServerOptions, TempPostgres};

use crate::{Backend, Ledger, Op, Options, Pool};

fn open(server: &TempPostgres) -> Ledger {
    let options = Options { hints: true, ..Options::default() };
    Ledger::open(Backend::Postgres(server.url()), options).unwrap()
}

fn commit(ledger: &Ledger, name: &str) {
    let pool = Pool::parse(name, "10.0.0.0/24").unwrap();
    ledger.administer(Op::PutPool(pool)).unwrap();
}

/// Polls: hints arrive whenever the database sends them.
fn wait_until(what: &str, holds: impl Fn() -> bool) {
    let held = (0..1500).any(|_| {
        std::thread::sleep(Duration::from_millis(20));
        holds()
    });
    assert!(held, "{what}");
}

/// Waits until a ledger has its connection for hints.
fn wait_until_connected(ledger: &Ledger) {
    wait_until("it listens", || ledger.hint_counts().received > 0);
}

#[test]
fn a_commit_is_announced_to_other_servers_and_only_to_them() {
    let server = TempPostgres::start(ServerOptions::quick()).unwrap();
    let one = open(&server);
    wait_until_connected(&one);
    commit(&one, "alone");
    let two = open(&server);
    wait_until_connected(&two);
    assert_eq!(one.hint_counts().sent, 0, "there was no one to tell");
    // It finds out by itself that it is no longer alone.
    wait_until("the second is noticed", || two.hint_counts().received > 1);
    let (own, others) = (one.hint_counts().received, two.hint_counts().received);
    commit(&one, "together");
    wait_until("the commit is heard of", || two.hint_counts().received > others);
    assert_eq!(one.hint_counts().received, own, "its own commits are no news to it");
}

#[test]
fn a_lost_connection_for_hints_is_opened_again_and_holds_up_no_commit() {
    let server = TempPostgres::start(ServerOptions::quick()).unwrap();
    let (one, two) = (open(&server), open(&server));
    wait_until_connected(&one);
    wait_until_connected(&two);
    server
        .psql(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
             WHERE application_name = 'berth hints'",
        )
        .unwrap();
    let lost = two.hint_counts().received;
    commit(&one, "meanwhile");
    wait_until("it listens again", || two.hint_counts().received > lost);
    let (mut heard, mut number) = (two.hint_counts().received, 0);
    wait_until("the second is noticed again", || one.hint_counts().sent > 0);
    for _ in 0..2 {
        number += 1;
        commit(&one, &format!("again-{number}"));
        wait_until("the commit is heard of", || two.hint_counts().received > heard);
        heard = two.hint_counts().received;
    }
}
