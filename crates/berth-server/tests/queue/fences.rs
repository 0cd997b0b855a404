//! A fence says which of two placements of an instance is the later one, whatever clocks do.

use berth_api::Role;
use serde_json::{Value, json};

use crate::request_ids::reopen;
use crate::text;

/// An hour, in the microseconds that fences are made of.
const HOUR_US: i64 = 3_600_000_000;

#[tokio::test]
async fn an_instance_placed_again_elsewhere_has_a_higher_fence_though_the_clock_was_put_back() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ledger.db");
    let server = reopen(&path).await;
    let token = server.token(Role::Admin).await;
    server.add_node("n1").await;
    let request = |id: &str| {
        json!({"tenant": "acme", "request_id": id, "lease_s": 3600, "instances": [
            {"id": "0196d3c4-7a10-7000-8000-000000000001", "resources": {"memory_mib": 4096}}]})
    };
    let place = async |server: &crate::common::Server, id: &str| -> Value {
        let placed = server.post(&token, "/v1/placements", &request(id)).await.expect(201).json();
        placed["instances"][0].clone()
    };
    let earlier = place(&server, "earlier").await;
    let release = format!("/v1/claims/{}/release", text(&earlier["instance"]));
    server.post(&token, &release, &json!({"confirmed": true})).await.expect(200);
    server.stop().await;

    // As if the database's clock had been an hour ahead so far.
    let ledger = rusqlite::Connection::open(&path).unwrap();
    ledger.execute("UPDATE node_room SET fence = fence + ?1", [HOUR_US]).unwrap();
    drop(ledger);
    let server = reopen(&path).await;
    let before = place(&server, "before").await;
    assert!(before["fence"].as_i64() > earlier["fence"].as_i64().map(|it| it + HOUR_US / 2));
    server.post(&token, &release, &json!({"confirmed": true})).await.expect(200);
    server.post(&token, "/v1/nodes/n1/cordon", &json!({})).await.expect(200);
    server.add_node("n2").await;
    let after = place(&server, "after").await;
    assert_eq!(after["node"], "n2");
    assert!(after["fence"].as_i64() > before["fence"].as_i64(), "{after} after {before}");
    server.stop().await;
}
