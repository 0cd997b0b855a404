//! A ledger closes wherever its last handle is dropped, also in the answer to its last request.

#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

use std::sync::mpsc;
use std::time::Duration;

use berth_faults::Fixture;
use berth_ledger::{Job, Ledger, Op, Options, Text};

#[test]
fn a_ledger_whose_last_handle_is_in_an_answer_closes() {
    let fixture = Fixture::sqlite().unwrap();
    let ledger = Ledger::open(fixture.backend(), Options::default()).unwrap();
    let (sender, receiver) = mpsc::channel();
    let (last, handle) = (ledger.clone(), mpsc::channel::<()>());
    let (dropped, wait) = handle;
    let reply = Box::new(move |answer| {
        // The other handle is gone by now.
        let _ = wait.recv();
        drop(last);
        drop(sender.send(answer));
    });
    let op = Op::PutSecrets { tenant: None, env: Text::from("test"), version: None };
    ledger.submit([Job { op, reply }]);
    drop(ledger);
    drop(dropped);
    let answer = receiver.recv_timeout(Duration::from_secs(60));
    assert!(answer.is_ok(), "the ledger waits for itself");
}
