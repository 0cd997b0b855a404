//! Why nodes can or cannot take an instance, node by node: for a request on a copy of the fleet as it
//! is, and for a decision on the fleet as it was.
//!
//! Neither runs on the planner's thread, and one of each kind runs at a time: an explanation may
//! wait, a placement does not wait for it. Few may wait, and fewer of one tenant, so that nobody waits
//! long for others.

use berth_api::{DecisionExplanation, InstanceExplanation, PlaceRequest};
use berth_engine::{InstanceId, InstanceRequest, NodeId, PlaceError};
use berth_ledger::{ClaimKey, Decision, DecisionOutcome, Ledger, LedgerError};

use crate::caller::Caller;
use crate::control_plane::ControlPlane;
use crate::error::{ControlError, ControlResult};
use crate::explanation_queue::ExplanationTurn;
use crate::moves::sandbox::FleetSnapshot;
use crate::placement::{Audience, invalid_request, prepare};
use crate::replay::{self, ExplanationRange};
use crate::tenant_limits::LimitKind;

/// Events of the log that cost as much to read as one more explanation.
const EVENTS_PER_EXPLANATION: i64 = 50_000;

/// Explains what would be decided now for one instance of a request: the first, unless another is
/// named. Nothing is claimed, and the other instances of the request are not placed.
///
/// # Errors
/// When the request is not valid, too many explanations are asked for, or the server is stopping.
pub async fn explain_request(
    control: &ControlPlane,
    caller: &Caller,
    request: PlaceRequest,
    range: ExplanationRange,
) -> ControlResult<InstanceExplanation> {
    let prepared = prepare(control, caller, request, None).await?;
    let audience = Audience::of(control, caller, &prepared.tenant);
    let mut instances = prepared.instances().iter();
    let wanted = match range.instance {
        None => instances.next(),
        Some(id) => instances.find(|instance| instance.id == id),
    };
    let Some(wanted) = wanted else {
        let value = range.instance.map(|id| id.to_string());
        return Err(ControlError::field("instance", value, "an instance of the request"));
    };
    let instance = InstanceRequest::clone(wanted);
    let (id, name) = (instance.id, instance.name.clone());
    control.admit(caller, &prepared.tenant, LimitKind::Explanations, 1)?;
    let _turn = control
        .explanations
        .of_requests
        .turn(&control.metrics, &queue_key(caller, &prepared.tenant))
        .await?;
    let snapshot = FleetSnapshot::take(control).await?;
    let explained = snapshot
        .plan(move |snapshot| snapshot.build().explain(&instance, range.from, range.limit))
        .await?;
    let page = explained.map_err(|error| match error {
        PlaceError::Invalid(invalid) => invalid_request(&invalid),
        PlaceError::Refused(refusal) => ControlError::invalid(refusal.headline()),
    })?;
    let explanation = InstanceExplanation { instance: id, name, page };
    audience.instance_explanation(explanation).ok_or_else(no_policy)
}

/// Whose explanation it is in a queue: an operator's does not wait for those of the tenant.
fn queue_key(caller: &Caller, tenant: &str) -> String {
    if caller.is_tenant() { tenant.to_owned() } else { caller.actor() }
}

/// The turn to derive a decision again. It costs as much as the log before it is long.
async fn turn_to_replay<'a>(
    control: &'a ControlPlane,
    caller: &Caller,
    decision: &Decision,
) -> ControlResult<ExplanationTurn<'a>> {
    let tenant = &decision.record.tenant;
    let events = decision.record.basis.fleet_version / EVENTS_PER_EXPLANATION;
    let cost = 1 + usize::try_from(events).unwrap_or(0);
    control.admit(caller, tenant, LimitKind::Explanations, cost)?;
    control.explanations.of_decisions.turn(&control.metrics, &queue_key(caller, tenant)).await
}

/// Explains one instance of a decision, as a caller may see it, on the fleet rebuilt from the log.
///
/// # Errors
/// When the ledger cannot be read, or too many explanations are asked for.
pub async fn explain_decision(
    control: &ControlPlane,
    caller: &Caller,
    decision: Decision,
    range: ExplanationRange,
) -> ControlResult<DecisionExplanation> {
    let audience = Audience::of(control, caller, &decision.record.tenant);
    let turn = turn_to_replay(control, caller, &decision).await?;
    let explained = control
        .read_at_length(move |ledger| replay::explain_decision(ledger, &decision, range))
        .await;
    drop(turn);
    let mut explained = explained?;
    if let Some(explanation) = explained.explanation.take() {
        let seen = audience.instance_explanation(explanation).ok_or_else(no_policy)?;
        explained.explanation = Some(seen);
    }
    Ok(explained)
}

/// Derives a decision again, in turn with explanations of decisions.
///
/// # Errors
/// When the ledger cannot be read.
pub async fn replay_decision(
    control: &ControlPlane,
    caller: &Caller,
    decision: Decision,
) -> ControlResult<berth_api::Replay> {
    let _turn = turn_to_replay(control, caller, &decision).await?;
    control.read_at_length(move |ledger| replay::replay(ledger, &decision)).await
}

/// The decision that placed an instance, and the node that it chose.
///
/// # Errors
/// When the ledger cannot be read.
pub fn decision_of(
    ledger: &Ledger,
    instance: InstanceId,
) -> Result<Option<(Decision, NodeId)>, LedgerError> {
    let Some(claim) = ledger.claim(ClaimKey::primary(instance))? else { return Ok(None) };
    let Some(decision) = ledger.decision_of(&claim)? else { return Ok(None) };
    let DecisionOutcome::Granted(placed) = &decision.record.outcome else { return Ok(None) };
    let node = placed.iter().find(|placed| placed.instance == instance);
    let node = node.map(|placed| placed.node.clone());
    Ok(node.map(|node| (decision, node)))
}

/// Without a policy it is not known what a tenant may see.
fn no_policy() -> ControlError {
    ControlError::unavailable("stopping", "the policy in force is not known yet")
}
