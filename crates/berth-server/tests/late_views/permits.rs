//! Sizes of instances that run, and places held for those that move: a late server decides by what there is.

use berth_api::Role;
use berth_engine::{Amounts, NodeFacts, Ratios, Timestamp};
use berth_ledger::{Answer, Op, Outcome};
use serde_json::{Value, json};

use crate::common::{Server, TENANT};
use crate::servers::TwoServers;

/// Rows of the table about these, each with a test below.
pub(crate) const INPUTS: [&str; 5] = [
    "permits: policy in force",
    "permits: facts of the node",
    "permits: where the instance is",
    "places held for moves: facts of the node",
    "places held for moves: policy in force",
];

/// A node whose CPU is given out four times over.
fn facts(server: &Server, id: &str, cpu_milli: u32) -> NodeFacts {
    let mut facts = NodeFacts::new(id, Amounts::new(cpu_milli, 65_536).with_disk(1 << 20));
    facts.heartbeat_at = Timestamp(server.control.now().as_second());
    facts.ratios = Ratios { cpu_permille: 4000, memory_permille: 1000, disk_permille: 1000 };
    facts
}

async fn put_node(server: &Server, facts: NodeFacts) {
    let answer = server.control.submit(Op::put_node(facts)).await.unwrap();
    assert_eq!(answer, Answer::Outcome(Outcome::Done));
    server.control.wait_for_read_your_writes().await;
}

/// A policy by which sizes are multiples of so much CPU, and of more on special nodes.
fn units(cpu_milli: u32) -> String {
    let special = 4 * cpu_milli;
    format!(
        "name = \"u{cpu_milli}\"\n[scores]\nmemory-pack = 1\n\
         [elastic]\ncompute_unit = {{ cpu_milli = {cpu_milli}, memory_mib = 256 }}\n\
         [[elastic.nodes]]\nlabels = {{ kind = \"special\" }}\n\
         compute_unit = {{ cpu_milli = {special}, memory_mib = 256 }}\n"
    )
}

async fn activate(server: &Server, token: &str, toml: &str) {
    let stored = server.post(token, "/v1/policies", &json!({ "toml": toml })).await;
    let hash = stored.json()["hash"].as_str().unwrap_or_else(|| panic!("{stored:?}")).to_owned();
    let path = format!("/v1/policies/{hash}/activate");
    server.post(token, &path, &json!({})).await.expect(200);
}

/// Places an elastic instance of one core and has it run. Returns its id.
async fn run(server: &Server, token: &str) -> String {
    let instance = json!({
        "resources": {"cpu_milli": 1000, "memory_mib": 1024, "disk_mib": 64},
        "elastic": {
            "min": {"cpu_milli": 250, "memory_mib": 256},
            "max": {"cpu_milli": 32_000, "memory_mib": 32_768},
        },
    });
    let request = json!({"tenant": TENANT, "lease_s": 3600, "instances": [instance]});
    let placed = server.post(token, "/v1/placements", &request).await.expect(201).json();
    let placed = &placed["instances"][0];
    let id = placed["instance"].as_str().unwrap().to_owned();
    for step in ["bind", "activate"] {
        let path = format!("/v1/claims/{id}/{step}");
        server.post(token, &path, &json!({ "fence": placed["fence"] })).await.expect(200);
    }
    id
}

/// What the late server answers to a wish for so much.
async fn ask_late(servers: &TwoServers, id: &str, cpu_milli: u32) -> Value {
    let wish = json!({"resources": {"cpu_milli": cpu_milli, "memory_mib": 1024}});
    let path = format!("/v1/instances/{id}/permit");
    servers.late.post(&servers.token, &path, &wish).await.expect(200).json()
}

/// Two servers that know an instance on `n1`, and its id.
async fn with_instance() -> (TwoServers, String) {
    let made = std::cell::RefCell::new((String::new(), String::new()));
    let servers = TwoServers::start(async |first, _| {
        let operator = first.token(Role::Operator).await;
        activate(first, &operator, &units(250)).await;
        put_node(first, facts(first, "n1", 16_000)).await;
        *made.borrow_mut() = (run(first, &operator).await, operator);
        put_node(first, facts(first, "n2", 16_000)).await;
    })
    .await;
    let (id, token) = made.into_inner();
    (TwoServers { token, ..servers }, id)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_late_server_permits_by_the_policy_in_force() {
    let (servers, id) = with_instance().await;
    activate(&servers.first, &servers.token, &units(1000)).await;
    let permit = ask_late(&servers, &id, 1000).await;
    assert_eq!(permit["compute_unit"]["cpu_milli"], 1000, "{permit}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_late_server_permits_by_the_facts_of_the_node() {
    let (servers, id) = with_instance().await;
    // The host was counted wrong: it has a quarter of the cores.
    put_node(&servers.first, facts(&servers.first, "n1", 4000)).await;
    let permit = ask_late(&servers, &id, 12_000).await;
    assert_eq!(permit["permit"]["cpu_milli"], 4000, "{permit}");
    assert_eq!(permit["limited_by"], "host", "{permit}");
    let labels = [("kind".to_owned(), "special".to_owned())].into_iter().collect();
    put_node(&servers.first, NodeFacts { labels, ..facts(&servers.first, "n1", 4000) }).await;
    let permit = ask_late(&servers, &id, 4000).await;
    assert_eq!(permit["compute_unit"]["cpu_milli"], 1000, "{permit}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_late_server_permits_an_instance_that_it_has_not_heard_of_by_the_rules_of_its_node() {
    let (servers, _) = with_instance().await;
    let labels = [("kind".to_owned(), "special".to_owned())].into_iter().collect();
    put_node(&servers.first, NodeFacts { labels, ..facts(&servers.first, "n1", 16_000) }).await;
    let id = run(&servers.first, &servers.token).await;
    let permit = ask_late(&servers, &id, 1000).await;
    assert_eq!(permit["compute_unit"]["cpu_milli"], 1000, "{permit}");
    assert_eq!(permit["max"]["cpu_milli"], 32_000, "{permit}");
}

/// Has the late server move the instance to `n2`. Returns the state of the migration, and why.
async fn migrate_late(servers: &TwoServers, id: &str) -> (String, Value) {
    let path = format!("/v1/instances/{id}/migrate");
    let reply = servers.late.post(&servers.token, &path, &json!({ "to": "n2" })).await;
    assert!(reply.status.is_success(), "{}", reply.text);
    let migration = reply.json();
    (migration["state"].as_str().unwrap_or_default().to_owned(), migration["message"].clone())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_late_server_holds_a_place_on_a_node_that_has_changed_if_it_can_take_it() {
    let (servers, id) = with_instance().await;
    let labels = [("kind".to_owned(), "special".to_owned())].into_iter().collect();
    put_node(&servers.first, NodeFacts { labels, ..facts(&servers.first, "n2", 16_000) }).await;
    let (state, why) = migrate_late(&servers, &id).await;
    assert_eq!(state, "target_held", "{why}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_late_server_holds_no_place_on_a_node_that_takes_no_more() {
    let (servers, id) = with_instance().await;
    let facts = NodeFacts { reserved: true, ..facts(&servers.first, "n2", 16_000) };
    put_node(&servers.first, facts).await;
    let (state, why) = migrate_late(&servers, &id).await;
    assert_eq!(state, "failed", "{why}");
    assert!(why.to_string().contains("cannot take it"), "{why}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_late_server_holds_a_place_by_the_policy_in_force() {
    let (servers, id) = with_instance().await;
    activate(&servers.first, &servers.token, &units(1000)).await;
    let (state, why) = migrate_late(&servers, &id).await;
    assert_eq!(state, "target_held", "{why}");
}
