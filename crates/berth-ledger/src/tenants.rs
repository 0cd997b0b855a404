//! What a tenant holds, and removing it piece by piece.

use crate::error::LedgerError;
use crate::ledger::Ledger;
use crate::model::{Expect, Op, Outcome, TenantHoldings, TenantRemoval, Text};

/// The most rows that one statement deletes, so that no other writer waits for long.
const FORGET_ROWS: usize = 10_000;

/// Something of a tenant that could not be removed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeptResource {
    /// What it is: `workload`, `group`, `volume`, `pool`.
    pub kind: &'static str,
    /// Its name.
    pub name: Text,
    /// Why it is still there.
    pub why: String,
}

impl Ledger {
    /// Tenants that are being removed, in the order of their names.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub fn tenant_removals(&self) -> Result<Vec<(Text, TenantRemoval)>, LedgerError> {
        self.read(|tables| tables.tenant_removals())
    }

    /// Everything that belongs to a tenant, apart from documents, as of one moment.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub fn tenant_holdings(&self, tenant: &str) -> Result<TenantHoldings, LedgerError> {
        if !crate::encoding::is_storable([tenant]) {
            return Ok(TenantHoldings::default());
        }
        self.read(|tables| tables.tenant_holdings(tenant))
    }

    /// Removes what a tenant without claims has defined: workloads, groups, volumes, pools and
    /// secrets, and what is remembered of its requests. Returns what could not be removed.
    ///
    /// # Errors
    /// As [`Ledger::call`].
    pub fn remove_tenant_resources(
        &self,
        tenant: &Text,
        held: &TenantHoldings,
    ) -> Result<Vec<KeptResource>, LedgerError> {
        let mut kept = Vec::new();
        let mut remove = |kind, name: &Text, op| {
            if let Outcome::Impossible(why) = self.administer(op)? {
                kept.push(KeptResource { kind, name: Text::clone(name), why });
            }
            Ok::<(), LedgerError>(())
        };
        for name in &held.workloads {
            let (tenant, expect) = (Text::clone(tenant), Expect::Any);
            let op = Op::RemoveWorkload { tenant, name: Text::clone(name), expect };
            remove("workload", name, op)?;
        }
        for name in &held.groups {
            remove("group", name, Op::RemoveGroup(Text::clone(name)))?;
        }
        for name in &held.volumes {
            remove("volume", name, Op::RemoveVolume(Text::clone(name)))?;
        }
        for name in &held.pools {
            remove("pool", name, Op::RemovePool(Text::clone(name)))?;
        }
        for env in &held.secrets {
            let (tenant, env) = (Some(Text::clone(tenant)), Text::clone(env));
            remove("secrets", &env.clone(), Op::PutSecrets { tenant, env, version: None })?;
        }
        while self.read(|tables| tables.forget_tenant(tenant, FORGET_ROWS))? > 0 {}
        Ok(kept)
    }
}
