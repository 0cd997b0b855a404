//! The `exec` driver: one process per instance, in its own process group.
//!
//! Each instance has a folder, `DIR/instances/ID`, with `output.log` and, until it is forgotten,
//! `record.json`. The record is written before the process starts and completed afterwards; if the agent
//! is killed in between, the process is found again by its environment.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use berth_api::engine::InstanceId;
use rustix::process::{Pid, Signal, kill_process_group};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::driver::{Driver, Exit, Launch, Observation, RecoveredInstance, StopMode};
use super::procfs::{self, Process};

/// A process that ends within this time never counts as running.
const STARTUP_TIME: Duration = Duration::from_millis(200);

/// Folders of ended instances that are kept for their output.
const KEPT_FOLDERS: usize = 50;

/// The file of the record in a folder.
pub(super) const RECORD: &str = "record.json";
const FOLDER_VARIABLE: &str = "BERTH_DIR";

/// The record of one instance on disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Record {
    /// The fence it was started under.
    fence: i64,
    /// Its process; none if the agent was killed while starting it.
    process: Option<Process>,
    /// It waits for an instance that is moved here.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    arriving: bool,
    /// A migration brought it; this agent did not start it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    brought: bool,
}

impl Record {
    const fn before_start(launch: &Launch) -> Self {
        let arriving = launch.receive.is_some();
        Self { fence: launch.fence, process: None, arriving, brought: false }
    }
}

/// An instance that was started and not forgotten yet.
struct StartedProcess {
    process: Process,
    /// None for a process of an earlier agent, which is not a child of this one.
    child: Option<Child>,
    since: Instant,
    /// How its main process ended.
    exit: Option<Exit>,
    stop_mode: Option<StopMode>,
    /// The entry in the environment of all its processes.
    mark: String,
}

impl StartedProcess {
    fn new(process: Process, child: Option<Child>, mark: String) -> Self {
        Self { process, child, since: Instant::now(), exit: None, stop_mode: None, mark }
    }
}

/// Runs a shell command for each instance.
pub(super) struct Exec {
    folder: PathBuf,
    command: String,
    boot: String,
    started: BTreeMap<InstanceId, StartedProcess>,
}

impl Exec {
    /// A driver that keeps its folders below `state_dir`.
    pub(super) fn new(state_dir: &Path, command: &str) -> io::Result<Self> {
        let folder = state_dir.join("instances");
        fs::create_dir_all(&folder)?;
        Ok(Self {
            folder: folder.canonicalize()?,
            command: command.to_owned(),
            boot: procfs::boot_id()?,
            started: BTreeMap::new(),
        })
    }

    fn folder_of(&self, instance: InstanceId) -> PathBuf {
        self.folder.join(instance.to_string())
    }

    /// The entry in the environment of all processes of an instance, and of no other's.
    fn mark_of(&self, instance: InstanceId) -> String {
        format!("{FOLDER_VARIABLE}={}", self.folder_of(instance).display())
    }

    fn write(&self, instance: InstanceId, record: &Record) -> io::Result<()> {
        let folder = self.folder_of(instance);
        write_record(&folder, record)
    }

    /// The record on disk; none if there is none or it cannot be read.
    fn read(&self, instance: InstanceId) -> Option<Record> {
        read_record(&self.folder_of(instance))
    }

    /// Recovers one instance of an earlier agent; none if it was never started.
    fn recover_one(
        &self,
        instance: InstanceId,
        record: &Record,
    ) -> io::Result<Option<StartedProcess>> {
        let process = match &record.process {
            Some(process) => process.clone(),
            None => {
                let fence = format!("BERTH_FENCE={}", record.fence);
                let Some(pid) = procfs::leader(&[self.mark_of(instance), fence]) else {
                    return Ok(None);
                };
                let process = Process::of(pid)?;
                let process_known = Some(process.clone());
                self.write(instance, &Record { process: process_known, ..record.clone() })?;
                process
            }
        };
        let exit = (process.boot != self.boot).then_some(Exit::Reboot);
        let mark = if record.brought { instance_mark(instance) } else { self.mark_of(instance) };
        Ok(Some(StartedProcess { exit, ..StartedProcess::new(process, None, mark) }))
    }

    fn spawn(&self, launch: &Launch) -> io::Result<Child> {
        let folder = self.folder_of(launch.instance);
        let mut command = Command::new("/bin/sh");
        command
            .arg("-c")
            .arg(launch.receive.as_ref().unwrap_or(&self.command))
            .envs(&launch.environment)
            .env(FOLDER_VARIABLE, &folder);
        spawn_detached(command, &folder)
    }

    /// Removes the oldest folders of ended instances.
    fn prune(&self) -> io::Result<()> {
        let mut ended = Vec::new();
        for entry in fs::read_dir(&self.folder)? {
            let entry = entry?;
            if !entry.path().join(RECORD).exists() {
                ended.push((entry.metadata()?.modified()?, entry.path()));
            }
        }
        ended.sort();
        let surplus = ended.len().saturating_sub(KEPT_FOLDERS);
        ended.drain(..surplus).try_for_each(|(_, folder)| fs::remove_dir_all(folder))
    }
}

impl Driver for Exec {
    fn name(&self) -> &'static str {
        "exec"
    }

    fn needs_kvm(&self) -> bool {
        false
    }

    fn recover(&mut self) -> io::Result<Vec<RecoveredInstance>> {
        let mut survivors = Vec::new();
        for entry in fs::read_dir(&self.folder)? {
            let name = entry?.file_name();
            let Some(instance) = name.to_str().and_then(|name| name.parse().ok()) else { continue };
            let instance = InstanceId(instance);
            let Some(record) = self.read(instance) else { continue };
            match self.recover_one(instance, &record)? {
                Some(started) => {
                    self.started.insert(instance, started);
                    let Record { fence, arriving, .. } = record;
                    survivors.push(RecoveredInstance { instance, fence, arriving });
                }
                None => self.forget(instance),
            }
        }
        Ok(survivors)
    }

    fn start(&mut self, launch: &Launch) -> io::Result<()> {
        let instance = launch.instance;
        fs::create_dir_all(self.folder_of(instance))?;
        let record = Record::before_start(launch);
        self.write(instance, &record)?;
        let mut child = self.spawn(launch).inspect_err(|_| self.forget(instance))?;
        // Not yet waited for, so the process is listed even if it has ended already.
        let pid = i32::try_from(child.id()).map_err(io::Error::other);
        let process = pid.and_then(Process::of).and_then(|process| {
            self.write(instance, &Record { process: Some(process.clone()), ..record })?;
            Ok(process)
        });
        match process {
            Ok(process) => {
                let started = StartedProcess::new(process, Some(child), self.mark_of(instance));
                self.started.insert(instance, started);
                Ok(())
            }
            Err(error) => {
                // An instance that a restarted agent would not find must not run.
                signal(i32::try_from(child.id()).unwrap_or_default(), Signal::KILL);
                let _ = child.wait();
                self.forget(instance);
                Err(error)
            }
        }
    }

    fn adopt(&mut self, instance: InstanceId, under: i64, fence: i64) -> io::Result<bool> {
        if let Some(started) = self.started.get(&instance) {
            let brought = started.mark == instance_mark(instance);
            let process = Some(started.process.clone());
            self.write(instance, &Record { fence, process, arriving: false, brought })?;
            return Ok(true);
        }
        let mark = instance_mark(instance);
        let Some(pid) = procfs::leader(&[mark.clone(), format!("BERTH_FENCE={under}")]) else {
            return Ok(false);
        };
        let process = Process::of(pid)?;
        fs::create_dir_all(self.folder_of(instance))?;
        let record =
            Record { fence, process: Some(process.clone()), arriving: false, brought: true };
        self.write(instance, &record)?;
        self.started.insert(instance, StartedProcess::new(process, None, mark));
        Ok(true)
    }

    fn migration_environment(&self, instance: InstanceId) -> BTreeMap<String, String> {
        let folder = self.folder_of(instance).display().to_string();
        let mut variables = BTreeMap::from([(FOLDER_VARIABLE.to_owned(), folder)]);
        if let Some(started) = self.started.get(&instance) {
            variables.insert("BERTH_PID".to_owned(), started.process.pid.to_string());
        }
        variables
    }

    fn observe(&mut self, instance: InstanceId) -> Observation {
        let Some(started) = self.started.get_mut(&instance) else {
            return Observation::Gone(Exit::Unwatched);
        };
        if started.exit.is_none() {
            started.exit = match &mut started.child {
                Some(child) => child.try_wait().ok().flatten().map(exit_of),
                None => (!started.process.is_alive()).then_some(Exit::Unwatched),
            };
        }
        match started.exit {
            None if started.since.elapsed() < STARTUP_TIME => Observation::Starting,
            None => Observation::Running,
            Some(Exit::Reboot) => Observation::Gone(Exit::Reboot),
            Some(exit) if procfs::members(started.process.pid, &started.mark).is_empty() => {
                Observation::Gone(exit)
            }
            // The main process is gone. Its descendants are part of the instance and are killed, unless
            // they were asked to stop.
            Some(_) => {
                if started.stop_mode != Some(StopMode::Graceful) {
                    signal(started.process.pid, Signal::KILL);
                }
                Observation::Running
            }
        }
    }

    fn stop(&mut self, instance: InstanceId, mode: StopMode) {
        let Some(started) = self.started.get_mut(&instance) else { return };
        started.stop_mode = Some(mode);
        // The id of an empty group may be reused: check before sending a signal.
        let ours = match started.exit {
            None => started.process.is_alive(),
            Some(Exit::Reboot) => false,
            Some(_) => !procfs::members(started.process.pid, &started.mark).is_empty(),
        };
        if ours {
            signal(started.process.pid, mode.signal());
        }
    }

    fn forget(&mut self, instance: InstanceId) {
        self.started.remove(&instance);
        // If this fails, the next agent finds no process and removes the record.
        let _ = fs::remove_file(self.folder_of(instance).join(RECORD));
        let _ = self.prune();
    }
}

/// The entry in the environment of an instance that a migration brought: it has no folder of this agent.
fn instance_mark(instance: InstanceId) -> String {
    format!("BERTH_INSTANCE={instance}")
}

/// Starts a command in its own process group, with its output in a file of the folder.
pub(super) fn spawn_detached(mut command: Command, folder: &Path) -> io::Result<Child> {
    let output = File::options().create(true).append(true).open(folder.join("output.log"))?;
    command
        // It must not see the agent's token.
        .env_remove("BERTH_TOKEN")
        .current_dir(folder)
        .process_group(0)
        .stdin(Stdio::null())
        .stdout(output.try_clone()?)
        .stderr(output)
        .spawn()
}

/// Reads the record in a folder; none if there is none or it cannot be read.
pub(super) fn read_record<T: DeserializeOwned>(folder: &Path) -> Option<T> {
    serde_json::from_slice(&fs::read(folder.join(RECORD)).ok()?).ok()
}

/// Writes the record in a folder, atomically.
pub(super) fn write_record<T: Serialize>(folder: &Path, record: &T) -> io::Result<()> {
    let draft = folder.join("record.json.new");
    fs::write(&draft, serde_json::to_vec(record)?)?;
    File::open(&draft)?.sync_all()?;
    fs::rename(&draft, folder.join(RECORD))
}

/// Sends a signal to a process group, which may be gone already.
pub(super) fn signal(group: i32, signal: Signal) {
    if let Some(group) = Pid::from_raw(group) {
        let _ = kill_process_group(group, signal);
    }
}

fn exit_of(status: std::process::ExitStatus) -> Exit {
    match (status.code(), status.signal()) {
        (Some(code), _) => Exit::Code(code),
        (None, Some(signal)) => Exit::Signal(signal),
        (None, None) => Exit::Unwatched,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: InstanceId = InstanceId::from_u128(1);

    fn start_driver(folder: &Path) -> Exec {
        let mut driver = Exec::new(folder, "exec sleep 60").unwrap();
        let environment = BTreeMap::from([("BERTH_FENCE".to_owned(), "5".to_owned())]);
        driver.start(&Launch { instance: ONE, fence: 5, environment, receive: None }).unwrap();
        driver
    }

    fn wait_for_exit(driver: &mut Exec) -> Exit {
        for _ in 0..600 {
            if let Observation::Gone(exit) = driver.observe(ONE) {
                return exit;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        panic!("the process does not end");
    }

    #[test]
    fn a_process_whose_start_was_not_recorded_is_found_by_its_environment() {
        let folder = tempfile::tempdir().unwrap();
        let mut first = start_driver(folder.path());
        let record = first.read(ONE).unwrap();
        // As it is when an agent is killed just after it started a process.
        first.write(ONE, &Record { process: None, ..record.clone() }).unwrap();
        let mut second = Exec::new(folder.path(), "exec sleep 60").unwrap();
        assert_eq!(
            second.recover().unwrap(),
            [RecoveredInstance { instance: ONE, fence: 5, arriving: false }]
        );
        assert_eq!(second.read(ONE), Some(record));
        second.stop(ONE, StopMode::Forced);
        assert_eq!(wait_for_exit(&mut second), Exit::Unwatched);
        assert_eq!(wait_for_exit(&mut first), Exit::Signal(9));
        second.forget(ONE);
        assert_eq!(second.recover().unwrap(), []);
    }

    #[test]
    fn a_start_that_never_happened_leaves_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let mut driver = Exec::new(folder.path(), "true").unwrap();
        fs::create_dir_all(driver.folder_of(ONE)).unwrap();
        driver
            .write(ONE, &Record { fence: 5, process: None, arriving: false, brought: false })
            .unwrap();
        assert_eq!(driver.recover().unwrap(), []);
        assert_eq!(driver.read(ONE), None);
    }

    #[test]
    fn after_a_reboot_no_process_is_taken_for_the_old_one_or_killed() {
        let folder = tempfile::tempdir().unwrap();
        let mut first = start_driver(folder.path());
        let mut record = first.read(ONE).unwrap();
        record.process.as_mut().unwrap().boot = "another".to_owned();
        first.write(ONE, &record).unwrap();
        let mut second = Exec::new(folder.path(), "true").unwrap();
        second.recover().unwrap();
        assert_eq!(second.observe(ONE), Observation::Gone(Exit::Reboot));
        second.stop(ONE, StopMode::Forced);
        assert!(!matches!(first.observe(ONE), Observation::Gone(_)));
        first.stop(ONE, StopMode::Graceful);
        assert_eq!(wait_for_exit(&mut first), Exit::Signal(15));
    }
}
