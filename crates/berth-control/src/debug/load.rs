//! A fleet from a dump, to plan on: what ran in production becomes a fixture for a test.
//!
//! The same code takes it in that takes in a ledger's snapshot, so a fleet from a dump is the fleet
//! that the server planned on.

use berth_engine::{Engine, Policy};
use berth_ledger::{Claim, ClaimKey, LedgerError, NodeVersion, SnapshotItem, Spec, Text, Workload};
use thiserror::Error;

use super::dump::{ClaimDump, Dump, SCHEMA};
use crate::catalog::CatalogState;
use crate::fleet_replica::FleetReplica;

/// A dump that cannot be used.
#[derive(Debug, Error)]
pub enum LoadError {
    /// It is not a dump.
    #[error("this is not a dump of Berth: {0}")]
    NotADump(#[from] serde_json::Error),
    /// It is of another version.
    #[error("the dump is of schema {found}; this Berth reads schema {SCHEMA}")]
    Version {
        /// Its version.
        found: u32,
    },
    /// It has no policy to plan by.
    #[error("the dump has no policy in force; a fleet needs one to plan by")]
    NoPolicy,
    /// Something in it cannot be taken in.
    #[error("the dump cannot be taken in")]
    Content(#[from] LedgerError),
}

impl Dump {
    /// Reads a dump from its text.
    ///
    /// # Errors
    /// When it is not a dump, or of another version.
    pub fn read(text: &str) -> Result<Self, LoadError> {
        #[derive(serde::Deserialize)]
        struct Version {
            berth_dump: u32,
        }
        let Version { berth_dump: found } = serde_json::from_str(text)?;
        if found != SCHEMA {
            return Err(LoadError::Version { found });
        }
        Ok(serde_json::from_str(text)?)
    }

    /// The planner's copy of the ledger, as it would be loaded from these rows.
    ///
    /// # Errors
    /// When something in it cannot be taken in, as the planner could not.
    pub fn replica(&self) -> Result<FleetReplica, LoadError> {
        let body = &self.policy.as_ref().ok_or(LoadError::NoPolicy)?.body;
        let policy = Policy::from_stored(&body.to_string())
            .map_err(|error| LedgerError::Corrupt(error.to_string()))?;
        let mut replica = FleetReplica::new(policy);
        self.items().try_for_each(|item| replica.load(item))?;
        replica.cursor = self.cursors.ledger;
        Ok(replica)
    }

    /// A fleet under the policy in force, to plan on.
    ///
    /// # Errors
    /// As [`Dump::replica`].
    pub fn engine(&self) -> Result<Engine, LoadError> {
        Ok(self.replica()?.engine().clone())
    }

    /// The readers' copy of the ledger, as it would be loaded from these rows.
    #[must_use]
    pub fn catalog(&self) -> CatalogState {
        CatalogState::of(self.items())
    }

    /// Everything in the order in which a fleet can take it in.
    fn items(&self) -> impl Iterator<Item = SnapshotItem> {
        let policy = self.policy.iter().map(|policy| {
            let (name, hash) = (policy.name.clone(), policy.hash.clone());
            SnapshotItem::Policy(name, hash, policy.body.to_string())
        });
        let shared = self.environments.iter().map(|(env, version)| (None, env, version));
        let owned = self.tenant_environments.iter().flat_map(|(tenant, environments)| {
            environments.iter().map(move |(env, version)| (Some(tenant), env, version))
        });
        let secrets = shared.chain(owned).map(|(tenant, env, version): (Option<&String>, _, _)| {
            let tenant = tenant.map(|tenant| Text::from(tenant.as_str()));
            SnapshotItem::Secrets(tenant, Text::from(env.as_str()), Text::from(version.as_str()))
        });
        let groups = self.groups.iter().map(|group| SnapshotItem::Group(group.group.clone()));
        let nodes = self.nodes.iter().map(|node| {
            let seen = NodeVersion::of(&node.facts, node.generation, node.rules_gen, node.fence);
            SnapshotItem::Node(Box::new(node.facts.clone()), seen)
        });
        let volumes = self.volumes.iter().cloned().map(SnapshotItem::Volume);
        let workloads = self.workloads.iter().map(|workload| {
            SnapshotItem::Workload(Workload {
                tenant: workload.tenant.clone(),
                name: workload.name.clone(),
                revision: workload.revision,
                replicas: workload.replicas,
                body: workload.body.to_string(),
            })
        });
        let claims = self.claims.iter().map(|claim| SnapshotItem::Claim(Box::new(claim.claim())));
        policy
            .chain(secrets)
            .chain(groups)
            .chain(nodes)
            .chain(volumes)
            .chain(workloads)
            .chain(claims)
    }
}

impl ClaimDump {
    /// Its name among claims.
    #[must_use]
    pub const fn key(&self) -> ClaimKey {
        ClaimKey { instance: self.instance, role: self.role }
    }

    /// The claim as the ledger has it.
    #[must_use]
    pub fn claim(&self) -> Claim {
        let text = |text: &Option<String>| text.as_deref().map(Text::from);
        Claim {
            key: self.key(),
            node: self.node.clone(),
            tenant: Text::from(self.tenant.as_str()),
            workload: text(&self.workload),
            state: self.state,
            amounts: self.charged,
            capped: self.capped,
            lease_until: self.lease_until,
            fence: self.fence,
            request_id: Text::from(self.request_id.as_str()),
            batch: self.batch,
            name: text(&self.name),
            spec: Spec::stored(self.spec.to_string()),
            holdings: self.ties.clone().map(Box::new),
            release_id: text(&self.release_id),
            secrets_version: text(&self.secrets_version),
            created_at: self.created_at,
            permit: self.permit.map(Box::new),
        }
    }
}
