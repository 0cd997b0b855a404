//! Relief: migrating instances off nodes that are above their watermark.
//!
//! Every server plans. Each decision must have seen all earlier ones, so the limits on migrations hold
//! with any number of servers.

use std::sync::Arc;
use std::time::Duration;

use berth_api::{MigrationReason, NodePressure, Pressure};
use berth_engine::elastic::{
    Account, ElasticSettings, MigrationSettings, ReliefInstance, ResourceAccount, Size,
    watermark_free,
};
use berth_engine::{NodeId, NodeState, Policy, Timestamp};
use berth_ledger::{ClaimKey, Role};
use rustc_hash::FxHashMap;

use crate::caller::Caller;
use crate::catalog::{CatalogState, NodeEntry};
use crate::control_plane::ControlPlane;
use crate::elastic::node_account;
use crate::error::ControlResult;
use crate::loop_runner::BackgroundLoop;
use crate::moves::evacuee::Evacuee;
use crate::moves::executor;
use crate::moves::plan::{MoveAction, MovePlan, MoveStep};
use crate::moves::sandbox::FleetSnapshot;

/// Who acts, in the audit log.
const ACTOR: &str = "pressure";

/// A node that instances should leave.
struct PressuredNode {
    node: NodeId,
    account: Account,
    instances: Vec<ReliefInstance>,
    /// How many more migrations it may have.
    max_moves: usize,
}

/// How many migrations are under way from or to each node.
type MigrationCounts = FxHashMap<NodeId, usize>;

/// Relieves nodes.
pub(crate) struct ReliefReconciler(pub(crate) Arc<ControlPlane>);

impl BackgroundLoop for ReliefReconciler {
    const NAME: &'static str = "relief";
    const PERIOD: Duration = Duration::from_secs(1);

    async fn pass(&mut self) -> ControlResult<()> {
        match reconcile(&self.0).await {
            // What was planned is outdated: the next pass plans again.
            Err(error) if error.is_callers() => {
                tracing::debug!(error = error.detail(), "failed to relieve nodes; retrying");
                Ok(())
            }
            result => result,
        }
    }
}

/// One pass over all nodes.
async fn reconcile(control: &Arc<ControlPlane>) -> ControlResult<()> {
    let Some(policy) = control.catalog.policy() else { return Ok(()) };
    let limits = policy.elastic().migration;
    if !limits.enabled {
        return Ok(());
    }
    // Before the state that is planned on: a decision of another server that it lacks voids the plan.
    let decided_after = control.moves.migrations.guard();
    control.wait_for_read_your_writes().await;
    let open = control.moves.migrations.open();
    let mut counts = MigrationCounts::default();
    for node in open.iter().flat_map(|it| [&it.value.source, &it.value.target]) {
        *counts.entry(node.clone()).or_default() += 1;
    }
    let max_moves = (limits.fleet as usize).saturating_sub(open.len());
    let pressured = find_pressured(control, &control.catalog.read(), policy.elastic(), &counts);
    if pressured.is_empty() || max_moves == 0 {
        return Ok(());
    }
    let snapshot = FleetSnapshot::take(control).await?;
    let now = Timestamp(control.now().as_second());
    let planned = snapshot.plan(move |snapshot| {
        let steps = plan(snapshot, &policy, &pressured, counts, limits, max_moves, now);
        MovePlan::new(steps, decided_after)
    });
    executor::execute(control, &Caller::local(ACTOR), &planned.await?, &|_, _| {}).await
}

/// Plans for one node after the other; each plan finds what the ones before it have taken.
fn plan(
    snapshot: FleetSnapshot,
    policy: &Policy,
    pressured: &[PressuredNode],
    mut counts: MigrationCounts,
    limits: MigrationSettings,
    mut max_moves: usize,
    now: Timestamp,
) -> Vec<MoveStep> {
    let headroom = snapshot.headroom(policy.elastic());
    let mut sandbox = snapshot.build();
    let mut taken: FxHashMap<NodeId, Size> = FxHashMap::default();
    let mut steps = Vec::new();
    for one in pressured {
        let most = one.max_moves.min(max_moves);
        if most == 0 {
            continue;
        }
        let closed = |node: &NodeId| {
            counts.get(node).copied().unwrap_or(0) >= limits.per_node as usize
                || pressured.iter().any(|other| other.node == *node)
        };
        let free = |node: &NodeId| {
            let by_now = taken.get(node).copied().unwrap_or_default();
            headroom.of(node).recharged(Size::ZERO, by_now)
        };
        let plan =
            sandbox.plan_relief(&one.node, &one.account, &one.instances, &free, &closed, most, now);
        if !plan.left.is_zero() {
            let (node, left, stuck) = (&one.node, plan.left, plan.without_target.len());
            tracing::debug!(%node, %left, stuck, "node cannot be relieved completely");
        }
        max_moves = max_moves.saturating_sub(plan.moves.len());
        for step in plan.moves {
            for node in [&one.node, &step.to] {
                *counts.entry(node.clone()).or_default() += 1;
            }
            let before = taken.entry(step.to.clone()).or_default();
            *before = before.plus(step.frees);
            let reason = format!("its node is above its watermark; it frees {}", step.frees);
            // In whole MiB; the engine counts finer.
            let (to, cost) = (step.to, step.cost.div_ceil(1000));
            let action = MoveAction::Migrate { to, cost, kind: MigrationReason::Pressure };
            let (instance, from) = (step.instance, one.node.clone());
            steps.push(MoveStep { instance, from, action, reason });
        }
    }
    steps
}

/// Whether a node's agent can be expected to carry out a migration.
fn is_responsive(control: &ControlPlane, entry: &NodeEntry) -> bool {
    let lost_after =
        i64::try_from(control.lifecycle.settings().lost_after.as_secs()).unwrap_or(i64::MAX);
    let silence = control.now().as_second().saturating_sub(entry.heard_at());
    let state = entry.facts.state;
    let serves = matches!(state, NodeState::Active | NodeState::Degraded | NodeState::Cordoned);
    serves && silence <= lost_after
}

/// Nodes that instances should leave, with the instances that could.
fn find_pressured(
    control: &ControlPlane,
    catalog: &CatalogState,
    settings: &ElasticSettings,
    counts: &MigrationCounts,
) -> Vec<PressuredNode> {
    let now = control.now().as_second();
    let mut pressured = Vec::new();
    for entry in catalog.nodes.values() {
        // Instances cannot be migrated off a node that does not respond.
        if !is_responsive(control, entry) {
            continue;
        }
        let mark = settings.on(&entry.facts).watermark;
        let free = watermark_free(&entry.facts, &entry.room.used, mark);
        // Most nodes are below their watermark: skip the exact account.
        if free.cpu >= 0 && free.memory > 0 {
            continue;
        }
        let account = node_account(catalog, &control.moves.migrations, settings, entry, now);
        if !account.must_shed() {
            continue;
        }
        let node = entry.facts.id.clone();
        let open = counts.get(&node).copied().unwrap_or(0);
        let max_moves = (settings.migration.per_node as usize).saturating_sub(open);
        let instances = candidates(control, catalog, settings, entry, now);
        pressured.push(PressuredNode { node, account, instances, max_moves });
    }
    pressured
}

/// The instances of a node, as candidates for leaving it.
fn candidates(
    control: &ControlPlane,
    catalog: &CatalogState,
    settings: &ElasticSettings,
    entry: &NodeEntry,
    now: i64,
) -> Vec<ReliefInstance> {
    let claims = entry.claims.iter().filter(|key| key.role == Role::Primary);
    let claims = claims.filter_map(|key| catalog.claims.get(key));
    let candidate = |claim| {
        let evacuee = Evacuee::new(&control.moves.migrations, claim);
        let (id, fence) = (evacuee.id(), claim.fence);
        let permit = claim.permit.map(|permit| control.permits.cache.newest(id, fence, permit));
        // A second claim may be left over from an earlier migration.
        let has_second_claim = catalog.claims.contains_key(&ClaimKey::target(id))
            || catalog.claims.contains_key(&ClaimKey::source(id));
        let movable = evacuee.pinned(settings, false, now).is_none() && !has_second_claim;
        evacuee.for_relief(permit.as_ref(), settings, movable, now)
    };
    claims.map(candidate).collect()
}

/// How much all nodes lack together, and where: for an autoscaler that adds nodes.
#[must_use]
pub fn measure_pressure(control: &ControlPlane) -> Pressure {
    let policy = control.catalog.policy();
    let settings = policy.as_ref().map(|policy| policy.elastic().clone()).unwrap_or_default();
    let at = control.now();
    let catalog = control.catalog.read();
    let mut total = Pressure { at, ..Pressure::default() };
    for entry in catalog.nodes.values() {
        let found =
            node_account(&catalog, &control.moves.migrations, &settings, entry, at.as_second());
        if lacks(&found.cpu) || lacks(&found.memory) {
            add_pressure(&mut total, &found);
            let (node, must_shed) = (entry.facts.id.clone(), found.must_shed());
            total.nodes.push(NodePressure { node, must_shed, account: found });
        }
    }
    total
}

const fn lacks(account: &ResourceAccount) -> bool {
    account.capacity_pressure > 0 || account.reserved > account.watermark
}

fn add_pressure(total: &mut Pressure, found: &Account) {
    for (sum, one) in [(&mut total.cpu, &found.cpu), (&mut total.memory, &found.memory)] {
        sum.capacity_pressure = sum.capacity_pressure.saturating_add(one.capacity_pressure);
        sum.logical_pressure = sum.logical_pressure.saturating_add(one.logical_pressure());
        sum.accounted_for = sum.accounted_for.saturating_add(one.pressure_accounted_for);
        sum.excess = sum.excess.saturating_add(one.excess().max(0));
    }
}
