//! Changes of workloads: what kind of change, and field by field.

use berth_api::{NewWorkload, Workload, units};
use serde_json::Value;

/// The kind of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    Created,
    /// The template changed: there is a new revision.
    Revision(i64),
    /// Only the number of replicas changed.
    Scaled(u32, u32),
    /// Something else changed.
    Changed,
    Unchanged,
}

impl Change {
    /// The change from the stored workload to a new specification.
    pub(crate) fn between(before: Option<&Workload>, new: &NewWorkload) -> Self {
        let Some(before) = before else { return Self::Created };
        let spec = &before.spec;
        if spec == new {
            return Self::Unchanged;
        }
        let same = (&spec.template, &spec.pools, &spec.release)
            == (&new.template, &new.pools, &new.release);
        if !same {
            return Self::Revision(before.revision + 1);
        }
        let scaled = NewWorkload { replicas: new.replicas, ..spec.clone() };
        match (spec.replicas, new.replicas) {
            (Some(from), Some(to)) if scaled == *new => Self::Scaled(from, to),
            _ => Self::Changed,
        }
    }

    /// Its name, for scripts.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Created => "created",
            Self::Revision(_) => "new_revision",
            Self::Scaled(..) => "scaled",
            Self::Changed => "changed",
            Self::Unchanged => "unchanged",
        }
    }
}

impl std::fmt::Display for Change {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Created => f.write_str("created"),
            Self::Revision(revision) => write!(f, "changed (revision {revision})"),
            Self::Scaled(from, to) => write!(f, "scaled {from} → {to}"),
            Self::Changed => f.write_str("changed"),
            Self::Unchanged => f.write_str("unchanged"),
        }
    }
}

/// A changed field.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub(crate) struct Field {
    /// The path of the field: `template.image`.
    pub(crate) field: String,
    /// The old value; none when it is new.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) from: Option<String>,
    /// The new value; none when it is removed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) to: Option<String>,
}

impl std::fmt::Display for Field {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let dash = || "-".to_owned();
        let (from, to) = (self.from.clone(), self.to.clone());
        let (from, to) = (from.unwrap_or_else(dash), to.unwrap_or_else(dash));
        write!(f, "{}: {from} → {to}", self.field)
    }
}

/// The fields that differ between two values of the same type, in order of name.
pub(crate) fn fields<T: serde::Serialize>(before: &T, after: &T) -> Vec<Field> {
    let value = |it: &T| serde_json::to_value(it).unwrap_or(Value::Null);
    let mut found = Vec::new();
    compare(String::new(), Some(&value(before)), Some(&value(after)), &mut found);
    found
}

fn compare(name: String, before: Option<&Value>, after: Option<&Value>, found: &mut Vec<Field>) {
    if before == after {
        return;
    }
    let below = |value: Option<&Value>| match value {
        Some(Value::Object(map)) => Some(map.clone()),
        // A missing value is compared field by field, as if it were empty.
        None => Some(serde_json::Map::new()),
        Some(_) => None,
    };
    let is_map = [before, after].into_iter().flatten().all(Value::is_object);
    match (below(before), below(after)) {
        (Some(old), Some(new)) if is_map => {
            let mut keys: Vec<&String> = old.keys().chain(new.keys()).collect();
            keys.sort();
            keys.dedup();
            for key in keys {
                let name = if name.is_empty() { key.clone() } else { format!("{name}.{key}") };
                compare(name, old.get(key), new.get(key), found);
            }
        }
        _ => {
            let (name, text) = display_of(&name);
            let (from, to) = (before.map(text), after.map(text));
            found.push(Field { field: name, from, to });
        }
    }
}

/// The name of a field and the format of its value: amounts have units.
fn display_of(name: &str) -> (String, fn(&Value) -> String) {
    type Text = fn(&Value) -> String;
    const AMOUNTS: [(&str, &str, Text); 4] = [
        ("cpu_milli", "cpu", |value| amount(value, units::cpu_exact)),
        ("memory_mib", "memory", |value| amount(value, units::size_exact)),
        ("disk_mib", "disk", |value| amount(value, units::size_exact)),
        ("bandwidth_mbps", "bandwidth", |value| amount(value, units::bandwidth_exact)),
    ];
    for (api_field, field, text) in AMOUNTS {
        if let Some(above) = name.strip_suffix(api_field) {
            return (format!("{above}{field}"), text);
        }
    }
    (name.to_owned(), plain)
}

fn amount(value: &Value, text: fn(i64) -> String) -> String {
    value.as_i64().map_or_else(|| plain(value), text)
}

fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn new(text: &str) -> NewWorkload {
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn fields_that_differ_are_named_with_amounts_as_people_type_them() {
        let before =
            new(r#"{"replicas":3,"template":{"image":"a","resources":{"memory_mib":1024}}}"#);
        let after = new(
            r#"{"replicas":5,"template":{"resources":{"memory_mib":2048},"tags":{"role":"web"}},
                "capacity":{"max_on_demand":3}}"#,
        );
        let said: Vec<String> = fields(&before, &after).iter().map(ToString::to_string).collect();
        assert_eq!(
            said,
            [
                "capacity.at_least_one_of_each: - → false",
                "capacity.enabled: - → true",
                "capacity.max_on_demand: - → 3",
                "capacity.mode: - → strict",
                "capacity.on_change: - → rebuild",
                "replicas: 3 → 5",
                "template.image: a → -",
                "template.resources.memory: 1GiB → 2GiB",
                "template.tags.role: - → web",
            ]
        );
        assert!(fields(&before, &before).is_empty());
    }
}
