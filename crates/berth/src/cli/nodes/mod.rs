//! `berth nodes`: what there is, and who may be used.

mod bulk;
mod drain;
mod import;
mod print;
mod register;
mod set;

use berth_api::select::Selector;
use berth_api::{Node, NodeExplanation};
use berth_client::escape;
use clap::{Args, Subcommand};

use self::bulk::{Change, Verb};
use super::failure::{Done, Failure};
use super::names;
use super::session::{Raw, Session, read_as, typed};

/// See and change nodes.
#[derive(Subcommand, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) enum Nodes {
    /// List nodes.
    #[command(visible_alias = "ls", after_help = LIST_EXAMPLES)]
    List(List),
    /// Show one node.
    #[command(after_help = "Example:\n  berth nodes show node-000012")]
    Show(One),
    /// Say what is on a node and why, and what keeps it from taking more.
    #[command(after_help = "Example:\n  berth nodes explain node-000012")]
    Explain(One),
    /// Take nothing new on nodes; what is there stays.
    #[command(after_help = CORDON_EXAMPLES)]
    Cordon(Change),
    /// Let nodes take instances again.
    #[command(after_help = "Example:\n  berth nodes uncordon node-000012")]
    Uncordon(Change),
    /// Empty nodes: take nothing new, and move away what is there.
    #[command(after_help = DRAIN_EXAMPLES)]
    Drain(drain::DrainNodes),
    /// Say that a node will be taken away, as agents of spot nodes do: replacements come at once.
    #[command(after_help = "Example:\n  berth nodes reclaim node-000012 --in 2m")]
    Reclaim(drain::Reclaim),
    /// Remove empty nodes.
    #[command(visible_alias = "rm", after_help = "Example:\n  berth nodes remove node-000012")]
    Remove(Change),
    /// Change facts of nodes, such as labels and traits.
    Set(set::Set),
    /// Add nodes, or state their facts anew, from a CSV or JSON file: all or none.
    Import(import::Import),
    /// Add a node, or state its facts anew.
    Register(Box<register::Register>),
}

const EXAMPLES: &str = "\
Examples:
  berth nodes list --where 'free.memory > 64GiB and has trait:ssd'
  berth nodes drain --where 'rack = r1' --dry-run
  berth nodes explain node-000012";

const LIST_EXAMPLES: &str = "\
Examples:
  berth nodes list
  berth nodes list --where 'platform < 20260101 and rack = r1'
  berth nodes list --sort=-memory --limit 10
  berth nodes list --where 'state != active' -q";

const CORDON_EXAMPLES: &str = "\
Examples:
  berth nodes cordon node-000012 --reason 'bad disk'
  berth nodes cordon --where 'rack = r1' --dry-run";

const DRAIN_EXAMPLES: &str = "\
Examples:
  berth nodes drain node-000012 --dry-run
  berth nodes drain node-000012 node-000013 --deadline 10m --wait
  berth nodes drain --where 'platform < 20260101' --reason 'new kernel'
  berth nodes drain node-000012 --status
  berth nodes drain node-000012 --cancel";

/// Which nodes to list.
#[derive(Args, Debug)]
pub(crate) struct List {
    /// Only nodes for which this holds: 'platform < 20260101 and rack = r1'.
    #[arg(long = "where", value_name = "EXPR", value_parser = selector)]
    filter: Option<String>,
    /// By what to sort: name, state, zone, cpu, memory, disk, instances or heard. A minus before it
    /// turns the order round.
    #[arg(long, value_name = "COLUMN", value_parser = print::Sort::parse, allow_hyphen_values = true)]
    sort: Option<print::Sort>,
    /// How many at most.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    limit: Option<u32>,
}

/// One node.
#[derive(Args, Debug)]
pub(crate) struct One {
    /// The node.
    node: String,
}

/// A selector is read here first, so that a mistake is pointed at before anybody is asked.
fn selector(text: &str) -> Result<String, String> {
    match Selector::parse(text) {
        Ok(_) => Ok(text.to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

impl Nodes {
    pub(crate) async fn run(self, session: &Session) -> Done {
        match self {
            Self::List(list) => list.run(session).await,
            Self::Show(one) => {
                let raw = one.get(session, "").await?;
                session.out.answer(&raw, |node: Node| {
                    print::node(&session.out, &node);
                    Ok(())
                })
            }
            Self::Explain(one) => {
                let raw = one.get(session, "/explain").await?;
                session.out.answer(&raw, |explanation: NodeExplanation| {
                    print::explanation(&session.out, &explanation);
                    Ok(())
                })
            }
            Self::Cordon(change) => change.run(session, Verb::Cordon).await,
            Self::Uncordon(change) => change.run(session, Verb::Uncordon).await,
            Self::Drain(drain) => drain.run(session).await,
            Self::Reclaim(reclaim) => reclaim.run(session).await,
            Self::Remove(change) => change.run(session, Verb::Remove).await,
            Self::Set(set) => set.run(session).await,
            Self::Import(import) => import.run(session).await,
            Self::Register(register) => register.run(session).await,
        }
    }
}

impl One {
    async fn get(&self, session: &Session, below: &str) -> Done<Raw> {
        let path = format!("/v1/nodes/{}{below}", escape(&self.node));
        match session.get(&path, &[]).await {
            Ok(raw) => Ok(raw),
            Err(failure) => Err(did_you_mean(session, failure, &self.node).await),
        }
    }
}

impl List {
    async fn run(self, session: &Session) -> Done {
        let mut query = Vec::new();
        query.extend(self.filter.as_deref().map(|filter| ("where", filter)));
        let limit = self.limit.and_then(|limit| usize::try_from(limit).ok());
        // What comes first is known only when all are known.
        let asked = if self.sort.is_some() { None } else { limit };
        let mut page = session.list("/v1/nodes", &query, asked).await?;
        if let Some(sort) = self.sort {
            let nodes: Vec<Node> = typed(&page.items)?;
            let mut both: Vec<(Node, Raw)> = nodes.into_iter().zip(page.items).collect();
            both.sort_by(|(a, _), (b, _)| sort.order(a, b));
            both.truncate(limit.unwrap_or(usize::MAX));
            page.items = both.into_iter().map(|(_, raw)| raw).collect();
        }
        if session.out.is_data() {
            return session.out.data(&page);
        }
        let nodes: Vec<Node> = typed(&page.items)?;
        let empty = if self.filter.is_some() { "No node is like that." } else { NO_NODES };
        session.out.table(&print::table(&nodes, session.out.is_wide()), empty);
        if page.next.is_some() {
            session.out.note("There is more; --limit says how many to show.");
        }
        Ok(())
    }
}

const NO_NODES: &str = "\
There are no nodes yet. Add one with: berth nodes register NAME --cpu 16 --memory 64GiB --disk 1TiB";

/// Adds the name that was likely meant to a failure about a node that does not exist.
pub(crate) async fn did_you_mean(session: &Session, failure: Failure, name: &str) -> Failure {
    if !failure.is_not_found() {
        return failure;
    }
    // Whoever may not list nodes gets the failure as it is.
    let Ok(page) = session.list("/v1/nodes", &[], None).await else { return failure };
    let nodes: Vec<Node> = page.items.iter().filter_map(|raw| read_as(raw).ok()).collect();
    let known = nodes.iter().map(|node| node.facts.id.as_str());
    match names::closest(name, known) {
        Some(near) => failure.remedy(format!("did you mean {near}?")),
        None => failure.remedy("berth nodes list shows all of them"),
    }
}
