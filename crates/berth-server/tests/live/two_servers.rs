//! Two servers on one PostgreSQL: what one puts in force, the other goes by.

use std::time::Duration;

use berth_control::debug::check;
use berth_ledger::Backend;
use berth_pgtemp::TempPostgres;
use serde_json::json;

use crate::common::Server;
use crate::stage::{Stage, elastic};

/// How long anything may take: debug builds on a busy machine are slow.
const PATIENCE: Duration = Duration::from_secs(60);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_policy_put_in_force_on_one_server_is_what_the_other_grants_and_places_by() {
    let postgres = TempPostgres::start(berth_pgtemp::Options::quick()).unwrap();
    let url = postgres.create_database("berth").unwrap();
    let open = || {
        let backend = Backend::parse(&url).unwrap();
        Server::start_with(move |options| options.backend = backend)
    };
    let one = Stage::on(open().await, &["n1"]).await;
    let other = Stage::on(open().await, &[]).await;
    let unit = |name: &str, unit: u32, score: &str| {
        format!(
            "name = \"{name}\"\n[scores]\n{score} = 1\n[elastic]\n\
             compute_unit = {{ cpu_milli = {unit}, memory_mib = 512 }}\n"
        )
    };
    one.activate(&unit("before", 250, "memory-pack")).await;
    let (id, _) = one.run(elastic((1000, 4096), (8000, 8192))).await;
    one.add_node("n2").await;

    let mut times = Vec::new();
    for (name, milli, score) in
        [("a", 500, "memory-spread"), ("b", 250, "memory-pack"), ("c", 1000, "memory-spread")]
    {
        one.activate(&unit(name, milli, score)).await;
        let began = tokio::time::Instant::now();
        // The same size again says only that all is well, and tells the unit: the new one, at once.
        let told = other.ask(&id, 1000, 4096).await;
        assert_eq!(told["compute_unit"]["cpu_milli"], milli, "{told}");
        times.push(began.elapsed());
        let small = json!({"resources": {"cpu_milli": 500, "memory_mib": 512, "disk_mib": 64}});
        let wanted = if score == "memory-pack" { "n1" } else { "n2" };
        while other.would_go(&small).await != wanted {
            assert!(began.elapsed() < PATIENCE, "{wanted}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let events = other.server.get(&other.operator, "/v1/events?limit=1000").await;
        assert!(events.text.contains("policy.changed"), "{}", events.text);
    }
    // What is inside each of them agrees with the ledger that they share.
    for stage in [&one, &other] {
        let dump = stage.dump().await;
        let checked = check(&dump);
        assert_eq!(
            (checked.nodes, checked.claims, checked.violations.len()),
            (2, 1, 0),
            "{checked:?}"
        );
        assert_eq!(dump.policy.unwrap().name, "c");
    }
    println!("seen by a permit on the other server after {times:?}");
    one.server.stop().await;
    other.server.stop().await;
}

/// The states that a node has had, oldest first.
async fn states(stage: &Stage, node: &str) -> Vec<String> {
    let events =
        stage.server.get(&stage.operator, "/v1/events?limit=1000").await.expect(200).json();
    let events = events["items"].as_array().unwrap().iter();
    let changes = events.filter(|it| it["kind"] == "node.state" && it["body"]["node_id"] == node);
    changes.map(|event| event["body"]["state"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_returns_to_one_server_is_not_lost_again_by_another() {
    let postgres = TempPostgres::start(berth_pgtemp::Options::quick()).unwrap();
    let url = postgres.create_database("berth").unwrap();
    let open = || {
        let backend = Backend::parse(&url).unwrap();
        Server::start_with(move |options| {
            options.backend = backend;
            options.settings.heartbeat_every = Duration::from_secs(1);
            // Longer than the second server needs to read of a heartbeat that the first received.
            options.settings.lost_after = Duration::from_secs(8);
        })
    };
    let nodes: Vec<String> = (0..8).map(|number| format!("n{number}")).collect();
    let one = Stage::on(open().await, &[]).await;
    for node in &nodes {
        one.add_node(node).await;
    }
    let other = Stage::on(open().await, &[]).await;
    let began = tokio::time::Instant::now();
    for node in &nodes {
        while states(&one, node).await != ["lost"] {
            assert!(began.elapsed() < PATIENCE, "{node} is never lost");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
    // They return one after the other, and say so to the first server only: each at another time
    // between two reads of heartbeats by the second.
    let report = async |nodes: &[String]| {
        for node in nodes {
            let path = format!("/v1/nodes/{node}/heartbeat");
            one.server.post(&one.operator, &path, &json!({})).await.expect(200);
        }
        tokio::time::sleep(Duration::from_millis(250)).await;
    };
    for count in 1..=nodes.len() {
        report(&nodes[..count]).await;
    }
    let keep_reporting = async {
        loop {
            report(&nodes).await;
        }
    };
    tokio::select! {
        () = keep_reporting => {}
        () = other.server.wait_for_loop_pass("liveness") => {}
    }
    for node in &nodes {
        assert_eq!(states(&other, node).await, ["lost", "active"], "{node} flaps");
    }
    one.server.stop().await;
    other.server.stop().await;
}
