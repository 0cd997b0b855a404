//! Making, closing and cancelling tickets.

use std::sync::Arc;

use berth_api::limits::Limited as _;
use berth_api::{PlaceRequest, Placed, Problem, Ticket, TicketState};
use berth_ledger::{
    Answer, DocumentWrite, Expect, ForTenants, IfUnanswered, LedgerError, Micros, Op, Outcome,
    QuarantinedTicket, Text, TicketAnswer, Verdict, WithDocuments, invariant_ok,
};
use futures_util::future::join_all;
use jiff::{SignedDuration, Timestamp};
use thiserror::Error;
use uuid::Uuid;

use crate::caller::Caller;
use crate::control_plane::ControlPlane;
use crate::error::{ControlError, ErrorKind};
use crate::patience::read_within_patience;
use crate::state::tickets::{KIND, TicketRecord, hash_of_request};

/// Why a ticket could not be changed.
#[derive(Debug, Error)]
pub enum TicketError {
    /// There is none of that id.
    #[error("there is no waiting request {0:?}")]
    Unknown(String),
    /// It no longer waits.
    #[error("request {id} no longer waits: it is {state:?}")]
    Closed {
        /// Which.
        id: String,
        /// What became of it.
        state: TicketState,
    },
    /// Its tenant has too many.
    #[error("{tenant} has {limit} waiting requests, the most that may wait; cancel some")]
    TooMany {
        /// The tenant.
        tenant: String,
        /// The limit.
        limit: usize,
    },
    /// All tenants together have too many.
    #[error("{limit} requests wait, the most that may wait in total")]
    TooManyInTotal {
        /// The limit.
        limit: usize,
    },
    /// Its tenant is being removed.
    #[error("tenant {0} is being removed")]
    TenantRemoving(Text),
    /// The ledger failed.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
}

impl From<TicketError> for ControlError {
    fn from(error: TicketError) -> Self {
        match error {
            TicketError::Unknown(id) => Self::not_found("waiting request", &id),
            TicketError::Closed { .. } => Self::conflict("not_waiting", error.to_string()),
            TicketError::TooMany { .. } => {
                let title = "too many requests wait";
                let kind = ErrorKind::LimitReached;
                Self::new(kind, "queue_full", title, error.to_string()).retry_after(10)
            }
            TicketError::TooManyInTotal { .. } => {
                let title = "too many requests wait in total";
                let kind = ErrorKind::Unavailable;
                Self::new(kind, "total_queue_full", title, error.to_string()).retry_after(10)
            }
            TicketError::TenantRemoving(tenant) => Self::tenant_removing(&tenant),
            TicketError::Ledger(error) => Self::from(error),
        }
    }
}

/// Tickets that are removed in one pass.
const REMOVED_AT_ONCE: usize = 256;

/// How long a request waits unless it says otherwise, in seconds.
pub(super) const DEFAULT_WAIT_S: u32 = 600;

/// Checks that one more request may wait. Servers count what they know of, so several may exceed a
/// limit by what they queue within a moment.
fn check_limits(control: &ControlPlane, tenant: &str) -> Result<(), TicketError> {
    let settings = control.lifecycle.settings();
    if control.queue.waiting_of(tenant) >= settings.queue_limit {
        let (tenant, limit) = (tenant.to_owned(), settings.queue_limit);
        return Err(TicketError::TooMany { tenant, limit });
    }
    if control.queue.waiting() >= settings.queue_total {
        return Err(TicketError::TooManyInTotal { limit: settings.queue_total });
    }
    Ok(())
}

/// What became of a request that was to be queued.
#[derive(Debug)]
pub enum EnqueueResult {
    /// It waits, under this new ticket.
    New(String),
    /// The request had this ticket already.
    Known(String),
    /// The request was granted before, or its id was used for something else.
    Answered,
}

/// Queues a request under the ticket that its id stands for: a second one, at whichever server, is
/// the first one again. The ticket is durable when this returns.
///
/// # Errors
/// When its tenant has too many, or the ledger cannot be written.
pub async fn enqueue(
    control: &ControlPlane,
    caller: &Caller,
    request: PlaceRequest,
    problem: Option<Problem>,
) -> Result<EnqueueResult, TicketError> {
    let now = control.now();
    let tenant = request.tenant.clone().unwrap_or_default();
    let request_id = request.request_id.clone();
    let request_id = invariant_ok!(request_id, "queued_request_has_an_id", tenant);
    let request_id = request_id.unwrap_or_default();
    let id = control.instance_ids.derive_ticket(&tenant, &request_id);
    if let Err(error) = check_limits(control, &tenant) {
        // What another server has queued is a ticket, however many there are.
        find(control, &id).await?;
        return control.queue.tickets.get(&id).map(|_| EnqueueResult::Known(id)).ok_or(error);
    }
    let wait_s = request.wait_s.unwrap_or(DEFAULT_WAIT_S);
    let deadline = now.saturating_add(SignedDuration::from_secs(wait_s.into()));
    let ticket = Ticket {
        id: id.clone(),
        state: TicketState::Waiting,
        tenant,
        position: None,
        since: now,
        deadline: deadline.unwrap_or(Timestamp::MAX),
        tries: 0,
        request,
        placed: None,
        problem,
    };
    let (actor, origin) = (caller.actor(), caller.origin());
    let stored = TicketRecord { ticket, actor, origin, lapsed: 0, oversized: false };
    let tenant = Text::from(stored.ticket.tenant.as_str());
    let op = put(&stored, Expect::Absent)?;
    let request_id = Text::from(request_id);
    let ticket = Some(ticket_answer(&stored, None));
    let op = IfUnanswered { request_id, tenant: Text::clone(&tenant), ticket, op };
    let op = Op::IfUnanswered(Box::new(op));
    let op = Op::ForTenants(Box::new(ForTenants { tenants: vec![tenant], op }));
    let subject = format!("request {id} of {}", stored.ticket.tenant);
    match control.call(caller, "queue.enqueue", subject, None, op).await? {
        Answer::Outcome(Outcome::Done) => {
            control.queue.tickets.put(&id, stored, 1);
            Ok(EnqueueResult::New(id))
        }
        Answer::Outcome(Outcome::Stale { .. }) => {
            read_again(control, &id).await?;
            Ok(EnqueueResult::Known(id))
        }
        Answer::Repeated(_) | Answer::Plan(Verdict::Refused(_)) => Ok(EnqueueResult::Answered),
        Answer::Outcome(Outcome::TenantRemoving(tenant)) => {
            Err(TicketError::TenantRemoving(tenant))
        }
        other => Err(LedgerError::Corrupt(format!("an answer of another kind: {other:?}")).into()),
    }
}

/// Reads a ticket from the ledger unless it is known to be closed: what another
/// server acknowledged holds at this one too.
///
/// # Errors
/// When the ledger cannot be read.
pub(super) async fn refresh_open(control: &ControlPlane, id: &str) -> Result<(), TicketError> {
    let known = control.queue.tickets.get(id);
    if known.is_some_and(|known| !known.value.is_open()) {
        return Ok(());
    }
    Ok(read_again(control, id).await?)
}

/// Reads a ticket from the ledger that is not known here: another server may have made it just now.
///
/// # Errors
/// When the ledger cannot be read.
pub async fn find(control: &ControlPlane, id: &str) -> Result<(), TicketError> {
    // Every ticket's id is one; other names need not be looked for.
    if control.queue.tickets.get(id).is_some() || Uuid::parse_str(id).is_err() {
        return Ok(());
    }
    Ok(read_again(control, id).await?)
}

/// Calls a waiting request off.
///
/// # Errors
/// When there is none, it no longer waits, or the ledger cannot be written.
pub async fn cancel(control: &ControlPlane, caller: &Caller, id: &str) -> Result<(), TicketError> {
    loop {
        let Some(known) = control.queue.tickets.get(id) else {
            return Err(TicketError::Unknown(id.to_owned()));
        };
        if !known.value.is_open() {
            let (id, state) = (id.to_owned(), known.value.ticket.state);
            return Err(TicketError::Closed { id, state });
        }
        let mut stored = known.value.clone();
        stored.close(TicketState::Cancelled);
        let op = put(&stored, Expect::Revision(known.revision))?;
        let subject = format!("request {id} of {}", stored.ticket.tenant);
        match control.call(caller, "queue.cancel", subject, None, op).await? {
            Answer::Outcome(Outcome::Done) => {
                control.queue.tickets.put(id, stored, known.revision + 1);
                return Ok(());
            }
            // Another server was faster; report what it did.
            _ => read_again(control, id).await?,
        }
    }
}

/// Closes a ticket. Returns whether it was still open, and so whether this close counts.
pub(super) async fn close(
    control: &ControlPlane,
    id: &str,
    state: TicketState,
    placed: Option<Placed>,
    problem: Option<Problem>,
) -> Result<bool, LedgerError> {
    close_with(control, id, state, (placed, problem), put_document).await
}

/// Closes a ticket that exceeds a limit of this version, and logs which.
pub(super) async fn quarantine(
    control: &ControlPlane,
    id: &str,
    excess: &str,
) -> Result<bool, LedgerError> {
    let problem = ControlError::quarantined("the waiting request", excess).into_problem();
    let Some(known) = control.queue.tickets.get(id) else { return Ok(false) };
    let event = QuarantinedTicket {
        tenant: Text::from(known.value.ticket.tenant.as_str()),
        ticket: Text::from(id),
        excess: Text::from(excess),
    };
    let with_event = |put: DocumentWrite| {
        let (op, documents) = (Op::QuarantineTicket(event.clone()), vec![put]);
        Op::WithDocuments(Box::new(WithDocuments { op, documents }))
    };
    close_with(control, id, TicketState::Refused, (None, Some(problem)), with_event).await
}

async fn close_with(
    control: &ControlPlane,
    id: &str,
    state: TicketState,
    (placed, problem): (Option<Placed>, Option<Problem>),
    op: impl Fn(DocumentWrite) -> Op,
) -> Result<bool, LedgerError> {
    loop {
        let known = control.queue.tickets.get(id);
        let Some(known) = known.filter(|known| known.value.is_open()) else { return Ok(false) };
        let mut stored = known.value.clone();
        stored.close(state);
        stored.ticket.placed = placed.clone();
        stored.ticket.problem = problem.clone().or(stored.ticket.problem);
        // What is over a limit is not stored again, nor shown.
        if stored.ticket.request.check_stored().is_err() {
            stored.ticket.request.instances.clear();
        }
        let op = op(write(&stored, Expect::Revision(known.revision))?);
        if control.submit(op).await? == Answer::Outcome(Outcome::Done) {
            control.queue.tickets.put(id, stored, known.revision + 1);
            return Ok(true);
        }
        // Another server changed it; it may still be open.
        read_again(control, id).await?;
    }
}

/// Records that a grant lapsed unused: the ticket is tried again under a new request id.
pub(super) async fn record_lapse(control: &ControlPlane, id: &str) -> Result<(), LedgerError> {
    let known = control.queue.tickets.get(id);
    let Some(known) = known.filter(|known| known.value.is_open()) else { return Ok(()) };
    let mut stored = known.value.clone();
    stored.lapsed += 1;
    let answer = control.submit(put(&stored, Expect::Revision(known.revision))?).await?;
    if answer == Answer::Outcome(Outcome::Done) {
        control.queue.tickets.put(id, stored, known.revision + 1);
    }
    Ok(())
}

async fn read_again(control: &ControlPlane, id: &str) -> Result<(), LedgerError> {
    let (tickets, id) = (Arc::clone(&control.queue.tickets), id.to_owned());
    read_within_patience(&control.ledger, move |ledger| tickets.refresh(ledger, &id)).await
}

/// Drops tickets that were closed long ago, some of them in each pass.
pub(super) async fn remove_old(control: &Arc<ControlPlane>, before: Timestamp) {
    let old = control.queue.closed_before(before, REMOVED_AT_ONCE);
    let removals = old.iter().map(async |(id, revision)| {
        let (kind, document) = (Text::from(KIND), Text::from(&**id));
        // Another server may have removed it, and the same request may wait again since.
        let expect = Expect::Revision(*revision);
        let remove = Op::RemoveDocument { kind, id: document, expect };
        let closed = control.queue.tickets.get(id);
        let closed = closed.and_then(|known| keep_closed(&known.value, remove.clone()));
        let mut answer = control.submit(closed.unwrap_or_else(|| remove.clone())).await;
        // Its request has another answer, which stands.
        if matches!(answer, Ok(Answer::Repeated(_) | Answer::Plan(Verdict::Refused(_)))) {
            answer = control.submit(remove).await;
        }
        match answer {
            Ok(Answer::Outcome(Outcome::Done)) => control.queue.tickets.remove(id),
            // It is not what is known here: read it, so that it is not tried again and again.
            Ok(_) => drop(read_again(control, id).await),
            Err(error) => tracing::warn!(%error, ticket = &**id, "failed to remove old ticket"),
        }
    });
    join_all(removals).await;
}

/// The removal of a ticket that was closed without a grant: its request gets the same answer as long as
/// answers are kept. Absent where the answer is the grant, or the ticket has no request.
fn keep_closed(stored: &TicketRecord, remove: Op) -> Option<Op> {
    let ticket = &stored.ticket;
    if ticket.state == TicketState::Granted || stored.oversized {
        return None;
    }
    let request_id = Text::from(ticket.request.request_id.as_deref()?);
    let closed = invariant_ok!(stored.closed_body(), "closed_ticket_is_json")?;
    let tenant = Text::from(ticket.tenant.as_str());
    let ticket = Some(ticket_answer(stored, Some(closed)));
    Some(Op::IfUnanswered(Box::new(IfUnanswered { request_id, tenant, ticket, op: remove })))
}

/// What the ledger keeps as the answer to the request of a ticket. While it waits that must not go, so
/// it counts from the deadline.
fn ticket_answer(stored: &TicketRecord, closed: Option<String>) -> TicketAnswer {
    let request_hash = hash_of_request(&stored.ticket.request);
    let kept_from = Micros(stored.ticket.deadline.as_microsecond());
    TicketAnswer { request_hash, kept_from, closed }
}

fn put(stored: &TicketRecord, expect: Expect) -> Result<Op, LedgerError> {
    write(stored, expect).map(put_document)
}

fn put_document(DocumentWrite { kind, id, body, expect }: DocumentWrite) -> Op {
    Op::PutDocument { kind, id, body, expect }
}

fn write(stored: &TicketRecord, expect: Expect) -> Result<DocumentWrite, LedgerError> {
    let body = serde_json::to_string(stored);
    let body = body.map_err(|error| LedgerError::Corrupt(error.to_string()))?;
    let id = Text::from(stored.ticket.id.as_str());
    Ok(DocumentWrite { kind: Text::from(KIND), id, body, expect })
}
