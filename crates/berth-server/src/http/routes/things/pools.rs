//! `/v1/pools`: ranges of addresses and numbers that claims take values from.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use berth_api::{NewPool, Page, Pool};
use berth_ledger::{Op, Text};
use http::StatusCode;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::{check_name, stored};
use crate::http::extract::{Json, Path, Query};
use crate::http::list::{Part, after, limit, part};
use crate::http::routes::Routes;
use crate::problem::{Answer, ApiError};
use berth_control::ControlPlane;
use berth_control::caller::Caller;

pub(super) fn routes() -> Routes {
    OpenApiRouter::new().routes(routes!(list)).routes(routes!(get, put, remove))
}

fn view((pool, used): (berth_ledger::Pool, i64)) -> Pool {
    Pool {
        id: pool.id.to_string(),
        kind: pool.kind.name().to_owned(),
        first: pool.kind.write(pool.first),
        last: pool.kind.write(pool.last),
        quarantine_s: pool.quarantine_s,
        size: pool.size().to_string(),
        used,
    }
}

async fn all(control: &ControlPlane) -> Answer<Vec<Pool>> {
    let pools = control.read(berth_ledger::Ledger::pools).await?;
    Ok(pools.into_iter().map(view).collect())
}

async fn find(control: &ControlPlane, id: &str) -> Answer<Option<Pool>> {
    Ok(all(control).await?.into_iter().find(|pool| pool.id == id))
}

/// List pools
#[utoipa::path(get, path = "/v1/pools", tag = "pools", params(Part),
    responses((status = 200, description = "Pools, in order of name.", body = Page<Pool>)))]
async fn list(
    State(control): State<Arc<ControlPlane>>,
    Query(asked): Query<Part>,
) -> Answer<axum::Json<Page<Pool>>> {
    let most = limit(asked.limit)?;
    let named = all(&control).await?.into_iter().map(|pool| (pool.id.clone(), pool));
    Ok(axum::Json(part(after(named, asked.cursor), most)))
}

/// Read a pool
#[utoipa::path(get, path = "/v1/pools/{id}", tag = "pools",
    params(("id" = String, Path, description = "The pool.")),
    responses((status = 200, description = "The pool.", body = Pool)))]
async fn get(
    State(control): State<Arc<ControlPlane>>,
    Path(id): Path<String>,
) -> Answer<axum::Json<Pool>> {
    let found = find(&control, &id).await?;
    found.map(axum::Json).ok_or_else(|| ApiError::not_found("pool", &id))
}

/// Define a pool, or change its range
///
/// Values that are held stay held, whatever becomes of the range.
#[utoipa::path(put, path = "/v1/pools/{id}", tag = "pools",
    params(("id" = String, Path, description = "The pool.")),
    request_body = NewPool,
    responses(
        (status = 200, description = "Changed, or as it was.", body = Pool),
        (status = 201, description = "Defined.", body = Pool),
    ))]
async fn put(
    State(control): State<Arc<ControlPlane>>,
    caller: Caller,
    Path(id): Path<String>,
    Json(new): Json<NewPool>,
) -> Answer<Response> {
    check_name("id", &id)?;
    let mut pool = berth_ledger::Pool::parse(&id, &new.range).map_err(|invalid| {
        ApiError::field("range", Some(format!("{:?}", invalid.range)), invalid.accepted)
    })?;
    pool.quarantine_s = new.quarantine_s.unwrap_or(berth_ledger::Pool::DEFAULT_QUARANTINE_S);
    let is_new = find(&control, &id).await?.is_none();
    control.administer(&caller, "pool.put", id.as_str(), Op::PutPool(pool)).await?;
    let pool = find(&control, &id).await?;
    Ok(stored(is_new, pool.ok_or_else(|| ApiError::not_found("pool", &id))?))
}

/// Remove a pool
///
/// Only one of which no value is held.
#[utoipa::path(delete, path = "/v1/pools/{id}", tag = "pools",
    params(("id" = String, Path, description = "The pool.")),
    responses((status = 204, description = "Removed.")))]
async fn remove(
    State(control): State<Arc<ControlPlane>>,
    caller: Caller,
    Path(id): Path<String>,
) -> Answer<StatusCode> {
    let op = Op::RemovePool(Text::from(id.as_str()));
    match control.administer(&caller, "pool.remove", id.as_str(), op).await? {
        true => Ok(StatusCode::NO_CONTENT),
        false => Err(ApiError::not_found("pool", &id)),
    }
}
