//! What a decision was about: the instances asked for, those that are alike together.

use askama::Template;
use berth_api::{Decision, units};
use serde_json::{Map, Value};

use super::count;

/// Instances that asked for the same.
#[derive(Debug)]
struct Alike {
    count: String,
    cpu: String,
    memory: String,
    disk: String,
    bandwidth: String,
    /// Everything else that was asked for: field and value.
    others: Vec<(String, String)>,
}

/// What was asked for.
#[derive(Debug, Template)]
#[template(path = "parts/asked.html")]
pub(super) struct Asked {
    classes: Vec<Alike>,
}

/// A value in one line, as people write it.
fn line(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Array(items) => items.iter().map(line).collect::<Vec<_>>().join(", "),
        Value::Object(fields) => {
            let pairs = fields.iter().map(|(key, value)| format!("{key}={}", line(value)));
            pairs.collect::<Vec<_>>().join(", ")
        }
        other => other.to_string(),
    }
}

fn alike(request: &Map<String, Value>, number: i64) -> Alike {
    let amounts = request.get("resources");
    let amount = |name: &str| amounts.and_then(|of| of.get(name)?.as_i64()).unwrap_or(0);
    let shown = ["id", "owner", "name", "resources"];
    let others = request.iter().filter(|(key, _)| !shown.contains(&key.as_str()));
    Alike {
        count: count(number),
        cpu: units::cpu(amount("cpu_milli")),
        memory: units::size(amount("memory_mib")),
        disk: units::size(amount("disk_mib")),
        bandwidth: units::bandwidth(amount("bandwidth_mbps")),
        others: others.map(|(key, value)| (key.replace('_', " "), line(value))).collect(),
    }
}

impl Asked {
    /// What a decision's instances asked for.
    pub(super) fn of(decision: &Decision) -> Self {
        let mut classes: Vec<(Map<String, Value>, i64)> = Vec::new();
        for request in &decision.requests {
            let mut request = request.as_object().cloned().unwrap_or_default();
            request.remove("id");
            request.remove("name");
            match classes.iter_mut().find(|(known, _)| *known == request) {
                Some((_, number)) => *number += 1,
                None => classes.push((request, 1)),
            }
        }
        Self { classes: classes.iter().map(|(request, number)| alike(request, *number)).collect() }
    }
}
