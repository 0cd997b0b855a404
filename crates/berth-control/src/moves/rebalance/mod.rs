//! Rebalancing: moving instances that could stay to where the fleet needs them, on request.
//!
//! A plan is made in a sandbox and changes nothing. Every step is checked against the current state
//! before it is started, so a plan may be reviewed for as long as one likes. Instances are not moved
//! back and forth: one that was moved recently stays, none returns to a node that it left within a
//! day, and none goes to a node that others are leaving.

mod apply;

use std::sync::Arc;

use berth_api::{PlanRebalance, Rebalance, RebalanceStep};
use berth_engine::elastic::ElasticSettings;
use berth_engine::{NodeId, RebalanceGoal, RebalanceInstance, RebalancePlan, StopReason};
use berth_ledger::Role;

use crate::catalog::ClaimEntry;
use crate::control_plane::ControlPlane;
use crate::error::{ControlError, ControlResult};
use crate::moves::evacuee::Evacuee;
use crate::moves::migration::Migrations;
use crate::moves::sandbox::{FleetSnapshot, Sandbox};

pub use apply::apply;

/// Checks a request beyond its form.
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
    let snapshot = FleetSnapshot::take(control).await?;
    let (migrations, asked) = (Arc::clone(&control.moves.migrations), asked.clone());
    let now = control.now().as_second();
    snapshot.plan(move |snapshot| plan_on(snapshot, &migrations, &asked, now)).await
}

fn plan_on(
    snapshot: FleetSnapshot,
    migrations: &Migrations,
    asked: &PlanRebalance,
    now: i64,
) -> Rebalance {
    let settings = snapshot.policy().elastic();
    let instances = instances(migrations, snapshot.claims(), settings, asked.all, now);
    let headroom = snapshot.headroom(settings);
    let mut sandbox = snapshot.build();
    let free = |node: &NodeId| headroom.of(node);
    let plan = sandbox.plan_rebalance(asked.terms(), &instances, &free);
    to_rebalance(&sandbox, plan, asked)
}

/// All instances. Those that stay are part of it too: a move must not break their rules.
fn instances(
    migrations: &Migrations,
    claims: &[Arc<ClaimEntry>],
    settings: &ElasticSettings,
    all: bool,
    now: i64,
) -> Vec<RebalanceInstance> {
    let closed = nodes_being_left(migrations);
    let primary = claims.iter().filter(|claim| claim.key.role == Role::Primary);
    let instance = |claim: &Arc<ClaimEntry>| {
        let evacuee = Evacuee::new(migrations, claim);
        let movable = evacuee.pinned(settings, all, now).is_none();
        evacuee.for_rebalance(movable, &closed)
    };
    primary.map(instance).collect()
}

/// Nodes that instances are being migrated off: moving others there would undo what that is for.
fn nodes_being_left(migrations: &Migrations) -> Vec<NodeId> {
    let mut nodes: Vec<NodeId> =
        migrations.open().iter().map(|stored| stored.value.source.clone()).collect();
    nodes.sort();
    nodes.dedup();
    nodes
}

/// A plan as an API object.
fn to_rebalance(sandbox: &Sandbox, plan: RebalancePlan, asked: &PlanRebalance) -> Rebalance {
    let message = summarize(&plan, asked);
    let step = |made: berth_engine::RebalanceMove| {
        let claim = sandbox.claim(made.instance);
        RebalanceStep {
            instance: made.instance,
            name: claim.and_then(|claim| claim.name.as_deref().map(str::to_owned)),
            tenant: claim.map_or_else(String::new, |claim| claim.request.tenant.clone()),
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
fn summarize(plan: &RebalancePlan, asked: &PlanRebalance) -> String {
    let more = match plan.stopped_by {
        StopReason::Budget => "; a larger budget may do more",
        StopReason::NothingToGain => "",
    };
    if plan.moves.is_empty() {
        let budget = count(asked.budget as usize, "move");
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
    let cost = berth_engine::units::size(i64::try_from(cost).unwrap_or(i64::MAX));
    let moves = count(plan.moves.len(), "move");
    let (before, after) = (plan.before, plan.after);
    match plan.goal {
        RebalanceGoal::Consolidate => format!(
            "{moves} of about {cost} would empty {}: {} of {} nodes in use, then {}{more}",
            count(plan.emptied.len(), "node"),
            before.in_use,
            before.nodes,
            after.in_use
        ),
        RebalanceGoal::Spread => format!(
            "{moves} of about {cost} would lower the measure from {} to {} ppm and the fullest \
             node from {} % to {} %{more}",
            before.value_ppm,
            after.value_ppm,
            before.fullest_ppm / 10_000,
            after.fullest_ppm / 10_000
        ),
    }
}

/// `1 move`, `2 moves`.
fn count(count: usize, what: &str) -> String {
    if count == 1 { format!("1 {what}") } else { format!("{count} {what}s") }
}
