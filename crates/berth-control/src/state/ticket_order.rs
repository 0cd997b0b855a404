//! The fair order: tenants take turns, and no ticket is overtaken for ever.
//!
//! First those who waited longer than the patience, by age. Then every tenant's first ticket, then
//! every tenant's second, and so on, each round by age. So a tenant with a thousand tickets does
//! not stand before one with a single one, and the thousandth is served all the same. The order
//! itself is kept by the index of tickets; here is what depends on the time.

use berth_api::Ticket;
use jiff::Timestamp;

use crate::settings::Settings;

/// Tickets that came before this have waited longer than they may be overtaken.
pub(crate) fn overdue_before(settings: &Settings, now: Timestamp) -> Timestamp {
    let before = now.as_second().saturating_sub(patience_s(settings));
    Timestamp::from_second(before).unwrap_or(Timestamp::MIN)
}

/// Whether later tickets stand back for this one. Not for ever: one that needs more room than will
/// ever be free must not stop everyone else.
pub(crate) fn holds_up_others(ticket: &Ticket, settings: &Settings, now: Timestamp) -> bool {
    let waited_s = now.as_second() - ticket.since.as_second();
    waited_s > patience_s(settings) && waited_s <= 2 * patience_s(settings)
}

fn patience_s(settings: &Settings) -> i64 {
    i64::try_from(settings.queue_patience.as_secs()).unwrap_or(i64::MAX / 4)
}
