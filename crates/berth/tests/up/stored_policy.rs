//! A policy that an earlier version stored, and what is said about it.

use std::process::Stdio;

use berth_api::engine::Policy;
use berth_ledger::{Backend, Ledger, Op, Options};

use crate::harness::Home;

/// A folder whose ledger has a policy in force as the version before `cpu_within_host` stored it.
fn folder_with_earlier_policy(home: &Home) -> String {
    let folder = home.path().join("ledger");
    std::fs::create_dir(&folder).unwrap();
    let options = Options { writers: 1, ..Options::default() };
    let ledger = Ledger::open(Backend::Sqlite(folder.join("berth.db")), options).unwrap();
    let body = Policy::builtin("pack").unwrap().to_json();
    let body = body.replace(r#""cpu_within_host":true,"#, "");
    let hash = Policy::from_stored(&body).unwrap().hash().to_string();
    let name = "pack".to_owned();
    ledger.administer(Op::ActivatePolicy { name, hash, body, expect: None }).unwrap();
    folder.to_str().unwrap().to_owned()
}

#[test]
fn a_stored_policy_that_lacks_a_rule_is_reported_until_the_remedy_is_pasted() {
    let home = Home::new();
    let folder = folder_with_earlier_policy(&home);
    let server = home.up(&["--no-sign-in", "--data-dir", &folder]);
    let rule = "without the rule cpu-within-host";
    server.wait_for_log(rule);
    let status = || {
        let output = home.run(&["status", "--url", &server.url()]);
        String::from_utf8(output.stdout).unwrap()
    };
    let shown = status();
    assert!(shown.contains(rule), "{shown}");
    let remedy =
        shown.lines().find_map(|line| line.trim().strip_prefix("remedy: store it again: "));
    let pasted = std::process::Command::new("/bin/sh")
        .args(["-e", "-c", remedy.unwrap()])
        .env_clear()
        .env("PATH", std::path::Path::new(env!("CARGO_BIN_EXE_berth")).parent().unwrap())
        .env("HOME", home.path())
        .env("BERTH_URL", server.url())
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert!(pasted.status.success(), "{pasted:?}");
    let shown = status();
    assert!(!shown.contains(rule), "{shown}");
}
