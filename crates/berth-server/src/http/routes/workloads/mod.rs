//! `/v1/workloads`: what should run, how far it is, and how to change it.

mod change;
mod check;
mod environments;
mod members;
mod view;

use std::sync::Arc;

use axum::response::{IntoResponse, Response};
use berth_api::{NewWorkload, Page, Workload};
use berth_ledger::{Text, invariant_ok};
use http::{StatusCode, header};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::Routes;
use crate::http::extract::{IfMatch, Json, Path, Query, RequestContext};
use crate::http::list::{first_page, invalid_cursor, list_query, page_limit};
use crate::problem::{ApiError, ApiResult};
use berth_control::ControlPlane;
use berth_control::caller::Caller;
use berth_control::placement::{Audience, tenant_for};
use berth_control::workload::{Definition, WorkloadKey};

pub(super) fn routes() -> Routes {
    OpenApiRouter::new()
        .routes(routes!(list))
        .routes(routes!(get, put, remove))
        .merge(change::routes())
        .merge(members::routes())
        .merge(environments::routes())
}

fn key_of(tenant: &str, name: &str) -> WorkloadKey {
    (Text::from(tenant), Text::from(name))
}

fn hidden(name: &str) -> ApiError {
    ApiError::not_found("workload", name)
}

/// A workload that the caller may see.
async fn find(
    control: &ControlPlane,
    caller: &Caller,
    tenant: &str,
    name: &str,
) -> ApiResult<Arc<Definition>> {
    if !caller.sees(tenant) {
        return Err(hidden(name));
    }
    control.wait_for_read_your_writes().await;
    let found = control.catalog.read().workloads.get(&key_of(tenant, name)).cloned();
    found.ok_or_else(|| hidden(name))
}

/// A workload as it is now, as the caller may see it.
async fn read(
    control: &ControlPlane,
    caller: &Caller,
    tenant: &str,
    name: &str,
) -> ApiResult<Workload> {
    let found = find(control, caller, tenant, name).await?;
    Ok(view::of(control, &found, &Audience::of(control, caller, tenant)))
}

/// A workload and its version.
fn tagged(status: StatusCode, workload: &Workload) -> Response {
    let etag = format!("\"{}\"", workload.version);
    (status, [(header::ETAG, etag)], axum::Json(workload)).into_response()
}

list_query! {
    /// The query of `GET /v1/workloads`.
    struct ListWorkloadsQuery {
        /// Of this tenant.
        #[serde(alias = "owner")]
        tenant: Option<String>,
        /// Of this environment.
        env: Option<String>,
    }
}

/// List workloads
///
/// In order of tenant and name; a tenant sees its own.
#[utoipa::path(get, path = "/v1/workloads", tag = "workloads", params(ListWorkloadsQuery),
    responses((status = 200, description = "Workloads.", body = Page<Workload>)))]
async fn list(
    RequestContext { control, caller }: RequestContext,
    Query(query): Query<ListWorkloadsQuery>,
) -> ApiResult<axum::Json<Page<Workload>>> {
    let limit = page_limit(query.limit)?;
    let tenant =
        query.tenant.as_deref().map(|tenant| tenant_for(&caller, Some(tenant))).transpose()?;
    let after = query.cursor.as_deref().map(read_cursor).transpose()?;
    control.wait_for_read_your_writes().await;
    let is_wanted = |found: &Definition| {
        caller.sees(found.tenant())
            && tenant.as_ref().is_none_or(|tenant| *tenant == found.tenant())
            && query.env.as_ref().is_none_or(|env| found.env() == Some(env.as_str()))
            && after.as_ref().is_none_or(|after| found.key > *after)
    };
    let found: Vec<Arc<Definition>> = {
        let catalog = control.catalog.read();
        let all = catalog.workloads.values().filter(|found| is_wanted(found));
        all.take(limit + 1).cloned().collect()
    };
    let page = first_page(found.into_iter().map(|found| (cursor(&found), found)), limit);
    let items = page.items.iter().map(|found| {
        let audience = Audience::of(&control, &caller, found.tenant());
        view::of(&control, found, &audience)
    });
    Ok(axum::Json(Page { items: items.collect(), next: page.next }))
}

/// Names may have any character in them, so a cursor is a pair in JSON.
fn cursor(found: &Definition) -> String {
    let pair = serde_json::to_string(&(found.tenant(), found.name()));
    invariant_ok!(pair, "cursor_is_json").unwrap_or_default()
}

fn read_cursor(text: &str) -> ApiResult<WorkloadKey> {
    serde_json::from_str(text)
        .map(|(tenant, name): (String, String)| key_of(&tenant, &name))
        .map_err(|_| invalid_cursor(text))
}

/// Read a workload
#[utoipa::path(get, path = "/v1/workloads/{tenant}/{name}", tag = "workloads",
    params(
        ("tenant" = String, Path, description = "The tenant."),
        ("name" = String, Path, description = "The workload."),
    ),
    responses((status = 200, description = "The workload; its version is its ETag.", body = Workload)))]
async fn get(
    RequestContext { control, caller }: RequestContext,
    Path((tenant, name)): Path<(String, String)>,
) -> ApiResult<Response> {
    Ok(tagged(StatusCode::OK, &read(&control, &caller, &tenant, &name).await?))
}

/// Store a workload
///
/// Members are created and released until the workload matches. A change of template, pools or
/// release is a new revision, which is rolled out as `rolling` says. With `If-Match`, only if it is
/// unchanged since it was read.
#[utoipa::path(put, path = "/v1/workloads/{tenant}/{name}", tag = "workloads",
    params(
        ("tenant" = String, Path, description = "The tenant."),
        ("name" = String, Path, description = "The workload."),
        ("If-Match" = Option<String>, Header, description = "The version that was read."),
    ),
    request_body = NewWorkload,
    responses(
        (status = 200, description = "Changed, or unchanged.", body = Workload),
        (status = 201, description = "Stored.", body = Workload),
    ))]
async fn put(
    RequestContext { control, caller }: RequestContext,
    Path((tenant, name)): Path<(String, String)>,
    if_match: IfMatch,
    Json(new): Json<NewWorkload>,
) -> ApiResult<Response> {
    if !caller.sees(&tenant) {
        return Err(hidden(&name));
    }
    check::new(&control, &tenant, &name, &new).await?;
    let key = key_of(&tenant, &name);
    let changed = change::change(&control, &caller, &key, &if_match, |now| {
        if now.is_some_and(|now| now.body.deleting) {
            let why = format!("workload {name} is being removed; wait until it is gone");
            return Err(ApiError::conflict("deleting", why).retry_after(1));
        }
        Ok(Definition::ask(key.clone(), new.clone(), now))
    });
    let status = match changed.await? {
        change::ChangeOutcome::Stored => StatusCode::CREATED,
        change::ChangeOutcome::Edited | change::ChangeOutcome::Unchanged => StatusCode::OK,
    };
    Ok(tagged(status, &read(&control, &caller, &tenant, &name).await?))
}

/// Remove a workload
///
/// Its members are released first. Returns 204 when it is gone, 202 while members are left.
#[utoipa::path(delete, path = "/v1/workloads/{tenant}/{name}", tag = "workloads",
    params(
        ("tenant" = String, Path, description = "The tenant."),
        ("name" = String, Path, description = "The workload."),
    ),
    responses(
        (status = 204, description = "Removed."),
        (status = 202, description = "Its members are being released.", body = Workload),
    ))]
async fn remove(
    RequestContext { control, caller }: RequestContext,
    Path((tenant, name)): Path<(String, String)>,
) -> ApiResult<Response> {
    find(&control, &caller, &tenant, &name).await?;
    let key = key_of(&tenant, &name);
    let any = IfMatch::default();
    change::change(&control, &caller, &key, &any, |now| {
        let now = now.ok_or_else(|| hidden(&name))?;
        Ok(now.changed(|next| next.body.deleting = true))
    })
    .await?;
    if berth_control::workloads::remove_workload(&control, &key).await? {
        return Ok(StatusCode::NO_CONTENT.into_response());
    }
    match read(&control, &caller, &tenant, &name).await {
        Ok(left) => Ok(tagged(StatusCode::ACCEPTED, &left)),
        // It was removed in the meantime.
        Err(_) => Ok(StatusCode::NO_CONTENT.into_response()),
    }
}
