//! A server in this process, and agents in processes of their own.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use berth_api::engine::{InstanceId, NodeId, Policy};
use berth_api::{ClaimState, InstanceSpec, Mode, NewToken, PlaceRequest, Resources, Role};
use berth_client::{Client, Connect, PlaceOutcome};
use berth_control::ControlOptions;
use berth_ledger::Backend;
use berth_server::{AppState, HttpLimits, TokenRecord, router};
use tempfile::TempDir;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinHandle, JoinSet};

pub(crate) struct Fixture {
    pub(crate) client: Client,
    pub(crate) admin_token: String,
    pub(crate) folder: TempDir,
    state: AppState,
    address: SocketAddr,
    serving: JoinHandle<()>,
}

impl Fixture {
    pub(crate) async fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let backend = Backend::Sqlite(folder.path().join("ledger.db"));
        let mut options = ControlOptions::new(backend, Policy::builtin("balanced").unwrap());
        options.settings.heartbeat_every = Duration::from_secs(1);
        let started = tokio::task::spawn_blocking(move || {
            let state = AppState::start(options, false).unwrap();
            let token = state.access.first_token(&state.control.ledger).unwrap().unwrap();
            (state, token)
        });
        let (state, token) = started.await.unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let app = router(state.clone(), HttpLimits::default());
        let serving = tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
        let admin_token = token.clone();
        let (url, token) = (format!("http://{address}"), Some(token));
        let client = Client::new(Connect { url, token, ..Connect::default() }).unwrap();
        Self { client, admin_token, folder, state, address, serving }
    }

    pub(crate) fn url(&self) -> String {
        self.client.url().to_owned()
    }

    pub(crate) fn agent_token(&self, node: &str) -> String {
        let new = NewToken {
            name: format!("agent of {node}"),
            role: Role::Agent,
            tenants: Vec::new(),
            node: Some(NodeId::new(node)),
            expires_in_s: None,
        };
        let (record, secret) = TokenRecord::make(&new, jiff::Timestamp::now()).unwrap();
        self.state.access.tokens.put_local(record);
        secret
    }

    /// An agent of node `n1`, not yet started.
    pub(crate) fn agent(&self, url: &str, command: &str) -> AgentPlan {
        AgentPlan {
            node: "n1".to_owned(),
            url: url.to_owned(),
            token: self.agent_token("n1"),
            state_dir: self.folder.path().join("agent"),
            output: self.folder.path().join("agent.log"),
            command: command.to_owned(),
            more: Vec::new(),
        }
    }

    /// An agent of another node, with a folder of its own.
    pub(crate) fn agent_of(&self, node: &str, command: &str) -> AgentPlan {
        AgentPlan {
            node: node.to_owned(),
            token: self.agent_token(node),
            state_dir: self.folder.path().join(format!("agent-{node}")),
            output: self.folder.path().join(format!("agent-{node}.log")),
            ..self.agent(&self.url(), command)
        }
    }

    /// A way to the server that can be cut.
    pub(crate) async fn detour(&self) -> Detour {
        let listener = TcpListener::bind(("127.0.0.1", berth_pgtemp::free_port())).await.unwrap();
        let address = listener.local_addr().unwrap();
        let mut detour = Detour { address, server: self.address, relaying: None };
        detour.open_on(listener);
        detour
    }

    /// Places one instance and returns its id and fence.
    pub(crate) async fn place(&self, id: Option<InstanceId>) -> (InstanceId, i64) {
        let resources = Resources { cpu_milli: 100, memory_mib: 64, ..Resources::default() };
        let mut spec = InstanceSpec::new(resources);
        spec.id = id;
        spec.name = Some("web".to_owned());
        spec.resources.disk_mib = Some(16);
        spec.tags.insert("role".to_owned(), "front".to_owned());
        let request = PlaceRequest {
            request_id: None,
            tenant: Some("acme".to_owned()),
            instances: vec![spec],
            mode: Mode::AllOrNothing,
            at_least: None,
            wait_s: None,
            lease_s: None,
            pools: Vec::new(),
            dry_run: false,
            explain: berth_api::ExplainLevel::None,
        };
        match self.client.place(&request).await.unwrap() {
            PlaceOutcome::Placed(placed) => {
                (placed.instances[0].instance, placed.instances[0].fence.unwrap())
            }
            PlaceOutcome::Waiting(_) => panic!("an instance that was not to wait does"),
        }
    }

    pub(crate) async fn node_is_there(&self, node: &str) {
        let path = format!("/v1/nodes/{node}");
        until("the node is registered", async || {
            self.client.get::<berth_api::Node>(&path, &[]).await.is_ok()
        })
        .await;
    }

    pub(crate) async fn is_active(&self, instance: InstanceId, fence: i64) {
        until("the claim is active", async || {
            let claim = self.client.claim(instance).await;
            claim.is_ok_and(|claim| claim.state == ClaimState::Active && claim.fence == fence)
        })
        .await;
    }

    pub(crate) async fn is_gone(&self, instance: InstanceId) {
        until("the claim is gone", async || self.client.claim(instance).await.is_err()).await;
    }

    /// The process of an instance, by the agent's own record.
    pub(crate) fn pid(&self, instance: InstanceId) -> Option<i32> {
        self.pid_in("agent", instance)
    }

    /// The same by the record of the agent with this folder.
    pub(crate) fn pid_in(&self, agent: &str, instance: InstanceId) -> Option<i32> {
        let folder = self.folder.path().join(agent).join("instances").join(instance.to_string());
        let record = fs::read(folder.join("record.json")).ok()?;
        let record: serde_json::Value = serde_json::from_slice(&record).ok()?;
        record["process"]["pid"].as_i64()?.try_into().ok()
    }

    pub(crate) fn output(&self, instance: InstanceId) -> String {
        let folder = self.folder.path().join("agent/instances").join(instance.to_string());
        fs::read_to_string(folder.join("output.log")).unwrap_or_default()
    }

    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("agent.log")).unwrap_or_default()
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        self.serving.abort();
        self.state.control.lifecycle.stop();
        // A test that failed must leave nothing running either.
        for pid in processes_in(self.folder.path()) {
            if let Some(pid) = rustix::process::Pid::from_raw(pid) {
                let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
            }
        }
    }
}

/// Living processes whose working folder is below this one.
pub(crate) fn processes_in(folder: &Path) -> Vec<i32> {
    let pids = fs::read_dir("/proc").unwrap().flatten();
    let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    pids.filter(|pid| {
        fs::read_link(format!("/proc/{pid}/cwd")).is_ok_and(|cwd| cwd.starts_with(folder))
    })
    .collect()
}

pub(crate) fn is_alive(pid: i32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
}

/// How an agent is started.
pub(crate) struct AgentPlan {
    node: String,
    url: String,
    token: String,
    state_dir: PathBuf,
    output: PathBuf,
    command: String,
    more: Vec<String>,
}

impl AgentPlan {
    pub(crate) fn with(mut self, arguments: &[&str]) -> Self {
        self.more.extend(arguments.iter().map(|text| (*text).to_owned()));
        self
    }

    pub(crate) fn with_token(mut self, token: &str) -> Self {
        token.clone_into(&mut self.token);
        self
    }

    pub(crate) fn start(&self) -> RunningAgent {
        let output = fs::File::options().create(true).append(true).open(&self.output).unwrap();
        let child = Command::new(env!("CARGO_BIN_EXE_berth"))
            .args([
                "agent", "--node", &self.node, "--memory", "4GiB", "--disk", "100GiB", "--cpu", "4",
            ])
            .args(["--url", &self.url, "--stop-grace", "2s", "--command", &self.command])
            .arg("--state-dir")
            .arg(&self.state_dir)
            .args(&self.more)
            .env("BERTH_TOKEN", &self.token)
            .stderr(output)
            .stdin(Stdio::null())
            .spawn();
        RunningAgent(child.unwrap())
    }
}

pub(crate) struct RunningAgent(Child);

impl RunningAgent {
    /// As `kill -9` does.
    pub(crate) fn kill(mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }

    /// As `kill` does; waits for its end.
    pub(crate) fn terminate(mut self) {
        let pid = rustix::process::Pid::from_child(&self.0);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        let deadline = Instant::now() + Duration::from_secs(60);
        while self.0.try_wait().unwrap().is_none() {
            assert!(Instant::now() < deadline, "the agent does not stop");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for RunningAgent {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A way to the server that can be cut.
pub(crate) struct Detour {
    address: SocketAddr,
    server: SocketAddr,
    relaying: Option<JoinHandle<()>>,
}

impl Detour {
    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    fn open_on(&mut self, listener: TcpListener) {
        let server = self.server;
        self.relaying = Some(tokio::spawn(async move {
            // Dropped with the task, and all connections with it.
            let mut connections = JoinSet::new();
            while let Ok((mut near, _)) = listener.accept().await {
                connections.spawn(async move {
                    let mut far = TcpStream::connect(server).await.unwrap();
                    let _ = tokio::io::copy_bidirectional(&mut near, &mut far).await;
                });
            }
        }));
    }

    pub(crate) async fn open(&mut self) {
        let listener = TcpListener::bind(self.address).await.unwrap();
        self.open_on(listener);
    }

    pub(crate) async fn cut(&mut self) {
        if let Some(relaying) = self.relaying.take() {
            relaying.abort();
            let _ = relaying.await;
        }
    }
}

/// Waits for something, generously.
pub(crate) async fn until(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(180);
    while !holds().await {
        assert!(Instant::now() < deadline, "waited in vain until {what}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
