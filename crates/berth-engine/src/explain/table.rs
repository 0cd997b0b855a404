//! The full picture of one choice: nodes with their verdicts, every term of every total.

use super::{Decision, Explanation, ExplanationPage, FilterCount, NodeVerdict, Term};
use crate::filter::{FILTERS, FilterId, all_failures, first_failure};
use crate::fleet::NodeIndex;
use crate::model::{Evidence, NodeId};
use crate::policy::{Combine, Policy, ScorerId};
use crate::prepared_request::PreparedRequest;
use crate::score::{Scale, all_values, combine, notices_of, term, usual_shapes};

/// The choice, and the first nodes with their verdicts and every term, for the request as it stands.
pub(crate) fn explain_choice(
    prepared: &PreparedRequest<'_>,
    scale: &Scale,
    limit: usize,
) -> Explanation {
    let page = explain_page(prepared, scale, 0, limit);
    Explanation {
        policy: page.policy,
        policy_hash: page.policy_hash,
        winner: page.winner,
        runner_up: page.runner_up,
        nodes: page.nodes,
        eligible: page.eligible,
        table: page.items,
        next: page.next,
        notices: page.notices,
        usual_shapes: page.usual_shapes,
        positions: page.positions,
    }
}

/// A node that every filter lets through.
struct Survivor<'a> {
    id: &'a NodeId,
    position: usize,
    index: NodeIndex,
}

/// The choice, and the verdicts on `limit` nodes from a position on, in order of id. All nodes are
/// judged; only those of the page keep more than their first failure.
pub(crate) fn explain_page(
    prepared: &PreparedRequest<'_>,
    scale: &Scale,
    from: usize,
    limit: usize,
) -> ExplanationPage {
    let policy = prepared.policy;
    let is_shown = |position: usize| position >= from && position - from < limit;
    let mut removed = vec![0; FILTERS.len()];
    let (mut items, mut survivors) = (Vec::new(), Vec::new());
    let mut nodes = 0;
    for (id, index) in prepared.fleet.nodes_in_order() {
        let Some(row) = prepared.fleet.row(index) else {
            continue;
        };
        let position = nodes;
        nodes += 1;
        let failures = if is_shown(position) {
            all_failures(prepared, index, row)
        } else {
            Vec::from_iter(first_failure(prepared, index, row))
        };
        match failures.first() {
            None => survivors.push(Survivor { id, position, index }),
            Some((first, _)) => {
                removed[usize::from(first.0)] += 1;
                items.extend(is_shown(position).then(|| removed_node(id, failures)).flatten());
            }
        }
    }
    let indexes: Vec<NodeIndex> = survivors.iter().map(|node| node.index).collect();
    let values = all_values(prepared, scale, &indexes);
    let scored = |place: usize| Decision {
        node: survivors[place].id.clone(),
        total: i64::from(combine(policy, &values[place])),
        terms: terms(prepared, &values[place]),
    };
    for place in (0..survivors.len()).filter(|place| is_shown(survivors[*place].position)) {
        let Decision { node, total, terms } = scored(place);
        items.push(NodeVerdict::Scored { node, total, terms });
    }
    items.sort_by(|a, b| a.node().cmp(b.node()));
    // Stable, and the nodes come in order of id: of equals the smallest id stays first.
    let mut order: Vec<usize> = (0..survivors.len()).collect();
    order.sort_by_key(|place| std::cmp::Reverse(combine(policy, &values[*place])));
    let position = |place: &usize| survivors[*place].position;
    ExplanationPage {
        policy: policy.name.clone(),
        policy_hash: policy.hash.to_string(),
        nodes,
        eligible: survivors.len(),
        counts: counts(&removed),
        filters: in_force(policy).map(|id| id.filter().name.into()).collect(),
        winner: order.first().map(|place| scored(*place)),
        runner_up: order.get(1).map(|place| scored(*place)),
        items,
        // A position and no name: what a tenant may not see must not be in a cursor.
        next: Some(from.saturating_add(limit)).filter(|at| *at < nodes).map(|at| at.to_string()),
        notices: notices_of(prepared),
        usual_shapes: match policy.uses("slot-loss") {
            true => usual_shapes(policy, prepared.fleet).to_vec(),
            false => Vec::new(),
        },
        first: from,
        positions: [order.first().map(position), order.get(1).map(position)],
    }
}

fn in_force(policy: &Policy) -> impl Iterator<Item = FilterId> {
    FilterId::all().filter(|id| !policy.is_off(*id))
}

fn counts(removed: &[usize]) -> Vec<FilterCount> {
    let each = FilterId::all().zip(removed).filter(|(_, removed)| **removed > 0);
    each.map(|(id, &removed)| FilterCount { filter: id.filter().name.into(), removed }).collect()
}

fn removed_node(id: &NodeId, failures: Vec<(FilterId, Evidence)>) -> Option<NodeVerdict> {
    let mut failures =
        failures.into_iter().map(|(id, evidence)| (id.filter().name.into(), evidence));
    let (filter, evidence) = failures.next()?;
    Some(NodeVerdict::Removed { node: id.clone(), filter, evidence, others: failures.collect() })
}

impl NodeVerdict {
    /// The node it is about.
    #[must_use]
    pub const fn node(&self) -> &NodeId {
        match self {
            Self::Removed { node, .. } | Self::Scored { node, .. } => node,
        }
    }
}

fn terms(prepared: &PreparedRequest<'_>, values: &[u32]) -> Vec<Term> {
    let policy = prepared.policy;
    // Without preferences the term is nothing, on every node.
    let is_void = |id: ScorerId| {
        prepared.request.preferred_places.is_empty() && id.scorer().name == "preferred-place"
    };
    let weighted = policy.weights().zip(values).filter(|((id, _), _)| !is_void(*id));
    let points = |value: u32, weight: u32| match policy.combine {
        Combine::Sum => i64::from(term(value, weight)),
        // In a product a term has no points of its own; its value is its factor.
        Combine::Product => i64::from(value),
    };
    let load = prepared.fleet.load_permille();
    let by_load = |id: ScorerId| policy.depends_on_load(id).then_some(load);
    weighted
        .map(|((id, weight_permille), &value)| Term {
            scorer: id.scorer().name.into(),
            value,
            weight_permille,
            load_permille: by_load(id),
            points: points(value, weight_permille),
        })
        .collect()
}
