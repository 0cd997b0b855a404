//! A move as stored, and as callers read it.

use std::sync::Arc;

use berth_api::{VolumeMove, VolumeMoveState};
use berth_engine::Volume;
use berth_ledger::{Expect, Op, Text};

use crate::caller::Caller;
use crate::control_plane::ControlPlane;
use crate::documents::DocumentFollower;
use crate::error::ControlResult;
use crate::moves::records;
use crate::state::volume_moves::VolumeMoveRecord;

/// A move as callers read it.
#[must_use]
pub fn view(volume: &str, record: &VolumeMoveRecord) -> VolumeMove {
    VolumeMove {
        volume: volume.to_owned(),
        from: record.from.clone(),
        to: record.to.clone(),
        state: record.state,
        message: record.message(),
        copied_permille: record.copied_permille,
        round: record.round,
        since: record.since,
        changed_at: record.changed_at,
    }
}

/// Stores a move if it still is in the expected revision. Returns whether it was stored.
///
/// While data are copied for the last time the volume is marked in the ledger, in the same commits, so
/// that no server lets an instance begin to use it. A volume that is used by then cannot be marked, and
/// nothing is stored.
pub(super) async fn store(
    control: &Arc<ControlPlane>,
    volume: &str,
    record: &VolumeMoveRecord,
    expect: Expect,
    by: Option<(&Caller, &'static str)>,
) -> ControlResult<bool> {
    let audit = by.map(|(caller, action)| {
        (caller, action, format!("{volume} from {} to {}", record.from, record.to))
    });
    let moving_to = match record.state {
        // It was marked when the copy began; what has begun to use it all the same is found by the switch.
        VolumeMoveState::Syncing if record.synced => None,
        VolumeMoveState::Syncing => Some(Some(record.to.clone())),
        _ => Some(None),
    };
    let mark = moving_to.map(|moving_to| Op::MarkVolume { volume: Text::from(volume), moving_to });
    records::store(control, cache(control), volume, record, expect, mark, audit).await
}

/// Stores that a move is done, and the volume's new home, which takes its mark away. Returns false if
/// the move was changed since, or an instance uses the volume.
pub(super) async fn store_switched(
    control: &Arc<ControlPlane>,
    volume: Volume,
    record: &VolumeMoveRecord,
    expect: Expect,
    caller: &Caller,
) -> ControlResult<bool> {
    let (id, subject) = (volume.id.clone(), format!("{} to {}", volume.id, volume.home));
    let (op, audit) = (Some(Op::PutVolume(volume)), Some((caller, "volume.put", subject)));
    records::store(control, cache(control), &id, record, expect, op, audit).await
}

pub(super) fn cache(control: &ControlPlane) -> Arc<dyn DocumentFollower> {
    Arc::clone(&control.moves.volume_moves.records) as _
}

#[cfg(test)]
mod tests {
    use super::*;

    use berth_engine::NodeId;

    #[test]
    #[should_panic(expected = "invariant volume_move_state_transition violated")]
    fn a_move_that_is_over_cannot_go_on() {
        let now = jiff::Timestamp::UNIX_EPOCH;
        let mut record = VolumeMoveRecord::new(NodeId::new("a"), NodeId::new("b"), 0, now);
        record.enter(VolumeMoveState::Failed);
        record.start_sync();
    }
}
