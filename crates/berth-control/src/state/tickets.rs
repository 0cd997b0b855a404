//! Requests that wait for room: durable, fair, granted by whichever server finds room first.
//!
//! A ticket is a document of the ledger. Any server may try any ticket at any time: the request id
//! makes a second grant the first one again, and a ticket's revision lets only one server close it.

use std::borrow::Cow;
use std::sync::Arc;

use berth_api::{InstanceSpec, PlaceRequest, Problem, Ticket, TicketState};
use berth_ledger::{invariant, invariant_ok};
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use super::ticket_index::TicketIndex;
use super::ticket_order::overdue_before;
use crate::documents::{CacheableDocument, DocumentCache, Versioned};
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

    /// Closes it. Only one that waits can be closed: what callers ask of another is refused before.
    pub(crate) fn close(&mut self, state: TicketState) {
        invariant!(
            self.is_open() && self.ticket.state.may_become(state),
            "ticket_state_transition",
            ticket = self.ticket.id,
            from = self.ticket.state,
            to = state
        );
        self.ticket.state = state;
    }

    /// The request as it is tried now: under an id of its own once a grant lapsed unused, since the
    /// answer under the first id is that grant.
    #[must_use]
    pub(crate) fn attempt_request(&self) -> PlaceRequest {
        let mut request = self.ticket.request.clone();
        if self.lapsed > 0 {
            request.request_id = request.request_id.map(|id| format!("{id}~{}", self.lapsed));
        }
        request
    }

    /// Whether a request with this ticket's id asks for the same. As in other modes, only what is to
    /// be placed counts, not how long it may wait or be held.
    #[must_use]
    pub(crate) fn is_same_request(&self, other: &PlaceRequest) -> bool {
        hash_of_request(&self.ticket.request) == hash_of_request(other)
    }

    /// The ticket as it is kept with the answers of requests, once it is closed and has no document any
    /// more. What was asked for is left out: a retry says it again.
    ///
    /// # Errors
    /// When it cannot be written as JSON.
    pub(crate) fn closed_body(&self) -> serde_json::Result<String> {
        let mut ticket = self.ticket.clone();
        ticket.request = PlaceRequest::default();
        if let Some(problem) = &mut ticket.problem {
            problem.refusals.clear();
        }
        serde_json::to_string(&ticket)
    }
}

/// A closed ticket as it was kept with the answers of requests, with the request that asks for it again.
///
/// # Errors
/// When what is kept is no ticket.
pub(crate) fn ticket_of_closed_body(
    body: &str,
    request: &PlaceRequest,
) -> serde_json::Result<Ticket> {
    let ticket: Ticket = serde_json::from_str(body)?;
    Ok(Ticket { request: request.clone(), ..ticket })
}

/// A hash of what a request asks for. As in other modes, only what is to be placed counts, not how long it
/// may wait or be held.
pub(crate) fn hash_of_request(request: &PlaceRequest) -> [u8; 16] {
    // A count of one may be left out.
    let specs = request.instances.iter().map(|spec| match spec.count {
        Some(1) => Cow::Owned(InstanceSpec { count: None, ..spec.clone() }),
        _ => Cow::Borrowed(spec),
    });
    let specs: Vec<Cow<'_, InstanceSpec>> = specs.collect();
    let written = serde_json::to_vec(&(&request.pools, specs));
    let written = invariant_ok!(written, "placement_request_is_json").unwrap_or_default();
    let mut half = [0; 16];
    half.copy_from_slice(&blake3::hash(&written).as_bytes()[..16]);
    half
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

/// Places of the queue that are counted out: a ticket further behind has none.
pub const COUNTED_PLACES: usize = 1000;

/// All tickets, by id.
#[derive(Default)]
pub struct Queue {
    /// The tickets.
    pub tickets: Arc<DocumentCache<TicketRecord, TicketIndex>>,
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

    /// The first tickets to be tried, at most so many.
    pub(crate) fn first(
        &self,
        most: usize,
        settings: &Settings,
        now: jiff::Timestamp,
    ) -> Vec<Arc<Versioned<TicketRecord>>> {
        let contents = self.tickets.read();
        let order = contents.index.fair_order(overdue_before(settings, now));
        order.filter_map(|id| contents.documents.get(&**id).cloned()).take(most).collect()
    }

    /// Ids of waiting tickets whose deadline has passed, at most so many.
    pub(crate) fn expired(&self, most: usize, now: jiff::Timestamp) -> Vec<Arc<str>> {
        self.tickets.read().index.expired(now).take(most).cloned().collect()
    }

    /// Closed tickets whose deadline was before a time, with their revisions, at most so many.
    pub(crate) fn closed_before(&self, time: jiff::Timestamp, most: usize) -> Vec<(Arc<str>, i64)> {
        let contents = self.tickets.read();
        let closed = contents.index.closed_before(time).take(most);
        let revision =
            |id: &Arc<str>| Some((Arc::clone(id), contents.documents.get(&**id)?.revision));
        closed.filter_map(revision).collect()
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
        self.tickets.read().index.open_count()
    }

    /// How many of a tenant wait.
    #[must_use]
    pub fn waiting_of(&self, tenant: &str) -> usize {
        self.tickets.read().index.open_count_of(tenant)
    }

    /// Since when the one that waits longest does, in whole seconds.
    #[must_use]
    pub fn oldest(&self) -> Option<i64> {
        self.tickets.read().index.oldest().map(jiff::Timestamp::as_second)
    }

    /// What those that wait ask for in all.
    #[must_use]
    pub fn wanted(&self) -> berth_engine::Used {
        self.tickets.read().index.wanted()
    }

    /// One ticket, with its place in the queue if it is among the first [`COUNTED_PLACES`].
    #[must_use]
    pub fn get(&self, id: &str, settings: &Settings, now: jiff::Timestamp) -> Option<Ticket> {
        let contents = self.tickets.read();
        let mut ticket = contents.documents.get(id)?.value.ticket.clone();
        if ticket.state == TicketState::Waiting {
            let order = contents.index.fair_order(overdue_before(settings, now));
            let place =
                (1..).zip(order.take(COUNTED_PLACES)).find(|(_, waiting)| &***waiting == id);
            ticket.position = place.map(|(place, _)| place);
        }
        Some(ticket)
    }

    /// The ticket of a request, if it has one: a retry gets it again.
    #[must_use]
    pub fn of_request(&self, tenant: &str, request_id: &str) -> Option<String> {
        self.tickets.read().index.of_request(tenant, request_id).map(ToString::to_string)
    }

    /// Tickets in the order in which they are tried, then those that are closed, newest first: at
    /// most so many that are wanted, after one of them if it is still there.
    #[must_use]
    pub fn list(
        &self,
        page: &TicketPage<'_>,
        settings: &Settings,
        now: jiff::Timestamp,
    ) -> Vec<Ticket> {
        let contents = self.tickets.read();
        let open = (1..).zip(contents.index.fair_order(overdue_before(settings, now)));
        let open = open.map(|(place, id)| (Some(place), id));
        let closed = contents.index.closed_newest_first().map(|id| (None, id));
        let mut all = open.chain(closed);
        // A ticket that is gone: start over rather than skip what follows.
        if let Some(after) = page.after.filter(|after| contents.documents.contains_key(*after)) {
            let _ = all.find(|(_, id)| &***id == after);
        }
        let tickets = all.filter_map(|(position, id)| {
            let ticket = &contents.documents.get(&**id)?.value.ticket;
            (page.is_wanted)(ticket).then(|| Ticket { position, ..ticket.clone() })
        });
        tickets.take(page.most).collect()
    }
}

/// Which tickets are listed.
pub struct TicketPage<'a> {
    /// The ticket before the first one.
    pub after: Option<&'a str>,
    /// The most tickets.
    pub most: usize,
    /// Whether a ticket is among them.
    pub is_wanted: &'a dyn Fn(&Ticket) -> bool,
}
