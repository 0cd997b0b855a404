//! Requests that wait for room: durable, fair, granted by whichever server finds room first.
//!
//! A ticket is a document of the ledger. Any server may try any ticket at any time: the request id
//! makes a second grant the first one again, and a ticket's revision lets only one server close it.

mod grant;
mod order;
mod ticket;

use std::collections::BTreeMap;
use std::sync::{PoisonError, RwLock};

use berth_api::{Ticket, TicketState};
use berth_ledger::{Ledger, LedgerError};

pub use grant::keep_granting;
pub use ticket::{Stored, TicketError};

use crate::service::Settings;

/// The kind of document that a ticket is stored as.
pub const KIND: &str = "ticket";

/// A ticket as known here.
#[derive(Clone, Debug)]
struct Known {
    stored: Stored,
    /// The revision of its document.
    revision: i64,
}

/// All tickets, by id.
#[derive(Default)]
pub struct Queue {
    tickets: RwLock<BTreeMap<String, Known>>,
    /// Rises with every ticket that comes.
    arrivals: tokio::sync::watch::Sender<u64>,
    /// Rises with every ticket that is closed.
    closings: tokio::sync::watch::Sender<u64>,
}

impl Queue {
    /// Reads all tickets there are.
    ///
    /// # Errors
    /// When the ledger cannot be read.
    pub fn load(ledger: &Ledger) -> Result<Self, LedgerError> {
        let queue = Self::default();
        let mut after: Option<String> = None;
        loop {
            let page = ledger.documents(KIND, after.as_deref(), 1000)?;
            let Some(last) = page.last() else { return Ok(queue) };
            after = Some(last.id.to_string());
            for document in &page {
                queue.learn(&document.body, document.rev);
            }
        }
    }

    /// Reads one ticket anew: another server made or changed it.
    pub fn reload(&self, ledger: &Ledger, id: &str) {
        match ledger.document(KIND, id) {
            Ok(Some(document)) => self.learn(&document.body, document.rev),
            Ok(None) => self.forget(id),
            Err(error) => tracing::warn!(%error, ticket = id, "a ticket could not be read"),
        }
    }

    fn learn(&self, body: &str, revision: i64) {
        match serde_json::from_str::<Stored>(body) {
            Ok(stored) => self.put(stored, revision),
            Err(error) => tracing::error!(%error, "a stored ticket cannot be read"),
        }
    }

    fn put(&self, stored: Stored, revision: i64) {
        let is_open = stored.ticket.state == TicketState::Waiting;
        {
            let mut tickets = self.tickets.write().unwrap_or_else(PoisonError::into_inner);
            let known = tickets.get(&stored.ticket.id);
            if known.is_some_and(|known| known.revision > revision) {
                return;
            }
            tickets.insert(stored.ticket.id.clone(), Known { stored, revision });
        }
        let told = if is_open { &self.arrivals } else { &self.closings };
        told.send_modify(|version| *version += 1);
    }

    fn forget(&self, id: &str) {
        self.tickets.write().unwrap_or_else(PoisonError::into_inner).remove(id);
    }

    fn read(&self) -> std::sync::RwLockReadGuard<'_, BTreeMap<String, Known>> {
        self.tickets.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Told whenever a ticket is closed.
    #[must_use]
    pub fn closings(&self) -> tokio::sync::watch::Receiver<u64> {
        self.closings.subscribe()
    }

    /// How many wait.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.read().values().filter(|known| known.is_open()).count()
    }

    /// Since when the one that waits longest does, in whole seconds.
    #[must_use]
    pub fn oldest(&self) -> Option<i64> {
        let open = self.read();
        let open = open.values().filter(|known| known.is_open());
        open.map(|known| known.stored.ticket.since.as_second()).min()
    }

    /// What those that wait ask for in all.
    #[must_use]
    pub fn wanted(&self) -> berth_engine::Used {
        let mut wanted = berth_engine::Used::default();
        for known in self.read().values().filter(|known| known.is_open()) {
            for spec in &known.stored.ticket.request.instances {
                for _ in 0..spec.count.unwrap_or(1) {
                    wanted.charge(&spec.resources.amounts(), false, 1);
                }
            }
        }
        wanted
    }

    /// One ticket, with its place in the queue.
    #[must_use]
    pub fn get(&self, id: &str, settings: &Settings, now: jiff::Timestamp) -> Option<Ticket> {
        let tickets = self.read();
        let mut ticket = tickets.get(id)?.stored.ticket.clone();
        if ticket.state == TicketState::Waiting {
            let order = order::order(tickets.values().map(|known| &known.stored), settings, now);
            let place = order.iter().position(|waiting| waiting == id);
            ticket.position = place.map(|place| u64::try_from(place + 1).unwrap_or(u64::MAX));
        }
        Some(ticket)
    }

    /// The ticket of a request, if it has one: a retry gets it again.
    #[must_use]
    pub fn of_request(&self, owner: &str, request_id: &str) -> Option<String> {
        let tickets = self.read();
        let mut same = tickets.values().filter(|known| {
            let ticket = &known.stored.ticket;
            ticket.owner == owner && ticket.request.request_id.as_deref() == Some(request_id)
        });
        same.next().map(|known| known.stored.ticket.id.clone())
    }

    /// Tickets in the order in which they are tried, then those that are closed, newest first.
    #[must_use]
    pub fn list(&self, settings: &Settings, now: jiff::Timestamp) -> Vec<Ticket> {
        let tickets = self.read();
        let order = order::order(tickets.values().map(|known| &known.stored), settings, now);
        let mut list: Vec<Ticket> = Vec::with_capacity(tickets.len());
        for (place, id) in (1..).zip(&order) {
            if let Some(known) = tickets.get(id) {
                list.push(Ticket { position: Some(place), ..known.stored.ticket.clone() });
            }
        }
        let closed = tickets.values().rev().filter(|known| !known.is_open());
        list.extend(closed.map(|known| known.stored.ticket.clone()));
        list
    }
}

impl Known {
    fn is_open(&self) -> bool {
        self.stored.ticket.state == TicketState::Waiting
    }
}
