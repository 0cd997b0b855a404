//! `berth nodes set` and `berth nodes unset`: facts of nodes by `KEY=VALUE`, and given back by `KEY`.

use berth_api::{Node, UnsetFacts};
use berth_client::Client;
use clap::Args;
use serde_json::{Map, Value, json};

use super::bulk::{self, CHANGE, Selection, Target};
use crate::cli::resource::path_of;
use crate::cmdutil::{CmdResult, Failure, RawJson, Session, resolve_node_units};

const EXAMPLES: &str = "\
Examples:
  berth nodes set node-000012 label.team=infra trait.ssd=true
  berth nodes set node-000012 next_reboot=2026-11-01 reserved=true
  berth nodes set --where 'rack = r1' zone=z2 trait.gpu=null
  berth nodes set node-000012 capacity.memory=64GiB hardware_class=3

Keys are those of the node's facts, as berth nodes show -o json prints them, with dots between
levels. label.NAME and trait.NAME are short for labels and traits. A value is parsed as JSON if it is
JSON, and is a text otherwise; null takes a key away, also if the node reports one. A time may be given
as a date, and an amount with its unit: capacity.cpu, memory, disk and bandwidth.

What is set survives whatever the agent reports. berth nodes unset has reported values count again.";

const UNSET_EXAMPLES: &str = "\
Examples:
  berth nodes unset node-000012 reserved label.team
  berth nodes unset node-000012 labels
  berth nodes unset --where 'rack = r1' zone

Keys are those of berth nodes set; labels, traits and extra mean all of their keys. berth nodes show
marks what is set.";

#[derive(Args, Debug)]
#[command(after_help = UNSET_EXAMPLES)]
pub(crate) struct UnsetArgs {
    /// Name of the node, unless --where is given, then KEY; each key may be repeated.
    #[arg(value_name = "NODE|KEY", required = true)]
    words: Vec<String>,
    #[command(flatten)]
    selection: Selection,
}

impl UnsetArgs {
    pub(crate) async fn run(mut self, session: &Session) -> CmdResult {
        let nodes = match &self.selection.filter {
            Some(_) => Vec::new(),
            None => vec![self.words.remove(0)],
        };
        if self.words.is_empty() {
            let failure = Failure::usage("no key to unset is given");
            return Err(failure.accepted("KEY after the node, such as reserved or label.team"));
        }
        let fields = self.words.iter().map(|key| path_of_key(key)).collect();
        let body = &UnsetFacts { fields };
        let target = Target { nodes, selection: self.selection };
        let names = target.confirm(session, CHANGE).await?;
        let change = |client: Client, name: String| async move {
            let path = format!("{}/unset", path_of::<Node>(&name));
            client.post::<_, RawJson>(&path, body).await.map(Some)
        };
        bulk::apply(session, CHANGE, names, change).await
    }
}

/// The path of a fact whose key may be short.
fn path_of_key(key: &str) -> String {
    match key.split_once('.') {
        Some(("label", name)) => format!("labels.{name}"),
        Some(("trait", name)) => format!("traits.{name}"),
        Some((field @ ("capacity" | "system_reserve"), "cpu")) => format!("{field}.cpu_milli"),
        Some((field @ ("capacity" | "system_reserve"), part @ ("memory" | "disk"))) => {
            format!("{field}.{part}_mib")
        }
        Some((field @ ("capacity" | "system_reserve"), "bandwidth")) => {
            format!("{field}.bandwidth_mbps")
        }
        _ => key.to_owned(),
    }
}

#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct SetArgs {
    /// Names of nodes, then KEY=VALUE; each may be repeated.
    #[arg(value_name = "NODE|KEY=VALUE", required = true)]
    words: Vec<String>,
    #[command(flatten)]
    selection: Selection,
}

impl SetArgs {
    pub(crate) async fn run(self, session: &Session) -> CmdResult {
        let (pairs, nodes): (Vec<String>, Vec<String>) =
            self.words.into_iter().partition(|word| word.contains('='));
        if pairs.is_empty() {
            let failure = Failure::usage("no value to set is given");
            return Err(failure.accepted("KEY=VALUE, such as zone=z2"));
        }
        match (nodes.is_empty(), &self.selection.filter) {
            (true, None) => {
                let failure = Failure::usage("no node is given");
                return Err(failure.accepted("names before KEY=VALUE, or --where EXPR"));
            }
            (false, Some(_)) => {
                let failure = Failure::usage("both names and --where are given");
                return Err(failure.accepted("one of the two"));
            }
            (true, Some(_)) | (false, None) => {}
        }
        let patch = &patch(&pairs)?;
        let target = Target { nodes, selection: self.selection };
        let names = target.confirm(session, CHANGE).await?;
        let change = |client: Client, name: String| async move {
            let (method, path) = (http::Method::PATCH, path_of::<Node>(&name));
            let answer = client.send_json::<_, RawJson>(method, &path, patch, None).await;
            answer.map(|tagged| Some(tagged.value))
        };
        bulk::apply(session, CHANGE, names, change).await
    }
}

/// The merge patch of `KEY=VALUE` pairs.
fn patch(pairs: &[String]) -> CmdResult<Value> {
    let mut patch = Value::Object(Map::new());
    for pair in pairs {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        let mut levels: Vec<&str> = match key.split_once('.') {
            // Names of labels and traits may contain dots.
            Some(("label" | "labels", name)) => vec!["labels", name],
            Some(("trait" | "traits", name)) => vec!["traits", name],
            _ => key.split('.').collect(),
        };
        let Some(last) = levels.pop().filter(|last| !last.is_empty()) else {
            return Err(Failure::usage(format!("{pair:?} has no key")).accepted("KEY=VALUE"));
        };
        let twice = || Failure::usage(format!("{key} is set both as a value and as a level"));
        let is_label = levels.first() == Some(&"labels");
        let mut place = patch.as_object_mut().ok_or_else(twice)?;
        for level in levels {
            let below = place.entry(level).or_insert_with(|| json!({}));
            place = below.as_object_mut().ok_or_else(twice)?;
        }
        place.insert(last.to_owned(), value_of(last, value, is_label));
    }
    resolve_node_units(&mut patch).map_err(Failure::usage)?;
    Ok(patch)
}

/// The JSON value of a text, as its key needs it.
fn value_of(key: &str, text: &str, is_label: bool) -> Value {
    if text == "null" {
        return Value::Null;
    }
    // Labels, zones and racks may look like numbers, and are texts.
    if is_label || matches!(key, "zone" | "rack") {
        return Value::String(text.to_owned());
    }
    let is_time = key.ends_with("_at") || matches!(key, "next_reboot" | "last_boot");
    if is_time && let Some(seconds) = unix_seconds(text) {
        return json!(seconds);
    }
    serde_json::from_str(text).unwrap_or_else(|_| Value::String(text.to_owned()))
}

/// Seconds since 1970 of a date or a timestamp.
fn unix_seconds(text: &str) -> Option<i64> {
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
            "capacity.cpu=8",
            "capacity.disk=1TiB",
            "next_reboot=2026-11-01",
            "rack=7",
            "reserved=false",
        ]);
        let expected = json!({
            "labels": {"team": "7"},
            "traits": {"ssd": true, "cpu.kind": "amd", "gpu": null},
            "capacity": {"memory_mib": 65536, "cpu_milli": 8000, "disk_mib": 1_048_576},
            "next_reboot": 1_793_491_200,
            "rack": "7",
            "reserved": false,
        });
        assert_eq!(found, expected);
    }

    #[test]
    fn keys_to_unset_may_be_short_like_those_to_set() {
        let cases = [
            ("reserved", "reserved"),
            ("label.a.b", "labels.a.b"),
            ("trait.ssd", "traits.ssd"),
            ("labels", "labels"),
            ("capacity.memory", "capacity.memory_mib"),
            ("ratios.cpu_permille", "ratios.cpu_permille"),
        ];
        for (key, path) in cases {
            assert_eq!(path_of_key(key), path);
        }
    }

    #[test]
    fn a_key_that_is_a_value_and_a_level_is_refused() {
        assert!(patch(&["capacity=1".to_owned(), "capacity.cpu_milli=2".to_owned()]).is_err());
        assert!(patch(&["=1".to_owned()]).is_err());
    }
}
