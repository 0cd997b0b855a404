//! More than can be served: it is turned away at the door, by tenant, and nothing is lost.
//!
//! The planner stands still meanwhile. What is asserted are counts, never times.

#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

mod common;

use std::sync::Arc;

use berth_api::Role;
use common::held_planner::{HeldPlanner, small_request_of};
use common::{Reply, Server, wait_until};
use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::task::JoinSet;

/// A server whose planner stands still, with a limit on what may be under way.
struct Setup {
    server: Arc<Server>,
    planner: HeldPlanner,
    operator: String,
    waiting: JoinSet<Reply>,
}

impl Setup {
    async fn new(in_flight: usize) -> Self {
        let mut planner = None;
        let server = Server::start_with(|options| {
            options.placer.in_flight = in_flight;
            planner = Some(HeldPlanner::new(options));
        })
        .await;
        server.add_node("n1").await;
        let operator = server.token(Role::Operator).await;
        let planner = planner.unwrap();
        planner.hold();
        Self { server: Arc::new(server), planner, operator, waiting: JoinSet::new() }
    }

    fn under_way(&self) -> usize {
        length(&self.server, "placements")
    }

    /// Sends a request that is let in and waits.
    async fn send_waiting(&mut self, token: &str, body: Value) {
        let before = self.under_way();
        let (server, token) = (Arc::clone(&self.server), token.to_owned());
        self.waiting.spawn(async move { server.post(&token, "/v1/placements", &body).await });
        wait_until("the request is under way", async || self.under_way() > before).await;
    }

    /// Lets the planner go on; what waited is granted.
    async fn release(&mut self) {
        self.planner.release();
        while let Some(reply) = self.waiting.join_next().await {
            let reply = reply.unwrap();
            assert_eq!(reply.status.as_u16(), 201, "{reply:?}");
        }
    }

    async fn instances(&self) -> usize {
        let listed = self.server.get(&self.operator, "/v1/instances").await.expect(200);
        listed.json()["items"].as_array().map_or(0, Vec::len)
    }

    async fn metrics(&self) -> String {
        self.server.get(&self.operator, "/metrics").await.expect(200).text
    }

    async fn stop(self) {
        let Ok(server) = Arc::try_unwrap(self.server) else { panic!("a request is under way") };
        server.stop().await;
    }
}

fn length(server: &Server, queue: &str) -> usize {
    let lengths = server.control.queue_lengths();
    lengths.iter().find(|it| it.queue == queue).map_or(0, |it| it.length)
}

fn retry_after_s(reply: &Reply) -> u32 {
    let value = reply.headers.get("retry-after").unwrap_or_else(|| panic!("{reply:?}"));
    value.to_str().unwrap().parse().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn when_all_tenants_fill_the_queue_more_get_503_and_the_same_request_is_granted_later() {
    let mut setup = Setup::new(5).await;
    for number in 0..5 {
        let tenant = format!("t{number}");
        let token = setup.server.tenant(&tenant).await;
        setup.send_waiting(&token, small_request_of(&tenant, "first")).await;
    }
    let late = setup.server.tenant("late").await;
    let body = small_request_of("late", "late-1");
    let shed = setup.server.post(&late, "/v1/placements", &body).await.problem(503, "overloaded");
    assert!((1..=30).contains(&retry_after_s(&shed)), "{shed:?}");
    // Whoever asks, and for whomever.
    let operators = small_request_of("another", "op-1");
    setup.server.post(&setup.operator, "/v1/placements", &operators).await.expect(503);
    let metrics = setup.metrics().await;
    assert!(metrics.contains("berth_queue_length{queue=\"placements\"} 5\n"), "{metrics}");
    assert!(metrics.contains("berth_queue_limit{queue=\"placements\"} 5\n"), "{metrics}");
    assert!(metrics.contains("berth_limited_requests_total{limit=\"in_flight\"} 2\n"), "{metrics}");
    // Readers and agents do not wait for it.
    assert_eq!(setup.instances().await, 0);

    setup.release().await;
    setup.server.post(&late, "/v1/placements", &body).await.expect(201);
    assert_eq!(setup.instances().await, 6);
    assert_eq!(setup.under_way(), 0);
    setup.stop().await;
}

/// The negative control of the test above.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_limit_the_queue_grows() {
    let mut setup = Setup::new(0).await;
    let token = setup.server.tenant("acme").await;
    for number in 0..40 {
        setup.send_waiting(&token, small_request_of("acme", &format!("r{number}"))).await;
    }
    assert_eq!(setup.under_way(), 40);
    setup.release().await;
    setup.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tenant_that_fills_the_queue_gets_429_and_others_are_let_in() {
    let mut setup = Setup::new(20).await;
    let (heavy, light) = (setup.server.tenant("heavy").await, setup.server.tenant("light").await);
    for number in 0..16 {
        setup.send_waiting(&heavy, small_request_of("heavy", &format!("h{number}"))).await;
    }
    let body = small_request_of("heavy", "one-more");
    for _ in 0..10 {
        let shed = setup.server.post(&heavy, "/v1/placements", &body).await;
        assert!((1..=30).contains(&retry_after_s(&shed.problem(429, "tenant_busy"))));
    }
    assert_eq!(setup.under_way(), 16);
    setup.send_waiting(&light, small_request_of("light", "l1")).await;
    // What an operator does for that tenant is not in its line.
    let operator = setup.operator.clone();
    setup.send_waiting(&operator, small_request_of("heavy", "by-operator")).await;
    setup.release().await;
    setup.server.post(&heavy, "/v1/placements", &body).await.expect(201);
    assert_eq!(setup.instances().await, 19);
    setup.stop().await;
}

/// The first rejections in a row come at once, further ones take a tenth of a second each.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[allow(clippy::disallowed_methods, reason = "how long an answer takes is what is tested")]
async fn a_tenant_that_asks_again_at_once_is_slowed_down_until_it_is_let_in() {
    let mut setup = Setup::new(20).await;
    let heavy = setup.server.tenant("heavy").await;
    for number in 0..16 {
        setup.send_waiting(&heavy, small_request_of("heavy", &format!("h{number}"))).await;
    }
    let body = small_request_of("heavy", "one-more");
    let turned_away = async |times: u32| {
        let began = std::time::Instant::now();
        for _ in 0..times {
            setup.server.post(&heavy, "/v1/placements", &body).await.problem(429, "tenant_busy");
        }
        began.elapsed()
    };
    turned_away(20).await;
    let took = turned_away(6).await;
    assert!(took >= std::time::Duration::from_millis(600), "{took:?}");
    setup.release().await;
    setup.server.post(&heavy, "/v1/placements", &body).await.expect(201);
    setup.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_placement_is_turned_away_before_its_body_is_read() {
    let mut setup = Setup::new(5).await;
    let token = setup.server.tenant("acme").await;
    for number in 0..4 {
        setup.send_waiting(&token, small_request_of("acme", &format!("r{number}"))).await;
    }
    let address = setup.server.url.strip_prefix("http://").unwrap().to_owned();
    let mut stream = tokio::net::TcpStream::connect(&address).await.unwrap();
    let head = format!(
        "POST /v1/placements HTTP/1.1\r\nHost: {address}\r\nAuthorization: Bearer {token}\r\n\
         Content-Type: application/json\r\nContent-Length: 1000000\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    // Not one byte of the body was sent.
    let mut answer = [0; 12];
    stream.read_exact(&mut answer).await.unwrap();
    assert_eq!(std::str::from_utf8(&answer).unwrap(), "HTTP/1.1 429");
    drop(stream);
    setup.release().await;
    setup.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_whose_caller_is_gone_is_not_planned() {
    let mut setup = Setup::new(100).await;
    let token = setup.server.tenant("acme").await;
    setup.send_waiting(&token, small_request_of("acme", "stays")).await;
    wait_until("the planner has begun with it", async || length(&setup.server, "planner") == 0)
        .await;
    for number in 0..5 {
        let (server, token) = (Arc::clone(&setup.server), token.clone());
        let body = small_request_of("acme", &format!("leaves-{number}"));
        let before = setup.under_way();
        let leaving =
            tokio::spawn(async move { server.post(&token, "/v1/placements", &body).await });
        wait_until("the request is under way", async || setup.under_way() > before).await;
        leaving.abort();
        assert!(leaving.await.is_err());
    }
    // The server learns of a closed connection while it serves others.
    for _ in 0..50 {
        setup.server.get(&setup.operator, "/v1/nodes").await.expect(200);
    }
    setup.release().await;
    wait_until("nothing is under way", async || setup.under_way() == 0).await;
    let metrics = setup.metrics().await;
    assert!(metrics.contains("berth_abandoned_requests_total 5\n"), "{metrics}");
    assert_eq!(setup.instances().await, 1);
    // The same request ids can be used again.
    let again = small_request_of("acme", "leaves-0");
    setup.server.post(&token, "/v1/placements", &again).await.expect(201);
    setup.stop().await;
}
