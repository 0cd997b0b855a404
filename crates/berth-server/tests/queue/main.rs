//! The queue of waiting requests: what a request id stands for, and what a long queue costs.

#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

mod child;
mod clocks;
#[path = "../common/mod.rs"]
mod common;
mod cost;
mod fences;
mod kill;
mod order;
mod request_ids;

use serde_json::{Value, json};

use crate::common::Server;

/// All of a node's memory but what is taken per instance.
pub(crate) const WHOLE_NODE_MIB: u32 = 65_000;

/// A request that may wait.
pub(crate) fn waiting_request(tenant: &str, request_id: &str, memory_mib: u32) -> Value {
    json!({
        "tenant": tenant, "request_id": request_id, "mode": "wait", "wait_s": 600, "lease_s": 3600,
        "instances": [{"resources": {"memory_mib": memory_mib}}],
    })
}

/// Takes all of the only node, and returns the claim that does.
pub(crate) async fn fill(server: &Server, token: &str) -> String {
    let full = json!({"tenant": "full", "lease_s": 3600,
        "instances": [{"resources": {"memory_mib": WHOLE_NODE_MIB}}]});
    let placed = server.post(token, "/v1/placements", &full).await.expect(201).json();
    text(&placed["instances"][0]["instance"])
}

/// Ends a claim.
pub(crate) async fn free(server: &Server, token: &str, instance: &str) {
    let path = format!("/v1/claims/{instance}/release");
    server.post(token, &path, &json!({"confirmed": true})).await.expect(200);
}

/// Waits until a ticket is in this state.
pub(crate) async fn wait_for_state(server: &Server, token: &str, id: &str, state: &str) -> Value {
    for _ in 0..60 {
        let path = format!("/v1/queue/{id}?wait_s=1");
        let ticket = server.get(token, &path).await.expect(200).json();
        if ticket["state"] == state {
            return ticket;
        }
    }
    panic!("{id} does not become {state}");
}

/// A text of a document.
pub(crate) fn text(value: &Value) -> String {
    value.as_str().unwrap_or_else(|| panic!("no text: {value}")).to_owned()
}
