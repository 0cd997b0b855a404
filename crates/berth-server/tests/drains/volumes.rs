use std::sync::Arc;
use std::time::Duration;

use berth_api::{DrainState, Role};
use berth_engine::{Amounts, Demand, InstanceId, InstanceRequest, NodeId, Policy};
use berth_ledger::{Adopt, Op, Text};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::common::TIMEOUT;
use crate::stage::Stage;

/// Two nodes, a volume on the first, and an instance that uses it and runs.
async fn with_volume() -> (Stage, String) {
    let stage = Stage::new(&["n1", "n2"]).await;
    let body = json!({"tenant": "acme", "home": "n1"});
    stage.server.put(&stage.operator, "/v1/volumes/data", &body).await.expect(201);
    let resources = json!({"cpu_milli": 100, "memory_mib": 8192, "disk_mib": 64});
    let id = stage.place(json!({"resources": resources, "volumes": ["data"]})).await;
    stage.report("n1", std::slice::from_ref(&id), "running").await;
    (stage, id)
}

async fn begin(stage: &Stage, to: &str) -> Value {
    let path = "/v1/volumes/data/move";
    stage.server.post(&stage.operator, path, &json!({"to": to})).await.expect(200).json()
}

async fn say(stage: &Stage, node: &str, step: &str) -> Value {
    let agent = stage.server.agent(node).await;
    let report = json!({"volume": "data", "step": step, "reason": "the disk is broken"});
    let path = format!("/v1/nodes/{node}/volume-moves");
    stage.server.post(&agent, &path, &report).await.expect(200).json()
}

async fn until(stage: &Stage, state: &str) -> Value {
    let began = Instant::now();
    loop {
        let path = "/v1/volumes/data/move";
        let found = stage.server.get(&stage.operator, path).await.expect(200).json();
        if found["state"] == state {
            return found;
        }
        assert!(began.elapsed() < TIMEOUT, "{state}: {found:#}");
        tokio::time::sleep(Duration::from_millis(30)).await;
    }
}

/// Waits until the instance is told to stop.
async fn told_to_stop(stage: &Stage, id: &str) {
    let began = Instant::now();
    while stage.claim(id).await["state"] != "releasing" {
        assert!(began.elapsed() < TIMEOUT, "{id} was not told to stop");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Waits until the instance is placed on a node, and has it run there.
async fn runs_on(stage: &Stage, id: &str, node: &str) {
    let began = Instant::now();
    let path = format!("/v1/claims/{id}");
    loop {
        let reply = stage.server.get(&stage.operator, &path).await;
        if reply.status.is_success() && reply.json()["node"] == node {
            if reply.json()["state"] == "active" {
                return;
            }
            // As agents do it: again and again, until it is heard.
            stage.report(node, &[id.to_owned()], "running").await;
        }
        assert!(began.elapsed() < TIMEOUT, "{}", reply.text);
        tokio::time::sleep(Duration::from_millis(30)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_volume_moves_and_the_instance_that_uses_it_follows() {
    let (stage, id) = with_volume().await;
    let dry = json!({"to": "n2", "dry_run": true});
    let path = "/v1/volumes/data/move";
    let planned = stage.server.post(&stage.operator, path, &dry).await.expect(200).json();
    assert_eq!(planned["state"], "planned");
    stage.server.get(&stage.operator, path).await.problem(404, "not_found");

    assert_eq!(begin(&stage, "n2").await["state"], "copying");
    assert_eq!(begin(&stage, "n2").await["state"], "copying", "a retry begins nothing new");
    let elsewhere = stage.server.post(&stage.operator, path, &json!({"to": "n1"})).await;
    elsewhere.problem(409, "volume_moving");
    let heard = stage.report("n2", &[], "running").await;
    let task = json!({"volume": "data", "from": "n1", "to": "n2", "action": "copy", "round": 1});
    assert_eq!(heard["volume_moves"], json!([task]));
    assert_eq!(stage.claim(&id).await["state"], "active", "it is used while it is copied");

    say(&stage, "n2", "copied").await;
    told_to_stop(&stage, &id).await;
    assert!(stage.server.control.moves.volume_moves.is_stopping("data"));
    stage.report("n1", std::slice::from_ref(&id), "stopped").await;
    until(&stage, "syncing").await;
    let heard = stage.report("n2", &[], "running").await;
    assert_eq!(heard["volume_moves"][0]["action"], "sync");
    say(&stage, "n2", "synced").await;
    until(&stage, "done").await;
    let volume = stage.server.get(&stage.operator, "/v1/volumes/data").await.expect(200).json();
    assert_eq!(volume["home"], "n2");
    runs_on(&stage, &id, "n2").await;
    assert!(stage.report("n2", &[], "running").await.get("volume_moves").is_none());
    stage.server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_move_that_fails_or_is_called_off_leaves_everything_where_it_was() {
    let (stage, id) = with_volume().await;
    begin(&stage, "n2").await;
    say(&stage, "n2", "failed").await;
    let failed = until(&stage, "failed").await;
    assert!(failed["message"].as_str().unwrap().contains("the disk is broken"), "{failed}");
    assert_eq!(stage.claim(&id).await["state"], "active", "nobody was stopped");

    // Called off when the instance was stopped already: it is started again where it was.
    begin(&stage, "n2").await;
    say(&stage, "n1", "copied").await;
    told_to_stop(&stage, &id).await;
    stage.report("n1", std::slice::from_ref(&id), "stopped").await;
    until(&stage, "syncing").await;
    let path = "/v1/volumes/data/move/cancel";
    let cancelled = stage.server.post(&stage.operator, path, &json!({})).await.expect(200).json();
    assert_eq!(cancelled["state"], "cancelled");
    runs_on(&stage, &id, "n1").await;
    stage.server.post(&stage.operator, path, &json!({})).await.problem(409, "not_moving");
    stage.server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_move_survives_restarts_at_every_step() {
    let (stage, id) = with_volume().await;
    begin(&stage, "n2").await;
    let stage = stage.restarted().await;
    until(&stage, "copying").await;
    say(&stage, "n2", "copied").await;
    let stage = stage.restarted().await;
    told_to_stop(&stage, &id).await;
    let stage = stage.restarted().await;
    stage.report("n1", std::slice::from_ref(&id), "stopped").await;
    until(&stage, "syncing").await;
    let stage = stage.restarted().await;
    say(&stage, "n2", "synced").await;
    let stage = stage.restarted().await;
    until(&stage, "done").await;
    runs_on(&stage, &id, "n2").await;
    stage.server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_volume_goes_only_where_its_instance_could_run() {
    let (stage, _) = with_volume().await;
    let path = "/v1/volumes/data/move";
    let post = |body: Value| {
        let (server, operator) = (&stage.server, &stage.operator);
        async move { server.post(operator, path, &body).await }
    };
    post(json!({"to": "n9"})).await.problem(400, "invalid_request");
    post(json!({"to": "n1"})).await.problem(409, "already_there");
    stage.server.post(&stage.operator, "/v1/nodes/n2/cordon", &json!({})).await.expect(200);
    post(json!({"to": "n2"})).await.problem(409, "node_not_active");
    stage.server.post(&stage.operator, "/v1/nodes/n2/uncordon", &json!({})).await.expect(200);
    stage.run_on("n2", 1, 60_000).await;
    let full = post(json!({"to": "n2"})).await.problem(409, "no_capacity_memory");
    assert_eq!(full.json()["refusals"].as_array().map(Vec::len), Some(1));
    let viewer = stage.server.token(Role::Viewer).await;
    stage.server.post(&viewer, path, &json!({"to": "n2"})).await.problem(403, "not_allowed");
    // An agent speaks only of moves from or to its own node.
    let agent = stage.server.agent("n2").await;
    let report = json!({"volume": "data", "step": "copied"});
    let reply = stage.server.post(&agent, "/v1/nodes/n1/volume-moves", &report).await;
    reply.problem(404, "not_found");
    let reply = stage.server.post(&agent, "/v1/nodes/n2/volume-moves", &report).await;
    reply.problem(404, "not_found");
    stage.server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drain_is_unblocked_by_moving_the_volume() {
    let (stage, id) = with_volume().await;
    stage.begin("n1", json!({})).await;
    stage.until("n1", |drain| drain.state == DrainState::Blocked).await;
    begin(&stage, "n2").await;
    let going = stage.until("n1", |drain| drain.state == DrainState::Running).await;
    assert_eq!(going.moves[0].code.as_deref(), Some("volume_moving"));
    say(&stage, "n2", "copied").await;
    told_to_stop(&stage, &id).await;
    stage.report("n1", std::slice::from_ref(&id), "stopped").await;
    until(&stage, "syncing").await;
    say(&stage, "n2", "synced").await;
    runs_on(&stage, &id, "n2").await;
    stage.until("n1", |drain| drain.state == DrainState::Done).await;
    stage.server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drain_is_not_done_while_a_volume_is_copied() {
    let (stage, id) = with_volume().await;
    begin(&stage, "n2").await;
    stage.begin("n1", json!({})).await;
    say(&stage, "n2", "copied").await;
    told_to_stop(&stage, &id).await;
    stage.report("n1", std::slice::from_ref(&id), "stopped").await;
    until(&stage, "syncing").await;
    // No instance is left there, but the only complete copy of the data is.
    let going = stage.until("n1", |drain| drain.moves.is_empty()).await;
    assert_eq!((going.state, going.left), (DrainState::Running, 1), "{going:?}");
    assert_eq!(going.volumes[0].volume, "data");
    assert_eq!(going.message, "no instance is left, and volume data is being moved away");
    say(&stage, "n2", "synced").await;
    let done = stage.until("n1", |drain| drain.state == DrainState::Done).await;
    assert_eq!((done.left, done.volumes.len()), (0, 0));
    stage.server.stop().await;
}

/// Reports on a round of copying.
async fn say_of_round(stage: &Stage, step: &str, round: u32) -> Value {
    let agent = stage.server.agent("n2").await;
    let report = json!({"volume": "data", "step": step, "round": round, "reason": "too late"});
    let path = "/v1/nodes/n2/volume-moves";
    stage.server.post(&agent, path, &report).await.expect(200).json()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_late_report_is_not_taken_for_one_on_a_later_copy() {
    let (stage, id) = with_volume().await;
    begin(&stage, "n2").await;
    let path = "/v1/volumes/data/move/cancel";
    stage.server.post(&stage.operator, path, &json!({})).await.expect(200);
    assert_eq!(begin(&stage, "n2").await["round"], 2);
    // The agent's reports on the move that was called off are answered, and change nothing.
    for step in ["copied", "failed"] {
        assert_eq!(say_of_round(&stage, step, 1).await["state"], "copying", "{step}");
    }
    assert_eq!(say_of_round(&stage, "copied", 2).await["state"], "stopping");
    told_to_stop(&stage, &id).await;
    stage.report("n1", std::slice::from_ref(&id), "stopped").await;
    until(&stage, "syncing").await;

    // An instance that was recorded there uses it and may write to it, so it is copied once more.
    let other = InstanceId::from_u128(10);
    let mut request = InstanceRequest::new(other, "acme", Amounts::new(100, 64));
    request.volumes = vec!["data".to_owned()];
    let demand = Demand::new(&request, &Policy::builtin("balanced").unwrap());
    let (request_id, node) = (Text::from("found"), NodeId::new("n1"));
    let adopt = Adopt { request_id, request: Arc::new(request), node, demand };
    stage.server.control.submit(Op::Adopt(adopt)).await.unwrap();
    let other = other.to_string();
    assert_eq!(say_of_round(&stage, "synced", 3).await["state"], "syncing");
    told_to_stop(&stage, &other).await;
    stage.report("n1", std::slice::from_ref(&other), "stopped").await;
    let again = until(&stage, "syncing").await;
    assert_eq!(again["round"], 4);
    let repeated = say_of_round(&stage, "synced", 3).await;
    assert_eq!(repeated["state"], "syncing");
    assert!(!repeated["message"].as_str().unwrap().contains("switched"), "{repeated}");
    say_of_round(&stage, "synced", 4).await;
    until(&stage, "done").await;
    stage.server.stop().await;
}
