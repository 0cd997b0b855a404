use berth_api::{DrainState, MoveState, Role};
use serde_json::json;

use crate::common::wait_until;
use crate::stage::Stage;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn instances_of_nobody_are_moved_and_start_anew() {
    let stage = Stage::new(&["n1", "n2", "n3"]).await;
    let ids = stage.run_on("n1", 20, 256).await;
    let before = stage.claim(&ids[0]).await;
    let begun = stage.begin("n1", json!({"reason": "new kernel"})).await;
    assert_eq!((begun.total, begun.reason.as_deref()), (20, Some("new kernel")));
    let done = stage.until_with_agent("n1", |drain| drain.state == DrainState::Done).await;
    assert_eq!((done.total, done.left), (20, 0));
    assert_eq!(done.since, begun.since);
    let after = stage.claim(&ids[0]).await;
    assert_ne!(after["node"], "n1");
    // It has to start there: the old agent's fence is void, and the new one is told to start it.
    assert_eq!(after["state"], "binding");
    assert!(after["fence"].as_i64() > before["fence"].as_i64());
    let node = after["node"].as_str().unwrap().to_owned();
    let late = json!({"running": [
        {"instance": ids[0], "fence": before["fence"], "state": "running"}
    ]});
    let path = "/v1/nodes/n1/heartbeat";
    let heard = stage.server.post(&stage.operator, path, &late).await.expect(200).json();
    assert_eq!(heard["reported"][0]["refused"], "no_claim");
    assert!(heard["assignments"].as_array().unwrap().is_empty(), "{heard}");
    stage.report(&node, &ids, "running").await;
    assert_eq!(stage.claim(&ids[0]).await["state"], "active");
    stage.server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_blocks_a_drain_is_said_and_room_unblocks_it() {
    let stage = Stage::new(&["n1", "n2"]).await;
    let big = stage.run_on("n1", 1, 40_000).await.remove(0);
    let other = stage.run_on("n2", 1, 40_000).await.remove(0);
    let path = "/v1/volumes/data";
    stage.server.put(&stage.operator, path, &json!({"home": "n1"})).await.expect(201);
    let small = json!({"cpu_milli": 100, "memory_mib": 128, "disk_mib": 64});
    let kept = stage.place(json!({"resources": small, "volumes": ["data"]})).await;
    stage.begin("n1", json!({})).await;
    let blocked = stage.until("n1", |drain| drain.state == DrainState::Blocked).await;
    assert_eq!(blocked.left, 2);
    let of = |id: &str| blocked.moves.iter().find(|one| one.instance.to_string() == id).unwrap();
    assert_eq!(of(&big).code.as_deref(), Some("no_capacity_memory"));
    assert!(of(&big).message.contains("n2"), "{:?}", of(&big));
    assert!(!of(&big).unblock.is_empty());
    assert_eq!(of(&kept).code.as_deref(), Some("volume_needs_move"));
    assert_eq!(of(&kept).unblock, ["berth volumes move data --to NODE"]);
    let listed = stage.server.get(&stage.operator, "/v1/drains").await.expect(200);
    assert_eq!(listed.each("node"), ["n1"]);

    let release = format!("/v1/claims/{other}/release");
    let body = json!({"confirmed": true});
    stage.server.post(&stage.operator, &release, &body).await.expect(200);
    let left = stage.until_with_agent("n1", |drain| drain.left == 1).await;
    assert_eq!(left.moves[0].instance.to_string(), kept);
    assert_eq!(stage.claim(&big).await["node"], "n2");
    stage.server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drain_is_called_off_and_what_has_moved_stays() {
    let stage = Stage::new(&["n1", "n2"]).await;
    let path = "/v1/nodes/n1/drain/cancel";
    stage.server.post(&stage.operator, path, &json!({})).await.problem(409, "not_draining");
    let read = stage.server.get(&stage.operator, "/v1/nodes/n1/drain").await;
    read.problem(409, "not_draining");
    let big = stage.run_on("n1", 1, 40_000).await.remove(0);
    stage.run_on("n2", 1, 40_000).await;
    let moved = stage.run_on("n1", 1, 1000).await.remove(0);
    stage.begin("n1", json!({})).await;
    let rest = |drain: &berth_api::Drain| drain.left == 1 && drain.state == DrainState::Blocked;
    stage.until_with_agent("n1", rest).await;
    let node = stage.server.post(&stage.operator, path, &json!({})).await.expect(200).json();
    assert_eq!(node["facts"]["state"], "active");
    assert_eq!(stage.claim(&big).await["node"], "n1");
    assert_eq!(stage.claim(&moved).await["node"], "n2");
    assert!(stage.server.control.moves.drains.nodes().is_empty());

    // Uncordon and cordon end a drain as well, and no loop begins it again.
    for (verb, state) in [("uncordon", "active"), ("cordon", "cordoned")] {
        stage.begin("n1", json!({})).await;
        let path = format!("/v1/nodes/n1/{verb}");
        let node = stage.server.post(&stage.operator, &path, &json!({})).await.expect(200).json();
        assert_eq!(node["facts"]["state"], state);
        stage.server.wait_for_loop_pass("drains").await;
        let node = stage.server.get(&stage.operator, "/v1/nodes/n1").await.expect(200).json();
        assert_eq!(node["facts"]["state"], state);
        assert!(stage.server.control.moves.drains.nodes().is_empty());
    }
    stage.server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drain_survives_a_restart_and_its_half_written_beginnings_and_ends() {
    let stage = Stage::new(&["n1", "n2"]).await;
    stage.run_on("n1", 1, 40_000).await;
    let other = stage.run_on("n2", 1, 40_000).await.remove(0);
    let begun = stage.begin("n1", json!({"reason": "disk", "deadline_s": 3600})).await;
    let stage = stage.restarted().await;
    let again = stage.until("n1", |drain| drain.state == DrainState::Blocked).await;
    assert_eq!((again.since, again.total), (begun.since, 1));
    assert_eq!((again.reason.as_deref(), again.deadline), (Some("disk"), begun.deadline));
    // Asked again, it changes what is named.
    let changed = stage.begin("n1", json!({"deadline_s": 60})).await;
    assert_eq!((changed.since, changed.reason.as_deref()), (begun.since, Some("disk")));
    assert!(changed.deadline < begun.deadline);

    // Killed after the state was written and before the document was.
    let state = berth_engine::NodeState::Draining;
    let node = berth_engine::NodeId::new("n2");
    let op = berth_ledger::Op::SetNodeState { node: node.clone(), state, expect: None };
    stage.server.control.submit(op).await.unwrap();
    let mended = stage.until("n2", |drain| drain.since.is_some()).await;
    assert_eq!(mended.total, 1);
    // Killed while it was called off: the state was written, the document is still there.
    let state = berth_engine::NodeState::Active;
    let op = berth_ledger::Op::SetNodeState { node: node.clone(), state, expect: None };
    stage.server.control.submit(op).await.unwrap();
    let drains = &stage.server.control.moves.drains;
    wait_until("the drain of n2 is forgotten", async || drains.get(&node).is_none()).await;
    let release = format!("/v1/claims/{other}/release");
    let body = json!({"confirmed": true});
    stage.server.post(&stage.operator, &release, &body).await.expect(200);
    stage.until_with_agent("n1", |drain| drain.state == DrainState::Done).await;
    // An empty node can be removed, and with it all that was known of its drain.
    stage.server.delete(&stage.operator, "/v1/nodes/n1").await.expect(204);
    assert!(stage.server.control.moves.drains.nodes().is_empty());
    stage.server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn past_its_deadline_what_cannot_move_is_stopped_and_what_has_volumes_stays() {
    let stage = Stage::new(&["n1", "n2"]).await;
    let big = stage.run_on("n1", 1, 40_000).await.remove(0);
    stage.run_on("n2", 1, 40_000).await;
    let path = "/v1/volumes/data";
    stage.server.put(&stage.operator, path, &json!({"home": "n1"})).await.expect(201);
    let small = json!({"cpu_milli": 100, "memory_mib": 128, "disk_mib": 64});
    let kept = stage.place(json!({"resources": small, "volumes": ["data"]})).await;
    stage.report("n1", std::slice::from_ref(&kept), "running").await;
    stage.begin("n1", json!({"deadline_s": 1})).await;
    let leaving =
        |drain: &berth_api::Drain| drain.moves.iter().any(|one| one.state == MoveState::Leaving);
    stage.until("n1", leaving).await;
    assert_eq!(stage.claim(&big).await["state"], "releasing");
    assert_eq!(stage.claim(&kept).await["state"], "active");
    stage.report("n1", std::slice::from_ref(&big), "stopped").await;
    let left = stage.until("n1", |drain| drain.left == 1).await;
    assert_eq!(left.state, DrainState::Blocked);
    stage.server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_nodes_that_are_emptied_together_nothing_goes_round_in_circles() {
    let stage = Stage::new(&["n1", "n2", "n3", "n4", "n5"]).await;
    let mut ids = Vec::new();
    for node in ["n1", "n2", "n3"] {
        ids.extend(stage.run_on(node, 12, 512).await);
    }
    let paths = ["n1", "n2", "n3"].map(|node| format!("/v1/nodes/{node}/drain"));
    let body = json!({});
    let begin = paths.iter().map(|path| stage.server.post(&stage.operator, path, &body));
    futures_util::future::join_all(begin).await;
    for node in ["n1", "n2", "n3"] {
        stage.until_with_agent(node, |drain| drain.state == DrainState::Done).await;
    }
    let moved = stage.events("instance.allocated").await;
    for id in &ids {
        let of = |event: &&serde_json::Value| event["body"]["instance_id"] == id.as_str();
        let moves = moved.iter().filter(of).filter(|event| !event["body"]["moved_from"].is_null());
        assert_eq!(moves.count(), 1, "{id}");
        let node = stage.claim(id).await["node"].clone();
        assert!(node == "n4" || node == "n5", "{node}");
    }
    stage.server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_instance_is_not_in_its_own_way() {
    let stage = Stage::new(&["n1", "n2"]).await;
    for node in ["n1", "n2"] {
        let (path, body) = (format!("/v1/nodes/{node}"), json!({"zone": "z1"}));
        let operator = Some(stage.operator.as_str());
        stage.server.send(operator, "PATCH", &path, Some(&body), &[]).await.expect(200);
    }
    let group = json!({"tenant": "acme", "kind": "apart", "strength": "hard", "topology": "zone", "max_per_domain": 1});
    let reply = stage.server.put(&stage.operator, "/v1/groups/lonely", &group).await;
    assert!(reply.status.is_success(), "{}", reply.text);
    let spec = json!({
        "resources": {"cpu_milli": 100, "memory_mib": 128, "disk_mib": 64},
        "groups": ["lonely"],
    });
    stage.only("n1", "cordon").await;
    let id = stage.place(spec.clone()).await;
    stage.only("n1", "uncordon").await;
    // The rule holds: the zone takes one, and no other.
    let second = json!({"tenant": "acme", "instances": [spec]});
    let refused = stage.server.post(&stage.operator, "/v1/placements", &second).await;
    refused.problem(409, "group_no_node");
    stage.report("n1", std::slice::from_ref(&id), "running").await;
    stage.begin("n1", json!({})).await;
    stage.until_with_agent("n1", |drain| drain.state == DrainState::Done).await;
    assert_eq!(stage.claim(&id).await["node"], "n2");
    stage.server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_generation_that_was_not_read_begins_nothing() {
    let stage = Stage::new(&["n1"]).await;
    let stale = [("if-match", "\"99\"")];
    let body = json!({});
    let path = "/v1/nodes/n1/drain";
    let reply = stage.server.send(Some(&stage.operator), "POST", path, Some(&body), &stale).await;
    reply.problem(412, "stale");
    assert!(stage.server.control.moves.drains.nodes().is_empty());
    for (body, field) in [
        (json!({"deadline_s": 0}), "deadline_s"),
        (json!({"deadline_s": 604_801}), "deadline_s"),
        (json!({"reason": "x".repeat(201)}), "reason"),
    ] {
        let reply = stage.server.post(&stage.operator, path, &body).await;
        let reply = reply.problem(400, "invalid_request");
        assert_eq!(reply.json()["fields"][0]["field"], field);
    }
    let viewer = stage.server.token(Role::Viewer).await;
    stage.server.post(&viewer, path, &json!({})).await.problem(403, "not_allowed");
    stage.server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dry_run_says_where_everything_would_go_and_changes_nothing() {
    let stage = Stage::new(&["n1", "n2"]).await;
    stage.run_on("n1", 2, 256).await;
    let planned = stage.begin("n1", json!({"dry_run": true})).await;
    assert_eq!((planned.state, planned.total), (DrainState::Planned, 2));
    let goes = |one: &berth_api::DrainMove| {
        one.state == MoveState::Planned && one.to.as_ref().is_some_and(|to| to.as_str() == "n2")
    };
    assert!(planned.moves.iter().all(goes), "{planned:#?}");
    stage.run_on("n1", 1, 40_000).await;
    stage.run_on("n2", 1, 40_000).await;
    let blocked = stage.begin("n1", json!({"dry_run": true})).await;
    assert_eq!(blocked.state, DrainState::Blocked);
    let read = stage.server.get(&stage.operator, "/v1/nodes/n1/drain").await;
    read.problem(409, "not_draining");
    assert!(stage.server.control.moves.drains.nodes().is_empty());
    stage.server.stop().await;
}
