//! `berth groups`: instances that are kept together or apart.

use berth_api::engine::GroupKind;
use berth_api::engine::affinity::{Strength, Topology};
use berth_api::{Group, NewGroup};
use clap::{Args, Subcommand};

use super::resource::{NameArg, NameArgs, Resource, WatchOption};
use crate::cmdutil::{CmdResult, Column, Session, api_name, args, columns};

/// Manage groups: instances that are kept together or apart.
#[derive(Subcommand, Debug)]
#[command(
    after_help = "Examples:\n  berth groups set web --kind apart --topology rack --max-per-domain 2\n  berth place --memory 4GiB --count 6 --group web"
)]
pub(crate) enum Groups {
    /// List groups.
    #[command(visible_alias = "ls", after_help = "Example:\n  berth groups list")]
    List(WatchOption),
    /// Show a group.
    #[command(after_help = "Example:\n  berth groups show web")]
    Show(NameArg<Group>),
    /// Create or replace a group.
    #[command(after_help = SET_EXAMPLES)]
    Set(SetArgs),
    /// Remove groups without members.
    #[command(visible_alias = "rm", after_help = "Example:\n  berth groups remove web")]
    Remove(NameArgs<Group>),
}

const SET_EXAMPLES: &str = "\
Examples:
  berth groups set web --kind apart --topology rack --max-per-domain 2
  berth groups set cluster --kind together --topology zone --strength soft --tenant acme";

#[derive(Args, Debug)]
pub(crate) struct SetArgs {
    /// Name of the group.
    group: String,
    /// Whether members attract or repel each other.
    #[arg(long, value_parser = args::api_value::<GroupKind>("together or apart"), value_name = "together|apart")]
    kind: GroupKind,
    /// Whether the rule is required or preferred.
    #[arg(long, value_parser = args::api_value::<Strength>("hard or soft"), value_name = "hard|soft", default_value = "hard")]
    strength: Strength,
    /// Domain in which members are together or apart.
    #[arg(long, value_parser = args::api_value::<Topology>("node, rack or zone"), value_name = "node|rack|zone", default_value = "node")]
    topology: Topology,
    /// Most members in one domain; 1 by default when apart, unlimited when together.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    max_per_domain: Option<u32>,
    /// Only tenant whose instances may join.
    #[arg(long, alias = "owner")]
    tenant: Option<String>,
}

impl Resource for Group {
    const KIND: &'static str = "group";
    const PATH: &'static str = "/v1/groups";
    const EMPTY: &'static str = "There are no groups.";
    const COLUMNS: &'static [Column<Self>] = columns![group;
        "GROUP" => group.id.as_str(),
        "TENANT" => group.tenant.as_deref(),
        "KIND" => api_name(&group.kind),
        "STRENGTH" => api_name(&group.strength),
        "PER" => group.topology.name(),
        ">MOST" => group.max_per_domain,
    ];

    fn fields(&self) -> Vec<(&'static str, String)> {
        let most = match (self.max_per_domain, self.kind) {
            (Some(most), _) => most.to_string(),
            (None, GroupKind::Apart) => "1".to_owned(),
            (None, GroupKind::Together) => "any number".to_owned(),
        };
        vec![
            ("group", self.id.clone()),
            ("tenant", self.tenant.clone().unwrap_or_else(|| "anyone".to_owned())),
            ("kind", api_name(&self.kind)),
            ("strength", api_name(&self.strength)),
            ("per", self.topology.name().to_owned()),
            ("most per domain", most),
        ]
    }
}

impl Groups {
    pub(crate) async fn run(self, session: &Session) -> CmdResult {
        match self {
            Self::List(watch) => session.list::<Group>(&[], watch).await,
            Self::Show(arg) => session.show::<Group>(&arg.name).await,
            Self::Set(SetArgs { group, kind, strength, topology, max_per_domain, tenant }) => {
                let new = NewGroup { tenant, kind, strength, topology, max_per_domain };
                session.put::<Group>(&group, &new).await
            }
            Self::Remove(args) => session.remove::<Group>(&args.names).await,
        }
    }
}
