//! A workload's members as the rules see them.

use berth_engine::workload::{DesiredState, HostState, Member, MemberState};
use berth_engine::{CapacityType, NodeId, NodeState};
use berth_ledger::ClaimState;
use jiff::Timestamp;
use rustc_hash::FxHashMap;

use crate::catalog::{CatalogState, ClaimEntry, MemberEntry, NodeEntry};
use crate::control_plane::ControlPlane;
use crate::state::drains::Drains;
use crate::workload::Definition;

/// What is needed to say how a member's node stands.
#[derive(Clone, Copy)]
pub struct HostContext<'a> {
    /// Nodes that are being emptied.
    pub drains: &'a Drains,
    /// The time.
    pub now: Timestamp,
    /// Seconds of silence after which a node's members count as gone.
    pub gone_after_s: i64,
    /// When this server began to listen: agents get their time to speak first.
    pub listening_since: i64,
}

impl<'a> HostContext<'a> {
    /// What this server knows of nodes now.
    #[must_use]
    pub fn of(control: &'a ControlPlane) -> Self {
        Self {
            drains: &control.moves.drains,
            now: control.now(),
            gone_after_s: control.liveness.gone_after_s(&control.lifecycle.settings()),
            listening_since: control.liveness.listening_since(),
        }
    }

    /// How a node stands for those on it.
    #[must_use]
    pub fn host(&self, node: &NodeEntry) -> HostState {
        let silence = self.now.as_second() - node.heard_at().max(self.listening_since);
        if silence > self.gone_after_s {
            return HostState::Lost;
        }
        match node.facts.state {
            NodeState::Draining => self.drains.urgency(&node.facts.id, self.now),
            NodeState::Joining
            | NodeState::Active
            | NodeState::Cordoned
            | NodeState::Degraded
            | NodeState::Lost => HostState::Fine,
        }
    }
}

/// How the nodes stand that members were found on: asked once each, however many are there.
pub struct Hosts<'a> {
    catalog: &'a CatalogState,
    hosts_context: HostContext<'a>,
    known: FxHashMap<&'a NodeId, (HostState, CapacityType)>,
}

impl<'a> Hosts<'a> {
    /// Nothing asked yet.
    #[must_use]
    pub fn new(catalog: &'a CatalogState, hosts_context: HostContext<'a>) -> Self {
        Self { catalog, hosts_context, known: FxHashMap::default() }
    }

    fn of(&mut self, node: &'a NodeId) -> (HostState, CapacityType) {
        let (catalog, hosts_context) = (self.catalog, self.hosts_context);
        *self.known.entry(node).or_insert_with(|| match catalog.nodes.get(node) {
            Some(node) => (hosts_context.host(node), node.facts.capacity_type),
            // A node that was removed has no members.
            None => (HostState::Lost, CapacityType::OnDemand),
        })
    }

    /// The members of a workload, in place of what `members` held.
    pub fn collect(&mut self, definition: &Definition, members: &mut Vec<Member>) {
        members.clear();
        let entries: &'a [MemberEntry] =
            self.catalog.members.get(&definition.key).map_or(&[], Vec::as_slice);
        for entry in entries {
            let (host, class) = self.of(&entry.node);
            members.push(Member {
                id: entry.key.instance,
                revision: entry.slot.revision,
                slot: u32::try_from(entry.slot.slot).unwrap_or(u32::MAX),
                fence: entry.fence,
                class,
                state: match entry.state {
                    ClaimState::Held | ClaimState::Binding => MemberState::Starting,
                    ClaimState::Active => MemberState::Ready,
                    ClaimState::Releasing => MemberState::Leaving,
                },
                host,
            });
        }
    }
}

/// What is wanted, as the rules see it.
#[must_use]
pub fn desired(definition: &Definition) -> DesiredState<'_> {
    DesiredState {
        replicas: definition.wanted(),
        revision: definition.body.revision,
        capacity: definition.body.capacity.as_ref(),
        pinned: definition.body.template.capacity_type,
        rolling: &definition.body.rolling,
        paused: definition.body.paused,
        single_writer: definition.is_single_writer(),
        failing: false,
    }
}

/// Claims of a workload's members.
pub fn claims<'a>(
    catalog: &'a CatalogState,
    definition: &Definition,
) -> impl Iterator<Item = &'a ClaimEntry> {
    let entries = catalog.members.get(&definition.key).into_iter().flatten();
    entries.filter_map(|entry| catalog.claims.get(&entry.key)).map(AsRef::as_ref)
}
