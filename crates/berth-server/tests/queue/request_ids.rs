//! A request id in mode `wait` means one thing: at every server, before and after a restart, and
//! whatever became of the request.

use std::path::Path;
use std::time::Duration;

use berth_api::Role;
use berth_ledger::Backend;
use berth_pgtemp::TempPostgres;
use serde_json::{Value, json};

use crate::common::Server;
use crate::{WHOLE_NODE_MIB, fill, free, text, wait_for_state, waiting_request};

const REUSED: &str = "request_id_reused";

/// Two servers on one PostgreSQL, the second of which reads the log only when it has to.
struct TwoServers {
    first: Server,
    late: Server,
    _postgres: TempPostgres,
}

impl TwoServers {
    async fn start(follow_every: Duration) -> Self {
        let postgres = TempPostgres::start(berth_pgtemp::Options::quick()).unwrap();
        let url = postgres.create_database("berth").unwrap();
        let open = |every: Option<Duration>| {
            let backend = Backend::parse(&url).unwrap();
            Server::start_with(move |options| {
                options.backend = backend;
                options.placer.follow_every = every.unwrap_or(options.placer.follow_every);
            })
        };
        let first = open(None).await;
        first.add_node("n1").await;
        Self { first, late: open(Some(follow_every)).await, _postgres: postgres }
    }
}

/// A server on this file, which an earlier server may have left.
pub(crate) async fn reopen(path: &Path) -> Server {
    let backend = Backend::Sqlite(path.to_owned());
    Server::start_with(move |options| options.backend = backend).await
}

#[tokio::test]
async fn another_body_is_refused_whatever_became_of_the_first_and_in_every_mode() {
    let server = Server::start().await;
    let token = server.token(Role::Operator).await;
    server.add_node("n1").await;
    let full = fill(&server, &token).await;
    let request = waiting_request("acme", "a", 4096);
    let other = waiting_request("acme", "a", 8192);
    let mut other_at_once = other.clone();
    (other_at_once["mode"], other_at_once["wait_s"]) = (json!("all_or_nothing"), Value::Null);
    let ticket = server.post(&token, "/v1/placements", &request).await.expect(202).json();
    for other in [&other, &other_at_once] {
        server.post(&token, "/v1/placements", other).await.problem(422, REUSED);
    }
    // Only what is asked for counts, as in other modes, and another tenant's ids are its own.
    let mut impatient = request.clone();
    impatient["wait_s"] = json!(30);
    let again = server.post(&token, "/v1/placements", &impatient).await.expect(202).json();
    assert_eq!(again["id"], ticket["id"]);
    let mut spelled_out = request.clone();
    spelled_out["instances"][0]["count"] = json!(1);
    let again = server.post(&token, "/v1/placements", &spelled_out).await.expect(202).json();
    assert_eq!(again["id"], ticket["id"]);
    let foreign = waiting_request("other", "a", 8192);
    let foreign = server.post(&token, "/v1/placements", &foreign).await.expect(202).json();
    assert_ne!(foreign["id"], ticket["id"]);

    free(&server, &token, &full).await;
    wait_for_state(&server, &token, &text(&ticket["id"]), "granted").await;
    for other in [&other, &other_at_once] {
        server.post(&token, "/v1/placements", other).await.problem(422, REUSED);
    }
    let huge = waiting_request("acme", "b", WHOLE_NODE_MIB);
    let huge = server.post(&token, "/v1/placements", &huge).await.expect(202).json();
    let path = format!("/v1/queue/{}", text(&huge["id"]));
    server.delete(&token, &path).await.expect(204);
    let other = waiting_request("acme", "b", 1);
    server.post(&token, "/v1/placements", &other).await.problem(422, REUSED);
    server.stop().await;
}

#[tokio::test]
async fn what_was_granted_at_once_is_not_queued_when_it_is_retried_while_others_wait() {
    let server = Server::start().await;
    let token = server.token(Role::Operator).await;
    server.add_node("n1").await;
    let request = waiting_request("acme", "first", 4096);
    let placed = server.post(&token, "/v1/placements", &request).await.expect(201).json();
    let huge = waiting_request("other", "huge", WHOLE_NODE_MIB);
    server.post(&token, "/v1/placements", &huge).await.expect(202);
    let again = server.post(&token, "/v1/placements", &request).await.expect(201).json();
    assert_eq!(again["instances"], placed["instances"]);
    let other = waiting_request("acme", "first", 8192);
    server.post(&token, "/v1/placements", &other).await.problem(422, REUSED);
    let queue = server.get(&token, "/v1/queue").await.expect(200);
    assert_eq!(queue.each("tenant"), [json!("other")]);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_servers_asked_at_once_give_one_ticket() {
    let servers = TwoServers::start(Duration::from_millis(50)).await;
    let TwoServers { first, late, .. } = &servers;
    let (one, other) = (first.token(Role::Operator).await, late.token(Role::Operator).await);
    fill(first, &one).await;
    for number in 0..20 {
        let request = waiting_request("acme", &format!("r{number}"), 4096);
        let (a, b) = tokio::join!(
            first.post(&one, "/v1/placements", &request),
            late.post(&other, "/v1/placements", &request),
        );
        assert_eq!(a.expect(202).json()["id"], b.expect(202).json()["id"], "request {number}");
    }
    let queue = first.get(&one, "/v1/queue?limit=100").await.expect(200);
    assert_eq!(queue.each("id").len(), 20, "{}", queue.text);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_servers_asked_at_once_for_different_things_refuse_one_of_them() {
    let servers = TwoServers::start(Duration::from_millis(50)).await;
    let TwoServers { first, late, .. } = &servers;
    let (one, other) = (first.token(Role::Operator).await, late.token(Role::Operator).await);
    fill(first, &one).await;
    for number in 0..10 {
        let id = format!("r{number}");
        let (small, large) =
            (waiting_request("acme", &id, 4096), waiting_request("acme", &id, 8192));
        let (a, b) = tokio::join!(
            first.post(&one, "/v1/placements", &small),
            late.post(&other, "/v1/placements", &large),
        );
        let mut statuses = [a.status.as_u16(), b.status.as_u16()];
        statuses.sort_unstable();
        assert_eq!(statuses, [202, 422], "request {number}: {} {}", a.text, b.text);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_follows_late_knows_every_acknowledged_ticket() {
    let servers = TwoServers::start(Duration::from_secs(3600)).await;
    let TwoServers { first, late, .. } = &servers;
    let (one, other) = (first.token(Role::Operator).await, late.token(Role::Operator).await);
    let full = fill(first, &one).await;
    let request = waiting_request("acme", "a", 4096);
    let ticket = first.post(&one, "/v1/placements", &request).await.expect(202).json();
    let path = format!("/v1/queue/{}", text(&ticket["id"]));
    let shown = late.get(&other, &path).await.expect(200).json();
    assert_eq!((&shown["id"], &shown["state"]), (&ticket["id"], &json!("waiting")));
    let again = late.post(&other, "/v1/placements", &request).await.expect(202).json();
    assert_eq!(again["id"], ticket["id"]);
    let different = waiting_request("acme", "a", 8192);
    late.post(&other, "/v1/placements", &different).await.problem(422, REUSED);

    free(first, &one, &full).await;
    let granted = wait_for_state(first, &one, &text(&ticket["id"]), "granted").await;
    // What one server acknowledged as granted no other calls waiting.
    let placed = late.post(&other, "/v1/placements", &request).await.expect(201).json();
    assert_eq!(placed["instances"], granted["placed"]["instances"]);
    let second = waiting_request("acme", "b", WHOLE_NODE_MIB);
    let second = first.post(&one, "/v1/placements", &second).await.expect(202).json();
    let path = format!("/v1/queue/{}", text(&second["id"]));
    late.delete(&other, &path).await.expect(204);
    wait_for_state(first, &one, &text(&second["id"]), "cancelled").await;
}

#[tokio::test]
async fn the_answer_stays_the_same_over_restarts_and_after_the_end() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ledger.db");
    let server = reopen(&path).await;
    let token = server.token(Role::Operator).await;
    server.add_node("n1").await;
    let full = fill(&server, &token).await;
    let granted = waiting_request("acme", "granted", 4096);
    let cancelled = waiting_request("acme", "cancelled", 4096);
    let mut expired = waiting_request("acme", "expired", 4096);
    expired["wait_s"] = json!(1);
    let mut tickets = Vec::new();
    for request in [&granted, &cancelled, &expired] {
        let ticket = server.post(&token, "/v1/placements", request).await.expect(202).json();
        tickets.push(text(&ticket["id"]));
    }
    server.stop().await;

    let server = reopen(&path).await;
    for (request, id) in [&granted, &cancelled].into_iter().zip(&tickets) {
        let again = server.post(&token, "/v1/placements", request).await.expect(202).json();
        assert_eq!((&again["id"], &again["state"]), (&json!(id), &json!("waiting")));
    }
    server.delete(&token, &format!("/v1/queue/{}", tickets[1])).await.expect(204);
    wait_for_state(&server, &token, &tickets[2], "expired").await;
    free(&server, &token, &full).await;
    let placed = wait_for_state(&server, &token, &tickets[0], "granted").await["placed"].clone();
    server.stop().await;

    let server = reopen(&path).await;
    let again = server.post(&token, "/v1/placements", &granted).await.expect(201).json();
    assert_eq!(again["instances"], placed["instances"]);
    for (request, id, state) in
        [(&cancelled, &tickets[1], "cancelled"), (&expired, &tickets[2], "expired")]
    {
        let again = server.post(&token, "/v1/placements", request).await.expect(202).json();
        assert_eq!((&again["id"], &again["state"]), (&json!(id), &json!(state)));
    }
    server.stop().await;
}
