//! How two policies differ, key by key.

use std::collections::{BTreeMap, BTreeSet};

use berth_api::PolicyChange;
use serde_json::Value;

/// What differs, in order of key.
pub(super) fn changes(from: &Value, to: &Value) -> Vec<PolicyChange> {
    let (from, to) = (flat(from), flat(to));
    let keys: BTreeSet<&String> = from.keys().chain(to.keys()).collect();
    let differing = keys.into_iter().filter(|key| from.get(*key) != to.get(*key));
    let change = |key: &String| PolicyChange {
        key: key.clone(),
        from: from.get(key).map(|value| (*value).clone()),
        to: to.get(key).map(|value| (*value).clone()),
    };
    differing.map(change).collect()
}

/// Values by the path that leads to them: `filters.cpu`. A list is one value.
fn flat(value: &Value) -> BTreeMap<String, &Value> {
    let mut found = BTreeMap::new();
    let mut open = vec![(String::new(), value)];
    while let Some((path, value)) = open.pop() {
        match value {
            Value::Object(inner) if !inner.is_empty() || path.is_empty() => {
                let join = |key: &String| match path.as_str() {
                    "" => key.clone(),
                    path => format!("{path}.{key}"),
                };
                open.extend(inner.iter().map(|(key, value)| (join(key), value)));
            }
            value => drop(found.insert(path, value)),
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_what_differs_is_named_by_its_path() {
        let from = json!({"name": "a", "scores": {"x": 1, "y": 2}, "filters": {"off": ["p"]}});
        let to = json!({"name": "a", "scores": {"x": 3, "z": 2}, "filters": {"off": []}});
        let found = changes(&from, &to);
        let texts: Vec<String> = found
            .iter()
            .map(|change| {
                let text = |value: &Option<Value>| {
                    value.as_ref().map_or_else(|| "-".to_owned(), Value::to_string)
                };
                format!("{} {} {}", change.key, text(&change.from), text(&change.to))
            })
            .collect();
        assert_eq!(
            texts,
            ["filters.off [\"p\"] []", "scores.x 1 3", "scores.y 2 -", "scores.z - 2"]
        );
        assert_eq!(changes(&from, &from), []);
    }
}
