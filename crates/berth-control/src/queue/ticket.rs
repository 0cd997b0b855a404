//! Making, closing and cancelling tickets.

use std::sync::Arc;

use berth_api::{PlaceRequest, Placed, Problem, Ticket, TicketState};
use berth_ledger::{Answer, Expect, LedgerError, Op, Outcome, Text};
use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};
use thiserror::Error;
use uuid::Uuid;

use super::{KIND, Queue};
use crate::caller::Caller;
use crate::control_plane::ControlPlane;

/// A ticket as stored: what callers see, and who asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stored {
    /// What callers see.
    pub ticket: Ticket,
    /// Who asked, for the audit log.
    pub actor: String,
    /// From where.
    pub origin: String,
    /// How often it was granted and nobody took it up in time.
    #[serde(default)]
    pub lapsed: u32,
}

impl Stored {
    /// Whether it still waits.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.ticket.state == TicketState::Waiting
    }
}

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
    #[error("{owner} has {limit} waiting requests, the most that may wait; cancel some")]
    TooMany {
        /// The tenant.
        owner: String,
        /// The limit.
        limit: usize,
    },
    /// The ledger failed.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
}

/// How long a request waits unless it says otherwise, in seconds.
pub(super) const DEFAULT_WAIT_S: u32 = 600;

impl Queue {
    /// Queues a request, whose instances all have ids.
    ///
    /// # Errors
    /// When its tenant has too many, or the ledger cannot be written.
    pub async fn enqueue(
        &self,
        control: &ControlPlane,
        caller: &Caller,
        request: PlaceRequest,
        problem: Option<Problem>,
    ) -> Result<String, TicketError> {
        let now = control.now();
        let owner = request.owner.clone().unwrap_or_default();
        let limit = control.settings.load().queue_limit;
        let open = self.open();
        if open.iter().filter(|known| known.value.ticket.owner == owner).count() >= limit {
            return Err(TicketError::TooMany { owner, limit });
        }
        let wait_s = request.wait_s.unwrap_or(DEFAULT_WAIT_S);
        let deadline = now.saturating_add(SignedDuration::from_secs(wait_s.into()));
        let ticket = Ticket {
            id: Uuid::now_v7().to_string(),
            state: TicketState::Waiting,
            owner,
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
        let stored = Stored { ticket, actor, origin, lapsed: 0 };
        let op = put(&stored, Expect::Absent)?;
        let subject = format!("request {id} of {}", stored.ticket.owner);
        control.call(caller, "queue.enqueue", subject, None, op).await?;
        self.tickets.put(&id, stored, 1);
        Ok(id)
    }

    /// Calls a waiting request off.
    ///
    /// # Errors
    /// When there is none, it no longer waits, or the ledger cannot be written.
    pub async fn cancel(
        &self,
        control: &ControlPlane,
        caller: &Caller,
        id: &str,
    ) -> Result<(), TicketError> {
        let Some(known) = self.tickets.get(id) else {
            return Err(TicketError::Unknown(id.to_owned()));
        };
        if !known.value.is_open() {
            let (id, state) = (id.to_owned(), known.value.ticket.state);
            return Err(TicketError::Closed { id, state });
        }
        let mut stored = known.value.clone();
        stored.ticket.state = TicketState::Cancelled;
        let op = put(&stored, Expect::Revision(known.revision))?;
        let subject = format!("request {id} of {}", stored.ticket.owner);
        match control.call(caller, "queue.cancel", subject, None, op).await? {
            Answer::Outcome(Outcome::Done) => {
                self.tickets.put(id, stored, known.revision + 1);
                Ok(())
            }
            // Another server was quicker; what it did is read and told.
            _ => {
                self.read_again(control, id).await;
                let state = self.tickets.get(id).map(|known| known.value.ticket.state);
                let (id, state) = (id.to_owned(), state.unwrap_or(TicketState::Cancelled));
                Err(TicketError::Closed { id, state })
            }
        }
    }

    /// Closes a ticket. Returns whether it was still open, and so whether this close counts.
    pub(super) async fn close(
        &self,
        control: &ControlPlane,
        id: &str,
        state: TicketState,
        placed: Option<Placed>,
        problem: Option<Problem>,
    ) -> Result<bool, LedgerError> {
        let known = self.tickets.get(id);
        let Some(known) = known.filter(|known| known.value.is_open()) else { return Ok(false) };
        let mut stored = known.value.clone();
        (stored.ticket.state, stored.ticket.placed) = (state, placed);
        stored.ticket.problem = problem.or(stored.ticket.problem);
        let answer = control.submit(put(&stored, Expect::Revision(known.revision))?).await?;
        if answer == Answer::Outcome(Outcome::Done) {
            self.tickets.put(id, stored, known.revision + 1);
            return Ok(true);
        }
        self.read_again(control, id).await;
        Ok(false)
    }

    /// Notes that a ticket was granted and nobody took it up: it is asked for under a new id.
    pub(super) async fn lapse(&self, control: &ControlPlane, id: &str) -> Result<(), LedgerError> {
        let known = self.tickets.get(id);
        let Some(known) = known.filter(|known| known.value.is_open()) else { return Ok(()) };
        let mut stored = known.value.clone();
        stored.lapsed += 1;
        let answer = control.submit(put(&stored, Expect::Revision(known.revision))?).await?;
        if answer == Answer::Outcome(Outcome::Done) {
            self.tickets.put(id, stored, known.revision + 1);
        }
        Ok(())
    }

    async fn read_again(&self, control: &ControlPlane, id: &str) {
        let (ledger, tickets, id) =
            (control.ledger.clone(), Arc::clone(&self.tickets), id.to_owned());
        // Where it cannot be read now, the feed has it read again.
        let _ = tokio::task::spawn_blocking(move || tickets.refresh(&ledger, &id)).await;
    }

    /// Notes a try that found no room; kept in memory, since the next one comes soon.
    pub(super) fn tried(&self, id: &str, problem: Problem) {
        self.tickets.modify(id, |stored| {
            stored.ticket.tries += 1;
            // A try in passing does not explain itself; an explanation in full stays.
            let old = stored.ticket.problem.as_ref();
            let says_less =
                problem.refusals.is_empty() && old.is_some_and(|p| !p.refusals.is_empty());
            if !says_less {
                stored.ticket.problem = Some(problem);
            }
        });
    }

    /// Drops tickets that were closed long ago.
    pub(super) async fn forget_old(&self, control: &Arc<ControlPlane>, before: Timestamp) {
        let old: Vec<String> = {
            let tickets = &self.tickets.read().documents;
            let is_old = |stored: &Stored| !stored.is_open() && stored.ticket.deadline < before;
            let old = tickets.iter().filter(|(_, known)| is_old(&known.value));
            old.map(|(id, _)| id.clone()).collect()
        };
        for id in old {
            let (kind, document) = (Text::from(KIND), Text::from(id.as_str()));
            let op = Op::RemoveDocument { kind, id: document, expect: Expect::Any };
            if control.submit(op).await.is_ok() {
                self.tickets.remove(&id);
            }
        }
    }
}

fn put(stored: &Stored, expect: Expect) -> Result<Op, LedgerError> {
    let body = serde_json::to_string(stored);
    let body = body.map_err(|error| LedgerError::Corrupt(error.to_string()))?;
    let id = Text::from(stored.ticket.id.as_str());
    Ok(Op::PutDocument { kind: Text::from(KIND), id, body, expect })
}
