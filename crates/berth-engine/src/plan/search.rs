//! The exact search behind a batch: depth first over instances and nodes, within a budget.
//!
//! It claims and releases in the fleet as it goes, so feasibility is checked by the same function as
//! elsewhere. Two kinds of repetition are pruned: equal instances are placed in order of node, and of
//! nodes that are equal for every instance of the batch only the first is tried. Neither loses a
//! solution.

use rustc_hash::FxHashSet;

use super::batch::Assignment;
use crate::affinity::{Operator, Subject};
use crate::engine::{Engine, NodeChoice};
use crate::fleet::{Bits, LANES, NodeIndex, NodePlace};
use crate::model::{Hint, InstanceRequest, Timestamp};

/// Blocks of 64 nodes without a candidate that cost one step.
const BLOCKS_OF_STEP: usize = 8;

/// Steps that may still be taken: a choice tried, or 64 nodes scanned.
pub(super) struct Budget {
    left: u32,
    spent: bool,
}

impl Budget {
    pub(super) const fn new(steps: u32) -> Self {
        Self { left: steps, spent: false }
    }

    /// Whether the search ended because the budget ran out.
    pub(super) const fn is_spent(&self) -> bool {
        self.spent
    }

    fn spend(&mut self, steps: usize) -> bool {
        let steps = u32::try_from(steps).unwrap_or(u32::MAX);
        self.spent |= self.left < steps;
        self.left = self.left.saturating_sub(steps);
        !self.spent
    }
}

struct Search<'a> {
    requests: &'a [InstanceRequest],
    /// The class of each request: the place of the first like it.
    classes: Vec<usize>,
    /// For each class, the nodes whose facts admit it, one bit each.
    admitted: Vec<Bits>,
    quorum: usize,
    now: Timestamp,
    /// Whether an instance may become possible only after another: then every order is tried.
    any_order: bool,
    /// Whether rules about neighbours tell equal nodes apart.
    has_rules: bool,
}

/// Looks for a way to place at least `quorum` of the requests.
pub(super) fn search_exact(
    engine: &mut Engine,
    requests: &[InstanceRequest],
    order: &[usize],
    quorum: usize,
    budget: &mut Budget,
    now: Timestamp,
) -> Option<Assignment> {
    let classes = request_classes(engine, requests);
    let possible = drop_impossible(engine, requests, &classes, order, now);
    if possible.len() < quorum {
        return None;
    }
    let search = Search {
        requests,
        admitted: admitting_nodes(engine, requests, &classes),
        classes,
        quorum,
        now,
        any_order: order_matters(requests),
        has_rules: requests.iter().any(has_rules) || engine.fleet.index().has_apart_rules(),
    };
    let mut assignment = vec![None; requests.len()];
    let found = search.descend(engine, &possible, &mut assignment, budget);
    engine.release_assigned(requests, &assignment);
    found.then_some(assignment)
}

impl Search<'_> {
    /// Places the rest; leaves the fleet as the assignment says when it succeeds, and as it found
    /// it when it does not.
    fn descend(
        &self,
        engine: &mut Engine,
        rest: &[usize],
        assignment: &mut Assignment,
        budget: &mut Budget,
    ) -> bool {
        let placed = assignment.iter().filter(|picked| picked.is_some()).count();
        if placed >= self.quorum {
            return true;
        }
        if placed + rest.len() < self.quorum {
            return false;
        }
        let mut tried: Vec<usize> = Vec::new();
        for (index, &place) in rest.iter().enumerate() {
            // Equal instances are interchangeable: the first of each class stands for all.
            if tried.contains(&self.classes[place]) {
                continue;
            }
            tried.push(self.classes[place]);
            let mut others = rest.to_vec();
            others.remove(index);
            if self.try_nodes(engine, place, &others, assignment, budget) {
                return true;
            }
            if budget.is_spent() {
                return false;
            }
            if !self.any_order {
                // In a fixed order the only other way is to leave this class's instance out.
                let left_out: Vec<usize> = others
                    .iter()
                    .copied()
                    .filter(|o| self.classes[*o] != self.classes[place])
                    .collect();
                return self.descend(engine, &left_out, assignment, budget);
            }
        }
        false
    }

    fn try_nodes(
        &self,
        engine: &mut Engine,
        place: usize,
        others: &[usize],
        assignment: &mut Assignment,
        budget: &mut Budget,
    ) -> bool {
        let request = &self.requests[place];
        let candidates = engine.candidates(request, self.now);
        // Looking at nodes costs, too: on a large fleet far more than trying one. Those that are no
        // candidates are passed over in blocks.
        let passed_over = engine.fleet.position_count() / LANES / BLOCKS_OF_STEP;
        if !budget.spend(1 + (candidates.len() / LANES).max(passed_over)) {
            return false;
        }
        let floor = self.floor(engine, place, assignment);
        let mut kinds: FxHashSet<Vec<i64>> = FxHashSet::default();
        for index in candidates {
            if engine.fleet.columns().rank.get(index) < floor {
                continue;
            }
            if !self.has_rules && !kinds.insert(self.node_kind(engine, index)) {
                continue;
            }
            if !budget.spend(1) {
                return false;
            }
            engine.fleet.claim_at(request, index);
            assignment[place] = Some(NodeChoice { index, total: 0 });
            if self.descend(engine, others, assignment, budget) {
                return true;
            }
            engine.fleet.undo_claim(request.id);
            assignment[place] = None;
        }
        false
    }

    /// The least rank for a request: that of the last equal instance placed.
    fn floor(&self, engine: &Engine, place: usize, assignment: &Assignment) -> u32 {
        // With interchangeable nodes cut, order of node would cut solutions twice.
        if !self.has_rules || self.any_order {
            return 0;
        }
        let equals = assignment.iter().zip(&self.classes);
        let placed = equals.filter(|(_, class)| **class == self.classes[place]);
        let ranks = placed.filter_map(|(picked, _)| picked.map(|p| p.index));
        ranks.map(|index| engine.fleet.columns().rank.get(index)).max().unwrap_or(0)
    }

    /// What the batch can tell a node by: room of every kind, and which requests its facts admit.
    fn node_kind(&self, engine: &Engine, index: NodeIndex) -> Vec<i64> {
        let Some(row) = engine.fleet.row(index) else { return Vec::new() };
        let mut kind = vec![
            row.limits.cpu - row.used.cpu,
            row.memory_room(),
            i64::from(row.vmm_overhead_mib),
            row.limits.disk - row.used.disk,
            row.limits.bandwidth - row.used.bandwidth,
            i64::from(row.instance_limit) - i64::from(row.used.instances),
            i64::from(row.used.capped),
            i64::from(row.used.instances - row.used.capped),
            row.cpu_cap_mode as i64,
        ];
        for class in &row.extra {
            kind.extend([i64::from(class.name.number()), i64::from(class.limit) - class.used]);
        }
        kind.extend(self.admitted.iter().map(|nodes| i64::from(nodes.get(index))));
        kind
    }
}

/// The requests, in order, that have a node at all: what has none in an empty batch has none in a
/// fuller one, unless it waits for another member.
fn drop_impossible(
    engine: &mut Engine,
    requests: &[InstanceRequest],
    classes: &[usize],
    order: &[usize],
    now: Timestamp,
) -> Vec<usize> {
    let firsts = (0..requests.len()).filter(|place| classes[*place] == *place);
    let hopeless: Vec<usize> = firsts
        .filter(|&place| !waits_for_others(&requests[place]))
        .filter(|&place| engine.candidates(&requests[place], now).is_empty())
        .collect();
    order.iter().copied().filter(|place| !hopeless.contains(&classes[*place])).collect()
}

/// For each class, the nodes whose facts admit it: they do not change while the search runs.
fn admitting_nodes(engine: &Engine, requests: &[InstanceRequest], classes: &[usize]) -> Vec<Bits> {
    let fleet = &engine.fleet;
    let firsts = (0..requests.len()).filter(|place| classes[*place] == *place);
    let of_class = |place: usize| {
        let request = &requests[place];
        let mut nodes = Bits::default();
        nodes.grow(fleet.columns().present.words().len());
        for index in fleet.columns().present.indexes() {
            let Some(row) = fleet.row(index) else { continue };
            let mut volumes = request.volumes.iter().filter_map(|id| fleet.volume(id));
            let place = NodePlace { fleet, row };
            let admits = crate::filter::passes_static_tests(&place, request, &engine.policy)
                && !request.excluded_nodes.contains(&row.id)
                && volumes.all(|volume| volume.home == row.id);
            nodes.set(index, admits);
        }
        nodes
    };
    firsts.map(of_class).collect()
}

/// For each request, the first of its class.
fn request_classes(engine: &Engine, requests: &[InstanceRequest]) -> Vec<usize> {
    // A rule that names an instance tells equal ones apart.
    if requests.iter().any(names_instances) || engine.fleet.index().has_rules_on_instances() {
        return (0..requests.len()).collect();
    }
    let first = |request: &InstanceRequest| {
        requests.iter().position(|other| other.same_class(request)).unwrap_or(0)
    };
    requests.iter().map(first).collect()
}

fn names_instances(request: &InstanceRequest) -> bool {
    let hints = request.locality.near.iter().chain(&request.locality.far);
    request.affinity.iter().any(|rule| *rule.subject() == Subject::Instance)
        || hints.into_iter().any(|hint| matches!(hint, Hint::Instance(_)))
}

/// Whether others in the batch can make this one possible.
pub(super) fn waits_for_others(request: &InstanceRequest) -> bool {
    let together =
        |rule: &crate::affinity::Rule| rule.is_hard() && rule.operator() == Operator::Same;
    request.affinity.iter().any(together)
        || (request.locality.strict && !request.locality.near.is_empty())
}

/// Whether the order of placement matters: one instance waits for another, has one-sided rules about
/// others, or needs more room than it is charged.
fn order_matters(requests: &[InstanceRequest]) -> bool {
    let first_image = requests.first().map_or(0, |request| request.image_mib);
    requests.iter().any(|request| {
        waits_for_others(request)
            || (request.locality.strict && !request.locality.far.is_empty())
            || request.image_mib != first_image
    })
}

fn has_rules(request: &InstanceRequest) -> bool {
    !request.groups.is_empty() || !request.affinity.is_empty() || !request.locality.is_empty()
}
