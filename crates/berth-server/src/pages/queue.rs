//! Requests that wait for room.

use askama::Template;
use berth_api::{Ticket, TicketState};
use jiff::Timestamp;

use super::{ago, count, plural};

/// Requests shown.
const SHOWN: usize = 8;

/// One request.
#[derive(Debug)]
struct QueuedRequest {
    position: u64,
    tenant: String,
    asks_for: String,
    since: String,
    at: String,
    code: Option<String>,
}

/// The queue.
#[derive(Debug, Template)]
#[template(path = "parts/queue.html")]
pub(super) struct QueuePanel {
    total: String,
    more: Option<String>,
    first: Vec<QueuedRequest>,
}

fn queued_request(ticket: &Ticket, now: Timestamp) -> QueuedRequest {
    let instances: u64 =
        ticket.request.instances.iter().map(|spec| u64::from(spec.count.unwrap_or(1))).sum();
    let instances = i64::try_from(instances).unwrap_or(i64::MAX);
    let word = plural(instances, "instance", "instances");
    QueuedRequest {
        position: ticket.position.unwrap_or(0),
        tenant: ticket.tenant.clone(),
        asks_for: format!("{} {word}", count(instances)),
        since: ago(ticket.since, now),
        at: ticket.since.to_string(),
        code: ticket.problem.as_ref().map(|problem| problem.code.clone()),
    }
}

impl QueuePanel {
    /// The queue, of tickets in their order.
    pub(super) fn of(tickets: &[Ticket], now: Timestamp) -> Self {
        let open: Vec<&Ticket> =
            tickets.iter().filter(|ticket| ticket.state == TicketState::Waiting).collect();
        let more = i64::try_from(open.len().saturating_sub(SHOWN)).unwrap_or(i64::MAX);
        Self {
            total: count(i64::try_from(open.len()).unwrap_or(i64::MAX)),
            more: (more > 0).then(|| count(more)),
            first: open.iter().take(SHOWN).map(|ticket| queued_request(ticket, now)).collect(),
        }
    }
}
