//! The removal of a tenant: what it holds, and that it is being removed.

use berth_engine::NodeId;
use serde::{Deserialize, Serialize};

use super::claim::{ClaimKey, ClaimState, Micros, Text};
use super::op::Op;

/// That a tenant is being removed, as stored with it until the end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TenantRemoval {
    /// Since when.
    pub since: Micros,
    /// Whether claims end without the word of their agents.
    #[serde(default)]
    pub force: bool,
    /// Who began it, for the audit log.
    pub actor: Text,
    /// From where.
    pub origin: Text,
}

/// Begins the removal of a tenant. From then on nothing is granted to it or made for it.
#[derive(Clone, Debug)]
pub struct StartTenantRemoval {
    /// The tenant.
    pub tenant: Text,
    /// Whether claims are to end without the word of their agents. Once set, it stays.
    pub force: bool,
    /// Who removes it.
    pub actor: Text,
    /// From where.
    pub origin: Text,
}

/// An operation that makes something for tenants, and is refused while one of them is being removed.
#[derive(Clone, Debug)]
pub struct ForTenants {
    /// The tenants.
    pub tenants: Vec<Text>,
    /// What to do.
    pub op: Op,
}

/// A claim of a tenant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TenantClaim {
    /// The claim.
    pub key: ClaimKey,
    /// Its node.
    pub node: NodeId,
    /// Its state.
    pub state: ClaimState,
}

/// Everything in the ledger that belongs to a tenant, apart from documents.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct TenantHoldings {
    /// Its removal, if it is being removed.
    pub removal: Option<TenantRemoval>,
    /// Its claims.
    pub claims: Vec<TenantClaim>,
    /// Names of its workloads.
    pub workloads: Vec<Text>,
    /// Groups that only it may join.
    pub groups: Vec<Text>,
    /// Volumes that only it may use.
    pub volumes: Vec<Text>,
    /// Pools that only it may take values of.
    pub pools: Vec<Text>,
    /// Environments that it has secrets of.
    pub secrets: Vec<Text>,
    /// Whether it has limits.
    pub has_quota: bool,
    /// Answers that are kept for retries of its requests.
    pub answers: i64,
    /// Counts of requests of it that found no room.
    pub demand: i64,
}
