//! `/v1/groups`: which instances belong together, or apart.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use berth_api::{NewGroup, Page};
use berth_engine::Group;
use berth_ledger::{Op, Text};
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
use berth_control::placement::owner_for;

pub(super) fn routes() -> Routes {
    OpenApiRouter::new().routes(routes!(list)).routes(routes!(get, put, remove))
}

/// A tenant sees its own groups and those that are open to anyone.
fn is_seen(caller: &Caller, group: &Group) -> bool {
    group.owner.as_deref().is_none_or(|owner| caller.sees(owner))
}

/// A tenant changes only its own.
fn is_changed_by(caller: &Caller, group: &Group) -> bool {
    !caller.is_tenant() || group.owner.as_deref().is_some_and(|owner| caller.sees(owner))
}

/// A group that the caller may see, as it is now.
async fn read(control: &ControlPlane, caller: &Caller, id: &str) -> Answer<Group> {
    control.settled().await;
    let group = control.catalog.books().groups.get(id).cloned();
    let seen = group.filter(|group| is_seen(caller, group));
    seen.ok_or_else(|| ApiError::not_found("group", id))
}

/// List groups
///
/// In order of name. A tenant sees its own and those open to anyone.
#[utoipa::path(get, path = "/v1/groups", tag = "groups", params(Part),
    responses((status = 200, description = "Groups.", body = Page<Group>)))]
async fn list(
    State(control): State<Arc<ControlPlane>>,
    caller: Caller,
    Query(asked): Query<Part>,
) -> Answer<axum::Json<Page<Group>>> {
    control.settled().await;
    let books = control.catalog.books();
    let view = |group: &Group| is_seen(&caller, group).then(|| group.clone());
    part_of(&books.groups, &asked, view).map(axum::Json)
}

/// Read a group
#[utoipa::path(get, path = "/v1/groups/{id}", tag = "groups",
    params(("id" = String, Path, description = "The group.")),
    responses((status = 200, description = "The group.", body = Group)))]
async fn get(
    State(control): State<Arc<ControlPlane>>,
    caller: Caller,
    Path(id): Path<String>,
) -> Answer<axum::Json<Group>> {
    read(&control, &caller, &id).await.map(axum::Json)
}

/// Define a group, or change its rules
///
/// A tenant's groups are its own. Kind and topology can change while it has no members; its owner
/// cannot.
#[utoipa::path(put, path = "/v1/groups/{id}", tag = "groups",
    params(("id" = String, Path, description = "The group.")),
    request_body = NewGroup,
    responses(
        (status = 200, description = "Changed, or as it was.", body = Group),
        (status = 201, description = "Defined.", body = Group),
    ))]
async fn put(
    State(control): State<Arc<ControlPlane>>,
    caller: Caller,
    Path(id): Path<String>,
    Json(new): Json<NewGroup>,
) -> Answer<Response> {
    check_name("id", &id)?;
    if new.max_per_domain == Some(0) {
        return Err(ApiError::field("max_per_domain", Some("0".to_owned()), "1 or more"));
    }
    control.settled().await;
    let known = control.catalog.books().groups.get(&id).cloned();
    let owner = match &new.owner {
        None if !caller.is_tenant() => None,
        stated => {
            let mine = known.as_ref().and_then(|group| group.owner.as_deref());
            // A tenant of several namespaces need not say again whose its group is.
            let mine = mine.filter(|owner| caller.is_tenant() && caller.sees(owner));
            Some(owner_for(&caller, stated.as_deref().or(mine))?)
        }
    };
    if known.as_ref().is_some_and(|known| !is_changed_by(&caller, known)) {
        return Err(taken(&id));
    }
    let NewGroup { kind, strength, topology, max_per_domain, .. } = new;
    let group = Group { id: id.clone(), owner, kind, strength, topology, max_per_domain };
    let op = Op::PutGroup(group);
    control.administer(&caller, "group.put", id.as_str(), op).await?;
    Ok(stored(known.is_none(), read(&control, &caller, &id).await?))
}

/// Names of groups are shared by all tenants. Whose it is, is not said.
fn taken(id: &str) -> ApiError {
    let detail = format!("the name {id:?} is not free for this token's groups");
    ApiError::conflict("name_taken", detail).remedy(
        "choose another name, such as one that begins \
        with the tenant's",
    )
}

/// Remove a group
///
/// Only one that has no members.
#[utoipa::path(delete, path = "/v1/groups/{id}", tag = "groups",
    params(("id" = String, Path, description = "The group.")),
    responses((status = 204, description = "Removed.")))]
async fn remove(
    State(control): State<Arc<ControlPlane>>,
    caller: Caller,
    Path(id): Path<String>,
) -> Answer<StatusCode> {
    let group = read(&control, &caller, &id).await?;
    if !is_changed_by(&caller, &group) {
        let detail = format!("group {id:?} is open to anyone; operators remove it");
        let title = "this token may not do this";
        return Err(ApiError::new(StatusCode::FORBIDDEN, "not_allowed", title, detail));
    }
    let op = Op::RemoveGroup(Text::from(id.as_str()));
    control.administer(&caller, "group.remove", id.as_str(), op).await?;
    Ok(StatusCode::NO_CONTENT)
}
