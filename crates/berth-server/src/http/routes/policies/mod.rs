//! `/v1/policies`: what there is, what differs, and which is in force.

mod body;
mod diff;
mod find;
mod live;

use std::sync::Arc;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use berth_api::{Page, PolicyDiff, PolicyDiffQuery, PolicyRef, PolicyText, StoredPolicy};
use berth_engine::InstanceId;
use berth_ledger::{Answer, Op, Outcome};
use http::{StatusCode, header};
use serde::Deserialize;
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;
use uuid::Uuid;

use super::Routes;
use crate::http::extract::{IfMatch, Json, Path, Query, RequestContext};
use crate::http::list::{PageQuery, first_page, invalid_cursor, page_limit};
use crate::problem::{ApiError, ApiResult};
use berth_control::caller::Caller;
use berth_control::{ControlPlane, unexpected};
use body::PolicyBody;
use find::{FoundPolicy, active_policy, all, all_with_builtins, find};

pub(super) fn routes() -> Routes {
    OpenApiRouter::new()
        .routes(routes!(list, store))
        .routes(routes!(validate))
        .routes(routes!(compare, compare_any))
        .routes(routes!(rollback))
        .routes(routes!(get))
        .routes(routes!(activate))
}

/// A policy and its version.
fn tagged(status: StatusCode, policy: &StoredPolicy) -> Response {
    let etag = format!("\"{}\"", policy.hash);
    (status, [(header::ETAG, etag)], axum::Json(policy)).into_response()
}

/// List policies
///
/// Those that are stored and those that come with Berth, in order of name and hash. A policy without
/// `stored_at` is not stored yet; activating it stores it.
#[utoipa::path(get, path = "/v1/policies", tag = "policies", params(PageQuery),
    responses((status = 200, description = "Policies.", body = Page<StoredPolicy>)))]
async fn list(
    State(control): State<Arc<ControlPlane>>,
    Query(query): Query<PageQuery>,
) -> ApiResult<axum::Json<Page<StoredPolicy>>> {
    let limit = page_limit(query.limit)?;
    // A hash has no dot; a name may have.
    let after = match query.cursor.as_deref().map(|cursor| (cursor, cursor.split_once('.'))) {
        Some((_, Some((hash, name)))) => Some((name.to_owned(), hash.to_owned())),
        Some((cursor, None)) => return Err(invalid_cursor(cursor)),
        None => None,
    };
    let found = all_with_builtins(&control).await?.into_iter().filter(|found| {
        after.as_ref().is_none_or(|(name, hash)| found.key() > (name.as_str(), hash.as_str()))
    });
    let named = found.map(|found| (format!("{}.{}", found.policy.hash, found.policy.name), found));
    let page = first_page(named, limit);
    let items = page.items.into_iter().map(FoundPolicy::view).collect::<ApiResult<Vec<_>>>()?;
    Ok(axum::Json(Page { items, next: page.next }))
}

/// Store a policy
///
/// It is known by the hash of its content, and not in force until it is activated.
#[utoipa::path(post, path = "/v1/policies", tag = "policies",
    request_body(content(
        (PolicyText = "application/json"),
        (String = "application/toml"),
    )),
    responses(
        (status = 200, description = "Already stored.", body = StoredPolicy),
        (status = 201, description = "Stored.", body = StoredPolicy),
    ))]
async fn store(
    RequestContext { control, caller }: RequestContext,
    PolicyBody(policy): PolicyBody,
) -> ApiResult<Response> {
    let (name, hash) = (policy.name().to_owned(), policy.hash().to_string());
    let subject = format!("{name} {hash}");
    let op = Op::PutPolicy { name, hash: hash.clone(), body: policy.to_json() };
    let is_new = control.administer(&caller, "policy.put", subject, op).await?;
    let status = if is_new { StatusCode::CREATED } else { StatusCode::OK };
    Ok(tagged(status, &find(&control, &hash).await?.view()?))
}

/// Validate a policy
///
/// Reads it as storing it would, and stores nothing.
#[utoipa::path(post, path = "/v1/policies/validate", tag = "policies",
    request_body(content(
        (PolicyText = "application/json"),
        (String = "application/toml"),
    )),
    responses((status = 200, description = "It is valid: its content in full, and its hash.", body = StoredPolicy)))]
async fn validate(
    State(control): State<Arc<ControlPlane>>,
    PolicyBody(policy): PolicyBody,
) -> ApiResult<Response> {
    let hash = policy.hash().to_string();
    let known = all(&control).await?.into_iter().find(|known| known.hash == hash);
    let found = match known {
        Some(policy) => FoundPolicy { policy, is_stored: true },
        None => FoundPolicy::not_stored(&policy),
    };
    Ok(tagged(StatusCode::OK, &found.view()?))
}

/// Which policies to compare.
#[derive(Clone, Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct ComparePoliciesQuery {
    /// The first: a hash, the beginning of one, a name, or `active`.
    #[param(required = true)]
    from: Option<String>,
    /// The second.
    #[param(required = true)]
    to: Option<String>,
    /// Say also what would change on the fleet as it is now.
    #[serde(default)]
    live: bool,
    /// With `live`: the most decisions, nodes and classes that are listed; 100 if not given.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<usize>,
    /// With `live`: look at instances after this one; the `next` of before.
    after: Option<Uuid>,
}

/// Compare two policies
///
/// Key by key. With `live`, also what would change on the fleet as it is now: every instance, up to
/// 2,000 for each request, is removed from its node in a copy of the fleet and placed again under both.
#[utoipa::path(get, path = "/v1/policies/diff", tag = "policies", params(ComparePoliciesQuery),
    responses((status = 200, description = "How they differ.", body = PolicyDiff)))]
async fn compare(
    State(control): State<Arc<ControlPlane>>,
    Query(query): Query<ComparePoliciesQuery>,
) -> ApiResult<axum::Json<PolicyDiff>> {
    let accepted = "a hash, the beginning of one, a name, or active";
    let missing = |field| ApiError::field(field, None, accepted);
    let ComparePoliciesQuery { from, to, live, limit, after } = query;
    let (from, to) = (from.ok_or_else(|| missing("from"))?, to.ok_or_else(|| missing("to"))?);
    let (from, to) = (PolicyRef::Named(from), PolicyRef::Named(to));
    let request = PolicyDiffQuery { from, to, live, limit, after: after.map(InstanceId) };
    live::compare(&control, request).await.map(axum::Json)
}

/// Compare two policies that need not be stored
///
/// The same, of policies that are named or sent as text.
#[utoipa::path(post, path = "/v1/policies/diff", tag = "policies", request_body = PolicyDiffQuery,
    responses((status = 200, description = "How they differ.", body = PolicyDiff)))]
async fn compare_any(
    State(control): State<Arc<ControlPlane>>,
    Json(request): Json<PolicyDiffQuery>,
) -> ApiResult<axum::Json<PolicyDiff>> {
    live::compare(&control, request).await.map(axum::Json)
}

/// Read a policy
///
/// By its hash, the beginning of its hash (6 characters or more), its name (the newest of that
/// name), `active` for the one in force, or the name of one that comes with Berth.
#[utoipa::path(get, path = "/v1/policies/{policy}", tag = "policies",
    params(("policy" = String, Path, description = "The policy.")),
    responses((status = 200, description = "The policy; its hash is its ETag.", body = StoredPolicy)))]
async fn get(
    State(control): State<Arc<ControlPlane>>,
    Path(policy): Path<String>,
) -> ApiResult<Response> {
    Ok(tagged(StatusCode::OK, &find(&control, &policy).await?.view()?))
}

/// Put a policy in force
///
/// With `If-Match`, only if the policy in force is still that one.
#[utoipa::path(post, path = "/v1/policies/{policy}/activate", tag = "policies",
    params(
        ("policy" = String, Path, description = "The policy."),
        ("If-Match" = Option<String>, Header, description = "The hash of the active policy, as it was read."),
    ),
    responses((status = 200, description = "It is active.", body = StoredPolicy)))]
async fn activate(
    RequestContext { control, caller }: RequestContext,
    Path(policy): Path<String>,
    if_match: IfMatch,
) -> ApiResult<Response> {
    let found = find(&control, &policy).await?;
    activate_policy(&control, &caller, "policy.activate", found, if_match.0).await
}

async fn activate_policy(
    control: &ControlPlane,
    caller: &Caller,
    action: &'static str,
    found: FoundPolicy,
    expect: Option<String>,
) -> ApiResult<Response> {
    let berth_ledger::StoredPolicy { name, hash, body, .. } = found.policy;
    let subject = format!("{name} {hash}");
    let op = Op::ActivatePolicy { name, hash: hash.clone(), body, expect };
    match control.call(caller, action, subject, None, op).await? {
        Answer::Outcome(Outcome::Done | Outcome::Unchanged) => {}
        Answer::Outcome(Outcome::Impossible(why)) => {
            return Err(ApiError::conflict("impossible", why));
        }
        Answer::Outcome(Outcome::Stale { .. }) => {
            return Err(ApiError::stale(active_policy(control).await?.map(|policy| policy.hash)));
        }
        other => return Err(unexpected(&other).into()),
    }
    control.wait_for_read_your_writes().await;
    Ok(tagged(StatusCode::OK, &find(control, &hash).await?.view()?))
}

/// Go back to the policy before
///
/// Puts the policy in force that was in force before the present one.
#[utoipa::path(post, path = "/v1/policies/rollback", tag = "policies",
    params(("If-Match" = Option<String>, Header, description = "The hash of the active policy, as it was read.")),
    responses((status = 200, description = "It is active again.", body = StoredPolicy)))]
async fn rollback(
    RequestContext { control, caller }: RequestContext,
    if_match: IfMatch,
) -> ApiResult<Response> {
    let current = active_policy(&control).await?.map(|policy| policy.hash);
    let history = control.read(|ledger| ledger.policy_history(2)).await?;
    let mut before = history.into_iter().map(|(_, hash, _)| hash);
    let before = before.find(|hash| Some(hash) != current.as_ref());
    let Some(before) = before else {
        let detail = "no other policy was active before this one";
        return Err(ApiError::conflict("no_policy_before", detail)
            .remedy("activate the one that is wanted"));
    };
    let found = find(&control, &before).await?;
    // What was read a moment ago, if the caller expects nothing: going back twice is not resolve_policy.
    let expect = if_match.0.or(current);
    activate_policy(&control, &caller, "policy.rollback", found, expect).await
}
