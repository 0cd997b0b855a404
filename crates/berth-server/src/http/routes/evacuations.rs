//! `/v1/evacuations`: whether nodes could be emptied now, under every rule.

use std::sync::Arc;

use axum::extract::State;
use berth_api::{Evacuation, EvacuationQuery, Page};
use berth_engine::NodeId;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::Routes;
use crate::http::extract::Json;
use crate::problem::{ApiError, ApiResult};
use berth_control::ControlPlane;
use berth_control::moves::evacuation;

pub(super) fn routes() -> Routes {
    OpenApiRouter::new().routes(routes!(check))
}

/// Check whether nodes can be emptied
///
/// Plans every move with the function that places, claims nothing and changes nothing. Nodes, or
/// all nodes of a rack, are emptied together; with `all`, each node by itself, without its moves.
#[utoipa::path(post, path = "/v1/evacuations/check", tag = "nodes",
    request_body = EvacuationQuery,
    responses((status = 200, description = "One entry for each set of nodes that is emptied together.", body = Page<Evacuation>)))]
async fn check(
    State(control): State<Arc<ControlPlane>>,
    Json(request): Json<EvacuationQuery>,
) -> ApiResult<axum::Json<Page<Evacuation>>> {
    let items = match which(&control, request).await? {
        Some(nodes) => vec![evacuation::check(&control, nodes).await?],
        None => evacuation::check_all(&control).await?,
    };
    Ok(axum::Json(Page { items, next: None }))
}

/// The nodes that are meant; absent: each by itself.
async fn which(control: &ControlPlane, request: EvacuationQuery) -> ApiResult<Option<Vec<NodeId>>> {
    let EvacuationQuery { nodes, rack, zone, all } = request;
    let given = [!nodes.is_empty(), rack.is_some(), all];
    let names = ["nodes", "rack", "all"];
    let given: Vec<&str> =
        names.into_iter().zip(given).filter(|(_, given)| *given).map(|(name, _)| name).collect();
    if given.len() != 1 {
        let value = (!given.is_empty()).then(|| format!("given with {}", given[1..].join(", ")));
        let accepted = "one of `nodes`, `rack` and `all`";
        return Err(ApiError::field(given.first().unwrap_or(&"nodes"), value, accepted));
    }
    if let (Some(zone), None) = (&zone, &rack) {
        let accepted = "absent unless `rack` is given; it selects the zone of the rack";
        return Err(ApiError::field("zone", Some(format!("{zone:?}")), accepted));
    }
    if all {
        return Ok(None);
    }
    control.wait_for_read_your_writes().await;
    match rack {
        Some(rack) => of_rack(control, &rack, zone.as_deref()).map(Some),
        None => known(control, nodes).map(Some),
    }
}

fn known(control: &ControlPlane, mut nodes: Vec<NodeId>) -> ApiResult<Vec<NodeId>> {
    nodes.sort();
    nodes.dedup();
    let catalog = control.catalog.read();
    match nodes.iter().find(|node| !catalog.nodes.contains_key(*node)) {
        Some(unknown) => {
            let value = Some(format!("{:?}", unknown.as_str()));
            Err(ApiError::field("nodes", value, "nodes that are registered"))
        }
        None => Ok(nodes),
    }
}

fn of_rack(control: &ControlPlane, rack: &str, zone: Option<&str>) -> ApiResult<Vec<NodeId>> {
    let catalog = control.catalog.read();
    let here = catalog.nodes.values().filter(|node| node.facts.rack.as_deref() == Some(rack));
    let mut zones: Vec<Option<&str>> =
        here.clone().map(|node| node.facts.zone.as_deref()).collect();
    zones.sort_unstable();
    zones.dedup();
    let value = |text: &str| Some(format!("{text:?}"));
    if zones.is_empty() {
        return Err(ApiError::field("rack", value(rack), "a rack that a node is in"));
    }
    if zone.is_none() && zones.len() > 1 {
        let names: Vec<&str> = zones.iter().map(|zone| zone.unwrap_or("none")).collect();
        let accepted = format!("the zone of rack {rack:?}: {}", names.join(", "));
        return Err(ApiError::field("zone", None, &accepted));
    }
    let meant = here.filter(|node| zone.is_none() || node.facts.zone.as_deref() == zone);
    let nodes: Vec<NodeId> = meant.map(|node| node.facts.id.clone()).collect();
    if nodes.is_empty() {
        let accepted = format!("a zone with a rack {rack:?}");
        return Err(ApiError::field("zone", zone.and_then(value), &accepted));
    }
    Ok(nodes)
}
