//! What depends on whether there is a terminal: questions, the width of tables, lists that go on.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::{Server, berth, text};

/// What a command prints on a terminal that is so many columns wide, where somebody types something.
fn on_terminal(server: &Server, columns: u32, typed: &str, words: &[&str]) -> String {
    let mut line = format!("stty cols {columns}; {}", env!("CARGO_BIN_EXE_berth"));
    for word in words {
        line.push_str(&format!(" '{word}'"));
    }
    let own = berth(server.folder.path());
    let mut command = Command::new("script");
    command.args(["-qec", &line, "/dev/null"]).env("BERTH_URL", &server.url);
    for (name, value) in own.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    command.env("BERTH_URL", &server.url).env("TERM", "xterm").env("NO_COLOR", "1");
    let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    process.stdin.take().unwrap().write_all(typed.as_bytes()).unwrap();
    text(&process.wait_with_output().unwrap().stdout).replace('\r', "")
}

fn cordoned(server: &Server) -> usize {
    let list = server.json(&["nodes", "list", "--where", "state = cordoned"]);
    list["items"].as_array().unwrap().len()
}

#[test]
fn a_change_by_selection_needs_a_yes() {
    let server = Server::start().with_nodes();
    let change = ["nodes", "cordon", "--where", "rack = r1"];
    // Nobody can be asked.
    let refused = server.fails(2, &change);
    assert!(refused.contains("cordon 2 nodes: node-1, node-2"), "{refused}");
    assert!(refused.contains("nothing was changed") && refused.contains("--yes"), "{refused}");
    server.fails(2, &["nodes", "remove", "--where", "rack = r2"]);
    assert_eq!(cordoned(&server), 0);
    // Somebody can.
    let asked = on_terminal(&server, 80, "n\n", &change);
    assert!(asked.contains("[y/N]") && asked.contains("nothing was changed"), "{asked}");
    assert_eq!(cordoned(&server), 0);
    on_terminal(&server, 80, "y\n", &change);
    assert_eq!(cordoned(&server), 2);
    // What is named is meant.
    server.said(&["nodes", "uncordon", "node-1", "node-2"]);
    assert_eq!(cordoned(&server), 0);
}

#[test]
fn tables_fit_a_terminal_and_are_whole_elsewhere() {
    let server = Server::start().with_nodes();
    let list = ["nodes", "list"];
    let narrow = on_terminal(&server, 60, "", &list);
    assert!(narrow.lines().all(|line| line.chars().count() <= 60), "{narrow}");
    assert!(narrow.contains('…') && narrow.contains("node-1"), "{narrow}");
    let whole = on_terminal(&server, 60, "", &["nodes", "list", "--no-trunc"]);
    assert!(!whole.contains('…'), "{whole}");
    assert!(!server.said(&list).contains('…'));
    let events = on_terminal(&server, 90, "", &["events"]);
    assert!(events.lines().all(|line| line.chars().count() <= 90), "{events}");
    assert!(events.contains('…'), "{events}");
}

#[test]
fn a_watched_list_prints_its_changes() {
    let server = Server::start().with_nodes();
    let watch = |more: &[&str]| {
        let mut command = berth(server.folder.path());
        command.env("BERTH_URL", &server.url).args(["nodes", "list", "--watch"]).args(more);
        let mut process = command.stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(process.stdout.take().unwrap()).lines();
        (process, lines.map_while(Result::ok))
    };
    let (mut process, mut lines) = watch(&[]);
    for name in ["node-1", "node-2", "node-3"] {
        let line = lines.next().unwrap();
        assert!(line.contains(&format!("\tadded\t{name}\t")), "{line}");
    }
    let (mut data, mut documents) = watch(&["-o", "json"]);
    let first: Value = serde_json::from_str(&documents.next().unwrap()).unwrap();
    assert_eq!(
        (&first["change"], &first["item"]["facts"]["id"]),
        (&"added".into(), &"node-1".into())
    );
    server.said(&["nodes", "cordon", "node-2"]);
    let line = lines.next().unwrap();
    assert!(line.contains("\tchanged\tnode-2\tcordoned\t"), "{line}");
    server.said(&["nodes", "remove", "node-2"]);
    let line = lines.next().unwrap();
    assert!(line.contains("\tremoved\tnode-2\t"), "{line}");
    for process in [&mut process, &mut data] {
        process.kill().unwrap();
        process.wait().unwrap();
    }
    let yaml = server.fails(2, &["nodes", "list", "--watch", "-o", "yaml"]);
    assert!(yaml.contains("json"), "{yaml}");
}

#[test]
fn lists_of_tokens_and_environments_can_be_watched() {
    let server = Server::start().with_nodes();
    for (list, change) in [
        ("tokens", ["tokens", "create", "--role", "viewer", "--name", "wall", "--show-token"]),
        (
            "environments",
            ["workloads", "set", "acme/web", "--env=shop", "--replicas=1", "--memory", "64MiB"],
        ),
    ] {
        let mut watch = berth(server.folder.path());
        watch.env("BERTH_URL", &server.url).args([list, "list", "--watch"]);
        let mut process = watch.stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(process.stdout.take().unwrap()).lines();
        let mut lines = lines.map_while(Result::ok);
        server.said(&change);
        let is_new = |line: &String| line.contains("wall") || line.contains("shop");
        let line = lines.find(is_new).unwrap();
        assert!(line.contains("\tadded\t"), "{line}");
        process.kill().unwrap();
        process.wait().unwrap();
    }
}

#[test]
fn a_watched_list_is_drawn_in_place_on_a_terminal() {
    let server = Server::start().with_nodes();
    let line = format!(
        "stty cols 100 rows 20; timeout -s INT 5 {} nodes list --watch",
        env!("CARGO_BIN_EXE_berth")
    );
    let mut command = Command::new("script");
    command.args(["-qec", &line, "/dev/null"]).env("BERTH_URL", &server.url).env("TERM", "xterm");
    command.env("BERTH_CONFIG", server.folder.path().join("client.toml"));
    let shown = text(&command.stdin(Stdio::null()).output().unwrap().stdout);
    assert!(shown.matches("\u{1b}[2J").count() >= 2, "{shown}");
    assert!(shown.contains("3 items of") && shown.contains("Ctrl-C stops"), "{shown}");
}
