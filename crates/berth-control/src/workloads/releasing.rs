//! Releasing members, each under the guard that it was decided with.

use berth_engine::workload::Cause;
use berth_ledger::{Answer, ClaimRejection, Op, Release, StopMember, Text};
use uuid::Uuid;

use super::plan::ReleaseAction;
use crate::control_plane::ControlPlane;
use crate::error::describe_guard;

/// What became of a release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReleaseOutcome {
    /// It is done, or there is nothing to release.
    Done,
    /// It was decided on what is no longer so: the workload is looked at again.
    Outdated,
    /// The ledger does not know; the next pass finds out.
    Unknown,
}

/// Releases a member. If another server was faster, it has done the same.
pub(super) async fn release_member(
    control: &ControlPlane,
    action: &ReleaseAction,
) -> ReleaseOutcome {
    let release = Release {
        request_id: Text::from(Uuid::now_v7().to_string()),
        key: action.key,
        tenant: None,
        fence: Some(action.fence),
        confirmed: false,
        reason: Text::from(release_reason(action.cause)),
    };
    let op = match action.guard.clone() {
        Some(guard) => Op::StopMember(Box::new(StopMember { release, guard })),
        None => Op::Release(release),
    };
    match control.submit(op).await {
        Ok(Answer::Claim(Err(ClaimRejection::Guard(guard)))) => {
            tracing::debug!(guard = describe_guard(&guard), "release contended; retrying");
            ReleaseOutcome::Outdated
        }
        Ok(Answer::Claim(_)) => ReleaseOutcome::Done,
        Ok(other) => {
            tracing::error!(?other, "unexpected answer to a release");
            ReleaseOutcome::Unknown
        }
        Err(error) => {
            tracing::warn!(%error, instance = %action.key, "failed to release instance");
            ReleaseOutcome::Unknown
        }
    }
}

/// The reason of a release, as it is logged.
const fn release_reason(cause: Cause) -> &'static str {
    match cause {
        Cause::Missing | Cause::ScaleDown => "scale_down",
        Cause::RollOut => "roll_out",
        Cause::Rebuild => "rebuild",
        Cause::Drain => "drain",
        Cause::Reclaim => "reclaim",
        Cause::NodeLost => "node_lost",
        Cause::Replaced => "replaced",
    }
}
