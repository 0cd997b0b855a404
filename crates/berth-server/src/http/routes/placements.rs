//! `POST /v1/placements`: choice and claim in one.

use std::sync::Arc;
use std::time::Duration;

use axum::response::{IntoResponse, Response};
use berth_api::{IDEMPOTENCY_KEY, PlaceRequest, Placed, Ticket, TicketState};
use http::{HeaderMap, StatusCode, header};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::Routes;
use crate::http::extract::{Json, RequestContext};
use crate::problem::{ApiError, ApiResult};
use berth_control::ControlPlane;
use berth_control::queue::{self, Outcome};

pub(super) fn routes() -> Routes {
    OpenApiRouter::new().routes(routes!(place))
}

/// Longest that a caller may have its answer held back.
const LONGEST_HOLD_S: u64 = 300;

/// Place instances
///
/// Chooses nodes and claims them, all in one. A refusal is 409 with the whole explanation. With
/// mode `wait` and no room, the request is queued: 202 with a ticket; `Prefer: wait=30` holds the
/// answer back for up to so many seconds.
#[utoipa::path(
    post,
    path = "/v1/placements",
    tag = "placements",
    params(
        ("Idempotency-Key" = Option<String>, Header, description = "The request id, if it is not in the body."),
        ("Prefer" = Option<String>, Header, description = "`wait=SECONDS` delays the response while the request waits."),
    ),
    request_body = PlaceRequest,
    responses(
        (status = 200, description = "What would be granted: a dry run.", body = Placed),
        (status = 201, description = "Granted.", body = Placed),
        (status = 202, description = "No capacity yet: the request is queued.", body = Ticket),
    )
)]
async fn place(
    RequestContext { control, caller }: RequestContext,
    headers: HeaderMap,
    Json(request): Json<PlaceRequest>,
) -> ApiResult<Response> {
    let dry_run = request.dry_run;
    let header_id =
        match headers.get(IDEMPOTENCY_KEY) {
            Some(value) => Some(value.to_str().map(str::to_owned).map_err(|_| {
                ApiError::field("Idempotency-Key", None, "visible ASCII characters")
            })?),
            None => None,
        };
    match queue::place(&control, &caller, request, header_id).await? {
        Outcome::Placed(placed) => {
            let status = if dry_run { StatusCode::OK } else { StatusCode::CREATED };
            Ok((status, axum::Json(placed)).into_response())
        }
        Outcome::Waits(id) => {
            let ticket = hold(&control, &id, held_s(&headers)).await;
            let ticket = ticket.ok_or_else(|| ApiError::not_found("waiting request", &id))?;
            Ok(waiting(ticket))
        }
    }
}

/// What is answered for a request that waits, or waited.
fn waiting(ticket: Ticket) -> Response {
    match (ticket.state, ticket.placed) {
        (TicketState::Granted, Some(placed)) => {
            (StatusCode::CREATED, axum::Json(placed)).into_response()
        }
        (_, placed) => {
            let location = format!("/v1/queue/{}", ticket.id);
            let body = axum::Json(Ticket { placed, ..ticket });
            (StatusCode::ACCEPTED, [(header::LOCATION, location)], body).into_response()
        }
    }
}

/// Seconds for which the caller would have its answer held back.
fn held_s(headers: &HeaderMap) -> u64 {
    let prefer = headers.get_all("prefer").iter().filter_map(|value| value.to_str().ok());
    let mut parts = prefer.flat_map(|value| value.split(','));
    let wait = parts.find_map(|part| part.trim().strip_prefix("wait=")?.trim().parse().ok());
    wait.unwrap_or(0).min(LONGEST_HOLD_S)
}

/// Waits until a ticket is closed, or so many seconds have passed. Returns it as it is then.
pub(super) async fn hold(control: &Arc<ControlPlane>, id: &str, seconds: u64) -> Option<Ticket> {
    let mut closings = control.queue.closings();
    let end = tokio::time::Instant::now() + Duration::from_secs(seconds);
    loop {
        closings.mark_unchanged();
        let ticket = control.queue.get(id, &control.lifecycle.settings(), control.now())?;
        if ticket.state != TicketState::Waiting || seconds == 0 {
            return Some(ticket);
        }
        tokio::select! {
            _ = closings.changed() => {}
            () = tokio::time::sleep_until(end) => return Some(ticket),
            () = control.lifecycle.stopping().cancelled() => return Some(ticket),
        }
    }
}
