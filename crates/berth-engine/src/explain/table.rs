//! The full picture of one choice: every node with its verdict, every term of every total.

use super::{Decision, Explanation, NodeVerdict, Term};
use crate::filter::all_failures;
use crate::fleet::NodeIndex;
use crate::model::NodeId;
use crate::policy::{Combine, ScorerId};
use crate::prepared_request::PreparedRequest;
use crate::score::{Scale, all_values, combine, term};

/// Every node with its verdict and every term, for the request as it stands.
pub(crate) fn explain_choice(prepared: &PreparedRequest<'_>, scale: &Scale) -> Explanation {
    let policy = prepared.policy;
    let mut table = Vec::new();
    let mut survivors: Vec<(NodeId, NodeIndex)> = Vec::new();
    for (id, index) in prepared.fleet.nodes_in_order() {
        let Some(row) = prepared.fleet.row(index) else {
            continue;
        };
        let mut failures = all_failures(prepared, index, row)
            .into_iter()
            .map(|(id, evidence)| (id.filter().name.into(), evidence));
        match failures.next() {
            None => survivors.push((id.clone(), index)),
            Some((filter, evidence)) => table.push(NodeVerdict::Removed {
                node: id.clone(),
                filter,
                evidence,
                others: failures.collect(),
            }),
        }
    }
    let indexes: Vec<NodeIndex> = survivors.iter().map(|(_, index)| *index).collect();
    let values = all_values(prepared, scale, &indexes);
    let mut scored: Vec<Decision> = survivors
        .iter()
        .zip(&values)
        .map(|((node, _), values)| Decision {
            node: node.clone(),
            total: i64::from(combine(policy, values)),
            terms: terms(prepared, values),
        })
        .collect();
    for decision in &scored {
        let Decision { node, total, terms } = decision.clone();
        table.push(NodeVerdict::Scored { node, total, terms });
    }
    table.sort_by(|a, b| a.node().cmp(b.node()));
    // Stable, and the nodes come in order of id: of equals the smallest id stays first.
    scored.sort_by_key(|decision| std::cmp::Reverse(decision.total));
    let mut best = scored.into_iter();
    Explanation {
        policy: policy.name.clone(),
        policy_hash: policy.hash.to_string(),
        winner: best.next(),
        runner_up: best.next(),
        table,
        notices: prepared.notices.clone(),
    }
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
    weighted
        .map(|((id, weight_permille), &value)| Term {
            scorer: id.scorer().name.into(),
            value,
            weight_permille,
            points: points(value, weight_permille),
        })
        .collect()
}
