//! `berth evacuate`: check whether nodes could be emptied.

use berth_api::engine::NodeId;
use berth_api::{DrainMove, Evacuation, EvacuationQuery, MoveState, Page};
use clap::{ArgGroup, Args, Subcommand};

use crate::cmdutil::style::{BAD, BOLD, GOOD, paint};
use crate::cmdutil::{
    Cell, CmdResult, Exit, Failure, Output, RawJson, Session, Table, Tone, decode, or_dash, plural,
};

const EXAMPLES: &str = "\
Examples:
  berth evacuate check --node n1             can n1 be emptied, and where would its instances go?
  berth evacuate check --node n1 --node n2   can both be emptied at once?
  berth evacuate check --rack r7 --zone z1   can a whole rack?
  berth evacuate check --all                 which nodes can be emptied, each by itself?";

/// Check whether nodes could be emptied.
#[derive(Subcommand, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) enum Evacuate {
    /// Plan every move under all rules, and change nothing. Fails if an instance cannot move.
    #[command(after_help = EXAMPLES)]
    Check(CheckArgs),
}

#[derive(Args, Debug)]
#[group(skip)]
#[command(group = ArgGroup::new("which").required(true).args(["nodes", "rack", "all"]))]
pub(crate) struct CheckArgs {
    /// Node to empty; may be repeated to empty several together.
    #[arg(long = "node", value_name = "NODE")]
    nodes: Vec<String>,
    /// Empty all nodes of a rack together.
    #[arg(long, value_name = "RACK")]
    rack: Option<String>,
    /// Zone of the rack, if several zones have a rack of that name.
    #[arg(long, value_name = "ZONE", requires = "rack")]
    zone: Option<String>,
    /// Check every node, each on its own.
    #[arg(long)]
    all: bool,
}

impl Evacuate {
    pub(crate) async fn run(self, session: &Session) -> CmdResult {
        let Self::Check(check) = self;
        check.run(session).await
    }
}

impl CheckArgs {
    async fn run(self, session: &Session) -> CmdResult {
        let Self { nodes, rack, zone, all } = self;
        let nodes = nodes.iter().map(|node| NodeId::new(node)).collect();
        let query = EvacuationQuery { nodes, rack, zone, all };
        let raw: RawJson = session.client.post("/v1/evacuations/check", &query).await?;
        let found: Page<Evacuation> = decode(&raw)?;
        session.out.response(&raw, |_: serde::de::IgnoredAny| {
            found.items.iter().for_each(|one| print(&session.out, one));
        })?;
        fail_unless_all_can_be_emptied(&found.items)
    }
}

/// The exit code tells a script whether all of them can be emptied.
fn fail_unless_all_can_be_emptied(found: &[Evacuation]) -> CmdResult {
    let cannot: Vec<&Evacuation> = found.iter().filter(|one| !one.can_be_emptied).collect();
    let message = match cannot[..] {
        [] => return Ok(()),
        [one] if one.nodes.len() == 1 => format!("{} cannot be emptied now", names(one)),
        [one] => format!("{} cannot be emptied together now", names(one)),
        _ => format!("{} of {} cannot be emptied now", cannot.len(), plural(found.len(), "node")),
    };
    Err(Failure::new(Exit::Refused, message))
}

fn names(one: &Evacuation) -> String {
    one.nodes.iter().map(NodeId::as_str).collect::<Vec<_>>().join(", ")
}

fn print(out: &Output, one: &Evacuation) {
    let together = one.nodes.len() > 1;
    if together {
        let each = one.nodes.iter().map(|node| (node, verdict_of(&one.moves, node)));
        each.for_each(|(node, (can, why))| print_verdict(out, node.as_str(), can, &why));
        print_verdict(
            out,
            &format!("{} together", plural(one.nodes.len(), "node")),
            one.can_be_emptied,
            &one.message,
        );
    } else {
        print_verdict(out, &names(one), one.can_be_emptied, &one.message);
    }
    if one.moves.is_empty() || out.quiet {
        return;
    }
    out.line("");
    out.line(out.text_of(&table(&one.moves, together, out.is_wide())));
    let mut remedies: Vec<&str> = Vec::new();
    for remedy in one.moves.iter().flat_map(|planned| &planned.unblock) {
        if !remedies.contains(&remedy.as_str()) {
            remedies.push(remedy);
        }
    }
    if !remedies.is_empty() {
        out.line(format!("\n{}", paint(BOLD, "What would help")));
        remedies.iter().for_each(|remedy| out.line(format!("  {remedy}")));
    }
}

fn print_verdict(out: &Output, what: &str, can: bool, why: &str) {
    let answer = if can { paint(GOOD, "yes") } else { paint(BAD, "no") };
    let joint = if can { ":" } else { ", because" };
    out.line(format!("{} can be emptied: {answer}{joint} {why}", paint(BOLD, what)));
}

/// Whether one node among several can be emptied, and why.
fn verdict_of(moves: &[DrainMove], node: &NodeId) -> (bool, String) {
    let here: Vec<&DrainMove> = moves.iter().filter(|planned| planned.from == *node).collect();
    let blocked = here.iter().filter(|planned| planned.state == MoveState::Blocked);
    let count = blocked.clone().count();
    match (here.len(), blocked.clone().next()) {
        (0, _) => (true, "it is empty".to_owned()),
        (some, None) => (true, format!("{} would move", plural(some, "instance"))),
        (some, Some(first)) => {
            let of = format!("{count} of {} cannot move", plural(some, "instance"));
            (false, format!("{of}: {}", first.message))
        }
    }
}

fn table(moves: &[DrainMove], together: bool, wide: bool) -> Table {
    let mut table = Table::new(&["INSTANCE", "TENANT", "WORKLOAD"]);
    if together {
        table.column("FROM");
    }
    ["TO", "WHY"].iter().for_each(|name| table.column(name));
    for planned in moves {
        let mut row: Vec<Cell> = vec![
            planned.instance.to_string().into(),
            planned.tenant.as_str().into(),
            or_dash(planned.workload.as_deref()),
        ];
        if together {
            row.push(planned.from.as_str().into());
        }
        let to = planned.to.as_ref().map(NodeId::as_str);
        row.push(to.map_or_else(|| Cell::with_tone("nowhere", Tone::Bad), Cell::from));
        // Why it fits is of interest in wide tables only.
        let why = if to.is_some() && !wide { "" } else { planned.message.as_str() };
        row.push(why.into());
        table.row(row);
    }
    table
}
