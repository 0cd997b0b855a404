//! What a queue costs as it grows.

use std::time::{Duration, Instant};

use berth_api::{PlaceRequest, Role, Ticket, TicketState};
use berth_control::state::TicketRecord;
use berth_faults::{Fixture, Proxy, setting};
use berth_ledger::{Backend, Expect, Job, Ledger, Op, Options, Text};
use uuid::Uuid;

use crate::common::Server;
use crate::waiting_request;

/// Tenants that the waiting requests belong to.
const TENANTS: usize = 16;

fn stored(number: usize, now: jiff::Timestamp) -> TicketRecord {
    let tenant = format!("tenant-{}", number % TENANTS);
    let request = waiting_request(&tenant, &format!("old-{number}"), 4096);
    let request: PlaceRequest = serde_json::from_value(request).unwrap();
    let ticket = Ticket {
        id: Uuid::now_v7().to_string(),
        state: TicketState::Waiting,
        tenant,
        position: None,
        since: now,
        deadline: now + jiff::SignedDuration::from_hours(24),
        tries: 0,
        request,
        placed: None,
        problem: None,
    };
    let (actor, origin) = ("test".to_owned(), "test".to_owned());
    TicketRecord { ticket, actor, origin, lapsed: 0, oversized: false }
}

/// Writes tickets as an earlier server would have left them.
fn preload(ledger: &Ledger, tickets: usize) {
    let now = berth_control::clock::now();
    let (sender, answers) = std::sync::mpsc::channel();
    let job = |number: usize| {
        let record = stored(number, now);
        let op = Op::PutDocument {
            kind: Text::from(berth_control::queue::KIND),
            id: Text::from(record.ticket.id.as_str()),
            body: serde_json::to_string(&record).unwrap(),
            expect: Expect::Absent,
        };
        let sender = sender.clone();
        Job { op, reply: Box::new(move |answer| sender.send(answer.is_ok()).unwrap()) }
    };
    for first in (0..tickets).step_by(500) {
        let numbers = first..tickets.min(first + 500);
        ledger.submit(numbers.clone().map(job));
        assert!(answers.iter().take(numbers.len()).all(|is_done| is_done));
    }
}

/// A server on a ledger with so many waiting tickets.
async fn start_with_waiting(waiting: usize) -> (Server, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let backend = Backend::Sqlite(folder.path().join("ledger.db"));
    let ledger = Ledger::open(backend.clone(), Options::default()).unwrap();
    tokio::task::spawn_blocking(move || preload(&ledger, waiting)).await.unwrap();
    let server = Server::start_with(|options| {
        options.backend = backend;
        options.settings.queue_limit = 10_000_000;
        options.settings.queue_total = 10_000_000;
        options.settings.tenant_rates.tickets = 0;
    })
    .await;
    (server, folder)
}

/// How long each of so many further requests takes, one after the other, with so many waiting.
#[allow(clippy::disallowed_methods, reason = "a measurement")]
async fn times_of_adds(waiting: usize, adds: usize) -> Vec<Duration> {
    let (server, _folder) = start_with_waiting(waiting).await;
    server.add_node("n1").await;
    let token = server.token(Role::Operator).await;
    let mut times = Vec::new();
    for number in 0..adds {
        let tenant = format!("tenant-{}", number % TENANTS);
        let request = waiting_request(&tenant, &format!("new-{number}"), 1 << 20);
        let began = Instant::now();
        server.post(&token, "/v1/placements", &request).await.expect(202);
        times.push(began.elapsed());
    }
    server.stop().await;
    times
}

/// MiB of memory that this process has in use.
fn memory_mib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or("0 kB");
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap_or(0) / 1024
}

#[tokio::test]
async fn a_full_queue_says_so_and_when_to_retry() {
    let server = Server::start_with(|options| {
        (options.settings.queue_limit, options.settings.queue_total) = (2, 3);
    })
    .await;
    let token = server.token(Role::Operator).await;
    server.add_node("n1").await;
    let post = async |tenant: &str, id: &str| {
        let request = waiting_request(tenant, id, 1 << 20);
        server.post(&token, "/v1/placements", &request).await
    };
    let first = post("acme", "a").await.expect(202).json();
    post("acme", "b").await.expect(202);
    let full = post("acme", "c").await.problem(429, "queue_full");
    assert!(full.headers.contains_key("retry-after"), "{full:?}");
    post("other", "a").await.expect(202);
    let full = post("other", "b").await.problem(503, "total_queue_full");
    assert!(full.headers.contains_key("retry-after"), "{full:?}");
    // A retry is no further request.
    assert_eq!(post("acme", "a").await.expect(202).json()["id"], first["id"]);
    let path = format!("/v1/queue/{}", crate::text(&first["id"]));
    server.delete(&token, &path).await.expect(204);
    post("other", "b").await.expect(202);
    server.stop().await;
}

#[tokio::test]
async fn a_ticket_far_back_has_no_place_but_in_lists() {
    let (server, _folder) = start_with_waiting(1200).await;
    let token = server.token(Role::Operator).await;
    let request = waiting_request("tenant-0", "last", 1 << 20);
    let last = server.post(&token, "/v1/placements", &request).await.expect(202).json();
    assert_eq!(last["position"], serde_json::Value::Null, "{last}");
    let mut path = "/v1/queue?limit=1000".to_owned();
    let mut positions = Vec::new();
    loop {
        let page = server.get(&token, &path).await.expect(200);
        positions.extend(page.each("position"));
        let Some(next) = page.json()["next"].as_str().map(str::to_owned) else { break };
        path = format!("/v1/queue?limit=1000&cursor={next}");
    }
    let expected: Vec<serde_json::Value> = (1..=1201).map(serde_json::Value::from).collect();
    assert_eq!(positions, expected);
    server.stop().await;
}

/// Prints how many waiting requests a second are granted when there is room for all of them, with the
/// database so far away. Run it with
/// `cargo nextest run --test queue --run-ignored all --no-capture grants_per_second`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a measurement"]
#[allow(clippy::disallowed_methods, reason = "a measurement")]
async fn grants_per_second() {
    const WAITING: usize = 100;
    for one_way in [Duration::ZERO, Duration::from_millis(50)] {
        let fixture = Fixture::postgres(berth_pgtemp::Options::quick()).unwrap();
        let (proxy, backend) = Proxy::to_database(&fixture.url()).unwrap();
        let server = Server::start_with(|options| options.backend = backend).await;
        let token = server.token(Role::Operator).await;
        for number in 0..WAITING {
            let tenant = format!("tenant-{}", number % TENANTS);
            let request = waiting_request(&tenant, &format!("r-{number}"), 64);
            server.post(&token, "/v1/placements", &request).await.expect(202);
        }
        proxy.delay(one_way);
        let began = Instant::now();
        server.add_node("n1").await;
        while server.control.queue.waiting() > 0 {
            assert!(began.elapsed() < Duration::from_secs(300));
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let (took, ms) = (began.elapsed(), one_way.as_millis());
        let rate = 1000 * WAITING as u128 / took.as_millis().max(1);
        println!("{ms} ms each way: {rate} grants/s ({WAITING} in {took:?})");
        proxy.delay(Duration::ZERO);
        server.stop().await;
    }
}

/// Prints how many requests a second can be queued while others wait. Run it with
/// `cargo nextest run --test queue --run-ignored all --no-capture adds_per_second`;
/// with `BERTH_TICKETS_MAX=1000000` also while a million wait, which takes minutes in an optimised build.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a measurement"]
async fn adds_per_second() {
    let most = setting("BERTH_TICKETS_MAX").map_or(100_000, |most| most.parse().unwrap());
    let sizes = [(1000, 300), (11_000, 100), (100_000, 50), (1_000_000, 50)];
    for (waiting, adds) in sizes.into_iter().filter(|(waiting, _)| *waiting <= most) {
        let times = times_of_adds(waiting, adds).await;
        let took: Duration = times.iter().sum();
        let rate = u128::try_from(adds).unwrap() * 1_000_000 / took.as_micros();
        let memory = memory_mib();
        println!("{waiting} waiting: {rate} adds/s ({adds} in {took:?}), {memory} MiB");
    }
}
