//! Batches: instances that are placed together, each taking those before it into account.
//!
//! Greedy in the given order; if that fails, the largest first; if that fails too, a bounded exact
//! search, so that a batch that fits is not refused only because the greedy pass missed it. All
//! attempts are claimed in the fleet and released again, so the fleet is unchanged afterwards.

use super::batch_fixes::{FixBudget, RefusedBatch};
use super::search::{self, Budget};
use crate::engine::{Engine, FixLeads, NodeChoice, PlaceError, Placement, Reuse};
use crate::explain::{Refusal, SearchEnd};
use crate::model::{
    Amounts, InstanceId, InstanceRequest, InvalidRequest, NodeId, Timestamp, Volume,
};

/// How many of a batch must be placed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum BatchMode {
    /// All or none.
    #[default]
    AllOrNothing,
    /// At least this many, or none.
    AtLeast(usize),
    /// As many as fit.
    BestEffort,
}

/// Instances to be placed together.
#[derive(Clone, Debug)]
pub struct Batch {
    /// The instances, in order of preference.
    pub requests: Vec<InstanceRequest>,
    /// How many must be placed.
    pub mode: BatchMode,
    /// How many steps the exact search may take: a choice tried, or 64 nodes scanned.
    pub search_budget: u32,
}

impl Batch {
    /// Steps that the exact search takes by default.
    pub const DEFAULT_BUDGET: u32 = 20_000;

    /// A batch of which all or none are placed.
    #[must_use]
    pub const fn new(requests: Vec<InstanceRequest>) -> Self {
        let mode = BatchMode::AllOrNothing;
        Self { requests, mode, search_budget: Self::DEFAULT_BUDGET }
    }

    /// The same batch in another mode.
    #[must_use]
    pub fn with_mode(self, mode: BatchMode) -> Self {
        Self { mode, ..self }
    }

    /// How many must be placed.
    pub(super) fn quorum(&self) -> usize {
        match self.mode {
            BatchMode::AllOrNothing => self.requests.len(),
            BatchMode::AtLeast(least) => least,
            BatchMode::BestEffort => 0,
        }
    }
}

/// The outcome of a batch.
#[derive(Clone, Debug)]
pub struct BatchOutcome {
    /// Where instances go, in the order of the batch; empty when too few could be placed.
    pub placements: Vec<Placement>,
    /// Instances that could not be placed, explained with the others placed: one of each class, of at
    /// most 16 classes, and only the first for an all-or-nothing batch.
    pub refused: Vec<(InstanceId, Refusal)>,
    /// How the search ended.
    pub end: SearchEnd,
}

/// Classes of a batch that are explained: each costs a look at every node, and a reader has enough of
/// a few.
const MAX_CLASSES_EXPLAINED: usize = 16;

/// One way to place a batch: per request, in the order of the batch.
pub(super) type Assignment = Vec<Option<NodeChoice>>;

impl Engine {
    /// Chooses nodes for a batch. Nothing is claimed.
    ///
    /// # Errors
    /// When a request is not valid. A batch that does not fit is an outcome, not an error.
    pub fn place_batch(
        &mut self,
        batch: &Batch,
        now: Timestamp,
    ) -> Result<BatchOutcome, PlaceError> {
        self.validate_batch(batch)?;
        let volumes = self.volumes_of(batch);
        let (assignment, end) = self.assign(batch, now);
        volumes.iter().for_each(|volume| self.fleet.restore_volume(volume.clone()));
        let outcome = self.build_outcome(batch, &assignment, end, now);
        volumes.into_iter().for_each(|volume| self.fleet.restore_volume(volume));
        Ok(outcome)
    }

    /// Chooses nodes for a batch if each instance finds one in the given order: what
    /// [`Engine::place_batch`] answers then, without searching or explaining where it does not.
    ///
    /// # Errors
    /// When a request is not valid.
    pub fn try_batch(
        &mut self,
        batch: &Batch,
        now: Timestamp,
    ) -> Result<Option<Vec<Placement>>, InvalidRequest> {
        self.validate_batch(batch)?;
        let volumes = self.volumes_of(batch);
        let order: Vec<usize> = (0..batch.requests.len()).collect();
        let greedy = self.try_in_order(batch, &order, now);
        volumes.into_iter().for_each(|volume| self.fleet.restore_volume(volume));
        if count_placed(&greedy) < batch.requests.len() {
            return Ok(None);
        }
        let placed = batch.requests.iter().zip(greedy);
        let placed = placed
            .filter_map(|(request, picked)| Some(self.placement(request, picked?, now)))
            .collect();
        Ok(Some(placed))
    }

    /// Whether these instances can go to these nodes, all of them and each with the others there.
    pub fn admits_all(&mut self, planned: &[(&InstanceRequest, NodeId)], now: Timestamp) -> bool {
        let mut volumes = Vec::new();
        for (request, _) in planned {
            let kept = request.volumes.iter().filter_map(|id| self.fleet.volume(id).cloned());
            volumes.extend(kept);
        }
        let mut rest: Vec<usize> = (0..planned.len()).collect();
        let mut claimed = Vec::new();
        loop {
            let before = rest.len();
            rest.retain(|&place| {
                let (request, node) = &planned[place];
                if self.check(request, node, now).is_err() {
                    return true;
                }
                if let Some(index) = self.fleet.index_of(node) {
                    self.fleet.claim_at(request, index);
                    claimed.push(request.id);
                }
                false
            });
            // One that waits for another may find it placed now.
            if rest.is_empty() || rest.len() == before {
                break;
            }
        }
        for id in claimed.into_iter().rev() {
            self.fleet.undo_claim(id);
        }
        volumes.into_iter().for_each(|volume| self.fleet.restore_volume(volume));
        rest.is_empty()
    }

    /// Volumes of a batch: claiming and undoing detaches one that was kept for an instance of it.
    pub(super) fn volumes_of(&self, batch: &Batch) -> Vec<Volume> {
        let volumes = batch.requests.iter().flat_map(|request| &request.volumes);
        volumes.filter_map(|id| self.fleet.volume(id).cloned()).collect()
    }

    /// Refuses batches that are not valid for this fleet.
    ///
    /// # Errors
    /// The first request that is not valid, or an instance that is there twice.
    pub fn validate_batch(&self, batch: &Batch) -> Result<(), InvalidRequest> {
        self.validate_members(&batch.requests)
    }

    /// The same of members that are not in a batch yet.
    ///
    /// # Errors
    /// As [`Engine::validate_batch`].
    pub fn validate_members<'a>(
        &self,
        members: impl IntoIterator<Item = &'a InstanceRequest>,
    ) -> Result<(), InvalidRequest> {
        let mut ids = std::collections::BTreeSet::new();
        for request in members {
            self.validate(request)?;
            if !ids.insert(request.id) {
                let value = format!("the batch has instance {} twice", request.id);
                return Err(InvalidRequest::Duplicate { value });
            }
        }
        Ok(())
    }

    fn assign(&mut self, batch: &Batch, now: Timestamp) -> (Assignment, SearchEnd) {
        let (quorum, count) = (batch.quorum(), batch.requests.len());
        let given: Vec<usize> = (0..count).collect();
        let greedy = self.try_in_order(batch, &given, now);
        let by_greedy = count_placed(&greedy);
        if by_greedy == count {
            return (greedy, SearchEnd::Greedy);
        }
        let order = largest_first(&batch.requests);
        // The same order has the same result.
        let sorted = (order != given).then(|| self.try_in_order(batch, &order, now));
        let (best, end) = match sorted.filter(|sorted| count_placed(sorted) > by_greedy) {
            Some(sorted) => (sorted, SearchEnd::LargestFirst),
            None => (greedy, SearchEnd::Greedy),
        };
        if count_placed(&best) >= quorum {
            return (best, end);
        }
        let mut budget = Budget::new(batch.search_budget);
        match search::search_exact(self, &batch.requests, &order, quorum, &mut budget, now) {
            Some(found) => (self.place_remaining(batch, found, now), SearchEnd::Search),
            None if budget.is_spent() => (best, SearchEnd::NotFoundWithinBudget),
            None => (best, SearchEnd::DoesNotFit),
        }
    }

    /// Places whatever else fits in addition to what the search found, and scores every choice.
    fn place_remaining(&mut self, batch: &Batch, found: Assignment, now: Timestamp) -> Assignment {
        let mut assignment = found;
        for (request, picked) in batch.requests.iter().zip(&mut assignment) {
            if let Some(picked) = picked {
                picked.total = self.total_at(request, picked.index, now);
                self.fleet.claim_at(request, picked.index);
            }
        }
        for (request, picked) in batch.requests.iter().zip(&mut assignment) {
            if picked.is_none() {
                *picked = self.pick(request, now, Reuse::Mask);
                if let Some(picked) = picked {
                    self.fleet.claim_at(request, picked.index);
                }
            }
        }
        self.release_assigned(&batch.requests, &assignment);
        assignment
    }

    /// Places what can be placed, one after the other, each taking those before it into account.
    pub(super) fn try_in_order(
        &mut self,
        batch: &Batch,
        order: &[usize],
        now: Timestamp,
    ) -> Assignment {
        let any_waits = batch.requests.iter().any(search::waits_for_others);
        let mut assignment = vec![None; batch.requests.len()];
        let mut rest = order.to_vec();
        loop {
            let before = rest.len();
            let mut missing = Vec::new();
            for place in rest {
                let request = &batch.requests[place];
                assignment[place] = self.pick(request, now, Reuse::Ranking);
                if let Some(picked) = assignment[place] {
                    self.fleet.claim_at(request, picked.index);
                    continue;
                }
                missing.push(place);
                if batch.mode == BatchMode::AllOrNothing && !any_waits {
                    break;
                }
            }
            // An instance that waits for another of the batch may find it placed now.
            let retry = any_waits && !missing.is_empty() && missing.len() < before;
            rest = missing;
            if !retry {
                break;
            }
        }
        self.release_assigned(&batch.requests, &assignment);
        assignment
    }

    pub(super) fn release_assigned(
        &mut self,
        requests: &[InstanceRequest],
        assignment: &Assignment,
    ) {
        for (request, picked) in requests.iter().zip(assignment).rev() {
            if picked.is_some() {
                self.fleet.undo_claim(request.id);
            }
        }
    }

    fn build_outcome(
        &mut self,
        batch: &Batch,
        assignment: &Assignment,
        end: SearchEnd,
        now: Timestamp,
    ) -> BatchOutcome {
        let enough = count_placed(assignment) >= batch.quorum();
        let mut placements = Vec::new();
        for (request, picked) in batch.requests.iter().zip(assignment) {
            if let Some(picked) = picked {
                placements.push(self.placement(request, *picked, now));
            }
        }
        let refused = self.explain_missing(batch, assignment, end, now);
        if !enough {
            placements.clear();
        }
        BatchOutcome { placements, refused, end }
    }

    /// Explains the instances that could not be placed, with the others of the batch placed, and tries
    /// what would help the batch as it was asked.
    fn explain_missing(
        &mut self,
        batch: &Batch,
        assignment: &Assignment,
        end: SearchEnd,
        now: Timestamp,
    ) -> Vec<(InstanceId, Refusal)> {
        self.claim_assigned(batch, assignment);
        let mut explained: Vec<(&InstanceRequest, Refusal, FixLeads)> = Vec::new();
        for (request, picked) in batch.requests.iter().zip(assignment) {
            // One explanation per class: further equal ones add nothing.
            if picked.is_some() || explained.iter().any(|(other, ..)| other.same_class(request)) {
                continue;
            }
            if explained.len() >= MAX_CLASSES_EXPLAINED {
                break;
            }
            // In a batch that stopped at its first failure, later members were never tried.
            if self.pick(request, now, Reuse::Mask).is_some() {
                continue;
            }
            let (mut refusal, leads) = self.refusal_of_member(request, now);
            refusal.search = Some(end);
            explained.push((request, refusal, leads));
            if batch.mode == BatchMode::AllOrNothing {
                break;
            }
        }
        // What was placed of a batch that is granted stays; of one that is refused nothing does.
        let enough = count_placed(assignment) >= batch.quorum();
        let is_granted = enough && assignment.iter().any(Option::is_some);
        if !is_granted {
            self.release_assigned(&batch.requests, assignment);
        }
        let mut refused = Vec::with_capacity(explained.len());
        let mut budget = FixBudget::default();
        for (request, mut refusal, leads) in explained {
            let refused_batch = RefusedBatch::new(batch, assignment, request, is_granted);
            self.fix_batch(&refused_batch, &leads, &mut refusal, &mut budget, now);
            refused.push((request.id, refusal));
        }
        if is_granted {
            self.release_assigned(&batch.requests, assignment);
        }
        refused
    }

    fn claim_assigned(&mut self, batch: &Batch, assignment: &Assignment) {
        for (request, picked) in batch.requests.iter().zip(assignment) {
            if let Some(picked) = picked {
                self.fleet.claim_at(request, picked.index);
            }
        }
    }
}

pub(super) fn count_placed(assignment: &Assignment) -> usize {
    assignment.iter().filter(|picked| picked.is_some()).count()
}

/// Places in the batch, the largest requests first; of equals, the order given.
pub(super) fn largest_first(requests: &[InstanceRequest]) -> Vec<usize> {
    let sum = |of: fn(&Amounts) -> u32| {
        requests.iter().map(|request| u64::from(of(&request.resources))).sum::<u64>().max(1)
    };
    let totals = [sum(|a| a.cpu_milli), sum(|a| a.memory_mib), sum(|a| a.disk_mib)];
    let size = |request: &InstanceRequest| {
        let wanted = request.resources;
        let amounts = [wanted.cpu_milli, wanted.memory_mib, wanted.disk_mib];
        let share = |(amount, total): (u32, u64)| u64::from(amount) * 1_000_000 / total;
        let pinned = u64::from(!request.volumes.is_empty() || !request.extra.is_empty());
        (pinned, amounts.into_iter().zip(totals).map(share).sum::<u64>())
    };
    let mut order: Vec<usize> = (0..requests.len()).collect();
    order.sort_by_key(|&place| std::cmp::Reverse(size(&requests[place])));
    order
}
