//! What agents report of migrations.

use std::sync::Arc;

use berth_api::{Migration, MigrationReport, MigrationState, MigrationStep, RunState};
use berth_engine::{InstanceId, NodeId};
use berth_ledger::{ClaimKey, ClaimState, Expect, Op, Release, Role, Switch, Text};

use super::Known;
use super::begin::fail;
use super::record::{MigrationRecord, Stepped, step, view, write};
use crate::control_plane::ControlPlane;
use crate::error::{ControlError, ControlResult};

/// How often a report is written anew when others write at the same time.
const TRIES: u32 = 8;

/// Takes a report in. Said again, it changes nothing.
///
/// # Errors
/// When no such migration is from or to the node, or the step is not its turn.
pub async fn report(
    control: &Arc<ControlPlane>,
    node: &NodeId,
    report: &MigrationReport,
) -> ControlResult<Migration> {
    let id = report.id.as_str();
    for _ in 0..TRIES {
        let known = control.migrations.get(id).filter(|known| known.value.concerns(node));
        let known = known.ok_or_else(|| ControlError::not_found("migration", id))?;
        if take(control, id, &known, node, report).await? {
            let known = control.migrations.get(id);
            let known = known.ok_or_else(|| ControlError::not_found("migration", id))?;
            return Ok(view(id, &known.value));
        }
    }
    Err(ControlError::unavailable("contention", "others change this migration all the time"))
}

/// Takes a report in; false: the migration changed meanwhile, look again.
async fn take(
    control: &Arc<ControlPlane>,
    id: &str,
    known: &Known,
    node: &NodeId,
    report: &MigrationReport,
) -> ControlResult<bool> {
    use MigrationState::{Cancelled, Copying, Failed, Planned, Switched, TargetHeld};
    let (record, revision) = (&known.value, known.revision);
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
            let why = report.reason.as_deref().unwrap_or("the agent did not say why");
            // The target's agent knows what it has; the source's does not.
            fail(control, id, None, why, by_target).await?;
            Ok(true)
        }
        (MigrationStep::Dropped, Failed | Cancelled) if by_target => {
            free(control, id, ClaimKey::target(record.instance), node).await?;
            Ok(true)
        }
        (MigrationStep::CleanedUp, Switched) if !by_target => {
            free(control, id, ClaimKey::source(record.instance), node).await?;
            control.migrations.wake();
            Ok(true)
        }
        // It went on since, or has ended.
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
    let berth_ledger::DocumentWrite { kind, id: name, body, expect } =
        write(id, &next, Expect::Revision(revision))?;
    let op = Op::PutDocument { kind, id: name, body, expect };
    match step(control, id, op, Vec::new(), None).await? {
        Stepped::Done => Ok(true),
        Stepped::Stale => Ok(false),
        Stepped::Rejected(error) => Err(error),
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
    let document = write(id, &next, Expect::Revision(revision))?;
    let op = Op::Switch(Switch { instance: record.instance, to: record.target.clone() });
    match step(control, id, op, vec![document], None).await? {
        Stepped::Done => {
            control.metrics.migration(MigrationState::Switched.name());
            Ok(true)
        }
        Stepped::Stale => Ok(false),
        Stepped::Rejected(error) => Err(error),
    }
}

/// Frees a place of which its agent says that nothing is left.
async fn free(
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
        owner: None,
        fence: Some(held.fence),
        confirmed: true,
        reason: Text::from("moved"),
    };
    control.submit(Op::Release(release)).await?;
    control.settled().await;
    Ok(())
}

/// What a report on an instance means while it is being moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Observed {
    /// Nothing special.
    Plain,
    /// It was taken as a report on the migration.
    Taken,
    /// It cannot be taken before the migration is over.
    Wait,
}

/// Takes in what an agent says of an instance that is being moved. An instance that runs on the
/// target has switched, whoever forgot to say so; one that stopped on the source may have.
///
/// # Errors
/// When nobody knows what became of it.
pub async fn observed(
    control: &Arc<ControlPlane>,
    node: &NodeId,
    instance: InstanceId,
    (role, claim): (Role, ClaimState),
    state: RunState,
) -> ControlResult<Observed> {
    let open = control.migrations.open_of(instance);
    let open = open.filter(|(_, known)| known.value.is_on_its_way() && known.value.concerns(node));
    let Some((id, _)) = open else {
        // One that was found in two places is no migration: what its agent says of it counts.
        let to_be_dropped = role == Role::MigrationTarget && claim == ClaimState::Releasing;
        if to_be_dropped && matches!(state, RunState::Stopped | RunState::Failed) {
            free(control, "observed", ClaimKey::target(instance), node).await?;
        }
        return Ok(if to_be_dropped { Observed::Taken } else { Observed::Plain });
    };
    let step = match (role, state) {
        (Role::MigrationTarget, RunState::Running) => MigrationStep::Switched,
        (Role::MigrationTarget, RunState::Stopped | RunState::Failed) => MigrationStep::Failed,
        (Role::MigrationTarget, _) => return Ok(Observed::Taken),
        (Role::Primary, RunState::Stopped) => return Ok(Observed::Wait),
        (Role::Primary, RunState::Failed) => {
            let said = said(&id, MigrationStep::Failed, "the instance died while it was moved");
            report(control, node, &said).await?;
            return Ok(Observed::Plain);
        }
        (Role::Primary | Role::MigrationSource, _) => return Ok(Observed::Plain),
    };
    report(control, node, &said(&id, step, "its agent says that it is not there")).await?;
    Ok(Observed::Taken)
}

fn said(id: &str, step: MigrationStep, reason: &str) -> MigrationReport {
    let reason = Some(reason.to_owned());
    MigrationReport { id: id.to_owned(), step, copied_permille: None, reason }
}
