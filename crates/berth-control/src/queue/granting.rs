//! The loop that tries waiting requests whenever something may have made room.

use std::sync::Arc;
use std::task::Poll;
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
use crate::error::ControlResult;
use crate::loop_runner::BackgroundLoop;
use crate::patience::read_within_patience;
use crate::placer::{AttemptOrder, OrderedAttempt};
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
pub(crate) struct TicketGranter {
    control: Arc<ControlPlane>,
    /// Whether the last pass granted any.
    has_granted: bool,
}

impl TicketGranter {
    /// The loop of a server.
    pub(crate) const fn new(control: Arc<ControlPlane>) -> Self {
        Self { control, has_granted: false }
    }
}

impl BackgroundLoop for TicketGranter {
    const NAME: &'static str = "queue";
    const PERIOD: Duration = Duration::from_secs(1);

    /// A long queue for which there is no room takes a third of the planner at most; the rest is for
    /// new requests. While there is room, time goes by for the database and not for the planner.
    fn pause(&self, took: Duration) -> Duration {
        if self.has_granted { PAUSE } else { (took * 2).max(PAUSE) }
    }

    fn wake_sources(&self) -> Vec<watch::Receiver<u64>> {
        vec![self.control.catalog.room(), self.control.queue.arrivals()]
    }

    async fn pass(&mut self) -> ControlResult<()> {
        self.has_granted = false;
        self.has_granted = try_tickets(&self.control).await?;
        Ok(())
    }
}

/// Tries the first tickets, as many at once as may be. Returns whether any was granted.
async fn try_tickets(control: &Arc<ControlPlane>) -> Result<bool, LedgerError> {
    let (settings, now) = (control.lifecycle.settings(), control.now());
    let holds_up = |stored: &TicketRecord| order::holds_up_others(&stored.ticket, &settings, now);
    let mut waiting = control.queue.first(MAX_PER_PASS, &settings, now).into_iter().peekable();
    let mut has_granted = false;
    while let Some(first) = waiting.next() {
        let is_alone = is_tried_alone(&first.value, holds_up);
        let mut together = vec![first];
        while !is_alone
            && let Some(next) = waiting.next_if(|next| !is_tried_alone(&next.value, holds_up))
        {
            together.push(next);
        }
        let shared = AttemptOrder::default();
        let attempts = together.iter().filter_map(|known| {
            // It may have been closed while others were tried.
            let known = control.queue.tickets.get(&known.value.ticket.id)?;
            let is_due = known.value.is_open() && known.value.ticket.deadline > now;
            let attempt = shared.next(holds_up(&known.value));
            is_due.then_some(async move { try_ticket(control, &known.value, attempt, now).await })
        });
        let mut is_held_up = false;
        for tried in join_in_order(attempts).await {
            match tried? {
                Tried::Granted => has_granted = true,
                Tried::NoRoom { may_help } => is_held_up |= is_alone && may_help,
                Tried::Over => {}
            }
        }
        if is_held_up || shared.is_stopped() {
            break;
        }
    }
    expire_tickets(control, now).await?;
    let before = now.saturating_add(SignedDuration::from_secs(-KEPT_S));
    tickets::remove_old(control, before.unwrap_or(Timestamp::MIN)).await;
    Ok(has_granted)
}

/// What became of a ticket that was tried.
enum Tried {
    Granted,
    /// There is no room for it, and whether others that make room would help.
    NoRoom {
        may_help: bool,
    },
    /// It waits no longer.
    Over,
}

/// Whether a ticket must have been tried before the next one is. The planner itself tries single instances
/// in the order in which they come; batches are left to the explainer, and volumes are read from the ledger.
fn is_tried_alone(record: &TicketRecord, holds_up_others: impl Fn(&TicketRecord) -> bool) -> bool {
    let is_plain = match &*record.ticket.request.instances {
        [one] => one.count.unwrap_or(1) == 1 && one.attachments.is_empty(),
        _ => false,
    };
    !is_plain && holds_up_others(record)
}

/// Runs futures together. Each time they are polled in their order, so that what they send when they are
/// polled first is sent in that order.
async fn join_in_order<F: Future>(futures: impl Iterator<Item = F>) -> Vec<F::Output> {
    let mut running: Vec<_> = futures.map(|future| (Box::pin(future), None)).collect();
    std::future::poll_fn(|context| {
        let mut is_ready = true;
        for (future, output) in running.iter_mut().filter(|(_, output)| output.is_none()) {
            match future.as_mut().poll(context) {
                Poll::Ready(found) => *output = Some(found),
                Poll::Pending => is_ready = false,
            }
        }
        if is_ready { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    running.into_iter().filter_map(|(_, output)| output).collect()
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

/// Tries one ticket.
async fn try_ticket(
    control: &Arc<ControlPlane>,
    stored: &TicketRecord,
    attempt: OrderedAttempt,
    now: Timestamp,
) -> Result<Tried, LedgerError> {
    let ticket = &stored.ticket;
    if stored.oversized {
        let excess = "it has too many instances, affinity rules or regular expressions";
        tickets::quarantine(control, &ticket.id, excess).await?;
        return Ok(Tried::Over);
    }
    let request = stored.attempt_request();
    match try_waiting(control, &request, &stored.actor, &stored.origin, Some(attempt)).await {
        Attempt::Placed(placed) => {
            let leases = leases_of(&placed);
            let lapsed = move |ledger: &Ledger| has_lapsed(ledger, &leases, now);
            if read_within_patience(&control.ledger, lapsed).await? {
                tickets::record_lapse(control, &ticket.id).await?;
            } else {
                record_grant(control, stored, placed).await?;
            }
            Ok(Tried::Granted)
        }
        Attempt::NoRoom(problem) => {
            let may_help = problem.retry.unwrap_or(false);
            control.queue.record_attempt(&ticket.id, problem);
            Ok(Tried::NoRoom { may_help })
        }
        Attempt::Quarantined(excess) => {
            tickets::quarantine(control, &ticket.id, &excess).await?;
            Ok(Tried::Over)
        }
        Attempt::Never(problem) => {
            let state = TicketState::Refused;
            tickets::close(control, &ticket.id, state, None, Some(problem)).await?;
            Ok(Tried::Over)
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
