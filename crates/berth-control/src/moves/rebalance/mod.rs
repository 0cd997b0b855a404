//! Moving instances that could stay: planned on a fleet of its own, begun as migrations.
//!
//! A plan changes nothing. Whatever is begun is checked against how things are by then, so a plan
//! may be looked at for as long as one likes. Nobody is passed to and fro: who was moved of late
//! stays, nobody goes back to a node that it left within a day, and nobody goes where others are
//! just leaving.

mod apply;
mod guests;

use std::sync::Arc;

use berth_api::{PlanRebalance, Rebalance, RebalanceStep};
use berth_engine::elastic::{Free, watermark_free};
use berth_engine::{NodeId, RebalanceGoal, RebalancePlan, StopReason};
use rustc_hash::FxHashMap;

use crate::control_plane::ControlPlane;
use crate::error::{ControlError, ControlResult};
use crate::moves::evacuation::{Scratch, Snapshot};

pub use apply::apply;

fn stopping() -> ControlError {
    ControlError::unavailable("stopping", "the server is stopping")
}

/// Checks what was asked for, beyond its form.
fn check(asked: &PlanRebalance) -> ControlResult<()> {
    let accepted = 1..=PlanRebalance::MAX_BUDGET;
    if accepted.contains(&asked.budget) {
        return Ok(());
    }
    let accepted = format!("1 to {}", PlanRebalance::MAX_BUDGET);
    Err(ControlError::field("budget", Some(asked.budget.to_string()), &accepted))
}

/// Plans moves towards a goal, and changes nothing.
///
/// # Errors
/// When what is asked for cannot be accepted, or the server is stopping.
pub async fn plan(control: &Arc<ControlPlane>, asked: &PlanRebalance) -> ControlResult<Rebalance> {
    check(asked)?;
    let snapshot = Snapshot::take(control).await.ok_or_else(stopping)?;
    let (control, asked) = (Arc::clone(control), asked.clone());
    let work = move || planned(&control, snapshot, &asked);
    tokio::task::spawn_blocking(work).await.map_err(|_| stopping())
}

fn planned(control: &ControlPlane, snapshot: Snapshot, asked: &PlanRebalance) -> Rebalance {
    let settings = snapshot.policy().elastic();
    let now = control.now().as_second();
    let guests = guests::everybody(control, snapshot.claims(), settings, asked.all, now);
    let rooms: FxHashMap<NodeId, Free> = snapshot
        .rooms()
        .map(|(facts, used)| {
            let mark = settings.on(facts).watermark;
            (facts.id.clone(), watermark_free(facts, used, mark))
        })
        .collect();
    let none = Free { cpu: i64::MIN, memory: i64::MIN };
    let mut scratch = snapshot.build();
    let room = |node: &NodeId| rooms.get(node).copied().unwrap_or(none);
    let plan = scratch.rebalance(asked.terms(), &guests, &room);
    told(&scratch, plan, asked)
}

/// A plan as callers read it.
fn told(scratch: &Scratch, plan: RebalancePlan, asked: &PlanRebalance) -> Rebalance {
    let message = in_words(&plan, asked);
    let step = |made: berth_engine::RebalanceMove| {
        let claim = scratch.claim(made.instance);
        RebalanceStep {
            instance: made.instance,
            name: claim.and_then(|claim| claim.name.as_deref().map(str::to_owned)),
            owner: claim.map_or_else(String::new, |claim| claim.request.owner.clone()),
            from: made.from,
            to: made.to,
            gain: made.gain,
            cost: made.cost,
            why: made.why,
        }
    };
    Rebalance {
        goal: plan.goal,
        message,
        moves: plan.moves.into_iter().map(step).collect(),
        gain_unit: plan.goal.gain_unit().to_owned(),
        measure: plan.goal.measure().to_owned(),
        before: plan.before,
        after: plan.after,
        emptied: plan.emptied,
        stopped_by: plan.stopped_by,
        all: asked.all,
    }
}

/// What a plan does, in one sentence.
fn in_words(plan: &RebalancePlan, asked: &PlanRebalance) -> String {
    let more = match plan.stopped_by {
        StopReason::Budget => "; a larger budget may do more",
        StopReason::NothingToGain => "",
    };
    if plan.moves.is_empty() {
        let budget = many(asked.budget as usize, "move");
        return match (plan.stopped_by, plan.goal) {
            (StopReason::Budget, _) => {
                format!("no node can be emptied with {budget}; a larger budget may do it")
            }
            (_, RebalanceGoal::Consolidate) => "nothing to gain: no node can be emptied".to_owned(),
            (_, RebalanceGoal::Spread) => {
                format!("nothing to gain: no move gains {} ppm", asked.min_gain_ppm.max(1))
            }
        };
    }
    let cost: u64 = plan.moves.iter().map(|made| made.cost).sum();
    let moves = many(plan.moves.len(), "move");
    let (before, after) = (plan.before, plan.after);
    match plan.goal {
        RebalanceGoal::Consolidate => format!(
            "{moves} of about {cost} MiB would empty {}: {} of {} nodes in use, then {}{more}",
            many(plan.emptied.len(), "node"),
            before.in_use,
            before.nodes,
            after.in_use
        ),
        RebalanceGoal::Spread => format!(
            "{moves} of about {cost} MiB would lower the measure from {} to {} ppm and the fullest \
             node from {} % to {} %{more}",
            before.value_ppm,
            after.value_ppm,
            before.fullest_ppm / 10_000,
            after.fullest_ppm / 10_000
        ),
    }
}

/// `1 move`, `2 moves`.
fn many(count: usize, what: &str) -> String {
    if count == 1 { format!("1 {what}") } else { format!("{count} {what}s") }
}
