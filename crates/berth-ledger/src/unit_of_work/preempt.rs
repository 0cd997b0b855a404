//! Granting a plan in the room of other instances: all of it, or nothing.
//!
//! What only waited to be bound is gone at once. What may run keeps its claim until its agent confirms
//! that it has stopped, and with it its addresses, volumes and slot; but what it is charged goes to the
//! new claim in the same commit, so that no other request can take it in between. Its agent starts
//! nothing in that room before.

use berth_engine::{Amounts, InstanceId, NodeId};

use super::UnitOfWork;
use super::lifecycle::authorize;
use crate::model::{
    Answer, Claim, ClaimKey, ClaimState, Conflict, EventBody, Guard, Plan, Preempt, PreemptVictim,
    Text, Verdict,
};

/// The reason of the release, in the events of the victims.
const PREEMPTED: &str = "preempted";

impl UnitOfWork {
    /// Releases the victims and grants the plan, or repeats an earlier grant.
    pub(super) fn preempt(&mut self, preempt: &Preempt) -> Answer {
        let plan = &preempt.plan;
        let request = (Text::clone(&plan.request_id), Text::clone(&plan.tenant));
        if self.rows.requests.get(&request).is_some_and(|row| !row.is_ticket_of(plan)) {
            return self.commit(plan);
        }
        let events = self.events.len();
        let mut preempted = Vec::with_capacity(preempt.victims.len());
        for victim in &preempt.victims {
            match self.make_room(victim) {
                Ok(tenant) => preempted.push((victim.instance, tenant)),
                Err(guard) => {
                    self.undo(events);
                    return Answer::Plan(Verdict::Conflict(Box::new(conflict(plan, guard))));
                }
            }
        }
        let verdict = self.decide(plan, Some(request));
        if !matches!(verdict, Verdict::Granted(_)) {
            // What the victims left is in the same rows as the plan, and was taken back with it.
            self.undo(events);
        } else if let Some(decision) = self.decisions.last_mut() {
            decision.preempted = preempted;
        }
        Answer::Plan(verdict)
    }

    /// Takes what a victim is charged off its node and its tenant. Returns the tenant.
    fn make_room(&mut self, victim: &PreemptVictim) -> Result<Text, Guard> {
        let key = ClaimKey::primary(victim.instance);
        let changed = Guard::VictimChanged { instance: victim.instance };
        let claim =
            authorize(self.rows.claims.get(&key), key, victim.tenant.as_ref(), Some(victim.fence));
        let claim = claim.map_err(|_| changed.clone())?.clone();
        // One that moves has its room in two places, and one that leaves has none to give.
        let is_moving = [ClaimKey::target(victim.instance), ClaimKey::source(victim.instance)]
            .iter()
            .any(|key| self.rows.claims.get(key).is_some());
        if is_moving || claim.state == ClaimState::Releasing {
            return Err(changed);
        }
        if let Some(guard) = &victim.guard {
            self.check_availability(guard, claim.state == ClaimState::Active)?;
        }
        self.require_node(&claim.node);
        match claim.state {
            ClaimState::Held => self.discharge(&claim, &Text::from(PREEMPTED)),
            ClaimState::Binding | ClaimState::Active | ClaimState::Releasing => {
                self.hand_over(&claim);
            }
        }
        Ok(claim.tenant)
    }

    /// A claim that is charged nothing any more, and stays until its agent confirms that the instance
    /// has stopped.
    fn hand_over(&mut self, claim: &Claim) {
        let key = claim.key;
        self.change_charge(claim, Amounts::default());
        let mut left = claim.clone();
        (left.amounts, left.permit) = (Amounts::default(), None);
        left.enter(ClaimState::Releasing);
        if let Some(holdings) = left.holdings.as_deref_mut() {
            for (class, amount) in std::mem::take(&mut holdings.classes) {
                let class = (claim.node.clone(), Text::from(class.as_str()));
                self.rows.classes.edit(&class, |row| row.used -= i64::from(amount));
            }
        }
        self.rows.claims.set(&key, Some(left));
        self.events.push(EventBody::Resized {
            instance_id: key.instance,
            role: key.role,
            node_id: claim.node.clone(),
            tenant: Text::clone(&claim.tenant),
            fence: Some(claim.fence),
            resources: Amounts::default(),
        });
        self.push_state_event(key);
    }
}

fn conflict(plan: &Plan, guard: Guard) -> Conflict {
    let first = plan.claims.first();
    Conflict {
        instance: first.map_or_else(InstanceId::default, |claim| claim.key.instance),
        node: first.map_or_else(|| NodeId::new(""), |claim| claim.node.clone()),
        guard,
    }
}
