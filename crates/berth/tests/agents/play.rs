//! The simulated fleet.

use std::time::Duration;

use berth_api::{Claim, ClaimState, Node};
use berth_client::{Client, Connect};
use berth_sim::agents::{DemoOptions, run};
use tokio_util::sync::CancellationToken;

use crate::fixture::{Fixture, until};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_simulated_fleet_registers_places_and_boots_by_itself_and_outlives_an_outage() {
    let fixture = Fixture::new().await;
    let stop = CancellationToken::new();
    let options = DemoOptions { hosts: 50, seed: 7, pace: 400 };
    let mut detour = fixture.detour().await;
    let client = Client::new(Connect {
        url: detour.url(),
        token: Some(fixture.admin_token.clone()),
        ..Connect::default()
    });
    let playing = tokio::spawn(run(client.unwrap(), options, stop.clone()));
    until("all hosts are there", async || {
        let nodes: Vec<Node> = fixture.client.all("/v1/nodes", &[]).await.unwrap();
        nodes.len() == 50
    })
    .await;
    until("instances of several tenants run", async || {
        let query = [("state", "active"), ("limit", "1000")];
        let claims: Vec<Claim> = fixture.client.all("/v1/claims", &query).await.unwrap();
        let mut tenants: Vec<&str> = claims.iter().map(|claim| claim.tenant.as_str()).collect();
        tenants.sort_unstable();
        tenants.dedup();
        assert!(claims.iter().all(|claim| claim.state == ClaimState::Active));
        claims.len() > 50 && tenants.len() >= 4
    })
    .await;
    detour.cut().await;
    let held = |claims: Vec<Claim>| -> Vec<_> { claims.iter().map(|one| one.instance).collect() };
    let before = held(fixture.client.all("/v1/claims", &[]).await.unwrap());
    tokio::time::sleep(Duration::from_secs(2)).await;
    detour.open().await;
    until("the play goes on after the server was away", async || {
        let now = held(fixture.client.all("/v1/claims", &[]).await.unwrap());
        now.iter().any(|instance| !before.contains(instance))
    })
    .await;
    stop.cancel();
    playing.await.unwrap();
}
