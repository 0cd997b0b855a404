//! An instance that is restarted elsewhere runs in one place at a time.

use std::time::Duration;

use berth_api::{DrainState, MoveState};
use berth_control::ControlOptions;
use serde_json::json;

use crate::common::wait_until;
use crate::stage::Stage;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_instance_starts_in_its_new_place_when_the_old_agent_has_stopped_it() {
    let stage = Stage::new(&["n1", "n2"]).await;
    let id = stage.run_on("n1", 1, 256).await.remove(0);
    stage.begin("n1", json!({})).await;
    wait_until("it has a place on n2", async || stage.claim(&id).await["node"] == "n2").await;
    // The old agent is told to stop it, and the new one nothing.
    let told = stage.assignments("n1").await;
    assert_eq!((told.len(), &told[0]["state"]), (1, &json!("releasing")));
    assert!(!stage.is_told("n2", &id).await);
    let going = stage.drain("n1").await;
    assert_eq!((going.state, going.left), (DrainState::Running, 1), "{going:?}");
    let leaving = &going.moves[0];
    assert_eq!(leaving.state, MoveState::Leaving);
    assert_eq!(leaving.to.as_ref().map(|to| to.as_str()), Some("n2"));

    let stage = stage.restarted().await;
    assert!(!stage.is_told("n2", &id).await);
    stage.report("n1", std::slice::from_ref(&id), "stopped").await;
    assert!(stage.is_told("n2", &id).await);
    stage.until("n1", |drain| drain.state == DrainState::Done).await;
    stage.report("n2", std::slice::from_ref(&id), "running").await;
    assert_eq!(stage.claim(&id).await["state"], "active");
    stage.server.stop().await;
}

fn soon_lost(options: &mut ControlOptions) {
    options.settings.lost_after = Duration::from_secs(3);
    options.settings.lost_grace = Duration::from_secs(2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_instance_starts_in_its_new_place_when_the_old_node_is_lost() {
    let stage = Stage::with(&["n1", "n2", "n3"], soon_lost).await;
    let id = stage.run_on("n1", 1, 256).await.remove(0);
    stage.begin("n1", json!({})).await;
    let beat = async || {
        for node in ["n2", "n3"] {
            stage.report(node, &[], "running").await;
        }
    };
    wait_until("it has another place", async || {
        beat().await;
        stage.claim(&id).await["node"] != "n1"
    })
    .await;
    let node = stage.claim(&id).await["node"].as_str().unwrap().to_owned();
    assert!(!stage.is_told(&node, &id).await);
    wait_until("the new agent is told to start it", async || {
        beat().await;
        stage.is_told(&node, &id).await
    })
    .await;
    let released = stage.events("instance.released").await;
    let lost = released.iter().filter(|event| event["body"]["reason"] == "node_lost");
    assert_eq!(lost.count(), 1, "{released:?}");
    stage.server.stop().await;
}

/// A workload whose members its tenant creates, with members that run on a node.
async fn with_members(stage: &Stage, node: &str, count: usize) -> Vec<String> {
    let resources = json!({"cpu_milli": 100, "memory_mib": 256, "disk_mib": 64});
    let body = json!({"template": {"resources": resources}, "rolling": {"max_unavailable": 1}});
    let path = "/v1/workloads/acme/web";
    let reply = stage.server.put(&stage.operator, path, &body).await;
    assert!(reply.status.is_success(), "{}", reply.text);
    stage.only(node, "cordon").await;
    let mut ids = Vec::new();
    for _ in 0..count {
        ids.push(stage.place(json!({"resources": resources, "workload": "web"})).await);
    }
    stage.only(node, "uncordon").await;
    stage.report(node, &ids, "running").await;
    ids
}

/// Members that have left the node.
async fn moved(stage: &Stage, ids: &[String], from: &str) -> Vec<String> {
    let mut moved = Vec::new();
    for id in ids {
        if stage.claim(id).await["node"] != from {
            moved.push(id.clone());
        }
    }
    moved
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_that_their_tenant_created_move_while_enough_others_run() {
    let stage = Stage::new(&["n1", "n2"]).await;
    let ids = with_members(&stage, "n1", 3).await;
    stage.begin("n1", json!({})).await;
    for expected in 1..=3 {
        wait_until("another one has moved", async || {
            moved(&stage, &ids, "n1").await.len() == expected
        })
        .await;
        // The next one stays until this one runs again, however often the loop looks.
        stage.server.wait_for_loop_pass("drains").await;
        stage.server.wait_for_loop_pass("drains").await;
        let gone = moved(&stage, &ids, "n1").await;
        assert_eq!(gone.len(), expected, "{gone:?}");
        stage.report("n1", &gone, "stopped").await;
        stage.report("n2", &gone, "running").await;
    }
    stage.until("n1", |drain| drain.state == DrainState::Done).await;
    stage.server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn past_the_deadline_members_move_whatever_else_runs() {
    let stage = Stage::new(&["n1", "n2"]).await;
    let ids = with_members(&stage, "n1", 3).await;
    stage.begin("n1", json!({"deadline_s": 1})).await;
    wait_until("all have moved", async || moved(&stage, &ids, "n1").await.len() == 3).await;
    stage.server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_volume_move_stops_a_member_while_enough_others_run() {
    let stage = Stage::new(&["n1", "n2"]).await;
    let others = with_members(&stage, "n2", 1).await;
    let body = json!({"tenant": "acme", "home": "n1"});
    stage.server.put(&stage.operator, "/v1/volumes/data", &body).await.expect(201);
    let resources = json!({"cpu_milli": 100, "memory_mib": 256, "disk_mib": 64});
    let spec = json!({"resources": resources, "workload": "web", "volumes": ["data"]});
    let id = stage.place(spec).await;
    stage.report("n1", std::slice::from_ref(&id), "running").await;
    // A second one that does not run: it is the one that may be missing.
    let third = stage.place(json!({"resources": resources, "workload": "web"})).await;
    let path = "/v1/volumes/data/move";
    stage.server.post(&stage.operator, path, &json!({"to": "n2"})).await.expect(200);
    let agent = stage.server.agent("n2").await;
    let report = json!({"volume": "data", "step": "copied", "round": 1});
    stage.server.post(&agent, "/v1/nodes/n2/volume-moves", &report).await.expect(200);
    stage.server.wait_for_loop_pass("volume_moves").await;
    stage.server.wait_for_loop_pass("volume_moves").await;
    assert_eq!(stage.claim(&id).await["state"], "active", "{others:?} alone would run");
    let node = stage.claim(&third).await["node"].as_str().unwrap().to_owned();
    stage.report(&node, std::slice::from_ref(&third), "running").await;
    wait_until("it is told to stop", async || stage.claim(&id).await["state"] == "releasing").await;
    stage.server.stop().await;
}
