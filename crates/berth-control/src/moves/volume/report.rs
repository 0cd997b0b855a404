//! Reports of agents on moves of volumes.

use std::sync::Arc;

use berth_api::{VolumeMove, VolumeMoveReport, VolumeMoveState, VolumeMoveStep};
use berth_engine::NodeId;
use berth_ledger::Expect;

use super::VolumeMoveRecord;
use super::record::{store, view};
use crate::control_plane::ControlPlane;
use crate::documents::Versioned;
use crate::error::{ControlError, ControlResult};

/// How often a report is applied again when others change the move.
const TRIES: u32 = 8;

/// Most characters of a reason.
const MAX_REASON_CHARS: usize = 200;

/// Applies a report. Idempotent. A report on another round of copying is answered with the move as it
/// is, and changes nothing: a copy that ended late says nothing about what was written since.
///
/// # Errors
/// When no such volume moves from or to the node, or the step is out of order.
pub async fn report(
    control: &Arc<ControlPlane>,
    node: &NodeId,
    report: &VolumeMoveReport,
) -> ControlResult<VolumeMove> {
    let volume = report.volume.as_str();
    for _ in 0..TRIES {
        let stored =
            control.moves.volume_moves.get(volume).filter(|stored| stored.value.concerns(node));
        let Some(stored) = stored else {
            return Err(ControlError::not_found("move of volume", volume));
        };
        let Versioned { value: record, revision } = &*stored;
        let Some(mut next) = apply(record, report)? else { return Ok(view(volume, record)) };
        next.changed_at = control.now();
        if store(control, volume, &next, Expect::Revision(*revision), None).await? {
            return Ok(view(volume, &next));
        }
    }
    Err(ControlError::unavailable("contention", "too many concurrent changes of this move; retry"))
}

/// The move after a report; absent when it changes nothing.
fn apply(
    record: &VolumeMoveRecord,
    report: &VolumeMoveReport,
) -> ControlResult<Option<VolumeMoveRecord>> {
    use VolumeMoveState::{Copying, Stopping, Syncing};
    if report.round.is_some_and(|round| round != record.round) {
        return Ok(None);
    }
    let mut next = record.clone();
    match (report.step, record.state) {
        (VolumeMoveStep::Progress, Copying | Syncing) => {
            next.copied_permille = report.copied_permille.map(|share| share.min(1000));
        }
        (VolumeMoveStep::Copied, Copying) => {
            next.enter(Stopping);
            next.copied_permille = Some(1000);
        }
        (VolumeMoveStep::Synced, Syncing) => next.synced = true,
        (VolumeMoveStep::Synced, Copying | Stopping) => {
            let detail = "somebody may still write to it; sync when the server says so";
            return Err(ControlError::conflict("not_syncing", detail));
        }
        (VolumeMoveStep::Failed, Copying | Stopping | Syncing) if !record.synced => {
            let why = report.reason.as_deref().unwrap_or("the agent gave no reason");
            next.why = Some(why.chars().take(MAX_REASON_CHARS).collect());
            next.enter(VolumeMoveState::Failed);
        }
        // A repeated or late report.
        _ => {}
    }
    Ok(Some(next).filter(|next| next != record))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(state: VolumeMoveState) -> VolumeMoveRecord {
        let now = jiff::Timestamp::UNIX_EPOCH;
        let record = VolumeMoveRecord::new(NodeId::new("a"), NodeId::new("b"), 4, now);
        VolumeMoveRecord { state, ..record }
    }

    fn report(step: VolumeMoveStep) -> VolumeMoveReport {
        let (volume, reason) = ("v".to_owned(), Some("disk".to_owned()));
        VolumeMoveReport { volume, step, round: None, copied_permille: Some(300), reason }
    }

    #[test]
    fn a_report_on_another_round_changes_nothing() {
        use VolumeMoveState::{Copying, Syncing};
        use VolumeMoveStep as Step;
        let cases = [
            (Copying, Step::Copied),
            (Copying, Step::Failed),
            (Copying, Step::Progress),
            (Copying, Step::Synced),
            (Syncing, Step::Synced),
            (Syncing, Step::Failed),
        ];
        for (state, step) in cases {
            let of_round = |round| VolumeMoveReport { round: Some(round), ..report(step) };
            for round in [4, 6] {
                let found = apply(&record(state), &of_round(round)).unwrap();
                assert_eq!(found, None, "{step:?} of round {round} while {state:?}");
            }
            if step != Step::Synced || state == Syncing {
                let found = apply(&record(state), &of_round(5)).unwrap();
                assert!(found.is_some(), "{step:?} while {state:?}");
            }
        }
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
            let found = apply(&record(state), &report(step)).unwrap();
            assert_eq!(found.map(|next| next.state), expected, "{step:?} while {state:?}");
        }
        assert!(apply(&record(Copying), &report(Step::Synced)).is_err());
        // After the last sync it cannot fail any more.
        let synced = VolumeMoveRecord { synced: true, ..record(Syncing) };
        assert!(apply(&synced, &report(Step::Failed)).unwrap().is_none());
    }
}
