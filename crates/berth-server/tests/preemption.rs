//! Preemption over HTTP: who is proposed to whom, and that one commit releases and places.

#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

mod common;

use berth_api::Role;
use common::{NODE, Server, wait_until};
use serde_json::{Value, json};

const PROPOSE: &str = "/v1/placements/preemption";
const APPLY: &str = "/v1/placements/preemption/apply";

/// A server with one node of 64 GiB.
async fn one_node() -> (Server, String) {
    let server = Server::start().await;
    server.add_node(NODE).await;
    let operator = server.token(Role::Operator).await;
    (server, operator)
}

fn request(tenant: &str, name: &str, memory_mib: u32, priority: i32) -> Value {
    let resources = json!({"cpu_milli": 100, "memory_mib": memory_mib, "disk_mib": 128});
    let spec = json!({"name": name, "resources": resources, "priority": priority});
    json!({"tenant": tenant, "request_id": format!("{tenant}-{name}"), "instances": [spec]})
}

/// Places an instance and has it run.
async fn run(server: &Server, operator: &str, request: &Value) -> Value {
    let placed = server.post(operator, "/v1/placements", request).await.expect(201).json();
    let placed = placed["instances"][0].clone();
    let path = format!("/v1/claims/{}", placed["instance"].as_str().unwrap());
    for step in ["bind", "activate"] {
        let body = json!({"fence": placed["fence"]});
        server.post(operator, &format!("{path}/{step}"), &body).await.expect(200);
    }
    placed
}

async fn claim(server: &Server, token: &str, instance: &Value) -> Value {
    server.get(token, &format!("/v1/claims/{}", instance.as_str().unwrap())).await.json()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_of_higher_priority_is_placed_in_the_room_that_was_proposed() {
    let (server, operator) = one_node().await;
    let low = run(&server, &operator, &request("acme", "low", 40_000, 0)).await;
    let urgent = request("acme", "urgent", 40_000, 5);
    let refused = server.post(&operator, "/v1/placements", &urgent).await;
    let refused = refused.problem(409, "no_capacity_memory").json();
    let fixes = refused["refusals"][0]["fixes"].as_array().unwrap();
    let named = fixes.iter().find(|fix| fix["preempts"] == json!(true)).unwrap();
    assert_eq!(named["instances"], json!([low["instance"]]));

    let proposed = server.post(&operator, PROPOSE, &urgent).await.expect(200).json();
    let victim = &proposed["victims"][0];
    assert_eq!(victim["instance"], low["instance"]);
    assert_eq!(victim["why"], "its priority 0 is lower than 5");
    let state = claim(&server, &operator, &low["instance"]).await;
    assert_eq!(state["state"], "active", "a proposal releases nobody");

    let victims = json!([{"instance": victim["instance"], "fence": victim["fence"]}]);
    let apply = json!({"request": urgent, "victims": victims});
    let applied = server.post(&operator, APPLY, &apply).await.expect(201).json();
    assert_eq!(applied["preempted"], json!([low["instance"]]));
    let left = claim(&server, &operator, &low["instance"]).await;
    assert_eq!(
        (&left["state"], &left["resources"]["memory_mib"]),
        (&json!("releasing"), &json!(0))
    );

    // The same request is answered as before, and releases nobody else.
    let again = server.post(&operator, APPLY, &apply).await.expect(201).json();
    assert_eq!(again["preempted"], applied["preempted"]);
    assert_eq!(again["placed"]["decision"], applied["placed"]["decision"]);

    // The decision names who made room, can be derived again, and is in the audit log once.
    let id = applied["placed"]["decision"].as_str().unwrap();
    let decision = server.get(&operator, &format!("/v1/decisions/{id}")).await.expect(200).json();
    assert_eq!(decision["preempted"], json!([low["instance"]]));
    let replay = server.get(&operator, &format!("/v1/decisions/{id}/replay")).await.json();
    assert_eq!(replay["outcome"], "identical", "{replay}");
    let audit = server.get(&operator, "/v1/audit?limit=100").await.expect(200);
    let preempts = audit.each("action").into_iter().filter(|action| *action == "preempt");
    assert_eq!(preempts.count(), 1);

    // When the agent has stopped it, it is gone, and the node is as full as its claims say.
    let heartbeat = json!({"running": [{"instance": low["instance"], "fence": low["fence"],
        "state": "stopped"}]});
    server.post(&operator, &format!("/v1/nodes/{NODE}/heartbeat"), &heartbeat).await.expect(200);
    let path = format!("/v1/claims/{}", low["instance"].as_str().unwrap());
    wait_until("the victim is gone", async || {
        server.get(&operator, &path).await.status.as_u16() == 404
    })
    .await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tenant_preempts_its_own_and_learns_nothing_of_others() {
    let (server, operator) = one_node().await;
    let foreign = run(&server, &operator, &request("globex", "foreign", 30_000, 0)).await;
    let own = run(&server, &operator, &request("acme", "own", 30_000, 3)).await;
    let tenant = server.tenant("acme").await;
    let urgent = request("acme", "urgent", 30_000, 5);
    let proposed = server.post(&tenant, PROPOSE, &urgent).await.expect(200);
    assert!(!proposed.text.contains("globex"), "{}", proposed.text);
    assert_eq!(proposed.json()["victims"][0]["instance"], own["instance"]);
    // Of the whole fleet the least important goes.
    let proposed = server.post(&operator, PROPOSE, &urgent).await.expect(200).json();
    assert_eq!(proposed["victims"][0]["instance"], foreign["instance"]);

    let named = json!([{"instance": foreign["instance"], "fence": foreign["fence"]}]);
    let apply = json!({"request": urgent, "victims": named});
    server.post(&tenant, APPLY, &apply).await.problem(404, "not_found");
    // Both together would be enough for this one, but one of them is another's.
    let larger = request("acme", "larger", 50_000, 5);
    let refused = server.post(&tenant, PROPOSE, &larger).await.problem(409, "no_preemption");
    for secret in ["globex", foreign["instance"].as_str().unwrap()] {
        assert!(!refused.text.contains(secret), "{secret} in {}", refused.text);
    }
    let both = server.post(&operator, PROPOSE, &larger).await.expect(200).json();
    assert_eq!(both["victims"].as_array().unwrap().len(), 2);
    let state = claim(&server, &operator, &foreign["instance"]).await;
    assert_eq!(state["state"], "active");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn equal_priority_outdated_victims_and_requests_that_cannot_preempt_are_refused() {
    let (server, operator) = one_node().await;
    let low = run(&server, &operator, &request("acme", "low", 40_000, 5)).await;
    let equal = request("acme", "equal", 40_000, 5);
    server.post(&operator, PROPOSE, &equal).await.problem(409, "no_preemption");
    let named = |fence: &Value| json!([{"instance": low["instance"], "fence": fence}]);
    let apply = json!({"request": equal, "victims": named(&low["fence"])});
    server.post(&operator, APPLY, &apply).await.problem(400, "invalid_request");

    let urgent = request("acme", "urgent", 40_000, 6);
    let stale = json!({"request": urgent, "victims": named(&json!(1))});
    server.post(&operator, APPLY, &stale).await.problem(409, "victim_changed");
    let huge = request("acme", "huge", 60_000_000, 6);
    let apply = json!({"request": huge, "victims": named(&low["fence"])});
    server.post(&operator, APPLY, &apply).await.problem(409, "preemption_outdated");
    let mut two = urgent.clone();
    two["instances"][0]["count"] = json!(2);
    server.post(&operator, PROPOSE, &two).await.problem(400, "invalid_request");
    let mut waiting = urgent.clone();
    waiting["mode"] = json!("wait");
    let apply = json!({"request": waiting});
    server.post(&operator, APPLY, &apply).await.problem(400, "invalid_request");
    let state = claim(&server, &operator, &low["instance"]).await;
    assert_eq!(state["state"], "active", "nobody was released");

    // Where there is room nobody is preempted, whoever is named.
    let small =
        json!({"request": request("acme", "small", 1000, 6), "victims": named(&low["fence"])});
    let applied = server.post(&operator, APPLY, &small).await.expect(201).json();
    assert_eq!(applied["preempted"], json!([]));
    // Without names the server chooses.
    let applied = server.post(&operator, APPLY, &json!({"request": urgent})).await.expect(201);
    assert_eq!(applied.json()["preempted"], json!([low["instance"]]));
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_go_only_while_their_workload_can_miss_them() {
    let (server, operator) = one_node().await;
    let workload = |unavailable: u32| {
        let resources = json!({"cpu_milli": 100, "memory_mib": 30_000, "disk_mib": 128});
        json!({"replicas": 2, "template": {"resources": resources},
            "rolling": {"strategy": "rolling", "max_unavailable": unavailable, "max_surge": 1}})
    };
    let path = "/v1/workloads/acme/web";
    server.put(&operator, path, &workload(0)).await.expect(201);
    let members = async || {
        let listed = server.get(&operator, "/v1/claims?workload=web").await.expect(200).json();
        listed["items"].as_array().unwrap().clone()
    };
    wait_until("two members", async || members().await.len() == 2).await;
    for member in members().await {
        let path = format!("/v1/claims/{}", member["instance"].as_str().unwrap());
        for step in ["bind", "activate"] {
            let body = json!({"fence": member["fence"]});
            server.post(&operator, &format!("{path}/{step}"), &body).await.expect(200);
        }
    }
    let urgent = request("acme", "urgent", 30_000, 5);
    server.post(&operator, PROPOSE, &urgent).await.problem(409, "no_preemption");
    let member = members().await.remove(0);
    let victims = json!([{"instance": member["instance"], "fence": member["fence"]}]);
    let apply = json!({"request": urgent, "victims": victims});
    server.post(&operator, APPLY, &apply).await.problem(409, "too_few_running");

    server.put(&operator, path, &workload(1)).await.expect(200);
    let applied = server.post(&operator, APPLY, &json!({"request": urgent})).await.expect(201);
    assert_eq!(applied.json()["preempted"].as_array().unwrap().len(), 1);
    let larger = request("acme", "larger", 30_000, 5);
    server.post(&operator, PROPOSE, &larger).await.problem(409, "no_preemption");
    server.stop().await;
}
