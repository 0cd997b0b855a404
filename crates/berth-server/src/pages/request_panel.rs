//! The request of a decision: its instances, grouped by identical requests.

use askama::Template;
use berth_api::{Decision, units};
use serde_json::{Map, Value};

use super::count;

/// Instances with identical requests.
#[derive(Debug)]
struct RequestClass {
    count: String,
    cpu: String,
    memory: String,
    disk: String,
    bandwidth: String,
    /// All other requested fields, with their values.
    others: Vec<(String, String)>,
}

/// The requested instances.
#[derive(Debug, Template)]
#[template(path = "parts/request.html")]
pub(super) struct RequestPanel {
    classes: Vec<RequestClass>,
}

/// A value in one line, as people write it.
fn format_value(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Array(items) => items.iter().map(format_value).collect::<Vec<_>>().join(", "),
        Value::Object(fields) => {
            let pairs = fields.iter().map(|(key, value)| format!("{key}={}", format_value(value)));
            pairs.collect::<Vec<_>>().join(", ")
        }
        other => other.to_string(),
    }
}

fn request_class(request: &Map<String, Value>, number: i64) -> RequestClass {
    let amounts = request.get("resources");
    let amount = |name: &str| amounts.and_then(|of| of.get(name)?.as_i64()).unwrap_or(0);
    let shown = ["id", "tenant", "name", "resources"];
    let others = request.iter().filter(|(key, _)| !shown.contains(&key.as_str()));
    RequestClass {
        count: count(number),
        cpu: units::cpu(amount("cpu_milli")),
        memory: units::size(amount("memory_mib")),
        disk: units::size(amount("disk_mib")),
        bandwidth: units::bandwidth(amount("bandwidth_mbps")),
        others: others.map(|(key, value)| (key.replace('_', " "), format_value(value))).collect(),
    }
}

impl RequestPanel {
    /// The requests of a decision.
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
        Self {
            classes: classes
                .iter()
                .map(|(request, number)| request_class(request, *number))
                .collect(),
        }
    }
}
