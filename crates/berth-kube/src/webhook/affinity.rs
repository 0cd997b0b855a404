//! Required node affinity: what a pod's own spec leaves possible, and how a kind of capacity is
//! added to it.
//!
//! Terms are alternatives, so the kind is added to every one of them: a further term would widen
//! what the user wrote. Nothing that the user wrote is replaced or dropped. A term without
//! expressions and fields matches no node, and stays so.

use berth_engine::CapacityType;
use serde_json::{Value, json};

use super::review::Op;
use super::settings::NodeLabel;

const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";

/// What a pod's own spec leaves possible.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Leaves {
    /// Both kinds.
    Both,
    /// One kind only: the user chose.
    Only(CapacityType),
    /// Neither: the pod asks for nodes that are neither.
    Neither,
}

/// What a pod's spec leaves possible, by its node selector and its required node affinity. Rules
/// about other labels are taken to be fulfilled by some node of either kind.
pub(super) fn leaves(spec: &Value, label: &NodeLabel) -> Leaves {
    let on_demand = admits(spec, label, CapacityType::OnDemand);
    let spot = admits(spec, label, CapacityType::Spot);
    match (on_demand, spot) {
        (true, true) => Leaves::Both,
        (true, false) => Leaves::Only(CapacityType::OnDemand),
        (false, true) => Leaves::Only(CapacityType::Spot),
        (false, false) => Leaves::Neither,
    }
}

fn admits(spec: &Value, label: &NodeLabel, class: CapacityType) -> bool {
    let value = label.value(class);
    let selected = spec["nodeSelector"].get(&label.key).filter(|it| !it.is_null());
    if selected.is_some_and(|wanted| wanted != value) {
        return false;
    }
    let required = &spec["affinity"]["nodeAffinity"][REQUIRED];
    if !required.is_object() {
        return true;
    }
    list(&required["nodeSelectorTerms"]).iter().any(|term| {
        let expressions = list(&term["matchExpressions"]);
        let is_empty = expressions.is_empty() && list(&term["matchFields"]).is_empty();
        let about_kind = expressions.iter().filter(|it| it["key"] == label.key.as_str());
        !is_empty && about_kind.into_iter().all(|expression| matches(expression, value))
    })
}

/// Whether a label with this value fulfils an expression, as Kubernetes reads it.
fn matches(expression: &Value, value: &str) -> bool {
    let values = list(&expression["values"]);
    let listed = values.iter().any(|it| it == value);
    let bound = || values.first()?.as_str()?.parse::<i64>().ok();
    let number = || value.parse::<i64>().ok();
    match expression["operator"].as_str() {
        Some("In") => listed,
        Some("NotIn") => !listed,
        Some("Exists") => true,
        Some("Gt") => number().zip(bound()).is_some_and(|(has, bound)| has > bound),
        Some("Lt") => number().zip(bound()).is_some_and(|(has, bound)| has < bound),
        // It must not be there, or is none that the API server would take.
        _ => false,
    }
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

/// The steps that make a kind of capacity required beside everything that is there. Where it is
/// required already, there is none.
pub(super) fn require(spec: &Value, label: &NodeLabel, class: CapacityType) -> Vec<Op> {
    let expression = json!({ "key": label.key, "operator": "In", "values": [label.value(class)] });
    let add = |path: String, value: Value| vec![Op::Add { path, value }];
    let required = json!({ "nodeSelectorTerms": [{ "matchExpressions": [expression.clone()] }] });
    let affinity = &spec["affinity"];
    if !affinity.is_object() {
        let value = json!({ "nodeAffinity": { REQUIRED: required } });
        return add("/spec/affinity".to_owned(), value);
    }
    let node_affinity = &affinity["nodeAffinity"];
    if !node_affinity.is_object() {
        return add("/spec/affinity/nodeAffinity".to_owned(), json!({ REQUIRED: required }));
    }
    if !node_affinity[REQUIRED].is_object() {
        return add(format!("/spec/affinity/nodeAffinity/{REQUIRED}"), required);
    }
    // Required terms of which there are none match no node: the API server says so, not we.
    let terms = list(&node_affinity[REQUIRED]["nodeSelectorTerms"]);
    let at = format!("/spec/affinity/nodeAffinity/{REQUIRED}/nodeSelectorTerms");
    let steps = terms.iter().enumerate().filter_map(|(place, term)| {
        let expressions = list(&term["matchExpressions"]);
        let fields = list(&term["matchFields"]);
        if expressions.contains(&expression) {
            return None;
        }
        if !expressions.is_empty() {
            let path = format!("{at}/{place}/matchExpressions/-");
            return Some(Op::Add { path, value: expression.clone() });
        }
        let path = format!("{at}/{place}/matchExpressions");
        (!fields.is_empty()).then(|| Op::Add { path, value: json!([expression]) })
    });
    steps.collect()
}

#[cfg(test)]
mod tests;
