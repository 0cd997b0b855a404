//! Commands of the operator's that move running instances. Each is run once, however often its task
//! is told, and found again by an agent that was killed meanwhile.
//!
//! Each has a folder, `DIR/migrations/ID.ACTION`, with `record.json`, `output.log` and, when it has
//! ended, `ended` with its exit code. The code is written by the shell that runs the command, since
//! nobody else may be there when it ends.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use berth_api::{MigrationAction, MigrationTask};
use berth_client::escape;
use rustix::process::Signal;
use serde::{Deserialize, Serialize};

use super::driver::{Firmness, about};
use super::exec::signal;
use super::moves::{Course, Errands};
use super::procfs::{self, Process};

const RECORD: &str = "record.json";
const FOLDER_VARIABLE: &str = "BERTH_RUN";

/// Runs the command that is its first argument, and notes how it ended.
const NOTING: &str = r#"/bin/sh -c "$1"; code=$?; echo "$code" > ended.new; mv ended.new ended"#;

/// What is on disk about one command.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Record {
    task: MigrationTask,
    /// Its process; absent when the agent was killed while it started it.
    process: Option<Process>,
}

/// Commands that were started and not yet forgotten.
pub(super) struct Runs {
    folder: PathBuf,
    /// Those of this agent, so that they are waited for.
    children: BTreeMap<PathBuf, Child>,
}

/// The name of an action, in folders and for commands.
pub(super) const fn name(action: MigrationAction) -> &'static str {
    match action {
        MigrationAction::Send => "send",
        MigrationAction::Receive => "receive",
        MigrationAction::CleanUp => "clean_up",
        MigrationAction::Drop => "drop",
    }
}

impl Runs {
    /// Commands whose folders are below `state_dir`.
    pub(super) fn new(state_dir: &Path) -> io::Result<Self> {
        let folder = state_dir.join("migrations");
        fs::create_dir_all(&folder)?;
        Ok(Self { folder: folder.canonicalize()?, children: BTreeMap::new() })
    }

    fn folder_of(&self, task: &MigrationTask) -> PathBuf {
        self.folder.join(format!("{}.{}", escape(&task.id), name(task.action)))
    }

    /// The process of a command, if one runs.
    fn process(&mut self, folder: &Path, record: &Record) -> Option<Process> {
        // Whoever is not waited for stays listed.
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

fn read(folder: &Path) -> Option<Record> {
    serde_json::from_slice(&fs::read(folder.join(RECORD)).ok()?).ok()
}

fn write(folder: &Path, record: &Record) -> io::Result<()> {
    let draft = folder.join("record.json.new");
    fs::write(&draft, serde_json::to_vec(record)?)?;
    File::open(&draft)?.sync_all()?;
    fs::rename(&draft, folder.join(RECORD))
}

/// The last words of a command, for whoever reads why it failed.
fn last_words(folder: &Path) -> String {
    let said = fs::read(folder.join("output.log")).unwrap_or_default();
    let said = String::from_utf8_lossy(&said);
    let last = said.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("it said nothing");
    last.trim().chars().take(150).collect()
}

/// How much is copied, where the command says so.
fn copied(folder: &Path) -> Option<u16> {
    let text = fs::read_to_string(folder.join("progress")).ok()?;
    text.trim().parse().ok().filter(|share| *share <= 1000)
}

impl Errands for Runs {
    fn recover(&mut self) -> io::Result<Vec<MigrationTask>> {
        let mut tasks = Vec::new();
        for entry in fs::read_dir(&self.folder)? {
            tasks.extend(read(&entry?.path()).map(|record| record.task));
        }
        Ok(tasks)
    }

    fn start(
        &mut self,
        task: &MigrationTask,
        command: &str,
        more: BTreeMap<String, String>,
    ) -> io::Result<()> {
        self.forget(task);
        let folder = self.folder_of(task);
        fs::create_dir_all(&folder)?;
        let record = Record { task: task.clone(), process: None };
        write(&folder, &record)?;
        let output = File::options().create(true).append(true).open(folder.join("output.log"))?;
        let child = Command::new("/bin/sh")
            .args(["-c", NOTING, "sh", command])
            .envs(more)
            .envs(about(task))
            .env("BERTH_ACTION", name(task.action))
            .env("BERTH_PROGRESS", folder.join("progress"))
            .env(FOLDER_VARIABLE, &folder)
            // The agent's own secret is none of a command's business.
            .env_remove("BERTH_TOKEN")
            .current_dir(&folder)
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output)
            .spawn()
            .inspect_err(|_| self.forget(task))?;
        let pid = i32::try_from(child.id()).map_err(io::Error::other)?;
        self.children.insert(folder.clone(), child);
        // If this cannot be written, the process is found by its environment.
        let process = Process::of(pid)?;
        write(&folder, &Record { process: Some(process), ..record })
    }

    fn look(&mut self, task: &MigrationTask) -> Course {
        let folder = self.folder_of(task);
        let Some(record) = read(&folder) else { return Course::Never };
        if self.process(&folder, &record).is_some() {
            return Course::Going(copied(&folder));
        }
        let code = fs::read_to_string(folder.join("ended"));
        match code.as_deref().map(str::trim) {
            Ok("0") => Course::Done,
            Ok(code) => {
                let words = last_words(&folder);
                Course::Failed(format!("the command ended with code {code}: {words}"))
            }
            Err(_) => Course::Lost,
        }
    }

    fn stop(&mut self, task: &MigrationTask, firmness: Firmness) {
        let folder = self.folder_of(task);
        let Some(record) = read(&folder) else { return };
        if let Some(process) = self.process(&folder, &record) {
            let how = match firmness {
                Firmness::Ask => Signal::TERM,
                Firmness::Force => Signal::KILL,
            };
            signal(process.pid, how);
        }
    }

    fn forget(&mut self, task: &MigrationTask) {
        let folder = self.folder_of(task);
        self.children.remove(&folder);
        // The record goes first: without it, nothing of the rest counts.
        let _ = fs::remove_file(folder.join(RECORD));
        let _ = fs::remove_dir_all(folder);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

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

    fn ended(runs: &mut Runs) -> Course {
        for _ in 0..600 {
            match runs.look(&task()) {
                Course::Going(_) => std::thread::sleep(Duration::from_millis(20)),
                course => return course,
            }
        }
        panic!("it does not end");
    }

    #[test]
    fn a_command_is_told_what_to_do_and_its_end_is_known_to_the_next_agent() {
        let folder = tempfile::tempdir().unwrap();
        let mut runs = Runs::new(folder.path()).unwrap();
        assert_eq!(runs.look(&task()), Course::Never);
        let checks = r#"test "$BERTH_SOURCE/$BERTH_TARGET/$BERTH_FENCE/$BERTH_MEMORY_MIB/$MORE" = \
            a/b/7/1024/yes || exit 9"#;
        let more = BTreeMap::from([("MORE".to_owned(), "yes".to_owned())]);
        runs.start(&task(), checks, more).unwrap();
        assert_eq!(ended(&mut runs), Course::Done);
        let mut next = Runs::new(folder.path()).unwrap();
        assert_eq!(next.recover().unwrap(), [task()]);
        assert_eq!(next.look(&task()), Course::Done);
        next.forget(&task());
        assert_eq!(next.recover().unwrap(), []);
    }

    #[test]
    fn a_failure_has_the_last_words_and_a_command_that_vanished_is_lost() {
        let folder = tempfile::tempdir().unwrap();
        let mut runs = Runs::new(folder.path()).unwrap();
        runs.start(&task(), "echo one; echo 'no route' >&2; exit 3", BTreeMap::new()).unwrap();
        let why = "the command ended with code 3: no route".to_owned();
        assert_eq!(ended(&mut runs), Course::Failed(why));
        runs.start(&task(), "echo 250 > $BERTH_PROGRESS; sleep 60", BTreeMap::new()).unwrap();
        while runs.look(&task()) != Course::Going(Some(250)) {
            std::thread::sleep(Duration::from_millis(20));
        }
        // Another agent finds it running, and stops it.
        let mut next = Runs::new(folder.path()).unwrap();
        assert_eq!(next.look(&task()), Course::Going(Some(250)));
        next.stop(&task(), Firmness::Force);
        assert_eq!(ended(&mut runs), Course::Lost);
    }
}
