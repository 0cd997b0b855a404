//! The agent's part in moving running instances: its tasks, and their progress.
//!
//! The operator's commands do the moving. The server repeats a task until it has its result; its command
//! runs once. A task that the server no longer repeats was cancelled, and its command is stopped.

use std::collections::BTreeMap;
use std::io;
use std::time::Duration;

use berth_api::engine::InstanceId;
use berth_api::{MigrationAction, MigrationReport, MigrationStep, MigrationTask};
use tokio::time::Instant;

use super::driver::StopMode;

const NO_COMMAND: &str =
    "this agent cannot move running instances; start it with --migrate-command";

/// How long a task must be missing from all answers before it counts as cancelled: servers may lag
/// behind each other.
const MISSING_FOR: Duration = Duration::from_secs(2);

/// After how long a failed clean-up is tried again.
const RETRY_AFTER: Duration = Duration::from_secs(10);

/// The state of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum CommandState {
    NotStarted,
    /// It runs, and may have reported how much is copied, in thousandths.
    Running(Option<u16>),
    /// It ended with exit code 0.
    Done,
    /// It ended with an error.
    Failed(String),
    /// It is gone, and its exit code is unknown.
    Lost,
}

/// Runs commands for tasks, each at most once at a time.
pub(super) trait CommandRunner: Send {
    /// Tasks whose commands an earlier agent started.
    fn recover(&mut self) -> io::Result<Vec<MigrationTask>>;

    /// Runs a command for a task.
    fn start(
        &mut self,
        task: &MigrationTask,
        command: &str,
        environment: BTreeMap<String, String>,
    ) -> io::Result<()>;

    /// The state of a task's command.
    fn state(&mut self, task: &MigrationTask) -> CommandState;

    /// Stops a task's command, without waiting.
    fn stop(&mut self, task: &MigrationTask, mode: StopMode);

    /// Removes everything about a task.
    fn forget(&mut self, task: &MigrationTask);
}

/// The operator's commands.
#[derive(Clone, Debug, Default)]
pub(super) struct Commands {
    /// Sends an instance to another host.
    pub(super) migrate: Option<String>,
    /// Receives an instance.
    pub(super) receive: Option<String>,
    /// Removes the remains of an instance.
    pub(super) drop: Option<String>,
}

struct TrackedTask {
    task: MigrationTask,
    /// Whether a server has sent it to this agent, not only to an earlier one.
    confirmed: bool,
    /// Since when it is missing from answers.
    missing: Option<Instant>,
    /// When its command was asked to stop.
    stopping: Option<Instant>,
    /// Not to be tried before this time.
    retry_at: Option<Instant>,
    report: Option<MigrationReport>,
}

/// A migration may have several tasks in turn, one for each action.
type Key = (String, &'static str);

/// All migration tasks of this host.
pub(super) struct MigrationTasks {
    runner: Box<dyn CommandRunner>,
    pub(super) commands: Commands,
    tracked: BTreeMap<Key, TrackedTask>,
}

impl MigrationTasks {
    /// Recovers the tasks of an earlier agent.
    pub(super) fn new(mut runner: Box<dyn CommandRunner>, commands: Commands) -> io::Result<Self> {
        let mut tracked = BTreeMap::new();
        for task in runner.recover()? {
            let action = action_name(task.action);
            tracing::info!(instance = %task.instance, action, "recovered task of an earlier agent");
            tracked.insert(key(&task), TrackedTask::new(task, false));
        }
        Ok(Self { runner, commands, tracked })
    }

    /// Sets the tasks that a server wants done.
    pub(super) fn set_tasks(&mut self, tasks: Vec<MigrationTask>, now: Instant) {
        for (key, tracked) in &mut self.tracked {
            let wanted = tasks.iter().any(|task| self::key(task) == *key);
            tracked.missing = if wanted { None } else { tracked.missing.or(Some(now)) };
        }
        for task in tasks {
            let tracked = self
                .tracked
                .entry(key(&task))
                .or_insert_with(|| TrackedTask::new(task.clone(), true));
            (tracked.task, tracked.confirmed) = (task, true);
        }
    }

    /// Tasks that are due.
    pub(super) fn due(&self, now: Instant) -> Vec<MigrationTask> {
        let due = self.tracked.values().filter(|tracked| {
            tracked.missing.is_none() && tracked.retry_at.is_none_or(|until| until <= now)
        });
        due.map(|tracked| tracked.task.clone()).collect()
    }

    /// Whether an instance is being moved off this host: until that has ended, its end means nothing.
    pub(super) fn is_sending(&self, instance: InstanceId) -> bool {
        self.any(instance, MigrationAction::Send, |tracked| {
            tracked.report.as_ref().is_none_or(|report| report.step != MigrationStep::Failed)
        })
    }

    /// The fence under which an instance is being moved here.
    pub(super) fn receiving_fence(&self, instance: InstanceId) -> Option<i64> {
        let tracked = self.tracked.values().map(|tracked| &tracked.task);
        let mut arriving = tracked.filter(|task| task.action == MigrationAction::Receive);
        arriving.find(|task| task.instance == instance).map(|task| task.fence)
    }

    /// Whether remains of an instance must be removed before it counts as gone.
    pub(super) fn is_cleaning_up(&self, instance: InstanceId) -> bool {
        self.any(instance, MigrationAction::CleanUp, |tracked| tracked.report.is_none())
    }

    fn any(
        &self,
        instance: InstanceId,
        action: MigrationAction,
        condition: impl Fn(&TrackedTask) -> bool,
    ) -> bool {
        let mut tracked = self.tracked.values();
        tracked
            .any(|one| one.task.instance == instance && one.task.action == action && condition(one))
    }

    /// Sends an instance, or checks its progress. `here`: whether it runs on this host.
    pub(super) fn send(
        &mut self,
        task: &MigrationTask,
        here: bool,
        environment: BTreeMap<String, String>,
    ) {
        let Some(command) = self.commands.migrate.clone() else {
            return self.set_report(task, MigrationStep::Failed, None, Some(NO_COMMAND.to_owned()));
        };
        match self.runner.state(task) {
            CommandState::Running(share) => {
                self.set_report(task, MigrationStep::Copying, share, None)
            }
            CommandState::Done => self.set_report(task, MigrationStep::Switched, None, None),
            CommandState::Failed(why) => {
                self.set_report(task, MigrationStep::Failed, None, Some(why))
            }
            // Only a server knows whether a task of an earlier agent is still wanted.
            CommandState::NotStarted | CommandState::Lost if !self.is_confirmed(task) => {}
            CommandState::NotStarted if !here => {
                let why = "it does not run on this host".to_owned();
                self.set_report(task, MigrationStep::Failed, None, Some(why));
            }
            // It may have left before its command was lost; only its target knows. A report of failure
            // would drop it there.
            CommandState::Lost if !here => {
                self.set_report(task, MigrationStep::Copying, None, None);
            }
            CommandState::NotStarted | CommandState::Lost => {
                match self.runner.start(task, &command, environment) {
                    Ok(()) => {
                        tracing::info!(instance = %task.instance, target = %task.target, "sending instance");
                        self.set_report(task, MigrationStep::Copying, None, None);
                    }
                    Err(error) => {
                        let why = format!("failed to run the migrate command: {error}");
                        self.set_report(task, MigrationStep::Failed, None, Some(why));
                    }
                }
            }
        }
    }

    /// Removes the remains of an instance that no longer runs here.
    pub(super) fn clean_up(&mut self, task: &MigrationTask, now: Instant) {
        let done = match task.action {
            MigrationAction::CleanUp => MigrationStep::CleanedUp,
            _ => MigrationStep::Dropped,
        };
        let Some(command) = self.commands.drop.clone() else {
            return self.set_report(task, done, None, None);
        };
        let failed = match self.runner.state(task) {
            CommandState::Running(_) => None,
            CommandState::Done => return self.set_report(task, done, None, None),
            CommandState::NotStarted | CommandState::Lost if !self.is_confirmed(task) => None,
            CommandState::NotStarted | CommandState::Lost => self
                .runner
                .start(task, &command, BTreeMap::new())
                .err()
                .map(|error| format!("failed to run the drop command: {error}")),
            CommandState::Failed(why) => Some(why),
        };
        if let Some(why) = failed {
            tracing::warn!(instance = %task.instance, why, "failed to clean up instance");
            self.runner.forget(task);
            if let Some(tracked) = self.tracked.get_mut(&key(task)) {
                tracked.retry_at = Some(now + RETRY_AFTER);
            }
        }
    }

    /// Reports that an instance cannot be received.
    pub(super) fn fail_receive(&mut self, task: &MigrationTask, why: String) {
        self.set_report(task, MigrationStep::Failed, None, Some(why));
    }

    /// Stops the commands of cancelled tasks, and forgets those that are gone.
    pub(super) fn stop_missing(
        &mut self,
        answered_at: Option<Instant>,
        grace: Duration,
        now: Instant,
    ) {
        let long_enough = |since| answered_at.is_some_and(|at| at >= since + MISSING_FOR);
        let runner = &mut self.runner;
        self.tracked.retain(|_, tracked| {
            if !tracked.missing.is_some_and(long_enough) {
                return true;
            }
            if !matches!(runner.state(&tracked.task), CommandState::Running(_)) {
                runner.forget(&tracked.task);
                return false;
            }
            match tracked.stopping {
                None => {
                    tracing::info!(instance = %tracked.task.instance, "migration cancelled");
                    tracked.stopping = Some(now);
                    runner.stop(&tracked.task, StopMode::Graceful);
                }
                Some(since) if now.duration_since(since) > grace => {
                    runner.stop(&tracked.task, StopMode::Forced);
                }
                Some(_) => {}
            }
            true
        });
    }

    /// The reports of all tasks.
    pub(super) fn reports(&self) -> Vec<MigrationReport> {
        let wanted = self.tracked.values().filter(|tracked| tracked.missing.is_none());
        wanted.filter_map(|tracked| tracked.report.clone()).collect()
    }

    fn is_confirmed(&self, task: &MigrationTask) -> bool {
        self.tracked.get(&key(task)).is_some_and(|tracked| tracked.confirmed)
    }

    /// Sets the report of a task.
    fn set_report(
        &mut self,
        task: &MigrationTask,
        step: MigrationStep,
        copied_permille: Option<u16>,
        reason: Option<String>,
    ) {
        let Some(tracked) = self.tracked.get_mut(&key(task)) else { return };
        let reason = reason.map(|why| why.chars().take(200).collect::<String>());
        let report = MigrationReport { id: task.id.clone(), step, copied_permille, reason };
        let is_new = tracked.report.as_ref().is_none_or(|report| report.step != step);
        match step {
            MigrationStep::Switched if is_new => {
                tracing::info!(instance = %task.instance, target = %task.target, "instance moved");
            }
            MigrationStep::Failed if is_new => {
                let why = report.reason.as_deref().unwrap_or_default();
                let (instance, target) = (task.instance, &task.target);
                tracing::warn!(%instance, %target, why, "failed to move instance");
            }
            _ => {}
        }
        tracked.report = Some(report);
    }
}

impl TrackedTask {
    const fn new(task: MigrationTask, confirmed: bool) -> Self {
        Self { task, confirmed, missing: None, stopping: None, retry_at: None, report: None }
    }
}

fn key(task: &MigrationTask) -> Key {
    (task.id.clone(), action_name(task.action))
}

/// The name of an action, in folders and for commands.
pub(super) const fn action_name(action: MigrationAction) -> &'static str {
    match action {
        MigrationAction::Send => "send",
        MigrationAction::Receive => "receive",
        MigrationAction::CleanUp => "clean_up",
        MigrationAction::Drop => "drop",
    }
}
