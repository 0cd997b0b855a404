//! A program that runs, is killed, and is started again. Killed when dropped.

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// How much of a log is shown.
const LOG_TAIL: usize = 3_000;

/// A running program.
pub(crate) struct Process {
    name: String,
    program: PathBuf,
    args: Vec<String>,
    variables: BTreeMap<String, String>,
    log: PathBuf,
    child: Child,
}

/// What a process has used.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Usage {
    /// Processor time, in milliseconds.
    pub(crate) cpu_ms: u64,
    /// Memory now, in KiB.
    pub(crate) resident_kib: u64,
    /// The most memory, in KiB.
    pub(crate) peak_kib: u64,
}

fn spawn(
    program: &Path,
    args: &[String],
    variables: &BTreeMap<String, String>,
    log: &Path,
) -> Child {
    let output = OpenOptions::new().create(true).append(true).open(log).unwrap();
    let errors = output.try_clone().unwrap();
    let mut command = Command::new(program);
    command.args(args).envs(variables).stdin(Stdio::null()).stdout(output).stderr(errors);
    command.spawn().unwrap_or_else(|error| panic!("{} cannot be run: {error}", program.display()))
}

impl Process {
    /// Starts a program that logs to `NAME.log` of a folder.
    pub(crate) fn start(name: &str, program: &Path, args: Vec<String>, folder: &Path) -> Self {
        Self::start_with(name, program, args, BTreeMap::new(), folder)
    }

    /// With variables of its environment.
    pub(crate) fn start_with(
        name: &str,
        program: &Path,
        args: Vec<String>,
        variables: BTreeMap<String, String>,
        folder: &Path,
    ) -> Self {
        let log = folder.join(format!("{name}.log"));
        let child = spawn(program, &args, &variables, &log);
        let (name, program) = (name.to_owned(), program.to_owned());
        Self { name, program, args, variables, log, child }
    }

    /// Kills it without warning, and waits until it is gone.
    pub(crate) fn kill(&mut self) {
        // It may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Kills it without warning and starts it again.
    pub(crate) fn restart(&mut self) {
        self.kill();
        self.child = spawn(&self.program, &self.args, &self.variables, &self.log);
    }

    /// Asks it to end. Whether it has is up to [`Process::is_running`].
    pub(crate) fn terminate(&mut self) {
        let number = self.child.id().to_string();
        // It may have ended.
        let _ = Command::new("kill").args(["-TERM", &number]).status();
    }

    /// Whether it runs.
    pub(crate) fn is_running(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// The end of its log, if it has ended by itself.
    pub(crate) fn failure(&mut self) -> Option<String> {
        let status = self.child.try_wait().ok().flatten()?;
        Some(format!("{} has ended, {status}; its log ends so:\n{}", self.name, self.log_tail()))
    }

    /// The end of its log.
    pub(crate) fn log_tail(&self) -> String {
        let text =
            String::from_utf8_lossy(&std::fs::read(&self.log).unwrap_or_default()).into_owned();
        let from = text.len().saturating_sub(LOG_TAIL);
        let from = (from..=text.len()).find(|at| text.is_char_boundary(*at)).unwrap_or(0);
        text[from..].to_owned()
    }

    /// What it has used, where the system tells it.
    pub(crate) fn usage(&self) -> Option<Usage> {
        let folder = PathBuf::from(format!("/proc/{}", self.child.id()));
        let status = std::fs::read_to_string(folder.join("status")).ok()?;
        let kib = |key: &str| -> Option<u64> {
            let line = status.lines().find(|line| line.starts_with(key))?;
            line.split_whitespace().nth(1)?.parse().ok()
        };
        let times = std::fs::read_to_string(folder.join("stat")).ok()?;
        // The name, in parentheses, may contain spaces. User and system time follow, in hundredths of a second.
        let fields: Vec<&str> = times.rsplit_once(')')?.1.split_whitespace().collect();
        let ticks = |at: usize| fields.get(at).and_then(|it| it.parse::<u64>().ok());
        Some(Usage {
            cpu_ms: (ticks(11)? + ticks(12)?) * 10,
            resident_kib: kib("VmRSS:")?,
            peak_kib: kib("VmHWM:")?,
        })
    }

    /// Waits until it has ended, and kills it if it takes longer.
    pub(crate) async fn wait_until_ended(&mut self, at_most: Duration) {
        let ended = async {
            while self.is_running() {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        if tokio::time::timeout(at_most, ended).await.is_err() {
            self.kill();
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}
