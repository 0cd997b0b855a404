//! Reconciles the instances on the host with what the server wants.
//!
//! It gets the whole desired state each time, never a change of it, so a lost or repeated message does
//! no harm. It talks to no server, and until it has a desired state it stops nothing.

use std::collections::BTreeMap;
use std::io;
use std::time::Duration;

use berth_api::engine::{Amounts, InstanceId};
use berth_api::{
    Assignment, ClaimState, FailureCause, MigrationReport, MigrationTask, RunState, RunningInstance,
};
use tokio::time::Instant;

use super::driver::{Driver, Exit, Launch, Observation, StopMode};
use super::migration_tasks::MigrationTasks;

/// Whether an instance that ends by itself is restarted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum RestartPolicy {
    /// Never: its claim is released.
    Never,
    /// Unless it ended with exit code 0.
    OnFailure,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct ManagerOptions {
    /// How long an instance may take to stop before it is killed.
    pub(super) stop_grace: Duration,
    pub(super) restart: RestartPolicy,
}

/// How long all answers must leave an instance out before it is stopped: servers may lag behind
/// each other, and a stop cannot be undone.
const MISSING_FOR: Duration = Duration::from_secs(2);

const MIN_BACKOFF: Duration = Duration::from_secs(1);
const MAX_BACKOFF: Duration = Duration::from_secs(60);
/// After running this long, an instance is restarted with the shortest backoff again.
const STABLE_AFTER: Duration = Duration::from_secs(600);

/// Why an instance ended, which decides what is reported.
#[derive(Clone, Debug, PartialEq, Eq)]
enum EndReason {
    /// The agent stopped it.
    Stopped,
    /// It ended by itself, successfully.
    Done(String),
    /// It ended by itself, with an error.
    Failed(String),
    /// It could not be started, for this cause: the server may count that against the node.
    StartFailed(FailureCause),
}

/// The phase of an instance on this host.
#[derive(Clone, Debug)]
enum Phase {
    /// A process runs.
    Up { settled: bool, since: Instant },
    /// A process runs, and was asked to stop.
    Stopping { until: Instant, forced: bool, ending: EndReason },
    /// No process runs; one will be started.
    BackingOff { until: Instant, launch: Launch },
    /// No process runs. Kept until the server no longer lists the instance.
    Ended(EndReason),
}

/// An instance on this host.
#[derive(Clone, Debug)]
struct ManagedInstance {
    fence: i64,
    phase: Phase,
    starts: u32,
    /// Since when answers leave it out.
    missing: Option<Instant>,
    /// It waits for an instance that is moved here. It is not reported: a reported instance has arrived.
    arriving: bool,
}

/// The report on one instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct InstanceReport {
    /// Its part of the heartbeat.
    pub(super) running: RunningInstance,
    /// Why its claim should be released, if it should.
    pub(super) release: Option<String>,
}

/// Everything that is reported to the server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct NodeReport {
    pub(super) instances: Vec<InstanceReport>,
    /// Reported before the instances: one that stopped because it was moved has not failed.
    pub(super) migrations: Vec<MigrationReport>,
    /// Whether an instance runs that the last answer left out, so that the next sync should be soon.
    pub(super) in_doubt: bool,
}

/// The desired state, as a server answered it.
#[derive(Clone, Debug, Default)]
pub(super) struct DesiredState {
    /// All instances that should be on the node.
    pub(super) assignments: Vec<Assignment>,
    pub(super) migrations: Vec<MigrationTask>,
    /// Instances whose reports were refused, with the fence that was reported.
    pub(super) refused: Vec<(InstanceId, i64)>,
}

/// The instances of one host.
pub(super) struct InstanceManager {
    driver: Box<dyn Driver>,
    migrations: MigrationTasks,
    options: ManagerOptions,
    instances: BTreeMap<InstanceId, ManagedInstance>,
    /// None until a server answered.
    assignments: Option<BTreeMap<InstanceId, Assignment>>,
    /// When a server last answered.
    answered_at: Option<Instant>,
    stopping: bool,
    /// Whether an instance still runs whose room was given to another.
    room_is_occupied: bool,
}

impl InstanceManager {
    /// Recovers what an earlier agent left running.
    pub(super) fn new(
        mut driver: Box<dyn Driver>,
        migrations: MigrationTasks,
        options: ManagerOptions,
        now: Instant,
    ) -> io::Result<Self> {
        let recovered_instances = driver.recover()?;
        let managed = |fence, arriving| ManagedInstance {
            fence,
            phase: Phase::Up { settled: true, since: now },
            starts: 1,
            missing: None,
            arriving,
        };
        let instances =
            recovered_instances.iter().map(|one| (one.instance, managed(one.fence, one.arriving)));
        let instances = instances.collect();
        for recovered in &recovered_instances {
            tracing::info!(instance = %recovered.instance, "recovered instance of an earlier agent");
        }
        Ok(Self {
            driver,
            migrations,
            options,
            instances,
            assignments: None,
            answered_at: None,
            stopping: false,
            room_is_occupied: false,
        })
    }

    /// Sets the desired state.
    pub(super) fn set_desired(&mut self, desired: DesiredState, now: Instant) {
        let assignments: BTreeMap<_, _> =
            desired.assignments.into_iter().map(|one| (one.instance, one)).collect();
        for (instance, managed) in &mut self.instances {
            let listed = assignments.contains_key(instance);
            managed.missing = if listed { None } else { managed.missing.or(Some(now)) };
        }
        self.migrations.set_tasks(desired.migrations, now);
        self.assignments = Some(assignments);
        self.answered_at = Some(now);
        for (instance, fence) in desired.refused {
            if self.instances.get(&instance).is_some_and(|managed| managed.fence == fence) {
                self.stop(instance, "its fence is out of date", now);
            }
        }
    }

    /// Stops all instances, and starts none from now on.
    pub(super) fn stop_all(&mut self, now: Instant) {
        self.stopping = true;
        let why = "the agent was stopped with its instances";
        let instances: Vec<InstanceId> = self.instances.keys().copied().collect();
        for instance in instances {
            self.end(instance, why, EndReason::Done(why.to_owned()), now);
        }
    }

    /// Whether no process is left.
    pub(super) fn is_empty(&self) -> bool {
        self.instances.values().all(|managed| matches!(managed.phase, Phase::Ended(_)))
    }

    /// Checks all instances, and does what is due.
    pub(super) fn tick(&mut self, now: Instant) {
        self.advance_migrations(now);
        let instances: Vec<InstanceId> = self.instances.keys().copied().collect();
        for instance in instances {
            self.check(instance, now);
        }
        if self.stopping {
            return;
        }
        if let Some(assignments) = self.assignments.take() {
            self.room_is_occupied = assignments.values().any(|it| self.occupies_room(it));
            for assignment in assignments.values() {
                self.reconcile(assignment, now);
            }
            self.assignments = Some(assignments);
            self.stop_missing(now);
        }
    }

    /// The report to the server.
    pub(super) fn report(&self) -> NodeReport {
        let report = |(instance, managed): (&InstanceId, &ManagedInstance)| {
            let (state, release) = match &managed.phase {
                Phase::Up { settled: true, .. } => (RunState::Running, None),
                Phase::Up { settled: false, .. } | Phase::BackingOff { .. } => {
                    (RunState::Starting, None)
                }
                Phase::Stopping { .. } => (RunState::Stopping, None),
                // Its room is needed until its remains are removed.
                Phase::Ended(_) if self.migrations.is_cleaning_up(*instance) => {
                    (RunState::Stopping, None)
                }
                Phase::Ended(EndReason::Stopped) => (RunState::Stopped, None),
                // The report alone ends the claim, and counts against the node.
                Phase::Ended(EndReason::StartFailed(_)) => (RunState::Failed, None),
                Phase::Ended(EndReason::Done(why)) => (RunState::Stopped, Some(why.clone())),
                Phase::Ended(EndReason::Failed(why)) => (RunState::Failed, Some(why.clone())),
            };
            let cause = match &managed.phase {
                Phase::Ended(EndReason::StartFailed(cause)) => Some(*cause),
                _ => None,
            };
            let (instance, fence, reason) = (*instance, Some(managed.fence), None);
            let running = RunningInstance { instance, fence, state, reason, cause, found: None };
            InstanceReport { running, release }
        };
        let left_out = |managed: &ManagedInstance| {
            managed.missing.is_some() && matches!(managed.phase, Phase::Up { .. })
        };
        let here = self.instances.iter().filter(|(_, managed)| !managed.arriving);
        NodeReport {
            instances: here.map(report).collect(),
            migrations: self.migrations.reports(),
            in_doubt: self.instances.values().any(left_out),
        }
    }

    /// Checks one instance, and updates its phase.
    fn check(&mut self, instance: InstanceId, now: Instant) {
        let Some(managed) = self.instances.get_mut(&instance) else { return };
        match &mut managed.phase {
            Phase::Up { settled, since } => match self.driver.observe(instance) {
                Observation::Starting => {}
                Observation::Running => *settled = true,
                Observation::Gone(exit) if managed.arriving => {
                    self.handle_receiver_end(instance, exit)
                }
                // Until its migration has ended, its end belongs to that.
                Observation::Gone(_) if self.migrations.is_sending(instance) => {}
                Observation::Gone(exit) => {
                    if now.duration_since(*since) > STABLE_AFTER {
                        managed.starts = 1;
                    }
                    self.handle_end(instance, exit, now);
                }
            },
            Phase::Stopping { until, forced, ending } => match self.driver.observe(instance) {
                Observation::Gone(_) => {
                    managed.phase = Phase::Ended(ending.clone());
                    self.driver.forget(instance);
                    tracing::info!(%instance, "instance stopped");
                }
                Observation::Starting | Observation::Running => {
                    if *until <= now {
                        if !*forced {
                            tracing::warn!(%instance, "instance did not stop in time; killing it");
                        }
                        *forced = true;
                        self.driver.stop(instance, StopMode::Forced);
                    }
                }
            },
            Phase::BackingOff { until, launch } => {
                if *until <= now {
                    let launch = launch.clone();
                    self.start(&launch, now);
                }
            }
            Phase::Ended(_) => {}
        }
    }

    /// Handles an instance that ended by itself.
    fn handle_end(&mut self, instance: InstanceId, exit: Exit, now: Instant) {
        self.driver.forget(instance);
        tracing::info!(%instance, %exit, "instance ended");
        let assignment = self.assignments.as_ref().and_then(|all| all.get(&instance));
        let Some(managed) = self.instances.get_mut(&instance) else { return };
        let was_up = matches!(managed.phase, Phase::Up { settled: true, .. });
        let why = exit.to_string();
        let restarted = assignment.filter(|one| {
            one.fence == managed.fence
                && one.state != ClaimState::Releasing
                && self.options.restart == RestartPolicy::OnFailure
        });
        managed.phase = match restarted {
            _ if exit.is_success() => Phase::Ended(EndReason::Done(why)),
            Some(assignment) => back_off(managed.starts, Launch::of(assignment), now),
            None if was_up => Phase::Ended(EndReason::Failed(why)),
            // Its host may be broken, or what it was told to run.
            None => Phase::Ended(EndReason::StartFailed(FailureCause::Unknown)),
        };
    }

    /// Reconciles one instance with its assignment.
    fn reconcile(&mut self, assignment: &Assignment, now: Instant) {
        let instance = assignment.instance;
        let Some(managed) = self.instances.get_mut(&instance) else {
            return self.handle_new(assignment, now);
        };
        if managed.arriving {
            return self.handle_arrival(assignment, now);
        }
        // A lower fence is outdated. A higher one means that the instance was assigned elsewhere and
        // came back, so what runs here is the old one.
        if assignment.fence > managed.fence {
            match managed.phase {
                Phase::Up { .. } => self.stop(instance, "it was placed again", now),
                Phase::Stopping { .. } => {}
                Phase::BackingOff { .. } | Phase::Ended(_) => {
                    self.instances.remove(&instance);
                    self.handle_new(assignment, now);
                }
            }
        } else if assignment.fence == managed.fence {
            match (&managed.phase, assignment.state == ClaimState::Releasing) {
                (Phase::Up { .. }, true) => self.stop(instance, "it is released", now),
                (Phase::BackingOff { .. }, true) => {
                    managed.phase = Phase::Ended(EndReason::Stopped)
                }
                // It was stopped, and is wanted again: handle it like a new one.
                (Phase::Ended(EndReason::Stopped), false) => {
                    self.instances.remove(&instance);
                    self.handle_new(assignment, now);
                }
                _ => {}
            }
        }
    }

    /// Whether an instance was preempted, and has not stopped yet: it is charged nothing any more.
    fn occupies_room(&self, assignment: &Assignment) -> bool {
        let managed = self.instances.get(&assignment.instance);
        assignment.state == ClaimState::Releasing
            && assignment.resources == Amounts::default()
            && managed
                .is_some_and(|it| matches!(it.phase, Phase::Up { .. } | Phase::Stopping { .. }))
    }

    /// Handles the assignment of an instance that is not on this host.
    fn handle_new(&mut self, assignment: &Assignment, now: Instant) {
        let (instance, fence) = (assignment.instance, assignment.fence);
        let absent = |ending| ManagedInstance {
            fence,
            phase: Phase::Ended(ending),
            starts: 0,
            missing: None,
            arriving: false,
        };
        if assignment.state == ClaimState::Active {
            let started_under = self.migrations.receiving_fence(instance).unwrap_or(fence);
            if self.adopt(instance, started_under, fence, false, now) {
                return;
            }
        }
        match (assignment.state, self.options.restart) {
            // It is bound first.
            (ClaimState::Held, _) => {}
            // It may have been given that room.
            (ClaimState::Binding, _) if self.room_is_occupied => {}
            (ClaimState::Binding, _) | (ClaimState::Active, RestartPolicy::OnFailure) => {
                self.start(&Launch::of(assignment), now);
            }
            (ClaimState::Active, RestartPolicy::Never) => {
                let why = "is not running on its host".to_owned();
                tracing::warn!(%instance, "assigned instance is not running on this host");
                self.instances.insert(instance, absent(EndReason::Failed(why)));
            }
            (ClaimState::Releasing, _) => {
                self.instances.insert(instance, absent(EndReason::Stopped));
            }
        }
    }

    fn start(&mut self, launch: &Launch, now: Instant) {
        let instance = launch.instance;
        let starts = self.instances.get(&instance).map_or(0, |managed| managed.starts) + 1;
        let phase = match self.driver.start(launch) {
            Ok(()) => {
                let name = launch.environment.get("BERTH_NAME");
                tracing::info!(%instance, name, fence = launch.fence, "instance started");
                Phase::Up { settled: false, since: now }
            }
            Err(error) => {
                tracing::warn!(%instance, %error, "failed to start instance");
                match self.options.restart {
                    RestartPolicy::Never => Phase::Ended(EndReason::StartFailed(cause_of(&error))),
                    RestartPolicy::OnFailure => back_off(starts, launch.clone(), now),
                }
            }
        };
        let (fence, missing, arriving) = (launch.fence, None, false);
        self.instances
            .insert(instance, ManagedInstance { fence, phase, starts, missing, arriving });
    }

    fn stop(&mut self, instance: InstanceId, why: &str, now: Instant) {
        self.end(instance, why, EndReason::Stopped, now);
    }

    fn end(&mut self, instance: InstanceId, why: &str, ending: EndReason, now: Instant) {
        let Some(managed) = self.instances.get_mut(&instance) else { return };
        match managed.phase {
            Phase::Up { .. } => {
                tracing::info!(%instance, why, "stopping instance");
                let until = now + self.options.stop_grace;
                managed.phase = Phase::Stopping { until, forced: false, ending };
                self.driver.stop(instance, StopMode::Graceful);
            }
            Phase::BackingOff { .. } => managed.phase = Phase::Ended(ending),
            Phase::Stopping { .. } | Phase::Ended(_) => {}
        }
    }

    /// Stops instances that are no longer assigned, and forgets those that are gone as well.
    fn stop_missing(&mut self, now: Instant) {
        let answered_at = self.answered_at;
        let long_enough = |since| answered_at.is_some_and(|at| at >= since + MISSING_FOR);
        let migrations = &self.migrations;
        // An instance that is moved here is assigned when it has arrived.
        let awaited = |id: &InstanceId, managed: &ManagedInstance| {
            managed.arriving && migrations.receiving_fence(*id) == Some(managed.fence)
        };
        let missing = |(id, managed): &(&InstanceId, &ManagedInstance)| {
            managed.missing.is_some_and(long_enough) && !awaited(id, managed)
        };
        let gone: Vec<InstanceId> =
            self.instances.iter().filter(missing).map(|(id, _)| *id).collect();
        for instance in gone {
            self.stop(instance, "it is no longer assigned to this node", now);
        }
        let migrations = &self.migrations;
        self.instances.retain(|id, managed| {
            let awaited =
                managed.arriving && migrations.receiving_fence(*id) == Some(managed.fence);
            managed.missing.is_none() || awaited || !matches!(managed.phase, Phase::Ended(_))
        });
    }
}

/// Restarts an instance after a backoff that doubles with every start.
fn back_off(starts: u32, launch: Launch, now: Instant) -> Phase {
    let factor = 1u32 << starts.saturating_sub(1).min(6);
    let pause = (MIN_BACKOFF * factor).min(MAX_BACKOFF);
    tracing::info!(instance = %launch.instance, in_s = pause.as_secs(), "restarting instance after backoff");
    Phase::BackingOff { until: now + pause, launch }
}

/// What made a start fail. A tenant chooses the environment of its instance: one that no host could
/// pass on says nothing about this host.
fn cause_of(error: &io::Error) -> FailureCause {
    match error.kind() {
        io::ErrorKind::ArgumentListTooLong | io::ErrorKind::InvalidInput => FailureCause::Instance,
        _ => FailureCause::Node,
    }
}

#[path = "instance_manager_moves.rs"]
mod moving;

#[cfg(test)]
#[path = "instance_manager_tests.rs"]
mod tests;
