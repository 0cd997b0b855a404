//! The server's process: started, asked to stop, or killed with all its children.
//!
//! Never signals a process that it did not start: the list of children is made while their parent
//! cannot make more.

use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus};
use std::sync::mpsc::{Receiver, SyncSender, channel, sync_channel};
use std::thread;
use std::time::Duration;

use crate::error::CommandError;
use crate::programs;

/// How long between two looks at something that we wait for.
pub(crate) const PAUSE: Duration = Duration::from_millis(25);

/// How many such looks before we give up.
pub(crate) const LOOKS_MAX: u32 = 2400;

/// How long that is.
pub(crate) const WAITED_S: u64 = 60;

/// A running server.
#[derive(Debug)]
pub(crate) struct Server {
    child: Child,
    /// Ends the thread that started the server. The kernel kills the server when that thread ends,
    /// so it must live as long as the server, whatever becomes of the caller's thread.
    _keeper: SyncSender<()>,
    /// Whether it was halted; then it takes no other signal.
    is_frozen: bool,
}

impl Server {
    /// Starts the server in a process group of its own, so that an interrupt typed at the terminal
    /// reaches us and not it.
    pub(crate) fn start(mut command: Command) -> Result<Self, CommandError> {
        let program = command.get_program().to_string_lossy().into_owned();
        command.process_group(0);
        let (started, receive_started) = channel();
        let (keeper, until_dropped): (SyncSender<()>, Receiver<()>) = sync_channel(0);
        thread::spawn(move || {
            // No one listens only if the caller's thread is gone; then this one may go too.
            if started.send(command.spawn()).is_ok() {
                let _ = until_dropped.recv();
            }
        });
        let spawned = receive_started
            .recv()
            .unwrap_or_else(|_| Err(std::io::Error::other("the starting thread ended")));
        let child = spawned.map_err(|source| CommandError::Run { program, source })?;
        Ok(Self { child, _keeper: keeper, is_frozen: false })
    }

    pub(crate) fn process_id(&self) -> u32 {
        self.child.id()
    }

    /// How the server ended, if it has.
    pub(crate) fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    /// Fast shutdown: sessions are ended, what is committed is written, the server leaves.
    pub(crate) fn stop(&mut self) -> Result<(), CommandError> {
        self.end("INT")
    }

    /// Immediate shutdown: nothing more is written. For data that is not needed again.
    pub(crate) fn abandon(&mut self) -> Result<(), CommandError> {
        self.end("QUIT")
    }

    fn end(&mut self, by_signal: &str) -> Result<(), CommandError> {
        if self.ended().is_some() {
            return Ok(());
        }
        if self.is_frozen {
            self.thaw()?;
        }
        signal(by_signal, &[self.process_id()])?;
        for _ in 0..LOOKS_MAX {
            if self.ended().is_some() {
                return Ok(());
            }
            thread::sleep(PAUSE);
        }
        Err(CommandError::StillRuns { waited_s: WAITED_S })
    }

    /// Halts the server and its children: connections stay open, and nothing is answered.
    pub(crate) fn freeze(&mut self) -> Result<(), CommandError> {
        self.is_frozen = true;
        // The parent first: then it cannot make more.
        signal("STOP", &[self.process_id()])?;
        let children = children_of(self.process_id());
        if children.is_empty() { Ok(()) } else { signal("STOP", &children) }
    }

    /// Lets it go on.
    pub(crate) fn thaw(&mut self) -> Result<(), CommandError> {
        let mut all = children_of(self.process_id());
        all.push(self.process_id());
        self.is_frozen = false;
        signal("CONT", &all)
    }

    /// What a power failure does to the server: nothing is tidied up, by anyone.
    ///
    /// The server puts each child in a session of its own, so killing the process group would
    /// leave them: they are looked up one by one while the parent is halted.
    pub(crate) fn kill(&mut self) -> Result<(), CommandError> {
        if self.ended().is_some() {
            return Ok(());
        }
        let server = self.process_id();
        signal("STOP", &[server])?;
        let children = children_of(server);
        let mut all = vec![server];
        all.extend(&children);
        // A child may end by itself between list and signal; whether all are gone is asked below.
        let outcome = signal("KILL", &all);
        for _ in 0..LOOKS_MAX {
            if self.ended().is_some() && !children.iter().any(|child| runs(*child)) {
                return Ok(());
            }
            thread::sleep(PAUSE);
        }
        outcome.and(Err(CommandError::StillRuns { waited_s: WAITED_S }))
    }
}

fn signal(name: &str, processes: &[u32]) -> Result<(), CommandError> {
    let mut command = Command::new("kill");
    command.arg("-s").arg(name).arg("--");
    command.args(processes.iter().map(u32::to_string));
    programs::run(&mut command).map(|_| ())
}

/// Processes whose parent is the given one. Empty where there is no `/proc`; there the children
/// leave by themselves when they notice that their parent is gone.
fn children_of(parent: u32) -> Vec<u32> {
    let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
    entries
        .filter_map(Result::ok)
        .filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok())
        .filter(|process| state_and_parent(*process).is_some_and(|(_, of)| of == parent))
        .collect()
}

/// Whether a process exists and still runs; one that only waits to be collected does not.
fn runs(process: u32) -> bool {
    state_and_parent(process).is_some_and(|(state, _)| !matches!(state, 'Z' | 'X'))
}

fn state_and_parent(process: u32) -> Option<(char, u32)> {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    parse_stat(&stat)
}

/// The name, in parentheses, may itself hold parentheses and spaces; the last one ends it.
fn parse_stat(stat: &str) -> Option<(char, u32)> {
    let (_, after_name) = stat.rsplit_once(')')?;
    let mut fields = after_name.split_whitespace();
    let state = fields.next()?.chars().next()?;
    Some((state, fields.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn state_and_parent_are_read_past_any_name() {
        let table = [
            ("12 (postgres) S 7 12 12 0", Some(('S', 7))),
            ("12 (a) R (b) c) Z 9 1 1", Some(('Z', 9))),
            ("12 (postgres)", None),
            ("", None),
        ];
        for (stat, expected) in table {
            assert_eq!(parse_stat(stat), expected, "{stat}");
        }
    }
}
