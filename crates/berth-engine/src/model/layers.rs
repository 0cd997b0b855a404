//! Who stated a fact: the node's report, the policy's defaults, or an operator.
//!
//! A node's facts are those in effect. For each field that is not as reported,
//! [`NodeFacts::overridden`] keeps what is, so that one side can change without losing the other.
//! A field is named by its path: `reserved`, `labels.hall`. All merging is done here, by
//! [`Layers::merge`].

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::ids::NodeId;
use super::node::{InvalidNode, NodeFacts};

/// Values of facts by path.
pub type FactValues = BTreeMap<String, Value>;

/// Fields whose keys are stated one by one: maps, and records of numbers.
const PER_KEY: [&str; 8] =
    ["capacity", "extra", "labels", "other", "ratios", "system_reserve", "traits", "watermarks"];

/// Fields that are in no layer: they follow from other calls, or are Berth's own.
const UNLAYERED: [&str; 8] = [
    "id",
    "state",
    "state_reason",
    "heartbeat_at",
    "policy_reserve",
    "boots",
    "load",
    "overridden",
];

/// What lies under a fact that is not as reported.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Override {
    /// What is reported; null: nothing.
    #[serde(default)]
    pub reported: Value,
    /// The policy's default for the node, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<Value>,
    /// Whether an operator set the value in effect; else the policy's is in effect.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub set: bool,
}

/// Which layer whole facts are stated for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum FactLayer {
    /// What the node reports: its agent's word, or an import's.
    #[default]
    Reported,
    /// What an operator set: it wins until it is unset.
    Set,
}

/// A change of some facts in one layer. The others stay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FactChange {
    /// Part of a report; null takes away.
    Report(FactValues),
    /// What an operator sets; null hides what is reported. Then, what is given back.
    Set {
        /// Values by path.
        values: FactValues,
        /// Paths whose reported value is in effect again; `labels` means all labels.
        unset: Vec<String>,
    },
    /// All defaults that the policy has for the node.
    Policy(FactValues),
}

/// A node's facts by who stated them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layers {
    /// What is reported, complete.
    pub reported: NodeFacts,
    /// What the policy has as defaults.
    pub policy: FactValues,
    /// What an operator set; wins.
    pub set: FactValues,
}

impl Layers {
    /// The layers of a node's facts.
    ///
    /// # Errors
    /// When what is kept of them is not facts.
    pub fn split(facts: &NodeFacts) -> Result<Self, InvalidNode> {
        let (mut policy, mut set) = (FactValues::new(), FactValues::new());
        if facts.overridden.is_empty() {
            return Ok(Self { reported: facts.clone(), policy, set });
        }
        let effective = object_of(facts)?;
        let mut reported = effective.clone();
        reported.remove("overridden");
        for (path, below) in &facts.overridden {
            if below.set {
                set.insert(path.clone(), get(&effective, path));
            }
            if let Some(value) = &below.policy {
                policy.insert(path.clone(), value.clone());
            }
            put(&mut reported, path, below.reported.clone());
        }
        // A part of the capacity is reported as nothing only if all of it is.
        let is_unknown = |(path, below): (&String, &Override)| {
            path.starts_with("capacity.") && below.reported.is_null()
        };
        if facts.overridden.iter().any(is_unknown) {
            reported.insert("capacity".to_owned(), Value::Null);
        }
        Ok(Self { reported: facts_of(&facts.id, reported)?, policy, set })
    }

    /// The facts in effect: what is set, else the policy's default, else what is reported.
    ///
    /// # Errors
    /// When a value is not one of its field.
    pub fn merge(mut self) -> Result<NodeFacts, InvalidNode> {
        self.reported.overridden = BTreeMap::new();
        if self.policy.is_empty() && self.set.is_empty() {
            return Ok(self.reported);
        }
        let reported = object_of(&self.reported)?;
        let mut object = self.below()?;
        for (path, value) in &self.set {
            put(&mut object, path, value.clone());
        }
        let mut facts = facts_of(&self.reported.id, object)?;
        for path in self.policy.keys().chain(self.set.keys()) {
            let (reported, policy) = (get(&reported, path), self.policy.get(path).cloned());
            let set = self.set.contains_key(path);
            facts.overridden.insert(path.clone(), Override { reported, policy, set });
        }
        Ok(facts)
    }

    /// What is in effect where nothing is set.
    fn below(&self) -> Result<Map<String, Value>, InvalidNode> {
        let mut below = object_of(&self.reported)?;
        for (path, value) in &self.policy {
            put(&mut below, path, value.clone());
        }
        Ok(below)
    }

    /// Whether something other than the field's default is in effect where nothing is set.
    fn has_below(&self, path: &str) -> Result<bool, InvalidNode> {
        let below = self.below()?;
        let mut without = below.clone();
        put(&mut without, path, Value::Null);
        let without = object_of(&facts_of(&self.reported.id, without)?)?;
        Ok(get(&without, path) != get(&below, path))
    }

    /// States whole facts as an operator: what differs from what lies below is set, and what was
    /// set to the same value stays so.
    fn set_all(&mut self, wanted: &NodeFacts) -> Result<(), InvalidNode> {
        let below = self.below()?;
        let wanted = object_of(wanted)?;
        let old = std::mem::take(&mut self.set);
        // A key that was taken away is taken away still, also while it is not reported.
        let hidden = old.iter().filter(|(path, value)| value.is_null() && parts(path).1.is_some());
        let hidden = hidden.map(|(path, _)| path.clone());
        let paths: BTreeSet<String> =
            paths(&below, &wanted).chain(paths(&wanted, &below)).chain(hidden).collect();
        for path in paths {
            let value = get(&wanted, &path);
            if value != get(&below, &path) || old.get(&path) == Some(&value) {
                self.set.insert(path, value);
            }
        }
        Ok(())
    }

    fn report(&mut self, values: &FactValues) -> Result<(), InvalidNode> {
        let mut object = object_of(&self.reported)?;
        for (path, value) in values {
            put(&mut object, path, value.clone());
        }
        self.reported = facts_of(&self.reported.id, object)?;
        Ok(())
    }

    fn apply(&mut self, change: &FactChange) -> Result<(), InvalidNode> {
        match change {
            FactChange::Report(values) => self.report(values)?,
            FactChange::Set { values, unset } => {
                for (path, value) in values {
                    if UNLAYERED.contains(&path.as_str()) {
                        self.report(&[(path.clone(), value.clone())].into())?;
                        continue;
                    }
                    self.set.retain(|known, _| !covers(path, known) && !covers(known, path));
                    // Taking away what is not there sets nothing.
                    if !value.is_null() || self.has_below(path)? {
                        self.set.insert(path.clone(), value.clone());
                    }
                }
                self.set.retain(|path, _| !unset.iter().any(|field| covers(field, path)));
            }
            FactChange::Policy(values) => self.policy.clone_from(values),
        }
        Ok(())
    }
}

impl NodeFacts {
    /// The facts of a node whose whole facts are stated once more for a layer: `old` is what is
    /// known now. Its state, boots and load and the policy's reserve follow from other calls.
    ///
    /// # Errors
    /// When the result cannot be stored.
    pub fn restated(self, old: Option<&Self>, layer: FactLayer) -> Result<Self, InvalidNode> {
        let mut stated = Self {
            overridden: BTreeMap::new(),
            policy_reserve: None,
            state_reason: None,
            load: None,
            ..self
        };
        let Some(old) = old else {
            return match layer {
                FactLayer::Reported => Ok(stated),
                FactLayer::Set => {
                    let reported = Self {
                        state: stated.state,
                        heartbeat_at: stated.heartbeat_at,
                        boots: stated.boots.clone(),
                        ..Self::unknown(stated.id.as_str())
                    };
                    let mut layers =
                        Layers { reported, policy: FactValues::new(), set: FactValues::new() };
                    layers.set_all(&stated)?;
                    layers.merge()
                }
            };
        };
        (stated.state, stated.policy_reserve) = (old.state, old.policy_reserve);
        stated.load = old.load;
        stated.state_reason.clone_from(&old.state_reason);
        if stated.boots.is_empty() {
            stated.boots.clone_from(&old.boots);
        }
        let mut layers = Layers::split(old)?;
        match layer {
            FactLayer::Reported => layers.reported = stated,
            FactLayer::Set => {
                layers.set_all(&stated)?;
                layers.reported.boots = stated.boots;
                layers.reported.heartbeat_at = stated.heartbeat_at;
            }
        }
        layers.merge()
    }

    /// What an operator set, by path.
    #[must_use]
    pub fn set_values(&self) -> FactValues {
        if self.overridden.is_empty() {
            return FactValues::new();
        }
        let effective = object_of(self).unwrap_or_default();
        let set = self.overridden.iter().filter(|(_, below)| below.set);
        set.map(|(path, _)| (path.clone(), get(&effective, path))).collect()
    }

    /// Whether a path names a fact that can be set: a field, or a key of one.
    #[must_use]
    pub fn has_field(path: &str) -> bool {
        let known = object_of(&Self::unknown("")).unwrap_or_default();
        let (field, _) = parts(path);
        known.contains_key(field) && !UNLAYERED.contains(&field)
    }

    /// These facts after a change of some of them.
    ///
    /// # Errors
    /// When a path or its value is not one of a node's facts.
    pub fn changed(&self, change: &FactChange) -> Result<Self, InvalidNode> {
        let mut layers = Layers::split(self)?;
        layers.apply(change)?;
        layers.merge()
    }
}

/// The values by path of a merge patch of facts. Null for a whole map takes away each of its keys.
///
/// # Errors
/// Names a field that other calls change.
pub fn values_of_patch(
    facts: &NodeFacts,
    patch: Map<String, Value>,
) -> Result<FactValues, InvalidNode> {
    let current = object_of(facts)?;
    let mut values = FactValues::new();
    for (field, value) in patch {
        if UNLAYERED.contains(&field.as_str()) && field != "boots" {
            return Err(InvalidNode::Fixed { node: facts.id.clone(), field });
        }
        let known = current.get(&field).and_then(Value::as_object);
        let is_per_key = PER_KEY.contains(&field.as_str());
        match value {
            Value::Object(keys) if is_per_key => {
                let named = |(key, value)| (format!("{field}.{key}"), value);
                values.extend(keys.into_iter().map(named));
            }
            Value::Object(keys) => {
                let mut whole = known.cloned().unwrap_or_default();
                whole.extend(keys);
                values.insert(field, Value::Object(whole));
            }
            Value::Null if is_per_key && field != "capacity" => {
                let keys = known.into_iter().flat_map(Map::keys);
                values.extend(keys.map(|key| (format!("{field}.{key}"), Value::Null)));
            }
            value => drop(values.insert(field, value)),
        }
    }
    Ok(values)
}

/// Whether a field that is named covers a path: it is the same, or the map that the path is in. The
/// label `a.b` is not in the label `a`.
fn covers(field: &str, path: &str) -> bool {
    field == path || matches!(parts(path), (map, Some(_)) if map == field)
}

/// All paths of facts; `other` decides whether a record that is absent here is one path.
fn paths<'a>(
    object: &'a Map<String, Value>,
    other: &'a Map<String, Value>,
) -> impl Iterator<Item = String> + 'a {
    let layered = object.iter().filter(|(field, _)| !UNLAYERED.contains(&field.as_str()));
    layered.flat_map(|(field, value)| match value {
        Value::Object(keys)
            if PER_KEY.contains(&field.as_str())
                && other.get(field).is_some_and(Value::is_object) =>
        {
            keys.keys().map(|key| format!("{field}.{key}")).collect()
        }
        _ => vec![field.clone()],
    })
}

/// A path as a field, and a key in it if the field is stated key by key.
fn parts(path: &str) -> (&str, Option<&str>) {
    match path.split_once('.') {
        // Names of labels and traits may contain dots.
        Some((field, key)) if PER_KEY.contains(&field) => (field, Some(key)),
        _ => (path, None),
    }
}

fn get(object: &Map<String, Value>, path: &str) -> Value {
    let (field, key) = parts(path);
    let value = object.get(field);
    let value = match key {
        Some(key) => value.and_then(|value| value.get(key)),
        None => value,
    };
    value.cloned().unwrap_or_default()
}

/// Writes a value; null removes it, so that the field has its default.
fn put(object: &mut Map<String, Value>, path: &str, value: Value) {
    let (field, key) = parts(path);
    let Some(key) = key else {
        if value.is_null() {
            object.remove(field);
        } else {
            object.insert(field.to_owned(), value);
        }
        return;
    };
    if value.is_null() {
        if let Some(Value::Object(keys)) = object.get_mut(field) {
            keys.remove(key);
        }
        return;
    }
    let keys = object.entry(field).or_insert(Value::Null);
    if !keys.is_object() {
        *keys = Value::Object(Map::new());
    }
    if let Value::Object(keys) = keys {
        keys.insert(key.to_owned(), value);
    }
}

fn object_of(facts: &NodeFacts) -> Result<Map<String, Value>, InvalidNode> {
    match serde_json::to_value(facts) {
        Ok(Value::Object(object)) => Ok(object),
        Ok(_) => Ok(Map::new()),
        Err(error) => Err(unreadable(&facts.id, &error)),
    }
}

fn facts_of(node: &NodeId, object: Map<String, Value>) -> Result<NodeFacts, InvalidNode> {
    serde_json::from_value(Value::Object(object)).map_err(|error| unreadable(node, &error))
}

fn unreadable(node: &NodeId, error: &serde_json::Error) -> InvalidNode {
    InvalidNode::Unreadable { node: node.clone(), error: error.to_string() }
}

#[cfg(test)]
#[path = "layers_tests.rs"]
mod tests;
