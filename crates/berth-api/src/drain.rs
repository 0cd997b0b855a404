//! Draining nodes and moving volumes: what moves where, and what blocks it.

use berth_engine::{InstanceId, NodeId};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A request to drain a node.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct DrainNode {
    /// Why, for the record.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Seconds after which instances without volumes are released even if no replacement runs;
    /// absent: never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 604_800)]
    pub deadline_s: Option<u32>,
    /// Return what would happen, without doing it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub dry_run: bool,
}

/// The state of a drain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum DrainState {
    /// A dry run.
    Planned,
    /// Under way.
    Running,
    /// Nothing more can move until something changes.
    Blocked,
    /// The node is empty.
    Done,
}

/// The state of one instance's move.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum MoveState {
    /// In a dry run: it would go there.
    Planned,
    /// Its replacement is placed and not running yet.
    Starting,
    /// Its replacement runs, or it is being stopped.
    Leaving,
    /// It waits for others of its workload.
    Waiting,
    /// It cannot move until something changes.
    Blocked,
}

/// One instance of a node that is being drained.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DrainMove {
    /// Which.
    #[schema(value_type = uuid::Uuid)]
    pub instance: InstanceId,
    /// The tenant.
    #[serde(alias = "owner")]
    pub tenant: String,
    /// The workload, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workload: Option<String>,
    /// Where it is.
    pub from: NodeId,
    /// Where it goes, or its replacement is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<NodeId>,
    /// Its state.
    pub state: MoveState,
    /// Why it waits or is blocked: a stable code.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
    /// In one sentence.
    pub message: String,
    /// What would unblock it: one sentence each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unblock: Vec<String>,
}

/// The drain of a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Drain {
    /// The node.
    pub node: NodeId,
    /// Its state.
    pub state: DrainState,
    /// In one sentence.
    pub message: String,
    /// Why it was started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// When it was started; absent in a dry run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<Timestamp>,
    /// By when it should be done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline: Option<Timestamp>,
    /// Whether the node is being reclaimed, so that replacements are placed at once.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub reclaimed: bool,
    /// How many instances the node had when it was started.
    pub total: u32,
    /// How many instances are left, and volumes that are being moved away.
    pub left: u32,
    /// Instances that are left.
    pub moves: Vec<DrainMove>,
    /// Moves of volumes from the node that are under way: their data are still there.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub volumes: Vec<VolumeMove>,
}

/// An agent's notice that its node will be reclaimed.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ReclaimNotice {
    /// In how many seconds; absent: soon.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub in_s: Option<u32>,
}

/// Which nodes to check.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct EvacuationQuery {
    /// These nodes, together.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nodes: Vec<NodeId>,
    /// All nodes of this rack, together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rack: Option<String>,
    /// The rack's zone, where racks of several zones share a name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub zone: Option<String>,
    /// Every node, each by itself.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub all: bool,
}

/// Whether nodes could be evacuated now, under every rule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Evacuation {
    /// The nodes, emptied together.
    pub nodes: Vec<NodeId>,
    /// Whether they could be.
    pub can_be_emptied: bool,
    /// The answer and its reason, in one sentence.
    pub message: String,
    /// How many instances would move.
    pub instances: u32,
    /// Every move with its destination or its refusal.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub moves: Vec<DrainMove>,
    /// When it was checked.
    pub checked_at: Timestamp,
}

/// Moves a volume to another node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct MoveVolume {
    /// Where to.
    pub to: NodeId,
    /// Return whether it is possible, without doing it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub dry_run: bool,
}

/// The state of a volume move.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum VolumeMoveState {
    /// A dry run: it could be done.
    Planned,
    /// Agents copy it while it is in use.
    Copying,
    /// It was copied; the instance that uses it is being stopped.
    Stopping,
    /// It is not in use; agents copy what changed since.
    Syncing,
    /// It is on the other node.
    Done,
    /// An agent failed; it stays on its node.
    Failed,
    /// It was cancelled; it stays on its node.
    Cancelled,
}

impl VolumeMoveState {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::Planned,
        Self::Copying,
        Self::Stopping,
        Self::Syncing,
        Self::Done,
        Self::Failed,
        Self::Cancelled,
    ];

    /// Whether a move may go from this state to another, or stay in it. A volume that comes into use during its
    /// last copy is copied once more; what is over stays over, and a dry run is never stored.
    #[must_use]
    pub const fn may_become(self, next: Self) -> bool {
        match self {
            Self::Planned => matches!(next, Self::Planned),
            Self::Copying => {
                matches!(next, Self::Copying | Self::Stopping | Self::Failed | Self::Cancelled)
            }
            Self::Stopping => {
                matches!(next, Self::Stopping | Self::Syncing | Self::Failed | Self::Cancelled)
            }
            Self::Syncing => !matches!(next, Self::Planned | Self::Copying),
            Self::Done => matches!(next, Self::Done),
            Self::Failed => matches!(next, Self::Failed),
            Self::Cancelled => matches!(next, Self::Cancelled),
        }
    }
}

/// The move of a volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct VolumeMove {
    /// The volume.
    pub volume: String,
    /// Where it was.
    pub from: NodeId,
    /// Where it goes.
    pub to: NodeId,
    /// Its state.
    pub state: VolumeMoveState,
    /// What happens now and who must act, in one sentence.
    pub message: String,
    /// How much is copied, in thousandths, as reported by agents.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(maximum = 1000)]
    pub copied_permille: Option<u16>,
    /// The round of copying that agents were last asked for.
    #[serde(default)]
    pub round: u32,
    /// When it was started.
    pub since: Timestamp,
    /// When it last changed.
    pub changed_at: Timestamp,
}

/// What an agent has to do for the move of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum VolumeMoveAction {
    /// Copy all there is, while it is in use; then report `copied`.
    Copy,
    /// Copy what changed since; it is not in use. Then report `synced`.
    Sync,
}

/// An agent's part in the move of a volume. Source and target get the same task and agree on which of
/// them does the work; Berth's own agent does it on the target.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct VolumeMoveTask {
    /// The volume.
    pub volume: String,
    /// Where it is.
    pub from: NodeId,
    /// Where it goes.
    pub to: NodeId,
    /// What to do.
    pub action: VolumeMoveAction,
    /// Which round of copying this is: report it back. It rises with every task for the volume, so that
    /// a late report is not taken for one on a later task.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub round: Option<u32>,
}

/// What an agent reports of the move of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum VolumeMoveStep {
    /// Still copying.
    Progress,
    /// Everything that existed when the copy started is copied.
    Copied,
    /// Everything is copied, and nothing was written since.
    Synced,
    /// It cannot be done.
    Failed,
}

/// An agent's report on the move of a volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct VolumeMoveReport {
    /// The volume.
    pub volume: String,
    /// The step.
    pub step: VolumeMoveStep,
    /// The round of the task that this is about. A report on another round has no effect. Absent, it is
    /// about whichever round there is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub round: Option<u32>,
    /// With `progress`: how much, in thousandths.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(maximum = 1000)]
    pub copied_permille: Option<u16>,
    /// With `failed`: why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_volume_is_copied_again_only_from_its_last_copy() {
        use VolumeMoveState::{Cancelled, Copying, Done, Failed, Planned, Stopping, Syncing};
        let allowed = |from| match from {
            Copying => vec![Stopping, Failed, Cancelled],
            Stopping => vec![Syncing, Failed, Cancelled],
            Syncing => vec![Stopping, Done, Failed, Cancelled],
            Planned | Done | Failed | Cancelled => Vec::new(),
        };
        for from in VolumeMoveState::ALL {
            for to in VolumeMoveState::ALL {
                let expected = from == to || allowed(from).contains(&to);
                assert_eq!(from.may_become(to), expected, "{from:?} {to:?}");
            }
        }
    }
}
