//! Commands that a refusal prints are run as they are printed.

use std::io::Write as _;
use std::process::{Command, Stdio};

use crate::{Server, berth, text};

/// The commands that a refusal of this request prints, without the one that waits.
fn printed(server: &Server, words: &[&str]) -> Vec<String> {
    let output = server.run(words);
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(3), "{said}");
    let commands = commands_in(&said);
    assert!(!commands.is_empty(), "{said}");
    commands
}

/// The commands of a refusal, without the one that waits.
pub(crate) fn commands_in(said: &str) -> Vec<String> {
    let lines = said.lines().map(str::trim);
    let starts = ["berth ", "for node in ", "printf "];
    let is_command = |line: &&str| starts.iter().any(|start| line.starts_with(start));
    let lines = lines.filter(is_command).filter(|line| !line.contains("--wait"));
    lines.map(str::to_owned).collect()
}

/// Runs a line as a person does who pastes it into a shell.
#[allow(clippy::disallowed_methods, reason = "the shell finds programs where the test does")]
pub(crate) fn paste(server: &Server, line: &str) {
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
    every_command_works_on(nearly_full, words)
}

fn every_command_works_on(stage: fn() -> Server, words: &[&str]) -> Vec<String> {
    let server = stage();
    let commands = printed(&server, words);
    let (place, fleet): (Vec<_>, Vec<_>) =
        commands.iter().cloned().partition(|line| is_placement(line));
    for line in &place {
        assert!(line.contains("--dry-run"), "{line}");
        paste(&server, line);
    }
    for (number, line) in fleet.iter().enumerate() {
        // The fleet as it was for each of them.
        let server = stage();
        let line = &printed(&server, words)
            .into_iter()
            .filter(|line| !is_placement(line))
            .nth(number)
            .unwrap_or_else(|| line.clone());
        paste(&server, line);
        server.said(words);
    }
    commands
}

/// Whether a command places something, by flags or with the whole request in it.
pub(crate) fn is_placement(line: &str) -> bool {
    line.starts_with("berth place") || line.starts_with("printf ")
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

/// A tenant that uses half of its quota, and pools: one with a single value, one with several, and one
/// of another tenant.
fn limited() -> Server {
    let server = Server::start().with_nodes();
    for name in ["one", "two"] {
        let place =
            ["place", "--cpu", "1", "--memory", "2GiB", "--trait", "ssd", "--tenant", "acme"];
        server.said(&[&place[..], &["--name", name]].concat());
    }
    server.said(&["quotas", "set", "acme", "--memory", "8GiB", "--instances", "5", "--cpu", "64"]);
    server.said(&["pools", "set", "vlan", "10-10"]);
    server.said(&["pools", "set", "vlan-2", "20-29"]);
    server.said(&["pools", "set", "vlan-3", "30-39", "--tenant", "rival"]);
    server
}

#[test]
fn commands_against_a_quota_work_as_printed() {
    let words = words("--cpu 1 --memory 2GiB --trait ssd --count 4");
    let commands = every_command_works_on(limited, &words);
    let quota = "berth quotas set acme --cpu 64 --memory 12GiB --instances 6";
    assert!(commands.iter().any(|line| line == quota), "{commands:#?}");
    for part in ["--count 2", "claims release"] {
        assert!(commands.iter().any(|line| line.contains(part)), "{part} in {commands:#?}");
    }
}

#[test]
fn a_smaller_size_is_printed_where_the_quota_leaves_one() {
    let words = words("--cpu 1 --memory 6GiB --trait ssd");
    let commands = every_command_works_on(limited, &words);
    let smaller = |line: &String| line.starts_with("berth place") && line.contains("--memory 4GiB");
    assert!(commands.iter().any(smaller), "{commands:#?}");
}

#[test]
fn commands_against_a_pool_work_as_printed() {
    let flags = "--cpu 1 --memory 1GiB --trait ssd --count 2 --pool";
    let exhausted = format!("{flags} vlan");
    let commands = every_command_works_on(limited, &words(&exhausted));
    for part in
        ["--count 1", "--pool vlan-2", "berth pools set vlan 10-11 --quarantine 600s --open"]
    {
        assert!(commands.iter().any(|line| line.contains(part)), "{part} in {commands:#?}");
    }
    assert!(commands.iter().any(|line| !line.contains("pool")), "without one: {commands:#?}");
    let of_another = format!("{flags} vlan-3");
    let commands = every_command_works_on(limited, &words(&of_another));
    let opened = "berth pools set vlan-3 30-39 --quarantine 600s --open";
    assert!(commands.iter().any(|line| line == opened), "{commands:#?}");
}

/// A node that alone has an ssd, and a fact that keeps it out.
fn kept_out(fact: &str) -> Server {
    let server = Server::start().with_nodes();
    server.said(&["nodes", "set", "node-1", fact]);
    server
}

#[test]
fn commands_for_a_node_that_an_operator_keeps_out_work_as_printed() {
    let words = words("--cpu 1 --memory 1GiB --trait ssd");
    let headnode = every_command_works_on(|| kept_out("headnode=true"), &words);
    let reserved = every_command_works_on(|| kept_out("reserved=true"), &words);
    for (commands, fact) in [(headnode, "headnode"), (reserved, "reserved")] {
        let expected = format!("berth nodes set node-1 {fact}=false");
        assert!(commands.contains(&expected), "{commands:#?}");
    }
}

#[test]
fn what_needs_work_on_a_host_is_said_and_has_no_command() {
    let words = words("--cpu 1 --memory 1GiB --trait ssd");
    for fact in ["kvm=false", "overlay_loss_ppm=900000"] {
        let said = kept_out(fact).fails(3, &words);
        assert!(said.contains("work on the host of node-1: "), "{said}");
        assert!(!said.contains("nodes explain"), "{said}");
    }
    every_command_works_on(|| kept_out("kvm=false"), &words);
}

#[test]
fn a_drain_is_cancelled_by_its_own_command() {
    let words = words("--cpu 1 --memory 1GiB --trait ssd");
    let draining = || {
        let server = Server::start().with_nodes();
        server.said(&["nodes", "drain", "node-1", "--yes"]);
        server
    };
    let commands = every_command_works_on(draining, &words);
    let expected = "berth nodes drain node-1 --cancel".to_owned();
    assert!(commands.contains(&expected), "{commands:#?}");
    assert!(!commands.iter().any(|line| line.contains("uncordon")), "{commands:#?}");
}

#[test]
fn an_explanation_proposes_nothing_that_claims() {
    let server = nearly_full();
    let explain = ["explain", "--cpu", "1", "--memory", "24GiB", "--trait", "hdd"];
    let commands = printed(&server, &[&explain[..], &["--tenant", "acme"]].concat());
    let placements: Vec<&String> = commands.iter().filter(|line| is_placement(line)).collect();
    assert!(!placements.is_empty(), "{commands:#?}");
    for line in placements {
        assert!(line.contains("--dry-run"), "{line}");
        paste(&server, line);
    }
    assert_eq!(server.said(&["instances", "list", "-q"]).lines().count(), 1);
}

/// What a command says once it says so.
fn said_until(server: &Server, words: &[&str], is_it: impl Fn(&str) -> bool) -> String {
    for _ in 0..300 {
        let said = server.said(words);
        if is_it(&said) {
            return said;
        }
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    panic!("{words:?} never said so: {}", server.said(words));
}

/// Commands in an output, by what they do.
fn commands_with(said: &str, part: &str) -> Vec<String> {
    let lines = said.lines().map(str::trim).filter(|line| line.contains(part));
    lines.map(str::to_owned).collect()
}

#[test]
fn a_request_that_waits_shows_commands_that_take_its_place() {
    let server = nearly_full();
    let place = ["place", "--memory", "24GiB", "--trait", "hdd", "--tenant", "acme"];
    let mut waits = berth(server.folder.path());
    waits.env("BERTH_URL", &server.url).args([&place[..], &["--wait", "10m"]].concat());
    let mut process = waits.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let listed = said_until(&server, &["queue", "list", "-q"], |said| !said.trim().is_empty());
    let id = listed.lines().next().unwrap().to_owned();
    let show = ["queue", "show", &id];
    let said = said_until(&server, &show, |said| said.contains("What would help"));
    let commands = commands_with(&said, "berth place -f -");
    assert!(!commands.is_empty(), "{said}");
    let cancels = format!("berth queue cancel {id} && ");
    assert!(commands.iter().all(|line| line.contains(&cancels)), "{said}");
    paste(&server, &commands[0]);
    process.wait().unwrap();
    assert!(server.said(&show).contains("cancelled"), "it is placed in its place");
    assert_eq!(server.said(&["instances", "list", "-q"]).lines().count(), 2);
}

#[test]
fn a_degraded_workload_shows_commands_that_change_its_template() {
    let server = nearly_full();
    let set = ["workloads", "set", "acme/web", "--replicas", "1", "--memory", "24GiB"];
    server.said(&[&set[..], &["--trait", "hdd"]].concat());
    let status = ["workloads", "status", "acme/web"];
    let said = said_until(&server, &status, |said| said.contains("What would help"));
    let commands = commands_with(&said, "berth workloads apply -f -");
    assert!(!commands.is_empty() && commands_with(&said, "berth place").is_empty(), "{said}");
    paste(&server, &commands[0]);
    said_until(&server, &status, |said| !said.contains("degraded"));
}

/// A node that is full of small instances with names.
fn crowded() -> Server {
    let server = Server::start().with_nodes();
    let place = ["place", "--memory", "448MiB", "--disk", "1GiB", "--trait", "ssd"];
    let crowd = ["--count", "60", "--tenant", "acme", "--name", "small"];
    server.said(&[&place[..], &crowd].concat());
    server
}

#[test]
fn the_command_that_releases_many_instances_names_all_of_them() {
    let words = words("--cpu 1 --memory 28GiB --trait ssd");
    let commands = every_command_works_on(crowded, &words);
    let release = commands.iter().find(|line| line.starts_with("berth claims release"));
    let released = release.unwrap().split(' ').count() - 3;
    assert!(released > 40, "{released}: {commands:#?}");
    let said = crowded().fails(3, &words);
    let named = said.lines().find(|line| line.contains("release ")).unwrap();
    assert!(named.contains("(small-") && named.contains(" more)"), "{named}");
}

/// Pastes every command of the refusal of a request in a file.
fn every_command_of_file_works(name: &str, body: &str) -> Vec<String> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(name);
    std::fs::write(&path, body).unwrap();
    let line = format!("-f {}", path.display());
    every_command_works(&words(&line))
}

#[test]
fn commands_for_a_file_work_as_printed_where_flags_cannot_change_it() {
    let one = "resources: {cpu_milli: 1000, memory_mib: 1024}\ntraits: {gpu: true}\n";
    let commands = every_command_of_file_works("one.yaml", one);
    let whole = |line: &&String| line.starts_with("printf ") && !line.contains("gpu");
    assert!(commands.iter().any(|line| whole(&line)), "{commands:#?}");

    let several = r#"{"instances": [
        {"name": "web", "resources": {"memory_mib": 1024}, "traits": {"hdd": true}, "count": 2},
        {"name": "it's big", "resources": {"memory_mib": 40960}, "traits": {"hdd": true}}
    ]}"#;
    let commands = every_command_of_file_works("several.json", several);
    let smaller = |line: &&String| line.starts_with("printf ") && !line.contains("40960");
    assert!(commands.iter().any(|line| smaller(&line)), "{commands:#?}");
}

#[test]
fn commands_for_a_request_that_was_piped_in_have_the_request_in_them() {
    let server = nearly_full();
    let wanted = r#"{"resources": {"memory_mib": 24576}, "traits": {"hdd": true}}"#;
    let mut place = berth(server.folder.path());
    place.env("BERTH_URL", &server.url).args(words("-f -")).stdin(Stdio::piped());
    let mut process = place.stderr(Stdio::piped()).spawn().unwrap();
    process.stdin.take().unwrap().write_all(wanted.as_bytes()).unwrap();
    let said = text(&process.wait_with_output().unwrap().stderr);
    let lines = said.lines().map(str::trim);
    let placements: Vec<&str> = lines.filter(|line| line.contains("berth place")).collect();
    assert!(!placements.is_empty(), "{said}");
    for line in placements {
        assert!(line.contains("printf %s "), "{line}");
        paste(&server, line);
    }
}
