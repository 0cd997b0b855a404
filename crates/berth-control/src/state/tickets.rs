//! Requests that wait for room: durable, fair, granted by whichever server finds room first.
//!
//! A ticket is a document of the ledger. Any server may try any ticket at any time: the request id
//! makes a second grant the first one again, and a ticket's revision lets only one server close it.

use std::sync::Arc;

use berth_api::{Problem, Ticket, TicketState};
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use super::ticket_order;
use crate::documents::{CacheableDocument, DocumentCache, DocumentIndex, Versioned};
use crate::settings::Settings;

/// The kind of document that a ticket is stored as.
pub const KIND: &str = "ticket";

/// A ticket as stored: what callers see, and who asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TicketRecord {
    /// What callers see.
    pub ticket: Ticket,
    /// Who asked, for the audit log.
    pub actor: String,
    /// From where.
    pub origin: String,
    /// How often it was granted and the grant lapsed unused.
    #[serde(default)]
    pub lapsed: u32,
    /// Whether its instances were too many to be read.
    #[serde(skip)]
    pub oversized: bool,
}

impl TicketRecord {
    /// Whether it still waits.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.ticket.state == TicketState::Waiting
    }
}

impl CacheableDocument for TicketRecord {
    const KIND: &'static str = KIND;

    fn decode(_: &str, body: &str) -> serde_json::Result<Option<Self>> {
        serde_json::from_str(body).or_else(|error| decode_oversized(body, error)).map(Some)
    }
}

/// Reads a ticket whose instances exceed a limit, without them: it must be closed, not forgotten.
fn decode_oversized(body: &str, error: serde_json::Error) -> serde_json::Result<TicketRecord> {
    let mut value: serde_json::Value = serde_json::from_str(body)?;
    let instances = value.pointer_mut("/ticket/request/instances");
    let Some(serde_json::Value::Array(instances)) = instances else { return Err(error) };
    instances.clear();
    let mut record: TicketRecord = serde_json::from_value(value).map_err(|_| error)?;
    record.oversized = true;
    Ok(record)
}

/// Notified when tickets come and are closed.
#[derive(Default)]
pub struct TicketWatchers {
    /// Rises with every ticket that comes.
    arrivals: watch::Sender<u64>,
    /// Rises with every ticket that is closed.
    closings: watch::Sender<u64>,
}

impl DocumentIndex<TicketRecord> for TicketWatchers {
    fn insert(&mut self, _: &str, stored: &TicketRecord, _: Option<&TicketRecord>) {
        let watchers = if stored.is_open() { &self.arrivals } else { &self.closings };
        watchers.send_modify(|version| *version += 1);
    }

    fn remove(&mut self, _: &str, _: &TicketRecord) {}
}

/// All tickets, by id.
#[derive(Default)]
pub struct Queue {
    /// The tickets.
    pub tickets: Arc<DocumentCache<TicketRecord, TicketWatchers>>,
}

impl Queue {
    /// Changes whenever a ticket is closed.
    #[must_use]
    pub fn closings(&self) -> watch::Receiver<u64> {
        self.tickets.read().index.closings.subscribe()
    }

    /// Changes whenever a ticket comes.
    pub(crate) fn arrivals(&self) -> watch::Receiver<u64> {
        self.tickets.read().index.arrivals.subscribe()
    }

    /// Those that wait.
    pub(crate) fn open(&self) -> Vec<Arc<Versioned<TicketRecord>>> {
        let tickets = self.tickets.read();
        tickets.documents.values().filter(|known| known.value.is_open()).cloned().collect()
    }

    /// Notes a try that found no room; kept in memory, since the next one comes soon.
    pub(crate) fn record_attempt(&self, id: &str, problem: Problem) {
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

    /// How many wait.
    #[must_use]
    pub fn waiting(&self) -> usize {
        let tickets = self.tickets.read();
        tickets.documents.values().filter(|known| known.value.is_open()).count()
    }

    /// Since when the one that waits longest does, in whole seconds.
    #[must_use]
    pub fn oldest(&self) -> Option<i64> {
        self.open().iter().map(|known| known.value.ticket.since.as_second()).min()
    }

    /// What those that wait ask for in all.
    #[must_use]
    pub fn wanted(&self) -> berth_engine::Used {
        let mut wanted = berth_engine::Used::default();
        for known in self.open() {
            for spec in &known.value.ticket.request.instances {
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
        let tickets = &self.tickets.read().documents;
        let mut ticket = tickets.get(id)?.value.ticket.clone();
        if ticket.state == TicketState::Waiting {
            let order = ticket_order::sort_waiting(
                tickets.values().map(|known| &known.value),
                settings,
                now,
            );
            let place = order.iter().position(|waiting| waiting == id);
            ticket.position = place.map(|place| u64::try_from(place + 1).unwrap_or(u64::MAX));
        }
        Some(ticket)
    }

    /// The ticket of a request, if it has one: a retry gets it again.
    #[must_use]
    pub fn of_request(&self, tenant: &str, request_id: &str) -> Option<String> {
        let tickets = &self.tickets.read().documents;
        let mut same = tickets.values().filter(|known| {
            let ticket = &known.value.ticket;
            ticket.tenant == tenant && ticket.request.request_id.as_deref() == Some(request_id)
        });
        same.next().map(|known| known.value.ticket.id.clone())
    }

    /// Tickets in the order in which they are tried, then those that are closed, newest first.
    #[must_use]
    pub fn list(&self, settings: &Settings, now: jiff::Timestamp) -> Vec<Ticket> {
        let tickets = &self.tickets.read().documents;
        let order =
            ticket_order::sort_waiting(tickets.values().map(|known| &known.value), settings, now);
        let mut list: Vec<Ticket> = Vec::with_capacity(tickets.len());
        for (place, id) in (1..).zip(&order) {
            if let Some(known) = tickets.get(id) {
                list.push(Ticket { position: Some(place), ..known.value.ticket.clone() });
            }
        }
        let closed = tickets.values().rev().filter(|known| !known.value.is_open());
        list.extend(closed.map(|known| known.value.ticket.clone()));
        list
    }
}
