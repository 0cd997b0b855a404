//! What is refused, what is accepted, and how an error reads.

use std::collections::BTreeMap;

use super::table::{NAME, POLICY_TEXT, TAGS, TRAITS};
use super::*;

fn check<T: Limited + ?Sized>(value: &T, limit: Limit) -> Result<usize, String> {
    let mut meter = Meter::default();
    let checked = value.check(limit, &mut meter);
    checked.map(|()| meter.bytes).map_err(|error| error.to_string())
}

#[test]
fn a_text_is_limited_in_characters_not_bytes() {
    assert_eq!(check("x".repeat(200).as_str(), NAME), Ok(200));
    assert_eq!(check("é".repeat(200).as_str(), NAME), Ok(400));
    let expected = "the value has 201 characters; accepted is at most 200 characters";
    assert_eq!(check("é".repeat(201).as_str(), NAME), Err(expected.to_owned()));
}

#[test]
fn control_characters_are_refused_and_lines_only_where_they_are_meant() {
    for text in ["a\u{1b}[31m", "a\nb", "a\tb", "\u{7f}", "\u{9b}1m", "a\u{202e}b", "a\u{2028}b"] {
        let error = check(text, NAME).expect_err(text);
        assert!(error.contains("control character U+"), "{error}");
    }
    for text in ["", "a b", "web-1", "größe", "名前", "👩\u{200d}🚀"] {
        assert_eq!(check(text, NAME), Ok(text.len()), "{text}");
    }
    assert!(check("a = 1\r\n\tb = 2\n", POLICY_TEXT).is_ok());
    assert!(check("a\u{1b}", POLICY_TEXT).is_err());
}

#[test]
fn an_error_names_the_path_the_number_and_what_is_accepted() {
    let tags: BTreeMap<String, String> =
        (0..65).map(|number| (number.to_string(), String::new())).collect();
    let expected = "the value has 65 items; accepted is at most 64 items";
    assert_eq!(check(&tags, TAGS), Err(expected.to_owned()));
    let tags = BTreeMap::from([("role".to_owned(), "x".repeat(257))]);
    let expected = "[\"role\"] has 257 characters; accepted is at most 256 characters";
    assert_eq!(check(&tags, TAGS), Err(expected.to_owned()));
    let words = TraitValue::List(vec!["a".to_owned(), "\u{7}".to_owned()]);
    let traits = BTreeMap::from([("ssd".to_owned(), words)]);
    let error = traits.check(TRAITS, &mut Meter::default()).expect_err("a bell");
    assert_eq!(error.inside("traits").field(), "traits[\"ssd\"][1]");
}

#[test]
fn a_key_that_is_too_long_is_not_repeated_as_a_whole() {
    let tags = BTreeMap::from([("k".repeat(100_000), String::new())]);
    let error = check(&tags, TAGS).expect_err("a long key");
    assert!(error.len() < 200, "{error}");
}

#[test]
fn what_was_stored_earlier_may_have_control_characters_but_no_more_items() {
    let mut facts = crate::NodeFacts::new("n1", crate::Amounts::default());
    facts.labels.insert("note".to_owned(), "two\nlines".to_owned());
    assert!(facts.check_limits().is_err());
    assert_eq!(facts.check_stored(), Ok(()));
    facts.cached_images = vec![String::new(); 4097];
    let error = facts.check_stored().expect_err("too many images");
    assert_eq!(error.field(), "cached_images");
    assert_eq!(error.excess, Excess::Items { found: 4097, most: 4096 });
}

#[test]
fn the_engine_counts_what_reaches_it_another_way() {
    let id = crate::InstanceId::from_u128(1);
    let mut request = crate::InstanceRequest::new(id, "acme", crate::Amounts::new(1000, 1024));
    request.networks = vec![vec!["a".to_owned()]; 33];
    let invalid = request.validate().expect_err("too many networks").to_string();
    assert_eq!(invalid, "networks has 33 items; accepted is at most 32 items");
    request.networks = vec![vec!["a".to_owned(); 17]];
    let invalid = request.validate().expect_err("too many in a set").to_string();
    assert_eq!(invalid, "networks[0] has 17 items; accepted is at most 16 items");
    request.networks.clear();
    request.groups = vec!["a".to_owned(), "b".to_owned(), "a".to_owned()];
    let invalid = request.validate().expect_err("twice").to_string();
    assert_eq!(invalid, "group \"a\" is named twice; name it once");
}
