//! Making, closing and cancelling tickets.

use std::sync::Arc;

use berth_api::limits::Limited as _;
use berth_api::{PlaceRequest, Placed, Problem, Ticket, TicketState};
use berth_ledger::{Answer, Expect, LedgerError, Op, Outcome, Text};
use jiff::{SignedDuration, Timestamp};
use thiserror::Error;
use uuid::Uuid;

use crate::caller::Caller;
use crate::control_plane::ControlPlane;
use crate::error::{ControlError, ErrorKind};
use crate::state::tickets::{KIND, TicketRecord};

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
            TicketError::Ledger(error) => Self::from(error),
        }
    }
}

/// How long a request waits unless it says otherwise, in seconds.
pub(super) const DEFAULT_WAIT_S: u32 = 600;

/// Queues a request, whose instances all have ids.
///
/// # Errors
/// When its tenant has too many, or the ledger cannot be written.
pub async fn enqueue(
    control: &ControlPlane,
    caller: &Caller,
    request: PlaceRequest,
    problem: Option<Problem>,
) -> Result<String, TicketError> {
    let now = control.now();
    let tenant = request.tenant.clone().unwrap_or_default();
    let limit = control.lifecycle.settings().queue_limit;
    let open = control.queue.open();
    if open.iter().filter(|known| known.value.ticket.tenant == tenant).count() >= limit {
        return Err(TicketError::TooMany { tenant, limit });
    }
    let wait_s = request.wait_s.unwrap_or(DEFAULT_WAIT_S);
    let deadline = now.saturating_add(SignedDuration::from_secs(wait_s.into()));
    let ticket = Ticket {
        id: Uuid::now_v7().to_string(),
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
    let id = ticket.id.clone();
    let (actor, origin) = (caller.actor(), caller.origin());
    let stored = TicketRecord { ticket, actor, origin, lapsed: 0, oversized: false };
    let op = put(&stored, Expect::Absent)?;
    let subject = format!("request {id} of {}", stored.ticket.tenant);
    control.call(caller, "queue.enqueue", subject, None, op).await?;
    control.queue.tickets.put(&id, stored, 1);
    Ok(id)
}

/// Calls a waiting request off.
///
/// # Errors
/// When there is none, it no longer waits, or the ledger cannot be written.
pub async fn cancel(control: &ControlPlane, caller: &Caller, id: &str) -> Result<(), TicketError> {
    let Some(known) = control.queue.tickets.get(id) else {
        return Err(TicketError::Unknown(id.to_owned()));
    };
    if !known.value.is_open() {
        let (id, state) = (id.to_owned(), known.value.ticket.state);
        return Err(TicketError::Closed { id, state });
    }
    let mut stored = known.value.clone();
    stored.ticket.state = TicketState::Cancelled;
    let op = put(&stored, Expect::Revision(known.revision))?;
    let subject = format!("request {id} of {}", stored.ticket.tenant);
    match control.call(caller, "queue.cancel", subject, None, op).await? {
        Answer::Outcome(Outcome::Done) => {
            control.queue.tickets.put(id, stored, known.revision + 1);
            Ok(())
        }
        // Another server was faster; report what it did.
        _ => {
            refresh(control, id).await;
            let state = control.queue.tickets.get(id).map(|known| known.value.ticket.state);
            let (id, state) = (id.to_owned(), state.unwrap_or(TicketState::Cancelled));
            Err(TicketError::Closed { id, state })
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
    let known = control.queue.tickets.get(id);
    let Some(known) = known.filter(|known| known.value.is_open()) else { return Ok(false) };
    let mut stored = known.value.clone();
    (stored.ticket.state, stored.ticket.placed) = (state, placed);
    stored.ticket.problem = problem.or(stored.ticket.problem);
    // What is over a limit is not stored again, nor shown.
    if stored.ticket.request.check_stored().is_err() {
        stored.ticket.request.instances.clear();
    }
    let answer = control.submit(put(&stored, Expect::Revision(known.revision))?).await?;
    if answer == Answer::Outcome(Outcome::Done) {
        control.queue.tickets.put(id, stored, known.revision + 1);
        return Ok(true);
    }
    refresh(control, id).await;
    Ok(false)
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

async fn refresh(control: &ControlPlane, id: &str) {
    let (ledger, tickets, id) =
        (control.ledger.clone(), Arc::clone(&control.queue.tickets), id.to_owned());
    // Where it cannot be read now, the feed has it read again.
    let _ = tokio::task::spawn_blocking(move || tickets.refresh(&ledger, &id)).await;
}

/// Drops tickets that were closed long ago.
pub(super) async fn remove_old(control: &Arc<ControlPlane>, before: Timestamp) {
    let old: Vec<String> = {
        let tickets = &control.queue.tickets.read().documents;
        let is_old = |stored: &TicketRecord| !stored.is_open() && stored.ticket.deadline < before;
        let old = tickets.iter().filter(|(_, known)| is_old(&known.value));
        old.map(|(id, _)| id.clone()).collect()
    };
    for id in old {
        let (kind, document) = (Text::from(KIND), Text::from(id.as_str()));
        let op = Op::RemoveDocument { kind, id: document, expect: Expect::Any };
        if control.submit(op).await.is_ok() {
            control.queue.tickets.remove(&id);
        }
    }
}

fn put(stored: &TicketRecord, expect: Expect) -> Result<Op, LedgerError> {
    let body = serde_json::to_string(stored);
    let body = body.map_err(|error| LedgerError::Corrupt(error.to_string()))?;
    let id = Text::from(stored.ticket.id.as_str());
    Ok(Op::PutDocument { kind: Text::from(KIND), id, body, expect })
}
