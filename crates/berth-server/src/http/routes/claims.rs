//! `/v1/claims`: read, renew, bind, activate, release.

use berth_api::{
    Claim, ClaimRole, ClaimStatus, FencedRequest, HeldValue, Page, ReleaseClaim, RenewClaim, Role,
};
use berth_engine::{InstanceId, NodeId};
use berth_ledger::{Advance, ClaimKey, ClaimState, Op, Release, Step, Text};
use serde::Deserialize;
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;
use uuid::Uuid;

use super::Routes;
use crate::http::extract::{Json, OptionalJson, Path, Query, RequestContext};
use crate::http::list::{first_page, invalid_cursor, list_query, page_limit};
use crate::problem::{ApiError, ApiResult};
use berth_control::caller::Caller;
use berth_control::catalog::{CatalogState, ClaimEntry};
use berth_control::placement::Audience;
use berth_control::{ControlPlane, clock::moment};

pub(super) fn routes() -> Routes {
    OpenApiRouter::new()
        .routes(routes!(list))
        .routes(routes!(get))
        .routes(routes!(renew))
        .routes(routes!(bind))
        .routes(routes!(activate))
        .routes(routes!(release))
}

list_query! {
    /// The query of `GET /v1/claims`.
    pub(super) struct ListClaimsQuery {
        /// Of this tenant.
        #[serde(alias = "owner")]
        tenant: Option<String>,
        /// On this node.
        #[param(value_type = Option<String>)]
        node: Option<NodeId>,
        /// Of this workload.
        workload: Option<String>,
        /// In this state.
        state: Option<berth_api::ClaimState>,
        /// With this tag: `key=value`, or `key` for any value.
        tag: Option<String>,
        /// With this name.
        name: Option<String>,
    }
}

impl ListClaimsQuery {
    fn matches(&self, claim: &ClaimEntry) -> bool {
        let same = |wanted: &Option<String>, found: Option<&str>| {
            wanted.as_deref().is_none_or(|wanted| Some(wanted) == found)
        };
        let tagged = self.tag.as_deref().is_none_or(|tag| {
            let (key, value) = tag.split_once('=').map_or((tag, None), |(k, v)| (k, Some(v)));
            let found = claim.request.tags.get(key);
            found.is_some_and(|found| value.is_none_or(|value| value == found))
        });
        same(&self.tenant, Some(&claim.request.tenant))
            && same(&self.workload, claim.request.workload.as_deref())
            && same(&self.name, claim.name.as_deref())
            && self.node.as_ref().is_none_or(|node| *node == claim.node)
            && self.state.is_none_or(|state| state == state_of(claim.state))
            && tagged
    }
}

/// The page of claims that match a query and that the caller may see. With a role: only claims of
/// that role, so that an instance that is being moved is listed once.
pub(super) fn list_claims<T>(
    catalog: &CatalogState,
    caller: &Caller,
    query: &ListClaimsQuery,
    role: Option<berth_ledger::Role>,
    view: impl Fn(&ClaimEntry) -> T,
) -> ApiResult<Page<T>> {
    let limit = page_limit(query.limit)?;
    let after = query.cursor.as_deref().map(read_cursor).transpose()?;
    let passes = |claim: &&ClaimEntry| {
        caller.sees(&claim.request.tenant)
            && role.is_none_or(|role| claim.key.role == role)
            && query.matches(claim)
            && after.is_none_or(|after| claim.key > after)
    };
    let named = |claim: &ClaimEntry| (cursor(claim.key), view(claim));
    let claims = &catalog.claims;
    // The smallest set that has them all: a node's, a tenant's, or everything.
    if let Some(node) = &query.node {
        let keys = catalog.nodes.get(node).into_iter().flat_map(|node| &node.claims);
        let found = keys.filter_map(|key| claims.get(key)).map(|claim| &**claim);
        return Ok(first_page(found.filter(passes).map(named), limit));
    }
    let tenant = query.tenant.as_deref().or_else(|| match caller.tenants() {
        Some([only]) => Some(only.as_str()),
        _ => None,
    });
    if let Some(tenant) = tenant {
        let keys = catalog.by_tenant.get(tenant).into_iter().flatten();
        let found = keys.filter_map(|key| claims.get(key)).map(|claim| &**claim);
        return Ok(first_page(found.filter(passes).map(named), limit));
    }
    let from = after.unwrap_or(ClaimKey::primary(InstanceId::default()));
    let found = claims.range(from..).map(|(_, claim)| &**claim);
    Ok(first_page(found.filter(passes).map(named), limit))
}

fn cursor(key: ClaimKey) -> String {
    format!("{}.{}", key.instance, key.role.number())
}

fn read_cursor(text: &str) -> ApiResult<ClaimKey> {
    let read = || {
        let (instance, role) = text.split_once('.')?;
        let instance = InstanceId(Uuid::parse_str(instance).ok()?);
        let role = berth_ledger::Role::from_number(role.parse().ok()?)?;
        Some(ClaimKey { instance, role })
    };
    read().ok_or_else(|| invalid_cursor(text))
}

pub(super) const fn state_of(state: ClaimState) -> berth_api::ClaimState {
    match state {
        ClaimState::Held => berth_api::ClaimState::Held,
        ClaimState::Binding => berth_api::ClaimState::Binding,
        ClaimState::Active => berth_api::ClaimState::Active,
        ClaimState::Releasing => berth_api::ClaimState::Releasing,
    }
}

const fn role_of(role: berth_ledger::Role) -> ClaimRole {
    match role {
        berth_ledger::Role::Primary => ClaimRole::Primary,
        berth_ledger::Role::MigrationTarget => ClaimRole::MigrationTarget,
        berth_ledger::Role::MigrationSource => ClaimRole::MigrationSource,
    }
}

pub(super) fn values_of(values: &[berth_ledger::HeldValue]) -> Vec<HeldValue> {
    let value = |held: &berth_ledger::HeldValue| HeldValue {
        pool: held.pool.to_string(),
        value: held.value.clone(),
    };
    values.iter().map(value).collect()
}

/// A claim of the catalogue as a caller may see it.
pub(super) fn view(claim: &ClaimEntry, sees_nodes: bool) -> Claim {
    Claim {
        instance: claim.key.instance,
        role: role_of(claim.key.role),
        node: sees_nodes.then(|| claim.node.clone()),
        tenant: claim.request.tenant.clone(),
        name: claim.name.as_deref().map(str::to_owned),
        workload: claim.request.workload.clone(),
        state: state_of(claim.state),
        resources: claim.amounts,
        lease_until: claim.lease_until.map(moment),
        fence: claim.fence,
        created_at: moment(claim.created_at),
        values: values_of(&claim.values),
    }
}

/// List claims
#[utoipa::path(get, path = "/v1/claims", tag = "claims", params(ListClaimsQuery),
    responses((status = 200, description = "Claims.", body = Page<Claim>)))]
async fn list(
    RequestContext { control, caller }: RequestContext,
    Query(query): Query<ListClaimsQuery>,
) -> ApiResult<axum::Json<Page<Claim>>> {
    control.wait_for_read_your_writes().await;
    let sees_nodes = Audience::of(&control, &caller, "").sees_nodes();
    let catalog = control.catalog.read();
    list_claims(&catalog, &caller, &query, None, |claim| view(claim, sees_nodes)).map(axum::Json)
}

/// Which of an instance's claims.
#[derive(Clone, Copy, Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct ClaimRoleQuery {
    /// Where it runs, or where it is being moved to.
    role: Option<ClaimRole>,
}

fn key_of(instance: Uuid, query: ClaimRoleQuery) -> ClaimKey {
    match query.role.unwrap_or_default() {
        ClaimRole::Primary => ClaimKey::primary(InstanceId(instance)),
        ClaimRole::MigrationTarget => ClaimKey::target(InstanceId(instance)),
        ClaimRole::MigrationSource => ClaimKey::source(InstanceId(instance)),
    }
}

/// Read a claim
#[utoipa::path(get, path = "/v1/claims/{instance}", tag = "claims",
    params(("instance" = Uuid, Path, description = "The instance."), ClaimRoleQuery),
    responses((status = 200, description = "The claim.", body = Claim)))]
async fn get(
    RequestContext { control, caller }: RequestContext,
    Path(instance): Path<Uuid>,
    Query(query): Query<ClaimRoleQuery>,
) -> ApiResult<axum::Json<Claim>> {
    let key = key_of(instance, query);
    let hidden = || ApiError::not_found("claim", &instance.to_string());
    let claim = control.read(move |ledger| ledger.claim(key)).await?.ok_or_else(hidden)?;
    let is_agent = caller.role == Role::Agent;
    if !caller.sees(&claim.tenant) || (is_agent && caller.node() != Some(&claim.node)) {
        return Err(hidden());
    }
    let sees_nodes = Audience::of(&control, &caller, &claim.tenant).sees_nodes();
    let values = claim.holdings.as_ref().map(|ties| values_of(&ties.values)).unwrap_or_default();
    Ok(axum::Json(Claim {
        instance: claim.key.instance,
        role: role_of(claim.key.role),
        node: sees_nodes.then(|| claim.node.clone()),
        tenant: claim.tenant.to_string(),
        name: claim.name.as_deref().map(str::to_owned),
        workload: claim.workload.as_deref().map(str::to_owned),
        state: state_of(claim.state),
        resources: claim.amounts,
        lease_until: claim.lease_until.map(moment),
        fence: claim.fence,
        created_at: moment(claim.created_at),
        values,
    }))
}

/// Checks that a caller may change a claim: a tenant must own it, an agent must have it on its node.
/// Returns the tenant that the ledger must verify.
async fn check_may_advance(
    control: &ControlPlane,
    caller: &Caller,
    key: ClaimKey,
) -> ApiResult<Option<Text>> {
    if !caller.is_tenant() && caller.role != Role::Agent {
        return Ok(None);
    }
    let hidden = || ApiError::not_found("claim", &key.instance.to_string());
    if key.role != berth_ledger::Role::Primary {
        // The second claim of an instance that moves is its migration's.
        return Err(hidden());
    }
    let claim = control.read(move |ledger| ledger.claim(key)).await?.ok_or_else(hidden)?;
    let on_node = caller.node().is_none_or(|node| *node == claim.node);
    if !caller.sees(&claim.tenant) || !on_node {
        return Err(hidden());
    }
    Ok(caller.is_tenant().then_some(claim.tenant))
}

fn status_view(status: &berth_ledger::ClaimStatus) -> ClaimStatus {
    ClaimStatus {
        instance: status.instance,
        role: role_of(status.role),
        state: status.state.map(state_of),
        fence: status.fence,
        lease_until: status.lease_until.map(moment),
    }
}

async fn advance(
    control: &ControlPlane,
    caller: &Caller,
    action: &'static str,
    key: ClaimKey,
    fence: i64,
    step: Step,
) -> ApiResult<axum::Json<ClaimStatus>> {
    let tenant = check_may_advance(control, caller, key).await?;
    let op = Op::Advance(Advance { key, tenant, fence, step });
    let done = control.step(caller, action, key.to_string(), op).await??;
    Ok(axum::Json(status_view(&done)))
}

/// Renew a lease
///
/// Extends the lease of a held claim, from now.
#[utoipa::path(post, path = "/v1/claims/{instance}/renew", tag = "claims",
    params(("instance" = Uuid, Path, description = "The instance."), ClaimRoleQuery),
    request_body = RenewClaim,
    responses((status = 200, description = "The claim's new state.", body = ClaimStatus)))]
async fn renew(
    RequestContext { control, caller }: RequestContext,
    Path(instance): Path<Uuid>,
    Query(query): Query<ClaimRoleQuery>,
    Json(renewal): Json<RenewClaim>,
) -> ApiResult<axum::Json<ClaimStatus>> {
    let lease_s = renewal.lease_s.unwrap_or(120);
    if !(1..=86_400).contains(&lease_s) {
        return Err(ApiError::field("lease_s", Some(lease_s.to_string()), "1 to 86400 seconds"));
    }
    let (key, step) = (key_of(instance, query), Step::Renew { lease_s });
    advance(&control, &caller, "claim.renew", key, renewal.fence, step).await
}

/// Bind a claim
///
/// An agent accepts a held claim; from then on, it no longer expires.
#[utoipa::path(post, path = "/v1/claims/{instance}/bind", tag = "claims",
    params(("instance" = Uuid, Path, description = "The instance."), ClaimRoleQuery),
    request_body = FencedRequest,
    responses((status = 200, description = "The claim's new state.", body = ClaimStatus)))]
async fn bind(
    RequestContext { control, caller }: RequestContext,
    Path(instance): Path<Uuid>,
    Query(query): Query<ClaimRoleQuery>,
    Json(body): Json<FencedRequest>,
) -> ApiResult<axum::Json<ClaimStatus>> {
    let key = key_of(instance, query);
    advance(&control, &caller, "claim.bind", key, body.fence, Step::Bind).await
}

/// Activate a claim
///
/// Reports that the instance of a bound claim runs.
#[utoipa::path(post, path = "/v1/claims/{instance}/activate", tag = "claims",
    params(("instance" = Uuid, Path, description = "The instance."), ClaimRoleQuery),
    request_body = FencedRequest,
    responses((status = 200, description = "The claim's new state.", body = ClaimStatus)))]
async fn activate(
    RequestContext { control, caller }: RequestContext,
    Path(instance): Path<Uuid>,
    Query(query): Query<ClaimRoleQuery>,
    Json(body): Json<FencedRequest>,
) -> ApiResult<axum::Json<ClaimStatus>> {
    let key = key_of(instance, query);
    advance(&control, &caller, "claim.activate", key, body.fence, Step::Activate).await
}

/// Release a claim
///
/// A held claim is removed at once; a bound one becomes `releasing` until its agent or an operator
/// confirms that the instance is gone.
#[utoipa::path(post, path = "/v1/claims/{instance}/release", tag = "claims",
    params(("instance" = Uuid, Path, description = "The instance."), ClaimRoleQuery),
    request_body(content = ReleaseClaim, description = "May be left out by operators."),
    responses((status = 200, description = "The claim's new state; absent when the claim is gone.", body = ClaimStatus)))]
async fn release(
    RequestContext { control, caller }: RequestContext,
    Path(instance): Path<Uuid>,
    Query(query): Query<ClaimRoleQuery>,
    OptionalJson(body): OptionalJson<ReleaseClaim>,
) -> ApiResult<axum::Json<ClaimStatus>> {
    let key = key_of(instance, query);
    let may_confirm = !caller.is_tenant();
    if body.confirmed && !may_confirm {
        let accepted = "false: only agents and operators may confirm that an instance is gone";
        return Err(ApiError::field("confirmed", Some("true".to_owned()), accepted));
    }
    if body.fence.is_none() && caller.role == Role::Agent {
        return Err(ApiError::field("fence", None, "the fence that the agent was given"));
    }
    let tenant = check_may_advance(&control, &caller, key).await?;
    let request_id = body.request_id.unwrap_or_else(|| Uuid::now_v7().to_string());
    let op = Op::Release(Release {
        request_id: Text::from(request_id),
        key,
        tenant,
        fence: body.fence,
        confirmed: body.confirmed,
        reason: Text::from(body.reason.as_deref().unwrap_or("released")),
    });
    let done = control.step(&caller, "claim.release", key.to_string(), op).await??;
    Ok(axum::Json(status_view(&done)))
}
