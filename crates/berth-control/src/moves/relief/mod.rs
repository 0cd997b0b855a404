//! Nodes under pressure: who should leave them, decided by the engine on a fleet of its own, begun
//! as migrations. And what all of them lack together, which tells an autoscaler to add nodes.
//!
//! Several servers may look at once. Each decision is conditional on having seen all before it, so
//! that the limits on migrations hold, whoever decides.

mod guests;
mod signal;

use std::sync::Arc;
use std::time::Duration;

use berth_api::MigrationReason;
use berth_engine::elastic::{
    Account, MigrationSettings, ReliefInstance, ReliefPlan, watermark_free,
};
use berth_engine::{NodeId, NodeState, Timestamp};
use rustc_hash::FxHashMap;

use crate::caller::Caller;
use crate::catalog::{CatalogState, NodeEntry};
use crate::control_plane::ControlPlane;
use crate::elastic::account;
use crate::error::ControlError;
use crate::moves::evacuation::Snapshot;
use crate::moves::migration::{self, Begin};

pub(crate) use guests::{left_lately, rest};
pub use signal::signal;

/// How often nodes are looked at.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Who acts, in the audit log.
const ACTOR: &str = "pressure";

/// A node that somebody should leave.
struct Pressed {
    node: NodeId,
    account: Account,
    guests: Vec<ReliefInstance>,
    /// How many more migrations it may have.
    most: usize,
}

/// Relieves nodes until the server stops.
pub(crate) async fn keep_relieving(control: Arc<ControlPlane>) {
    loop {
        tokio::select! {
            () = control.stopping.cancelled() => return,
            () = tokio::time::sleep(LOOK_EVERY) => {}
        }
        if let Err(error) = relieve(&control).await {
            let why = error.detail();
            tracing::debug!(why, "nodes under pressure wait for the next look");
        }
        control.metrics.loop_ran("relief");
    }
}

/// One look at all nodes.
async fn relieve(control: &Arc<ControlPlane>) -> Result<(), ControlError> {
    let Some(policy) = control.catalog.policy() else { return Ok(()) };
    let limits = policy.elastic().migration;
    if !limits.enabled {
        return Ok(());
    }
    // Before what is planned on: a decision of another server that is not in it makes this void.
    let guard = control.migrations.guard();
    control.settled().await;
    let (pressed, busy, left) = {
        let books = control.catalog.books();
        let busy = busy(control);
        let open: usize =
            control.migrations.all().iter().filter(|(_, it)| it.value.is_open()).count();
        let left = (limits.fleet as usize).saturating_sub(open);
        (pressed(control, &books, &policy, &busy), busy, left)
    };
    if pressed.is_empty() || left == 0 {
        return Ok(());
    }
    let snapshot = Snapshot::take(control).await;
    let Some(snapshot) = snapshot else { return Ok(()) };
    let now = Timestamp(control.now().as_second());
    let work = move || plans(snapshot, &policy, &pressed, &busy, limits, left, now);
    let Ok(plans) = tokio::task::spawn_blocking(work).await else { return Ok(()) };
    begin_all(control, plans, guard).await
}

/// Plans for one node after the other; what one plan has taken, the next one finds taken.
fn plans(
    snapshot: Snapshot,
    policy: &berth_engine::Policy,
    pressed: &[Pressed],
    busy: &FxHashMap<NodeId, usize>,
    limits: MigrationSettings,
    mut left: usize,
    now: Timestamp,
) -> Vec<(NodeId, ReliefPlan)> {
    let rooms: FxHashMap<NodeId, berth_engine::elastic::Free> = snapshot
        .rooms()
        .map(|(facts, used)| {
            let mark = policy.elastic().on(facts).watermark;
            (facts.id.clone(), watermark_free(facts, used, mark))
        })
        .collect();
    let mut scratch = snapshot.build();
    let mut busy = busy.clone();
    let none = berth_engine::elastic::Free { cpu: i64::MIN, memory: i64::MIN };
    let mut taken: FxHashMap<NodeId, berth_engine::elastic::Size> = FxHashMap::default();
    let mut plans = Vec::new();
    for one in pressed {
        let most = one.most.min(left);
        if most == 0 {
            continue;
        }
        let full = |node: &NodeId| busy.get(node).copied().unwrap_or(0) >= limits.per_node as usize;
        let closed = |node: &NodeId| full(node) || pressed.iter().any(|other| other.node == *node);
        let room = |node: &NodeId| {
            let free = rooms.get(node).copied().unwrap_or(none);
            let by_now = taken.get(node).copied().unwrap_or_default();
            free.recharged(berth_engine::elastic::Size::ZERO, by_now)
        };
        let plan = scratch.relieve(&one.node, &one.account, &one.guests, &room, &closed, most, now);
        for step in &plan.moves {
            for node in [&one.node, &step.to] {
                *busy.entry(node.clone()).or_default() += 1;
            }
            let before = taken.entry(step.to.clone()).or_default();
            *before = before.plus(step.frees);
        }
        left = left.saturating_sub(plan.moves.len());
        plans.push((one.node.clone(), plan));
    }
    plans
}

/// Begins what was planned. The first begins on what was seen; each later one on the one before.
async fn begin_all(
    control: &Arc<ControlPlane>,
    plans: Vec<(NodeId, ReliefPlan)>,
    mut guard: Option<i64>,
) -> Result<(), ControlError> {
    let caller = Caller::local(ACTOR);
    for (node, plan) in plans {
        if !plan.left.is_zero() {
            let (left, stuck) = (plan.left, plan.without_target.len());
            tracing::debug!(%node, %left, stuck, "cannot be relieved as a whole");
        }
        for step in plan.moves {
            let begin = Begin {
                instance: step.instance,
                to: step.to,
                reason: MigrationReason::Pressure,
                // In whole MiB; the engine counts finer.
                cost: step.cost.div_ceil(1000),
                guard: Some(guard),
            };
            migration::begin(control, &caller, &begin).await?;
            // Each decision raises it by one; a cache may know of another server's already.
            guard = Some(guard.unwrap_or(0).saturating_add(1));
        }
    }
    Ok(())
}

/// How many migrations are under way from or to each node.
fn busy(control: &ControlPlane) -> FxHashMap<NodeId, usize> {
    let mut busy: FxHashMap<NodeId, usize> = FxHashMap::default();
    for (_, known) in control.migrations.all() {
        let record = &known.value;
        if record.is_open() {
            *busy.entry(record.source.clone()).or_default() += 1;
            *busy.entry(record.target.clone()).or_default() += 1;
        }
    }
    busy
}

/// Whether a node's agent can be asked for something.
fn answers(control: &ControlPlane, entry: &NodeEntry) -> bool {
    let lost_after =
        i64::try_from(control.settings.load().lost_after.as_secs()).unwrap_or(i64::MAX);
    let silence = control.now().as_second().saturating_sub(entry.heard_at);
    let state = entry.facts.state;
    let serves = matches!(state, NodeState::Active | NodeState::Degraded | NodeState::Cordoned);
    serves && silence <= lost_after
}

/// Nodes that somebody should leave, and who could.
fn pressed(
    control: &ControlPlane,
    books: &CatalogState,
    policy: &berth_engine::Policy,
    busy: &FxHashMap<NodeId, usize>,
) -> Vec<Pressed> {
    let settings = policy.elastic();
    let now = control.now().as_second();
    let mut pressed = Vec::new();
    for entry in books.nodes.values() {
        // Nobody can be sent off a node that does not answer.
        if !answers(control, entry) {
            continue;
        }
        let mark = settings.on(&entry.facts).watermark;
        let free = watermark_free(&entry.facts, &entry.room.used, mark);
        // Most nodes are calm: they need no sums.
        if free.cpu >= 0 && free.memory > 0 {
            continue;
        }
        let account = account(books, &control.migrations, settings, entry, now);
        if !account.must_shed() {
            continue;
        }
        let node = entry.facts.id.clone();
        let taken = busy.get(&node).copied().unwrap_or(0);
        let most = (settings.migration.per_node as usize).saturating_sub(taken);
        let guests = guests::of(control, books, settings, entry, now);
        pressed.push(Pressed { node, account, guests, most });
    }
    pressed
}
