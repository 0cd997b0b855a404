//! Beginning moves: as many as the limits allow now; the others are told of.
//!
//! Each move is checked by itself against how things are at that moment, whoever planned it. What
//! is known not to work is not begun, since a migration that fails makes its instance rest.

use std::sync::Arc;

use berth_api::{
    ApplyRebalance, Migration, MigrationReason, MigrationState, NotBegun, PlanRebalance, Rebalance,
    RebalanceApplied, RebalanceStep,
};
use berth_engine::NodeId;
use berth_engine::elastic::{ElasticSettings, Size, watermark_free};
use berth_ledger::ClaimKey;

use super::guests::{Past, being_left, cost};
use super::{check, many, stopping};
use crate::caller::Caller;
use crate::catalog::{CatalogState, ClaimEntry};
use crate::control_plane::ControlPlane;
use crate::error::{ControlError, ControlResult};
use crate::moves::migration::{self, Begin};

/// How often a move is looked at anew when another server decides at the same time.
const TRIES: u32 = 4;

/// Why a move was not begun.
enum Not {
    /// It is not possible, or not wanted any more.
    Possible(String),
    /// Later, perhaps.
    Yet(String),
    /// Nothing can be begun now.
    Working(ControlError),
}

/// Begins the moves that were given, or those of a plan that is made now.
///
/// # Errors
/// When what is asked for cannot be accepted, or nothing could be begun for lack of a ledger.
pub async fn apply(
    control: &Arc<ControlPlane>,
    caller: &Caller,
    asked: ApplyRebalance,
) -> ControlResult<RebalanceApplied> {
    let terms = asked.plan();
    check(&terms)?;
    let goal = asked.goal;
    let (plan, moves) = match asked.moves {
        Some(moves) => (None, given(moves, terms.budget)?),
        None => {
            let plan = super::plan(control, &terms).await?;
            let moves = plan.moves.clone();
            (Some(plan), moves)
        }
    };
    let (begun, not_begun) = begin_all(control, caller, &terms, moves).await?;
    let waiting = not_begun.iter().filter(|left| left.waits).count();
    let message = in_words(&begun, &not_begun, plan.as_ref());
    let waiting = u32::try_from(waiting).unwrap_or(u32::MAX);
    Ok(RebalanceApplied { goal, message, plan, begun, not_begun, waiting })
}

/// Moves that a caller gives back.
fn given(moves: Vec<RebalanceStep>, budget: u32) -> ControlResult<Vec<RebalanceStep>> {
    if moves.len() > budget as usize {
        let value = Some(many(moves.len(), "move"));
        let accepted = format!("at most {budget} moves, as `budget` says");
        return Err(ControlError::field("moves", value, &accepted));
    }
    Ok(moves)
}

async fn begin_all(
    control: &Arc<ControlPlane>,
    caller: &Caller,
    terms: &PlanRebalance,
    moves: Vec<RebalanceStep>,
) -> ControlResult<(Vec<Migration>, Vec<NotBegun>)> {
    let (mut begun, mut not_begun) = (Vec::new(), Vec::new());
    // Before anything is begun: two moves of one plan may well pass through the same node.
    let closed = being_left(control);
    let mut moves = moves.into_iter();
    while let Some(step) = moves.next() {
        let (why, waits) = match begin(control, caller, terms.all, &closed, &step).await {
            Ok(migration) => {
                begun.push(migration);
                continue;
            }
            Err(Not::Possible(why)) => (why, false),
            Err(Not::Yet(why)) => (why, true),
            Err(Not::Working(error)) if begun.is_empty() => return Err(error),
            Err(Not::Working(error)) => {
                // What was begun must be told, so the answer is not an error.
                let why = error.detail().to_owned();
                let left = std::iter::once(step).chain(moves);
                not_begun.extend(left.map(|step| NotBegun { step, why: why.clone(), waits: true }));
                break;
            }
        };
        not_begun.push(NotBegun { step, why, waits });
    }
    Ok((begun, not_begun))
}

/// Begins one move.
async fn begin(
    control: &Arc<ControlPlane>,
    caller: &Caller,
    all: bool,
    closed: &[NodeId],
    step: &RebalanceStep,
) -> Result<Migration, Not> {
    let policy = control.catalog.policy();
    let settings = policy.map(|policy| policy.elastic().clone()).unwrap_or_default();
    for _ in 0..TRIES {
        // Before anything is looked at: a decision of another server after it makes this void.
        let guard = control.migrations.guard();
        control.settled().await;
        let cost = possible(control, &settings, all, closed, step)?;
        let to = Some(step.to.clone());
        migration::destination(control, step.instance, to).await.map_err(refused)?;
        let asked = Begin {
            instance: step.instance,
            to: step.to.clone(),
            reason: MigrationReason::Rebalance,
            cost,
            guard: Some(guard),
        };
        match migration::begin(control, caller, &asked).await {
            Ok(migration) if migration.state == MigrationState::Failed => {
                return Err(Not::Possible(migration.message));
            }
            Ok(migration) => return Ok(migration),
            Err(error) if error.code() == "contention" => {}
            Err(error) => return Err(refused(error)),
        }
    }
    Err(Not::Yet("other servers decide migrations at the same time".to_owned()))
}

fn refused(error: ControlError) -> Not {
    if !error.is_callers() {
        return Not::Working(error);
    }
    let why = error.detail().to_owned();
    // Room may be free once other moves are done.
    if error.code() == "no_room" { Not::Yet(why) } else { Not::Possible(why) }
}

/// Whether a move may be begun as things are; what it costs.
fn possible(
    control: &ControlPlane,
    settings: &ElasticSettings,
    all: bool,
    closed: &[NodeId],
    step: &RebalanceStep,
) -> Result<u64, Not> {
    if control.stopping.is_cancelled() {
        return Err(Not::Working(stopping()));
    }
    let books = control.catalog.books();
    let Some(claim) = books.claims.get(&ClaimKey::primary(step.instance)) else {
        return Err(Not::Possible("there is no such instance any more".to_owned()));
    };
    let past = Past::of(control, claim);
    let now = control.now().as_second();
    if claim.node != step.from {
        let why = format!("it runs on {} now, not on {}", claim.node, step.from);
        return Err(Not::Possible(why));
    }
    if let Some(why) = past.stays(claim, settings, all, now) {
        return Err(Not::Possible(why.to_string()));
    }
    if past.left().contains(&step.to) {
        let why = format!("it left {} within a day; nobody is passed to and fro", step.to);
        return Err(Not::Possible(why));
    }
    if closed.contains(&step.to) {
        let why = format!("others are leaving {}; it should not come there meanwhile", step.to);
        return Err(Not::Yet(why));
    }
    stays_calm(&books, settings, claim, &step.to)?;
    within_limits(control, settings, step)?;
    Ok(cost(claim))
}

/// Whether a node would stay below its watermark: CPU may be at the mark, memory must be below it,
/// as a plan judges it.
fn stays_calm(
    books: &CatalogState,
    settings: &ElasticSettings,
    claim: &ClaimEntry,
    to: &NodeId,
) -> Result<(), Not> {
    let Some(entry) = books.nodes.get(to) else {
        return Err(Not::Possible(format!("there is no node {to} any more")));
    };
    let mark = settings.on(&entry.facts).watermark;
    let size = Size::of(&claim.amounts).plus(Size::new(0, entry.facts.vmm_overhead_mib));
    let free = watermark_free(&entry.facts, &entry.room.used, mark);
    let left = free.recharged(Size::ZERO, size);
    if left.cpu >= 0 && left.memory > 0 {
        return Ok(());
    }
    Err(Not::Yet(format!("node {to} would pass its watermark with it now")))
}

/// Whether one more migration is within the policy's limits.
fn within_limits(
    control: &ControlPlane,
    settings: &ElasticSettings,
    step: &RebalanceStep,
) -> Result<(), Not> {
    let limits = settings.migration;
    let open = control.migrations.open();
    if open.len() >= limits.fleet as usize {
        let why = format!(
            "{} are under way, as many as elastic.migration.fleet allows",
            many(open.len(), "migration")
        );
        return Err(Not::Yet(why));
    }
    for node in [&step.from, &step.to] {
        let busy =
            open.iter().filter(|it| it.value.source == *node || it.value.target == *node).count();
        if busy >= limits.per_node as usize {
            let why = format!(
                "node {node} has {} under way, as many as elastic.migration.per_node allows",
                many(busy, "migration")
            );
            return Err(Not::Yet(why));
        }
    }
    Ok(())
}

/// What became of all, in one sentence.
fn in_words(begun: &[Migration], not_begun: &[NotBegun], plan: Option<&Rebalance>) -> String {
    let all = begun.len() + not_begun.len();
    if all == 0 {
        return plan.map_or_else(|| "no moves were given".to_owned(), |plan| plan.message.clone());
    }
    let mut text = match begun.len() {
        some if some == all => format!("{} begun", many(all, "move")),
        some => format!("{some} of {} begun", many(all, "move")),
    };
    let waiting: Vec<&NotBegun> = not_begun.iter().filter(|left| left.waits).collect();
    if let Some(first) = waiting.first() {
        text = format!("{text}; {} for later: {}", waiting.len(), first.why);
    }
    if let Some(first) = not_begun.iter().find(|left| !left.waits) {
        let count = not_begun.len() - waiting.len();
        text = format!("{text}; {count} not possible: {}", first.why);
    }
    text
}
