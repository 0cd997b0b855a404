//! Carries out plans of moves.
//!
//! A step that was carried out twice, or by two servers, takes effect once: restarts and stops name
//! the fence of the claim that was planned with, and a migration must have seen every decision
//! before it. There is nothing to resume but what the ledger holds: a plan that was interrupted is
//! planned again, and a migration that was started is continued by the migration driver of any
//! server.

use std::sync::Arc;

use berth_api::{Migration, MigrationReason, MigrationState};
use berth_engine::{InstanceId, NodeId, Refusal};
use berth_ledger::{
    AvailabilityGuard, ClaimKey, ClaimRejection, Guard, LedgerError, Op, Release, Text,
};

use super::evacuee::Evacuee;
use super::migration::{self, MigrationRequest};
use super::plan::{MoveAction, MovePlan, MoveStep};
use super::sandbox::request_as_charged;
use crate::caller::Caller;
use crate::control_plane::ControlPlane;
use crate::error::{ControlError, ControlResult, describe_guard};
use crate::placer::{Actor, MoveAnswer, MoveRequest};
use crate::state::drains::StepRefusal;

/// Most fixes that are suggested for one refusal.
const MAX_FIXES: usize = 3;

/// How often a migration is decided again when another server decides at the same time.
const TRIES: u32 = 4;

/// What became of a step.
#[derive(Debug)]
pub(super) enum StepOutcome {
    /// The instance starts on another node.
    Restarted { on: NodeId },
    /// The instance was told to stop.
    Stopped,
    /// A live migration was started.
    Migrating,
    /// The instance cannot leave now.
    Refused(StepRefusal),
    /// The claim is not what it was when the step was planned; the next plan will see it as it is.
    Outdated,
    /// The ledger did not answer.
    Unknown(LedgerError),
}

/// Suggested fixes for an instance that no node can take.
pub(super) fn suggest_fixes(refusal: &Refusal) -> Vec<String> {
    let mut fixes: Vec<String> =
        refusal.fixes.iter().take(MAX_FIXES).map(ToString::to_string).collect();
    if fixes.is_empty() {
        fixes.push(refusal.remedy.to_string());
    }
    fixes
}

/// Carries out a plan: stops and migrations one after the other, then all restarts at once.
/// `record` gets the outcome of each step as soon as it is known.
///
/// # Errors
/// When a stop or a migration fails; the steps after it are left for the next plan.
pub(super) async fn execute(
    control: &Arc<ControlPlane>,
    caller: &Caller,
    plan: &MovePlan,
    record: &(dyn Fn(&MoveStep, StepOutcome) + Sync),
) -> ControlResult<()> {
    let mut decided_after = plan.decided_after();
    let mut restarts = Vec::new();
    for step in plan.steps() {
        tracing::debug!(%step, "executing move step");
        match &step.action {
            MoveAction::Restart { evacuee, guard } => restarts.push((step, evacuee, guard)),
            MoveAction::Stop(evacuee) => {
                let is_stopping = stop(control, caller, evacuee).await?;
                let outcome =
                    if is_stopping { StepOutcome::Stopped } else { StepOutcome::Outdated };
                record(step, outcome);
            }
            MoveAction::Migrate { to, cost, kind } => {
                let request = MigrationRequest {
                    instance: step.instance,
                    to: to.clone(),
                    reason: *kind,
                    cost: *cost,
                    decided_after: Some(decided_after),
                };
                migration::start(control, caller, &request).await?;
                // Each decision raises the guard by one. The cache may already have another server's.
                decided_after = Some(decided_after.unwrap_or(0).saturating_add(1));
                record(step, StepOutcome::Migrating);
            }
        }
    }
    let restarts = restarts.into_iter().map(|(step, evacuee, guard)| async move {
        record(step, restart(control, caller, evacuee, guard.clone()).await);
    });
    futures_util::future::join_all(restarts).await;
    Ok(())
}

/// Restarts an instance on the best other node.
async fn restart(
    control: &ControlPlane,
    caller: &Caller,
    evacuee: &Evacuee,
    guard: Option<Arc<AvailabilityGuard>>,
) -> StepOutcome {
    let (instance, fence) = (evacuee.id(), evacuee.claim.fence);
    let (name, origin) = (Text::from(&*caller.name), Text::from(caller.origin()));
    let by = Actor { name, origin, is_tenant: caller.is_tenant() };
    let request = MoveRequest {
        request_id: Text::from(format!("move-{instance}-{fence}")),
        instance: Arc::new(request_as_charged(&evacuee.claim)),
        fence,
        guard,
        by,
    };
    let refused = |code: &str, message: String, unblock: Vec<String>| {
        StepOutcome::Refused(StepRefusal { code: code.to_owned(), message, unblock })
    };
    match control.placer.relocate(request).await {
        MoveAnswer::Moved(standing) => StepOutcome::Restarted { on: standing.node },
        MoveAnswer::NoRoom(refusal) => {
            refused(&refusal.code, refusal.headline(), suggest_fixes(&refusal))
        }
        // Another server stopped a member, or one ended: look at the workload again.
        MoveAnswer::Contended(guard) if matches!(*guard, Guard::TooFewRunning { .. }) => {
            StepOutcome::Outdated
        }
        MoveAnswer::Contended(guard) => {
            let again = "nothing: it is retried".to_owned();
            refused(guard.code(), describe_guard(&guard), vec![again])
        }
        MoveAnswer::Rejected(ClaimRejection::Refused(by)) => {
            let problem = ControlError::from(&by).into_problem();
            refused(by.code(), problem.detail, problem.remedy.into_iter().collect())
        }
        MoveAnswer::Invalid(invalid) => refused("invalid_request", invalid.to_string(), Vec::new()),
        MoveAnswer::Rejected(_) => StepOutcome::Outdated,
        MoveAnswer::Unknown(error) => StepOutcome::Unknown(error),
    }
}

/// Stops an instance because its node's drain is overdue: then a member goes whatever else runs.
/// Returns whether it is being stopped.
async fn stop(control: &ControlPlane, caller: &Caller, evacuee: &Evacuee) -> ControlResult<bool> {
    let (instance, fence) = (evacuee.id(), evacuee.claim.fence);
    let release = Release {
        request_id: Text::from(format!("drain-deadline-{instance}-{fence}")),
        key: ClaimKey::primary(instance),
        tenant: None,
        fence: Some(fence),
        confirmed: false,
        reason: Text::from("drain_deadline"),
    };
    let subject = format!("{instance} on {}", evacuee.claim.node);
    let released = control.step(caller, "claim.release", subject, Op::Release(release)).await?;
    // A claim that changed meanwhile is part of the next plan.
    if let Err(rejection) = &released {
        tracing::debug!(?rejection, %instance, node = %evacuee.claim.node,
            "instance on draining node was not stopped; planning again");
    }
    Ok(released.is_ok())
}

/// Why a migration could not be started.
pub(super) enum StartFailure {
    /// It is not possible, or not wanted any more.
    Impossible(String),
    /// It may be possible later.
    NotYet(String),
    /// Nothing can be started now.
    Unavailable(ControlError),
}

impl From<ControlError> for StartFailure {
    fn from(error: ControlError) -> Self {
        if !error.is_callers() {
            return Self::Unavailable(error);
        }
        let why = error.detail().to_owned();
        // Other moves may make room.
        if error.code() == "no_room" { Self::NotYet(why) } else { Self::Impossible(why) }
    }
}

/// Starts one migration of a plan that may be old: `revalidate` checks it against the current state,
/// again whenever another server decided a migration in between, and returns its cost.
pub(super) async fn start_revalidated(
    control: &Arc<ControlPlane>,
    caller: &Caller,
    instance: InstanceId,
    to: &NodeId,
    reason: MigrationReason,
    revalidate: impl Fn() -> Result<u64, StartFailure>,
) -> Result<Migration, StartFailure> {
    for _ in 0..TRIES {
        // Read before the state that is checked: a later decision of another server voids this one.
        let decided_after = Some(control.moves.migrations.guard());
        control.wait_for_read_your_writes().await;
        let cost = revalidate()?;
        migration::find_destination(control, instance, Some(to.clone())).await?;
        let request = MigrationRequest { instance, to: to.clone(), reason, cost, decided_after };
        match migration::start(control, caller, &request).await {
            Ok(migration) if migration.state == MigrationState::Failed => {
                return Err(StartFailure::Impossible(migration.message));
            }
            Ok(migration) => return Ok(migration),
            Err(error) if error.code() == "contention" => {}
            Err(error) => return Err(error.into()),
        }
    }
    Err(StartFailure::NotYet("other servers decide migrations at the same time".to_owned()))
}
