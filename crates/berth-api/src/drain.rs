//! Emptying nodes: what moves where, what stands in the way, and whether it could be done at all.

use berth_engine::{InstanceId, NodeId};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Begins to empty a node.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct DrainNode {
    /// Why, for the record.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(max_length = 200)]
    pub reason: Option<String>,
    /// Seconds after which instances without volumes go whether or not others run in their place;
    /// absent: never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 604_800)]
    pub deadline_s: Option<u32>,
    /// Say what would happen, and do nothing.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub dry_run: bool,
}

/// How a drain stands.
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

/// How one instance's move stands.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum MoveState {
    /// In a dry run: it would go there.
    Planned,
    /// Its replacement is placed and not running yet.
    Starting,
    /// Its replacement runs, or it has been told to stop.
    Leaving,
    /// It waits for others of its workload.
    Waiting,
    /// It cannot move until something changes.
    Blocked,
}

/// One instance of a node that is being emptied.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DrainMove {
    /// Which.
    #[schema(value_type = uuid::Uuid)]
    pub instance: InstanceId,
    /// The tenant.
    pub owner: String,
    /// The workload, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workload: Option<String>,
    /// Where it is.
    pub from: NodeId,
    /// Where it goes, or its replacement is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<NodeId>,
    /// How it stands.
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

/// A node that is being emptied.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Drain {
    /// The node.
    pub node: NodeId,
    /// How it stands.
    pub state: DrainState,
    /// In one sentence.
    pub message: String,
    /// Why it was begun.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// When it was begun; absent in a dry run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<Timestamp>,
    /// By when it should be done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline: Option<Timestamp>,
    /// Whether the node will be taken away, and replacements are wanted at once.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub reclaimed: bool,
    /// How many instances were there when it was begun.
    pub total: u32,
    /// How many are left.
    pub left: u32,
    /// Those that are left.
    pub moves: Vec<DrainMove>,
}

/// An agent's notice that its node will be taken away.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ReclaimNotice {
    /// In how many seconds; absent: soon.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub in_s: Option<u32>,
}

/// What is to be emptied, for a check.
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

/// Whether nodes could be emptied now, under every rule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Evacuation {
    /// The nodes, emptied together.
    pub nodes: Vec<NodeId>,
    /// Whether they could be.
    pub can_be_emptied: bool,
    /// In one sentence: yes, or no, because.
    pub message: String,
    /// How many instances would move.
    pub instances: u32,
    /// Every move with its destination or its refusal.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub moves: Vec<DrainMove>,
    /// When it was found out.
    pub checked_at: Timestamp,
}

/// Moves a volume to another node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct MoveVolume {
    /// Where to.
    pub to: NodeId,
    /// Say whether it could be done, and do nothing.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub dry_run: bool,
}

/// How far the move of a volume is.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum VolumeMoveState {
    /// A dry run: it could be done.
    Planned,
    /// Agents copy it while it is in use.
    Copying,
    /// It was copied; the instance that uses it is told to stop.
    Stopping,
    /// Nobody uses it; agents copy what changed since.
    Syncing,
    /// It lives on the other node.
    Done,
    /// An agent failed; it lives where it was.
    Failed,
    /// It was called off; it lives where it was.
    Cancelled,
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
    /// How far it is.
    pub state: VolumeMoveState,
    /// In one sentence: what happens now, and who must do something.
    pub message: String,
    /// How much is copied, in thousandths, as far as agents say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(maximum = 1000)]
    pub copied_permille: Option<u16>,
    /// When it was begun.
    pub since: Timestamp,
    /// When it last went on.
    pub changed_at: Timestamp,
}

/// What an agent has to do for the move of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum VolumeMoveAction {
    /// Copy all there is, while it is in use; then report `copied`.
    Copy,
    /// Copy what changed since; nobody uses it. Then report `synced`.
    Sync,
}

/// An agent's part in the move of a volume. Source and target are told the same and agree on who
/// does the work; Berth's own agent does it on the target.
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
}

/// What an agent reports of the move of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum VolumeMoveStep {
    /// Still copying.
    Progress,
    /// All is there that was there when the copy began.
    Copied,
    /// All is there, and nobody wrote since.
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
    /// How far.
    pub step: VolumeMoveStep,
    /// With `progress`: how much, in thousandths.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(maximum = 1000)]
    pub copied_permille: Option<u16>,
    /// With `failed`: why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(max_length = 200)]
    pub reason: Option<String>,
}
