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
    use MigrationState::{Cancelled, Copying, Failed, Switched};
    let (record, revision, state) = (&stored.value, stored.revision, stored.value.state);
    let by_target = record.target == *node;
    match report.step {
        MigrationStep::Copying if state.may_become(Copying) => {
            let copied_permille = report.copied_permille.map(|share| share.min(1000));
            if (state, record.copied_permille) == (Copying, copied_permille) {
                return Ok(true);
            }
            let next = record.in_state(Copying, control.now());
            store(control, id, MigrationRecord { copied_permille, ..next }, revision).await
        }
        MigrationStep::Switched if matches!(state, Failed | Cancelled) => {
            let detail = format!("it was called off; the instance belongs on {}", record.source);
            Err(ControlError::conflict("called_off", detail)
                .remedy("stop what runs on the target; the source goes on"))
        }
        MigrationStep::Switched if state != Switched && state.may_become(Switched) => {
            switch(control, id, record, revision).await
        }
        MigrationStep::Failed if state != Failed && state.may_become(Failed) => {
            let why = report.reason.as_deref().unwrap_or("the agent gave no reason");
            // Only the target's agent knows that nothing is left on the target.
            fail(control, id, stored, why, by_target).await
        }
        MigrationStep::Dropped if by_target && matches!(state, Failed | Cancelled) => {
            confirm_gone(control, id, ClaimKey::target(record.instance), node).await?;
            Ok(true)
        }
        MigrationStep::CleanedUp if !by_target && state == Switched => {
            confirm_gone(control, id, ClaimKey::source(record.instance), node).await?;
            control.moves.migrations.wake();
            Ok(true)
        }
        step if is_early(step, state) => {
            let detail = format!("it is {}; the report comes before its turn", state.name());
            Err(ControlError::conflict("out_of_order", detail)
                .remedy("do what the tasks of the node say, and report again")
                .retry_after(1))
        }
        // A repeated or late report.
        _ => Ok(true),
    }
}

/// Whether a migration cannot take a step yet that it may take later: what is reported has not happened, or is
/// known to another server first.
const fn is_early(step: MigrationStep, state: MigrationState) -> bool {
    use MigrationState::{Copying, Planned, TargetHeld};
    match step {
        MigrationStep::Copying | MigrationStep::Switched => matches!(state, Planned),
        MigrationStep::CleanedUp => matches!(state, Planned | TargetHeld | Copying),
        MigrationStep::Failed | MigrationStep::Dropped => false,
    }
}

async fn store(
    control: &Arc<ControlPlane>,
    id: &str,
    next: MigrationRecord,
    revision: i64,
) -> ControlResult<bool> {
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
    let next = record.in_state(MigrationState::Switched, control.now());
    let next = MigrationRecord { copied_permille: Some(1000), ..next };
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_is_early_only_before_the_state_that_it_could_lead_to() {
        use MigrationState::{Cancelled, Copying, Done, Failed, Planned, Switched, TargetHeld};
        let early = |step| match step {
            MigrationStep::Copying | MigrationStep::Switched => vec![Planned],
            MigrationStep::CleanedUp => vec![Planned, TargetHeld, Copying],
            MigrationStep::Failed | MigrationStep::Dropped => Vec::new(),
        };
        let steps = [
            MigrationStep::Copying,
            MigrationStep::Switched,
            MigrationStep::Failed,
            MigrationStep::Dropped,
            MigrationStep::CleanedUp,
        ];
        for step in steps {
            for state in MigrationState::ALL {
                assert_eq!(
                    is_early(step, state),
                    early(step).contains(&state),
                    "{step:?} {state:?}"
                );
            }
        }
        for over in [Switched, Done, Failed, Cancelled] {
            assert!(!steps.iter().any(|step| is_early(*step, over)), "{over:?}");
        }
    }
}
