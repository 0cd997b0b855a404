//! A database that is far away: what a placement costs is counted in round trips to it, end to end over HTTP.

#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

mod common;

use std::time::Duration;

use berth_client::Client;
use berth_faults::{Fixture, Proxy};
use common::Server;
use common::held_planner::small_request_of;
use serde_json::Value;
use tokio::time::Instant;

/// One way to the database.
const DELAY: Duration = Duration::from_millis(50);

/// Round trips that a placement takes, in the middle: alone it is its own commit; with others it also waits for
/// the one under way. Promised are 5 for both; a debug build next to other tests gets one more.
const ROUND_TRIPS: (u128, u128) = (4, 6);

/// Round trips that nearly all take.
const ROUND_TRIPS_P95: u128 = 10;

struct FarDatabase {
    server: Server,
    clients: Vec<Client>,
    proxy: Proxy,
    _fixture: Fixture,
}

struct Measured {
    /// Latencies of granted placements, in order.
    took: Vec<Duration>,
    per_s: usize,
}

impl Measured {
    fn round_trips(&self, percent: usize) -> u128 {
        let rank = (self.took.len() - 1) * percent / 100;
        self.took[rank].as_micros().div_ceil((DELAY * 2).as_micros())
    }
}

impl FarDatabase {
    async fn start() -> Self {
        let fixture = Fixture::postgres(berth_pgtemp::Options::default()).unwrap();
        let (proxy, backend) = Proxy::to_database(&fixture.url()).unwrap();
        let server = Server::start_with(|options| options.backend = backend).await;
        let mut clients = Vec::new();
        for number in 0..16 {
            server.add_node(&format!("n{number}")).await;
            clients.push(server.client(&server.tenant(&format!("tenant-{number}")).await));
        }
        proxy.delay(DELAY);
        Self { server, clients, proxy, _fixture: fixture }
    }

    /// So many callers, each of which sends its next request when the last is answered.
    async fn place_for(&self, callers: usize, time: Duration) -> Measured {
        let until = Instant::now() + time;
        let callers = (0..callers).map(|number| async move {
            let (client, mut took) = (&self.clients[number % self.clients.len()], Vec::new());
            while Instant::now() < until {
                let (id, sent) = (uuid::Uuid::now_v7().to_string(), Instant::now());
                let tenant = format!("tenant-{}", number % self.clients.len());
                let body = tiny_request(&tenant, &id);
                let _: Value = client.post("/v1/placements", &body).await.unwrap();
                took.push(sent.elapsed());
            }
            took
        });
        let took = futures_util::future::join_all(callers).await;
        let mut took: Vec<Duration> = took.into_iter().flatten().collect();
        took.sort_unstable();
        let per_s = took.len() / usize::try_from(time.as_secs()).unwrap();
        Measured { took, per_s }
    }

    async fn check(self, loads: &[usize], time: Duration) {
        let alone = self.place_for(1, time).await;
        print(1, &alone);
        assert!(alone.round_trips(50) <= ROUND_TRIPS.0, "{} round trips", alone.round_trips(50));
        let alone_in_all = alone.took.len();
        for callers in loads.iter().copied() {
            let together = self.place_for(callers, time).await;
            print(callers, &together);
            let (most, nearly_all) = (together.round_trips(50), together.round_trips(95));
            assert!(most <= ROUND_TRIPS.1, "{callers} callers: p50 of {most} round trips");
            assert!(nearly_all <= ROUND_TRIPS_P95, "{callers} callers: p95 of {nearly_all}");
            // They share commits, so that hardly anybody waits for anybody else.
            let gain = together.took.len() / alone_in_all;
            assert!(gain * 2 >= callers, "{callers} callers: {gain} times as many as one");
        }
        self.proxy.delay(Duration::ZERO);
        self.server.stop().await;
    }
}

fn print(callers: usize, measured: &Measured) {
    let [p50, p95] = [50, 95].map(|percent| measured.round_trips(percent));
    println!(
        "{callers} callers: {} placements/s, p50 {p50} round trips, p95 {p95}",
        measured.per_s
    );
}

fn tiny_request(tenant: &str, id: &str) -> Value {
    let mut body = small_request_of(tenant, id);
    body["instances"][0]["resources"] = serde_json::json!({ "cpu_milli": 1, "memory_mib": 1 });
    body
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn placements_with_fifty_milliseconds_to_the_database_take_few_round_trips() {
    FarDatabase::start().await.check(&[32], Duration::from_secs(4)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a measurement, for `make soak`"]
async fn hundreds_of_callers_with_fifty_milliseconds_to_the_database_share_commits() {
    FarDatabase::start().await.check(&[64, 400], Duration::from_secs(10)).await;
}
