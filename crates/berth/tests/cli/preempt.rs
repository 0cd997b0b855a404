//! `berth place --preempt`: shown, confirmed, and carried out.

use super::Server;

fn full() -> Server {
    let server = Server::start();
    server.said(&[
        "nodes", "register", "node-1", "--cpu", "8", "--memory", "32GiB", "--disk", "500GiB",
    ]);
    server.said(&["place", "--tenant", "acme", "--memory", "20GiB", "--name", "low"]);
    server
}

const URGENT: [&str; 9] =
    ["place", "--tenant", "acme", "--memory", "20GiB", "--name", "urgent", "--priority", "7"];

#[test]
fn who_makes_room_is_shown_and_released_only_with_consent() {
    let server = full();
    let refused = server.fails(3, &URGENT);
    assert!(refused.contains("preempt 1 instance of acme on node-1"), "{refused}");
    assert!(refused.contains("--priority 7 --tenant acme --preempt"), "{refused}");

    let shown = server.said(&[&URGENT[..], &["--preempt", "--dry-run"]].concat());
    assert!(shown.contains("low") && shown.contains("PRIORITY"), "{shown}");
    let proposed = server.json(&[&URGENT[..], &["--preempt", "--dry-run"]].concat());
    assert_eq!(proposed["victims"][0]["name"], "low");

    let said = server.fails(2, &[&URGENT[..], &["--preempt"]].concat());
    assert!(said.contains("release 1 instance to make room"), "{said}");
    let names = |server: &Server| server.said(&["claims", "list"]);
    assert!(names(&server).contains("low"), "nobody was asked, so nobody was released");

    let placed = server.said(&[&URGENT[..], &["--preempt", "--yes"]].concat());
    assert!(placed.contains("placed 1 instance on 1 node"), "{placed}");
    let listed = names(&server);
    assert!(listed.contains("urgent") && !listed.contains("low"), "{listed}");
}

#[test]
fn with_room_nobody_is_asked_and_without_lower_priority_nobody_goes() {
    let server = full();
    let small = ["place", "--tenant", "acme", "--memory", "1GiB", "--preempt"];
    assert!(server.said(&small).contains("placed 1 instance"));
    let equal = ["place", "--tenant", "acme", "--memory", "20GiB", "--preempt", "--yes"];
    let said = server.fails(3, &equal);
    assert!(said.contains("No instances of lower priority"), "{said}");
    assert!(server.said(&["claims", "list"]).contains("low"));
}
