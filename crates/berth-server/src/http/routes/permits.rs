//! Permits: how large elastic instances may be.

use std::sync::Arc;

use axum::extract::State;
use berth_api::{AskPermit, Permit, PermitKey, Role, SetBounds};
use berth_engine::InstanceId;
use berth_ledger::ClaimKey;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;
use uuid::Uuid;

use super::Routes;
use crate::http::extract::{Json, Path, RequestContext};
use crate::problem::{ApiError, ApiResult};
use berth_control::ControlPlane;
use berth_control::caller::Caller;
use berth_control::catalog::ClaimEntry;
use berth_control::elastic::{self, PermitCaller};
use berth_control::placement::Audience;

pub(super) fn routes() -> Routes {
    OpenApiRouter::new()
        .routes(routes!(ask))
        .routes(routes!(read))
        .routes(routes!(bounds))
        .routes(routes!(key))
}

/// Ask how large an instance may be
///
/// An elastic instance asks before it grows, and reports when it has shrunk. Asking for less always
/// succeeds; asking for the same confirms the size; more is granted as far as there is room, in whole
/// compute units. The answer is durable when it is given.
#[utoipa::path(post, path = "/v1/instances/{instance}/permit", tag = "elastic",
    params(("instance" = Uuid, Path, description = "The instance.")),
    request_body = AskPermit,
    responses((status = 200, description = "The permit.", body = Permit)))]
async fn ask(
    RequestContext { control, caller }: RequestContext,
    Path(instance): Path<Uuid>,
    Json(request): Json<AskPermit>,
) -> ApiResult<axum::Json<Permit>> {
    let by = permit_caller(&control, &caller);
    let (instance, unit_of) = (InstanceId(instance), |unit| unit);
    let permit = elastic::request_permit(&control, by, instance, &request, unit_of).await?;
    Ok(axum::Json(permit))
}

/// An agent asks for what is on its node; others may ask for any instance.
fn permit_caller(control: &ControlPlane, caller: &Caller) -> PermitCaller {
    let node = caller.node().filter(|_| caller.role == Role::Agent).cloned();
    let sees_nodes = Audience::of(control, caller, "").sees_nodes();
    PermitCaller { node, sees_nodes, ..PermitCaller::default() }
}

/// Read how large an instance may be
#[utoipa::path(get, path = "/v1/instances/{instance}/permit", tag = "elastic",
    params(("instance" = Uuid, Path, description = "The instance.")),
    responses((status = 200, description = "The last permit.", body = Permit)))]
async fn read(
    RequestContext { control, caller }: RequestContext,
    Path(instance): Path<Uuid>,
) -> ApiResult<axum::Json<Permit>> {
    control.wait_for_read_your_writes().await;
    let missing = || ApiError::not_found("instance", &instance.to_string());
    let claim =
        control.catalog.read().claims.get(&ClaimKey::primary(InstanceId(instance))).cloned();
    let claim = claim.filter(|claim| match caller.role {
        Role::Agent => caller.node() == Some(&claim.node),
        _ => caller.sees(&claim.request.tenant),
    });
    let mut claim = ClaimEntry::clone(&*claim.ok_or_else(missing)?);
    // Requests that change nothing are no news, so that only the ledger knows the last one's number.
    let key = claim.key;
    let stored = control.read(move |ledger| ledger.claim(key)).await?;
    if let Some(stored) = stored.filter(|stored| stored.fence == claim.fence) {
        (claim.permit, claim.amounts) = (stored.permit.as_deref().copied(), stored.amounts);
    }
    let sees_nodes = Audience::of(&control, &caller, "").sees_nodes();
    let permit = elastic::read_permit(&control, &claim, (sees_nodes, !caller.is_tenant()));
    permit.map(axum::Json).ok_or_else(|| {
        let detail = format!("instance {instance} is not elastic: it stays as large as it is");
        ApiError::conflict("not_elastic", detail)
    })
}

/// Change between which sizes an instance may be
///
/// What it was granted remains valid until it shrinks, even above the new maximum.
#[utoipa::path(put, path = "/v1/instances/{instance}/bounds", tag = "elastic",
    params(("instance" = Uuid, Path, description = "The instance.")),
    request_body = SetBounds,
    responses((status = 200, description = "The permit.", body = Permit)))]
async fn bounds(
    RequestContext { control, caller }: RequestContext,
    Path(instance): Path<Uuid>,
    Json(request): Json<SetBounds>,
) -> ApiResult<axum::Json<Permit>> {
    let sees_nodes = Audience::of(&control, &caller, "").sees_nodes();
    let done = elastic::set_bounds(&control, &caller, InstanceId(instance), request, sees_nodes);
    Ok(axum::Json(done.await?))
}

/// Read the key that headroom is signed with
#[utoipa::path(get, path = "/v1/permits/key", tag = "elastic",
    responses((status = 200, description = "The public key.", body = PermitKey)))]
async fn key(State(control): State<Arc<ControlPlane>>) -> axum::Json<PermitKey> {
    axum::Json(control.permits.signer.key().clone())
}
