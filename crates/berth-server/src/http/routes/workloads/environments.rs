//! `/v1/environments`: the state of the workloads of each environment.

use std::collections::BTreeMap;
use std::sync::Arc;

use berth_api::{Env, Page};
use berth_ledger::invariant_ok;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::view;
use crate::http::extract::{Path, Query, RequestContext};
use crate::http::list::{first_page, invalid_cursor, list_query, page_limit};
use crate::http::routes::{Routes, TenantQuery};
use crate::problem::{ApiError, ApiResult};
use berth_control::ControlPlane;
use berth_control::caller::Caller;
use berth_control::placement::{Audience, tenant_for};
use berth_control::workload::Definition;
use berth_control::workloads::status;

pub(super) fn routes() -> Routes {
    OpenApiRouter::new().routes(routes!(list)).routes(routes!(get))
}

list_query! {
    /// The query of `GET /v1/environments`.
    struct ListEnvironmentsQuery {
        /// Of this tenant.
        #[serde(alias = "owner")]
        tenant: Option<String>,
    }
}

/// Workloads by tenant and environment.
type DefinitionsByEnvironment = BTreeMap<(String, String), Vec<Arc<Definition>>>;

fn grouped(
    control: &ControlPlane,
    is_wanted: impl Fn(&Definition) -> bool,
) -> DefinitionsByEnvironment {
    let mut envs = DefinitionsByEnvironment::new();
    for found in control.catalog.read().workloads.values().filter(|found| is_wanted(found)) {
        if let Some(env) = found.env() {
            let key = (found.tenant().to_owned(), env.to_owned());
            envs.entry(key).or_default().push(Arc::clone(found));
        }
    }
    envs
}

fn env(
    control: &ControlPlane,
    caller: &Caller,
    key: &(String, String),
    of: &[Arc<Definition>],
) -> Env {
    let (tenant, name) = key;
    let audience = Audience::of(control, caller, tenant);
    let workloads = of.iter().map(|found| view::of(control, found, &audience)).collect();
    let version = control.catalog.read().secrets_of(tenant, name).map(ToString::to_string);
    status::env(tenant, name, version, workloads)
}

/// List environments
///
/// Those that workloads name, in order of tenant and name; a tenant sees its own.
#[utoipa::path(get, path = "/v1/environments", tag = "workloads", params(ListEnvironmentsQuery),
    responses((status = 200, description = "Environments.", body = Page<Env>)))]
async fn list(
    RequestContext { control, caller }: RequestContext,
    Query(query): Query<ListEnvironmentsQuery>,
) -> ApiResult<axum::Json<Page<Env>>> {
    let limit = page_limit(query.limit)?;
    let tenant =
        query.tenant.as_deref().map(|tenant| tenant_for(&caller, Some(tenant))).transpose()?;
    let after = query.cursor.as_deref().map(read_cursor).transpose()?;
    control.wait_for_read_your_writes().await;
    let envs = grouped(&control, |found| {
        caller.sees(found.tenant())
            && tenant.as_ref().is_none_or(|tenant| *tenant == found.tenant())
    });
    let rest = envs.into_iter().filter(|(key, _)| after.as_ref().is_none_or(|after| key > after));
    let cursor = |key: &_| invariant_ok!(serde_json::to_string(key), "cursor_is_json");
    let named = rest.map(|(key, of)| (cursor(&key).unwrap_or_default(), (key, of)));
    let page = first_page(named, limit);
    let items = page.items.iter().map(|(key, of)| env(&control, &caller, key, of)).collect();
    Ok(axum::Json(Page { items, next: page.next }))
}

fn read_cursor(text: &str) -> ApiResult<(String, String)> {
    serde_json::from_str(text).map_err(|_| invalid_cursor(text))
}

/// Read an environment
///
/// The state of its workloads, and the reason if one of them is degraded.
#[utoipa::path(get, path = "/v1/environments/{env}", tag = "workloads",
    params(("env" = String, Path, description = "The environment."), TenantQuery),
    responses((status = 200, description = "The environment.", body = Env)))]
async fn get(
    RequestContext { control, caller }: RequestContext,
    Path(name): Path<String>,
    Query(query): Query<TenantQuery>,
) -> ApiResult<axum::Json<Env>> {
    let tenant = tenant_for(&caller, query.tenant.as_deref())?;
    control.wait_for_read_your_writes().await;
    let is_wanted =
        |found: &Definition| found.tenant() == tenant && found.env() == Some(name.as_str());
    let (key, of) = grouped(&control, is_wanted)
        .into_iter()
        .next()
        .ok_or_else(|| ApiError::not_found("environment", &name))?;
    Ok(axum::Json(env(&control, &caller, &key, &of)))
}
