//! A small fleet in which one filter or scorer shows what it does.
//!
//! The reference prints what went in and what came out of the real code, so neither can drift. An
//! example must never be used to decide anything.

use serde::Serialize;
use serde_json::{Map, Value};

use super::{Policy, PolicyError};
use crate::explain::{Explanation, NodeVerdict};
use crate::fleet::Fleet;
use crate::model::{
    Amounts, Group, InstanceId, InstanceRequest, NodeFacts, NodeId, Timestamp, Volume,
};
use crate::plan::Engine;

/// Sets an example up.
pub(crate) type Example = fn(&mut Stage);

/// What an example consists of: nodes `a` and `b`, alike and empty, and a small request, unless it
/// says otherwise.
pub(crate) struct Stage {
    /// Settings of the policy, as TOML.
    pub(crate) settings: &'static str,
    /// What is asked for.
    pub(crate) request: InstanceRequest,
    /// Addresses that are left, if they are counted.
    pub(crate) free_addresses: Option<u64>,
    nodes: Vec<NodeFacts>,
    placed: Vec<(InstanceRequest, NodeId)>,
    groups: Vec<Group>,
    volumes: Vec<Volume>,
}

impl Stage {
    /// When examples happen: the first of January 2026.
    pub(crate) const NOW: Timestamp = Timestamp(1_767_225_600);

    fn new(example: Example) -> Self {
        let mut stage = Self {
            settings: "",
            request: plain_request(1),
            free_addresses: None,
            nodes: Vec::new(),
            placed: Vec::new(),
            groups: Vec::new(),
            volumes: Vec::new(),
        };
        stage.node("a", |_| {});
        stage.node("b", |_| {});
        example(&mut stage);
        stage
    }

    /// Adds a node, or changes one that is there.
    pub(crate) fn node(&mut self, id: &str, change: impl FnOnce(&mut NodeFacts)) {
        let mut facts = plain_node(id);
        change(&mut facts);
        match self.nodes.iter_mut().find(|node| node.id == facts.id) {
            Some(node) => *node = facts,
            None => self.nodes.push(facts),
        }
    }

    /// Places another instance, numbered from 2 on, which needs next to nothing unless it says so.
    pub(crate) fn place(&mut self, on: &str, change: impl FnOnce(&mut InstanceRequest)) {
        let mut request = small_request(2 + self.placed.len() as u128);
        change(&mut request);
        self.placed.push((request, NodeId::new(on)));
    }

    /// Makes a group.
    pub(crate) fn group(&mut self, group: Group) {
        self.groups.push(group);
    }

    /// Makes a volume.
    pub(crate) fn volume(&mut self, id: &str, home: &str, attached_to: Option<InstanceId>) {
        self.volumes.push(Volume {
            id: id.to_owned(),
            owner: None,
            home: NodeId::new(home),
            attached_to,
        });
    }

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

/// What a node of an example is, unless the example says otherwise.
pub(super) fn plain_node(id: &str) -> NodeFacts {
    let capacity = Amounts::new(8000, 16_384).with_disk(65_536).with_bandwidth(1000);
    let mut facts = NodeFacts::new(id, capacity);
    facts.heartbeat_at = Stage::NOW;
    facts
}

/// What an example asks for, unless it says otherwise.
pub(super) fn plain_request(number: u128) -> InstanceRequest {
    let resources = Amounts::new(1000, 2048).with_disk(4096);
    InstanceRequest::new(InstanceId::from_u128(number), "acme", resources)
}

/// An instance that hardly weighs on its node.
fn small_request(number: u128) -> InstanceRequest {
    let resources = Amounts { cpu_milli: 0, memory_mib: 1, disk_mib: 1, bandwidth_mbps: 0 };
    InstanceRequest::new(InstanceId::from_u128(number), "acme", resources)
}

/// What went into an example, and what the filter says of node `a`.
pub(super) fn filter_example(example: Example, filter: &str) -> Option<(Vec<String>, String)> {
    let stage = Stage::new(example);
    let table = stage.run("")?.table;
    let verdict = table.into_iter().find(|verdict| verdict.node().as_str() == "a")?;
    match verdict {
        NodeVerdict::Removed { filter: by, evidence, .. } if by == filter => {
            Some((stage.given(), evidence.to_string()))
        }
        NodeVerdict::Removed { .. } | NodeVerdict::Scored { .. } => None,
    }
}

/// The value of each node, in order of id.
pub(super) type Values = Vec<(NodeId, u32)>;

/// What went into an example, and the value of each node.
pub(super) fn scorer_example(example: Example, scorer: &str) -> Option<(Vec<String>, Values)> {
    let stage = Stage::new(example);
    let table = stage.run(&format!("{scorer} = 1"))?.table;
    let values = table.into_iter().filter_map(|verdict| match verdict {
        NodeVerdict::Scored { node, terms, .. } => Some((node, terms.first()?.value)),
        NodeVerdict::Removed { .. } => None,
    });
    let values: Vec<_> = values.collect();
    (values.len() == stage.nodes.len()).then(|| (stage.given(), values))
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

/// By name: whether a map keeps an order of its own depends on who else is built.
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
