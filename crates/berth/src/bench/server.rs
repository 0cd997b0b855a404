//! The server of a benchmark: started for the run, stopped after it.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, bail};
use berth_api::{ImportReport, NewToken, Role};
use berth_client::{Client, Connect};
use berth_control::Caller;
use berth_engine::{Amounts, NodeFacts};
use berth_ledger::{Backend, Ledger, Options};
use berth_server::TokenRecord;
use berth_server::access::store_token;
use tempfile::TempDir;

/// Nodes per import request.
const IMPORT_SIZE: usize = 5000;

/// A server, and how to reach it.
pub(super) struct Server {
    /// Host and port.
    pub(super) address: String,
    pub(super) token: String,
    database_url: Option<String>,
    process: Option<Child>,
    folder: Option<TempDir>,
    settings: Settings,
}

/// Settings of a server, as variables of its environment.
pub(super) type Settings = &'static [(&'static str, &'static str)];

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(process) = &mut self.process {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

impl Server {
    /// A running server.
    pub(super) fn existing(url: &str, token: &str) -> anyhow::Result<Self> {
        let Some(address) = url.trim_end_matches('/').strip_prefix("http://") else {
            bail!("--url is {url:?}; accepted is http://HOST:PORT (TLS is not measured)");
        };
        let (address, token) = (address.to_owned(), token.to_owned());
        Ok(Self { address, token, database_url: None, process: None, folder: None, settings: &[] })
    }

    /// Starts a server with this binary, and a token that was created before.
    pub(super) fn start(url: Option<&str>, data_dir: Option<&Path>) -> anyhow::Result<Self> {
        Self::start_for_tenants(url, data_dir, &[], &[]).map(|(server, _)| server)
    }

    /// Starts a server with settings, and with further tokens: one for each of these sets of tenants.
    pub(super) fn start_for_tenants(
        url: Option<&str>,
        data_dir: Option<&Path>,
        tenants: &[Vec<String>],
        settings: Settings,
    ) -> anyhow::Result<(Self, Vec<String>)> {
        let folder = match data_dir {
            Some(parent) => tempfile::tempdir_in(parent)?,
            None => tempfile::tempdir()?,
        };
        let data = folder.path().join("data");
        std::fs::create_dir_all(&data)?;
        let backend = match url {
            Some(url) => Backend::parse(url)?,
            None => Backend::Sqlite(data.join("berth.db")),
        };
        let ledger = Ledger::open(backend, Options::default())?;
        let token = create_token(&ledger, Role::Admin, &[])?;
        let tokens: anyhow::Result<Vec<String>> =
            tenants.iter().map(|tenants| create_token(&ledger, Role::Tenant, tenants)).collect();
        drop(ledger);
        let address = format!("127.0.0.1:{}", berth_pgtemp::free_port());
        let process = spawn(&address, folder.path(), url, None, settings)?;
        let (process, folder) = (Some(process), Some(folder));
        let database_url = url.map(str::to_owned);
        Ok((Self { address, token, database_url, process, folder, settings }, tokens?))
    }

    /// Starts a server with a simulated fleet of so many hosts, which needs no token.
    pub(super) fn start_demo(hosts: u32) -> anyhow::Result<Self> {
        let folder = tempfile::tempdir()?;
        std::fs::create_dir_all(folder.path().join("data"))?;
        let address = format!("127.0.0.1:{}", berth_pgtemp::free_port());
        let process = Some(spawn(&address, folder.path(), None, Some(hosts), &[])?);
        let (token, folder) = (String::new(), Some(folder));
        Ok(Self { address, token, database_url: None, process, folder, settings: &[] })
    }

    /// Its resident memory.
    pub(super) fn resident_bytes(&self) -> anyhow::Result<u64> {
        let process = self.process.as_ref().context("the server is not of this benchmark")?;
        match super::resident_bytes(&process.id().to_string()) {
            0 => bail!("the kernel does not tell the memory of the server; this needs Linux"),
            bytes => Ok(bytes),
        }
    }

    /// The most that it ever had resident.
    pub(super) fn peak_resident_bytes(&self) -> anyhow::Result<u64> {
        let process = self.process.as_ref().context("the server is not of this benchmark")?;
        match super::peak_resident_bytes(&process.id().to_string()) {
            0 => bail!("the kernel does not tell the memory of the server; this needs Linux"),
            bytes => Ok(bytes),
        }
    }

    /// Kills the server with SIGKILL.
    pub(super) fn kill(&mut self) -> anyhow::Result<()> {
        if let Some(mut process) = self.process.take() {
            process.kill()?;
            process.wait()?;
        }
        Ok(())
    }

    /// Restarts the server on the same address and database.
    pub(super) fn restart(&mut self) -> anyhow::Result<()> {
        let folder =
            self.folder.as_ref().context("only a server of this benchmark can be restarted")?;
        let url = self.database_url.as_deref();
        self.process = Some(spawn(&self.address, folder.path(), url, None, self.settings)?);
        Ok(())
    }

    /// Stops the server and starts it with other settings.
    pub(super) fn restart_with(&mut self, settings: Settings) -> anyhow::Result<()> {
        self.settings = settings;
        self.kill()?;
        self.restart()
    }

    /// Whether it was started for this run.
    pub(super) fn is_own(&self) -> bool {
        self.process.is_some()
    }

    pub(super) fn client(&self) -> anyhow::Result<Client> {
        let url = format!("http://{}", self.address);
        let timeout = Some(Duration::from_secs(300));
        let token = Some(self.token.clone()).filter(|token| !token.is_empty());
        Ok(Client::new(Connect { url, token, timeout, ..Connect::default() })?)
    }

    /// Waits until the server is ready.
    pub(super) async fn wait_until_ready(&self) -> anyhow::Result<()> {
        let client = self.client()?;
        for _ in 0..600 {
            if client.get_text("/readyz").await.is_ok() {
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        bail!("the server did not become ready within a minute")
    }

    /// Adds nodes in racks and zones, large enough for the whole run.
    pub(super) async fn add_nodes(&self, nodes: u32) -> anyhow::Result<()> {
        let facts: Vec<NodeFacts> = (0..nodes).map(node).collect();
        self.add(&facts).await
    }

    /// Adds nodes.
    pub(super) async fn add(&self, facts: &[NodeFacts]) -> anyhow::Result<()> {
        let client = self.client()?;
        for chunk in facts.chunks(IMPORT_SIZE) {
            let report: ImportReport = client.post("/v1/nodes/import", &chunk).await?;
            if let Some(error) = report.errors.first() {
                bail!("{}", error.error);
            }
        }
        Ok(())
    }
}

fn spawn(
    address: &str,
    folder: &Path,
    url: Option<&str>,
    demo: Option<u32>,
    settings: Settings,
) -> anyhow::Result<Child> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["up", "--listen", address, "--data-dir"]).arg(folder.join("data"));
    command.env("HOME", folder).env_remove("XDG_CONFIG_HOME");
    command.envs(settings.iter().copied());
    if let Some(url) = url {
        command.args(["--database-url", url]);
    }
    if let Some(hosts) = demo {
        command.args([&format!("--demo={hosts}"), "--no-sign-in"]);
    }
    let started = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn();
    started.context("failed to start the server")
}

/// Large enough for all instances of a run, which must not end with a full fleet.
fn node(number: u32) -> NodeFacts {
    let capacity =
        Amounts::new(100_000_000, 1_000_000_000).with_disk(1_000_000_000).with_bandwidth(1_000_000);
    let mut facts = NodeFacts::new(&format!("node-{number:06}"), capacity);
    facts.instance_limit = 10_000_000;
    facts.zone = Some(format!("zone-{}", number / 40 % 3));
    facts.rack = Some(format!("rack-{:04}", number / 40));
    facts
}

/// Creates a token in the ledger itself, before the server starts.
fn create_token(ledger: &Ledger, role: Role, tenants: &[String]) -> anyhow::Result<String> {
    let name = tenants.first().map_or_else(|| "bench".to_owned(), |first| format!("bench-{first}"));
    let tenants = tenants.to_vec();
    let new = NewToken { name, role, tenants, node: None, expires_in_s: None };
    let (record, secret) = TokenRecord::make(&new, jiff::Timestamp::now())?;
    store_token(ledger, &record, &Caller::local("berth bench"))?;
    Ok(secret)
}
