//! The removal of a tenant: begun, guarded, ended.
//!
//! It is marked in the tenant's row, which every plan of the tenant reads under its lock. The mark is
//! set and taken away while no other writer is in progress, since a tenant without limits has no row
//! to lock: whatever was granted before it is found, and nothing is granted after it.

use super::UnitOfWork;
use super::charge::charge_tenant_use;
use super::rows::TenantRow;
use crate::model::{
    Answer, EventBody, ForTenants, Op, Outcome, StartTenantRemoval, TenantRemoval, Text,
};

/// The tenant that an operation makes something for.
pub(super) fn tenant_of(op: &Op) -> Option<Text> {
    match op {
        Op::PutGroup(group) => group.tenant.as_deref().map(Text::from),
        Op::PutVolume(volume) => volume.tenant.as_deref().map(Text::from),
        Op::PutPool(pool) => pool.tenant.as_deref().map(Text::from),
        Op::PutQuota { tenant, .. } => Some(Text::clone(tenant)),
        Op::PutWorkload { workload, .. } => Some(Text::from(workload.tenant.as_str())),
        Op::PutSecrets { tenant, version: Some(_), .. } => tenant.clone(),
        Op::SetScheduling(scheduling) if scheduling.failing.is_some() => {
            Some(Text::clone(&scheduling.tenant))
        }
        Op::Demand(demand) => Some(Text::from(demand.tenant.as_str())),
        _ => None,
    }
}

impl UnitOfWork {
    /// Whether nothing may be made for this tenant any more.
    pub(super) fn is_removing(&self, tenant: &Text) -> bool {
        self.rows.tenants.get(tenant).is_some_and(|row| row.removal.is_some())
    }

    /// The tenant in removal that an operation would make something new for.
    pub(super) fn tenant_in_removal(&self, op: &Op) -> Option<Text> {
        let tenant = tenant_of(op).filter(|tenant| self.is_removing(tenant))?;
        // One that is there may change, so that it can be told to end.
        let is_known = match op {
            Op::PutWorkload { workload, .. } => {
                let key = (Text::clone(&tenant), Text::from(workload.name.as_str()));
                self.rows.workloads.get(&key).is_some()
            }
            _ => false,
        };
        (!is_known).then_some(tenant)
    }

    /// Does an operation unless a tenant that it is for is being removed.
    pub(super) fn make_for_tenants(&mut self, made: &ForTenants) -> Answer {
        match made.tenants.iter().find(|tenant| self.is_removing(tenant)) {
            Some(tenant) => Answer::Outcome(Outcome::TenantRemoving(Text::clone(tenant))),
            None => self.apply(&made.op),
        }
    }

    pub(super) fn start_tenant_removal(&mut self, start: &StartTenantRemoval) -> Outcome {
        let tenant = &start.tenant;
        let known = self.rows.tenants.get(tenant).cloned();
        if let Some(removal) = known.as_ref().and_then(|row| row.removal.as_ref()) {
            if removal.force || !start.force {
                return Outcome::Unchanged;
            }
            let removal = TenantRemoval { force: true, ..removal.clone() };
            self.rows.tenants.edit(tenant, |row| row.removal = Some(removal));
            return Outcome::Done;
        }
        let removal = TenantRemoval {
            since: self.rows.now,
            force: start.force,
            actor: Text::clone(&start.actor),
            origin: Text::clone(&start.origin),
        };
        let mut row = TenantRow { removal: Some(removal), ..TenantRow::default() };
        for (_, claim) in self.rows.claims.iter().filter(|(_, claim)| claim.tenant == *tenant) {
            charge_tenant_use(&mut row, claim, 1);
        }
        self.rows.tenants.set(tenant, Some(row));
        if known.is_some() {
            self.events.push(EventBody::QuotaChanged { tenant: Text::clone(tenant) });
        }
        self.events.push(EventBody::TenantRemoving { tenant: Text::clone(tenant) });
        Outcome::Done
    }

    pub(super) fn end_tenant_removal(&mut self, tenant: &Text, quarantine_s: i64) -> Outcome {
        let row = self.rows.tenants.get(tenant);
        let Some(removal) = row.and_then(|row| row.removal.as_ref()) else {
            return Outcome::Unchanged;
        };
        let end = removal.since.plus_seconds(quarantine_s);
        if self.rows.now < end {
            return Outcome::Impossible(format!(
                "tenant {tenant} stays blocked for {quarantine_s} seconds after its removal began; \
                 retry later"
            ));
        }
        if self.rows.tenants_in_use.contains(tenant) {
            let why = format!("tenant {tenant} still holds something; remove that first");
            return Outcome::Impossible(why);
        }
        self.rows.tenants.set(tenant, None);
        self.events.push(EventBody::TenantRemoved { tenant: Text::clone(tenant) });
        Outcome::Done
    }
}
