//! Layers of facts: what wins, what comes back, and what stays when the other side changes.

use serde_json::json;

use super::super::amounts::{Amounts, Ratios};
use super::super::ids::Timestamp;
use super::super::node::{BootOutcome, TraitValue};
use super::super::node_state::NodeState;
use super::*;

fn reported() -> NodeFacts {
    let mut facts = NodeFacts::new("n", Amounts::new(8000, 16_384));
    facts.zone = Some("z1".to_owned());
    facts.labels.insert("hall".to_owned(), "1".to_owned());
    facts.labels.insert("kernel".to_owned(), "6.1".to_owned());
    facts.traits.insert("ssd".to_owned(), TraitValue::Bool(true));
    facts
}

fn set(values: &[(&str, Value)]) -> FactChange {
    let values = values.iter().map(|(path, value)| ((*path).to_owned(), value.clone()));
    FactChange::Set { values: values.collect(), unset: Vec::new() }
}

fn unset(fields: &[&str]) -> FactChange {
    let unset = fields.iter().map(|&field| field.to_owned()).collect();
    FactChange::Set { values: FactValues::new(), unset }
}

#[test]
fn every_value_that_is_set_survives_a_report_and_is_given_back_by_unset() {
    let cases = [
        ("reserved", json!(true)),
        ("next_reboot", json!(1_800_000_000)),
        ("hardware_class", json!(-3)),
        ("zone", json!("z9")),
        ("rack", json!("r9")),
        ("labels.hall", json!("7")),
        ("labels.new.name", json!("x")),
        ("traits.ssd", json!(["a", "b"])),
        ("extra.gpu", json!(4)),
        ("instance_limit", json!(3)),
        ("vmm_overhead_mib", json!(128)),
        ("ratios.cpu_permille", json!(2000)),
        ("system_reserve.memory_mib", json!(2048)),
        ("capacity.cpu_milli", json!(4000)),
        ("watermarks.memory_permille", json!(700)),
        ("capacity_type", json!("spot")),
        ("cpu_cap_mode", json!("capped")),
        ("networks", json!([{"tag": "lan", "link": "up"}])),
        ("platform", json!({"version": "7.1", "built_at": 5})),
        ("kvm", json!(false)),
        ("headnode", json!(true)),
    ];
    for (path, value) in cases {
        let before = reported();
        let now = before.changed(&set(&[(path, value.clone())])).unwrap();
        assert_eq!(get(&object_of(&now).unwrap(), path), value, "{path} is in effect");
        let again = reported().restated(Some(&now), FactLayer::Reported).unwrap();
        assert_eq!(again, now, "{path} survives a report");
        assert_eq!(Layers::split(&now).unwrap().reported, before, "{path} hides what is reported");
        let stored = serde_json::to_string(&now).unwrap();
        assert_eq!(serde_json::from_str::<NodeFacts>(&stored).unwrap(), now, "{path} is stored");
        assert_eq!(now.changed(&unset(&[path])).unwrap(), before, "{path} is given back");
    }
}

#[test]
fn a_report_changes_what_was_not_set_and_what_unset_gives_back() {
    let now = reported().changed(&set(&[("zone", json!("z9")), ("labels.hall", json!("7"))]));
    let mut next = reported();
    next.zone = Some("z2".to_owned());
    next.labels =
        [("hall".to_owned(), "2".to_owned()), ("kernel".to_owned(), "6.6".to_owned())].into();
    next.capacity = Some(Amounts::new(16_000, 32_768));
    let now = next.clone().restated(Some(&now.unwrap()), FactLayer::Reported).unwrap();
    assert_eq!(now.zone.as_deref(), Some("z9"));
    assert_eq!(now.labels["hall"], "7");
    assert_eq!(now.labels["kernel"], "6.6");
    assert_eq!(now.capacity, Some(Amounts::new(16_000, 32_768)));
    let back = now.changed(&unset(&["zone", "labels"])).unwrap();
    assert_eq!(back, next);
}

#[test]
fn null_hides_what_is_reported_and_sets_nothing_where_nothing_is() {
    let now = reported().changed(&set(&[("labels.hall", Value::Null), ("zone", Value::Null)]));
    let now = now.unwrap();
    assert!(now.zone.is_none() && !now.labels.contains_key("hall"));
    let again = reported().restated(Some(&now), FactLayer::Reported).unwrap();
    assert_eq!(again, now);
    assert_eq!(now.changed(&unset(&["zone", "labels.hall"])).unwrap(), reported());
    let same = reported().changed(&set(&[("labels.absent", Value::Null), ("rack", Value::Null)]));
    assert_eq!(same.unwrap(), reported());
}

#[test]
fn what_is_hidden_stays_hidden_when_it_is_not_reported_for_a_while() {
    let now = reported().changed(&set(&[("labels.hall", Value::Null), ("zone", Value::Null)]));
    let mut without = reported();
    without.labels.remove("hall");
    without.zone = None;
    let now = without.restated(Some(&now.unwrap()), FactLayer::Reported).unwrap();
    let again = reported().restated(Some(&now), FactLayer::Reported).unwrap();
    assert!(again.zone.is_none() && !again.labels.contains_key("hall"), "{again:?}");
    // An operator who states what is in effect changes nothing.
    let stated = now.clone().restated(Some(&now), FactLayer::Set).unwrap();
    let again = reported().restated(Some(&stated), FactLayer::Reported).unwrap();
    assert!(!again.labels.contains_key("hall"), "{again:?}");
    assert_eq!(again.changed(&unset(&["zone", "labels"])).unwrap(), reported());
}

#[test]
fn a_name_that_begins_like_another_is_another() {
    let values = [("labels.app", json!("a")), ("labels.app.tier", json!("b"))];
    let one_by_one = |order: [usize; 2]| {
        order
            .iter()
            .fold(reported(), |facts, &place| facts.changed(&set(&values[place..=place])).unwrap())
    };
    for facts in [one_by_one([0, 1]), one_by_one([1, 0])] {
        assert_eq!((facts.labels["app"].as_str(), facts.labels["app.tier"].as_str()), ("a", "b"));
        let facts = facts.changed(&unset(&["labels.app"])).unwrap();
        assert_eq!(facts.labels.get("app"), None);
        assert_eq!(facts.labels["app.tier"], "b", "another label stays set");
    }
}

#[test]
fn an_operators_whole_facts_are_in_effect_and_only_differences_are_set() {
    let mut wanted = reported();
    wanted.reserved = true;
    wanted.labels.remove("kernel");
    wanted.capacity = None;
    let now = wanted.clone().restated(Some(&reported()), FactLayer::Set).unwrap();
    let paths: Vec<&str> = now.overridden.keys().map(String::as_str).collect();
    assert_eq!(paths, ["capacity", "labels.kernel", "reserved"]);
    assert_eq!(NodeFacts { overridden: BTreeMap::new(), ..now.clone() }, wanted);
    let again = reported().restated(Some(&now), FactLayer::Reported).unwrap();
    assert_eq!(again, now);
    let new = wanted.clone().restated(None, FactLayer::Set).unwrap();
    assert_eq!(NodeFacts { overridden: BTreeMap::new(), ..new.clone() }, wanted);
    let agent = reported().restated(Some(&new), FactLayer::Reported).unwrap();
    assert!(agent.reserved);
    assert_eq!(agent.capacity, reported().capacity, "the operator said nothing of it");
    assert_eq!(agent.labels["kernel"], "6.1", "nor of this label");
}

#[test]
fn part_of_a_capacity_that_is_not_reported_can_be_set_and_given_back() {
    let bare = NodeFacts::unknown("n");
    let now = bare.changed(&set(&[("capacity.memory_mib", json!(4096))])).unwrap();
    assert_eq!(now.capacity, Some(Amounts::new(0, 4096)));
    assert_eq!(now.changed(&unset(&["capacity"])).unwrap(), bare);
    let now = reported().restated(Some(&now), FactLayer::Reported).unwrap();
    assert_eq!(now.capacity, Some(Amounts::new(8000, 4096)));
}

#[test]
fn defaults_of_the_policy_are_above_the_report_and_below_the_operator() {
    let path = "ratios.cpu_permille";
    let policy = |value: u32| FactChange::Policy([(path.to_owned(), json!(value))].into());
    let cpu = |facts: &NodeFacts| facts.ratios.cpu_permille;
    let now = reported().changed(&policy(2000)).unwrap();
    assert_eq!(cpu(&now), 2000);
    let now = now.changed(&set(&[(path, json!(6000))])).unwrap();
    assert_eq!(cpu(&now), 6000);
    let now = now.changed(&policy(3000)).unwrap();
    assert_eq!(cpu(&now), 6000);
    let now = reported().restated(Some(&now), FactLayer::Reported).unwrap();
    assert_eq!(cpu(&now), 6000);
    let now = now.changed(&unset(&["ratios"])).unwrap();
    assert_eq!(cpu(&now), 3000);
    let now = now.changed(&FactChange::Policy(FactValues::new())).unwrap();
    assert_eq!(now.ratios, Ratios::default());
    assert_eq!(now, reported());
}

#[test]
fn a_part_of_a_report_leaves_the_rest_and_what_is_set() {
    let now = reported().changed(&set(&[("rack", json!("r9"))])).unwrap();
    let values = [("rack".to_owned(), json!("r1")), ("labels.hall".to_owned(), json!("3"))];
    let now = now.changed(&FactChange::Report(values.into())).unwrap();
    assert_eq!(now.rack.as_deref(), Some("r9"));
    assert_eq!((now.labels["hall"].as_str(), now.labels["kernel"].as_str()), ("3", "6.1"));
    assert_eq!(now.changed(&unset(&["rack"])).unwrap().rack.as_deref(), Some("r1"));
}

#[test]
fn state_boots_and_the_reserve_of_the_policy_are_not_of_the_report() {
    let boots = vec![BootOutcome::new(Timestamp(7), true)];
    let known = NodeFacts {
        state: NodeState::Cordoned,
        boots: boots.clone(),
        policy_reserve: Some(Amounts::new(1, 1)),
        ..reported()
    };
    for layer in [FactLayer::Reported, FactLayer::Set] {
        let now = reported().restated(Some(&known), layer).unwrap();
        assert_eq!(now, known);
    }
}

#[test]
fn a_patch_is_read_key_by_key_and_its_mistakes_are_named() {
    let patch = json!({"labels": {"a.b": "1", "hall": null}, "reserved": true, "traits": null});
    let Value::Object(patch) = patch else { unreachable!("an object") };
    let values = values_of_patch(&reported(), patch).unwrap();
    let expected: FactValues = [
        ("labels.a.b".to_owned(), json!("1")),
        ("labels.hall".to_owned(), Value::Null),
        ("reserved".to_owned(), json!(true)),
        ("traits.ssd".to_owned(), Value::Null),
    ]
    .into();
    assert_eq!(values, expected);
    for wrong in [("reserved", json!("maybe")), ("colour", json!(1)), ("labels.x", json!(1))] {
        let error = reported().changed(&set(std::slice::from_ref(&wrong))).unwrap_err();
        assert!(error.to_string().starts_with("node n: "), "{error}");
    }
    let fixed =
        values_of_patch(&reported(), [("state".to_owned(), json!("lost"))].into_iter().collect());
    assert!(fixed.unwrap_err().to_string().contains("state"));
}
