//! From a request of the API to the claim path and back.

mod answer;
mod read;

use std::sync::Arc;

use berth_api::{PlaceRequest, Placed, Problem};
use berth_ledger::{LedgerError, Text};
use tokio::sync::oneshot;
use tracing::Instrument as _;

use crate::REQUESTS;
use crate::caller::Caller;
use crate::control_plane::ControlPlane;
use crate::error::{ControlError, ControlResult, ErrorKind};
use crate::placer::{Actor, PlaceAnswer, PlaceJob};

pub use answer::Audience;
pub use answer::decision_id;
pub use read::Prepared;
pub use read::{owner_for, request_of};

/// What became of a placement.
#[derive(Debug)]
pub enum Outcome {
    /// Granted, or in a dry run would be.
    Placed(Placed),
    /// It waits, under this ticket.
    Waits(String),
}

/// What became of a waiting request that was tried.
#[derive(Debug)]
pub enum Tried {
    /// Granted.
    Placed(Placed),
    /// Not yet.
    NoRoom(Problem),
    /// Not ever.
    Never(Problem),
    /// The ledger does not know.
    Unknown(LedgerError),
}

/// Places, or queues, for a caller.
///
/// # Errors
/// A refusal is an error with the whole explanation.
pub async fn place(
    control: &Arc<ControlPlane>,
    caller: &Caller,
    request: PlaceRequest,
    request_id: Option<String>,
) -> ControlResult<Outcome> {
    let prepared = read::prepare(control, caller, request, request_id).await?;
    if prepared.is_waiting() && !prepared.request.dry_run {
        return place_or_wait(control, caller, prepared).await;
    }
    let by = Actor { name: Text::from(caller.actor()), origin: Text::from(caller.origin()) };
    let answer = decide(control, &prepared, Some(by), false).await;
    let audience = Audience::of(control, caller, &prepared.owner);
    answer::answer(&prepared, answer, &audience).map(Outcome::Placed)
}

/// Whoever waits already comes first; only when nobody does is a place looked for at once.
async fn place_or_wait(
    control: &Arc<ControlPlane>,
    caller: &Caller,
    prepared: Prepared,
) -> ControlResult<Outcome> {
    let request_id = prepared.place_id();
    if let Some(ticket) = control.queue.of_request(&prepared.owner, request_id) {
        return Ok(Outcome::Waits(ticket));
    }
    let mut problem = None;
    if control.queue.waiting() == 0 {
        let by = Actor { name: Text::from(caller.actor()), origin: Text::from(caller.origin()) };
        let answer = decide(control, &prepared, Some(by), false).await;
        let may_wait = matches!(
            answer,
            PlaceAnswer::NoRoom(_) | PlaceAnswer::Contended(_) | PlaceAnswer::Refused(_)
        );
        // Whoever reads the ticket later may be a tenant.
        let audience = if may_wait {
            Audience::tenant(control, &prepared.owner)
        } else {
            Audience::of(control, caller, &prepared.owner)
        };
        match answer::answer(&prepared, answer, &audience) {
            Ok(placed) => return Ok(Outcome::Placed(placed)),
            Err(error) if may_wait && error.may_retry() => {
                problem = Some(error.into_problem());
            }
            Err(error) => return Err(error),
        }
    }
    let ticket = control.queue.enqueue(control, caller, prepared.request, problem).await?;
    Ok(Outcome::Waits(ticket))
}

/// Tries a request that waits, whose instances all have ids.
pub(crate) async fn try_waiting(
    control: &Arc<ControlPlane>,
    request: &PlaceRequest,
    actor: &str,
    origin: &str,
) -> Tried {
    let caller = Caller::local("queue");
    let prepared = match read::prepare(control, &caller, request.clone(), None).await {
        Ok(prepared) => prepared,
        Err(error) => return Tried::Never(error.into_problem()),
    };
    let by = Actor { name: Text::from(actor), origin: Text::from(origin) };
    let answer = decide(control, &prepared, Some(by), true).await;
    if let PlaceAnswer::Unknown(error) = answer {
        return Tried::Unknown(error);
    }
    // Whoever reads the ticket later may be a tenant.
    let audience = Audience::tenant(control, &prepared.owner);
    match answer::answer(&prepared, answer, &audience) {
        Ok(placed) => Tried::Placed(placed),
        Err(error) if error.may_retry() => Tried::NoRoom(error.into_problem()),
        Err(error) => Tried::Never(error.into_problem()),
    }
}

async fn decide(
    control: &ControlPlane,
    prepared: &Prepared,
    by: Option<Actor>,
    quiet: bool,
) -> PlaceAnswer {
    let mut request = prepared.place_request();
    (request.by, request.quiet) = (by, quiet);
    let (sender, receiver) = oneshot::channel();
    let reply = Box::new(move |answer| drop(sender.send(answer)));
    let began = tokio::time::Instant::now();
    control.placer.submit(PlaceJob { request, reply });
    let span = tracing::info_span!(
        target: REQUESTS,
        "decide",
        berth.request_id = prepared.place_id(),
        berth.owner = prepared.owner,
        berth.instances = prepared.instances().len(),
    );
    let answer = receiver.instrument(span).await;
    let answer = answer.unwrap_or(PlaceAnswer::Unknown(LedgerError::Closed));
    // Tries in passing and dry runs are not what callers asked for.
    if !quiet && !prepared.request.dry_run {
        control.metrics.placed(&answer, began.elapsed());
    }
    answer
}

impl From<crate::queue::TicketError> for ControlError {
    fn from(error: crate::queue::TicketError) -> Self {
        use crate::queue::TicketError;
        match error {
            TicketError::Unknown(id) => Self::not_found("waiting request", &id),
            TicketError::Closed { .. } => Self::conflict("not_waiting", error.to_string()),
            TicketError::TooMany { .. } => {
                let title = "too many requests wait";
                let kind = ErrorKind::LimitReached;
                Self::new(kind, "queue_full", title, error.to_string()).retry_after(10)
            }
            TicketError::Ledger(error) => Self::from(error),
        }
    }
}
