//! What would help a batch that was refused. Every fix is tried with the whole batch, as it was asked:
//! the fleet is changed, the batch is placed, and everything is taken back.
//!
//! A try is greedy: what it finds, the planner finds as well, since it begins in the same way.

use super::batch::{Assignment, Batch, BatchMode, count_placed, largest_first};
use super::batch_waiting::WaitingBatch;
use super::search::{Budget, search_exact};
use crate::engine::{
    Combination, Engine, FixLeads, LIMITS, RequestChange, Reuse, Room, combined_fix, free,
    least_release, mend, mended_facts, shrink_to_count,
};
use crate::explain::{Fix, Refusal, remedy};
use crate::filter::FilterId;
use crate::fleet::{DetachedInstance, NodeIndex, TriedNode};
use crate::model::{Amounts, InstanceId, InstanceRequest, Timestamp};
use crate::prepared_request::PreparedRequest;

/// How often the whole batch may be placed again to explain one refusal.
const TRIES: usize = 28;

/// Most tries that each kind of fix may take.
const MAX_TRIES_OF_KIND: usize = 6;

/// Steps that the fixes of one batch may take, of all its classes together: a choice, or 64 nodes that
/// are scanned for it. They are counted as if nothing were kept from one choice to the next, so that
/// the same request has the same fixes whatever was asked before.
const STEPS: usize = 200_000;

/// What the search for the fixes of one batch may still cost.
pub(super) struct FixBudget {
    steps_left: usize,
    /// Whether the whole batch may fit later, once that was found out: it is the same of each class.
    may_fit_later: Option<bool>,
}

impl Default for FixBudget {
    fn default() -> Self {
        Self { steps_left: STEPS, may_fit_later: None }
    }
}

impl FixBudget {
    /// Takes what something costs, if anything is left. The last one may cost more than is left.
    fn spend(&mut self, steps: usize) -> bool {
        let may = self.steps_left > 0;
        self.steps_left = self.steps_left.saturating_sub(steps);
        may
    }

    /// Tries something, if anything is left, and takes what it cost.
    pub(super) fn try_with<T>(
        &mut self,
        engine: &mut Engine,
        attempt: impl FnOnce(&mut Engine) -> T,
    ) -> Option<T> {
        if self.steps_left == 0 {
            return None;
        }
        let before = engine.work_done();
        let found = attempt(engine);
        let steps = usize::try_from(engine.work_done().wrapping_sub(before));
        self.steps_left = self.steps_left.saturating_sub(steps.unwrap_or(usize::MAX));
        Some(found)
    }
}

/// Steps that the search for one more member may take.
const SEARCH_STEPS: u32 = 500;

/// How much longer than a scan it takes to ask what keeps each node out.
const STEPS_TO_EMPTY: usize = 8;

/// Kinds of fixes that share the steps.
const KINDS: usize = 4;

/// Most instances that one fix releases.
const MAX_RELEASED: usize = 40;

/// Most nodes that one fix mends.
const MAX_MENDED: usize = 8;

/// What is to be fixed: the whole batch, or what was left out of one that was granted.
pub(super) struct RefusedBatch<'a> {
    pub(super) batch: Batch,
    /// The member whose class is refused.
    pub(super) member: &'a InstanceRequest,
    /// Whether others of the batch are placed already.
    is_rest: bool,
    /// These, and where.
    staying: Vec<(&'a InstanceRequest, NodeIndex)>,
}

impl<'a> RefusedBatch<'a> {
    pub(super) fn new(
        batch: &'a Batch,
        assignment: &Assignment,
        member: &'a InstanceRequest,
        is_rest: bool,
    ) -> Self {
        let placed = batch.requests.iter().zip(assignment).filter(|_| is_rest);
        let staying = placed.filter_map(|(request, picked)| Some((request, (*picked)?.index)));
        let staying = staying.collect();
        let members = batch.requests.iter().zip(assignment);
        let left_out = members.filter(|(request, picked)| {
            !is_rest || (picked.is_none() && request.same_class(member))
        });
        let requests = left_out.map(|(request, _)| request.clone()).collect();
        let mode = match batch.mode {
            _ if is_rest => BatchMode::AllOrNothing,
            // Nothing was placed, so one would be better.
            BatchMode::BestEffort => BatchMode::AtLeast(1),
            mode => mode,
        };
        let search_budget = batch.search_budget;
        let batch = Batch { requests, mode, search_budget };
        Self { batch, member, is_rest, staying }
    }

    /// The batch with its members changed: those of the refused class, and others that have a rule
    /// which is dropped.
    pub(super) fn changed(&self, changes: &[RequestChange]) -> Batch {
        let change = |request: &InstanceRequest| {
            let is_refused = request.same_class(self.member);
            let of_it = changes.iter().filter(|change| is_refused || change.is_for_all());
            let mut copy = request.clone();
            of_it.for_each(|change| change.apply(&mut copy));
            copy
        };
        Batch { requests: self.batch.requests.iter().map(change).collect(), ..self.batch }
    }

    /// Whether others of the batch are placed already.
    pub(super) const fn is_rest(&self) -> bool {
        self.is_rest
    }

    pub(super) fn members_of_class(&self) -> usize {
        self.batch.requests.iter().filter(|request| request.same_class(self.member)).count()
    }

    /// Whether an instance is of the batch, placed or not: none of them makes room for another.
    fn is_member(&self, id: InstanceId) -> bool {
        self.batch.requests.iter().any(|request| request.id == id)
            || self.staying.iter().any(|(request, _)| request.id == id)
    }
}

/// A search for the fixes of one refusal.
pub(super) struct BatchSearch<'a> {
    pub(super) engine: &'a mut Engine,
    pub(super) refused: &'a RefusedBatch<'a>,
    leads: &'a FixLeads,
    pub(super) now: Timestamp,
    pub(super) tries_left: usize,
    pub(super) budget: &'a mut FixBudget,
    /// Steps that one try takes.
    steps_of_try: usize,
    /// Tries that each kind of fix may take: fewer where one takes long, so that each kind has some.
    tries_of_kind: usize,
    /// How many of the batch can be placed as it is, and where.
    pub(super) best: (usize, Assignment),
}

impl Engine {
    /// Finds fixes of a refused batch, and whether waiting may help all of it.
    pub(super) fn fix_batch(
        &mut self,
        refused: &RefusedBatch<'_>,
        leads: &FixLeads,
        refusal: &mut Refusal,
        budget: &mut FixBudget,
        now: Timestamp,
    ) {
        let steps_of_try = refused.batch.requests.len() * self.steps_of_choice();
        let effort = Batch { mode: BatchMode::BestEffort, ..refused.batch.clone() };
        let best = budget.try_with(self, |engine| engine.try_greedily(&effort, now));
        let Some(best) = best else { return };
        let best =
            if refused.is_rest { best } else { self.place_more(&refused.batch, best, budget, now) };
        if refusal.waiting_may_help {
            refusal.waiting_may_help = self.may_fit_later(refused, budget, now);
            let last = refusal.filter.as_deref().and_then(FilterId::named);
            refusal.remedy = remedy(last, refusal.waiting_may_help);
        }
        let tries_of_kind = STEPS / KINDS / steps_of_try.max(1);
        let mut search = BatchSearch {
            engine: self,
            refused,
            leads,
            now,
            tries_left: TRIES,
            budget,
            steps_of_try,
            tries_of_kind: tries_of_kind.clamp(1, MAX_TRIES_OF_KIND),
            best,
        };
        refusal.fixes = search.fixes();
    }

    /// Whether waiting may help all that is refused. What is not found out is not ruled out.
    fn may_fit_later(
        &self,
        refused: &RefusedBatch<'_>,
        budget: &mut FixBudget,
        now: Timestamp,
    ) -> bool {
        if let Some(known) = budget.may_fit_later.filter(|_| !refused.is_rest) {
            return known;
        }
        let waiting = WaitingBatch { wanted: &refused.batch, staying: refused.staying.clone() };
        let steps = waiting.class_count() * self.steps_of_choice() * STEPS_TO_EMPTY;
        if !budget.spend(steps) {
            return true;
        }
        let (may_fit, steps) = waiting.may_fit_later(self, now);
        budget.spend(steps);
        budget.may_fit_later = Some(may_fit);
        may_fit
    }

    /// More than was placed greedily, where a short search finds a way; too few for the whole batch.
    fn place_more(
        &mut self,
        batch: &Batch,
        best: (usize, Assignment),
        budget: &mut FixBudget,
        now: Timestamp,
    ) -> (usize, Assignment) {
        let volumes = self.volumes_of(batch);
        let order = largest_first(&batch.requests);
        let mut best = best;
        for _ in 0..MAX_TRIES_OF_KIND {
            let wanted = best.0 + 1;
            if wanted >= batch.quorum() {
                break;
            }
            let mut steps = Budget::new(SEARCH_STEPS.min(batch.search_budget));
            let found = budget.try_with(self, |engine| {
                search_exact(engine, &batch.requests, &order, wanted, &mut steps, now)
            });
            let Some(found) = found.flatten() else { break };
            best = (count_placed(&found), found);
        }
        volumes.into_iter().for_each(|volume| self.fleet.restore_volume(volume));
        best
    }

    /// The most that is placed greedily, in the order given or the largest first.
    pub(super) fn try_greedily(&mut self, batch: &Batch, now: Timestamp) -> (usize, Assignment) {
        let volumes = self.volumes_of(batch);
        let given: Vec<usize> = (0..batch.requests.len()).collect();
        let mut best = self.try_in_order(batch, &given, now);
        let order = largest_first(&batch.requests);
        let wanted = match batch.mode {
            BatchMode::BestEffort => order.len(),
            BatchMode::AllOrNothing | BatchMode::AtLeast(_) => batch.quorum(),
        };
        // The same order has the same result.
        if count_placed(&best) < wanted && order != given {
            let sorted = self.try_in_order(batch, &order, now);
            if count_placed(&sorted) > count_placed(&best) {
                best = sorted;
            }
        }
        volumes.into_iter().for_each(|volume| self.fleet.restore_volume(volume));
        (count_placed(&best), best)
    }
}

impl BatchSearch<'_> {
    fn fixes(&mut self) -> Vec<Fix> {
        let mut fixes = Vec::new();
        fixes.extend(self.fewer());
        fixes.extend(self.shrink());
        fixes.extend(self.relaxations());
        if fixes.is_empty() {
            fixes.extend(self.combined());
        }
        fixes.extend(self.release());
        fixes.extend(self.repairs());
        fixes.extend(self.nodes());
        if fixes.is_empty() {
            fixes.extend(self.nodes_and_changes());
        }
        if fixes.is_empty() {
            fixes.extend(self.repairs_and_changes());
        }
        if fixes.is_empty() {
            fixes.extend(self.nodes_for_some());
        }
        fixes
    }

    /// Whether enough of the batch is placed with its members changed like this.
    pub(super) fn works(&mut self, changes: &[RequestChange]) -> bool {
        let batch = self.refused.changed(changes);
        let valid = batch.requests.iter().all(|request| request.validate().is_ok());
        if self.tries_left == 0 || !valid {
            return false;
        }
        self.tries_left -= 1;
        let now = self.now;
        let placed = self.budget.try_with(self.engine, |engine| engine.try_greedily(&batch, now).0);
        placed.is_some_and(|placed| placed >= batch.quorum())
    }

    pub(super) fn prepared(&self) -> PreparedRequest<'_> {
        self.prepare(self.refused.member)
    }

    pub(super) fn prepare<'b>(&'b self, request: &'b InstanceRequest) -> PreparedRequest<'b> {
        PreparedRequest::new(request, self.engine.policy(), self.engine.fleet(), self.now)
    }

    /// As many as there is room for.
    fn fewer(&self) -> Option<Fix> {
        let (count, of) = (self.best.0, self.refused.batch.requests.len());
        let is_less = !self.refused.is_rest && count > 0 && count < self.refused.batch.quorum();
        let number = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        is_less.then(|| Fix::Fewer { count: number(count), of: number(of) })
    }

    /// The largest size of the refused class at which the batch fits.
    fn shrink(&mut self) -> Option<Fix> {
        let request = self.refused.member;
        let mut least = request.clone();
        let Amounts { cpu_milli, disk_mib, .. } = request.resources;
        least.resources = Amounts::new(cpu_milli.min(1), 1).with_disk(disk_mib.min(1));
        least.elastic = None;
        let mut smaller_classes = vec![request.extra.clone()];
        // Of further classes half, a quarter and so on; in the end none.
        while smaller_classes.last().is_some_and(|last| last.values().any(|amount| *amount > 0)) {
            let last = smaller_classes.last().cloned().unwrap_or_default();
            smaller_classes
                .push(last.into_iter().map(|(class, amount)| (class, amount / 2)).collect());
        }
        for extra in smaller_classes.into_iter().take(MAX_TRIES_OF_KIND) {
            least.extra.clone_from(&extra);
            let nodes = self.engine.candidates(&least, self.now);
            let fitted = InstanceRequest { extra, ..request.clone() };
            let Some(resources) = self.fit(&fitted, &nodes) else { continue };
            let fewer =
                fitted.extra.iter().filter(|(class, n)| request.extra.get(*class) != Some(n));
            let extra = fewer.map(|(class, amount)| (class.clone(), *amount)).collect();
            let node = nodes.first().copied();
            return self.try_sizes(&RequestChange::Shrink { resources, extra }, node);
        }
        None
    }

    /// By arithmetic, the size at which enough members have room on these nodes.
    fn fit(&self, request: &InstanceRequest, nodes: &[NodeIndex]) -> Option<Amounts> {
        let prepared = self.prepare(request);
        let rows = nodes.iter().filter_map(|index| prepared.fleet.row(*index));
        let rooms: Vec<Room> = rows.map(|row| Room::of(&prepared, row, false)).collect();
        let others = self.refused.batch.requests.len() - self.refused.members_of_class();
        let wanted = self.refused.batch.quorum().saturating_sub(others).max(1);
        shrink_to_count(request, &rooms, wanted)
    }

    /// Tries a size, and smaller ones where rules or other members leave less room than there is.
    fn try_sizes(&mut self, most: &RequestChange, node: Option<NodeIndex>) -> Option<Fix> {
        let RequestChange::Shrink { resources, extra } = most else { return None };
        for eighths in [8, 7, 6, 4, 2, 1].into_iter().take(self.tries_of_kind) {
            let wanted = self.refused.member.resources;
            let part = |fitted: u32, wanted: u32| match fitted < wanted {
                true => (u64::from(fitted) * eighths / 8).try_into().unwrap_or(fitted),
                false => fitted,
            };
            let resources = Amounts {
                cpu_milli: part(resources.cpu_milli, wanted.cpu_milli),
                memory_mib: part(resources.memory_mib, wanted.memory_mib).max(1),
                disk_mib: part(resources.disk_mib, wanted.disk_mib),
                bandwidth_mbps: part(resources.bandwidth_mbps, wanted.bandwidth_mbps),
            };
            let change = RequestChange::Shrink { resources, extra: extra.clone() };
            let changes_nothing = resources == wanted && extra.is_empty();
            if !changes_nothing && self.works(std::slice::from_ref(&change)) {
                let node = node.and_then(|index| self.engine.fleet().row(index));
                let node = node.map(|row| row.id.clone());
                return Some(change.fix(self.refused.member, node));
            }
        }
        None
    }

    /// Each change of the refused class that is enough alone.
    fn relaxations(&mut self) -> Vec<Fix> {
        let leads = self.leads;
        let mut fixes = Vec::new();
        for (change, index) in leads.relaxations.iter().take(self.tries_of_kind) {
            if self.works(std::slice::from_ref(change)) {
                let node = self.engine.fleet().row(*index).map(|row| row.id.clone());
                fixes.push(change.fix(self.refused.member, node));
            }
        }
        fixes
    }

    /// Changes of the refused class that are enough together.
    fn combined(&mut self) -> Option<Fix> {
        let leads = self.leads;
        let of_request = |one: &&Combination| one.mends.is_empty() && one.released.is_empty();
        for one in leads.combined.iter().filter(of_request).take(self.tries_of_kind) {
            if self.works(&one.changes) {
                return Some(combined_fix(&self.prepared(), one));
            }
        }
        None
    }

    /// Instances whose release makes room for all that is missing.
    fn release(&mut self) -> Option<Fix> {
        // To find them, the batch is placed once more.
        if !self.budget.spend(self.steps_of_try) {
            return None;
        }
        let released = self.find_release()?;
        let mut detached = Vec::new();
        for id in &released {
            let index = self.engine.fleet().instance(*id).map(|row| row.host.index());
            let instance = self.engine.fleet.detach_instance(*id);
            detached.extend(instance.zip(index));
        }
        let works = self.works(&[]);
        for (instance, index) in detached.into_iter().rev() {
            self.engine.fleet.attach_instance(instance, index);
        }
        let prepared = self.prepared();
        let rows = released.iter().filter_map(|id| prepared.fleet.instance(*id));
        works.then(|| free(&prepared, &rows.collect::<Vec<_>>()))
    }

    /// One node after the other is freed for a member that has no place yet.
    fn find_release(&mut self) -> Option<Vec<InstanceId>> {
        let mut claimed: Vec<InstanceId> = Vec::new();
        let mut gone = Vec::new();
        let (refused, assignment) = (self.refused, self.best.1.clone());
        for (request, picked) in refused.batch.requests.iter().zip(&assignment) {
            if let Some(picked) = picked {
                self.engine.fleet.claim_at(request, picked.index);
                claimed.push(request.id);
            }
        }
        let missing = refused.batch.quorum().saturating_sub(claimed.len());
        let without = refused.batch.requests.iter().zip(&assignment).filter(|(_, at)| at.is_none());
        let mut placed = 0;
        for (request, _) in without.take(missing) {
            let picked = self.engine.pick(request, self.now, Reuse::Mask);
            let index = match picked {
                Some(picked) => Some(picked.index),
                None => self.free_for(request, &mut gone),
            };
            let Some(index) = index.filter(|_| gone.len() <= MAX_RELEASED) else { break };
            self.engine.fleet.claim_at(request, index);
            claimed.push(request.id);
            placed += 1;
        }
        for id in claimed.into_iter().rev() {
            self.engine.fleet.undo_claim(id);
        }
        let ids: Vec<InstanceId> = gone.iter().map(|(id, ..)| *id).collect();
        for (_, instance, index) in gone.into_iter().rev() {
            self.engine.fleet.attach_instance(instance, index);
        }
        (placed == missing && !ids.is_empty()).then_some(ids)
    }

    /// Frees a node for one member. Returns the node.
    fn free_for(
        &mut self,
        request: &InstanceRequest,
        gone: &mut Vec<(InstanceId, DetachedInstance, NodeIndex)>,
    ) -> Option<NodeIndex> {
        let prepared = self.prepare(request);
        let nodes = &self.leads.short_of_room;
        let nodes = &nodes[..nodes.len().min(LIMITS.nodes_freed)];
        let refused = self.refused;
        let released = least_release(&prepared, nodes, &|row| !refused.is_member(row.id))?;
        let index = released.first()?.host.index();
        let ids: Vec<InstanceId> = released.iter().map(|row| row.id).collect();
        for id in ids {
            let instance = self.engine.fleet.detach_instance(id)?;
            gone.push((id, instance, index));
        }
        Some(index)
    }

    /// The first nodes that are enough when they are mended.
    fn repairs(&mut self) -> Option<Fix> {
        let leads = self.leads;
        let mut tried: Vec<TriedNode> = Vec::new();
        let mut fixes: Vec<Fix> = Vec::new();
        let mut works = false;
        let most = self.tries_of_kind.min(MAX_MENDED);
        for (id, index, facts) in leads.mends.iter().take(most) {
            let Some(row) = self.engine.fleet().row(*index) else { continue };
            fixes.push(mend(*id, row));
            tried.extend(self.engine.fleet.try_node(facts));
            works = self.works(&[]);
            if works {
                break;
            }
        }
        tried.into_iter().rev().for_each(|node| self.engine.fleet.take_back_node(node));
        works.then(|| Fix::all_of(fixes))
    }

    /// A mended node together with changes of the refused class, or with several repairs.
    fn repairs_and_changes(&mut self) -> Option<Fix> {
        let leads = self.leads;
        let with_mends = leads.combined.iter().filter(|one| !one.mends.is_empty());
        for one in with_mends.filter(|one| one.released.is_empty()).take(self.tries_of_kind) {
            let facts = mended_facts(&self.prepared(), one.index, &one.mends);
            let tried = facts.and_then(|facts| self.engine.fleet.try_node(&facts));
            let works = tried.is_some() && self.works(&one.changes);
            tried.into_iter().for_each(|node| self.engine.fleet.take_back_node(node));
            if works {
                return Some(combined_fix(&self.prepared(), one));
            }
        }
        None
    }
}
