//! A policy that changes under running instances (rule R10): nothing is taken away, nothing is
//! subtracted unchecked, and what agents were told last is what they are held to.

use serde_json::json;

use crate::stage::{Stage, elastic, size};

fn policy(name: &str, elastic: &str) -> String {
    format!("name = \"{name}\"\n[scores]\nmemory-pack = 1\n[elastic]\n{elastic}")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reserve_above_what_is_used_takes_nothing_and_lets_nothing_grow_until_it_holds() {
    let stage = Stage::new(&["n1"]).await;
    stage.activate(&policy("plain", "")).await;
    let (id, _) = stage.run(elastic((4000, 4096), (8000, 8192))).await;

    let system = "[[elastic.nodes]]\nsystem = { cpu_milli = 14000, memory_mib = 1024 }\n";
    stage.activate(&policy("kept", system)).await;
    stage.account_is("n1", |account| account["cpu"]["system"] == 14_000).await;
    let account = stage.account("n1").await;
    // 4,000 are reserved of 2,000 that may be: nobody is asked to give anything back.
    assert_eq!(account["cpu"]["reserved"], 4000);
    assert_eq!(account["cpu"]["watermark"], 1800);
    let kept = stage.server.get(&stage.operator, &format!("/v1/instances/{id}/permit")).await;
    assert_eq!(size(&kept.expect(200).json()["permit"]), (4000, 4096));

    let denied = stage.ask(&id, 4250, 5120).await;
    assert_eq!(size(&denied["permit"]), (4000, 4096), "{denied}");
    assert_eq!(
        (&denied["limited_by"], denied["capacity_pressure"]["cpu_milli"].as_u64()),
        (&json!("node"), Some(250))
    );
    // Still above: a step down is taken, a step up from there is not.
    assert_eq!(size(&stage.ask(&id, 3000, 4096).await["permit"]), (3000, 4096));
    assert_eq!(size(&stage.ask(&id, 3250, 5120).await["permit"]), (3000, 4096));
    assert_eq!(size(&stage.ask(&id, 1000, 1024).await["permit"]), (1000, 1024));
    // It holds again, so there is growth up to what may be given, and no further.
    assert_eq!(size(&stage.ask(&id, 2000, 2048).await["permit"]), (2000, 2048));
    assert_eq!(size(&stage.ask(&id, 2250, 3072).await["permit"]), (2000, 2048));

    stage.roll_back().await;
    stage.account_is("n1", |account| account["cpu"]["system"] == 0).await;
    assert_eq!(size(&stage.ask(&id, 4000, 4096).await["permit"]), (4000, 4096));
    stage.server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_unit_holds_for_the_request_after_the_one_that_told_it() {
    let stage = Stage::new(&["n1"]).await;
    let unit = |cpu: u32, memory: u32| {
        format!("compute_unit = {{ cpu_milli = {cpu}, memory_mib = {memory} }}\n")
    };
    stage.activate(&policy("small", &unit(250, 512))).await;
    let (id, _) = stage.run(elastic((1000, 1024), (8000, 8192))).await;
    let told = stage.ask(&id, 1250, 1536).await;
    assert_eq!(size(&told["compute_unit"]), (250, 512));

    stage.activate(&policy("large", &unit(1000, 1024))).await;
    // No multiple of the new unit, but of the one that was told last: it is taken.
    let told = stage.ask(&id, 1500, 2048).await;
    assert_eq!(size(&told["compute_unit"]), (1000, 1024), "{told}");
    let path = format!("/v1/instances/{id}/permit");
    let odd = json!({"resources": {"cpu_milli": 2250, "memory_mib": 2048}});
    let refused = stage.server.post(&stage.operator, &path, &odd).await;
    assert_eq!(refused.status.as_u16(), 400, "{}", refused.text);
    assert!(refused.text.contains("1000"), "{}", refused.text);
    assert_eq!(stage.ask(&id, 3000, 4096).await["seq"], 3, "the refused one changed nothing");
    stage.server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn watermarks_and_weights_hold_with_the_next_look_and_can_be_taken_back() {
    let stage = Stage::new(&["n1"]).await;
    stage.activate(&policy("plain", "")).await;
    let (_, first) = stage.run(elastic((4000, 16_384), (8000, 32_768))).await;
    assert_eq!(first, "n1");
    stage.add_node("n2").await;

    let lower = "migration = { enabled = false }\nwatermark = { cpu_permille = 100, memory_permille = 100 }\n";
    stage.activate(&policy("low", lower)).await;
    assert_eq!(stage.account("n1").await["cpu"]["watermark"], 1600);
    let pressure = stage.server.get(&stage.operator, "/v1/pressure").await.expect(200).json();
    assert_eq!(
        (&pressure["nodes"][0]["node"], &pressure["nodes"][0]["must_shed"]),
        (&json!("n1"), &json!(true)),
        "{pressure}"
    );
    stage.roll_back().await;
    assert_eq!(stage.account("n1").await["cpu"]["watermark"], 14_400);
    let pressure = stage.server.get(&stage.operator, "/v1/pressure").await.expect(200).json();
    assert_eq!(pressure["nodes"], json!([]));

    let small = json!({"resources": {"cpu_milli": 500, "memory_mib": 512, "disk_mib": 64}});
    stage.activate("name = \"tight\"\n[scores]\nmemory-pack = 5\n").await;
    assert_eq!(stage.would_go(&small).await, "n1");
    stage.activate("name = \"wide\"\n[scores]\nmemory-spread = 5\n").await;
    assert_eq!(stage.would_go(&small).await, "n2");
    stage.roll_back().await;
    assert_eq!(stage.would_go(&small).await, "n1");
    stage.server.stop().await;
}
