//! Reports of agents on migrations.

use std::sync::Arc;

use berth_api::{Migration, MigrationReport, MigrationState, MigrationStep, RunState};
use berth_engine::{InstanceId, NodeId};
use berth_ledger::{ClaimKey, ClaimState, Expect, Op, Release, Role, Switch, Text};

use super::MigrationRecord;
use super::StoredMigration;
use super::record::{CommitOutcome, commit, document, view};
use super::start::fail;
use crate::control_plane::ControlPlane;
use crate::error::{ControlError, ControlResult};

/// How often a report is applied again when others change the migration.
const TRIES: u32 = 8;

/// Applies a report. Idempotent.
///
/// # Errors
/// When no such migration is from or to the node, or the step is out of order.
pub async fn report(
    control: &Arc<ControlPlane>,
    node: &NodeId,
    report: &MigrationReport,
) -> ControlResult<Migration> {
    let id = report.id.as_str();
    for _ in 0..TRIES {
        let stored = control.moves.migrations.get(id).filter(|stored| stored.value.concerns(node));
        let stored = stored.ok_or_else(|| ControlError::not_found("migration", id))?;
        if apply(control, id, &stored, node, report).await? {
            let stored = control.moves.migrations.get(id);
            let stored = stored.ok_or_else(|| ControlError::not_found("migration", id))?;
            return Ok(view(id, &stored.value));
        }
    }
    Err(ControlError::unavailable(
        "contention",
        "too many concurrent changes of this migration; retry",
    ))
}

/// Applies a report to the migration that was read. Returns false if it has changed since.
async fn apply(
    control: &Arc<ControlPlane>,
    id: &str,
    stored: &StoredMigration,
    node: &NodeId,
    report: &MigrationReport,
) -> ControlResult<bool> {
    use MigrationState::{Cancelled, Copying, Failed, Planned, Switched, TargetHeld};
    let (record, revision) = (&stored.value, stored.revision);
    let by_target = record.target == *node;
    match (report.step, record.state) {
        (MigrationStep::Copying, TargetHeld | Copying) => {
            let mut next = record.clone();
            next.state = Copying;
            next.copied_permille = report.copied_permille.map(|share| share.min(1000));
            if next == *record {
                return Ok(true);
            }
            store(control, id, next, revision).await
        }
        (MigrationStep::Switched, TargetHeld | Copying) => {
            switch(control, id, record, revision).await
        }
        (MigrationStep::Switched, Failed | Cancelled) => {
            let detail = format!("it was called off; the instance belongs on {}", record.source);
            Err(ControlError::conflict("called_off", detail)
                .remedy("stop what runs on the target; the source goes on"))
        }
        (MigrationStep::Failed, Planned | TargetHeld | Copying) => {
            let why = report.reason.as_deref().unwrap_or("the agent gave no reason");
            // Only the target's agent knows that nothing is left on the target.
            fail(control, id, stored, why, by_target).await
        }
        (MigrationStep::Dropped, Failed | Cancelled) if by_target => {
            confirm_gone(control, id, ClaimKey::target(record.instance), node).await?;
            Ok(true)
        }
        (MigrationStep::CleanedUp, Switched) if !by_target => {
            confirm_gone(control, id, ClaimKey::source(record.instance), node).await?;
            control.moves.migrations.wake();
            Ok(true)
        }
        // A repeated or late report.
        _ => Ok(true),
    }
}

async fn store(
    control: &Arc<ControlPlane>,
    id: &str,
    mut next: MigrationRecord,
    revision: i64,
) -> ControlResult<bool> {
    next.changed_at = control.now();
    let document = document(id, &next, Expect::Revision(revision))?;
    is_stored(commit(control, id, None, document).await?)
}

fn is_stored(outcome: CommitOutcome) -> ControlResult<bool> {
    match outcome {
        CommitOutcome::Done => Ok(true),
        CommitOutcome::Stale => Ok(false),
        CommitOutcome::Rejected(error) => Err(error),
    }
}

/// The instance runs on the target from now on: claims and migration in one commit.
async fn switch(
    control: &Arc<ControlPlane>,
    id: &str,
    record: &MigrationRecord,
    revision: i64,
) -> ControlResult<bool> {
    let mut next = record.clone();
    next.state = MigrationState::Switched;
    next.copied_permille = Some(1000);
    next.changed_at = control.now();
    let document = document(id, &next, Expect::Revision(revision))?;
    let op = Op::Switch(Switch { instance: record.instance, to: record.target.clone() });
    let is_stored = is_stored(commit(control, id, Some(op), document).await?)?;
    if is_stored {
        control.metrics.migration(MigrationState::Switched.name());
    }
    Ok(is_stored)
}

/// Releases a claim after its node's agent reported that nothing is left of it.
async fn confirm_gone(
    control: &Arc<ControlPlane>,
    id: &str,
    key: ClaimKey,
    node: &NodeId,
) -> ControlResult<()> {
    let held = control.read(move |ledger| ledger.claim(key)).await?;
    let here = held.filter(|held| held.node == *node && held.state == ClaimState::Releasing);
    let Some(held) = here else { return Ok(()) };
    let release = Release {
        request_id: Text::from(format!("migration-{id}-done-{key}-{}", held.fence)),
        key,
        tenant: None,
        fence: Some(held.fence),
        confirmed: true,
        reason: Text::from("moved"),
    };
    control.submit(Op::Release(release)).await?;
    control.wait_for_read_your_writes().await;
    Ok(())
}

/// What an agent's observation of an instance meant for its migration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ObservationEffect {
    /// Nothing: it is an ordinary observation.
    None,
    /// It was applied as a report on the migration.
    Applied,
    /// It cannot be applied before the migration is over.
    Deferred,
}

/// Applies what an agent observed of an instance that is being migrated. An instance that runs on the
/// target has switched, even if no report said so; one that stopped on the source may have.
///
/// # Errors
/// When the ledger does not know what became of it.
pub async fn apply_observation(
    control: &Arc<ControlPlane>,
    node: &NodeId,
    instance: InstanceId,
    (role, claim): (Role, ClaimState),
    state: RunState,
) -> ControlResult<ObservationEffect> {
    let open = control.moves.migrations.open_of(instance);
    let open =
        open.filter(|(_, stored)| stored.value.is_in_transit() && stored.value.concerns(node));
    let Some((id, _)) = open else {
        // An instance that was found on two nodes is not being migrated: the observation counts.
        let to_be_dropped = role == Role::MigrationTarget && claim == ClaimState::Releasing;
        if to_be_dropped && matches!(state, RunState::Stopped | RunState::Failed) {
            confirm_gone(control, "observed", ClaimKey::target(instance), node).await?;
        }
        return Ok(if to_be_dropped {
            ObservationEffect::Applied
        } else {
            ObservationEffect::None
        });
    };
    let step = match (role, state) {
        (Role::MigrationTarget, RunState::Running) => MigrationStep::Switched,
        (Role::MigrationTarget, RunState::Stopped | RunState::Failed) => MigrationStep::Failed,
        (Role::MigrationTarget, _) => return Ok(ObservationEffect::Applied),
        (Role::Primary, RunState::Stopped) => return Ok(ObservationEffect::Deferred),
        (Role::Primary, RunState::Failed) => {
            let reason = "the instance died while it was moved";
            report(control, node, &make_report(&id, MigrationStep::Failed, reason)).await?;
            return Ok(ObservationEffect::None);
        }
        (Role::Primary | Role::MigrationSource, _) => return Ok(ObservationEffect::None),
    };
    report(control, node, &make_report(&id, step, "its agent says that it is not there")).await?;
    Ok(ObservationEffect::Applied)
}

fn make_report(id: &str, step: MigrationStep, reason: &str) -> MigrationReport {
    let reason = Some(reason.to_owned());
    MigrationReport { id: id.to_owned(), step, copied_permille: None, reason }
}
