//! Writes what the policy reserves for hosts to their nodes, since guards read it there.
//!
//! Every server does so: writing what is stored already changes nothing. Nothing is taken from
//! instances; on a node that is over its limit then, no instance grows until it is below again.

use std::sync::Arc;
use std::time::Duration;

use berth_engine::elastic::{ElasticSettings, Size};
use berth_engine::{Amounts, NodeFacts, NodeId};
use berth_ledger::Op;
use tokio::sync::watch;

use crate::control_plane::ControlPlane;
use crate::error::ControlResult;
use crate::loop_runner::BackgroundLoop;

/// Writes reserves to nodes.
pub(crate) struct ReserveReconciler(pub(crate) Arc<ControlPlane>);

impl BackgroundLoop for ReserveReconciler {
    const NAME: &'static str = "reserves";
    const PERIOD: Duration = Duration::from_secs(2);
    const PAUSE: Duration = Duration::from_millis(50);
    const STARTS_AT_ONCE: bool = true;

    fn wake_sources(&self) -> Vec<watch::Receiver<u64>> {
        vec![self.0.catalog.room()]
    }

    async fn pass(&mut self) -> ControlResult<()> {
        for (node, reserve) in outdated_reserves(&self.0) {
            self.0.submit(Op::SetReserve { node, reserve }).await?;
        }
        Ok(())
    }
}

/// Nodes whose stored reserve is not what the policy says, and what it says.
fn outdated_reserves(control: &ControlPlane) -> Vec<(NodeId, Option<Amounts>)> {
    let Some(policy) = control.catalog.policy() else { return Vec::new() };
    let settings = policy.elastic();
    let catalog = control.catalog.read();
    let wanted =
        catalog.nodes.values().map(|node| (&node.facts, policy_reserve(settings, &node.facts)));
    let outdated = wanted.filter(|(facts, reserve)| facts.policy_reserve != *reserve);
    outdated.map(|(facts, reserve)| (facts.id.clone(), reserve)).collect()
}

/// What the policy reserves for a host; absent: what the host says.
fn policy_reserve(settings: &ElasticSettings, facts: &NodeFacts) -> Option<Amounts> {
    let reserve = settings.on(facts).system;
    reserve.map(|size: Size| size.within(facts.system_reserve))
}

/// A node's facts as they will be once the policy's reserve is written to it.
pub(crate) fn reserved_by(settings: &ElasticSettings, facts: &Arc<NodeFacts>) -> Arc<NodeFacts> {
    let policy_reserve = policy_reserve(settings, facts);
    if policy_reserve == facts.policy_reserve {
        return Arc::clone(facts);
    }
    Arc::new(NodeFacts { policy_reserve, ..NodeFacts::clone(facts) })
}
