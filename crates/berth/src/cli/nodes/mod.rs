//! `berth nodes`: the fleet, and which nodes accept instances.

mod bulk;
mod drain;
mod import;
mod print;
mod register;
mod set;

use berth_api::select::Selector;
use berth_api::{Node, NodeExplanation, Page};
use clap::{Args, Subcommand};

use self::bulk::{ChangeArgs, Verb};
use super::resource::{ListOptions, NameArg, Resource, path_of};
use crate::cmdutil::{CmdResult, RawJson, Session, decode_all};

/// Show and change nodes.
#[derive(Subcommand, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) enum Nodes {
    /// List nodes.
    #[command(visible_alias = "ls", after_help = LIST_EXAMPLES)]
    List(ListArgs),
    /// Show a node.
    #[command(after_help = "Example:\n  berth nodes show node-000012")]
    Show(NameArg<Node>),
    /// Explain what is on a node and why, and what keeps it from accepting more.
    #[command(after_help = "Example:\n  berth nodes explain node-000012")]
    Explain(NameArg<Node>),
    /// Stop placing instances on nodes; running ones stay.
    #[command(after_help = CORDON_EXAMPLES)]
    Cordon(ChangeArgs),
    /// Allow instances on nodes again.
    #[command(after_help = "Example:\n  berth nodes uncordon node-000012")]
    Uncordon(ChangeArgs),
    /// Empty nodes: accept nothing new, and move everything away.
    #[command(after_help = DRAIN_EXAMPLES)]
    Drain(drain::DrainArgs),
    /// Announce that a node will be taken away, as agents of spot nodes do; replacements start at
    /// once.
    #[command(after_help = "Example:\n  berth nodes reclaim node-000012 --in 2m")]
    Reclaim(drain::ReclaimArgs),
    /// Remove empty nodes.
    #[command(visible_alias = "rm", after_help = "Example:\n  berth nodes remove node-000012")]
    Remove(ChangeArgs),
    /// Set facts of nodes, such as labels and traits, whatever their agents report.
    Set(set::SetArgs),
    /// Give back facts that were set: what the node reports counts again.
    Unset(set::UnsetArgs),
    /// Register nodes from a CSV or JSON file: all or none.
    Import(import::ImportArgs),
    /// Register a node, or replace its facts.
    Register(Box<register::RegisterArgs>),
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

#[derive(Args, Debug)]
pub(crate) struct ListArgs {
    /// Show only nodes that match: 'platform < 20260101 and rack = r1'.
    #[arg(long = "where", value_name = "EXPR", value_parser = selector)]
    filter: Option<String>,
    /// Sort by name, state, zone, cpu, memory, disk, instances or heard; a leading minus reverses the
    /// order.
    #[arg(long, value_name = "COLUMN", value_parser = print::Sort::parse, allow_hyphen_values = true)]
    sort: Option<print::Sort>,
    #[command(flatten)]
    options: ListOptions,
}

/// A selector is parsed here first, so that a mistake is pointed out before the server is asked.
fn selector(text: &str) -> Result<String, String> {
    match Selector::parse(text) {
        Ok(_) => Ok(text.to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

impl Nodes {
    pub(crate) async fn run(self, session: &Session) -> CmdResult {
        match self {
            Self::List(list) => list.run(session).await,
            Self::Show(arg) => session.print::<Node>(&get(session, &arg.name, "").await?),
            Self::Explain(arg) => {
                let raw = get(session, &arg.name, "/explain").await?;
                session.out.response(&raw, |explanation: NodeExplanation| {
                    print::explanation(&session.out, &explanation);
                })
            }
            Self::Cordon(change) => change.run(session, Verb::Cordon).await,
            Self::Uncordon(change) => change.run(session, Verb::Uncordon).await,
            Self::Drain(drain) => drain.run(session).await,
            Self::Reclaim(reclaim) => reclaim.run(session).await,
            Self::Remove(change) => change.run(session, Verb::Remove).await,
            Self::Set(set) => set.run(session).await,
            Self::Unset(unset) => unset.run(session).await,
            Self::Import(import) => import.run(session).await,
            Self::Register(register) => register.run(session).await,
        }
    }
}

async fn get(session: &Session, name: &str, below: &str) -> CmdResult<RawJson> {
    match session.get(&format!("{}{below}", path_of::<Node>(name)), &[]).await {
        Ok(raw) => Ok(raw),
        Err(failure) => Err(session.suggest::<Node>(failure, name).await),
    }
}

impl ListArgs {
    async fn run(self, session: &Session) -> CmdResult {
        let when_empty = if self.filter.is_some() { "No nodes match." } else { Node::EMPTY };
        let is_empty = std::cell::Cell::new(false);
        let fetch = async || {
            let page = self.fetch(session).await?;
            is_empty.set(page.items.is_empty());
            Ok(page)
        };
        session.print_or_watch::<Node>(self.options, fetch, when_empty).await?;
        if let Some(filter) = self.filter.as_ref().filter(|_| is_empty.get()) {
            session.selector_hints(filter).await.iter().for_each(|hint| session.out.note(hint));
        }
        Ok(())
    }

    async fn fetch(&self, session: &Session) -> CmdResult<Page<RawJson>> {
        let query: Vec<_> = self.filter.iter().map(|filter| ("where", filter.as_str())).collect();
        // To sort, all nodes are needed.
        let limit = self.options.limit().filter(|_| self.sort.is_none());
        let mut page = session.get_list(Node::PATH, &query, limit).await?;
        if let Some(sort) = self.sort {
            let nodes: Vec<Node> = decode_all(&page.items)?;
            let mut both: Vec<(Node, RawJson)> = nodes.into_iter().zip(page.items).collect();
            both.sort_by(|(a, _), (b, _)| sort.compare(a, b));
            both.truncate(self.options.limit().unwrap_or(usize::MAX));
            page.items = both.into_iter().map(|(_, raw)| raw).collect();
        }
        Ok(page)
    }
}
