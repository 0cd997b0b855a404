//! A ticket that a server acknowledged outlives the server.

use berth_api::{PlaceRequest, Role, Ticket, TicketState};
use berth_client::{Client, PlaceOutcome};
use berth_ledger::Backend;
use serde_json::{Value, json};

use crate::child::ChildServer;
use crate::common::Server;
use crate::{WHOLE_NODE_MIB, waiting_request};

async fn place(client: &Client, id: &str, memory_mib: u32) -> PlaceOutcome {
    let request: PlaceRequest =
        serde_json::from_value(waiting_request("acme", id, memory_mib)).unwrap();
    client.place(&request).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_server_loses_no_acknowledged_ticket_and_answers_as_before() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ledger.db");
    let backend = Backend::Sqlite(path.clone());
    let first = Server::start_with(|options| options.backend = backend).await;
    let token = first.token(Role::Admin).await;
    first.add_node("n1").await;
    first.stop().await;

    let ledger = path.to_str().unwrap();
    let mut server = ChildServer::start(ledger);
    let PlaceOutcome::Placed(full) = place(&server.client(&token), "full", WHOLE_NODE_MIB).await
    else {
        panic!("it fits");
    };
    let mut tickets = Vec::new();
    for number in 0..6 {
        let outcome = place(&server.client(&token), &format!("r{number}"), 4096).await;
        let PlaceOutcome::Waiting(ticket) = outcome else { panic!("it does not fit: {outcome:?}") };
        tickets.push(ticket.id);
        if number % 3 == 2 {
            // Right after the answer, as a machine that loses its power.
            drop(server);
            server = ChildServer::start(ledger);
        }
    }
    let client = server.client(&token);
    for (number, id) in tickets.iter().enumerate() {
        let again = place(&client, &format!("r{number}"), 4096).await;
        let PlaceOutcome::Waiting(again) = again else { panic!("it does not fit: {again:?}") };
        assert_eq!((&again.id, again.state), (id, TicketState::Waiting));
    }
    let path = format!("/v1/claims/{}/release", full.instances[0].instance);
    client.post::<_, Value>(&path, &json!({"confirmed": true})).await.unwrap();
    let path = format!("/v1/queue/{}", tickets[0]);
    let granted: Ticket = client.get(&path, &[("wait_s", "30")]).await.unwrap();
    assert_eq!(granted.state, TicketState::Granted);
    drop(server);
    let server = ChildServer::start(ledger);
    let again = place(&server.client(&token), "r0", 4096).await;
    let PlaceOutcome::Placed(again) = again else { panic!("not granted: {again:?}") };
    assert_eq!(again.instances, granted.placed.unwrap().instances);
}
