//! `/v1/tenants`: what a tenant holds, and removing it.

use berth_api::TenantHoldings;
use berth_control::tenants;
use http::StatusCode;
use serde::Deserialize;
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::Routes;
use crate::http::extract::{Path, Query, RequestContext};
use crate::problem::ApiResult;

pub(super) fn routes() -> Routes {
    OpenApiRouter::new().routes(routes!(get, remove))
}

/// Read what a tenant holds
///
/// By kind, with counts: exactly what removing it would remove. A tenant that holds nothing is not
/// known.
#[utoipa::path(get, path = "/v1/tenants/{tenant}", tag = "tenants",
    params(("tenant" = String, Path, description = "The tenant.")),
    responses((status = 200, description = "What it holds, and its removal if one is under way.", body = TenantHoldings)))]
async fn get(
    RequestContext { control, .. }: RequestContext,
    Path(tenant): Path<String>,
) -> ApiResult<axum::Json<TenantHoldings>> {
    Ok(axum::Json(tenants::holdings(&control, &tenant).await?))
}

/// The query of `DELETE /v1/tenants/{tenant}`.
#[derive(Clone, Copy, Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct RemoveTenantQuery {
    /// End claims without waiting for agents to stop their instances.
    #[serde(default)]
    force: bool,
}

/// Remove a tenant with all it holds
///
/// From now on nothing is granted to the tenant or made for it. Its tokens end, its instances are
/// released, and everything else that belongs to it is removed. This goes on in the background, on
/// any server, and ends when nothing is left: the tenant is then unknown. Sending it again changes
/// nothing, except that `force` can be added.
#[utoipa::path(delete, path = "/v1/tenants/{tenant}", tag = "tenants",
    params(("tenant" = String, Path, description = "The tenant."), RemoveTenantQuery),
    responses((status = 202, description = "Under way; what is left to be removed.", body = TenantHoldings)))]
async fn remove(
    RequestContext { control, caller }: RequestContext,
    Path(tenant): Path<String>,
    Query(query): Query<RemoveTenantQuery>,
) -> ApiResult<(StatusCode, axum::Json<TenantHoldings>)> {
    let left = tenants::remove(&control, &caller, &tenant, query.force).await?;
    Ok((StatusCode::ACCEPTED, axum::Json(left)))
}
