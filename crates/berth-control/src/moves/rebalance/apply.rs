//! Starting the moves of a rebalance: as many as the limits allow now; the others are reported.
//!
//! Each move is checked by itself against the current state, no matter who planned it. One that
//! cannot work is not started, since an instance rests after a failed migration.

use std::sync::Arc;

use berth_api::{
    ApplyRebalance, Migration, MigrationReason, NotBegun, PlanRebalance, Rebalance,
    RebalanceApplied, RebalanceStep,
};
use berth_engine::NodeId;
use berth_engine::elastic::{ElasticSettings, Size, watermark_free};
use berth_ledger::ClaimKey;

use super::{check, count, nodes_being_left};
use crate::caller::Caller;
use crate::catalog::{CatalogState, ClaimEntry};
use crate::control_plane::ControlPlane;
use crate::error::{ControlError, ControlResult};
use crate::moves::evacuee::Evacuee;
use crate::moves::executor::{StartFailure, start_revalidated};

/// Starts the moves that are given, or those of a plan that is made now.
///
/// # Errors
/// When the request is not valid, or nothing could be started because the ledger is not available.
pub async fn apply(
    control: &Arc<ControlPlane>,
    caller: &Caller,
    asked: ApplyRebalance,
) -> ControlResult<RebalanceApplied> {
    let terms = asked.plan();
    check(&terms)?;
    let goal = asked.goal;
    let (plan, moves) = match asked.moves {
        Some(moves) => (None, check_given(moves, terms.budget)?),
        None => {
            let plan = super::plan(control, &terms).await?;
            let moves = plan.moves.clone();
            (Some(plan), moves)
        }
    };
    let (begun, not_begun) = start_all(control, caller, &terms, moves).await?;
    let waiting = not_begun.iter().filter(|left| left.waits).count();
    let message = summarize(&begun, &not_begun, plan.as_ref());
    let waiting = u32::try_from(waiting).unwrap_or(u32::MAX);
    Ok(RebalanceApplied { goal, message, plan, begun, not_begun, waiting })
}

/// Moves that a caller reviewed and gives back.
fn check_given(moves: Vec<RebalanceStep>, budget: u32) -> ControlResult<Vec<RebalanceStep>> {
    if moves.len() > budget as usize {
        let value = Some(count(moves.len(), "move"));
        let accepted = format!("at most {budget} moves, as `budget` says");
        return Err(ControlError::field("moves", value, &accepted));
    }
    Ok(moves)
}

async fn start_all(
    control: &Arc<ControlPlane>,
    caller: &Caller,
    terms: &PlanRebalance,
    moves: Vec<RebalanceStep>,
) -> ControlResult<(Vec<Migration>, Vec<NotBegun>)> {
    let (mut begun, mut not_begun) = (Vec::new(), Vec::new());
    // Before anything is started: two moves of one plan may pass through the same node.
    let closed = nodes_being_left(&control.moves.migrations);
    let mut moves = moves.into_iter();
    while let Some(step) = moves.next() {
        let (why, waits) = match start(control, caller, terms.all, &closed, &step).await {
            Ok(migration) => {
                begun.push(migration);
                continue;
            }
            Err(StartFailure::Impossible(why)) => (why, false),
            Err(StartFailure::NotYet(why)) => (why, true),
            Err(StartFailure::Unavailable(error)) if begun.is_empty() => return Err(error),
            Err(StartFailure::Unavailable(error)) => {
                // The caller must learn what was started, so the answer is not an error.
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

/// Starts one move.
async fn start(
    control: &Arc<ControlPlane>,
    caller: &Caller,
    all: bool,
    closed: &[NodeId],
    step: &RebalanceStep,
) -> Result<Migration, StartFailure> {
    let policy = control.catalog.policy();
    let settings = policy.map(|policy| policy.elastic().clone()).unwrap_or_default();
    let revalidate = || revalidate(control, &settings, all, closed, step);
    let reason = MigrationReason::Rebalance;
    start_revalidated(control, caller, step.instance, &step.to, reason, revalidate).await
}

/// Checks whether a move may be started now, and returns its cost.
fn revalidate(
    control: &ControlPlane,
    settings: &ElasticSettings,
    all: bool,
    closed: &[NodeId],
    step: &RebalanceStep,
) -> Result<u64, StartFailure> {
    if control.lifecycle.stopping().is_cancelled() {
        let stopping = ControlError::unavailable("stopping", "the server is stopping");
        return Err(StartFailure::Unavailable(stopping));
    }
    let catalog = control.catalog.read();
    let Some(claim) = catalog.claims.get(&ClaimKey::primary(step.instance)) else {
        return Err(StartFailure::Impossible("there is no such instance any more".to_owned()));
    };
    let evacuee = Evacuee::new(&control.moves.migrations, claim);
    let now = control.now().as_second();
    if claim.node != step.from {
        let why = format!("it runs on {} now, not on {}", claim.node, step.from);
        return Err(StartFailure::Impossible(why));
    }
    if let Some(why) = evacuee.pinned(settings, all, now) {
        return Err(StartFailure::Impossible(why.to_string()));
    }
    if evacuee.history.nodes_left().contains(&step.to) {
        let why = format!("it left {} within a day, so it does not go back", step.to);
        return Err(StartFailure::Impossible(why));
    }
    if closed.contains(&step.to) {
        let why = format!("others are leaving {}; it should not come there meanwhile", step.to);
        return Err(StartFailure::NotYet(why));
    }
    check_watermark(&catalog, settings, claim, &step.to)?;
    check_limits(control, settings, step)?;
    Ok(evacuee.for_rebalance(true, &[]).cost())
}

/// Checks that a node would stay below its watermark, by the planner's rule: CPU may be at the mark,
/// memory must be below it.
fn check_watermark(
    catalog: &CatalogState,
    settings: &ElasticSettings,
    claim: &ClaimEntry,
    to: &NodeId,
) -> Result<(), StartFailure> {
    let Some(entry) = catalog.nodes.get(to) else {
        return Err(StartFailure::Impossible(format!("there is no node {to} any more")));
    };
    let mark = settings.on(&entry.facts).watermark;
    let size = Size::of(&claim.amounts).plus(Size::new(0, entry.facts.vmm_overhead_mib));
    let free = watermark_free(&entry.facts, &entry.room.used, mark);
    let left = free.recharged(Size::ZERO, size);
    if left.cpu >= 0 && left.memory > 0 {
        return Ok(());
    }
    Err(StartFailure::NotYet(format!("node {to} would pass its watermark with it now")))
}

/// Checks that one more migration is within the policy's limits.
fn check_limits(
    control: &ControlPlane,
    settings: &ElasticSettings,
    step: &RebalanceStep,
) -> Result<(), StartFailure> {
    let limits = settings.migration;
    let open = control.moves.migrations.open();
    if open.len() >= limits.fleet as usize {
        let why = format!(
            "{} are under way, as many as elastic.migration.fleet allows",
            count(open.len(), "migration")
        );
        return Err(StartFailure::NotYet(why));
    }
    for node in [&step.from, &step.to] {
        let busy =
            open.iter().filter(|it| it.value.source == *node || it.value.target == *node).count();
        if busy >= limits.per_node as usize {
            let why = format!(
                "node {node} has {} under way, as many as elastic.migration.per_node allows",
                count(busy, "migration")
            );
            return Err(StartFailure::NotYet(why));
        }
    }
    Ok(())
}

/// What became of all moves, in one sentence.
fn summarize(begun: &[Migration], not_begun: &[NotBegun], plan: Option<&Rebalance>) -> String {
    let all = begun.len() + not_begun.len();
    if all == 0 {
        return plan.map_or_else(|| "no moves were given".to_owned(), |plan| plan.message.clone());
    }
    let mut text = match begun.len() {
        some if some == all => format!("{} begun", count(all, "move")),
        some => format!("{some} of {} begun", count(all, "move")),
    };
    let waiting: Vec<&NotBegun> = not_begun.iter().filter(|left| left.waits).collect();
    if let Some(first) = waiting.first() {
        text = format!("{text}; {} for later: {}", waiting.len(), first.why);
    }
    if let Some(first) = not_begun.iter().find(|left| !left.waits) {
        let impossible = not_begun.len() - waiting.len();
        text = format!("{text}; {impossible} not possible: {}", first.why);
    }
    text
}
