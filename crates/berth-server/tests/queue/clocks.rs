//! Two servers on one PostgreSQL, and the clock of one of them is wrong.

use std::time::Duration;

use berth_api::{Heartbeat, Node, PlaceRequest, Placed, Role, Ticket, TicketState};
use berth_client::{Client, PlaceOutcome};
use berth_engine::{NodeId, NodeState};
use berth_ledger::Backend;
use berth_pgtemp::TempPostgres;
use serde_json::{Value, json};

use crate::child::{ChildServer, LOST_AFTER};
use crate::common::Server;
use crate::{WHOLE_NODE_MIB, waiting_request};

/// How long it is watched that nothing happens: longer than nodes may be silent.
const WATCHED: Duration = Duration::from_secs(16);

async fn place(client: &Client, id: &str, memory_mib: u32) -> Result<Placed, Box<Ticket>> {
    let request: PlaceRequest =
        serde_json::from_value(waiting_request("acme", id, memory_mib)).unwrap();
    match client.place(&request).await.unwrap() {
        PlaceOutcome::Placed(placed) => Ok(placed),
        PlaceOutcome::Waiting(ticket) => Err(ticket),
    }
}

/// Has the node's agent speak to one server for a while; the other reads of it in the ledger.
async fn keep_alive(client: &Client, time: Duration) {
    let began = tokio::time::Instant::now();
    while began.elapsed() < time {
        client.heartbeat(&NodeId::new("n1"), &Heartbeat::default()).await.unwrap();
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
}

async fn changes_of_state(client: &Client) -> Vec<Value> {
    let events: Value = client.get("/v1/events", &[("limit", "1000")]).await.unwrap();
    let events = events["items"].as_array().unwrap().iter();
    events.filter(|event| event["kind"] == "node.state").cloned().collect()
}

/// What the metric says of a server's clock, in seconds.
async fn shown_offset_s(client: &Client) -> f64 {
    let metrics = client.get_text("/metrics").await.unwrap();
    let line = metrics.lines().find_map(|line| line.strip_prefix("berth_clock_offset_seconds "));
    line.unwrap_or_else(|| panic!("no such metric: {metrics}")).trim().parse().unwrap()
}

/// What must hold whichever way the clock is wrong.
async fn check_with_clock(offset_s: i64) {
    let postgres = TempPostgres::start(berth_pgtemp::Options::quick()).unwrap();
    let url = postgres.create_database("berth").unwrap();
    let backend = Backend::parse(&url).unwrap();
    let server = Server::start_with(|options| {
        options.backend = backend;
        options.settings.lost_after = LOST_AFTER;
    })
    .await;
    server.add_node("n1").await;
    let token = server.token(Role::Admin).await;
    let Some(wrong_server) = ChildServer::start_with_clock(&url, offset_s) else {
        // `make test` installs it.
        assert!(berth_faults::setting("CI").is_none(), "libfaketime is not installed");
        println!("SKIPPED, nothing was tested: libfaketime is not installed");
        return;
    };
    let (right, wrong) = (&server.client(&token), &wrong_server.client(&token));
    keep_alive(right, Duration::from_millis(1)).await;
    let full = place(right, "full", WHOLE_NODE_MIB).await.unwrap();
    // Of each server one ticket that the other judges.
    let by_right = place(right, "by-right", 4096).await.unwrap_err();
    let by_wrong = place(wrong, "by-wrong", 4096).await.unwrap_err();
    keep_alive(right, WATCHED).await;
    keep_alive(wrong, WATCHED).await;
    assert_eq!(changes_of_state(right).await, Vec::<Value>::new(), "the node flaps");
    for client in [right, wrong] {
        let node: Node = client.get("/v1/nodes/n1", &[]).await.unwrap();
        assert_eq!(node.facts.state, NodeState::Active);
        for ticket in [&by_right, &by_wrong] {
            let path = format!("/v1/queue/{}", ticket.id);
            let ticket: Ticket = client.get(&path, &[]).await.unwrap();
            assert_eq!(ticket.state, TicketState::Waiting, "{ticket:?}");
        }
    }
    let path = format!("/v1/claims/{}/release", full.instances[0].instance);
    wrong.post::<_, Value>(&path, &json!({"confirmed": true})).await.unwrap();
    for (ticket, id) in [(&by_right, "by-right"), (&by_wrong, "by-wrong")] {
        let path = format!("/v1/queue/{}", ticket.id);
        let ticket: Ticket = right.get(&path, &[("wait_s", "30")]).await.unwrap();
        assert_eq!(ticket.state, TicketState::Granted, "{ticket:?}");
        let granted = ticket.placed.unwrap().instances;
        for client in [right, wrong] {
            assert_eq!(place(client, id, 4096).await.unwrap().instances, granted);
            // No server refuses what another granted, or what it granted itself.
            let instance = &granted[0];
            client.renew(instance.instance, instance.fence.unwrap(), Some(60)).await.unwrap();
        }
    }
    let claims: Value = right.get("/v1/claims", &[]).await.unwrap();
    assert_eq!(claims["items"].as_array().unwrap().len(), 2, "granted twice: {claims}");
    let shown = shown_offset_s(right).await;
    assert!(shown.abs() < 1.0, "{shown} s with a clock that is right");
    let shown = shown_offset_s(wrong).await;
    let expected = (-offset_s - 1) as f64..(-offset_s + 1) as f64;
    assert!(expected.contains(&shown), "{shown} s, but the clock is {offset_s} s ahead");
    let log = wrong_server.log();
    let warnings = log.matches("clock differs from the database").count();
    assert_eq!(warnings, 1, "said once: {log}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_an_hour_ahead_expires_no_ticket_loses_no_node_and_grants_nothing_twice() {
    check_with_clock(3600).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_an_hour_behind_expires_no_ticket_loses_no_node_and_grants_nothing_twice() {
    check_with_clock(-3600).await;
}
