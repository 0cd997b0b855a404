//! `berth nodes drain` and `berth nodes reclaim`: emptying nodes, and showing the progress.

use std::collections::BTreeMap;

use berth_api::{
    Drain, DrainMove, DrainNode, DrainState, Evacuation, EvacuationQuery, MoveState, Node, Page,
    ReclaimNotice,
};
use berth_client::{Client, ClientError};
use clap::Args;
use indicatif::{MultiProgress, ProgressBar};
use tokio::time::Instant;

use super::bulk::{self, Target};
use crate::cli::resource::{POLL_INTERVAL, deadline, path_of};
use crate::cmdutil::{
    Cell, CmdResult, Exit, Failure, RawJson, Session, Table, Tone, api_name, args, columns,
    concurrently, decode, decode_all, partition, plural,
};

#[derive(Args, Debug)]
pub(crate) struct DrainArgs {
    #[command(flatten)]
    target: Target,
    /// Reason, for the audit log.
    #[arg(long)]
    reason: Option<String>,
    /// Stop instances without volumes after this time, even if they fit nowhere else.
    #[arg(long, value_name = "DURATION", value_parser = args::duration)]
    deadline: Option<u32>,
    /// Wait until the nodes are empty, and show the progress.
    #[arg(long)]
    wait: bool,
    /// Give up waiting after this time.
    #[arg(long, value_name = "DURATION", value_parser = args::duration, requires = "wait")]
    timeout: Option<u32>,
    /// Show the progress of drains, and change nothing.
    #[arg(long, conflicts_with_all = ["cancel", "wait", "dry_run", "deadline", "reason"])]
    status: bool,
    /// Cancel drains: the nodes accept instances again, and what has moved stays.
    #[arg(long, conflicts_with_all = ["wait", "dry_run", "deadline"])]
    cancel: bool,
}

#[derive(Args, Debug)]
pub(crate) struct ReclaimArgs {
    /// Name of the node.
    node: String,
    /// When it will be taken away, such as 2m.
    #[arg(long = "in", value_name = "DURATION", value_parser = args::duration)]
    within: Option<u32>,
}

fn path(node: &str, action: &str) -> String {
    format!("{}/{action}", path_of::<Node>(node))
}

impl DrainArgs {
    pub(crate) async fn run(self, session: &Session) -> CmdResult {
        if self.target.selection.dry_run {
            let names = self.target.names(session).await?;
            return if names.is_empty() { Ok(()) } else { check(session, &names).await };
        }
        if self.status {
            let names = self.target.names(session).await?;
            return print_drains(session, &get_drains(session, &names).await?);
        }
        if self.cancel {
            let names = self.target.confirm(session, "cancel the drain of").await?;
            let cancel = |client: Client, name: String| async move {
                let body = serde_json::Map::new();
                client.post::<_, RawJson>(&path(&name, "drain/cancel"), &body).await.map(Some)
            };
            return bulk::apply(session, "cancel", names, cancel).await;
        }
        let names = self.target.confirm(session, "drain").await?;
        if names.is_empty() {
            return Ok(());
        }
        let body = DrainNode { reason: self.reason, deadline_s: self.deadline, dry_run: false };
        let started = start(session, &names, &body).await?;
        if self.wait {
            return follow(session, &names, deadline(self.timeout)).await;
        }
        print_drains(session, &started)?;
        let hint =
            format!("Show its progress with: berth nodes drain {} --status", names.join(" "));
        session.out.note(hint);
        Ok(())
    }
}

impl ReclaimArgs {
    pub(crate) async fn run(self, session: &Session) -> CmdResult {
        let notice = ReclaimNotice { in_s: self.within };
        match session.client.post::<_, RawJson>(&path(&self.node, "reclaim"), &notice).await {
            Ok(raw) => print_drains(session, &[raw]),
            Err(error) => Err(session.suggest::<Node>(error.into(), &self.node).await),
        }
    }
}

/// Starts all drains before any is waited for, so that nothing moves from one node to another.
async fn start(session: &Session, names: &[String], body: &DrainNode) -> CmdResult<Vec<RawJson>> {
    let request = async |name: &String| session.client.post(&path(name, "drain"), body).await;
    all_or_failure(session, names, concurrently(names, request).await).await
}

async fn get_drains(session: &Session, names: &[String]) -> CmdResult<Vec<RawJson>> {
    let request = async |name: &String| session.client.get(&path(name, "drain"), &[]).await;
    all_or_failure(session, names, concurrently(names, request).await).await
}

/// All responses, or what failed.
async fn all_or_failure(
    session: &Session,
    names: &[String],
    results: Vec<Result<RawJson, ClientError>>,
) -> CmdResult<Vec<RawJson>> {
    let named = names
        .iter()
        .zip(results)
        .map(|(name, result)| result.map_err(|error| (name.clone(), Failure::from(error))));
    let (responses, failed) = partition(named);
    bulk::report(session, failed, names.len()).await?;
    Ok(responses)
}

fn print_drains(session: &Session, drains: &[RawJson]) -> CmdResult {
    let out = &session.out;
    if out.is_data() {
        return out.data_of(drains);
    }
    for drain in decode_all::<Drain>(drains)? {
        out.line(summary(&drain));
        print_moves(session, &drain.moves);
    }
    Ok(())
}

/// A drain in one line.
fn summary(drain: &Drain) -> String {
    let gone = drain.total.saturating_sub(drain.left);
    format!("{}: {gone} of {} gone; {}", drain.node, drain.total, drain.message)
}

fn print_moves(session: &Session, moves: &[DrainMove]) {
    if moves.is_empty() || session.out.quiet {
        return;
    }
    let columns = columns![planned: DrainMove;
        "INSTANCE" => planned.instance.to_string(),
        "OF" => match &planned.workload {
            Some(workload) => format!("{}/{workload}", planned.tenant),
            None => planned.tenant.clone(),
        },
        "STATE" => state(planned.state),
        "TO" => planned.to.as_ref().map(|to| to.as_str()),
        "WHY" => match &planned.code {
            Some(code) if !planned.message.contains(code.as_str()) => {
                format!("{code}: {}", planned.message)
            }
            _ => planned.message.clone(),
        },
        "WHAT WOULD HELP" => planned.unblock.join("; "),
    ];
    session.out.table(&Table::of(moves, false, columns), "");
}

fn state(state: MoveState) -> Cell {
    let tone = match state {
        MoveState::Planned | MoveState::Starting | MoveState::Leaving => Tone::Good,
        MoveState::Waiting => Tone::Dim,
        MoveState::Blocked => Tone::Bad,
    };
    Cell::with_tone(api_name(&state), tone)
}

/// Prints every move of emptying the nodes together, and whether all are possible.
async fn check(session: &Session, names: &[String]) -> CmdResult {
    let nodes = names.iter().map(|name| name.as_str().into()).collect();
    let query = EvacuationQuery { nodes, ..EvacuationQuery::default() };
    let raw: RawJson = session.client.post("/v1/evacuations/check", &query).await?;
    // Nodes that are emptied together get one answer.
    let Some(found) = decode::<Page<Evacuation>>(&raw)?.items.into_iter().next() else {
        return session.out.data(&raw);
    };
    if session.out.is_data() {
        session.out.data(&raw)?;
    } else {
        print_moves(session, &found.moves);
        session.out.note(format!("{}: {}", names.join(", "), found.message));
    }
    if found.can_be_emptied {
        return Ok(());
    }
    let blocked = found.moves.iter().filter(|one| one.state == MoveState::Blocked).count();
    let message = format!("{} cannot move; nothing was changed", plural(blocked, "instance"));
    Err(Failure::new(Exit::Refused, message))
}

/// Polls until all nodes are empty, or the deadline has passed.
async fn follow(session: &Session, names: &[String], deadline: Option<Instant>) -> CmdResult {
    let mut progress = DrainProgress::new(session, names);
    loop {
        let raws = get_drains(session, names).await?;
        let drains = decode_all::<Drain>(&raws)?;
        drains.iter().for_each(|drain| progress.update(session, drain));
        let left = drains.iter().filter(|drain| drain.state != DrainState::Done).count();
        if left == 0 {
            progress.clear();
            return if session.out.is_data() { print_drains(session, &raws) } else { Ok(()) };
        }
        if deadline.is_some_and(|deadline| deadline <= Instant::now()) {
            progress.clear();
            print_drains(session, &raws)?;
            let message =
                format!("timed out: {} not empty; the drain continues", plural(left, "node"));
            return Err(Failure::new(Exit::Failed, message)
                .remedy("show what blocks it with: berth nodes drain NODE --status"));
        }
        tokio::select! {
            () = tokio::time::sleep(POLL_INTERVAL) => {}
            _ = tokio::signal::ctrl_c() => {
                progress.clear();
                session.out.note("The drain continues; cancel it with: berth nodes drain NODE --cancel");
                return Ok(());
            }
        }
    }
}

/// A bar for each node on a terminal; elsewhere a line whenever something changed.
struct DrainProgress {
    bars: BTreeMap<String, ProgressBar>,
    all: MultiProgress,
    printed: BTreeMap<String, String>,
}

impl DrainProgress {
    fn new(session: &Session, names: &[String]) -> Self {
        let all = MultiProgress::with_draw_target(session.out.target());
        let bars = names.iter().map(|name| (name.clone(), all.add(session.out.bar(0, name))));
        Self { bars: bars.collect(), all, printed: BTreeMap::new() }
    }

    fn update(&mut self, session: &Session, drain: &Drain) {
        let name = drain.node.to_string();
        let blocked = drain.moves.iter().find(|one| one.state == MoveState::Blocked);
        let mut text = summary(drain);
        if let Some(one) = blocked {
            let help = one.unblock.first().map(|help| format!("; {help}")).unwrap_or_default();
            text = format!("{text}; {}: {}{help}", one.instance, one.message);
        }
        if let Some(bar) = self.bars.get(&name) {
            bar.set_length(u64::from(drain.total));
            bar.set_position(u64::from(drain.total.saturating_sub(drain.left)));
            let message = if blocked.is_some() { text.as_str() } else { name.as_str() };
            bar.set_message(message.to_owned());
        }
        if self.all.is_hidden() && self.printed.get(&name) != Some(&text) {
            session.out.note(&text);
            self.printed.insert(name, text);
        }
    }

    fn clear(&self) {
        // Bars that cannot be cleared are only in the way.
        let _ = self.all.clear();
    }
}
