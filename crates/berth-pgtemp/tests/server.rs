//! A temporary server starts, survives being killed, and leaves nothing behind.

use std::fs::Permissions;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use berth_pgtemp::{CommandError, Options, StartError, TempPostgres};

fn runs(process: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, fields)| !fields.starts_with('Z'))
}

/// Server processes that work in a folder: the server's children go there too.
fn processes_in(folder: &Path) -> Vec<u32> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten();
    let processes = entries.filter_map(|entry| {
        let process: u32 = entry.ok()?.file_name().to_str()?.parse().ok()?;
        let works_in = std::fs::read_link(format!("/proc/{process}/cwd")).ok()?;
        works_in.starts_with(folder).then_some(process)
    });
    processes.collect()
}

#[test]
fn a_server_starts_and_answers_over_both_addresses() {
    let server = TempPostgres::start(Options::default()).unwrap();
    assert_eq!(server.psql("select 1").unwrap(), "1");
    assert_eq!(server.psql("show fsync").unwrap(), "on");
    let database = server.create_database("ledger_1").unwrap();
    for url in [server.url(), server.socket_url(), database] {
        let mut command = Command::new("psql");
        let output =
            command.args(["-X", "-A", "-t", "-c", "select 40 + 2", &url]).output().unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout), "42\n", "{url}: {output:?}");
    }
}

#[test]
fn a_killed_server_comes_back_with_what_was_committed() {
    let mut server = TempPostgres::start(Options::default()).unwrap();
    let url = server.url();
    server.psql("create table claim (id int); insert into claim values (7)").unwrap();
    let before = processes_in(server.data_folder());
    assert!(before.len() > 3, "the server has children: {before:?}");
    server.kill().unwrap();
    assert_eq!(processes_in(server.data_folder()), []);
    assert!(before.into_iter().all(|process| !runs(process)));
    assert!(matches!(server.psql("select 1"), Err(CommandError::Failed { .. })));
    server.restart().unwrap();
    assert_eq!(server.url(), url);
    assert_eq!(server.psql("select id from claim").unwrap(), "7");
}

#[test]
fn a_busy_session_dies_with_a_killed_server() {
    let mut server = TempPostgres::start(Options::quick()).unwrap();
    let endless = "select count(*) from generate_series(1, 1000000000000)";
    let mut client = Command::new("psql");
    client.args(["-X", "-c", endless, &server.url()]).stderr(Stdio::null()).stdout(Stdio::null());
    let mut client = client.spawn().unwrap();
    let busy = "select count(*) from pg_stat_activity where query like '%generate_series%' \
                and pid <> pg_backend_pid()";
    while server.psql(busy).unwrap() != "1" {
        std::thread::sleep(Duration::from_millis(10));
    }
    server.kill().unwrap();
    assert_eq!(processes_in(server.data_folder()), []);
    assert!(!client.wait().unwrap().success());
}

#[test]
fn dropping_leaves_no_process_and_no_folder() {
    for kill_first in [false, true] {
        let parent = tempfile::tempdir().unwrap();
        // The server's account must get through a folder that is otherwise ours alone.
        std::fs::set_permissions(parent.path(), Permissions::from_mode(0o755)).unwrap();
        let options = Options { parent: Some(parent.path().to_owned()), ..Options::quick() };
        let mut server = TempPostgres::start(options).unwrap();
        let process = server.process_id().unwrap();
        let data: PathBuf = server.data_folder().to_owned();
        assert!(data.starts_with(parent.path()) && runs(process));
        if kill_first {
            server.kill().unwrap();
        }
        drop(server);
        assert!(!runs(process));
        assert!(!data.exists());
    }
}

#[test]
fn a_server_outlives_the_thread_that_started_it() {
    let start = || TempPostgres::start(Options::quick()).unwrap();
    let server = std::thread::spawn(start).join().unwrap();
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(server.psql("select 1").unwrap(), "1");
}

#[test]
fn a_server_dies_with_the_program_that_started_it() {
    // What the killed program cannot remove is in here, and goes with it.
    let folder = tempfile::tempdir().unwrap();
    std::fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).unwrap();
    let mut program = Command::new(std::env::current_exe().unwrap());
    program.args(["--exact", "serves_until_killed", "--ignored", "--nocapture"]);
    program.env("TMPDIR", folder.path()).stdout(Stdio::piped());
    let mut program = program.spawn().unwrap();
    let lines = BufReader::new(program.stdout.take().unwrap()).lines();
    let told = lines.map(Result::unwrap).find_map(|line| {
        let (_, told) = line.split_once("serving ")?;
        let (process, data) = told.split_once(' ')?;
        Some((process.parse::<u32>().unwrap(), PathBuf::from(data)))
    });
    let (process, data) = told.unwrap();
    assert!(runs(process) && data.starts_with(folder.path()));
    program.kill().unwrap();
    program.wait().unwrap();
    for _ in 0..2400 {
        if processes_in(&data).is_empty() {
            break;
        }
        std::thread::sleep(Duration::from_millis(25));
    }
    assert_eq!(processes_in(&data), []);
    assert!(!runs(process));
    let lock = std::fs::read_to_string(data.join("postmaster.pid")).unwrap();
    let memory = lock.lines().nth(6).unwrap().split_whitespace().nth(1).unwrap();
    assert!(Command::new("ipcrm").args(["-m", memory]).status().unwrap().success());
}

#[test]
#[ignore = "is run and killed by another test"]
fn serves_until_killed() {
    let server = TempPostgres::start(Options::quick()).unwrap();
    println!("serving {} {}", server.process_id().unwrap(), server.data_folder().display());
    std::thread::sleep(Duration::from_secs(600));
}

#[test]
fn a_server_that_cannot_start_shows_its_log() {
    let settings = vec![("no_such_setting".to_owned(), "1".to_owned())];
    let error = TempPostgres::start(Options { settings, ..Options::quick() }).unwrap_err();
    assert!(matches!(error, StartError::Exited { .. }));
    assert!(error.to_string().contains("no_such_setting"), "{error}");
}

#[test]
fn odd_database_names_are_refused() {
    let server = TempPostgres::start(Options::quick()).unwrap();
    for name in ["", "A", "a-b", "--help", "a b"] {
        assert!(matches!(server.create_database(name), Err(CommandError::Name { .. })), "{name}");
    }
}
