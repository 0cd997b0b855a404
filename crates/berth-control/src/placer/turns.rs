//! Turns: who is served next in front of the planner and of the explainer.
//!
//! Deficit round robin: each tenant has a line of its own, and so has the server's own work. A line
//! whose turn comes may spend a quantum; what costs more than that waits until it has been saved. So
//! a tenant that sends much waits for itself and not for others, and one that sends large batches or
//! many rules gets no more than one that sends single instances without any.

use std::collections::VecDeque;

use berth_engine::{Fleet, InstanceRequest};
use berth_ledger::Text;
use rustc_hash::FxHashMap;

use super::PlaceRequest;

/// What a line may spend when its turn comes, in instances without rules.
pub(super) const QUANTUM: usize = 16;

/// What a regular expression costs: it is compared with every value of its tenant's instances.
const REGEX_COST: usize = 4;

/// Rules, groups or hints without a regular expression that cost as much as an instance.
const RULES_OF_AN_INSTANCE: usize = 4;

/// The same for rules of placed instances, each of which is compared with one instance.
const RESIDENT_RULES_OF_AN_INSTANCE: usize = 16;

/// What a question of another part of the server costs: nothing is known of it but that it takes long.
pub(super) const QUERY_COST: usize = QUANTUM;

/// What instances of one tenant cost, in instances without rules.
pub(super) fn cost_of<'a>(
    instances: impl IntoIterator<Item = &'a InstanceRequest>,
    fleet: &Fleet,
) -> usize {
    let mut instances = instances.into_iter().peekable();
    let Some(first) = instances.peek() else { return 1 };
    let resident = fleet.resident_rule_counts(&first.tenant);
    let of_residents = resident.rules / RESIDENT_RULES_OF_AN_INSTANCE + resident.regexes;
    let of_instance = |instance: &InstanceRequest| {
        let InstanceRequest { affinity, groups, locality, preferred_places, .. } = instance;
        let regexes = affinity.iter().filter(|rule| rule.pattern().is_regex()).count();
        let hints = locality.near.len() + locality.far.len();
        let plain = affinity.len() - regexes + groups.len() + hints;
        1 + plain / RULES_OF_AN_INSTANCE
            + regexes * REGEX_COST
            + preferred_places.len()
            + of_residents
    };
    instances.map(of_instance).sum()
}

/// Whose line a job is in.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Lane {
    /// Reconcilers, the queue of waiting requests, and what operators look up.
    Internal,
    /// What a tenant asked for.
    Tenant(Text),
    /// What operators asked for on behalf of a tenant: they do not wait for the tenant's own requests.
    Operator(Text),
}

impl Lane {
    pub(super) fn of(request: &PlaceRequest) -> Self {
        // A request that preempts is quiet, since its refusal was explained before.
        let is_retry = request.quiet && request.preemption.is_none();
        match &request.by {
            Some(by) if !is_retry => Self::of_caller(&request.tenant, by.is_tenant),
            _ => Self::Internal,
        }
    }

    /// The line of requests for a tenant, by whether it sends them itself.
    pub(super) fn of_caller(tenant: &Text, is_tenant: bool) -> Self {
        let tenant = Text::clone(tenant);
        if is_tenant { Self::Tenant(tenant) } else { Self::Operator(tenant) }
    }
}

struct Line<T> {
    jobs: VecDeque<(usize, T)>,
    /// What it may still spend.
    credit: usize,
}

/// Jobs that wait, in one line for each lane.
pub(super) struct Turns<T> {
    lines: FxHashMap<Lane, Line<T>>,
    /// Lanes with jobs; the first one's turn it is.
    order: VecDeque<Lane>,
}

impl<T> Turns<T> {
    pub(super) fn new() -> Self {
        Self { lines: FxHashMap::default(), order: VecDeque::new() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.order.is_empty()
    }

    /// Puts a job at the end of its line. How long lines are is limited where jobs are let in
    /// (`admission`).
    pub(super) fn push(&mut self, lane: Lane, cost: usize, job: T) {
        let line = self.lines.entry(lane.clone()).or_insert_with(|| {
            self.order.push_back(lane.clone());
            Line { jobs: VecDeque::new(), credit: QUANTUM }
        });
        line.jobs.push_back((cost, job));
    }

    /// The next job.
    pub(super) fn pop(&mut self) -> Option<T> {
        loop {
            let lane = self.order.front()?;
            let line = self.lines.get_mut(lane)?;
            let cost = line.jobs.front().map_or(0, |(cost, _)| *cost);
            if cost > line.credit {
                line.credit += QUANTUM;
                self.order.rotate_left(1);
                continue;
            }
            line.credit -= cost;
            let job = line.jobs.pop_front().map(|(_, job)| job);
            if line.jobs.is_empty() {
                // Credit is not saved for later: only those who wait share.
                self.lines.remove(lane);
                self.order.pop_front();
            }
            return job;
        }
    }

    /// Takes out further jobs of a lane that are like one that was just taken, in order. The lane pays
    /// nothing for them: they are answered together.
    pub(super) fn take_alike(
        &mut self,
        lane: &Lane,
        most: usize,
        mut is_alike: impl FnMut(&T) -> bool,
    ) -> Vec<T> {
        let Some(line) = self.lines.get_mut(lane) else { return Vec::new() };
        let (mut alike, mut rest) = (Vec::new(), VecDeque::with_capacity(line.jobs.len()));
        for (cost, job) in line.jobs.drain(..) {
            if alike.len() < most && is_alike(&job) {
                alike.push(job);
            } else {
                rest.push_back((cost, job));
            }
        }
        line.jobs = rest;
        if line.jobs.is_empty() {
            self.lines.remove(lane);
            self.order.retain(|other| other != lane);
        }
        alike
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tenant(name: &str) -> Lane {
        Lane::Tenant(Text::from(name))
    }

    fn all<T>(turns: &mut Turns<T>) -> Vec<T> {
        std::iter::from_fn(|| turns.pop()).collect()
    }

    #[test]
    fn one_tenant_is_served_in_the_order_of_its_requests() {
        let mut turns = Turns::new();
        for number in 0..50 {
            turns.push(tenant("a"), 1 + number % 40, number);
        }
        assert_eq!(all(&mut turns), (0..50).collect::<Vec<_>>());
        assert!(turns.is_empty());
    }

    #[test]
    fn a_tenant_waits_for_one_quantum_of_each_other_however_many_jobs_they_have() {
        let mut turns = Turns::new();
        for number in 0..5_000 {
            turns.push(tenant("flood"), 1, ("flood", number));
        }
        turns.push(tenant("late"), 1, ("late", 0));
        let place = all(&mut turns).iter().position(|(name, _)| *name == "late");
        assert_eq!(place, Some(QUANTUM));
    }

    #[test]
    fn large_batches_get_no_more_instances_than_single_requests_do() {
        let mut turns = Turns::new();
        for number in 0..20 {
            turns.push(tenant("batches"), 160, ("batches", number));
        }
        for number in 0..3_200 {
            turns.push(tenant("singles"), 1, ("singles", number));
        }
        let served = all(&mut turns);
        for end in (200..served.len()).step_by(100) {
            let batches = served[..end].iter().filter(|(name, _)| *name == "batches").count();
            let singles = end - batches;
            if batches == 20 || singles == 3_200 {
                break;
            }
            assert!(batches * 160 <= singles + 160 + QUANTUM, "{batches} batches, {singles}");
            assert!(singles <= batches * 160 + 160 + QUANTUM, "{batches} batches, {singles}");
        }
    }

    #[test]
    fn alike_jobs_are_taken_out_of_one_line_and_the_rest_keep_their_order() {
        let mut turns = Turns::new();
        for number in 0..10 {
            turns.push(tenant("a"), 1, number);
            turns.push(tenant("b"), 1, number + 100);
        }
        let even = turns.take_alike(&tenant("a"), 3, |job| job % 2 == 0);
        assert_eq!(even, [0, 2, 4]);
        let rest = all(&mut turns);
        let of_a: Vec<_> = rest.iter().copied().filter(|job| *job < 100).collect();
        assert_eq!(of_a, [1, 3, 5, 6, 7, 8, 9]);
        assert_eq!(rest.len(), 17);
    }
}
