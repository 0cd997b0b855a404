//! Which instances should leave a node under pressure: what each move costs, and the cheapest set that
//! relieves enough. Numbers only: the planner finds the targets.

use std::cmp::Reverse;
use std::sync::Arc;

use super::account::{Account, ResourceAccount};
use crate::model::size::Size;
use crate::model::{Amounts, InstanceId, InstanceRequest, NodeId, PPM};

/// Steps of the search for the cheapest set. Enough to be exact for a dozen in the
/// worst case, and for several dozens in most; then the best set found so far counts.
const SEARCH_STEPS: u64 = 1_000_000;

/// What is known of an instance that could leave.
#[derive(Clone, Debug)]
pub struct ReliefInstance {
    /// Which.
    pub id: InstanceId,
    /// What to ask for again. Nodes that it must not return to are among its excluded nodes.
    pub request: Arc<InstanceRequest>,
    /// What its node is charged for it.
    pub charge: Size,
    /// What it was denied, decaying over time, as its node's account counts it.
    pub pressure: Size,
    /// Memory to copy.
    pub copy_mib: u32,
    /// Its load, in thousandths; absent: not known.
    pub load_milli: Option<u32>,
    /// The higher, the later it is disturbed.
    pub priority: i32,
    /// Whether it may be moved: it did not opt out, is not being moved, and its cooldown is over.
    pub movable: bool,
    /// How recently it was moved: 0 is long ago, 1,000,000 just now.
    pub moved_recently_ppm: u32,
}

impl ReliefInstance {
    /// What relieves its node when it leaves, as [`Account`] counts it.
    #[must_use]
    pub fn frees(&self) -> Size {
        self.charge.plus(self.pressure)
    }

    /// What it costs to move it: memory to copy, in thousandths of a mebibyte. A busy instance
    /// writes while it is copied, so it costs up to five times as much; one that has just been moved
    /// up to four times, and every hundred levels of priority once more. Never nothing.
    #[must_use]
    pub fn cost(&self) -> u64 {
        let cores = u64::from(self.charge.cpu_milli.max(1));
        let busy = |load: u32| u64::from(load).saturating_mul(1000).checked_div(cores);
        // An instance without a reported load may be busy.
        let busy = self.load_milli.and_then(busy).unwrap_or(1000).min(4000);
        let recent = u64::from(self.moved_recently_ppm.min(PPM)).saturating_mul(3);
        let priority = u64::try_from(self.priority.clamp(-90, 10_000).saturating_add(100));
        let copied = u64::from(self.copy_mib.max(1));
        let cost = copied.saturating_mul(busy.saturating_add(1000));
        let cost = scaled(cost, recent.saturating_add(PPM.into()), PPM.into());
        scaled(cost, priority.unwrap_or(100), 100).max(1)
    }
}

fn scaled(value: u64, by: u64, of: u64) -> u64 {
    let scaled = u128::from(value).saturating_mul(by.into()).checked_div(of.into());
    u64::try_from(scaled.unwrap_or(0)).unwrap_or(u64::MAX)
}

/// An instance to move, and its target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReliefMove {
    /// Which.
    pub instance: InstanceId,
    /// Where it fits.
    pub to: NodeId,
    /// What it costs: see [`ReliefInstance::cost`].
    pub cost: u64,
    /// What relieves its node.
    pub frees: Size,
}

/// How a node is relieved.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReliefPlan {
    /// Instances to move and their targets, those that relieve most first.
    pub moves: Vec<ReliefMove>,
    /// The excess that remains.
    pub left: Size,
    /// Instances that would help but have no target.
    pub without_target: Vec<InstanceId>,
}

impl Account {
    /// What should leave beyond what is leaving.
    #[must_use]
    pub fn excess(&self) -> Size {
        let most = i64::from(Amounts::MAX);
        let one = |of: &ResourceAccount| u32::try_from(of.excess().clamp(0, most)).unwrap_or(0);
        Size::new(one(&self.cpu), one(&self.memory))
    }
}

/// An instance that could leave, as far as the choice is concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ReliefCandidate {
    pub(crate) id: InstanceId,
    pub(crate) frees: Size,
    pub(crate) cost: u64,
}

/// The cheapest set that frees the needed amount, or all that help when no set does. No member of the
/// set can be dropped. Of equally cheap sets the smallest, then the one with the smallest ids. Those
/// that relieve most come first.
pub(crate) fn cheapest_set(candidates: &[ReliefCandidate], need: Size) -> Vec<ReliefCandidate> {
    let all =
        candidates.iter().fold(Size::ZERO, |sum, candidate| sum.plus(candidate.frees.least(need)));
    let need = need.least(all);
    // More than is needed helps no more than what is needed.
    let useful = candidates
        .iter()
        .map(|candidate| ReliefCandidate { frees: candidate.frees.least(need), ..*candidate });
    let mut useful: Vec<ReliefCandidate> =
        useful.filter(|candidate| !candidate.frees.is_zero()).collect();
    useful.sort_by_key(|candidate| {
        let worth = share(candidate.frees, need);
        (rate(candidate.cost, worth), candidate.cost, candidate.frees, candidate.id)
    });
    let mut search = Search::new(&useful, need);
    search.descend(0, need, 0);
    let mut best = search.best;
    best.sort_by_key(|&at| (Reverse(share(useful[at].frees, need)), useful[at].id));
    let original =
        |at: usize| candidates.iter().find(|candidate| candidate.id == useful[at].id).copied();
    best.into_iter().filter_map(original).collect()
}

/// How much of a need is covered, both resources together, in millionths.
fn share(frees: Size, need: Size) -> u64 {
    let one = |frees: u32, need: u32| scaled(frees.min(need).into(), PPM.into(), need.into());
    one(frees.cpu_milli, need.cpu_milli).saturating_add(one(frees.memory_mib, need.memory_mib))
}

/// Cost per amount, for comparison.
fn rate(cost: u64, amount: u64) -> u128 {
    u128::from(cost).saturating_mul(1 << 40).checked_div(amount.into()).unwrap_or(u128::MAX)
}

/// A search for the cheapest set: depth first, those that relieve most for their cost first, pruned
/// where the rest must cost more than the best set so far.
struct Search<'a> {
    candidates: &'a [ReliefCandidate],
    need: Size,
    /// For each resource, the leavers that free any of it, cheapest first.
    by_rate: [Vec<(usize, u64, u64)>; 2],
    /// What those from each place on free together.
    rest: Vec<Size>,
    chosen: Vec<usize>,
    best: Vec<usize>,
    best_cost: u64,
    steps_left: u64,
}

impl<'a> Search<'a> {
    fn new(candidates: &'a [ReliefCandidate], need: Size) -> Self {
        let by_rate = |amount: fn(&ReliefCandidate) -> u32| {
            let each = candidates.iter().enumerate();
            let each =
                each.map(|(at, candidate)| (at, u64::from(amount(candidate)), candidate.cost));
            let mut each: Vec<_> = each.filter(|(_, amount, _)| *amount > 0).collect();
            each.sort_by_key(|&(at, amount, cost)| (rate(cost, amount), at));
            each
        };
        let mut rest = vec![Size::ZERO];
        for candidate in candidates.iter().rev() {
            rest.push(rest.last().copied().unwrap_or_default().plus(candidate.frees));
        }
        rest.reverse();
        let best = greedy(candidates, need);
        Self {
            candidates,
            need,
            by_rate: [by_rate(|one| one.frees.cpu_milli), by_rate(|one| one.frees.memory_mib)],
            rest,
            chosen: Vec::new(),
            best_cost: cost_of(candidates, &best),
            best,
            steps_left: SEARCH_STEPS,
        }
    }

    /// Tries those from a place on, while so much is left to be freed.
    fn descend(&mut self, at: usize, left: Size, cost: u64) {
        if left.is_zero() {
            self.keep(cost);
            return;
        }
        let steps = u64::try_from(self.candidates.len()).unwrap_or(u64::MAX);
        let possible = self.rest.get(at).is_some_and(|rest| rest.covers(left));
        if !possible || self.steps_left < steps {
            return;
        }
        self.steps_left = self.steps_left.saturating_sub(steps);
        if cost.saturating_add(self.at_least(at, left)) > self.best_cost {
            return;
        }
        let one = self.candidates[at];
        let after = at.saturating_add(1);
        self.chosen.push(at);
        self.descend(after, left.less(one.frees), cost.saturating_add(one.cost));
        self.chosen.pop();
        // Without it also without those that are like it: they come in the order of ids.
        let alike = |other: &&ReliefCandidate| other.frees == one.frees && other.cost == one.cost;
        let alike = self.candidates[after..].iter().take_while(alike).count();
        self.descend(after.saturating_add(alike), left, cost);
    }

    /// The least that it can cost to free so much with those from a place on: each resource by
    /// itself, where the last one may leave in part.
    fn at_least(&self, at: usize, left: Size) -> u64 {
        let least = |by_rate: &[(usize, u64, u64)], left: u32| {
            let (mut left, mut least) = (u64::from(left), 0u64);
            for &(_, amount, cost) in by_rate.iter().filter(|(place, ..)| *place >= at) {
                if left == 0 {
                    break;
                }
                least = least.saturating_add(scaled(cost, left.min(amount), amount));
                left = left.saturating_sub(amount);
            }
            least
        };
        let [cpu, memory] = &self.by_rate;
        least(cpu, left.cpu_milli).max(least(memory, left.memory_mib))
    }

    /// Keeps the chosen if they are better than the best so far.
    fn keep(&mut self, cost: u64) {
        let ids = |set: &[usize]| {
            let mut ids: Vec<InstanceId> = set.iter().map(|&at| self.candidates[at].id).collect();
            ids.sort_unstable();
            ids
        };
        let key = |cost: u64, set: &[usize]| (cost, set.len(), ids(set));
        if cost > self.best_cost || key(cost, &self.chosen) >= key(self.best_cost, &self.best) {
            return;
        }
        let mut chosen = self.chosen.clone();
        drop_needless(self.candidates, self.need, &mut chosen);
        self.best_cost = cost_of(self.candidates, &chosen);
        self.best = chosen;
    }
}

fn cost_of(candidates: &[ReliefCandidate], set: &[usize]) -> u64 {
    set.iter().fold(0, |cost, &at| cost.saturating_add(candidates[at].cost))
}

/// Takes the instance that relieves most of the rest for its cost, until nothing is left.
fn greedy(candidates: &[ReliefCandidate], need: Size) -> Vec<usize> {
    let mut set: Vec<usize> = Vec::new();
    let mut left = need;
    while !left.is_zero() {
        let others = (0..candidates.len()).filter(|at| !set.contains(at));
        let helps = others.filter(|&at| !candidates[at].frees.least(left).is_zero());
        let next = helps.min_by_key(|&at| {
            let one = &candidates[at];
            (rate(one.cost, share(one.frees, left)), one.id)
        });
        let Some(next) = next else { break };
        set.push(next);
        left = left.less(candidates[next].frees);
    }
    drop_needless(candidates, need, &mut set);
    set
}

/// Drops instances that are not needed, the most expensive first.
fn drop_needless(candidates: &[ReliefCandidate], need: Size, set: &mut Vec<usize>) {
    let mut dearest = set.clone();
    dearest.sort_by_key(|&at| (Reverse(candidates[at].cost), Reverse(candidates[at].id)));
    for at in dearest {
        let others = set.iter().filter(|&&other| other != at);
        let freed = others.fold(Size::ZERO, |sum, &other| sum.plus(candidates[other].frees));
        if freed.covers(need) {
            set.retain(|&other| other != at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn candidate(id: u128, cpu: u32, memory: u32, cost: u64) -> ReliefCandidate {
        ReliefCandidate { id: InstanceId::from_u128(id), frees: Size::new(cpu, memory), cost }
    }

    fn freed(set: &[ReliefCandidate]) -> Size {
        set.iter().fold(Size::ZERO, |sum, one| sum.plus(one.frees))
    }

    fn cost(set: &[ReliefCandidate]) -> u64 {
        set.iter().map(|one| one.cost).sum()
    }

    /// Every subset, the cheapest, smallest and first by ids.
    fn by_brute_force(candidates: &[ReliefCandidate], need: Size) -> Vec<InstanceId> {
        let need = need.least(freed(candidates));
        let members = |bits: u32| {
            let each = candidates.iter().enumerate();
            each.filter(move |(at, _)| bits >> at & 1 == 1).map(|(_, one)| *one).collect::<Vec<_>>()
        };
        let sets = (0..1u32 << candidates.len()).map(members);
        let keys = sets.filter(|set| freed(set).covers(need)).map(|set| {
            let mut ids: Vec<InstanceId> = set.iter().map(|one| one.id).collect();
            ids.sort_unstable();
            (cost(&set), ids.len(), ids)
        });
        keys.min().map(|(_, _, ids)| ids).unwrap_or_default()
    }

    #[test]
    fn the_cheapest_set_is_what_trying_every_set_finds() {
        let mut state = 7u64;
        let mut below = |bound: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) % bound
        };
        for case in 0..400 {
            let count = below(11);
            let candidates: Vec<ReliefCandidate> = (0..count)
                .map(|id| {
                    let (cpu, memory) = (below(6) * 250, below(6) * 512);
                    let amounts = [cpu, memory].map(|amount| u32::try_from(amount).unwrap_or(0));
                    candidate(u128::from(id) + 1, amounts[0], amounts[1], 1 + below(12))
                })
                .collect();
            let need = [below(12) * 250, below(12) * 512];
            let need = need.map(|amount| u32::try_from(amount).unwrap_or(0));
            let need = Size::new(need[0], need[1]);
            let set = cheapest_set(&candidates, need);
            let mut ids: Vec<InstanceId> = set.iter().map(|one| one.id).collect();
            ids.sort_unstable();
            assert_eq!(
                ids,
                by_brute_force(&candidates, need),
                "case {case}: {candidates:?} for {need}"
            );
        }
    }

    #[test]
    fn of_a_hundred_nobody_can_be_dropped_and_it_costs_little_more_than_it_must() {
        let many = (0..100u32).map(|at| {
            candidate(
                at.into(),
                250 + at * 37 % 1000,
                512 + at * 91 % 3000,
                (at * 53 % 97 + 1).into(),
            )
        });
        let many: Vec<ReliefCandidate> = many.collect();
        let need = Size::new(9000, 31_000);
        let set = cheapest_set(&many, need);
        assert!(freed(&set).covers(need));
        for one in &set {
            let rest: Vec<ReliefCandidate> =
                set.iter().filter(|other| *other != one).copied().collect();
            assert!(!freed(&rest).covers(need), "{one:?} is needless");
        }
        let bound = Search::new(&many, need).at_least(0, need);
        assert!(cost(&set) <= bound * 5 / 4, "{} of at least {bound}", cost(&set));
    }

    #[test]
    fn when_all_of_them_are_too_few_everybody_who_helps_goes() {
        let few = [candidate(1, 500, 0, 3), candidate(2, 0, 100, 1), candidate(3, 250, 0, 9)];
        let set = cheapest_set(&few, Size::new(4000, 0));
        assert_eq!(set.iter().map(|one| one.id).collect::<Vec<_>>(), [few[0].id, few[2].id]);
        assert_eq!(cheapest_set(&few, Size::ZERO), []);
    }

    #[test]
    fn busy_recently_moved_and_important_instances_are_dearer() {
        let id = InstanceId::from_u128(1);
        let request = InstanceRequest::new(id, "acme", Amounts::new(2000, 4096));
        let calm = ReliefInstance {
            id,
            request: Arc::new(request),
            charge: Size::new(2000, 4096),
            pressure: Size::ZERO,
            copy_mib: 4096,
            load_milli: Some(0),
            priority: 0,
            movable: true,
            moved_recently_ppm: 0,
        };
        assert_eq!(calm.cost(), 4_096_000);
        let busy = ReliefInstance { load_milli: Some(2000), ..calm.clone() };
        assert_eq!(busy.cost(), 2 * calm.cost());
        let silent = ReliefInstance { load_milli: None, ..calm.clone() };
        assert_eq!(silent.cost(), busy.cost(), "nobody knows that it is not busy");
        let moved = ReliefInstance { moved_recently_ppm: PPM, ..calm.clone() };
        assert_eq!(moved.cost(), 4 * calm.cost());
        let important = ReliefInstance { priority: 100, ..calm.clone() };
        assert_eq!(important.cost(), 2 * calm.cost());
        let extreme = ReliefInstance {
            copy_mib: u32::MAX,
            load_milli: Some(u32::MAX),
            priority: i32::MAX,
            moved_recently_ppm: u32::MAX,
            ..calm.clone()
        };
        assert!(extreme.cost() > important.cost());
        let nothing = ReliefInstance { copy_mib: 0, priority: i32::MIN, ..calm };
        assert!(nothing.cost() > 0);
    }
}
