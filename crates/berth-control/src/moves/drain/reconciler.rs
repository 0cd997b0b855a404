//! The loop that empties draining nodes.
//!
//! Every server runs it. Steps name the fence of the claim that they move, so if two servers carry
//! out the same step, the second one is refused and changes nothing. A draining node takes no
//! instances, so nothing moves in circles however many nodes are drained at once.

use std::sync::Arc;
use std::time::Duration;

use berth_ledger::{LedgerError, Op, Release, Text};
use tokio::sync::watch;

use super::planner::plan;
use super::start::{DrainRequest, remove, write};
use crate::caller::Caller;
use crate::catalog::ClaimEntry;
use crate::control_plane::ControlPlane;
use crate::error::ControlResult;
use crate::loop_runner::BackgroundLoop;
use crate::moves::executor::{self, StepOutcome};
use crate::moves::plan::{MoveAction, MoveStep};
use crate::state::drains::RefusedMove;
use crate::workloads::HostContext;

/// Who moves instances, in the audit log.
const ACTOR: &str = "drain";

/// Empties draining nodes.
pub(crate) struct DrainReconciler {
    control: Arc<ControlPlane>,
    room: watch::Receiver<u64>,
}

impl DrainReconciler {
    pub(crate) fn new(control: Arc<ControlPlane>) -> Self {
        Self { room: control.catalog.room(), control }
    }
}

impl BackgroundLoop for DrainReconciler {
    const NAME: &'static str = "drains";
    const PERIOD: Duration = Duration::from_secs(1);
    const PAUSE: Duration = Duration::from_millis(100);

    fn wake_sources(&self) -> Vec<watch::Receiver<u64>> {
        vec![self.control.moves.drains.records.changes(), self.room.clone()]
    }

    async fn pass(&mut self) -> ControlResult<()> {
        let room = *self.room.borrow();
        self.control.wait_for_read_your_writes().await;
        reconcile(&self.control, room).await
    }
}

/// One pass over all drains. `room` says how often room was made so far.
async fn reconcile(control: &Arc<ControlPlane>, room: u64) -> ControlResult<()> {
    let plan = {
        let catalog = control.catalog.read();
        plan(&catalog, HostContext::of(control), &control.moves.migrations, room)
    };
    for node in &plan.undocumented {
        write(control, node, &DrainRequest::default(), None).await?;
    }
    for (node, revision) in &plan.ended {
        remove(control, node, *revision).await?;
    }
    for place in &plan.abandoned {
        release_abandoned(control, place).await?;
    }
    let record = |step: &MoveStep, outcome| record_outcome(control, room, step, outcome);
    executor::execute(control, &Caller::local(ACTOR), &plan.moves, &record).await
}

/// Releases a place that an instance has left on a node that is lost: nothing can run there, so that
/// the instance may be started in its new place.
async fn release_abandoned(control: &Arc<ControlPlane>, place: &ClaimEntry) -> ControlResult<()> {
    let release = Release {
        request_id: Text::from(format!("left-lost-{}-{}", place.key, place.fence)),
        key: place.key,
        tenant: None,
        fence: Some(place.fence),
        confirmed: true,
        reason: Text::from("node_lost"),
    };
    let subject = format!("{} on {}", place.key, place.node);
    tracing::warn!(instance = %place.key.instance, node = %place.node,
        "node is lost; starting the instance in its new place");
    let released =
        control.step(&Caller::local(ACTOR), "claim.release", subject, Op::Release(release)).await?;
    // One that is gone by now was confirmed, or released by another server.
    if let Err(rejection) = released {
        tracing::debug!(?rejection, instance = %place.key.instance, node = %place.node,
            "claim on a lost node was not released; looking again in the next pass");
    }
    Ok(())
}

/// Remembers why an instance could not be moved, or that it was.
fn record_outcome(control: &ControlPlane, room: u64, step: &MoveStep, outcome: StepOutcome) {
    let (refused, instance, from) = (&control.moves.drains.refused, step.instance, &step.from);
    match outcome {
        StepOutcome::Restarted { on } => {
            refused.remove(instance);
            tracing::debug!(%instance, %from, to = %on, "moved instance off draining node");
        }
        StepOutcome::Refused(refusal) => {
            let MoveAction::Restart { evacuee, .. } = &step.action else { return };
            let (fence, at) = (evacuee.claim.fence, control.now());
            refused.put(instance, RefusedMove { fence, refusal, at, room });
        }
        StepOutcome::Outdated => refused.remove(instance),
        StepOutcome::Stopped => {
            let reason = step.reason.as_str();
            tracing::warn!(%instance, node = %from, reason, "stopped instance on draining node");
        }
        StepOutcome::Migrating | StepOutcome::Unknown(LedgerError::Closed) => {}
        StepOutcome::Unknown(error) => {
            tracing::warn!(%error, %instance, "outcome of a move is unknown");
        }
    }
}
