//! What the binary prints, and to whom.

#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

use std::process::{Command, Stdio};

#[test]
fn a_reader_that_stops_early_sees_no_complaint() {
    let mut berth = Command::new(env!("CARGO_BIN_EXE_berth"));
    let mut berth = berth
        .args(["policy", "reference"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(berth.stdout.take());
    let ended = berth.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&ended.stderr);
    assert!(!said.contains("panic"), "{said}");
    assert!(ended.status.success(), "{:?}", ended.status);
}
