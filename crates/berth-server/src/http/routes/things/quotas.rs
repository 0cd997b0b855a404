//! `/v1/quotas`: limits of tenants, and what they use of them.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use berth_api::{Page, Quota, QuotaUse};
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

fn view(found: &berth_ledger::QuotaUse) -> QuotaUse {
    let (quota, used) = (found.quota, found.used);
    QuotaUse {
        owner: found.owner.to_string(),
        limits: Quota {
            cpu_milli: quota.cpu_milli,
            memory_mib: quota.memory_mib,
            disk_mib: quota.disk_mib,
            instances: quota.instances,
        },
        used: Quota {
            cpu_milli: Some(used.cpu_milli),
            memory_mib: Some(used.memory_mib),
            disk_mib: Some(used.disk_mib),
            instances: Some(used.instances),
        },
    }
}

/// Limits that a caller may see, in order of tenant.
async fn seen(control: &ControlPlane, caller: &Caller) -> Answer<Vec<QuotaUse>> {
    let quotas = control.read(berth_ledger::Ledger::quotas).await?;
    Ok(quotas.iter().filter(|quota| caller.sees(&quota.owner)).map(view).collect())
}

async fn find(control: &ControlPlane, caller: &Caller, owner: &str) -> Answer<Option<QuotaUse>> {
    Ok(seen(control, caller).await?.into_iter().find(|quota| quota.owner == owner))
}

/// List quotas
///
/// Of tenants that have limits; a tenant sees its own.
#[utoipa::path(get, path = "/v1/quotas", tag = "quotas", params(Part),
    responses((status = 200, description = "Quotas, in order of tenant.", body = Page<QuotaUse>)))]
async fn list(
    State(control): State<Arc<ControlPlane>>,
    caller: Caller,
    Query(asked): Query<Part>,
) -> Answer<axum::Json<Page<QuotaUse>>> {
    let most = limit(asked.limit)?;
    let quotas = seen(&control, &caller).await?;
    let named = quotas.into_iter().map(|quota| (quota.owner.clone(), quota));
    Ok(axum::Json(part(after(named, asked.cursor), most)))
}

/// Read a tenant's quota
#[utoipa::path(get, path = "/v1/quotas/{owner}", tag = "quotas",
    params(("owner" = String, Path, description = "The tenant.")),
    responses((status = 200, description = "Its limits and what it uses of them.", body = QuotaUse)))]
async fn get(
    State(control): State<Arc<ControlPlane>>,
    caller: Caller,
    Path(owner): Path<String>,
) -> Answer<axum::Json<QuotaUse>> {
    let found = find(&control, &caller, &owner).await?;
    found.map(axum::Json).ok_or_else(|| ApiError::not_found("quota", &owner))
}

/// Set a tenant's limits
///
/// What is left out is unlimited. What a tenant holds beyond a new limit stays; it gets no more.
#[utoipa::path(put, path = "/v1/quotas/{owner}", tag = "quotas",
    params(("owner" = String, Path, description = "The tenant.")),
    request_body = Quota,
    responses(
        (status = 200, description = "Changed, or as it was.", body = QuotaUse),
        (status = 201, description = "Set.", body = QuotaUse),
    ))]
async fn put(
    State(control): State<Arc<ControlPlane>>,
    caller: Caller,
    Path(owner): Path<String>,
    Json(new): Json<Quota>,
) -> Answer<Response> {
    check_name("owner", &owner)?;
    for (field, value) in [
        ("cpu_milli", new.cpu_milli),
        ("memory_mib", new.memory_mib),
        ("disk_mib", new.disk_mib),
        ("instances", new.instances),
    ] {
        if let Some(value) = value.filter(|value| *value < 0) {
            return Err(ApiError::field(field, Some(value.to_string()), "0 or more, or nothing"));
        }
    }
    let quota = berth_ledger::Quota {
        cpu_milli: new.cpu_milli,
        memory_mib: new.memory_mib,
        disk_mib: new.disk_mib,
        instances: new.instances,
    };
    let is_new = find(&control, &caller, &owner).await?.is_none();
    let op = Op::PutQuota { owner: Text::from(owner.as_str()), quota };
    control.administer(&caller, "quota.put", owner.as_str(), op).await?;
    let quota = find(&control, &caller, &owner).await?;
    Ok(stored(is_new, quota.ok_or_else(|| ApiError::not_found("quota", &owner))?))
}

/// Remove a tenant's limits
#[utoipa::path(delete, path = "/v1/quotas/{owner}", tag = "quotas",
    params(("owner" = String, Path, description = "The tenant.")),
    responses((status = 204, description = "It is unlimited now.")))]
async fn remove(
    State(control): State<Arc<ControlPlane>>,
    caller: Caller,
    Path(owner): Path<String>,
) -> Answer<StatusCode> {
    let op = Op::RemoveQuota(Text::from(owner.as_str()));
    match control.administer(&caller, "quota.remove", owner.as_str(), op).await? {
        true => Ok(StatusCode::NO_CONTENT),
        false => Err(ApiError::not_found("quota", &owner)),
    }
}
