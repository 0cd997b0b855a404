//! Starting and cancelling moves of volumes.

use std::sync::Arc;

use berth_api::{MoveVolume, VolumeMove, VolumeMoveState};
use berth_engine::{NodeId, NodeState};
use berth_ledger::{ClaimKey, Expect};

use super::VolumeMoveRecord;
use super::record::{store, view};
use crate::caller::Caller;
use crate::catalog::ClaimEntry;
use crate::control_plane::ControlPlane;
use crate::documents::Versioned;
use crate::error::{ControlError, ControlResult};
use crate::moves::evacuation;

fn changed() -> ControlError {
    ControlError::conflict("volume_moving", "the volume's move changed meanwhile; read it again")
}

/// Starts to move a volume, if the instance that uses it could run on the new node.
///
/// # Errors
/// When it cannot be moved; the error says why.
pub async fn start(
    control: &Arc<ControlPlane>,
    caller: &Caller,
    volume: &str,
    asked: &MoveVolume,
) -> ControlResult<VolumeMove> {
    control.wait_for_read_your_writes().await;
    let stored = control.moves.volume_moves.get(volume);
    let open = stored.as_deref().map(|stored| &stored.value).filter(|record| record.is_open());
    if let Some(open) = open {
        if open.to == asked.to && !asked.dry_run {
            return Ok(view(volume, open));
        }
        let detail = format!("volume {volume} is being moved to {} already", open.to);
        return Err(ControlError::conflict("volume_moving", detail)
            .remedy(format!("wait for it, or call it off: berth volumes move {volume} --cancel")));
    }
    let (from, user) = check(control, volume, &asked.to)?;
    if let Some(user) = user {
        let refusal = evacuation::check_with_volumes(control, &user, &asked.to).await?;
        if let Some(refusal) = refusal {
            let detail = format!(
                "instance {} uses it and could not run on {}: {}",
                user.key.instance,
                asked.to,
                refusal.headline()
            );
            let remedy = refusal.remedy.to_string();
            let code = refusal.code.to_string();
            return Err(ControlError::conflict(code, detail)
                .remedy(remedy)
                .refusals(vec![refusal]));
        }
    }
    let last_round = stored.as_deref().map_or(0, |stored| stored.value.round);
    let mut record = VolumeMoveRecord::new(from, asked.to.clone(), last_round, control.now());
    if asked.dry_run {
        record.state = VolumeMoveState::Planned;
        return Ok(view(volume, &record));
    }
    let expect = stored.map_or(Expect::Absent, |stored| Expect::Revision(stored.revision));
    if !store(control, volume, &record, expect, Some((caller, "volume.move"))).await? {
        return Err(changed());
    }
    Ok(view(volume, &record))
}

/// The volume's home and the claim that uses it, if the node can be its new home at all.
fn check(
    control: &ControlPlane,
    volume: &str,
    to: &NodeId,
) -> ControlResult<(NodeId, Option<Arc<ClaimEntry>>)> {
    let catalog = control.catalog.read();
    let found = catalog.volumes.get(volume);
    let found = found.ok_or_else(|| ControlError::not_found("volume", volume))?;
    let Some(node) = catalog.nodes.get(to) else {
        let value = Some(format!("{:?}", to.as_str()));
        return Err(ControlError::field("to", value, "a node that is registered"));
    };
    if found.home == *to {
        let detail = format!("volume {volume} lives on {to} already");
        return Err(ControlError::conflict("already_there", detail));
    }
    if node.facts.state != NodeState::Active {
        let detail = format!("node {to} is {} and takes nothing", node.facts.state.name());
        return Err(ControlError::conflict("node_not_active", detail)
            .remedy("choose an active node, or uncordon this one"));
    }
    let user = found.attached_to.and_then(|id| catalog.claims.get(&ClaimKey::primary(id)));
    Ok((found.home.clone(), user.cloned()))
}

/// Cancels a move: the volume stays where it is.
///
/// # Errors
/// When there is none, or it is too late.
pub async fn cancel(
    control: &Arc<ControlPlane>,
    caller: &Caller,
    volume: &str,
) -> ControlResult<VolumeMove> {
    let stored = control.moves.volume_moves.get(volume).filter(|stored| stored.value.is_open());
    let Some(stored) = stored else {
        let detail = format!("volume {volume} is not being moved");
        return Err(ControlError::conflict("not_moving", detail));
    };
    let Versioned { value: record, revision } = &*stored;
    if record.synced {
        let detail = format!("all of volume {volume} is on {}; its home is switched", record.to);
        return Err(ControlError::conflict("too_late", detail).remedy("move it back afterwards"));
    }
    let mut record = record.clone();
    record.enter(VolumeMoveState::Cancelled);
    record.why = Some(format!("{} called it off", caller.name));
    record.changed_at = control.now();
    let by = Some((caller, "volume.move_cancel"));
    if !store(control, volume, &record, Expect::Revision(*revision), by).await? {
        return Err(changed());
    }
    Ok(view(volume, &record))
}
