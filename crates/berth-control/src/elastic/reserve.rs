//! Writes what the policy has hosts keep for themselves to the nodes, since guards read it there.
//!
//! Any server may do so, and several at once: what is so already changes nothing. Nothing is taken
//! from instances for it; a node that is over its limit then lets nothing grow until it holds.

use std::sync::Arc;
use std::time::Duration;

use berth_engine::elastic::{ElasticSettings, Size};
use berth_engine::{Amounts, NodeFacts, NodeId};
use berth_ledger::Op;

use crate::control_plane::ControlPlane;

/// How long nothing happens before nodes are looked at all the same.
const LOOK_EVERY: Duration = Duration::from_secs(2);

/// The least time between two passes.
const PAUSE: Duration = Duration::from_millis(50);

/// Writes reserves until the server stops.
pub(crate) async fn keep_reserves(control: Arc<ControlPlane>) {
    let mut room = control.catalog.room();
    loop {
        for (node, reserve) in wrong(&control) {
            let op = Op::SetReserve { node: node.clone(), reserve };
            if let Err(error) = control.submit(op).await {
                tracing::warn!(%error, %node, "what its host keeps could not be written");
            }
        }
        control.metrics.loop_ran("reserves");
        tokio::time::sleep(PAUSE).await;
        tokio::select! {
            () = control.stopping.cancelled() => return,
            _ = room.changed() => {}
            () = tokio::time::sleep(LOOK_EVERY) => {}
        }
    }
}

/// Nodes that do not keep what the policy says, and what it says.
fn wrong(control: &ControlPlane) -> Vec<(NodeId, Option<Amounts>)> {
    let Some(policy) = control.catalog.policy() else { return Vec::new() };
    let settings = policy.elastic();
    let catalog = control.catalog.read();
    let wanted = catalog.nodes.values().map(|node| (&node.facts, by_policy(settings, &node.facts)));
    let wrong = wanted.filter(|(facts, reserve)| facts.policy_reserve != *reserve);
    wrong.map(|(facts, reserve)| (facts.id.clone(), reserve)).collect()
}

/// What the policy has a host keep for itself; absent: what the host says.
fn by_policy(settings: &ElasticSettings, facts: &NodeFacts) -> Option<Amounts> {
    let reserve = settings.on(facts).system;
    reserve.map(|size: Size| size.within(facts.system_reserve))
}

/// A node's facts as they will be once the policy's reserve is written to it.
pub(crate) fn reserved_by(settings: &ElasticSettings, facts: &Arc<NodeFacts>) -> Arc<NodeFacts> {
    let policy_reserve = by_policy(settings, facts);
    if policy_reserve == facts.policy_reserve {
        return Arc::clone(facts);
    }
    Arc::new(NodeFacts { policy_reserve, ..NodeFacts::clone(facts) })
}
