//! A workload's members as the rules see them.

use berth_engine::workload::{Desired, HostState, Member, MemberState};
use berth_engine::{CapacityType, NodeState};
use berth_ledger::{ClaimState, Role};
use jiff::Timestamp;

use super::definition::Definition;
use crate::catalog::{Books, ClaimEntry, NodeEntry};
use crate::drain::Drains;

/// What is needed to say how a member's node stands.
#[derive(Clone, Copy)]
pub struct Outside<'a> {
    /// Nodes that are being emptied.
    pub drains: &'a Drains,
    /// The time.
    pub now: Timestamp,
    /// Seconds of silence after which a node's members count as gone.
    pub gone_after_s: i64,
    /// When this server began to listen: agents get their time to speak first.
    pub listening_since: i64,
}

impl Outside<'_> {
    /// How a node stands for those on it.
    #[must_use]
    pub fn host(&self, node: &NodeEntry) -> HostState {
        let silence = self.now.as_second() - node.heard_at.max(self.listening_since);
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

/// What is wanted, as the rules see it.
#[must_use]
pub fn desired(definition: &Definition) -> Desired<'_> {
    Desired {
        replicas: definition.wanted(),
        revision: definition.body.revision,
        capacity: definition.body.capacity.as_ref(),
        pinned: definition.body.template.capacity_type,
        rolling: &definition.body.rolling,
        paused: definition.body.paused,
        single_writer: definition.is_single_writer(),
    }
}

/// Whether a claim is where its instance runs: one that moves has a second claim.
fn is_primary(claim: &ClaimEntry) -> bool {
    claim.key.role == Role::Primary
}

/// Claims of a workload's members.
pub fn claims<'a>(
    books: &'a Books,
    definition: &Definition,
) -> impl Iterator<Item = &'a ClaimEntry> {
    let keys = books.members.get(&definition.key).into_iter().flatten();
    keys.filter_map(|key| books.claims.get(key)).map(AsRef::as_ref).filter(|it| is_primary(it))
}

/// The members of a workload, in place of what `members` held.
pub fn collect(
    books: &Books,
    definition: &Definition,
    outside: &Outside<'_>,
    members: &mut Vec<Member>,
) {
    members.clear();
    for claim in claims(books, definition) {
        let Some(seat) = claim.seat else { continue };
        let node = books.nodes.get(&claim.node);
        members.push(Member {
            id: claim.key.instance,
            revision: seat.revision,
            slot: u32::try_from(seat.slot).unwrap_or(u32::MAX),
            fence: claim.fence,
            class: node.map_or(CapacityType::OnDemand, |node| node.facts.capacity_type),
            state: match claim.state {
                ClaimState::Held | ClaimState::Binding => MemberState::Starting,
                ClaimState::Active => MemberState::Ready,
                ClaimState::Releasing => MemberState::Leaving,
            },
            // A node that is not there any more keeps nobody.
            host: node.map_or(HostState::Lost, |node| outside.host(node)),
        });
    }
}
