//! Runs the examples of the reference through the engine.
//!
//! The reference prints the inputs and the results of the real code, so neither can drift. An
//! example must never be used to decide anything.

use serde::Serialize;
use serde_json::{Map, Value};

use crate::engine::Engine;
use crate::example::{Example, ExampleSetup, plain_node, plain_request, small_request};
use crate::explain::{Explanation, NodeVerdict};
use crate::fleet::Fleet;
use crate::model::NodeId;
use crate::policy::Policy;
use crate::policy_document::PolicyError;

impl ExampleSetup {
    /// Asks the engine for every node and every term.
    fn run(&self, weights: &str) -> Option<Explanation> {
        let policy = self.policy(weights).ok()?;
        let mut fleet = Fleet::new();
        fleet.set_free_addresses(self.free_addresses);
        for node in &self.nodes {
            fleet.add_node(node).ok()?;
        }
        self.groups.iter().for_each(|group| fleet.put_group(group.clone()));
        for (request, node) in &self.placed {
            fleet.claim(request, node).ok()?;
        }
        self.volumes.iter().for_each(|volume| fleet.put_volume(volume.clone()));
        Engine::with_fleet(fleet, policy).explain(&self.request, Self::NOW).ok()
    }

    fn policy(&self, weights: &str) -> Result<Policy, PolicyError> {
        Policy::from_toml(&format!("name = \"example\"\n{}\n[scores]\n{weights}", self.settings))
    }

    /// What differs from the plain example, one line each.
    fn given(&self) -> Vec<String> {
        let mut lines = Vec::new();
        let settings: Vec<&str> =
            self.settings.lines().filter(|line| !line.starts_with('[')).collect();
        if !settings.is_empty() {
            lines.push(format!("policy: `{}`", settings.join("`, `")));
        }
        lines.extend(self.free_addresses.map(|free| format!("free addresses: {free}")));
        for node in &self.nodes {
            let changed = changes(node, &plain_node(node.id.as_str()), &["id"]);
            if !changed.is_empty() {
                lines.push(format!("node `{}`: {}", node.id, changed.join(", ")));
            }
        }
        for group in &self.groups {
            lines.push(format!("group: {}", changes(group, &Value::Null, &[]).join(", ")));
        }
        for volume in &self.volumes {
            lines.push(format!("volume: {}", changes(volume, &Value::Null, &[]).join(", ")));
        }
        let mut stands: Vec<(String, usize)> = Vec::new();
        for (request, node) in &self.placed {
            let needs = changes(request, &small_request(0), &["id"]);
            let needs = if needs.is_empty() { "a small one".to_owned() } else { needs.join(", ") };
            let line = format!("on `{node}`: {needs}");
            match stands.iter_mut().find(|(known, _)| *known == line) {
                Some((_, times)) => *times += 1,
                None => stands.push((line, 1)),
            }
        }
        let times = |(line, times): (String, usize)| {
            if times > 1 { format!("{line}; {times} times") } else { line }
        };
        lines.extend(stands.into_iter().map(times));
        let asked = changes(&self.request, &plain_request(1), &["id"]);
        if !asked.is_empty() {
            lines.push(format!("request: {}", asked.join(", ")));
        }
        lines
    }
}

/// What went into an example, and what the filter says of node `a`.
pub(super) fn filter_example(example: Example, filter: &str) -> Option<(Vec<String>, String)> {
    let setup = ExampleSetup::new(example);
    let table = setup.run("")?.table;
    let verdict = table.into_iter().find(|verdict| verdict.node().as_str() == "a")?;
    match verdict {
        NodeVerdict::Removed { filter: by, evidence, .. } if by == filter => {
            Some((setup.given(), evidence.to_string()))
        }
        NodeVerdict::Removed { .. } | NodeVerdict::Scored { .. } => None,
    }
}

/// The value of each node, in order of id.
pub(super) type Values = Vec<(NodeId, u32)>;

/// What went into an example, and the value of each node.
pub(super) fn scorer_example(example: Example, scorer: &str) -> Option<(Vec<String>, Values)> {
    let setup = ExampleSetup::new(example);
    let table = setup.run(&format!("{scorer} = 1"))?.table;
    let values = table.into_iter().filter_map(|verdict| match verdict {
        NodeVerdict::Scored { node, terms, .. } => Some((node, terms.first()?.value)),
        NodeVerdict::Removed { .. } => None,
    });
    let values: Vec<_> = values.collect();
    (values.len() == setup.nodes.len()).then(|| (setup.given(), values))
}

/// The fields that differ from what is usual, as they stand in JSON.
fn changes(value: &impl Serialize, usual: &impl Serialize, leave_out: &[&str]) -> Vec<String> {
    let (Ok(Value::Object(value)), Ok(usual)) =
        (serde_json::to_value(value), serde_json::to_value(usual))
    else {
        return Vec::new();
    };
    let mut lines = Vec::new();
    for (key, found) in in_order(&value) {
        let was = usual.get(key).unwrap_or(&Value::Null);
        if found == was || leave_out.contains(&key.as_str()) {
            continue;
        }
        match (found, was) {
            (Value::Object(inner), Value::Object(was)) => {
                let differs = |(name, value): &(&String, &Value)| was.get(*name) != Some(*value);
                let inner = in_order(inner).into_iter().filter(differs);
                lines.extend(inner.map(|(name, value)| format!("`{key}.{name}` {}", json(value))));
            }
            _ => lines.push(format!("`{key}` {}", json(found))),
        }
    }
    lines
}

/// Entries by name: whether a map preserves insertion order depends on the features of other crates.
fn in_order(map: &Map<String, Value>) -> Vec<(&String, &Value)> {
    let mut entries: Vec<_> = map.iter().collect();
    entries.sort_unstable_by_key(|(name, _)| *name);
    entries
}

fn json(value: &Value) -> String {
    match value {
        Value::Object(map) => {
            let each = in_order(map).into_iter();
            let texts = each.map(|(name, value)| format!("\"{name}\": {}", json(value)));
            format!("{{{}}}", texts.collect::<Vec<_>>().join(", "))
        }
        Value::Array(values) => {
            format!("[{}]", values.iter().map(json).collect::<Vec<_>>().join(", "))
        }
        plain => plain.to_string(),
    }
}
