//! Elastic instances: permits, bounds, and migrations while they run.

use berth_engine::elastic::{Account, Limit, Size};
use berth_engine::{InstanceId, NodeId};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Asks how large an instance may be.
///
/// Less than it has is a message and always succeeds; the same says that it is content; more is
/// granted as far as there is room.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AskPermit {
    /// The size it wants in all.
    pub resources: Size,
    /// The number of this request among those of the instance, rising. A repeated or late one gets
    /// the stored answer. Absent: the next.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 9007199254740991_u64)]
    pub seq: Option<u64>,
    /// The fence of its claim; absent: whatever it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fence: Option<i64>,
    /// The largest size that its agent was permitted, for an agent that is not sure to have heard
    /// the last answer, or that grew into its headroom.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_permit: Option<Size>,
    /// The number of the last answer that its agent has. Headroom of earlier answers counts until it
    /// is known that a later one was heard.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub heard: Option<u64>,
    /// How much it wants to be able to grow unasked while Berth cannot be reached. It is charged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub headroom: Option<Size>,
    /// Its load: the number of busy CPUs, averaged over a minute.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 0)]
    pub load: Option<f64>,
}

/// How large an instance may be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Permit {
    /// The instance.
    #[schema(value_type = uuid::Uuid)]
    pub instance: InstanceId,
    /// The node it is on; hidden from tenants if the policy says so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<NodeId>,
    /// The fence of its claim.
    pub fence: i64,
    /// The number of the request that was answered last; 0 before the first.
    pub seq: u64,
    /// What it may use.
    pub permit: Size,
    /// What it asked for.
    pub wanted: Size,
    /// What it was denied for lack of room on its node.
    pub capacity_pressure: Size,
    /// What held it back, if anything did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limited_by: Option<Limit>,
    /// What is set aside beyond its permit and its headroom: because it was found and has not asked
    /// since, or because its agent may not have heard yet that it has less headroom.
    pub buffer: Size,
    /// Whether it was found and has not asked since, so that nobody knows what it was promised.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub uncertain: bool,
    /// What grants are multiples of; the next request must be such a multiple.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compute_unit: Option<Size>,
    /// Its bounds: the least.
    pub min: Size,
    /// Its bounds: the most.
    pub max: Size,
    /// What its node is charged.
    pub charged: Size,
    /// The request was answered before, or a later one was: this is the stored answer.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub repeated: bool,
    /// Its agent held more than was recorded. That is so, and was recorded, whether there is room or
    /// not: its node may be over its limit by it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub found_larger: bool,
    /// It is being moved: its agent must not change its size.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub frozen: bool,
    /// What it may grow into unasked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub headroom: Option<Headroom>,
}

/// A permit to grow while Berth cannot be reached. It is charged already, so it cannot oversell the
/// node; it ends with the fence, or with the next answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Headroom {
    /// The size up to which it may grow in all.
    pub up_to: Size,
    /// What is signed: `berth-headroom-v1`, instance, node, fence, seq, CPU and memory, with spaces
    /// between.
    pub statement: String,
    /// The Ed25519 signature of the statement, in hexadecimal.
    pub signature: String,
    /// Which key signed: the first bytes of the public key, in hexadecimal.
    pub key: String,
}

/// The key that headroom is signed with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PermitKey {
    /// Its name: the first bytes of the public key.
    pub key: String,
    /// The Ed25519 public key, in hexadecimal.
    pub public: String,
}

/// New bounds of an instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SetBounds {
    /// The least it runs with.
    pub min: Size,
    /// The most it may grow to.
    pub max: Size,
}

/// How far a migration is.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum MigrationState {
    /// Decided; a place is about to be held.
    Planned,
    /// A place is held; agents have not begun.
    TargetHeld,
    /// Agents copy it while it runs.
    Copying,
    /// It runs on the target; the source cleans up.
    Switched,
    /// Nothing is left on the source.
    Done,
    /// It could not be done; it runs where it was.
    Failed,
    /// It was called off; it runs where it was.
    Cancelled,
}

impl MigrationState {
    /// The state's name as it stands in data.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Planned => "planned",
            Self::TargetHeld => "target_held",
            Self::Copying => "copying",
            Self::Switched => "switched",
            Self::Done => "done",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
        }
    }

    /// Whether nothing more happens.
    #[must_use]
    pub const fn is_over(self) -> bool {
        matches!(self, Self::Done | Self::Failed | Self::Cancelled)
    }
}

/// Why an instance moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum MigrationReason {
    /// Its node is under pressure.
    Pressure,
    /// A rebalance.
    Rebalance,
    /// Somebody asked for it.
    Asked,
}

/// An instance that moves while it runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Migration {
    /// Its id.
    pub id: String,
    /// The instance.
    #[schema(value_type = uuid::Uuid)]
    pub instance: InstanceId,
    /// The tenant.
    pub owner: String,
    /// Where it was.
    pub source: NodeId,
    /// Where it goes.
    pub target: NodeId,
    /// How far it is.
    pub state: MigrationState,
    /// Why.
    pub reason: MigrationReason,
    /// In one sentence: what happens now and who must do something, or why it failed.
    pub message: String,
    /// What it costs: MiB to copy, raised for load, priority and recent moves.
    pub cost: u64,
    /// What it frees on the source.
    pub frees: Size,
    /// How much is copied, in thousandths, as far as agents say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(maximum = 1000)]
    pub copied_permille: Option<u16>,
    /// When it was decided.
    pub since: Timestamp,
    /// When it last went on.
    pub changed_at: Timestamp,
}

/// Moves an instance while it runs.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct StartMigration {
    /// Where to; absent: wherever is best.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<NodeId>,
    /// Say where it would go, and do nothing.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub dry_run: bool,
}

/// An agent's part in a migration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum MigrationAction {
    /// Source: send it to the target while it runs, then report `switched`.
    Send,
    /// Target: be ready to receive it.
    Receive,
    /// Source: it runs elsewhere; clean up what is left and report that it stopped.
    CleanUp,
    /// Target: it was called off; drop what was received, then report `dropped`.
    Drop,
}

/// What an agent has to do for a migration. Told with every answer to a sign of life until it is
/// done; doing it twice must do no harm.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct MigrationTask {
    /// The migration.
    pub id: String,
    /// The instance.
    #[schema(value_type = uuid::Uuid)]
    pub instance: InstanceId,
    /// What to do.
    pub action: MigrationAction,
    /// Where it was.
    pub source: NodeId,
    /// Where it goes.
    pub target: NodeId,
    /// The fence of the place on the target; what runs there runs under this or a higher one.
    pub fence: i64,
    /// How large it is: what it may use, not what that is charged.
    pub resources: berth_engine::Amounts,
}

/// How far an agent is with a migration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum MigrationStep {
    /// It is being copied.
    Copying,
    /// It runs on the target and no longer on the source.
    Switched,
    /// It cannot be done; it runs on the source, and nothing is left on the target.
    Failed,
    /// The target dropped what it had received.
    Dropped,
    /// Nothing is left on the source.
    CleanedUp,
}

/// An agent's report on a migration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct MigrationReport {
    /// The migration.
    pub id: String,
    /// How far.
    pub step: MigrationStep,
    /// With `copying`: how much, in thousandths.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(maximum = 1000)]
    pub copied_permille: Option<u16>,
    /// With `failed`: why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(max_length = 200)]
    pub reason: Option<String>,
}

/// What is lacking of one resource, over nodes. Milli-CPU or MiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct Lacking {
    /// What was denied for lack of room, fading.
    pub capacity_pressure: i64,
    /// What is above watermarks.
    pub logical_pressure: i64,
    /// What leaves with migrations under way.
    pub accounted_for: i64,
    /// What should leave beyond that, or find more nodes.
    pub excess: i64,
}

/// What nodes lack together: the signal for whoever adds nodes.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct Pressure {
    /// As of when.
    pub at: Timestamp,
    /// Milli-CPU.
    pub cpu: Lacking,
    /// MiB.
    pub memory: Lacking,
    /// Nodes that are above a watermark or had to deny something.
    pub nodes: Vec<NodePressure>,
}

/// A node under pressure.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NodePressure {
    /// Which.
    pub node: NodeId,
    /// Whether somebody should leave who is not leaving yet.
    pub must_shed: bool,
    /// Its account.
    pub account: Account,
}
