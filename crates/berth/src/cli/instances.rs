//! `berth instances`: what runs where.

use berth_api::Instance;
use clap::{Args, Subcommand};

use super::claims;
use super::failure::Done;
use super::output::Output;
use super::permits::{self, between, both};
use super::session::Session;
use super::table::{Table, pairs};
use super::words::{age, amounts, claim_state, map, or_dash};

/// See instances, and how large they may be.
#[derive(Subcommand, Debug)]
#[command(
    after_help = "Examples:\n  berth instances list --owner acme --tag role=web\n  berth instances show web-1"
)]
pub(crate) enum Instances {
    /// List instances.
    #[command(visible_alias = "ls", after_help = LIST_EXAMPLES)]
    List(Wanted),
    /// Show one instance.
    #[command(after_help = "Example:\n  berth instances show web-1")]
    Show(One),
    /// Ask how large an elastic instance may be, or show the last answer.
    #[command(after_help = PERMIT_EXAMPLES)]
    Permit(permits::Ask),
    /// Change between which sizes an elastic instance may be.
    #[command(after_help = "Example:\n  berth instances bounds db-1 --min 0.5,1GiB --max 8,32GiB")]
    Bounds(permits::Bounds),
}

const PERMIT_EXAMPLES: &str = "\
Examples:
  berth instances permit db-1
  berth instances permit db-1 --cpu 4 --memory 16GiB
  berth instances permit db-1 --cpu 2 --memory 8GiB --headroom 1,4GiB

Less than it has always succeeds, and more is granted as far as there is room: the answer says how
much, and what held it back.";

const LIST_EXAMPLES: &str = "\
Examples:
  berth instances list --owner acme
  berth instances list --node node-000012 -o wide
  berth instances list --tag role=web -q";

/// One instance.
#[derive(Args, Debug)]
pub(crate) struct One {
    /// Its id, the beginning of it, or its name.
    instance: String,
}

/// Which instances or claims.
#[derive(Args, Debug, Default)]
pub(crate) struct Wanted {
    /// Of this tenant.
    #[arg(long)]
    owner: Option<String>,
    /// On this node.
    #[arg(long)]
    node: Option<String>,
    /// Of this workload.
    #[arg(long)]
    workload: Option<String>,
    /// In this state: held, binding, active or releasing.
    #[arg(long, value_parser = ["held", "binding", "active", "releasing"])]
    state: Option<String>,
    /// With this tag: role=web, or role for any value.
    #[arg(long, value_name = "KEY[=VALUE]")]
    tag: Option<String>,
    /// With this name.
    #[arg(long)]
    name: Option<String>,
    /// How many at most.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    limit: Option<u32>,
}

impl Wanted {
    /// As parts of a query.
    pub(crate) fn query(&self) -> Vec<(&'static str, String)> {
        let parts = [
            ("owner", &self.owner),
            ("node", &self.node),
            ("workload", &self.workload),
            ("state", &self.state),
            ("tag", &self.tag),
            ("name", &self.name),
        ];
        parts.iter().filter_map(|(name, value)| Some((*name, (*value).clone()?))).collect()
    }

    /// How many at most.
    pub(crate) fn limit(&self) -> Option<usize> {
        self.limit.and_then(|limit| usize::try_from(limit).ok())
    }
}

impl Instances {
    pub(crate) async fn run(self, session: &Session) -> Done {
        let out = &session.out;
        match self {
            Self::List(wanted) => {
                let (parts, limit) = (wanted.query(), wanted.limit());
                let query: Vec<(&str, &str)> =
                    parts.iter().map(|(name, value)| (*name, value.as_str())).collect();
                let human = |instances: Vec<Instance>| {
                    let table = table(&instances, out.is_wide());
                    out.table(&table, "There are no instances like that.");
                };
                session.show_list("/v1/instances", &query, limit, human).await
            }
            Self::Show(one) => {
                let id = session.instance(&one.instance).await?;
                session
                    .show(&format!("/v1/instances/{id}"), |instance: Instance| {
                        print(out, &instance);
                        Ok(())
                    })
                    .await
            }
            Self::Permit(ask) => ask.run(session).await,
            Self::Bounds(bounds) => bounds.run(session).await,
        }
    }
}

fn table(instances: &[Instance], wide: bool) -> Table {
    let mut table =
        Table::new(&["INSTANCE", "NAME", "OWNER", "WORKLOAD", "NODE", "STATE", "CHARGED", "AGE"]);
    // Most fleets have none: then there is no column of dashes.
    let elastic = instances.iter().any(|instance| instance.permit.is_some());
    if elastic {
        ["PERMIT", "BOUNDS"].iter().for_each(|name| table.column(name));
    }
    if wide {
        ["TAGS", "IMAGE", "GROUPS", "HOST"].iter().for_each(|name| table.column(name));
    }
    for instance in instances {
        let claim = &instance.claim;
        let mut row = vec![
            claim.instance.to_string().into(),
            or_dash(claim.name.as_deref()),
            claim.owner.as_str().into(),
            or_dash(claim.workload.as_deref()),
            or_dash(claim.node.as_ref().map(|node| node.as_str())),
            claim_state(claim.state),
            amounts(&claim.resources).into(),
            age(claim.created_at).into(),
        ];
        if elastic {
            let permit = instance.permit.as_ref();
            row.push(or_dash(permit.map(|permit| both(permit.permit)).as_deref()));
            row.push(or_dash(permit.map(|permit| between(permit.min, permit.max)).as_deref()));
        }
        if wide {
            row.push(or_dash(Some(&map(&instance.tags))));
            row.push(or_dash(instance.image.as_deref()));
            row.push(or_dash(Some(&instance.groups.join(" "))));
            row.push(or_dash(Some(&instance.locality.host)));
        }
        table.row(row);
    }
    table
}

/// Prints one instance.
pub(crate) fn print(out: &Output, instance: &Instance) {
    let mut lines = claims::lines(&instance.claim);
    let marks = &instance.locality;
    let marks = [Some(&marks.host), marks.rack.as_ref(), marks.zone.as_ref()];
    let marks: Vec<&str> = marks.into_iter().flatten().map(String::as_str).collect();
    let place: Vec<&str> =
        [&instance.zone, &instance.rack].into_iter().flatten().map(String::as_str).collect();
    lines.extend([
        ("place", place.join(" / ")),
        ("shares marks", marks.join(" / ")),
        ("tags", map(&instance.tags)),
        ("image", instance.image.clone().unwrap_or_default()),
        ("groups", instance.groups.join(" ")),
    ]);
    lines.extend(instance.permit.iter().flat_map(permits::lines));
    out.line(pairs(&lines));
}
