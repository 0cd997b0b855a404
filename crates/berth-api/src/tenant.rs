//! Tenants: what one holds, and its removal.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// What a tenant can hold.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum HoldingKind {
    /// Tokens. One that is also for other tenants loses this tenant and stays.
    Token,
    /// Requests in the queue, including closed ones that are still listed.
    QueuedRequest,
    /// Instances: they are released, and their agents stop them.
    Instance,
    /// Workloads.
    Workload,
    /// Migrations of its instances, including ended ones that are still listed.
    Migration,
    /// Moves of its volumes, and of open ones whose instance was stopped for it.
    VolumeMove,
    /// Reports that members of a workload cannot be placed.
    SchedulingReport,
    /// Groups that only it may join.
    Group,
    /// Attachments.
    Attachment,
    /// Volumes that only it may use. Their data on the nodes is not touched.
    Volume,
    /// Pools that only it may take values of.
    Pool,
    /// Environments that it has secrets of.
    Secret,
    /// Limits.
    Quota,
    /// Failed boots of its instances, as nodes remember them.
    FailedBoot,
    /// Answers that are kept for retries of its requests.
    StoredAnswer,
    /// Counts of its requests that found no room.
    Demand,
}

impl HoldingKind {
    /// Its name for people, for so many of them.
    #[must_use]
    pub const fn noun(self, count: u64) -> &'static str {
        let (one, many) = match self {
            Self::Token => ("token", "tokens"),
            Self::QueuedRequest => ("queued request", "queued requests"),
            Self::Instance => ("instance", "instances"),
            Self::Workload => ("workload", "workloads"),
            Self::Migration => ("migration", "migrations"),
            Self::VolumeMove => ("volume move", "volume moves"),
            Self::SchedulingReport => ("scheduling report", "scheduling reports"),
            Self::Group => ("group", "groups"),
            Self::Attachment => ("attachment", "attachments"),
            Self::Volume => ("volume", "volumes"),
            Self::Pool => ("pool", "pools"),
            Self::Secret => ("environment with secrets", "environments with secrets"),
            Self::Quota => ("quota", "quotas"),
            Self::FailedBoot => ("failed boot", "failed boots"),
            Self::StoredAnswer => ("stored answer", "stored answers"),
            Self::Demand => ("count of unmet demand", "counts of unmet demand"),
        };
        if count == 1 { one } else { many }
    }
}

/// Everything of one kind that a tenant holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TenantHolding {
    /// What it is.
    pub kind: HoldingKind,
    /// How many there are.
    pub count: u64,
    /// The names of the first 20, in order; empty where they have none.
    pub names: Vec<String>,
    /// What a removal waits for, or what it does other than removing them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// A removal that is under way.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TenantRemovalStatus {
    /// When it began.
    pub since: Timestamp,
    /// Whether claims end without waiting for agents to stop their instances.
    pub force: bool,
    /// Who began it.
    pub actor: String,
    /// Until when the name stays blocked at least, so that requests that were on their way when
    /// the removal began are refused.
    pub blocked_until: Timestamp,
}

/// What a tenant holds: exactly what its removal removes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TenantHoldings {
    /// The tenant.
    pub tenant: String,
    /// Its removal, if one is under way. It ends when nothing is held and the name is no longer
    /// blocked; the tenant is then unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub removal: Option<TenantRemovalStatus>,
    /// By kind, without those of which there are none.
    pub holdings: Vec<TenantHolding>,
}
