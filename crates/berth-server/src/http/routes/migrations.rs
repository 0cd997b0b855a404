//! `/v1/migrations`: instances that move while they run.

use std::sync::Arc;

use axum::extract::State;
use berth_api::{
    Migration, MigrationReason, MigrationReport, MigrationState, Page, Pressure, StartMigration,
};
use berth_engine::{InstanceId, NodeId};
use berth_ledger::ClaimKey;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;
use uuid::Uuid;

use super::Routes;
use crate::http::extract::{Json, OptionalJson, Path, Query, RequestContext};
use crate::http::list::{first_page, list_query, page_limit};
use crate::problem::{ApiError, ApiResult};
use berth_control::moves::migration::{self, Destination, MigrationRequest, view};
use berth_control::{ControlError, ControlPlane};

pub(super) fn routes() -> Routes {
    OpenApiRouter::new()
        .routes(routes!(list))
        .routes(routes!(get))
        .routes(routes!(start))
        .routes(routes!(cancel))
        .routes(routes!(report))
        .routes(routes!(pressure))
}

list_query! {
    /// The query of `GET /v1/migrations`.
    struct ListMigrationsQuery {
        /// In this state.
        state: Option<MigrationState>,
        /// From or to this node.
        #[param(value_type = Option<String>)]
        node: Option<NodeId>,
        /// Of this instance.
        instance: Option<Uuid>,
        /// Only migrations that have not ended.
        open: Option<bool>,
    }
}

/// List migrations
///
/// Those under way and those that ended within a day, oldest first.
#[utoipa::path(get, path = "/v1/migrations", tag = "elastic", params(ListMigrationsQuery),
    responses((status = 200, description = "Migrations.", body = Page<Migration>)))]
async fn list(
    State(control): State<Arc<ControlPlane>>,
    Query(query): Query<ListMigrationsQuery>,
) -> ApiResult<axum::Json<Page<Migration>>> {
    let limit = page_limit(query.limit)?;
    let all = control.moves.migrations.all();
    let found = all.iter().filter(|(id, known)| {
        let record = &known.value;
        query.cursor.as_ref().is_none_or(|after| id > after)
            && query.state.is_none_or(|state| record.state == state)
            && query.node.as_ref().is_none_or(|it| record.source == *it || record.target == *it)
            && query.instance.is_none_or(|instance| record.instance == InstanceId(instance))
            && (!query.open.unwrap_or(false) || record.is_open())
    });
    Ok(axum::Json(first_page(found.map(|(id, known)| (id.clone(), view(id, &known.value))), limit)))
}

/// Read a migration
#[utoipa::path(get, path = "/v1/migrations/{id}", tag = "elastic",
    params(("id" = String, Path, description = "The migration.")),
    responses((status = 200, description = "The migration.", body = Migration)))]
async fn get(
    State(control): State<Arc<ControlPlane>>,
    Path(id): Path<String>,
) -> ApiResult<axum::Json<Migration>> {
    let known = control.moves.migrations.get(&id);
    let known = known.ok_or_else(|| ApiError::not_found("migration", &id))?;
    Ok(axum::Json(view(&id, &known.value)))
}

/// Migrate a running instance
///
/// Capacity on the target node is claimed first; then the agents copy the instance. The source is
/// freed only after the switch.
#[utoipa::path(post, path = "/v1/instances/{instance}/migrate", tag = "elastic",
    params(("instance" = Uuid, Path, description = "The instance.")),
    request_body = StartMigration,
    responses((status = 200, description = "The migration.", body = Migration)))]
async fn start(
    RequestContext { control, caller }: RequestContext,
    Path(instance): Path<Uuid>,
    OptionalJson(request): OptionalJson<StartMigration>,
) -> ApiResult<axum::Json<Migration>> {
    control.wait_for_read_your_writes().await;
    let instance = InstanceId(instance);
    let to = match migration::find_destination(&control, instance, request.to).await? {
        Destination::Node(to) => to,
        Destination::NoRoom(refusal) => {
            // Nodes that would exceed their watermark are excluded first.
            let detail = format!(
                "no other node can take it and stay below its watermark: {}",
                refusal.headline()
            );
            let remedy = refusal.remedy.to_string();
            let code = refusal.code.to_string();
            let error = ControlError::conflict(code, detail).remedy(remedy);
            return Err(error.refusals(vec![*refusal]).into());
        }
    };
    let claim = control.catalog.read().claims.get(&ClaimKey::primary(instance)).cloned();
    let cost = claim.as_ref().map_or(0, |claim| u64::from(claim.amounts.memory_mib));
    if request.dry_run {
        let claim = claim.ok_or_else(|| ApiError::not_found("instance", &instance.to_string()))?;
        return Ok(axum::Json(migration::preview(&control, &claim, to, cost)));
    }
    let reason = MigrationReason::Asked;
    let request = MigrationRequest { instance, to, reason, cost, decided_after: None };
    Ok(axum::Json(migration::start(&control, &caller, &request).await?))
}

/// Cancel a migration
///
/// Possible while its instance still runs on the source; it keeps running there.
#[utoipa::path(post, path = "/v1/migrations/{id}/cancel", tag = "elastic",
    params(("id" = String, Path, description = "The migration.")),
    responses((status = 200, description = "The migration.", body = Migration)))]
async fn cancel(
    RequestContext { control, caller }: RequestContext,
    Path(id): Path<String>,
) -> ApiResult<axum::Json<Migration>> {
    Ok(axum::Json(migration::cancel(&control, &caller, &id).await?))
}

/// Report on a migration
///
/// Progress on a task that the agent received in response to a heartbeat.
#[utoipa::path(post, path = "/v1/nodes/{node}/migrations", tag = "agents",
    params(("node" = String, Path, description = "The node.")),
    request_body = MigrationReport,
    responses((status = 200, description = "The migration.", body = Migration)))]
async fn report(
    RequestContext { control, caller }: RequestContext,
    Path(node): Path<NodeId>,
    Json(report): Json<MigrationReport>,
) -> ApiResult<axum::Json<Migration>> {
    control.node_for(&caller, &node)?;
    Ok(axum::Json(migration::report(&control, &node, &report).await?))
}

/// Read capacity pressure
///
/// Denied growth and usage above watermarks, in total and by node: the signal for adding nodes.
/// Denials decay, so demand that is not repeated disappears after a while.
#[utoipa::path(get, path = "/v1/pressure", tag = "elastic",
    responses((status = 200, description = "Pressure in total and by node.", body = Pressure)))]
async fn pressure(State(control): State<Arc<ControlPlane>>) -> axum::Json<Pressure> {
    control.wait_for_read_your_writes().await;
    axum::Json(berth_control::moves::relief::measure_pressure(&control))
}
