//! Changing a workload: one guarded write, retried when others change the same workload.

use std::sync::Arc;

use axum::response::Response;
use berth_api::{
    ChangeRollout, NewWorkload, Page, PastRevision, RolloutAction, ScaleWorkload, Workload,
};
use berth_ledger::{Answer, Expect, Op, Outcome};
use http::StatusCode;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::{check, find, hidden, key_of, read, tagged};
use crate::http::extract::{IfMatch, Json, Path, RequestContext};
use crate::http::routes::Routes;
use crate::problem::{ApiError, ApiResult};
use berth_control::caller::Caller;
use berth_control::workload::{Definition, WorkloadKey};
use berth_control::{ControlError, ControlPlane, unexpected};

/// How often a change is retried when others change the same workload.
const TRIES: u32 = 10;

pub(super) fn routes() -> Routes {
    OpenApiRouter::new()
        .routes(routes!(scale))
        .routes(routes!(rollout))
        .routes(routes!(revisions))
        .routes(routes!(check_new))
}

/// What became of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ChangeOutcome {
    /// It is new.
    Stored,
    /// It is another than before.
    Edited,
    /// It was so already.
    Unchanged,
}

/// Changes a workload from what it is to what `next` makes of it.
pub(super) async fn change(
    control: &ControlPlane,
    caller: &Caller,
    key: &WorkloadKey,
    if_match: &IfMatch,
    next: impl Fn(Option<&Definition>) -> ApiResult<Definition>,
) -> ApiResult<ChangeOutcome> {
    let wanted = if_match.number()?;
    for _ in 0..TRIES {
        control.wait_for_read_your_writes().await;
        let known = control.catalog.read().workloads.get(key).cloned();
        let current = known.as_ref().map(|known| known.version);
        if wanted.is_some_and(|wanted| current != Some(wanted)) {
            return Err(ApiError::stale(current.map(|current| current.to_string())));
        }
        let next = next(known.as_deref())?;
        let is_same =
            |known: &Arc<Definition>| known.replicas == next.replicas && known.body == next.body;
        if known.as_ref().is_some_and(is_same) {
            return Ok(ChangeOutcome::Unchanged);
        }
        // What was just read, so that two changes at once are two versions.
        let expect = current.map_or(Expect::Absent, Expect::Revision);
        let op = Op::PutWorkload { workload: next.row(), expect };
        let subject = format!("{}/{}", key.0, key.1);
        match control.call(caller, "workload.put", subject, None, op).await? {
            Answer::Outcome(Outcome::Done | Outcome::Unchanged) => {
                let is_new = current.is_none();
                return Ok(if is_new { ChangeOutcome::Stored } else { ChangeOutcome::Edited });
            }
            Answer::Outcome(Outcome::Impossible(why)) => {
                return Err(ApiError::conflict("impossible", why));
            }
            Answer::Outcome(Outcome::TenantRemoving(tenant)) => {
                return Err(ControlError::tenant_removing(&tenant).into());
            }
            Answer::Outcome(Outcome::Stale { .. }) => {
                // Another server changed it, and this one has not applied the change yet.
                tokio::time::sleep(std::time::Duration::from_millis(60)).await;
            }
            other => return Err(unexpected(&other).into()),
        }
    }
    Err(ApiError::unavailable("contention", "others change this workload again and again"))
}

/// Change how many should run
///
/// With `If-Match`, only if it is still as it was read.
#[utoipa::path(post, path = "/v1/workloads/{tenant}/{name}/scale", tag = "workloads",
    params(
        ("tenant" = String, Path, description = "The tenant."),
        ("name" = String, Path, description = "The workload."),
        ("If-Match" = Option<String>, Header, description = "The version that was read."),
    ),
    request_body = ScaleWorkload,
    responses((status = 200, description = "Changed, or unchanged.", body = Workload)))]
async fn scale(
    RequestContext { control, caller }: RequestContext,
    Path((tenant, name)): Path<(String, String)>,
    if_match: IfMatch,
    Json(request): Json<ScaleWorkload>,
) -> ApiResult<Response> {
    find(&control, &caller, &tenant, &name).await?;
    check::replicas(request.replicas)?;
    change(&control, &caller, &key_of(&tenant, &name), &if_match, |now| {
        let now = now.ok_or_else(|| hidden(&name))?;
        check::not_quarantined(now)?;
        check::single_writer(&name, Some(request.replicas), now.is_single_writer())?;
        Ok(now.changed(|next| next.replicas = Some(request.replicas)))
    })
    .await?;
    Ok(tagged(StatusCode::OK, &read(&control, &caller, &tenant, &name).await?))
}

/// Undo, pause, resume or restart a roll-out
///
/// `undo` makes an earlier revision the next one; `restart` replaces all members by new ones.
#[utoipa::path(post, path = "/v1/workloads/{tenant}/{name}/rollout", tag = "workloads",
    params(
        ("tenant" = String, Path, description = "The tenant."),
        ("name" = String, Path, description = "The workload."),
        ("If-Match" = Option<String>, Header, description = "The version that was read."),
    ),
    request_body = ChangeRollout,
    responses((status = 200, description = "Changed, or unchanged.", body = Workload)))]
async fn rollout(
    RequestContext { control, caller }: RequestContext,
    Path((tenant, name)): Path<(String, String)>,
    if_match: IfMatch,
    Json(request): Json<ChangeRollout>,
) -> ApiResult<Response> {
    find(&control, &caller, &tenant, &name).await?;
    if let Some(revision) = request.to_revision.filter(|_| request.action != RolloutAction::Undo) {
        let accepted = "absent unless action is undo";
        return Err(ApiError::field("to_revision", Some(revision.to_string()), accepted));
    }
    let tried = std::sync::Mutex::new(false);
    change(&control, &caller, &key_of(&tenant, &name), &if_match, |now| {
        let now = now.ok_or_else(|| hidden(&name))?;
        check::not_quarantined(now)?;
        let mut kept = true;
        let next = now.changed(|next| match request.action {
            RolloutAction::Undo => kept = next.body.undo(request.to_revision),
            RolloutAction::Pause => next.body.paused = true,
            RolloutAction::Resume => next.body.paused = false,
            RolloutAction::Restart => next.body.restart(),
        });
        if !kept {
            return Err(no_revision(now, request.to_revision));
        }
        check::single_writer(&name, next.replicas, next.is_single_writer())?;
        // These are not idempotent: a caller that got no response must read the state first.
        let once = matches!(request.action, RolloutAction::Undo | RolloutAction::Restart);
        let mut tried = tried.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let tried = std::mem::replace(&mut *tried, true);
        if once && tried { Err(ApiError::stale(Some(now.version.to_string()))) } else { Ok(next) }
    })
    .await?;
    Ok(tagged(StatusCode::OK, &read(&control, &caller, &tenant, &name).await?))
}

fn no_revision(now: &Definition, wanted: Option<i64>) -> ApiError {
    let kept: Vec<String> = now.body.history.iter().map(|past| past.revision.to_string()).collect();
    match wanted {
        Some(wanted) if !kept.is_empty() => ApiError::field(
            "to_revision",
            Some(wanted.to_string()),
            &format!("one of those kept: {}", kept.join(", ")),
        ),
        Some(_) | None => {
            let why = format!("workload {} has no earlier revision to go back to", now.name());
            ApiError::conflict("no_earlier_revision", why)
        }
    }
}

/// List the earlier revisions of a workload
///
/// The newest first; the last ten are kept.
#[utoipa::path(get, path = "/v1/workloads/{tenant}/{name}/revisions", tag = "workloads",
    params(
        ("tenant" = String, Path, description = "The tenant."),
        ("name" = String, Path, description = "The workload."),
    ),
    responses((status = 200, description = "Earlier revisions.", body = Page<PastRevision>)))]
async fn revisions(
    RequestContext { control, caller }: RequestContext,
    Path((tenant, name)): Path<(String, String)>,
) -> ApiResult<axum::Json<Page<PastRevision>>> {
    let found = find(&control, &caller, &tenant, &name).await?;
    let items = found.body.history.iter().rev().cloned().collect();
    Ok(axum::Json(Page { items, next: None }))
}

/// Check a workload without storing it
#[utoipa::path(post, path = "/v1/workloads/{tenant}/{name}/check", tag = "workloads",
    params(
        ("tenant" = String, Path, description = "The tenant."),
        ("name" = String, Path, description = "The workload."),
    ),
    request_body = NewWorkload,
    responses((status = 204, description = "Valid: it could be stored.")))]
async fn check_new(
    RequestContext { control, caller }: RequestContext,
    Path((tenant, name)): Path<(String, String)>,
    Json(new): Json<NewWorkload>,
) -> ApiResult<StatusCode> {
    if !caller.sees(&tenant) {
        return Err(hidden(&name));
    }
    check::new(&control, &tenant, &name, &new).await?;
    Ok(StatusCode::NO_CONTENT)
}
