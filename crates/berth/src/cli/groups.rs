//! `berth groups`: instances that are kept together or apart.

use berth_api::NewGroup;
use berth_api::engine::affinity::{Strength, Topology};
use berth_api::engine::{Group, GroupKind};
use berth_client::escape;
use clap::{Args, Subcommand};

use super::failure::Done;
use super::session::{Raw, Session};
use super::table::{Cell, Table, Tone, pairs};
use super::words::or_dash;

/// See and define groups.
#[derive(Subcommand, Debug)]
#[command(
    after_help = "Examples:\n  berth groups set web --kind apart --topology rack --max-per-domain 2\n  berth place --memory 4GiB --count 6 --group web"
)]
pub(crate) enum Groups {
    /// List groups.
    #[command(visible_alias = "ls", after_help = "Example:\n  berth groups list")]
    List,
    /// Show one group.
    #[command(after_help = "Example:\n  berth groups show web")]
    Show(One),
    /// Define a group, or define it anew.
    #[command(after_help = SET_EXAMPLES)]
    Set(Set),
    /// Remove groups that nobody is a member of.
    #[command(visible_alias = "rm", after_help = "Example:\n  berth groups remove web")]
    Remove(Some),
}

const SET_EXAMPLES: &str = "\
Examples:
  berth groups set web --kind apart --topology rack --max-per-domain 2
  berth groups set cluster --kind together --topology zone --strength soft --owner acme";

/// One group.
#[derive(Args, Debug)]
pub(crate) struct One {
    /// Its name.
    group: String,
}

/// Some groups.
#[derive(Args, Debug)]
pub(crate) struct Some {
    /// Their names.
    #[arg(required = true)]
    groups: Vec<String>,
}

/// A group as it is defined.
#[derive(Args, Debug)]
pub(crate) struct Set {
    /// Its name.
    group: String,
    /// Whether members seek or avoid each other.
    #[arg(long, value_parser = kind, value_name = "together|apart")]
    kind: GroupKind,
    /// Whether it is a rule or a wish.
    #[arg(long, value_parser = strength, value_name = "hard|soft", default_value = "hard")]
    strength: Strength,
    /// Per node, rack or zone.
    #[arg(long, value_parser = topology, value_name = "node|rack|zone", default_value = "node")]
    topology: Topology,
    /// Most members in one domain; 1 when apart, any number when together.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    max_per_domain: Option<u32>,
    /// The only tenant whose instances may join.
    #[arg(long)]
    owner: Option<String>,
}

fn kind(text: &str) -> Result<GroupKind, String> {
    match text {
        "together" => Ok(GroupKind::Together),
        "apart" => Ok(GroupKind::Apart),
        _ => Err("accepted is together or apart".to_owned()),
    }
}

fn strength(text: &str) -> Result<Strength, String> {
    match text {
        "hard" => Ok(Strength::Hard),
        "soft" => Ok(Strength::Soft),
        _ => Err("accepted is hard or soft".to_owned()),
    }
}

fn topology(text: &str) -> Result<Topology, String> {
    match text {
        "node" => Ok(Topology::Node),
        "rack" => Ok(Topology::Rack),
        "zone" => Ok(Topology::Zone),
        _ => Err("accepted is node, rack or zone".to_owned()),
    }
}

const fn kind_name(kind: GroupKind) -> &'static str {
    match kind {
        GroupKind::Together => "together",
        GroupKind::Apart => "apart",
    }
}

const fn strength_name(strength: Strength) -> &'static str {
    match strength {
        Strength::Hard => "hard",
        Strength::Soft => "soft",
    }
}

impl Groups {
    pub(crate) async fn run(self, session: &Session) -> Done {
        let out = &session.out;
        match self {
            Self::List => {
                let human = |groups: Vec<Group>| out.table(&table(&groups), "There are no groups.");
                session.show_list("/v1/groups", &[], None, human).await
            }
            Self::Show(one) => {
                let raw = session.get(&format!("/v1/groups/{}", escape(&one.group)), &[]).await?;
                print(session, &raw)
            }
            Self::Set(set) => {
                let new = NewGroup {
                    owner: set.owner,
                    kind: set.kind,
                    strength: set.strength,
                    topology: set.topology,
                    max_per_domain: set.max_per_domain,
                };
                let path = format!("/v1/groups/{}", escape(&set.group));
                let raw: Raw = session.client.put(&path, &new).await?;
                print(session, &raw)
            }
            Self::Remove(some) => session.remove("group", "/v1/groups", &some.groups).await,
        }
    }
}

fn print(session: &Session, raw: &Raw) -> Done {
    session.out.answer(raw, |group: Group| {
        session.out.line(pairs(&[
            ("group", group.id.clone()),
            ("owner", group.owner.clone().unwrap_or_else(|| "anyone".to_owned())),
            ("kind", kind_name(group.kind).to_owned()),
            ("strength", strength_name(group.strength).to_owned()),
            ("per", group.topology.name().to_owned()),
            ("most per domain", most(&group)),
        ]));
        Ok(())
    })
}

fn most(group: &Group) -> String {
    if group.limit() == u32::MAX { "any number".to_owned() } else { group.limit().to_string() }
}

fn table(groups: &[Group]) -> Table {
    let mut table = Table::new(&["GROUP", "OWNER", "KIND", "STRENGTH", "PER", ">MOST"]);
    for group in groups {
        let most = group.max_per_domain.map(|most| most.to_string());
        table.row([
            group.id.as_str().into(),
            or_dash(group.owner.as_deref()),
            kind_name(group.kind).into(),
            strength_name(group.strength).into(),
            group.topology.name().into(),
            most.map_or_else(|| Cell::toned("-", Tone::Dim), Cell::from),
        ]);
    }
    table
}
