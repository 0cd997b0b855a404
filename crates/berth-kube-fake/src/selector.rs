//! Label and field selectors, parsed strictly and matched against stored objects.

use serde_json::Value;

use crate::failure::Failure;
use crate::object;
use crate::resource::Resource;

#[derive(Clone, Debug, PartialEq)]
enum Condition {
    In(Vec<String>),
    NotIn(Vec<String>),
    Exists,
    Absent,
}

#[derive(Clone, Debug, PartialEq)]
struct Requirement {
    key: String,
    condition: Condition,
}

impl Requirement {
    fn is_met_by(&self, value: Option<&str>) -> bool {
        match &self.condition {
            Condition::In(values) => {
                value.is_some_and(|value| values.iter().any(|one| one == value))
            }
            Condition::NotIn(values) => {
                !value.is_some_and(|value| values.iter().any(|one| one == value))
            }
            Condition::Exists => value.is_some(),
            Condition::Absent => value.is_none(),
        }
    }
}

/// A label selector: all requirements must hold.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct LabelSelector(Vec<Requirement>);

impl LabelSelector {
    /// Reads the text form: `a=b,c!=d,e in (f,g),h notin (i),j,!k`.
    pub(crate) fn parse(text: &str) -> Result<Self, Failure> {
        let mut all = Vec::new();
        for part in split_outside_brackets(text) {
            all.push(parse_requirement(part).ok_or_else(|| {
                Failure::bad_request(format!("unable to parse requirement: {part:?} in {text:?}"))
            })?);
        }
        Ok(Self(all))
    }

    /// Reads the object form, `matchLabels` and `matchExpressions`. An empty selector matches all;
    /// a missing one (`null`) matches nothing, which is `None`.
    pub(crate) fn from_object(selector: &Value) -> Option<Self> {
        let selector = selector.as_object()?;
        let mut all = Vec::new();
        for (key, value) in
            selector.get("matchLabels").and_then(Value::as_object).into_iter().flatten()
        {
            let value = value.as_str().unwrap_or_default().to_owned();
            all.push(Requirement { key: key.clone(), condition: Condition::In(vec![value]) });
        }
        for term in selector.get("matchExpressions").into_iter().flat_map(object::items) {
            let values = object::items(&term["values"])
                .filter_map(Value::as_str)
                .map(str::to_owned)
                .collect();
            let condition = match term["operator"].as_str()? {
                "In" => Condition::In(values),
                "NotIn" => Condition::NotIn(values),
                "Exists" => Condition::Exists,
                "DoesNotExist" => Condition::Absent,
                _ => return None,
            };
            all.push(Requirement { key: term["key"].as_str()?.to_owned(), condition });
        }
        Some(Self(all))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether a map of labels satisfies every requirement.
    pub(crate) fn match_labels(&self, labels: &Value) -> bool {
        self.0.iter().all(|one| one.is_met_by(labels.get(&one.key).and_then(Value::as_str)))
    }

    pub(crate) fn matches(&self, value: &Value) -> bool {
        self.match_labels(&value["metadata"]["labels"])
    }
}

fn split_outside_brackets(text: &str) -> Vec<&str> {
    let (mut parts, mut depth, mut start) = (Vec::new(), 0_usize, 0_usize);
    for (at, character) in text.char_indices() {
        match character {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            ',' if depth == 0 => {
                parts.push(&text[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&text[start..]);
    if text.trim().is_empty() { Vec::new() } else { parts.into_iter().map(str::trim).collect() }
}

fn parse_requirement(part: &str) -> Option<Requirement> {
    let build = |key: &str, condition: Condition| {
        is_label_key(key.trim()).then(|| Requirement { key: key.trim().to_owned(), condition })
    };
    let one = |value: &str| is_label_value(value.trim()).then(|| vec![value.trim().to_owned()]);
    if let Some(rest) = part.strip_prefix('!') {
        return build(rest, Condition::Absent);
    }
    if let Some((key, value)) = part.split_once("!=") {
        return build(key, Condition::NotIn(one(value)?));
    }
    if let Some((key, value)) = part.split_once("==").or_else(|| part.split_once('=')) {
        return build(key, Condition::In(one(value)?));
    }
    if let Some((head, rest)) = part.split_once('(') {
        let inner = rest.trim().strip_suffix(')')?;
        let values: Vec<String> = inner.split(',').map(|value| value.trim().to_owned()).collect();
        if values.iter().any(|value| !is_label_value(value)) {
            return None;
        }
        let (key, word) = head.trim().rsplit_once(char::is_whitespace)?;
        return match word {
            "in" => build(key, Condition::In(values)),
            "notin" => build(key, Condition::NotIn(values)),
            _ => None,
        };
    }
    build(part, Condition::Exists)
}

fn is_name_part(text: &str) -> bool {
    let edge = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
    text.len() <= 63
        && edge(text.as_bytes().first())
        && edge(text.as_bytes().last())
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
}

/// Whether `text` may be the key of a label or an annotation.
pub(crate) fn is_label_key(text: &str) -> bool {
    match text.split_once('/') {
        Some((prefix, name)) => crate::names::is_subdomain(prefix) && is_name_part(name),
        None => is_name_part(text),
    }
}

/// Whether `text` may be the value of a label.
pub(crate) fn is_label_value(text: &str) -> bool {
    text.is_empty() || is_name_part(text)
}

/// A field selector.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct FieldSelector(Vec<(String, String, bool)>);

impl FieldSelector {
    /// Parses `a=b,c!=d`. Each resource supports a few fields; any other is rejected.
    pub(crate) fn parse(text: &str, resource: &Resource) -> Result<Self, Failure> {
        let mut all = Vec::new();
        for part in text.split(',').filter(|part| !part.is_empty()) {
            let (field, value, equal) = if let Some((field, value)) = part.split_once("!=") {
                (field, value, false)
            } else if let Some((field, value)) = part.split_once("==") {
                (field, value, true)
            } else if let Some((field, value)) = part.split_once('=') {
                (field, value, true)
            } else {
                let message = format!("invalid selector: {part:?}; can't understand {part:?}");
                return Err(Failure::bad_request(message));
            };
            if !is_known_field(resource, field) {
                return Err(Failure::bad_request(format!(
                    "Unable to find {:?} that match label selector \"\", field selector {text:?}: \
                     field label not supported: {field}",
                    format!("{}, Resource={}", resource.api_version(), resource.plural),
                )));
            }
            all.push((field.to_owned(), value.to_owned(), equal));
        }
        Ok(Self(all))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The only name that can match, if there is one.
    pub(crate) fn name(&self) -> Option<&str> {
        self.0
            .iter()
            .find(|(field, _, equal)| *equal && field == "metadata.name")
            .map(|(_, value, _)| value.as_str())
    }

    pub(crate) fn matches(&self, value: &Value) -> bool {
        self.0.iter().all(|(field, wanted, equal)| (field_text(value, field) == *wanted) == *equal)
    }
}

fn field_text(value: &Value, path: &str) -> String {
    let found = path.split('.').fold(value, |value, step| &value[step]);
    match found {
        Value::String(text) => text.clone(),
        Value::Bool(flag) => flag.to_string(),
        Value::Number(number) => number.to_string(),
        // The server compares the fields of its own types, where absent means the zero value.
        _ if path == "spec.unschedulable" || path == "spec.hostNetwork" => "false".into(),
        _ => String::new(),
    }
}

fn is_known_field(resource: &Resource, field: &str) -> bool {
    let more: &[&str] = match (resource.group.as_str(), resource.plural.as_str()) {
        ("", "pods") => &[
            "spec.nodeName",
            "spec.restartPolicy",
            "spec.schedulerName",
            "spec.serviceAccountName",
            "spec.hostNetwork",
            "status.phase",
            "status.podIP",
            "status.nominatedNodeName",
        ],
        ("", "nodes") => &["spec.unschedulable"],
        ("", "namespaces") => &["status.phase"],
        ("", "secrets") => &["type"],
        ("apps", "replicasets") | ("", "replicationcontrollers") => &["status.replicas"],
        ("", "events") => &[
            "involvedObject.kind",
            "involvedObject.namespace",
            "involvedObject.name",
            "involvedObject.uid",
            "involvedObject.apiVersion",
            "involvedObject.resourceVersion",
            "involvedObject.fieldPath",
            "reason",
            "reportingComponent",
            "source",
            "type",
        ],
        ("events.k8s.io", "events") => &[
            "regarding.kind",
            "regarding.namespace",
            "regarding.name",
            "regarding.uid",
            "regarding.apiVersion",
            "regarding.resourceVersion",
            "regarding.fieldPath",
            "reason",
            "reportingController",
            "type",
        ],
        _ => &[],
    };
    field == "metadata.name"
        || (field == "metadata.namespace" && resource.namespaced)
        || more.contains(&field)
}

/// The scope of a list or a watch.
#[derive(Clone, Debug, Default)]
pub(crate) struct Selection {
    pub(crate) namespace: Option<String>,
    pub(crate) labels: LabelSelector,
    pub(crate) fields: FieldSelector,
}

impl Selection {
    pub(crate) fn matches(&self, value: &Value) -> bool {
        self.namespace.as_deref().is_none_or(|namespace| object::namespace(value) == namespace)
            && self.labels.matches(value)
            && self.fields.matches(value)
    }

    /// Whether anything but the namespace restricts it.
    pub(crate) fn has_selector(&self) -> bool {
        !self.labels.is_empty() || !self.fields.is_empty()
    }
}
