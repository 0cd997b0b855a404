//! What the binary prints, and to whom.

#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

use std::process::{Command, Stdio};

#[test]
fn a_reader_that_stops_early_sees_no_complaint() {
    let mut demo = Command::new(env!("CARGO_BIN_EXE_berth"));
    let mut demo = demo.arg("demo").stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(demo.stdout.take());
    let ended = demo.wait_with_output().unwrap();
    assert_eq!(String::from_utf8_lossy(&ended.stderr), "");
    assert!(ended.status.success(), "{:?}", ended.status);
}
