//! One simulated host: what it would say, and what it makes of the answer. It does no I/O.

use std::collections::BTreeMap;
use std::time::Duration;

use berth_api::{
    AskPermit, Assignment, ClaimState, Heard, Heartbeat, MigrationReport, Permit, RunState,
    RunningInstance,
};
use berth_engine::{InstanceId, NodeFacts};
use tokio::time::Instant;

use super::moves::Moves;
use super::pace::Pace;
use super::stretch::Stretch;
use crate::fleet::Numbers;

/// Of how many boots one fails.
const BOOTS_PER_FAILURE: u64 = 40;
/// Permits that a host asks for at most each time it speaks: a fleet of them is one server's work.
const ASKS: usize = 2;
/// How long a day of elastic instances takes.
const DAY_MS: u64 = 600_000;

/// Where an instance stands on a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Booting { until: Instant, fails: bool },
    Running,
    Stopping { until: Instant },
    Stopped,
    Failed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Guest {
    fence: i64,
    phase: Phase,
    stretch: Option<Stretch>,
}

/// A host with its agent.
pub(super) struct Host {
    pub(super) facts: NodeFacts,
    facts_changed: bool,
    guests: BTreeMap<InstanceId, Guest>,
    guests_changed: bool,
    moves: Moves,
    /// When its play began: the hours of its instances are counted from it.
    born: Option<Instant>,
    silent_until: Option<Instant>,
    numbers: Numbers,
    pace: Pace,
    /// Requests that failed one after the other.
    pub(super) failures: u32,
}

impl Host {
    pub(super) fn new(facts: NodeFacts, seed: u64, pace: Pace) -> Self {
        Self {
            facts,
            facts_changed: false,
            guests: BTreeMap::new(),
            guests_changed: false,
            moves: Moves::default(),
            born: None,
            silent_until: None,
            numbers: Numbers::new(seed),
            pace,
            failures: 0,
        }
    }

    /// Changes what is known of the host.
    pub(super) fn change(&mut self, change: impl FnOnce(&mut NodeFacts)) {
        change(&mut self.facts);
        self.facts_changed = true;
    }

    /// Falls silent. After a crash, nothing runs any more; after a mere outage, everything does.
    pub(super) fn fall_silent(&mut self, until: Instant, crash: bool) {
        self.silent_until = Some(until);
        if crash {
            for guest in self.guests.values_mut() {
                guest.phase = Phase::Failed;
            }
            self.guests_changed = true;
        }
    }

    /// Until when it says nothing.
    pub(super) fn silent_until(&self, now: Instant) -> Option<Instant> {
        self.silent_until.filter(|until| *until > now)
    }

    /// What is said at this moment.
    pub(super) fn beat(&mut self, now: Instant) -> Heartbeat {
        for guest in self.guests.values_mut() {
            let next = match guest.phase {
                Phase::Booting { until, fails: true } if until <= now => Phase::Failed,
                Phase::Booting { until, .. } if until <= now => Phase::Running,
                Phase::Stopping { until } if until <= now => Phase::Stopped,
                other => other,
            };
            self.guests_changed |= next != guest.phase;
            guest.phase = next;
        }
        let running = |(instance, guest): (&InstanceId, &Guest)| RunningInstance {
            instance: *instance,
            fence: Some(guest.fence),
            state: match guest.phase {
                Phase::Booting { .. } => RunState::Starting,
                Phase::Running => RunState::Running,
                Phase::Stopping { .. } => RunState::Stopping,
                Phase::Stopped => RunState::Stopped,
                Phase::Failed => RunState::Failed,
            },
            reason: None,
            found: None,
        };
        Heartbeat {
            facts: self.facts_changed.then(|| Box::new(self.facts.clone())),
            running: self.guests_changed.then(|| self.guests.iter().map(running).collect()),
            reclaim: None,
        }
    }

    /// What is to be said of migrations, before anything else.
    pub(super) fn reports(&self, now: Instant) -> Vec<MigrationReport> {
        self.moves.reports(now)
    }

    /// Permits that are to be asked for: of instances that would like another size by now.
    pub(super) fn asks(&mut self, now: Instant) -> Vec<(InstanceId, AskPermit)> {
        let born = *self.born.get_or_insert(now);
        let at_ms = u64::try_from(now.duration_since(born).as_millis()).unwrap_or(u64::MAX);
        let day = u64::try_from(self.pace.time(DAY_MS).as_millis()).unwrap_or(DAY_MS);
        let elastic = self.guests.iter().filter_map(|(instance, guest)| {
            let stretch = guest.stretch.filter(|_| guest.phase == Phase::Running)?;
            let resources = stretch.wants(*instance, at_ms, day);
            let asks = resources != stretch.has && !self.moves.sends(*instance);
            asks.then(|| (*instance, ask(guest.fence, resources)))
        });
        let mut asks: Vec<(InstanceId, AskPermit)> = elastic.collect();
        // Not always the same ones first, since some are never granted.
        if !asks.is_empty() {
            let turn = self.numbers.below(asks.len() as u64);
            asks.rotate_left(usize::try_from(turn).unwrap_or(0));
        }
        asks.truncate(ASKS);
        asks
    }

    /// Takes in how large an instance may be.
    pub(super) fn permitted(&mut self, permit: &Permit) {
        let guest = self.guests.get_mut(&permit.instance);
        if let Some(stretch) = guest.and_then(|guest| guest.stretch.as_mut()) {
            stretch.has = permit.permit;
        }
    }

    /// Takes in the answer.
    pub(super) fn heard(&mut self, heard: &Heard, now: Instant) {
        self.facts_changed = false;
        self.guests_changed = false;
        self.moves.take(&heard.migrations, self.pace, &mut self.numbers, now);
        let wanted: BTreeMap<InstanceId, &Assignment> =
            heard.assignments.iter().map(|one| (one.instance, one)).collect();
        // What is no longer listed is gone at once: nobody waits for a simulated process.
        self.guests.retain(|instance, guest| {
            wanted.get(instance).is_some_and(|one| one.fence <= guest.fence)
        });
        for assignment in wanted.values() {
            self.follow(assignment, now);
            if let Some(guest) = self.guests.get_mut(&assignment.instance) {
                guest.stretch = assignment.elastic.as_ref().and_then(Stretch::of);
            }
        }
    }

    fn follow(&mut self, assignment: &Assignment, now: Instant) {
        let known = self.guests.get(&assignment.instance).map(|guest| guest.phase);
        let phase = match (assignment.state, known) {
            (ClaimState::Held | ClaimState::Binding, None) => {
                let fails = self.numbers.one_in(BOOTS_PER_FAILURE);
                let until = now + self.pace.between(&mut self.numbers, 800, 4000);
                Phase::Booting { until, fails }
            }
            // It was booted before this play began.
            (ClaimState::Active, None) => Phase::Running,
            (ClaimState::Releasing, None | Some(Phase::Booting { .. } | Phase::Running)) => {
                Phase::Stopping { until: now + self.pace.between(&mut self.numbers, 500, 2500) }
            }
            (_, Some(_)) => return,
        };
        let guest = Guest { fence: assignment.fence, phase, stretch: None };
        self.guests_changed |= phase != Phase::Running;
        self.guests.insert(assignment.instance, guest);
    }

    /// When it should speak next.
    pub(super) fn next(&mut self, now: Instant, every: Duration) -> Instant {
        if let Some(until) = self.silent_until(now) {
            return until;
        }
        if self.guests_changed {
            return now + Duration::from_millis(50);
        }
        let ends = self.guests.values().filter_map(|guest| match guest.phase {
            Phase::Booting { until, .. } | Phase::Stopping { until } => Some(until),
            Phase::Running | Phase::Stopped | Phase::Failed => None,
        });
        // Never all at the same moment: each is a little early, by its own numbers.
        let jitter = self.numbers.below(u64::try_from(every.as_millis()).unwrap_or(0) / 8 + 1);
        let regular = now + every.saturating_sub(Duration::from_millis(jitter));
        let ends = ends.chain(self.moves.next());
        ends.min().map_or(regular, |end| end.min(regular))
    }
}

fn ask(fence: i64, resources: berth_engine::elastic::Size) -> AskPermit {
    let fence = Some(fence);
    AskPermit {
        resources,
        seq: None,
        fence,
        last_permit: None,
        heard: None,
        headroom: None,
        load: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use berth_engine::{Amounts, NodeState};

    fn heard(assignments: &[(ClaimState, i64)]) -> Heard {
        let assignments = assignments.iter().map(|(state, fence)| Assignment {
            instance: InstanceId::from_u128(1),
            state: *state,
            fence: *fence,
            owner: "acme".to_owned(),
            name: None,
            workload: None,
            image: None,
            resources: Amounts::new(1000, 512),
            tags: BTreeMap::new(),
            volumes: Vec::new(),
            values: Vec::new(),
            elastic: None,
        });
        Heard {
            at: jiff::Timestamp::UNIX_EPOCH,
            state: NodeState::Active,
            generation: 1,
            next_s: 10,
            reported: Vec::new(),
            assignments: assignments.collect(),
            volume_moves: Vec::new(),
            migrations: Vec::new(),
        }
    }

    fn said(host: &mut Host, now: Instant) -> Option<RunState> {
        Some(host.beat(now).running?.first()?.state)
    }

    #[test]
    fn an_instance_boots_runs_and_stops_and_each_is_said_once() {
        let facts = NodeFacts::new("n", Amounts::new(8000, 8192));
        let mut host = Host::new(facts, 1, Pace::new(100));
        let mut now = Instant::now();
        host.heard(&heard(&[(ClaimState::Held, 3)]), now);
        assert_eq!(said(&mut host, now), Some(RunState::Starting));
        host.heard(&heard(&[(ClaimState::Binding, 3)]), now);
        assert_eq!(said(&mut host, now), None);
        now += Duration::from_secs(5);
        assert_eq!(said(&mut host, now), Some(RunState::Running));
        host.heard(&heard(&[(ClaimState::Active, 3)]), now);
        host.heard(&heard(&[(ClaimState::Releasing, 3)]), now);
        assert_eq!(said(&mut host, now), Some(RunState::Stopping));
        now += Duration::from_secs(5);
        assert_eq!(said(&mut host, now), Some(RunState::Stopped));
        host.heard(&heard(&[]), now);
        assert_eq!(said(&mut host, now), None);
    }

    #[test]
    fn a_crash_takes_everything_along_and_an_outage_nothing() {
        let mut now = Instant::now();
        for (crash, after) in [(true, Some(RunState::Failed)), (false, None)] {
            let facts = NodeFacts::new("n", Amounts::new(8000, 8192));
            let mut host = Host::new(facts, 1, Pace::new(100));
            host.heard(&heard(&[(ClaimState::Active, 3)]), now);
            host.fall_silent(now + Duration::from_secs(60), crash);
            assert!(host.next(now, Duration::from_secs(15)) > now + Duration::from_secs(59));
            now += Duration::from_secs(61);
            assert_eq!(said(&mut host, now), after);
        }
    }
}
