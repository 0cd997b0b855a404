//! Facts of a node as stated by its agent, and as set by operators.
//!
//! Both are kept: what an operator set wins until it is unset. They are merged in the ledger, when
//! they are written.

use std::sync::Arc;

use axum::response::Response;
use berth_api::limits::Limited as _;
use berth_api::{Node, Role, UnsetFacts};
use berth_engine::{
    FactChange, FactLayer, FactValues, Layers, NodeFacts, NodeId, Timestamp, values_of_patch,
};
use berth_ledger::{Op, invariant_ok};
use http::StatusCode;
use serde::Deserialize;
use utoipa::IntoParams;

use super::{read, tagged};
use crate::http::extract::{IfMatch, Json, Path, Query, RequestContext};
use crate::problem::{ApiError, ApiResult};
use berth_control::ControlPlane;
use berth_control::caller::{Caller, is_name};

/// Which layer a call states facts for.
#[derive(Clone, Copy, Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct FactLayerQuery {
    /// `reported`: the facts are what the node reports; what an operator set wins over them. `set`:
    /// they are an operator's word. Agents report; operators set unless they say otherwise.
    #[serde(rename = "as")]
    #[param(rename = "as", inline)]
    pub(super) layer: Option<FactLayer>,
}

impl FactLayerQuery {
    /// The layer that this caller states facts for.
    fn layer(self, caller: &Caller) -> ApiResult<FactLayer> {
        match (caller.role, self.layer) {
            (Role::Agent, Some(FactLayer::Set)) => {
                let accepted = "reported: an agent cannot set facts for the operator";
                Err(ApiError::field("as", Some("set".to_owned()), accepted))
            }
            (Role::Agent, _) => Ok(FactLayer::Reported),
            (_, layer) => Ok(layer.unwrap_or(FactLayer::Set)),
        }
    }
}

/// Register a node, or update its facts
///
/// An agent's facts are what the node reports. An operator's facts are in effect as given: those
/// that differ from what is reported are set. The state counts only when the node is new: later it is
/// changed by cordon, uncordon and drain.
#[utoipa::path(put, path = "/v1/nodes/{node}", tag = "nodes",
    params(
        ("node" = String, Path, description = "The node."),
        FactLayerQuery,
        ("If-Match" = Option<String>, Header, description = "The generation that was read."),
    ),
    request_body = NodeFacts,
    responses(
        (status = 200, description = "Updated.", body = Node),
        (status = 201, description = "Registered.", body = Node),
    ))]
pub(super) async fn put(
    RequestContext { control, caller }: RequestContext,
    Path(node): Path<NodeId>,
    Query(query): Query<FactLayerQuery>,
    if_match: IfMatch,
    Json(facts): Json<NodeFacts>,
) -> ApiResult<Response> {
    control.node_for(&caller, &node)?;
    let layer = query.layer(&caller)?;
    if facts.id != node {
        let value = Some(format!("{:?}", facts.id.as_str()));
        return Err(ApiError::field("id", value, "the node that the path names"));
    }
    let is_new = store(&control, &caller, facts, layer, if_match.number()?).await?;
    let status = if is_new { StatusCode::CREATED } else { StatusCode::OK };
    Ok(tagged(status, &read(&control, &node).await?))
}

/// Stores all facts of a layer. Returns whether the node is new.
pub(super) async fn store(
    control: &ControlPlane,
    caller: &Caller,
    mut facts: NodeFacts,
    layer: FactLayer,
    expect: Option<i64>,
) -> ApiResult<bool> {
    check(&facts)?;
    let now = Timestamp(control.now().as_second());
    let heard_at = control
        .catalog
        .read()
        .nodes
        .get(&facts.id)
        .map(berth_control::catalog::NodeEntry::heard_at);
    match heard_at {
        Some(heard_at) => {
            facts.heartbeat_at = Timestamp(facts.heartbeat_at.0.min(now.0).max(heard_at));
        }
        None if facts.heartbeat_at.0 <= 0 => facts.heartbeat_at = now,
        None => facts.heartbeat_at = Timestamp(facts.heartbeat_at.0.min(now.0)),
    }
    if caller.role == Role::Agent {
        facts.heartbeat_at = now;
    }
    let (subject, node) = (facts.id.as_str().to_owned(), facts.id.clone());
    let heard = facts.heartbeat_at.0;
    let op = Op::PutNode { facts: Box::new(facts), layer, expect };
    control.administer(caller, "node.put", subject, op).await?;
    control.record_heartbeat(&node, heard);
    Ok(heard_at.is_none())
}

/// Refuses facts that could not be stored.
pub(super) fn check(facts: &NodeFacts) -> ApiResult<()> {
    if !is_name(facts.id.as_str()) {
        let value = Some(format!("{:?}", facts.id.as_str()));
        return Err(ApiError::field("id", value, "1 to 200 characters, none of them control"));
    }
    facts.check_limits()?;
    facts.validate().map_err(|invalid| ApiError::invalid(invalid.to_string()))
}

/// Change part of a node's facts
///
/// A JSON merge patch (RFC 7396): what is named is set, and survives what the agent reports. Null
/// takes away: what was set is dropped, and what is reported is hidden. To have reported values in
/// effect again, unset them.
#[utoipa::path(patch, path = "/v1/nodes/{node}", tag = "nodes",
    params(
        ("node" = String, Path, description = "The node."),
        FactLayerQuery,
        ("If-Match" = Option<String>, Header, description = "The generation that was read."),
    ),
    request_body(content = Object, description = "The facts to change.", content_type = "application/json"),
    responses((status = 200, description = "The changed node.", body = Node)))]
pub(super) async fn patch(
    RequestContext { control, caller }: RequestContext,
    Path(node): Path<NodeId>,
    Query(query): Query<FactLayerQuery>,
    if_match: IfMatch,
    Json(changes): Json<serde_json::Value>,
) -> ApiResult<Response> {
    let layer = query.layer(&caller)?;
    let serde_json::Value::Object(changes) = changes else {
        return Err(ApiError::invalid("the body is not an object; send the facts to change"));
    };
    for fixed in ["id", "state", "heartbeat_at"] {
        if changes.contains_key(fixed) {
            let accepted = "absent: change it by cordon, uncordon, drain or heartbeat";
            return Err(ApiError::field(fixed, Some("set".to_owned()), accepted));
        }
    }
    let facts = known(&control, &node).await?;
    check_patch(&facts, &changes)?;
    let change = match layer {
        FactLayer::Set => values_of_patch(&facts, changes)
            .map(|values| FactChange::Set { values, unset: Vec::new() }),
        // A part of a report changes what is reported, not what an operator set over it.
        FactLayer::Reported => Layers::split(&facts)
            .and_then(|layers| values_of_patch(&layers.reported, changes))
            .map(FactChange::Report),
    };
    let change = change.map_err(|invalid| ApiError::invalid(invalid.to_string()))?;
    let (change, expect) = (Box::new(change), if_match.number()?);
    let op = Op::ChangeFacts { node: node.clone(), change, create: None, expect };
    control.administer(&caller, "node.set", node.as_str(), op).await?;
    Ok(tagged(StatusCode::OK, &read(&control, &node).await?))
}

/// A node's facts, with their layers.
async fn known(control: &ControlPlane, node: &NodeId) -> ApiResult<Arc<NodeFacts>> {
    control.wait_for_read_your_writes().await;
    let catalog = control.catalog.read();
    let entry = catalog.nodes.get(node);
    let facts = entry.map(|entry| Arc::clone(&entry.facts));
    facts.ok_or_else(|| ApiError::not_found("node", node.as_str()))
}

/// Refuses a patch after which the facts would be none, naming the field.
fn check_patch(
    facts: &NodeFacts,
    changes: &serde_json::Map<String, serde_json::Value>,
) -> ApiResult<()> {
    let mut patched =
        serde_json::to_value(facts).map_err(|error| ApiError::invalid(error.to_string()))?;
    merge(&mut patched, serde_json::Value::Object(changes.clone()));
    let patched = serde_json::to_vec(&patched);
    let patched = invariant_ok!(patched, "patched_facts_are_json").unwrap_or_default();
    check(&crate::http::extract::read_json(&patched)?)
}

/// Applies a merge patch.
fn merge(target: &mut serde_json::Value, patch: serde_json::Value) {
    let serde_json::Value::Object(patch) = patch else {
        *target = patch;
        return;
    };
    if !target.is_object() {
        *target = serde_json::Value::Object(serde_json::Map::new());
    }
    let serde_json::Value::Object(target) = target else { return };
    for (key, value) in patch {
        if value.is_null() {
            target.remove(&key);
        } else {
            merge(target.entry(key).or_insert(serde_json::Value::Null), value);
        }
    }
}

/// Unset facts of a node
///
/// What an operator set is dropped; what is reported, or the policy's default, is in effect again.
/// A field that was not set stays as it is.
#[utoipa::path(post, path = "/v1/nodes/{node}/unset", tag = "nodes",
    params(
        ("node" = String, Path, description = "The node."),
        ("If-Match" = Option<String>, Header, description = "The generation that was read."),
    ),
    request_body = UnsetFacts,
    responses((status = 200, description = "The changed node.", body = Node)))]
pub(super) async fn unset(
    RequestContext { control, caller }: RequestContext,
    Path(node): Path<NodeId>,
    if_match: IfMatch,
    Json(UnsetFacts { fields }): Json<UnsetFacts>,
) -> ApiResult<Response> {
    if fields.is_empty() {
        let value = Some("an empty list".to_owned());
        return Err(ApiError::field("fields", value, "a list of 1 to 100 names of facts"));
    }
    if let Some(unknown) = fields.iter().find(|field| !NodeFacts::has_field(field)) {
        let accepted = "a fact that can be set, such as reserved, zone, labels or labels.hall";
        return Err(ApiError::field("fields", Some(format!("{unknown:?}")), accepted));
    }
    known(&control, &node).await?;
    let change = FactChange::Set { values: FactValues::new(), unset: fields };
    let (change, expect) = (Box::new(change), if_match.number()?);
    let op = Op::ChangeFacts { node: node.clone(), change, create: None, expect };
    control.administer(&caller, "node.unset", node.as_str(), op).await?;
    Ok(tagged(StatusCode::OK, &read(&control, &node).await?))
}
