//! What would have to change for one node to take a request: the shortest way past every filter
//! that keeps it out.

use super::change::RequestChange;
use crate::explain::FilterSet;
use crate::filter::{CPU_WITHIN_HOST, FilterId, FilterTest, NODE_ACTIVE};
use crate::fleet::{Fleet, NodeIndex, NodePlace, NodeRow};
use crate::model::{LinkState, NodeFacts, NodeState};
use crate::policy::TraitRule;
use crate::prepared_request::{Origin, PreparedRequest};

/// What one node would need.
#[derive(Debug, Default)]
pub(super) struct RequiredChanges {
    /// Changes of the request, apart from its size.
    pub(super) changes: Vec<RequestChange>,
    /// Filters about the node itself.
    pub(super) mends: Vec<FilterId>,
    /// Whether it lacks an amount: memory, disk and the like.
    pub(super) lacks_amounts: bool,
    /// Whether it has no slot for one more instance.
    pub(super) lacks_slot: bool,
}

impl RequiredChanges {
    /// The one change of the request that is all it needs.
    pub(super) fn only_change(&self) -> Option<&RequestChange> {
        match self.changes.as_slice() {
            [change] if self.count() == 1 => Some(change),
            _ => None,
        }
    }

    /// How many changes that are, a smaller size or a release counted as one.
    pub(super) fn count(&self) -> usize {
        let room = usize::from(self.lacks_amounts || self.lacks_slot);
        self.changes.len() + self.mends.len() + room
    }
}

/// Whether a filter is about an amount that a smaller request would need less of.
pub(super) fn is_amount(id: FilterId) -> bool {
    matches!(id.filter().name, "memory" | "cpu" | "disk" | "bandwidth" | "extra-classes")
        || id == CPU_WITHIN_HOST
}

/// Whether a filter is about room: amounts, slots and the mixing of CPU caps.
pub(super) fn is_room(id: FilterId) -> bool {
    matches!(id.filter().test, FilterTest::Load(_)) || id == CPU_WITHIN_HOST
}

/// What a node that these filters keep out would need; `None` where no change is known that helps.
pub(super) fn required_changes_at(
    prepared: &PreparedRequest<'_>,
    index: NodeIndex,
    row: &NodeRow,
    failed: FilterSet,
) -> Option<RequiredChanges> {
    let mut needed = RequiredChanges::default();
    for id in failed.filters() {
        match id.filter().name {
            // A node that is heard again is neither silent nor lost.
            "heartbeat-fresh" if row.state == NodeState::Lost && failed.has(NODE_ACTIVE) => {}
            _ if matches!(id.filter().test, FilterTest::Node(_)) => {
                mended(row, id, prepared)?;
                needed.mends.push(id);
            }
            _ if is_amount(id) => needed.lacks_amounts = true,
            "instance-count" => needed.lacks_slot = true,
            "cpu-cap-mixing" => {
                if !row.takes(!prepared.request.cpu_capped) {
                    return None;
                }
                needed.changes.push(RequestChange::SwitchCap);
            }
            name => {
                for change in changes_of(name, prepared, index, row)? {
                    // Both filters about volumes are passed by doing without.
                    if !needed.changes.contains(&change) {
                        needed.changes.push(change);
                    }
                }
            }
        }
    }
    Some(needed)
}

/// The changes of the request that get it past one filter on one node.
fn changes_of(
    filter: &str,
    prepared: &PreparedRequest<'_>,
    index: NodeIndex,
    row: &NodeRow,
) -> Option<Vec<RequestChange>> {
    let one = |change: RequestChange| Some(vec![change]);
    match filter {
        "secrets-present" => one(RequestChange::DropSecrets),
        "volume-exclusive" | "volume-home" => {
            one(RequestChange::DropVolumes(prepared.request.volumes.clone()))
        }
        "not-virtual" => one(RequestChange::AcceptVirtual),
        "capacity-type" => one(RequestChange::DropCapacityType),
        "platform" => one(RequestChange::DropPlatform),
        "overprovision-ratios" => one(RequestChange::DropRatios),
        "not-excluded" => one(RequestChange::SendAgain),
        "strict-locality" => one(RequestChange::DropStrict),
        "placement-constraint" => {
            let place = NodePlace { fleet: prepared.fleet, row };
            let selector = prepared.request.required_place.as_ref()?;
            let failed = selector.parts().into_iter().filter(|part| !part.matches(&place));
            Some(failed.map(RequestChange::DropPlace).collect())
        }
        "traits" => Some(trait_changes(prepared, row)),
        "networks" => {
            let up = |tag: &String| {
                let mut here = row.profile.networks.iter();
                here.any(|network| network.tag == *tag && network.link == LinkState::Up)
            };
            let missing = prepared.request.networks.iter().filter(|any_of| !any_of.iter().any(up));
            Some(missing.map(|any_of| RequestChange::DropNetwork(any_of.clone())).collect())
        }
        "groups" => {
            let broken = broken_rules(prepared, index, Origin::Group);
            let named = |text: &str| text.strip_prefix("group ").map(str::to_owned);
            Some(broken.filter_map(named).map(RequestChange::LeaveGroup).collect())
        }
        "affinity" => {
            let broken: Vec<&str> = broken_rules(prepared, index, Origin::Affinity).collect();
            let rules = prepared.request.affinity.iter();
            let rules = rules.filter(|rule| rule.is_hard() && broken.contains(&rule.as_str()));
            Some(rules.map(|rule| RequestChange::Soften(rule.clone())).collect())
        }
        _ => None,
    }
}

/// Texts of the hard rules that a node breaks.
fn broken_rules<'a>(
    prepared: &'a PreparedRequest<'_>,
    index: NodeIndex,
    origin: Origin,
) -> impl Iterator<Item = &'a str> {
    let of_origin = prepared.hard_rules.iter().filter(move |rule| rule.origin == origin);
    let broken = of_origin.filter(move |rule| !rule.admits(prepared.fleet, index));
    broken.map(|rule| &*rule.text)
}

/// Traits to drop because the node lacks them, and to ask for because it is kept for them.
fn trait_changes(prepared: &PreparedRequest<'_>, row: &NodeRow) -> Vec<RequestChange> {
    let (has, wants) = (&row.profile.traits, &prepared.request.traits);
    let differs = wants
        .iter()
        .filter(|(name, value)| !has.get(*name).is_some_and(|found| value.agrees_with(found)));
    let mut changes = Vec::new();
    for (name, _) in differs {
        // Where every trait must be asked for, another value is asked for instead.
        match has.get(name).filter(|_| prepared.policy.filters.traits == TraitRule::Exact) {
            Some(value) => {
                changes.push(RequestChange::AskForTrait(name.clone(), value.clone()));
            }
            None => changes.push(RequestChange::DropTrait(name.clone())),
        }
    }
    if prepared.policy.filters.traits == TraitRule::Exact {
        let unasked = has.iter().filter(|(name, _)| !wants.contains_key(*name));
        changes.extend(
            unasked.map(|(name, value)| RequestChange::AskForTrait(name.clone(), value.clone())),
        );
    }
    changes
}

/// The node as it would be without what one filter about it finds wrong; `None` where it is not
/// known what it should be instead.
pub(super) fn mended(
    row: &NodeRow,
    id: FilterId,
    prepared: &PreparedRequest<'_>,
) -> Option<NodeRow> {
    let mut mended = row.clone();
    mend(&mut mended, id, prepared).then_some(mended)
}

fn mend(row: &mut NodeRow, id: FilterId, prepared: &PreparedRequest<'_>) -> bool {
    match id.filter().name {
        "node-active" => {
            if row.state == NodeState::Lost {
                row.heartbeat_at = prepared.now;
            }
            row.state = NodeState::Active;
        }
        "heartbeat-fresh" => row.heartbeat_at = prepared.now,
        "kvm" => row.kvm = true,
        "scratch-disk" => {
            row.scratch_mib = row.scratch_mib.max(prepared.policy.filters.min_scratch_mib);
        }
        "overlay-healthy" => row.overlay_loss_ppm = 0,
        "not-reserved" => row.reserved = false,
        "not-headnode" => row.headnode = false,
        "not-sick" => row.boots.clear(),
        "no-reboot-soon" => row.next_reboot = None,
        // What it should have stated instead is not known here.
        _ => return false,
    }
    true
}

/// What is known of a node, with the facts that mending may change taken from a row.
pub(super) fn facts_of(fleet: &Fleet, row: &NodeRow) -> Option<NodeFacts> {
    let known = fleet.node(&row.id)?;
    Some(NodeFacts {
        state: row.state,
        heartbeat_at: row.heartbeat_at,
        kvm: row.kvm,
        scratch_mib: row.scratch_mib,
        overlay_loss_ppm: row.overlay_loss_ppm,
        reserved: row.reserved,
        headnode: row.headnode,
        boots: row.boots.clone(),
        next_reboot: row.next_reboot,
        ..known
    })
}
