//! `berth instances`: what runs where.

use berth_api::Instance;
use clap::{Args, Subcommand};

use super::permits::{self, bounds, cpu_and_memory};
use super::resource::{InstanceArg, ListOptions, Resource};
use crate::cmdutil::{
    CmdResult, Column, Session, age, amounts, claim_state, columns, key_values, or_dash,
    query_params,
};

/// Show instances, and manage their sizes.
#[derive(Subcommand, Debug)]
#[command(
    after_help = "Examples:\n  berth instances list --tenant acme --tag role=web\n  berth instances show web-1"
)]
pub(crate) enum Instances {
    /// List instances.
    #[command(visible_alias = "ls", after_help = LIST_EXAMPLES)]
    List(InstanceFilter),
    /// Show an instance.
    #[command(after_help = "Example:\n  berth instances show web-1")]
    Show(InstanceArg),
    /// Request a size for an elastic instance, or show its last permit.
    #[command(after_help = PERMIT_EXAMPLES)]
    Permit(permits::PermitArgs),
    /// Set the bounds between which an elastic instance may be resized.
    #[command(after_help = "Example:\n  berth instances bounds db-1 --min 0.5,1GiB --max 8,32GiB")]
    Bounds(permits::BoundsArgs),
}

const PERMIT_EXAMPLES: &str = "\
Examples:
  berth instances permit db-1
  berth instances permit db-1 --cpu 4 --memory 16GiB
  berth instances permit db-1 --cpu 2 --memory 8GiB --headroom 1,4GiB

Shrinking always succeeds. Growing is granted as far as there is room; the answer says how much, and
what limited it.";

const LIST_EXAMPLES: &str = "\
Examples:
  berth instances list --tenant acme
  berth instances list --node node-000012 -o wide
  berth instances list --tag role=web -q";

/// Which instances or claims are listed.
#[derive(Args, Debug, Default)]
pub(crate) struct InstanceFilter {
    /// Show only those of this tenant.
    #[arg(long, alias = "owner")]
    tenant: Option<String>,
    /// Show only those on this node.
    #[arg(long)]
    node: Option<String>,
    /// Show only those of this workload.
    #[arg(long)]
    workload: Option<String>,
    /// Show only those in this state.
    #[arg(long, value_parser = ["held", "binding", "active", "releasing"])]
    state: Option<String>,
    /// Show only those with this tag: role=web, or role for any value.
    #[arg(long, value_name = "KEY[=VALUE]")]
    tag: Option<String>,
    /// Show only those with this name.
    #[arg(long)]
    name: Option<String>,
    #[command(flatten)]
    options: ListOptions,
}

impl InstanceFilter {
    pub(crate) async fn list<R: Resource>(self, session: &Session) -> CmdResult {
        let query = query_params(&[
            ("tenant", &self.tenant),
            ("node", &self.node),
            ("workload", &self.workload),
            ("state", &self.state),
            ("tag", &self.tag),
            ("name", &self.name),
        ]);
        session.list::<R>(&query, self.options).await
    }
}

impl Resource for Instance {
    const KIND: &'static str = "instance";
    const PATH: &'static str = "/v1/instances";
    const EMPTY: &'static str = "No instances match.";
    const COLUMNS: &'static [Column<Self>] = columns![instance;
        "INSTANCE" => instance.claim.instance.to_string(),
        "NAME" => instance.claim.name.as_deref(),
        "TENANT" => instance.claim.tenant.as_str(),
        "WORKLOAD" => instance.claim.workload.as_deref(),
        "NODE" => instance.claim.node.as_ref().map(|node| node.as_str()),
        "STATE" => claim_state(instance.claim.state),
        "CHARGED" => amounts(&instance.claim.resources),
        "AGE" => age(instance.claim.created_at),
        "?PERMIT" => instance.permit.as_ref().map(|permit| cpu_and_memory(permit.permit)),
        "?BOUNDS" => instance.permit.as_ref().map(|permit| bounds(permit.min, permit.max)),
        "+TAGS" => or_dash(Some(&key_values(&instance.tags))),
        "+IMAGE" => instance.image.as_deref(),
        "+SLOT" => instance.slot.map(|slot| slot.slot.to_string()),
        "+SLOT ID" => instance.slot.map(|slot| slot.id.to_string()),
        "+GROUPS" => or_dash(Some(&instance.groups.join(" "))),
        "+HOST" => or_dash(Some(&instance.locality.host)),
    ];

    fn fields(&self) -> Vec<(&'static str, String)> {
        let join = |parts: &[Option<&String>]| {
            let parts: Vec<&str> = parts.iter().copied().flatten().map(String::as_str).collect();
            parts.join(" / ")
        };
        let locality = &self.locality;
        let host = [Some(&locality.host), locality.rack.as_ref(), locality.zone.as_ref()];
        let mut fields = self.claim.fields();
        fields.extend([
            ("slot", self.slot.map(|slot| slot.slot.to_string()).unwrap_or_default()),
            ("slot id", self.slot.map(|slot| slot.id.to_string()).unwrap_or_default()),
            ("place", join(&[self.zone.as_ref(), self.rack.as_ref()])),
            ("locality", join(&host)),
            ("tags", key_values(&self.tags)),
            ("image", self.image.clone().unwrap_or_default()),
            ("groups", self.groups.join(" ")),
        ]);
        fields.extend(self.permit.iter().flat_map(permits::fields));
        fields
    }
}

impl Instances {
    pub(crate) async fn run(self, session: &Session) -> CmdResult {
        match self {
            Self::List(filter) => filter.list::<Instance>(session).await,
            Self::Show(arg) => {
                let id = session.instance(&arg.instance).await?;
                session.show::<Instance>(&id.to_string()).await
            }
            Self::Permit(args) => args.run(session).await,
            Self::Bounds(args) => args.run(session).await,
        }
    }
}
