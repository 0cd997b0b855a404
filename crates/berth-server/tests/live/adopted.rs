//! Checks of a dump with instances that agents found: they are no violations, whichever way they came.

use berth_control::debug::{Dump, Invariant, check};
use berth_engine::NodeId;
use berth_ledger::Role as ClaimRole;
use serde_json::{Value, json};

use crate::stage::{Stage, elastic};

/// An id as hypervisors make them, which Berth has never seen.
const FOUND: &str = "8f14e45f-ceea-467f-a8b3-0c9d1d1a7e11";

/// What the agent of a node is answered about an instance that it found.
async fn report(stage: &Stage, node: &str, id: &str) -> Value {
    let agent = stage.server.agent(node).await;
    let resources = json!({"cpu_milli": 500, "memory_mib": 512});
    let found = json!({"tenant": "acme", "resources": resources});
    let body = json!({"running": [{"instance": id, "state": "running", "found": found}]});
    let path = format!("/v1/nodes/{node}/heartbeat");
    let answer = stage.server.post(&agent, &path, &body).await.expect(200).json();
    stage.server.control.wait_for_read_your_writes().await;
    answer["reported"][0].clone()
}

fn broken(dump: &Dump) -> Vec<Invariant> {
    check(dump).violations.iter().map(|violation| violation.invariant).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_agents_found_is_sound_on_its_node_and_on_the_target_of_a_migration() {
    let stage = Stage::new(&["n1"]).await;
    // A real report: by the node's own agent, of an instance that was never placed.
    assert_eq!(report(&stage, "n1", FOUND).await["state"], "active");
    assert_eq!(broken(&stage.dump().await), []);

    // The agent of the second node reports an instance that is on its way there.
    let (moving, _) = stage.run(elastic((1000, 1024), (2000, 4096))).await;
    for node in ["n2", "n3"] {
        stage.add_node(node).await;
    }
    stage.server.post(&stage.operator, "/v1/nodes/n3/cordon", &json!({})).await.expect(200);
    let path = format!("/v1/instances/{moving}/migrate");
    stage.server.post(&stage.operator, &path, &json!({})).await.expect(200);
    let reported = report(&stage, "n2", &moving).await;
    assert!(reported.get("refused").is_none(), "{reported}");
    // One that has no part in it is told that it is elsewhere.
    assert_eq!(report(&stage, "n3", &moving).await["refused"], "instance_elsewhere");
    let dump = stage.dump().await;
    assert_eq!(broken(&dump), []);
    assert!(dump.claims.iter().any(|claim| claim.role == ClaimRole::MigrationTarget));
    stage.server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_place_that_an_earlier_version_recorded_for_an_agent_is_no_violation() {
    let stage = Stage::new(&["n1", "n2"]).await;
    report(&stage, "n1", FOUND).await;
    let mut dump = stage.dump().await;
    let mut second = dump.claims[0].clone();
    assert!(second.request_id.starts_with("adopt-"), "{}", second.request_id);
    (second.role, second.node) = (ClaimRole::MigrationTarget, NodeId::new("n2"));
    dump.claims.push(second);
    assert!(!broken(&dump).contains(&Invariant::MigrationRecord));
    // Of any other request, it is one.
    if let Some(second) = dump.claims.last_mut() {
        second.request_id = "adopt-of-another".to_owned();
    }
    assert!(broken(&dump).contains(&Invariant::MigrationRecord));
    stage.server.stop().await;
}
