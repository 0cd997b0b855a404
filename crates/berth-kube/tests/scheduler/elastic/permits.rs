//! Permits of virtual machines: granted, limited, stored, and known to the next leader.

use std::time::Duration;

use berth_kube::scheduler::{Options, run};
use berth_kube_fake::Faults;
use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::support::{ElasticReplica, add_vm, ask, cluster, run_vm, runner, stored, wire};
use crate::support::{add, add_nodes, add_pod, bound, candidate, client, is_bound, settings};

#[tokio::test]
async fn a_permit_is_stored_before_it_is_answered_and_the_node_is_charged() {
    let fake = cluster().await;
    add_nodes(&fake, &["n1"], 8_000).await;
    let berth = ElasticReplica::start(&fake, |_| {}).await;
    run_vm(&fake, "db", 1, json!({})).await;
    add_pod(&fake, "other", 2_000).await;
    bound(&fake, "other").await;
    berth.granted("db", 4, 4).await;
    assert_eq!(stored(&fake, "db")["granted"], json!({"cpu_milli": 4000, "memory_mib": 4096}));
    // 2 are left, and the rest is pressure.
    berth.granted("db", 8, 6).await;
    assert_eq!(stored(&fake, "db")["granted"]["cpu_milli"], json!(6000));
    let state = berth.state().await;
    let account = &state["nodes"]["n1"]["account"]["cpu"];
    assert_eq!((account["reserved"].as_i64(), account["other"].as_i64()), (Some(8000), Some(2000)));
    assert_eq!(account["watermark"], json!(7200));
    assert!(account["capacity_pressure"].as_i64() > Some(0), "{account}");
    assert_eq!(state["pods"]["default/db"]["permit"]["load_milli"], json!(500));
    // It shrinks, and the next one fits.
    let (_, answer) = berth.ask("db", 2).await;
    assert_eq!(answer, json!({"permit": {"vCPUs": 2, "mem": "2Gi"}}));
    add_pod(&fake, "late", 4_000).await;
    bound(&fake, "late").await;
    berth.replica.stop().await;
}

#[tokio::test]
async fn a_permit_that_cannot_be_stored_is_not_given_and_its_room_is_not_lost() {
    let fake = cluster().await;
    add_nodes(&fake, &["n1"], 8_000).await;
    let berth = ElasticReplica::start(&fake, |_| {}).await;
    run_vm(&fake, "db", 1, json!({})).await;
    berth.granted("db", 1, 1).await;
    let only = Some("virtualmachines.vm.neon.tech".to_owned());
    fake.set_faults(Faults { error_rate_permille: 1_000, only, ..Faults::default() });
    let (code, answer) = berth.ask("db", 6).await;
    assert_eq!(code, 500, "{answer}");
    assert_eq!(stored(&fake, "db")["granted"]["cpu_milli"], json!(1000));
    // Whether it was stored is not known, so that its room is held.
    let held = |state: &serde_json::Value| {
        let permit = &state["pods"]["default/db"]["permit"];
        permit["granted"]["cpu_milli"] == json!(1000)
            && permit["buffer"]["cpu_milli"] == json!(5000)
    };
    berth.until("the room is held", held).await;
    fake.clear_faults();
    berth.granted("db", 6, 6).await;
    berth.granted("db", 1, 1).await;
    add_pod(&fake, "other", 7_000).await;
    bound(&fake, "other").await;
    berth.replica.stop().await;
}

#[tokio::test]
async fn a_new_leader_knows_what_the_killed_one_granted() {
    let fake = cluster().await;
    add_nodes(&fake, &["n1"], 10_000).await;
    let (mut listener, identity) = (None, "first");
    let address = wire(&mut listener).await;
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    let runtime = builder.worker_threads(1).enable_all().build().unwrap();
    let mut options = Options::new(client(&fake), settings(), identity);
    (options.lease, options.wire) = (
        Some(candidate(identity)),
        listener.map(|it| {
            let listener = it.listener.into_std().unwrap();
            let _guard = runtime.enter();
            let listener = tokio::net::TcpListener::from_std(listener).unwrap();
            berth_kube::wire::WireListener { listener, tokens: None }
        }),
    );
    runtime.spawn(run(options, CancellationToken::new()));
    run_vm(&fake, "db", 1, json!({})).await;
    let mut asked = (0, json!(null));
    for _ in 0..100 {
        asked = ask(&address, "db", 4, json!({})).await;
        if asked.0 == 200 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert_eq!(asked.1["permit"]["vCPUs"], json!(4), "{asked:?}");
    // A machine whose agent never asked: nobody knows what it was promised.
    run_vm(&fake, "silent", 1, json!({})).await;
    runtime.shutdown_background();
    let second = ElasticReplica::start(&fake, |options| {
        options.lease = Some(candidate("second"));
    })
    .await;
    let state = second.until("it leads", |it| it["counts"]["leader"] == json!(true)).await;
    let permit = |pod: &str| state["pods"][pod]["permit"].clone();
    assert_eq!(permit("default/db")["granted"]["cpu_milli"], json!(4000));
    assert!(permit("default/db").get("buffer").is_none(), "{:#}", permit("default/db"));
    let silent = permit("default/silent");
    assert_eq!(
        (&silent["uncertain"], &silent["buffer"]["cpu_milli"]),
        (&json!(true), &json!(7000))
    );
    // 4 of the one and 8 of the other are more than there is: nothing is given twice.
    add_pod(&fake, "other", 1_000).await;
    second.granted("silent", 1, 1).await;
    bound(&fake, "other").await;
    second.replica.stop().await;
}

#[tokio::test]
async fn versions_of_the_first_agents_are_told_the_unit_and_unknown_ones_the_range() {
    let fake = cluster().await;
    add_nodes(&fake, &["n1"], 8_000).await;
    let berth = ElasticReplica::start(&fake, |_| {}).await;
    run_vm(&fake, "db", 1, json!({})).await;
    berth.granted("db", 1, 1).await;
    let first = json!({"protoVersion": 1, "resources": {"vCPUs": 3, "mem": 3}});
    let (code, answer) = berth.ask_with("db", 3, first.clone()).await;
    let expected = json!({
        "permit": {"vCPUs": 3, "mem": 3}, "resourceUnit": {"vCPUs": 1, "mem": 1},
    });
    assert_eq!((code, answer), (200, expected));
    let fourth = json!({
        "protoVersion": 4, "resources": {"vCPUs": "3500m", "mem": 4},
        "lastPermit": {"vCPUs": 3, "mem": 3},
    });
    let (code, answer) = berth.ask_with("db", 4, fourth).await;
    assert_eq!(code, 400, "not a multiple of the unit that it was told: {answer}");
    assert!(answer.as_str().unwrap().contains("multiples of 1000"), "{answer}");
    for version in [0, 8] {
        let (code, answer) = berth.ask_with("db", 3, json!({"protoVersion": version})).await;
        assert_eq!(code, 400);
        assert!(answer.as_str().unwrap().contains("accepted is 1 to 7"), "{answer}");
    }
    berth.replica.stop().await;
}

#[tokio::test]
async fn a_request_for_a_pod_that_is_not_elastic_or_not_there_is_refused() {
    let fake = cluster().await;
    add_nodes(&fake, &["n1"], 2_000).await;
    let berth = ElasticReplica::start(&fake, |_| {}).await;
    add_pod(&fake, "plain", 100).await;
    bound(&fake, "plain").await;
    berth.until("it is known", |it| it["pods"]["default/plain"]["node"] == json!("n1")).await;
    let (code, answer) = berth.ask("plain", 1).await;
    assert_eq!(code, 400);
    assert!(answer.as_str().unwrap().contains("berth.dev/elastic-min"), "{answer}");
    assert_eq!(berth.ask("nobody", 1).await.0, 404);
    // A machine that has no node yet.
    add_vm(&fake, "large", 8, json!({})).await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    add(&fake, runner("large", "large")).await;
    assert_eq!(berth.ask("large", 8).await.0, 404);
    assert!(!is_bound(&fake, "large"));
    berth.replica.stop().await;
}
