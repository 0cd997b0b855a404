//! A move as stored, and as callers read it.

use std::sync::Arc;

use berth_api::VolumeMove;
use berth_ledger::Expect;

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
        since: record.since,
        changed_at: record.changed_at,
    }
}

/// Stores a move if it still is in the expected revision. Returns whether it was stored.
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
    records::store(control, cache(control), volume, record, expect, audit).await
}

pub(super) fn cache(control: &ControlPlane) -> Arc<dyn DocumentFollower> {
    Arc::clone(&control.moves.volume_moves.records) as _
}
