//! Diagnosis of a refusal: which filter removed which node, which node came closest, and which single
//! filter matters most.

use super::failure_sets::{FailureSets, FilterSet};
use super::waiting::{holds_when_empty, may_pass_later};
use super::{FilterCount, NearestMiss, Refusal, StableName};
use crate::filter::{
    CPU_WITHIN_HOST, FILTERS, FilterId, FilterTest, passes_neighbour_tests, passes_request_tests,
    run_filter,
};
use crate::fleet::{NodeIndex, NodeRow};
use crate::model::{Demand, Evidence, NodeId};
use crate::prepared_request::PreparedRequest;
use crate::score::notices_of;

/// What the pass over all nodes found.
pub(crate) struct Diagnosis {
    /// Nodes removed first by each filter.
    removed: Vec<usize>,
    /// The closest node of each filter.
    nearest: Vec<Option<(Closeness, NodeId, Evidence)>>,
    /// Nodes that only this filter keeps out.
    pub(crate) only: Vec<usize>,
    /// Nodes by the filters that keep them out.
    pub(crate) sets: FailureSets,
    /// Nodes that only the size of the request keeps out.
    pub(crate) lack_only_room: Vec<NodeIndex>,
    /// Whether some node could take it by itself: once others have come and gone and its state has
    /// changed.
    waiting_may_help: bool,
}

/// How far a node is from passing; smaller is closer. Ties are decided by the order of ids.
type Closeness = i64;

/// What is known of nodes before a diagnosis, one bit each.
#[derive(Clone, Copy, Default)]
pub(crate) struct PassedTests<'a> {
    /// Nodes that pass every filter about the node alone.
    pub(crate) node: &'a [u64],
    /// Nodes whose facts meet the request's requirements.
    pub(crate) facts: &'a [u64],
}

/// Judges every node and notes which filters keep it out. What is known already is not tested again.
pub(crate) fn diagnose(prepared: &PreparedRequest<'_>, passed: PassedTests<'_>) -> Diagnosis {
    let filters = FILTERS.len();
    let mut diagnosis = Diagnosis {
        removed: vec![0; filters],
        nearest: vec![None; filters],
        only: vec![0; filters],
        sets: FailureSets::default(),
        lack_only_room: Vec::new(),
        waiting_may_help: false,
    };
    let tests = Tests::new(prepared, passed);
    for (id, index) in prepared.fleet.nodes_in_order() {
        diagnosis.inspect_node(&tests, id, index);
    }
    diagnosis
}

/// The filters that a node is tested with, by what they look at, in the order of filters.
struct Tests<'a> {
    prepared: &'a PreparedRequest<'a>,
    passed: PassedTests<'a>,
    demand: Demand,
    /// None if all are passed: the answer is the same for every node.
    of_request: Vec<FilterId>,
    of_node: Vec<FilterId>,
    of_facts: Vec<FilterId>,
    of_neighbours: Vec<FilterId>,
    of_load: Vec<FilterId>,
}

impl<'a> Tests<'a> {
    fn new(prepared: &'a PreparedRequest<'a>, passed: PassedTests<'a>) -> Self {
        let in_force = |wanted: fn(&FilterTest) -> bool| {
            let ids = FilterId::all().filter(|id| !prepared.policy.is_off(*id));
            ids.filter(|id| wanted(&id.filter().test)).collect::<Vec<_>>()
        };
        let of_request = match passes_request_tests(prepared) {
            true => Vec::new(),
            false => in_force(|test| matches!(test, FilterTest::Request(_))),
        };
        Self {
            prepared,
            passed,
            demand: Demand::new(prepared.request, prepared.policy),
            of_request,
            of_node: in_force(|test| matches!(test, FilterTest::Node(_))),
            of_facts: in_force(|test| matches!(test, FilterTest::Static(_))),
            of_neighbours: in_force(|test| matches!(test, FilterTest::Neighbour(_))),
            of_load: in_force(|test| matches!(test, FilterTest::Load(_))),
        }
    }

    /// Calls `note` for every filter that removes the node, in order.
    fn for_each_failure(&self, index: NodeIndex, row: &NodeRow, note: &mut FailureNote<'_>) {
        let prepared = self.prepared;
        let has_bit = |words: &[u64]| {
            words.get(index.block()).is_some_and(|word| word >> index.lane() & 1 == 1)
        };
        let mut run = |filters: &[FilterId]| {
            for &id in filters {
                if let Err(evidence) = run_filter(id, prepared, index, row) {
                    note(id, evidence);
                }
            }
        };
        run(&self.of_request);
        if !has_bit(self.passed.node) {
            run(&self.of_node);
        }
        if !has_bit(self.passed.facts) {
            run(&self.of_facts);
        }
        if !passes_neighbour_tests(prepared, index) {
            run(&self.of_neighbours);
        }
        run(&self.of_load);
    }
}

type FailureNote<'a> = dyn FnMut(FilterId, Evidence) + 'a;

impl Diagnosis {
    fn inspect_node(&mut self, tests: &Tests<'_>, id: &NodeId, index: NodeIndex) {
        let Some(row) = tests.prepared.fleet.row(index) else {
            return;
        };
        let (mut first, mut failures, mut lacks_only_room) = (None, 0, true);
        let (mut failed, mut may_pass) = (FilterSet::default(), !self.waiting_may_help);
        tests.for_each_failure(index, row, &mut |filter, evidence| {
            failures += 1;
            failed = failed.with(filter);
            may_pass = may_pass && may_pass_later(tests.prepared, filter, index, &evidence);
            // A smaller request also passes the filter on the cores of the host.
            lacks_only_room &=
                matches!(filter.filter().test, FilterTest::Load(_)) || filter == CPU_WITHIN_HOST;
            first.get_or_insert((filter, evidence));
        });
        let Some((first, evidence)) = first else { return };
        if lacks_only_room {
            self.lack_only_room.push(index);
        }
        let place = usize::from(first.0);
        if failures == 1 {
            self.only[place] += 1;
        }
        self.sets.note(failed, index);
        self.waiting_may_help = self.waiting_may_help
            || (may_pass && holds_when_empty(tests.prepared, &tests.demand, row));
        self.removed[place] += 1;
        let closeness = evidence.shortfall().unwrap_or(0);
        let nearest = &mut self.nearest[place];
        if nearest.as_ref().is_none_or(|(least, _, _)| closeness < *least) {
            *nearest = Some((closeness, id.clone(), evidence));
        }
    }
}

/// The refusal that a diagnosis amounts to, without fixes.
pub(crate) fn describe(prepared: &PreparedRequest<'_>, diagnosis: &Diagnosis) -> Refusal {
    let removing = || FilterId::all().filter(|id| diagnosis.removed[usize::from(id.0)] > 0);
    // As in a chain of filters, the last one that removed a node left none.
    let last = removing().next_back();
    let counts = removing().map(|id| FilterCount {
        filter: id.filter().name.into(),
        removed: diagnosis.removed[usize::from(id.0)],
    });
    let nearest = removing().filter_map(|id| {
        let (_, node, evidence) = diagnosis.nearest[usize::from(id.0)].clone()?;
        Some(NearestMiss { filter: id.filter().name.into(), node: Some(node), evidence })
    });
    let most = FilterId::all()
        .map(|id| (diagnosis.only[usize::from(id.0)], std::cmp::Reverse(id)))
        .max()
        .filter(|(admits, _)| *admits > 0);
    Refusal {
        instance: prepared.request.id,
        name: prepared.request.name.clone(),
        tenant: prepared.request.tenant.clone(),
        // A fleet without nodes has no active ones.
        code: last.map_or("no_nodes_active", |id| id.filter().code).into(),
        filter: last.map(|id| id.filter().name.into()),
        remedy: remedy(last, diagnosis.waiting_may_help),
        nodes: prepared.fleet.node_count(),
        counts: counts.collect(),
        nearest: nearest.collect(),
        best_relaxation: most.map(|(admits, id)| (id.0.filter().name.into(), admits)),
        fixes: Vec::new(),
        waiting_may_help: diagnosis.waiting_may_help,
        notices: notices_of(prepared),
        search: None,
    }
}

/// What can be done about the filter behind a refusal.
pub(crate) fn remedy(last: Option<FilterId>, waiting_may_help: bool) -> StableName {
    match last {
        None => "add a node".into(),
        Some(id) if waiting_may_help => id.filter().remedy.into(),
        Some(id) => id.filter().lasting_remedy().into(),
    }
}
