//! What a plan saw apart from its node: the policy, the secrets of its environment, its workload. A
//! plan that was made by an older one is planned again.
//!
//! Policy and secrets are read without a lock: they are changed while no other writer is in progress.
//! A workload is locked in share mode: its members do not wait for each other, and a change of the
//! workload waits for them.

use std::collections::BTreeSet;

use super::UnitOfWork;
use super::rows::WorkloadKey;
use crate::model::{AvailabilityGuard, ClaimState, Guard, PlannedClaim, Text};

impl UnitOfWork {
    /// What the plan saw is what there is.
    pub(super) fn check_view(&self, planned: &PlannedClaim, tenant: &Text) -> Result<(), Guard> {
        if let Some(policy) = &planned.policy {
            self.check_policy(policy)?;
        }
        self.check_secrets(planned, tenant)?;
        let Some(workload) = planned.guarded_workload() else { return Ok(()) };
        let key = (Text::clone(tenant), Text::from(workload));
        self.check_workload(&key, planned.workload_version.unwrap_or(0))
    }

    /// The policy in force is this one; empty stands for none.
    pub(super) fn check_policy(&self, policy: &Text) -> Result<(), Guard> {
        // Those that were read to be changed may have changed in this transaction.
        let mut read = self.rows.policies.iter().peekable();
        let now = match read.peek() {
            Some(_) => read.find(|(_, row)| row.active).map(|(hash, _)| hash),
            None => self.rows.active_policy.as_ref(),
        };
        if now.map_or("", |now| &**now) == &**policy {
            return Ok(());
        }
        Err(Guard::PolicyChanged { now: now.cloned() })
    }

    fn check_secrets(&self, planned: &PlannedClaim, tenant: &Text) -> Result<(), Guard> {
        let Some(env) = planned.secrets_env().map(Text::from) else { return Ok(()) };
        let own = self.rows.secrets.get(&(Text::clone(tenant), Text::clone(&env)));
        let now = own.or_else(|| self.rows.secrets.get(&(Text::default(), Text::clone(&env))));
        if now == planned.secrets_version.as_ref() {
            return Ok(());
        }
        let now = now.cloned();
        Err(Guard::SecretsChanged { env, now })
    }

    /// A member may be stopped: its workload is as it was when that was decided, and if the member runs,
    /// enough others do.
    pub(super) fn check_availability(
        &self,
        guard: &AvailabilityGuard,
        is_running: bool,
    ) -> Result<(), Guard> {
        let key = (Text::clone(&guard.tenant), Text::clone(&guard.workload));
        self.check_workload(&key, guard.version)?;
        let claims = guard.running.iter().filter_map(|key| self.rows.claims.get(key));
        // A slot that is being handed over may have two members that run.
        let slots: BTreeSet<_> = claims
            .filter(|claim| claim.state == ClaimState::Active)
            .filter_map(|claim| claim.holdings.as_deref()?.slot.clone())
            .collect();
        if !is_running || slots.len() >= guard.at_least {
            return Ok(());
        }
        let (running, at_least) = (slots.len(), guard.at_least);
        Err(Guard::TooFewRunning { workload: key.1, running, at_least })
    }

    /// A workload has the version that was planned by; 0 stands for none.
    pub(super) fn check_workload(&self, key: &WorkloadKey, planned: i64) -> Result<(), Guard> {
        let changed = self.rows.workloads.get(key).map(|row| row.revision);
        let now = changed.or_else(|| self.rows.workload_versions.get(key).copied());
        if now.unwrap_or(0) == planned {
            return Ok(());
        }
        Err(Guard::WorkloadChanged { workload: Text::clone(&key.1), now })
    }
}
