//! What is stored of a request that got no place.

use std::sync::Arc;

use berth_engine::{Fix, InstanceRequest, Refusal};
use berth_ledger::{
    Answer, Audited, Basis, DecisionOutcome, DecisionRecord, Job, LedgerError, Op, RefusalDetail,
    RefusalReason, Spec, Text, UnmetDemand,
};

use super::pending_plan::PendingPlan;
use super::{PlaceAnswer, PlaceRequest};
use crate::error::describe_limit;

/// Answers a request that no node can take. What must be stored comes back, and the caller is answered
/// when it is durable.
pub(super) fn refuse(pending: PendingPlan, refusals: Vec<Refusal>, basis: Basis) -> Vec<Job> {
    let request = &pending.job.request;
    // A dry run leaves no trace, and what was recorded once need not be again.
    if request.quiet || request.dry_run {
        pending.answer(PlaceAnswer::NoRoom(refusals));
        return Vec::new();
    }
    let code = refusals.first().map_or("no_nodes_active", |refusal| refusal.code.as_ref());
    let code = code.to_owned();
    let detail = serde_json::to_string(&refusals).ok().map(|json| RefusalDetail::new(&json));
    let outcome = DecisionOutcome::Refused { code: code.clone(), detail };
    let asked = specs(&request.instances);
    let demand: Vec<Op> = unmet_demand(&request.instances, &asked, &code).collect();
    let mut ops = vec![record(request, basis, asked, &code, outcome)];
    ops.extend(demand);
    // The caller is answered when the last of it is durable.
    let last = ops.len() - 1;
    let mut answer = Some((pending, refusals));
    let jobs = ops.into_iter().enumerate().map(|(number, op)| {
        let answer = if number == last { answer.take() } else { None };
        let reply = Box::new(move |stored: Result<Answer, LedgerError>| {
            if let Some((pending, refusals)) = answer {
                pending.answer(
                    stored.map_or_else(PlaceAnswer::Unknown, |_| PlaceAnswer::NoRoom(refusals)),
                );
            }
        });
        Job { op, reply }
    });
    jobs.collect()
}

/// The record of a request that the ledger refused for a reason that another node would not change;
/// absent if it is no decision, or was recorded before.
fn record_refusal(
    pending: &PendingPlan,
    by: &RefusalReason,
    fixes: &[Fix],
    basis: Basis,
) -> Option<Op> {
    let is_a_decision =
        matches!(by, RefusalReason::Quota { .. } | RefusalReason::PoolExhausted { .. });
    let request = &pending.job.request;
    if !is_a_decision || request.quiet || request.dry_run {
        return None;
    }
    let code = by.code();
    let reason = serde_json::json!({ "reason": describe_limit(by), "fixes": fixes }).to_string();
    let detail = Some(RefusalDetail::new(&reason));
    let outcome = DecisionOutcome::Refused { code: code.to_owned(), detail };
    Some(record(request, basis, specs(&request.instances), code, outcome))
}

/// Answers a request that the ledger refused for such a reason. What must be stored comes back, and the
/// caller is answered when it is durable.
pub(super) fn refuse_by_limit(
    pending: PendingPlan,
    by: RefusalReason,
    fixes: Vec<Fix>,
    basis: Basis,
) -> Option<Job> {
    let Some(op) = record_refusal(&pending, &by, &fixes, basis) else {
        pending.answer(PlaceAnswer::Refused(by, fixes));
        return None;
    };
    let reply = Box::new(move |answer: Result<Answer, LedgerError>| {
        let answer = answer.map_or_else(PlaceAnswer::Unknown, |_| PlaceAnswer::Refused(by, fixes));
        pending.answer(answer);
    });
    Some(Job { op, reply })
}

/// The stored form of requests; consecutive ones of one class share it.
fn specs(instances: &[Arc<InstanceRequest>]) -> Vec<Spec> {
    let mut specs: Vec<Spec> = Vec::with_capacity(instances.len());
    for (place, instance) in instances.iter().enumerate() {
        let is_same = |before: usize| instances[before].same_class(instance);
        let spec = match place.checked_sub(1).filter(|before| is_same(*before)) {
            Some(before) => specs[before].clone(),
            None => Spec::of(instance),
        };
        specs.push(spec);
    }
    specs
}

/// The demand of a refused request: each shape once, with how often it was asked for.
fn unmet_demand<'a>(
    instances: &'a [Arc<InstanceRequest>],
    asked: &'a [Spec],
    code: &'a str,
) -> impl Iterator<Item = Op> + 'a {
    let mut shapes: Vec<(&InstanceRequest, &Spec, i64)> = Vec::new();
    for (instance, spec) in instances.iter().zip(asked) {
        match shapes.last_mut().filter(|(_, last, _)| *last == spec) {
            Some((.., times)) => *times += 1,
            None => shapes.push((instance, spec, 1)),
        }
    }
    shapes.into_iter().map(move |(instance, spec, times)| {
        Op::Demand(UnmetDemand {
            tenant: instance.tenant.clone(),
            code: code.to_owned(),
            spec: spec.as_str().to_owned(),
            times,
            first_at: 0,
            last_at: 0,
        })
    })
}

fn record(
    request: &PlaceRequest,
    basis: Basis,
    asked: Vec<Spec>,
    code: &str,
    outcome: DecisionOutcome,
) -> Op {
    let asked = request.instances.iter().map(|instance| instance.id).zip(asked).collect();
    let (id, tenant) = (Text::clone(&request.request_id), Text::clone(&request.tenant));
    let record = DecisionRecord::new(id, tenant, basis, asked, outcome);
    named(request, "refuse", code, Op::Record(vec![record]))
}

/// An operation under the name of its caller.
pub(super) fn named(request: &PlaceRequest, action: &str, subject: &str, op: Op) -> Op {
    let Some(by) = &request.by else { return op };
    let (actor, origin) = (Text::clone(&by.name), Text::clone(&by.origin));
    let request_id = Some(Text::clone(&request.request_id));
    let (action, subject) = (Text::from(action), Text::from(subject));
    Op::Audited(Box::new(Audited { actor, origin, action, subject, request_id, op }))
}
