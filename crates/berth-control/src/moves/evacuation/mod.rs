//! Whether nodes could be emptied: asked for by callers, and kept current for every node.
//!
//! A plan is made on a fleet of its own, by the same engine that places, so it neither holds up
//! decisions nor claims anything. What it says may be a moment old, like everything that is read.

mod scratch;
mod words;

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwapOption;
use berth_api::{DrainMove, Evacuation, NodeEvacuation};
use berth_engine::{Effort, NodeId, Refusal};
use jiff::Timestamp;
use rustc_hash::FxHashMap;

use crate::catalog::ClaimEntry;
use crate::clock::now;
use crate::control_plane::ControlPlane;
use crate::error::ControlError;
pub(crate) use scratch::{Scratch, Snapshot};

/// Nodes of one round whose refusal is explained. To explain takes a look at every node, so in a
/// full fleet all explanations would cost the square of its size.
const EXPLAINED: usize = 1000;

/// How often it is looked whether a round is due, so that a changed setting takes effect soon.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// What the last round found.
#[derive(Default)]
pub struct Evacuations(ArcSwapOption<Round>);

struct Round {
    at: Timestamp,
    nodes: FxHashMap<NodeId, NodeEvacuation>,
}

/// What the last round found, in numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counts {
    /// Nodes that can be emptied.
    pub can: usize,
    /// Nodes that cannot.
    pub cannot: usize,
    /// When it was found out.
    pub at: Timestamp,
}

impl Evacuations {
    /// What was found of a node; absent: nothing yet.
    #[must_use]
    pub fn of(&self, node: &NodeId) -> Option<NodeEvacuation> {
        self.0.load().as_ref()?.nodes.get(node).cloned()
    }

    /// How many nodes can be emptied; absent before the first round.
    #[must_use]
    pub fn counts(&self) -> Option<Counts> {
        let round = self.0.load();
        let round = round.as_ref()?;
        let can = round.nodes.values().filter(|node| node.can_be_emptied).count();
        Some(Counts { can, cannot: round.nodes.len() - can, at: round.at })
    }
}

/// Works on a fleet of its own, on a thread that may take its time.
async fn on_scratch<T: Send + 'static>(
    control: &ControlPlane,
    work: impl FnOnce(&mut Scratch) -> T + Send + 'static,
) -> Result<T, ControlError> {
    let stopping = || ControlError::unavailable("stopping", "the server is stopping");
    let snapshot = Snapshot::take(control).await.ok_or_else(stopping)?;
    let done = tokio::task::spawn_blocking(move || work(&mut snapshot.build())).await;
    done.map_err(|_| stopping())
}

/// Every move that emptying these nodes together would take, with its destination or its refusal.
///
/// # Errors
/// When the server is stopping.
pub async fn plan(
    control: &ControlPlane,
    nodes: &[NodeId],
) -> Result<Vec<DrainMove>, ControlError> {
    let nodes = nodes.to_vec();
    on_scratch(control, move |scratch| {
        let plan = scratch.plan(&nodes, Effort::FULL);
        words::moves(scratch, plan)
    })
    .await
}

/// Why an instance could not run on a node if its volumes lived there; absent: it could.
///
/// # Errors
/// When the server is stopping, or what the instance asked for cannot be asked for again.
pub async fn beside(
    control: &ControlPlane,
    user: &ClaimEntry,
    node: &NodeId,
) -> Result<Option<Refusal>, ControlError> {
    let (id, node) = (user.key.instance, node.clone());
    let found = on_scratch(control, move |scratch| scratch.beside(id, &node)).await?;
    found.map_err(|invalid| ControlError::invalid(invalid.to_string()))
}

/// Whether these nodes can be emptied together.
///
/// # Errors
/// When the server is stopping.
pub async fn check(control: &ControlPlane, nodes: Vec<NodeId>) -> Result<Evacuation, ControlError> {
    let moves = plan(control, &nodes).await?;
    Ok(told(nodes, moves, control.now()))
}

/// Whether each node can be emptied by itself; the moves are left out.
///
/// # Errors
/// When the server is stopping.
pub async fn check_all(control: &ControlPlane) -> Result<Vec<Evacuation>, ControlError> {
    let (at, stopping) = (control.now(), control.stopping.clone());
    on_scratch(control, move |scratch| each(scratch, at, &|| stopping.is_cancelled())).await
}

fn told(nodes: Vec<NodeId>, moves: Vec<DrainMove>, checked_at: Timestamp) -> Evacuation {
    let words::Verdict { can_be_emptied, message } = words::verdict(&moves);
    let instances = u32::try_from(moves.len()).unwrap_or(u32::MAX);
    Evacuation { nodes, can_be_emptied, message, instances, moves, checked_at }
}

/// Checks node after node, until told to stop.
fn each(scratch: &mut Scratch, at: Timestamp, stop: &dyn Fn() -> bool) -> Vec<Evacuation> {
    let mut explained = 0;
    let mut found = Vec::with_capacity(scratch.nodes.len());
    for node in scratch.nodes.clone() {
        if stop() {
            break;
        }
        let most = usize::from(explained < EXPLAINED);
        let effort = Effort { explained: most, ..Effort::VERDICT };
        let plan = scratch.plan(std::slice::from_ref(&node), effort);
        let moves = words::moves(scratch, plan);
        let mut one = told(vec![node], moves, at);
        explained += usize::from(!one.can_be_emptied);
        one.moves.clear();
        found.push(one);
    }
    found
}

/// Checks every node from time to time, until the server stops.
pub(crate) async fn keep_checking(control: Arc<ControlPlane>) {
    // The first round is due at once: who looks at a server that has just started wants to know.
    let mut waited = Duration::MAX;
    loop {
        let every = control.settings.load().evacuation_every;
        let step = if every.is_zero() { LOOK_EVERY } else { every.min(LOOK_EVERY) };
        if tokio::time::timeout(step, control.stopping.cancelled()).await.is_ok() {
            return;
        }
        waited = waited.saturating_add(step);
        if every.is_zero() {
            // What nobody keeps current is not shown.
            control.evacuations.0.store(None);
            continue;
        }
        if waited < every {
            continue;
        }
        waited = Duration::ZERO;
        let at = now();
        // A server that stops needs no answer.
        let Ok(found) = check_all(&control).await else { continue };
        let nodes = found.into_iter().filter_map(|one| {
            let Evacuation { nodes, can_be_emptied, message, checked_at, .. } = one;
            let node = nodes.into_iter().next()?;
            Some((node, NodeEvacuation { can_be_emptied, message, checked_at }))
        });
        let round = Round { at, nodes: nodes.collect() };
        control.evacuations.0.store(Some(Arc::new(round)));
    }
}
