//! The simulated fleet.

use berth_api::{Claim, ClaimState, Node};
use berth_sim::agents::{DemoOptions, run};
use tokio_util::sync::CancellationToken;

use crate::stage::{Stage, until};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_simulated_fleet_registers_places_and_boots_by_itself() {
    let stage = Stage::new().await;
    let stop = CancellationToken::new();
    let options = DemoOptions { hosts: 50, seed: 7, pace: 400 };
    let playing = tokio::spawn(run(stage.client.clone(), options, stop.clone()));
    until("all hosts are there", async || {
        let nodes: Vec<Node> = stage.client.all("/v1/nodes", &[]).await.unwrap();
        nodes.len() == 50
    })
    .await;
    until("instances of several tenants run", async || {
        let query = [("state", "active"), ("limit", "1000")];
        let claims: Vec<Claim> = stage.client.all("/v1/claims", &query).await.unwrap();
        let mut owners: Vec<&str> = claims.iter().map(|claim| claim.owner.as_str()).collect();
        owners.sort_unstable();
        owners.dedup();
        assert!(claims.iter().all(|claim| claim.state == ClaimState::Active));
        claims.len() > 50 && owners.len() >= 4
    })
    .await;
    stop.cancel();
    playing.await.unwrap();
}
