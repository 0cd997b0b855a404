//! A tenant that asks for too much is told to wait, and others are not.

#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

mod common;

use std::time::Duration;

use berth_api::Role;
use berth_control::tenant_limits::TenantRates;
use berth_control::{MaintenanceConfig, Settings};
use common::Server;
use serde_json::{Value, json};

fn placement(dry_run: bool) -> Value {
    json!({"dry_run": dry_run, "instances": [{"resources": {"memory_mib": 16}}]})
}

fn rates(placements: usize, dry_runs: usize, tickets: usize, refusals: usize) -> TenantRates {
    let burst = Duration::from_secs(3);
    let (explanations, events_per_day) = (0, 0);
    TenantRates { placements, dry_runs, tickets, refusals, explanations, events_per_day, burst }
}

#[tokio::test]
async fn a_tenant_that_asks_for_too_much_is_told_when_to_ask_again() {
    let server =
        Server::start_with(|options| options.settings.tenant_rates = rates(1, 1, 1, 0)).await;
    server.add_node("n1").await;
    let (acme, other) = (server.tenant("acme").await, server.tenant("other").await);
    for dry_run in [false, true] {
        let ok = if dry_run { 200 } else { 201 };
        for _ in 0..3 {
            server.post(&acme, "/v1/placements", &placement(dry_run)).await.expect(ok);
        }
        let limited = server.post(&acme, "/v1/placements", &placement(dry_run)).await;
        let limited = limited.problem(429, "rate_limited");
        let wait: u32 = limited.headers["retry-after"].to_str().unwrap().parse().unwrap();
        assert!((1..=3).contains(&wait), "{wait}");
        assert_eq!(limited.json()["retry"], true);
        server.post(&other, "/v1/placements", &placement(dry_run)).await.expect(ok);
    }
    let operator = server.token(Role::Operator).await;
    for _ in 0..10 {
        let mut request = placement(false);
        request["tenant"] = json!("acme");
        server.post(&operator, "/v1/placements", &request).await.expect(201);
    }
    let metrics = server.get(&operator, "/metrics").await.expect(200).text;
    for limit in ["placements", "dry_runs"] {
        let line = format!("berth_limited_requests_total{{limit=\"{limit}\"}} 1\n");
        assert!(metrics.contains(&line), "{line} is not in {metrics}");
    }
    // Settings take effect while the server runs.
    let settings = Settings { tenant_rates: rates(0, 0, 0, 0), ..Settings::default() };
    server.control.lifecycle.configure(settings, MaintenanceConfig::default());
    for _ in 0..10 {
        server.post(&acme, "/v1/placements", &placement(false)).await.expect(201);
    }
}

#[tokio::test]
async fn a_tenant_that_causes_too_many_refusals_has_to_wait() {
    let server =
        Server::start_with(|options| options.settings.tenant_rates = rates(0, 0, 1, 1)).await;
    server.add_node("n1").await;
    let (acme, other) = (server.tenant("acme").await, server.tenant("other").await);
    let impossible = json!({"instances": [{"resources": {"memory_mib": 1_000_000}}]});
    let mut refused = 0;
    let limited = loop {
        let reply = server.post(&acme, "/v1/placements", &impossible).await;
        if reply.status != 409 {
            break reply;
        }
        refused += 1;
        assert!(refused < 1000, "it is never limited");
    };
    assert!(refused >= 3, "{refused}");
    assert!(limited.problem(429, "rate_limited").text.contains("limits.refusals"));
    server.post(&other, "/v1/placements", &impossible).await.problem(409, "no_capacity_memory");
    server.post(&other, "/v1/placements", &placement(false)).await.expect(201);
}

#[tokio::test]
async fn a_refused_batch_counts_as_several_refusals() {
    let refusals = |count: usize| async move {
        let server =
            Server::start_with(|options| options.settings.tenant_rates = rates(0, 0, 1, 8)).await;
        server.add_node("n1").await;
        let acme = server.tenant("acme").await;
        let impossible =
            json!({"instances": [{"count": count, "resources": {"memory_mib": 1_000_000}}]});
        let mut refused = 0;
        while server.post(&acme, "/v1/placements", &impossible).await.status == 409 {
            refused += 1;
            assert!(refused < 1000, "it is never limited");
        }
        refused
    };
    // Of 24 in three seconds, and what comes in meanwhile: each counts as seven.
    let of_batches = refusals(96).await;
    assert!(of_batches < 12, "{of_batches}");
    assert!(refusals(1).await >= 24);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tenant_that_asks_for_too_many_explanations_has_to_wait() {
    let rates = TenantRates { explanations: 1, ..rates(0, 0, 0, 0) };
    let server = Server::start_with(|options| options.settings.tenant_rates = rates).await;
    server.add_node("n1").await;
    let (acme, other) = (server.tenant("acme").await, server.tenant("other").await);
    let mut decisions = Vec::new();
    for tenant in [&acme, &other] {
        let placed = server.post(tenant, "/v1/placements", &placement(false)).await.expect(201);
        decisions.push(format!("/v1/decisions/{}", placed.json()["decision"].as_str().unwrap()));
    }
    let paths = [format!("{}/explain", decisions[0]), format!("{}/replay", decisions[0])];
    let mut asked = 0;
    let limited = loop {
        let reply = match asked % 2 {
            0 => server.get(&acme, &paths[0]).await,
            _ => server.post(&acme, "/v1/placements/explain", &placement(false)).await,
        };
        if reply.status != 200 {
            break reply;
        }
        asked += 1;
        assert!(asked < 1000, "it is never limited");
    };
    assert!(asked >= 3, "{asked}");
    let limited = limited.problem(429, "rate_limited");
    assert!(limited.text.contains("limits.explanations"), "{}", limited.text);
    let wait: u32 = limited.headers["retry-after"].to_str().unwrap().parse().unwrap();
    assert!((1..=3).contains(&wait), "{wait}");
    server.get(&other, &format!("{}/explain", decisions[1])).await.expect(200);
    let operator = server.token(Role::Operator).await;
    for path in paths.iter().cycle().take(6) {
        server.get(&operator, path).await.expect(200);
    }
    // It may still place.
    server.post(&acme, "/v1/placements", &placement(false)).await.expect(201);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tenant_that_left_too_much_in_the_log_can_only_read_and_release() {
    let rates = TenantRates { events_per_day: 40, ..rates(0, 0, 0, 0) };
    let server = Server::start_with(|options| options.settings.tenant_rates = rates).await;
    server.add_node("n1").await;
    let (acme, other) = (server.tenant("acme").await, server.tenant("other").await);
    let mut placed = Vec::new();
    let limited = loop {
        let reply = server.post(&acme, "/v1/placements", &placement(false)).await;
        if reply.status != 201 {
            break reply;
        }
        placed.push(reply.json()["instances"][0]["instance"].as_str().unwrap().to_owned());
        assert!(placed.len() < 40, "it is never limited");
    };
    // Each request counts, and so does the event that it leaves.
    assert!(placed.len() >= 19, "{}", placed.len());
    let limited = limited.problem(429, "rate_limited");
    assert!(limited.text.contains("limits.events_per_day"), "{}", limited.text);
    let wait: u32 = limited.headers["retry-after"].to_str().unwrap().parse().unwrap();
    assert!(wait > 600, "{wait} s, at 40 a day");
    let group = json!({"kind": "spread", "topology": "node"});
    server.put(&acme, "/v1/groups/g", &group).await.problem(429, "rate_limited");
    server.get(&acme, "/v1/instances").await.expect(200);
    let release = format!("/v1/claims/{}/release", placed[0]);
    server.post(&acme, &release, &json!({})).await.expect(200);
    server.post(&other, "/v1/placements", &placement(false)).await.expect(201);
    let operator = server.token(Role::Operator).await;
    let mut request = placement(false);
    request["tenant"] = json!("acme");
    server.post(&operator, "/v1/placements", &request).await.expect(201);
    let metrics = server.get(&operator, "/metrics").await.expect(200).text;
    let line = "berth_limited_requests_total{limit=\"events_per_day\"} 2\n";
    assert!(metrics.contains(line), "{line} is not in {metrics}");
}
