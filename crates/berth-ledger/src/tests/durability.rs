//! Settings of PostgreSQL under which a failover loses acknowledged commits are reported.

use berth_pgtemp::{Options as ServerOptions, TempPostgres};

use crate::{Backend, DurabilityWarning, Ledger, Options};

fn warnings(url: &str) -> Vec<DurabilityWarning> {
    let ledger = Ledger::open(Backend::Postgres(url.to_owned()), Options::default()).unwrap();
    ledger.durability_warnings().unwrap()
}

/// The same server, named twice.
fn with_two_hosts(server: &TempPostgres) -> String {
    let url = server.url();
    let host = url.split('@').nth(1).and_then(|rest| rest.split('/').next()).unwrap();
    url.replacen(host, &format!("{host},{host}"), 1)
}

#[test]
fn settings_that_lose_commits_are_reported() {
    let server = TempPostgres::start(ServerOptions::quick()).unwrap();
    let set = |setting: &str| {
        server.psql(&format!("ALTER SYSTEM SET {setting}")).unwrap();
        server.psql("SELECT pg_reload_conf()").unwrap();
    };
    let (one, two) = (server.url(), with_two_hosts(&server));
    set("synchronous_commit = on");
    assert_eq!(warnings(&one), []);
    assert_eq!(warnings(&two), [DurabilityWarning::NoSynchronousStandby { hosts: 2 }]);
    set("synchronous_commit = local");
    assert_eq!(warnings(&one), [DurabilityWarning::SynchronousCommitLocal]);
    set("synchronous_commit = off");
    assert_eq!(warnings(&one), [DurabilityWarning::SynchronousCommitOff]);
    // A setting of the role counts, not only the server's.
    set("synchronous_commit = on");
    server.psql("ALTER ROLE postgres SET synchronous_commit = local").unwrap();
    assert_eq!(warnings(&one), [DurabilityWarning::SynchronousCommitLocal]);
    server.psql("ALTER ROLE postgres RESET synchronous_commit").unwrap();
    // What an open ledger says changes with the server; opening would wait for the standby.
    let backend = Backend::Postgres(two);
    let ledger = Ledger::open(backend, Options::default()).unwrap();
    set("synchronous_standby_names = 'standby'");
    let names = "standby".to_owned();
    let reloaded = (0..100).any(|_| {
        std::thread::sleep(std::time::Duration::from_millis(50));
        ledger.durability_warnings().unwrap()
            == [DurabilityWarning::StandbyNotConnected { names: names.clone() }]
    });
    assert!(reloaded, "{:?}", ledger.durability_warnings());
    server.psql("ALTER SYSTEM RESET synchronous_standby_names").unwrap();
    server.psql("SELECT pg_reload_conf()").unwrap();
}

#[test]
fn each_warning_says_what_to_do() {
    let all = [
        DurabilityWarning::SynchronousCommitOff,
        DurabilityWarning::SynchronousCommitLocal,
        DurabilityWarning::NoSynchronousStandby { hosts: 3 },
        DurabilityWarning::StandbyNotConnected { names: "db2".to_owned() },
    ];
    for warning in all {
        let (text, remedy) = (warning.to_string(), warning.remedy());
        assert!(!text.contains("  ") && !remedy.is_empty(), "{text}");
    }
}
