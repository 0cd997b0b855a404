//! The loop that tries waiting requests whenever something may have made room.

use std::sync::Arc;
use std::time::Duration;

use berth_api::{Placed, TicketState};
use berth_ledger::{ClaimKey, Grant, Ledger, LedgerError, Op, Release, Text};
use futures_util::future::try_join_all;
use jiff::{SignedDuration, Timestamp};
use tokio::sync::watch;

use super::place::{Attempt, try_waiting};
use super::tickets;
use crate::caller::Caller;
use crate::clock::moment;
use crate::control_plane::ControlPlane;
use crate::error::{ControlError, ControlResult};
use crate::loop_runner::BackgroundLoop;
use crate::patience::read_within_patience;
use crate::settings::Settings;
use crate::state::TicketRecord;
use crate::state::ticket_order as order;

/// The least time between two passes.
const PAUSE: Duration = Duration::from_millis(20);

/// Most tickets tried in one pass, so that a long queue does not delay new requests.
pub(crate) const MAX_PER_PASS: usize = 128;

/// Tickets that are closed at once when their deadlines pass.
const CLOSED_AT_ONCE: usize = 256;

/// How long closed tickets can be read.
const KEPT_S: i64 = 3600;

/// Tries waiting requests.
pub(crate) struct TicketGranter(pub(crate) Arc<ControlPlane>);

impl BackgroundLoop for TicketGranter {
    const NAME: &'static str = "queue";
    const PERIOD: Duration = Duration::from_secs(1);

    /// A long queue takes a third of the planner at most; the rest is for new requests.
    fn pause(&self, took: Duration) -> Duration {
        (took * 2).max(PAUSE)
    }

    fn wake_sources(&self) -> Vec<watch::Receiver<u64>> {
        vec![self.0.catalog.room(), self.0.queue.arrivals()]
    }

    async fn pass(&mut self) -> ControlResult<()> {
        Ok(try_tickets(&self.0).await?)
    }
}

async fn try_tickets(control: &Arc<ControlPlane>) -> Result<(), LedgerError> {
    let (settings, now) = (control.lifecycle.settings(), control.now());
    for known in control.queue.first(MAX_PER_PASS, &settings, now) {
        // It may have been closed while others were tried.
        let known = control.queue.tickets.get(&known.value.ticket.id);
        let Some(known) = known.filter(|known| known.value.is_open()) else { continue };
        if known.value.ticket.deadline <= now {
            continue;
        }
        if try_ticket(control, &known.value, &settings, now).await? {
            break;
        }
    }
    expire_tickets(control, now).await?;
    let before = now.saturating_add(SignedDuration::from_secs(-KEPT_S));
    tickets::remove_old(control, before.unwrap_or(Timestamp::MIN)).await;
    Ok(())
}

/// Closes tickets whose deadline has passed, many in one transaction.
async fn expire_tickets(control: &Arc<ControlPlane>, now: Timestamp) -> Result<(), LedgerError> {
    loop {
        let expired = control.queue.expired(CLOSED_AT_ONCE, now);
        if expired.is_empty() {
            return Ok(());
        }
        let closing =
            expired.iter().map(|id| tickets::close(control, id, TicketState::Expired, None, None));
        try_join_all(closing).await?;
    }
}

/// Tries one ticket. Returns whether later ones must wait for it.
async fn try_ticket(
    control: &Arc<ControlPlane>,
    stored: &TicketRecord,
    settings: &Settings,
    now: Timestamp,
) -> Result<bool, LedgerError> {
    let ticket = &stored.ticket;
    if stored.oversized {
        let excess = "it has too many instances, affinity rules or regular expressions";
        let problem = ControlError::quarantined("the waiting request", excess).into_problem();
        let state = TicketState::Refused;
        tickets::close(control, &ticket.id, state, None, Some(problem)).await?;
        return Ok(false);
    }
    let request = stored.attempt_request();
    match try_waiting(control, &request, &stored.actor, &stored.origin, true).await {
        Attempt::Placed(placed) => {
            let leases = leases_of(&placed);
            let lapsed = move |ledger: &Ledger| has_lapsed(ledger, &leases, now);
            if read_within_patience(&control.ledger, lapsed).await? {
                tickets::record_lapse(control, &ticket.id).await?;
            } else {
                record_grant(control, stored, placed).await?;
            }
            Ok(false)
        }
        Attempt::NoRoom(problem) => {
            let may_help = problem.retry.unwrap_or(false);
            control.queue.record_attempt(&ticket.id, problem);
            Ok(may_help && order::holds_up_others(ticket, settings, now))
        }
        Attempt::Never(problem) => {
            let state = TicketState::Refused;
            tickets::close(control, &ticket.id, state, None, Some(problem)).await?;
            Ok(false)
        }
        Attempt::Unknown(error) => Err(error),
    }
}

/// Closes a ticket with what was granted. If it was cancelled meanwhile, the claims are released.
pub(super) async fn record_grant(
    control: &Arc<ControlPlane>,
    stored: &TicketRecord,
    mut placed: Placed,
) -> Result<(), LedgerError> {
    let id = &stored.ticket.id;
    placed.request_id = stored.ticket.request.request_id.clone().unwrap_or_default();
    let kept = Some(placed.clone());
    if !tickets::close(control, id, TicketState::Granted, kept, None).await? {
        release_claims(control, id, &placed).await;
    }
    Ok(())
}

/// A claim of a grant, and the end of its lease.
pub(super) type ClaimLease = (ClaimKey, Option<Timestamp>);

fn leases_of(placed: &Placed) -> Vec<ClaimLease> {
    let instances = placed.instances.iter();
    instances.map(|it| (ClaimKey::primary(it.instance), it.lease_until)).collect()
}

/// The leases of a grant as the ledger keeps it.
pub(super) fn leases_of_grant(grant: &Grant) -> Vec<ClaimLease> {
    let claims = grant.claims.iter();
    claims
        .map(|it| (ClaimKey { instance: it.instance, role: it.role }, it.lease_until.map(moment)))
        .collect()
}

/// Whether a grant is an old one that ended unused: its leases have ended, and none of its claims is
/// there any more. A claim that was bound has no lease, and one that is there still counts, so
/// another grant would be a second one.
///
/// # Errors
/// When the ledger cannot be read.
pub(super) fn has_lapsed(
    ledger: &Ledger,
    leases: &[ClaimLease],
    now: Timestamp,
) -> Result<bool, LedgerError> {
    if !leases.iter().any(|(_, lease_until)| lease_until.is_some_and(|end| end <= now)) {
        return Ok(false);
    }
    for (key, _) in leases {
        if ledger.claim(*key)?.is_some() {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Releases the claims of a ticket that was cancelled while it was granted. If this is lost, too,
/// their leases expire.
async fn release_claims(control: &ControlPlane, ticket: &str, placed: &Placed) {
    let ticket = control.queue.tickets.get(ticket);
    // Another server granted it: then the claims are wanted.
    if ticket.is_some_and(|known| known.value.ticket.state == TicketState::Granted) {
        return;
    }
    for instance in &placed.instances {
        let release = Release {
            request_id: Text::from(format!("call-off-{}-{:?}", instance.instance, instance.fence)),
            key: ClaimKey::primary(instance.instance),
            tenant: None,
            fence: instance.fence,
            confirmed: true,
            reason: Text::from("waiting_cancelled"),
        };
        let (caller, subject) = (Caller::local("queue"), instance.instance.to_string());
        if let Err(error) =
            control.call(&caller, "claim.release", subject, None, Op::Release(release)).await
        {
            tracing::warn!(%error, "failed to release claim of a cancelled request");
        }
    }
}
