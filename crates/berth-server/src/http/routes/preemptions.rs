//! `/v1/placements/preemption`: room for a request, made by instances of lower priority.

use axum::response::{IntoResponse, Response};
use berth_api::{ApplyPreemption, PlaceRequest, Preemption, PreemptionApplied};
use http::{HeaderMap, StatusCode};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::Routes;
use super::placements::idempotency_key;
use crate::http::extract::{Json, RequestContext};
use crate::problem::ApiResult;
use berth_control::preemption;

pub(super) fn routes() -> Routes {
    OpenApiRouter::new().routes(routes!(propose)).routes(routes!(apply))
}

/// Propose a preemption
///
/// Which instances of lower priority would make room for a request of one instance: on the node where
/// they matter least. Nothing is claimed and nothing changes. A tenant is proposed its own instances
/// alone. 409 `no_preemption` with the whole explanation when nobody who may be preempted would make room.
#[utoipa::path(post, path = "/v1/placements/preemption", tag = "placements",
    request_body = PlaceRequest,
    responses((status = 200, description = "Who would make room; nobody when it fits.", body = Preemption)))]
async fn propose(
    RequestContext { control, caller }: RequestContext,
    Json(request): Json<PlaceRequest>,
) -> ApiResult<axum::Json<Preemption>> {
    Ok(axum::Json(preemption::propose(&control, &caller, request).await?))
}

/// Place by preemption
///
/// Places a request where there is room, else in the room of the victims that are named, or that are
/// found now: their release and the claim are one commit, all of it or nothing. A retry with the same
/// request id gets the first response and releases nobody.
#[utoipa::path(post, path = "/v1/placements/preemption/apply", tag = "placements",
    params(
        ("Idempotency-Key" = Option<String>, Header, description = "The request id, if it is not in the body."),
    ),
    request_body = ApplyPreemption,
    responses((status = 201, description = "Granted.", body = PreemptionApplied)))]
async fn apply(
    RequestContext { control, caller }: RequestContext,
    headers: HeaderMap,
    Json(request): Json<ApplyPreemption>,
) -> ApiResult<Response> {
    let header_id = idempotency_key(&headers)?;
    let applied = preemption::apply(&control, &caller, request, header_id).await?;
    Ok((StatusCode::CREATED, axum::Json(applied)).into_response())
}
