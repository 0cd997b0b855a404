//! A host of the database that accepts connections and never answers, as a frozen machine does: the
//! other hosts of the URL are used without waiting for it.

#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

use std::net::TcpListener;
use std::time::Duration;

use berth_faults::{Fixture, Stopwatch};
use berth_ledger::{Backend, Ledger, LedgerError, Options};
use berth_pgtemp::Options as ServerOptions;

/// Far longer than opening a ledger takes on a slow machine, and half of what the silent host is
/// given: it was not waited for.
const PROMPT: Duration = Duration::from_secs(300);

fn open(url: String) -> Result<Ledger, LedgerError> {
    Ledger::open(Backend::Postgres(url), Options::default())
}

#[test]
fn a_host_that_never_answers_does_not_hold_up_the_others() {
    let fixture = Fixture::postgres(ServerOptions::quick()).unwrap();
    // The schema, whose creation is not to be measured.
    drop(open(fixture.url()).unwrap());
    // The kernel accepts connections on its behalf.
    let frozen = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let at = format!("@{},", frozen.local_addr().unwrap());
    let url = fixture.url().replacen('@', &at, 1);
    let separator = if url.contains('?') { '&' } else { '?' };
    let watch = Stopwatch::start();
    let ledger = open(format!("{url}{separator}connect_timeout=600")).unwrap();
    assert_eq!(ledger.newest_event().unwrap(), 0);
    assert!(watch.elapsed() < PROMPT, "{:?}", watch.elapsed());
}

#[test]
fn a_database_that_never_answers_is_unreachable() {
    let frozen = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let at = frozen.local_addr().unwrap();
    let error = open(format!("postgres://postgres@{at}/postgres?connect_timeout=1")).err().unwrap();
    assert!(matches!(error, LedgerError::Unreachable(_)), "{error}");
}
