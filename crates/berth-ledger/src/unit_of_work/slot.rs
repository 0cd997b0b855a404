//! Slots of workloads: who has one, to whom it is handed over, and who gets it back. A slot has a row while any
//! claim has it; nothing else may write that row.

use super::UnitOfWork;
use crate::model::{ClaimKey, Guard, PlannedClaim, SlotKey};

/// How a slot stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SlotState {
    /// No claim has it.
    Free,
    /// One claim has it.
    Held,
    /// It is handed over: claims before its holder still have it.
    HandedOver,
}

impl SlotState {
    /// Whether a slot may go from this state to another when a claim takes it or leaves it.
    pub(super) const fn may_become(self, next: Self) -> bool {
        match self {
            // Nobody is there to hand it over.
            Self::Free => matches!(next, Self::Held),
            // Its holder goes, or another claim takes over from it.
            Self::Held => matches!(next, Self::Free | Self::HandedOver),
            // It is free only once the last of them has gone.
            Self::HandedOver => matches!(next, Self::Held | Self::HandedOver),
        }
    }
}

impl UnitOfWork {
    /// Gives a slot to a planned claim, if it is free or handed over to it. Returns the claims that still have
    /// it, the latest first.
    pub(super) fn take_slot(
        &mut self,
        planned: &PlannedClaim,
        slot: &SlotKey,
    ) -> Result<Vec<ClaimKey>, Guard> {
        let before = self.slot_state(slot);
        let may_have = |by: &ClaimKey| *by == planned.key || Some(*by) == planned.takes_over;
        if let Some(by) = self.rows.slots.get(slot).filter(|by| !may_have(by)) {
            return Err(Guard::SlotTaken { slot: slot.clone(), by: by.instance });
        }
        self.rows.slots.set(slot, Some(planned.key));
        let predecessors = self.slot_predecessors(planned, slot);
        let next = if predecessors.is_empty() { SlotState::Held } else { SlotState::HandedOver };
        self.check_slot(slot, planned.key, before, next);
        Ok(predecessors)
    }

    /// Takes a slot off a claim that goes: the latest claim before it that is left has it again.
    pub(super) fn leave_slot(&mut self, key: ClaimKey, slot: &SlotKey, predecessors: &[ClaimKey]) {
        if !self.locked_slots.contains(slot) {
            // The claim is not the one that was read before locking.
            self.must_restart = true;
            return;
        }
        let holder = self.rows.slots.get(slot).copied();
        if !crate::invariant!(holder.is_some(), "slot_of_claim_is_taken", slot, claim = key) {
            return;
        }
        // Handed over: another has it already.
        if holder != Some(key) {
            return;
        }
        let before = self.slot_state(slot);
        let previous = self.previous_holder(slot, predecessors);
        self.rows.slots.set(slot, previous);
        let next = self.slot_state(slot);
        self.check_slot(slot, key, before, next);
    }

    fn check_slot(&self, slot: &SlotKey, claim: ClaimKey, before: SlotState, next: SlotState) {
        // Rows that are not locked say nothing.
        crate::invariant!(
            self.must_restart || before.may_become(next),
            "slot_state_transition",
            slot,
            claim,
            from = before,
            to = next
        );
    }

    /// How a slot stands, by the rows that are locked.
    fn slot_state(&self, slot: &SlotKey) -> SlotState {
        let Some(holder) = self.rows.slots.get(slot) else { return SlotState::Free };
        let holdings = self.rows.claims.get(holder).and_then(|claim| claim.holdings.as_deref());
        let mut before = holdings.into_iter().flat_map(|holdings| &holdings.slot_predecessors);
        if before.any(|key| self.has_slot(*key, slot)) {
            SlotState::HandedOver
        } else {
            SlotState::Held
        }
    }

    /// The claims that still have a slot which is handed over to a planned one.
    fn slot_predecessors(&self, planned: &PlannedClaim, slot: &SlotKey) -> Vec<ClaimKey> {
        let Some(latest) = planned.takes_over.filter(|latest| *latest != planned.key) else {
            return Vec::new();
        };
        let holdings = self.rows.claims.get(&latest).and_then(|claim| claim.holdings.as_deref());
        let earlier = holdings.into_iter().flat_map(|holdings| &holdings.slot_predecessors);
        let candidates = std::iter::once(&latest).chain(earlier);
        candidates.filter(|key| self.has_slot(**key, slot)).copied().collect()
    }

    /// The claim that has a slot once its holder has gone: the latest of those before it.
    fn previous_holder(&mut self, slot: &SlotKey, predecessors: &[ClaimKey]) -> Option<ClaimKey> {
        if predecessors.iter().any(|key| !self.locked_predecessors.contains(key)) {
            self.must_restart = true;
        }
        predecessors.iter().find(|key| self.has_slot(**key, slot)).copied()
    }

    fn has_slot(&self, key: ClaimKey, slot: &SlotKey) -> bool {
        let holdings = self.rows.claims.get(&key).and_then(|claim| claim.holdings.as_deref());
        holdings.is_some_and(|holdings| holdings.slot.as_ref() == Some(slot))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_changes_hands_only_as_the_table_says() {
        use SlotState::{Free, HandedOver, Held};
        let allowed = [
            (Free, Held),
            (Held, Free),
            (Held, HandedOver),
            (HandedOver, Held),
            (HandedOver, HandedOver),
        ];
        for from in [Free, Held, HandedOver] {
            for to in [Free, Held, HandedOver] {
                assert_eq!(from.may_become(to), allowed.contains(&(from, to)), "{from:?} {to:?}");
            }
        }
    }
}
