//! Explanations of random refusals on random fleets, to be read, and rules that every sentence keeps.
//!
//! `cargo test -p berth-engine --test readable -- --nocapture` prints one refusal of each code and one
//! sentence of each filter and kind of evidence.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that panics has failed")]

mod oracle;

use std::collections::{BTreeMap, BTreeSet};

use berth_engine::filter::FILTERS;
use berth_engine::{Audience, Evidence, NodeId, NodeVerdict, PlaceError, Policy, Refusal};
use oracle::policies::policy;
use oracle::random::{START, Wildness, node};
use oracle::requests::request;
use oracle::twin::Twin;

const FLEETS: u64 = 60;
const REQUESTS: u64 = 40;

/// What no sentence may say: units that nobody thinks in, placeholders, and the words of a program.
const UNREADABLE: [&str; 13] = [
    "mCPU",
    "9223372036854775808",
    "wanted is",
    "accepted is 0",
    "_permille",
    " ppm",
    "per mille",
    "built at ",
    "fewer than",
    "in this node",
    "mend ",
    "is true",
    "is false",
];

/// A sentence of evidence about a node.
fn check_sentence(text: &str) {
    for unreadable in UNREADABLE {
        // A field that is out of its range is named as the field that it is.
        if text.starts_with("reports ") && text.contains(" as ") {
            continue;
        }
        assert!(!text.contains(unreadable), "{unreadable:?} in: {text}");
    }
    assert!(!text.ends_with('.') && !text.contains("  "), "{text}");
    check_units(text);
}

/// Amounts of a unit that a larger one would say better.
fn check_units(text: &str) {
    let words: Vec<&str> = text.split([' ', ',', ':', ';', '(', ')']).collect();
    for pair in words.windows(2) {
        let [amount, unit] = pair else { continue };
        let Ok(amount) = amount.parse::<f64>() else { continue };
        let limit = match *unit {
            "MiB" | "GiB" | "TiB" => 1024.0,
            "Mbit/s" | "Gbit/s" => 1000.0,
            _ => continue,
        };
        assert!(amount.abs() < limit, "{amount} {unit} in: {text}");
    }
}

/// What was met, by filter and kind of evidence.
#[derive(Default)]
struct Collected {
    sentences: BTreeMap<(String, &'static str), BTreeSet<String>>,
    refusals: BTreeMap<String, String>,
    read: usize,
}

impl Collected {
    fn evidence(&mut self, filter: &str, evidence: &Evidence) {
        let kind = match evidence {
            Evidence::Short { .. } => "short",
            Evidence::Exceeds { .. } => "exceeds",
            Evidence::State { .. } => "state",
            Evidence::Time { .. } => "time",
            Evidence::Fact { .. } => "fact",
            Evidence::Neighbours { .. } => "neighbours",
        };
        let text = evidence.to_string();
        check_sentence(&text);
        self.read += 1;
        let known = self.sentences.entry((filter.to_owned(), kind)).or_default();
        if known.len() < 8 {
            known.insert(text);
        }
    }

    fn refusal(&mut self, refusal: &Refusal, policy: &Policy) {
        let text = refusal.to_string();
        let lines = text.lines().filter(|line| line.contains("closest"));
        lines.for_each(check_units);
        let headline = refusal.headline();
        assert!(headline.starts_with(&*refusal.code), "{headline}");
        // What is stored reads the same when it is read again.
        let stored = serde_json::to_string(refusal).unwrap();
        let again: Refusal = serde_json::from_str(&stored).unwrap();
        assert_eq!(again.to_string(), text);
        let seen = refusal.redacted_for(Audience::Tenant(&refusal.tenant), policy);
        seen.nearest.iter().for_each(|miss| check_sentence(&miss.evidence.to_string()));
        self.refusals.entry(refusal.code.to_string()).or_insert(text);
    }

    fn verdict(&mut self, verdict: &NodeVerdict) {
        if let NodeVerdict::Removed { filter, evidence, others, .. } = verdict {
            self.evidence(filter, evidence);
            others.iter().for_each(|(filter, evidence)| self.evidence(filter, evidence));
        }
    }
}

fn random_fleet(seed: u64) -> Twin {
    let mut twin = Twin::new(policy(seed));
    for number in 0..12 {
        let mut facts = node(
            seed * 100 + number,
            Wildness([3, 15, 50][usize::try_from(seed % 3).unwrap()]),
            START,
        );
        facts.id = NodeId::new(&format!("host-{number:02}"));
        twin.add_node(&facts);
    }
    twin.furnish(seed);
    if seed.is_multiple_of(5) {
        twin.set_free_addresses(Some(0));
    }
    twin
}

#[test]
fn sentences_of_every_filter_are_made_for_readers() {
    let mut collected = Collected::default();
    for seed in 0..FLEETS {
        let mut twin = random_fleet(seed);
        let policy = twin.engine.policy().clone();
        for number in 0..REQUESTS {
            let mut wanted = request(
                seed * 1000 + number,
                number,
                Wildness([5, 15, 40][usize::try_from(number % 3).unwrap()]),
            );
            if number.is_multiple_of(9) {
                wanted.excluded_nodes.push(NodeId::new("host-03"));
            }
            match twin.engine.place(&wanted, START) {
                Ok(placed) => twin.claim(&wanted, &placed.node),
                Err(PlaceError::Invalid(_)) => continue,
                Err(PlaceError::Refused(refusal)) => {
                    collected.refusal(&refusal, &policy);
                    let explained = twin.engine.explain(&wanted, START).unwrap();
                    explained.table.iter().for_each(|verdict| collected.verdict(verdict));
                }
            }
        }
    }
    for ((filter, kind), sentences) in &collected.sentences {
        println!("{filter} ({kind})");
        sentences.iter().for_each(|sentence| println!("    {sentence}"));
    }
    for refusal in collected.refusals.values() {
        println!("\n{refusal}");
    }
    println!("{} sentences, {} codes", collected.read, collected.refusals.len());
    let met: BTreeSet<&str> =
        collected.sentences.keys().map(|(filter, _)| filter.as_str()).collect();
    let missing: Vec<&str> =
        FILTERS.iter().map(|filter| filter.name).filter(|name| !met.contains(name)).collect();
    assert_eq!(missing, Vec::<&str>::new(), "filters without a sentence");
    assert!(collected.read > 2000, "{}", collected.read);
}
