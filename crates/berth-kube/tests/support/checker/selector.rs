//! Label selectors, node selectors and tolerations, matched on the JSON itself.

use std::collections::BTreeMap;

use serde_json::Value;

/// Labels of an object.
pub(crate) type Labels = BTreeMap<String, String>;

/// The labels that stand somewhere in an object.
pub(crate) fn labels(value: Option<&Value>) -> Labels {
    let pairs = value.and_then(Value::as_object).into_iter().flatten();
    pairs.map(|(key, value)| (key.clone(), value.as_str().unwrap_or_default().to_owned())).collect()
}

/// The elements of a list that may be absent.
pub(crate) fn list<'a>(value: &'a Value, pointer: &str) -> &'a [Value] {
    value.pointer(pointer).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// A text that may be absent.
pub(crate) fn text<'a>(value: &'a Value, pointer: &str) -> &'a str {
    value.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

/// Whether labels match a label selector: absent selects nothing, empty everything.
pub(crate) fn selects(selector: Option<&Value>, labels: &Labels) -> bool {
    let Some(selector) = selector.filter(|it| !it.is_null()) else { return false };
    let pairs = selector.get("matchLabels").and_then(Value::as_object).into_iter().flatten();
    let mut pairs = pairs.map(|(key, value)| labels.get(key).map(String::as_str) == value.as_str());
    pairs.all(|it| it) && list(selector, "/matchExpressions").iter().all(|it| holds(it, labels))
}

/// Whether one requirement (`key`, `operator`, `values`) holds.
fn holds(requirement: &Value, labels: &Labels) -> bool {
    let found = labels.get(text(requirement, "/key")).map(String::as_str);
    let values = list(requirement, "/values");
    let is_listed = |it: &str| values.iter().any(|value| value.as_str() == Some(it));
    let against = || match (found.and_then(number), values) {
        (Some(found), [one]) => one.as_str().and_then(number).map(|than| found.cmp(&than)),
        _ => None,
    };
    match text(requirement, "/operator") {
        "In" => found.is_some_and(is_listed),
        "NotIn" => !found.is_some_and(is_listed),
        "Exists" => found.is_some(),
        "DoesNotExist" => found.is_none(),
        "Gt" => against().is_some_and(std::cmp::Ordering::is_gt),
        "Lt" => against().is_some_and(std::cmp::Ordering::is_lt),
        _ => false,
    }
}

fn number(text: &str) -> Option<i64> {
    text.parse().ok()
}

/// Whether a node matches one of the terms of a node selector.
pub(crate) fn selects_node(selector: &Value, name: &str, labels: &Labels) -> bool {
    let named = Labels::from([("metadata.name".to_owned(), name.to_owned())]);
    list(selector, "/nodeSelectorTerms").iter().any(|term| {
        let (by_label, by_field) = (list(term, "/matchExpressions"), list(term, "/matchFields"));
        let known = |it: &Value| text(it, "/key") == "metadata.name";
        (!by_label.is_empty() || !by_field.is_empty())
            && by_label.iter().all(|it| holds(it, labels))
            && by_field.iter().all(|it| known(it) && holds(it, &named))
    })
}

/// Whether one of the tolerations tolerates a taint.
pub(crate) fn tolerates(tolerations: &[Value], taint: &Value) -> bool {
    tolerations.iter().any(|it| {
        let same_or_any = |field: &str| {
            let wanted = text(it, field);
            wanted.is_empty() || wanted == text(taint, field)
        };
        let value = match text(it, "/operator") {
            "Exists" => true,
            "" | "Equal" => text(it, "/value") == text(taint, "/value"),
            "Gt" | "Lt" => {
                compares(text(it, "/operator"), text(it, "/value"), text(taint, "/value"))
            }
            _ => false,
        };
        value && same_or_any("/key") && same_or_any("/effect")
    })
}

/// Whether the value of a taint is greater or less than that of a toleration; both have to be written
/// as plain decimal integers.
fn compares(operator: &str, than: &str, value: &str) -> bool {
    let plain = |text: &str| {
        let digits = text.strip_prefix('-').unwrap_or(text);
        let all_digits = !digits.is_empty() && digits.bytes().all(|it| it.is_ascii_digit());
        let canonical = text == "0" || !digits.starts_with('0');
        if all_digits && canonical { text.parse::<i64>().ok() } else { None }
    };
    match (plain(than), plain(value)) {
        (Some(than), Some(value)) if operator == "Gt" => value > than,
        (Some(than), Some(value)) => value < than,
        _ => false,
    }
}
