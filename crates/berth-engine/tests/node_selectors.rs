//! Node selectors: what is read, what is refused, and what fits.

#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

use berth_engine::node_selector::NodeSelector;
use berth_engine::{Amounts, NodeFacts, Platform, PlatformVersion, Timestamp, TraitValue};

fn node() -> NodeFacts {
    let mut facts = NodeFacts::new("db-7", Amounts::new(1000, 1024));
    facts.zone = Some("z1".to_owned());
    facts.rack = Some("r one".to_owned());
    facts.labels.insert("tier".to_owned(), "gold".to_owned());
    facts.labels.insert("two words".to_owned(), "and".to_owned());
    facts.traits.insert("ssd".to_owned(), TraitValue::Bool(true));
    facts.traits.insert("old".to_owned(), TraitValue::Bool(false));
    let words = vec!["x86".to_owned(), "arm".to_owned()];
    facts.traits.insert("arch".to_owned(), TraitValue::List(words));
    facts.hardware_class = -3;
    let version = PlatformVersion::new(7, 10);
    facts.platform = Some(Platform { version, built_at: Timestamp(0) });
    facts
}

#[test]
fn selectors_compare_what_they_say() {
    let table = [
        ("zone = z1", true),
        ("zone == z1", true),
        ("zone != z1", false),
        ("zone in (z0, z1)", true),
        ("ZONE = z1 or zone = z1", false),
        ("rack = \"r one\" and zone = z1", true),
        ("not (zone = z1 and rack = r1)", true),
        ("not zone = z1 or node ~ db-*", true),
        ("id = db-7", true),
        ("name ~ 'd?-7'", true),
        ("label:tier = gold", true),
        ("label.tier != gold", false),
        ("label:absent != gold", true),
        ("label:absent = gold", false),
        ("label:\"two words\" = \"and\"", true),
        ("has label:tier and not has label:absent", true),
        ("has trait:ssd", true),
        ("has trait:old", false),
        ("trait:arch = arm", true),
        ("trait:arch in (sparc, x86)", true),
        ("hardware_class < 0 and hardware_class >= -3", true),
        ("platform_version > 7.9", true),
        ("platform_version in (7.1, 7.10)", true),
        ("capacity_type = on-demand", true),
        ("capacity = spot", false),
        ("virtual = no and not has virtual", true),
        ("zone = z2 and zone = z1 or zone = z1", true),
        ("zone = z1 or zone = z1 and zone = z2", true),
        ("(zone = z1 or zone = z1) and zone = z2", false),
    ];
    for (text, expected) in table {
        let Ok(selector) = NodeSelector::parse(text) else {
            assert!(text.starts_with("ZONE"), "{text} is not read");
            continue;
        };
        assert_eq!(selector.matches(&node()), expected, "{text}");
        let canonical = selector.to_string();
        assert_eq!(NodeSelector::parse(&canonical).unwrap(), selector, "{text} as {canonical}");
    }
}

#[test]
fn what_cannot_be_read_is_said_with_its_place() {
    let table = [
        ("", "found the end; accepted is an attribute, not, has or ("),
        ("zone", "accepted is =, !=, ~, in after zone"),
        ("zone =", "a value for zone"),
        ("zone = z1 zone = z2", "found \"zone\"; accepted is and, or, or the end"),
        ("state = active", "accepted is one of id, zone, rack"),
        ("label = x", "accepted is one of id, zone, rack"),
        ("zone < z1", "found \"<\"; accepted is =, !=, ~, in after zone"),
        ("zone = and", "\"and\" as a value needs quotes"),
        ("rakc = r1", "found \"rakc\" (did you mean rack?)"),
        ("zone in z1", "( and a list of values"),
        ("zone in (z1", "a comma and another value"),
        ("(zone = z1", "and, or, or a closing )"),
        ("zone = \"z1", "a closing \""),
        ("zone = z1 & rack = r1", "found \"&\" (did you mean and?)"),
        ("hardware_class = fast", "a whole number"),
        ("platform_version = 7", "a version, as in 7.1"),
        ("virtual = maybe", "true or false"),
        ("capacity_type = cheap", "on-demand or spot"),
    ];
    for (text, expected) in table {
        let error = NodeSelector::parse(text).unwrap_err().to_string();
        assert!(error.contains(expected), "{text:?}: {error}");
    }
    let stored = serde_json::from_str::<NodeSelector>("\"zone = z1 zone = z2\"").unwrap_err();
    let expected =
        "found \"zone\" at byte 10 of \"zone = z1 zone = z2\"; accepted is and, or, or the end";
    assert!(stored.to_string().contains(expected), "{stored}");
}

#[test]
fn length_terms_and_nesting_have_limits() {
    let terms = |count: usize| vec!["zone = z"; count].join(" or ");
    assert!(NodeSelector::parse(&terms(64)).is_ok());
    let error = NodeSelector::parse(&terms(65)).unwrap_err().to_string();
    assert!(error.contains("at most 64 terms"), "{error}");
    let listed = |count: usize| format!("zone in ({})", vec!["z"; count].join(","));
    assert!(NodeSelector::parse(&listed(64)).is_ok());
    assert!(NodeSelector::parse(&listed(65)).is_err());
    let nested = |levels: usize| format!("{}zone = z{}", "(".repeat(levels), ")".repeat(levels));
    assert!(NodeSelector::parse(&nested(15)).is_ok());
    let error = NodeSelector::parse(&nested(16)).unwrap_err().to_string();
    assert!(error.contains("at most 16 levels"), "{error}");
    assert!(NodeSelector::parse(&format!("{}zone = z", "not ".repeat(16))).is_err());
    let long = format!("zone = {}", "z".repeat(NodeSelector::MAX_BYTES));
    let error = NodeSelector::parse(&long).unwrap_err().to_string();
    assert!(error.contains("at most 1024 bytes") && error.len() < 200, "{error}");
}

#[test]
fn selectors_are_joined_and_taken_apart() {
    let zones = NodeSelector::zones(&["z1".to_owned(), "or".to_owned()]).unwrap();
    assert_eq!(zones.to_string(), "zone in (z1, \"or\")");
    let either = NodeSelector::parse("rack = a or rack = b").unwrap();
    let both = NodeSelector::all(vec![zones.clone(), either.clone()]).unwrap();
    assert_eq!(both.to_string(), "zone in (z1, \"or\") and (rack = a or rack = b)");
    assert_eq!(both.parts(), [zones.clone(), either.clone()]);
    assert_eq!(both.without(&zones), Some(either.clone()));
    assert_eq!(either.without(&either), None);
    assert_eq!(NodeSelector::all(Vec::new()), None);
    assert_eq!(NodeSelector::racks(&[]), None);
    let stored = serde_json::to_string(&both).unwrap();
    assert_eq!(serde_json::from_str::<NodeSelector>(&stored).unwrap(), both);
    assert!(serde_json::from_str::<NodeSelector>("\"zone\"").is_err());
}
