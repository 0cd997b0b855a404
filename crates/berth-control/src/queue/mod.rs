//! Requests that wait for room: durable, fair, granted by whichever server finds room first.
//!
//! A ticket is a document of the ledger. Any server may try any ticket at any time: the request id
//! makes a second grant the first one again, and a ticket's revision lets only one server close it.

mod granting;
mod place;
mod tickets;

pub(crate) use granting::{MAX_PER_PASS as TICKETS_PER_PASS, TicketGranter};
pub(crate) use place::check_waiting_ticket;
pub use place::{Outcome, place};
pub use tickets::{EnqueueResult, TicketError, cancel, enqueue, find};

pub use crate::state::tickets::KIND;
