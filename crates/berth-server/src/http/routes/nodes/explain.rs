//! What is on a node and why, and what keeps it from taking more.

use std::sync::Arc;

use berth_api::units;
use berth_api::{NodeExplanation, NodeInstance};
use berth_engine::{Amounts, CheckError, InstanceId, InstanceRequest, NodeId};
use berth_ledger::{ClaimKey, Ledger, LedgerError};

use crate::http::extract::{Path, RequestContext};
use crate::http::routes::claims;
use crate::problem::{ApiError, ApiResult};
use berth_control::catalog::ClaimEntry;
use berth_control::placement::decision_id;
use berth_control::{ControlPlane, clock::moment};

/// Guests that are explained in full.
const MOST: usize = 500;

/// Explain a node
///
/// What is here and why, what is left, and what would keep even a small instance off.
#[utoipa::path(get, path = "/v1/nodes/{node}/explain", tag = "nodes",
    params(("node" = String, Path, description = "The node.")),
    responses((status = 200, description = "The instances on the node, with the decisions that placed them.", body = NodeExplanation)))]
pub(super) async fn explain(
    RequestContext { control, caller }: RequestContext,
    Path(node): Path<NodeId>,
) -> ApiResult<axum::Json<NodeExplanation>> {
    control.node_for(&caller, &node)?;
    control.wait_for_read_your_writes().await;
    let (view, guests) = {
        let catalog = control.catalog.read();
        let Some(entry) = catalog.nodes.get(&node) else {
            return Err(ApiError::not_found("node", node.as_str()));
        };
        let claims = entry.claims.iter().filter_map(|key| catalog.claims.get(key)).cloned();
        (
            super::view(&control, &catalog, entry),
            claims.take(MOST).collect::<Vec<Arc<ClaimEntry>>>(),
        )
    };
    let keys: Vec<ClaimKey> = guests.iter().map(|claim| claim.key).collect();
    let reasons = control.read(move |ledger| reasons(ledger, &keys)).await?;
    let guests = guests.iter().zip(reasons).map(|(claim, (decision, why))| NodeInstance {
        claim: claims::view(claim, true),
        decision,
        why: why.unwrap_or_else(|| format!("found or placed at {}", moment(claim.created_at))),
    });
    let mut obstacles = obstacles(&control, &node).await;
    obstacles.extend(view.state_message.clone());
    let room = room(&view);
    Ok(axum::Json(NodeExplanation { room, obstacles, guests: guests.collect(), node: view }))
}

/// Why each claim is where it is, from the record of its decision.
fn reasons(ledger: &Ledger, keys: &[ClaimKey]) -> Result<Vec<Reason>, LedgerError> {
    keys.iter().map(|key| reason(ledger, *key)).collect()
}

/// The id of a decision and what it says; nothing of a claim that no kept decision placed.
type Reason = (Option<String>, Option<String>);

fn reason(ledger: &Ledger, key: ClaimKey) -> Result<Reason, LedgerError> {
    let Some(claim) = ledger.claim(key)? else { return Ok((None, None)) };
    let Some(decision) = ledger.decision_of(&claim)? else { return Ok((None, None)) };
    let record = &decision.record;
    let score = match &record.outcome {
        berth_ledger::DecisionOutcome::Granted(placed) => {
            placed.iter().find(|placed| placed.instance == key.instance).map(|placed| placed.score)
        }
        berth_ledger::DecisionOutcome::Refused { .. } => None,
    };
    let score = score.unwrap_or(0);
    let why = format!(
        "{} asked at {} (request {}); this node scored {}.{:06} under policy {}",
        record.tenant,
        moment(decision.at),
        record.request_id,
        score / 1_000_000,
        (score % 1_000_000).abs(),
        record.basis.policy
    );
    Ok((Some(decision_id(&decision.id)), Some(why)))
}

/// What keeps the smallest instance off, by the function that decides.
async fn obstacles(control: &ControlPlane, node: &NodeId) -> Vec<String> {
    let probe =
        InstanceRequest::new(InstanceId::default(), "probe", Amounts::new(1, 1).with_disk(1));
    match control.check_node(probe, node.clone()).await {
        Some(Err(CheckError::Removed { filter, code, evidence })) => {
            vec![format!("{filter} keeps even the smallest instance off ({code}): {evidence}")]
        }
        Some(Err(other)) => vec![other.to_string()],
        Some(Ok(())) | None => Vec::new(),
    }
}

fn room(node: &berth_api::Node) -> Vec<String> {
    let left = |limit: u32, used: u32| i64::from(limit) - i64::from(used);
    let (limits, used) = (&node.limits, &node.used);
    vec![
        format!(
            "CPU: {} of {} left",
            units::cpu(left(limits.cpu_milli, used.cpu_milli)),
            units::cpu(limits.cpu_milli.into())
        ),
        format!(
            "memory: {} of {} left",
            units::size(left(limits.memory_mib, used.memory_mib)),
            units::size(limits.memory_mib.into())
        ),
        format!(
            "disk: {} of {} left",
            units::size(left(limits.disk_mib, used.disk_mib)),
            units::size(limits.disk_mib.into())
        ),
        format!(
            "instances: {} of {} left",
            left(node.facts.instance_limit, node.instances),
            node.facts.instance_limit
        ),
    ]
}
