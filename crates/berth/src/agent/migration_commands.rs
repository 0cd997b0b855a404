//! The operator's commands that move running instances. Each runs once, however often its task is
//! repeated, and is found again by a restarted agent.
//!
//! Each has a folder, `DIR/migrations/ID.ACTION`, with `record.json`, `output.log` and, when it has
//! ended, `ended` with its exit code. The shell that runs the command writes the code, because the agent may
//! not be running when it ends.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};

use berth_api::MigrationTask;
use berth_client::escape;
use serde::{Deserialize, Serialize};

use super::driver::{StopMode, task_environment};
use super::exec::{RECORD, read_record, signal, spawn_detached, write_record};
use super::migration_tasks::{CommandRunner, CommandState, action_name};
use super::procfs::{self, Process};

const FOLDER_VARIABLE: &str = "BERTH_RUN";

/// Runs the command in its first argument, and records its exit code.
const RECORDING: &str = r#"/bin/sh -c "$1"; code=$?; echo "$code" > ended.new; mv ended.new ended"#;

/// The record of one command on disk.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Record {
    task: MigrationTask,
    /// Its process; none if the agent was killed while starting it.
    process: Option<Process>,
}

/// Commands that were started and not removed yet.
pub(super) struct MigrationCommands {
    folder: PathBuf,
    /// The children of this process, which must be waited for.
    children: BTreeMap<PathBuf, Child>,
}

impl MigrationCommands {
    pub(super) fn new(state_dir: &Path) -> io::Result<Self> {
        let folder = state_dir.join("migrations");
        fs::create_dir_all(&folder)?;
        Ok(Self { folder: folder.canonicalize()?, children: BTreeMap::new() })
    }

    fn folder_of(&self, task: &MigrationTask) -> PathBuf {
        self.folder.join(format!("{}.{}", escape(&task.id), action_name(task.action)))
    }

    /// The process of a command, if one runs.
    fn process(&mut self, folder: &Path, record: &Record) -> Option<Process> {
        // A child that is not waited for remains as a zombie.
        if let Some(child) = self.children.get_mut(folder)
            && !matches!(child.try_wait(), Ok(None))
        {
            self.children.remove(folder);
        }
        let process = match &record.process {
            Some(process) => process.clone(),
            None => Process::of(procfs::leader(&[mark(folder)])?).ok()?,
        };
        let same_boot = procfs::boot_id().is_ok_and(|boot| boot == process.boot);
        (same_boot && process.is_alive()).then_some(process)
    }
}

/// The entry in the environment of all processes of one command.
fn mark(folder: &Path) -> String {
    format!("{FOLDER_VARIABLE}={}", folder.display())
}

/// The last line of a command's output.
fn last_line(folder: &Path) -> String {
    let output = fs::read(folder.join("output.log")).unwrap_or_default();
    let output = String::from_utf8_lossy(&output);
    let last = output.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("no output");
    last.trim().chars().take(150).collect()
}

/// How much is copied, if the command reports it.
fn read_progress(folder: &Path) -> Option<u16> {
    let text = fs::read_to_string(folder.join("progress")).ok()?;
    text.trim().parse().ok().filter(|share| *share <= 1000)
}

impl CommandRunner for MigrationCommands {
    fn recover(&mut self) -> io::Result<Vec<MigrationTask>> {
        let mut tasks = Vec::new();
        for entry in fs::read_dir(&self.folder)? {
            tasks.extend(read_record(&entry?.path()).map(|record: Record| record.task));
        }
        Ok(tasks)
    }

    fn start(
        &mut self,
        task: &MigrationTask,
        command: &str,
        environment: BTreeMap<String, String>,
    ) -> io::Result<()> {
        self.forget(task);
        let folder = self.folder_of(task);
        fs::create_dir_all(&folder)?;
        let record = Record { task: task.clone(), process: None };
        write_record(&folder, &record)?;
        let mut shell = Command::new("/bin/sh");
        shell
            .args(["-c", RECORDING, "sh", command])
            .envs(environment)
            .envs(task_environment(task))
            .env("BERTH_ACTION", action_name(task.action))
            .env("BERTH_PROGRESS", folder.join("progress"))
            .env(FOLDER_VARIABLE, &folder);
        let child = spawn_detached(shell, &folder).inspect_err(|_| self.forget(task))?;
        let pid = i32::try_from(child.id()).map_err(io::Error::other)?;
        self.children.insert(folder.clone(), child);
        // If this write fails, the process is found by its environment.
        let process = Process::of(pid)?;
        write_record(&folder, &Record { process: Some(process), ..record })
    }

    fn state(&mut self, task: &MigrationTask) -> CommandState {
        let folder = self.folder_of(task);
        let Some(record) = read_record(&folder) else { return CommandState::NotStarted };
        if self.process(&folder, &record).is_some() {
            return CommandState::Running(read_progress(&folder));
        }
        let code = fs::read_to_string(folder.join("ended"));
        match code.as_deref().map(str::trim) {
            Ok("0") => CommandState::Done,
            Ok(code) => {
                let line = last_line(&folder);
                CommandState::Failed(format!("the command ended with code {code}: {line}"))
            }
            Err(_) => CommandState::Lost,
        }
    }

    fn stop(&mut self, task: &MigrationTask, mode: StopMode) {
        let folder = self.folder_of(task);
        let Some(record) = read_record(&folder) else { return };
        if let Some(process) = self.process(&folder, &record) {
            signal(process.pid, mode.signal());
        }
    }

    fn forget(&mut self, task: &MigrationTask) {
        let folder = self.folder_of(task);
        self.children.remove(&folder);
        // The record is removed first: without it, the rest means nothing.
        let _ = fs::remove_file(folder.join(RECORD));
        let _ = fs::remove_dir_all(folder);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use berth_api::MigrationAction;
    use berth_api::engine::{Amounts, InstanceId, NodeId};

    use super::*;

    fn task() -> MigrationTask {
        MigrationTask {
            id: "../m 1".to_owned(),
            instance: InstanceId::from_u128(1),
            action: MigrationAction::Send,
            source: NodeId::new("a"),
            target: NodeId::new("b"),
            fence: 7,
            resources: Amounts::new(500, 1024),
        }
    }

    fn wait_for_end(runs: &mut MigrationCommands) -> CommandState {
        for _ in 0..600 {
            match runs.state(&task()) {
                CommandState::Running(_) => std::thread::sleep(Duration::from_millis(20)),
                state => return state,
            }
        }
        panic!("it does not end");
    }

    #[test]
    fn a_command_gets_its_environment_and_the_next_agent_knows_its_result() {
        let folder = tempfile::tempdir().unwrap();
        let mut runs = MigrationCommands::new(folder.path()).unwrap();
        assert_eq!(runs.state(&task()), CommandState::NotStarted);
        let checks = r#"test "$BERTH_SOURCE/$BERTH_TARGET/$BERTH_FENCE/$BERTH_MEMORY_MIB/$EXTRA" = \
            a/b/7/1024/yes || exit 9"#;
        let extra = BTreeMap::from([("EXTRA".to_owned(), "yes".to_owned())]);
        runs.start(&task(), checks, extra).unwrap();
        assert_eq!(wait_for_end(&mut runs), CommandState::Done);
        let mut next = MigrationCommands::new(folder.path()).unwrap();
        assert_eq!(next.recover().unwrap(), [task()]);
        assert_eq!(next.state(&task()), CommandState::Done);
        next.forget(&task());
        assert_eq!(next.recover().unwrap(), []);
    }

    #[test]
    fn a_failure_has_the_last_line_and_a_vanished_command_is_lost() {
        let folder = tempfile::tempdir().unwrap();
        let mut runs = MigrationCommands::new(folder.path()).unwrap();
        runs.start(&task(), "echo one; echo 'no route' >&2; exit 3", BTreeMap::new()).unwrap();
        let why = "the command ended with code 3: no route".to_owned();
        assert_eq!(wait_for_end(&mut runs), CommandState::Failed(why));
        runs.start(&task(), "echo 250 > $BERTH_PROGRESS; sleep 60", BTreeMap::new()).unwrap();
        while runs.state(&task()) != CommandState::Running(Some(250)) {
            std::thread::sleep(Duration::from_millis(20));
        }
        // Another agent finds it running, and stops it.
        let mut next = MigrationCommands::new(folder.path()).unwrap();
        assert_eq!(next.state(&task()), CommandState::Running(Some(250)));
        next.stop(&task(), StopMode::Forced);
        assert_eq!(wait_for_end(&mut runs), CommandState::Lost);
    }
}
