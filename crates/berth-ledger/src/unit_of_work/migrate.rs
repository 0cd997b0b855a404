//! Moving an instance while it runs: a place is held, then taken in one step.
//!
//! While a place is held the instance counts on both nodes and runs on the first. The switch makes
//! the held place the one where it runs, and the first one a place to be cleaned up, which counts
//! until its agent confirms that nothing is left. At every moment exactly one of them is primary.

use berth_engine::Amounts;
use berth_engine::elastic::Size;

use super::UnitOfWork;
use super::charge::{ChargeMode, claim_of};
use super::lifecycle::{authorize, claim_status, rejected};
use crate::model::{
    Answer, Claim, ClaimKey, ClaimRejection, ClaimState, ClaimStatus, EventBody, Guard, Hold,
    Outcome, SlotKey, Switch, Text, Verdict, WithDocuments,
};

type ClaimResult = Result<ClaimStatus, ClaimRejection>;

impl UnitOfWork {
    /// Holds a place, of the size that the instance has by now.
    pub(super) fn hold(&mut self, hold: &Hold) -> ClaimResult {
        let instance = hold.to.key.instance;
        let (key, target) = (ClaimKey::primary(instance), ClaimKey::target(instance));
        let source = authorize(self.rows.claims.get(&key), key, None, Some(hold.fence))?.clone();
        if source.state != ClaimState::Active {
            let found = source.state;
            return Err(ClaimRejection::WrongState { key, found, wanted: "active" });
        }
        let taken_values = [target, ClaimKey::source(instance)]
            .into_iter()
            .find_map(|key| Some((key, self.rows.claims.get(&key)?.node.clone())));
        if let Some((key, node)) = taken_values {
            return Err(ClaimRejection::Guard(Box::new(Guard::AlreadyPlaced { key, node })));
        }
        if source.node == hold.to.node {
            let node = source.node;
            return Err(ClaimRejection::Guard(Box::new(Guard::AlreadyPlaced { key, node })));
        }
        let mut planned = hold.to.clone();
        planned.key = target;
        planned.pools.clear();
        (planned.slot, planned.takes_over) = (None, None);
        set_size(&mut planned.demand, source.amounts);
        let events = self.events.len();
        let charged = match self.charge(&planned, &source.tenant, ChargeMode::Guarded) {
            Ok(charged) => charged,
            Err(error) => {
                self.undo(events);
                return Err(rejected(error));
            }
        };
        let now = self.rows.now;
        let mut claim = claim_of(&planned, &source.tenant, &source.request_id, charged, now);
        // The holder must release it; it never expires.
        claim.enter(ClaimState::Binding);
        claim.permit = None;
        claim.spec = source.spec.clone();
        let allocated = self.allocated(&claim, Some(&planned));
        self.events.push(EventBody::Allocated(Box::new(allocated)));
        let answer = claim_status(&claim);
        self.rows.claims.set(&target, Some(claim));
        self.keep();
        Ok(answer)
    }

    /// Takes the place that was held.
    pub(super) fn switch(&mut self, switch: &Switch) -> ClaimResult {
        let instance = switch.instance;
        let (key, target) = (ClaimKey::primary(instance), ClaimKey::target(instance));
        let source = authorize(self.rows.claims.get(&key), key, None, None)?.clone();
        self.require_node(&source.node);
        let found = source.state;
        let held = self.rows.claims.get(&target).filter(|held| held.node == switch.to).cloned();
        let Some(held) = held else {
            // It was done before: a retry gets the answer again.
            let left = self.rows.claims.get(&ClaimKey::source(instance)).is_some();
            if source.node == switch.to && left {
                return Ok(claim_status(&source));
            }
            return Err(ClaimRejection::NoClaim(target));
        };
        if !found.may_become(ClaimState::Releasing) {
            let wanted = "binding, active or releasing";
            return Err(ClaimRejection::WrongState { key, found, wanted });
        }
        let found = held.state;
        if matches!(found, ClaimState::Releasing) {
            return Err(ClaimRejection::WrongState { key: target, found, wanted: "binding" });
        }
        self.require_node(&held.node);
        let mut left = source.clone();
        left.key = ClaimKey::source(instance);
        left.enter(ClaimState::Releasing);
        left.permit = None;
        let mut moved = held.clone();
        moved.key = key;
        moved.state = source.state;
        moved.fence = held.fence.max(source.fence.saturating_add(1));
        moved.permit.clone_from(&source.permit);
        if let Some(permit) = moved.permit.as_deref_mut() {
            // Pressure on the source node says nothing about the target.
            (permit.pressure, permit.pressure_at, permit.limited_by) = (Size::ZERO, 0, None);
        }
        moved.name.clone_from(&source.name);
        moved.created_at = source.created_at;
        moved.batch = source.batch;
        moved.release_id.clone_from(&source.release_id);
        moved.secrets_version.clone_from(&source.secrets_version);
        // Its bounds may have changed since the place was held.
        moved.spec.clone_from(&source.spec);
        transfer_exclusive_holdings(&mut left, &mut moved);
        self.move_memberships(&source, &left);
        self.move_memberships(&held, &moved);
        // It may have shrunk since the place was held. It grows only if its agent holds more than was
        // ever recorded: that is so, whether there is room or not.
        // Its tenant is charged for the primary claim, which has that size already.
        let as_held = Claim { key: target, amounts: held.amounts, ..moved.clone() };
        self.change_charge(&as_held, source.amounts);
        moved.amounts = source.amounts;
        self.push_switch_events(&source, &held, &left, &moved);
        let answer = claim_status(&moved);
        self.rows.claims.set(&target, None);
        self.rows.claims.set(&ClaimKey::source(instance), Some(left));
        self.rows.claims.set(&key, Some(moved));
        self.keep();
        Ok(answer)
    }

    /// Followers know claims by instance and role: two are gone, and two are there in other roles.
    fn push_switch_events(&mut self, source: &Claim, held: &Claim, left: &Claim, moved: &Claim) {
        let fence = moved.fence;
        self.rows.nodes.edit(&moved.node, |row| row.fence = row.fence.max(fence));
        for released_status in [held, source] {
            self.events.push(EventBody::Released {
                instance_id: released_status.key.instance,
                role: released_status.key.role,
                node_id: released_status.node.clone(),
                tenant: released_status.tenant.clone(),
                fence: released_status.fence,
                reason: Text::from("moved"),
            });
        }
        let mut allocated = self.allocated(moved, None);
        allocated.moved_from = Some(source.node.clone());
        self.events.push(EventBody::Allocated(Box::new(allocated)));
        let allocated = self.allocated(left, None);
        self.events.push(EventBody::Allocated(Box::new(allocated)));
    }

    /// Membership in groups is by role.
    fn move_memberships(&mut self, before: &Claim, now: &Claim) {
        for place in before.holdings.iter().flat_map(|holdings| &holdings.groups) {
            self.rows.members.set(&(place.group.clone(), before.key), None);
        }
        for place in now.holdings.iter().flat_map(|holdings| &holdings.groups) {
            self.rows.members.set(&(place.group.clone(), now.key), Some(()));
        }
    }

    /// Does something and writes documents with it, if all of them are as expected.
    pub(super) fn with_documents(&mut self, with: &WithDocuments) -> Answer {
        for written in &with.documents {
            let key = (written.kind.clone(), written.id.clone());
            let current = self.rows.documents.get(&key).map(|row| row.rev);
            if !written.expect.holds(current) {
                return Answer::Outcome(Outcome::Stale { current });
            }
        }
        let answer = self.apply(&with.op);
        let done = match &answer {
            Answer::Plan(Verdict::Granted(_)) | Answer::Repeated(_) | Answer::Claim(Ok(_)) => true,
            Answer::Outcome(outcome) => matches!(outcome, Outcome::Done | Outcome::Unchanged),
            Answer::Permit(answer) => answer.is_ok(),
            Answer::Reaped(_) | Answer::Drifts(_) => true,
            Answer::Plan(_) | Answer::Claim(Err(_)) => false,
        };
        if done {
            for written in &with.documents {
                // Looked at before, under the same lock: it is as expected.
                self.put_document(&written.kind, &written.id, &written.body, written.expect);
            }
            self.keep();
        }
        answer
    }
}

/// What only one of two claims may have goes along: addresses, the slot, volumes.
fn transfer_exclusive_holdings(left: &mut Claim, moved: &mut Claim) {
    let Some(holdings) = left.holdings.as_deref_mut() else { return };
    let (values, slot) = (std::mem::take(&mut holdings.values), holdings.take_slot());
    let empty =
        holdings.groups.is_empty() && holdings.volumes.is_empty() && holdings.classes.is_empty();
    if empty {
        left.holdings = None;
    }
    if !values.is_empty() {
        moved.holdings.get_or_insert_default().values = values;
    }
    give_slot(moved, slot);
}

/// Gives a claim the slot that its instance had, and who had it before.
pub(super) fn give_slot(claim: &mut Claim, slot: (Option<SlotKey>, Vec<ClaimKey>)) {
    if slot.0.is_some() {
        let holdings = claim.holdings.get_or_insert_default();
        (holdings.slot, holdings.slot_predecessors) = slot;
    }
}

/// A demand for what an instance is charged by now, whatever was planned.
pub(super) fn set_size(demand: &mut berth_engine::Demand, amounts: Amounts) {
    if demand.cpu_room_milli > 0 {
        demand.cpu_room_milli = amounts.cpu_milli;
    }
    demand.amounts =
        Amounts { cpu_milli: amounts.cpu_milli, memory_mib: amounts.memory_mib, ..demand.amounts };
}
