//! `/v1/environments/{env}/secrets`: which version of an environment's secrets there is.

use berth_api::Secrets;
use berth_ledger::{Op, Text};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::check_name;
use crate::http::extract::{Json, Path, RequestContext};
use crate::http::routes::Routes;
use crate::problem::ApiResult;

pub(super) fn routes() -> Routes {
    OpenApiRouter::new().routes(routes!(put))
}

/// Set the version of an environment's secrets
///
/// Only their version: instances that need secrets are placed once their environment has some.
#[utoipa::path(put, path = "/v1/environments/{env}/secrets", tag = "secrets",
    params(("env" = String, Path, description = "The environment.")),
    request_body = Secrets,
    responses((status = 200, description = "As stated.", body = Secrets)))]
async fn put(
    RequestContext { control, caller }: RequestContext,
    Path(env): Path<String>,
    Json(secrets): Json<Secrets>,
) -> ApiResult<axum::Json<Secrets>> {
    check_name("env", &env)?;
    if let Some(version) = &secrets.version {
        check_name("version", version)?;
    }
    let version = secrets.version.as_deref().map(Text::from);
    let op = Op::PutSecrets { env: Text::from(env.as_str()), version };
    control.administer(&caller, "secrets.put", env, op).await?;
    Ok(axum::Json(secrets))
}
