//! The way in for placements: those that may wait go to the queue when there is no room.

use std::sync::Arc;

use berth_api::limits::Limited as _;
use berth_api::{PlaceRequest, Placed, Problem};
use berth_engine::Refusal;
use berth_ledger::{LedgerError, Text};

use super::tickets::enqueue;
use crate::caller::Caller;
use crate::control_plane::ControlPlane;
use crate::error::{ControlError, ControlResult};
use crate::placement::{
    Audience, PreparedPlacement, actor, decide, place_now, placed_or_error, prepare,
};
use crate::placer::{Actor, PlaceAnswer};
use crate::tenant_limits::LimitKind;

/// What became of a placement.
#[derive(Debug)]
pub enum Outcome {
    /// Granted, or in a dry run would be.
    Placed(Placed),
    /// It waits, under this ticket.
    Waits(String),
}

/// What became of a waiting request that was tried.
#[derive(Debug)]
pub(super) enum Attempt {
    /// Granted.
    Placed(Placed),
    /// Not yet.
    NoRoom(Problem),
    /// Not ever.
    Never(Problem),
    /// The ledger does not know.
    Unknown(LedgerError),
}

/// Places, or queues, for a caller.
///
/// # Errors
/// A refusal is an error with the whole explanation.
pub async fn place(
    control: &Arc<ControlPlane>,
    caller: &Caller,
    request: PlaceRequest,
    request_id: Option<String>,
) -> ControlResult<Outcome> {
    let prepared = prepare(control, caller, request, request_id).await?;
    let kind = if prepared.request.dry_run { LimitKind::DryRuns } else { LimitKind::Placements };
    control.admit(caller, &prepared.tenant, kind, prepared.instances().len())?;
    if prepared.is_waiting() && !prepared.request.dry_run {
        return place_or_wait(control, caller, prepared).await;
    }
    place_now(control, caller, &prepared).await.map(Outcome::Placed)
}

/// Requests that wait already come first; only when there are none is a place looked for at once.
async fn place_or_wait(
    control: &Arc<ControlPlane>,
    caller: &Caller,
    prepared: PreparedPlacement,
) -> ControlResult<Outcome> {
    let request_id = prepared.place_id();
    if let Some(ticket) = control.queue.of_request(&prepared.tenant, request_id) {
        return Ok(Outcome::Waits(ticket));
    }
    let mut problem = None;
    if control.queue.waiting() == 0 {
        let answer = decide(control, &prepared, Some(actor(caller)), false).await;
        if matches!(answer, PlaceAnswer::NoRoom(_)) {
            control.charge_refusal(caller, &prepared.tenant);
        }
        let may_wait = matches!(
            answer,
            PlaceAnswer::NoRoom(_) | PlaceAnswer::Contended(_) | PlaceAnswer::Refused(_)
        );
        let worth_queueing = is_worth_queueing(&answer);
        // A tenant may read the ticket later.
        let audience = if may_wait {
            Audience::tenant(control, &prepared.tenant)
        } else {
            Audience::of(control, caller, &prepared.tenant)
        };
        match placed_or_error(&prepared, answer, &audience) {
            Ok(placed) => return Ok(Outcome::Placed(placed)),
            Err(error) if worth_queueing || (may_wait && error.may_retry()) => {
                problem = Some(error.into_problem());
            }
            Err(error) => return Err(error),
        }
    }
    control.admit(caller, &prepared.tenant, LimitKind::Tickets, 1)?;
    let ticket = enqueue(control, caller, prepared.request, problem).await?;
    Ok(Outcome::Waits(ticket))
}

/// Whether there is no room, and nodes may change or be added so that there is.
fn is_worth_queueing(answer: &PlaceAnswer) -> bool {
    matches!(answer, PlaceAnswer::NoRoom(refusals) if refusals.iter().any(Refusal::is_worth_queueing))
}

/// Tries a request that waits, whose instances all have ids.
pub(super) async fn try_waiting(
    control: &Arc<ControlPlane>,
    request: &PlaceRequest,
    actor: &str,
    origin: &str,
) -> Attempt {
    let caller = Caller::local("queue");
    // An earlier version may have accepted more than this one.
    if let Err(excess) = request.check_stored() {
        let error = ControlError::quarantined("the waiting request", &excess.to_string());
        return Attempt::Never(error.into_problem());
    }
    let prepared = match prepare(control, &caller, request.clone(), None).await {
        Ok(prepared) => prepared,
        Err(error) => return Attempt::Never(error.into_problem()),
    };
    let by = Actor { name: Text::from(actor), origin: Text::from(origin) };
    let answer = decide(control, &prepared, Some(by), true).await;
    if let PlaceAnswer::Unknown(error) = answer {
        return Attempt::Unknown(error);
    }
    let worth_queueing = is_worth_queueing(&answer);
    // A tenant may read the ticket later.
    let audience = Audience::tenant(control, &prepared.tenant);
    match placed_or_error(&prepared, answer, &audience) {
        Ok(placed) => Attempt::Placed(placed),
        Err(error) if worth_queueing || error.may_retry() => Attempt::NoRoom(error.into_problem()),
        Err(error) => Attempt::Never(error.into_problem()),
    }
}
