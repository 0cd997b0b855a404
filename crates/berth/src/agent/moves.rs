//! The agent's part in moving running instances: which tasks it has, and how far each is.
//!
//! Nothing is moved here: commands of the operator's do that. A task is told again and again, and is
//! done once; what became of it is said until it is no longer told. What is no longer told was called
//! off: its command is stopped.

use std::collections::BTreeMap;
use std::io;
use std::time::Duration;

use berth_api::engine::InstanceId;
use berth_api::{MigrationAction, MigrationReport, MigrationStep, MigrationTask};
use tokio::time::Instant;

use super::driver::Firmness;
use super::runs::name;
use super::say::say;

/// What is said when there is nothing to move instances with.
const NO_COMMAND: &str =
    "this agent cannot move running instances; start it with --migrate-command";

/// How long a task must be left out of all answers before it counts as called off: servers may lag
/// behind each other.
const MISSING_FOR: Duration = Duration::from_secs(2);

/// After how long a clean-up that failed is tried again.
const TRY_AGAIN: Duration = Duration::from_secs(10);

/// How far a command is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Course {
    /// It was never started.
    Never,
    /// It runs, and may have said how much is copied, in thousandths.
    Going(Option<u16>),
    /// It ended with exit code 0.
    Done,
    /// It ended otherwise.
    Failed(String),
    /// It is gone, and nobody knows how it ended.
    Lost,
}

/// Runs commands for tasks, each at most once at a time.
pub(super) trait Errands: Send {
    /// Tasks whose commands an earlier agent started.
    fn recover(&mut self) -> io::Result<Vec<MigrationTask>>;

    /// Runs a command for a task.
    fn start(
        &mut self,
        task: &MigrationTask,
        command: &str,
        more: BTreeMap<String, String>,
    ) -> io::Result<()>;

    /// How far a task's command is.
    fn look(&mut self, task: &MigrationTask) -> Course;

    /// Tells a task's command to stop, and does not wait.
    fn stop(&mut self, task: &MigrationTask, firmness: Firmness);

    /// Nothing more will be asked of a task.
    fn forget(&mut self, task: &MigrationTask);
}

/// What moves instances from and to this host.
#[derive(Clone, Debug, Default)]
pub(super) struct Commands {
    /// Sends one to another host.
    pub(super) migrate: Option<String>,
    /// Receives one.
    pub(super) receive: Option<String>,
    /// Removes what is left of one.
    pub(super) drop: Option<String>,
}

/// A task, and how far it is.
struct Known {
    task: MigrationTask,
    /// Whether a server told this agent of it, not only an earlier one.
    confirmed: bool,
    /// Since when answers leave it out.
    missing: Option<Instant>,
    /// When its command was told to stop.
    stopping: Option<Instant>,
    /// Not to be tried before.
    rests_until: Option<Instant>,
    /// What is to be reported.
    said: Option<MigrationReport>,
}

/// A task by migration and action: the same migration may ask for several things in turn.
type Key = (String, &'static str);

/// All tasks of this host.
pub(super) struct Moves {
    errands: Box<dyn Errands>,
    pub(super) commands: Commands,
    known: BTreeMap<Key, Known>,
}

impl Moves {
    /// The tasks that an earlier agent left, and none else yet.
    pub(super) fn new(mut errands: Box<dyn Errands>, commands: Commands) -> io::Result<Self> {
        let mut known = BTreeMap::new();
        for task in errands.recover()? {
            say!("the {} of {} was begun by an earlier agent", name(task.action), task.instance);
            known.insert(key(&task), Known::new(task, false));
        }
        Ok(Self { errands, commands, known })
    }

    /// Takes in what a server told.
    pub(super) fn take(&mut self, tasks: Vec<MigrationTask>, now: Instant) {
        for (key, known) in &mut self.known {
            let told = tasks.iter().any(|task| self::key(task) == *key);
            known.missing = if told { None } else { known.missing.or(Some(now)) };
        }
        for task in tasks {
            let known =
                self.known.entry(key(&task)).or_insert_with(|| Known::new(task.clone(), true));
            (known.task, known.confirmed) = (task, true);
        }
    }

    /// Tasks that are to be done.
    pub(super) fn due(&self, now: Instant) -> Vec<MigrationTask> {
        let due = self.known.values().filter(|known| {
            known.missing.is_none() && known.rests_until.is_none_or(|until| until <= now)
        });
        due.map(|known| known.task.clone()).collect()
    }

    /// Whether an instance is on its way off this host: its end means nothing before it is known how
    /// its move ended.
    pub(super) fn sends(&self, instance: InstanceId) -> bool {
        self.any(instance, MigrationAction::Send, |known| {
            known.said.as_ref().is_none_or(|said| said.step != MigrationStep::Failed)
        })
    }

    /// The fence under which an instance is being moved here.
    pub(super) fn receives(&self, instance: InstanceId) -> Option<i64> {
        let known = self.known.values().map(|known| &known.task);
        let mut arriving = known.filter(|task| task.action == MigrationAction::Receive);
        arriving.find(|task| task.instance == instance).map(|task| task.fence)
    }

    /// Whether something is still to be removed before an instance counts as gone.
    pub(super) fn clears(&self, instance: InstanceId) -> bool {
        self.any(instance, MigrationAction::CleanUp, |known| known.said.is_none())
    }

    fn any(
        &self,
        instance: InstanceId,
        action: MigrationAction,
        so: impl Fn(&Known) -> bool,
    ) -> bool {
        let mut known = self.known.values();
        known.any(|one| one.task.instance == instance && one.task.action == action && so(one))
    }

    /// Sends an instance, or sees how far that is. `here`: whether it runs on this host.
    pub(super) fn send(
        &mut self,
        task: &MigrationTask,
        here: bool,
        told: BTreeMap<String, String>,
    ) {
        let Some(command) = self.commands.migrate.clone() else {
            return self.say(task, MigrationStep::Failed, None, Some(NO_COMMAND.to_owned()));
        };
        match self.errands.look(task) {
            Course::Going(share) => self.say(task, MigrationStep::Copying, share, None),
            Course::Done => self.say(task, MigrationStep::Switched, None, None),
            Course::Failed(why) => self.say(task, MigrationStep::Failed, None, Some(why)),
            // Only a server knows whether what an earlier agent lost is still wanted.
            Course::Never | Course::Lost if !self.is_confirmed(task) => {}
            Course::Never if !here => {
                let why = "it does not run on this host".to_owned();
                self.say(task, MigrationStep::Failed, None, Some(why));
            }
            // It may have left before its command was lost: only its target knows. Whoever says that it
            // failed has it dropped there.
            Course::Lost if !here => {
                self.say(task, MigrationStep::Copying, None, None);
            }
            Course::Never | Course::Lost => match self.errands.start(task, &command, told) {
                Ok(()) => {
                    say!("{} is being moved to {}", task.instance, task.target);
                    self.say(task, MigrationStep::Copying, None, None);
                }
                Err(error) => {
                    let why = format!("the migrate command cannot be run: {error}");
                    self.say(task, MigrationStep::Failed, None, Some(why));
                }
            },
        }
    }

    /// Removes what is left of an instance that runs here no more.
    pub(super) fn clear(&mut self, task: &MigrationTask, now: Instant) {
        let done = match task.action {
            MigrationAction::CleanUp => MigrationStep::CleanedUp,
            _ => MigrationStep::Dropped,
        };
        let Some(command) = self.commands.drop.clone() else {
            return self.say(task, done, None, None);
        };
        let failed = match self.errands.look(task) {
            Course::Going(_) => None,
            Course::Done => return self.say(task, done, None, None),
            Course::Never | Course::Lost if !self.is_confirmed(task) => None,
            Course::Never | Course::Lost => self
                .errands
                .start(task, &command, BTreeMap::new())
                .err()
                .map(|error| format!("the drop command cannot be run: {error}")),
            Course::Failed(why) => Some(why),
        };
        if let Some(why) = failed {
            say!("what is left of {} could not be removed: {why}", task.instance);
            self.errands.forget(task);
            if let Some(known) = self.known.get_mut(&key(task)) {
                known.rests_until = Some(now + TRY_AGAIN);
            }
        }
    }

    /// What was to receive an instance cannot.
    pub(super) fn cannot_receive(&mut self, task: &MigrationTask, why: String) {
        self.say(task, MigrationStep::Failed, None, Some(why));
    }

    /// Stops what was called off, and forgets it when it is gone.
    pub(super) fn clear_missing(&mut self, heard: Option<Instant>, grace: Duration, now: Instant) {
        let long_enough = |since| heard.is_some_and(|heard| heard >= since + MISSING_FOR);
        let errands = &mut self.errands;
        self.known.retain(|_, known| {
            if !known.missing.is_some_and(long_enough) {
                return true;
            }
            if !matches!(errands.look(&known.task), Course::Going(_)) {
                errands.forget(&known.task);
                return false;
            }
            match known.stopping {
                None => {
                    say!("the move of {} was called off", known.task.instance);
                    known.stopping = Some(now);
                    errands.stop(&known.task, Firmness::Ask);
                }
                Some(since) if now.duration_since(since) > grace => {
                    errands.stop(&known.task, Firmness::Force);
                }
                Some(_) => {}
            }
            true
        });
    }

    /// What is to be reported.
    pub(super) fn reports(&self) -> Vec<MigrationReport> {
        let told = self.known.values().filter(|known| known.missing.is_none());
        told.filter_map(|known| known.said.clone()).collect()
    }

    fn is_confirmed(&self, task: &MigrationTask) -> bool {
        self.known.get(&key(task)).is_some_and(|known| known.confirmed)
    }

    fn say(
        &mut self,
        task: &MigrationTask,
        step: MigrationStep,
        copied_permille: Option<u16>,
        reason: Option<String>,
    ) {
        let Some(known) = self.known.get_mut(&key(task)) else { return };
        let reason = reason.map(|why| why.chars().take(200).collect::<String>());
        let report = MigrationReport { id: task.id.clone(), step, copied_permille, reason };
        let is_news = known.said.as_ref().is_none_or(|said| said.step != step);
        match step {
            MigrationStep::Switched if is_news => {
                say!("{} runs on {} now", task.instance, task.target);
            }
            MigrationStep::Failed if is_news => {
                let why = report.reason.as_deref().unwrap_or_default();
                say!("{} was not moved to {}: {why}", task.instance, task.target);
            }
            _ => {}
        }
        known.said = Some(report);
    }
}

impl Known {
    const fn new(task: MigrationTask, confirmed: bool) -> Self {
        Self { task, confirmed, missing: None, stopping: None, rests_until: None, said: None }
    }
}

fn key(task: &MigrationTask) -> Key {
    (task.id.clone(), name(task.action))
}
