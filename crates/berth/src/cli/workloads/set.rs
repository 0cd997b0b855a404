//! `berth workloads set`: a workload from flags, or a change of one.

use std::path::PathBuf;

use berth_api::{
    CapacityMode, CapacityRule, InstanceSpec, NewWorkload, OnChange, Rolling, Share, Strategy,
    Workload,
};
use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};

use super::diff::Change;
use super::wait::Wait;
use super::{Key, changed};
use crate::cli::args;
use crate::cli::failure::{Done, Failure};
use crate::cli::place::file;
use crate::cli::place::flags::InstanceFlags;
use crate::cli::session::{Raw, Session, read_as};

const EXAMPLES: &str = "\
Examples:
  berth workloads set acme/web --replicas 3 --cpu 1 --memory 2GiB --tag role=web
  berth workloads set acme/web --image web:8
  berth workloads set acme/web --max-on-demand 2 --capacity-mode fallback-after=5m
  berth workloads set acme/web --strategy rolling --max-surge 25% --max-unavailable 1
  berth workloads set acme/web --replicas 3 -f template.yaml

What is stored already is changed where flags say so; lists such as tags and groups are added to. To
take something out, apply a file.";

/// A workload as it is stored.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Set {
    /// Its owner and name: acme/web.
    #[arg(value_name = "OWNER/NAME")]
    which: Key,
    /// How many should run.
    #[arg(long, value_name = "N")]
    replicas: Option<u32>,
    /// Nobody but you creates the members: by placing instances that name the workload.
    #[arg(long, conflicts_with = "replicas")]
    caller_managed: bool,
    /// The process type; the workload's name when not given.
    #[arg(long)]
    process: Option<String>,
    /// The release that members run.
    #[arg(long)]
    release: Option<String>,
    /// A pool that each member takes a value from.
    #[arg(long = "pool", value_name = "POOL")]
    pools: Vec<String>,
    #[command(flatten)]
    capacity: CapacityFlags,
    #[command(flatten)]
    rolling: RollingFlags,
    #[command(flatten)]
    wait: Wait,
    /// What each member asks for, in JSON, YAML or TOML; flags change it.
    #[arg(long, short, value_name = "FILE")]
    file: Option<PathBuf>,
    #[command(flatten)]
    instance: InstanceFlags,
}

/// On-demand and spot, as flags.
#[derive(Args, Debug, Default)]
#[command(next_help_heading = "On-demand and spot")]
pub(crate) struct CapacityFlags {
    /// So many members are on-demand, the others spot.
    #[arg(long, value_name = "N")]
    max_on_demand: Option<u32>,
    /// When its kind is short, a member waits (strict), takes the other kind (prefer), or does so
    /// after a time (fallback-after=5m).
    #[arg(long, value_name = "MODE", value_parser = mode)]
    capacity_mode: Option<CapacityMode>,
    /// Members whose seat changed its kind: rebuild replaces them, lazy leaves them.
    #[arg(long, value_name = "HOW", value_parser = named(&[("rebuild", OnChange::Rebuild), ("lazy", OnChange::Lazy)]))]
    on_change: Option<OnChange>,
    /// With two or more replicas, at least one on-demand and one spot.
    #[arg(long, value_name = "ON", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    at_least_one_of_each: Option<bool>,
    /// Whether the rule is in force.
    #[arg(long, value_name = "ON|OFF", value_parser = named(&[("on", true), ("off", false)]))]
    capacity_rule: Option<bool>,
}

/// How changes are made, as flags.
#[derive(Args, Debug, Default)]
#[command(next_help_heading = "Roll-outs")]
pub(crate) struct RollingFlags {
    /// How a new revision takes over: blue-green, rolling or recreate.
    #[arg(long, value_name = "HOW", value_parser = named(&[
        ("blue-green", Strategy::BlueGreen), ("rolling", Strategy::Rolling), ("recreate", Strategy::Recreate)]))]
    strategy: Option<Strategy>,
    /// With rolling: how many more than wanted there may be: 2 or 25%.
    #[arg(long, value_name = "N|SHARE", value_parser = share)]
    max_surge: Option<Share>,
    /// How many fewer than wanted may run: 1 or 10%.
    #[arg(long, value_name = "N|SHARE", value_parser = share)]
    max_unavailable: Option<Share>,
}

/// One of these, by its name.
fn named<T: Copy + Send + Sync + 'static>(
    names: &'static [(&'static str, T)],
) -> impl TypedValueParser<Value = T> {
    let parser = PossibleValuesParser::new(names.iter().map(|(name, _)| *name));
    parser.try_map(move |text| {
        let found = names.iter().find(|(name, _)| *name == text);
        found.map(|(_, value)| *value).ok_or_else(|| std::io::Error::other("unknown"))
    })
}

fn mode(text: &str) -> Result<CapacityMode, String> {
    match (text, text.strip_prefix("fallback-after=")) {
        ("strict", _) => Ok(CapacityMode::Strict),
        ("prefer", _) => Ok(CapacityMode::Prefer),
        (_, Some(after)) => args::duration(after).map(CapacityMode::FallbackAfter),
        _ => Err("accepted is strict, prefer or fallback-after=5m".to_owned()),
    }
}

fn share(text: &str) -> Result<Share, String> {
    serde_json::from_value(text.into())
        .map_err(|_| "accepted is a number such as 2, or a share such as 25%".to_owned())
}

impl CapacityFlags {
    fn apply(&self, rule: &mut Option<CapacityRule>) {
        let given = self.max_on_demand.is_some()
            || self.capacity_mode.is_some()
            || self.on_change.is_some()
            || self.at_least_one_of_each.is_some()
            || self.capacity_rule.is_some();
        if !given {
            return;
        }
        let rule = rule.get_or_insert_with(CapacityRule::default);
        rule.max_on_demand = self.max_on_demand.or(rule.max_on_demand);
        rule.mode = self.capacity_mode.unwrap_or(rule.mode);
        rule.on_change = self.on_change.unwrap_or(rule.on_change);
        rule.at_least_one_of_each = self.at_least_one_of_each.unwrap_or(rule.at_least_one_of_each);
        rule.enabled = self.capacity_rule.unwrap_or(rule.enabled);
    }
}

impl RollingFlags {
    fn apply(&self, rolling: &mut Rolling) {
        rolling.strategy = self.strategy.unwrap_or(rolling.strategy);
        rolling.max_surge = self.max_surge.unwrap_or(rolling.max_surge);
        rolling.max_unavailable = self.max_unavailable.unwrap_or(rolling.max_unavailable);
    }
}

impl Set {
    /// What is asked for, given what is there.
    fn asked(&self, before: Option<&NewWorkload>) -> Done<NewWorkload> {
        let template = match (&self.file, before) {
            (Some(path), _) => Some(file::instance(path)?),
            (None, Some(before)) => Some(before.template.clone()),
            (None, None) => None,
        };
        let template = match template {
            Some(mut template) => {
                self.instance.apply(&mut template);
                once(&mut template);
                template
            }
            None => self.instance.spec()?,
        };
        let mut new = match before {
            Some(before) => NewWorkload { template, ..before.clone() },
            None if self.replicas.is_none() && !self.caller_managed => {
                return Err(Failure::usage("--replicas is missing").accepted(
                    "how many should run; or --caller-managed when you create the members",
                ));
            }
            None => NewWorkload {
                replicas: None,
                process: None,
                template,
                pools: Vec::new(),
                release: None,
                capacity: None,
                rolling: Rolling::default(),
                paused: false,
            },
        };
        if self.caller_managed || self.replicas.is_some() {
            new.replicas = self.replicas;
        }
        if self.process.is_some() {
            new.process.clone_from(&self.process);
        }
        if self.release.is_some() {
            new.release.clone_from(&self.release);
        }
        new.pools.extend(self.pools.iter().cloned());
        keep_first(&mut new.pools);
        self.capacity.apply(&mut new.capacity);
        self.rolling.apply(&mut new.rolling);
        Ok(new)
    }

    pub(crate) async fn run(self, session: &Session) -> Done {
        let path = self.which.path();
        let found = match session.client.get_tagged::<Workload>(&path, &[]).await {
            Ok(found) => Some(found),
            Err(error) => {
                let failure = Failure::from(error);
                if !failure.is_not_found() {
                    return Err(failure);
                }
                None
            }
        };
        let before = found.as_ref().map(|found| &found.value);
        let new = self.asked(before.map(|before| &before.spec))?;
        // Not over a change that somebody else made meanwhile.
        let etag = found.as_ref().and_then(|found| found.etag.as_deref());
        let method = http::Method::PUT;
        let raw: Raw = session.client.send_json(method, &path, &new, etag).await?.value;
        let after: Workload = read_as(&raw)?;
        let change = Change::of(before, &after.spec);
        changed(session, raw, &change.to_string(), self.wait).await
    }
}

/// The same flags twice ask for the same.
fn once(spec: &mut InstanceSpec) {
    keep_first(&mut spec.networks);
    keep_first(&mut spec.groups);
    keep_first(&mut spec.volumes);
    keep_first(&mut spec.attachments);
    keep_first(&mut spec.affinity);
    if let Some(locality) = &mut spec.locality {
        keep_first(&mut locality.near);
        keep_first(&mut locality.far);
    }
}

fn keep_first<T: PartialEq + Clone>(items: &mut Vec<T>) {
    let mut kept: Vec<T> = Vec::with_capacity(items.len());
    for item in items.drain(..) {
        if !kept.contains(&item) {
            kept.push(item);
        }
    }
    *items = kept;
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        set: Set,
    }

    fn parse(line: &str) -> Set {
        Line::try_parse_from(["set"].into_iter().chain(line.split(' '))).unwrap().set
    }

    #[test]
    fn flags_make_a_workload_and_change_one() {
        let made = parse(
            "acme/web --replicas 3 --memory 1GiB --group g --pool ip --max-on-demand 2 \
             --capacity-mode fallback-after=5m --strategy rolling --max-surge 50%",
        );
        let new = made.asked(None).unwrap();
        assert_eq!(new.replicas, Some(3));
        let rule = new.capacity.unwrap();
        assert_eq!((rule.max_on_demand, rule.mode), (Some(2), CapacityMode::FallbackAfter(300)));
        assert_eq!(new.rolling.max_surge, Share::Percent(50));
        // The same again changes nothing; another flag changes what it names.
        assert_eq!(made.asked(Some(&new)).unwrap(), new);
        let other = parse("acme/web --max-on-demand 1").asked(Some(&new)).unwrap();
        assert_eq!(other.capacity.unwrap().max_on_demand, Some(1));
        assert_eq!((other.replicas, other.template), (Some(3), new.template.clone()));
        let off = parse("acme/web --capacity-rule off").asked(Some(&new)).unwrap();
        assert!(!off.capacity.unwrap().enabled);
        let own = parse("acme/web --caller-managed").asked(Some(&new)).unwrap();
        assert_eq!(own.replicas, None);
    }

    #[test]
    fn how_many_must_be_said_once() {
        let text = parse("acme/web --memory 1GiB").asked(None).unwrap_err().text();
        assert!(text.contains("--caller-managed"), "{text}");
    }
}
