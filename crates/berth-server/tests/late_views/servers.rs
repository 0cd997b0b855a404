//! The same over HTTP, with whole servers: what one has acknowledged, the other goes by.

use std::time::Duration;

use berth_api::Role;
use berth_engine::Policy;
use berth_ledger::{Answer, Backend, Op, Outcome};
use berth_pgtemp::TempPostgres;
use serde_json::{Value, json};

use crate::common::{Server, TENANT};

/// Two servers, of which the second has read the log when it started and then only when it must.
pub(crate) struct TwoServers {
    pub(crate) first: Server,
    pub(crate) late: Server,
    pub(crate) token: String,
    pub(crate) postgres: TempPostgres,
}

impl TwoServers {
    /// The second one starts when `before` has been stored through the first.
    pub(crate) async fn start(before: impl AsyncFn(&Server, &str)) -> Self {
        let postgres = TempPostgres::start(berth_pgtemp::Options::quick()).unwrap();
        let backend = Backend::Postgres(postgres.url());
        let first = Server::start_with(|options| options.backend = backend.clone()).await;
        let token = first.token(Role::Admin).await;
        before(&first, &token).await;
        let late = Server::start_with(|options| {
            options.backend = backend;
            options.placer.follow_every = Duration::from_secs(3600);
        })
        .await;
        Self { first, late, token, postgres }
    }

    async fn place_late(&self, instance: &Value) -> crate::common::Reply {
        let body = json!({ "tenant": TENANT, "instances": [instance] });
        self.late.post(&self.token, "/v1/placements", &body).await
    }
}

async fn add_node(server: &Server, id: &str, kind: berth_engine::CapacityType) {
    let capacity = berth_engine::Amounts::new(16_000, 65_536).with_disk(1 << 20);
    let mut facts = berth_engine::NodeFacts::new(id, capacity);
    facts.heartbeat_at = berth_engine::Timestamp(server.control.now().as_second());
    facts.capacity_type = kind;
    let answer = server.control.submit(Op::put_node(facts)).await.unwrap();
    assert_eq!(answer, Answer::Outcome(Outcome::Done));
}

async fn put_workload(server: &Server, token: &str, max_on_demand: u32) {
    let body = json!({
        "template": { "resources": { "cpu_milli": 1000, "memory_mib": 1024 } },
        "capacity": { "max_on_demand": max_on_demand },
    });
    let reply = server.put(token, &format!("/v1/workloads/{TENANT}/web"), &body).await;
    assert!(reply.status.is_success(), "{}", reply.text);
}

async fn put_secrets(server: &Server, token: &str, version: Option<&str>) {
    let path = format!("/v1/environments/prod/secrets?tenant={TENANT}");
    let reply = server.put(token, &path, &json!({ "version": version })).await;
    assert!(reply.status.is_success(), "{}", reply.text);
}

fn policy(disk_mib: u32) -> Policy {
    let text = format!(
        "name = 'd{disk_mib}'\n[scores]\nmemory-pack = 1\n[defaults]\ndisk_mib = {disk_mib}\n"
    );
    Policy::from_toml(&text).unwrap()
}

async fn activate(server: &Server, policy: &Policy) {
    let (name, hash) = (policy.name().to_owned(), policy.hash().to_string());
    let op = Op::ActivatePolicy { name, hash, body: policy.to_json(), expect: None };
    assert_eq!(server.control.submit(op).await.unwrap(), Answer::Outcome(Outcome::Done));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_late_server_places_members_by_the_lowered_limit() {
    let servers = TwoServers::start(async |first, token| {
        add_node(first, "o1", berth_engine::CapacityType::OnDemand).await;
        add_node(first, "s1", berth_engine::CapacityType::Spot).await;
        put_workload(first, token, 5).await;
    })
    .await;
    put_workload(&servers.first, &servers.token, 0).await;
    let resources = json!({ "cpu_milli": 1000, "memory_mib": 1024 });
    let member = json!({ "workload": "web", "resources": resources });
    let placed = servers.place_late(&member).await.expect(201).json();
    assert_eq!(placed["instances"][0]["slot"]["on"], "spot", "{placed}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_late_server_refuses_what_needs_secrets_that_were_removed() {
    let servers = TwoServers::start(async |first, token| {
        add_node(first, "n1", berth_engine::CapacityType::OnDemand).await;
        put_secrets(first, token, Some("1")).await;
    })
    .await;
    put_secrets(&servers.first, &servers.token, None).await;
    let resources = json!({ "cpu_milli": 1000, "memory_mib": 1024 });
    let instance = json!({ "env": "prod", "needs_secrets": true, "resources": resources });
    let reply = servers.place_late(&instance).await;
    assert_eq!(reply.code(), "secrets_missing", "{}", reply.text);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_late_server_fills_in_the_defaults_of_the_policy_in_force() {
    let servers = TwoServers::start(async |first, _| {
        add_node(first, "n1", berth_engine::CapacityType::OnDemand).await;
        activate(first, &policy(1000)).await;
    })
    .await;
    activate(&servers.first, &policy(2000)).await;
    let instance = json!({ "resources": { "cpu_milli": 1000, "memory_mib": 1024 } });
    let placed = servers.place_late(&instance).await.expect(201).json();
    let id = placed["instances"][0]["instance"].as_str().unwrap();
    let path = format!("/v1/claims/{id}");
    let claim = servers.late.get(&servers.token, &path).await.expect(200).json();
    assert_eq!(claim["resources"]["disk_mib"], 2000, "{claim}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hint_has_a_server_read_the_log_before_its_time() {
    let servers = TwoServers::start(async |_, _| ()).await;
    let backend = Backend::Postgres(servers.postgres.url());
    let hinted = Server::start_with(|options| {
        options.backend = backend;
        options.placer.follow_every = Duration::from_secs(3600);
        options.placer.ledger.hints = true;
    })
    .await;
    // The first has no connection for hints, so this one is told by a server that has.
    let backend = Backend::Postgres(servers.postgres.url());
    let telling = Server::start_with(|options| {
        options.backend = backend;
        options.placer.ledger.hints = true;
    })
    .await;
    let token = &servers.token;
    let number = std::cell::Cell::new(0);
    crate::common::wait_until("a node of the other server is listed", async || {
        number.set(number.get() + 1);
        add_node(&telling, &format!("n{}", number.get()), berth_engine::CapacityType::OnDemand)
            .await;
        let listed = hinted.get(token, "/v1/nodes").await.expect(200).text;
        // Hints begin when the two have found each other: what is added after that is seen.
        listed.contains("\"n1\"")
    })
    .await;
    let late = servers.late.get(token, "/v1/nodes").await.expect(200).text;
    assert!(!late.contains("\"n1\""), "{late}");
    for server in [servers.first, servers.late, hinted, telling] {
        server.stop().await;
    }
}
