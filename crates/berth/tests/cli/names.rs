//! Names: what was probably meant by one that does not exist, which are meant by one that is not
//! unique, and what a shell offers.

use std::net::TcpListener;
use std::process::Output;

use crate::{Server, berth, text};

#[test]
fn what_was_probably_meant_is_said() {
    let server = Server::start().with_nodes();
    server.said(&["nodes", "set", "node-3", "label.team=db"]);
    server.said(&[
        "place", "--memory", "1GiB", "--tenant", "acme", "--trait", "hdd", "--name", "web-1",
    ]);
    server.said(&["pools", "set", "public", "10.0.0.0/24", "--open"]);
    let place = |more: &[&str]| {
        let words = ["place", "--memory", "1GiB", "--tenant", "acme"];
        text(&server.run(&[&words[..], more].concat()).stderr)
    };
    for (said, meant) in [
        (place(&["--trait", "sds"]), "no node has the trait sds; did you mean ssd?"),
        (place(&["--zone", "y1"]), "no node is in a zone y1; did you mean z1?"),
        (place(&["--where", "label:taem = db"]), "no node has a label taem; did you mean team?"),
        (
            place(&["--trait", "hdd", "--pool", "pubilc"]),
            "pubilc does not exist; did you mean public?",
        ),
    ] {
        assert!(said.contains(meant), "{meant:?} is not in\n{said}");
    }
    for (words, meant) in [
        (&["nodes", "list", "--where", "has trait:sds"][..], "did you mean ssd?"),
        (&["nodes", "cordon", "--where", "rack = r11"], "did you mean r1?"),
        (&["instances", "list", "--tenant", "acem"], "did you mean acme?"),
    ] {
        let said = text(&server.run(words).stderr);
        assert!(said.contains(meant), "{meant:?} is not in\n{said}");
    }
    for (words, meant) in [
        (["nodes", "drain", "nod-1"], "node-1"),
        (["pools", "show", "pubilc"], "public"),
        (["instances", "show", "wbe-1"], "web-1"),
        (["policies", "show", "balancde"], "balanced"),
    ] {
        let said = server.fails(4, &words);
        assert!(said.contains(&format!("did you mean {meant}?")), "{said}");
    }
}

#[test]
fn a_name_that_is_not_unique_lists_ten() {
    let server = Server::start().with_nodes();
    for _ in 0..12 {
        server.said(&[
            "place", "--memory", "64MiB", "--tenant", "acme", "--trait", "hdd", "--name", "web",
        ]);
    }
    let said = server.fails(2, &["instances", "show", "web"]);
    assert!(said.contains("\"web\" matches 12 instances"), "{said}");
    assert_eq!(said.matches("(web of acme)").count(), 10, "{said}");
    assert!(said.contains("and 2 more"), "{said}");
}

#[test]
fn arguments_that_are_missing_are_named_with_their_alternatives() {
    let server = Server::start();
    for (words, all) in [
        (&["nodes", "cordon"][..], &["NODE", "--where"][..]),
        (&["nodes", "register"], &["NAME", "--file"]),
        (&["rebalance", "apply"], &["--goal", "--plan"]),
        (&["evacuate", "check"], &["--node", "--rack", "--all"]),
        (&["debug", "check"], &["FILE", "--live"]),
        (&["volumes", "move", "v"], &["--to", "--status", "--cancel"]),
    ] {
        let said = server.fails(2, words);
        let line = said.lines().take_while(|line| !line.starts_with("Usage")).collect::<String>();
        assert!(all.iter().all(|name| line.contains(name)), "{all:?} are not in\n{said}");
    }
}

#[test]
fn a_wrong_file_is_described_in_its_own_words() {
    let server = Server::start();
    let path = server.folder.path().join("web.json");
    for (content, expected) in [
        (
            r#"{"resources": {"memory": "1GiB"}, "name": {"a": 1}}"#,
            "name is a map; accepted is a text",
        ),
        (
            r#"{"resources": {"memory": "1GiB"}, "count": "two"}"#,
            "count is \"two\"; accepted is a whole number from 0 to 4294967295",
        ),
        (
            r#"{"resources": {"memory": "1GiB"}, "trait": {}}"#,
            "trait is unknown; did you mean traits?",
        ),
    ] {
        std::fs::write(&path, content).unwrap();
        let said = server.fails(2, &["place", "-f", path.to_str().unwrap()]);
        assert!(said.contains(expected) && said.contains("web.json"), "{said}");
        assert!(!said.contains("line 1 column"), "{said}");
    }
}

#[test]
fn a_format_that_a_command_has_not_is_refused_before_anything_is_done() {
    let server = Server::start().with_nodes();
    let place = ["place", "--memory", "1GiB", "--tenant", "acme", "-o", "toml"];
    let said = server.fails(2, &place);
    assert!(said.contains("accepted: table, wide, json or yaml"), "{said}");
    assert_eq!(server.json(&["instances", "list"])["items"], serde_json::json!([]));
}

#[test]
fn the_short_option_of_the_format_names_no_file() {
    let server = Server::start();
    let said = server.fails(2, &["export", "--database-url", "x.db", "-o", "a b.jsonl"]);
    assert!(said.contains("-o is the format of results; use --out 'a b.jsonl'"), "{said}");
}

/// What a shell is offered for the last of these words.
fn complete(server: &Server, url: &str, words: &[&str]) -> Output {
    let mut command = berth(server.folder.path());
    command.env("BERTH_URL", url).env("BERTH_COMPLETE", "bash").env("_CLAP_IFS", "\n");
    command.env("_CLAP_COMPLETE_INDEX", (words.len() - 1).to_string());
    command.args(["--"]).args(words).output().unwrap()
}

#[test]
fn a_shell_is_offered_the_names_that_the_server_knows() {
    let server = Server::start().with_nodes();
    server.said(&[
        "place", "--memory", "1GiB", "--tenant", "acme", "--trait", "hdd", "--name", "web-1",
    ]);
    let offered = |words: &[&str]| {
        let output = complete(&server, &server.url, words);
        assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
        text(&output.stdout)
    };
    let nodes = offered(&["berth", "nodes", "show", "node-"]);
    assert_eq!(nodes.lines().collect::<Vec<_>>(), ["node-1", "node-2", "node-3"]);
    assert!(offered(&["berth", "instances", "show", "web"]).contains("web-1"));
    assert!(offered(&["berth", "instances", "list", "--tenant", ""]).contains("acme"));
    assert!(offered(&["berth", "place", "--zone", ""]).contains("z1"));
    assert!(offered(&["berth", "policies", "show", "ba"]).contains("balanced"));
    assert!(offered(&["berth", "nodes", "cor"]).contains("cordon"));

    // Neither a server that is not there nor one that never answers disturbs the shell.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let silent = format!("http://{}", silent.local_addr().unwrap());
    for url in ["http://127.0.0.1:1", &silent, "nonsense"] {
        let output = complete(&server, url, &["berth", "nodes", "show", "node-"]);
        assert!(output.status.success(), "{output:?}");
        assert!(output.stderr.is_empty() && output.stdout.is_empty(), "{output:?}");
    }
}
