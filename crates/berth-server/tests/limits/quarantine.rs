//! What was stored before there was a limit: a server starts on it, says so, and goes on with
//! everything else.

use std::path::Path;

use berth_api::Role;
use berth_ledger::{Answer, Backend, Expect, Ledger, Op, Options, Outcome, Text, Workload};
use serde_json::{Value, json};

use crate::common::{Server, wait_until};

/// A server on a database that outlives it.
async fn server_on(folder: &Path) -> Server {
    let backend = Backend::Sqlite(folder.join("ledger.db"));
    Server::start_with(move |options| options.backend = backend).await
}

fn networks(count: usize) -> Value {
    (0..count).map(|number| json!([format!("n{number}")])).collect()
}

/// Stores a workload as an earlier version would have, without a look at its limits.
async fn store_workload(server: &Server, name: &str, template: &Value) {
    let body = json!({"revision": 1, "template": template});
    let (tenant, name) = ("acme".to_owned(), name.to_owned());
    let workload = Workload { tenant, name, revision: 1, replicas: 2, body: body.to_string() };
    let op = Op::PutWorkload { workload, expect: Expect::Absent };
    let answer = server.control.submit(op).await.unwrap();
    assert_eq!(answer, Answer::Outcome(Outcome::Done));
}

async fn workload(server: &Server, token: &str, name: &str) -> Value {
    server.get(token, &format!("/v1/workloads/acme/{name}")).await.expect(200).json()
}

async fn wait_for_reason(server: &Server, token: &str, name: &str, code: &Value) {
    wait_until(&format!("{name} is {code}"), async || {
        workload(server, token, name).await["status"]["reason"]["code"] == *code
    })
    .await;
}

fn spec(replicas: u32) -> Value {
    json!({"replicas": replicas, "template": {"resources": {"memory_mib": 64}}})
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stored_workload_beyond_a_limit_is_quarantined_until_it_is_stored_again_or_removed() {
    let folder = tempfile::tempdir().unwrap();
    let before = server_on(folder.path()).await;
    before.add_node("n1").await;
    let resources = json!({"memory_mib": 64});
    store_workload(
        &before,
        "lists",
        &json!({"resources": resources, "networks": networks(20_000)}),
    )
    .await;
    let rules: Vec<String> = (0..200).map(|number| format!("role!=/x{number}/")).collect();
    store_workload(&before, "rules", &json!({"resources": resources, "affinity": rules})).await;
    before.stop().await;

    let server = server_on(folder.path()).await;
    let operator = server.token(Role::Operator).await;
    let quarantined = json!("quarantined");
    for (name, field) in [("lists", "template.networks"), ("rules", "template.affinity")] {
        wait_for_reason(&server, &operator, name, &quarantined).await;
        let found = workload(&server, &operator, name).await;
        assert_eq!(found["status"]["state"], "degraded", "{found}");
        assert_eq!(found["status"]["placed"], 0, "{found}");
        let message = found["status"]["reason"]["message"].as_str().unwrap();
        assert!(message.contains(field), "{message}");
        let events = server.get(&operator, "/v1/events?kinds=env&limit=100").await;
        let events = events.expect(200).text;
        assert!(events.contains(field), "{events}");
    }
    // Others go on.
    server.put(&operator, "/v1/workloads/acme/web", &spec(2)).await.expect(201);
    wait_until("web is placed", async || {
        workload(&server, &operator, "web").await["status"]["placed"] == 2
    })
    .await;
    // It cannot be changed in part, since it is not known as a whole.
    let scale = json!({"replicas": 1});
    let path = "/v1/workloads/acme/lists/scale";
    server.post(&operator, path, &scale).await.problem(409, "quarantined");
    let restart = json!({"action": "restart"});
    let path = "/v1/workloads/acme/lists/rollout";
    server.post(&operator, path, &restart).await.problem(409, "quarantined");

    server.put(&operator, "/v1/workloads/acme/lists", &spec(1)).await.expect(200);
    wait_for_reason(&server, &operator, "lists", &Value::Null).await;
    wait_until("the workload is placed", async || {
        workload(&server, &operator, "lists").await["status"]["placed"] == 1
    })
    .await;
    let found = workload(&server, &operator, "lists").await;
    assert_eq!(found["spec"]["template"]["resources"]["memory_mib"], 64, "{found}");
    let reply = server.delete(&operator, "/v1/workloads/acme/rules").await;
    assert!(reply.status.is_success(), "{}", reply.text);
    wait_until("the other is gone", async || {
        server.get(&operator, "/v1/workloads/acme/rules").await.status.as_u16() == 404
    })
    .await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_an_import_brings_beyond_a_limit_is_quarantined_too() {
    let before = Server::start().await;
    before.add_node("n1").await;
    let groups: Vec<String> = (0..60_000).map(|number| format!("g{number}")).collect();
    let template = json!({"resources": {"memory_mib": 64}, "groups": groups});
    store_workload(&before, "web", &template).await;
    let folder = tempfile::tempdir().unwrap();
    let copy = Backend::Sqlite(folder.path().join("ledger.db"));
    let ledger = before.control.ledger.clone();
    let copied = tokio::task::spawn_blocking(move || {
        let mut lines = Vec::new();
        ledger.export(&mut lines).unwrap();
        let copy = Ledger::open(copy, Options::default()).unwrap();
        copy.import(&mut lines.as_slice()).unwrap();
    });
    copied.await.unwrap();
    before.stop().await;
    let server = server_on(folder.path()).await;
    let operator = server.token(Role::Operator).await;
    wait_for_reason(&server, &operator, "web", &json!("quarantined")).await;
    server.delete(&operator, "/v1/workloads/acme/web").await.expect(204);
    server.stop().await;
}

/// A ticket as it is stored.
fn ticket(id: &str, instance: &Value) -> Value {
    let mut instance = instance.clone();
    instance["resources"] = json!({"memory_mib": 64});
    let request =
        json!({"request_id": id, "tenant": "acme", "mode": "wait", "instances": [instance]});
    let ticket = json!({
        "id": id, "state": "waiting", "tenant": "acme", "since": "2026-01-01T00:00:00Z",
        "deadline": "2200-01-01T00:00:00Z", "tries": 0, "request": request,
    });
    json!({"ticket": ticket, "actor": "test", "origin": "test"})
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiting_request_beyond_a_limit_is_closed_with_the_reason_and_others_are_granted() {
    let folder = tempfile::tempdir().unwrap();
    let before = server_on(folder.path()).await;
    let rules: Vec<String> = (0..200).map(|number| format!("role!=x{number}")).collect();
    let tickets = [
        ("lists", json!({"networks": networks(12_000)})),
        ("rules", json!({"affinity": rules})),
        ("small", json!({"tags": {"note": "two\nlines"}})),
    ];
    for (id, instance) in tickets {
        let body = ticket(id, &instance).to_string();
        let (kind, id) = (Text::from("ticket"), Text::from(id));
        let op = Op::PutDocument { kind, id, body, expect: Expect::Absent };
        let answer = before.control.submit(op).await.unwrap();
        assert_eq!(answer, Answer::Outcome(Outcome::Done));
    }
    before.stop().await;

    let server = server_on(folder.path()).await;
    let operator = server.token(Role::Operator).await;
    server.add_node("n1").await;
    let read =
        async |id: &str| server.get(&operator, &format!("/v1/queue/{id}")).await.expect(200).json();
    for id in ["lists", "rules"] {
        wait_until("it is closed", async || read(id).await["state"] != "waiting").await;
        let closed = read(id).await;
        assert_eq!(closed["state"], "refused", "{closed}");
        assert_eq!(closed["problem"]["code"], "quarantined", "{closed}");
        assert_eq!(closed["request"]["instances"], json!([]), "{closed}");
    }
    let events = server.get(&operator, "/v1/events?kinds=ticket.quarantined").await.expect(200);
    let events = events.json();
    for (id, what) in [("lists", "networks"), ("rules", "affinity")] {
        let found: Vec<&Value> = events["items"].as_array().unwrap().iter().collect();
        let of_ticket: Vec<_> =
            found.iter().filter(|event| event["body"]["ticket"] == id).collect();
        let [event] = of_ticket.as_slice() else { panic!("one event of {id}: {events}") };
        assert_eq!(event["body"]["tenant"], "acme", "{event}");
        let excess = event["body"]["excess"].as_str().unwrap();
        assert!(excess.contains(what), "{excess}");
    }
    // What is only no longer accepted in a text harms nobody.
    wait_until("the other is granted", async || read("small").await["state"] == "granted").await;
    // It is in the tenant's own log, and said once.
    let tenant = server.tenant("acme").await;
    let mine = server.get(&tenant, "/v1/events?kinds=ticket.quarantined").await.expect(200);
    assert_eq!(mine.json()["items"].as_array().unwrap().len(), 2);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_active_policy_beyond_a_limit_is_replaced_by_the_one_of_the_start() {
    let folder = tempfile::tempdir().unwrap();
    let before = server_on(folder.path()).await;
    before.add_node("n1").await;
    before.stop().await;
    // The same policy, made long by white space.
    let database = rusqlite::Connection::open(folder.path().join("ledger.db")).unwrap();
    let padding = " ".repeat(1 << 20);
    let sql = "UPDATE policy SET body = body || ?1, name = 'mine', hash = 'long' WHERE active";
    assert_eq!(database.execute(sql, [&padding]).unwrap(), 1);
    assert_eq!(database.execute("UPDATE policy_history SET hash = 'long'", ()).unwrap(), 1);
    drop(database);

    let server = server_on(folder.path()).await;
    let operator = server.token(Role::Operator).await;
    let active = server.get(&operator, "/v1/policies/active").await.expect(200).json();
    assert_eq!((&active["name"], &active["active"]), (&json!("balanced"), &json!(true)));
    assert_ne!(active["hash"], "long");
    let request = json!({"tenant": "acme", "instances": [{"resources": {"memory_mib": 64}}]});
    server.post(&operator, "/v1/placements", &request).await.expect(201);
    let events = server.get(&operator, "/v1/events?kinds=policy.quarantined").await.expect(200);
    let event = &events.json()["items"][0]["body"];
    assert_eq!((&event["name"], &event["hash"]), (&json!("mine"), &json!("long")), "{event}");
    assert_eq!(event["limit"], 512 * 1024);
    assert!(event["bytes"].as_u64().unwrap() > 1 << 20, "{event}");
    server.stop().await;

    // It is said until another policy is put in force, also by servers that start later.
    let server = server_on(folder.path()).await;
    let operator = server.token(Role::Operator).await;
    let status = server.get(&operator, "/v1/status").await.expect(200).json();
    let warning = &status["warnings"][0];
    let text = warning["text"].as_str().unwrap();
    assert!(
        text.starts_with("policy mine is no longer in force") && text.contains("524288"),
        "{text}"
    );
    server.post(&operator, "/v1/policies/pack/activate", &json!({})).await.expect(200);
    server.control.wait_for_read_your_writes().await;
    let status = server.get(&operator, "/v1/status").await.expect(200).json();
    assert_eq!(status["warnings"].as_array().map_or(0, Vec::len), 0, "{status}");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_ledger_refuses_what_no_server_could_load() {
    let server = Server::start().await;
    let body = format!("{{\"x\":\"{}\"}}", "x".repeat(1 << 20));
    let (tenant, name) = ("acme".to_owned(), "web".to_owned());
    let workload = Workload { tenant, name, revision: 1, replicas: 1, body };
    let op = Op::PutWorkload { workload, expect: Expect::Absent };
    let answer = server.control.submit(op).await.unwrap();
    let Answer::Outcome(Outcome::Impossible(why)) = answer else { panic!("{answer:?}") };
    assert!(why.contains("body has") && why.contains("at most 1048576 bytes"), "{why}");
    let mut facts = berth_engine::NodeFacts::new("n1", berth_engine::Amounts::default());
    facts.labels.insert("a\u{7}".to_owned(), String::new());
    let answer = server.control.submit(Op::put_node(facts)).await.unwrap();
    let Answer::Outcome(Outcome::Impossible(why)) = answer else { panic!("{answer:?}") };
    assert!(why.contains("control character U+0007"), "{why}");
    server.stop().await;
}
