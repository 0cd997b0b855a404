//! `/v1/environments/{env}/secrets`: which version of an environment's secrets there is.

use berth_api::Secrets;
use berth_ledger::{Op, Text};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::check_name;
use crate::http::extract::{Json, Path, Query, RequestContext};
use crate::http::routes::{Routes, TenantQuery};
use crate::problem::{ApiError, ApiResult};

pub(super) fn routes() -> Routes {
    OpenApiRouter::new().routes(routes!(put))
}

/// Set the version of an environment's secrets
///
/// Only their version: instances that need secrets are placed once their environment has some. Two
/// tenants may have environments of the same name. Secrets from before they had a tenant serve
/// environments whose tenant has none of its own; without `tenant`, they can only be removed.
#[utoipa::path(put, path = "/v1/environments/{env}/secrets", tag = "secrets",
    params(("env" = String, Path, description = "The environment."), TenantQuery),
    request_body = Secrets,
    responses((status = 200, description = "As stated.", body = Secrets)))]
async fn put(
    RequestContext { control, caller }: RequestContext,
    Path(env): Path<String>,
    Query(query): Query<TenantQuery>,
    Json(secrets): Json<Secrets>,
) -> ApiResult<axum::Json<Secrets>> {
    check_name("env", &env)?;
    if let Some(version) = &secrets.version {
        check_name("version", version)?;
    }
    if let Some(tenant) = &query.tenant {
        check_name("tenant", tenant)?;
    } else if secrets.version.is_some() {
        return Err(ApiError::field("tenant", None, "the tenant that the environment belongs to"));
    }
    let subject = match &query.tenant {
        Some(tenant) => format!("{env} of {tenant}"),
        None => env.clone(),
    };
    let tenant = query.tenant.as_deref().map(Text::from);
    let version = secrets.version.as_deref().map(Text::from);
    let op = Op::PutSecrets { tenant, env: Text::from(env.as_str()), version };
    control.administer(&caller, "secrets.put", subject, op).await?;
    Ok(axum::Json(secrets))
}
