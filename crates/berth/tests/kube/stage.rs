//! Files of the repository, and programs that a test started and that end with it.

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;

/// How long anything may take: debug builds on a busy machine are slow.
pub(crate) const PATIENCE: Duration = Duration::from_secs(90);

/// A file or folder of the repository.
pub(crate) fn repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}

pub(crate) fn read(path: &str) -> String {
    std::fs::read_to_string(repository(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The documents of a file.
pub(crate) fn documents(path: &str) -> Vec<Value> {
    yaml(path, &read(path))
}

pub(crate) fn yaml(name: &str, text: &str) -> Vec<Value> {
    let read = serde_saphyr::from_multiple(text);
    let all: Vec<Value> = read.unwrap_or_else(|error| panic!("{name}: {error}"));
    all.into_iter().filter(|document| !document.is_null()).collect()
}

/// Files of a folder that end so, in order.
pub(crate) fn files(folder: &str, end: &str) -> Vec<String> {
    let entries = std::fs::read_dir(repository(folder)).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut paths: Vec<String> =
        names.filter(|name| name.ends_with(end)).map(|name| format!("{folder}/{name}")).collect();
    paths.sort();
    assert!(!paths.is_empty(), "nothing in {folder} ends in {end}");
    paths
}

/// The document of a kind.
pub(crate) fn of_kind(documents: &[Value], kind: &str) -> Value {
    let found = documents.iter().find(|document| document["kind"] == kind);
    found.unwrap_or_else(|| panic!("there is no {kind}")).clone()
}

/// What the container of a Deployment runs.
pub(crate) fn arguments(part: &str) -> Vec<String> {
    let deployment =
        of_kind(&documents(&format!("deploy/kubernetes/{part}/30-deployment.yaml")), "Deployment");
    let args = &deployment["spec"]["template"]["spec"]["containers"][0]["args"];
    args.as_array().unwrap().iter().map(|arg| arg.as_str().unwrap().to_owned()).collect()
}

/// A folder for one test, in which programs run.
pub(crate) struct Stage(TempDir);

impl Stage {
    pub(crate) fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    pub(crate) fn path(&self, name: &str) -> String {
        self.0.path().join(name).display().to_string()
    }

    pub(crate) fn write(&self, name: &str, text: &str) -> String {
        std::fs::write(self.0.path().join(name), text).unwrap();
        self.path(name)
    }

    /// A command without anything of this machine's settings.
    pub(crate) fn berth(&self, arguments: &[impl AsRef<str>]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_berth"));
        command.args(arguments.iter().map(AsRef::as_ref)).env_clear();
        command.env("PATH", "/usr/bin:/bin").env("HOME", self.0.path());
        command.stdin(Stdio::null());
        command
    }

    /// Runs a command to its end: its exit code, what it printed, and what it printed on stderr.
    pub(crate) async fn run(&self, arguments: &[&str]) -> (Option<i32>, String, String) {
        let mut command = self.berth(arguments);
        // The imitation answers from this runtime, so it must not be held up.
        let running = tokio::task::spawn_blocking(move || command.output().unwrap());
        let Output { status, stdout, stderr } = running.await.unwrap();
        (status.code(), String::from_utf8(stdout).unwrap(), String::from_utf8(stderr).unwrap())
    }

    /// Starts a command that goes on until it is stopped, and waits for its last words of greeting.
    pub(crate) async fn start(&self, arguments: &[String]) -> Running {
        let mut command = self.berth(arguments);
        let log = self.0.path().join(format!("{}.log", arguments[1]));
        let file = std::fs::File::create(&log).unwrap();
        let started = tokio::task::spawn_blocking(move || {
            let child = command.stdout(Stdio::piped()).stderr(file).spawn().unwrap();
            Running::greeted(child, log)
        });
        started.await.unwrap()
    }
}

/// A program that runs.
pub(crate) struct Running {
    child: Child,
    log: PathBuf,
    said: Vec<String>,
}

impl Running {
    fn greeted(mut child: Child, log: PathBuf) -> Self {
        let stdout = BufReader::new(child.stdout.take().unwrap());
        let (sender, lines) = mpsc::channel();
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

    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// What follows a word at the start of a line.
    pub(crate) fn told(&self, word: &str) -> &str {
        let found = self.said.iter().find_map(|line| line.trim_start().strip_prefix(word));
        found.unwrap_or_else(|| panic!("{word} is not in {:?}", self.said)).trim()
    }

    /// Where its probes are.
    pub(crate) fn probes(&self) -> String {
        let url = self.told("probes ");
        url.split("/readyz").next().unwrap().to_owned()
    }

    /// Asks it to stop, and waits for its end.
    pub(crate) async fn stop(mut self) -> ExitStatus {
        let id = self.child.id().to_string();
        let killed = Command::new("kill").args(["-TERM", &id]).status().unwrap();
        assert!(killed.success());
        for _ in 0..PATIENCE.as_millis() / 50 {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        panic!("it does not stop:\n{}", self.log());
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Waits until something is so.
pub(crate) async fn until(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    for _ in 0..PATIENCE.as_millis() / 50 {
        if holds().await {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("never: {what}");
}

/// Asks for a page: its status and text; none when nobody answers.
pub(crate) async fn page(url: &str) -> Option<(u16, String)> {
    // The first one sets it for the process.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let answer = reqwest::get(url).await.ok()?;
    let status = answer.status().as_u16();
    Some((status, answer.text().await.ok()?))
}
