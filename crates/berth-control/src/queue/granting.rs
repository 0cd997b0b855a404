//! The loop that tries waiting requests whenever something may have made room.

use std::sync::Arc;
use std::time::Duration;

use berth_api::{Placed, TicketState};
use berth_ledger::{ClaimKey, LedgerError, Op, Release, Text};
use jiff::{SignedDuration, Timestamp};
use tokio::sync::watch;

use super::place::{Attempt, try_waiting};
use super::tickets;
use crate::caller::Caller;
use crate::control_plane::ControlPlane;
use crate::error::{ControlError, ControlResult};
use crate::loop_runner::BackgroundLoop;
use crate::settings::Settings;
use crate::state::TicketRecord;
use crate::state::ticket_order as order;

/// The least time between two passes.
const PAUSE: Duration = Duration::from_millis(20);

/// Most tickets tried in one pass, so that a long queue does not delay new requests.
const MAX_PER_PASS: usize = 128;

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
    let ids = {
        let tickets = &control.queue.tickets.read().documents;
        order::sort_waiting(tickets.values().map(|known| &known.value), &settings, now)
    };
    let (mut tried, mut held_up) = (0, false);
    for id in ids {
        let known = control.queue.tickets.get(&id);
        let Some(known) = known.filter(|known| known.value.is_open()) else { continue };
        if known.value.ticket.deadline <= now {
            tickets::close(control, &id, TicketState::Expired, None, None).await?;
            continue;
        }
        if held_up || tried >= MAX_PER_PASS {
            continue;
        }
        tried += 1;
        held_up = try_ticket(control, &known.value, &settings, now).await?;
    }
    let before = now.saturating_add(SignedDuration::from_secs(-KEPT_S));
    tickets::remove_old(control, before.unwrap_or(Timestamp::MIN)).await;
    Ok(())
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
    let mut request = ticket.request.clone();
    if stored.lapsed > 0 {
        // The answer under the first id is a grant that ended unused.
        request.request_id = request.request_id.map(|id| format!("{id}~{}", stored.lapsed));
    }
    match try_waiting(control, &request, &stored.actor, &stored.origin).await {
        Attempt::Placed(placed) if has_lapsed(&placed, now) => {
            tickets::record_lapse(control, &ticket.id).await?;
            Ok(false)
        }
        Attempt::Placed(mut placed) => {
            placed.request_id = ticket.request.request_id.clone().unwrap_or_default();
            let kept = Some(placed.clone());
            let state = TicketState::Granted;
            if !tickets::close(control, &ticket.id, state, kept, None).await? {
                release_claims(control, &placed).await;
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

/// Whether a grant is an old one, whose leases have ended.
fn has_lapsed(placed: &Placed, now: Timestamp) -> bool {
    placed.instances.iter().any(|instance| instance.lease_until.is_some_and(|end| end <= now))
}

/// Releases the claims of a ticket that was cancelled while it was granted. If this is lost, too,
/// their leases expire.
async fn release_claims(control: &ControlPlane, placed: &Placed) {
    let wanted = control.queue.of_request(&placed.tenant, &placed.request_id);
    let settings = control.lifecycle.settings();
    let ticket = wanted.and_then(|id| control.queue.get(&id, &settings, control.now()));
    // Another server granted it: then the claims are wanted.
    if ticket.is_some_and(|ticket| ticket.state == TicketState::Granted) {
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
