//! `berth nodes set`: facts of nodes, changed by `key=value`.

use berth_client::{Client, escape};
use clap::Args;
use serde_json::{Map, Value, json};

use super::bulk::{self, CHANGE, Target};
use crate::cli::failure::{Done, Failure};
use crate::cli::session::{Raw, Session};

const EXAMPLES: &str = "\
Examples:
  berth nodes set node-000012 label.team=infra trait.ssd=true
  berth nodes set node-000012 next_reboot=2026-11-01 reserved=true
  berth nodes set --where 'rack = r1' zone=z2 trait.gpu=null
  berth nodes set node-000012 capacity.memory_mib=65536 hardware_class=3

Keys are those of the node's facts, as berth nodes show -o json prints them, with a dot between
levels. label.NAME and trait.NAME are short for labels and traits. A value is read as JSON where it
is JSON, else as text; null takes a key away. Times may be given as a day.";

/// What is changed.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Set {
    /// Nodes, then key=value, each as often as needed.
    #[arg(value_name = "NODE|KEY=VALUE", required = true)]
    words: Vec<String>,
    /// All nodes for which this holds: 'rack = r1 and state = active'.
    #[arg(long = "where", value_name = "EXPR", value_parser = super::selector)]
    filter: Option<String>,
    /// Say which nodes it would be, and change nothing.
    #[arg(long)]
    dry_run: bool,
    /// Do not ask before changing more than one node.
    #[arg(long, short)]
    yes: bool,
}

impl Set {
    pub(crate) async fn run(self, session: &Session) -> Done {
        let (pairs, nodes): (Vec<String>, Vec<String>) =
            self.words.into_iter().partition(|word| word.contains('='));
        if pairs.is_empty() {
            let failure = Failure::usage("nothing to set is given");
            return Err(failure.accepted("key=value, such as zone=z2"));
        }
        match (nodes.is_empty(), &self.filter) {
            (true, None) => {
                let failure = Failure::usage("no node is given");
                return Err(failure.accepted("names before key=value, or --where EXPR"));
            }
            (false, Some(_)) => {
                let failure = Failure::usage("names and --where are given");
                return Err(failure.accepted("one of the two"));
            }
            (true, Some(_)) | (false, None) => {}
        }
        let patch = patch(&pairs)?;
        let (filter, dry_run, yes) = (self.filter, self.dry_run, self.yes);
        let target = Target { nodes, filter, dry_run, yes };
        let Some(names) = target.chosen(session, CHANGE).await? else { return Ok(()) };
        let change = |client: Client, name: String| {
            let (path, patch) = (format!("/v1/nodes/{}", escape(&name)), patch.clone());
            async move {
                let method = http::Method::PATCH;
                let answer = client.send_json::<_, Raw>(method, &path, &patch, None).await;
                answer.map(|tagged| Some(tagged.value))
            }
        };
        bulk::apply(session, CHANGE, names, change).await
    }
}

/// The merge patch that pairs make.
fn patch(pairs: &[String]) -> Done<Value> {
    let mut patch = Value::Object(Map::new());
    for pair in pairs {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        let mut levels: Vec<&str> = match key.split_once('.') {
            // A name below these may hold dots of its own.
            Some(("label" | "labels", name)) => vec!["labels", name],
            Some(("trait" | "traits", name)) => vec!["traits", name],
            _ => key.split('.').collect(),
        };
        let Some(last) = levels.pop().filter(|last| !last.is_empty()) else {
            return Err(Failure::usage(format!("{pair:?} has no key")).accepted("key=value"));
        };
        let twice = || Failure::usage(format!("{key} is set twice, as a value and as a level"));
        let is_label = levels.first() == Some(&"labels");
        let mut place = patch.as_object_mut().ok_or_else(twice)?;
        for level in levels {
            let below = place.entry(level).or_insert_with(|| json!({}));
            place = below.as_object_mut().ok_or_else(twice)?;
        }
        place.insert(last.to_owned(), read(last, value, is_label));
    }
    Ok(patch)
}

/// A value as it is meant for its key.
fn read(key: &str, text: &str, is_label: bool) -> Value {
    if text == "null" {
        return Value::Null;
    }
    // Labels, zones and racks may look like numbers and are none.
    if is_label || matches!(key, "zone" | "rack") {
        return Value::String(text.to_owned());
    }
    let is_time = key.ends_with("_at") || matches!(key, "next_reboot" | "last_boot");
    if is_time && let Some(seconds) = moment(text) {
        return json!(seconds);
    }
    serde_json::from_str(text).unwrap_or_else(|_| Value::String(text.to_owned()))
}

/// Seconds since 1970 of a day or a moment.
fn moment(text: &str) -> Option<i64> {
    if let Ok(at) = text.parse::<jiff::Timestamp>() {
        return Some(at.as_second());
    }
    let day: jiff::civil::Date = text.parse().ok()?;
    Some(day.to_zoned(jiff::tz::TimeZone::UTC).ok()?.timestamp().as_second())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(pairs: &[&str]) -> Value {
        patch(&pairs.iter().map(|&pair| pair.to_owned()).collect::<Vec<_>>()).unwrap()
    }

    #[test]
    fn pairs_make_a_merge_patch() {
        let found = of(&[
            "label.team=7",
            "trait.ssd=true",
            "trait.cpu.kind=amd",
            "trait.gpu=null",
            "capacity.memory_mib=65536",
            "capacity.cpu_milli=8000",
            "next_reboot=2026-11-01",
            "rack=7",
            "reserved=false",
        ]);
        let expected = json!({
            "labels": {"team": "7"},
            "traits": {"ssd": true, "cpu.kind": "amd", "gpu": null},
            "capacity": {"memory_mib": 65536, "cpu_milli": 8000},
            "next_reboot": 1_793_491_200,
            "rack": "7",
            "reserved": false,
        });
        assert_eq!(found, expected);
    }

    #[test]
    fn a_key_that_is_a_value_and_a_level_is_refused() {
        assert!(patch(&["capacity=1".to_owned(), "capacity.cpu_milli=2".to_owned()]).is_err());
        assert!(patch(&["=1".to_owned()]).is_err());
    }
}
