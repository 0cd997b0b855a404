//! The fair order: tenants take turns, and no ticket is overtaken for ever.
//!
//! First those who waited longer than the patience, by age. Then every tenant's first ticket, then
//! every tenant's second, and so on, each round by age. So a tenant with a thousand tickets does
//! not stand before one with a single one, and the thousandth is served all the same.

use berth_api::{Ticket, TicketState};
use jiff::Timestamp;
use rustc_hash::FxHashMap;

use super::tickets::TicketRecord;
use crate::settings::Settings;

/// Ids of waiting tickets, in the order in which they are tried.
pub(crate) fn sort_waiting<'a>(
    tickets: impl Iterator<Item = &'a TicketRecord>,
    settings: &Settings,
    now: Timestamp,
) -> Vec<String> {
    let waits = |stored: &&TicketRecord| stored.ticket.state == TicketState::Waiting;
    let mut waiting: Vec<&Ticket> = tickets.filter(waits).map(|stored| &stored.ticket).collect();
    waiting.sort_by(|a, b| (a.since, &a.id).cmp(&(b.since, &b.id)));
    let mut rounds: FxHashMap<&str, u64> = FxHashMap::default();
    let mut ranked: Vec<(bool, u64, &Ticket)> = Vec::with_capacity(waiting.len());
    for ticket in waiting {
        let overdue = is_overdue(ticket, settings, now);
        let round = rounds.entry(&ticket.tenant).or_default();
        ranked.push((!overdue, if overdue { 0 } else { *round }, ticket));
        *round += 1;
    }
    // Stable, so that age decides within a round.
    ranked.sort_by_key(|(in_time, round, _)| (*in_time, *round));
    ranked.into_iter().map(|(_, _, ticket)| ticket.id.clone()).collect()
}

/// Whether a ticket has waited longer than it may be overtaken.
pub(crate) fn is_overdue(ticket: &Ticket, settings: &Settings, now: Timestamp) -> bool {
    waited_s(ticket, now) > patience_s(settings)
}

/// Whether later tickets stand back for this one. Not for ever: one that needs more room than will
/// ever be free must not stop everyone else.
pub(crate) fn holds_up_others(ticket: &Ticket, settings: &Settings, now: Timestamp) -> bool {
    is_overdue(ticket, settings, now) && waited_s(ticket, now) <= 2 * patience_s(settings)
}

fn waited_s(ticket: &Ticket, now: Timestamp) -> i64 {
    now.as_second() - ticket.since.as_second()
}

fn patience_s(settings: &Settings) -> i64 {
    i64::try_from(settings.queue_patience.as_secs()).unwrap_or(i64::MAX / 4)
}
