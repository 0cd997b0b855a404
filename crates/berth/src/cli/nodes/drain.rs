//! `berth nodes drain` and `berth nodes reclaim`: emptying nodes, and watching it.

use std::collections::BTreeMap;
use std::time::Duration;

use berth_api::{
    Drain, DrainMove, DrainNode, DrainState, Evacuation, EvacuationQuery, MoveState, ReclaimNotice,
};
use berth_client::{Client, ClientError, escape};
use clap::Args;
use futures_util::StreamExt as _;
use indicatif::{MultiProgress, ProgressBar};
use tokio::time::Instant;

use super::bulk::{self, Target};
use super::did_you_mean;
use crate::cli::args::duration;
use crate::cli::failure::{Done, Exit, Failure};
use crate::cli::session::{Raw, Session, read_as, typed};
use crate::cli::table::{Cell, Table, Tone};
use crate::cli::words::{many, or_dash};

/// How often a drain that is waited for is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// How many nodes are asked at once.
const AT_ONCE: usize = 16;

/// Which nodes are emptied, and how.
#[derive(Args, Debug)]
pub(crate) struct DrainNodes {
    #[command(flatten)]
    target: Target,
    /// Why, for the record.
    #[arg(long)]
    reason: Option<String>,
    /// After what time instances without volumes are stopped even if they have no other place.
    #[arg(long, value_name = "TIME", value_parser = duration)]
    deadline: Option<u32>,
    /// Wait until the nodes are empty, and show how far they are.
    #[arg(long)]
    wait: bool,
    /// With --wait: how long at most.
    #[arg(long, value_name = "TIME", value_parser = duration, requires = "wait")]
    timeout: Option<u32>,
    /// Say how far drains are, and change nothing.
    #[arg(long, conflicts_with_all = ["cancel", "wait", "dry_run", "deadline", "reason"])]
    status: bool,
    /// Call drains off: the nodes take instances again, and what has moved stays.
    #[arg(long, conflicts_with_all = ["wait", "dry_run", "deadline"])]
    cancel: bool,
}

/// A node that will be taken away.
#[derive(Args, Debug)]
pub(crate) struct Reclaim {
    /// The node.
    node: String,
    /// In what time, such as 2m.
    #[arg(long = "in", value_name = "TIME", value_parser = duration)]
    within: Option<u32>,
}

fn path(node: &str, below: &str) -> String {
    format!("/v1/nodes/{}/{below}", escape(node))
}

impl DrainNodes {
    pub(crate) async fn run(self, session: &Session) -> Done {
        if self.target.dry_run {
            let names = self.target.names(session).await?;
            return if names.is_empty() { Ok(()) } else { rehearse(session, &names).await };
        }
        if self.status {
            let names = self.target.names(session).await?;
            return show(session, look(session, &names).await?);
        }
        if self.cancel {
            let verb = "call off the drain of";
            let Some(names) = self.target.chosen(session, verb).await? else { return Ok(()) };
            let cancel = |client: Client, name: String| async move {
                let nothing = serde_json::Map::new();
                client.post::<_, Raw>(&path(&name, "drain/cancel"), &nothing).await.map(Some)
            };
            return bulk::apply(session, "cancel", names, cancel).await;
        }
        let Some(names) = self.target.chosen(session, "drain").await? else { return Ok(()) };
        let (reason, deadline_s) = (self.reason, self.deadline);
        let body = DrainNode { reason, deadline_s, dry_run: false };
        let begun = begin(session, &names, &body).await?;
        if self.wait {
            let limit = self.timeout.map(|s| Instant::now() + Duration::from_secs(u64::from(s)));
            return follow(session, &names, limit).await;
        }
        show(session, begun)?;
        session.out.note(format!("Follow it with: berth nodes drain {} --status", names.join(" ")));
        Ok(())
    }
}

impl Reclaim {
    pub(crate) async fn run(self, session: &Session) -> Done {
        let notice = ReclaimNotice { in_s: self.within };
        match session.client.post::<_, Raw>(&path(&self.node, "reclaim"), &notice).await {
            Ok(raw) => show(session, vec![raw]),
            Err(error) => Err(did_you_mean(session, error.into(), &self.node).await),
        }
    }
}

/// Has all nodes take nothing new first, so that nothing is moved from one to the other.
async fn begin(session: &Session, names: &[String], body: &DrainNode) -> Done<Vec<Raw>> {
    let one = |name: &String| {
        let (client, path) = (session.client.clone(), path(name, "drain"));
        async move { client.post::<_, Raw>(&path, body).await }
    };
    let answers: Vec<Result<Raw, ClientError>> =
        futures_util::stream::iter(names).map(one).buffered(AT_ONCE).collect().await;
    gather(session, names, answers).await
}

/// How far the nodes are.
async fn look(session: &Session, names: &[String]) -> Done<Vec<Raw>> {
    let one = |name: &String| {
        let (client, path) = (session.client.clone(), path(name, "drain"));
        async move { client.get::<Raw>(&path, &[]).await }
    };
    let answers: Vec<Result<Raw, ClientError>> =
        futures_util::stream::iter(names).map(one).buffered(AT_ONCE).collect().await;
    gather(session, names, answers).await
}

/// All answers, or what was wrong; of several failures each is told.
async fn gather(
    session: &Session,
    names: &[String],
    answers: Vec<Result<Raw, ClientError>>,
) -> Done<Vec<Raw>> {
    let (mut done, mut failed) = (Vec::new(), Vec::new());
    for (name, answer) in names.iter().zip(answers) {
        match answer {
            Ok(raw) => done.push(raw),
            Err(error) => failed.push((name, Failure::from(error))),
        }
    }
    if failed.is_empty() {
        return Ok(done);
    }
    if let ([_], [name]) = (failed.as_slice(), names) {
        let (_, failure) = failed.swap_remove(0);
        return Err(did_you_mean(session, failure, name).await);
    }
    let exit = failed[0].1.exit;
    for (name, failure) in &failed {
        anstream::eprintln!("{name}: {}", failure.text());
    }
    Err(Failure::new(exit, format!("{} of {} failed", failed.len(), many(names.len(), "node"))))
}

fn show(session: &Session, raws: Vec<Raw>) -> Done {
    let out = &session.out;
    if out.is_data() {
        return match raws.as_slice() {
            [one] => out.data(one),
            many => out.data(many),
        };
    }
    for raw in &raws {
        let drain: Drain = read_as(raw)?;
        out.line(line(&drain));
        print_moves(session, &drain.moves);
    }
    Ok(())
}

/// A drain in one line.
fn line(drain: &Drain) -> String {
    let gone = drain.total.saturating_sub(drain.left);
    format!("{}: {gone} of {} gone; {}", drain.node, drain.total, drain.message)
}

fn print_moves(session: &Session, moves: &[DrainMove]) {
    if moves.is_empty() || session.out.quiet {
        return;
    }
    let mut table = Table::new(&["INSTANCE", "OF", "STATE", "TO", "WHY", "WHAT WOULD HELP"]);
    for one in moves {
        let whose = match &one.workload {
            Some(workload) => format!("{}/{workload}", one.owner),
            None => one.owner.clone(),
        };
        let why = match &one.code {
            Some(code) if !one.message.contains(code.as_str()) => {
                format!("{code}: {}", one.message)
            }
            _ => one.message.clone(),
        };
        let to = or_dash(one.to.as_ref().map(|to| to.as_str()));
        let help = one.unblock.join("; ");
        let id = one.instance.to_string();
        table.row([id.into(), whose.into(), state(one.state), to, why.into(), help.into()]);
    }
    session.out.table(&table, "");
}

fn state(state: MoveState) -> Cell {
    let (text, tone) = match state {
        MoveState::Planned => ("planned", Tone::Good),
        MoveState::Starting => ("starting", Tone::Good),
        MoveState::Leaving => ("leaving", Tone::Good),
        MoveState::Waiting => ("waiting", Tone::Dim),
        MoveState::Blocked => ("blocked", Tone::Bad),
    };
    Cell::toned(text, tone)
}

/// Every move of emptying the nodes together, and whether all can be made.
async fn rehearse(session: &Session, names: &[String]) -> Done {
    let nodes = names.iter().map(|name| name.as_str().into()).collect();
    let query = EvacuationQuery { nodes, ..EvacuationQuery::default() };
    let raw: Raw = session.client.post("/v1/evacuations/check", &query).await?;
    // Asked for some nodes together, the answer is one; a list has it as its only item.
    let found: Evacuation = first_of(&raw)?;
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
    let message = format!("{} cannot move; nothing was changed", many(blocked, "instance"));
    Err(Failure::new(Exit::Refused, message))
}

fn first_of(raw: &Raw) -> Done<Evacuation> {
    let value: serde_json::Value = read_as(raw)?;
    let one = value.get("items").and_then(|items| items.get(0)).unwrap_or(&value);
    Ok(serde_json::from_value(one.clone())?)
}

/// Watches nodes until they are empty, or the time is over.
async fn follow(session: &Session, names: &[String], limit: Option<Instant>) -> Done {
    let mut watch = Watch::new(session, names);
    loop {
        let raws = look(session, names).await?;
        let drains = typed::<Drain>(&raws)?;
        drains.iter().for_each(|drain| watch.tell(session, drain));
        if drains.iter().all(|drain| drain.state == DrainState::Done) {
            watch.end();
            return if session.out.is_data() { show(session, raws) } else { Ok(()) };
        }
        if limit.is_some_and(|limit| limit <= Instant::now()) {
            watch.end();
            show(session, raws)?;
            let left = drains.iter().filter(|drain| drain.state != DrainState::Done).count();
            let message = format!("{} not empty in time; the drain goes on", many(left, "node"));
            return Err(Failure::new(Exit::Failed, message)
                .remedy("berth nodes drain NODE --status says what blocks it"));
        }
        tokio::select! {
            () = tokio::time::sleep(LOOK_EVERY) => {}
            _ = tokio::signal::ctrl_c() => {
                watch.end();
                session.out.note("The drain goes on; call it off with berth nodes drain NODE --cancel");
                return Ok(());
            }
        }
    }
}

/// A bar for each node on a terminal; lines elsewhere, whenever something changed.
struct Watch {
    bars: BTreeMap<String, ProgressBar>,
    all: MultiProgress,
    told: BTreeMap<String, String>,
}

impl Watch {
    fn new(session: &Session, names: &[String]) -> Self {
        let all = MultiProgress::with_draw_target(session.out.target());
        let bars = names.iter().map(|name| {
            let bar = all.add(session.out.bar(0, name));
            (name.clone(), bar)
        });
        Self { bars: bars.collect(), all, told: BTreeMap::new() }
    }

    fn tell(&mut self, session: &Session, drain: &Drain) {
        let name = drain.node.to_string();
        let blocked = drain.moves.iter().find(|one| one.state == MoveState::Blocked);
        let mut text = line(drain);
        if let Some(one) = blocked {
            let help = one.unblock.first().map(|help| format!("; {help}")).unwrap_or_default();
            text = format!("{text}; {}: {}{help}", one.instance, one.message);
        }
        if let Some(bar) = self.bars.get(&name) {
            bar.set_length(u64::from(drain.total));
            bar.set_position(u64::from(drain.total.saturating_sub(drain.left)));
            let shown = if blocked.is_some() { text.as_str() } else { name.as_str() };
            bar.set_message(shown.to_owned());
        }
        if self.all.is_hidden() && self.told.get(&name) != Some(&text) {
            session.out.note(&text);
            self.told.insert(name, text);
        }
    }

    fn end(&self) {
        // Bars that cannot be cleared are only in the way.
        let _ = self.all.clear();
    }
}
