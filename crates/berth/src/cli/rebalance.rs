//! `berth rebalance`: move running instances to a better place, after showing gain and cost.
//!
//! The moves that are started are those of the plan that was shown; the server checks each again.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use berth_api::engine::RebalanceGoal;
use berth_api::{
    ApplyRebalance, Migration, MigrationState, NotBegun, PlanRebalance, Rebalance,
    RebalanceApplied, RebalanceStep, units,
};
use clap::{ArgGroup, Args, Subcommand};

use super::resource::POLL_INTERVAL;
use crate::cmdutil::{
    Cell, CmdResult, Exit, Failure, NonInteractive, Output, RawJson, Session, Table, Tone, args,
    columns, confirm, decode, from_value, or_dash, plural,
};

const EXAMPLES: &str = "\
Examples:
  berth rebalance plan --goal spread                    show moves that even out the usage of nodes
  berth rebalance plan --goal consolidate --budget 40   show which nodes 40 moves could empty
  berth rebalance apply --goal consolidate --wait       show the plan, confirm, and wait for all moves
  berth rebalance plan --goal spread -o json > plan.json
  berth rebalance apply --plan plan.json --yes          carry out a saved plan, as far as it still holds";

/// Move running instances to empty whole nodes, or to even out their usage.
#[derive(Subcommand, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) enum Rebalances {
    /// Show which moves are worthwhile, with gain and cost. Changes nothing.
    #[command(after_help = EXAMPLES)]
    Plan(PlanArgs),
    /// Show a plan, ask for confirmation, and start its moves as migrations within the limits.
    #[command(after_help = EXAMPLES)]
    Apply(ApplyArgs),
}

#[derive(Args, Debug)]
#[group(skip)]
struct PlanOptions {
    /// Most moves, 1 to 1000.
    #[arg(long, value_name = "N", default_value_t = PlanRebalance::DEFAULT_BUDGET,
        value_parser = clap::value_parser!(u32).range(1..=i64::from(PlanRebalance::MAX_BUDGET)))]
    budget: u32,
    /// With spread: smallest gain of a move, in millionths of a full node.
    #[arg(long = "min-gain", value_name = "PPM",
        default_value_t = berth_api::engine::RebalanceTerms::DEFAULT_MIN_GAIN_PPM)]
    min_gain_ppm: u32,
    /// With spread: also use empty nodes, which are left empty by default.
    #[arg(long)]
    onto_empty: bool,
    /// Also move instances that are not elastic, if their agents support it.
    #[arg(long)]
    all: bool,
}

fn goal() -> impl Fn(&str) -> Result<RebalanceGoal, String> + Clone {
    args::api_value("consolidate or spread")
}

impl PlanOptions {
    fn request(&self, goal: RebalanceGoal) -> PlanRebalance {
        PlanRebalance {
            goal,
            budget: self.budget,
            min_gain_ppm: self.min_gain_ppm,
            onto_empty: self.onto_empty,
            all: self.all,
        }
    }
}

#[derive(Args, Debug)]
#[group(skip)]
pub(crate) struct PlanArgs {
    /// Goal: consolidate to empty whole nodes, spread to even out their usage.
    #[arg(long, value_name = "GOAL", value_parser = goal())]
    goal: RebalanceGoal,
    #[command(flatten)]
    options: PlanOptions,
}

#[derive(Args, Debug)]
#[group(skip)]
#[command(group = ArgGroup::new("plan_source").required(true).args(["goal", "plan"]))]
pub(crate) struct ApplyArgs {
    /// Goal: consolidate to empty whole nodes, spread to even out their usage.
    #[arg(long, value_name = "GOAL", value_parser = goal())]
    goal: Option<RebalanceGoal>,
    #[command(flatten)]
    options: PlanOptions,
    /// Plan that was saved with -o json, instead of a new one.
    #[arg(long, value_name = "FILE",
        conflicts_with_all = ["budget", "min_gain_ppm", "onto_empty", "all"])]
    plan: Option<PathBuf>,
    /// Skip the confirmation.
    #[arg(long, short)]
    yes: bool,
    /// Wait until all moves have ended, and start more whenever limits allow.
    #[arg(long)]
    wait: bool,
}

impl Rebalances {
    pub(crate) async fn run(self, session: &Session) -> CmdResult {
        match self {
            Self::Plan(plan) => plan.run(session).await,
            Self::Apply(apply) => apply.run(session).await,
        }
    }
}

impl PlanArgs {
    async fn run(self, session: &Session) -> CmdResult {
        let raw = plan(session, &self.options.request(self.goal)).await?;
        session.out.response(&raw, |plan: Rebalance| {
            print(&session.out, &plan);
            session.out.note(&plan.message);
        })
    }
}

async fn plan(session: &Session, request: &PlanRebalance) -> CmdResult<RawJson> {
    Ok(session.client.post("/v1/rebalance/plan", request).await?)
}

impl ApplyArgs {
    async fn run(self, session: &Session) -> CmdResult {
        let out = &session.out;
        let plan: Rebalance = match (&self.plan, self.goal) {
            (Some(file), _) => read(file)?,
            (None, Some(goal)) => decode(&self::plan(session, &self.options.request(goal)).await?)?,
            (None, None) => return Err(Failure::usage("neither --goal nor --plan was given")),
        };
        if !out.is_data() && !out.quiet {
            print(out, &plan);
        }
        out.note(&plan.message);
        let count = plan.moves.len();
        if count > 0 && !self.yes {
            confirm(&format!("start {}", plural(count, "move")), NonInteractive::Refuse)?;
        }
        let first = start(session, &plan, plan.moves.clone()).await?;
        if !self.wait {
            return print_applied(out, &first);
        }
        Execution::new(session, &plan).run(first).await
    }
}

/// Reads a saved plan.
fn read(file: &Path) -> CmdResult<Rebalance> {
    let named = |why: String| {
        Failure::usage(format!("{}: {why}", file.display()))
            .accepted("a file made by berth rebalance plan --goal GOAL -o json")
    };
    let text = std::fs::read_to_string(file).map_err(|error| named(error.to_string()))?;
    let value = serde_json::from_str(&text).map_err(|error| named(error.to_string()))?;
    from_value(value).map_err(named)
}

async fn start(
    session: &Session,
    plan: &Rebalance,
    moves: Vec<RebalanceStep>,
) -> CmdResult<RebalanceApplied> {
    let budget = u32::try_from(moves.len()).unwrap_or(u32::MAX).max(1);
    let request = ApplyRebalance {
        goal: plan.goal,
        budget,
        min_gain_ppm: 1,
        onto_empty: false,
        all: plan.all,
        moves: Some(moves),
    };
    Ok(session.client.apply_rebalance(&request).await?)
}

/// Prints a plan as a table.
fn print(out: &Output, plan: &Rebalance) {
    let steps: Vec<(RebalanceGoal, &RebalanceStep)> =
        plan.moves.iter().map(|step| (plan.goal, step)).collect();
    let columns = columns![row: (RebalanceGoal, &RebalanceStep);
        "INSTANCE" => row.1.instance.to_string(),
        "NAME" => or_dash(row.1.name.as_deref()),
        "TENANT" => row.1.tenant.as_str(),
        "FROM" => row.1.from.as_str(),
        "TO" => row.1.to.as_str(),
        ">GAIN" => gain(row.0, row.1.gain),
        ">COST" => size(row.1.cost),
        "+WHY" => row.1.why.as_str(),
    ];
    let table = Table::of(&steps, out.is_wide(), columns);
    if !table.is_empty() {
        out.table(&table, "");
    }
}

fn gain(goal: RebalanceGoal, gain: u64) -> String {
    match goal {
        RebalanceGoal::Consolidate => size(gain),
        RebalanceGoal::Spread => format!("{gain} ppm"),
    }
}

fn size(mib: u64) -> String {
    units::size(i64::try_from(mib).unwrap_or(i64::MAX))
}

/// Prints what became of each move.
fn print_applied(out: &Output, applied: &RebalanceApplied) -> CmdResult {
    if out.is_data() {
        out.data(applied)?;
    } else {
        let mut table = Table::new(&["INSTANCE", "FROM", "TO", "STATE", "MIGRATION", "WHY"]);
        applied.begun.iter().for_each(|begun| table.row(started_row(begun)));
        applied.not_begun.iter().for_each(|left| table.row(skipped_row(left)));
        if !table.is_empty() {
            out.table(&table, "");
            out.note(&applied.message);
        }
    }
    if applied.begun.is_empty() && !applied.not_begun.is_empty() {
        return Err(Failure::new(Exit::Refused, "no move could be started"));
    }
    Ok(())
}

fn started_row(begun: &Migration) -> Vec<Cell> {
    let (tone, why) = match begun.state {
        MigrationState::Failed | MigrationState::Cancelled => (Tone::Bad, begun.message.as_str()),
        MigrationState::Done => (Tone::Good, ""),
        _ => (Tone::Plain, ""),
    };
    vec![
        begun.instance.to_string().into(),
        begun.source.as_str().into(),
        begun.target.as_str().into(),
        Cell::with_tone(begun.state.name().replace('_', " "), tone),
        begun.id.as_str().into(),
        why.into(),
    ]
}

fn skipped_row(left: &NotBegun) -> Vec<Cell> {
    let (state, tone) =
        if left.waits { ("waiting", Tone::Warn) } else { ("not possible", Tone::Bad) };
    vec![
        left.step.instance.to_string().into(),
        left.step.from.as_str().into(),
        left.step.to.as_str().into(),
        Cell::with_tone(state, tone),
        or_dash(None),
        left.why.as_str().into(),
    ]
}

/// A plan that is carried out to its end.
struct Execution<'s> {
    session: &'s Session,
    plan: &'s Rebalance,
    /// The started migrations, as last polled.
    started: BTreeMap<String, Migration>,
    waiting: Vec<NotBegun>,
    skipped: Vec<NotBegun>,
}

impl<'s> Execution<'s> {
    fn new(session: &'s Session, plan: &'s Rebalance) -> Self {
        let (started, waiting, skipped) = (BTreeMap::new(), Vec::new(), Vec::new());
        Self { session, plan, started, waiting, skipped }
    }

    async fn run(mut self, first: RebalanceApplied) -> CmdResult {
        let bar = self.session.out.bar(self.plan.moves.len(), "moves");
        self.record(first);
        loop {
            let ended_before = self.count_ended();
            self.poll().await?;
            bar.set_position(self.count_ended() as u64);
            let nothing_moves = self.count_ended() == self.started.len();
            if self.waiting.is_empty() && nothing_moves {
                break;
            }
            // Try again when a migration has ended, or none is running.
            if !self.waiting.is_empty() && (nothing_moves || self.count_ended() > ended_before) {
                let left = std::mem::take(&mut self.waiting);
                let left = left.into_iter().map(|left| left.step).collect();
                let next = start(self.session, self.plan, left).await?;
                let stuck = next.begun.is_empty() && nothing_moves;
                self.record(next);
                if stuck {
                    break;
                }
            }
            tokio::select! {
                () = tokio::time::sleep(POLL_INTERVAL) => {}
                _ = tokio::signal::ctrl_c() => {
                    bar.finish_and_clear();
                    self.session.out.note("Started migrations continue; no more are started.");
                    return Ok(());
                }
            }
        }
        bar.finish_and_clear();
        self.finish()
    }

    fn record(&mut self, applied: RebalanceApplied) {
        self.started.extend(applied.begun.into_iter().map(|begun| (begun.id.clone(), begun)));
        let (waiting, skipped): (Vec<_>, Vec<_>) =
            applied.not_begun.into_iter().partition(|left| left.waits);
        self.waiting.extend(waiting);
        self.skipped.extend(skipped);
    }

    async fn poll(&mut self) -> CmdResult {
        for (id, known) in self.started.iter_mut().filter(|(_, known)| !known.state.is_over()) {
            *known = self.session.client.migration(id).await?;
        }
        Ok(())
    }

    fn count_ended(&self) -> usize {
        self.started.values().filter(|known| known.state.is_over()).count()
    }

    fn finish(self) -> CmdResult {
        let begun: Vec<Migration> = self.started.into_values().collect();
        let done = begun.iter().filter(|begun| begun.state == MigrationState::Done).count();
        let all = self.plan.moves.len();
        let waiting = u32::try_from(self.waiting.len()).unwrap_or(u32::MAX);
        let not_begun = [self.skipped, self.waiting].concat();
        let message = format!("{done} of {} made", plural(all, "move"));
        let goal = self.plan.goal;
        let applied = RebalanceApplied { goal, message, plan: None, begun, not_begun, waiting };
        print_applied(&self.session.out, &applied)?;
        if done < all {
            return Err(Failure::new(Exit::Failed, applied.message));
        }
        Ok(())
    }
}
