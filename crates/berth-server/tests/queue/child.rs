//! A server in a process of its own, whose clock can be wrong, and which can be killed.

use std::io::{BufRead as _, BufReader, Read as _};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use berth_client::{Client, Connect};
use berth_ledger::Backend;

use crate::common::Server;

/// What tells the process which ledger to serve.
const LEDGER: &str = "BERTH_TEST_LEDGER";

/// What tells it that nodes whose agents are silent for [`LOST_AFTER`] are lost.
const LOSES_NODES: &str = "BERTH_TEST_LOSES_NODES";

/// What comes before the address in its output.
const LISTENING: &str = "listening on ";

/// How long nodes may be silent at such a server: a heartbeat takes up to 3 s to reach another one.
pub(crate) const LOST_AFTER: Duration = Duration::from_secs(10);

/// A running server. Dropped, it is killed.
pub(crate) struct ChildServer {
    child: Child,
    url: String,
    log: tempfile::NamedTempFile,
}

impl ChildServer {
    /// Starts a server on a ledger.
    pub(crate) fn start(ledger: &str) -> Self {
        Self::spawn(Self::command(ledger))
    }

    /// The same with a clock that is off by so many seconds; absent where libfaketime is not installed.
    pub(crate) fn start_with_clock(ledger: &str, offset_s: i64) -> Option<Self> {
        let folders = ["/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib"];
        let library = folders.map(|path| Path::new(path).join("faketime/libfaketimeMT.so.1"));
        let library = library.into_iter().find(|path| path.exists())?;
        let mut command = Self::command(ledger);
        command.env("LD_PRELOAD", library).env("FAKETIME", format!("{offset_s:+}s"));
        // Waiting goes by the monotonic clock, which stays as it is.
        command.env("FAKETIME_DONT_FAKE_MONOTONIC", "1");
        command.env(LOSES_NODES, "1");
        Some(Self::spawn(command))
    }

    /// This program, with the one test that serves.
    fn command(ledger: &str) -> Command {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "child::serve", "--ignored", "--nocapture"]);
        command.env(LEDGER, ledger);
        command
    }

    fn spawn(mut command: Command) -> Self {
        let log = tempfile::NamedTempFile::new().unwrap();
        let stderr = log.reopen().unwrap();
        // It serves until its standard input ends: also if this process is killed.
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(stderr);
        let mut child = command.spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let url = lines.find_map(|line| {
            line.unwrap().split_once(LISTENING).map(|(_, url)| url.trim().to_owned())
        });
        let url = url.unwrap_or_else(|| panic!("it did not start: {}", read(log.path())));
        std::thread::spawn(move || lines.for_each(drop));
        Self { child, url, log }
    }

    /// A client with a token of any server of the ledger.
    pub(crate) fn client(&self, token: &str) -> Client {
        let (url, token) = (self.url.clone(), Some(token.to_owned()));
        Client::new(Connect { url, token, ..Connect::default() }).unwrap()
    }

    /// What it has logged.
    pub(crate) fn log(&self) -> String {
        read(self.log.path())
    }
}

impl Drop for ChildServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}

/// Not a test: what a [`ChildServer`] runs.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "serves for other tests"]
#[allow(clippy::disallowed_methods, reason = "how the parent process tells the ledger")]
async fn serve() {
    let Ok(ledger) = std::env::var(LEDGER) else { return };
    tracing_subscriber::fmt().with_ansi(false).with_writer(std::io::stderr).init();
    let server = Server::start_with(|options| {
        options.backend = Backend::parse(&ledger).unwrap();
        if std::env::var_os(LOSES_NODES).is_some() {
            options.settings.lost_after = LOST_AFTER;
        }
    })
    .await;
    println!("{LISTENING}{}", server.url);
    let wait = || std::io::stdin().read_to_end(&mut Vec::new());
    tokio::task::spawn_blocking(wait).await.unwrap().unwrap();
}
