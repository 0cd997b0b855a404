//! Deriving a decision again from the log, to see whether it comes out the same.
//!
//! A receipt says what was asked, under which policy, at what time, and which event the planner had
//! surely applied. It does not say which of its own commits the planner had applied beyond that,
//! nor which of its plans were in flight. Both are found by trying: the fleet is rebuilt from the
//! first event on, and the same question is put to the same engine at every commit around the
//! recorded one, with the plans that were then under way. One of these fleets is the planner's; if
//! none gives what was recorded, the record and the log do not agree.

mod derive;
mod past;

use berth_api::{Replay, ReplayOutcome};
use berth_engine::Policy;
use berth_ledger::{Decision, DecisionOutcome, Ledger, LedgerError, StoredPolicy};
use serde_json::{Value, json};

use crate::placement::decision_id;
use derive::Question;
use past::{BEFORE, HeartbeatAssumption, PastFleet};

/// Why a decision of honest servers may come out different.
const COMPANY: &str = "; several writers committed around it, and in which order their plans were \
    made is not recorded, so this alone does not show that the record was altered: berth verify \
    does";

/// Derives a decision again. It reads the log from its first event, which may take a while.
///
/// # Errors
/// When the ledger cannot be read.
pub fn replay(ledger: &Ledger, decision: &Decision) -> Result<Replay, LedgerError> {
    let recorded = recorded(&decision.record.outcome);
    let answer = |outcome, derived, fleet_version, note: String| Replay {
        decision: decision_id(&decision.id),
        outcome,
        fleet_version,
        recorded: recorded.clone(),
        derived,
        note,
    };
    let out_of_reach = |note| Ok(answer(ReplayOutcome::OutOfReach, None, None, note));
    let oldest = ledger.oldest_event()?;
    if oldest > 1 {
        return out_of_reach(format!("the log begins at event {oldest}; a replay needs all of it"));
    }
    let basis = &decision.record.basis;
    let Some(policy) = policy(&ledger.policies()?, &basis.policy) else {
        return out_of_reach(format!("policy {} is no longer stored", basis.policy));
    };
    let (mut nearest, mut had_company) = (None, false);
    // What is most likely first; each costs a reading of the log.
    let ways = [
        (HeartbeatAssumption::All, 0),
        (HeartbeatAssumption::All, BEFORE),
        (HeartbeatAssumption::AsLogged, BEFORE),
    ];
    for (heartbeats, before) in ways {
        let Some(past) = PastFleet::read(ledger, decision, policy.clone(), heartbeats, before)?
        else {
            let note = "the log tells of no such allocation, so nothing can have been granted";
            return Ok(answer(ReplayOutcome::Different, None, None, note.to_owned()));
        };
        let question = Question::of(decision, past.names(), &recorded)?;
        let found = past.find(&question)?;
        if let Some((version, derived)) = found.identical {
            let note = format!("the same came out on the fleet as of event {version}");
            return Ok(answer(ReplayOutcome::Identical, Some(derived), Some(version), note));
        }
        nearest = nearest.or(found.nearest);
        had_company |= found.had_company;
    }
    let (version, derived) = nearest.unzip();
    let other = derived.as_ref().unwrap_or(&Value::Null);
    let mut note = match derive::first_difference(&recorded, other) {
        Some((place, was, is)) => {
            format!("{place} was recorded as {was}; derived from the log, it is {is}")
        }
        None => "nothing could be derived from the log".to_owned(),
    };
    if had_company {
        note.push_str(COMPANY);
    }
    Ok(answer(ReplayOutcome::Different, derived, version, note))
}

fn policy(stored: &[StoredPolicy], hash: &str) -> Option<Policy> {
    let stored = stored.iter().find(|policy| policy.hash == hash)?;
    Policy::from_json(&stored.body).ok()
}

/// What was recorded, in the form in which it is compared.
fn recorded(outcome: &DecisionOutcome) -> Value {
    match outcome {
        DecisionOutcome::Granted(placed) => {
            let placed = placed
                .iter()
                .map(|at| json!({ "instance": at.instance, "node": at.node, "score": at.score }));
            json!({ "placed": placed.collect::<Vec<_>>() })
        }
        DecisionOutcome::Refused { code, detail } => {
            let detail = detail.as_deref().and_then(|text| serde_json::from_str(text).ok());
            let refusals = detail.map_or(Value::Null, with_present_names);
            json!({ "code": code, "refusals": derive::without_advice(refusals) })
        }
    }
}

/// Refusals as recorded, with the field names of this version: 0.1 recorded a tenant as `owner`.
fn with_present_names(mut refusals: Value) -> Value {
    for refusal in refusals.as_array_mut().into_iter().flatten() {
        rename_field(refusal, "owner", "tenant");
    }
    refusals
}

fn rename_field(object: &mut Value, from: &str, to: &str) {
    if let Some(fields) = object.as_object_mut()
        && let Some(value) = fields.remove(from)
    {
        fields.insert(to.to_owned(), value);
    }
}
