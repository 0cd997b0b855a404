//! What agents report of moves.

use std::sync::Arc;

use berth_api::{VolumeMove, VolumeMoveReport, VolumeMoveState, VolumeMoveStep};
use berth_engine::NodeId;
use berth_ledger::Expect;

use super::record::{MoveRecord, store, view};
use crate::control_plane::ControlPlane;
use crate::documents::Versioned;
use crate::error::{ControlError, ControlResult};

/// How often a report is written anew when others write at the same time.
const TRIES: u32 = 8;

/// Most characters of a reason.
const REASON: usize = 200;

/// Takes a report in. Said again, it changes nothing.
///
/// # Errors
/// When no such volume moves from or to the node, or the step is not its turn.
pub async fn report(
    control: &Arc<ControlPlane>,
    node: &NodeId,
    report: &VolumeMoveReport,
) -> ControlResult<VolumeMove> {
    let volume = report.volume.as_str();
    for _ in 0..TRIES {
        let known = control.volume_moves.get(volume).filter(|known| known.value.concerns(node));
        let Some(known) = known else {
            return Err(ControlError::not_found("move of volume", volume));
        };
        let Versioned { value: record, revision } = &*known;
        let Some(mut next) = after(record, report)? else { return Ok(view(volume, record)) };
        next.changed_at = control.now();
        if store(control, volume, &next, Expect::Revision(*revision), None).await? {
            return Ok(view(volume, &next));
        }
    }
    Err(ControlError::unavailable("contention", "others change this move all the time"))
}

/// The move after a report; absent when it changes nothing.
fn after(record: &MoveRecord, report: &VolumeMoveReport) -> ControlResult<Option<MoveRecord>> {
    use VolumeMoveState::{Copying, Stopping, Syncing};
    let mut next = record.clone();
    match (report.step, record.state) {
        (VolumeMoveStep::Progress, Copying | Syncing) => {
            next.copied_permille = report.copied_permille.map(|share| share.min(1000));
        }
        (VolumeMoveStep::Copied, Copying) => {
            (next.state, next.copied_permille) = (Stopping, Some(1000));
        }
        (VolumeMoveStep::Synced, Syncing) => next.synced = true,
        (VolumeMoveStep::Synced, Copying | Stopping) => {
            let detail = "somebody may still write to it; sync when the server says so";
            return Err(ControlError::conflict("not_syncing", detail));
        }
        (VolumeMoveStep::Failed, Copying | Stopping | Syncing) if !record.synced => {
            let why = report.reason.as_deref().unwrap_or("the agent did not say why");
            next.why = Some(why.chars().take(REASON).collect());
            next.state = VolumeMoveState::Failed;
        }
        // It went on since, or has ended.
        _ => {}
    }
    Ok(Some(next).filter(|next| next != record))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(state: VolumeMoveState) -> MoveRecord {
        let now = jiff::Timestamp::UNIX_EPOCH;
        MoveRecord { state, ..MoveRecord::new(NodeId::new("a"), NodeId::new("b"), now) }
    }

    fn said(step: VolumeMoveStep) -> VolumeMoveReport {
        let (volume, reason) = ("v".to_owned(), Some("disk".to_owned()));
        VolumeMoveReport { volume, step, copied_permille: Some(300), reason }
    }

    #[test]
    fn each_report_counts_in_its_turn_and_only_once() {
        use VolumeMoveState::{Cancelled, Copying, Done, Failed, Stopping, Syncing};
        use VolumeMoveStep as Step;
        let cases = [
            (Copying, Step::Copied, Some(Stopping)),
            (Stopping, Step::Copied, None),
            (Copying, Step::Progress, Some(Copying)),
            (Stopping, Step::Progress, None),
            (Syncing, Step::Synced, Some(Syncing)),
            (Done, Step::Synced, None),
            (Syncing, Step::Failed, Some(Failed)),
            (Cancelled, Step::Failed, None),
            (Cancelled, Step::Copied, None),
        ];
        for (state, step, expected) in cases {
            let found = after(&record(state), &said(step)).unwrap();
            assert_eq!(found.map(|next| next.state), expected, "{step:?} while {state:?}");
        }
        assert!(after(&record(Copying), &said(Step::Synced)).is_err());
        // What is switched cannot fail any more.
        let synced = MoveRecord { synced: true, ..record(Syncing) };
        assert!(after(&synced, &said(Step::Failed)).unwrap().is_none());
    }
}
