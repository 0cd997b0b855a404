//! What would help a request that its tenant's quota or a pool refused.
//!
//! Every change is tried before it is proposed: the ledger is asked, by a dry run of the changed plan,
//! whether it would grant it then. It assumes what an operator would change. What is refused for the
//! next limit gets a change for that as well. Nothing is claimed, and nothing is changed.

use std::collections::BTreeMap;
use std::sync::Arc;

use berth_engine::{
    Amounts, Demand, Elastic, Engine, Fix, InstanceId, InstanceRequest, QuotaLimits,
};
use berth_ledger::{
    Assumptions, Ledger, LedgerError, Plan, PlannedClaim, Pool, Quota, QuotaUse, RefusalReason,
    TenantUse, Text, Verdict,
};

use super::pool_ranges::{range_of, wider_ranges};

/// Dry runs that one search may cost. Each waits for the ledger, and other explanations wait for it; most
/// searches need three, since what cannot be enough is left out by arithmetic.
const TRIALS: usize = 20;

/// Changes that one fix may have.
const CHANGES: usize = 4;

/// Other pools that are tried in place of one.
const POOLS: usize = 4;

/// Instances that one fix may release.
const RELEASED: usize = 40;

/// What was found, and how many dry runs it took. If the database failed, there may be more.
pub(super) struct FoundFixes {
    pub(super) fixes: Vec<Fix>,
    pub(super) trials: usize,
    pub(super) failed: Option<LedgerError>,
}

/// The changes that would let a plan be granted, each tried: to the request first, then to limits.
pub(super) fn limit_fixes(
    ledger: &Ledger,
    engine: &Engine,
    plan: Plan,
    reason: &RefusalReason,
    asked: usize,
    named_pools: &[Text],
) -> FoundFixes {
    let limits = ledger.quotas().and_then(|quotas| Ok((quotas, ledger.pools()?)));
    let (quotas, pools) = match limits {
        Ok(limits) => limits,
        // Without the limits every change would be a guess, and so would saying that there is none.
        Err(error) => return FoundFixes { fixes: Vec::new(), trials: 0, failed: Some(error) },
    };
    let quota = quotas.into_iter().find(|quota| quota.tenant == plan.tenant);
    let mut search = Search { ledger, engine, quota, pools, named_pools, trials: 0, failed: None };
    let base = Trial { plan, assumed: Assumptions::default(), changes: Vec::new() };
    let mut fixes: Vec<Fix> = Vec::new();
    fixes.extend(search.fewer(&base, asked));
    for alternatives in search.next_changes(&base, reason) {
        let found = alternatives.into_iter().find_map(|trial| search.complete(trial));
        if let Some(fix) = found.filter(|fix| !fixes.contains(fix)) {
            fixes.push(fix);
        }
    }
    FoundFixes { fixes, trials: search.trials, failed: search.failed }
}

/// A plan as it would be after some changes.
#[derive(Clone)]
struct Trial {
    plan: Plan,
    assumed: Assumptions,
    changes: Vec<Fix>,
}

impl Trial {
    fn with(&self, change: Fix) -> Self {
        let mut trial = self.clone();
        trial.changes.push(change);
        trial
    }

    /// What the plan asks for in all, as quotas count it.
    fn need(&self) -> TenantUse {
        let mut need = TenantUse::default();
        for claim in &self.plan.claims {
            add_need(&mut need, claim);
        }
        need
    }

    /// The one request that all instances make, but for ids and names.
    fn uniform_request(&self) -> Option<&Arc<InstanceRequest>> {
        let (first, others) = self.plan.claims.split_first()?;
        others.iter().all(|it| it.request.same_class(&first.request)).then_some(&first.request)
    }
}

struct Search<'a> {
    ledger: &'a Ledger,
    engine: &'a Engine,
    quota: Option<QuotaUse>,
    pools: Vec<(Pool, i64)>,
    /// Pools that the request names, and may name otherwise.
    named_pools: &'a [Text],
    trials: usize,
    failed: Option<LedgerError>,
}

impl Search<'_> {
    fn verdict(&mut self, plan: Plan, assumed: Assumptions) -> Option<Verdict> {
        if self.trials >= TRIALS {
            return None;
        }
        self.trials += 1;
        match self.ledger.rehearse(plan, assumed) {
            Ok(verdict) => Some(verdict),
            Err(error) => {
                // A database that does not answer is not asked again: others wait for this thread.
                (self.trials, self.failed) = (TRIALS, Some(error));
                None
            }
        }
    }

    /// The fix that a trial becomes: with further changes if it meets further limits.
    fn complete(&mut self, trial: Trial) -> Option<Fix> {
        match self.verdict(trial.plan.clone(), trial.assumed.clone())? {
            Verdict::Granted(_) => Some(in_order(trial.changes)),
            Verdict::Refused(reason) if trial.changes.len() < CHANGES => {
                let further = self.next_changes(&trial, &reason);
                further.into_iter().flatten().find_map(|trial| self.complete(trial))
            }
            Verdict::Refused(_) | Verdict::Conflict(_) => None,
        }
    }

    /// The most instances of the request that are granted.
    fn fewer(&mut self, base: &Trial, asked: usize) -> Option<Fix> {
        let is_granted = |search: &mut Self, count: usize| {
            let mut plan = base.plan.clone();
            plan.claims.truncate(count);
            let verdict = search.verdict(plan, Assumptions::default());
            matches!(verdict, Some(Verdict::Granted(_)))
        };
        let (mut granted, mut refused) = (0, base.plan.claims.len());
        let most = self.most_within_limits(&base.plan);
        if most < refused {
            // One more is too many by arithmetic. Values at rest may leave less than that.
            if most == 0 || is_granted(self, most) {
                (granted, refused) = (most, most + 1);
            } else {
                refused = most;
            }
        }
        while refused - granted > 1 {
            let middle = usize::midpoint(granted, refused);
            if is_granted(self, middle) {
                granted = middle;
            } else {
                refused = middle;
            }
        }
        let (count, of) = (u32::try_from(granted).ok()?, u32::try_from(asked).ok()?);
        (count > 0).then_some(Fix::Count { count, of })
    }

    /// How many of a plan's claims, the first ones, can be within all limits.
    fn most_within_limits(&self, plan: &Plan) -> usize {
        let mut need = TenantUse::default();
        let mut taken: BTreeMap<&Text, u128> = BTreeMap::new();
        for (place, claim) in plan.claims.iter().enumerate() {
            add_need(&mut need, claim);
            let lacks = |quota: &QuotaUse| missing(quota, &need) != TenantUse::default();
            let has_value = |pool: &Text| {
                let before = taken.get(pool).copied().unwrap_or(0);
                self.pool(pool).filter(|(pool, _)| pool.is_open_to(&plan.tenant)).is_some_and(
                    |(pool, used)| {
                        before < pool.size().saturating_sub(u128::try_from(*used).unwrap_or(0))
                    },
                )
            };
            if self.quota.as_ref().is_some_and(lacks) || !claim.pools.iter().all(has_value) {
                return place;
            }
            for pool in &claim.pools {
                *taken.entry(pool).or_default() += 1;
            }
        }
        plan.claims.len()
    }

    /// Changes that may get past a limit: of each list, the first that works is enough.
    fn next_changes(&self, trial: &Trial, reason: &RefusalReason) -> Vec<Vec<Trial>> {
        match reason {
            RefusalReason::Quota { .. } => {
                let found = [self.smaller(trial), self.released(trial), self.raised(trial)];
                found.into_iter().flatten().map(|trial| vec![trial]).collect()
            }
            RefusalReason::PoolExhausted { pool, .. } => {
                vec![
                    self.other_pools(trial, pool),
                    self.without_pool(trial, pool),
                    self.wider_pools(trial, pool),
                ]
            }
            RefusalReason::UnknownPool(pool) => {
                vec![
                    self.other_pools(trial, pool),
                    self.without_pool(trial, pool),
                    self.opened_pool(trial, pool),
                ]
            }
            RefusalReason::RequestIdReused { .. }
            | RefusalReason::Malformed(_)
            | RefusalReason::TenantRemoving(_)
            | RefusalReason::VolumeMoving { .. } => Vec::new(),
        }
    }

    /// Less for each instance, as much as the quota leaves.
    fn smaller(&self, trial: &Trial) -> Option<Trial> {
        let quota = self.quota.as_ref()?;
        let request = trial.uniform_request()?;
        let count = i64::try_from(trial.plan.claims.len()).ok()?;
        let cut = |wanted: u32, limit: Option<i64>, used: i64| {
            let left = limit.map_or(i64::MAX, |limit| (limit - used).max(0) / count);
            u32::try_from(left).map_or(wanted, |left| wanted.min(left))
        };
        let (wanted, used, limits) = (request.resources, quota.used, quota.quota);
        let resources = Amounts {
            cpu_milli: cut(wanted.cpu_milli, limits.cpu_milli, used.cpu_milli),
            memory_mib: cut(wanted.memory_mib, limits.memory_mib, used.memory_mib),
            disk_mib: cut(wanted.disk_mib, limits.disk_mib, used.disk_mib),
            ..wanted
        };
        let is_left = |wanted: u32, left: u32| wanted == 0 || left > 0;
        let usable = is_left(wanted.cpu_milli, resources.cpu_milli)
            && resources.memory_mib > 0
            && is_left(wanted.disk_mib, resources.disk_mib)
            && request.elastic.as_ref().is_none_or(|elastic| admits(elastic, &resources));
        // Of a limit on their number, a smaller size leaves no more.
        let too_many = missing(quota, &trial.need()).instances > 0;
        if !usable || too_many || resources == wanted {
            return None;
        }
        let mut node = trial.plan.claims.first().map(|claim| claim.node.clone());
        node.take_if(|_| count > 1);
        let mut trial = trial.with(Fix::Shrink { resources, extra: BTreeMap::new(), node });
        for claim in &mut trial.plan.claims {
            resize(claim, resources, self.engine);
        }
        Some(trial)
    }

    /// Without some instances of the tenant's own: as few as possible, by and large.
    fn released(&self, trial: &Trial) -> Option<Trial> {
        let quota = self.quota.as_ref()?;
        let tenant = &trial.plan.tenant;
        let missing = missing(quota, &trial.need());
        let own = self.engine.fleet().releasable_instances(tenant);
        let released = least_release(&own, missing)?;
        let freed = released.iter().fold(TenantUse::default(), |sum, (_, amounts)| TenantUse {
            cpu_milli: sum.cpu_milli + i64::from(amounts.cpu_milli),
            memory_mib: sum.memory_mib + i64::from(amounts.memory_mib),
            disk_mib: sum.disk_mib + i64::from(amounts.disk_mib),
            instances: sum.instances + 1,
        });
        let instances: Vec<InstanceId> = released.iter().map(|(id, _)| *id).collect();
        let mut nodes: Vec<_> =
            instances.iter().filter_map(|id| self.engine.fleet().node_of(*id)).collect();
        nodes.sort_unstable();
        nodes.dedup();
        let node = <[_; 1]>::try_from(nodes).ok().map(|[node]| node.clone());
        let tenants = vec![tenant.to_string()];
        let names = Vec::new();
        let mut trial = trial.with(Fix::Free { instances, names, tenants, node, preempts: false });
        // What is no longer used counts like a higher limit.
        let more = |limit: Option<i64>, freed: i64| limit.map(|limit| limit + freed);
        trial.assumed.quota = Some(Quota {
            cpu_milli: more(quota.quota.cpu_milli, freed.cpu_milli),
            memory_mib: more(quota.quota.memory_mib, freed.memory_mib),
            disk_mib: more(quota.quota.disk_mib, freed.disk_mib),
            instances: more(quota.quota.instances, freed.instances),
        });
        Some(trial)
    }

    /// Limits as high as the plan needs them.
    fn raised(&self, trial: &Trial) -> Option<Trial> {
        let QuotaUse { quota, used, .. } = self.quota.as_ref()?;
        let need = trial.need();
        let raise = |limit: Option<i64>, used: i64, need: i64| {
            limit.map(|limit| if need > 0 { limit.max(used + need) } else { limit })
        };
        let limits = QuotaLimits {
            cpu_milli: raise(quota.cpu_milli, used.cpu_milli, need.cpu_milli),
            memory_mib: raise(quota.memory_mib, used.memory_mib, need.memory_mib),
            disk_mib: raise(quota.disk_mib, used.disk_mib, need.disk_mib),
            instances: raise(quota.instances, used.instances, need.instances),
        };
        let tenant = trial.plan.tenant.to_string();
        let mut trial = trial.with(Fix::RaiseQuota { tenant, limits });
        trial.assumed.quota = Some(Quota {
            cpu_milli: limits.cpu_milli,
            memory_mib: limits.memory_mib,
            disk_mib: limits.disk_mib,
            instances: limits.instances,
        });
        Some(trial)
    }

    fn pool(&self, id: &str) -> Option<&(Pool, i64)> {
        self.pools.iter().find(|(pool, _)| *pool.id == *id)
    }

    /// Whether the request may name another pool in its place: one that the policy gives every
    /// instance is not the request's to choose.
    fn may_change(&self, trial: &Trial, pool: &str) -> bool {
        let defaults = self.engine.policy().defaults();
        let is_given = |claim: &PlannedClaim| {
            let facts = self.engine.fleet().node(&claim.node);
            facts.is_some_and(|facts| defaults.overlay_pool(&facts) == Some(pool))
        };
        self.named_pools.iter().any(|named| **named == *pool)
            && !(defaults.has_overlay_pool() && trial.plan.claims.iter().any(is_given))
    }

    /// Values of other pools of the same kind that the tenant may use; those with a similar name
    /// first.
    fn other_pools(&self, trial: &Trial, id: &Text) -> Vec<Trial> {
        if !self.may_change(trial, id) {
            return Vec::new();
        }
        let tenant = &trial.plan.tenant;
        let wanted = trial.plan.claims.len() as u128;
        let kind = self.pool(id).filter(|(pool, _)| pool.is_open_to(tenant));
        let kind = kind.map(|(pool, _)| pool.kind);
        let is_usable = |(pool, used): &&(Pool, i64)| {
            let is_named = self.named_pools.contains(&pool.id);
            let has_room = pool.size().saturating_sub(u128::try_from(*used).unwrap_or(0)) >= wanted;
            let is_kind = kind.is_none_or(|kind| kind == pool.kind);
            !is_named && has_room && is_kind && pool.is_open_to(tenant)
        };
        let mut others: Vec<&Pool> =
            self.pools.iter().filter(is_usable).map(|(pool, _)| pool).collect();
        let shared = |pool: &Pool| {
            pool.id.bytes().zip(id.bytes()).take_while(|(one, other)| one == other).count()
        };
        others.sort_by_key(|pool| std::cmp::Reverse(shared(pool)));
        let trials = others.into_iter().take(POOLS);
        trials.map(|other| changed_pool(trial, id, Some(&other.id))).collect()
    }

    fn without_pool(&self, trial: &Trial, id: &Text) -> Vec<Trial> {
        let found = self.may_change(trial, id).then(|| changed_pool(trial, id, None));
        found.into_iter().collect()
    }

    /// The pool with more values: as few more as possible first.
    fn wider_pools(&self, trial: &Trial, id: &str) -> Vec<Trial> {
        let Some((pool, used)) = self.pool(id) else { return Vec::new() };
        let taken = trial.plan.claims.iter().filter(|claim| claim.pools.contains(&pool.id));
        let wanted = taken.count() as u128;
        let others = self.pools.iter().map(|(other, _)| other);
        let others: Vec<&Pool> = others.filter(|other| other.id != pool.id).collect();
        let wider = wider_ranges(pool, wanted, u128::try_from(*used).unwrap_or(0), &others);
        wider.into_iter().map(|(range, wider)| set_pool(trial, range, wider)).collect()
    }

    /// A pool of another tenant, open to all.
    fn opened_pool(&self, trial: &Trial, id: &str) -> Vec<Trial> {
        let found = self.pool(id).and_then(|(pool, _)| {
            let open = Pool { tenant: None, ..pool.clone() };
            Some(set_pool(trial, range_of(pool)?, open))
        });
        found.into_iter().collect()
    }
}

/// Changes by an operator come before the request that is sent again.
fn in_order(changes: Vec<Fix>) -> Fix {
    let is_of_request = |fix: &Fix| matches!(fix, Fix::Shrink { .. } | Fix::ChangePool { .. });
    let (of_request, mut in_order): (Vec<Fix>, Vec<Fix>) =
        changes.into_iter().partition(is_of_request);
    in_order.extend(of_request);
    Fix::all_of(in_order)
}

/// Whether an elastic instance may have this size, which must also be what it is charged.
fn admits(elastic: &Elastic, resources: &Amounts) -> bool {
    elastic.overcommit_permille.is_none()
        && elastic.using.is_none()
        && resources.cpu_milli >= elastic.min.cpu_milli
        && resources.memory_mib >= elastic.min.memory_mib
}

fn resize(claim: &mut PlannedClaim, resources: Amounts, engine: &Engine) {
    let request = Arc::make_mut(&mut claim.request);
    request.resources = resources;
    claim.demand = Demand::new(request, engine.policy());
}

/// Adds what a claim asks for, as quotas count it.
fn add_need(need: &mut TenantUse, claim: &PlannedClaim) {
    let amounts = &claim.demand.amounts;
    need.cpu_milli += i64::from(amounts.cpu_milli);
    need.memory_mib += i64::from(amounts.memory_mib);
    need.disk_mib += i64::from(amounts.disk_mib);
    need.instances += 1;
}

/// What a tenant's limits lack for a plan.
fn missing(quota: &QuotaUse, need: &TenantUse) -> TenantUse {
    let lack = |limit: Option<i64>, used: i64, need: i64| match limit {
        Some(limit) if need > 0 => (used + need - limit).max(0),
        Some(_) | None => 0,
    };
    let QuotaUse { quota, used, .. } = quota;
    TenantUse {
        cpu_milli: lack(quota.cpu_milli, used.cpu_milli, need.cpu_milli),
        memory_mib: lack(quota.memory_mib, used.memory_mib, need.memory_mib),
        disk_mib: lack(quota.disk_mib, used.disk_mib, need.disk_mib),
        instances: lack(quota.instances, used.instances, need.instances),
    }
}

/// What is still missing when an instance is gone.
fn without(missing: TenantUse, amounts: &Amounts) -> TenantUse {
    TenantUse {
        cpu_milli: (missing.cpu_milli - i64::from(amounts.cpu_milli)).max(0),
        memory_mib: (missing.memory_mib - i64::from(amounts.memory_mib)).max(0),
        disk_mib: (missing.disk_mib - i64::from(amounts.disk_mib)).max(0),
        instances: (missing.instances - 1).max(0),
    }
}

/// Few instances whose release covers what is missing, none of which could stay: the smallest that is
/// enough alone, else the largest first.
fn least_release(
    own: &[(InstanceId, Amounts)],
    missing: TenantUse,
) -> Option<Vec<(InstanceId, Amounts)>> {
    let covered = |released: &[(InstanceId, Amounts)]| {
        let left = released.iter().fold(missing, |left, (_, amounts)| without(left, amounts));
        left == TenantUse::default()
    };
    let size = |amounts: &Amounts| (amounts.memory_mib, amounts.cpu_milli, amounts.disk_mib);
    let alone = own.iter().filter(|one| covered(std::slice::from_ref(*one)));
    if let Some(one) = alone.min_by_key(|(id, amounts)| (size(amounts), *id)) {
        return Some(vec![*one]);
    }
    // What an instance gives of each resource that is missing, in millionths of that.
    let share = |part: i64, of: i64| {
        let capped = i128::from(part.min(of)) * 1_000_000;
        capped.checked_div(i128::from(of)).unwrap_or(0)
    };
    let mut left = missing;
    let mut rest: Vec<(InstanceId, Amounts)> = own.to_vec();
    let mut released = Vec::new();
    while left != TenantUse::default() && released.len() < RELEASED {
        let gives = |amounts: &Amounts| {
            share(amounts.cpu_milli.into(), left.cpu_milli)
                + share(amounts.memory_mib.into(), left.memory_mib)
                + share(amounts.disk_mib.into(), left.disk_mib)
                + share(1, left.instances)
        };
        let best = rest
            .iter()
            .enumerate()
            .max_by_key(|(place, (_, amounts))| (gives(amounts), std::cmp::Reverse(*place)));
        let (place, _) = best.filter(|(_, (_, amounts))| gives(amounts) > 0)?;
        let (id, amounts) = rest.remove(place);
        left = without(left, &amounts);
        released.push((id, amounts));
    }
    if left != TenantUse::default() {
        return None;
    }
    // A later one may have made an earlier one needless.
    for place in (0..released.len()).rev() {
        let mut fewer = released.clone();
        fewer.remove(place);
        if covered(&fewer) {
            released = fewer;
        }
    }
    released.sort_unstable_by_key(|(id, _)| *id);
    Some(released)
}

fn changed_pool(trial: &Trial, id: &Text, to: Option<&Text>) -> Trial {
    let (pool, other) = (id.to_string(), to.map(ToString::to_string));
    let mut trial = trial.with(Fix::ChangePool { pool, to: other });
    for claim in &mut trial.plan.claims {
        claim.pools.retain(|pool| pool != id);
        claim.pools.extend(to.cloned());
    }
    trial
}

fn set_pool(trial: &Trial, range: String, pool: Pool) -> Trial {
    let mut trial = trial.with(Fix::SetPool {
        pool: pool.id.to_string(),
        range,
        quarantine_s: pool.quarantine_s,
        tenant: pool.tenant.as_ref().map(ToString::to_string),
    });
    trial.assumed.pools.retain(|other| other.id != pool.id);
    trial.assumed.pools.push(pool);
    trial
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

    use super::*;

    #[test]
    fn no_more_is_released_than_is_missing() {
        let own: Vec<(InstanceId, Amounts)> = [(1, 4000, 1024), (2, 1000, 4096), (3, 2000, 2048)]
            .into_iter()
            .map(|(id, cpu, memory)| (InstanceId::from_u128(id), Amounts::new(cpu, memory)))
            .collect();
        let release = |cpu_milli: i64, memory_mib: i64, instances: i64| {
            let missing = TenantUse { cpu_milli, memory_mib, disk_mib: 0, instances };
            let found = least_release(&own, missing)?;
            Some(found.iter().map(|(id, _)| id.0.as_u128()).collect::<Vec<_>>())
        };
        assert_eq!(release(0, 0, 1), Some(vec![1]), "the smallest by memory");
        assert_eq!(release(1500, 0, 0), Some(vec![1]));
        assert_eq!(release(0, 2048, 0), Some(vec![3]));
        assert_eq!(release(4000, 4096, 0), Some(vec![1, 2]));
        assert_eq!(release(0, 0, 3), Some(vec![1, 2, 3]));
        assert_eq!(release(7001, 0, 0), None);
    }
}
