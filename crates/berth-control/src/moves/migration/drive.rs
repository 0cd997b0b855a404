//! The loop that takes migrations further where no agent does: holds places, ends what takes too
//! long or lost its ground, and forgets. Any server may run it: every step is a guarded write.

use std::sync::Arc;
use std::time::Duration;

use berth_api::MigrationState;
use berth_engine::NodeState;
use berth_engine::workload::HostState;
use berth_ledger::{Claim, ClaimKey, Expect, Op, Release, Text};

use super::KIND;
use super::begin::{fail, hold};
use super::record::{MigrationRecord, Stepped, step, write};
use crate::control_plane::ControlPlane;
use crate::error::ControlResult;
use crate::workloads::HostContext;

/// How long nothing happens before migrations are looked at all the same.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// The least time between two passes.
const PAUSE: Duration = Duration::from_millis(100);

/// How long a migration that ended is remembered at least: its instance rests by it.
const REMEMBERED_S: i64 = 86_400;

/// How long agents have to begin: one that knows nothing of migrations never does.
const BEGIN_WITHIN_S: i64 = 120;

/// How long the target's agent has to drop what was called off.
const DROP_WITHIN_S: i64 = 600;

/// How long a decision may wait for its place before it is void.
const STALE_PLAN_S: i64 = 60;

/// Drives migrations until the server stops.
pub(crate) async fn keep_migrating(control: Arc<ControlPlane>) {
    let mut changes = control.migrations.changes();
    let mut room = control.catalog.room();
    loop {
        tokio::select! {
            () = control.stopping.cancelled() => return,
            _ = changes.changed() => {}
            _ = room.changed() => {}
            () = tokio::time::sleep(LOOK_EVERY) => {}
        }
        room.mark_unchanged();
        let migrations = control.migrations.all();
        if !migrations.is_empty() {
            control.settled().await;
        }
        for (id, known) in migrations {
            if let Err(error) = drive(&control, &id, &known.value, known.revision).await {
                let why = error.detail();
                tracing::warn!(why, id, "a migration does not go on");
            }
        }
        control.metrics.loop_ran("migrations");
        tokio::time::sleep(PAUSE).await;
    }
}

/// Takes one migration a step further, if it is its turn.
async fn drive(
    control: &Arc<ControlPlane>,
    id: &str,
    record: &MigrationRecord,
    revision: i64,
) -> ControlResult<()> {
    let age_s =
        |since: jiff::Timestamp| control.now().as_second().saturating_sub(since.as_second());
    match record.state {
        MigrationState::Planned if age_s(record.since) > STALE_PLAN_S => {
            fail(control, id, Some(revision), "no place was held for it in time", true).await
        }
        MigrationState::Planned => hold(control, id).await,
        MigrationState::TargetHeld | MigrationState::Copying => {
            let policy = control.catalog.policy();
            let timeout = policy.map_or(3600, |policy| policy.elastic().migration.timeout_s);
            let waits = record.state == MigrationState::TargetHeld;
            match lost_ground(control, record).await? {
                None if waits && age_s(record.changed_at) > BEGIN_WITHIN_S => {
                    // Nobody has said that anything was sent: nothing can be left of it.
                    let why = format!("its agents did not begin within {BEGIN_WITHIN_S} s");
                    fail(control, id, Some(revision), &why, true).await
                }
                Some(why) => fail(control, id, Some(revision), &why, false).await,
                None if age_s(record.since) > i64::from(timeout) => {
                    let why = format!("its agents took longer than {timeout} s");
                    fail(control, id, Some(revision), &why, false).await
                }
                None => Ok(()),
            }
        }
        MigrationState::Switched => finish(control, id, record, revision).await,
        MigrationState::Failed | MigrationState::Cancelled => {
            let is_late = age_s(record.changed_at) > DROP_WITHIN_S;
            free_lost(control, record, is_late).await
        }
        MigrationState::Done => Ok(()),
    }?;
    if !record.is_open()
        && age_s(record.changed_at) > remembered_s(control)
        && !is_left(control, record)
    {
        let (kind, name) = (Text::from(KIND), Text::from(id));
        let op = Op::RemoveDocument { kind, id: name, expect: Expect::Revision(revision) };
        control.submit(op).await?;
    }
    Ok(())
}

/// How long a migration that ended is remembered: its instance rests by it.
fn remembered_s(control: &ControlPlane) -> i64 {
    let policy = control.catalog.policy();
    let limits = policy.map(|policy| policy.elastic().migration).unwrap_or_default();
    REMEMBERED_S.max(limits.cooldown_s.into()).max(limits.backoff_s.into())
}

/// Whether something may be left on the target, which its agent has a task for by the record.
fn is_left(control: &ControlPlane, record: &MigrationRecord) -> bool {
    let books = control.catalog.books();
    let held = books.claims.get(&ClaimKey::target(record.instance));
    held.is_some_and(|held| held.node == record.target)
}

/// Why a migration that is on its way cannot be finished, if so.
async fn lost_ground(
    control: &Arc<ControlPlane>,
    record: &MigrationRecord,
) -> ControlResult<Option<String>> {
    let key = ClaimKey::target(record.instance);
    let held = control.read(move |ledger| ledger.claim(key)).await?;
    let is_held = held.is_some_and(|held| {
        held.node == record.target && held.state == berth_ledger::ClaimState::Binding
    });
    if !is_held {
        return Ok(Some(format!("its place on {} was given up", record.target)));
    }
    Ok(nowhere_to_go(control, record))
}

fn nowhere_to_go(control: &ControlPlane, record: &MigrationRecord) -> Option<String> {
    let books = control.catalog.books();
    let claim = books.claims.get(&ClaimKey::primary(record.instance));
    let Some(claim) = claim else { return Some("the instance is gone".to_owned()) };
    if claim.node != record.source {
        return Some(format!("the instance is on {} meanwhile", claim.node));
    }
    if claim.state == berth_ledger::ClaimState::Releasing {
        return Some("the instance was told to stop".to_owned());
    }
    let target = books.nodes.get(&record.target);
    match target.map(|node| node.facts.state) {
        None => Some(format!("node {} was removed", record.target)),
        Some(NodeState::Lost) => Some(format!("node {} is lost", record.target)),
        Some(NodeState::Draining) => Some(format!("node {} is being emptied", record.target)),
        Some(_) => None,
    }
}

/// Nothing is left on the source once its claim is gone. A source that is gone for good leaves
/// nothing to be cleaned up either.
async fn finish(
    control: &Arc<ControlPlane>,
    id: &str,
    record: &MigrationRecord,
    revision: i64,
) -> ControlResult<()> {
    let key = ClaimKey::source(record.instance);
    let left = control.read(move |ledger| ledger.claim(key)).await?;
    let next = MigrationRecord {
        state: MigrationState::Done,
        changed_at: control.now(),
        ..record.clone()
    };
    let document = write(id, &next, Expect::Revision(revision))?;
    let op = match left.filter(|left| left.node == record.source) {
        Some(left) if is_gone(control, &left) => freed(id, &left),
        Some(_) => return Ok(()),
        None => {
            let berth_ledger::DocumentWrite { kind, id, body, expect } = document.clone();
            Op::PutDocument { kind, id, body, expect }
        }
    };
    let documents = if matches!(op, Op::PutDocument { .. }) { Vec::new() } else { vec![document] };
    if let Stepped::Done = step(control, id, op, documents, None).await? {
        control.metrics.migration(MigrationState::Done.name());
    }
    Ok(())
}

/// A place that was to be dropped on a node that is gone for good, or by an agent that does not know
/// how.
async fn free_lost(
    control: &Arc<ControlPlane>,
    record: &MigrationRecord,
    is_late: bool,
) -> ControlResult<()> {
    let key = ClaimKey::target(record.instance);
    let known = control.catalog.books().claims.get(&key).cloned();
    if known.is_none_or(|held| held.node != record.target) {
        return Ok(());
    }
    let held = control.read(move |ledger| ledger.claim(key)).await?;
    let held =
        held.filter(|held| held.node == record.target && (is_late || is_gone(control, held)));
    let still_its = control.migrations.open_of(record.instance).is_none();
    if let Some(held) = held.filter(|_| still_its) {
        control.submit(freed("lost", &held)).await?;
    }
    Ok(())
}

/// Whether a claim's node has been lost for so long that nothing can run there.
fn is_gone(control: &ControlPlane, claim: &Claim) -> bool {
    let books = control.catalog.books();
    let Some(node) = books.nodes.get(&claim.node) else { return true };
    // By its silence, whatever state it was in when it fell silent.
    HostContext::of(control).host(node) == HostState::Lost
}

fn freed(id: &str, claim: &Claim) -> Op {
    Op::Release(Release {
        request_id: Text::from(format!("migration-{id}-freed-{}-{}", claim.key, claim.fence)),
        key: claim.key,
        owner: None,
        fence: Some(claim.fence),
        confirmed: true,
        reason: Text::from("node_lost"),
    })
}
