//! What is known and decided about nodes, pods, machines and migrations, as one document.
//!
//! Only copies: whoever reads it changes nothing.

use std::collections::BTreeMap;
use std::sync::Arc;

use berth_engine::elastic::{Account, ElasticSettings, Permit, Size, WatermarkRule};
use serde::Serialize;

use super::migrations::Migration;
use super::source::Vm;
use crate::cluster::Cluster;
use crate::cluster::devices::DeviceState;
use crate::cluster::disruption_budgets::BudgetState;
use crate::cluster::node::CpuAndMemory;
use crate::cluster::node_store::NodeEntry;
use crate::cluster::pod::Key;
use crate::cluster::pod_groups::PodGroup;
use crate::cluster::pod_store::{PodEntry, PodState};
use crate::cluster::resources::Resources;
use crate::cluster::volumes::VolumeState;

/// The state of a cluster.
#[derive(Clone, Debug, Serialize)]
pub struct ClusterState {
    /// The name of the policy.
    pub policy: String,
    /// Its elastic part.
    pub elastic: ElasticSettings,
    /// Nodes by name.
    pub nodes: BTreeMap<Arc<str>, NodeState>,
    /// Pods by namespace and name.
    pub pods: BTreeMap<String, PodDump>,
    /// Virtual machines by namespace and name.
    pub virtual_machines: BTreeMap<String, Vm>,
    /// Migrations by namespace and name.
    pub migrations: BTreeMap<String, Migration>,
    /// Whether the cluster serves migrations.
    pub migrations_served: bool,
    /// Disruption budgets by namespace and name.
    pub disruption_budgets: BTreeMap<String, BudgetState>,
    /// Groups of pods that Kubernetes defines.
    pub pod_groups: BTreeMap<String, PodGroup>,
    /// Claims and volumes.
    pub volumes: VolumeState,
    /// Devices.
    pub devices: DeviceState,
    /// Nodes whose pods are more than they have room for, and of what.
    pub overfull_nodes: BTreeMap<Arc<str>, String>,
}

/// A node.
#[derive(Clone, Debug, Serialize)]
pub struct NodeState {
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// Its taints.
    pub taints: Vec<String>,
    /// Whether it is cordoned.
    pub unschedulable: bool,
    /// Whether its object was deleted while pods are still accounted on it.
    pub deleted: bool,
    /// What it has.
    pub capacity: CpuAndMemory,
    /// What of that it reports to be for pods.
    pub reported: CpuAndMemory,
    /// What is for pods by the policy.
    pub allocatable: Resources,
    /// The sum of what its pods are charged.
    pub used: Resources,
    /// The most pods that it takes.
    pub max_pods: i64,
    /// The number of its pods.
    pub pods: usize,
    /// The account of its CPU and memory.
    pub account: Account,
    /// Whether pods should leave it.
    pub must_shed: bool,
    /// What grants are multiples of.
    pub compute_unit: Size,
    /// Where pressure begins.
    pub watermark: WatermarkRule,
}

/// A pod.
#[derive(Clone, Debug, Serialize)]
pub struct PodDump {
    /// Its uid.
    pub uid: Arc<str>,
    /// Its scheduler.
    pub scheduler: Arc<str>,
    /// What it waits for, or has.
    pub state: PodState,
    /// The node that it is accounted on.
    pub node: Option<Arc<str>>,
    /// The node that is nominated for it.
    pub nominated: Option<Arc<str>>,
    /// Its priority.
    pub priority: i32,
    /// Whether it is terminating.
    pub deleting: bool,
    /// What it is charged.
    pub charge: Resources,
    /// The virtual machine that it runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vm: Option<String>,
    /// Its bounds if it is resized in place: minimum and maximum.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bounds: Option<(Size, Size)>,
    /// Why its bounds are invalid.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub invalid_bounds: Option<String>,
    /// How large it may be.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub permit: Option<Permit>,
    /// Whether that is being written.
    pub permit_write: bool,
    /// Whether its machine is being moved.
    pub moving: bool,
}

impl Cluster {
    /// Everything that is known, as of now in seconds.
    #[must_use]
    pub fn state(&self, now: i64) -> ClusterState {
        let nodes = (0..).map_while(|index| self.nodes.slot(index)).flatten();
        let migrations = &self.elastic.migrations;
        ClusterState {
            policy: self.settings.policy.name().to_owned(),
            elastic: self.settings.policy.elastic().clone(),
            nodes: nodes.map(|it| (Arc::clone(&it.node.name), self.node_state(it, now))).collect(),
            pods: self.pods.iter().map(|it| (it.pod.key.to_string(), self.pod_dump(it))).collect(),
            virtual_machines: self
                .elastic
                .vms
                .iter()
                .map(|(key, it)| (key.to_string(), it.clone()))
                .collect(),
            migrations: migrations.iter().map(|(key, it)| (key.to_string(), it.clone())).collect(),
            migrations_served: migrations.is_served(),
            disruption_budgets: self.budgets.state(),
            pod_groups: self.groups.state(),
            volumes: self.volumes.state(),
            devices: self.devices.state(),
            overfull_nodes: self
                .nodes
                .present()
                .filter_map(|(_, it)| self.overfull_node(&it.node.name))
                .map(|it| (it.node, it.text))
                .collect(),
        }
    }

    fn node_state(&self, entry: &NodeEntry, now: i64) -> NodeState {
        let account = self.account_of(entry, now);
        let node = &entry.node;
        NodeState {
            labels: (*node.labels).clone(),
            taints: entry.taints.iter().map(ToString::to_string).collect(),
            unschedulable: node.unschedulable,
            deleted: entry.deleted,
            capacity: node.capacity,
            reported: node.reported,
            allocatable: node.allocatable.clone(),
            used: entry.used.clone(),
            max_pods: node.max_pods,
            pods: entry.pods.len(),
            account,
            must_shed: account.must_shed(),
            compute_unit: entry.elastic.compute_unit,
            watermark: entry.elastic.watermark,
        }
    }

    fn pod_dump(&self, entry: &PodEntry) -> PodDump {
        let pod = &entry.pod;
        let elastic = pod.elastic.as_ref();
        PodDump {
            uid: Arc::clone(&pod.uid),
            scheduler: Arc::clone(&pod.scheduler),
            state: entry.state(&self.settings.scheduler),
            node: entry
                .assigned
                .and_then(|index| self.nodes.get(index))
                .map(|it| Arc::clone(&it.node.name)),
            nominated: entry.nominated.clone(),
            priority: pod.priority,
            deleting: pod.deleting,
            charge: entry.requested.clone(),
            vm: pod.vm.clone(),
            bounds: elastic.and_then(|it| it.as_ref().ok()).map(|it| (it.min, it.max)),
            invalid_bounds: elastic.and_then(|it| it.as_ref().err()).cloned(),
            permit: entry.permit,
            permit_write: entry.permit_write,
            moving: self.active_migration(pod).is_some(),
        }
    }

    /// The machine that a migration is about.
    #[must_use]
    pub fn vm_of_migration(&self, migration: &Key) -> Option<Key> {
        let (_, found) = self.elastic.migrations.iter().find(|(key, _)| *key == migration)?;
        Some(Key { namespace: Arc::clone(&migration.namespace), name: Arc::clone(&found.vm) })
    }
}

impl ClusterState {
    /// What contradicts itself in the document: a node's account against its pods, pods against nodes, and devices
    /// that several claims have. Each is a bug, unless another scheduler allocates devices as well.
    #[must_use]
    pub fn violations(&self) -> Vec<String> {
        let mut sums: BTreeMap<&str, (Resources, usize)> = BTreeMap::new();
        let mut found = Vec::new();
        for (name, pod) in &self.pods {
            let Some(node) = &pod.node else {
                if matches!(pod.state, PodState::Reserved) {
                    found.push(format!("pod {name} is reserved on no node"));
                }
                continue;
            };
            if !self.nodes.contains_key(node) {
                found.push(format!("pod {name} is accounted on node {node}, which is unknown"));
            }
            let (sum, count) = sums.entry(node).or_default();
            sum.add(&pod.charge, 1);
            *count += 1;
        }
        for (name, node) in &self.nodes {
            let (sum, count) = sums.remove(&**name).unwrap_or_default();
            if count != node.pods {
                found.push(format!("node {name} counts {} pods, and has {count}", node.pods));
            }
            let mut rest = node.used.clone();
            rest.add(&sum, -1);
            let is_zero = rest.others.iter().all(|(_, amount)| *amount == 0);
            if (rest.cpu_milli, rest.memory, rest.storage) != (0, 0, 0) || !is_zero {
                found.push(format!("node {name} counts {:?}, and its pods are {sum:?}", node.used));
            }
        }
        for (device, count) in self.devices.in_use.iter().filter(|(_, count)| **count > 1) {
            found.push(format!("device {device} is given to {count} claims"));
        }
        found
    }
}
