//! One simulated host: its heartbeats, and how it applies the answers. It does no I/O.

use std::collections::BTreeMap;
use std::time::Duration;

use berth_api::{
    AskPermit, Assignment, ClaimState, Heartbeat, HeartbeatResponse, MigrationReport, Permit,
    RunState, RunningInstance,
};
use berth_engine::{InstanceId, NodeFacts};
use tokio::time::Instant;

use super::elastic_load::ElasticLoad;
use super::migrations::Migrations;
use super::pace::Pace;
use crate::fleet::SeededRng;

/// Of how many boots one fails.
const BOOTS_PER_FAILURE: u64 = 40;
/// Permits that a host requests with one heartbeat at most, to limit the load on the server.
const MAX_PERMIT_REQUESTS: usize = 2;
/// How long a simulated day of elastic instances takes.
const DAY_MS: u64 = 600_000;

/// The phase of an instance on a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Booting { until: Instant, fails: bool },
    Running,
    Stopping { until: Instant },
    Stopped,
    Failed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct HostedInstance {
    fence: i64,
    phase: Phase,
    elastic_load: Option<ElasticLoad>,
}

/// A host with its agent.
pub(super) struct Host {
    pub(super) facts: NodeFacts,
    facts_changed: bool,
    instances: BTreeMap<InstanceId, HostedInstance>,
    instances_changed: bool,
    migrations: Migrations,
    /// When the first permit was due; the simulated days of its instances start here.
    started_at: Option<Instant>,
    silent_until: Option<Instant>,
    rng: SeededRng,
    pace: Pace,
    /// Requests that failed one after the other.
    pub(super) failures: u32,
}

impl Host {
    pub(super) fn new(facts: NodeFacts, seed: u64, pace: Pace) -> Self {
        Self {
            facts,
            facts_changed: false,
            instances: BTreeMap::new(),
            instances_changed: false,
            migrations: Migrations::default(),
            started_at: None,
            silent_until: None,
            rng: SeededRng::new(seed),
            pace,
            failures: 0,
        }
    }

    /// Changes what is known of the host.
    pub(super) fn change(&mut self, change: impl FnOnce(&mut NodeFacts)) {
        change(&mut self.facts);
        self.facts_changed = true;
    }

    /// Goes silent. After a crash no instance runs; after an outage all of them do.
    pub(super) fn fall_silent(&mut self, until: Instant, crash: bool) {
        self.silent_until = Some(until);
        if crash {
            for instance in self.instances.values_mut() {
                instance.phase = Phase::Failed;
            }
            self.instances_changed = true;
        }
    }

    /// Until when it is silent.
    pub(super) fn silent_until(&self, now: Instant) -> Option<Instant> {
        self.silent_until.filter(|until| *until > now)
    }

    /// What the agent reports at this moment.
    pub(super) fn heartbeat(&mut self, now: Instant) -> Heartbeat {
        for instance in self.instances.values_mut() {
            let next = match instance.phase {
                Phase::Booting { until, fails: true } if until <= now => Phase::Failed,
                Phase::Booting { until, .. } if until <= now => Phase::Running,
                Phase::Stopping { until } if until <= now => Phase::Stopped,
                other => other,
            };
            self.instances_changed |= next != instance.phase;
            instance.phase = next;
        }
        let running = |(id, instance): (&InstanceId, &HostedInstance)| RunningInstance {
            instance: *id,
            fence: Some(instance.fence),
            state: match instance.phase {
                Phase::Booting { .. } => RunState::Starting,
                Phase::Running => RunState::Running,
                Phase::Stopping { .. } => RunState::Stopping,
                Phase::Stopped => RunState::Stopped,
                Phase::Failed => RunState::Failed,
            },
            reason: None,
            cause: None,
            found: None,
        };
        Heartbeat {
            facts: self.facts_changed.then(|| Box::new(self.facts.clone())),
            running: self.instances_changed.then(|| self.instances.iter().map(running).collect()),
            reclaim: None,
            ..Heartbeat::default()
        }
    }

    /// Reports on migrations, which are sent before the heartbeat.
    pub(super) fn reports(&self, now: Instant) -> Vec<MigrationReport> {
        self.migrations.reports(now)
    }

    /// Permit requests of instances that want another size now.
    pub(super) fn permit_requests(&mut self, now: Instant) -> Vec<(InstanceId, AskPermit)> {
        let started_at = *self.started_at.get_or_insert(now);
        let at_ms = u64::try_from(now.duration_since(started_at).as_millis()).unwrap_or(u64::MAX);
        let day = u64::try_from(self.pace.time(DAY_MS).as_millis()).unwrap_or(DAY_MS);
        let elastic = self.instances.iter().filter_map(|(id, instance)| {
            let elastic_load =
                instance.elastic_load.filter(|_| instance.phase == Phase::Running)?;
            let resources = elastic_load.wanted_size(*id, at_ms, day);
            let wants_change = resources != elastic_load.has && !self.migrations.is_sending(*id);
            let fence = Some(instance.fence);
            wants_change.then(|| (*id, AskPermit { fence, ..AskPermit::new(resources) }))
        });
        let mut permit_requests: Vec<(InstanceId, AskPermit)> = elastic.collect();
        // Not always the same ones first, since some are never granted.
        if !permit_requests.is_empty() {
            let turn = self.rng.below(permit_requests.len() as u64);
            permit_requests.rotate_left(usize::try_from(turn).unwrap_or(0));
        }
        permit_requests.truncate(MAX_PERMIT_REQUESTS);
        permit_requests
    }

    /// Records how large an instance may be.
    pub(super) fn apply_permit(&mut self, permit: &Permit) {
        let instance = self.instances.get_mut(&permit.instance);
        if let Some(elastic_load) = instance.and_then(|instance| instance.elastic_load.as_mut()) {
            elastic_load.has = permit.permit;
        }
    }

    /// Applies the server's answer.
    pub(super) fn apply_response(&mut self, response: &HeartbeatResponse, now: Instant) {
        self.facts_changed = false;
        self.instances_changed = false;
        self.migrations.update(&response.migrations, self.pace, &mut self.rng, now);
        let wanted: BTreeMap<InstanceId, &Assignment> =
            response.assignments.iter().map(|one| (one.instance, one)).collect();
        // What is no longer listed is gone at once: a simulated process has nothing to shut down.
        self.instances
            .retain(|id, instance| wanted.get(id).is_some_and(|one| one.fence <= instance.fence));
        for assignment in wanted.values() {
            self.apply_assignment(assignment, now);
            if let Some(instance) = self.instances.get_mut(&assignment.instance) {
                instance.elastic_load = assignment.elastic.as_ref().and_then(ElasticLoad::of);
            }
        }
    }

    fn apply_assignment(&mut self, assignment: &Assignment, now: Instant) {
        let known = self.instances.get(&assignment.instance).map(|instance| instance.phase);
        let phase = match (assignment.state, known) {
            (ClaimState::Held | ClaimState::Binding, None) => {
                let fails = self.rng.one_in(BOOTS_PER_FAILURE);
                let until = now + self.pace.between(&mut self.rng, 800, 4000);
                Phase::Booting { until, fails }
            }
            // It was booted before the demo began.
            (ClaimState::Active, None) => Phase::Running,
            (ClaimState::Releasing, None | Some(Phase::Booting { .. } | Phase::Running)) => {
                Phase::Stopping { until: now + self.pace.between(&mut self.rng, 500, 2500) }
            }
            (_, Some(_)) => return,
        };
        let instance = HostedInstance { fence: assignment.fence, phase, elastic_load: None };
        self.instances_changed |= phase != Phase::Running;
        self.instances.insert(assignment.instance, instance);
    }

    /// When the next heartbeat is due.
    pub(super) fn next_heartbeat(&mut self, now: Instant, every: Duration) -> Instant {
        if let Some(until) = self.silent_until(now) {
            return until;
        }
        if self.instances_changed {
            return now + Duration::from_millis(50);
        }
        let ends = self.instances.values().filter_map(|instance| match instance.phase {
            Phase::Booting { until, .. } | Phase::Stopping { until } => Some(until),
            Phase::Running | Phase::Stopped | Phase::Failed => None,
        });
        // Never all at the same moment: each is a little early, by its own numbers.
        let jitter = self.rng.below(u64::try_from(every.as_millis()).unwrap_or(0) / 8 + 1);
        let regular = now + every.saturating_sub(Duration::from_millis(jitter));
        let ends = ends.chain(self.migrations.next_end());
        ends.min().map_or(regular, |end| end.min(regular))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use berth_engine::{Amounts, NodeState};

    fn response(assignments: &[(ClaimState, i64)]) -> HeartbeatResponse {
        let assignments = assignments.iter().map(|(state, fence)| Assignment {
            instance: InstanceId::from_u128(1),
            state: *state,
            fence: *fence,
            tenant: "acme".to_owned(),
            name: None,
            workload: None,
            slot: None,
            image: None,
            resources: Amounts::new(1000, 512),
            tags: BTreeMap::new(),
            volumes: Vec::new(),
            values: Vec::new(),
            elastic: None,
        });
        HeartbeatResponse {
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

    fn reported_state(host: &mut Host, now: Instant) -> Option<RunState> {
        Some(host.heartbeat(now).running?.first()?.state)
    }

    #[test]
    fn an_instance_boots_runs_and_stops_and_each_is_said_once() {
        let facts = NodeFacts::new("n", Amounts::new(8000, 8192));
        let mut host = Host::new(facts, 1, Pace::new(100));
        let mut now = Instant::now();
        host.apply_response(&response(&[(ClaimState::Held, 3)]), now);
        assert_eq!(reported_state(&mut host, now), Some(RunState::Starting));
        host.apply_response(&response(&[(ClaimState::Binding, 3)]), now);
        assert_eq!(reported_state(&mut host, now), None);
        now += Duration::from_secs(5);
        assert_eq!(reported_state(&mut host, now), Some(RunState::Running));
        host.apply_response(&response(&[(ClaimState::Active, 3)]), now);
        host.apply_response(&response(&[(ClaimState::Releasing, 3)]), now);
        assert_eq!(reported_state(&mut host, now), Some(RunState::Stopping));
        now += Duration::from_secs(5);
        assert_eq!(reported_state(&mut host, now), Some(RunState::Stopped));
        host.apply_response(&response(&[]), now);
        assert_eq!(reported_state(&mut host, now), None);
    }

    #[test]
    fn a_crash_takes_everything_along_and_an_outage_nothing() {
        let mut now = Instant::now();
        for (crash, after) in [(true, Some(RunState::Failed)), (false, None)] {
            let facts = NodeFacts::new("n", Amounts::new(8000, 8192));
            let mut host = Host::new(facts, 1, Pace::new(100));
            host.apply_response(&response(&[(ClaimState::Active, 3)]), now);
            host.fall_silent(now + Duration::from_secs(60), crash);
            assert!(
                host.next_heartbeat(now, Duration::from_secs(15)) > now + Duration::from_secs(59)
            );
            now += Duration::from_secs(61);
            assert_eq!(reported_state(&mut host, now), after);
        }
    }
}
