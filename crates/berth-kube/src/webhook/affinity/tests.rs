//! Every shape of affinity against an evaluator that knows nothing of the code it checks.

use super::*;

/// Nodes to try a pod on: every combination of the kind, a zone, an architecture and a name.
fn nodes() -> Vec<Vec<(&'static str, &'static str)>> {
    let mut nodes = Vec::new();
    for kind in [Some("on-demand"), Some("spot"), Some("reserved"), None] {
        for zone in ["a", "b"] {
            for arch in ["amd64", "arm64"] {
                for name in ["n1", "n2"] {
                    let mut node = vec![("zone", zone), ("arch", arch), ("metadata.name", name)];
                    node.extend(kind.map(|kind| ("node.kubernetes.io/capacity", kind)));
                    nodes.push(node);
                }
            }
        }
    }
    nodes
}

fn has<'a>(node: &'a [(&str, &'a str)], key: &str) -> Option<&'a str> {
    node.iter().find(|(name, _)| *name == key).map(|(_, value)| *value)
}

/// Whether a node fulfils a requirement; written from the documentation of node affinity.
fn fulfils(node: &[(&str, &str)], requirement: &Value) -> bool {
    let value = has(node, requirement["key"].as_str().unwrap());
    let empty = Vec::new();
    let values = requirement["values"].as_array().unwrap_or(&empty);
    let among = |value: &str| values.iter().any(|it| it.as_str() == Some(value));
    match requirement["operator"].as_str().unwrap() {
        "In" => value.is_some_and(among),
        "NotIn" => !value.is_some_and(among),
        "Exists" => value.is_some(),
        "DoesNotExist" => value.is_none(),
        other => panic!("{other}"),
    }
}

/// Whether a pod may be on a node.
fn may_be_on(spec: &Value, node: &[(&str, &str)]) -> bool {
    for (key, value) in spec["nodeSelector"].as_object().into_iter().flatten() {
        if has(node, key) != value.as_str() {
            return false;
        }
    }
    let required =
        &spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"];
    if required.is_null() {
        return true;
    }
    let empty = Vec::new();
    let all = |list: &Value| {
        list.as_array().unwrap_or(&empty).iter().all(|requirement| fulfils(node, requirement))
    };
    let none = |list: &Value| list.as_array().is_none_or(Vec::is_empty);
    required["nodeSelectorTerms"].as_array().unwrap_or(&empty).iter().any(|term| {
        let nothing = none(&term["matchExpressions"]) && none(&term["matchFields"]);
        !nothing && all(&term["matchExpressions"]) && all(&term["matchFields"])
    })
}

/// Does a patch the way a JSON patch is done: additions to objects and to the end of lists.
fn patched(spec: &Value, ops: &[Op]) -> Value {
    let mut pod = json!({ "spec": spec });
    for Op::Add { path, value } in ops {
        let (parent, last) = path.rsplit_once('/').unwrap();
        let parent = pod.pointer_mut(parent).unwrap_or_else(|| panic!("no {parent}"));
        match parent {
            Value::Array(list) if last == "-" => list.push(value.clone()),
            Value::Object(map) => drop(map.insert(last.to_owned(), value.clone())),
            other => panic!("{path}: {other}"),
        }
    }
    pod["spec"].clone()
}

fn shapes() -> Vec<Value> {
    let zone = json!({ "key": "zone", "operator": "In", "values": ["a"] });
    let arch = json!({ "key": "arch", "operator": "NotIn", "values": ["arm64"] });
    let kind = |operator: &str, values: Value| json!({ "key": "node.kubernetes.io/capacity", "operator": operator, "values": values });
    let field = json!({ "key": "metadata.name", "operator": "In", "values": ["n1"] });
    let terms = |terms: Value| json!({ "affinity": { "nodeAffinity": { REQUIRED: { "nodeSelectorTerms": terms } } } });
    vec![
        json!({}),
        json!({ "affinity": null }),
        json!({ "affinity": {} }),
        json!({ "affinity": { "podAntiAffinity": {} } }),
        json!({ "affinity": { "nodeAffinity": null } }),
        json!({ "affinity": { "nodeAffinity": {} } }),
        json!({ "affinity": { "nodeAffinity": { REQUIRED: null } } }),
        json!({ "affinity": { "nodeAffinity": {
            "preferredDuringSchedulingIgnoredDuringExecution": [
                { "weight": 1, "preference": { "matchExpressions": [zone] } }
            ],
        } } }),
        json!({ "nodeSelector": { "zone": "b" } }),
        terms(json!([])),
        terms(json!([{ "matchExpressions": [zone] }])),
        terms(json!([{ "matchExpressions": [zone, arch] }, { "matchExpressions": [arch] }])),
        terms(json!([{ "matchFields": [field] }])),
        terms(json!([{ "matchFields": [field], "matchExpressions": [] }])),
        terms(json!([{ "matchFields": [field], "matchExpressions": null }])),
        terms(json!([{ "matchFields": [field], "matchExpressions": [zone] }, {}])),
        terms(json!([{}])),
        terms(json!([{ "matchExpressions": [] }, { "matchExpressions": [zone] }])),
        terms(json!([{ "matchExpressions": [kind("In", json!(["on-demand", "spot"]))] }])),
        terms(json!([{ "matchExpressions": [kind("Exists", Value::Null)] }])),
        terms(json!([
            { "matchExpressions": [kind("In", json!(["spot"])), zone] },
            { "matchExpressions": [arch] },
        ])),
        terms(json!([{ "matchExpressions": [kind("NotIn", json!(["spot"])), zone] }, {}])),
        terms(json!([{ "matchExpressions": [kind("DoesNotExist", Value::Null)] }])),
    ]
}

#[test]
fn after_the_patch_only_nodes_of_the_capacity_type_remain_allowed() {
    let label = NodeLabel::default();
    for spec in shapes() {
        for class in [CapacityType::OnDemand, CapacityType::Spot] {
            let after = patched(&spec, &require(&spec, &label, class));
            for node in nodes() {
                let kind = has(&node, "node.kubernetes.io/capacity");
                let expected = may_be_on(&spec, &node) && kind == Some(class.name());
                assert_eq!(may_be_on(&after, &node), expected, "{class:?} {spec} {node:?}");
            }
            assert_eq!(require(&after, &label, class), [], "a second time: {after}");
        }
    }
}

#[test]
fn nothing_that_the_user_wrote_is_lost() {
    /// Whether everything in the first is in the second, and lists keep their beginning.
    fn holds(before: &Value, after: &Value) -> bool {
        match (before, after) {
            (Value::Object(before), Value::Object(after)) => {
                before.iter().all(|(key, it)| it.is_null() || holds(it, &after[key]))
            }
            (Value::Array(before), Value::Array(after)) => {
                before.len() <= after.len() && before.iter().zip(after).all(|(a, b)| holds(a, b))
            }
            (before, after) => before == after,
        }
    }
    for spec in shapes() {
        let ops = require(&spec, &NodeLabel::default(), CapacityType::Spot);
        let after = patched(&spec, &ops);
        assert!(holds(&spec, &after), "{spec} became {after}");
    }
}

#[test]
fn a_spec_that_allows_one_capacity_type_is_recognized() {
    let only = |class| AllowedCapacity::Only(class);
    let (on_demand, spot) = (only(CapacityType::OnDemand), only(CapacityType::Spot));
    let key = "node.kubernetes.io/capacity";
    let selector = |value: &str| json!({ "nodeSelector": { key: value } });
    let term = |operator: &str, values: Value| {
        let expression = json!({ "key": key, "operator": operator, "values": values });
        let terms = json!([{ "matchExpressions": [expression] }]);
        json!({ "affinity": { "nodeAffinity": { REQUIRED: { "nodeSelectorTerms": terms } } } })
    };
    let cases = [
        (json!({}), AllowedCapacity::Both),
        (selector("spot"), spot),
        (selector("on-demand"), on_demand),
        (selector("reserved"), AllowedCapacity::Neither),
        (term("In", json!(["spot"])), spot),
        (term("In", json!(["spot", "reserved"])), spot),
        (term("In", json!(["spot", "on-demand"])), AllowedCapacity::Both),
        (term("NotIn", json!(["spot"])), on_demand),
        (term("NotIn", json!(["spot", "on-demand"])), AllowedCapacity::Neither),
        (term("Exists", Value::Null), AllowedCapacity::Both),
        (term("DoesNotExist", Value::Null), AllowedCapacity::Neither),
        (term("Gt", json!(["3"])), AllowedCapacity::Neither),
    ];
    for (spec, expected) in cases {
        assert_eq!(allowed_capacity(&spec, &NodeLabel::default()), expected, "{spec}");
    }
    let mut both = term("In", json!(["spot"]));
    both["nodeSelector"] = json!({ key: "on-demand" });
    assert_eq!(allowed_capacity(&both, &NodeLabel::default()), AllowedCapacity::Neither);
}

#[test]
fn numeric_capacity_types_are_compared_as_numbers() {
    let label =
        NodeLabel { key: "tier".to_owned(), on_demand: "10".to_owned(), spot: "2".to_owned() };
    let expression = json!({ "key": "tier", "operator": "Gt", "values": ["5"] });
    let terms = json!([{ "matchExpressions": [expression] }]);
    let spec =
        json!({ "affinity": { "nodeAffinity": { REQUIRED: { "nodeSelectorTerms": terms } } } });
    assert_eq!(allowed_capacity(&spec, &label), AllowedCapacity::Only(CapacityType::OnDemand));
}

#[test]
fn the_node_label_is_configurable() {
    let label = NodeLabel {
        key: "eks.amazonaws.com/capacityType".to_owned(),
        on_demand: "ON_DEMAND".to_owned(),
        spot: "SPOT".to_owned(),
    };
    let Op::Add { value, .. } = &require(&json!({}), &label, CapacityType::Spot)[0];
    let expression = &value["nodeAffinity"][REQUIRED]["nodeSelectorTerms"][0]["matchExpressions"];
    let expected = json!([{
        "key": "eks.amazonaws.com/capacityType", "operator": "In", "values": ["SPOT"],
    }]);
    assert_eq!(*expression, expected);
}
