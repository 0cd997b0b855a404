//! `/v1/volumes`: local volumes and the nodes that hold them.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use berth_api::{NewVolume, Page, Volume};
use berth_ledger::{ClaimKey, Op, Text};
use http::StatusCode;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::{check_name, stored};
use crate::http::extract::{Json, Path, Query};
use crate::http::list::{Part, part_of};
use crate::http::routes::Routes;
use crate::problem::{Answer, ApiError};
use berth_control::ControlPlane;
use berth_control::caller::Caller;
use berth_control::catalog::CatalogState;
use berth_control::placement::Audience;

pub(super) fn routes() -> Routes {
    OpenApiRouter::new().routes(routes!(list)).routes(routes!(get, put, remove))
}

/// A volume as a caller may see it; absent when it may not.
fn view(
    books: &CatalogState,
    caller: &Caller,
    sees_nodes: bool,
    volume: &berth_engine::Volume,
) -> Option<Volume> {
    let is_seen = volume.owner.as_deref().is_none_or(|owner| caller.sees(owner));
    // One that is open to anyone may be used by an instance that this caller must not know of.
    let is_own = |instance: &berth_engine::InstanceId| {
        let claim = books.claims.get(&ClaimKey::primary(*instance));
        !caller.is_tenant() || claim.is_some_and(|claim| caller.sees(&claim.request.owner))
    };
    is_seen.then(|| Volume {
        id: volume.id.clone(),
        owner: volume.owner.clone(),
        home: sees_nodes.then(|| volume.home.clone()),
        attached_to: volume.attached_to.filter(is_own),
    })
}

/// A volume that the caller may see, as it is now.
async fn read(control: &ControlPlane, caller: &Caller, id: &str) -> Answer<Volume> {
    control.settled().await;
    let sees_nodes = Audience::of(control, caller, "").sees_nodes();
    let books = control.catalog.books();
    let volume = books.volumes.get(id).and_then(|found| view(&books, caller, sees_nodes, found));
    volume.ok_or_else(|| ApiError::not_found("volume", id))
}

/// List volumes
///
/// In order of name. A tenant sees its own and those open to anyone.
#[utoipa::path(get, path = "/v1/volumes", tag = "volumes", params(Part),
    responses((status = 200, description = "Volumes.", body = Page<Volume>)))]
async fn list(
    State(control): State<Arc<ControlPlane>>,
    caller: Caller,
    Query(asked): Query<Part>,
) -> Answer<axum::Json<Page<Volume>>> {
    control.settled().await;
    let sees_nodes = Audience::of(&control, &caller, "").sees_nodes();
    let books = control.catalog.books();
    let seen = |volume| view(&books, &caller, sees_nodes, volume);
    part_of(&books.volumes, &asked, seen).map(axum::Json)
}

/// Read a volume
#[utoipa::path(get, path = "/v1/volumes/{id}", tag = "volumes",
    params(("id" = String, Path, description = "The volume.")),
    responses((status = 200, description = "The volume.", body = Volume)))]
async fn get(
    State(control): State<Arc<ControlPlane>>,
    caller: Caller,
    Path(id): Path<String>,
) -> Answer<axum::Json<Volume>> {
    read(&control, &caller, &id).await.map(axum::Json)
}

/// Define a volume, or say where it lives now
///
/// One that is in use keeps its home and its owner.
#[utoipa::path(put, path = "/v1/volumes/{id}", tag = "volumes",
    params(("id" = String, Path, description = "The volume.")),
    request_body = NewVolume,
    responses(
        (status = 200, description = "Changed, or as it was.", body = Volume),
        (status = 201, description = "Defined.", body = Volume),
    ))]
async fn put(
    State(control): State<Arc<ControlPlane>>,
    caller: Caller,
    Path(id): Path<String>,
    Json(new): Json<NewVolume>,
) -> Answer<Response> {
    check_name("id", &id)?;
    if let Some(owner) = &new.owner {
        check_name("owner", owner)?;
    }
    control.settled().await;
    let (is_new, has_home) = {
        let books = control.catalog.books();
        (!books.volumes.contains_key(&id), books.nodes.contains_key(&new.home))
    };
    if !has_home {
        let value = Some(format!("{:?}", new.home.as_str()));
        return Err(ApiError::field("home", value, "a node that is registered"));
    }
    if control.volume_moves.is_under_way(&id) {
        let why = format!("volume {id} is on its way to another node");
        let remedy = format!("wait, or call it off: berth volumes move {id} --cancel");
        return Err(ApiError::conflict("volume_moving", why).remedy(remedy));
    }
    let NewVolume { owner, home } = new;
    let volume = berth_engine::Volume { id: id.clone(), owner, home, attached_to: None };
    control.administer(&caller, "volume.put", id.as_str(), Op::PutVolume(volume)).await?;
    Ok(stored(is_new, read(&control, &caller, &id).await?))
}

/// Remove a volume
///
/// Only one that nothing uses.
#[utoipa::path(delete, path = "/v1/volumes/{id}", tag = "volumes",
    params(("id" = String, Path, description = "The volume.")),
    responses((status = 204, description = "Removed.")))]
async fn remove(
    State(control): State<Arc<ControlPlane>>,
    caller: Caller,
    Path(id): Path<String>,
) -> Answer<StatusCode> {
    read(&control, &caller, &id).await?;
    let op = Op::RemoveVolume(Text::from(id.as_str()));
    control.administer(&caller, "volume.remove", id.as_str(), op).await?;
    Ok(StatusCode::NO_CONTENT)
}
