//! Required node affinity: which capacity types a pod's own spec allows, and how one is required.
//!
//! Terms are alternatives, so the requirement is added to every one of them: a further term would widen
//! what the user wrote. Nothing that the user wrote is replaced or dropped. A term without expressions
//! and fields matches no node, and stays so.

use berth_engine::CapacityType;
use serde_json::{Value, json};

use super::review::Op;
use super::settings::NodeLabel;

const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";

/// The capacity types that a pod's own spec allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AllowedCapacity {
    /// Both.
    Both,
    /// Only one: the user chose.
    Only(CapacityType),
    /// Neither: the pod requires nodes that are neither.
    Neither,
}

/// The capacity types that a pod's node selector and required node affinity allow. Requirements on
/// other labels are assumed to be met by some node of either type.
pub(super) fn allowed_capacity(spec: &Value, label: &NodeLabel) -> AllowedCapacity {
    let on_demand = allows_class(spec, label, CapacityType::OnDemand);
    let spot = allows_class(spec, label, CapacityType::Spot);
    match (on_demand, spot) {
        (true, true) => AllowedCapacity::Both,
        (true, false) => AllowedCapacity::Only(CapacityType::OnDemand),
        (false, true) => AllowedCapacity::Only(CapacityType::Spot),
        (false, false) => AllowedCapacity::Neither,
    }
}

fn allows_class(spec: &Value, label: &NodeLabel, class: CapacityType) -> bool {
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
        let on_label = expressions.iter().filter(|it| it["key"] == label.key.as_str());
        !is_empty && on_label.into_iter().all(|expression| satisfies(expression, value))
    })
}

/// Whether a label with this value satisfies an expression.
fn satisfies(expression: &Value, value: &str) -> bool {
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
        // The label must not exist, or the API server would reject the operator.
        _ => false,
    }
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

/// The patch that requires a capacity type in addition to everything that is there. Empty if it is
/// already required.
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
    // Required affinity without terms matches no node: the API server reports that.
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
