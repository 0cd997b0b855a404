//! Fills a ledger with a bit of everything that a server and its agents can bring about.

use std::sync::Arc;

use berth_engine::affinity::{Strength, Topology};
use berth_engine::{
    Amounts, Demand, Group, GroupKind, InstanceId, InstanceRequest, NodeFacts, NodeId, NodeState,
    Policy, Timestamp, Volume,
};
use berth_ledger::{
    Adopt, Advance, Backend, ClaimKey, Expect, Hold, Ledger, Op, Options, Outcome, Plan,
    PlannedClaim, Pool, Quota, Release, Step, Switch, Text, UnmetDemand, Verdict,
};
use serde_json::{Value, json};

use crate::api::{self, Api};

/// The kind and id of the document that holds the secret of an administrator's token.
pub(crate) const TOKEN: (&str, &str) = ("fixture", "token");

/// Nodes were last heard long after anyone will open the fixture, so that none is found lost.
const HEARD: Timestamp = Timestamp(4_102_444_800);

/// Fills an empty ledger.
pub(crate) fn populate(backend: &Backend) {
    define(&Ledger::open(backend.clone(), Options::default()).unwrap());
    api::block_on(async {
        let api = Api::start(backend.clone(), None).await;
        serve(&api).await;
        api.stop().await;
    });
    claim(&Ledger::open(backend.clone(), Options::default()).unwrap());
}

fn done(ledger: &Ledger, op: Op) {
    let shown = format!("{op:?}");
    assert_eq!(ledger.administer(op).unwrap(), Outcome::Done, "{shown}");
}

fn facts(number: u32) -> NodeFacts {
    let capacity = Amounts::new(16_000, 65_536).with_disk(1 << 20).with_bandwidth(10_000);
    let mut facts = NodeFacts::new(&format!("n{number}"), capacity);
    facts.zone = Some(format!("z{}", number % 2));
    facts.rack = Some(format!("r{}", number % 3));
    facts.labels.insert("disk".to_owned(), "nvme".to_owned());
    facts.extra.insert("gpu".to_owned(), 4);
    facts.heartbeat_at = HEARD;
    facts
}

/// What operators state.
fn define(ledger: &Ledger) {
    for number in 1..=8 {
        done(ledger, Op::put_node(facts(number)));
    }
    for (number, state) in
        [(6, NodeState::Cordoned), (7, NodeState::Lost), (8, NodeState::Degraded)]
    {
        let node = NodeId::new(&format!("n{number}"));
        done(ledger, Op::SetNodeState { node, state, expect: None });
    }
    let (node, reserve) = (NodeId::new("n5"), Some(Amounts::new(500, 1024)));
    done(ledger, Op::SetReserve { node, reserve });
    done(ledger, Op::put_node(facts(9)));
    done(ledger, Op::RemoveNode { node: NodeId::new("n9"), expect: None });
    for (id, tenant, kind, strength, topology, max_per_domain) in [
        ("cache", None, GroupKind::Together, Strength::Hard, Topology::Rack, None),
        ("spread", Some("acme"), GroupKind::Apart, Strength::Hard, Topology::Node, Some(1)),
        ("zones", None, GroupKind::Apart, Strength::Soft, Topology::Zone, Some(2)),
        ("gone", None, GroupKind::Apart, Strength::Soft, Topology::Node, None),
    ] {
        let (id, tenant) = (id.to_owned(), tenant.map(str::to_owned));
        done(ledger, Op::PutGroup(Group { id, tenant, kind, strength, topology, max_per_domain }));
    }
    done(ledger, Op::RemoveGroup(Text::from("gone")));
    for (id, range) in [("overlay", "fd00:7::/64"), ("lan", "10.0.0.0/24"), ("port", "1000-4999")] {
        done(ledger, Op::PutPool(Pool::parse(id, range).unwrap()));
    }
    for (id, tenant, home) in
        [("data", Some("acme"), "n1"), ("logs", Some("acme"), "n2"), ("free", None, "n3")]
    {
        let (id, tenant) = (id.to_owned(), tenant.map(str::to_owned));
        let volume = Volume { id, tenant, home: NodeId::new(home), attached_to: None };
        done(ledger, Op::PutVolume(volume));
    }
    let quota = Quota { cpu_milli: Some(100_000), instances: Some(50), ..Quota::default() };
    done(ledger, Op::PutQuota { tenant: Text::from("acme"), quota });
    let quota = Quota { memory_mib: Some(1), ..Quota::default() };
    done(ledger, Op::PutQuota { tenant: Text::from("poor"), quota });
    let (env, version) = (Text::from("prod"), Some(Text::from("7")));
    done(ledger, Op::PutSecrets { tenant: None, env, version });
    let (kind, id) = (Text::from("note"), Text::from("kept"));
    let body = "{\"text\":\"first\"}".to_owned();
    done(ledger, Op::PutDocument { kind, id, body, expect: Expect::Absent });
}

fn place(resources: Value, more: Value) -> Value {
    let mut instance = json!({ "resources": resources });
    instance.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    json!({ "tenant": "acme", "lease_s": 86_400, "instances": [instance] })
}

fn small() -> Value {
    json!({ "cpu_milli": 500, "memory_mib": 512, "disk_mib": 64 })
}

async fn placed(api: &Api, more: Value) -> Value {
    let answer = api.post("/v1/placements", place(small(), more)).await;
    answer["instances"][0].clone()
}

fn id_of(placed: &Value) -> &str {
    placed["instance"].as_str().unwrap()
}

/// Has the agent of its node say that an instance runs.
async fn run(api: &Api, placed: &Value) {
    let (instance, fence) = (&placed["instance"], &placed["fence"]);
    let body = json!({ "running": [
        { "instance": instance, "fence": fence, "state": "running" }
    ] });
    let node = placed["node"].as_str().unwrap();
    let heard = api.post(&format!("/v1/nodes/{node}/heartbeat"), body).await;
    assert_eq!(heard["reported"][0]["state"], "active", "{heard:#}");
}

/// What tenants, agents and operators bring about through a server.
async fn serve(api: &Api) {
    tokens(api).await;
    lives(api).await;
    moves(api).await;
    workloads(api).await;
    refusals(api).await;
    let policy = json!({ "toml": "name = \"house\"\n[scores]\nmemory-pack = 3\n" });
    let stored = api.post("/v1/policies", policy).await;
    let hash = stored["hash"].as_str().unwrap();
    api.post(&format!("/v1/policies/{hash}/activate"), json!({})).await;
    placed(api, json!({ "name": "in-house" })).await;
    api.post("/v1/policies/pack/activate", json!({})).await;
    placed(api, json!({ "name": "packed" })).await;
    api.post("/v1/policies/rollback", json!({})).await;
}

async fn tokens(api: &Api) {
    let made = api.post("/v1/tokens", json!({ "name": "keeper", "role": "admin" })).await;
    let secret = made["secret"].as_str().unwrap().to_owned();
    let (kind, id) = (Text::from(TOKEN.0), Text::from(TOKEN.1));
    let op = Op::PutDocument { kind, id, body: secret, expect: Expect::Absent };
    api.control.submit(op).await.unwrap();
    let tenant = json!({ "name": "tenant", "role": "tenant", "tenants": ["acme"] });
    api.post("/v1/tokens", tenant).await;
    let agent = json!({ "name": "agent", "role": "agent", "node": "n1", "expires_in_s": 60 });
    let agent = api.post("/v1/tokens", agent).await;
    let id = agent["id"].as_str().unwrap();
    let (status, _) = api.send("DELETE", &format!("/v1/tokens/{id}"), &Value::Null).await;
    assert!((200..300).contains(&status), "{status}");
}

/// Claims in every state of their life, holding everything that can be held.
async fn lives(api: &Api) {
    placed(api, json!({ "name": "held", "tags": { "role": "web" } })).await;
    let binding = placed(api, json!({ "name": "binding" })).await;
    let fence = json!({ "fence": binding["fence"] });
    api.post(&format!("/v1/claims/{}/bind", id_of(&binding)), fence).await;
    let active = placed(api, json!({ "name": "active", "extra": { "gpu": 2 } })).await;
    run(api, &active).await;
    let leaving = placed(api, json!({ "name": "releasing" })).await;
    run(api, &leaving).await;
    api.post(&format!("/v1/claims/{}/release", id_of(&leaving)), json!({})).await;
    let gone = placed(api, json!({ "name": "gone" })).await;
    let confirmed = json!({ "confirmed": true, "request_id": "release-gone" });
    api.post(&format!("/v1/claims/{}/release", id_of(&gone)), confirmed).await;
    for number in 0..2 {
        let more = json!({ "name": format!("spread-{number}"), "groups": ["spread", "zones"] });
        run(api, &placed(api, more).await).await;
        placed(api, json!({ "name": format!("cache-{number}"), "groups": ["cache"] })).await;
    }
    let mut request = place(small(), json!({ "name": "addressed" }));
    request["pools"] = json!(["overlay", "lan", "port"]);
    request["request_id"] = json!("addressed");
    let addressed = api.post("/v1/placements", request.clone()).await;
    api.post("/v1/placements", request.clone()).await;
    request["request_id"] = json!("addressed-2");
    let second = api.post("/v1/placements", request).await;
    let second = id_of(&second["instances"][0]).to_owned();
    let confirmed = json!({ "confirmed": true });
    api.post(&format!("/v1/claims/{second}/release"), confirmed).await;
    run(api, &addressed["instances"][0]).await;
    let elastic = json!({ "name": "elastic", "elastic": {
        "min": { "cpu_milli": 250, "memory_mib": 256 },
        "max": { "cpu_milli": 4000, "memory_mib": 4096 },
    } });
    let elastic = placed(api, elastic).await;
    run(api, &elastic).await;
    let path = format!("/v1/instances/{}", id_of(&elastic));
    let size = json!({ "resources": { "cpu_milli": 1000, "memory_mib": 1024 } });
    api.post(&format!("{path}/permit"), size).await;
    let bounds = json!({
        "min": { "cpu_milli": 250, "memory_mib": 256 },
        "max": { "cpu_milli": 2000, "memory_mib": 2048 },
    });
    api.put(&format!("{path}/bounds"), bounds).await;
    let batch = json!({ "tenant": "other", "lease_s": 86_400, "instances": [
        { "resources": small() }, { "resources": small() }, { "resources": small() },
    ] });
    api.post("/v1/placements", batch).await;
}

/// Drains, migrations, volume moves and attachments that are in progress.
async fn moves(api: &Api) {
    api.put("/v1/attachments/set?tenant=acme", json!({ "volumes": ["logs"] })).await;
    let stays = placed(api, json!({ "name": "attached", "attachments": ["set"] })).await;
    run(api, &stays).await;
    let volume = placed(api, json!({ "name": "with-volume", "volumes": ["data"] })).await;
    run(api, &volume).await;
    api.post("/v1/volumes/data/move", json!({ "to": "n3" })).await;
    let moving = placed(api, json!({ "name": "moving" })).await;
    run(api, &moving).await;
    let to = if moving["node"] == "n3" { "n2" } else { "n3" };
    let path = format!("/v1/instances/{}/migrate", id_of(&moving));
    api.post(&path, json!({ "to": to })).await;
    api.post("/v1/nodes/n6/drain", json!({})).await;
}

async fn workloads(api: &Api) {
    let body = json!({ "replicas": 3, "pools": ["overlay"], "release": "r1", "template": {
        "resources": small(), "env": "prod", "needs_secrets": true,
    } });
    api.put("/v1/workloads/acme/web", body).await;
    let members = "/v1/workloads/acme/web/members";
    let all = |found: &Value| found["items"].as_array().is_some_and(|items| items.len() == 3);
    let found = api.until(members, all).await;
    for member in found["items"].as_array().unwrap() {
        let claim = api.get(&format!("/v1/claims/{}", member["instance"].as_str().unwrap())).await;
        run(api, &claim).await;
    }
    let huge = json!({ "cpu_milli": 500, "memory_mib": 999_999 });
    let body = json!({ "replicas": 1, "template": { "resources": huge } });
    api.put("/v1/workloads/acme/huge", body).await;
    let failing = |found: &Value| !found["status"]["reason"]["code"].is_null();
    api.until("/v1/workloads/acme/huge", failing).await;
}

/// Requests that found no room: refused at once, or waiting.
async fn refusals(api: &Api) {
    let huge = json!({ "cpu_milli": 100, "memory_mib": 999_999 });
    let (status, answer) = api.send("POST", "/v1/placements", &place(huge, json!({}))).await;
    assert_eq!(status, 409, "{answer:#}");
    let mut poor = place(small(), json!({}));
    poor["tenant"] = json!("poor");
    let (status, answer) = api.send("POST", "/v1/placements", &poor).await;
    assert_eq!(status, 409, "{answer:#}");
    let large = json!({ "cpu_milli": 100, "memory_mib": 65_536 });
    for wait_s in [604_800, 3600] {
        let mut waiting = place(large.clone(), json!({}));
        waiting["mode"] = json!("wait");
        waiting["wait_s"] = json!(wait_s);
        let (status, answer) = api.send("POST", "/v1/placements", &waiting).await;
        assert_eq!(status, 202, "{answer:#}");
    }
}

fn request(number: u128) -> InstanceRequest {
    let amounts = Amounts::new(250, 256).with_disk(16);
    InstanceRequest::new(InstanceId::from_u128(number), "direct", amounts)
}

/// A plan for one instance, made on what the ledger says of the node.
pub(crate) fn planned(ledger: &Ledger, request: InstanceRequest, node: &str) -> PlannedClaim {
    let node = NodeId::new(node);
    let (_, seen) = ledger.node(&node).unwrap().unwrap();
    let policy = Policy::builtin("balanced").unwrap();
    PlannedClaim::new(Arc::new(request), &policy, node, seen)
}

/// Commits a plan for one instance; returns its fence.
pub(crate) fn commit(ledger: &Ledger, id: &str, planned: PlannedClaim) -> i64 {
    let tenant = planned.request.tenant.clone();
    match ledger.commit(Plan::new(id, &tenant, vec![planned])).unwrap() {
        Verdict::Granted(grant) => grant.claims[0].fence,
        other => panic!("{other:?}"),
    }
}

fn active(ledger: &Ledger, number: u128, node: &str) -> i64 {
    let fence = commit(ledger, &format!("direct-{number}"), planned(ledger, request(number), node));
    let key = ClaimKey::primary(InstanceId::from_u128(number));
    for step in [Step::Bind, Step::Activate] {
        ledger.advance(Advance { key, tenant: None, fence, step }).unwrap().unwrap();
    }
    fence
}

/// What goes to the ledger without a server: leases that outlive the fixture, claims in the roles of
/// a migration, an instance that an agent found.
fn claim(ledger: &Ledger) {
    let fence = commit(ledger, "direct-1", planned(ledger, request(1), "n1"));
    let key = ClaimKey::primary(InstanceId::from_u128(1));
    let step = Step::Renew { lease_s: u32::MAX };
    ledger.advance(Advance { key, tenant: None, fence, step }).unwrap().unwrap();

    let fence = active(ledger, 2, "n1");
    let hold = Hold { fence, to: planned(ledger, request(2), "n2") };
    ledger.call(Op::Hold(Box::new(hold))).unwrap();
    let fence = active(ledger, 3, "n1");
    let hold = Hold { fence, to: planned(ledger, request(3), "n2") };
    ledger.call(Op::Hold(Box::new(hold))).unwrap();
    let (instance, to) = (InstanceId::from_u128(3), NodeId::new("n2"));
    ledger.call(Op::Switch(Switch { instance, to })).unwrap();

    let found = request(4);
    let demand = Demand::new(&found, &Policy::builtin("balanced").unwrap());
    let (request_id, node) = (Text::from("adopt-4"), NodeId::new("n8"));
    ledger.adopt(Adopt { request_id, request: Arc::new(found), node, demand }).unwrap().unwrap();

    let fence = active(ledger, 5, "n2");
    let release = Release {
        request_id: Text::from("release-5"),
        key: ClaimKey::primary(InstanceId::from_u128(5)),
        tenant: Some(Text::from("direct")),
        fence: Some(fence),
        confirmed: false,
        reason: Text::from("stop"),
    };
    ledger.release(release).unwrap().unwrap();
    let demand = UnmetDemand {
        tenant: "direct".to_owned(),
        code: "no_capacity_memory".to_owned(),
        spec: "{}".to_owned(),
        times: 3,
        first_at: 0,
        last_at: 0,
    };
    done(ledger, Op::Demand(demand));
    // The last segment has no number yet on PostgreSQL: no one reads the log after it.
    let volume =
        Volume { id: "last".to_owned(), tenant: None, home: NodeId::new("n1"), attached_to: None };
    done(ledger, Op::PutVolume(volume));
}
