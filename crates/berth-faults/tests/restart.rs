//! A fresh process on a large ledger, after the one before it was killed in the middle of writing,
//! decides soon. How soon is printed and not asserted; `SPECIFICATION.md` has the promise.

#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

use std::path::Path;

use berth_faults::{Fixture, Size, Worker, setting};

const SMALL: Size = Size { nodes: 2_000, claims: 20_000 };
const LARGE: Size = Size { nodes: 100_000, claims: 1_000_000 };

fn restart(fixture: &Fixture, size: Size) {
    let program = Path::new(env!("CARGO_BIN_EXE_fault-worker"));
    let url = fixture.url();
    let arguments = ["fill", &url, &size.nodes.to_string(), &size.claims.to_string()];
    let mut worker = Worker::start(program, &arguments).unwrap();
    loop {
        match worker.line() {
            Ok(line) if line == "filled" => break,
            Ok(line) => panic!("{line}"),
            Err(_) if worker.runs() => {}
            Err(error) => panic!("{error}"),
        }
    }
    // Kill it while it writes.
    for _ in 0..12 {
        worker.line().unwrap();
    }
    worker.kill().unwrap();
    for _ in 0..3 {
        let mut fresh = Worker::start(program, &["decide", &url]).unwrap();
        let line = fresh.line().unwrap();
        let (started, decided) = line.split_once(' ').unwrap();
        println!(
            "{} claims on {} nodes: started after {started} ms, first decision after {decided} ms",
            size.claims, size.nodes
        );
    }
    let claims = fixture.rows("SELECT count(*) FROM claim").unwrap();
    let claims: u64 = claims[0][0].parse().unwrap();
    assert!(claims >= size.claims + 3, "{claims}");
}

#[test]
fn a_small_ledger_restarts_on_sqlite() {
    restart(&Fixture::sqlite().unwrap(), SMALL);
}

#[test]
fn a_small_ledger_restarts_on_postgres() {
    restart(&Fixture::postgres(berth_pgtemp::Options::default()).unwrap(), SMALL);
}

fn wants_large() -> bool {
    let spec = setting("BERTH_LARGE").is_some();
    if !spec {
        println!("SKIPPED, nothing was checked: set BERTH_LARGE for a million claims");
    }
    spec
}

#[test]
fn a_large_ledger_restarts_on_sqlite() {
    if wants_large() {
        restart(&Fixture::sqlite().unwrap(), LARGE);
    }
}

#[test]
fn a_large_ledger_restarts_on_postgres() {
    if wants_large() {
        restart(&Fixture::postgres(berth_pgtemp::Options::default()).unwrap(), LARGE);
    }
}
