//! Converts nodes and pods to the engine's types, in MiB, for its preselection and its scores.
//!
//! The engine rounds requests up and capacity down. So that it never rejects what fits to the byte, nodes
//! get a margin of one MiB for each pod they may have; what the preselection accepts too much, the exact
//! filter on resources rejects.

use berth_engine::{Amounts, InstanceRequest, NodeFacts, NodeId, Ratios, Timestamp};

use super::node::Node;
use super::pod_store::PodEntry;
use super::resources::Resources;

const MIB: i64 = 1 << 20;

/// The engine never considers a node unresponsive here: Kubernetes has a taint for that.
const ALWAYS: Timestamp = Timestamp(i64::MAX / 4);

/// An amount within the engine's range.
fn amount(value: i64) -> u32 {
    u32::try_from(value.clamp(0, i64::from(Amounts::MAX))).unwrap_or(Amounts::MAX)
}

/// The engine's id of a node.
pub(super) fn node_id(name: &str) -> NodeId {
    NodeId::new(name)
}

/// A node for the engine.
pub(super) fn node_facts(node: &Node) -> NodeFacts {
    let has = &node.allocatable;
    let margin = node.max_pods.clamp(0, 1 << 20) + 1;
    let mib = |bytes: i64| amount((bytes / MIB).saturating_add(margin));
    // A node without CPU takes pods that request none; for the engine its size would be unknown.
    let cpu = amount(has.cpu_milli).max(1);
    let capacity = Amounts::new(cpu, mib(has.memory)).with_disk(mib(has.storage));
    let mut facts = NodeFacts::new(&node.name, capacity);
    facts.heartbeat_at = ALWAYS;
    facts.vmm_overhead_mib = 0;
    facts.ratios = Ratios { cpu_permille: 1000, memory_permille: 1000, disk_permille: 1000 };
    facts.instance_limit = amount(node.max_pods);
    facts.zone = node.zone().map(str::to_owned);
    facts.cached_images.clone_from(&node.images);
    facts
}

/// A pod's resources for the engine.
pub(super) fn amounts(requested: &Resources) -> Amounts {
    let mib = |bytes: i64| amount(bytes.saturating_add(MIB - 1) / MIB);
    // Every instance of the engine uses memory; the margin covers it.
    Amounts::new(amount(requested.cpu_milli), mib(requested.memory).max(1))
        .with_disk(mib(requested.storage))
}

/// A pod for the engine.
pub(super) fn instance_request(entry: &PodEntry) -> InstanceRequest {
    let (pod, amounts) = (&entry.pod, amounts(&entry.requested));
    let mut request = InstanceRequest::new(pod.id, &pod.key.namespace, amounts);
    // The constructor would add a default disk.
    request.resources = amounts;
    request.workload = pod.owner.as_ref().map(|it| it.name.clone());
    request.image = pod.image.as_deref().map(str::to_owned);
    request.priority = pod.priority;
    request
}
