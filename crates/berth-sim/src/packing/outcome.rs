//! The results of a replay, in numbers that can be compared.

use serde::Serialize;

/// A hash of where instances went, in the order in which they arrived; equal for equal choices. Nodes are
/// given by their position in their file.
#[must_use]
pub fn placement_digest(placements: &[Option<u32>]) -> String {
    let mut hasher = blake3::Hasher::new();
    for placement in placements {
        let mark = placement.map_or(0, |node| u64::from(node) + 1);
        hasher.update(&mark.to_le_bytes());
    }
    hasher.finalize().to_hex().as_str()[..16].to_owned()
}

/// The fleet at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Sample {
    /// Seconds.
    pub time: u64,
    /// Nodes with an instance.
    pub nodes_in_use: u64,
    /// CPU in use, in thousandths of all.
    pub cpu_permille: u64,
    /// Memory in use, in thousandths of all.
    pub memory_permille: u64,
    /// Instances rejected until then.
    pub rejected: u64,
}

/// What a policy made of a trace.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize)]
pub struct Outcome {
    /// The policy or rule.
    pub policy: String,
    /// Nodes of the fleet.
    pub nodes: u64,
    /// Instances that arrived.
    pub arrived: u64,
    /// Instances placed when they arrived.
    pub placed: u64,
    /// Instances that had no place when they arrived.
    pub rejected: u64,
    /// CPU that these asked for.
    pub rejected_cpu_milli: u64,
    /// Memory that these asked for.
    pub rejected_memory_mib: u64,
    /// Placed before the first was rejected; absent if none was.
    pub placed_before_first_rejection: Option<u64>,
    /// Resizes that did not fit on the node, and were refused.
    pub resizes_refused: u64,
    /// Instances of lost nodes that were placed on others.
    pub displaced: u64,
    /// Instances of lost nodes that had no other place.
    pub displaced_without_place: u64,
    /// Instances that had to leave for a spot reclaim, and were placed on other nodes.
    pub reclaimed: u64,
    /// Instances that had to leave for a spot reclaim, and had no other place.
    pub reclaimed_without_place: u64,
    /// Instances that restarted with their node.
    pub restarted: u64,
    /// Nodes in use on average over time, in thousandths.
    pub mean_nodes_milli: u64,
    /// Nodes in use at most.
    pub peak_nodes: u64,
    /// Nodes that never held an instance.
    pub never_used_nodes: u64,
    /// CPU that was free where the usual instances do not fit, in millionths of all CPU, on average.
    pub stranded_cpu_ppm: u64,
    /// Nodes that held more than they have, each time. Must be 0.
    pub violations: u64,
    /// Nodes needed by volume alone at the busiest moment.
    pub bound_peak_nodes: u64,
    /// Nodes needed by volume alone on average, in thousandths.
    pub bound_mean_nodes_milli: u64,
    /// A hash of all placements and rejections in their order: equal for equal choices.
    pub digest: String,
    /// The fleet over time.
    pub samples: Vec<Sample>,
    /// Where each instance went when it arrived, by the position of the node in its file; absent: nowhere.
    #[serde(skip)]
    pub placements: Vec<Option<u32>>,
}
