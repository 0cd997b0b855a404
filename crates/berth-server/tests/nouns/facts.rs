//! Facts that agents report and facts that operators set.

use std::sync::Arc;

use berth_api::Role;
use berth_engine::{Amounts, NodeFacts, NodeId, NodeState};
use berth_ledger::{Answer, Backend, Op, Outcome};
use berth_pgtemp::TempPostgres;
use serde_json::{Value, json};

use crate::common::{NODE, Server, wait_until};

/// What the agent of a node says of it.
fn reported(node: &str) -> NodeFacts {
    let mut facts = NodeFacts::new(node, Amounts::new(16_000, 65_536).with_disk(1 << 20));
    facts.labels.insert("kernel".to_owned(), "6.1".to_owned());
    facts.labels.insert("hall".to_owned(), "1".to_owned());
    facts.zone = Some("z1".to_owned());
    facts
}

fn body(facts: &NodeFacts) -> Value {
    serde_json::to_value(facts).unwrap()
}

/// An agent that starts: it registers its node, and sends a heartbeat with facts.
async fn start_agent(server: &Server, agent: &str, facts: &NodeFacts) {
    let path = format!("/v1/nodes/{}", facts.id);
    let reply = server.put(agent, &path, &body(facts)).await;
    assert!(reply.status.is_success(), "{}", reply.text);
    let beat = json!({"facts": facts, "running": []});
    server.post(agent, &format!("{path}/heartbeat"), &beat).await.expect(200);
}

async fn patch(server: &Server, token: &str, node: &str, changes: &Value) -> Value {
    let path = format!("/v1/nodes/{node}");
    server.send(Some(token), "PATCH", &path, Some(changes), &[]).await.expect(200).json()
}

async fn import(server: &Server, token: &str, query: &str, csv: &str) -> Value {
    let client = server.client(token);
    let path = format!("/v1/nodes/import{query}");
    client.post_text(&path, "text/csv", csv.to_owned()).await.unwrap()
}

fn small() -> Value {
    let resources = json!({"cpu_milli": 100, "memory_mib": 128, "disk_mib": 128});
    json!({"instances": [{"resources": resources}]})
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_an_operator_set_survives_its_agents_restart_until_it_is_unset() {
    let server = Server::start().await;
    let (operator, agent) = (server.token(Role::Operator).await, server.token(Role::Agent).await);
    let tenant = server.token(Role::Tenant).await;
    start_agent(&server, &agent, &reported(NODE)).await;
    let set = json!({"reserved": true, "rack": "r7", "labels": {"hall": "7", "team": "infra"},
        "next_reboot": 2_000_000_000, "hardware_class": 4, "instance_limit": 3});
    let node = patch(&server, &operator, NODE, &set).await;
    let expected = json!({"hardware_class": 4, "instance_limit": 3, "labels.hall": "7",
        "labels.team": "infra", "next_reboot": 2_000_000_000, "rack": "r7", "reserved": true});
    assert_eq!(node["set"], expected);
    let below = json!({"hardware_class": 0, "instance_limit": 224, "labels.hall": "1",
        "labels.team": null, "next_reboot": null, "rack": null, "reserved": false});
    assert_eq!(node["reported"], below);

    let mut changed = reported(NODE);
    changed.labels.insert("kernel".to_owned(), "6.6".to_owned());
    changed.labels.insert("hall".to_owned(), "2".to_owned());
    for facts in [reported(NODE), changed] {
        start_agent(&server, &agent, &facts).await;
        let node = server.get(&operator, "/v1/nodes/n1").await.expect(200).json();
        assert_eq!(node["set"], expected);
        assert_eq!(node["facts"]["reserved"], true);
        assert_eq!(node["facts"]["labels"]["hall"], "7");
        assert_eq!(node["facts"]["labels"]["kernel"], json!(facts.labels["kernel"]));
        let refused = server.post(&tenant, "/v1/placements", &small()).await;
        assert_eq!(refused.status.as_u16(), 409, "a reserved node takes nothing: {}", refused.text);
    }

    let unset = json!({"fields": ["reserved", "labels"]});
    let node = server.post(&operator, "/v1/nodes/n1/unset", &unset).await.expect(200).json();
    assert_eq!(node["facts"]["reserved"], false);
    assert_eq!(node["facts"]["labels"], json!({"hall": "2", "kernel": "6.6"}));
    let left = json!({"hardware_class": 4, "instance_limit": 3, "next_reboot": 2_000_000_000,
        "rack": "r7"});
    assert_eq!(node["set"], left);
    server.post(&tenant, "/v1/placements", &small()).await.expect(201);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_import_owns_its_columns_and_undoes_nothing_that_was_set() {
    let server = Server::start().await;
    let operator = server.token(Role::Operator).await;
    let file = "id,cpu,memory,disk,rack,label.hall,hardware_class\n\
                n1,16,64GiB,1TiB,r1,1,2\nn2,16,64GiB,1TiB,,2,\n";
    let report = import(&server, &operator, "", file).await;
    assert_eq!((&report["added"], &report["changed"]), (&json!(2), &json!(0)));
    let owned = json!([
        "capacity.cpu_milli",
        "capacity.disk_mib",
        "capacity.memory_mib",
        "hardware_class",
        "labels.hall",
        "rack"
    ]);
    assert_eq!((&report["owned"], &report["layer"]), (&owned, &json!("reported")));
    patch(&server, &operator, NODE, &json!({"rack": "r9", "reserved": true})).await;
    patch(&server, &operator, "n2", &json!({"zone": "z2"})).await;
    let report = import(&server, &operator, "", file).await;
    assert_eq!(report["unchanged"], 2);
    let node = server.get(&operator, "/v1/nodes/n1").await.expect(200).json();
    assert_eq!((&node["facts"]["rack"], &node["facts"]["reserved"]), (&json!("r9"), &json!(true)));

    // A file with fewer columns leaves the rest; an empty cell takes its value away.
    import(&server, &operator, "", "id,label.hall,label.row\nn1,,5\n").await;
    let node = server.get(&operator, "/v1/nodes/n1").await.expect(200).json();
    assert_eq!(node["facts"]["labels"], json!({"row": "5"}));
    assert_eq!(node["facts"]["hardware_class"], 2);
    assert_eq!(node["facts"]["capacity"]["cpu_milli"], 16_000);

    // Columns that are set by an import survive the agent, and an empty cell gives them back.
    let report = import(&server, &operator, "?as=set", "id,rack,zone\nn1,r3,z3\n").await;
    assert_eq!((&report["owned"], &report["layer"]), (&json!(["rack", "zone"]), &json!("set")));
    let agent = server.token(Role::Agent).await;
    start_agent(&server, &agent, &reported(NODE)).await;
    let node = server.get(&operator, "/v1/nodes/n1").await.expect(200).json();
    assert_eq!((&node["facts"]["rack"], &node["facts"]["zone"]), (&json!("r3"), &json!("z3")));
    import(&server, &operator, "?as=set", "id,rack,zone\nn1,r3,\n").await;
    let node = server.get(&operator, "/v1/nodes/n1").await.expect(200).json();
    assert_eq!((&node["facts"]["rack"], &node["facts"]["zone"]), (&json!("r3"), &json!("z1")));
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_part_of_a_report_changes_what_is_reported_below_what_is_set() {
    let server = Server::start().await;
    let (operator, agent) = (server.token(Role::Operator).await, server.token(Role::Agent).await);
    let mut facts = body(&reported(NODE));
    facts["platform"] = json!({"version": "7.1", "built_at": 5});
    server.put(&agent, "/v1/nodes/n1", &facts).await.expect(201);
    let set = json!({"platform": {"version": "9.9", "built_at": 9}, "labels": {"hall": null}});
    patch(&server, &operator, NODE, &set).await;
    let part = json!({"platform": {"built_at": 6}, "labels": null});
    let node = patch(&server, &operator, "n1?as=reported", &part).await;
    assert_eq!(node["facts"]["platform"], set["platform"]);
    assert_eq!(node["reported"]["platform"], json!({"version": "7.1", "built_at": 6}));
    let unset = json!({"fields": ["platform", "labels"]});
    let node = server.post(&operator, "/v1/nodes/n1/unset", &unset).await.expect(200).json();
    assert_eq!(node["facts"]["platform"], json!({"version": "7.1", "built_at": 6}));
    assert_eq!(node["facts"]["labels"], json!({}));
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn facts_put_by_an_operator_are_in_effect_and_an_agent_can_only_report() {
    let server = Server::start().await;
    let (operator, agent) = (server.token(Role::Operator).await, server.token(Role::Agent).await);
    // Registered before its agent runs.
    let registered =
        NodeFacts { reserved: true, zone: Some("z5".to_owned()), ..NodeFacts::unknown(NODE) };
    let path = "/v1/nodes/n1";
    let node = server.put(&operator, path, &body(&registered)).await.expect(201).json();
    assert_eq!(node["set"], json!({"reserved": true, "zone": "z5"}));
    start_agent(&server, &agent, &reported(NODE)).await;
    let node = server.get(&operator, path).await.expect(200).json();
    assert_eq!((&node["facts"]["reserved"], &node["facts"]["zone"]), (&json!(true), &json!("z5")));
    assert_eq!(node["facts"]["capacity"]["cpu_milli"], 16_000);

    // Read, changed and put back: what differs is set, and the rest is as it was.
    let mut facts = node["facts"].clone();
    facts["rack"] = json!("r5");
    let node = server.put(&operator, path, &facts).await.expect(200).json();
    assert_eq!(node["set"], json!({"rack": "r5", "reserved": true, "zone": "z5"}));

    let claimed = body(&NodeFacts { reserved: false, ..reported(NODE) });
    let refused = server.put(&agent, "/v1/nodes/n1?as=set", &claimed).await;
    refused.problem(400, "invalid_request");
    server.put(&agent, "/v1/nodes/n1?as=reported", &claimed).await.expect(200);
    let unset = json!({"fields": ["reserved"]});
    server.post(&agent, "/v1/nodes/n1/unset", &unset).await.expect(403);
    let wrong = json!({"fields": ["colour"]});
    server.post(&operator, "/v1/nodes/n1/unset", &wrong).await.problem(400, "invalid_request");
    let node = server.get(&operator, path).await.expect(200).json();
    assert_eq!(node["facts"]["reserved"], true);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_report_that_was_on_its_way_undoes_no_cordon() {
    let server = Server::start().await;
    let operator = server.token(Role::Operator).await;
    server.add_node(NODE).await;
    server.post(&operator, "/v1/nodes/n1/cordon", &json!({})).await.expect(200);
    // As a server writes it that has not seen the cordon yet.
    let late = NodeFacts { state: NodeState::Active, ..reported(NODE) };
    let answer = server.control.submit(Op::put_node(late)).await.unwrap();
    assert_eq!(answer, Answer::Outcome(Outcome::Done));
    let node = server.get(&operator, "/v1/nodes/n1").await.expect(200).json();
    assert_eq!(node["facts"]["state"], "cordoned");
    assert_eq!(node["facts"]["labels"]["kernel"], "6.1");
    server.stop().await;
}

/// How an operator of the race sets a value.
#[derive(Clone, Copy)]
enum SetBy {
    /// By a patch, which the ledger merges when it is written.
    Patch,
    /// By reading, changing and reporting whole facts: merged outside the ledger.
    ReadAndReport,
}

/// Races two servers' agents against an operator who sets a value after another on a node. Returns the
/// values that are missing at the end.
async fn lost_values(servers: &[Arc<Server>; 2], node: &str, by: SetBy) -> Vec<usize> {
    const VALUES: usize = 40;
    let operator = servers[0].token(Role::Operator).await;
    let agent = servers[1].agent(node).await;
    start_agent(&servers[1], &agent, &reported(node)).await;
    let path = format!("/v1/nodes/{node}");
    wait_until("the first server knows the node", async || {
        servers[0].get(&operator, &path).await.status == 200
    })
    .await;
    let report = |round: usize| {
        let mut facts = reported(node);
        facts.labels.insert("round".to_owned(), round.to_string());
        facts
    };
    let reports: Vec<NodeFacts> = (0..VALUES).map(report).collect();
    let (reporting, token) = (Arc::clone(&servers[1]), agent.clone());
    let agents = tokio::spawn(async move {
        for facts in reports {
            start_agent(&reporting, &token, &facts).await;
        }
    });
    for value in 0..VALUES {
        let label = format!("set-{value}");
        match by {
            SetBy::Patch => {
                let changes = json!({"reserved": true, "labels": {label: "yes"}});
                patch(&servers[0], &operator, node, &changes).await;
            }
            SetBy::ReadAndReport => {
                let mut facts =
                    servers[0].get(&operator, &path).await.expect(200).json()["facts"].clone();
                facts["labels"][label] = json!("yes");
                let path = format!("{path}?as=reported");
                servers[0].put(&operator, &path, &facts).await.expect(200);
            }
        }
    }
    agents.await.unwrap();
    start_agent(&servers[1], &agent, &report(VALUES)).await;
    let id = NodeId::new(node);
    let found = servers[0].control.read(move |ledger| ledger.node(&id)).await.unwrap().unwrap().0;
    let is_lost = |value: &usize| !found.labels.contains_key(&format!("set-{value}"));
    let lost: Vec<usize> = (0..VALUES).filter(is_lost).collect();
    assert_eq!(found.labels["round"], VALUES.to_string(), "the agent's last report counts");
    assert_eq!(found.reserved, matches!(by, SetBy::Patch));
    lost
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_value_that_was_set_is_lost_in_a_race_of_two_servers_on_postgresql() {
    let postgres = TempPostgres::start(berth_pgtemp::Options::quick()).unwrap();
    let url = postgres.create_database("berth").unwrap();
    let open = || {
        let backend = Backend::parse(&url).unwrap();
        Server::start_with(move |options| options.backend = backend)
    };
    let servers = [Arc::new(open().await), Arc::new(open().await)];
    assert_eq!(lost_values(&servers, "n1", SetBy::Patch).await, Vec::<usize>::new());
    // The check finds what a merge outside the ledger loses.
    let lost = lost_values(&servers, "n2", SetBy::ReadAndReport).await;
    assert!(!lost.is_empty(), "the race is none");
    let seen = servers[1].token(Role::Viewer).await;
    wait_until("the other server knows what was set", async || {
        let node = servers[1].get(&seen, "/v1/nodes/n1").await.expect(200).json();
        node["set"].as_object().is_some_and(|set| set.len() == 41)
    })
    .await;
    for server in servers {
        server.control.lifecycle.stop();
    }
}
