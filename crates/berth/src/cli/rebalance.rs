//! `berth rebalance`: moving instances that could stay, after looking at what it gains and costs.
//!
//! What is begun is the plan that was shown, move for move; the server checks each again.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use berth_api::engine::RebalanceGoal;
use berth_api::{
    ApplyRebalance, Migration, MigrationState, NotBegun, PlanRebalance, Rebalance,
    RebalanceApplied, RebalanceStep, units,
};
use berth_client::escape;
use clap::{Args, Subcommand, ValueEnum};

use super::failure::{Done, Exit, Failure};
use super::output::{Output, confirm};
use super::session::{Raw, Session, read_as};
use super::table::{Cell, Table, Tone};
use super::words::{many, or_dash};

/// How often migrations that are waited for are looked at.
const LOOK_EVERY: Duration = Duration::from_millis(500);

const EXAMPLES: &str = "\
Examples:
  berth rebalance plan --goal spread                    what would even out nodes, and what it costs
  berth rebalance plan --goal consolidate --budget 40   which nodes 40 moves could empty
  berth rebalance apply --goal consolidate --wait       show it, ask, and do it to the end
  berth rebalance plan --goal spread -o json > plan.json
  berth rebalance apply --plan plan.json --yes          do what was looked at, as far as it still holds";

/// Move running instances to empty whole nodes, or to even out their use.
#[derive(Subcommand, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) enum Rebalances {
    /// Show which moves would be worth it, with gain and cost. Nothing changes.
    #[command(after_help = EXAMPLES)]
    Plan(PlanArgs),
    /// Show a plan, ask, and begin its moves as migrations, as many as limits allow at once.
    #[command(after_help = EXAMPLES)]
    Apply(ApplyArgs),
}

/// What instances are moved for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Goal {
    /// Empty whole nodes.
    Consolidate,
    /// Even out the use of nodes.
    Spread,
}

impl From<Goal> for RebalanceGoal {
    fn from(goal: Goal) -> Self {
        match goal {
            Goal::Consolidate => Self::Consolidate,
            Goal::Spread => Self::Spread,
        }
    }
}

/// What a plan may do.
#[derive(Args, Debug)]
#[group(skip)]
struct Terms {
    /// Most moves, 1 to 1000.
    #[arg(long, value_name = "N", default_value_t = PlanRebalance::DEFAULT_BUDGET,
        value_parser = clap::value_parser!(u32).range(1..=i64::from(PlanRebalance::MAX_BUDGET)))]
    budget: u32,
    /// With spread: the least that a move must gain, in millionths of a full node.
    #[arg(long = "min-gain", value_name = "PPM",
        default_value_t = berth_api::engine::RebalanceTerms::DEFAULT_MIN_GAIN_PPM)]
    min_gain_ppm: u32,
    /// With spread: also fill nodes that hold nothing; otherwise they stay empty.
    #[arg(long)]
    onto_empty: bool,
    /// Also move instances that are not elastic, if their agents can.
    #[arg(long)]
    all: bool,
}

impl Terms {
    fn asked(&self, goal: Goal) -> PlanRebalance {
        PlanRebalance {
            goal: goal.into(),
            budget: self.budget,
            min_gain_ppm: self.min_gain_ppm,
            onto_empty: self.onto_empty,
            all: self.all,
        }
    }
}

/// A plan that is looked at.
#[derive(Args, Debug)]
#[group(skip)]
pub(crate) struct PlanArgs {
    /// What for: consolidate to empty whole nodes, spread to even out their use.
    #[arg(long, value_name = "GOAL")]
    goal: Goal,
    #[command(flatten)]
    terms: Terms,
}

/// A plan that is carried out.
#[derive(Args, Debug)]
#[group(skip)]
pub(crate) struct ApplyArgs {
    /// What for: consolidate to empty whole nodes, spread to even out their use.
    #[arg(long, value_name = "GOAL", required_unless_present = "plan")]
    goal: Option<Goal>,
    #[command(flatten)]
    terms: Terms,
    /// A plan that was saved with -o json, instead of one that is made now.
    #[arg(long, value_name = "FILE",
        conflicts_with_all = ["goal", "budget", "min_gain_ppm", "onto_empty", "all"])]
    plan: Option<PathBuf>,
    /// Do not ask.
    #[arg(long, short)]
    yes: bool,
    /// Wait until all moves are made, beginning more whenever limits allow.
    #[arg(long)]
    wait: bool,
}

impl Rebalances {
    pub(crate) async fn run(self, session: &Session) -> Done {
        match self {
            Self::Plan(plan) => plan.run(session).await,
            Self::Apply(apply) => apply.run(session).await,
        }
    }
}

impl PlanArgs {
    async fn run(self, session: &Session) -> Done {
        let raw = ask(session, &self.terms.asked(self.goal)).await?;
        session.out.answer(&raw, |plan: Rebalance| {
            print(&session.out, &plan);
            session.out.note(&plan.message);
            Ok(())
        })
    }
}

async fn ask(session: &Session, asked: &PlanRebalance) -> Done<Raw> {
    Ok(session.client.post("/v1/rebalance/plan", asked).await?)
}

impl ApplyArgs {
    async fn run(self, session: &Session) -> Done {
        let out = &session.out;
        let plan: Rebalance = match (&self.plan, self.goal) {
            (Some(file), _) => read(file)?,
            (None, Some(goal)) => read_as(&ask(session, &self.terms.asked(goal)).await?)?,
            (None, None) => return Err(Failure::usage("neither --goal nor --plan was given")),
        };
        if !out.is_data() && !out.quiet {
            print(out, &plan);
        }
        out.note(&plan.message);
        let count = plan.moves.len();
        let question = format!("begin {}?", many(count, "move"));
        if count > 0 && !self.yes && !confirm(&question)? {
            return Err(Failure::new(Exit::Failed, "nothing was changed"));
        }
        let first = begin(session, &plan, plan.moves.clone()).await?;
        if !self.wait {
            return told(out, &first);
        }
        Wait::new(session, &plan).run(first).await
    }
}

/// A plan that was saved.
fn read(file: &Path) -> Done<Rebalance> {
    let named = |why: String| {
        Failure::usage(format!("{}: {why}", file.display()))
            .accepted("a file made by berth rebalance plan --goal GOAL -o json")
    };
    let text = std::fs::read_to_string(file).map_err(|error| named(error.to_string()))?;
    serde_json::from_str(&text).map_err(|error| named(error.to_string()))
}

async fn begin(
    session: &Session,
    plan: &Rebalance,
    moves: Vec<RebalanceStep>,
) -> Done<RebalanceApplied> {
    let budget = u32::try_from(moves.len()).unwrap_or(u32::MAX).max(1);
    let asked = ApplyRebalance {
        goal: plan.goal,
        budget,
        min_gain_ppm: 1,
        onto_empty: false,
        all: plan.all,
        moves: Some(moves),
    };
    Ok(session.client.apply_rebalance(&asked).await?)
}

/// A plan as a table.
fn print(out: &Output, plan: &Rebalance) {
    let mut table = Table::new(&["INSTANCE", "NAME", "OWNER", "FROM", "TO", ">GAIN", ">COST"]);
    if out.is_wide() {
        table.column("WHY");
    }
    for step in &plan.moves {
        let mut row: Vec<Cell> = vec![
            step.instance.to_string().into(),
            or_dash(step.name.as_deref()),
            step.owner.as_str().into(),
            step.from.as_str().into(),
            step.to.as_str().into(),
            gain(plan.goal, step.gain).into(),
            size(step.cost).into(),
        ];
        if out.is_wide() {
            row.push(step.why.as_str().into());
        }
        table.row(row);
    }
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

/// What became of each move.
fn told(out: &Output, applied: &RebalanceApplied) -> Done {
    if out.is_data() {
        out.data(applied)?;
    } else {
        let mut table = Table::new(&["INSTANCE", "FROM", "TO", "STATE", "MIGRATION", "WHY"]);
        applied.begun.iter().for_each(|begun| table.row(begun_row(begun)));
        applied.not_begun.iter().for_each(|left| table.row(left_row(left)));
        if !table.is_empty() {
            out.table(&table, "");
            out.note(&applied.message);
        }
    }
    if applied.begun.is_empty() && !applied.not_begun.is_empty() {
        return Err(Failure::new(Exit::Refused, "no move could be begun"));
    }
    Ok(())
}

fn begun_row(begun: &Migration) -> Vec<Cell> {
    let (tone, why) = match begun.state {
        MigrationState::Failed | MigrationState::Cancelled => (Tone::Bad, begun.message.as_str()),
        MigrationState::Done => (Tone::Good, ""),
        _ => (Tone::Plain, ""),
    };
    vec![
        begun.instance.to_string().into(),
        begun.source.as_str().into(),
        begun.target.as_str().into(),
        Cell::toned(begun.state.name().replace('_', " "), tone),
        begun.id.as_str().into(),
        why.into(),
    ]
}

fn left_row(left: &NotBegun) -> Vec<Cell> {
    let (state, tone) =
        if left.waits { ("waits", Tone::Warn) } else { ("not possible", Tone::Bad) };
    vec![
        left.step.instance.to_string().into(),
        left.step.from.as_str().into(),
        left.step.to.as_str().into(),
        Cell::toned(state, tone),
        or_dash(None),
        left.why.as_str().into(),
    ]
}

/// A rebalance that is waited for.
struct Wait<'s> {
    session: &'s Session,
    plan: &'s Rebalance,
    /// What was begun, as last looked at.
    begun: BTreeMap<String, Migration>,
    waiting: Vec<NotBegun>,
    given_up: Vec<NotBegun>,
}

impl<'s> Wait<'s> {
    fn new(session: &'s Session, plan: &'s Rebalance) -> Self {
        let (begun, waiting, given_up) = (BTreeMap::new(), Vec::new(), Vec::new());
        Self { session, plan, begun, waiting, given_up }
    }

    async fn run(mut self, first: RebalanceApplied) -> Done {
        let bar = self.session.out.bar(self.plan.moves.len() as u64, "moves");
        self.take(first);
        loop {
            let over_before = self.over();
            self.look().await?;
            bar.set_position(self.over() as u64);
            let nothing_moves = self.over() == self.begun.len();
            if self.waiting.is_empty() && nothing_moves {
                break;
            }
            // A place is free, or nobody is in the way: either is a reason to try again.
            if !self.waiting.is_empty() && (nothing_moves || self.over() > over_before) {
                let left = std::mem::take(&mut self.waiting);
                let left = left.into_iter().map(|left| left.step).collect();
                let next = begin(self.session, self.plan, left).await?;
                let stuck = next.begun.is_empty() && nothing_moves;
                self.take(next);
                if stuck {
                    break;
                }
            }
            tokio::select! {
                () = tokio::time::sleep(LOOK_EVERY) => {}
                _ = tokio::signal::ctrl_c() => {
                    bar.finish_and_clear();
                    self.session.out.note("Migrations that were begun go on; no more are begun.");
                    return Ok(());
                }
            }
        }
        bar.finish_and_clear();
        self.end()
    }

    fn take(&mut self, applied: RebalanceApplied) {
        self.begun.extend(applied.begun.into_iter().map(|begun| (begun.id.clone(), begun)));
        let (waiting, given_up): (Vec<_>, Vec<_>) =
            applied.not_begun.into_iter().partition(|left| left.waits);
        self.waiting.extend(waiting);
        self.given_up.extend(given_up);
    }

    async fn look(&mut self) -> Done {
        for (id, known) in self.begun.iter_mut().filter(|(_, known)| !known.state.is_over()) {
            let path = format!("/v1/migrations/{}", escape(id));
            *known = self.session.client.get(&path, &[]).await?;
        }
        Ok(())
    }

    fn over(&self) -> usize {
        self.begun.values().filter(|known| known.state.is_over()).count()
    }

    fn end(self) -> Done {
        let begun: Vec<Migration> = self.begun.into_values().collect();
        let done = begun.iter().filter(|begun| begun.state == MigrationState::Done).count();
        let all = self.plan.moves.len();
        let waiting = u32::try_from(self.waiting.len()).unwrap_or(u32::MAX);
        let not_begun = [self.given_up, self.waiting].concat();
        let message = format!("{done} of {} made", many(all, "move"));
        let goal = self.plan.goal;
        let told_of = RebalanceApplied { goal, message, plan: None, begun, not_begun, waiting };
        told(&self.session.out, &told_of)?;
        if done < all {
            return Err(Failure::new(Exit::Failed, told_of.message));
        }
        Ok(())
    }
}
