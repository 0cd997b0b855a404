//! Requests that wait for room.

use askama::Template;
use berth_api::{Ticket, TicketState};
use berth_control::ControlPlane;
use berth_control::state::TicketPage;
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
    /// The queue of a fleet.
    pub(super) fn of(control: &ControlPlane, now: Timestamp) -> Self {
        let is_wanted = |ticket: &Ticket| ticket.state == TicketState::Waiting;
        let page = TicketPage { after: None, most: SHOWN, is_wanted: &is_wanted };
        let first = control.queue.list(&page, &control.lifecycle.settings(), now);
        let open = control.queue.waiting();
        let more = i64::try_from(open.saturating_sub(SHOWN)).unwrap_or(i64::MAX);
        Self {
            total: count(i64::try_from(open).unwrap_or(i64::MAX)),
            more: (more > 0).then(|| count(more)),
            first: first.iter().map(|ticket| queued_request(ticket, now)).collect(),
        }
    }
}
