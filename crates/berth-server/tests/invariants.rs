//! What cannot happen: it is counted, an operator is told, and what is stored against the rules goes no further.

#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

mod common;

use berth_api::Role;
use berth_ledger::invariants::expect_violations;
use berth_ledger::{Answer, Expect, Op, Outcome, Text, invariant};
use common::{Server, wait_until};
use serde_json::{Value, json};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_violation_is_in_the_metrics_and_among_the_warnings() {
    let server = Server::start().await;
    let viewer = server.token(Role::Viewer).await;
    let metric = "# TYPE berth_invariant_violations_total counter";
    let metrics = server.get(&viewer, "/metrics").await.expect(200).text;
    assert!(metrics.contains(metric), "{metrics}");
    assert!(!metrics.contains("berth_invariant_violations_total{"), "{metrics}");
    let expected = expect_violations("test_of_the_server");
    for secret in ["one", "two"] {
        assert!(!invariant!(secret.is_empty(), "test_of_the_server", secret));
    }
    assert_eq!(expected.count(), 2);
    let metrics = server.get(&viewer, "/metrics").await.expect(200).text;
    let series = "berth_invariant_violations_total{invariant=\"test_of_the_server\"} 2";
    assert!(metrics.contains(series), "{metrics}");
    let status = server.get(&viewer, "/v1/status").await.expect(200).json();
    let warnings: Vec<&Value> = status["warnings"].as_array().unwrap().iter().collect();
    let text = "invariant test_of_the_server was violated 2 times since the server started";
    assert!(warnings.iter().any(|it| it["text"] == text), "{status:#}");
    assert!(!status.to_string().contains("\\\"two\\\""), "its context is for the log alone");
    server.stop().await;
}

/// Stores a document as no server would, and waits until it is known.
async fn store(server: &Server, kind: &str, id: &str, body: &Value, is_known: impl Fn() -> bool) {
    let (kind, id, body) = (Text::from(kind), Text::from(id), body.to_string());
    let op = Op::PutDocument { kind, id, body, expect: Expect::Any };
    let answer = server.control.submit(op).await.unwrap();
    assert_eq!(answer, Answer::Outcome(Outcome::Done));
    wait_until("the document is known", async || is_known()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_ticket_that_is_stored_as_closed_is_not_closed_again() {
    let server = Server::start().await;
    let operator = server.token(Role::Operator).await;
    let id = "0190f1a0-0000-7000-8000-000000000001";
    for state in ["granted", "expired", "cancelled", "refused"] {
        let time = "2026-01-01T00:00:00Z";
        let ticket = json!({"id": id, "state": state, "tenant": "acme", "since": time,
            "deadline": "2199-01-01T00:00:00Z", "tries": 0,
            "request": {"tenant": "acme", "request_id": "r", "instances": []}});
        let record = json!({"ticket": ticket, "actor": "test", "origin": "test"});
        let queue = &server.control.queue;
        let is_known = || {
            let known = queue.tickets.get(id);
            known.is_some_and(|it| serde_json::to_value(it.value.ticket.state).unwrap() == state)
        };
        store(&server, "ticket", id, &record, is_known).await;
        let path = format!("/v1/queue/{id}");
        server.delete(&operator, &path).await.problem(409, "not_waiting");
        assert_eq!(server.get(&operator, &path).await.expect(200).json()["state"], state);
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_migration_that_is_stored_as_over_goes_no_further() {
    let server = Server::start().await;
    let operator = server.token(Role::Operator).await;
    for node in ["n1", "n2"] {
        server.add_node(node).await;
    }
    let agent = server.agent("n2").await;
    let cases = [("done", 409, 200), ("failed", 200, 409), ("cancelled", 200, 409)];
    for (number, (state, cancelled, switched)) in cases.into_iter().enumerate() {
        let id = format!("0190f1a0-0000-7000-8000-00000000000{number}");
        let time = server.control.now();
        let record = json!({"instance": id, "owner": "acme", "source": "n1", "target": "n2", "state": state,
            "reason": "asked", "cost": 0, "frees": {"cpu_milli": 1, "memory_mib": 1}, "fence": 1,
            "since": time, "changed_at": time});
        let migrations = &server.control.moves.migrations;
        store(&server, "migration", &id, &record, || migrations.get(&id).is_some()).await;
        let before = migrations.get(&id).unwrap().value.clone();
        let cancel = format!("/v1/migrations/{id}/cancel");
        server.post(&operator, &cancel, &json!({})).await.expect(cancelled);
        for (step, status) in [("copying", 200), ("switched", switched), ("failed", 200)] {
            let report = json!({"id": id, "step": step, "copied_permille": 500});
            server.post(&agent, "/v1/nodes/n2/migrations", &report).await.expect(status);
        }
        assert_eq!(migrations.get(&id).unwrap().value, before, "{state}");
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_volume_move_that_is_stored_as_over_goes_no_further() {
    let server = Server::start().await;
    let operator = server.token(Role::Operator).await;
    for node in ["n1", "n2"] {
        server.add_node(node).await;
    }
    let agent = server.agent("n2").await;
    // A dry run is never stored, and what was stored all the same is no move.
    for state in ["planned", "done", "failed", "cancelled"] {
        let volume = format!("data-{state}");
        let body = json!({"tenant": "acme", "home": "n1"});
        server.put(&operator, &format!("/v1/volumes/{volume}"), &body).await.expect(201);
        let time = server.control.now();
        let record = json!({"from": "n1", "to": "n2", "state": state, "round": 1, "since": time,
            "changed_at": time});
        let moves = &server.control.moves.volume_moves;
        store(&server, "volume_move", &volume, &record, || moves.get(&volume).is_some()).await;
        let before = moves.get(&volume).unwrap().value.clone();
        let cancel = format!("/v1/volumes/{volume}/move/cancel");
        server.post(&operator, &cancel, &json!({})).await.problem(409, "not_moving");
        for step in ["progress", "copied", "synced", "failed"] {
            let report = json!({"volume": volume, "step": step, "copied_permille": 500});
            server.post(&agent, "/v1/nodes/n2/volume-moves", &report).await.expect(200);
        }
        assert_eq!(moves.get(&volume).unwrap().value, before, "{state}");
    }
    server.stop().await;
}
