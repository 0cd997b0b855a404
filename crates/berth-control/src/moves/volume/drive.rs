//! The loop that drives moves on: stops who uses a volume, switches its home, and starts again who
//! was stopped. Any server may run it, and several at once: every step is a guarded write.

use std::sync::Arc;
use std::time::Duration;

use berth_api::VolumeMoveState;
use berth_engine::{InstanceRequest, NodeId, Volume};
use berth_ledger::{
    Answer as Told, Claim, ClaimKey, ClaimState, Expect, Op, Outcome, Release, Text,
};

use super::record::{MoveRecord, Stopped, store, take_in};
use super::{KIND, Known};
use crate::caller::Caller;
use crate::control_plane::ControlPlane;
use crate::control_plane::unexpected;
use crate::documents::Versioned;
use crate::error::{ControlError, ControlResult};
use crate::moves::drain::is_kept_by_workload;
use crate::placer::{PlaceAnswer, PlaceJob, PlaceRequest};

/// How long nothing happens before moves are looked at all the same.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// The least time between two passes.
const PAUSE: Duration = Duration::from_millis(100);

/// How long the agent of the new node has to take up who is started again.
const LEASE_S: u32 = 600;

/// Who acts, in the audit log.
const ACTOR: &str = "volume move";

/// Why an instance is stopped.
const REASON: &str = "volume_move";

/// Drives moves until the server stops.
pub(crate) async fn keep_moving(control: Arc<ControlPlane>) {
    let mut changes = control.volume_moves.records.changes();
    let mut room = control.catalog.room();
    loop {
        tokio::select! {
            () = control.stopping.cancelled() => return,
            _ = changes.changed() => {}
            _ = room.changed() => {}
            () = tokio::time::sleep(LOOK_EVERY) => {}
        }
        room.mark_unchanged();
        let moves = control.volume_moves.all();
        if !moves.is_empty() {
            control.settled().await;
        }
        for (volume, known) in moves {
            if let Err(error) = drive(&control, &volume, &known).await {
                let why = error.detail();
                tracing::warn!(why, volume, "a volume's move does not go on");
            }
        }
        control.metrics.loop_ran("volume_moves");
        tokio::time::sleep(PAUSE).await;
    }
}

/// Takes one move a step further, if it is its turn.
async fn drive(control: &Arc<ControlPlane>, volume: &str, known: &Known) -> ControlResult<()> {
    let Versioned { value: record, revision } = &**known;
    let found = control.catalog.books().volumes.get(volume).cloned();
    let Some(found) = found else {
        // With the volume goes what was known of its moves.
        let (kind, id, expect) =
            (Text::from(KIND), Text::from(volume), Expect::Revision(*revision));
        control.submit(Op::RemoveDocument { kind, id, expect }).await?;
        take_in(control, volume).await;
        return Ok(());
    };
    let step = Turn { control, volume, record, revision: *revision };
    if record.is_open() && !control.catalog.books().nodes.contains_key(&record.to) {
        let why = Some(format!("node {} was removed", record.to));
        return step.write(|next| (next.state, next.why) = (VolumeMoveState::Failed, why)).await;
    }
    match record.state {
        VolumeMoveState::Stopping => step.stop(&found).await,
        VolumeMoveState::Syncing if record.synced => step.switch(found).await,
        VolumeMoveState::Done | VolumeMoveState::Failed | VolumeMoveState::Cancelled => {
            step.start_again().await
        }
        VolumeMoveState::Planned | VolumeMoveState::Copying | VolumeMoveState::Syncing => Ok(()),
    }
}

/// One move, as it was read.
struct Turn<'a> {
    control: &'a Arc<ControlPlane>,
    volume: &'a str,
    record: &'a MoveRecord,
    revision: i64,
}

impl Turn<'_> {
    /// Writes the move with a change. If another server was faster, nothing is done.
    async fn write(&self, change: impl FnOnce(&mut MoveRecord)) -> ControlResult<()> {
        let mut next = self.record.clone();
        change(&mut next);
        next.changed_at = self.control.now();
        let expect = Expect::Revision(self.revision);
        store(self.control, self.volume, &next, expect, None).await?;
        Ok(())
    }

    /// Has nobody use the volume.
    async fn stop(&self, volume: &Volume) -> ControlResult<()> {
        let Some(instance) = volume.attached_to else {
            return self.write(|next| next.state = VolumeMoveState::Syncing).await;
        };
        let key = ClaimKey::primary(instance);
        let found = self.control.read(move |ledger| ledger.claim(key)).await?;
        // A claim that is gone leaves its volume with it; the catalogue is a moment behind.
        let Some(claim) = found.filter(|claim| claim.state != ClaimState::Releasing) else {
            return Ok(());
        };
        let is_known = self.record.stopped.as_ref().is_some_and(|it| it.fence == claim.fence);
        if !self.is_kept(key) && !is_known {
            // First what to start again, then the stop: a server killed in between forgets nobody.
            let stopped = stopped(&claim)?;
            return self.write(|next| next.stopped = Some(Box::new(stopped))).await;
        }
        let release = Release {
            request_id: Text::from(format!("volume-move-{instance}-{}", claim.fence)),
            key,
            owner: None,
            fence: Some(claim.fence),
            confirmed: false,
            reason: Text::from(REASON),
        };
        let subject = format!("{instance} for volume {}", self.volume);
        let caller = Caller::local(ACTOR);
        // One that is not what it was is looked at in the next pass.
        let _ = self.control.step(&caller, "claim.release", subject, Op::Release(release)).await?;
        Ok(())
    }

    fn is_kept(&self, key: ClaimKey) -> bool {
        let books = self.control.catalog.books();
        books.claims.get(&key).is_some_and(|claim| is_kept_by_workload(&books, claim))
    }

    /// The volume lives on the other node from now on.
    async fn switch(&self, volume: Volume) -> ControlResult<()> {
        let to: &NodeId = &self.record.to;
        if volume.home != *to {
            let moved = Volume { home: to.clone(), attached_to: None, ..volume };
            let caller = Caller::local(ACTOR);
            let op = Op::PutVolume(moved);
            let subject = format!("{} to {to}", self.volume);
            match self.control.call(&caller, "volume.put", subject, None, op).await? {
                Told::Outcome(Outcome::Done | Outcome::Unchanged) => {}
                // Somebody began to use it, and may have written: stop them, and sync once more.
                Told::Outcome(_) => {
                    let again = |next: &mut MoveRecord| {
                        (next.state, next.synced) = (VolumeMoveState::Stopping, false);
                    };
                    return self.write(again).await;
                }
                other => return Err(unexpected(&other)),
            }
        }
        self.write(|next| next.state = VolumeMoveState::Done).await
    }

    /// Who was stopped runs again, beside the volume wherever it lives now.
    async fn start_again(&self) -> ControlResult<()> {
        let Some(stopped) = self.record.stopped.as_deref() else { return Ok(()) };
        let key = ClaimKey::primary(stopped.request.id);
        let found = self.control.read(move |ledger| ledger.claim(key)).await?;
        if let Some(claim) = found {
            // It was never told to stop, or is not gone yet, or is there again.
            let is_gone_soon = claim.state == ClaimState::Releasing;
            return if is_gone_soon { Ok(()) } else { self.write(|it| it.stopped = None).await };
        }
        match place(self.control, stopped).await {
            PlaceAnswer::Granted(_) => self.write(|next| next.stopped = None).await,
            PlaceAnswer::NoRoom(refusals) => {
                let why = refusals.first().map(berth_engine::Refusal::headline);
                tracing::debug!(?why, instance = %stopped.request.id, "not started again yet");
                Ok(())
            }
            PlaceAnswer::Contended(_) => Ok(()),
            PlaceAnswer::Refused(by) => Err(ControlError::from(&by)),
            PlaceAnswer::Invalid(invalid) => Err(ControlError::invalid(invalid.to_string())),
            PlaceAnswer::Unknown(error) => Err(error.into()),
        }
    }
}

/// What is needed to place an instance again as it was.
fn stopped(claim: &Claim) -> ControlResult<Stopped> {
    let request = claim.request();
    let request = request.map_err(|error| ControlError::invalid(format!("a claim: {error}")))?;
    let values = claim.holdings.as_deref().map(|ties| ties.values.as_slice()).unwrap_or_default();
    Ok(Stopped {
        request,
        pools: values.iter().map(|held| held.pool.to_string()).collect(),
        release: claim.release_id.as_deref().map(str::to_owned),
        fence: claim.fence,
    })
}

async fn place(control: &ControlPlane, stopped: &Stopped) -> PlaceAnswer {
    let request: &InstanceRequest = &stopped.request;
    let request = PlaceRequest {
        request_id: Text::from(format!("restart-{}-{}", request.id, stopped.fence)),
        owner: Text::from(request.owner.as_str()),
        instances: vec![Arc::new(request.clone())],
        lease_s: LEASE_S,
        pools: stopped.pools.iter().map(|pool| Text::from(pool.as_str())).collect(),
        release: stopped.release.as_deref().map(Text::from),
        // It is tried again and again; each refusal is not worth a record.
        quiet: true,
        ..PlaceRequest::default()
    };
    let (sender, receiver) = tokio::sync::oneshot::channel();
    let reply = Box::new(move |answer| drop(sender.send(answer)));
    control.placer.submit(PlaceJob { request, reply });
    receiver.await.unwrap_or(PlaceAnswer::Unknown(berth_ledger::LedgerError::Closed))
}
