//! Worker processes that start together.
//!
//! Every worker is a process of its own with its own connections, as servers are. None outlives
//! its pool.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::time::Duration;

use anyhow::{Context, bail};

use crate::protocol::{GO, READY, Report, Settings, Task};

/// How long a worker may stay silent before it counts as stuck.
const TIMEOUT: Duration = Duration::from_secs(90);

struct Worker {
    child: Child,
    stdin: ChildStdin,
    lines: Receiver<String>,
}

impl Worker {
    fn start(mut command: Command) -> anyhow::Result<Self> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().context("a worker cannot be started")?;
        let stdin = child.stdin.take().context("the worker has no input")?;
        let stdout = child.stdout.take().context("the worker has no output")?;
        let (sender, lines) = mpsc::channel();
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        Ok(Self { child, stdin, lines })
    }

    fn send_line(&mut self, line: &str) -> anyhow::Result<()> {
        self.stdin.write_all(format!("{line}\n").as_bytes()).context("cannot write to a worker")?;
        Ok(self.stdin.flush()?)
    }

    fn next_line(&self) -> anyhow::Result<String> {
        self.lines.recv_timeout(TIMEOUT).context("a worker ended or timed out")
    }

    fn expect_ready(&self) -> anyhow::Result<()> {
        let line = self.next_line()?;
        if line != READY {
            bail!("a worker sent {line:?} instead of {READY:?}");
        }
        Ok(())
    }
}

/// Workers on one fixture. Dropping the pool ends them.
pub struct WorkerPool(Vec<Worker>);

impl WorkerPool {
    /// Starts workers, all alike, and waits until each has opened its ledger.
    ///
    /// # Errors
    /// When one does not come up.
    pub fn start(program: &Path, settings: &Settings, count: usize) -> anyhow::Result<Self> {
        Self::start_with(count, |_| Ok((Command::new(program), settings.clone())))
    }

    /// Starts workers, each by a command and with settings of its own.
    ///
    /// # Errors
    /// When one does not come up.
    pub fn start_with(
        count: usize,
        how: impl Fn(usize) -> anyhow::Result<(Command, Settings)>,
    ) -> anyhow::Result<Self> {
        let mut pool = Self(Vec::with_capacity(count));
        for number in 0..count {
            let (mut command, settings) = how(number)?;
            command.arg(serde_json::to_string(&settings)?);
            pool.0.push(Worker::start(command)?);
        }
        for worker in &pool.0 {
            worker.expect_ready()?;
        }
        Ok(pool)
    }

    /// How many there are.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// One round: every worker reads its task, then all begin at once. Workers without a task rest.
    ///
    /// # Errors
    /// When a worker ends or is stuck.
    pub fn round(&mut self, tasks: Vec<Task>) -> anyhow::Result<Vec<Report>> {
        self.begin_round(tasks)?;
        self.wait_for_reports()
    }

    /// Begins a round without waiting for its end.
    ///
    /// # Errors
    /// When a worker ends or is stuck.
    pub fn begin_round(&mut self, tasks: Vec<Task>) -> anyhow::Result<()> {
        if tasks.len() > self.0.len() {
            bail!("{} tasks for {} workers", tasks.len(), self.0.len());
        }
        let idle = std::iter::repeat(Task::Idle);
        for (worker, task) in self.0.iter_mut().zip(tasks.into_iter().chain(idle)) {
            worker.send_line(&serde_json::to_string(&task)?)?;
        }
        for worker in &self.0 {
            worker.expect_ready()?;
        }
        for worker in &mut self.0 {
            worker.send_line(GO)?;
        }
        Ok(())
    }

    /// Waits for the end of a round.
    ///
    /// # Errors
    /// When a worker ends or is stuck.
    pub fn wait_for_reports(&mut self) -> anyhow::Result<Vec<Report>> {
        let mut wait_for_reports = Vec::with_capacity(self.0.len());
        for worker in &self.0 {
            let line = worker.next_line()?;
            wait_for_reports.push(
                serde_json::from_str(&line).with_context(|| format!("invalid report {line:?}"))?,
            );
        }
        Ok(wait_for_reports)
    }

    /// Kills a worker as `kill -9` does.
    ///
    /// # Errors
    /// When it cannot be killed.
    pub fn kill(&mut self, number: usize) -> anyhow::Result<()> {
        let mut worker = self.0.remove(number);
        worker.child.kill()?;
        worker.child.wait()?;
        Ok(())
    }
}

impl Drop for WorkerPool {
    fn drop(&mut self) {
        for worker in &mut self.0 {
            // One that has ended already is what is wanted.
            let _ = worker.child.kill();
            let _ = worker.child.wait();
        }
    }
}
