//! The same change to many nodes: chosen by name or by selector, shown before, asked about once.

use berth_api::Node;
use berth_client::{Client, ClientError, escape};
use clap::Args;
use futures_util::StreamExt as _;

use super::{did_you_mean, print};
use crate::cli::failure::{Done, Exit, Failure};
use crate::cli::output::confirm;
use crate::cli::session::{Raw, Session, typed};
use crate::cli::table::Table;
use crate::cli::words::{many, node_state};

/// How many nodes are changed at once.
const AT_ONCE: usize = 16;

/// Most nodes that are named before a change.
const NAMED: usize = 10;

/// What is done to a node whose facts are set; then all of them are of interest.
pub(crate) const CHANGE: &str = "change";

/// Which nodes are changed.
#[derive(Args, Debug, Default)]
pub(crate) struct Target {
    /// The nodes.
    #[arg(value_name = "NODE", required_unless_present = "filter", conflicts_with = "filter")]
    pub(crate) nodes: Vec<String>,
    /// All nodes for which this holds: 'rack = r1 and state = active'.
    #[arg(long = "where", value_name = "EXPR", value_parser = super::selector, id = "filter")]
    pub(crate) filter: Option<String>,
    /// Say which nodes it would be, and change nothing.
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Do not ask before changing more than one node.
    #[arg(long, short)]
    pub(crate) yes: bool,
}

/// A change of state.
#[derive(Args, Debug)]
pub(crate) struct Change {
    #[command(flatten)]
    target: Target,
    /// Why, for the record.
    #[arg(long)]
    reason: Option<String>,
}

/// What is done to nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verb {
    /// Takes nothing new.
    Cordon,
    /// Takes instances again.
    Uncordon,
    /// Is forgotten.
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

impl Change {
    pub(crate) async fn run(self, session: &Session, verb: Verb) -> Done {
        let Some(names) = self.target.chosen(session, verb.name()).await? else { return Ok(()) };
        let reason = self.reason;
        let change = |client: Client, name: String| {
            let reason = reason.clone();
            async move {
                let path = format!("/v1/nodes/{}", escape(&name));
                if verb == Verb::Remove {
                    return client.delete(&path).await.map(|()| None);
                }
                let body = berth_api::NodeStateChange { reason };
                client.post::<_, Raw>(&format!("{path}/{}", verb.name()), &body).await.map(Some)
            }
        };
        apply(session, verb.name(), names, change).await
    }
}

impl Target {
    /// The nodes that are meant; none when none is like that, which is said then.
    pub(crate) async fn names(&self, session: &Session) -> Done<Vec<String>> {
        let Some(filter) = &self.filter else { return Ok(self.nodes.clone()) };
        let page = session.list("/v1/nodes", &[("where", filter)], None).await?;
        let nodes: Vec<Node> = typed(&page.items)?;
        if nodes.is_empty() {
            session.out.note("No node is like that; nothing to do.");
        }
        Ok(nodes.iter().map(|node| node.facts.id.to_string()).collect())
    }

    /// The same once more than one was agreed to; nothing when nothing is to be done.
    pub(crate) async fn chosen(&self, session: &Session, verb: &str) -> Done<Option<Vec<String>>> {
        let out = &session.out;
        let names = self.names(session).await?;
        if names.is_empty() {
            return Ok(None);
        }
        if self.dry_run {
            out.note(format!("Would {verb} {}:", many(names.len(), "node")));
            names.iter().for_each(|name| out.line(name));
            return Ok(None);
        }
        if names.len() > 1 && !self.yes {
            let shown: Vec<&str> = names.iter().take(NAMED).map(String::as_str).collect();
            let more = names.len() - shown.len();
            let more = if more > 0 { format!(" and {more} more") } else { String::new() };
            let nodes = many(names.len(), "node");
            if !confirm(&format!("{verb} {nodes}: {}{more}?", shown.join(", ")))? {
                return Err(Failure::new(Exit::Failed, "nothing was changed"));
            }
        }
        Ok(Some(names))
    }
}

/// Does the same to many nodes, and says what became of each.
pub(crate) async fn apply<F>(
    session: &Session,
    verb: &str,
    names: Vec<String>,
    change: impl Fn(Client, String) -> F,
) -> Done
where
    F: Future<Output = Result<Option<Raw>, ClientError>>,
{
    let bar = session.out.bar(u64::try_from(names.len()).unwrap_or(0), verb);
    let one = |name: String| {
        let answer = change(session.client.clone(), name.clone());
        async move { (name, answer.await) }
    };
    let mut answers = futures_util::stream::iter(names).map(one).buffer_unordered(AT_ONCE);
    let (mut done, mut removed, mut failed) = (Vec::new(), Vec::new(), Vec::new());
    while let Some((name, answer)) = answers.next().await {
        bar.inc(1);
        match answer {
            Ok(Some(raw)) => done.push(raw),
            Ok(None) => removed.push(name),
            Err(error) => failed.push((name, Failure::from(error))),
        }
    }
    bar.finish_and_clear();
    print_done(session, verb, &done, &mut removed)?;
    failed.sort_by(|(a, _), (b, _)| a.cmp(b));
    report(session, failed, done.len() + removed.len()).await
}

fn print_done(session: &Session, verb: &str, done: &[Raw], removed: &mut [String]) -> Done {
    let out = &session.out;
    removed.sort();
    for name in removed.iter() {
        out.line(if out.quiet { name.clone() } else { format!("removed {name}") });
    }
    if done.is_empty() {
        return Ok(());
    }
    if out.is_data() {
        return match done {
            [one] => out.data(one),
            many => out.data(many),
        };
    }
    let mut nodes: Vec<Node> = typed(done)?;
    if let [node] = nodes.as_slice()
        && verb == CHANGE
        && !out.quiet
    {
        print::node(out, node);
        return Ok(());
    }
    nodes.sort_by(|a, b| a.facts.id.cmp(&b.facts.id));
    let mut table = Table::new(&["NODE", "STATE", ">INSTANCES"]);
    for node in &nodes {
        let instances = node.instances.to_string();
        table.row([node.facts.id.as_str().into(), node_state(node.facts.state), instances.into()]);
    }
    out.table(&table, "");
    Ok(())
}

/// One failure is told in full; several are told one line each.
async fn report(session: &Session, mut failed: Vec<(String, Failure)>, done: usize) -> Done {
    if failed.len() == 1 && done == 0 {
        let (name, failure) = failed.swap_remove(0);
        return Err(did_you_mean(session, failure, &name).await);
    }
    let Some((_, first)) = failed.first() else { return Ok(()) };
    let exit = first.exit;
    for (name, failure) in &failed {
        anstream::eprintln!("{name}: {}", failure.text());
    }
    let all = failed.len() + done;
    Err(Failure::new(exit, format!("{} of {} failed", failed.len(), many(all, "node"))))
}
