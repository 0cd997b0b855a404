//! `/v1/nodes`: what is known of nodes, and what operators change of them.

mod adoption;
mod agent;
mod drains;
mod explain;
mod facts;
mod import;

use std::sync::Arc;

use axum::extract::{DefaultBodyLimit, State};
use axum::response::{IntoResponse, Response};
use berth_api::select::{NodeView, Selector};
use berth_api::{Node, NodeStateChange, Page};
use berth_engine::elastic::Account;
use berth_engine::{Amounts, NodeFacts, NodeId, NodeState, Timestamp};
use berth_ledger::Op;
use http::{StatusCode, header};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::Routes;
use crate::http::HttpLimits;
use crate::http::extract::{IfMatch, OptionalJson, Path, Query, RequestContext};
use crate::http::list::{first_page, list_query, page_limit};
use crate::problem::{ApiError, ApiResult};
use berth_control::ControlPlane;
use berth_control::caller::Caller;
use berth_control::catalog::{CatalogState, NodeEntry};
use berth_control::moves::drain;

pub(super) fn routes(limits: HttpLimits) -> Routes {
    let import = OpenApiRouter::new()
        .routes(routes!(import::import))
        .layer(DefaultBodyLimit::max(limits.import_bytes));
    OpenApiRouter::new()
        .merge(import)
        .routes(routes!(list))
        .routes(routes!(get, facts::put, facts::patch, remove))
        .routes(routes!(facts::unset))
        .routes(routes!(cordon))
        .routes(routes!(uncordon))
        .routes(routes!(drains::begin, drains::get))
        .routes(routes!(drains::cancel))
        .routes(routes!(drains::reclaim))
        .routes(routes!(drains::list))
        .routes(routes!(agent::heartbeat))
        .routes(routes!(agent::assignments))
        .routes(routes!(agent::stream))
        .routes(routes!(explain::explain))
}

/// What is used, as amounts that cannot be negative.
fn amounts(cpu: i64, memory: i64, disk: i64, bandwidth: i64) -> Amounts {
    let amount = |value: i64| u32::try_from(value.max(0)).unwrap_or(u32::MAX).min(Amounts::MAX);
    Amounts {
        cpu_milli: amount(cpu),
        memory_mib: amount(memory),
        disk_mib: amount(disk),
        bandwidth_mbps: amount(bandwidth),
    }
}

fn used(entry: &NodeEntry) -> Amounts {
    let used = &entry.room.used;
    amounts(used.cpu, entry.room.memory_used(), used.disk, used.bandwidth)
}

fn account_of(control: &ControlPlane, catalog: &CatalogState, entry: &NodeEntry) -> Account {
    let policy = control.catalog.policy();
    let settings = policy.as_ref().map(|policy| policy.elastic().clone()).unwrap_or_default();
    let now = control.now().as_second();
    berth_control::elastic::node_account(catalog, &control.moves.migrations, &settings, entry, now)
}

/// A node of the catalogue as callers see it.
pub(super) fn view(control: &ControlPlane, catalog: &CatalogState, entry: &NodeEntry) -> Node {
    let limits = &entry.room.limits;
    let mut facts = NodeFacts::clone(&entry.facts);
    facts.heartbeat_at = Timestamp(entry.heard_at());
    let set = facts.set_values();
    let overridden = std::mem::take(&mut facts.overridden);
    let policy_defaults = overridden.iter().filter_map(|(field, below)| {
        below.policy.as_ref().map(|value| (field.clone(), value.clone()))
    });
    let policy_defaults = policy_defaults.collect();
    let reported = overridden.into_iter().map(|(field, below)| (field, below.reported));
    let heard_at = jiff::Timestamp::from_second(entry.heard_at()).ok();
    Node {
        facts,
        set,
        policy_defaults,
        reported: reported.collect(),
        state_message: entry.state_message(),
        generation: entry.generation,
        heard_at: heard_at.filter(|_| entry.heard_at() > 0),
        limits: amounts(limits.cpu, limits.memory, limits.disk, limits.bandwidth),
        used: used(entry),
        instances: entry.room.used.instances,
        account: account_of(control, catalog, entry),
        evacuation: control.moves.evacuations.of(&entry.facts.id),
    }
}

list_query! {
    /// The query of `GET /v1/nodes`.
    struct ListNodesQuery {
        /// Nodes that match this selector: `platform < 20260101 and rack = r1`.
        #[serde(rename = "where")]
        #[param(rename = "where")]
        selector: Option<String>,
    }
}

/// List nodes
#[utoipa::path(get, path = "/v1/nodes", tag = "nodes", params(ListNodesQuery),
    responses((status = 200, description = "Nodes, in order of id.", body = Page<Node>)))]
async fn list(
    State(control): State<Arc<ControlPlane>>,
    Query(query): Query<ListNodesQuery>,
) -> ApiResult<axum::Json<Page<Node>>> {
    let limit = page_limit(query.limit)?;
    let selector = match query.selector.as_deref() {
        Some(text) => Some(text.parse::<Selector>().map_err(|error| {
            ApiError::field("where", Some(format!("{text:?}")), &error.to_string())
        })?),
        None => None,
    };
    control.wait_for_read_your_writes().await;
    let now = Timestamp(control.now().as_second());
    let catalog = control.catalog.read();
    let after = query.cursor.map(|cursor| NodeId::new(&cursor));
    let rest = match &after {
        Some(after) => {
            catalog.nodes.range((std::ops::Bound::Excluded(after), std::ops::Bound::Unbounded))
        }
        None => catalog.nodes.range::<NodeId, _>(..),
    };
    let selected = |entry: &NodeEntry| {
        selector.as_ref().is_none_or(|selector| {
            let (facts, instances) = (&*entry.facts, entry.room.used.instances);
            selector.matches(&NodeView { facts, used: used(entry), instances, now })
        })
    };
    let found = rest.filter(|(_, entry)| selected(entry));
    Ok(axum::Json(first_page(
        found.map(|(id, entry)| (id.as_str().to_owned(), view(&control, &catalog, entry))),
        limit,
    )))
}

/// A node and its version.
fn tagged(status: StatusCode, node: &Node) -> Response {
    let etag = format!("\"{}\"", node.generation);
    (status, [(header::ETAG, etag)], axum::Json(node)).into_response()
}

/// The node as it is now, after what this server did.
async fn read(control: &ControlPlane, node: &NodeId) -> ApiResult<Node> {
    control.wait_for_read_your_writes().await;
    let catalog = control.catalog.read();
    let entry = catalog.nodes.get(node);
    entry
        .map(|entry| view(control, &catalog, entry))
        .ok_or_else(|| ApiError::not_found("node", node.as_str()))
}

/// Read a node
#[utoipa::path(get, path = "/v1/nodes/{node}", tag = "nodes",
    params(("node" = String, Path, description = "The node.")),
    responses((status = 200, description = "The node; its generation is its ETag.", body = Node)))]
async fn get(
    RequestContext { control, caller }: RequestContext,
    Path(node): Path<NodeId>,
) -> ApiResult<Response> {
    control.node_for(&caller, &node)?;
    Ok(tagged(StatusCode::OK, &read(&control, &node).await?))
}

/// Remove a node
///
/// Only one that holds nothing.
#[utoipa::path(delete, path = "/v1/nodes/{node}", tag = "nodes",
    params(
        ("node" = String, Path, description = "The node."),
        ("If-Match" = Option<String>, Header, description = "The generation that was read."),
    ),
    responses((status = 204, description = "Removed.")))]
async fn remove(
    RequestContext { control, caller }: RequestContext,
    Path(node): Path<NodeId>,
    if_match: IfMatch,
) -> ApiResult<StatusCode> {
    read(&control, &node).await?;
    let op = Op::RemoveNode { node: node.clone(), expect: if_match.number()? };
    let revision = control.moves.drains.get(&node).map(|known| known.revision);
    control.administer(&caller, "node.remove", node.as_str(), op).await?;
    if let Some(revision) = revision {
        drain::remove(&control, &node, revision).await?;
    }
    Ok(StatusCode::NO_CONTENT)
}

/// Changes a node's state, and ends its drain if it was being emptied.
async fn end_drain(
    control: &Arc<ControlPlane>,
    caller: &Caller,
    action: &'static str,
    node: &NodeId,
    state: NodeState,
    (if_match, reason): (IfMatch, Option<String>),
) -> ApiResult<()> {
    let subject = match reason.as_deref() {
        Some(reason) => format!("{node}: {reason}"),
        None => node.to_string(),
    };
    // Read before the state changes: one that is started again in the meantime is another drain.
    let revision = control.moves.drains.get(node).map(|known| known.revision);
    let op = Op::SetNodeState { node: node.clone(), state, expect: if_match.number()? };
    control.administer(caller, action, subject, op).await?;
    match revision {
        Some(revision) => Ok(drain::remove(control, node, revision).await?),
        None => Ok(()),
    }
}

async fn set_state(
    control: &Arc<ControlPlane>,
    caller: &Caller,
    action: &'static str,
    node: NodeId,
    state: NodeState,
    (if_match, change): (IfMatch, NodeStateChange),
) -> ApiResult<Response> {
    read(control, &node).await?;
    end_drain(control, caller, action, &node, state, (if_match, change.reason)).await?;
    Ok(tagged(StatusCode::OK, &read(control, &node).await?))
}

/// Cordon a node
///
/// It keeps what it has and takes nothing new. A drain is called off.
#[utoipa::path(post, path = "/v1/nodes/{node}/cordon", tag = "nodes",
    params(
        ("node" = String, Path, description = "The node."),
        ("If-Match" = Option<String>, Header, description = "The generation that was read."),
    ),
    request_body = NodeStateChange,
    responses((status = 200, description = "The changed node.", body = Node)))]
async fn cordon(
    RequestContext { control, caller }: RequestContext,
    Path(node): Path<NodeId>,
    if_match: IfMatch,
    OptionalJson(change): OptionalJson<NodeStateChange>,
) -> ApiResult<Response> {
    let state = NodeState::Cordoned;
    set_state(&control, &caller, "node.cordon", node, state, (if_match, change)).await
}

/// Uncordon a node
///
/// It takes instances again; a drain is called off, or was done.
#[utoipa::path(post, path = "/v1/nodes/{node}/uncordon", tag = "nodes",
    params(
        ("node" = String, Path, description = "The node."),
        ("If-Match" = Option<String>, Header, description = "The generation that was read."),
    ),
    request_body = NodeStateChange,
    responses((status = 200, description = "The changed node.", body = Node)))]
async fn uncordon(
    RequestContext { control, caller }: RequestContext,
    Path(node): Path<NodeId>,
    if_match: IfMatch,
    OptionalJson(change): OptionalJson<NodeStateChange>,
) -> ApiResult<Response> {
    let state = NodeState::Active;
    set_state(&control, &caller, "node.uncordon", node, state, (if_match, change)).await
}
