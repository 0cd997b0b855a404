//! The account of a node: what is there, what the system keeps, what is reserved, uncertain and lacking.
//!
//! Nothing of it is stored. It is built from the node and its pods and handed to the engine, which does all
//! the arithmetic.

use berth_engine::elastic::{
    Account, ElasticSettings, Free, Holding, NodeElastic, Size, Sums, watermark_free,
};
use berth_engine::{Amounts, NodeFacts, OtherUsage, Ratios, Used};

use crate::cluster::Cluster;
use crate::cluster::node::Node;
use crate::cluster::node_store::NodeEntry;
use crate::cluster::pod_store::{PodEntry, PodStore};
use crate::cluster::resources::Resources;

const MIB: i64 = 1 << 20;

/// What the policy says of a node with these labels.
pub(in crate::cluster) fn node_elastic(settings: &ElasticSettings, node: &Node) -> NodeElastic {
    let mut facts = NodeFacts::new(&node.name, Amounts::default());
    if settings.nodes.iter().any(|it| !it.labels.is_empty()) {
        facts.labels = (*node.labels).clone();
    }
    settings.on(&facts)
}

/// The facts of a node that its account follows from: its capacity, of which the system keeps what is not
/// for pods.
fn facts(node: &Node) -> NodeFacts {
    let amount = |it: i64| u32::try_from(it.clamp(0, i64::from(Amounts::MAX))).unwrap_or(0);
    let (capacity, allocatable) = (node.capacity, &node.allocatable);
    let (cpu, memory) = (amount(capacity.cpu_milli), amount(capacity.memory / MIB));
    let mut facts = NodeFacts::new(&node.name, Amounts::new(cpu, memory));
    facts.vmm_overhead_mib = 0;
    facts.ratios = Ratios { cpu_permille: 1000, memory_permille: 1000, disk_permille: 1000 };
    facts.system_reserve = Amounts::new(
        cpu.saturating_sub(amount(allocatable.cpu_milli)),
        memory.saturating_sub(amount(allocatable.memory / MIB)),
    );
    facts
}

/// Use by pods that are not elastic: their sum is rounded up once.
fn other_usage(used: &Resources, elastic: &Used) -> OtherUsage {
    let cpu = used.cpu_milli.saturating_sub(elastic.cpu).max(0);
    let bytes = used.memory.saturating_sub(elastic.memory.saturating_mul(MIB)).max(0);
    OtherUsage {
        cpu_milli: u32::try_from(cpu).unwrap_or(Amounts::MAX).min(Amounts::MAX),
        memory_kib: u64::try_from(bytes).unwrap_or(0).div_ceil(1024),
        ..OtherUsage::default()
    }
}

/// The elastic pods on a node.
pub(super) fn elastic_on<'a>(
    node: &'a NodeEntry,
    pods: &'a PodStore,
) -> impl Iterator<Item = &'a PodEntry> {
    node.pods.iter().filter_map(|uid| pods.get(uid)).filter(|it| it.permit.is_some())
}

/// What may be added to a node before it passes its watermark.
pub(super) fn below_watermark(node: &NodeEntry) -> Free {
    let none = Used::default();
    let facts = NodeFacts { other: other_usage(&node.used, &none), ..facts(&node.node) };
    watermark_free(&facts, &none, node.elastic.watermark)
}

impl Cluster {
    /// The account of a node as of now, in seconds.
    pub(super) fn account_of(&self, node: &NodeEntry, now: i64) -> Account {
        let half_life = self.settings.policy.elastic().pressure_half_life_s;
        let (mut used, mut holdings) = (Used::default(), Vec::new());
        for entry in elastic_on(node, &self.pods) {
            let Some(permit) = entry.permit else { continue };
            let charge = permit.charge();
            used.charge(&charge.within(Amounts::default()), false, 1);
            let leaving = entry.pod.deleting || self.is_leaving(entry);
            holdings.push(Holding { charge, permit: Some(permit), leaving });
        }
        let facts = NodeFacts { other: other_usage(&node.used, &used), ..facts(&node.node) };
        let sums = Sums::of(holdings, now, half_life);
        Account::of(&facts, &used, node.elastic.watermark, &sums)
    }

    /// The account of a node.
    #[must_use]
    pub fn account_by_name(&self, node: &str, now: i64) -> Option<Account> {
        let index = self.nodes.index_of(node)?;
        self.nodes.get(index).map(|it| self.account_of(it, now))
    }

    /// A node as the policy has it: the system keeps at least what the policy says.
    pub(in crate::cluster) fn with_policy_reserve(&self, mut node: Node) -> Node {
        let elastic = node_elastic(self.settings.policy.elastic(), &node);
        node.keep_for_system(elastic.system.unwrap_or(Size::ZERO));
        node
    }
}
