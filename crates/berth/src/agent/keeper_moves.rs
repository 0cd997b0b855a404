//! What a keeper does for instances that are moved from or to its host while they run.

use berth_api::{MigrationAction, MigrationTask};

use super::{Assignment, Ending, Exit, Guest, InstanceId, Instant, Keeper, Launch, Phase};
use crate::agent::say::say;

impl Keeper {
    /// Does for each migration what is due.
    pub(super) fn carry(&mut self, now: Instant) {
        for task in self.moves.due(now) {
            match task.action {
                MigrationAction::Send => {
                    let guest = self.guests.get(&task.instance);
                    let here = guest.is_some_and(|guest| matches!(guest.phase, Phase::Up { .. }));
                    let told = self.driver.told(task.instance);
                    self.moves.send(&task, here, told);
                }
                MigrationAction::Receive => self.receive(&task, now),
                MigrationAction::CleanUp | MigrationAction::Drop => self.clear(&task, now),
            }
        }
        self.moves.clear_missing(self.heard_at, self.habits.stop_grace, now);
    }

    /// Has something ready that receives an instance, if there is a command for it.
    fn receive(&mut self, task: &MigrationTask, now: Instant) {
        let Some(command) = self.moves.commands.receive.clone() else {
            // One that knows nothing of moves would take what arrives for gone.
            if self.moves.commands.migrate.is_none() {
                let why = "the agent there cannot take running instances; start it with --receive-command";
                self.moves.cannot_receive(task, why.to_owned());
            }
            return;
        };
        let instance = task.instance;
        match self.guests.get(&instance) {
            Some(guest) if guest.arriving && guest.fence == task.fence => match &guest.phase {
                Phase::Ended(Ending::Failed(why)) => {
                    let why = format!("what was to receive it {why}");
                    self.moves.cannot_receive(task, why);
                }
                _ => return,
            },
            // Something else of it is here still; it goes first.
            Some(guest) if !matches!(guest.phase, Phase::Ended(_)) => return,
            Some(_) | None => {}
        }
        if self.guests.get(&instance).is_some_and(|guest| guest.arriving) {
            return;
        }
        let phase = match self.driver.start(&Launch::receiving(task, &command)) {
            Ok(()) => {
                say!("{instance} is awaited from {}", task.source);
                Phase::Up { settled: false, since: now }
            }
            Err(error) => Phase::Ended(Ending::Failed(format!("could not be started: {error}"))),
        };
        let fence = task.fence;
        let guest = Guest { fence, phase, starts: 1, missing: None, arriving: true };
        self.guests.insert(instance, guest);
    }

    /// What waited for an instance ended before it came. One that ended well has only made things
    /// ready.
    pub(super) fn waited_in_vain(&mut self, instance: InstanceId, exit: Exit) {
        self.driver.forget(instance);
        let Some(guest) = self.guests.get_mut(&instance) else { return };
        let why = exit.to_string();
        let ending = if exit.is_success() { Ending::Done(why) } else { Ending::Failed(why) };
        guest.phase = Phase::Ended(ending);
    }

    /// Stops what is left of an instance that belongs elsewhere, then removes it.
    fn clear(&mut self, task: &MigrationTask, now: Instant) {
        let instance = task.instance;
        if task.action == MigrationAction::Drop && !self.guests.contains_key(&instance) {
            self.find(instance, task.fence, task.fence, true, now);
        }
        let why = match task.action {
            MigrationAction::Drop => format!("it goes on running on {}", task.source),
            _ => format!("it runs on {} now", task.target),
        };
        match self.guests.get(&instance).map(|guest| &guest.phase) {
            Some(Phase::Up { .. } | Phase::Resting { .. }) => self.stop(instance, &why, now),
            Some(Phase::Stopping { .. }) => {}
            Some(Phase::Ended(_)) | None => self.moves.clear(task, now),
        }
    }

    /// An instance that was moved here is here.
    pub(super) fn arrive(&mut self, assignment: &Assignment, now: Instant) {
        let (instance, fence) = (assignment.instance, assignment.fence);
        let Some(guest) = self.guests.get_mut(&instance) else { return };
        match guest.phase {
            Phase::Up { .. } if fence >= guest.fence => {
                if let Err(error) = self.driver.adopt(instance, guest.fence, fence) {
                    // It is tried again with the next tick; until then it is not reported.
                    say!("{instance} arrived and cannot be taken up: {error}");
                    return;
                }
                (guest.fence, guest.arriving) = (fence, false);
                say!("{instance} arrived and runs here under fence {fence}");
            }
            Phase::Up { .. } | Phase::Stopping { .. } => {}
            Phase::Resting { .. } | Phase::Ended(_) => {
                self.guests.remove(&instance);
                self.welcome(assignment, now);
            }
        }
    }

    /// Looks for an instance that a migration brought to this host.
    pub(super) fn find(
        &mut self,
        instance: InstanceId,
        under: i64,
        fence: i64,
        arriving: bool,
        now: Instant,
    ) -> bool {
        match self.driver.adopt(instance, under, fence) {
            Ok(true) => {
                say!("{instance} was brought here by its migration, under fence {fence}");
                let phase = Phase::Up { settled: true, since: now };
                let guest = Guest { fence, phase, starts: 1, missing: None, arriving };
                self.guests.insert(instance, guest);
                true
            }
            Ok(false) => false,
            Err(error) => {
                say!("{instance} cannot be taken up: {error}");
                false
            }
        }
    }
}
