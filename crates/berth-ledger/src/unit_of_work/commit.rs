//! Granting a plan: all of its claims, or none.

use std::collections::BTreeSet;

use super::UnitOfWork;
use super::charge::{ChargeError, ChargeMode, claim_of};
use super::rows::{RequestKey, RequestRow, StoredAnswer};
use crate::model::{
    Answer, Assumptions, Claim, Conflict, DecisionOutcome, DecisionRecord, EventBody, Grant,
    GrantedClaim, Guard, PlacedInstance, Plan, PlannedClaim, RefusalReason, Role, Text, Verdict,
};

impl UnitOfWork {
    /// Grants or refuses a plan, or repeats an earlier grant.
    pub(super) fn commit(&mut self, plan: &Plan) -> Answer {
        let request = (Text::clone(&plan.request_id), Text::clone(&plan.tenant));
        match self.rows.requests.get(&request) {
            None => Answer::Plan(self.decide(plan, Some(request))),
            Some(row) if row.is_ticket_of(plan) => Answer::Plan(self.decide(plan, Some(request))),
            Some(row) => match &row.answer {
                StoredAnswer::Granted(grant) if row.body_hash == plan.body_hash => {
                    Answer::Repeated(grant.clone())
                }
                _ => {
                    let request_id = request.0;
                    Answer::Plan(Verdict::Refused(RefusalReason::RequestIdReused { request_id }))
                }
            },
        }
    }

    /// Checks whether a plan would be granted now, with the code that grants it. Changes nothing.
    pub(super) fn dry_run(&mut self, plan: &Plan, assumed: &Assumptions) -> Answer {
        let events = self.events.len();
        if let Some(quota) = assumed.quota {
            self.rows.tenants.edit(&plan.tenant, |row| row.quota = quota);
        }
        self.assumed_pools.clone_from(&assumed.pools);
        let verdict = self.decide(plan, None);
        self.assumed_pools.clear();
        self.undo(events);
        Answer::Plan(verdict)
    }

    /// Grants a plan under a request's key; without one, only checks whether it would be granted.
    pub(super) fn decide(&mut self, plan: &Plan, request: Option<RequestKey>) -> Verdict {
        if let Some(refused) = malformed(plan) {
            return Verdict::Refused(refused);
        }
        let events = self.events.len();
        let mut granted = Vec::with_capacity(plan.claims.len());
        for planned in &plan.claims {
            match self.grant(plan, planned) {
                Ok(claim) => granted.push(claim),
                Err(error) => {
                    self.undo(events);
                    return verdict(planned, self.with_whole_plan(plan, error));
                }
            }
        }
        let Some(request) = request else {
            self.undo(events);
            return Verdict::Granted(Grant { claims: granted, decision: String::new() });
        };
        let decision = format!("{}/{}", self.receipt, self.decisions.len());
        let grant = Grant { claims: granted, decision };
        self.decisions.push(record(plan));
        let row = RequestRow {
            body_hash: plan.body_hash,
            answer: StoredAnswer::Granted(grant.clone()),
            at: self.rows.now,
        };
        self.rows.requests.set(&request, Some(row));
        self.keep();
        Verdict::Granted(grant)
    }

    /// A quota is exceeded by a plan, not by the claim of it that happened to be charged last: what
    /// is in use without the plan, and all that the plan asks for.
    fn with_whole_plan(&self, plan: &Plan, error: ChargeError) -> ChargeError {
        let ChargeError::Refused(RefusalReason::Quota { tenant, resource, limit, .. }) = error
        else {
            return error;
        };
        let primary = plan.claims.iter().filter(|claim| claim.key.role == Role::Primary);
        let used = self.rows.tenants.get(&tenant).map_or(0, |row| match resource {
            "cpu_milli" => row.cpu,
            "memory_mib" => row.memory,
            "disk_mib" => row.disk,
            _ => row.instances,
        });
        let wanted = primary.map(|claim| match resource {
            "cpu_milli" => i64::from(claim.demand.amounts.cpu_milli),
            "memory_mib" => i64::from(claim.demand.amounts.memory_mib),
            "disk_mib" => i64::from(claim.demand.amounts.disk_mib),
            _ => 1,
        });
        let wanted = wanted.sum();
        ChargeError::Refused(RefusalReason::Quota { tenant, resource, used, wanted, limit })
    }

    fn grant(&mut self, plan: &Plan, planned: &PlannedClaim) -> Result<GrantedClaim, ChargeError> {
        if let Some(claim) = self.rows.claims.get(&planned.key) {
            let (key, node) = (planned.key, claim.node.clone());
            return Err(Guard::AlreadyPlaced { key, node }.into());
        }
        let charged = self.charge(planned, &plan.tenant, ChargeMode::Guarded)?;
        let now = self.rows.now;
        let mut claim = claim_of(planned, &plan.tenant, &plan.request_id, charged, now);
        claim.lease_until = Some(now.plus_seconds(plan.lease_s.into()));
        claim.batch = plan.batch;
        let granted = granted(&claim);
        let allocated = self.allocated(&claim, Some(planned));
        self.events.push(EventBody::Allocated(Box::new(allocated)));
        self.rows.claims.set(&planned.key, Some(claim));
        Ok(granted)
    }
}

fn granted(claim: &Claim) -> GrantedClaim {
    GrantedClaim {
        instance: claim.key.instance,
        role: claim.key.role,
        node: claim.node.clone(),
        fence: claim.fence,
        lease_until: claim.lease_until,
        values: claim
            .holdings
            .as_deref()
            .map(|holdings| holdings.values.clone())
            .unwrap_or_default(),
        slot: claim.slot(),
    }
}

fn verdict(planned: &PlannedClaim, error: ChargeError) -> Verdict {
    match error {
        ChargeError::Guard(guard) => Verdict::Conflict(Box::new(Conflict {
            instance: planned.key.instance,
            node: planned.node.clone(),
            guard,
        })),
        ChargeError::Refused(by) => Verdict::Refused(by),
    }
}

/// Why a plan is invalid, whatever the fleet.
fn malformed(plan: &Plan) -> Option<RefusalReason> {
    let refuse = |why: String| Some(RefusalReason::Malformed(why));
    if plan.claims.is_empty() {
        return refuse("the plan has no claims; give at least one".to_owned());
    }
    let names = [&plan.request_id, &plan.tenant].into_iter().map(|text| &**text);
    let texts = plan.claims.iter().flat_map(|claim| {
        let request = &claim.request;
        let lists = request.groups.iter().chain(&request.volumes).chain(request.extra.keys());
        let single = request.name.iter().chain(&request.workload);
        lists.chain(single).map(String::as_str)
    });
    if let Some(text) = names.chain(texts).find(|text| text.contains('\0')) {
        return refuse(format!("{text:?} contains a NUL character; leave it out"));
    }
    let mut keys = BTreeSet::new();
    for claim in &plan.claims {
        if plan.claims.len() > 1 && !keys.insert(claim.key) {
            return refuse(format!("the plan has instance {} twice; give it once", claim.key));
        }
        if claim.demand.amounts.memory_mib == 0 {
            return refuse(format!("instance {}: memory_mib is 0; give at least 1", claim.key));
        }
        if *claim.request.tenant != *plan.tenant {
            let (tenant, found) = (&plan.tenant, &claim.request.tenant);
            let key = claim.key;
            return refuse(format!("instance {key} belongs to {found:?}, the plan to {tenant:?}"));
        }
    }
    None
}

fn record(plan: &Plan) -> DecisionRecord {
    let placed = |claim: &PlannedClaim| PlacedInstance {
        instance: claim.key.instance,
        node: claim.node.clone(),
        score: claim.score,
        constraint_gen: claim.node_version.constraint_gen,
    };
    DecisionRecord::new(
        Text::clone(&plan.request_id),
        Text::clone(&plan.tenant),
        plan.basis.clone(),
        plan.claims.iter().map(|claim| (claim.key.instance, claim.spec.clone())).collect(),
        DecisionOutcome::Granted(plan.claims.iter().map(placed).collect()),
    )
}
