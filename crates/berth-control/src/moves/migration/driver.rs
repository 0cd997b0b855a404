//! The loop that continues migrations where no agent does: holds targets, ends migrations that take
//! too long or have become impossible, and removes old records. Every server runs it: each step is a
//! guarded write, so a migration continues on any server.

use std::sync::Arc;
use std::time::Duration;

use berth_api::MigrationState;
use berth_engine::NodeState;
use berth_engine::workload::HostState;
use berth_ledger::{Claim, ClaimKey, ClaimState, Expect, Op, Release, Text};
use tokio::sync::watch;

use super::MigrationRecord;
use super::StoredMigration;
use super::record::{CommitOutcome, commit, document};
use super::start::{fail, hold_target};
use crate::control_plane::ControlPlane;
use crate::error::ControlResult;
use crate::loop_runner::BackgroundLoop;
use crate::moves::records;
use crate::workloads::HostContext;

/// How long a migration that ended is kept at least: it says how long its instance rests.
const KEPT_S: i64 = 86_400;

/// How long agents have to start: one that does not support migrations never does.
const START_WITHIN_S: i64 = 120;

/// How long the target's agent has to drop what was cancelled.
const DROP_WITHIN_S: i64 = 600;

/// How long a decision may wait for its target to be held.
const HOLD_WITHIN_S: i64 = 60;

/// Continues migrations.
pub(crate) struct MigrationDriver(pub(crate) Arc<ControlPlane>);

impl BackgroundLoop for MigrationDriver {
    const NAME: &'static str = "migrations";
    const PERIOD: Duration = Duration::from_secs(1);
    const PAUSE: Duration = Duration::from_millis(100);

    fn wake_sources(&self) -> Vec<watch::Receiver<u64>> {
        vec![self.0.moves.migrations.changes(), self.0.catalog.room()]
    }

    async fn pass(&mut self) -> ControlResult<()> {
        let control = &self.0;
        let migrations = control.moves.migrations.all();
        if !migrations.is_empty() {
            control.wait_for_read_your_writes().await;
        }
        for (id, stored) in migrations {
            // One that fails must not keep the others from continuing.
            if let Err(error) = advance(control, &id, &stored).await {
                tracing::warn!(error = error.detail(), id, "failed to advance migration");
            }
        }
        Ok(())
    }
}

/// What is next for a migration.
#[derive(Clone, Debug, PartialEq, Eq)]
enum NextAction {
    /// Wait for an agent, or for nothing.
    Wait,
    HoldTarget,
    Fail {
        why: String,
        target_is_empty: bool,
    },
    /// Done, once the source's claim is gone.
    Finish,
    /// Release a target that its agent did not drop; in any case if that is overdue.
    ReleaseTarget {
        is_overdue: bool,
    },
}

/// What is next, given why the migration cannot be finished, if so.
fn next_action(
    record: &MigrationRecord,
    obstacle: Option<String>,
    timeout_s: u32,
    now: i64,
) -> NextAction {
    let age_s = |since: jiff::Timestamp| now.saturating_sub(since.as_second());
    let fail = |why: String, target_is_empty| NextAction::Fail { why, target_is_empty };
    match record.state {
        MigrationState::Planned if age_s(record.since) > HOLD_WITHIN_S => {
            fail("its target was not held in time".to_owned(), true)
        }
        MigrationState::Planned => NextAction::HoldTarget,
        MigrationState::TargetHeld | MigrationState::Copying => {
            let is_waiting = record.state == MigrationState::TargetHeld;
            match obstacle {
                Some(why) => fail(why, false),
                // No agent reported that anything was sent, so nothing can be on the target.
                None if is_waiting && age_s(record.changed_at) > START_WITHIN_S => {
                    fail(format!("its agents did not begin within {START_WITHIN_S} s"), true)
                }
                None if age_s(record.since) > i64::from(timeout_s) => {
                    fail(format!("its agents took longer than {timeout_s} s"), false)
                }
                None => NextAction::Wait,
            }
        }
        MigrationState::Switched => NextAction::Finish,
        MigrationState::Failed | MigrationState::Cancelled => {
            NextAction::ReleaseTarget { is_overdue: age_s(record.changed_at) > DROP_WITHIN_S }
        }
        MigrationState::Done => NextAction::Wait,
    }
}

/// Takes a migration one step further, if there is one to take.
async fn advance(
    control: &Arc<ControlPlane>,
    id: &str,
    stored: &StoredMigration,
) -> ControlResult<()> {
    let record = &stored.value;
    let obstacle =
        if record.is_in_transit() { find_obstacle(control, record).await? } else { None };
    let policy = control.catalog.policy();
    let limits = policy.map(|policy| policy.elastic().migration);
    let timeout_s = limits.map_or(3600, |limits| limits.timeout_s);
    let now = control.now().as_second();
    match next_action(record, obstacle, timeout_s, now) {
        NextAction::Wait => {}
        NextAction::HoldTarget => hold_target(control, id, stored).await?,
        NextAction::Fail { why, target_is_empty } => {
            let is_ended = fail(control, id, stored, &why, target_is_empty).await?;
            if !is_ended {
                // The next pass sees what it did.
                tracing::debug!(migration = id, why, "another server changed the migration");
            }
        }
        NextAction::Finish => finish(control, id, record, stored.revision).await?,
        NextAction::ReleaseTarget { is_overdue } => {
            release_target(control, record, is_overdue).await?;
        }
    }
    let limits = limits.unwrap_or_default();
    let kept_s = KEPT_S.max(limits.cooldown_s.into()).max(limits.backoff_s.into());
    let is_old = now.saturating_sub(record.changed_at.as_second()) > kept_s;
    if !record.is_open() && is_old && !has_target_claim(control, record) {
        let cache = Arc::clone(&control.moves.migrations) as _;
        records::remove(control, cache, id, stored.revision).await?;
    }
    Ok(())
}

/// Whether something may be left on the target; its agent has a task because of the record.
fn has_target_claim(control: &ControlPlane, record: &MigrationRecord) -> bool {
    let catalog = control.catalog.read();
    let held = catalog.claims.get(&ClaimKey::target(record.instance));
    held.is_some_and(|held| held.node == record.target)
}

/// Why a migration that is in transit cannot be finished, if so.
async fn find_obstacle(
    control: &Arc<ControlPlane>,
    record: &MigrationRecord,
) -> ControlResult<Option<String>> {
    let key = ClaimKey::target(record.instance);
    let held = control.read(move |ledger| ledger.claim(key)).await?;
    let is_held =
        held.is_some_and(|held| held.node == record.target && held.state == ClaimState::Binding);
    if !is_held {
        return Ok(Some(format!("its place on {} was released", record.target)));
    }
    let catalog = control.catalog.read();
    let claim = catalog.claims.get(&ClaimKey::primary(record.instance));
    let Some(claim) = claim else { return Ok(Some("the instance is gone".to_owned())) };
    if claim.node != record.source {
        return Ok(Some(format!("the instance is on {} meanwhile", claim.node)));
    }
    if claim.state == ClaimState::Releasing {
        return Ok(Some("the instance is stopping".to_owned()));
    }
    let target = catalog.nodes.get(&record.target);
    Ok(match target.map(|node| node.facts.state) {
        None => Some(format!("node {} was removed", record.target)),
        Some(NodeState::Lost) => Some(format!("node {} is lost", record.target)),
        Some(NodeState::Draining) => Some(format!("node {} is being emptied", record.target)),
        Some(_) => None,
    })
}

/// Finishes a migration once nothing is left on the source: its claim is gone, or its node is lost for
/// good.
async fn finish(
    control: &Arc<ControlPlane>,
    id: &str,
    record: &MigrationRecord,
    revision: i64,
) -> ControlResult<()> {
    let key = ClaimKey::source(record.instance);
    let left = control.read(move |ledger| ledger.claim(key)).await?;
    let next = record.in_state(MigrationState::Done, control.now());
    let release = match left.filter(|left| left.node == record.source) {
        Some(left) if is_lost(control, &left) => Some(release_lost(id, &left)),
        Some(_) => return Ok(()),
        None => None,
    };
    let document = document(id, &next, Expect::Revision(revision))?;
    if let CommitOutcome::Done = commit(control, id, release, document).await? {
        control.metrics.migration(MigrationState::Done.name());
    }
    Ok(())
}

/// Releases a target whose node is lost for good, or whose agent did not drop it in time.
async fn release_target(
    control: &Arc<ControlPlane>,
    record: &MigrationRecord,
    is_overdue: bool,
) -> ControlResult<()> {
    let key = ClaimKey::target(record.instance);
    if !has_target_claim(control, record) {
        return Ok(());
    }
    let held = control.read(move |ledger| ledger.claim(key)).await?;
    let held =
        held.filter(|held| held.node == record.target && (is_overdue || is_lost(control, held)));
    // The claim may belong to a later migration by now.
    let is_its_own = control.moves.migrations.open_of(record.instance).is_none();
    if let Some(held) = held.filter(|_| is_its_own) {
        control.submit(release_lost("lost", &held)).await?;
    }
    Ok(())
}

/// Whether a claim's node has been lost for so long that nothing can run there.
fn is_lost(control: &ControlPlane, claim: &Claim) -> bool {
    let catalog = control.catalog.read();
    let Some(node) = catalog.nodes.get(&claim.node) else { return true };
    // Judged by its silence, whatever its state was when it fell silent.
    HostContext::of(control).host(node) == HostState::Lost
}

/// Releases a claim of which nothing can be left. "freed" is part of request ids in the ledger.
fn release_lost(id: &str, claim: &Claim) -> Op {
    Op::Release(Release {
        request_id: Text::from(format!("migration-{id}-freed-{}-{}", claim.key, claim.fence)),
        key: claim.key,
        tenant: None,
        fence: Some(claim.fence),
        confirmed: true,
        reason: Text::from("node_lost"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::moves::history::tests::record;

    #[test]
    fn a_migration_waits_for_its_agents_until_it_is_blocked_or_too_late() {
        use MigrationState::{Cancelled, Copying, Done, Failed, Planned, Switched, TargetHeld};
        let fail =
            |why: &str, target_is_empty| NextAction::Fail { why: why.to_owned(), target_is_empty };
        let lost = || Some("node b is lost".to_owned());
        let cases = [
            (Planned, 60, None, NextAction::HoldTarget),
            (Planned, 61, None, fail("its target was not held in time", true)),
            (TargetHeld, 120, None, NextAction::Wait),
            (TargetHeld, 121, None, fail("its agents did not begin within 120 s", true)),
            (TargetHeld, 121, lost(), fail("node b is lost", false)),
            (Copying, 500, None, NextAction::Wait),
            (Copying, 0, lost(), fail("node b is lost", false)),
            (Copying, 501, None, fail("its agents took longer than 500 s", false)),
            (Switched, 0, None, NextAction::Finish),
            (Failed, 600, None, NextAction::ReleaseTarget { is_overdue: false }),
            (Cancelled, 601, None, NextAction::ReleaseTarget { is_overdue: true }),
            (Done, 601, None, NextAction::Wait),
        ];
        for (state, age_s, obstacle, expected) in cases {
            let found = next_action(&record(state, 1000), obstacle, 500, 1000 + age_s);
            assert_eq!(found, expected, "{state:?} after {age_s} s");
        }
    }

    #[test]
    #[should_panic(expected = "invariant migration_state_transition violated")]
    fn a_migration_that_switched_cannot_fail_any_more() {
        let switched = record(MigrationState::Switched, 1000);
        switched.in_state(MigrationState::Failed, jiff::Timestamp::UNIX_EPOCH);
    }
}
