//! Elastic instances on the command line: permits, bounds, accounts and migrations.

use serde_json::Value;

use super::Server;

/// A server with two hosts, `a` and `b`, and an elastic instance `db` that runs on one of them.
fn with_elastic() -> (Server, String) {
    let server = Server::start();
    for node in ["a", "b"] {
        server.said(&[
            "nodes", "register", node, "--cpu", "4", "--memory", "32GiB", "--disk", "100GiB",
        ]);
    }
    server.said(&[
        "place",
        "--tenant",
        "acme",
        "--name",
        "db",
        "--cpu",
        "1",
        "--memory",
        "4GiB",
        "--min",
        "500m,2GiB",
        "--max",
        "4,64GiB",
        "--compute-unit",
        "0.5,2GiB",
    ]);
    server.said(&["claims", "bind", "db"]);
    server.said(&["claims", "activate", "db"]);
    let node = server.json(&["instances", "show", "db"])["node"].as_str().unwrap().to_owned();
    (server, node)
}

fn size(value: &Value) -> (u64, u64) {
    (value["cpu_milli"].as_u64().unwrap(), value["memory_mib"].as_u64().unwrap())
}

#[test]
fn an_elastic_instance_asks_before_it_grows_and_is_told_what_held_it_back() {
    let (server, node) = with_elastic();
    let shown = server.said(&["instances", "show", "db"]);
    assert!(shown.contains("0.5 CPU, 2 GiB to 4 CPU, 64 GiB"), "{shown}");
    let list = server.said(&["instances", "list"]);
    assert!(list.contains("PERMIT") && list.contains("1 CPU, 4 GiB"), "{list}");
    let permit = server.json(&["instances", "permit", "db"]);
    assert_eq!((size(&permit["permit"]), &permit["seq"]), ((1000, 4096), &Value::from(0)));

    let grown = ["instances", "permit", "db", "--cpu", "2", "--memory", "8GiB", "--seq", "5"];
    assert_eq!(size(&server.json(&grown)["permit"]), (2000, 8192));
    let again = server.json(&grown);
    assert_eq!((size(&again["permit"]), &again["repeated"]), ((2000, 8192), &Value::from(true)));
    // What is not given stays: with the memory that it has, more CPU is all that it asks for.
    let more = server.json(&["instances", "permit", "db", "--cpu", "2500m"]);
    assert_eq!(size(&more["wanted"]), (2500, 8192));
    let held_back = server.said(&["instances", "permit", "db", "--cpu", "4", "--memory", "64GiB"]);
    assert!(held_back.contains("of 4 CPU, 64 GiB wanted: its node has no more"), "{held_back}");
    let account = server.said(&["nodes", "show", &node]);
    let sentence = account.lines().last().unwrap();
    assert!(account.contains("WATERMARK") && sentence.contains("must leave"), "{account}");
    let wide = server.said(&["nodes", "list", "-o", "wide"]);
    assert!(wide.contains("PRESSURE") && wide.contains(" over"), "{wide}");

    let shrunk = ["instances", "permit", "db", "--cpu", "0.5", "--memory", "2GiB"];
    let shrunk = server.json(&[&shrunk[..], &["--headroom", "1,4GiB"]].concat());
    assert_eq!(size(&shrunk["permit"]), (500, 2048));
    assert_eq!(size(&shrunk["headroom"]["up_to"]), (1500, 6144));
    let bounds = ["instances", "bounds", "db", "--min", "0.5,2GiB", "--max", "2,8GiB"];
    assert!(server.said(&bounds).contains("0.5 CPU, 2 GiB to 2 CPU, 8 GiB"));
    let calm = server.said(&["nodes", "show", &node]);
    assert!(calm.ends_with("Nothing needs to leave.\n"), "{calm}");
}

#[test]
fn what_cannot_be_is_refused_with_what_would_be_accepted() {
    let (server, _) = with_elastic();
    let outside = server.fails(2, &["instances", "permit", "db", "--cpu", "9"]);
    assert!(
        outside.contains("resources.cpu_milli") && outside.contains("500 to 4000"),
        "{outside}"
    );
    let typed = server.fails(2, &["instances", "bounds", "db", "--min", "1", "--max", "2,8GiB"]);
    assert!(typed.contains("0.5,1GiB"), "{typed}");
    let crossed = ["instances", "bounds", "db", "--min", "4,8GiB", "--max", "2,8GiB"];
    assert!(server.fails(2, &crossed).contains("max.cpu_milli"));
    let place = ["place", "--tenant", "acme", "--memory", "1GiB", "--name", "fixed"];
    let class = server.fails(2, &[&place[..], &["--class", "burst"]].concat());
    assert!(class.contains("elastic.class"), "{class}");
    server.said(&place);
    assert!(server.fails(6, &["instances", "permit", "fixed"]).contains("not elastic"));
    assert!(server.fails(6, &["instances", "permit", "fixed", "--cpu", "1"]).contains("elastic"));
}

#[test]
fn a_migration_is_tried_begun_followed_and_called_off() {
    let (server, node) = with_elastic();
    let other = if node == "a" { "b" } else { "a" };
    let tried = server.said(&["migrations", "start", "db", "--dry-run"]);
    assert!(tried.contains(&format!("would move from {node} to {other}")), "{tried}");
    assert!(tried.contains("free 1 CPU, 4 GiB"), "{tried}");
    assert_eq!(server.said(&["migrations", "list", "-q"]), "");
    let there = server.fails(6, &["migrations", "start", "db", "--to", &node]);
    assert!(there.contains("already"), "{there}");

    let begun = server.json(&["migrations", "start", "db", "--to", other]);
    let id = begun["id"].as_str().unwrap();
    assert_eq!(begun["state"], "target_held");
    assert_eq!(server.said(&["migrations", "list", "--open", "-q"]), format!("{id}\n"));
    let list = server.said(&["migrations", "list", "--node", other, "--instance", "db"]);
    assert!(list.contains("target_held") && list.contains("asked"), "{list}");
    assert!(server.fails(6, &["migrations", "start", "db"]).contains("berth migrations cancel"));
    let claims = server.said(&["claims", "list"]);
    assert!(claims.contains("runs here") && claims.contains("moves here"), "{claims}");
    assert_eq!(server.said(&["instances", "list", "-q"]).lines().count(), 1);
    let waits = server.said(&["instances", "permit", "db"]);
    assert!(waits.contains("being moved"), "{waits}");
    let called_off = server.said(&["migrations", "cancel", id]);
    assert!(
        called_off.contains("cancelled") && called_off.contains("not moved off a"),
        "{called_off}"
    );
    assert_eq!(server.said(&["migrations", "list", "--open", "-q"]), "");
    assert_eq!(
        server.said(&["migrations", "list", "--state", "cancelled", "-q"]),
        format!("{id}\n")
    );
    assert!(server.said(&["migrations", "show", id]).contains("called it off"));
    server.fails(4, &["migrations", "show", "none"]);
    server.fails(2, &["migrations", "list", "--state", "tired"]);
}
