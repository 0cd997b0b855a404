//! Diagnosis of a refusal: which filter removed which node, which node came closest, and which single
//! filter matters most.

use super::failure_sets::{FailureSets, FilterSet};
use super::{FilterCount, NearestMiss, Refusal};
use crate::filter::{FILTERS, FilterId, FilterTest, all_failures};
use crate::fleet::{NodeIndex, NodeRow};
use crate::model::{Demand, Evidence, NodeId, Room, Used};
use crate::prepared_request::PreparedRequest;

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
    /// Nodes that only filters of room keep out.
    pub(crate) lack_only_room: Vec<NodeIndex>,
    /// Whether some node could take it by itself: once others have left, or its state has changed.
    waiting_may_help: bool,
}

/// How far a node is from passing; smaller is closer. Ties are decided by the order of ids.
type Closeness = i64;

/// Judges every node and notes which filters keep it out.
pub(crate) fn diagnose(prepared: &PreparedRequest<'_>) -> Diagnosis {
    let filters = FILTERS.len();
    let mut diagnosis = Diagnosis {
        removed: vec![0; filters],
        nearest: vec![None; filters],
        only: vec![0; filters],
        sets: FailureSets::default(),
        lack_only_room: Vec::new(),
        waiting_may_help: false,
    };
    for (id, index) in prepared.fleet.nodes_in_order() {
        diagnosis.inspect_node(prepared, id, index);
    }
    diagnosis
}

impl Diagnosis {
    fn inspect_node(&mut self, prepared: &PreparedRequest<'_>, id: &NodeId, index: NodeIndex) {
        let Some(row) = prepared.fleet.row(index) else {
            return;
        };
        let failures = all_failures(prepared, index, row);
        let of_room = |(filter, _): &(FilterId, Evidence)| {
            matches!(filter.filter().test, FilterTest::Load(_))
        };
        if !failures.is_empty() && failures.iter().all(of_room) {
            self.lack_only_room.push(index);
        }
        if let [(single, _)] = failures.as_slice() {
            let place = usize::from(single.0);
            self.only[place] += 1;
        }
        let failed = failures.iter().fold(FilterSet::default(), |set, (id, _)| set.with(*id));
        self.sets.note(failed, index);
        self.waiting_may_help = self.waiting_may_help
            || (failures.iter().all(|(id, _)| id.filter().transient)
                && holds_when_empty(prepared, row));
        if let Some((first, evidence)) = failures.into_iter().next() {
            let place = usize::from(first.0);
            self.removed[place] += 1;
            let closeness = evidence.shortfall().unwrap_or(0);
            let nearest = &mut self.nearest[place];
            if nearest.as_ref().is_none_or(|(least, _, _)| closeness < *least) {
                *nearest = Some((closeness, id.clone(), evidence));
            }
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
        waiting_may_help: diagnosis.waiting_may_help,
        notices: prepared.notices.clone(),
        search: None,
    }
}

/// Whether a node has room for the request when nothing else is on it.
fn holds_when_empty(prepared: &PreparedRequest<'_>, row: &NodeRow) -> bool {
    let empty = Room { used: Used::default(), ..row.room() };
    let demand = Demand::new(prepared.request, prepared.policy);
    let texts = prepared.fleet.texts();
    let mut classes = prepared.request.extra.iter();
    empty.first_lack(&demand).is_none()
        && classes.all(|(name, &wanted)| {
            let class = row.extra.iter().find(|class| texts.text(class.name) == name);
            wanted <= class.map_or(0, |class| class.limit)
        })
}
