//! Why: of every node, of instances and decisions of the past, and one exit code for every refusal.

use super::{Server, text};

#[test]
fn a_wide_explanation_has_every_rule_on_every_node() {
    let server = Server::start().with_nodes();
    server.said(&["nodes", "cordon", "node-3", "--yes"]);
    let wanted =
        ["explain", "--memory", "64GiB", "--tenant", "acme", "--trait", "ssd", "-o", "wide"];
    let output = server.run(&wanted);
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    let (table, drawing) = (text(&output.stdout), text(&output.stderr));
    assert!(table.contains("3 nodes cannot"), "{table}");
    let line = |node: &str| table.lines().find(|line| line.starts_with(node)).unwrap().to_owned();
    assert!(line("node-1").contains("memory: needs 64 GiB"), "{table}");
    for said in ["traits", "lacks trait ssd", "memory (memory: needs 64"] {
        assert!(line("node-2").contains(said), "{said} in {table}");
    }
    for said in ["is cordoned, not active", "traits (lacks trait ssd", "memory ("] {
        assert!(line("node-3").contains(said), "{said} in {table}");
    }
    assert!(drawing.contains("no room: none of 3 nodes can take it"), "{drawing}");

    let few = server.run(&[&wanted[..], &["--limit", "1"]].concat());
    let table = text(&few.stdout);
    assert!(table.contains("and 2 more") && !table.contains("node-2"), "{table}");
    let plain = server.run(&wanted[..7]);
    assert_eq!((plain.status.code(), text(&plain.stdout).as_str()), (Some(3), ""));
}

#[test]
fn an_instance_and_a_decision_of_the_past_say_why() {
    let server = Server::start().with_nodes();
    let place =
        ["place", "--memory", "2GiB", "--tenant", "acme", "--name", "web", "--trait", "hdd"];
    let placed = server.json(&place);
    let node = placed["instances"][0]["node"].as_str().unwrap();
    let decision = placed["decision"].as_str().unwrap();
    // Afterwards it would be decided otherwise.
    server.said(&["nodes", "cordon", node, "--yes"]);
    let why = format!("Why {node} and not ");
    for command in
        [vec!["explain", "web"], vec!["explain", decision], vec!["decisions", "show", decision]]
    {
        let said = server.said(&command);
        for part in [why.as_str(), "total", "2 of 3 nodes could take it", "traits 1", "web"] {
            assert!(said.contains(part), "{part} in {command:?}:\n{said}");
        }
    }
    let said = server.said(&["explain", "web"]);
    assert!(said.contains(&format!("It was placed on {node}.")), "{said}");
    let json = server.json(&["explain", "web"]);
    assert_eq!(json["explanation"]["explanation"]["winner"]["node"], node);
    assert_eq!(json["decision"]["placed"][0]["name"], "web");
}

#[test]
fn what_a_request_asks_for_in_vain_is_noted() {
    let server = Server::start().with_nodes();
    let path = server.folder.path().join("plain.toml");
    std::fs::write(&path, "name = \"plain\"\n[scores]\nmemory-pack = 1\n").unwrap();
    server.said(&["policies", "put", path.to_str().unwrap(), "--activate"]);
    let said = |flags: &[&str]| {
        let place = ["place", "--memory", "1GiB", "--trait", "hdd", "--tenant", "acme"];
        let output = server.run(&[&place[..], flags].concat());
        format!("{}{}", text(&output.stdout), text(&output.stderr))
    };
    let ignored = "prefer has no effect: policy plain gives preferred-place no weight";
    assert!(said(&["--prefer-zone", "z1"]).contains(ignored));
    assert!(said(&["--prefer-zone", "z1", "--cpu", "500"]).contains(ignored), "a refusal too");
    let grows = said(&["--cpu", "1", "--min", "1,1GiB", "--max", "64,1GiB"]);
    assert!(grows.contains("it may grow to 64 CPU and its host has 8 CPU"), "{grows}");
    assert!(!said(&[]).contains("no effect"));
}

#[test]
fn every_refusal_has_one_exit_code_and_names_its_own() {
    let server = Server::start().with_nodes();
    server.said(&["pools", "set", "vlan", "10-10"]);
    server.said(&["pools", "set", "net", "10.0.0.0/32"]);
    server.said(&["quotas", "set", "small", "--memory", "1GiB"]);
    let refusals: [(&[&str], &str, &str); 5] = [
        (&["--memory", "1TiB", "--tenant", "acme"], "no_capacity_memory", "short by"),
        (
            &["--memory", "1GiB", "--tenant", "small", "--count", "3"],
            "quota_exceeded",
            "asks for 3 GiB memory and uses 0 MiB of its quota of 1 GiB",
        ),
        (
            &["--memory", "1GiB", "--tenant", "acme", "--count", "2", "--pool", "vlan"],
            "pool_exhausted",
            "pool vlan has no free value",
        ),
        (
            &["--memory", "1GiB", "--tenant", "acme", "--count", "2", "--pool", "net"],
            "ipam_exhausted",
            "pool net has no free address",
        ),
        (&["--memory", "1GiB", "--tenant", "acme", "--trait", "gpu"], "traits_no_node", "gpu"),
    ];
    for (flags, code, said) in refusals {
        let flags = [&["place", "--trait", "ssd"], flags].concat();
        // The trait that nobody has is asked for alone.
        let flags =
            if code == "traits_no_node" { [&["place"], &flags[3..]].concat() } else { flags };
        let drawn = server.fails(3, &flags);
        assert!(drawn.contains(code) && drawn.contains(said), "{drawn}");
    }
}
