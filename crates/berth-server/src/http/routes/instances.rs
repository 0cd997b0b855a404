//! `/v1/instances`: what runs where, and for tenants what shares a place.

use berth_api::{Instance, LocalityIndex, Page, PlacementReason};
use berth_engine::InstanceId;
use berth_ledger::{ClaimKey, Role};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;
use uuid::Uuid;

use super::Routes;
use super::claims::{self, ListClaimsQuery};
use super::decisions::{self, ExplainQuery};
use crate::http::extract::{Path, Query, RequestContext};
use crate::http::list::PageQuery;
use crate::problem::{ApiError, ApiResult};
use berth_control::caller::Caller;
use berth_control::catalog::{CatalogState, ClaimEntry, LocalityKey};
use berth_control::placement::Audience;
use berth_control::{ControlPlane, explanations};

pub(super) fn routes() -> Routes {
    OpenApiRouter::new().routes(routes!(list)).routes(routes!(get)).routes(routes!(explain))
}

/// List instances
///
/// By tenant, node, workload, state, name or tag. `locality` has the same marks for instances that
/// share a host, a rack or a zone; tenants see the marks and no names of racks.
#[utoipa::path(get, path = "/v1/instances", tag = "instances", params(ListClaimsQuery),
    responses((status = 200, description = "Instances.", body = Page<Instance>)))]
async fn list(
    RequestContext { control, caller }: RequestContext,
    Query(query): Query<ListClaimsQuery>,
) -> ApiResult<axum::Json<Page<Instance>>> {
    control.wait_for_read_your_writes().await;
    let viewer = InstanceViewer::new(&control, &caller);
    let catalog = control.catalog.read();
    let view = |claim: &ClaimEntry| viewer.view(&catalog, claim);
    claims::list_claims(&catalog, &caller, &query, Some(Role::Primary), view).map(axum::Json)
}

/// Read an instance
#[utoipa::path(get, path = "/v1/instances/{instance}", tag = "instances",
    params(("instance" = Uuid, Path, description = "The instance.")),
    responses((status = 200, description = "The instance.", body = Instance)))]
async fn get(
    RequestContext { control, caller }: RequestContext,
    Path(instance): Path<Uuid>,
) -> ApiResult<axum::Json<Instance>> {
    control.wait_for_read_your_writes().await;
    let viewer = InstanceViewer::new(&control, &caller);
    let catalog = control.catalog.read();
    let claim = catalog.claims.get(&ClaimKey::primary(InstanceId(instance)));
    match claim.filter(|claim| caller.sees(&claim.request.tenant)) {
        Some(claim) => Ok(axum::Json(viewer.view(&catalog, claim))),
        None => Err(ApiError::not_found("instance", &instance.to_string())),
    }
}

/// Explain where an instance is
///
/// The decision that placed it, and why that chose its node, derived again from the log.
#[utoipa::path(get, path = "/v1/instances/{instance}/explain", tag = "instances",
    params(("instance" = Uuid, Path, description = "The instance."), PageQuery),
    responses((status = 200, description = "Why it is where it is.", body = PlacementReason)))]
async fn explain(
    RequestContext { control, caller }: RequestContext,
    Path(instance): Path<Uuid>,
    Query(query): Query<PageQuery>,
) -> ApiResult<axum::Json<PlacementReason>> {
    let id = InstanceId(instance);
    let range = ExplainQuery::of_instance(id, query.limit, query.cursor).range(0)?;
    control.wait_for_read_your_writes().await;
    let node = {
        let catalog = control.catalog.read();
        let claim = catalog.claims.get(&ClaimKey::primary(id));
        let seen = claim.filter(|claim| caller.sees(&claim.request.tenant));
        seen.map(|claim| claim.node.clone())
    };
    let Some(node) = node else {
        return Err(ApiError::not_found("instance", &instance.to_string()));
    };
    let found = control.read(move |ledger| explanations::decision_of(ledger, id)).await?;
    let Some((decision, chosen)) = found else {
        let note = "no decision of Berth is on record for it: it was found on its node, or the \
                    record is no longer kept";
        let (decision, explanation) = (None, None);
        return Ok(axum::Json(PlacementReason { note: note.to_owned(), decision, explanation }));
    };
    let audience = Audience::of(&control, &caller, &decision.record.tenant);
    let note = match audience.sees_nodes() {
        true if chosen == node => format!("it was placed on {node}"),
        true => format!("it was placed on {chosen} and has been moved to {node} since"),
        false if chosen == node => "it is on the node that it was placed on".to_owned(),
        false => "it has been moved to another node since it was placed".to_owned(),
    };
    let record = decisions::view(&decision, &audience);
    let explained = explanations::explain_decision(&control, &caller, decision, range).await?;
    let (decision, explanation) = (Some(record), Some(explained));
    Ok(axum::Json(PlacementReason { note, decision, explanation }))
}

/// What a caller may see of instances.
struct InstanceViewer<'a> {
    control: &'a ControlPlane,
    is_tenant: bool,
    sees_nodes: bool,
    marks: &'a LocalityKey,
}

impl<'a> InstanceViewer<'a> {
    fn new(control: &'a ControlPlane, caller: &Caller) -> Self {
        let sees_nodes = Audience::of(control, caller, "").sees_nodes();
        let marks = control.locality();
        Self { control, is_tenant: caller.is_tenant(), sees_nodes, marks }
    }

    fn view(&self, catalog: &CatalogState, claim: &ClaimEntry) -> Instance {
        let facts = catalog.nodes.get(&claim.node).map(|node| &node.facts);
        let none = || LocalityIndex { host: String::new(), rack: None, zone: None };
        let names = facts.filter(|_| !self.is_tenant);
        let tenant = &claim.request.tenant;
        Instance {
            claim: claims::view(claim, self.sees_nodes),
            tags: claim.request.tags.clone(),
            image: claim.request.image.clone(),
            groups: claim.request.groups.clone(),
            slot: claim.instance_slot(),
            locality: facts.map_or_else(none, |facts| self.marks.index(tenant, facts)),
            rack: names.and_then(|facts| facts.rack.clone()),
            zone: names.and_then(|facts| facts.zone.clone()),
            permit: berth_control::elastic::read_permit(
                self.control,
                claim,
                (self.sees_nodes, !self.is_tenant),
            ),
        }
    }
}
