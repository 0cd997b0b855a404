//! Elastic instances: permits, bounds, and migrations while they run.

use berth_engine::elastic::{Account, Limit, Size};
use berth_engine::{InstanceId, NodeId};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A request for a permit: how large an instance may be.
///
/// Less than it has always succeeds; the same confirms the size; more is granted as far as there is
/// room.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AskPermit {
    /// The requested total size.
    pub resources: Size,
    /// The sequence number of this request, increasing per instance. A repeated or late one gets the
    /// stored response. Absent: the next.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 9007199254740991_u64)]
    pub seq: Option<u64>,
    /// The fence of its claim; absent: not checked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fence: Option<i64>,
    /// The largest size that its agent was permitted, for an agent that may have missed the last
    /// response, or that grew into its headroom.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_permit: Option<Size>,
    /// The sequence number of the last response that its agent received. Headroom of earlier responses
    /// is charged until a later one is known to be received.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub heard: Option<u64>,
    /// How much it may grow without asking while Berth is unreachable. It is charged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub headroom: Option<Size>,
    /// Its load: the number of busy CPUs, averaged over a minute.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 0)]
    pub load: Option<f64>,
}

impl AskPermit {
    /// A request of this size, as the next in order, that nothing is checked for.
    #[must_use]
    pub const fn new(resources: Size) -> Self {
        Self {
            resources,
            seq: None,
            fence: None,
            last_permit: None,
            heard: None,
            headroom: None,
            load: None,
        }
    }
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
    /// The sequence number of the last answered request; 0 before the first.
    pub seq: u64,
    /// What it may use.
    pub permit: Size,
    /// The requested size.
    pub wanted: Size,
    /// What it was denied for lack of room on its node.
    pub capacity_pressure: Size,
    /// What limited the grant, if anything.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limited_by: Option<Limit>,
    /// What is reserved beyond its permit and its headroom: because it was found and has not asked
    /// since, or because its agent may not know yet that it has less headroom.
    pub buffer: Size,
    /// Whether it was found and has not asked since, so that its previous permit is unknown.
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
    /// The request or a later one was answered before: this is the stored response.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub repeated: bool,
    /// Its agent used more than was recorded. The larger size was recorded whether there is room or not,
    /// so its node may exceed its limit.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub found_larger: bool,
    /// It is being moved: its agent must not change its size.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub frozen: bool,
    /// What it may grow into without asking.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub headroom: Option<Headroom>,
}

/// A permit to grow while Berth is unreachable. It is already charged, so it cannot oversell the node;
/// it ends with the fence, or with the next response.
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

/// The state of a migration.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum MigrationState {
    /// Decided; capacity on the target is not claimed yet.
    Planned,
    /// Capacity on the target is claimed; agents have not started.
    TargetHeld,
    /// Agents copy it while it runs.
    Copying,
    /// It runs on the target; the source cleans up.
    Switched,
    /// Nothing is left on the source.
    Done,
    /// It failed; the instance stays on its source.
    Failed,
    /// It was cancelled; the instance stays on its source.
    Cancelled,
}

impl MigrationState {
    /// The state's name in data.
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

    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::Planned,
        Self::TargetHeld,
        Self::Copying,
        Self::Switched,
        Self::Done,
        Self::Failed,
        Self::Cancelled,
    ];

    /// Whether a migration may go from this state to another, or stay in it. Once it has switched it
    /// can only be finished, and what is over stays over.
    #[must_use]
    pub const fn may_become(self, next: Self) -> bool {
        match self {
            Self::Planned => {
                matches!(next, Self::Planned | Self::TargetHeld | Self::Failed | Self::Cancelled)
            }
            Self::TargetHeld => !matches!(next, Self::Planned | Self::Done),
            Self::Copying => {
                matches!(next, Self::Copying | Self::Switched | Self::Failed | Self::Cancelled)
            }
            Self::Switched => matches!(next, Self::Switched | Self::Done),
            Self::Done => matches!(next, Self::Done),
            Self::Failed => matches!(next, Self::Failed),
            Self::Cancelled => matches!(next, Self::Cancelled),
        }
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
    /// A caller requested it.
    Asked,
}

/// The live migration of an instance.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Migration {
    /// Its id.
    pub id: String,
    /// The instance.
    #[schema(value_type = uuid::Uuid)]
    pub instance: InstanceId,
    /// The tenant.
    #[serde(alias = "owner")]
    pub tenant: String,
    /// Where it was.
    pub source: NodeId,
    /// Where it goes.
    pub target: NodeId,
    /// Its state.
    pub state: MigrationState,
    /// Why.
    pub reason: MigrationReason,
    /// What happens now and who must act, or why it failed, in one sentence.
    pub message: String,
    /// What it costs: MiB to copy, raised for load, priority and recent moves.
    pub cost: u64,
    /// What it frees on the source.
    pub frees: Size,
    /// How much is copied, in thousandths, as reported by agents.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(maximum = 1000)]
    pub copied_permille: Option<u16>,
    /// When it was decided.
    pub since: Timestamp,
    /// When it last changed.
    pub changed_at: Timestamp,
}

/// A request to migrate an instance.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct StartMigration {
    /// The target node; absent: the best one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<NodeId>,
    /// Return where it would go, without moving it.
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
    /// Target: the migration was cancelled; drop what was received, then report `dropped`.
    Drop,
}

/// What an agent has to do for a migration. Sent with every heartbeat response until it is done;
/// doing it twice must be harmless.
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
    /// Its size: what it may use, not what it is charged.
    pub resources: berth_engine::Amounts,
}

/// A step of a migration that an agent reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum MigrationStep {
    /// It is being copied.
    Copying,
    /// It runs on the target and no longer on the source.
    Switched,
    /// It failed; the instance runs on the source, and nothing is left on the target.
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
    /// The step.
    pub step: MigrationStep,
    /// With `copying`: how much, in thousandths.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(maximum = 1000)]
    pub copied_permille: Option<u16>,
    /// With `failed`: why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// Pressure on one resource, summed over nodes. Milli-CPU or MiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[schema(as = Lacking)]
pub struct ResourcePressure {
    /// Denied growth, decaying over time.
    pub capacity_pressure: i64,
    /// What is above watermarks.
    pub logical_pressure: i64,
    /// What migrations under way will free.
    pub accounted_for: i64,
    /// What should move beyond that, or needs more nodes.
    pub excess: i64,
}

/// Pressure on all nodes together: the signal for adding nodes.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct Pressure {
    /// As of when.
    pub at: Timestamp,
    /// Milli-CPU.
    pub cpu: ResourcePressure,
    /// MiB.
    pub memory: ResourcePressure,
    /// Nodes that are above a watermark or had to deny something.
    pub nodes: Vec<NodePressure>,
}

/// A node under pressure.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NodePressure {
    /// Which.
    pub node: NodeId,
    /// Whether more instances should leave than are leaving already.
    pub must_shed: bool,
    /// Its account.
    pub account: Account,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_migration_goes_forward_or_ends_and_never_back() {
        use MigrationState::{Cancelled, Copying, Done, Failed, Planned, Switched, TargetHeld};
        let allowed = |from| match from {
            Planned => vec![TargetHeld, Failed, Cancelled],
            TargetHeld => vec![Copying, Switched, Failed, Cancelled],
            Copying => vec![Switched, Failed, Cancelled],
            Switched => vec![Done],
            Done | Failed | Cancelled => Vec::new(),
        };
        for from in MigrationState::ALL {
            for to in MigrationState::ALL {
                let expected = from == to || allowed(from).contains(&to);
                assert_eq!(from.may_become(to), expected, "{from:?} {to:?}");
            }
            assert_eq!(from.is_over(), allowed(from).is_empty(), "{from:?}");
        }
    }
}
