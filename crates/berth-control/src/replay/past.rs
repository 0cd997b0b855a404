//! The fleet as it was around a decision, rebuilt from the log.

use std::collections::VecDeque;

use berth_engine::{InstanceId, Policy, Timestamp};
use berth_ledger::{
    Allocation, Decision, DecisionOutcome, Event, EventBody, Ledger, LedgerError, Micros, Segment,
    Text, writer_of_chain,
};
use rustc_hash::{FxHashMap, FxHashSet};
use serde_json::Value;

use super::derive::{ExplainedInstance, Question};
use crate::fleet_replica::FleetReplica;
use crate::fleet_snapshots::{FleetSnapshot, newest_until};

/// Segments read at once.
const PAGE: usize = 1000;

/// Commits before the recorded one at which the question is put, if none after it will do: the
/// planner reads how long the log is before it has taken in the last of its own commits.
pub(super) const BEFORE: usize = 64;

/// Events that `BEFORE` commits have, as a rule at most.
const MARGIN: i64 = 4096;

/// Most commits at which the question is put.
const TRIES: usize = 512;

/// Most commits between the recorded one and the decision's own.
const WINDOW: usize = 20_000;

/// Signs of life are not in the log. A node that falls silent is marked as lost, which is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HeartbeatAssumption {
    /// All nodes were heard at the time of the decision.
    All,
    /// Nodes were heard when the log says so: there are no agents.
    AsLogged,
}

/// One commit.
struct Commit {
    /// The number of its last event.
    end: i64,
    at: Micros,
    origin: Text,
    events: Vec<Event>,
}

impl Commit {
    fn of(segment: &Segment) -> Result<Self, LedgerError> {
        let events = segment.events();
        let events = events.map_err(|error| LedgerError::Corrupt(error.to_string()))?;
        let origin = Text::clone(&segment.origin);
        Ok(Self { end: segment.first + segment.count - 1, at: segment.at, origin, events })
    }

    fn allocations(&self) -> impl Iterator<Item = &Allocation> {
        self.events.iter().filter_map(|event| match &event.body {
            EventBody::Allocated(allocated) => Some(&**allocated),
            _ => None,
        })
    }
}

/// The fleet some time before a decision, and what happened from then until the decision.
pub(super) struct PastFleet {
    replica: FleetReplica,
    /// The last event that is in the replica.
    version: i64,
    commits: VecDeque<Commit>,
    /// Plans in the decision's own commit that were made before it.
    same_commit: Vec<Allocation>,
    /// The writer that the decision came from.
    origin: Text,
    names: FxHashMap<InstanceId, String>,
    heartbeats: HeartbeatAssumption,
    policy: Policy,
}

/// At which commits a question is put.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Search {
    /// Until the recorded answer comes.
    First,
    /// At all of them; the last that gives the recorded answer counts.
    Last,
    /// Only after the commit that ends with this event.
    At(i64),
}

/// What came of putting a question again.
#[derive(Default)]
pub(super) struct ReplayAttempts {
    /// The event up to which the fleet was rebuilt, and the answer, if it is the recorded one.
    pub(super) identical: Option<(i64, Value)>,
    /// The explanation of one instance on that fleet, if it was asked for.
    pub(super) explained: Option<ExplainedInstance>,
    /// The same of the commit next to the decision's own, whatever came out.
    pub(super) nearest: Option<(i64, Value)>,
    /// Whether others than the decision's own writer committed around it.
    pub(super) had_company: bool,
}

impl PastFleet {
    /// Reads the log up to a decision; absent when the log does not tell of what was granted.
    pub(super) fn read(
        ledger: &Ledger,
        decision: &Decision,
        policy: Policy,
        heartbeats: HeartbeatAssumption,
        before: usize,
    ) -> Result<Option<Self>, LedgerError> {
        let chain = writer_of_chain(decision.id.split('/').next().unwrap_or(""));
        let mut past = Self {
            replica: FleetReplica::new(policy.clone()),
            version: 0,
            commits: VecDeque::new(),
            same_commit: Vec::new(),
            origin: Text::from(chain),
            names: FxHashMap::default(),
            heartbeats,
            policy,
        };
        let granted = granted(decision);
        let known = decision.record.basis.fleet_version;
        if let Some(snapshot) = snapshot_for(ledger, decision)? {
            snapshot.load(ledger, &mut past.replica)?;
            past.version = snapshot.event;
        }
        let mut cursor = past.version;
        let mut own = None;
        'log: loop {
            let page = ledger.segments_after(cursor, PAGE)?;
            let Some(last) = page.last() else { break };
            cursor = last.first + last.count - 1;
            for segment in &page {
                let commit = Commit::of(segment)?;
                let is_own = commit.at == decision.at && commit.origin == past.origin;
                if is_own && (granted.is_empty() || commit.grants(&granted)) {
                    own = Some(commit);
                    break 'log;
                }
                // What was not granted may have no commit of its own.
                let is_later = commit.at > decision.at && commit.end > known;
                if is_later && (granted.is_empty() || past.commits.len() > WINDOW) {
                    break 'log;
                }
                past.take(commit, known, before)?;
            }
        }
        match own {
            Some(own) => past.end(ledger, decision, &granted, own)?,
            None if granted.is_empty() => {}
            None => return Ok(None),
        }
        while past.commits.len() > TRIES {
            past.step()?;
        }
        past.refresh_heartbeats(decision.record.basis.now);
        Ok(Some(past))
    }

    /// Takes one commit in: those long before the decision into the replica, others are kept.
    fn take(&mut self, commit: Commit, known: i64, before: usize) -> Result<(), LedgerError> {
        let is_known = commit.end <= known;
        self.commits.push_back(commit);
        if is_known && self.commits.len() > before {
            self.step()?;
        }
        Ok(())
    }

    /// Takes the oldest of the kept commits into the replica.
    fn step(&mut self) -> Result<bool, LedgerError> {
        let Some(commit) = self.commits.pop_front() else { return Ok(false) };
        let mut nodes_changed = false;
        for event in &commit.events {
            nodes_changed |= matches!(&event.body, EventBody::NodeChanged { .. });
            self.replica.apply(&event.body)?;
        }
        self.version = commit.end;
        Ok(nodes_changed)
    }

    /// Notes what of the decision's own commit was planned before it.
    fn end(
        &mut self,
        ledger: &Ledger,
        decision: &Decision,
        granted: &FxHashSet<InstanceId>,
        own: Commit,
    ) -> Result<(), LedgerError> {
        for allocated in own.allocations().filter(|at| granted.contains(&at.instance_id)) {
            let name = allocated.name.as_deref().map(str::to_owned);
            self.names.extend(name.map(|name| (allocated.instance_id, name)));
        }
        let is_mine = |allocated: &&Allocation| granted.contains(&allocated.instance_id);
        let first = own.allocations().position(|at| is_mine(&at));
        if let Some(first) = first {
            self.same_commit = own.allocations().take(first).cloned().collect();
            return Ok(());
        }
        // Of a refusal, the order of the receipt tells.
        let earlier = earlier(ledger, decision)?;
        let before = own.allocations().filter(|at| earlier.contains(&at.instance_id));
        self.same_commit = before.cloned().collect();
        Ok(())
    }

    /// Names of the decision's instances, which its record does not have.
    pub(super) const fn names(&self) -> &FxHashMap<InstanceId, String> {
        &self.names
    }

    fn refresh_heartbeats(&mut self, now: i64) {
        if self.heartbeats == HeartbeatAssumption::All {
            self.replica.refresh_all_heartbeats(Timestamp(now));
        }
    }

    /// Puts a question at every commit until the recorded answer comes, or at all of them: then the
    /// last one counts, which is the one closest to what the planner knew.
    pub(super) fn find(
        mut self,
        question: &Question,
        search: Search,
    ) -> Result<ReplayAttempts, LedgerError> {
        let others = |commit: &Commit| commit.origin != self.origin;
        let had_company = self.commits.iter().any(others);
        let mut found = ReplayAttempts { had_company, ..ReplayAttempts::default() };
        loop {
            self.replica.engine().set_policy(self.policy.clone());
            let own = self.in_flight(|origin| origin == &self.origin);
            let all = self.in_flight(|_| true);
            let sets = sets_in_flight(own, all, question.in_flight);
            if !matches!(search, Search::At(version) if version != self.version) {
                self.put(&sets, question, &mut found)?;
            }
            let is_done = found.identical.is_some() && search != Search::Last;
            if is_done || self.commits.is_empty() {
                return Ok(found);
            }
            if self.step()? {
                self.refresh_heartbeats(question.now.0);
            }
        }
    }

    /// Puts a question with each of these sets of plans until the recorded answer comes.
    fn put(
        &mut self,
        sets: &[Vec<Allocation>],
        question: &Question,
        found: &mut ReplayAttempts,
    ) -> Result<(), LedgerError> {
        for plans in sets {
            let (answers, explained) = self.ask(plans, question)?;
            for answer in answers {
                if question.is_answered_by(&answer) {
                    found.identical = Some((self.version, answer));
                    found.explained = explained;
                    return Ok(());
                }
                found.nearest = Some((self.version, answer));
            }
        }
        Ok(())
    }

    /// Plans that were under way after the last commit in the replica.
    fn in_flight(&self, from: impl Fn(&Text) -> bool) -> Vec<Allocation> {
        let later = self.commits.iter().filter(|commit| from(&commit.origin));
        let plans = later.flat_map(Commit::allocations).chain(&self.same_commit);
        // What was moved or found was never planned: the replica learns of it by its commit.
        plans.filter(|at| at.moved_from.is_none() && !at.adopted).cloned().collect()
    }

    fn ask(
        &mut self,
        plans: &[Allocation],
        question: &Question,
    ) -> Result<(Vec<Value>, Option<ExplainedInstance>), LedgerError> {
        let mut foreseen = Vec::new();
        for plan in plans {
            foreseen.extend(self.replica.apply_provisional(plan)?);
        }
        let answers = question.put_to(self.replica.engine());
        let is_answered = answers.iter().any(|answer| question.is_answered_by(answer));
        let explained = is_answered.then(|| question.explain(self.replica.engine())).flatten();
        for id in foreseen.into_iter().rev() {
            self.replica.take_back(id);
        }
        Ok((answers, explained))
    }
}

impl Commit {
    /// Whether it allocates one of these.
    fn grants(&self, instances: &FxHashSet<InstanceId>) -> bool {
        self.allocations().any(|allocated| instances.contains(&allocated.instance_id))
    }
}

/// What a decision's fleet is rebuilt from, if not from an empty one: only where the log was cut, and
/// preferably so long before the decision that the commits before it can be tried too.
pub(super) fn snapshot_for(
    ledger: &Ledger,
    decision: &Decision,
) -> Result<Option<FleetSnapshot>, LedgerError> {
    if ledger.oldest_event()? <= 1 {
        return Ok(None);
    }
    let known = decision.record.basis.fleet_version;
    match newest_until(ledger, known - MARGIN)? {
        Some(snapshot) => Ok(Some(snapshot)),
        None => newest_until(ledger, known),
    }
}

/// Which plans may have been under way, the likeliest first.
fn sets_in_flight(
    own: Vec<Allocation>,
    all: Vec<Allocation>,
    counted: Option<usize>,
) -> Vec<Vec<Allocation>> {
    let mut sets = Vec::new();
    // They were granted in the order in which they were made, if there is one writer.
    let first =
        |plans: &[Allocation]| counted.map(|count| plans[..count.min(plans.len())].to_vec());
    sets.extend(first(&own));
    // Another lane of the same server has another name.
    if all.len() != own.len() {
        sets.extend(first(&all));
        sets.push(own.clone());
        sets.push(all);
    } else {
        sets.push(own.clone());
    }
    if !own.is_empty() {
        sets.push(Vec::new());
    }
    sets
}

/// The instances that a decision placed.
fn granted(decision: &Decision) -> FxHashSet<InstanceId> {
    match &decision.record.outcome {
        DecisionOutcome::Granted(placed) => placed.iter().map(|at| at.instance).collect(),
        DecisionOutcome::Refused { .. } => FxHashSet::default(),
    }
}

/// Instances that were granted in the same transaction as a decision, and before it.
fn earlier(ledger: &Ledger, decision: &Decision) -> Result<FxHashSet<InstanceId>, LedgerError> {
    let (receipt, place) = decision.id.rsplit_once('/').unwrap_or((&decision.id, "0"));
    let place: usize = place.parse().unwrap_or(0);
    let before = Some((decision.at.0, decision.id.clone()));
    let decisions = ledger.decisions(before, place)?;
    let same = |other: &&Decision| other.id.rsplit_once('/').is_some_and(|(of, _)| of == receipt);
    Ok(decisions.iter().filter(same).flat_map(granted).collect())
}
