//! Nodes and pods as the engine sees them: facts in MiB, for its sieve and its scores.
//!
//! The engine rounds what is asked for up and what there is down. So that it never refuses what fits
//! to the byte, nodes get a margin of one MiB for each pod they may have: what the sieve lets
//! through too much, the exact rule on load stops.

use berth_engine::{Amounts, InstanceRequest, NodeFacts, NodeId, Ratios, Timestamp};

use super::node::Node;
use super::pods::PodEntry;
use super::resources::Resources;

const MIB: i64 = 1 << 20;

/// No node is ever silent here: that a kubelet is silent, Kubernetes says by a taint.
const ALWAYS: Timestamp = Timestamp(i64::MAX / 4);

/// An amount within what the engine counts.
fn amount(value: i64) -> u32 {
    u32::try_from(value.clamp(0, i64::from(Amounts::MAX))).unwrap_or(Amounts::MAX)
}

/// The id of a node in the engine.
pub(super) fn node_id(name: &str) -> NodeId {
    NodeId::new(name)
}

/// A node as the engine sees it.
pub(super) fn of_node(node: &Node) -> NodeFacts {
    let has = &node.allocatable;
    let margin = node.max_pods.clamp(0, 1 << 20) + 1;
    let mib = |bytes: i64| amount((bytes / MIB).saturating_add(margin));
    // A node without CPU takes pods that ask for none; to the engine it would be of unknown size.
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

/// What a pod's resources are in the engine.
pub(super) fn amounts(asked: &Resources) -> Amounts {
    let mib = |bytes: i64| amount(bytes.saturating_add(MIB - 1) / MIB);
    // The engine knows no instance without memory; the margin pays for it.
    Amounts::new(amount(asked.cpu_milli), mib(asked.memory).max(1)).with_disk(mib(asked.storage))
}

/// A pod as the engine sees it.
pub(super) fn of_pod(entry: &PodEntry) -> InstanceRequest {
    let (pod, amounts) = (&entry.pod, amounts(&entry.asked));
    let mut request = InstanceRequest::new(pod.id, &pod.key.namespace, amounts);
    // What asks for no disk gets none here.
    request.resources = amounts;
    request.workload = pod.owner.as_ref().map(|(_, name, _)| name.clone());
    request.image.clone_from(&pod.image);
    request.priority = pod.priority;
    request
}
