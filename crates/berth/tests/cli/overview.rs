//! Events, versions and the status of a server.

use std::io::{BufRead as _, BufReader};
use std::process::Stdio;

use crate::{Server, berth, text};

#[test]
fn the_latest_events_are_listed_the_newest_last() {
    let server = Server::start().with_nodes();
    for number in 0..60 {
        server.said(&["nodes", "set", "node-1", &format!("label.number={number}")]);
    }
    let numbers = |words: &[&str]| -> Vec<i64> {
        let page = server.json(&[&["events"], words].concat());
        let items = page["items"].as_array().unwrap();
        items.iter().map(|event| event["seq"].as_i64().unwrap()).collect()
    };
    let all = numbers(&["--since", "1h"]);
    assert!(all.len() > 60 && all.is_sorted(), "{all:?}");
    assert_eq!(numbers(&[]), all[all.len() - 50..], "the last fifty");
    assert_eq!(numbers(&["--limit", "3"]), all[all.len() - 3..]);
    assert_eq!(numbers(&["--after", "0", "--limit", "3"]), all[..3], "from a number onwards");
    let nodes = numbers(&["--kind", "node", "--limit", "5"]);
    assert_eq!(nodes.last(), all.last());

    let mut follow = berth(server.folder.path());
    follow.env("BERTH_URL", &server.url).args(["events", "--follow", "--limit", "2"]);
    let mut process = follow.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(process.stdout.take().unwrap()).lines().map_while(Result::ok);
    let mut number = || -> i64 {
        let line = lines.next().unwrap();
        line.split_whitespace().next().unwrap().parse().unwrap()
    };
    let last = *all.last().unwrap();
    assert_eq!((number(), number()), (all[all.len() - 2], last));
    server.said(&["nodes", "cordon", "node-2"]);
    assert_eq!(number(), last + 1);
    process.kill().unwrap();
    process.wait().unwrap();
}

#[test]
fn versions_of_client_and_server_are_shown() {
    let server = Server::start();
    let both = server.json(&["version"]);
    assert_eq!(both["client"], env!("CARGO_PKG_VERSION"));
    assert_eq!(both["server"]["version"], env!("CARGO_PKG_VERSION"));
    assert!(both["server"]["schema"].as_i64() >= Some(5), "{both}");
    assert_eq!(both["server"]["database"], "sqlite");
    let own = berth(server.folder.path()).args(["version", "--client"]).output().unwrap();
    assert!(own.status.success() && text(&own.stdout).contains(env!("CARGO_PKG_VERSION")));
    let gone = server.run(&["version", "--url", "http://127.0.0.1:1"]);
    assert_eq!(gone.status.code(), Some(7));
    assert!(text(&gone.stdout).contains(env!("CARGO_PKG_VERSION")), "the client's all the same");
}

#[test]
fn the_status_says_what_needs_attention() {
    let server = Server::start();
    let empty = server.said(&["status"]);
    assert!(empty.contains("ready") && empty.contains("there are no nodes"), "{empty}");
    let server = server.with_nodes();
    server.said(&["place", "--memory", "1GiB", "--tenant", "acme", "--trait", "hdd"]);
    server.fails(3, &["place", "--memory", "1TiB", "--tenant", "acme", "--trait", "hdd"]);
    server.run(&["place", "--memory", "1TiB", "--tenant", "acme", "--trait", "hdd", "--wait=1s"]);
    server.said(&["nodes", "cordon", "node-3"]);
    let shown = server.said(&["status"]);
    for part in [
        "schema",
        "3: 2 active, 1 cordoned",
        "instances  1",
        "in the last hour",
        "no_capacity_memory",
    ] {
        assert!(shown.contains(part), "{part:?} is missing:\n{shown}");
    }
    let data = server.json(&["status"]);
    assert_eq!(data["server"]["ready"], true);
    assert_eq!(data["fleet"]["nodes"]["active"], 2);
    assert_eq!(data["fleet"]["memory_mib"]["used"].as_u64().map(|used| used >= 1024), Some(true));
    server.fails(7, &["status", "--url", "http://127.0.0.1:1"]);
}
