//! Label selectors and node selectors: whether labels match.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1 as core;
use k8s_openapi::apimachinery::pkg::apis::meta::v1 as meta;

/// Labels of an object.
pub type Labels = BTreeMap<String, String>;

/// A requirement on one key.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Requirement {
    /// The key.
    pub key: String,
    /// The condition on its value.
    pub condition: Condition,
}

/// A condition on a value.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Condition {
    /// One of these.
    In(Vec<String>),
    /// None of these; also if the key is absent.
    NotIn(Vec<String>),
    /// The key exists.
    Present,
    /// The key does not exist.
    Absent,
    /// An integer greater than this.
    Above(i64),
    /// An integer less than this.
    Below(i64),
    /// Nothing matches: the requirement is invalid.
    Never,
}

impl Requirement {
    fn is_met_by(&self, value: Option<&str>) -> bool {
        let number = || value.and_then(|value| value.parse::<i64>().ok());
        match &self.condition {
            Condition::In(values) => value.is_some_and(|value| values.iter().any(|it| it == value)),
            Condition::NotIn(values) => {
                value.is_none_or(|value| values.iter().all(|it| it != value))
            }
            Condition::Present => value.is_some(),
            Condition::Absent => value.is_none(),
            Condition::Above(than) => number().is_some_and(|number| number > *than),
            Condition::Below(than) => number().is_some_and(|number| number < *than),
            Condition::Never => false,
        }
    }

    fn read(key: &str, operator: &str, values: Option<&Vec<String>>) -> Self {
        let list = || values.cloned().unwrap_or_default();
        let number = || match values.map(Vec::as_slice) {
            Some([one]) => one.parse::<i64>().ok(),
            _ => None,
        };
        let condition = match operator {
            "In" => Condition::In(list()),
            "NotIn" => Condition::NotIn(list()),
            "Exists" => Condition::Present,
            "DoesNotExist" => Condition::Absent,
            "Gt" => number().map_or(Condition::Never, Condition::Above),
            "Lt" => number().map_or(Condition::Never, Condition::Below),
            _ => Condition::Never,
        };
        Self { key: key.to_owned(), condition }
    }
}

/// All requirements must hold; without any, everything matches.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub struct Selector(pub Vec<Requirement>);

impl Selector {
    /// Reads a label selector. An absent one selects nothing, an empty one everything.
    #[must_use]
    pub fn read(selector: &meta::LabelSelector) -> Self {
        let labels = selector.match_labels.iter().flatten();
        let equal = labels.map(|(key, value)| Requirement {
            key: key.clone(),
            condition: Condition::In(vec![value.clone()]),
        });
        let more = selector.match_expressions.iter().flatten();
        let more = more.map(|it| Requirement::read(&it.key, &it.operator, it.values.as_ref()));
        Self(equal.chain(more).collect())
    }

    /// Whether labels match.
    #[must_use]
    pub fn matches(&self, labels: &Labels) -> bool {
        self.0.iter().all(|it| it.is_met_by(labels.get(&it.key).map(String::as_str)))
    }

    /// Adds the requirement that a key has this value.
    pub fn and_equal(&mut self, key: &str, value: &str) {
        self.0.push(Requirement {
            key: key.to_owned(),
            condition: Condition::In(vec![value.to_owned()]),
        });
    }

    /// Adds the requirement that a key does not have this value.
    pub fn and_differs(&mut self, key: &str, value: &str) {
        self.0.push(Requirement {
            key: key.to_owned(),
            condition: Condition::NotIn(vec![value.to_owned()]),
        });
    }
}

/// One of the alternatives of a node selector.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Term {
    labels: Selector,
    names: Vec<Requirement>,
}

impl Term {
    /// Reads a term.
    #[must_use]
    pub fn read(term: &core::NodeSelectorTerm) -> Self {
        let read = |it: &core::NodeSelectorRequirement| {
            Requirement::read(&it.key, &it.operator, it.values.as_ref())
        };
        let labels = term.match_expressions.iter().flatten().map(read).collect();
        // The name is the only field that is supported.
        let names = term.match_fields.iter().flatten().map(|it| {
            let mut field = read(it);
            if field.key != "metadata.name" {
                field.condition = Condition::Never;
            }
            field
        });
        Self { labels: Selector(labels), names: names.collect() }
    }

    /// Whether a node matches. An empty term matches no node.
    #[must_use]
    pub fn matches(&self, name: &str, labels: &Labels) -> bool {
        let empty = self.labels.0.is_empty() && self.names.is_empty();
        !empty
            && self.labels.matches(labels)
            && self.names.iter().all(|it| it.is_met_by(Some(name)))
    }
}

/// The alternatives of a node selector. Absent: all nodes.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub struct NodeSelector(pub Option<Vec<Term>>);

impl NodeSelector {
    /// Reads a node selector.
    #[must_use]
    pub fn read(selector: Option<&core::NodeSelector>) -> Self {
        Self(selector.map(|it| it.node_selector_terms.iter().map(Term::read).collect()))
    }

    /// Whether a node matches one of the alternatives.
    #[must_use]
    pub fn matches(&self, name: &str, labels: &Labels) -> bool {
        self.0.as_ref().is_none_or(|terms| terms.iter().any(|term| term.matches(name, labels)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(pairs: &[(&str, &str)]) -> Labels {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    fn selector(json: serde_json::Value) -> Result<Selector, serde_json::Error> {
        serde_json::from_value(json).map(|it: meta::LabelSelector| Selector::read(&it))
    }

    #[test]
    fn all_requirements_of_a_label_selector_must_hold() -> Result<(), serde_json::Error> {
        let found = labels(&[("app", "web"), ("tier", "front")]);
        let cases = [
            (serde_json::json!({}), true),
            (serde_json::json!({"matchLabels": {"app": "web"}}), true),
            (serde_json::json!({"matchLabels": {"app": "web", "tier": "back"}}), false),
            (
                serde_json::json!({"matchExpressions": [{"key": "app", "operator": "In", "values": ["web", "api"]}]}),
                true,
            ),
            (
                serde_json::json!({"matchExpressions": [{"key": "zone", "operator": "NotIn", "values": ["a"]}]}),
                true,
            ),
            (
                serde_json::json!({"matchExpressions": [{"key": "tier", "operator": "Exists"}]}),
                true,
            ),
            (
                serde_json::json!({"matchExpressions": [{"key": "tier", "operator": "DoesNotExist"}]}),
                false,
            ),
            (serde_json::json!({"matchExpressions": [{"key": "tier", "operator": "Odd"}]}), false),
        ];
        for (json, expected) in cases {
            assert_eq!(selector(json.clone())?.matches(&found), expected, "{json}");
        }
        Ok(())
    }

    #[test]
    fn node_selector_terms_are_alternatives_and_an_empty_one_matches_nothing()
    -> Result<(), serde_json::Error> {
        let found = labels(&[("cores", "16"), ("zone", "a")]);
        let read = |terms: serde_json::Value| {
            let json = serde_json::json!({ "nodeSelectorTerms": terms });
            serde_json::from_value::<core::NodeSelector>(json)
                .map(|it| NodeSelector::read(Some(&it)).matches("n1", &found))
        };
        assert!(NodeSelector::read(None).matches("n1", &found));
        assert!(!read(serde_json::json!([{}]))?);
        assert!(!read(serde_json::json!([]))?);
        let zone_b = serde_json::json!({"matchExpressions": [{"key": "zone", "operator": "In", "values": ["b"]}]});
        let more_than = |cores: &str| serde_json::json!({"matchExpressions": [{"key": "cores", "operator": "Gt", "values": [cores]}]});
        assert!(read(serde_json::json!([zone_b, more_than("8")]))?);
        assert!(!read(serde_json::json!([zone_b, more_than("16")]))?);
        let name = |name: &str| serde_json::json!([{"matchFields": [{"key": "metadata.name", "operator": "In", "values": [name]}]}]);
        assert!(read(name("n1"))?);
        assert!(!read(name("n2"))?);
        Ok(())
    }
}
