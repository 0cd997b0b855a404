//! Random changes and mishaps. At every step of the log no rule is broken, and when all is quiet
//! again everything is as wanted, or the status says exactly why not.

use std::time::Duration;

use berth_control::ControlOptions;
use berth_engine::{CapacityType, NodeId};
use serde_json::{Value, json};

use crate::auditor::Auditor;
use crate::common::TENANT;
use crate::world::{Store, World, path};

/// Numbers that look random and are the same each time.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % sides
    }

    fn pick<'a>(&mut self, from: &[&'a str]) -> &'a str {
        from[usize::try_from(self.roll(from.len() as u64)).unwrap()]
    }
}

const WORKLOADS: [&str; 4] = ["rolling", "green", "apart", "stateful"];

/// The one node that may fall silent: what was on it is excused.
const MOODY: &str = "s3";

const DRAINABLE: [&str; 5] = ["o1", "o2", "o3", "s1", "s2"];

/// What each workload asks for.
fn workload(name: &str, replicas: u64, limit: u64, release: u64) -> Value {
    let mut fields = json!({
        "replicas": replicas,
        "release": format!("r{release}"),
        "capacity": { "max_on_demand": limit },
        "template": { "resources": { "cpu_milli": 1000, "memory_mib": 4096 } },
    });
    match name {
        "rolling" => {
            fields["rolling"] =
                json!({ "strategy": "rolling", "max_surge": 2, "max_unavailable": 1 });
        }
        "apart" => {
            fields["template"]["groups"] = json!(["apart"]);
            fields["rolling"] = json!({ "strategy": "rolling", "max_surge": 1 });
        }
        "stateful" => {
            fields["replicas"] = json!(replicas.min(1));
            fields["template"]["volumes"] = json!(["disk"]);
            fields.as_object_mut().unwrap().remove("capacity");
        }
        _ => {}
    }
    fields
}

fn impatient(options: &mut ControlOptions) {
    options.settings.lost_after = Duration::from_secs(2);
    options.settings.lost_grace = Duration::from_secs(1);
}

/// Signs of life reach the other server within a few seconds.
fn patient(options: &mut ControlOptions) {
    options.settings.lost_after = Duration::from_secs(8);
    options.settings.lost_grace = Duration::from_secs(2);
}

struct Model {
    world: World,
    dice: Dice,
    auditor: Auditor,
    /// Replicas, on-demand limit and release of each workload.
    wanted: Vec<(u64, u64, u64)>,
    done: Vec<String>,
}

impl Model {
    async fn start(store: Store, servers: usize, seed: u64) -> Self {
        let patience = if servers == 1 { impatient } else { patient };
        let world = World::with(store, servers, patience).await;
        for number in 1..=3 {
            for (letter, kind) in [('o', CapacityType::OnDemand), ('s', CapacityType::Spot)] {
                let small = |facts: &mut berth_engine::NodeFacts| {
                    facts.capacity_type = kind;
                    facts.capacity =
                        Some(berth_engine::Amounts::new(16_000, 24_576).with_disk(1 << 20));
                };
                world.node_with(&format!("{letter}{number}"), small).await;
            }
        }
        let group = json!({
            "tenant": TENANT, "kind": "apart", "strength": "hard", "topology": "node",
        });
        let (server, token) = (&world.servers[0], &world.token);
        server.put(token, "/v1/groups/apart", &group).await.expect(201);
        let volume = json!({ "tenant": TENANT, "home": "o1" });
        server.put(token, "/v1/volumes/disk", &volume).await.expect(201);
        let wanted = vec![(3, 2, 1), (2, 1, 1), (3, 1, 1), (1, 0, 1)];
        let mut auditor = Auditor::default();
        auditor.excused.push(NodeId::new(MOODY));
        let mut model = Self { world, dice: Dice(seed), auditor, wanted, done: Vec::new() };
        for at in 0..WORKLOADS.len() {
            model.apply(at).await;
        }
        model
    }

    async fn apply(&mut self, at: usize) {
        let (replicas, limit, release) = self.wanted[at];
        let name = WORKLOADS[at];
        let body = workload(name, replicas, limit, release);
        let reply = self.world.servers[0].put(&self.world.token, &path(name), &body).await;
        assert!(reply.status.is_success(), "{}", reply.text);
    }

    /// One change or mishap.
    async fn disturb(&mut self) {
        let at = usize::try_from(self.dice.roll(WORKLOADS.len() as u64)).unwrap();
        let kind = self.dice.roll(12);
        let what = match kind {
            0 | 1 => {
                self.wanted[at].0 = self.dice.roll(6);
                self.apply(at).await;
                format!("{} scaled to {}", WORKLOADS[at], self.wanted[at].0)
            }
            2 | 3 => {
                self.wanted[at].2 += 1;
                self.apply(at).await;
                format!("{} deployed", WORKLOADS[at])
            }
            4 => {
                self.wanted[at].1 = self.dice.roll(5);
                self.apply(at).await;
                format!("{} limited to {}", WORKLOADS[at], self.wanted[at].1)
            }
            5 => {
                let node = self.dice.pick(&DRAINABLE);
                self.world.post(&format!("/v1/nodes/{node}/drain"), &json!({})).await.expect(200);
                format!("{node} drained")
            }
            6 => {
                let node = self.dice.pick(&DRAINABLE);
                let body = json!({});
                self.world.post(&format!("/v1/nodes/{node}/uncordon"), &body).await.expect(200);
                format!("{node} taken back")
            }
            7 => {
                let silent = self.dice.roll(2) == 0;
                self.world.agents(|agents| {
                    agents.silent.clear();
                    if silent {
                        agents.silent.insert(MOODY.to_owned());
                    }
                });
                format!("{MOODY} silent: {silent}")
            }
            8 => {
                let members = self.world.members(WORKLOADS[at]).await;
                if let Some(member) = members.first() {
                    let id = member["instance"].as_str().unwrap().to_owned();
                    self.world.agents(|agents| agents.to_die.extend([id]));
                }
                format!("a member of {} died", WORKLOADS[at])
            }
            9 => {
                let node = self.dice.pick(&["s1", "s2"]);
                self.world.post(&format!("/v1/nodes/{node}/reclaim"), &json!({})).await.expect(200);
                format!("{node} will be taken away")
            }
            10 => {
                let action = if self.dice.roll(2) == 0 { "pause" } else { "resume" };
                let to = format!("{}/rollout", path(WORKLOADS[at]));
                self.world.post(&to, &json!({ "action": action })).await.expect(200);
                format!("{} {action}", WORKLOADS[at])
            }
            _ => {
                self.world.restart().await;
                "restarted".to_owned()
            }
        };
        self.done.push(what);
        tokio::time::sleep(Duration::from_millis(self.dice.roll(250))).await;
        self.check();
    }

    fn check(&mut self) {
        let ledger = &self.world.servers[0].control.ledger;
        tokio::task::block_in_place(|| self.auditor.read(ledger));
        assert!(
            self.auditor.broken.is_empty(),
            "{:#?} after {:#?}",
            self.auditor.broken,
            self.done
        );
    }

    /// All is well again: everything must become as wanted, or say why not.
    async fn heal(&mut self) {
        self.world.agents(|agents| {
            agents.silent.clear();
            agents.to_die.clear();
        });
        for node in DRAINABLE {
            self.world.post(&format!("/v1/nodes/{node}/uncordon"), &json!({})).await.expect(200);
        }
        for name in WORKLOADS {
            let to = format!("{}/rollout", path(name));
            self.world.post(&to, &json!({ "action": "resume" })).await.expect(200);
        }
        for (at, name) in WORKLOADS.into_iter().enumerate() {
            let done = self.done.clone();
            self.world
                .until(
                    &format!("{name} is ready or says why not, after {done:#?}"),
                    |world| async move {
                        let found = world.workload(name).await;
                        let status = &found["status"];
                        (status["state"] == "ready" && status["leaving"] == 0)
                            || is_explained(world, &found).await
                    },
                )
                .await;
            let found = self.world.workload(name).await;
            if found["status"]["state"] == "ready" {
                self.is_as_wanted(at).await;
            }
        }
        self.check();
    }

    async fn is_as_wanted(&self, at: usize) {
        let (name, (replicas, limit, _)) = (WORKLOADS[at], self.wanted[at]);
        let members = self.world.members(name).await;
        let revision = self.world.workload(name).await["revision"].clone();
        let replicas = if name == "stateful" { replicas.min(1) } else { replicas };
        let done = &self.done;
        assert_eq!(members.len() as u64, replicas, "{name} after {done:#?}");
        assert!(members.iter().all(|it| it["revision"] == revision && it["state"] == "active"));
        if name != "stateful" {
            let on_demand = members.iter().filter(|it| it["on"] == "on-demand").count() as u64;
            assert_eq!(on_demand, limit.min(replicas), "{name} after {done:#?}");
        }
    }
}

/// Whether a workload says why it is not as wanted, and one more instance like its members is
/// refused for the same reason.
async fn is_explained(world: &World, found: &Value) -> bool {
    let Some(code) = found["status"]["reason"]["code"].as_str() else { return false };
    let mut spec = found["spec"]["template"].clone();
    let mut codes = Vec::new();
    for kind in ["on-demand", "spot"] {
        spec["capacity_type"] = json!(kind);
        let body = json!({ "tenant": TENANT, "dry_run": true, "instances": [spec] });
        let reply = world.post("/v1/placements", &body).await;
        codes.push(if reply.status.is_success() { String::new() } else { reply.code() });
    }
    codes.iter().any(|found| found == code)
}

async fn run(store: Store, servers: usize, seed: u64, steps: u32) {
    let mut model = Model::start(store, servers, seed).await;
    for _ in 0..steps {
        model.disturb().await;
    }
    model.heal().await;
    let (grants, releases) = model.auditor.checked;
    assert!(
        grants > 20 && releases > 5,
        "too little happened: {grants} grants, {releases} releases"
    );
}

/// How many random steps: more in a soak.
#[allow(clippy::disallowed_methods, reason = "a soak says how long")]
fn steps() -> u32 {
    std::env::var("BERTH_MODEL_STEPS").ok().and_then(|steps| steps.parse().ok()).unwrap_or(60)
}

/// Where the dice start: another number for other mishaps.
#[allow(clippy::disallowed_methods, reason = "a soak says which")]
fn seed() -> u64 {
    std::env::var("BERTH_MODEL_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1)
}

#[tokio::test(flavor = "multi_thread")]
async fn after_random_mishaps_everything_is_as_wanted_or_says_why_not() {
    run(Store::Sqlite, 1, seed(), steps()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn after_random_mishaps_two_servers_have_done_no_more_than_one() {
    run(Store::Postgres, 2, seed() + 1000, steps()).await;
}

#[test]
fn the_auditor_notices_each_broken_rule() {
    use berth_engine::{Amounts, InstanceId, InstanceRequest, NodeFacts};
    use berth_ledger::{ClaimState, EventBody, Role, Spec, Text, Workload};
    let facts = |id: &str, kind| {
        let mut facts = NodeFacts::new(id, Amounts::new(1000, 1024));
        facts.capacity_type = kind;
        EventBody::NodeChanged { constraint_gen: 1, facts: Box::new(facts) }
    };
    let told = |replicas: i64| {
        let body = json!({
            "capacity": { "max_on_demand": 1, "mode": "strict" }, "rolling": { "max_unavailable": 0 },
        });
        let workload = Workload {
            tenant: "acme".to_owned(),
            name: "web".to_owned(),
            revision: 1,
            replicas,
            body: body.to_string(),
        };
        EventBody::WorkloadChanged {
            tenant: Text::from("acme"),
            name: Text::from("web"),
            revision: Some(1),
            workload: Some(Box::new(workload)),
        }
    };
    let granted = |id: u128, node: &str, slot: i64| {
        let mut request =
            InstanceRequest::new(InstanceId::from_u128(id), "acme", Amounts::new(1, 1));
        request.workload = Some("web".to_owned());
        let json = json!({
            "kind": "instance.allocated", "instance_id": request.id, "role": "primary",
            "node_id": node, "fence": 1, "state": "active", "resources": request.resources,
            "spec_hash": "", "spec_no": 0, "seat": { "revision": 1, "slot": slot },
        });
        let mut event: EventBody = serde_json::from_value(json).unwrap();
        if let EventBody::Allocated(allocated) = &mut event {
            allocated.spec = Some(Spec::of(&request));
        }
        event
    };
    let let_go = |id: u128| EventBody::State {
        instance_id: InstanceId::from_u128(id),
        role: Role::Primary,
        node_id: NodeId::new("o"),
        state: ClaimState::Releasing,
        tenant: Text::from("acme"),
        fence: 1,
        lease_until: None,
    };
    let start = || {
        let mut auditor = Auditor::default();
        let (o, s) = (facts("o", CapacityType::OnDemand), facts("s", CapacityType::Spot));
        for (seq, event) in [o, s, told(2), told(2)].into_iter().enumerate() {
            auditor.take(i64::try_from(seq).unwrap(), event);
        }
        auditor
    };
    let broken = |events: Vec<EventBody>| {
        let mut auditor = start();
        for event in events {
            auditor.take(9, event);
        }
        auditor.broken.len()
    };
    assert_eq!(broken(vec![granted(1, "o", 0), granted(2, "s", 1)]), 0);
    assert_eq!(broken(vec![granted(1, "s", 0)]), 1, "a spot node in an on-demand slot");
    assert_eq!(broken(vec![granted(1, "o", 0), granted(2, "s", 1), let_go(2)]), 1, "too few run");
    let three = vec![granted(1, "o", 0), granted(2, "o", 0), granted(3, "o", 0)];
    assert_eq!(broken(three), 1, "three in one slot");
}
