//! Whether nodes could be emptied: on request, and kept current for every node.
//!
//! Plans are made in a sandbox with the same engine that places instances, so they neither delay
//! placements nor claim anything. Like everything that is read, they may be a moment old. They are
//! never carried out as they are: a drain chooses nodes when it moves instances.

mod report;

use std::sync::Arc;
use std::time::Duration;

use berth_api::{DrainMove, Evacuation, NodeEvacuation};
use berth_engine::{Effort, NodeId, Refusal};
use jiff::Timestamp;
use tokio::time::Instant;

use crate::catalog::ClaimEntry;
use crate::control_plane::ControlPlane;
use crate::error::{ControlError, ControlResult};
use crate::loop_runner::BackgroundLoop;
use crate::moves::sandbox::{FleetSnapshot, Sandbox};

pub use crate::state::evacuations::{Counts, Evacuations};

/// Nodes of one round whose refusal is explained. An explanation checks every node, so explaining all
/// nodes of a full fleet would cost the square of its size.
const MAX_EXPLAINED: usize = 1000;

/// How often to check whether a round is due, so that a changed setting takes effect soon.
const CHECK_PERIOD: Duration = Duration::from_secs(5);

/// Runs a planner in a sandbox, on a thread that may block.
async fn in_sandbox<T: Send + 'static>(
    control: &ControlPlane,
    work: impl FnOnce(&mut Sandbox) -> T + Send + 'static,
) -> Result<T, ControlError> {
    let snapshot = FleetSnapshot::take(control).await?;
    snapshot.plan(move |snapshot| work(&mut snapshot.build())).await
}

/// All moves that would empty these nodes together, each with its destination or its refusal.
///
/// # Errors
/// When the server is stopping.
pub async fn plan(
    control: &ControlPlane,
    nodes: &[NodeId],
) -> Result<Vec<DrainMove>, ControlError> {
    let nodes = nodes.to_vec();
    in_sandbox(control, move |sandbox| {
        let plan = sandbox.plan_evacuation(&nodes, Effort::FULL);
        report::moves(sandbox, plan)
    })
    .await
}

/// Why an instance could not run on a node if its volumes were there; absent if it could.
///
/// # Errors
/// When the server is stopping, or the instance's request is not valid any more.
pub(crate) async fn check_with_volumes(
    control: &ControlPlane,
    user: &ClaimEntry,
    node: &NodeId,
) -> Result<Option<Refusal>, ControlError> {
    let (id, node) = (user.key.instance, node.clone());
    let found = in_sandbox(control, move |sandbox| sandbox.check_with_volumes(id, &node)).await?;
    found.map_err(|invalid| ControlError::invalid(invalid.to_string()))
}

/// Whether these nodes can be emptied together.
///
/// # Errors
/// When the server is stopping.
pub async fn check(control: &ControlPlane, nodes: Vec<NodeId>) -> Result<Evacuation, ControlError> {
    let moves = plan(control, &nodes).await?;
    Ok(summarize(nodes, moves, control.now()))
}

/// Whether each node can be emptied by itself; the moves are left out.
///
/// # Errors
/// When the server is stopping.
pub async fn check_all(control: &ControlPlane) -> Result<Vec<Evacuation>, ControlError> {
    let (at, stopping) = (control.now(), control.lifecycle.stopping().clone());
    in_sandbox(control, move |sandbox| check_each(sandbox, at, &|| stopping.is_cancelled())).await
}

fn summarize(nodes: Vec<NodeId>, moves: Vec<DrainMove>, checked_at: Timestamp) -> Evacuation {
    let report::Verdict { can_be_emptied, message } = report::verdict(&moves);
    let instances = u32::try_from(moves.len()).unwrap_or(u32::MAX);
    Evacuation { nodes, can_be_emptied, message, instances, moves, checked_at }
}

/// Checks each node by itself, until the server stops.
fn check_each(sandbox: &mut Sandbox, at: Timestamp, stop: &dyn Fn() -> bool) -> Vec<Evacuation> {
    let mut explained = 0;
    let mut found = Vec::with_capacity(sandbox.nodes.len());
    for node in sandbox.nodes.clone() {
        if stop() {
            break;
        }
        let most = usize::from(explained < MAX_EXPLAINED);
        let effort = Effort { explained: most, ..Effort::VERDICT };
        let plan = sandbox.plan_evacuation(std::slice::from_ref(&node), effort);
        let moves = report::moves(sandbox, plan);
        let mut one = summarize(vec![node], moves, at);
        explained += usize::from(!one.can_be_emptied);
        one.moves.clear();
        found.push(one);
    }
    found
}

/// Checks every node periodically.
pub(crate) struct EvacuationChecker {
    control: Arc<ControlPlane>,
    /// When the last check began. The first one is due at once, so that a server that has just
    /// started has results.
    checked: Option<Instant>,
}

impl EvacuationChecker {
    pub(crate) fn new(control: Arc<ControlPlane>) -> Self {
        Self { control, checked: None }
    }
}

impl BackgroundLoop for EvacuationChecker {
    const NAME: &'static str = "evacuation";
    const PERIOD: Duration = CHECK_PERIOD;

    fn period(&self) -> Duration {
        let every = self.control.lifecycle.settings().evacuation_every;
        if every.is_zero() { CHECK_PERIOD } else { every.min(CHECK_PERIOD) }
    }

    async fn pass(&mut self) -> ControlResult<()> {
        let control = &self.control;
        let every = control.lifecycle.settings().evacuation_every;
        if every.is_zero() {
            // Checks were switched off: do not serve old results.
            control.moves.evacuations.clear();
            return Ok(());
        }
        if self.checked.is_some_and(|checked| checked.elapsed() < every) {
            return Ok(());
        }
        self.checked = Some(Instant::now());
        let at = self.control.now();
        let found = check_all(control).await?;
        let nodes = found.into_iter().filter_map(|one| {
            let Evacuation { nodes, can_be_emptied, message, checked_at, .. } = one;
            let node = nodes.into_iter().next()?;
            Some((node, NodeEvacuation { can_be_emptied, message, checked_at }))
        });
        control.moves.evacuations.set(at, nodes.collect());
        Ok(())
    }
}
