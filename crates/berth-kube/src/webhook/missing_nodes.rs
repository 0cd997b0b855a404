//! Capacity types that no node has: their pods stay pending, which only their workload's owner can see otherwise.
//!
//! Reports, and changes nothing.

use berth_engine::CapacityType;
use hashbrown::HashMap;

use super::events::WorkloadEvents;
use super::metrics::Metrics;
use super::owners::ReadMode;
use super::pod_cache::LivePod;
use super::slot_reconciler::SlotReconciler;

/// Updates the metrics, and, if this replica is the leader, records events on workloads with pods that wait
/// for a node of a type that no node has.
pub(super) async fn report_missing_nodes(
    reconciler: &SlotReconciler,
    events: &WorkloadEvents,
    metrics: &Metrics,
    is_leader: bool,
) {
    let nodes = reconciler.count_nodes();
    metrics.set_nodes(nodes.on_demand, nodes.spot);
    let (mut on_demand, mut spot) = (0, 0);
    let mut first_of: HashMap<_, _> = HashMap::new();
    for claim in reconciler.slots.all_claims() {
        let waits = |pod: &LivePod| pod.node.is_none();
        let Some(pod) = reconciler.pods.by_id(claim.id).filter(|pod| waits(pod)) else { continue };
        match claim.class {
            CapacityType::OnDemand if nodes.on_demand == 0 => on_demand += 1,
            CapacityType::Spot if nodes.spot == 0 => spot += 1,
            CapacityType::OnDemand | CapacityType::Spot => continue,
        }
        first_of.entry((claim.key.clone(), claim.class.name())).or_insert((pod, claim.class));
    }
    metrics.set_pods_without_nodes(on_demand, spot);
    if !is_leader {
        return;
    }
    for (pod, class) in first_of.into_values() {
        let owners = &reconciler.owners;
        let owner = owners.resolve(&pod.namespace, &pod.metadata, ReadMode::Watched).await;
        let Ok(Some(owner)) = owner else { continue };
        let label = reconciler.label();
        let note = format!(
            "no node has {}={}; pods of {} slots stay pending until there is one",
            label.key,
            label.value(class),
            class.name()
        );
        events.record_warning(&owner.object, "NoNodesOfCapacityType", "Splitting", note);
    }
}
