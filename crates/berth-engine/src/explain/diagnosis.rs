//! Diagnosis of a refusal: which filter removed which node, which node came closest, and which single
//! filter matters most.

use super::{FilterCount, NearestMiss, Refusal};
use crate::filter::{
    CPU_WITHIN_HOST, FILTERS, FilterId, FilterTest, passes_neighbour_tests, passes_request_tests,
    run_filter,
};
use crate::fleet::{NodeIndex, NodeRow};
use crate::model::{Evidence, NodeId};
use crate::prepared_request::PreparedRequest;

/// What the pass over all nodes found.
pub(crate) struct Diagnosis {
    /// Nodes removed first by each filter.
    removed: Vec<usize>,
    /// The closest node of each filter.
    nearest: Vec<Option<(Closeness, NodeId, Evidence)>>,
    /// Nodes that only this filter keeps out.
    pub(crate) only: Vec<usize>,
    /// The first node, by id, that only this filter keeps out.
    pub(crate) only_node: Vec<Option<NodeIndex>>,
    /// Nodes that only the size of the request keeps out.
    pub(crate) lack_only_room: Vec<NodeIndex>,
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
        only_node: vec![None; filters],
        lack_only_room: Vec::new(),
    };
    let tests = Tests {
        prepared,
        passed,
        filters: FilterId::all().filter(|id| !prepared.policy.is_off(*id)).collect(),
        // The same answer for every node.
        passes_request_tests: passes_request_tests(prepared),
    };
    for (id, index) in prepared.fleet.nodes_in_order() {
        diagnosis.inspect_node(&tests, id, index);
    }
    diagnosis
}

/// The filters that a node is tested with.
struct Tests<'a> {
    prepared: &'a PreparedRequest<'a>,
    passed: PassedTests<'a>,
    filters: Vec<FilterId>,
    passes_request_tests: bool,
}

impl Tests<'_> {
    /// Calls `note` for every filter that removes the node, in order.
    fn for_each_failure(&self, index: NodeIndex, row: &NodeRow, note: &mut FailureNote<'_>) {
        let prepared = self.prepared;
        let has_bit = |words: &[u64]| {
            words.get(index.block()).is_some_and(|word| word >> index.lane() & 1 == 1)
        };
        let passes_node_tests = has_bit(self.passed.node);
        let passes_static_tests = has_bit(self.passed.facts);
        let passes_neighbour_tests = passes_neighbour_tests(prepared, index);
        for &id in &self.filters {
            let is_passed = match id.filter().test {
                FilterTest::Request(_) => self.passes_request_tests,
                FilterTest::Node(_) => passes_node_tests,
                FilterTest::Static(_) => passes_static_tests,
                FilterTest::Neighbour(_) => passes_neighbour_tests,
                FilterTest::Load(_) => false,
            };
            if !is_passed && let Err(evidence) = run_filter(id, prepared, index, row) {
                note(id, evidence);
            }
        }
    }
}

type FailureNote<'a> = dyn FnMut(FilterId, Evidence) + 'a;

impl Diagnosis {
    fn inspect_node(&mut self, tests: &Tests<'_>, id: &NodeId, index: NodeIndex) {
        let Some(row) = tests.prepared.fleet.row(index) else {
            return;
        };
        let (mut first, mut failures, mut lacks_only_room) = (None, 0, true);
        tests.for_each_failure(index, row, &mut |filter, evidence| {
            failures += 1;
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
            self.only_node[place].get_or_insert(index);
        }
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
        remedy: last.map_or("add a node", |id| id.filter().remedy).into(),
        nodes: prepared.fleet.node_count(),
        counts: counts.collect(),
        nearest: nearest.collect(),
        best_relaxation: most.map(|(admits, id)| (id.0.filter().name.into(), admits)),
        fixes: Vec::new(),
        waiting_may_help: removing().any(|id| id.filter().transient),
        notices: prepared.notices.clone(),
        search: None,
    }
}
