//! Making, closing and cancelling tickets.

use std::sync::Arc;

use berth_api::{PlaceRequest, Placed, Problem, Ticket, TicketState};
use berth_ledger::{Answer, Expect, LedgerError, Op, Outcome, Text};
use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};
use thiserror::Error;
use uuid::Uuid;

use super::{KIND, Queue};
use crate::access::Caller;
use crate::service::Service;

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
        service: &Service,
        caller: &Caller,
        request: PlaceRequest,
        problem: Option<Problem>,
    ) -> Result<String, TicketError> {
        let now = service.now();
        let owner = request.owner.clone().unwrap_or_default();
        let limit = service.settings.load().queue_limit;
        let same = |known: &&super::Known| known.is_open() && known.stored.ticket.owner == owner;
        if self.read().values().filter(same).count() >= limit {
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
        service.call(caller, "queue.enqueue", subject, None, op).await?;
        self.put(stored, 1);
        Ok(id)
    }

    /// Calls a waiting request off.
    ///
    /// # Errors
    /// When there is none, it no longer waits, or the ledger cannot be written.
    pub async fn cancel(
        &self,
        service: &Service,
        caller: &Caller,
        id: &str,
    ) -> Result<(), TicketError> {
        let known = self.read().get(id).cloned();
        let Some(known) = known else { return Err(TicketError::Unknown(id.to_owned())) };
        if !known.is_open() {
            let (id, state) = (id.to_owned(), known.stored.ticket.state);
            return Err(TicketError::Closed { id, state });
        }
        let mut stored = known.stored;
        stored.ticket.state = TicketState::Cancelled;
        let op = put(&stored, Expect::Revision(known.revision))?;
        let subject = format!("request {id} of {}", stored.ticket.owner);
        match service.call(caller, "queue.cancel", subject, None, op).await? {
            Answer::Outcome(Outcome::Done) => {
                self.put(stored, known.revision + 1);
                Ok(())
            }
            // Another server was quicker; what it did is read and told.
            _ => {
                self.read_anew(service, id).await;
                let state = self.read().get(id).map(|known| known.stored.ticket.state);
                let (id, state) = (id.to_owned(), state.unwrap_or(TicketState::Cancelled));
                Err(TicketError::Closed { id, state })
            }
        }
    }

    /// Closes a ticket. Returns whether it was still open, and so whether this close counts.
    pub(super) async fn close(
        &self,
        service: &Service,
        id: &str,
        state: TicketState,
        placed: Option<Placed>,
        problem: Option<Problem>,
    ) -> Result<bool, LedgerError> {
        let known = self.read().get(id).cloned();
        let Some(known) = known.filter(super::Known::is_open) else { return Ok(false) };
        let mut stored = known.stored;
        (stored.ticket.state, stored.ticket.placed) = (state, placed);
        stored.ticket.problem = problem.or(stored.ticket.problem);
        let answer = service.submit(put(&stored, Expect::Revision(known.revision))?).await?;
        if answer == Answer::Outcome(Outcome::Done) {
            self.put(stored, known.revision + 1);
            return Ok(true);
        }
        self.read_anew(service, id).await;
        Ok(false)
    }

    /// Notes that a ticket was granted and nobody took it up: it is asked for under a new id.
    pub(super) async fn lapse(&self, service: &Service, id: &str) -> Result<(), LedgerError> {
        let known = self.read().get(id).cloned();
        let Some(known) = known.filter(super::Known::is_open) else { return Ok(()) };
        let mut stored = known.stored;
        stored.lapsed += 1;
        let answer = service.submit(put(&stored, Expect::Revision(known.revision))?).await?;
        if answer == Answer::Outcome(Outcome::Done) {
            self.put(stored, known.revision + 1);
        }
        Ok(())
    }

    async fn read_anew(&self, service: &Service, id: &str) {
        let (ledger, wanted) = (service.ledger.clone(), id.to_owned());
        let read = move || ledger.document(KIND, &wanted);
        if let Ok(Ok(Some(document))) = tokio::task::spawn_blocking(read).await {
            self.learn(&document.body, document.rev);
        }
    }

    /// Notes a try that found no room; kept in memory, since the next one comes soon.
    pub(super) fn tried(&self, id: &str, problem: Problem) {
        let mut tickets = self.tickets.write().unwrap_or_else(std::sync::PoisonError::into_inner);
        if let Some(known) = tickets.get_mut(id) {
            known.stored.ticket.tries += 1;
            // A try in passing does not explain itself; what was said in full stays.
            let old = known.stored.ticket.problem.as_ref();
            let says_less =
                problem.refusals.is_empty() && old.is_some_and(|p| !p.refusals.is_empty());
            if !says_less {
                known.stored.ticket.problem = Some(problem);
            }
        }
    }

    /// Drops tickets that were closed long ago.
    pub(super) async fn forget_old(&self, service: &Arc<Service>, before: Timestamp) {
        let old: Vec<String> = {
            let tickets = self.read();
            let old =
                tickets.values().filter(|k| !k.is_open() && k.stored.ticket.deadline < before);
            old.map(|known| known.stored.ticket.id.clone()).collect()
        };
        for id in old {
            let (kind, document) = (Text::from(KIND), Text::from(id.as_str()));
            let op = Op::RemoveDocument { kind, id: document, expect: Expect::Any };
            if service.submit(op).await.is_ok() {
                self.forget(&id);
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
