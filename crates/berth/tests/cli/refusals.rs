//! Commands that a refusal prints are run as they are printed.

use std::process::Command;

use crate::{Server, berth, text};

/// The commands that a refusal of this request prints, without the one that waits.
fn printed(server: &Server, words: &[&str]) -> Vec<String> {
    let said = server.fails(3, words);
    let lines = said.lines().map(str::trim);
    let is_command = |line: &&str| line.starts_with("berth ") || line.starts_with("for node in ");
    let commands: Vec<String> = lines
        .filter(is_command)
        .filter(|line| !line.contains("--wait"))
        .map(str::to_owned)
        .collect();
    assert!(!commands.is_empty(), "{said}");
    commands
}

/// Runs a line as a person does who pastes it into a shell.
#[allow(clippy::disallowed_methods, reason = "the shell finds programs where the test does")]
fn paste(server: &Server, line: &str) {
    let program = berth(server.folder.path());
    let folder = std::path::Path::new(program.get_program()).parent().unwrap().to_owned();
    let path = std::env::var_os("PATH").unwrap_or_default();
    let path = std::env::join_paths(std::iter::once(folder).chain(std::env::split_paths(&path)));
    let output = Command::new("sh")
        .args(["-e", "-c", line])
        .env("PATH", path.unwrap())
        .env("BERTH_CONFIG", server.folder.path().join("client.toml"))
        .env("BERTH_URL", &server.url)
        .env_remove("BERTH_TOKEN")
        .env_remove("BERTH_CA_CERT")
        .output()
        .unwrap();
    let said = format!("{}{}", text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(0), "{line}\n{said}");
}

/// A node with an ssd, one with a disk and 22 GiB left, and a cordoned one with a disk.
fn nearly_full() -> Server {
    let server = Server::start().with_nodes();
    server.said(&["nodes", "cordon", "node-3", "--yes"]);
    server.said(&["place", "--memory", "10GiB", "--trait", "hdd", "--tenant", "acme"]);
    server
}

/// Pastes every command of a dry run's refusal: those that place are dry runs again, and after one
/// that changes the fleet the request is granted as it was asked.
fn every_command_works(words: &[&str]) -> Vec<String> {
    let server = nearly_full();
    let commands = printed(&server, words);
    let (place, fleet): (Vec<_>, Vec<_>) =
        commands.iter().cloned().partition(|line| line.starts_with("berth place"));
    for line in &place {
        assert!(line.contains("--dry-run"), "{line}");
        paste(&server, line);
    }
    for (number, line) in fleet.iter().enumerate() {
        // The fleet as it was for each of them.
        let server = nearly_full();
        let line = &printed(&server, words)
            .into_iter()
            .filter(|line| !line.starts_with("berth place"))
            .nth(number)
            .unwrap_or_else(|| line.clone());
        paste(&server, line);
        server.said(words);
    }
    commands
}

fn words(flags: &str) -> Vec<&str> {
    let flags = flags.split(' ').chain(["--tenant", "acme", "--dry-run"]);
    std::iter::once("place").chain(flags).collect()
}

#[test]
fn commands_for_one_instance_work_as_printed_and_stay_dry_runs() {
    let words = words("--cpu 1 --memory 24GiB --trait hdd");
    let commands = every_command_works(&words);
    for command in ["nodes register", "nodes uncordon node-3", "claims release", "place"] {
        let command = format!("berth {command}");
        assert!(commands.iter().any(|line| line.starts_with(&command)), "{commands:#?}");
    }
}

#[test]
fn commands_for_two_changes_work_as_printed() {
    let words = words("--cpu 1 --memory 40GiB --trait gpu");
    let commands = every_command_works(&words);
    let smaller = |line: &&String| line.starts_with("berth place") && !line.contains("40GiB");
    let both = commands.iter().filter(smaller).any(|line| !line.contains("gpu"));
    assert!(both, "{commands:#?}");
}

#[test]
fn commands_for_a_batch_work_as_printed() {
    let words = words("--cpu 1 --memory 6GiB --trait hdd --count 8");
    let commands = every_command_works(&words);
    assert!(commands.iter().any(|line| line.contains("--at-least")), "{commands:#?}");
    let smaller = |line: &&String| line.starts_with("berth place") && !line.contains("6GiB");
    assert!(commands.iter().any(|line| smaller(&line)), "{commands:#?}");
    assert!(commands.iter().any(|line| line.contains("berth nodes register")), "{commands:#?}");
}

#[test]
fn the_command_for_several_nodes_adds_all_of_them() {
    let words = words("--memory 1GiB --trait hdd --count 4 --tag role=db --affinity role!=db");
    let commands = every_command_works(&words);
    assert!(commands.iter().any(|line| line.starts_with("for node in new-node")), "{commands:#?}");
}
