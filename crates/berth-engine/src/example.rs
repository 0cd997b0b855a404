//! The fleet and the request of an example: what one filter or scorer of the reference is shown on.
//!
//! Every filter and scorer describes an example of itself; `reference` runs them.

use crate::model::{
    Amounts, Group, InstanceId, InstanceRequest, NodeFacts, NodeId, Timestamp, Volume,
};

/// Sets an example up.
pub(crate) type Example = fn(&mut ExampleSetup);

/// The setup of an example: nodes `a` and `b`, equal and empty, and a small request, unless the
/// example changes them.
pub(crate) struct ExampleSetup {
    /// Settings of the policy, as TOML.
    pub(crate) settings: &'static str,
    /// The request.
    pub(crate) request: InstanceRequest,
    /// Addresses that are left, if they are counted.
    pub(crate) free_addresses: Option<u64>,
    pub(crate) nodes: Vec<NodeFacts>,
    pub(crate) placed: Vec<(InstanceRequest, NodeId)>,
    pub(crate) groups: Vec<Group>,
    pub(crate) volumes: Vec<Volume>,
}

impl ExampleSetup {
    /// The time of all examples: 2026-01-01.
    pub(crate) const NOW: Timestamp = Timestamp(1_767_225_600);

    pub(crate) fn new(example: Example) -> Self {
        let mut setup = Self {
            settings: "",
            request: plain_request(1),
            free_addresses: None,
            nodes: Vec::new(),
            placed: Vec::new(),
            groups: Vec::new(),
            volumes: Vec::new(),
        };
        setup.node("a", |_| {});
        setup.node("b", |_| {});
        example(&mut setup);
        setup
    }

    /// Adds a node, or changes one that is there.
    pub(crate) fn node(&mut self, id: &str, change: impl FnOnce(&mut NodeFacts)) {
        let mut facts = plain_node(id);
        change(&mut facts);
        match self.nodes.iter_mut().find(|node| node.id == facts.id) {
            Some(node) => *node = facts,
            None => self.nodes.push(facts),
        }
    }

    /// Places another instance, numbered from 2 on, which needs next to nothing unless it says so.
    pub(crate) fn place(&mut self, on: &str, change: impl FnOnce(&mut InstanceRequest)) {
        let mut request = small_request(2 + self.placed.len() as u128);
        change(&mut request);
        self.placed.push((request, NodeId::new(on)));
    }

    /// Makes a group.
    pub(crate) fn group(&mut self, group: Group) {
        self.groups.push(group);
    }

    /// Makes a volume.
    pub(crate) fn volume(&mut self, id: &str, home: &str, attached_to: Option<InstanceId>) {
        self.volumes.push(Volume {
            id: id.to_owned(),
            tenant: None,
            home: NodeId::new(home),
            attached_to,
        });
    }
}

/// What a node of an example is, unless the example says otherwise.
pub(crate) fn plain_node(id: &str) -> NodeFacts {
    let capacity = Amounts::new(8000, 16_384).with_disk(65_536).with_bandwidth(1000);
    let mut facts = NodeFacts::new(id, capacity);
    facts.heartbeat_at = ExampleSetup::NOW;
    facts
}

/// What an example asks for, unless it says otherwise.
pub(crate) fn plain_request(number: u128) -> InstanceRequest {
    let resources = Amounts::new(1000, 2048).with_disk(4096);
    InstanceRequest::new(InstanceId::from_u128(number), "acme", resources)
}

/// An instance that hardly weighs on its node.
pub(crate) fn small_request(number: u128) -> InstanceRequest {
    let resources = Amounts { cpu_milli: 0, memory_mib: 1, disk_mib: 1, bandwidth_mbps: 0 };
    InstanceRequest::new(InstanceId::from_u128(number), "acme", resources)
}
