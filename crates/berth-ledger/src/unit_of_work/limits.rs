//! Limits of what is stored, no matter who stores it. The API has refused such a request already: this
//! keeps any other way in from storing what a later start would have to read.
//!
//! Every operation is named here, so that a new one cannot be without limits. What is compared with
//! rows and not stored needs none. A check costs about as much as reading the texts once, and most
//! operations have few.

use std::sync::Arc;

use berth_engine::limits::{Limit, LimitExceeded, Limited, Meter, check_size, table};
use berth_engine::{FactChange, FactValues, InstanceRequest, NodeFacts, NodeId};
use serde_json::Value;

use crate::model::{
    Adopt, Answer, Audited, ClaimRejection, DecisionRecord, DocumentWrite, IfUnanswered, Op,
    Outcome, Plan, PlannedClaim, Pool, Preempt, QuarantinedTicket, RefusalReason, Release, Resize,
    Scheduling, StartTenantRemoval, Text, UnmetDemand, Verdict, Workload,
};

type Checked = Result<(), LimitExceeded>;

/// Checks what an operation itself would store. What is inside another is checked when its turn comes.
pub(super) fn check(op: &Op) -> Checked {
    match op {
        Op::Commit(plan) | Op::DryRun(plan, _) => check_plan(plan),
        Op::Preempt(preempt) => check_preemption(preempt),
        Op::Release(release) => check_release(release),
        Op::StopMember(stop) => check_release(&stop.release),
        Op::Resize(resize) => check_resize(resize),
        Op::Move(to) => request_id(&to.request_id).and_then(|()| check_claim(&to.to)),
        Op::Hold(hold) => check_claim(&hold.to),
        Op::Adopt(adopt) => check_adoption(adopt),
        Op::PutNode { facts, .. } => facts.check_limits(),
        Op::ChangeFacts { node, change, create, .. } => {
            check_facts_change(node, change, create.as_deref())
        }
        Op::SetHealth { degraded, .. } => line("degraded", degraded.as_ref(), table::REASON),
        Op::RefuseReport { code, .. } => name("code", code),
        Op::PutGroup(group) => group.check_limits(),
        Op::PutVolume(volume) => volume.check_limits(),
        Op::MarkVolume { moving_to, .. } => {
            known("moving_to", moving_to.as_ref().map_or("", NodeId::as_str))
        }
        Op::PutPool(pool) => check_pool(pool),
        Op::PutQuota { tenant, .. } => name("tenant", tenant),
        Op::PutSecrets { tenant, env, version } => {
            check_secrets(tenant.as_ref(), env, version.as_ref())
        }
        Op::PutWorkload { workload, .. } => check_workload(workload),
        Op::SetScheduling(scheduling) => check_scheduling(scheduling),
        Op::PutPolicy { name, hash, body } | Op::ActivatePolicy { name, hash, body, .. } => {
            check_policy(name, hash, body)
        }
        Op::PutDocument { kind, id, body, .. } => check_document(kind, id, body),
        Op::QuarantineTicket(ticket) => check_quarantined(ticket),
        Op::Record(decisions) => check_records(decisions),
        Op::Demand(demand) => check_demand(demand),
        Op::StartTenantRemoval(start) => check_removal(start),
        Op::IfUnanswered(request) => check_unanswered(request),
        Op::Audited(audited) => check_audited(audited),
        Op::WithDocuments(with) => check_documents(&with.documents),
        // Numbers, states, and names that only find rows.
        Op::Advance(_)
        | Op::Permit(_)
        | Op::Bounds(_)
        | Op::Switch(_)
        | Op::Reap(_)
        | Op::ReconcileNode(_)
        | Op::ReconcileGroup(_)
        | Op::ReconcileTenant(_)
        | Op::SetNodeState { .. }
        | Op::RemoveNode { .. }
        | Op::SetReserve { .. }
        | Op::Heartbeats(_)
        | Op::SetLoads(_)
        | Op::RemoveGroup(_)
        | Op::RemoveVolume(_)
        | Op::RemovePool(_)
        | Op::RemoveQuota(_)
        | Op::RemoveWorkload { .. }
        | Op::RemoveDocument { .. }
        | Op::EndTenantRemoval { .. }
        | Op::ForTenants(_) => Ok(()),
    }
}

/// The answer to an operation that would store something beyond a limit.
pub(super) fn refusal(op: &Op, excess: &LimitExceeded) -> Answer {
    let why = excess.to_string();
    let rejection = |why| ClaimRejection::Refused(RefusalReason::Malformed(why));
    match op.bare() {
        Op::Commit(_) | Op::DryRun(..) | Op::Preempt(_) => {
            Answer::Plan(Verdict::Refused(RefusalReason::Malformed(why)))
        }
        Op::Advance(_)
        | Op::Release(_)
        | Op::StopMember(_)
        | Op::Resize(_)
        | Op::Move(_)
        | Op::Hold(_)
        | Op::Switch(_)
        | Op::Adopt(_) => Answer::Claim(Err(rejection(why))),
        Op::Permit(_) | Op::Bounds(_) => Answer::Permit(Box::new(Err(rejection(why)))),
        _ => Answer::Outcome(Outcome::Impossible(why)),
    }
}

/// A text of one line that is new: it has no control characters either.
fn line(field: &str, text: Option<&Text>, limit: Limit) -> Checked {
    let checked = text.map_or(Ok(()), |text| text.check(limit, &mut Meter::default()));
    checked.map_err(|error| error.inside(field))
}

fn name(field: &str, name: &Text) -> Checked {
    line(field, Some(name), table::NAME)
}

/// A name that may be of something stored earlier, when control characters were accepted.
fn known(field: &str, name: &str) -> Checked {
    let mut meter = Meter { bytes: 0, ignores_control: true };
    name.check(table::NAME, &mut meter).map_err(|error| error.inside(field))
}

/// The same where there may be none.
fn known_if_any(field: &str, name: Option<&Text>) -> Checked {
    name.map_or(Ok(()), |name| known(field, name))
}

fn request_id(id: &str) -> Checked {
    let mut meter = Meter { bytes: 0, ignores_control: true };
    id.check(table::STORED_REQUEST_ID, &mut meter).map_err(|error| error.inside("request_id"))
}

fn bytes(field: &str, text: &str, most: usize) -> Checked {
    check_size(text.len(), most).map_err(|error| error.inside(field))
}

fn items(field: &str, found: usize, limit: Limit) -> Checked {
    limit.check_items(found).map_err(|error| error.inside(field))
}

fn check_document(kind: &str, id: &str, body: &str) -> Checked {
    known("kind", kind)?;
    bytes("id", id, table::STORED_TEXT_BYTES)?;
    bytes("body", body, table::STORED_DOCUMENT_BYTES)
}

fn check_documents(documents: &[DocumentWrite]) -> Checked {
    documents.iter().try_for_each(|it| check_document(&it.kind, &it.id, &it.body))
}

fn check_preemption(preempt: &Preempt) -> Checked {
    check_plan(&preempt.plan)?;
    items("victims", preempt.victims.len(), table::VICTIMS)
}

fn check_resize(resize: &Resize) -> Checked {
    request_id(&resize.request_id)?;
    known_if_any("tenant", resize.tenant.as_ref())
}

fn check_adoption(adopt: &Adopt) -> Checked {
    request_id(&adopt.request_id)?;
    check_instance(&adopt.request)
}

fn check_pool(pool: &Pool) -> Checked {
    name("id", &pool.id)?;
    line("tenant", pool.tenant.as_ref(), table::NAME)
}

fn check_secrets(tenant: Option<&Text>, env: &Text, version: Option<&Text>) -> Checked {
    line("tenant", tenant, table::NAME)?;
    name("env", env)?;
    line("version", version, table::NAME)
}

fn check_workload(workload: &Workload) -> Checked {
    known("tenant", &workload.tenant)?;
    known("name", &workload.name)?;
    bytes("body", &workload.body, table::STORED_WORKLOAD_BYTES)
}

fn check_policy(name: &str, hash: &str, body: &str) -> Checked {
    known("name", name)?;
    known("hash", hash)?;
    bytes("body", body, table::STORED_POLICY_BYTES)
}

fn check_removal(start: &StartTenantRemoval) -> Checked {
    known("tenant", &start.tenant)?;
    bytes("actor", &start.actor, table::STORED_TEXT_BYTES)?;
    bytes("origin", &start.origin, table::STORED_TEXT_BYTES)
}

fn check_demand(demand: &UnmetDemand) -> Checked {
    known("tenant", &demand.tenant)?;
    known("code", &demand.code)?;
    bytes("spec", &demand.spec, table::STORED_SPEC_BYTES)
}

fn check_plan(plan: &Plan) -> Checked {
    request_id(&plan.request_id)?;
    known("tenant", &plan.tenant)?;
    items("claims", plan.claims.len(), table::INSTANCES)?;
    let mut before: Option<&Arc<InstanceRequest>> = None;
    for (place, claim) in plan.claims.iter().enumerate() {
        // Instances of one specification may share it.
        let is_checked = before.is_some_and(|before| Arc::ptr_eq(before, &claim.request));
        before = Some(&claim.request);
        let checked = if is_checked { check_holdings(claim) } else { check_claim(claim) };
        checked.map_err(|error| error.at(place).inside("claims"))?;
    }
    Ok(())
}

fn check_claim(claim: &PlannedClaim) -> Checked {
    check_instance(&claim.request)?;
    check_holdings(claim)
}

fn check_instance(request: &InstanceRequest) -> Checked {
    request.check_stored().map_err(|error| error.inside("request"))
}

/// What a claim has besides the instance's own specification.
fn check_holdings(claim: &PlannedClaim) -> Checked {
    bytes("spec", claim.spec.as_str(), table::STORED_SPEC_BYTES)?;
    items("pools", claim.pools.len(), table::POOLS)?;
    claim.pools.iter().try_for_each(|pool| known("pools", pool))?;
    known("node", claim.node.as_str())?;
    if let Some(slot) = &claim.slot {
        known("slot", &slot.tenant).and_then(|()| known("slot", &slot.workload))?;
    }
    known_if_any("release_id", claim.release_id.as_ref())?;
    known_if_any("secrets_version", claim.secrets_version.as_ref())
}

fn check_release(release: &Release) -> Checked {
    request_id(&release.request_id)?;
    known_if_any("tenant", release.tenant.as_ref())?;
    line("reason", Some(&release.reason), table::REASON)
}

fn check_facts_change(node: &NodeId, change: &FactChange, create: Option<&NodeFacts>) -> Checked {
    known("node", node.as_str())?;
    create.map_or(Ok(()), NodeFacts::check_limits)?;
    check_change(change)
}

/// Facts that are set one by one. What they come to with the others is checked when they are merged.
fn check_change(change: &FactChange) -> Checked {
    match change {
        FactChange::Report(values) | FactChange::Policy(values) => check_values(values),
        FactChange::Set { values, unset } => {
            check_values(values)?;
            let limit = Limit::List(table::NODE_OVERRIDES.most(), &table::FACT_PATH);
            let mut meter = Meter { bytes: 0, ignores_control: true };
            unset.check(limit, &mut meter).map_err(|error| error.inside("unset"))
        }
    }
}

fn check_values(values: &FactValues) -> Checked {
    let mut meter = Meter { bytes: 0, ignores_control: true };
    let checked = values.check(table::NODE_OVERRIDES, &mut meter);
    let total = values.values().fold(meter.bytes, |sum, value| sum.saturating_add(size_of(value)));
    // Values are counted as JSON, which takes more than what they are read as.
    checked
        .and_then(|()| check_size(total, 2 * table::NODE_BYTES))
        .map_err(|error| error.inside("values"))
}

/// Bytes of the texts and parts of a value. Who read it has limited how deep it is.
fn size_of(value: &Value) -> usize {
    const PART: usize = 16;
    match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => PART,
        Value::String(text) => PART + text.len(),
        Value::Array(items) => PART + items.iter().map(size_of).sum::<usize>(),
        Value::Object(fields) => {
            PART + fields.iter().map(|(key, value)| key.len() + size_of(value)).sum::<usize>()
        }
    }
}

fn check_scheduling(scheduling: &Scheduling) -> Checked {
    known("tenant", &scheduling.tenant)?;
    known_if_any("env", scheduling.env.as_ref())?;
    known("workload", &scheduling.workload)?;
    let Some(failing) = &scheduling.failing else { return Ok(()) };
    known("code", &failing.code)?;
    bytes("message", &failing.message, table::STORED_TEXT_BYTES)?;
    bytes("body", &failing.body, table::STORED_DOCUMENT_BYTES)
}

fn check_quarantined(ticket: &QuarantinedTicket) -> Checked {
    known("tenant", &ticket.tenant)?;
    known("ticket", &ticket.ticket)?;
    bytes("excess", &ticket.excess, table::STORED_TEXT_BYTES)
}

fn check_records(decisions: &[DecisionRecord]) -> Checked {
    decisions.iter().try_for_each(check_record).map_err(|error| error.inside("decisions"))
}

fn check_record(decision: &DecisionRecord) -> Checked {
    request_id(&decision.request_id)?;
    known("tenant", &decision.tenant)?;
    items("instances", decision.specs.len(), table::INSTANCES)?;
    items("preempted", decision.preempted.len(), table::VICTIMS)?;
    let mut specs = decision.specs.iter();
    specs.try_for_each(|spec| bytes("spec", spec.as_str(), table::STORED_SPEC_BYTES))
}

fn check_unanswered(request: &IfUnanswered) -> Checked {
    request_id(&request.request_id)?;
    known("tenant", &request.tenant)?;
    let closed = request.ticket.as_ref().and_then(|ticket| ticket.closed.as_deref());
    bytes("ticket", closed.unwrap_or(""), table::STORED_DOCUMENT_BYTES)
}

fn check_audited(audited: &Audited) -> Checked {
    let Audited { actor, origin, action, subject, request_id: id, op: _ } = audited;
    for (field, text) in
        [("actor", actor), ("origin", origin), ("action", action), ("subject", subject)]
    {
        bytes(field, text, table::STORED_TEXT_BYTES)?;
    }
    id.as_ref().map_or(Ok(()), |id| request_id(id))
}
