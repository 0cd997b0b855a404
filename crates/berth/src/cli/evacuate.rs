//! `berth evacuate`: whether nodes could be emptied.

use berth_api::engine::NodeId;
use berth_api::{DrainMove, Evacuation, EvacuationQuery, MoveState, Page};
use clap::{Args, Subcommand};

use super::failure::{Done, Exit, Failure};
use super::output::Output;
use super::output::style::{BAD, BOLD, GOOD, paint};
use super::session::{Raw, Session, read_as};
use super::table::{Cell, Table, Tone};
use super::words::{many, or_dash};

const EXAMPLES: &str = "\
Examples:
  berth evacuate check --node n1             can n1 be emptied, and where would everything go?
  berth evacuate check --node n1 --node n2   can both be emptied at once?
  berth evacuate check --rack r7 --zone z1   can a whole rack?
  berth evacuate check --all                 which nodes can be emptied, each by itself?";

/// Find out whether nodes could be emptied.
#[derive(Subcommand, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) enum Evacuate {
    /// Plan every move by every rule, and change nothing. Fails if something cannot move.
    #[command(after_help = EXAMPLES)]
    Check(Check),
}

/// What is to be emptied.
#[derive(Args, Debug)]
#[group(skip)]
pub(crate) struct Check {
    /// A node; several are emptied together.
    #[arg(long = "node", value_name = "NODE", required_unless_present_any = ["rack", "all"],
        conflicts_with_all = ["rack", "all"])]
    nodes: Vec<String>,
    /// All nodes of a rack, together.
    #[arg(long, value_name = "RACK", conflicts_with = "all")]
    rack: Option<String>,
    /// The rack's zone, where racks of several zones share a name.
    #[arg(long, value_name = "ZONE", requires = "rack")]
    zone: Option<String>,
    /// Every node, each by itself.
    #[arg(long)]
    all: bool,
}

impl Evacuate {
    pub(crate) async fn run(self, session: &Session) -> Done {
        let Self::Check(check) = self;
        check.run(session).await
    }
}

impl Check {
    async fn run(self, session: &Session) -> Done {
        let Self { nodes, rack, zone, all } = self;
        let nodes = nodes.iter().map(|node| NodeId::new(node)).collect();
        let asked = EvacuationQuery { nodes, rack, zone, all };
        let raw: Raw = session.client.post("/v1/evacuations/check", &asked).await?;
        let found: Page<Evacuation> = read_as(&raw)?;
        session.out.answer(&raw, |_: serde::de::IgnoredAny| {
            found.items.iter().for_each(|one| print(&session.out, one));
            Ok(())
        })?;
        verdict(&found.items)
    }
}

/// A script need only look at how the command ended.
fn verdict(found: &[Evacuation]) -> Done {
    let cannot: Vec<&Evacuation> = found.iter().filter(|one| !one.can_be_emptied).collect();
    let message = match cannot[..] {
        [] => return Ok(()),
        [one] if one.nodes.len() == 1 => format!("{} cannot be emptied now", names(one)),
        [one] => format!("{} cannot be emptied together now", names(one)),
        _ => format!("{} of {} cannot be emptied now", cannot.len(), many(found.len(), "node")),
    };
    Err(Failure::new(Exit::Refused, message))
}

fn names(one: &Evacuation) -> String {
    one.nodes.iter().map(NodeId::as_str).collect::<Vec<_>>().join(", ")
}

fn print(out: &Output, one: &Evacuation) {
    let together = one.nodes.len() > 1;
    if together {
        let each = one.nodes.iter().map(|node| (node, of_node(&one.moves, node)));
        each.for_each(|(node, (can, why))| line(out, node.as_str(), can, &why));
        line(
            out,
            &format!("{} together", many(one.nodes.len(), "node")),
            one.can_be_emptied,
            &one.message,
        );
    } else {
        line(out, &names(one), one.can_be_emptied, &one.message);
    }
    if one.moves.is_empty() || out.quiet {
        return;
    }
    out.line("");
    out.line(table(&one.moves, together, out.is_wide()).text());
    let mut told: Vec<&str> = Vec::new();
    for help in one.moves.iter().flat_map(|planned| &planned.unblock) {
        if !told.contains(&help.as_str()) {
            told.push(help);
        }
    }
    if !told.is_empty() {
        out.line(format!("\n{}", paint(BOLD, "What would help")));
        told.iter().for_each(|help| out.line(format!("  {help}")));
    }
}

fn line(out: &Output, what: &str, can: bool, why: &str) {
    let answer = if can { paint(GOOD, "yes") } else { paint(BAD, "no") };
    let joint = if can { ":" } else { ", because" };
    out.line(format!("{} can be emptied: {answer}{joint} {why}", paint(BOLD, what)));
}

/// What the moves of one node among several say of it.
fn of_node(moves: &[DrainMove], node: &NodeId) -> (bool, String) {
    let here: Vec<&DrainMove> = moves.iter().filter(|planned| planned.from == *node).collect();
    let blocked = here.iter().filter(|planned| planned.state == MoveState::Blocked);
    let count = blocked.clone().count();
    match (here.len(), blocked.clone().next()) {
        (0, _) => (true, "it is empty".to_owned()),
        (some, None) => (true, format!("{} would move", many(some, "instance"))),
        (some, Some(first)) => {
            let of = format!("{count} of {} cannot move", many(some, "instance"));
            (false, format!("{of}: {}", first.message))
        }
    }
}

fn table(moves: &[DrainMove], together: bool, wide: bool) -> Table {
    let mut table = Table::new(&["INSTANCE", "OWNER", "WORKLOAD"]);
    if together {
        table.column("FROM");
    }
    ["TO", "WHY"].iter().for_each(|name| table.column(name));
    for planned in moves {
        let mut row: Vec<Cell> = vec![
            planned.instance.to_string().into(),
            planned.owner.as_str().into(),
            or_dash(planned.workload.as_deref()),
        ];
        if together {
            row.push(planned.from.as_str().into());
        }
        let to = planned.to.as_ref().map(NodeId::as_str);
        row.push(to.map_or_else(|| Cell::toned("nowhere", Tone::Bad), Cell::from));
        // Where it fits needs no words, unless somebody wants them.
        let why = if to.is_some() && !wide { "" } else { planned.message.as_str() };
        row.push(why.into());
        table.row(row);
    }
    table
}
