//! Keeps what runs on the host equal to what the server says should run.
//!
//! It is told everything that should be there, again and again, and never what changed: a message
//! that is lost or comes twice does no harm. It speaks to no server, and until it was told
//! something it lets everything run that it finds.

use std::collections::BTreeMap;
use std::io;
use std::time::Duration;

use berth_api::engine::InstanceId;
use berth_api::{
    Assignment, ClaimState, MigrationReport, MigrationTask, RunState, RunningInstance,
};
use tokio::time::Instant;

use super::driver::{Driver, Exit, Firmness, Launch, Sight};
use super::moves::Moves;
use super::say::say;

/// What becomes of an instance that ends by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Restart {
    /// Its claim is released.
    Never,
    /// It is started again unless it ended with exit code 0.
    OnFailure,
}

/// How a keeper acts.
#[derive(Clone, Copy, Debug)]
pub(super) struct Habits {
    /// How long an instance may take to stop before it is killed.
    pub(super) stop_grace: Duration,
    /// What becomes of instances that end by themselves.
    pub(super) restart: Restart,
}

/// How long all answers must leave an instance out before it is stopped: servers may lag behind
/// each other, and stopping cannot be taken back.
const MISSING_FOR: Duration = Duration::from_secs(2);

const FIRST_REST: Duration = Duration::from_secs(1);
const LONGEST_REST: Duration = Duration::from_secs(60);
/// An instance that ran this long starts anew with the shortest rest.
const STEADY_AFTER: Duration = Duration::from_secs(600);

/// How it came to an end, and so what the server is told.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Ending {
    /// It was told to stop.
    Stopped,
    /// It ended by itself, as it may.
    Done(String),
    /// It ended by itself, as it should not.
    Failed(String),
    /// It could not be started: the server counts that against the node.
    NeverUp,
}

/// Where an instance stands on this host.
#[derive(Clone, Debug)]
enum Phase {
    /// There is a process.
    Up { settled: bool, since: Instant },
    /// There is a process, and it was told to stop.
    Stopping { until: Instant, forced: bool, ending: Ending },
    /// There is none, and there will be.
    Resting { until: Instant, launch: Launch },
    /// There is none. Kept until the server no longer lists the instance.
    Ended(Ending),
}

/// An instance on this host.
#[derive(Clone, Debug)]
struct Guest {
    fence: i64,
    phase: Phase,
    starts: u32,
    /// Since when answers leave it out.
    missing: Option<Instant>,
    /// It only waits for what is being moved here. Nothing is said of it: what is said to run has
    /// arrived.
    arriving: bool,
}

/// What is said of one instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Word {
    /// What goes into the sign of life.
    pub(super) running: RunningInstance,
    /// Why its claim should be released; absent: it should not.
    pub(super) give_up: Option<String>,
}

/// Everything that is to be said.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Report {
    /// Of each instance.
    pub(super) words: Vec<Word>,
    /// Of migrations, and before anything is said of instances: one that stopped because it was
    /// moved has not died.
    pub(super) migrations: Vec<MigrationReport>,
    /// Whether something runs that the last answer left out, so that another is wanted soon.
    pub(super) in_doubt: bool,
}

/// What a server answered.
#[derive(Clone, Debug, Default)]
pub(super) struct Orders {
    /// Everything that should be on the node.
    pub(super) assignments: Vec<Assignment>,
    /// What is to be done for migrations.
    pub(super) migrations: Vec<MigrationTask>,
    /// Instances whose reports were refused, with the fence that was reported.
    pub(super) refused: Vec<(InstanceId, i64)>,
}

/// The keeper of one host.
pub(super) struct Keeper {
    driver: Box<dyn Driver>,
    moves: Moves,
    habits: Habits,
    guests: BTreeMap<InstanceId, Guest>,
    /// Absent until a server answered.
    wanted: Option<BTreeMap<InstanceId, Assignment>>,
    /// When a server last answered.
    heard_at: Option<Instant>,
    leaving: bool,
}

impl Keeper {
    /// A keeper that takes up what an earlier agent left running.
    pub(super) fn new(
        mut driver: Box<dyn Driver>,
        moves: Moves,
        habits: Habits,
        now: Instant,
    ) -> io::Result<Self> {
        let survivors = driver.recover()?;
        let guest = |fence, arriving| Guest {
            fence,
            phase: Phase::Up { settled: true, since: now },
            starts: 1,
            missing: None,
            arriving,
        };
        let guests = survivors.iter().map(|one| (one.instance, guest(one.fence, one.arriving)));
        let guests = guests.collect();
        for survivor in &survivors {
            say!("{} was started by an earlier agent; it is kept", survivor.instance);
        }
        Ok(Self { driver, moves, habits, guests, wanted: None, heard_at: None, leaving: false })
    }

    /// Takes in what a server answered.
    pub(super) fn take(&mut self, orders: Orders, now: Instant) {
        let wanted: BTreeMap<_, _> =
            orders.assignments.into_iter().map(|one| (one.instance, one)).collect();
        for (instance, guest) in &mut self.guests {
            let listed = wanted.contains_key(instance);
            guest.missing = if listed { None } else { guest.missing.or(Some(now)) };
        }
        self.moves.take(orders.migrations, now);
        self.wanted = Some(wanted);
        self.heard_at = Some(now);
        for (instance, fence) in orders.refused {
            if self.guests.get(&instance).is_some_and(|guest| guest.fence == fence) {
                self.stop(instance, "its fence is out of date", now);
            }
        }
    }

    /// Stops everything; nothing is started from now on.
    pub(super) fn leave(&mut self, now: Instant) {
        self.leaving = true;
        let why = "the agent was stopped with its instances";
        let instances: Vec<InstanceId> = self.guests.keys().copied().collect();
        for instance in instances {
            self.end(instance, why, Ending::Done(why.to_owned()), now);
        }
    }

    /// Whether no process is left.
    pub(super) fn is_empty(&self) -> bool {
        self.guests.values().all(|guest| matches!(guest.phase, Phase::Ended(_)))
    }

    /// One round: looks at everything, and does what is due.
    pub(super) fn tick(&mut self, now: Instant) {
        self.carry(now);
        let instances: Vec<InstanceId> = self.guests.keys().copied().collect();
        for instance in instances {
            self.watch(instance, now);
        }
        if self.leaving {
            return;
        }
        if let Some(wanted) = self.wanted.take() {
            for assignment in wanted.values() {
                self.follow(assignment, now);
            }
            self.wanted = Some(wanted);
            self.clear_missing(now);
        }
    }

    /// What is to be said.
    pub(super) fn report(&self) -> Report {
        let word = |(instance, guest): (&InstanceId, &Guest)| {
            let (state, give_up) = match &guest.phase {
                Phase::Up { settled: true, .. } => (RunState::Running, None),
                Phase::Up { settled: false, .. } | Phase::Resting { .. } => {
                    (RunState::Starting, None)
                }
                Phase::Stopping { .. } => (RunState::Stopping, None),
                // Its room is needed until what is left of it is removed.
                Phase::Ended(_) if self.moves.clears(*instance) => (RunState::Stopping, None),
                Phase::Ended(Ending::Stopped) => (RunState::Stopped, None),
                // The report alone ends the claim, and is how the server learns of a bad boot.
                Phase::Ended(Ending::NeverUp) => (RunState::Failed, None),
                Phase::Ended(Ending::Done(why)) => (RunState::Stopped, Some(why.clone())),
                Phase::Ended(Ending::Failed(why)) => (RunState::Failed, Some(why.clone())),
            };
            let (instance, fence) = (*instance, Some(guest.fence));
            Word {
                running: RunningInstance { instance, fence, state, reason: None, found: None },
                give_up,
            }
        };
        let left_out =
            |guest: &Guest| guest.missing.is_some() && matches!(guest.phase, Phase::Up { .. });
        let here = self.guests.iter().filter(|(_, guest)| !guest.arriving);
        Report {
            words: here.map(word).collect(),
            migrations: self.moves.reports(),
            in_doubt: self.guests.values().any(left_out),
        }
    }

    /// Looks at one instance, and moves it on when its process did.
    fn watch(&mut self, instance: InstanceId, now: Instant) {
        let Some(guest) = self.guests.get_mut(&instance) else { return };
        match &mut guest.phase {
            Phase::Up { settled, since } => match self.driver.look(instance) {
                Sight::Starting => {}
                Sight::Running => *settled = true,
                Sight::Gone(exit) if guest.arriving => self.waited_in_vain(instance, exit),
                // Its end is part of its move until it is known how that ended.
                Sight::Gone(_) if self.moves.sends(instance) => {}
                Sight::Gone(exit) => {
                    if now.duration_since(*since) > STEADY_AFTER {
                        guest.starts = 1;
                    }
                    self.ended(instance, exit, now);
                }
            },
            Phase::Stopping { until, forced, ending } => match self.driver.look(instance) {
                Sight::Gone(_) => {
                    guest.phase = Phase::Ended(ending.clone());
                    self.driver.forget(instance);
                    say!("{instance} is stopped");
                }
                Sight::Starting | Sight::Running => {
                    if *until <= now {
                        if !*forced {
                            say!("{instance} did not stop in time and is killed");
                        }
                        *forced = true;
                        self.driver.stop(instance, Firmness::Force);
                    }
                }
            },
            Phase::Resting { until, launch } => {
                if *until <= now {
                    let launch = launch.clone();
                    self.start(&launch, now);
                }
            }
            Phase::Ended(_) => {}
        }
    }

    /// An instance ended by itself.
    fn ended(&mut self, instance: InstanceId, exit: Exit, now: Instant) {
        self.driver.forget(instance);
        say!("{instance} {exit}");
        let wanted = self.wanted.as_ref().and_then(|wanted| wanted.get(&instance));
        let Some(guest) = self.guests.get_mut(&instance) else { return };
        let was_up = matches!(guest.phase, Phase::Up { settled: true, .. });
        let why = exit.to_string();
        let again = wanted.filter(|one| {
            one.fence == guest.fence
                && one.state != ClaimState::Releasing
                && self.habits.restart == Restart::OnFailure
        });
        guest.phase = match again {
            _ if exit.is_success() => Phase::Ended(Ending::Done(why)),
            Some(assignment) => rest(guest.starts, Launch::of(assignment), now),
            None if was_up => Phase::Ended(Ending::Failed(why)),
            None => Phase::Ended(Ending::NeverUp),
        };
    }

    /// Does for one instance what its assignment says.
    fn follow(&mut self, assignment: &Assignment, now: Instant) {
        let instance = assignment.instance;
        let Some(guest) = self.guests.get_mut(&instance) else {
            return self.welcome(assignment, now);
        };
        if guest.arriving {
            return self.arrive(assignment, now);
        }
        // A lower fence than last seen is void; a higher one means that the instance was given
        // away and came back, so what runs here is the old one.
        if assignment.fence > guest.fence {
            match guest.phase {
                Phase::Up { .. } => self.stop(instance, "it was placed anew", now),
                Phase::Stopping { .. } => {}
                Phase::Resting { .. } | Phase::Ended(_) => {
                    self.guests.remove(&instance);
                    self.welcome(assignment, now);
                }
            }
        } else if assignment.fence == guest.fence {
            match (&guest.phase, assignment.state == ClaimState::Releasing) {
                (Phase::Up { .. }, true) => self.stop(instance, "it is released", now),
                (Phase::Resting { .. }, true) => guest.phase = Phase::Ended(Ending::Stopped),
                // It was stopped for good reasons then, and is wanted after all: it is treated as
                // one that is not here.
                (Phase::Ended(Ending::Stopped), false) => {
                    self.guests.remove(&instance);
                    self.welcome(assignment, now);
                }
                _ => {}
            }
        }
    }

    /// An assignment of an instance that is not here.
    fn welcome(&mut self, assignment: &Assignment, now: Instant) {
        let (instance, fence) = (assignment.instance, assignment.fence);
        let absent = |ending| Guest {
            fence,
            phase: Phase::Ended(ending),
            starts: 0,
            missing: None,
            arriving: false,
        };
        if assignment.state == ClaimState::Active {
            let under = self.moves.receives(instance).unwrap_or(fence);
            if self.find(instance, under, fence, false, now) {
                return;
            }
        }
        match (assignment.state, self.habits.restart) {
            // Not ours yet: it is bound first.
            (ClaimState::Held, _) => {}
            (ClaimState::Binding, _) | (ClaimState::Active, Restart::OnFailure) => {
                self.start(&Launch::of(assignment), now);
            }
            (ClaimState::Active, Restart::Never) => {
                let why = "is not running on its host".to_owned();
                say!("{instance} {why}");
                self.guests.insert(instance, absent(Ending::Failed(why)));
            }
            (ClaimState::Releasing, _) => {
                self.guests.insert(instance, absent(Ending::Stopped));
            }
        }
    }

    fn start(&mut self, launch: &Launch, now: Instant) {
        let instance = launch.instance;
        let starts = self.guests.get(&instance).map_or(0, |guest| guest.starts) + 1;
        let phase = match self.driver.start(launch) {
            Ok(()) => {
                let name = launch.environment.get("BERTH_NAME");
                let name = name.map(|name| format!(" ({name})")).unwrap_or_default();
                say!("{instance}{name} is started under fence {}", launch.fence);
                Phase::Up { settled: false, since: now }
            }
            Err(error) => {
                say!("{instance} cannot be started: {error}");
                match self.habits.restart {
                    Restart::Never => Phase::Ended(Ending::NeverUp),
                    Restart::OnFailure => rest(starts, launch.clone(), now),
                }
            }
        };
        let (fence, missing, arriving) = (launch.fence, None, false);
        self.guests.insert(instance, Guest { fence, phase, starts, missing, arriving });
    }

    fn stop(&mut self, instance: InstanceId, why: &str, now: Instant) {
        self.end(instance, why, Ending::Stopped, now);
    }

    fn end(&mut self, instance: InstanceId, why: &str, ending: Ending, now: Instant) {
        let Some(guest) = self.guests.get_mut(&instance) else { return };
        match guest.phase {
            Phase::Up { .. } => {
                say!("{instance} is told to stop: {why}");
                let until = now + self.habits.stop_grace;
                guest.phase = Phase::Stopping { until, forced: false, ending };
                self.driver.stop(instance, Firmness::Ask);
            }
            Phase::Resting { .. } => guest.phase = Phase::Ended(ending),
            Phase::Stopping { .. } | Phase::Ended(_) => {}
        }
    }

    /// Stops what is no longer listed, and forgets what is neither listed nor here.
    fn clear_missing(&mut self, now: Instant) {
        let heard = self.heard_at;
        let long_enough = |since| heard.is_some_and(|heard| heard >= since + MISSING_FOR);
        let moves = &self.moves;
        // What is being moved here is listed when it has arrived.
        let awaited = |id: &InstanceId, guest: &Guest| {
            guest.arriving && moves.receives(*id) == Some(guest.fence)
        };
        let missing = |(id, guest): &(&InstanceId, &Guest)| {
            guest.missing.is_some_and(long_enough) && !awaited(id, guest)
        };
        let gone: Vec<InstanceId> = self.guests.iter().filter(missing).map(|(id, _)| *id).collect();
        for instance in gone {
            self.stop(instance, "it is no longer assigned to this node", now);
        }
        let moves = &self.moves;
        self.guests.retain(|id, guest| {
            let awaited = guest.arriving && moves.receives(*id) == Some(guest.fence);
            guest.missing.is_none() || awaited || !matches!(guest.phase, Phase::Ended(_))
        });
    }
}

/// Twice as long with every start, up to a minute.
fn rest(starts: u32, launch: Launch, now: Instant) -> Phase {
    let factor = 1u32 << starts.saturating_sub(1).min(6);
    let pause = (FIRST_REST * factor).min(LONGEST_REST);
    say!("{} is started again in {} s", launch.instance, pause.as_secs());
    Phase::Resting { until: now + pause, launch }
}

#[path = "keeper_moves.rs"]
mod moving;

#[cfg(test)]
#[path = "keeper_tests.rs"]
mod tests;
