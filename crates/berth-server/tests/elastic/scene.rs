//! One node with an exact size, instances on it, and an agent that asks: natively, or by the wire
//! protocol with bodies as bytes.

use std::time::Duration;

use berth_api::{Permit, Role};
use berth_engine::elastic::{Account, ResourceAccount, Size};
use berth_ledger::Backend;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::common::{Reply, Server, TENANT};

/// The node.
pub(crate) const NODE: &str = "n1";

/// Whole units of the worked examples: one CPU with 1 GiB.
pub(crate) const fn whole(amount: u32) -> Size {
    Size::new(amount * 1000, amount * 1024)
}

/// Thousandths of the worked examples: as many thousandths of a CPU as MiB.
pub(crate) const fn fine(amount: u32) -> Size {
    Size::new(amount, amount)
}

/// How an agent asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// Natively, with wishes granted this way.
    Native(&'static str),
}

/// Every way that must give the same numbers.
pub(crate) const WAYS: [Way; 2] = [Way::Native("joint"), Way::Native("per-resource")];

/// What a scene begins with.
#[derive(Clone, Debug)]
pub(crate) struct Setup {
    pub(crate) way: Way,
    pub(crate) unit: Size,
    /// The watermark, in thousandths.
    pub(crate) watermark: u16,
    /// More of the policy's elastic part, in TOML.
    pub(crate) more: String,
}

impl Setup {
    pub(crate) fn new(way: Way, unit: Size) -> Self {
        Self { way, unit, watermark: 900, more: String::new() }
    }

    pub(crate) fn watermark(self, watermark: u16) -> Self {
        Self { watermark, ..self }
    }

    pub(crate) fn more(self, more: &str) -> Self {
        Self { more: more.to_owned(), ..self }
    }

    /// The policy. Nothing moves by itself, and what was denied does not fade during a test.
    pub(crate) fn policy(&self) -> String {
        let Way::Native(grants) = self.way;
        let (Size { cpu_milli, memory_mib }, mark) = (self.unit, self.watermark);
        format!(
            "name = \"elastic\"\n[scores]\nmemory-pack = 1\n[elastic]\ngrants = \"{grants}\"\n\
             pressure_half_life_s = 86400\n\
             compute_unit = {{ cpu_milli = {cpu_milli}, memory_mib = {memory_mib} }}\n\
             watermark = {{ cpu_permille = {mark}, memory_permille = {mark} }}\n\
             [elastic.migration]\nenabled = false\n{}",
            self.more
        )
    }
}

/// A server whose data outlives it, one node or more, and an operator's token.
pub(crate) struct Scene {
    pub(crate) server: Server,
    pub(crate) operator: String,
    pub(crate) setup: Setup,
    folder: tempfile::TempDir,
}

impl Scene {
    /// A node of so much, and nothing on it.
    pub(crate) async fn new(setup: Setup, total: Size) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let server = open(&folder).await;
        let operator = server.token(Role::Operator).await;
        let scene = Self { server, operator, setup, folder };
        scene.activate(&scene.setup.policy()).await;
        scene.node(NODE, total, json!({})).await;
        scene
    }

    /// The same after the server was stopped and started again.
    pub(crate) async fn restarted(self) -> Self {
        let Self { server, operator, setup, folder } = self;
        server.stop().await;
        Self { server: open(&folder).await, operator, setup, folder }
    }

    /// Puts a policy in force.
    pub(crate) async fn activate(&self, toml: &str) {
        let stored = self.post("/v1/policies", &json!({"toml": toml})).await;
        let hash = stored.json()["hash"].as_str().unwrap().to_owned();
        self.post(&format!("/v1/policies/{hash}/activate"), &json!({})).await.expect(200);
    }

    /// Registers a node of exactly so much, or states other facts of it.
    pub(crate) async fn node(&self, id: &str, total: Size, more: Value) {
        let Size { cpu_milli, memory_mib } = total;
        let mut facts = json!({
            "id": id,
            "capacity": {"cpu_milli": cpu_milli, "memory_mib": memory_mib, "disk_mib": 1 << 20},
            "ratios": {"cpu_permille": 1000, "memory_permille": 1000},
            "vmm_overhead_mib": 0,
        });
        facts.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let stored = self.server.put(&self.operator, &format!("/v1/nodes/{id}"), &facts).await;
        assert!(stored.status.is_success(), "{}", stored.text);
    }

    /// Places an instance that stays as it is, and has it run.
    pub(crate) async fn filler(&self, size: Size) -> String {
        self.run(&json!({"resources": resources(size)})).await
    }

    /// Places an elastic instance of this size that may be anything, and has it run.
    pub(crate) async fn elastic(&self, name: &str, size: Size) -> String {
        let elastic = json!({"min": {"cpu_milli": 1, "memory_mib": 1}, "max": roof()});
        self.run(&json!({"name": name, "resources": resources(size), "elastic": elastic})).await
    }

    /// The same of a class.
    pub(crate) async fn elastic_of(&self, name: &str, size: Size, class: &str) -> String {
        let elastic =
            json!({"min": {"cpu_milli": 1, "memory_mib": 1}, "max": roof(), "class": class});
        self.run(&json!({"name": name, "resources": resources(size), "elastic": elastic})).await
    }

    /// Places one instance; its agent starts it.
    pub(crate) async fn run(&self, spec: &Value) -> String {
        let placed = self.place(spec).await.expect(201).json();
        let placed = &placed["instances"][0];
        let id = placed["instance"].as_str().unwrap().to_owned();
        let fence = &placed["fence"];
        let body = json!({"running": [{"instance": id, "fence": fence, "state": "running"}]});
        let node = placed["node"].as_str().unwrap();
        let heard = self.post(&format!("/v1/nodes/{node}/heartbeat"), &body).await.expect(200);
        assert_eq!(heard.json()["reported"][0]["state"], "active", "{}", heard.text);
        id
    }

    pub(crate) async fn place(&self, spec: &Value) -> Reply {
        let body = json!({"owner": TENANT, "instances": [spec]});
        self.post("/v1/placements", &body).await
    }

    /// An instance that the agent found and nobody placed: it stays as it is.
    pub(crate) async fn found(&self, size: Size) -> String {
        self.adopt(json!({"owner": TENANT, "resources": resources(size)})).await
    }

    /// An elastic one that was found using so much of at most so much.
    pub(crate) async fn found_elastic(&self, size: Size, max: Size) -> String {
        let elastic = json!({"min": {"cpu_milli": 1, "memory_mib": 1}, "max": resources(max)});
        let found = json!({"owner": TENANT, "resources": resources(size), "elastic": elastic});
        self.adopt(found).await
    }

    async fn adopt(&self, found: Value) -> String {
        let id = uuid::Uuid::now_v7().to_string();
        let body = json!({"running": [{"instance": id, "state": "running", "found": found}]});
        let heard =
            self.post(&format!("/v1/nodes/{NODE}/heartbeat"), &body).await.expect(200).json();
        assert_eq!(heard["reported"][0]["state"], "active", "{heard}");
        id
    }

    /// An instance is gone.
    pub(crate) async fn stopped(&self, id: &str) {
        let claim = self.get(&format!("/v1/claims/{id}")).await;
        let body = json!({"running": [
            {"instance": id, "fence": claim["fence"], "state": "stopped"}
        ]});
        self.post(&format!("/v1/nodes/{NODE}/heartbeat"), &body).await.expect(200);
    }

    /// Asks for a size, and says what was permitted.
    pub(crate) async fn ask(&self, id: &str, size: Size) -> Size {
        self.ask_holding(id, size, None).await
    }

    /// The same for an agent that says what it was permitted last.
    pub(crate) async fn ask_holding(&self, id: &str, size: Size, last: Option<Size>) -> Size {
        let mut body = json!({"resources": size});
        if let Some(last) = last {
            body["last_permit"] = json!(last);
        }
        self.permit(id, &body).await.permit
    }

    /// Asks natively with all that can be said.
    pub(crate) async fn permit(&self, id: &str, body: &Value) -> Permit {
        let reply = self.try_permit(id, body).await.expect(200);
        serde_json::from_value(reply.json()).unwrap()
    }

    pub(crate) async fn try_permit(&self, id: &str, body: &Value) -> Reply {
        self.post(&format!("/v1/instances/{id}/permit"), body).await
    }

    /// What an instance was denied.
    pub(crate) async fn denied(&self, id: &str) -> Size {
        let permit = self.get(&format!("/v1/instances/{id}/permit")).await;
        serde_json::from_value(permit["capacity_pressure"].clone()).unwrap()
    }

    /// The node's account.
    pub(crate) async fn account(&self) -> Account {
        let node = self.get(&format!("/v1/nodes/{NODE}")).await;
        serde_json::from_value(node["account"].clone()).unwrap()
    }

    /// What of the node is reserved.
    pub(crate) async fn reserved(&self) -> Size {
        both(&self.account().await, |account| account.reserved)
    }

    /// What was denied on the node.
    pub(crate) async fn pressure(&self) -> Size {
        both(&self.account().await, |account| account.capacity_pressure)
    }

    /// What of the node is set aside for lack of knowledge.
    pub(crate) async fn buffer(&self) -> Size {
        both(&self.account().await, |account| account.buffer)
    }

    /// Has the host keep so much of the node, by policy, and waits until it does.
    pub(crate) async fn keep(&self, system: Size) {
        let Size { cpu_milli, memory_mib } = system;
        let rule = format!(
            "[[elastic.nodes]]\nsystem = {{ cpu_milli = {cpu_milli}, memory_mib = {memory_mib} }}\n"
        );
        self.activate(&format!("{}{rule}", self.setup.policy())).await;
        let began = Instant::now();
        while both(&self.account().await, |account| account.system) != system {
            assert!(began.elapsed() < Duration::from_secs(20), "{:?}", self.account().await);
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    pub(crate) async fn get(&self, path: &str) -> Value {
        self.server.get(&self.operator, path).await.expect(200).json()
    }

    pub(crate) async fn post(&self, path: &str, body: &Value) -> Reply {
        self.server.post(&self.operator, path, body).await
    }
}

fn both(account: &Account, of: impl Fn(&ResourceAccount) -> i64) -> Size {
    let amount = |account| u32::try_from(of(account)).unwrap();
    Size::new(amount(&account.cpu), amount(&account.memory))
}

pub(crate) fn resources(size: Size) -> Value {
    json!({"cpu_milli": size.cpu_milli, "memory_mib": size.memory_mib, "disk_mib": 0,
        "bandwidth_mbps": 0})
}

/// More than any node of these tests has.
fn roof() -> Value {
    json!({"cpu_milli": 1_000_000, "memory_mib": 1_000_000, "disk_mib": 0, "bandwidth_mbps": 0})
}

async fn open(folder: &tempfile::TempDir) -> Server {
    let backend = Backend::Sqlite(folder.path().join("kept.db"));
    Server::start_with(move |options| options.backend = backend).await
}
