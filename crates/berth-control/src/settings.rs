//! What can change while a server runs.

use std::time::Duration;

use crate::tenant_limits::TenantRates;

/// The tenant of instances that were found on nodes and belong to no tenant.
pub const UNMANAGED: &str = "unmanaged";

/// What becomes of an instance that an agent finds on its node and Berth did not place.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Adoption {
    /// It is refused.
    Off,
    /// It is recorded for the tenant [`UNMANAGED`], whatever tenant its agent names.
    #[default]
    Unmanaged,
    /// It is recorded for the tenant that its agent names, if that is one of these.
    Listed(Vec<String>),
    /// It is recorded for the tenant that its agent names.
    Any,
}

/// Settings that handlers and loops read each time they need them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// How often agents are asked to give a sign of life.
    pub heartbeat_every: Duration,
    /// Silence after which a node counts as lost.
    pub lost_after: Duration,
    /// How long after that its instances count as gone, and those without volumes are replaced.
    pub lost_grace: Duration,
    /// How long a waiting request may be overtaken by later ones.
    pub queue_patience: Duration,
    /// Most requests that may wait at once, of one tenant.
    pub queue_limit: usize,
    /// Most requests that may wait at once, of all tenants.
    pub queue_total: usize,
    /// How often it is found out whether each node can be emptied; zero: never.
    pub evacuation_every: Duration,
    /// Whether `/metrics` needs no token.
    pub open_metrics: bool,
    /// What becomes of instances that agents find and Berth did not place.
    pub adopt: Adoption,
    /// What one tenant may ask for in a second.
    pub tenant_rates: TenantRates,
    /// How long the name of a tenant stays blocked at least once its removal has begun. Longer than
    /// any request is under way.
    pub tenant_quarantine: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            heartbeat_every: Duration::from_secs(10),
            lost_after: Duration::from_secs(90),
            lost_grace: Duration::from_secs(120),
            queue_patience: Duration::from_secs(60),
            queue_limit: 10_000,
            queue_total: 100_000,
            evacuation_every: Duration::from_secs(60),
            open_metrics: false,
            adopt: Adoption::default(),
            tenant_rates: TenantRates::default(),
            tenant_quarantine: Duration::from_secs(60),
        }
    }
}
