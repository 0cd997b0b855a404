//! Removing a tenant with all it holds, over the API.

#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

mod common;

use std::collections::BTreeMap;
use std::time::Duration;

use berth_api::{NewToken, Role};
use berth_ledger::{Backend, Expect, Op, Text};
use berth_pgtemp::TempPostgres;
use common::{Reply, Server, new_token, wait_until};
use serde_json::{Value, json};

const ACME: &str = "/v1/tenants/acme";

/// A server on which the name of a removed tenant is free again at once.
async fn server_on(backend: Option<Backend>) -> Server {
    Server::start_with(|options| {
        options.settings.tenant_quarantine = Duration::ZERO;
        if let Some(backend) = backend {
            options.backend = backend;
        }
    })
    .await
}

/// Rows that mention a tenant, but for the records of what happened.
fn mentions(server: &Server, tenant: &str) -> Vec<String> {
    let mut export = Vec::new();
    tokio::task::block_in_place(|| server.control.ledger.export(&mut export)).unwrap();
    let records = ["[\"event_segment\"", "[\"audit\"", "[\"receipt\""];
    let lines = String::from_utf8(export).unwrap();
    let lines = lines.lines().filter(|line| line.contains(tenant));
    lines.filter(|line| !records.iter().any(|it| line.starts_with(it))).map(str::to_owned).collect()
}

async fn place(server: &Server, token: &str, fields: Value) -> Reply {
    let mut instance = json!({"resources": {"cpu_milli": 100, "memory_mib": 64}});
    let mut request = json!({"tenant": "acme"});
    for (key, value) in fields.as_object().unwrap() {
        let of = if ["mode", "wait_s", "pools"].contains(&key.as_str()) {
            &mut request
        } else {
            &mut instance
        };
        of[key] = value.clone();
    }
    request["instances"] = json!([instance]);
    server.post(token, "/v1/placements", &request).await
}

async fn put_document(server: &Server, kind: &str, id: &str, body: &Value) {
    let (kind, id, body) = (Text::from(kind), Text::from(id), body.to_string());
    server.control.submit(Op::PutDocument { kind, id, body, expect: Expect::Any }).await.unwrap();
}

/// Gives acme something of every kind. Returns the instance that runs on n1, and a token that is also
/// for another tenant.
async fn populate(server: &Server, admin: &str) -> (Value, String) {
    server.add_node("n1").await;
    server.add_node("n2").await;
    let group = json!({"tenant": "acme", "kind": "apart", "strength": "soft", "topology": "node"});
    server.put(admin, "/v1/groups/acme-g", &group).await.expect(201);
    let volume = json!({"tenant": "acme", "home": "n1"});
    server.put(admin, "/v1/volumes/acme-v", &volume).await.expect(201);
    server.put(admin, "/v1/volumes/open-v", &json!({"home": "n1"})).await.expect(201);
    let set = json!({"tenant": "acme", "volumes": ["acme-v"]});
    server.put(admin, "/v1/attachments/set", &set).await.expect(201);
    let pool = json!({"range": "10.0.0.0/24", "tenant": "acme"});
    server.put(admin, "/v1/pools/acme-p", &pool).await.expect(201);
    server.put(admin, "/v1/quotas/acme", &json!({"instances": 50})).await.expect(201);
    let secrets = "/v1/environments/prod/secrets?tenant=acme";
    server.put(admin, secrets, &json!({"version": "v1"})).await;
    let both =
        NewToken { tenants: vec!["acme".to_owned(), "beta".to_owned()], ..new_token(Role::Tenant) };
    let both = server.mint(&both).await.1;
    // A workload that cannot be placed, and so is reported.
    let large = json!({"resources": {"cpu_milli": 100, "memory_mib": 9_000_000}});
    let workload = json!({"replicas": 1, "template": large});
    server.put(admin, "/v1/workloads/acme/web", &workload).await.expect(201);

    let fields = json!({"groups": ["acme-g"], "volumes": ["acme-v"], "pools": ["acme-p"]});
    let placed = place(server, admin, fields).await.expect(201).json()["instances"][0].clone();
    for step in ["bind", "activate"] {
        let path = format!("/v1/claims/{}/{step}", placed["instance"].as_str().unwrap());
        server.post(admin, &path, &json!({"fence": placed["fence"]})).await.expect(200);
    }
    place(server, admin, json!({"name": "held"})).await.expect(201);
    let large = json!({"cpu_milli": 100, "memory_mib": 9_000_000});
    place(server, admin, json!({"resources": large, "mode": "wait", "wait_s": 600}))
        .await
        .expect(202);

    // What only moves and agents leave behind. The migration is for a reason that only another
    // version knows.
    let (moved, at) = (placed["instance"].clone(), "2026-01-01T00:00:00Z");
    let migration = json!({"instance": moved, "owner": "acme", "source": "n2", "target": "n1",
        "state": "done", "reason": "of another version", "cost": 1, "frees": {"cpu_milli": 1,
        "memory_mib": 1}, "fence": 1, "since": at, "changed_at": at});
    put_document(server, "migration", "m1", &migration).await;
    let stopped = json!({"request": {"id": moved, "owner": "acme",
        "resources": {"cpu_milli": 1, "memory_mib": 1}}, "fence": 1});
    let volume_move = json!({"from": "n2", "to": "n1", "state": "copying", "since": at,
        "changed_at": at, "stopped": stopped});
    put_document(server, "volume_move", "open-v", &volume_move).await;
    let boots = json!([{"at": 1, "failed": true, "tenant": "acme"},
        {"at": 2, "failed": true, "tenant": "beta"}]);
    let change = berth_engine::FactChange::Report([("boots".to_owned(), boots)].into());
    let (node, change) = (berth_engine::NodeId::new("n2"), Box::new(change));
    let op = Op::ChangeFacts { node, change, create: None, expect: None };
    server.control.submit(op).await.unwrap();
    server.control.wait_for_read_your_writes().await;
    (placed, both)
}

fn counts(held: &Value) -> BTreeMap<String, u64> {
    let holdings = held["holdings"].as_array().unwrap().iter();
    holdings
        .map(|it| (it["kind"].as_str().unwrap().to_owned(), it["count"].as_u64().unwrap()))
        .collect()
}

async fn wait_until_unknown(server: &Server, admin: &str) {
    wait_until("acme is gone", async || server.get(admin, ACME).await.status == 404).await;
}

/// What it holds is listed by kind.
async fn check_preview(server: &Server, admin: &str) {
    let held = server.get(admin, ACME).await.expect(200).json();
    let expected = [
        ("attachment", 1),
        ("demand", 2),
        ("failed_boot", 1),
        ("group", 1),
        ("instance", 2),
        ("migration", 1),
        ("pool", 1),
        ("queued_request", 1),
        ("quota", 1),
        ("scheduling_report", 1),
        ("secret", 1),
        // Two grants, and that a request waits.
        ("stored_answer", 3),
        ("token", 2),
        ("volume", 1),
        ("volume_move", 1),
        ("workload", 1),
    ];
    let expected: BTreeMap<String, u64> =
        expected.iter().map(|(kind, count)| ((*kind).to_owned(), *count)).collect();
    assert_eq!(counts(&held), expected, "{held}");
    assert_eq!(held.get("removal"), None);
    assert!(!mentions(server, "acme").is_empty());
}

/// Nothing new is made for it.
async fn check_refused(server: &Server, admin: &str) {
    place(server, admin, json!({})).await.problem(409, "tenant_removing");
    let group = json!({"tenant": "acme", "kind": "apart", "strength": "soft", "topology": "node"});
    server.put(admin, "/v1/groups/g2", &group).await.problem(409, "tenant_removing");
    let token = json!({"name": "late", "role": "tenant", "tenants": ["acme"]});
    server.post(admin, "/v1/tokens", &token).await.problem(409, "tenant_removing");
}

/// Who removed it, and when it began and ended, is on record.
async fn check_records(server: &Server, admin: &str) {
    let actions = server.get(admin, "/v1/audit?limit=1000").await.expect(200);
    for action in ["tenant.remove", "tenant.removed"] {
        let found = actions.json()["items"].as_array().unwrap().clone();
        let found: Vec<Value> = found.into_iter().filter(|it| it["action"] == action).collect();
        assert_eq!(found.len(), 1, "{action}: {found:?}");
        assert!(found[0]["actor"].as_str().unwrap().contains("(admin"), "{found:?}");
        assert!(found[0]["subject"].as_str().unwrap().starts_with("acme"), "{found:?}");
    }
    let events = server.get(admin, "/v1/events?kinds=tenant").await.expect(200);
    assert_eq!(events.each("kind"), ["tenant.removing", "tenant.removed"]);
}

async fn a_tenant_goes_with_all_it_holds(backend: Option<Backend>) {
    let server = server_on(backend).await;
    let admin = server.token(Role::Admin).await;
    let own = server.tenant("acme").await;
    let (running, both) = populate(&server, &admin).await;
    let reported = async || counts(&server.get(&admin, ACME).await.json());
    wait_until("what found no room is reported", async || {
        let counts = reported().await;
        counts.contains_key("scheduling_report") && counts.get("demand") == Some(&2)
    })
    .await;

    check_preview(&server, &admin).await;
    let begun = server.delete(&admin, ACME).await.expect(202).json();
    assert_eq!(begun["removal"]["force"], false, "{begun}");
    server.delete(&admin, ACME).await.expect(202);
    check_refused(&server, &admin).await;
    wait_until("its token has ended", async || {
        server.get(&own, "/v1/instances").await.status == 401
    })
    .await;
    // It waits for the agent of the instance that runs, and says so.
    wait_until("only what runs is left", async || {
        let held = server.get(&admin, ACME).await.json();
        let instances = held["holdings"].as_array().unwrap().iter();
        let instances: Vec<_> = instances.filter(|it| it["kind"] == "instance").cloned().collect();
        instances.len() == 1
            && instances[0]["count"] == 1
            && instances[0]["note"] == "waits for agents to stop 1 on n1"
    })
    .await;
    let path = format!("/v1/claims/{}/release", running["instance"].as_str().unwrap());
    let confirmed = json!({"fence": running["fence"], "confirmed": true});
    server.post(&admin, &path, &confirmed).await.expect(200);
    wait_until_unknown(&server, &admin).await;

    assert_eq!(mentions(&server, "acme"), [""; 0]);
    server.get(&both, "/v1/instances").await.expect(200);
    assert!(!mentions(&server, "beta").is_empty());
    server.delete(&admin, ACME).await.problem(404, "not_found");
    check_records(&server, &admin).await;
    // The name is free again.
    place(&server, &admin, json!({})).await.expect(201);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tenant_goes_with_all_it_holds_on_sqlite() {
    a_tenant_goes_with_all_it_holds(None).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tenant_goes_with_all_it_holds_on_postgres() {
    let postgres = TempPostgres::start(berth_pgtemp::Options::quick()).unwrap();
    let database = postgres.create_database("removal").unwrap();
    a_tenant_goes_with_all_it_holds(Some(Backend::Postgres(database))).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_admins_remove_tenants_and_only_those_that_there_are() {
    let server = server_on(None).await;
    server.add_node("n1").await;
    let admin = server.token(Role::Admin).await;
    for role in [Role::Operator, Role::Viewer, Role::Tenant, Role::Agent] {
        let token = server.token(role).await;
        server.get(&token, ACME).await.problem(403, "not_allowed");
        server.delete(&token, ACME).await.problem(403, "not_allowed");
    }
    server.get(&admin, "/v1/tenants/nobody").await.problem(404, "not_found");
    server.delete(&admin, "/v1/tenants/nobody").await.problem(404, "not_found");
    let unmanaged = server.delete(&admin, "/v1/tenants/unmanaged").await;
    assert_eq!(unmanaged.problem(400, "invalid_request").json()["fields"][0]["field"], "tenant");
    let control = server.delete(&admin, "/v1/tenants/a%07b").await;
    assert_eq!(control.problem(400, "invalid_request").json()["fields"][0]["field"], "tenant");
    server.delete(&admin, "/v1/tenants/acme?force=maybe").await.expect(400);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_server_continues_a_removal_after_a_stop() {
    let folder = tempfile::tempdir().unwrap();
    let backend = || Some(Backend::Sqlite(folder.path().join("shared.db")));
    let first = server_on(backend()).await;
    let admin = first.token(Role::Admin).await;
    let (running, _) = populate(&first, &admin).await;
    first.delete(&admin, ACME).await.expect(202);
    first.stop().await;
    let second = server_on(backend()).await;
    place(&second, &admin, json!({})).await.problem(409, "tenant_removing");
    assert_eq!(second.get(&admin, ACME).await.expect(200).json()["removal"]["force"], false);
    let path = format!("/v1/claims/{}/release", running["instance"].as_str().unwrap());
    let confirmed = json!({"fence": running["fence"], "confirmed": true});
    second.post(&admin, &path, &confirmed).await.expect(200);
    wait_until_unknown(&second, &admin).await;
    assert_eq!(mentions(&second, "acme"), [""; 0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn placements_that_race_with_a_forced_removal_leave_nothing_behind() {
    let server = Server::start_with(|options| {
        options.settings.tenant_quarantine = Duration::from_secs(3600);
    })
    .await;
    for node in ["n1", "n2", "n3", "n4"] {
        server.add_node(node).await;
    }
    let admin = server.token(Role::Admin).await;
    let (server, admin) = (std::sync::Arc::new(server), std::sync::Arc::new(admin));
    let placing: Vec<_> = (0..4)
        .map(|_| {
            let (server, admin) = (server.clone(), admin.clone());
            tokio::spawn(async move {
                loop {
                    let reply = place(&server, &admin, json!({})).await;
                    if reply.status != 201 {
                        return reply;
                    }
                }
            })
        })
        .collect();
    wait_until("some are placed", async || {
        let held = server.get(&admin, ACME).await;
        held.status == 200 && counts(&held.json()).get("instance").is_some_and(|count| *count > 9)
    })
    .await;
    server.delete(&admin, &format!("{ACME}?force=true")).await.expect(202);
    for placer in placing {
        placer.await.unwrap().problem(409, "tenant_removing");
    }
    wait_until("it holds nothing", async || {
        server.get(&admin, ACME).await.json()["holdings"] == json!([])
    })
    .await;
    // Its name stays blocked: what was on its way may still come.
    place(&server, &admin, json!({})).await.problem(409, "tenant_removing");
    let mut settings = (*server.control.lifecycle.settings()).clone();
    settings.tenant_quarantine = Duration::ZERO;
    server.control.lifecycle.configure(settings, berth_control::MaintenanceConfig::default());
    wait_until_unknown(&server, &admin).await;
    assert_eq!(mentions(&server, "acme"), [""; 0]);
}
