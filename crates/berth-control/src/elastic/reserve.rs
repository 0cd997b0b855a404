//! Writes what the policy reserves for hosts, and its defaults for nodes, to the nodes, since guards
//! read them there.
//!
//! Every server does so: writing what is stored already changes nothing. Nothing is taken from
//! instances; on a node that is over its limit then, no instance grows until it is below again.

use std::sync::Arc;
use std::time::Duration;

use berth_engine::elastic::{ElasticSettings, Size};
use berth_engine::{Amounts, FactChange, FactValues, NodeFacts, NodeId, Policy};
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
        for (node, values) in outdated_defaults(&self.0) {
            let change = Box::new(FactChange::Policy(values));
            self.0.submit(Op::ChangeFacts { node, change, create: None, expect: None }).await?;
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

/// Nodes whose stored defaults are not what the policy says, and what it says.
fn outdated_defaults(control: &ControlPlane) -> Vec<(NodeId, FactValues)> {
    let Some(policy) = control.catalog.policy() else { return Vec::new() };
    let catalog = control.catalog.read();
    let outdated = catalog.nodes.values().filter_map(|node| {
        let wanted = changed_defaults(&policy, &node.facts)?;
        Some((node.facts.id.clone(), wanted))
    });
    outdated.collect()
}

/// The policy's defaults for a node, if they are not those that it has.
fn changed_defaults(policy: &Policy, facts: &NodeFacts) -> Option<FactValues> {
    if policy.defaults().is_default() && facts.overridden.is_empty() {
        return None;
    }
    let wanted = policy.defaults().values_for(facts);
    let stored =
        facts.overridden.iter().filter_map(|(path, below)| Some((path, below.policy.as_ref()?)));
    (!stored.eq(wanted.iter())).then_some(wanted)
}

/// What the policy reserves for a host; absent: what the host says.
fn policy_reserve(settings: &ElasticSettings, facts: &NodeFacts) -> Option<Amounts> {
    let reserve = settings.on(facts).system;
    reserve.map(|size: Size| size.within(facts.system_reserve))
}

/// A node's facts as they will be once the policy's reserve and defaults are written to it.
pub(crate) fn facts_under(policy: &Policy, facts: &Arc<NodeFacts>) -> Arc<NodeFacts> {
    let defaults = changed_defaults(policy, facts);
    let defaulted = defaults.and_then(|values| facts.changed(&FactChange::Policy(values)).ok());
    let facts = defaulted.map_or_else(|| Arc::clone(facts), Arc::new);
    let policy_reserve = policy_reserve(policy.elastic(), &facts);
    if policy_reserve == facts.policy_reserve {
        return facts;
    }
    Arc::new(NodeFacts { policy_reserve, ..NodeFacts::clone(&facts) })
}
