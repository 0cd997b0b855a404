//! `POST /v1/placements`: choice and claim in one.

use std::sync::Arc;
use std::time::Duration;

use axum::response::{IntoResponse, Response};
use berth_api::{
    ExplainLevel, IDEMPOTENCY_KEY, InstanceExplanation, PlaceRequest, Placed, Ticket, TicketState,
};
use http::{HeaderMap, StatusCode, header};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;
use uuid::Uuid;

use super::Routes;
use super::decisions::ExplainQuery;
use crate::http::extract::{Json, Query, RequestContext};
use crate::problem::{ApiError, ApiResult};
use berth_control::caller::Caller;
use berth_control::placement::EXPLAINED_NODES;
use berth_control::queue::{self, Outcome};
use berth_control::{ControlError, ControlPlane, ExplanationRange, explanations};

pub(super) fn routes() -> Routes {
    OpenApiRouter::new().routes(routes!(place)).routes(routes!(explain))
}

/// Longest that a caller may have its answer held back.
pub(super) const LONGEST_HOLD_S: u64 = 300;

/// Place instances
///
/// Chooses nodes and claims them, all in one. A refusal is 409 with the whole explanation. With
/// `explain` `full` either is answered with the first 100 nodes, each with every filter that it fails
/// or every term of its total; `next` says where further ones begin. With
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
    Json(mut request): Json<PlaceRequest>,
) -> ApiResult<Response> {
    let dry_run = request.dry_run;
    let header_id = idempotency_key(&headers)?;
    let explained = request_to_explain(&mut request, header_id.as_deref());
    let outcome = match queue::place(&control, &caller, request, header_id).await {
        Ok(outcome) => outcome,
        Err(error) => return Err(with_nodes(&control, &caller, error, explained).await.into()),
    };
    match outcome {
        Outcome::Placed(placed) => {
            let status = if dry_run { StatusCode::OK } else { StatusCode::CREATED };
            Ok((status, axum::Json(placed)).into_response())
        }
        Outcome::Waits(id) => {
            let ticket = hold(&control, &id, held_s(&headers)).await;
            let ticket = ticket.ok_or_else(|| ApiError::not_found("waiting request", &id))?;
            Ok(waiting(ticket))
        }
        Outcome::Closed(ticket) => Ok(waiting(*ticket)),
    }
}

/// The request id of the header, if it has one.
pub(super) fn idempotency_key(headers: &HeaderMap) -> ApiResult<Option<String>> {
    let Some(value) = headers.get(IDEMPOTENCY_KEY) else { return Ok(None) };
    let unreadable = |_| ApiError::field("Idempotency-Key", None, "visible ASCII characters");
    Ok(Some(value.to_str().map(str::to_owned).map_err(unreadable)?))
}

/// A copy of a request whose refusal is to be explained node by node. It needs a request id for that,
/// so that the same instance is meant both times.
fn request_to_explain(
    request: &mut PlaceRequest,
    header_id: Option<&str>,
) -> Option<Box<PlaceRequest>> {
    if request.explain != ExplainLevel::Full {
        return None;
    }
    let id = || header_id.map_or_else(|| Uuid::now_v7().to_string(), str::to_owned);
    request.request_id.get_or_insert_with(id);
    Some(Box::new(request.clone()))
}

/// A refusal with its first nodes, if a full explanation was asked for.
async fn with_nodes(
    control: &ControlPlane,
    caller: &Caller,
    error: ControlError,
    request: Option<Box<PlaceRequest>>,
) -> ControlError {
    let refused = error.explained().first().map(|refusal| refusal.instance);
    let (Some(request), Some(instance)) = (request, refused) else { return error };
    let range = ExplanationRange { instance: Some(instance), from: 0, limit: EXPLAINED_NODES };
    match explanations::explain_request(control, caller, *request, range).await {
        Ok(explanation) => error.explanation(explanation),
        // The refusal itself is what was asked for.
        Err(_) => error,
    }
}

/// Explain a placement node by node
///
/// What would be decided now for one instance of the request: how many nodes each filter removes,
/// winner and runner-up with every term, and a page of nodes, each with every filter that it fails or
/// every term of its total. Nothing is claimed or recorded. The answer is found on a copy of the
/// fleet, one at a time; between two pages the fleet may change.
#[utoipa::path(
    post,
    path = "/v1/placements/explain",
    tag = "placements",
    params(ExplainQuery),
    request_body = PlaceRequest,
    responses((status = 200, description = "The verdicts.", body = InstanceExplanation))
)]
async fn explain(
    RequestContext { control, caller }: RequestContext,
    Query(query): Query<ExplainQuery>,
    Json(request): Json<PlaceRequest>,
) -> ApiResult<axum::Json<InstanceExplanation>> {
    let range = query.range(EXPLAINED_NODES)?;
    Ok(axum::Json(explanations::explain_request(&control, &caller, request, range).await?))
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
pub(in crate::http) fn held_s(headers: &HeaderMap) -> u64 {
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
        let is_open = control.queue.tickets.get(id)?.value.is_open();
        if !is_open || seconds == 0 {
            break;
        }
        tokio::select! {
            _ = closings.changed() => {}
            () = tokio::time::sleep_until(end) => break,
            () = control.lifecycle.stopping().cancelled() => break,
        }
    }
    control.queue.get(id, &control.lifecycle.settings(), control.now())
}
