//! Evidence as a sentence about a node, whose name stands before it.
//!
//! Refusals are stored as values, so the sentence is made from the values alone, and what earlier
//! versions stored reads as well as what this one does.

use std::fmt;

use super::amounts::Unit;
use super::evidence::{Evidence, HIDDEN};
use crate::affinity::Topology;
use crate::units;

/// A silence that is longer than this began with a node that was registered and never heard of.
const NEVER_S: i64 = 10 * 365 * 86_400;

impl fmt::Display for Evidence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Short { resource, wanted, overhead, free, unit } => {
                f.write_str(&short(resource, *wanted, *overhead, *free, *unit))
            }
            Self::Exceeds { resource, wanted, most, unit } => {
                let (wanted, most) = (unit.text(*wanted), unit.text(*most));
                write!(f, "{resource}: needs {wanted}, the host has {most}")
            }
            Self::State { found } => write!(f, "is {}, not active", found.name()),
            Self::Time { what, seconds, limit } => f.write_str(&time(what, *seconds, *limit)),
            Self::Fact { fact, found, wanted, .. } => f.write_str(&text_of(fact, found, wanted)),
            Self::Neighbours { rule, topology, members, wanted } => {
                f.write_str(&neighbours(rule, *topology, *members, wanted))
            }
        }
    }
}

fn short(resource: &str, wanted: i64, overhead: i64, free: i64, unit: Unit) -> String {
    if resource == "instance slots" {
        return match free.unsigned_abs() {
            0 => "holds as many instances as it may".to_owned(),
            over => format!("holds {over} more instances than it may"),
        };
    }
    let overhead_text = match overhead {
        0 => String::new(),
        some => format!(" plus {} overhead", unit.text(some)),
    };
    let has = match free {
        1.. => format!("has {} free", unit.text(free)),
        0 => "has none free".to_owned(),
        _ => format!("has none free ({} above its limit)", unit.text(free.saturating_neg())),
    };
    let missing = wanted.saturating_add(overhead).saturating_sub(free);
    let needs = format!("{resource}: needs {}{overhead_text}", unit.text(wanted));
    let short_by = unit.text(missing);
    // Two amounts that read the same would not explain themselves.
    if unit.text(wanted.saturating_add(overhead)) == unit.text(free) {
        return format!("{needs}, has just {short_by} less than that free");
    }
    format!("{needs}, {has}: short by {short_by}")
}

fn time(what: &str, seconds: i64, limit: i64) -> String {
    let (found, accepted) = (units::duration(seconds), units::duration(limit));
    match what {
        "age of the last heartbeat" if seconds > NEVER_S => "has never sent a heartbeat".to_owned(),
        "age of the last heartbeat" => {
            format!("sent its last heartbeat {found} ago; at most {accepted} is accepted")
        }
        // Earlier versions recorded the second.
        "time until the newest boot failures have aged"
        | "time until the two newest boot failures have aged" => {
            format!("failed to boot its newest instances, which counts for another {found}")
        }
        "time until the planned reboot" => {
            format!("reboots in {found}; at least {accepted} is wanted")
        }
        _ => format!("{what} is {found}, accepted is {accepted}"),
    }
}

/// What a fact means for this request.
fn text_of(fact: &str, found: &str, wanted: &str) -> String {
    let (kind, name) = named_fact(fact);
    match (kind, found) {
        ("kvm", _) => "has no KVM".to_owned(),
        ("reserved", _) => "is reserved by the operator".to_owned(),
        ("headnode", _) => "runs the control plane".to_owned(),
        ("virtual", _) => "is a virtual machine, which the request excludes".to_owned(),
        ("capacity type", _) => format!("is {found}; the request wants {wanted}"),
        ("capacity", "unknown") => "has not reported its capacity".to_owned(),
        ("capacity", _) => "reports no CPU or no memory".to_owned(),
        ("this request", _) => "denied this request before".to_owned(),
        ("free overlay addresses", _) => "no overlay address is free".to_owned(),
        ("secrets of the environment", "not named") => {
            "the request needs secrets and names no environment".to_owned()
        }
        ("secrets of the environment", _) => format!("environment {found} has no secrets"),
        ("network", _) => network(found, wanted),
        ("cpu_cap_mode", _) => format!("takes only {found} instances; this one is {wanted}"),
        ("instances here by CPU cap", _) => by_cpu_cap(found, wanted),
        ("overlay packet loss (ppm)", _) => overlay_loss(found, wanted),
        ("overprovision ratios (per mille)", _) => {
            format!("overcommits {}; the request wants {}", ratios(found), ratios(wanted))
        }
        ("platform", _) => platform(found, wanted),
        ("place", _) => format!("is not where the request asks to be: {wanted}"),
        ("trait ", "absent") if wanted == "true" => format!("lacks trait {name}"),
        ("trait ", "true") if wanted == "absent" => {
            format!("has trait {name}, and is kept for requests that ask for it")
        }
        ("trait ", "absent") => format!("lacks trait {name}; the request wants {wanted}"),
        ("trait ", _) if wanted == "absent" => {
            format!("has trait {name} ({found}), and is kept for requests that ask for it")
        }
        ("trait ", _) => format!("has trait {name} as {found}; the request wants {wanted}"),
        ("home of volume ", HIDDEN) => format!("is not the home of volume {name}"),
        ("home of volume ", _) => format!("is not the home of volume {name}, which is {found}"),
        ("volume ", HIDDEN) => format!("volume {name} is attached to another instance"),
        ("volume ", _) => {
            let user = found.strip_prefix("attached to ").unwrap_or(found);
            format!("volume {name} is attached to instance {user}")
        }
        ("system_reserve.", _) => reserve(name, found, wanted),
        _ if fact.contains('_') => format!("reports {fact} as {found}; accepted is {wanted}"),
        _ => format!("{fact} is {found}, wanted is {wanted}"),
    }
}

/// The kind of a fact, and the name that follows it.
fn named_fact(fact: &str) -> (&str, &str) {
    let kinds = ["trait ", "home of volume ", "volume ", "system_reserve."];
    let found = kinds.into_iter().find_map(|kind| Some((kind, fact.strip_prefix(kind)?)));
    found.unwrap_or((fact, ""))
}

fn network(found: &str, wanted: &str) -> String {
    let names = wanted.strip_suffix(" up").unwrap_or(wanted);
    match found.split_once(" with its link ") {
        Some((name, "unknown")) => format!("has not reported whether the link of {name} is up"),
        Some((name, link)) => format!("has network {name}, but its link is {link}"),
        None => format!("has no network {names}"),
    }
}

/// `1 capped and 2 uncapped`, of which only those of the other kind are in the way.
fn by_cpu_cap(found: &str, wanted: &str) -> String {
    let kind = wanted.strip_prefix("only ").unwrap_or(wanted);
    let others = if kind == "capped" { "uncapped" } else { "capped" };
    let mut counts = found.split(" and ").filter_map(|part| part.split_once(' '));
    match counts.find(|(_, of)| *of == others).map(|(count, _)| count) {
        Some("1") => format!("runs 1 {others} instance; this one is {kind}, and they may not mix"),
        Some(count) => {
            format!("runs {count} {others} instances; this one is {kind}, and they may not mix")
        }
        None => format!("runs {others} instances; this one is {kind}, and they may not mix"),
    }
}

fn overlay_loss(found: &str, wanted: &str) -> String {
    let share = |ppm: &str| ppm.parse().ok().map(units::share);
    let limit = wanted.strip_prefix("at most ").and_then(share);
    match (share(found), limit) {
        (Some(found), Some(limit)) => {
            format!("loses {found} of packets on the overlay; at most {limit} is accepted")
        }
        _ => format!("loses {found} ppm of packets on the overlay; accepted is {wanted}"),
    }
}

/// `cpu 4000 memory 1000 disk 1000`, in thousandths, as `CPU ×4, memory ×1, disk ×1`.
fn ratios(text: &str) -> String {
    let words: Vec<&str> = text.split(' ').collect();
    let pair = |pair: &[&str]| match *pair {
        ["cpu", permille] => Some(format!("CPU {}", units::ratio(permille.parse().ok()?))),
        [name, permille] => Some(format!("{name} {}", units::ratio(permille.parse().ok()?))),
        _ => None,
    };
    let parts: Option<Vec<String>> = words.chunks(2).map(pair).collect();
    parts.map_or_else(|| text.to_owned(), |parts| parts.join(", "))
}

fn platform(found: &str, wanted: &str) -> String {
    // Up to 0.2 a node that reports none was stored as one that was built before all time.
    let before_all_time = format!(" built at {}", i64::MIN);
    let taken_as = found.strip_prefix("none, taken as ");
    match taken_as.or_else(|| found.strip_suffix(&before_all_time)) {
        Some(version) => format!(
            "reports no platform and is taken to run {version}; the request wants {}",
            with_dates(wanted)
        ),
        None => {
            format!("runs platform {}; the request wants {}", with_dates(found), with_dates(wanted))
        }
    }
}

/// `7.1 built at 1767225600 or 7.2 built at …` with dates for seconds.
fn with_dates(text: &str) -> String {
    let mut parts = text.split("built at ");
    let mut written = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let digits = part.find(|c: char| !c.is_ascii_digit() && c != '-').unwrap_or(part.len());
        let (seconds, rest) = part.split_at(digits);
        let built = match seconds.parse() {
            Ok(i64::MIN) => "of any build".to_owned(),
            Ok(seconds) => format!("built {}", units::moment(seconds)),
            Err(_) => format!("built at {seconds}"),
        };
        written.push_str(&built);
        written.push_str(rest);
    }
    written
}

fn reserve(field: &str, found: &str, wanted: &str) -> String {
    let (resource, unit) = match field {
        "cpu_milli" => ("CPU", Unit::MilliCpu),
        "memory_mib" => ("memory", Unit::Mib),
        "disk_mib" => ("disk", Unit::Mib),
        "bandwidth_mbps" => ("bandwidth", Unit::Mbps),
        other => (other, Unit::Count),
    };
    let text = |amount: &str| amount.parse().map_or(amount.to_owned(), |number| unit.text(number));
    let (keeps, has) = (text(found), text(wanted.strip_prefix("at most ").unwrap_or(wanted)));
    format!("keeps more {resource} for the host than it has: {keeps} of {has}")
}

fn neighbours(rule: &str, topology: Topology, members: u32, wanted: &str) -> String {
    let level = topology.name();
    let place = match topology {
        Topology::Node => "on this node".to_owned(),
        Topology::Rack | Topology::Zone => format!("in this {level}"),
    };
    let count = |noun: &str| match members {
        1 => format!("1 {noun}"),
        _ => format!("{members} {noun}s"),
    };
    let below = |text: &str| text.strip_prefix("fewer than ").map(str::to_owned);
    if let Some(resident) = rule.strip_suffix(" of a placed instance") {
        let have = if members == 1 { "has" } else { "have" };
        let instances = count("instance");
        return format!("{instances} {place} {have} the rule {resident}, which excludes this one");
    }
    if let Some(hint) = rule.strip_prefix("far ") {
        return format!("holds {}, which the request must be far from", hinted(hint));
    }
    if let Some(hint) = rule.strip_prefix("near ") {
        return format!("does not hold {}, which the request must be near", hinted(hint));
    }
    match wanted {
        "0" => format!("{rule} allows none {place}, which has {}", count("matching instance")),
        "at least 1" => format!("{rule} needs a matching instance {place}, which has none"),
        _ if wanted.starts_with("a known ") => {
            format!("{rule} must stay in one {level}, and this node is in none")
        }
        _ if members == 0 => {
            let elsewhere = if topology == Topology::Node { "on" } else { "in" };
            format!("{rule} must stay together, and its members are {elsewhere} another {level}")
        }
        _ => match below(wanted.trim_start_matches("where the others are, ")) {
            Some(limit) => {
                let members = count("member");
                format!("{rule} has {members} {place} and allows at most {limit} per {level}")
            }
            None => format!("{rule}: {members} {place}, wanted is {wanted}"),
        },
    }
}

/// What a locality hint names: an instance by its id, or instances by a tag.
fn hinted(hint: &str) -> String {
    if hint.contains('=') { format!("an instance with {hint}") } else { format!("instance {hint}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fact(fact: &str, found: &str, wanted: &str) -> String {
        Evidence::fact(fact, found, wanted).to_string()
    }

    #[test]
    fn what_earlier_versions_stored_reads_as_well() {
        let stored = r#"{"kind": "fact", "fact": "platform",
            "found": "6.5 built at -9223372036854775808",
            "wanted": "at least 7.1 built at 1767225600 or 7.2 built at 1767272709"}"#;
        let evidence: Evidence = serde_json::from_str(stored).unwrap();
        assert_eq!(
            evidence.to_string(),
            "reports no platform and is taken to run 6.5; the request wants at least 7.1 built \
             2026-01-01 or 7.2 built 2026-01-01 13:05:09"
        );
        let stored = r#"{"kind": "neighbours", "rule": "group db", "topology": "node",
            "members": 1, "wanted": "where the others are, fewer than 1"}"#;
        let evidence: Evidence = serde_json::from_str(stored).unwrap();
        assert_eq!(
            evidence.to_string(),
            "group db has 1 member on this node and allows at most 1 per node"
        );
    }

    #[test]
    fn a_fact_that_has_no_sentence_is_named_with_both_values() {
        assert_eq!(fact("colour", "red", "blue"), "colour is red, wanted is blue");
        assert_eq!(
            fact("watermarks.cpu_permille", "0", "1 to 1000"),
            "reports watermarks.cpu_permille as 0; accepted is 1 to 1000"
        );
    }

    #[test]
    fn what_is_hidden_is_not_named() {
        for (name, found, wanted) in [
            ("home of volume data", "host-b", "this node"),
            ("volume data", "attached to 00000000-0000-0000-0000-000000000009", "free"),
            ("instances here by CPU cap", "1 capped and 2 uncapped", "only capped"),
        ] {
            let mut evidence = Evidence::about_others(name, found, wanted);
            evidence.hide_others();
            let text = evidence.to_string();
            assert!(
                !text.contains("host-b") && !text.contains("0009") && !text.contains('1'),
                "{text}"
            );
            assert!(!text.contains(HIDDEN), "{text}");
        }
    }

    fn memory(wanted: i64, free: i64) -> String {
        let (resource, overhead, unit) = ("memory".to_owned(), 64, Unit::Mib);
        Evidence::Short { resource, wanted, overhead, free, unit }.to_string()
    }

    #[test]
    fn an_over_full_node_has_none_free() {
        assert_eq!(
            memory(8192, -2048),
            "memory: needs 8 GiB plus 64 MiB overhead, has none free (2 GiB above its limit): \
             short by 10.06 GiB"
        );
    }

    #[test]
    fn amounts_that_read_the_same_are_told_by_their_difference() {
        assert_eq!(
            memory(20_521, 20_584),
            "memory: needs 20.04 GiB plus 64 MiB overhead, has just 1 MiB less than that free"
        );
    }
}
