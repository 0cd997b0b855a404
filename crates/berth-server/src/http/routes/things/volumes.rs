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
use crate::access::Caller;
use crate::catalog::Books;
use crate::http::extract::{Json, Path, Query};
use crate::http::list::{Part, part_of};
use crate::http::problem::{Answer, ApiError};
use crate::http::routes::Routes;
use crate::placement::Audience;
use crate::service::Service;

pub(super) fn routes() -> Routes {
    OpenApiRouter::new().routes(routes!(list)).routes(routes!(get, put, remove))
}

/// A volume as a caller may see it; absent when it may not.
fn view(
    books: &Books,
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
async fn read(service: &Service, caller: &Caller, id: &str) -> Answer<Volume> {
    service.settled().await;
    let sees_nodes = Audience::of(service, caller, "").sees_nodes();
    let books = service.catalog.books();
    let volume = books.volumes.get(id).and_then(|found| view(&books, caller, sees_nodes, found));
    volume.ok_or_else(|| ApiError::not_found("volume", id))
}

/// List volumes
///
/// In order of name. A tenant sees its own and those open to anyone.
#[utoipa::path(get, path = "/v1/volumes", tag = "volumes", params(Part),
    responses((status = 200, description = "Volumes.", body = Page<Volume>)))]
async fn list(
    State(service): State<Arc<Service>>,
    caller: Caller,
    Query(asked): Query<Part>,
) -> Answer<axum::Json<Page<Volume>>> {
    service.settled().await;
    let sees_nodes = Audience::of(&service, &caller, "").sees_nodes();
    let books = service.catalog.books();
    let seen = |volume| view(&books, &caller, sees_nodes, volume);
    part_of(&books.volumes, &asked, seen).map(axum::Json)
}

/// Read a volume
#[utoipa::path(get, path = "/v1/volumes/{id}", tag = "volumes",
    params(("id" = String, Path, description = "The volume.")),
    responses((status = 200, description = "The volume.", body = Volume)))]
async fn get(
    State(service): State<Arc<Service>>,
    caller: Caller,
    Path(id): Path<String>,
) -> Answer<axum::Json<Volume>> {
    read(&service, &caller, &id).await.map(axum::Json)
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
    State(service): State<Arc<Service>>,
    caller: Caller,
    Path(id): Path<String>,
    Json(new): Json<NewVolume>,
) -> Answer<Response> {
    check_name("id", &id)?;
    if let Some(owner) = &new.owner {
        check_name("owner", owner)?;
    }
    service.settled().await;
    let (is_new, has_home) = {
        let books = service.catalog.books();
        (!books.volumes.contains_key(&id), books.nodes.contains_key(&new.home))
    };
    if !has_home {
        let value = Some(format!("{:?}", new.home.as_str()));
        return Err(ApiError::field("home", value, "a node that is registered"));
    }
    if service.volume_moves.is_under_way(&id) {
        let why = format!("volume {id} is on its way to another node");
        let remedy = format!("wait, or call it off: berth volumes move {id} --cancel");
        return Err(ApiError::conflict("volume_moving", why).remedy(remedy));
    }
    let NewVolume { owner, home } = new;
    let volume = berth_engine::Volume { id: id.clone(), owner, home, attached_to: None };
    service.administer(&caller, "volume.put", id.as_str(), Op::PutVolume(volume)).await?;
    Ok(stored(is_new, read(&service, &caller, &id).await?))
}

/// Remove a volume
///
/// Only one that nothing uses.
#[utoipa::path(delete, path = "/v1/volumes/{id}", tag = "volumes",
    params(("id" = String, Path, description = "The volume.")),
    responses((status = 204, description = "Removed.")))]
async fn remove(
    State(service): State<Arc<Service>>,
    caller: Caller,
    Path(id): Path<String>,
) -> Answer<StatusCode> {
    read(&service, &caller, &id).await?;
    let op = Op::RemoveVolume(Text::from(id.as_str()));
    service.administer(&caller, "volume.remove", id.as_str(), op).await?;
    Ok(StatusCode::NO_CONTENT)
}
