//! `/v1/volumes/{id}/move`: moving volumes, and what agents report of it.

use std::sync::Arc;

use axum::extract::State;
use berth_api::{MoveVolume, VolumeMove, VolumeMoveReport};
use berth_engine::NodeId;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::http::extract::{Json, Path, RequestContext};
use crate::http::routes::Routes;
use crate::problem::{ApiError, ApiResult};
use berth_control::ControlPlane;
use berth_control::moves::volume;

pub(super) fn routes() -> Routes {
    OpenApiRouter::new().routes(routes!(begin, get)).routes(routes!(cancel)).routes(routes!(report))
}

/// Move a volume
///
/// Agents copy it while it is in use; then the instance that uses it is stopped, the agents copy the
/// rest, and it is started again on the new node. Refused if the instance could not run there.
#[utoipa::path(post, path = "/v1/volumes/{id}/move", tag = "volumes",
    params(("id" = String, Path, description = "The volume.")),
    request_body = MoveVolume,
    responses((status = 200, description = "The state of the move.", body = VolumeMove)))]
async fn begin(
    RequestContext { control, caller }: RequestContext,
    Path(id): Path<String>,
    Json(request): Json<MoveVolume>,
) -> ApiResult<axum::Json<VolumeMove>> {
    Ok(axum::Json(volume::start(&control, &caller, &id, &request).await?))
}

/// Read the move of a volume
#[utoipa::path(get, path = "/v1/volumes/{id}/move", tag = "volumes",
    params(("id" = String, Path, description = "The volume.")),
    responses((status = 200, description = "The last move, including one that has ended.", body = VolumeMove)))]
async fn get(
    State(control): State<Arc<ControlPlane>>,
    Path(id): Path<String>,
) -> ApiResult<axum::Json<VolumeMove>> {
    let known = control.moves.volume_moves.get(&id);
    let known = known.ok_or_else(|| ApiError::not_found("move of volume", &id))?;
    Ok(axum::Json(volume::view(&id, &known.value)))
}

/// Cancel the move of a volume
///
/// The volume stays on its node; if the instance that uses it was stopped, it is started again there.
#[utoipa::path(post, path = "/v1/volumes/{id}/move/cancel", tag = "volumes",
    params(("id" = String, Path, description = "The volume.")),
    responses((status = 200, description = "Cancelled.", body = VolumeMove)))]
async fn cancel(
    RequestContext { control, caller }: RequestContext,
    Path(id): Path<String>,
) -> ApiResult<axum::Json<VolumeMove>> {
    Ok(axum::Json(volume::cancel(&control, &caller, &id).await?))
}

/// Report on the move of a volume
///
/// By the agent of the node it moves from or to.
#[utoipa::path(post, path = "/v1/nodes/{node}/volume-moves", tag = "agents",
    params(("node" = String, Path, description = "The node.")),
    request_body = VolumeMoveReport,
    responses((status = 200, description = "The state of the move.", body = VolumeMove)))]
async fn report(
    RequestContext { control, caller }: RequestContext,
    Path(node): Path<NodeId>,
    Json(report): Json<VolumeMoveReport>,
) -> ApiResult<axum::Json<VolumeMove>> {
    control.node_for(&caller, &node)?;
    Ok(axum::Json(volume::report(&control, &node, &report).await?))
}
