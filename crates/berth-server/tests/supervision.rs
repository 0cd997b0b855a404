//! A panic, a stalled thread or a database that does not answer: nothing fails in silence, and nobody
//! waits for ever.

#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

mod common;

use std::sync::{Arc, mpsc};
use std::time::Duration;

use berth_api::Role;
use berth_control::metrics::Metrics;
use berth_control::stall_watch::StallWatch;
use berth_control::supervision::Problem;
use berth_control::{PlaceAnswer, PlaceRequest, Placer, PlacerOptions};
use berth_engine::{Amounts, InstanceId, InstanceRequest, NodeFacts, Policy, Timestamp};
use berth_faults::{Fixture, Proxy};
use berth_ledger::{Backend, Op, Text};
use berth_pgtemp::TempPostgres;
use berth_server::HttpLimits;
use common::held_planner::{HeldPlanner, small_request};
use common::{Server, wait_until};
use serde_json::json;

fn request(number: u128, memory_mib: u32) -> PlaceRequest {
    let instance = InstanceId::from_u128(number);
    let request = InstanceRequest::new(instance, "acme", Amounts::new(1, memory_mib));
    PlaceRequest {
        request_id: Text::from(format!("r{number}")),
        tenant: Text::from("acme"),
        instances: vec![Arc::new(request)],
        lease_s: 600,
        ..PlaceRequest::default()
    }
}

fn start(options: &PlacerOptions) -> (Placer, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let backend = Backend::Sqlite(folder.path().join("ledger.db"));
    let placer = Placer::start(backend, options).unwrap();
    let facts = NodeFacts::new("n1", Amounts::new(8000, 16_384).with_disk(100_000));
    placer.ledger().administer(Op::put_node(facts)).unwrap();
    (placer, folder)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_panic_on_a_shared_thread_ends_only_what_it_worked_on() {
    let metrics = Arc::new(Metrics::new());
    let mut options = PlacerOptions::new(Policy::builtin("balanced").unwrap());
    options.clock = Arc::new(|| Timestamp(0));
    options.metrics = Some(Arc::clone(&metrics));
    let (placer, _folder) = start(&options);
    assert!(matches!(placer.place(request(1, 128)), PlaceAnswer::Granted(_)));

    let on_planner = placer.query_replica(|_| panic!("on purpose")).await;
    assert_eq!(on_planner, None::<()>);
    let on_explainer = placer.query_explainer(|_| panic!("on purpose")).await;
    assert_eq!(on_explainer, None::<()>);

    assert!(matches!(placer.place(request(2, 128)), PlaceAnswer::Granted(_)));
    assert!(matches!(placer.place(request(3, 1 << 24)), PlaceAnswer::NoRoom(_)));
    assert_eq!(options.supervisor.problems(), []);
    for thread in ["planner", "explainer"] {
        let line = format!("berth_loop_failures_total{{loop=\"{thread}\",cause=\"panic\"}} 1");
        assert!(metrics.text().contains(&line), "{}", metrics.text());
    }
    // What was claimed before and after is where the ledger has it, also after the fleet was reloaded.
    for number in [1, 2] {
        let id = InstanceId::from_u128(number);
        wait_until("the reloaded fleet has the instance", async || {
            let look = move |replica: &mut berth_control::FleetReplica| {
                replica.engine().fleet().node_of(id).is_some()
            };
            placer.query_replica(look).await == Some(true)
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_planner_that_stalls_is_named() {
    let options = PlacerOptions::new(Policy::builtin("balanced").unwrap());
    let (placer, _folder) = start(&options);
    let (pause, paused) = mpsc::channel::<()>();
    placer.update_replica(move |_| {
        // Ends when the other side is dropped.
        let _ = paused.recv();
    });
    let stalled = |problem: &Problem| matches!(problem, Problem::Stalled("planner", _));
    wait_until("the planner counts as stalled", async || {
        options.supervisor.problems().iter().any(stalled)
    })
    .await;
    // Still: this is no matter of a moment.
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(options.supervisor.stalled_thread(Duration::from_secs(3600)), None);
    let stalled = options.supervisor.stalled_thread(Duration::from_secs(6));
    assert_eq!(stalled.map(|(name, _)| name), Some("planner"));
    drop(pause);
    wait_until("it works again", async || options.supervisor.problems().is_empty()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_the_database_does_not_answer_callers_are_told_and_lists_come_from_memory() {
    let fixture = Fixture::postgres(berth_pgtemp::Options::default()).unwrap();
    let (proxy, backend) = Proxy::to_database(&fixture.url()).unwrap();
    let server = Server::start_with(|options| {
        options.backend = backend;
        options.placer.ledger.retry_budget = Duration::from_secs(1);
    })
    .await;
    let operator = server.token(Role::Operator).await;
    let tenant = server.tenant(common::TENANT).await;
    server.add_node("n1").await;
    let body = json!({
        "request_id": "stalled-1", "tenant": common::TENANT,
        "instances": [{ "resources": { "cpu_milli": 100, "memory_mib": 128 } }],
    });
    server.get(&operator, "/readyz").await.expect(200);
    let waiting = json!({
        "request_id": "waiting-1", "tenant": common::TENANT, "mode": "wait",
        "instances": [{ "resources": { "cpu_milli": 100, "memory_mib": 100_000 } }],
    });
    server.post(&tenant, "/v1/placements", &waiting).await.expect(202);

    let instance = put_one_of_each_kind(&server, &tenant).await;
    // As if the primary was stopped: it takes what it is sent, and answers nothing.
    proxy.swallow_answers();
    let reply = server.post(&tenant, "/v1/placements", &body).await;
    assert_eq!(reply.status.as_u16(), 503, "{reply:?}");
    assert!(reply.headers.contains_key("retry-after"), "{reply:?}");
    assert!(reply.text.contains("outcome unknown"), "{reply:?}");
    assert!(reply.text.contains("same request id"), "{reply:?}");
    // Whatever has to be read from the database is answered as soon, too.
    let began = tokio::time::Instant::now();
    let known = server.post(&tenant, "/v1/placements", &waiting).await;
    let audit = server.get(&operator, "/v1/audit").await;
    for reply in [known, audit] {
        assert_eq!(reply.status.as_u16(), 503, "{reply:?}");
        assert!(reply.headers.contains_key("retry-after"), "{reply:?}");
    }
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
    let ready = server.get(&operator, "/readyz").await;
    assert_eq!(ready.status.as_u16(), 503, "{ready:?}");
    assert!(ready.text.contains("the database has not answered"), "{ready:?}");
    let lists = [
        ("nodes", "n1"),
        ("quotas", "acme"),
        ("quotas/acme", "instances"),
        ("pools", "10.0.0.1"),
        ("policies", "balanced"),
        ("instances", instance.as_str()),
        ("claims", instance.as_str()),
        ("workloads", "\"web\""),
        ("queue", "waiting-1"),
        ("groups", "\"apart\""),
        ("volumes", "\"data\""),
        ("drains", "\"n2\""),
    ];
    let began = tokio::time::Instant::now();
    for (list, content) in lists {
        let reply = server.get(&operator, &format!("/v1/{list}")).await;
        assert_eq!(reply.status.as_u16(), 200, "{reply:?}");
        assert!(reply.text.contains(content) && reply.headers.contains_key("age"), "{reply:?}");
    }
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());

    proxy.cut();
    proxy.mend();
    wait_until("the server is ready again", async || {
        server.get(&operator, "/readyz").await.status.as_u16() == 200
    })
    .await;
    let again = server.post(&tenant, "/v1/placements", &body).await;
    assert!(again.status.is_success(), "{again:?}");
    let nodes = server.get(&operator, "/v1/nodes").await;
    assert!(!nodes.headers.contains_key("age"), "{nodes:?}");
    server.stop().await;
}

/// What lists show, of every kind. Returns the id of an instance.
async fn put_one_of_each_kind(server: &Server, tenant: &str) -> String {
    let admin = server.token(Role::Admin).await;
    server.put(&admin, "/v1/quotas/acme", &json!({"instances": 10})).await.expect(201);
    server.put(&admin, "/v1/pools/p1", &json!({"range": "10.0.0.0/24"})).await.expect(201);
    let apart = json!({"tenant": "acme", "kind": "apart", "strength": "soft", "topology": "node"});
    server.put(&admin, "/v1/groups/apart", &apart).await.expect(201);
    let volume = json!({"tenant": "acme", "home": "n1"});
    server.put(&admin, "/v1/volumes/data", &volume).await.expect(201);
    let resources = json!({"cpu_milli": 100, "memory_mib": 128});
    let workload = json!({"replicas": 0, "template": {"resources": resources}});
    server.put(tenant, "/v1/workloads/acme/web", &workload).await.expect(201);
    let placed = server.post(tenant, "/v1/placements", &small_request("placed-1")).await;
    let id = placed.expect(201).json()["instances"][0]["instance"].as_str().unwrap().to_owned();
    server.add_node("n2").await;
    let begun = server.post(&admin, "/v1/nodes/n2/drain", &json!({})).await;
    assert!(begun.status.is_success(), "{begun:?}");
    server.control.wait_for_read_your_writes().await;
    id
}

/// A primary that waits for a standby, both on this machine.
fn start_with_standby() -> (TempPostgres, TempPostgres, String) {
    let primary = TempPostgres::start(berth_pgtemp::Options::quick()).unwrap();
    let url = primary.create_database("berth").unwrap();
    let standby = primary.start_standby("standby").unwrap();
    primary.psql("ALTER SYSTEM SET synchronous_standby_names = 'standby'").unwrap();
    primary.psql("SELECT pg_reload_conf()").unwrap();
    let is_waited_for = (0..600).any(|_| {
        std::thread::sleep(Duration::from_millis(50));
        primary.psql("SELECT sync_state FROM pg_stat_replication").unwrap() == "sync"
    });
    assert!(is_waited_for, "{}", standby.log_tail());
    (primary, standby, url)
}

/// Longer than the ledger's patience and than any answer of the database may take: the first failure is
/// over, and the next attempts are under way.
const FROZEN_FOR: Duration = Duration::from_secs(17);

/// Polls whether the server is ready while the standby is frozen. Returns when it first was not.
async fn watch_readiness(server: &Server, operator: &str) -> Duration {
    let (began, mut not_ready) = (tokio::time::Instant::now(), None);
    while began.elapsed() < FROZEN_FOR {
        let reply = server.get(operator, "/readyz").await;
        if reply.status.as_u16() == 503 {
            not_ready = not_ready.or(Some(began.elapsed()));
        }
        let at = began.elapsed();
        assert!(not_ready.is_none() || reply.status.as_u16() == 503, "ready after {at:?}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    not_ready.unwrap()
}

/// Freezes a database twice, idle and under load: the server is not ready soon and until it is thawed.
async fn freeze_and_watch(url: &str, frozen: &mut TempPostgres, name: &str) {
    let server = Server::start_with(|options| {
        options.backend = Backend::parse(url).unwrap();
        options.placer.ledger.retry_budget = Duration::from_secs(1);
    })
    .await;
    let operator = server.token(Role::Operator).await;
    let tenant = server.tenant(common::TENANT).await;
    server.add_node("n1").await;
    for is_loaded in [false, true] {
        server.get(&operator, "/readyz").await.expect(200);
        frozen.freeze().unwrap();
        let load = async {
            let began = tokio::time::Instant::now();
            let mut number = 0;
            while is_loaded && began.elapsed() < FROZEN_FOR {
                number += 1;
                let body = small_request(&format!("frozen-{number}"));
                server.post(&tenant, "/v1/placements", &body).await.expect(503);
            }
        };
        let (not_ready, ()) = tokio::join!(watch_readiness(&server, &operator), load);
        println!("{name} frozen: not ready after {not_ready:?}, with load: {is_loaded}");
        // Promised are 2 s, on a machine that does nothing else.
        assert!(not_ready < Duration::from_secs(4), "{not_ready:?}");
        // From memory if the log cannot be read: what others committed gets its numbers in a commit.
        server.get(&operator, "/v1/quotas").await.expect(200);
        frozen.thaw().unwrap();
        wait_until("the server is ready again", async || {
            server.get(&operator, "/readyz").await.status.as_u16() == 200
        })
        .await;
    }
    server.post(&tenant, "/v1/placements", &small_request("after")).await.expect(201);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_a_synchronous_standby_is_frozen_the_server_is_not_ready_with_and_without_load() {
    let (_primary, mut standby, url) = start_with_standby();
    freeze_and_watch(&url, &mut standby, "standby").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_the_primary_is_frozen_the_server_is_not_ready_with_and_without_load() {
    let mut primary = TempPostgres::start(berth_pgtemp::Options::quick()).unwrap();
    let url = primary.create_database("berth").unwrap();
    freeze_and_watch(&url, &mut primary, "primary").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_the_planner_works_on_one_thing_lists_heartbeats_and_probes_are_answered() {
    let mut planner = None;
    let server = Server::start_with(|options| planner = Some(HeldPlanner::new(options))).await;
    let mut planner = planner.unwrap();
    let operator = server.token(Role::Operator).await;
    let (tenant, agent) = (server.tenant(common::TENANT).await, server.agent("n1").await);
    server.add_node("n1").await;
    server.post(&tenant, "/v1/placements", &small_request("before")).await.expect(201);

    planner.hold();
    let slow = small_request("slow");
    let decision = server.post(&tenant, "/v1/placements", &slow);
    let others = async {
        server.get(&operator, "/v1/nodes").await.expect(200);
        server.get(&operator, "/v1/instances").await.expect(200);
        server.get(&operator, "/readyz").await.expect(200);
        server.post(&agent, "/v1/nodes/n1/heartbeat", &json!({"running": []})).await.expect(200);
        // What is written here is read here, though the planner does not know it yet.
        for number in 0..20 {
            let group = format!("g{number}");
            let apart = json!({"kind": "apart", "strength": "hard", "topology": "rack"});
            server.put(&operator, &format!("/v1/groups/{group}"), &apart).await.expect(201);
            let groups = server.get(&operator, "/v1/groups").await.expect(200);
            assert!(groups.text.contains(&format!("\"{group}\"")), "{groups:?}");
        }
        planner.release();
    };
    let answered = async { tokio::time::timeout(Duration::from_secs(30), others).await };
    let (decision, answered) = tokio::join!(decision, answered);
    assert!(answered.is_ok(), "others waited for the planner");
    assert_eq!(decision.status.as_u16(), 201, "{decision:?}");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_planner_that_stalls_for_good_has_the_process_ended() {
    let mut planner = None;
    let server = Server::start_with(|options| planner = Some(HeldPlanner::new(options))).await;
    let mut planner = planner.unwrap();
    let tenant = server.tenant(common::TENANT).await;
    server.add_node("n1").await;
    let (ends, ended) = mpsc::channel();
    let ends = move |name, time| ends.send((name, time)).unwrap();
    let limit = Duration::from_secs(6);
    let watch = StallWatch::start(&server.control, limit, ends).unwrap();
    server.post(&tenant, "/v1/placements", &small_request("before")).await.expect(201);
    assert!(ended.try_recv().is_err());
    planner.hold();
    let body = small_request("held");
    let held = server.post(&tenant, "/v1/placements", &body);
    let (held, ended) = tokio::join!(held, async {
        let ended = tokio::task::spawn_blocking(move || ended.recv_timeout(common::TIMEOUT)).await;
        planner.release();
        ended.unwrap().unwrap()
    });
    assert!(ended.0 == "planner" && ended.1 >= limit, "{ended:?}");
    held.expect(201);
    drop(watch);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_placement_that_takes_too_long_is_answered_with_what_to_do() {
    let mut planner = None;
    let limits = HttpLimits { timeout: Duration::from_millis(500), ..HttpLimits::default() };
    let change = |options: &mut _| planner = Some(HeldPlanner::new(options));
    let server = Server::start_limited(limits, change).await;
    let mut planner = planner.unwrap();
    let tenant = server.tenant(common::TENANT).await;
    server.add_node("n1").await;
    planner.hold();
    let body = small_request("late");
    let reply = server.post(&tenant, "/v1/placements", &body).await;
    assert_eq!(reply.status.as_u16(), 504, "{reply:?}");
    assert!(reply.headers.contains_key("retry-after"), "{reply:?}");
    assert!(reply.text.contains("outcome is unknown"), "{reply:?}");
    assert!(reply.text.contains("same request id"), "{reply:?}");
    planner.release();
    // The retry finds what became of it.
    wait_until("the retry is answered", async || {
        server.post(&tenant, "/v1/placements", &body).await.status.as_u16() == 201
    })
    .await;
    let nodes = server.get(&server.token(Role::Operator).await, "/v1/instances").await;
    assert_eq!(nodes.json()["items"].as_array().map(Vec::len), Some(1), "{nodes:?}");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_event_that_cannot_be_read_is_reported_and_holds_up_nobody() {
    let fixture = Fixture::postgres(berth_pgtemp::Options::default()).unwrap();
    let start = |every| {
        let backend = fixture.backend();
        Server::start_with(move |options| {
            options.backend = backend;
            options.placer.follow_every = every;
        })
    };
    // It looks at the log only when it has to.
    let late = start(Duration::from_secs(3600)).await;
    let other = start(Duration::from_millis(50)).await;
    let operator = late.token(Role::Operator).await;
    late.add_node("n1").await;
    let mut stream = late.control.feed.subscribe();
    let newest = late.control.feed.newest().await.unwrap();

    // Broken as it is written: the late server may be reading the log at this very moment.
    fixture
        .execute(
            "CREATE FUNCTION break_segment() RETURNS trigger LANGUAGE plpgsql AS \
             $$ BEGIN NEW.body := '{\"specs\":['; RETURN NEW; END $$; \
             CREATE TRIGGER break_segment BEFORE INSERT ON event_segment \
             FOR EACH ROW WHEN (NEW.body LIKE '%n2%') EXECUTE FUNCTION break_segment()",
        )
        .unwrap();
    other.add_node("n2").await;
    fixture.execute("DROP TRIGGER break_segment ON event_segment").unwrap();
    other.add_node("n3").await;

    // A refusal has it look, and everything that it missed is there.
    let tenant = late.tenant(common::TENANT).await;
    let too_large = json!({
        "request_id": "large", "tenant": common::TENANT,
        "instances": [{ "resources": { "cpu_milli": 100, "memory_mib": 1 << 30 } }],
    });
    late.post(&tenant, "/v1/placements", &too_large).await.expect(409);
    wait_until("the nodes of the other server are known", async || {
        let nodes = late.get(&operator, "/v1/nodes").await.expect(200).text;
        nodes.contains("n2") && nodes.contains("n3")
    })
    .await;
    late.get(&operator, "/readyz").await.expect(200);
    let status = late.get(&operator, "/v1/status").await.expect(200).text;
    assert!(status.contains("of the log cannot be read"), "{status}");
    let metrics = late.get(&operator, "/metrics").await.expect(200).text;
    assert!(metrics.contains("\nberth_unreadable_events 1\n"), "{metrics}");

    // Streams and lists say which event it is, and go on after it.
    let listed = late.get(&operator, &format!("/v1/events?after={newest}")).await.expect(200);
    let goes_on = |kinds: &str| {
        let unreadable = kinds.find("log.unreadable");
        unreadable.zip(kinds.rfind("node.changed")).is_some_and(|(first, last)| first < last)
    };
    assert!(goes_on(&listed.text), "{listed:?}");
    let (mut cursor, mut kinds) = (newest, String::new());
    while !goes_on(&kinds) {
        let next = tokio::time::timeout(common::TIMEOUT, stream.next(cursor)).await;
        for event in next.unwrap_or_else(|_| panic!("{kinds}")).unwrap() {
            cursor = event.seq;
            kinds.push_str(&event.kind);
        }
    }
    late.stop().await;
    other.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refusal_whose_fixes_the_database_failed_to_find_is_counted() {
    let fixture = Fixture::postgres(berth_pgtemp::Options::default()).unwrap();
    let backend = fixture.backend();
    let server = Server::start_with(|options| options.backend = backend).await;
    let tenant = server.tenant(common::TENANT).await;
    let admin = server.token(Role::Admin).await;
    server.add_node("n1").await;
    server.put(&admin, "/v1/quotas/acme", &json!({"instances": 0})).await.expect(201);
    let metric = async || {
        let metrics = server.get(&admin, "/metrics").await.expect(200).text;
        let line =
            metrics.lines().find(|line| line.starts_with("berth_limit_search_failures_total "));
        line.unwrap_or_else(|| panic!("{metrics}")).to_owned()
    };
    let refused = server.post(&tenant, "/v1/placements", &small_request("r1")).await;
    refused.problem(409, "quota_exceeded");
    assert_eq!(metric().await, "berth_limit_search_failures_total 0");
    // A plan without addresses asks nothing of pools; the search for fixes does.
    fixture.execute("ALTER TABLE pool RENAME TO elsewhere").unwrap();
    let refused = server.post(&tenant, "/v1/placements", &small_request("r2")).await;
    refused.problem(409, "quota_exceeded");
    assert_eq!(metric().await, "berth_limit_search_failures_total 1");
    fixture.execute("ALTER TABLE elsewhere RENAME TO pool").unwrap();
    server.stop().await;
}
