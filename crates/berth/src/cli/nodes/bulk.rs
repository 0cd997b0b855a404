//! The same change to many nodes, selected by name or expression and confirmed once.

use berth_api::{Node, NodeStateChange};
use berth_client::{Client, ClientError};
use clap::{ArgGroup, Args};

use crate::cli::resource::{Resource, path_of};
use crate::cmdutil::{
    CmdResult, Failure, NonInteractive, RawJson, Session, Table, columns, concurrently, confirm,
    decode_all, node_state, plural,
};

/// Most nodes that are named before a change.
const NAMED: usize = 10;

/// The verb of a change of facts, after which a single node is shown in full.
pub(crate) const CHANGE: &str = "change";

/// Which nodes are changed.
#[derive(Args, Debug, Default)]
#[command(group = ArgGroup::new("which_nodes").required(true).args(["nodes", "filter"]))]
pub(crate) struct Target {
    /// Names of the nodes.
    #[arg(value_name = "NODE")]
    pub(crate) nodes: Vec<String>,
    #[command(flatten)]
    pub(crate) selection: Selection,
}

/// The selection of nodes by expression, and how a change of several is handled.
#[derive(Args, Debug, Default)]
pub(crate) struct Selection {
    /// Select all nodes that match: 'rack = r1 and state = active'.
    #[arg(long = "where", value_name = "EXPR", value_parser = super::selector, id = "filter")]
    pub(crate) filter: Option<String>,
    /// Show which nodes are selected, and change nothing.
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Change the nodes without confirmation; needed with --where where there is no terminal.
    #[arg(long, short)]
    pub(crate) yes: bool,
}

#[derive(Args, Debug)]
pub(crate) struct ChangeArgs {
    #[command(flatten)]
    target: Target,
    /// Reason, for the audit log.
    #[arg(long)]
    reason: Option<String>,
}

/// A change of state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verb {
    Cordon,
    Uncordon,
    Remove,
}

impl Verb {
    const fn name(self) -> &'static str {
        match self {
            Self::Cordon => "cordon",
            Self::Uncordon => "uncordon",
            Self::Remove => "remove",
        }
    }
}

impl ChangeArgs {
    pub(crate) async fn run(self, session: &Session, verb: Verb) -> CmdResult {
        let names = self.target.confirm(session, verb.name()).await?;
        let change = |client: Client, name: String| {
            let body = NodeStateChange { reason: self.reason.clone() };
            async move {
                let path = path_of::<Node>(&name);
                if verb == Verb::Remove {
                    return client.delete(&path).await.map(|()| None);
                }
                let path = format!("{path}/{}", verb.name());
                client.post::<_, RawJson>(&path, &body).await.map(Some)
            }
        };
        apply(session, verb.name(), names, change).await
    }
}

impl Target {
    /// The selected nodes; when there are none, a note says so.
    pub(crate) async fn names(&self, session: &Session) -> CmdResult<Vec<String>> {
        let Some(filter) = &self.selection.filter else { return Ok(self.nodes.clone()) };
        let page = session.get_list(Node::PATH, &[("where", filter)], None).await?;
        let nodes: Vec<Node> = decode_all(&page.items)?;
        if nodes.is_empty() {
            session.out.note("No nodes match; nothing to do.");
            session.selector_hints(filter).await.iter().for_each(|hint| session.out.note(hint));
        }
        Ok(nodes.iter().map(|node| node.facts.id.to_string()).collect())
    }

    /// The selected nodes once the user has confirmed; none when nothing is to be done.
    pub(crate) async fn confirm(&self, session: &Session, verb: &str) -> CmdResult<Vec<String>> {
        let out = &session.out;
        let names = self.names(session).await?;
        let count = plural(names.len(), "node");
        if self.selection.dry_run && !names.is_empty() {
            out.note(format!("Would {verb} {count}:"));
            names.iter().for_each(|name| out.line(name));
            return Ok(Vec::new());
        }
        let is_selected = self.selection.filter.is_some();
        if (names.len() > 1 || is_selected) && !names.is_empty() && !self.selection.yes {
            let more = names.len().saturating_sub(NAMED);
            let more = if more > 0 { format!(" and {more} more") } else { String::new() };
            let named = names.iter().take(NAMED).map(String::as_str).collect::<Vec<_>>();
            let non_interactive =
                if is_selected { NonInteractive::Refuse } else { NonInteractive::Proceed };
            confirm(&format!("{verb} {count}: {}{more}", named.join(", ")), non_interactive)?;
        }
        Ok(names)
    }
}

/// Changes nodes, and prints what became of each.
pub(crate) async fn apply<F>(
    session: &Session,
    verb: &str,
    names: Vec<String>,
    change: impl Fn(Client, String) -> F,
) -> CmdResult
where
    F: Future<Output = Result<Option<RawJson>, ClientError>>,
{
    let total = names.len();
    let bar = session.out.bar(total, verb);
    let results = concurrently(names, |name| {
        let result = change(session.client.clone(), name.clone());
        let bar = &bar;
        async move {
            let result = result.await;
            bar.inc(1);
            (name, result)
        }
    })
    .await;
    bar.finish_and_clear();
    let (mut changed, mut removed, mut failed) = (Vec::new(), Vec::new(), Vec::new());
    for (name, result) in results {
        match result {
            Ok(Some(raw)) => changed.push(raw),
            Ok(None) => removed.push(name),
            Err(error) => failed.push((name, Failure::from(error))),
        }
    }
    removed.sort();
    for name in removed {
        let line = if session.out.quiet { name } else { format!("removed {name}") };
        session.out.line(line);
    }
    print_changed(session, verb, &changed)?;
    report(session, failed, total).await
}

fn print_changed(session: &Session, verb: &str, changed: &[RawJson]) -> CmdResult {
    let out = &session.out;
    if changed.is_empty() {
        return Ok(());
    }
    if out.is_data() {
        return out.data_of(changed);
    }
    let mut nodes: Vec<Node> = decode_all(changed)?;
    if let [node] = nodes.as_slice()
        && verb == CHANGE
        && !out.quiet
    {
        node.print(out);
        return Ok(());
    }
    nodes.sort_by(|a, b| a.facts.id.cmp(&b.facts.id));
    let columns = columns![node: Node;
        "NODE" => node.facts.id.as_str(),
        "STATE" => node_state(node.facts.state),
        ">INSTANCES" => node.instances,
    ];
    out.table(&Table::of(&nodes, false, columns), "");
    Ok(())
}

/// Reports the failures of a change to several nodes.
pub(crate) async fn report(
    session: &Session,
    mut failed: Vec<(String, Failure)>,
    total: usize,
) -> CmdResult {
    if let ([_], 1) = (failed.as_slice(), total) {
        let (name, failure) = failed.swap_remove(0);
        return Err(session.suggest::<Node>(failure, &name).await);
    }
    failed.sort_by(|(a, _), (b, _)| a.cmp(b));
    Failure::of_many(failed, total, "node", "failed")
}
