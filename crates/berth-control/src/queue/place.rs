//! The way in for placements: those that may wait go to the queue when there is no room.

use std::sync::Arc;

use berth_api::limits::Limited as _;
use berth_api::{PlaceRequest, Placed, Problem, Ticket};
use berth_engine::Refusal;
use berth_ledger::{LedgerError, RefusalReason, Text};

use super::granting::{has_lapsed, leases_of_grant, record_grant};
use super::tickets::{self, EnqueueResult, enqueue};
use crate::caller::Caller;
use crate::control_plane::ControlPlane;
use crate::error::{ControlError, ControlResult};
use crate::placement::{
    Audience, PreparedPlacement, actor, decide, place_now, placed_or_error, prepare,
};
use crate::placer::{Actor, OrderedAttempt, PlaceAnswer};
use crate::state::TicketRecord;
use crate::state::tickets::{hash_of_request, ticket_of_closed_body};
use crate::tenant_limits::LimitKind;

/// What became of a placement.
#[derive(Debug)]
pub enum Outcome {
    /// Granted, or in a dry run would be.
    Placed(Placed),
    /// It waits, under this ticket.
    Waits(String),
    /// It waited, under this ticket, which was closed long ago.
    Closed(Box<Ticket>),
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
    /// An earlier version accepted it, and this one does not: which limit it exceeds.
    Quarantined(String),
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
    if !prepared.request.dry_run {
        if prepared.is_waiting() {
            return place_or_wait(control, caller, prepared).await;
        }
        check_waiting_ticket(control, &prepared)?;
    }
    place_now(control, caller, &prepared).await.map(Outcome::Placed)
}

/// A request that waits keeps its id from being used for something else in another mode. The commit finds
/// that too, also where the ticket is another server's and not known here; but not the tickets of earlier
/// releases.
pub(crate) fn check_waiting_ticket(
    control: &ControlPlane,
    prepared: &PreparedPlacement,
) -> ControlResult<()> {
    let ticket = control.queue.of_request(&prepared.tenant, prepared.place_id());
    let known = ticket.and_then(|id| control.queue.tickets.get(&id));
    known.map_or(Ok(()), |known| check_same_request(&known.value, prepared))
}

fn check_same_request(stored: &TicketRecord, prepared: &PreparedPlacement) -> ControlResult<()> {
    if stored.is_same_request(&prepared.request) {
        return Ok(());
    }
    Err(request_id_reused(prepared))
}

fn request_id_reused(prepared: &PreparedPlacement) -> ControlError {
    let request_id = Text::from(prepared.place_id());
    ControlError::from(&RefusalReason::RequestIdReused { request_id })
}

/// Requests that wait already come first; only when there are none is a place looked for at once.
async fn place_or_wait(
    control: &Arc<ControlPlane>,
    caller: &Caller,
    prepared: PreparedPlacement,
) -> ControlResult<Outcome> {
    if let Some(ticket) = control.queue.of_request(&prepared.tenant, prepared.place_id()) {
        tickets::refresh_open(control, &ticket).await?;
        return answer_with_ticket(control, &prepared, ticket).await;
    }
    if let Some(outcome) = find_earlier_ticket(control, &prepared).await? {
        return Ok(outcome);
    }
    let mut problem = None;
    if control.queue.waiting() == 0 {
        let answer = decide(control, &prepared, Some(actor(caller)), false).await;
        if matches!(answer, PlaceAnswer::NoRoom(_)) {
            let instances = prepared.instances().len();
            control.charge_refusal(caller, &prepared.tenant, instances, true);
        }
        let may_wait = matches!(
            answer,
            PlaceAnswer::NoRoom(_) | PlaceAnswer::Contended(_) | PlaceAnswer::Refused(..)
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
    match enqueue(control, caller, prepared.request.clone(), problem).await? {
        // No caller can have asked for it before.
        EnqueueResult::New(ticket) if !prepared.may_be_retry => Ok(Outcome::Waits(ticket)),
        EnqueueResult::New(ticket) | EnqueueResult::Known(ticket) => {
            answer_with_ticket(control, &prepared, ticket).await
        }
        // It was granted before: the claim path gives that answer, or finds that it was another
        // request.
        EnqueueResult::Answered => place_now(control, caller, &prepared).await.map(Outcome::Placed),
    }
}

/// The answer to a request whose ticket is not known here: another server may have made it, or it was
/// closed long ago.
async fn find_earlier_ticket(
    control: &Arc<ControlPlane>,
    prepared: &PreparedPlacement,
) -> ControlResult<Option<Outcome>> {
    if !prepared.may_be_retry {
        return Ok(None);
    }
    let (tenant, request_id) = (prepared.tenant.clone(), prepared.place_id().to_owned());
    let kept = control.read(move |ledger| ledger.ticket_answer(&tenant, &request_id)).await?;
    let Some(kept) = kept else { return Ok(None) };
    if kept.request_hash != hash_of_request(&prepared.request) {
        return Err(request_id_reused(prepared));
    }
    let Some(closed) = kept.closed else {
        let ticket = control.instance_ids.derive_ticket(&prepared.tenant, prepared.place_id());
        tickets::find(control, &ticket).await?;
        return answer_with_ticket(control, prepared, ticket).await.map(Some);
    };
    let ticket = ticket_of_closed_body(&closed, &prepared.request);
    let ticket = ticket.map_err(|error| LedgerError::Corrupt(error.to_string()))?;
    Ok(Some(Outcome::Closed(Box::new(ticket))))
}

/// The answer to a request that has a ticket. A server may have granted the request without the
/// ticket: it looked for a place before the ticket was written, or ended before it could close it.
/// That grant is then the ticket's, so that all servers give one answer from here on.
async fn answer_with_ticket(
    control: &Arc<ControlPlane>,
    prepared: &PreparedPlacement,
    ticket: String,
) -> ControlResult<Outcome> {
    let Some(known) = control.queue.tickets.get(&ticket) else {
        let why = format!("waiting request {ticket} was closed long ago and is being removed");
        return Err(ControlError::conflict("contended", why).retry_after(1));
    };
    check_same_request(&known.value, prepared)?;
    if known.value.is_open() && has_grant(control, &known.value).await? {
        let (stored, request) = (&known.value, known.value.attempt_request());
        match try_waiting(control, &request, &stored.actor, &stored.origin, None).await {
            Attempt::Placed(placed) => record_grant(control, stored, placed).await?,
            Attempt::Unknown(error) => return Err(ControlError::from(error)),
            // What was granted is over by now; the request goes on waiting.
            Attempt::NoRoom(_) | Attempt::Never(_) | Attempt::Quarantined(_) => {}
        }
    }
    Ok(Outcome::Waits(ticket))
}

/// Whether the request of an open ticket was granted, and the grant is not over.
async fn has_grant(control: &ControlPlane, stored: &TicketRecord) -> ControlResult<bool> {
    let (tenant, now) = (stored.ticket.tenant.clone(), control.now());
    let request_id = stored.attempt_request().request_id.unwrap_or_default();
    control
        .read(move |ledger| match ledger.answer(&tenant, &request_id)? {
            Some(grant) => Ok(!has_lapsed(ledger, &leases_of_grant(&grant), now)?),
            None => Ok(false),
        })
        .await
}

/// Whether there is no room, and nodes may change or be added so that there is.
fn is_worth_queueing(answer: &PlaceAnswer) -> bool {
    matches!(answer, PlaceAnswer::NoRoom(refusals) if refusals.iter().any(Refusal::is_worth_queueing))
}

/// Tries a request that waits, by itself or together with others. One of several that finds no room does
/// not say why.
pub(super) async fn try_waiting(
    control: &Arc<ControlPlane>,
    request: &PlaceRequest,
    actor: &str,
    origin: &str,
    attempt: Option<OrderedAttempt>,
) -> Attempt {
    let caller = Caller::local("queue");
    // An earlier version may have accepted more than this one.
    if let Err(excess) = request.check_stored() {
        return Attempt::Quarantined(excess.to_string());
    }
    let mut prepared = match prepare(control, &caller, request.clone(), None).await {
        Ok(prepared) => prepared,
        Err(error) => return Attempt::Never(error.into_problem()),
    };
    (prepared.has_ticket, prepared.attempt) = (true, attempt);
    let quiet = prepared.attempt.is_some();
    let by = Actor { name: Text::from(actor), origin: Text::from(origin), is_tenant: true };
    let answer = decide(control, &prepared, Some(by), quiet).await;
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
