//! The real agent, with processes that really run.

use std::time::Duration;

use berth_api::ReleaseClaim;
use berth_api::engine::InstanceId;

use crate::fixture::{Fixture, is_alive, processes_in, until};

/// A leader and a child, so that it matters that the whole group is stopped.
const PAIR: &str = r#"echo "$BERTH_NAME of $BERTH_TENANT, $BERTH_TAG_ROLE"; sleep 300 & sleep 300"#;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_placed_runs_and_what_is_released_is_gone() {
    let fixture = Fixture::new().await;
    let _agent = fixture.agent(&fixture.url(), PAIR).start();
    fixture.node_is_there("n1").await;
    let (instance, fence) = fixture.place(None).await;
    fixture.is_active(instance, fence).await;
    let pid = fixture.pid(instance).unwrap();
    assert!(is_alive(pid));
    assert_eq!(fixture.output(instance), "web of acme, front\n");
    fixture.client.release(instance, &ReleaseClaim::default()).await.unwrap();
    fixture.is_gone(instance).await;
    assert!(!is_alive(pid));
    assert_eq!(processes_in(fixture.folder.path()), [0_i32; 0], "children are stopped too");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_that_was_killed_finds_its_process_again_and_starts_no_second() {
    let fixture = Fixture::new().await;
    let plan = fixture.agent(&fixture.url(), PAIR);
    let agent = plan.start();
    fixture.node_is_there("n1").await;
    let (instance, fence) = fixture.place(None).await;
    fixture.is_active(instance, fence).await;
    let pid = fixture.pid(instance).unwrap();
    let before = processes_in(fixture.folder.path());
    agent.kill();
    let _agent = plan.start();
    until("the second agent spoke", async || fixture.log().matches("node registered").count() == 2)
        .await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert!(is_alive(pid));
    assert_eq!(fixture.pid(instance), Some(pid));
    assert_eq!(processes_in(fixture.folder.path()), before, "nothing was started twice");
    assert_eq!(fixture.client.claim(instance).await.unwrap().fence, fence);
    fixture.client.release(instance, &ReleaseClaim::default()).await.unwrap();
    fixture.is_gone(instance).await;
    assert!(!is_alive(pid));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_runs_under_an_old_fence_is_stopped_before_the_new_one_starts() {
    let fixture = Fixture::new().await;
    let _agent = fixture.agent(&fixture.url(), PAIR).start();
    fixture.node_is_there("n1").await;
    let id = InstanceId(uuid::Uuid::now_v7());
    let (instance, old) = fixture.place(Some(id)).await;
    fixture.is_active(instance, old).await;
    let pid = fixture.pid(instance).unwrap();
    // Somebody answers for it being gone, wrongly, and it is placed again.
    let release = ReleaseClaim { confirmed: true, ..ReleaseClaim::default() };
    fixture.client.release(instance, &release).await.unwrap();
    let (_, new) = fixture.place(Some(id)).await;
    assert!(new > old);
    fixture.is_active(instance, new).await;
    assert!(!is_alive(pid));
    let now = fixture.pid(instance).unwrap();
    assert!(now != pid && is_alive(now));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_the_server_is_away_everything_is_kept() {
    let fixture = Fixture::new().await;
    let mut detour = fixture.detour().await;
    let _agent = fixture.agent(&detour.url(), PAIR).start();
    fixture.node_is_there("n1").await;
    let (instance, fence) = fixture.place(None).await;
    fixture.is_active(instance, fence).await;
    let pid = fixture.pid(instance).unwrap();
    detour.cut().await;
    until("the agent noticed", async || fixture.log().contains("running instances are kept")).await;
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert!(is_alive(pid));
    detour.open().await;
    until("the agent came back", async || fixture.log().contains("server reachable again")).await;
    assert!(is_alive(pid));
    assert_eq!(fixture.client.claim(instance).await.unwrap().fence, fence);
    fixture.client.release(instance, &ReleaseClaim::default()).await.unwrap();
    fixture.is_gone(instance).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_that_dies_gives_its_claim_back_with_a_reason() {
    let fixture = Fixture::new().await;
    let _agent = fixture.agent(&fixture.url(), "sleep 1; exit 7").start();
    fixture.node_is_there("n1").await;
    let (instance, _) = fixture.place(None).await;
    fixture.is_gone(instance).await;
    let events = fixture.client.get_text("/v1/events?kinds=instance.released").await.unwrap();
    assert!(events.contains("ended with exit code 7"), "{events}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stopped_agent_leaves_its_instances_running_unless_told_otherwise() {
    let fixture = Fixture::new().await;
    let plan = fixture.agent(&fixture.url(), PAIR);
    let agent = plan.start();
    fixture.node_is_there("n1").await;
    let (instance, fence) = fixture.place(None).await;
    fixture.is_active(instance, fence).await;
    let pid = fixture.pid(instance).unwrap();
    agent.terminate();
    assert!(is_alive(pid));
    let agent = plan.with(&["--stop-instances"]).start();
    until("the second agent spoke", async || fixture.log().matches("node registered").count() == 2)
        .await;
    agent.terminate();
    assert!(!is_alive(pid));
    fixture.is_gone(instance).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_that_ignores_being_asked_is_killed() {
    let fixture = Fixture::new().await;
    let stubborn = "trap '' TERM; while :; do sleep 1; done";
    let _agent = fixture.agent(&fixture.url(), stubborn).start();
    fixture.node_is_there("n1").await;
    let (instance, fence) = fixture.place(None).await;
    fixture.is_active(instance, fence).await;
    fixture.client.release(instance, &ReleaseClaim::default()).await.unwrap();
    fixture.is_gone(instance).await;
    assert_eq!(processes_in(fixture.folder.path()), [0_i32; 0]);
    assert!(fixture.log().contains("killing it"), "{}", fixture.log());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wrong_token_is_said_so_and_a_second_agent_on_the_same_folder_refused() {
    let fixture = Fixture::new().await;
    let plan = fixture.agent(&fixture.url(), PAIR);
    let other = fixture.agent(&fixture.url(), PAIR).with_token("berth_nobody_nothing");
    let stranger = other.start();
    until("it is said", async || fixture.log().contains("token rejected")).await;
    let foreign = fixture.agent_token("n2");
    drop(stranger);
    let foreign = fixture.agent(&fixture.url(), PAIR).with_token(&foreign).start();
    until("it is said", async || fixture.log().contains("token not allowed for this node")).await;
    drop(foreign);
    let _agent = plan.start();
    fixture.node_is_there("n1").await;
    let _second = plan.start();
    until("it is said", async || fixture.log().contains("another agent uses")).await;
}
