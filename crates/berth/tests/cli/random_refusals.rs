//! Random requests on random fleets: every command that a refusal prints works as it is printed.
//!
//! `BERTH_READ=200 cargo nextest run -p berth --test cli to_be_read --run-ignored all --no-capture` prints
//! so many refusals as an operator, the tenant and a program see them.

use std::fmt::Write as _;

use serde_json::Value;

use crate::refusals::{commands_in, is_placement, paste};
use crate::{Server, text};

/// Requests of the test's run.
const REQUESTS: u32 = 24;

/// Requests until another fleet is drawn.
const REQUESTS_PER_FLEET: u32 = 12;

/// Numbers that are the same in every run.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, end: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }

    fn one_in(&mut self, of: u64) -> bool {
        self.below(of) == 0
    }

    fn pick<'a>(&mut self, texts: &[&'a str]) -> &'a str {
        let place = self.below(texts.len() as u64);
        texts[usize::try_from(place).unwrap()]
    }
}

/// A command line that grows.
#[derive(Default)]
struct Words(Vec<String>);

impl Words {
    fn push(&mut self, words: &[&str]) {
        self.0.extend(words.iter().map(|&word| word.to_owned()));
    }

    fn all(&self) -> Vec<&str> {
        self.0.iter().map(String::as_str).collect()
    }
}

/// A few nodes, some of which are kept out, that are half full; and a pool.
fn stage(numbers: &mut Numbers) -> Server {
    let server = Server::start();
    for number in 1..=3 + numbers.below(4) {
        let (name, rack) = (format!("node-{number}"), format!("r{}", numbers.below(3)));
        let memory = numbers.pick(&["16GiB", "32GiB", "64GiB"]);
        let mut words = Words::default();
        words.push(&["nodes", "register", &name, "--memory", memory, "--rack", &rack]);
        words.push(&["--cpu", numbers.pick(&["8", "16"]), "--disk", "200GiB"]);
        words.push(&["--zone", numbers.pick(&["z1", "z2"])]);
        // A node with a trait is kept for those who ask for it.
        if numbers.one_in(3) {
            words.push(&["--trait", numbers.pick(&["ssd", "hdd"])]);
        }
        if numbers.one_in(3) {
            words.push(&["--extra", "gpu=2"]);
        }
        if numbers.one_in(2) {
            words.push(&["--network", "lan"]);
        }
        server.said(&words.all());
        match numbers.below(6) {
            0 => drop(server.said(&["nodes", "cordon", &name, "--yes"])),
            1 => drop(server.said(&["nodes", "set", &name, "reserved=true"])),
            _ => {}
        }
    }
    for number in 0..4 {
        let (name, memory) = (format!("old-{number}"), numbers.pick(&["4GiB", "8GiB", "12GiB"]));
        let tag = format!("role={}", numbers.pick(&["db", "web"]));
        // Where there is no room for it, there is one less.
        server.run(&[
            "place", "--tenant", "acme", "--cpu", "1", "--memory", memory, "--name", &name,
            "--tag", &tag, "--lease", "1h",
        ]);
    }
    // Wide enough: a request that lacks both room and values is told of one after the other.
    server.said(&["pools", "set", "vlan", "10-29"]);
    server
}

/// What a tenant asks for: much of it is more than there is.
fn request(numbers: &mut Numbers) -> Words {
    let mut words = Words::default();
    words.push(&["place", "--tenant", "acme", "--cpu", numbers.pick(&["1", "2", "6", "12"])]);
    words.push(&["--memory", numbers.pick(&["2GiB", "10GiB", "24GiB", "48GiB", "80GiB"])]);
    if numbers.one_in(4) {
        words.push(&["--disk", numbers.pick(&["8GiB", "150GiB", "400GiB"])]);
    }
    if numbers.one_in(3) {
        words.push(&["--trait", numbers.pick(&["ssd", "hdd", "tpm"])]);
    }
    if numbers.one_in(4) {
        words.push(&["--zone", numbers.pick(&["z1", "z2", "z9"])]);
    }
    if numbers.one_in(6) {
        words.push(&["--extra", numbers.pick(&["gpu=1", "gpu=4"])]);
    }
    if numbers.one_in(6) {
        words.push(&["--network", numbers.pick(&["lan", "lan|wan"])]);
    }
    if numbers.one_in(6) {
        words.push(&["--pool", "vlan"]);
    }
    if numbers.one_in(3) {
        words.push(&["--count", numbers.pick(&["2", "3", "5", "9"])]);
    }
    match numbers.below(5) {
        0 => words.push(&["--tag", "role=db", "--affinity", "role!=db@rack"]),
        1 => words.push(&["--affinity", "role==db"]),
        2 => words.push(&["--tag", "role=web", "--affinity", "role!=web"]),
        _ => {}
    }
    words.push(&["--dry-run"]);
    words
}

/// Whether a command ends with the request itself, changed: then it is what has to work.
fn ends_with_request(line: &str) -> bool {
    line.contains("berth place")
}

#[test]
fn every_command_of_random_refusals_works_as_printed() {
    let mut numbers = Numbers(16);
    let mut server = stage(&mut numbers);
    let (mut refused, mut helped, mut placements, mut changes) = (0, 0, 0, 0);
    for number in 1..=REQUESTS {
        if number % REQUESTS_PER_FLEET == 0 {
            server = stage(&mut numbers);
        }
        let words = request(&mut numbers);
        let output = server.run(&words.all());
        if output.status.code() == Some(0) {
            continue;
        }
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(3), "{:?}\n{said}", words.all());
        refused += 1;
        let commands = commands_in(&said);
        helped += u32::from(!commands.is_empty());
        let (of_request, of_fleet): (Vec<_>, Vec<_>) =
            commands.into_iter().partition(|line| is_placement(line));
        for line in &of_request {
            assert!(line.contains("--dry-run"), "{line}");
            paste(&server, line);
            placements += 1;
        }
        // One of those that change the fleet: it stays changed for those that follow.
        if of_fleet.is_empty() {
            continue;
        }
        let chosen = numbers.below(of_fleet.len() as u64);
        let line = &of_fleet[usize::try_from(chosen).unwrap()];
        paste(&server, line);
        changes += 1;
        if !ends_with_request(line) {
            server.said(&words.all());
        }
    }
    println!("{refused} refusals, {placements} changed requests, {changes} changes of the fleet");
    assert!(refused > 10 && placements > 10 && changes > 5, "{refused} {placements} {changes}");
    assert!(helped * 100 >= refused * 95, "{helped} of {refused} have a command");
}

/// A refusal as those see it who get it.
fn as_it_is_read(server: &Server, tenant: &str, words: &[&str]) -> Option<String> {
    let operator = server.run(words);
    if operator.status.code() == Some(0) {
        return None;
    }
    let tenants = server.run(&[words, &["--token", tenant]].concat());
    let program = server.run(&[words, &["-o", "json"]].concat());
    let problem: Value = serde_json::from_slice(&program.stdout).unwrap_or_default();
    let mut shown =
        format!("$ berth {}\n--- operator\n{}", words.join(" "), text(&operator.stderr));
    let seen = text(&tenants.stderr);
    if seen != text(&operator.stderr) {
        let _ = write!(shown, "--- tenant\n{seen}");
    }
    let _ = write!(shown, "--- problem {}\n{}\n", problem["code"], problem["detail"]);
    Some(shown)
}

#[test]
#[ignore = "prints refusals for people to read"]
#[allow(clippy::disallowed_methods, reason = "the caller says how many are printed")]
fn random_refusals_to_be_read() {
    let wanted = std::env::var("BERTH_READ").ok().and_then(|count| count.parse().ok());
    let wanted: usize = wanted.unwrap_or(10);
    let mut numbers = Numbers(7);
    let mut shown = 0;
    while shown < wanted {
        let server = stage(&mut numbers);
        let create =
            ["token", "create", "--role", "tenant", "--tenant", "acme", "-q", "--show-token"];
        let tenant = server.said(&create).trim().to_owned();
        for _ in 0..40 {
            let words = request(&mut numbers);
            if let Some(refusal) = as_it_is_read(&server, &tenant, &words.all()) {
                shown += 1;
                println!("\n=== {shown}\n{refusal}");
            }
            if shown == wanted {
                break;
            }
        }
    }
}
