//! A server that a test started, and that ends with the test.

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use berth_client::{Client, Connect};
use tempfile::TempDir;

/// How long anything may take: debug builds on a busy machine are slow.
const PATIENCE: Duration = Duration::from_secs(60);

/// Folders of a user who has nothing yet.
pub(crate) struct Home(TempDir);

impl Home {
    pub(crate) fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }

    pub(crate) fn client_file(&self) -> PathBuf {
        self.path().join("config/berth/client.toml")
    }

    /// A command of this user, who has no other settings.
    pub(crate) fn berth(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_berth"));
        command.args(arguments).env_clear();
        command.env("PATH", "/usr/bin:/bin").env("HOME", self.path());
        command.env("XDG_DATA_HOME", self.path().join("data"));
        command.env("XDG_CONFIG_HOME", self.path().join("config"));
        command
    }

    /// Runs a command to its end.
    pub(crate) fn run(&self, arguments: &[&str]) -> Output {
        self.berth(arguments).stdin(Stdio::null()).output().unwrap()
    }

    /// A server that does not start: its exit code and what it says.
    pub(crate) fn refused(&self, arguments: &[&str]) -> (Option<i32>, String) {
        let output = self.run(arguments);
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    }

    /// A server on a free port.
    pub(crate) fn up(&self, arguments: &[&str]) -> Running {
        let mut all = vec!["up", "--listen", "127.0.0.1:0"];
        all.extend(arguments);
        Running::start(self.berth(&all), self.path())
    }
}

/// A server that runs.
pub(crate) struct Running {
    child: Child,
    log: PathBuf,
    /// Everything it said when it started.
    pub(crate) said: Vec<String>,
}

impl Running {
    pub(crate) fn start(mut command: Command, folder: &Path) -> Self {
        let log = tempfile::Builder::new().suffix(".log").tempfile_in(folder).unwrap();
        let (file, log) = log.keep().unwrap();
        let mut child =
            command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(file).spawn().unwrap();
        let (sender, lines) = mpsc::channel();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        std::thread::spawn(move || {
            for line in stdout.lines().map_while(Result::ok) {
                let _ = sender.send(line);
            }
        });
        let mut running = Self { child, log, said: Vec::new() };
        while let Ok(line) = lines.recv_timeout(PATIENCE) {
            let is_last = line.starts_with("Ctrl-C");
            running.said.push(line);
            if is_last {
                return running;
            }
        }
        panic!("it did not start: {:?}\n{}", running.said, running.log());
    }

    pub(crate) fn url(&self) -> String {
        self.said[0].rsplit(' ').next().unwrap().to_owned()
    }

    /// What follows a word at the start of a line.
    pub(crate) fn told(&self, word: &str) -> Option<&str> {
        self.said.iter().find_map(|line| line.trim_start().strip_prefix(word)).map(str::trim)
    }

    /// The token, from the file that has it: output that is no terminal does not.
    pub(crate) fn token(&self) -> String {
        let path = self.told("token ").and_then(|text| text.strip_prefix("is in ")).unwrap();
        let file = std::fs::read_to_string(path).unwrap();
        let line = file.lines().find_map(|line| line.strip_prefix("token = ")).unwrap();
        line.trim_matches('"').to_owned()
    }

    pub(crate) fn client(&self) -> Client {
        let connect = Connect { url: self.url(), token: Some(self.token()), ..Connect::default() };
        Client::new(connect).unwrap()
    }

    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Waits until the log says something.
    pub(crate) fn wait_for_log(&self, text: &str) {
        let began = Instant::now();
        while !self.log().contains(text) {
            assert!(began.elapsed() < PATIENCE, "{text} is not in the log:\n{}", self.log());
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    pub(crate) fn signal(&self, name: &str) {
        let id = self.child.id().to_string();
        assert!(Command::new("kill").args([name, &id]).status().unwrap().success());
    }

    /// Waits for its end.
    pub(crate) fn wait(mut self) -> ExitStatus {
        let began = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(began.elapsed() < PATIENCE, "it does not end:\n{}", self.log());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Stops it as a service manager does.
    pub(crate) fn stop(self) {
        self.signal("-TERM");
        let log = self.log.clone();
        let status = self.wait();
        assert!(status.success(), "{status:?}\n{}", std::fs::read_to_string(log).unwrap());
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A node with much room.
pub(crate) fn node(id: &str) -> berth_engine::NodeFacts {
    let amounts = berth_engine::Amounts::new(1_000_000, 10_000_000).with_disk(100_000_000);
    let mut facts = berth_engine::NodeFacts::new(id, amounts);
    facts.instance_limit = 1_000_000;
    facts
}

/// A small instance.
pub(crate) fn small(request_id: &str) -> berth_api::PlaceRequest {
    let json = serde_json::json!({
        "request_id": request_id,
        "tenant": "acme",
        "instances": [{ "resources": { "cpu_milli": 10, "memory_mib": 16, "disk_mib": 1 } }],
    });
    serde_json::from_value(json).unwrap()
}

/// The status with which a server answers somebody who has no token.
pub(crate) async fn status(url: &str) -> u16 {
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    reqwest::get(url).await.unwrap().status().as_u16()
}
