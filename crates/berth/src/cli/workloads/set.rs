//! `berth workloads set`: create or change a workload with flags.

use std::path::PathBuf;

use berth_api::{
    CapacityMode, CapacityRule, InstanceSpec, NewWorkload, OnChange, Rolling, Share, Strategy,
    Workload,
};
use clap::Args;

use super::diff::Change;
use super::wait::Wait;
use super::{Key, print_change};
use crate::cli::place::flags::InstanceFlags;
use crate::cmdutil::{CmdResult, Failure, RawJson, Session, args, decode, file};

const EXAMPLES: &str = "\
Examples:
  berth workloads set acme/web --replicas 3 --cpu 1 --memory 2GiB --tag role=web
  berth workloads set acme/web --image web:8
  berth workloads set acme/web --max-on-demand 2 --capacity-mode fallback-after=5m
  berth workloads set acme/web --strategy rolling --max-surge 25% --max-unavailable 1
  berth workloads set acme/web --replicas 3 -f template.yaml

Flags change only what they name; lists such as tags and groups are extended. To remove something, apply
a file.";

#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct SetArgs {
    /// Tenant and name of the workload: acme/web.
    #[arg(value_name = "TENANT/NAME")]
    key: Key,
    /// Number of replicas.
    #[arg(long, value_name = "N")]
    replicas: Option<u32>,
    /// Create the members yourself, by placing instances that name the workload.
    #[arg(long, conflicts_with = "replicas")]
    caller_managed: bool,
    /// Process type; the name of the workload by default.
    #[arg(long)]
    process: Option<String>,
    /// Release that members run.
    #[arg(long)]
    release: Option<String>,
    /// Pool that each member takes a value from; may be repeated.
    #[arg(long = "pool", value_name = "POOL")]
    pools: Vec<String>,
    #[command(flatten)]
    capacity: CapacityFlags,
    #[command(flatten)]
    rolling: RollingFlags,
    #[command(flatten)]
    wait: Wait,
    /// Template of members, in JSON, YAML or TOML; flags override it.
    #[arg(long, short, value_name = "FILE")]
    file: Option<PathBuf>,
    #[command(flatten)]
    instance: InstanceFlags,
}

/// Flags of on-demand and spot capacity.
#[derive(Args, Debug, Default)]
#[command(next_help_heading = "On-demand and spot")]
pub(crate) struct CapacityFlags {
    /// Number of on-demand members; the others are spot.
    #[arg(long, value_name = "N")]
    max_on_demand: Option<u32>,
    /// If a member's capacity type is short: wait (strict), use the other one (prefer), or do so after a
    /// while (fallback-after=5m).
    #[arg(long, value_name = "MODE", value_parser = mode)]
    capacity_mode: Option<CapacityMode>,
    /// What to do with members whose slot changed its type: replace them (rebuild) or not (lazy).
    #[arg(long, value_name = "HOW", value_parser = args::api_value::<OnChange>("rebuild or lazy"))]
    on_change: Option<OnChange>,
    /// Keep at least one on-demand and one spot member with two or more replicas.
    #[arg(long, value_name = "ON", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    at_least_one_of_each: Option<bool>,
    /// Enable or disable the rule.
    #[arg(long, value_name = "ON|OFF", value_parser = on_off)]
    capacity_rule: Option<bool>,
}

/// Flags of roll-outs.
#[derive(Args, Debug, Default)]
#[command(next_help_heading = "Roll-outs")]
pub(crate) struct RollingFlags {
    /// Strategy of roll-outs: blue-green, rolling or recreate.
    #[arg(long, value_name = "HOW", value_parser = args::api_value::<Strategy>("blue-green, rolling or recreate"))]
    strategy: Option<Strategy>,
    /// With rolling: most members above the number of replicas: 2 or 25%.
    #[arg(long, value_name = "N|SHARE", value_parser = share)]
    max_surge: Option<Share>,
    /// Most members below the number of replicas: 1 or 10%.
    #[arg(long, value_name = "N|SHARE", value_parser = share)]
    max_unavailable: Option<Share>,
}

fn on_off(text: &str) -> Result<bool, String> {
    match text {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => Err("accepted is on or off".to_owned()),
    }
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

impl SetArgs {
    /// The specification, given the stored one.
    fn spec(&self, before: Option<&NewWorkload>) -> CmdResult<NewWorkload> {
        let template = match (&self.file, before) {
            (Some(path), _) => Some(file::instance(path)?),
            (None, Some(before)) => Some(before.template.clone()),
            (None, None) => None,
        };
        let template = match template {
            Some(mut template) => {
                self.instance.apply(&mut template);
                dedup(&mut template);
                template
            }
            None => self.instance.spec()?,
        };
        let mut new = match before {
            Some(before) => NewWorkload { template, ..before.clone() },
            None if self.replicas.is_none() && !self.caller_managed => {
                return Err(Failure::usage("--replicas is missing").accepted(
                    "the number of replicas; or --caller-managed if you create the members",
                ));
            }
            None => NewWorkload { template, ..NewWorkload::default() },
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

    pub(crate) async fn run(self, session: &Session) -> CmdResult {
        let path = self.key.path();
        let found = match session.client.get_with_etag::<Workload>(&path, &[]).await {
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
        let new = self.spec(before.map(|before| &before.spec))?;
        // Do not overwrite a concurrent change.
        let etag = found.as_ref().and_then(|found| found.etag.as_deref());
        let method = http::Method::PUT;
        let raw: RawJson = session.client.send_json(method, &path, &new, etag).await?.value;
        let after: Workload = decode(&raw)?;
        let change = Change::between(before, &after.spec);
        print_change(session, raw, &change.to_string(), self.wait).await
    }
}

/// Removes duplicates, so that repeating the same flags changes nothing.
fn dedup(spec: &mut InstanceSpec) {
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
        set: SetArgs,
    }

    fn parse(line: &str) -> SetArgs {
        Line::try_parse_from(["set"].into_iter().chain(line.split(' '))).unwrap().set
    }

    #[test]
    fn flags_make_a_workload_and_change_one() {
        let made = parse(
            "acme/web --replicas 3 --memory 1GiB --group g --pool ip --max-on-demand 2 \
             --capacity-mode fallback-after=5m --strategy rolling --max-surge 50%",
        );
        let new = made.spec(None).unwrap();
        assert_eq!(new.replicas, Some(3));
        let rule = new.capacity.unwrap();
        assert_eq!((rule.max_on_demand, rule.mode), (Some(2), CapacityMode::FallbackAfter(300)));
        assert_eq!(new.rolling.max_surge, Share::Percent(50));
        // The same again changes nothing; another flag changes what it names.
        assert_eq!(made.spec(Some(&new)).unwrap(), new);
        let other = parse("acme/web --max-on-demand 1").spec(Some(&new)).unwrap();
        assert_eq!(other.capacity.unwrap().max_on_demand, Some(1));
        assert_eq!((other.replicas, other.template), (Some(3), new.template.clone()));
        let off = parse("acme/web --capacity-rule off").spec(Some(&new)).unwrap();
        assert!(!off.capacity.unwrap().enabled);
        let own = parse("acme/web --caller-managed").spec(Some(&new)).unwrap();
        assert_eq!(own.replicas, None);
    }

    #[test]
    fn the_number_of_replicas_is_required_once() {
        let text = parse("acme/web --memory 1GiB").spec(None).unwrap_err().text();
        assert!(text.contains("--caller-managed"), "{text}");
    }
}
