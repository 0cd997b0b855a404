//! What would help against quotas and pools: every change that is proposed is made, and the request is
//! granted then. One unit less of it, and it is refused.

#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

mod common;

use std::collections::BTreeMap;
use std::sync::Mutex;

use berth_api::Role;
use common::Server;
use serde_json::{Value, json};

/// Random fleets that are tried.
const CASES: u64 = 80;

/// Numbers that are the same in every run.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, end: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }

    fn one_in(&mut self, of: u64) -> bool {
        self.below(of) == 0
    }
}

struct Stage {
    server: Server,
    operator: String,
    /// Pools as they were defined.
    pools: Mutex<BTreeMap<String, Value>>,
}

impl Stage {
    async fn new() -> Self {
        let server = Server::start().await;
        let operator = server.token(Role::Operator).await;
        let stage = Self { server, operator, pools: Mutex::default() };
        for node in ["n1", "n2"] {
            let capacity =
                json!({"cpu_milli": 1_000_000, "memory_mib": 4_000_000, "disk_mib": 4_000_000});
            let facts = json!({"id": node, "capacity": capacity, "instance_limit": 100_000});
            stage.put(&format!("/v1/nodes/{node}"), &facts).await;
        }
        stage
    }

    async fn put(&self, path: &str, body: &Value) {
        let stored = self.server.put(&self.operator, path, body).await;
        assert!(stored.status.is_success(), "{path} {body}: {}", stored.text);
    }

    async fn place(&self, body: &Value) -> Result<Value, Value> {
        let reply = self.server.post(&self.operator, "/v1/placements", body).await;
        if reply.status.is_success() { Ok(reply.json()) } else { Err(reply.json()) }
    }

    async fn define_pool(&self, id: &str, pool: Value) {
        self.put(&format!("/v1/pools/{id}"), &pool).await;
        self.pools.lock().unwrap().insert(id.to_owned(), pool);
    }

    /// Makes a change; returns what takes it back.
    async fn apply(&self, fix: &Value, request: &mut Value) -> Vec<(String, Value)> {
        let mut undo = Vec::new();
        match fix["kind"].as_str().unwrap() {
            "shrink" => request["instances"][0]["resources"] = fix["resources"].clone(),
            "count" => request["instances"][0]["count"] = fix["count"].clone(),
            "change_pool" => {
                let pools = request["pools"].as_array_mut().unwrap();
                pools.retain(|pool| *pool != fix["pool"]);
                pools.extend((!fix["to"].is_null()).then(|| fix["to"].clone()));
            }
            "raise_quota" => {
                let path = format!("/v1/quotas/{}", fix["tenant"].as_str().unwrap());
                let before = self.server.get(&self.operator, &path).await.json();
                undo.push((path.clone(), before["limits"].clone()));
                self.put(&path, &fix["limits"]).await;
            }
            "set_pool" => {
                let id = fix["pool"].as_str().unwrap();
                let before = self.pools.lock().unwrap()[id].clone();
                undo.push((format!("/v1/pools/{id}"), before));
                let pool = json!({"range": fix["range"], "quarantine_s": fix["quarantine_s"],
                    "tenant": fix["tenant"], "open": fix["tenant"].is_null()});
                self.put(&format!("/v1/pools/{id}"), &pool).await;
            }
            "free" => {
                for id in fix["instances"].as_array().unwrap() {
                    let path = format!("/v1/claims/{}/release", id.as_str().unwrap());
                    self.server.post(&self.operator, &path, &json!({})).await.expect(200);
                }
            }
            "combined" => {
                for change in fix["changes"].as_array().unwrap() {
                    undo.extend(Box::pin(self.apply(change, request)).await);
                }
            }
            other => panic!("{other} helps against no limit"),
        }
        undo
    }

    /// Whether a request would be granted after a change, which is taken back.
    async fn helps(&self, fix: &Value, request: &Value) -> bool {
        let mut request = request.clone();
        let undo = self.apply(fix, &mut request).await;
        let granted = self.place(&request).await;
        for (path, body) in undo.into_iter().rev() {
            self.put(&path, &body).await;
        }
        granted.is_ok()
    }
}

/// The same change, but for one unit less in one place each.
fn one_less(fix: &Value) -> Vec<Value> {
    let mut less = Vec::new();
    let mut add = |path: &[&str], by: i64| {
        let mut other = fix.clone();
        let at = path.iter().fold(&mut other, |at, key| &mut at[*key]);
        if let Some(value) = at.as_i64() {
            *at = json!(value + by);
            less.push(other);
        }
    };
    match fix["kind"].as_str().unwrap() {
        "count" => add(&["count"], 1),
        "raise_quota" => {
            for field in ["cpu_milli", "memory_mib", "disk_mib", "instances"] {
                add(&["limits", field], -1);
            }
        }
        _ => {}
    }
    less
}

async fn random_tenant(stage: &Stage, numbers: &mut Numbers, case: u64) -> Value {
    let tenant = format!("tenant-{case}");
    let size = |numbers: &mut Numbers| {
        json!({"cpu_milli": 250 * (1 + numbers.below(8)), "memory_mib": 256 * (1 + numbers.below(8)),
            "disk_mib": 1024 * (1 + numbers.below(3)), "bandwidth_mbps": 0})
    };
    let mut pools = Vec::new();
    for name in ["a", "b", "c"] {
        let last = 9 + 2 * numbers.below(3);
        let range = match numbers.below(3) {
            0 => format!("10.{case}.{}.0/{}", numbers.below(200), 29 + numbers.below(3)),
            _ => format!("10-{last}").replace("10-9", "10-10"),
        };
        let open = !numbers.one_in(4);
        let owner = if open { Value::Null } else { json!("another") };
        let pool = json!({"range": range, "quarantine_s": 0, "tenant": owner, "open": open});
        let id = format!("{name}-{case}");
        stage.define_pool(&id, pool).await;
        pools.push(id);
    }
    // Some of its own, and some values that others hold.
    for _ in 0..numbers.below(5) {
        let instance = json!({"resources": size(numbers)});
        stage.place(&json!({"tenant": tenant, "instances": [instance]})).await.unwrap();
    }
    let instance = json!({"resources": size(numbers), "count": 1 + numbers.below(3)});
    // They may be more than the pool has.
    let _ = stage
        .place(&json!({"tenant": "other", "instances": [instance], "pools": [pools[0]]}))
        .await;
    let mut limits = json!({});
    for (field, most) in
        [("cpu_milli", 9000), ("memory_mib", 9000), ("disk_mib", 20_000), ("instances", 9)]
    {
        if numbers.one_in(2) {
            limits[field] = json!(1 + numbers.below(most));
        }
    }
    if limits != json!({}) {
        stage.put(&format!("/v1/quotas/{tenant}"), &limits).await;
    }
    let mut wanted = json!({"tenant": tenant, "dry_run": true,
        "instances": [{"resources": size(numbers), "count": 1 + numbers.below(6)}]});
    let mut named: Vec<String> = pools.into_iter().filter(|_| numbers.one_in(4)).collect();
    if numbers.one_in(9) {
        named.push("b-nowhere".to_owned());
    }
    wanted["pools"] = json!(named);
    wanted
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_change_that_is_proposed_against_a_limit_works_and_is_the_least() {
    let stage = Stage::new().await;
    let mut numbers = Numbers(16);
    let (mut refused, mut without, mut kinds) = (0, Vec::new(), BTreeMap::new());
    for case in 0..CASES {
        let wanted = random_tenant(&stage, &mut numbers, case).await;
        let Err(problem) = stage.place(&wanted).await else { continue };
        refused += 1;
        let fixes = problem["fixes"].as_array().cloned().unwrap_or_default();
        without.extend(fixes.is_empty().then(|| format!("{wanted}: {problem}")));
        // What is released does not come back, so it is tried last.
        let is_free = |fix: &&Value| fix.to_string().contains("\"free\"");
        let (free, others): (Vec<&Value>, Vec<&Value>) = fixes.iter().partition(is_free);
        for fix in others.into_iter().chain(free.into_iter().take(1)) {
            *kinds.entry(fix["kind"].as_str().unwrap().to_owned()).or_insert(0) += 1;
            for less in one_less(fix) {
                // What was not raised may be lowered without harm.
                let lowered = less["kind"] == "raise_quota" && is_within(&stage, &less).await;
                assert!(
                    lowered || !stage.helps(&less, &wanted).await,
                    "{case}: {less} is enough for {wanted}"
                );
            }
            assert!(
                stage.helps(fix, &wanted).await,
                "{case}: {fix} does not help {wanted}: {problem}"
            );
        }
    }
    assert!(refused > CASES / 3, "{refused}");
    assert!(without.is_empty(), "{without:#?}");
    for kind in ["shrink", "count", "change_pool", "raise_quota", "set_pool", "free", "combined"] {
        assert!(kinds.contains_key(kind), "{kind} in {kinds:?}");
    }
}

/// Whether limits are at least as high as those in force, but for one that was not exceeded.
async fn is_within(stage: &Stage, fix: &Value) -> bool {
    let path = format!("/v1/quotas/{}", fix["tenant"].as_str().unwrap());
    let before = stage.server.get(&stage.operator, &path).await.json()["limits"].clone();
    let fields = before.as_object().unwrap().iter();
    fields.into_iter().any(|(field, limit)| fix["limits"][field].as_i64() < limit.as_i64())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tenant_is_told_what_it_can_do_itself_and_nothing_of_pools_of_others() {
    let stage = Stage::new().await;
    stage.put("/v1/pools/theirs", &json!({"range": "1-9", "tenant": "rival"})).await;
    stage.put("/v1/pools/free", &json!({"range": "1-9", "open": true})).await;
    stage.put("/v1/quotas/acme", &json!({"memory_mib": 1024})).await;
    let token = stage.server.tenant("acme").await;
    let resources = json!({"cpu_milli": 500, "memory_mib": 2048, "disk_mib": 1024});
    let mut wanted = json!({"instances": [{"resources": resources}]});
    let refused = stage.server.post(&token, "/v1/placements", &wanted).await;
    let refused = refused.problem(409, "quota_exceeded").json();
    let kinds = |problem: &Value| {
        let fixes = problem["fixes"].as_array().unwrap().iter();
        fixes.map(|fix| fix["kind"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(kinds(&refused), ["shrink"]);
    // The record has the same, and the operator's part for the operator.
    let path = "/v1/decisions?outcome=refused";
    let recorded = stage.server.get(&token, path).await.json();
    assert_eq!(recorded["items"][0]["fixes"], refused["fixes"]);
    let recorded = stage.server.get(&stage.operator, path).await.json();
    assert_eq!(kinds(&recorded["items"][0]), ["shrink", "raise_quota"]);

    wanted["instances"][0]["resources"]["memory_mib"] = json!(512);
    wanted["pools"] = json!(["theirs"]);
    let refused = stage.server.post(&token, "/v1/placements", &wanted).await;
    let refused = refused.problem(409, "unknown_pool").json();
    let expected = json!([{"kind": "change_pool", "pool": "theirs", "to": "free"},
        {"kind": "change_pool", "pool": "theirs", "to": null}]);
    assert_eq!(refused["fixes"], expected);
    wanted["tenant"] = json!("acme");
    let refused = stage.place(&wanted).await.unwrap_err();
    assert_eq!(kinds(&refused), ["change_pool", "change_pool", "set_pool"]);
}
