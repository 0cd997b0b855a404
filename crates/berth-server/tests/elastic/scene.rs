//! One node with an exact size, instances on it, and an agent that asks: natively, or by the wire
//! protocol with bodies as bytes.

use std::time::Duration;

use berth_api::{Permit, Role};
use berth_engine::elastic::{Account, ResourceAccount, Size};
use berth_ledger::Backend;
use berth_server::serve::Stop;
use berth_server::wire::{self, WireSettings};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::common::{Reply, Server, TENANT, TIMEOUT};

/// The node.
pub(crate) const NODE: &str = "n1";

const DATABASE: &str = "kept.db";

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
    /// By the wire protocol of this version, with wishes granted this way.
    Wire(u32, &'static str),
}

/// Every way that must give the same numbers.
pub(crate) const WAYS: [Way; 5] = [
    Way::Native("joint"),
    Way::Native("per-resource"),
    Way::Wire(5, "joint"),
    Way::Wire(6, "per-resource"),
    Way::Wire(7, "joint"),
];

/// What a scene begins with.
#[derive(Clone, Debug)]
pub(crate) struct Setup {
    pub(crate) way: Way,
    pub(crate) unit: Size,
    /// The watermark, in thousandths.
    pub(crate) watermark: u16,
    /// More of the policy's elastic part, in TOML.
    pub(crate) more: String,
    /// How the wire protocol is served.
    pub(crate) wire: WireSettings,
}

impl Setup {
    /// Without sign-in on the wire, and with slots of which a unit is a multiple.
    pub(crate) fn new(way: Way, unit: Size) -> Self {
        let slot_mib = if unit.memory_mib.is_multiple_of(1024) { 1024 } else { 1 };
        let wire = WireSettings { sign_in: false, slot_mib };
        Self { way, unit, watermark: 900, more: String::new(), wire }
    }

    pub(crate) fn signed_in(self) -> Self {
        Self { wire: WireSettings { sign_in: true, ..self.wire }, ..self }
    }

    pub(crate) fn watermark(self, watermark: u16) -> Self {
        Self { watermark, ..self }
    }

    pub(crate) fn more(self, more: &str) -> Self {
        Self { more: more.to_owned(), ..self }
    }

    /// The policy. Nothing moves by itself, and what was denied does not fade during a test.
    pub(crate) fn policy(&self) -> String {
        let (Way::Native(grants) | Way::Wire(_, grants)) = self.way;
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
    /// Where the wire protocol is spoken.
    wire: String,
    http: reqwest::Client,
    folder: tempfile::TempDir,
}

impl Scene {
    /// A node of so much, and nothing on it.
    pub(crate) async fn new(setup: Setup, total: Size) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let server = open(&folder).await;
        let operator = server.token(Role::Operator).await;
        let (wire, http) = (speak(&server, setup.wire), reqwest::Client::new());
        let scene = Self { server, operator, setup, wire, http, folder };
        scene.activate(&scene.setup.policy()).await;
        scene.node(NODE, total, json!({})).await;
        scene
    }

    /// The same after the server was stopped and started again.
    pub(crate) async fn restarted(self) -> Self {
        let Self { server, operator, setup, http, folder, .. } = self;
        server.stop().await;
        let server = open(&folder).await;
        let wire = speak(&server, setup.wire);
        Self { server, operator, setup, wire, http, folder }
    }

    /// The file that the ledger is in.
    pub(crate) fn database(&self) -> std::path::PathBuf {
        self.folder.path().join(DATABASE)
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
        let body = json!({"tenant": TENANT, "instances": [spec]});
        self.post("/v1/placements", &body).await
    }

    /// An instance that the agent found and nobody placed: it stays as it is.
    pub(crate) async fn found(&self, size: Size) -> String {
        self.adopt(json!({"tenant": TENANT, "resources": resources(size)})).await
    }

    /// An elastic one that was found using so much of at most so much.
    pub(crate) async fn found_elastic(&self, size: Size, max: Size) -> String {
        let elastic = json!({"min": {"cpu_milli": 1, "memory_mib": 1}, "max": resources(max)});
        let found = json!({"tenant": TENANT, "resources": resources(size), "elastic": elastic});
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
        if let Way::Wire(version, _) = self.setup.way {
            let body = self.wire_body(version, &self.pod(id).await, size, last);
            return self.heard(version, &self.wire(&body).await.expect(200).json()["permit"]);
        }
        let mut body = json!({"resources": size});
        if let Some(last) = last {
            body["last_permit"] = json!(last);
        }
        self.permit(id, &body).await.permit
    }

    /// The name of an instance, or its id if it has none.
    async fn pod(&self, id: &str) -> String {
        let claim = self.get(&format!("/v1/claims/{id}")).await;
        claim["name"].as_str().unwrap_or(id).to_owned()
    }

    /// A request as an agent of this version writes it.
    pub(crate) fn wire_body(
        &self,
        version: u32,
        pod: &str,
        size: Size,
        last: Option<Size>,
    ) -> String {
        let said = |size: Size| {
            let memory = match version {
                5 => (size.memory_mib / self.setup.wire.slot_mib).to_string(),
                _ => format!("\"{}Mi\"", size.memory_mib),
            };
            format!(r#"{{"vCPUs":"{}m","mem":{memory}}}"#, size.cpu_milli)
        };
        let last = last.map_or("null".to_owned(), said);
        let unit = match version {
            5 => String::new(),
            _ => format!(r#""computeUnit":{},"#, said(self.setup.unit)),
        };
        let metrics = match version {
            7 => r#"{"loadAvg1M":0.25}"#,
            6 => r#"{"loadAvg1M":0.25,"loadAvg5M":0.5,"memoryUsageBytes":1.5e9}"#,
            _ => "null",
        };
        let resources = said(size);
        format!(
            r#"{{"protoVersion":{version},"pod":{{"name":"{pod}","namespace":"{TENANT}"}},{unit}"resources":{resources},"lastPermit":{last},"metrics":{metrics}}}"#
        )
    }

    /// Sends bytes over the wire.
    pub(crate) async fn wire(&self, body: &str) -> Reply {
        self.wire_as(None, "POST", "/", body.as_bytes()).await
    }

    /// The same with a token, another method or another path.
    pub(crate) async fn wire_as(
        &self,
        token: Option<&str>,
        method: &str,
        path: &str,
        body: &[u8],
    ) -> Reply {
        let method = reqwest::Method::from_bytes(method.as_bytes()).unwrap();
        let mut request = self.http.request(method, format!("{}{path}", self.wire));
        if let Some(token) = token {
            request = request.bearer_auth(token);
        }
        let response = request.body(body.to_vec()).send().await.unwrap();
        let (status, headers) = (response.status(), response.headers().clone());
        Reply { status, headers, text: response.text().await.unwrap() }
    }

    /// What an agent of this version understands of resources.
    pub(crate) fn heard(&self, version: u32, said: &Value) -> Size {
        let cpu_milli = match &said["vCPUs"] {
            Value::String(text) => text.strip_suffix('m').unwrap().parse().unwrap(),
            number => u32::try_from(number.as_u64().unwrap() * 1000).unwrap(),
        };
        let memory_mib = match &said["mem"] {
            Value::String(text) if text.ends_with("Gi") => {
                text.strip_suffix("Gi").unwrap().parse::<u32>().unwrap() * 1024
            }
            Value::String(text) => text.strip_suffix("Mi").unwrap().parse().unwrap(),
            slots => {
                assert_eq!(version, 5, "{said}");
                u32::try_from(slots.as_u64().unwrap()).unwrap() * self.setup.wire.slot_mib
            }
        };
        Size::new(cpu_milli, memory_mib)
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
            assert!(began.elapsed() < TIMEOUT, "{:?}", self.account().await);
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

/// Speaks the wire protocol on a free port, until the server stops. Returns where.
pub(crate) fn speak(server: &Server, settings: WireSettings) -> String {
    let listener = berth_server::serve::Server::bind(&["127.0.0.1:0".parse().unwrap()]).unwrap();
    let at = listener.addresses()[0];
    let stopping = server.control.lifecycle.stopping().clone();
    let stop = Stop { closing: stopping.clone(), cut: stopping, ..Stop::default() };
    let app = wire::router(server.state.clone(), settings);
    tokio::spawn(listener.run(app, stop));
    format!("http://{at}")
}

async fn open(folder: &tempfile::TempDir) -> Server {
    let backend = Backend::Sqlite(folder.path().join(DATABASE));
    Server::start_with(move |options| options.backend = backend).await
}
