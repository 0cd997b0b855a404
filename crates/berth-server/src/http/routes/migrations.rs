//! `/v1/migrations`: instances that move while they run.

use std::sync::Arc;

use axum::extract::State;
use berth_api::{
    Migration, MigrationReason, MigrationReport, MigrationState, Page, Pressure, StartMigration,
};
use berth_engine::{InstanceId, NodeId};
use berth_ledger::ClaimKey;
use serde::Deserialize;
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;
use uuid::Uuid;

use super::Routes;
use crate::access::Caller;
use crate::http::extract::{Json, OptionalJson, Path, Query};
use crate::http::list::{limit, part};
use crate::http::problem::{Answer, ApiError};
use crate::migrations::{self, Begin, Destination, view};
use crate::service::Service;

pub(super) fn routes() -> Routes {
    OpenApiRouter::new()
        .routes(routes!(list))
        .routes(routes!(get))
        .routes(routes!(start))
        .routes(routes!(cancel))
        .routes(routes!(report))
        .routes(routes!(pressure))
}

/// Which migrations.
#[derive(Clone, Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct Wanted {
    /// In this state.
    state: Option<MigrationState>,
    /// From or to this node.
    #[param(value_type = Option<String>)]
    node: Option<NodeId>,
    /// Of this instance.
    instance: Option<Uuid>,
    /// Only those that are not over.
    open: Option<bool>,
    /// How many at most.
    #[param(minimum = 1, maximum = 1000, default = 100)]
    limit: Option<usize>,
    /// Where the last part ended: its `next`.
    cursor: Option<String>,
}

/// List migrations
///
/// Those under way and those that ended within a day, oldest first.
#[utoipa::path(get, path = "/v1/migrations", tag = "elastic", params(Wanted),
    responses((status = 200, description = "Migrations.", body = Page<Migration>)))]
async fn list(
    State(service): State<Arc<Service>>,
    Query(asked): Query<Wanted>,
) -> Answer<axum::Json<Page<Migration>>> {
    let most = limit(asked.limit)?;
    let all = service.migrations.all();
    let found = all.iter().filter(|(id, known)| {
        let record = &known.0;
        asked.cursor.as_ref().is_none_or(|after| id > after)
            && asked.state.is_none_or(|state| record.state == state)
            && asked.node.as_ref().is_none_or(|it| record.source == *it || record.target == *it)
            && asked.instance.is_none_or(|instance| record.instance == InstanceId(instance))
            && (!asked.open.unwrap_or(false) || record.is_open())
    });
    Ok(axum::Json(part(found.map(|(id, known)| (id.clone(), view(id, &known.0))), most)))
}

/// Read a migration
#[utoipa::path(get, path = "/v1/migrations/{id}", tag = "elastic",
    params(("id" = String, Path, description = "The migration.")),
    responses((status = 200, description = "The migration.", body = Migration)))]
async fn get(
    State(service): State<Arc<Service>>,
    Path(id): Path<String>,
) -> Answer<axum::Json<Migration>> {
    let known = service.migrations.get(&id);
    let known = known.ok_or_else(|| ApiError::not_found("migration", &id))?;
    Ok(axum::Json(view(&id, &known.0)))
}

/// Move an instance while it runs
///
/// A place on the other node is held first; then its agents copy it. The source is freed only after
/// the switch.
#[utoipa::path(post, path = "/v1/instances/{instance}/migrate", tag = "elastic",
    params(("instance" = Uuid, Path, description = "The instance.")),
    request_body = StartMigration,
    responses((status = 200, description = "The migration.", body = Migration)))]
async fn start(
    State(service): State<Arc<Service>>,
    caller: Caller,
    Path(instance): Path<Uuid>,
    OptionalJson(asked): OptionalJson<StartMigration>,
) -> Answer<axum::Json<Migration>> {
    service.settled().await;
    let instance = InstanceId(instance);
    let to = match migrations::destination(&service, instance, asked.to).await? {
        Destination::Node(to) => to,
        Destination::Nowhere(refusal) => {
            // Nodes that would pass their watermark are left out before anything else is asked.
            let detail = format!(
                "no other node can take it and stay below its watermark: {}",
                refusal.headline()
            );
            let remedy = refusal.remedy.to_string();
            let code = refusal.code.to_string();
            let error = ApiError::conflict(&code, detail).remedy(remedy);
            return Err(error.refusals(vec![*refusal]));
        }
    };
    let claim = service.catalog.books().claims.get(&ClaimKey::primary(instance)).cloned();
    let cost = claim.as_ref().map_or(0, |claim| u64::from(claim.amounts.memory_mib));
    if asked.dry_run {
        let claim = claim.ok_or_else(|| ApiError::not_found("instance", &instance.to_string()))?;
        return Ok(axum::Json(migrations::preview(&service, &claim, to, cost)));
    }
    let asked = Begin { instance, to, reason: MigrationReason::Asked, cost, guard: None };
    migrations::begin(&service, &caller, &asked).await.map(axum::Json)
}

/// Call a migration off
///
/// While its instance still runs on the source; it goes on there.
#[utoipa::path(post, path = "/v1/migrations/{id}/cancel", tag = "elastic",
    params(("id" = String, Path, description = "The migration.")),
    responses((status = 200, description = "The migration.", body = Migration)))]
async fn cancel(
    State(service): State<Arc<Service>>,
    caller: Caller,
    Path(id): Path<String>,
) -> Answer<axum::Json<Migration>> {
    migrations::cancel(&service, &caller, &id).await.map(axum::Json)
}

/// Report on a migration
///
/// What an agent has done of a task that it was given with its sign of life.
#[utoipa::path(post, path = "/v1/nodes/{node}/migrations", tag = "agents",
    params(("node" = String, Path, description = "The node.")),
    request_body = MigrationReport,
    responses((status = 200, description = "The migration.", body = Migration)))]
async fn report(
    State(service): State<Arc<Service>>,
    caller: Caller,
    Path(node): Path<NodeId>,
    Json(said): Json<MigrationReport>,
) -> Answer<axum::Json<Migration>> {
    service.node_for(&caller, &node)?;
    migrations::report(&service, &node, &said).await.map(axum::Json)
}

/// Read what nodes lack
///
/// What was denied and what is above watermarks, in all and by node: the signal for whoever adds
/// nodes. Denials fade, so what nobody asks for again is gone after a while.
#[utoipa::path(get, path = "/v1/pressure", tag = "elastic",
    responses((status = 200, description = "What is lacking.", body = Pressure)))]
async fn pressure(State(service): State<Arc<Service>>) -> axum::Json<Pressure> {
    service.settled().await;
    axum::Json(crate::relief::signal(&service))
}
