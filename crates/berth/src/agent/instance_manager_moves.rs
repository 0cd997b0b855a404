//! Instances that are moved from or to this host while they run.

use berth_api::{MigrationAction, MigrationTask};

use super::{
    Assignment, EndReason, Exit, InstanceId, InstanceManager, Instant, Launch, ManagedInstance,
    Phase,
};

impl InstanceManager {
    /// Does what is due for each migration.
    pub(super) fn advance_migrations(&mut self, now: Instant) {
        for task in self.migrations.due(now) {
            match task.action {
                MigrationAction::Send => {
                    let managed = self.instances.get(&task.instance);
                    let here =
                        managed.is_some_and(|managed| matches!(managed.phase, Phase::Up { .. }));
                    let environment = self.driver.migration_environment(task.instance);
                    self.migrations.send(&task, here, environment);
                }
                MigrationAction::Receive => self.receive(&task, now),
                MigrationAction::CleanUp | MigrationAction::Drop => self.clean_up(&task, now),
            }
        }
        self.migrations.stop_missing(self.answered_at, self.options.stop_grace, now);
    }

    /// Starts the command that receives an instance, if there is one.
    fn receive(&mut self, task: &MigrationTask, now: Instant) {
        let Some(command) = self.migrations.commands.receive.clone() else {
            // Without commands for migrations, this agent would report what arrives as gone.
            if self.migrations.commands.migrate.is_none() {
                let why = "the target's agent cannot receive running instances; start it with --receive-command";
                self.migrations.fail_receive(task, why.to_owned());
            }
            return;
        };
        let instance = task.instance;
        match self.instances.get(&instance) {
            Some(managed) if managed.arriving && managed.fence == task.fence => {
                match &managed.phase {
                    Phase::Ended(EndReason::Failed(why)) => {
                        let why = format!("the receive command {why}");
                        self.migrations.fail_receive(task, why);
                    }
                    _ => return,
                }
            }
            // An earlier process of it is still here and must end first.
            Some(managed) if !matches!(managed.phase, Phase::Ended(_)) => return,
            Some(_) | None => {}
        }
        if self.instances.get(&instance).is_some_and(|managed| managed.arriving) {
            return;
        }
        let phase = match self.driver.start(&Launch::receiving(task, &command)) {
            Ok(()) => {
                tracing::info!(%instance, source = %task.source, "waiting for instance");
                Phase::Up { settled: false, since: now }
            }
            Err(error) => Phase::Ended(EndReason::Failed(format!("could not be started: {error}"))),
        };
        let fence = task.fence;
        let managed = ManagedInstance { fence, phase, starts: 1, missing: None, arriving: true };
        self.instances.insert(instance, managed);
    }

    /// The receive command ended before the instance arrived. On success, it has prepared the host.
    pub(super) fn handle_receiver_end(&mut self, instance: InstanceId, exit: Exit) {
        self.driver.forget(instance);
        let Some(managed) = self.instances.get_mut(&instance) else { return };
        let why = exit.to_string();
        let ending = if exit.is_success() { EndReason::Done(why) } else { EndReason::Failed(why) };
        managed.phase = Phase::Ended(ending);
    }

    /// Stops an instance that belongs elsewhere, then removes its remains.
    fn clean_up(&mut self, task: &MigrationTask, now: Instant) {
        let instance = task.instance;
        if task.action == MigrationAction::Drop && !self.instances.contains_key(&instance) {
            self.adopt(instance, task.fence, task.fence, true, now);
        }
        let why = match task.action {
            MigrationAction::Drop => format!("it stays on {}", task.source),
            _ => format!("it runs on {} now", task.target),
        };
        match self.instances.get(&instance).map(|managed| &managed.phase) {
            Some(Phase::Up { .. } | Phase::BackingOff { .. }) => self.stop(instance, &why, now),
            Some(Phase::Stopping { .. }) => {}
            Some(Phase::Ended(_)) | None => self.migrations.clean_up(task, now),
        }
    }

    /// Handles an instance that was moved here.
    pub(super) fn handle_arrival(&mut self, assignment: &Assignment, now: Instant) {
        let (instance, fence) = (assignment.instance, assignment.fence);
        let Some(managed) = self.instances.get_mut(&instance) else { return };
        match managed.phase {
            Phase::Up { .. } if fence >= managed.fence => {
                if let Err(error) = self.driver.adopt(instance, managed.fence, fence) {
                    // Tried again with the next tick; it is not reported until then.
                    tracing::warn!(%instance, %error, "failed to adopt arrived instance");
                    return;
                }
                (managed.fence, managed.arriving) = (fence, false);
                tracing::info!(%instance, fence, "instance arrived");
            }
            Phase::Up { .. } | Phase::Stopping { .. } => {}
            Phase::BackingOff { .. } | Phase::Ended(_) => {
                self.instances.remove(&instance);
                self.handle_new(assignment, now);
            }
        }
    }

    /// Adopts an instance that a migration brought to this host.
    pub(super) fn adopt(
        &mut self,
        instance: InstanceId,
        started_under: i64,
        fence: i64,
        arriving: bool,
        now: Instant,
    ) -> bool {
        match self.driver.adopt(instance, started_under, fence) {
            Ok(true) => {
                tracing::info!(%instance, fence, "adopted instance that its migration brought");
                let phase = Phase::Up { settled: true, since: now };
                let managed = ManagedInstance { fence, phase, starts: 1, missing: None, arriving };
                self.instances.insert(instance, managed);
                true
            }
            Ok(false) => false,
            Err(error) => {
                tracing::warn!(%instance, %error, "failed to adopt instance");
                false
            }
        }
    }
}
