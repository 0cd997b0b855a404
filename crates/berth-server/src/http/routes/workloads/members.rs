//! The members of a workload: who sits where.

use berth_api::{ClaimState, Member, Page};
use berth_engine::CapacityType;
use berth_engine::workload::{OnChange, deletion_cost, slot_class};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::find;
use crate::http::extract::{Path, RequestContext};
use crate::http::routes::Routes;
use crate::problem::ApiResult;
use berth_control::catalog::{CatalogState, ClaimEntry};
use berth_control::clock::moment;
use berth_control::placement::Audience;
use berth_control::workload::Definition;
use berth_control::workloads::claims;

pub(super) fn routes() -> Routes {
    OpenApiRouter::new().routes(routes!(members))
}

/// List the members of a workload
///
/// In order of revision and slot.
#[utoipa::path(get, path = "/v1/workloads/{tenant}/{name}/members", tag = "workloads",
    params(
        ("tenant" = String, Path, description = "The tenant."),
        ("name" = String, Path, description = "The workload."),
    ),
    responses((status = 200, description = "Members.", body = Page<Member>)))]
async fn members(
    RequestContext { control, caller }: RequestContext,
    Path((tenant, name)): Path<(String, String)>,
) -> ApiResult<axum::Json<Page<Member>>> {
    let found = find(&control, &caller, &tenant, &name).await?;
    let sees_nodes = Audience::of(&control, &caller, &tenant).sees_nodes();
    let catalog = control.catalog.read();
    let mut members: Vec<(i64, Member)> = claims(&catalog, &found)
        .filter_map(|claim| Some((claim.fence, member(&catalog, &found, claim, sees_nodes)?)))
        .collect();
    // Of two members in one slot, the later one holds it.
    members.sort_by_key(|(fence, member)| (member.revision, member.slot, -fence));
    for at in 1..members.len() {
        let (before, here) = (&members[at - 1].1, &members[at].1);
        let same = (before.revision, before.slot) == (here.revision, here.slot);
        members[at].1.handed_over = same;
    }
    let items = members.into_iter().map(|(_, member)| member).collect();
    Ok(axum::Json(Page { items, next: None }))
}

fn member(
    catalog: &CatalogState,
    found: &Definition,
    claim: &ClaimEntry,
    sees_nodes: bool,
) -> Option<Member> {
    let assigned = claim.slot?;
    let slot = u32::try_from(assigned.slot).unwrap_or(u32::MAX);
    let node = catalog.nodes.get(&claim.node);
    let on = node.map_or(CapacityType::OnDemand, |node| node.facts.capacity_type);
    // A template that asks for a kind itself is not overruled.
    let rule = found.body.capacity.filter(|_| found.body.template.capacity_type.is_none());
    let wants = rule.and_then(|rule| slot_class(&rule, found.replicas, slot));
    let is_current = assigned.revision == found.body.revision;
    let stays_misplaced = is_current
        && rule.is_some_and(|rule| rule.on_change == OnChange::Lazy)
        && wants.is_some_and(|wants| wants != on);
    Some(Member {
        instance: claim.key.instance,
        revision: assigned.revision,
        slot,
        slot_id: claim.instance_slot().map(|slot| slot.id),
        wants,
        on,
        // What is not rebuilt goes before all others.
        deletion_cost: if stays_misplaced { 0 } else { deletion_cost(on) },
        state: match claim.state {
            berth_ledger::ClaimState::Held => ClaimState::Held,
            berth_ledger::ClaimState::Binding => ClaimState::Binding,
            berth_ledger::ClaimState::Active => ClaimState::Active,
            berth_ledger::ClaimState::Releasing => ClaimState::Releasing,
        },
        node: sees_nodes.then(|| claim.node.clone()),
        since: moment(claim.created_at),
        handed_over: false,
    })
}
