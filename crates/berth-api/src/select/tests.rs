//! Selectors as people type them, against one node; and random ones against their own text.

use berth_engine::node_selector::grammar::Attribute as _;
use berth_engine::{
    Amounts, BootOutcome, CapacityType, LinkState, Network, NodeFacts, Platform, PlatformVersion,
    Timestamp, TraitValue,
};
use proptest::prelude::*;

use super::*;

/// 2026-03-01 12:00:00 UTC.
const NOW: i64 = 1_772_366_400;

fn node() -> NodeFacts {
    let capacity = Amounts::new(64_000, 262_144).with_disk(1_048_576).with_bandwidth(10_000);
    let mut facts = NodeFacts::new("node-10", capacity);
    facts.zone = Some("z1".to_owned());
    facts.rack = Some("r1".to_owned());
    facts.capacity_type = CapacityType::Spot;
    // 2025-12-31 23:00:00 UTC.
    let built_at = Timestamp(1_767_222_000);
    facts.platform = Some(Platform { version: PlatformVersion::new(7, 10), built_at });
    facts.heartbeat_at = Timestamp(NOW - 301);
    facts.last_boot = Some(Timestamp(NOW - 86_400));
    facts.next_reboot = Some(Timestamp(NOW + 7200));
    facts.hardware_class = -1;
    facts.overlay_loss_ppm = 5000;
    facts.scratch_mib = 2048;
    facts.extra.insert("gpu".to_owned(), 8);
    for (key, value) in [("team", "blue"), ("slot", "9"), ("two words", "a, b"), ("k8s.io/x", "y")]
    {
        facts.labels.insert(key.to_owned(), value.to_owned());
    }
    facts.traits.insert("ssd".to_owned(), TraitValue::Bool(true));
    facts.traits.insert("old".to_owned(), TraitValue::Bool(false));
    facts.traits.insert("cpu".to_owned(), TraitValue::Text("epyc".to_owned()));
    facts.traits.insert("nic".to_owned(), TraitValue::List(vec!["x".into(), "y".into()]));
    let network = |tag: &str, link| Network { tag: tag.to_owned(), link };
    facts.networks = vec![network("admin", LinkState::Up), network("spare", LinkState::Down)];
    facts.cached_images = vec!["alpine-3".to_owned()];
    facts.boots = vec![BootOutcome::new(Timestamp(0), true)];
    facts
}

fn holds_for(text: &str, facts: &NodeFacts) -> bool {
    // 64 cores promised four times over, of which half are used; 90 % of memory is used.
    let used = Amounts::new(128_000, 235_929).with_disk(1024).with_bandwidth(2500);
    let view = NodeView { facts, used, instances: 100, now: Timestamp(NOW) };
    let selector = Selector::parse(text).unwrap_or_else(|error| panic!("{text}\n{error}"));
    let canonical = selector.to_string();
    let again = Selector::parse(&canonical).unwrap_or_else(|error| panic!("{text}\n{error}"));
    assert_eq!(again, selector, "{text}: {canonical}");
    assert_eq!(again.to_string(), canonical, "{text}");
    assert_eq!(again.matches(&view), selector.matches(&view), "{text}: {canonical}");
    selector.matches(&view)
}

fn check(table: &[(&str, bool)]) {
    let facts = node();
    for (text, expected) in table {
        assert_eq!(holds_for(text, &facts), *expected, "{text}");
    }
}

#[test]
fn texts_and_words_compare() {
    check(&[
        ("id = node-10", true),
        ("id == node-10", true),
        ("id=node-10", true),
        ("id = 'node-10'", true),
        ("name = \"node-10\"", true),
        ("id != node-10", false),
        ("id = Node-10", false),
        ("id < node-2", true),
        ("id >= node-10", true),
        ("id ~ node-*", true),
        ("id ~ node-1?", true),
        ("id ~ node-?", false),
        ("id ~ *1*0*", true),
        ("id ~ *", true),
        ("id ~ '**'", true),
        ("rack = r1", true),
        ("rack in (r2, r1)", true),
        ("rack in (r2)", false),
        ("zone in ( 'z1' , \"z2\" )", true),
        ("state = active", true),
        ("state in (lost, draining)", false),
        ("state ~ act*", true),
        ("capacity_type = spot", true),
        ("capacity = spot", true),
        ("capacity != on-demand", true),
        ("label:team = blue", true),
        ("label.team = blue", true),
        ("label:team != red", true),
        ("label:\"two words\" = 'a, b'", true),
        ("label.'two words' ~ 'a,*'", true),
        ("label:k8s.io/x = y", true),
        ("label.k8s.io/x = y", true),
        ("label:slot < 10", true),
        ("label:slot < 10a", false),
        ("label:slot = 09", false),
        ("trait:cpu = epyc", true),
        ("trait:cpu in (xeon, epyc)", true),
        ("trait:nic = x", true),
        ("trait:nic = y", true),
        ("trait:nic != x", false),
        ("trait:nic = z", false),
        ("trait:ssd = true", true),
        ("trait:old = false", true),
        ("cpu_cap_mode = uniform", true),
        ("network:admin = up", true),
        ("network:spare = down", true),
        ("network:spare != up", true),
        ("image:alpine-3 = cached", true),
        ("image:debian = cached", false),
        ("image:debian != cached", true),
    ]);
}

#[test]
fn numbers_and_units_compare() {
    check(&[
        ("cpu = 64", true),
        ("cpu >= 64", true),
        ("cpu > 64", false),
        ("cpu > 63999m", true),
        ("cpu in (32, 64)", true),
        ("memory = 256GiB", true),
        ("memory = 262144", true),
        ("memory < 0.5TiB", true),
        ("memory > 256GiB", false),
        ("disk = 1TiB", true),
        ("bandwidth = 10Gbit", true),
        ("bandwidth >= 10001", false),
        // 275 G is 262260.4 MiB, 274 G is 261306.8 MiB.
        ("memory < 275G", true),
        ("memory >= 274G", true),
        ("memory <= 274G", false),
        ("used.cpu = 128", true),
        ("free.cpu = 128", true),
        ("used.cpu = 50%", true),
        ("used.cpu >= 50%", true),
        ("used.cpu > 50%", false),
        ("free.cpu <= 50%", true),
        ("used.memory > 80%", true),
        ("used.memory > 90.1%", false),
        ("used.memory < 90.0001%", true),
        ("free.memory < 26GiB", true),
        ("free.memory > 10.1%", false),
        ("free.disk > 99%", true),
        ("used.bandwidth = 25%", true),
        ("free.bandwidth = 7.5Gbit", true),
        ("instances = 100", true),
        ("used.instances = 100", true),
        ("free.instances = 124", true),
        ("used.instances > 44%", true),
        ("instance_limit = 224", true),
        ("hardware_class = -1", true),
        ("hardware_class < 0", true),
        ("extra.gpu = 8", true),
        ("extra:gpu >= 9", false),
        ("overlay_loss = 0.5%", true),
        ("overlay_loss = 5000", true),
        ("overlay_loss >= 5000ppm", true),
        ("overlay_loss > 1%", false),
        ("scratch = 2GiB", true),
        ("scratch < 2000", false),
        ("kvm = true", true),
        ("kvm = no", false),
        ("virtual != true", true),
        ("reserved = off", true),
        ("headnode in (true, false)", true),
        ("reservoir = false", true),
    ]);
}

#[test]
fn dates_ages_and_platforms_compare() {
    check(&[
        ("platform < 20260101", true),
        ("platform < 2026-01-01", true),
        ("platform < 2026-01-01T00:00:00Z", true),
        ("platform >= 20260101", false),
        ("platform = 20251231", true),
        ("platform <= 20251231", true),
        ("platform > 20251231", false),
        ("platform >= 20251231", true),
        ("platform < 20251231", false),
        ("platform != 20251231", false),
        ("platform = 2025-12-31T23:00:00Z", true),
        ("platform = 20251231T230000Z", true),
        ("platform > 2025-12-31T22:59:59Z", true),
        ("platform in (20251230, 20251231)", true),
        ("platform = 7.10", true),
        ("platform > 7.9", true),
        ("platform < 7.9", false),
        ("platform ~ 7.*", true),
        ("platform in (7.9, 20251231)", true),
        ("platform_version >= 7.10", true),
        ("platform_version = 7.1", false),
        ("heartbeat > 5m", true),
        ("heartbeat > 301s", false),
        ("heartbeat < 1h", true),
        ("heartbeat = 5m1s", true),
        ("heartbeat >= 2026-03-01", true),
        ("heartbeat = 20260301", true),
        ("last_boot < 20260301", true),
        ("last_boot = 1d", true),
        ("last_boot > 23h", true),
        ("next_reboot < 2h1s", true),
        ("next_reboot < 2h", false),
        ("next_reboot > 2026-03-01T13:00:00Z", true),
    ]);
}

#[test]
fn words_join_and_has_asks_for_presence() {
    check(&[
        ("platform < 20260101 and rack = r1", true),
        ("rack = r2 or rack = r1", true),
        ("rack = r2 and rack = r1 or zone = z1", true),
        ("rack = r2 and (rack = r1 or zone = z1)", false),
        ("not rack = r2", true),
        ("not not rack = r1", true),
        ("not (rack = r1 and zone = z1)", false),
        ("not rack = r2 and zone = z1", true),
        ("NOT rack = r2 AND zone IN (z1) OR HAS zone", true),
        ("((((rack = r1))))", true),
        ("has trait:ssd", true),
        ("has trait:old", false),
        ("has trait:gone", false),
        ("has label:team", true),
        ("has label:gone", false),
        ("has rack", true),
        ("has platform", true),
        ("has kvm", true),
        ("has reserved", false),
        ("has extra.gpu", true),
        ("has extra.fpga", false),
        ("has network:spare", true),
        ("has image:alpine-3", true),
        ("has image:debian", false),
        ("has next_reboot", true),
        ("has memory", true),
        ("rack = \"and\"", false),
    ]);
}

#[test]
fn what_a_node_lacks_matches_only_not() {
    let mut bare = NodeFacts::new("bare", Amounts::default());
    bare.capacity = None;
    for attribute in [
        "rack",
        "zone",
        "label:x",
        "trait:x",
        "platform",
        "platform_version",
        "network:x",
        "image:x",
    ] {
        let value = match attribute {
            "platform" | "platform_version" => "7.1",
            "network:x" => "up",
            "image:x" => "cached",
            _ => "v",
        };
        assert!(!holds_for(&format!("{attribute} = {value}"), &bare), "{attribute}");
        assert!(!holds_for(&format!("{attribute} in ({value})"), &bare), "{attribute}");
        assert!(!holds_for(&format!("{attribute} ~ *"), &bare), "{attribute}");
        assert!(!holds_for(&format!("has {attribute}"), &bare), "{attribute}");
        assert!(holds_for(&format!("{attribute} != {value}"), &bare), "{attribute}");
        assert!(holds_for(&format!("not {attribute} = {value}"), &bare), "{attribute}");
    }
    for attribute in ["cpu", "memory", "free.cpu", "extra.gpu", "last_boot", "next_reboot"] {
        let value = if attribute.contains("boot") { "20260101" } else { "1" };
        for operator in ["=", "<", "<=", ">", ">="] {
            assert!(!holds_for(&format!("{attribute} {operator} {value}"), &bare), "{attribute}");
        }
        assert!(holds_for(&format!("{attribute} != {value}"), &bare), "{attribute}");
    }
    // Something of nothing is no share.
    assert!(!holds_for("used.memory >= 0%", &bare));
    assert!(holds_for("not used.memory >= 0%", &bare));
}

#[test]
fn the_canonical_text_is_short_and_the_same_for_the_same_meaning() {
    for (text, expected) in [
        ("id=='a'", "id = a"),
        ("name = a", "id = a"),
        ("memory>=4096", "memory >= 4GiB"),
        ("cpu > 1.5", "cpu > 1500m"),
        ("bandwidth < 10000", "bandwidth < 10Gbit"),
        ("used.memory > 80.50%", "used.memory > 80.5%"),
        ("heartbeat > 90m", "heartbeat > 1h30m"),
        ("platform < 20260101", "platform < 2026-01-01"),
        ("platform < 20260101T120000Z", "platform < 2026-01-01T12:00:00Z"),
        ("platform < 7.01", "platform < 7.1"),
        ("overlay_loss > 500ppm", "overlay_loss > 0.05%"),
        ("kvm = yes", "kvm = true"),
        ("label.team = 'in'", "label:team = \"in\""),
        ("extra:gpu > 1", "extra.gpu > 1"),
        ("capacity = spot", "capacity_type = spot"),
        ("id ~ a***b", "id ~ a*b"),
        ("((a)) = b", ""),
        ("(rack = a and zone = b) and kvm = on", "rack = a and zone = b and kvm = true"),
        ("(rack = a or zone = b) and kvm = on", "(rack = a or zone = b) and kvm = true"),
        ("rack = a or (zone = b and kvm = on)", "rack = a or zone = b and kvm = true"),
        ("label:x = 'say \"hi\" \\\\'", "label:x = \"say \\\"hi\\\" \\\\\""),
    ] {
        let found = Selector::parse(text).map(|s| s.to_string()).unwrap_or_default();
        assert_eq!(found, expected, "{text}");
    }
}

#[test]
fn comparisons_come_in_the_order_in_which_they_are_written() {
    let selector = Selector::parse("has rack and not (cpu in (1, 2) or zone = z)").unwrap();
    let found: Vec<String> = selector.comparisons().iter().map(ToString::to_string).collect();
    assert_eq!(found, ["has rack", "cpu in (1, 2)", "zone = z"]);
}

#[test]
fn errors_point_at_the_place_and_say_what_is_accepted() {
    let table = [
        ("", "found the end; accepted is an attribute, not, has or (", "^"),
        ("rak = r1", "found \"rak\" (did you mean rack?); accepted is an attribute: id", "^^^"),
        ("a and b", "found \"a\"; accepted is an attribute", "^"),
        ("rack", "found the end; accepted is =, !=, <, <=, >, >=, ~, in after rack", "    ^"),
        ("rack = ", "found the end; accepted is a value for rack", "       ^"),
        (
            "rack = r1 zone = z1",
            "found \"zone\"; accepted is and, or, or the end",
            "          ^^^^",
        ),
        ("rack = r1 and", "found the end; accepted is an attribute", "             ^"),
        ("(rack = r1", "found the end; accepted is and, or, or a closing )", "          ^"),
        ("rack = r1)", "found \")\"; accepted is and, or, or the end", "         ^"),
        ("rack in r1", "found \"r1\"; accepted is ( and a list", "        ^^"),
        ("rack in ()", "found \")\"; accepted is a value for rack", "         ^"),
        ("rack in (a b)", "found \"b\"; accepted is a comma and another value", "           ^"),
        ("rack in (a,", "found the end; accepted is a value for rack", "           ^"),
        ("state < active", "found \"<\"; accepted is =, !=, ~, in after state", "      ^"),
        (
            "state = activ",
            "found \"activ\" (did you mean active?); accepted is joining",
            "        ^^^^^",
        ),
        ("state = Active", "did you mean active?", "        ^^^^^^"),
        ("kvm ~ t*", "found \"~\"; accepted is =, !=, in after kvm", "    ^"),
        ("kvm = maybe", "found \"maybe\"; accepted is true or false, for kvm", "      ^^^^^"),
        (
            "memory > lots",
            "found \"lots\"; accepted is MiB, or a number with a unit",
            "         ^^^^",
        ),
        ("memory > 80%", "found \"80%\"; accepted is MiB", "         ^^^"),
        ("memory > 9PiB", "found \"9PiB\"; accepted is at most 2147483647MiB", "         ^^^^"),
        (
            "used.memory > 2x",
            "as in 256GiB, 1.5TiB or 4G, or a share, as in 80%",
            "              ^^",
        ),
        ("used.memory > x%", "accepted is a share of at most 1000%", "              ^^"),
        ("used.instances > x", "a whole number, or a share", "                 ^"),
        (
            "used.memry > 1",
            "(did you mean used.memory?); accepted is used. or free. with",
            "^^^^^^^^^^",
        ),
        ("free = 1", "found \"free\"", "^^^^"),
        ("labl:x = 1", "did you mean label:x?", "^^^^^^"),
        ("label = 1", "accepted is label with a key, as in label:name", "^^^^^"),
        ("has trait:", "accepted is trait with a key", "    ^^^^^^"),
        ("cpu = 1 cores", "found \"cores\"; accepted is and, or", "        ^^^^^"),
        ("heartbeat > 5", "found \"5\"; accepted is a date", "            ^"),
        ("heartbeat > 20261301", "found \"20261301\"; accepted is a date", "            ^^^^^^^^"),
        ("platform = new", "accepted is a version, as in 7.1, or a build date", "           ^^^"),
        ("platform_version = 20260101", "accepted is a version, as in 7.1", "                   ^"),
        ("overlay_loss > much", "accepted is parts per million", "               ^^^^"),
        ("extra.gpu > 1.5", "accepted is a whole number, for extra.gpu", "            ^^^"),
        ("rack = r1 && zone = z", "found \"&\" (did you mean and?)", "          ^"),
        ("rack = r1 | zone = z", "did you mean or?", "          ^"),
        ("! rack = r1", "did you mean not or !=?", "^"),
        ("rack = a;b", "found \";\"", "        ^"),
        ("rack = in", "\"in\" as a value needs quotes", "       ^^"),
        ("rack = 'r1", "found the end within quotes; accepted is a closing '", "       ^^^"),
        ("\"rack\" = r1", "found \"\\\"rack\\\"\"; accepted is an attribute", "^^^^^^"),
        ("zone = ü and rak = 1", "did you mean rack?", "             ^^^"),
    ];
    for (text, message, mark) in table {
        let error = Selector::parse(text).expect_err(text).to_string();
        assert!(error.contains(message), "{text:?}\n{error}");
        let lines: Vec<&str> = error.lines().collect();
        assert_eq!(lines[lines.len() - 2], format!("  {text}"), "{error}");
        assert!(lines[lines.len() - 1].starts_with(&format!("  {mark}")), "{text:?}\n{error}");
    }
}

#[test]
fn long_and_deep_selectors_are_refused() {
    let long = format!("rack = {}", "a".repeat(Attribute::MAX_BYTES));
    let error = Selector::parse(&long).unwrap_err().to_string();
    assert!(error.contains("accepted is at most 4096 bytes"), "{error}");
    for (open, close) in [("(", ")"), ("not ", "")] {
        let deep = |n: usize| format!("{}rack = a{}", open.repeat(n), close.repeat(n));
        assert!(Selector::parse(&deep(Attribute::MAX_DEPTH - 1)).is_ok());
        let error = Selector::parse(&deep(Attribute::MAX_DEPTH)).unwrap_err().to_string();
        assert!(error.contains("at most 32 levels"), "{error}");
    }
    let wide = vec!["kvm = on"; 300].join(" and ");
    assert!(Selector::parse(&wide).is_ok());
}

fn texts() -> impl Strategy<Value = String> {
    prop_oneof![
        proptest::string::string_regex("[a-z0-9-]{1,6}").unwrap(),
        proptest::string::string_regex("\\PC{0,6}").unwrap(),
        Just("and".to_owned()),
        Just(String::new()),
        Just("a\\\"b' \n".to_owned()),
    ]
}

/// Comparisons as text, of every kind, with operators that mean something there.
fn comparisons() -> impl Strategy<Value = String> {
    let quote = |text: &str| format!("'{}'", text.replace('\\', "\\\\").replace('\'', "\\'"));
    let order = prop_oneof![Just("="), Just("!="), Just("<"), Just("<="), Just(">"), Just(">="),];
    let key = texts().prop_filter("a key is not empty", |key| !key.is_empty());
    let labels = (key, prop_oneof![order.clone(), Just("~")], texts()).prop_map(
        move |(key, operator, value)| format!("label:{} {operator} {}", quote(&key), quote(&value)),
    );
    let amounts = (
        prop_oneof![
            Just(("cpu", "")),
            Just(("cpu", "m")),
            Just(("used.memory", "G")),
            Just(("free.disk", "GiB")),
            Just(("bandwidth", "kbit")),
            Just(("used.cpu", "%")),
            Just(("overlay_loss", "%")),
            Just(("hardware_class", "")),
            Just(("scratch", "M")),
            Just(("heartbeat", "s")),
            Just(("next_reboot", "m")),
            Just(("free.instances", "%")),
        ],
        order.clone(),
        0u32..1000,
    )
        .prop_map(|((attribute, unit), operator, n)| format!("{attribute} {operator} {n}{unit}"));
    let dates = (
        prop_oneof![Just("platform"), Just("last_boot"), Just("heartbeat")],
        order,
        1i64..4_000_000_000,
        any::<bool>(),
    )
        .prop_map(|(attribute, operator, second, day)| {
            let until = if day { second / 86_400 * 86_400 + 86_400 } else { second + 1 };
            let from = if day { until - 86_400 } else { second };
            let text = Value::Moment(from, until).to_text(attribute::Kind::Date);
            format!("{attribute} {operator} {text}")
        });
    let words = prop_oneof![
        Just("state in (active, lost)".to_owned()),
        Just("has trait:ssd".to_owned()),
        Just("network:admin != up".to_owned()),
        Just("platform >= 7.9".to_owned()),
        Just("kvm = off".to_owned()),
    ];
    prop_oneof![labels, amounts, dates, words]
}

fn selectors() -> impl Strategy<Value = String> {
    comparisons().prop_recursive(4, 24, 3, |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 2..4)
                .prop_map(|parts| format!("({})", parts.join(" and "))),
            proptest::collection::vec(inner.clone(), 2..4)
                .prop_map(|parts| format!("({})", parts.join(" or "))),
            inner.prop_map(|part| format!("not {part}")),
        ]
    })
}

proptest! {
    #[test]
    fn the_canonical_text_reads_back_equal(text in selectors()) {
        let _ = holds_for(&text, &node());
    }

    #[test]
    fn any_text_is_read_or_refused_and_the_mark_is_drawn(text in "\\PC{0,40}") {
        match Selector::parse(&text) {
            Ok(selector) => prop_assert_eq!(Selector::parse(&selector.to_string()), Ok(selector)),
            Err(error) => prop_assert!(error.to_string().ends_with('^')),
        }
    }

    #[test]
    fn near_misses_are_read_or_refused(
        parts in proptest::collection::vec(prop_oneof![
            Just("rack"), Just("label:"), Just("used.cpu"), Just("="), Just("~"), Just("("),
            Just(")"), Just("and"), Just("not"), Just("in"), Just(","), Just("'x"), Just("5%"),
            Just("has"), Just("7.1"), Just("*"), Just("\""), Just("\\"), Just("20260101"),
        ], 0..12)
    ) {
        match Selector::parse(&parts.join(" ")) {
            Ok(selector) => prop_assert_eq!(Selector::parse(&selector.to_string()), Ok(selector)),
            Err(error) => prop_assert!(error.to_string().ends_with('^')),
        }
    }
}
