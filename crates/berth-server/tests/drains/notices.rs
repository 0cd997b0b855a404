use berth_api::DrainState;
use berth_engine::workload::HostState;
use serde_json::json;

use crate::stage::Stage;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_notice_with_a_sign_of_life_empties_the_node_at_once() {
    let stage = Stage::new(&["n1", "n2"]).await;
    let agent = stage.server.agent("n1").await;
    let id = stage.run_on("n1", 1, 256).await.remove(0);
    let beat = json!({"reclaim": {"in_s": 120}});
    let path = "/v1/nodes/n1/heartbeat";
    let heard = stage.server.post(&agent, path, &beat).await.expect(200).json();
    assert_eq!(heard["state"], "draining");
    let node = berth_engine::NodeId::new("n1");
    let drains = &stage.server.control.moves.drains;
    let urgency = drains.urgency(&node, stage.server.control.now());
    assert_eq!(urgency, HostState::Reclaimed);
    let first = stage.until_with_agent("n1", |drain| drain.state == DrainState::Done).await;
    assert!(first.reclaimed);
    assert_eq!(first.reason.as_deref(), Some("spot_reclaim"));
    assert_eq!(stage.claim(&id).await["node"], "n2");
    // Said with every sign of life, it changes nothing more.
    let revision = drains.get(&node).unwrap().revision;
    for _ in 0..3 {
        stage.server.post(&agent, path, &beat).await.expect(200);
    }
    let again = stage.drain("n1").await;
    assert_eq!((again.since, again.deadline), (first.since, first.deadline));
    assert_eq!(drains.get(&node).unwrap().revision, revision);
    stage.server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_learns_of_it_may_say_so_of_its_own_nodes() {
    let stage = Stage::new(&["n1", "n2"]).await;
    let agent = stage.server.agent("n1").await;
    let tenant = stage.server.tenant("acme").await;
    let body = json!({"in_s": 30});
    let (own, others) = ("/v1/nodes/n1/reclaim", "/v1/nodes/n2/reclaim");
    stage.server.post(&agent, others, &body).await.problem(404, "not_found");
    stage.server.post(&tenant, own, &body).await.problem(403, "not_allowed");
    let drain = stage.server.post(&agent, own, &body).await.expect(200).json();
    assert_eq!(drain["reclaimed"], true);
    stage.server.post(&stage.operator, others, &json!({})).await.expect(200);
    assert!(stage.drain("n2").await.deadline.is_none());
    stage.server.stop().await;
}
