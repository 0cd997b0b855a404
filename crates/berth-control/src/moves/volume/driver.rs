//! The loop that continues moves: stops the instance that uses a volume, switches its home, and
//! starts the instance again. Every server runs it: each step is a guarded write.

use std::sync::Arc;
use std::time::Duration;

use berth_api::VolumeMoveState;
use berth_engine::{InstanceRequest, Volume};
use berth_ledger::{Claim, ClaimKey, ClaimState, Expect, Op, Release, StopMember, Text};
use tokio::sync::watch;

use super::StoredMove;
use super::record::{cache, store, store_switched};
use super::{StoppedInstance, VolumeMoveRecord};
use crate::caller::Caller;
use crate::control_plane::ControlPlane;
use crate::documents::Versioned;
use crate::error::{ControlError, ControlResult};
use crate::loop_runner::BackgroundLoop;
use crate::moves::drain::is_kept_by_workload;
use crate::moves::records;
use crate::placer::{PlaceAnswer, PlaceRequest};
use crate::workloads::{CallerMembers, HostContext, StopPermit};

/// How long the agent of the new node has to start the instance.
const LEASE_S: u32 = 600;

/// Who acts, in the audit log.
const ACTOR: &str = "volume move";

/// Why an instance is stopped.
const REASON: &str = "volume_move";

/// Continues moves of volumes.
pub(crate) struct VolumeMoveDriver(pub(crate) Arc<ControlPlane>);

impl BackgroundLoop for VolumeMoveDriver {
    const NAME: &'static str = "volume_moves";
    const PERIOD: Duration = Duration::from_secs(1);
    const PAUSE: Duration = Duration::from_millis(100);

    fn wake_sources(&self) -> Vec<watch::Receiver<u64>> {
        vec![self.0.moves.volume_moves.records.changes(), self.0.catalog.room()]
    }

    async fn pass(&mut self) -> ControlResult<()> {
        let control = &self.0;
        let moves = control.moves.volume_moves.all();
        if !moves.is_empty() {
            control.wait_for_read_your_writes().await;
        }
        for (volume, stored) in moves {
            // One that fails must not keep the others from continuing.
            if let Err(error) = advance(control, &volume, &stored).await {
                tracing::warn!(error = error.detail(), volume, "failed to advance volume move");
            }
        }
        Ok(())
    }
}

/// What is next for a move.
#[derive(Clone, Debug, PartialEq, Eq)]
enum NextAction {
    /// Wait for an agent, or for nothing.
    Wait,
    Fail(String),
    StopUser,
    SwitchHome,
    /// Start the instance that was stopped, if there is one.
    RestartUser,
}

fn next_action(record: &VolumeMoveRecord, target_exists: bool) -> NextAction {
    if record.is_open() && !target_exists {
        return NextAction::Fail(format!("node {} was removed", record.to));
    }
    match record.state {
        VolumeMoveState::Stopping => NextAction::StopUser,
        VolumeMoveState::Syncing if record.synced => NextAction::SwitchHome,
        VolumeMoveState::Done | VolumeMoveState::Failed | VolumeMoveState::Cancelled => {
            NextAction::RestartUser
        }
        VolumeMoveState::Planned | VolumeMoveState::Copying | VolumeMoveState::Syncing => {
            NextAction::Wait
        }
    }
}

/// Takes a move one step further, if there is one to take.
async fn advance(
    control: &Arc<ControlPlane>,
    volume: &str,
    stored: &StoredMove,
) -> ControlResult<()> {
    let Versioned { value: record, revision } = &**stored;
    let (found, target_exists) = {
        let catalog = control.catalog.read();
        (catalog.volumes.get(volume).cloned(), catalog.nodes.contains_key(&record.to))
    };
    let Some(found) = found else {
        // The volume was removed, and its moves with it.
        return records::remove(control, cache(control), volume, *revision).await;
    };
    let step = Step { control, volume, record, revision: *revision };
    match next_action(record, target_exists) {
        NextAction::Wait => Ok(()),
        NextAction::Fail(why) => {
            let fail = |next: &mut VolumeMoveRecord| {
                next.enter(VolumeMoveState::Failed);
                next.why = Some(why);
            };
            step.write(fail).await
        }
        NextAction::StopUser => step.stop_user(&found).await,
        NextAction::SwitchHome => step.switch_home(found).await,
        NextAction::RestartUser => step.restart_user().await,
    }
}

/// A step of a move, based on the move as it was read.
struct Step<'a> {
    control: &'a Arc<ControlPlane>,
    volume: &'a str,
    record: &'a VolumeMoveRecord,
    revision: i64,
}

impl Step<'_> {
    /// Stores the move with a change, unless another server changed it since.
    async fn write(&self, change: impl FnOnce(&mut VolumeMoveRecord)) -> ControlResult<()> {
        let mut next = self.record.clone();
        change(&mut next);
        next.changed_at = self.control.now();
        let expect = Expect::Revision(self.revision);
        store(self.control, self.volume, &next, expect, None).await?;
        Ok(())
    }

    /// Stops the instance that uses the volume.
    async fn stop_user(&self, volume: &Volume) -> ControlResult<()> {
        let Some(instance) = volume.attached_to else {
            // Refused if an instance uses it after all: the catalogue is a moment behind.
            return self.write(VolumeMoveRecord::start_sync).await;
        };
        let key = ClaimKey::primary(instance);
        let found = self.control.read(move |ledger| ledger.claim(key)).await?;
        // A claim that is gone has detached its volume; the catalogue is a moment behind.
        let Some(claim) = found.filter(|claim| claim.state != ClaimState::Releasing) else {
            return Ok(());
        };
        let is_known = self.record.stopped.as_ref().is_some_and(|it| it.fence == claim.fence);
        if !self.is_kept(key) && !is_known {
            // Store what to start again before stopping it, in case this server is killed in between.
            let stopped = stopped_instance(&claim)?;
            return self.write(|next| next.stopped = Some(Box::new(stopped))).await;
        }
        let guard = match self.stop_permit(key) {
            StopPermit::Free => None,
            StopPermit::Guarded(guard) => Some(guard),
            // Too few other members of its workload run.
            StopPermit::Wait => return Ok(()),
        };
        let release = Release {
            request_id: Text::from(format!("volume-move-{instance}-{}", claim.fence)),
            key,
            tenant: None,
            fence: Some(claim.fence),
            confirmed: false,
            reason: Text::from(REASON),
        };
        let subject = format!("{instance} for volume {}", self.volume);
        let caller = Caller::local(ACTOR);
        let op = match guard {
            Some(guard) => Op::StopMember(Box::new(StopMember { release, guard })),
            None => Op::Release(release),
        };
        let released = self.control.step(&caller, "claim.release", subject, op).await?;
        // A claim that changed meanwhile is part of the next pass.
        if let Err(rejection) = released {
            tracing::debug!(?rejection, %instance, volume = self.volume,
                "instance that uses a moving volume was not stopped; looking again in the next pass");
        }
        Ok(())
    }

    /// Whether the instance may be stopped now, by the rules of its workload.
    fn stop_permit(&self, key: ClaimKey) -> StopPermit {
        let catalog = self.control.catalog.read();
        let Some(claim) = catalog.claims.get(&key) else { return StopPermit::Free };
        CallerMembers::new(&catalog, HostContext::of(self.control)).permit_stop(claim)
    }

    fn is_kept(&self, key: ClaimKey) -> bool {
        let catalog = self.control.catalog.read();
        catalog.claims.get(&key).is_some_and(|claim| is_kept_by_workload(&catalog, claim))
    }

    /// Makes the new node the volume's home.
    async fn switch_home(&self, volume: Volume) -> ControlResult<()> {
        if let Some(by) = volume.attached_to {
            // It was recorded there and may have written: stop it, and copy what changed.
            tracing::warn!(volume = self.volume, instance = %by, "volume came into use during its last copy");
            let again = |next: &mut VolumeMoveRecord| {
                next.enter(VolumeMoveState::Stopping);
                next.synced = false;
            };
            return self.write(again).await;
        }
        let mut next = self.record.clone();
        next.enter(VolumeMoveState::Done);
        next.changed_at = self.control.now();
        let moved = Volume { home: next.to.clone(), ..volume };
        let (expect, caller) = (Expect::Revision(self.revision), Caller::local(ACTOR));
        // If it is not stored, the next pass sees why.
        store_switched(self.control, moved, &next, expect, &caller).await?;
        Ok(())
    }

    /// Starts the instance that was stopped, on the node where the volume lives now.
    async fn restart_user(&self) -> ControlResult<()> {
        let Some(stopped) = self.record.stopped.as_deref() else { return Ok(()) };
        let key = ClaimKey::primary(stopped.request.id);
        let found = self.control.read(move |ledger| ledger.claim(key)).await?;
        if let Some(claim) = found {
            // It was never stopped, or is still stopping, or runs again.
            let is_gone_soon = claim.state == ClaimState::Releasing;
            return if is_gone_soon { Ok(()) } else { self.write(|it| it.stopped = None).await };
        }
        match place(self.control, stopped).await {
            PlaceAnswer::Granted(_) => self.write(|next| next.stopped = None).await,
            PlaceAnswer::NoRoom(refusals) => {
                let why = refusals.first().map(berth_engine::Refusal::headline);
                tracing::debug!(?why, instance = %stopped.request.id, "stopped instance cannot be restarted yet");
                Ok(())
            }
            PlaceAnswer::Contended(_) | PlaceAnswer::Busy(_) => Ok(()),
            PlaceAnswer::Refused(by, _) => Err(ControlError::from(&by)),
            PlaceAnswer::Invalid(invalid) => Err(ControlError::invalid(invalid.to_string())),
            PlaceAnswer::Unknown(error) => Err(error.into()),
        }
    }
}

/// What is needed to place an instance again as it was.
fn stopped_instance(claim: &Claim) -> ControlResult<StoppedInstance> {
    let request = claim.request();
    let request = request.map_err(|error| ControlError::invalid(format!("a claim: {error}")))?;
    let values = claim.holdings.as_deref().map(|held| held.values.as_slice()).unwrap_or_default();
    Ok(StoppedInstance {
        request,
        pools: values.iter().map(|held| held.pool.to_string()).collect(),
        release: claim.release_id.as_deref().map(str::to_owned),
        fence: claim.fence,
    })
}

async fn place(control: &ControlPlane, stopped: &StoppedInstance) -> PlaceAnswer {
    let request: &InstanceRequest = &stopped.request;
    let request = PlaceRequest {
        request_id: Text::from(format!("restart-{}-{}", request.id, stopped.fence)),
        tenant: Text::from(request.tenant.as_str()),
        instances: vec![Arc::new(request.clone())],
        lease_s: LEASE_S,
        pools: stopped.pools.iter().map(|pool| Text::from(pool.as_str())).collect(),
        release: stopped.release.as_deref().map(Text::from),
        // It is retried until it succeeds; do not record every refusal.
        quiet: true,
        ..PlaceRequest::default()
    };
    control.placer.send(request).await
}

#[cfg(test)]
mod tests {
    use berth_engine::NodeId;

    use super::*;

    #[test]
    fn a_move_waits_for_agents_while_they_copy_and_fails_with_its_target() {
        use VolumeMoveState::{Cancelled, Copying, Done, Failed, Stopping, Syncing};
        let removed = || NextAction::Fail("node b was removed".to_owned());
        let cases = [
            (Copying, false, NextAction::Wait, removed()),
            (Stopping, false, NextAction::StopUser, removed()),
            (Syncing, false, NextAction::Wait, removed()),
            (Syncing, true, NextAction::SwitchHome, removed()),
            (Done, true, NextAction::RestartUser, NextAction::RestartUser),
            (Failed, false, NextAction::RestartUser, NextAction::RestartUser),
            (Cancelled, false, NextAction::RestartUser, NextAction::RestartUser),
        ];
        for (state, synced, with_target, without_target) in cases {
            let now = jiff::Timestamp::UNIX_EPOCH;
            let record = VolumeMoveRecord::new(NodeId::new("a"), NodeId::new("b"), 0, now);
            let record = VolumeMoveRecord { state, synced, ..record };
            assert_eq!(next_action(&record, true), with_target, "{state:?}");
            assert_eq!(next_action(&record, false), without_target, "{state:?}");
        }
    }
}
