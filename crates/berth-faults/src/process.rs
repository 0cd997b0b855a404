//! A worker in a process of its own, which is killed without warning.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::Duration;

use anyhow::{Context, bail};

use crate::history::History;
use crate::operation::Message;

/// How long a worker may take until it prints a line.
const SILENCE: Duration = Duration::from_secs(60);

/// A running worker. Killed when dropped.
pub struct Worker {
    child: Child,
    lines: Receiver<String>,
}

impl Worker {
    /// Starts a program and listens to what it prints.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn start(program: &Path, arguments: &[&str]) -> anyhow::Result<Self> {
        let mut command = Command::new(program);
        command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child = command.spawn().context("the worker cannot be started")?;
        let output = child.stdout.take().context("the worker has no output")?;
        let (sender, lines) = mpsc::channel();
        thread::spawn(move || {
            let mut output = BufReader::new(output);
            loop {
                let mut line = String::new();
                match output.read_line(&mut line) {
                    // A line without its end was cut off: no one can have relied on it.
                    Ok(1..) if line.ends_with('\n') => drop(sender.send(line)),
                    _ => return,
                }
            }
        });
        Ok(Self { child, lines })
    }

    /// The next line.
    ///
    /// # Errors
    /// When the worker ended, or prints nothing for a minute.
    pub fn line(&mut self) -> anyhow::Result<String> {
        match self.lines.recv_timeout(SILENCE) {
            Ok(line) => Ok(line.trim_end().to_owned()),
            Err(_) => bail!("no output from the worker; exit status: {:?}", self.child.try_wait()),
        }
    }

    /// Whether it still runs.
    pub fn runs(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Records what the worker reports until its first answer is there.
    ///
    /// # Errors
    /// When it ended before.
    pub fn wait_for_answer(&mut self, round: u32, history: &mut History) -> anyhow::Result<()> {
        let before = history.done;
        while history.done == before {
            let line = self.line()?;
            history.record(round, serde_json::from_str(&line)?);
        }
        Ok(())
    }

    /// Kills it with no chance to tidy up, and returns what it had printed until then.
    ///
    /// # Errors
    /// When it had ended by itself, which it must not.
    pub fn kill(mut self) -> anyhow::Result<Vec<String>> {
        if let Some(status) = self.child.try_wait()? {
            bail!("the worker ended by itself: {status}");
        }
        self.child.kill()?;
        self.child.wait()?;
        Ok(self.lines.iter().collect())
    }

    /// Kills it and records what it had reported until then.
    ///
    /// # Errors
    /// As [`Worker::kill`], or when its output cannot be parsed.
    pub fn kill_and_record(self, round: u32, history: &mut History) -> anyhow::Result<()> {
        for line in self.kill()? {
            let message: Message = serde_json::from_str(&line).with_context(|| line.clone())?;
            history.record(round, message);
        }
        Ok(())
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // It may be gone already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
