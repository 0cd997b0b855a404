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

/// A server that follows late, when one has a ticket for more than is free, and there is room for less.
async fn with_ticket_elsewhere(check: impl AsyncFn(&TwoServers, (&str, &str), &Value)) {
    let servers = TwoServers::start(Duration::from_secs(3600)).await;
    let TwoServers { first, late, .. } = &servers;
    let (one, other) = (first.token(Role::Operator).await, late.token(Role::Operator).await);
    let half = json!({"tenant": "full", "lease_s": 3600, "request_id": "half",
        "instances": [{"resources": {"memory_mib": WHOLE_NODE_MIB / 2}}]});
    let placed = first.post(&one, "/v1/placements", &half).await.expect(201).json();
    let ticket = waiting_request("acme", "a", WHOLE_NODE_MIB);
    let ticket = first.post(&one, "/v1/placements", &ticket).await.expect(202).json();
    check(&servers, (&one, &other), &ticket).await;
    // What was acknowledged is granted, whatever was asked for under its id meanwhile.
    free(first, &one, &text(&placed["instances"][0]["instance"])).await;
    wait_for_state(first, &one, &text(&ticket["id"]), "granted").await;
}

fn at_once(request_id: &str, memory_mib: u32, mode: &str) -> Value {
    let mut request = waiting_request("acme", request_id, memory_mib);
    (request["mode"], request["wait_s"]) = (json!(mode), Value::Null);
    if mode == "at_least" {
        request["at_least"] = json!(1);
    }
    request
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_late_server_grants_nothing_else_under_the_id_of_a_ticket_in_any_mode() {
    with_ticket_elsewhere(async |servers, (_, token), _| {
        for mode in ["all_or_nothing", "best_effort", "at_least", "wait"] {
            let other = match mode {
                "wait" => waiting_request("acme", "a", 4096),
                _ => at_once("a", 4096, mode),
            };
            let answer = servers.late.post(token, "/v1/placements", &other).await;
            answer.problem(422, REUSED);
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_server_preempts_under_the_id_of_a_ticket() {
    with_ticket_elsewhere(async |servers, (one, other), _| {
        let apply = json!({"request": at_once("a", 4096, "all_or_nothing")});
        for (server, token) in [(&servers.first, one), (&servers.late, other)] {
            let answer = server.post(token, "/v1/placements/preemption/apply", &apply).await;
            answer.problem(422, REUSED);
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_late_server_gives_the_ticket_of_another_and_the_end_it_came_to() {
    with_ticket_elsewhere(async |servers, (one, other), ticket| {
        let request = waiting_request("acme", "a", WHOLE_NODE_MIB);
        let again = servers.late.post(other, "/v1/placements", &request).await.expect(202).json();
        assert_eq!(again["id"], ticket["id"]);
        let small = waiting_request("acme", "b", WHOLE_NODE_MIB);
        let small = servers.first.post(one, "/v1/placements", &small).await.expect(202).json();
        let path = format!("/v1/queue/{}", text(&small["id"]));
        servers.first.delete(one, &path).await.expect(204);
        let small = waiting_request("acme", "b", WHOLE_NODE_MIB);
        let again = servers.late.post(other, "/v1/placements", &small).await.expect(202).json();
        assert_eq!(again["state"], "cancelled", "{again}");
    })
    .await;
}

/// As if tickets had been closed two hours ago.
fn age_tickets(path: &Path) {
    let ledger = rusqlite::Connection::open(path).unwrap();
    let sql = "SELECT id, body FROM document WHERE kind = 'ticket'";
    let row = |row: &rusqlite::Row<'_>| Ok((row.get(0)?, row.get(1)?));
    let tickets: Vec<(String, String)> =
        ledger.prepare(sql).unwrap().query_map([], row).unwrap().map(Result::unwrap).collect();
    assert!(!tickets.is_empty());
    for (id, body) in tickets {
        let mut body: Value = serde_json::from_str(&body).unwrap();
        let deadline = jiff::Timestamp::now() - jiff::SignedDuration::from_hours(2);
        body["ticket"]["deadline"] = json!(deadline.to_string());
        let sql = "UPDATE document SET body = ?2 WHERE kind = 'ticket' AND id = ?1";
        assert_eq!(ledger.execute(sql, (id, body.to_string())).unwrap(), 1);
    }
}

#[tokio::test]
async fn the_answer_stays_the_same_when_the_ticket_itself_is_forgotten() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ledger.db");
    let server = reopen(&path).await;
    let token = server.token(Role::Operator).await;
    server.add_node("n1").await;
    let full = fill(&server, &token).await;
    let mut tickets = Vec::new();
    for id in ["granted", "cancelled", "expired"] {
        let mut request = waiting_request("acme", id, 4096);
        request["wait_s"] = json!(if id == "expired" { 1 } else { 600 });
        let ticket = server.post(&token, "/v1/placements", &request).await.expect(202).json();
        tickets.push((id, request, text(&ticket["id"])));
    }
    server.delete(&token, &format!("/v1/queue/{}", tickets[1].2)).await.expect(204);
    wait_for_state(&server, &token, &tickets[2].2, "expired").await;
    free(&server, &token, &full).await;
    let granted = wait_for_state(&server, &token, &tickets[0].2, "granted").await;
    server.stop().await;
    age_tickets(&path);

    let server = reopen(&path).await;
    for (_, _, ticket) in &tickets {
        let path = format!("/v1/queue/{ticket}");
        crate::common::wait_until("the ticket is forgotten", async || {
            server.get(&token, &path).await.status == 404
        })
        .await;
    }
    // Twice, since an answer must not depend on having been asked for.
    for _ in 0..2 {
        for (id, request, ticket) in &tickets {
            let reply = server.post(&token, "/v1/placements", request).await;
            if *id == "granted" {
                let again = reply.expect(201).json();
                assert_eq!(again["instances"], granted["placed"]["instances"]);
                continue;
            }
            let again = reply.expect(202).json();
            assert_eq!((&again["id"], &again["state"]), (&json!(ticket), &json!(id)));
            assert_eq!(again["request"]["request_id"], json!(id));
        }
    }
    for (id, _, _) in &tickets {
        for other in [waiting_request("acme", id, 1), at_once(id, 1, "all_or_nothing")] {
            server.post(&token, "/v1/placements", &other).await.problem(422, REUSED);
        }
    }
    server.stop().await;
}
