//! `/v1/nodes/{node}/drain`, `/v1/drains`: emptying nodes, and how far it is.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use berth_api::{Drain, DrainNode, DrainState, Node, Page, ReclaimNotice};
use berth_engine::NodeId;
use jiff::{SignedDuration, Timestamp};

use super::{end_drain, read, tagged};
use crate::http::extract::{IfMatch, OptionalJson, Path, Query, RequestContext};
use crate::http::list::{PageQuery, page_by_name};
use crate::problem::{ApiError, ApiResult};
use berth_control::ControlPlane;
use berth_control::caller::Caller;
use berth_control::moves::drain::{self, DrainRequest};

/// The longest time that a drain may be given: a week.
const LONGEST_S: u32 = 604_800;

fn not_draining(node: &NodeId) -> ApiError {
    ApiError::conflict("not_draining", format!("node {node} is not being drained"))
        .remedy(format!("berth nodes drain {node} begins to"))
}

/// A drain after this server changed it.
async fn current_drain(control: &ControlPlane, node: &NodeId) -> ApiResult<Drain> {
    read(control, node).await?;
    drain::status(control, node).ok_or_else(|| not_draining(node))
}

fn deadline_after(control: &ControlPlane, seconds: u32) -> Option<Timestamp> {
    control.now().checked_add(SignedDuration::from_secs(i64::from(seconds))).ok()
}

fn check(request: &DrainNode) -> ApiResult<()> {
    match request.deadline_s {
        Some(seconds) if !(1..=LONGEST_S).contains(&seconds) => {
            let accepted = "1 to 604800 seconds, which is a week";
            Err(ApiError::field("deadline_s", Some(seconds.to_string()), accepted))
        }
        _ => Ok(()),
    }
}

/// Drain a node
///
/// It takes nothing new, and what is there goes elsewhere: members of workloads are replaced first
/// and stopped then, other instances are moved, those with volumes wait until these are moved. Asked
/// again, it changes the reason or the deadline if one is given.
#[utoipa::path(post, path = "/v1/nodes/{node}/drain", tag = "nodes",
    params(
        ("node" = String, Path, description = "The node."),
        ("If-Match" = Option<String>, Header, description = "The generation that was read."),
    ),
    request_body = DrainNode,
    responses((status = 200, description = "The drain.", body = Drain)))]
pub(super) async fn begin(
    RequestContext { control, caller }: RequestContext,
    Path(node): Path<NodeId>,
    if_match: IfMatch,
    OptionalJson(request): OptionalJson<DrainNode>,
) -> ApiResult<axum::Json<Drain>> {
    check(&request)?;
    read(&control, &node).await?;
    if request.dry_run {
        return plan_drain(&control, node, request.reason).await.map(axum::Json);
    }
    let deadline = request.deadline_s.and_then(|seconds| deadline_after(&control, seconds));
    let request = DrainRequest { reason: request.reason, deadline, reclaimed: false };
    drain::start(&control, &caller, &node, &request, if_match.number()?).await?;
    current_drain(&control, &node).await.map(axum::Json)
}

/// Every move that a drain would make, with its destination or its refusal.
async fn plan_drain(
    control: &ControlPlane,
    node: NodeId,
    reason: Option<String>,
) -> ApiResult<Drain> {
    let found = berth_control::moves::evacuation::check(control, vec![node.clone()]).await?;
    let state = if found.can_be_emptied { DrainState::Planned } else { DrainState::Blocked };
    let (total, left) = (found.instances, found.instances);
    let (message, moves) = (found.message, found.moves);
    let (since, deadline, reclaimed) = (None, None, false);
    let volumes = Vec::new();
    Ok(Drain {
        node,
        state,
        message,
        reason,
        since,
        deadline,
        reclaimed,
        total,
        left,
        moves,
        volumes,
    })
}

/// Read how far a drain is
///
/// The instances left, where they go, what blocks them and what would unblock them.
#[utoipa::path(get, path = "/v1/nodes/{node}/drain", tag = "nodes",
    params(("node" = String, Path, description = "The node.")),
    responses((status = 200, description = "The drain.", body = Drain)))]
pub(super) async fn get(
    State(control): State<Arc<ControlPlane>>,
    Path(node): Path<NodeId>,
) -> ApiResult<axum::Json<Drain>> {
    current_drain(&control, &node).await.map(axum::Json)
}

/// Call a drain off
///
/// The node takes instances again. What has moved stays where it is.
#[utoipa::path(post, path = "/v1/nodes/{node}/drain/cancel", tag = "nodes",
    params(
        ("node" = String, Path, description = "The node."),
        ("If-Match" = Option<String>, Header, description = "The generation that was read."),
    ),
    responses((status = 200, description = "The changed node.", body = Node)))]
pub(super) async fn cancel(
    RequestContext { control, caller }: RequestContext,
    Path(node): Path<NodeId>,
    if_match: IfMatch,
) -> ApiResult<Response> {
    current_drain(&control, &node).await?;
    let state = berth_engine::NodeState::Active;
    end_drain(&control, &caller, "node.drain_cancel", &node, state, (if_match, None)).await?;
    Ok(tagged(http::StatusCode::OK, &read(&control, &node).await?))
}

/// Say that a node will be taken away
///
/// For spot nodes, by their agent or another component that is notified: a drain whose members are replaced at
/// once. Said again, it changes nothing.
#[utoipa::path(post, path = "/v1/nodes/{node}/reclaim", tag = "agents",
    params(("node" = String, Path, description = "The node.")),
    request_body = ReclaimNotice,
    responses((status = 200, description = "The drain.", body = Drain)))]
pub(super) async fn reclaim(
    RequestContext { control, caller }: RequestContext,
    Path(node): Path<NodeId>,
    OptionalJson(notice): OptionalJson<ReclaimNotice>,
) -> ApiResult<axum::Json<Drain>> {
    control.node_for(&caller, &node)?;
    read(&control, &node).await?;
    take_notice(&control, &caller, &node, &notice).await?;
    current_drain(&control, &node).await.map(axum::Json)
}

/// Starts to drain a node that will be reclaimed, unless that was reported before.
pub(super) async fn take_notice(
    control: &Arc<ControlPlane>,
    caller: &Caller,
    node: &NodeId,
    notice: &ReclaimNotice,
) -> ApiResult<()> {
    let is_known = drain::status(control, node).is_some_and(|drain| drain.reclaimed);
    if is_known {
        return Ok(());
    }
    let deadline = notice.in_s.and_then(|seconds| deadline_after(control, seconds.min(LONGEST_S)));
    let request =
        DrainRequest { reason: Some("spot_reclaim".to_owned()), deadline, reclaimed: true };
    Ok(drain::start(control, caller, node, &request, None).await?)
}

/// List drains
#[utoipa::path(get, path = "/v1/drains", tag = "nodes", params(PageQuery),
    responses((status = 200, description = "Drains, in order of node.", body = Page<Drain>)))]
pub(super) async fn list(
    State(control): State<Arc<ControlPlane>>,
    Query(query): Query<PageQuery>,
) -> ApiResult<axum::Json<Page<Drain>>> {
    control.wait_for_read_your_writes().await;
    page_by_name(drain::all(&control), |drain| drain.node.as_str(), &query).map(axum::Json)
}
