//! `/v1/rebalance`: moving instances that could stay, to empty whole nodes or to even out their use.

use std::sync::Arc;

use axum::extract::State;
use berth_api::{ApplyRebalance, PlanRebalance, Rebalance, RebalanceApplied};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::Routes;
use crate::http::extract::{Json, RequestContext};
use crate::problem::ApiResult;
use berth_control::ControlPlane;
use berth_control::moves::rebalance;

pub(super) fn routes() -> Routes {
    OpenApiRouter::new().routes(routes!(plan)).routes(routes!(apply))
}

/// Plan a rebalance
///
/// Which instances would move where, the gain and cost of each move, and the resulting usage.
/// Nothing is claimed and nothing changes.
#[utoipa::path(post, path = "/v1/rebalance/plan", tag = "elastic",
    request_body = PlanRebalance,
    responses((status = 200, description = "The plan.", body = Rebalance)))]
async fn plan(
    State(control): State<Arc<ControlPlane>>,
    Json(request): Json<PlanRebalance>,
) -> ApiResult<axum::Json<Rebalance>> {
    Ok(axum::Json(rebalance::plan(&control, &request).await?))
}

/// Begin a rebalance
///
/// Begins the moves of a plan that is made now, or those that are given, as migrations: as many as
/// the policy's limits allow at once. The response lists moves that were not started, and why.
#[utoipa::path(post, path = "/v1/rebalance/apply", tag = "elastic",
    request_body = ApplyRebalance,
    responses((status = 200, description = "The moves that were started.", body = RebalanceApplied)))]
async fn apply(
    RequestContext { control, caller }: RequestContext,
    Json(request): Json<ApplyRebalance>,
) -> ApiResult<axum::Json<RebalanceApplied>> {
    Ok(axum::Json(rebalance::apply(&control, &caller, request).await?))
}
