//! Deriving a decision again from the log, to see whether it comes out the same.
//!
//! A receipt says what was asked, under which policy, at what time, and which event the planner had
//! surely applied. It does not say which of its own commits the planner had applied beyond that,
//! nor which of its plans were in flight. Both are found by trying: the fleet is rebuilt from the
//! first event on, or from a snapshot if the log was cut since, and the same question is put to the same engine at every commit around the
//! recorded one, with the plans that were then under way. One of these fleets is the planner's; if
//! none gives what was recorded, the record and the log do not agree.

mod derive;
mod past;

use berth_api::{DecisionExplanation, Replay, ReplayOutcome};
use berth_engine::Policy;
use berth_ledger::{Decision, DecisionOutcome, Ledger, LedgerError, StoredPolicy};
use serde_json::{Value, json};

use crate::placement::decision_id;
pub use derive::ExplanationRange;
use derive::{ExplainedInstance, Question};
use past::{BEFORE, HeartbeatAssumption, PastFleet, Search};

/// Why a decision of honest servers may come out different.
const COMPANY: &str = "; several writers committed around it, and in which order their plans were \
    made is not recorded, so this alone does not show that the record was altered: berth verify \
    does";

/// What is said of an instance whose node another node would have beaten.
const SEARCHED: &str = "; the batch was searched as a whole, so that this instance went to another \
    node than the one that is best for it alone";

/// What is said of a refusal whose words differ.
const OTHER_WORDS: &str = "; it was recorded by another version, which words a refusal otherwise or \
    proposes other fixes";

/// Derives a decision again. It reads the log from its first event, which may take a while.
///
/// # Errors
/// When the ledger cannot be read.
pub fn replay(ledger: &Ledger, decision: &Decision) -> Result<Replay, LedgerError> {
    derive_again(ledger, decision, None).map(|(replay, _)| replay)
}

/// Explains a decision on the fleet that it was made on, which is rebuilt from the log.
///
/// # Errors
/// When the ledger cannot be read.
pub fn explain_decision(
    ledger: &Ledger,
    decision: &Decision,
    range: ExplanationRange,
) -> Result<DecisionExplanation, LedgerError> {
    let (replay, explained) = derive_again(ledger, decision, Some(range))?;
    let Replay { decision: id, outcome, fleet_version, mut note, .. } = replay;
    let was_granted = matches!(decision.record.outcome, DecisionOutcome::Granted(_));
    if explained.as_ref().is_some_and(|explained| was_granted && !explained.is_as_recorded) {
        note.push_str(SEARCHED);
    }
    let explanation = explained.map(|explained| explained.explanation);
    Ok(DecisionExplanation { decision: id, outcome, note, fleet_version, explanation })
}

/// Derives a decision again, and explains one instance of it if that is asked for.
fn derive_again(
    ledger: &Ledger,
    decision: &Decision,
    range: Option<ExplanationRange>,
) -> Result<(Replay, Option<ExplainedInstance>), LedgerError> {
    let recorded = recorded(&decision.record.outcome);
    let answer = |outcome, derived, fleet_version, note: String| Replay {
        decision: decision_id(&decision.id),
        outcome,
        fleet_version,
        recorded: recorded.clone(),
        derived,
        note,
    };
    let out_of_reach = |note| Ok((answer(ReplayOutcome::OutOfReach, None, None, note), None));
    if let Some(why) = obstacle(ledger, decision, &recorded)? {
        return out_of_reach(why);
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
            return Ok((answer(ReplayOutcome::Different, None, None, note.to_owned()), None));
        };
        let question = Question::of(decision, past.names(), &recorded, None)?;
        let search = if range.is_some() { Search::Last } else { Search::First };
        let found = past.find(&question, search)?;
        if let Some((version, derived)) = found.identical {
            let mut note = format!("the same came out on the fleet as of event {version}");
            if derived != recorded {
                note.push_str(OTHER_WORDS);
            }
            let explained = match range {
                Some(range) => {
                    let way = (heartbeats, before);
                    explain_at(ledger, decision, &policy, way, (version, &recorded), range)?
                }
                None => None,
            };
            let replay = answer(ReplayOutcome::Identical, Some(derived), Some(version), note);
            return Ok((replay, explained));
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
    Ok((answer(ReplayOutcome::Different, derived, version, note), None))
}

/// Why a decision cannot be derived again, if it cannot.
fn obstacle(
    ledger: &Ledger,
    decision: &Decision,
    recorded: &Value,
) -> Result<Option<String>, LedgerError> {
    let oldest = ledger.oldest_event()?;
    if oldest > 1 && past::snapshot_for(ledger, decision)?.is_none() {
        return Ok(Some(cut_log(oldest, decision)));
    }
    Ok(match &decision.record.outcome {
        DecisionOutcome::Refused { code, .. } if is_limit(code, recorded) => Some(format!(
            "a limit of the ledger refused it ({code}), which a replay does not derive"
        )),
        DecisionOutcome::Refused { .. } | DecisionOutcome::Granted(_) => None,
    })
}

/// What of a decision is still known after the beginning of the log was dropped, and what is not.
fn cut_log(oldest: i64, decision: &Decision) -> String {
    let based_on = decision.record.basis.fleet_version;
    let kept = match &decision.record.outcome {
        DecisionOutcome::Granted(_) => {
            "its record has the nodes, their scores and the policy, but not the terms of a score, \
             the runner-up or what removed other nodes"
        }
        DecisionOutcome::Refused { detail: Some(_), .. } => {
            "its record has the refusal as it was given, but not the verdict on every node"
        }
        DecisionOutcome::Refused { detail: None, .. } => {
            "its record has the code of the refusal, but not why each node was removed"
        }
    };
    format!(
        "it was based on all events up to {based_on}, and the log now begins at event {oldest} \
         (retention.events), with no snapshot of the fleet between them; {kept}"
    )
}

/// Explains one instance on the fleet as of an event. The fleet went on while later commits were
/// tried, so it is read once more.
fn explain_at(
    ledger: &Ledger,
    decision: &Decision,
    policy: &Policy,
    (heartbeats, before): (HeartbeatAssumption, usize),
    (version, recorded): (i64, &Value),
    range: ExplanationRange,
) -> Result<Option<ExplainedInstance>, LedgerError> {
    let past = PastFleet::read(ledger, decision, policy.clone(), heartbeats, before)?;
    let Some(past) = past else { return Ok(None) };
    let question = Question::of(decision, past.names(), recorded, Some(range))?;
    Ok(past.find(&question, Search::At(version))?.explained)
}

/// Whether a tenant's quota or a pool refused, rather than the engine, which explains what it refuses.
fn is_limit(code: &str, recorded: &Value) -> bool {
    let codes = ["quota_exceeded", "pool_exhausted", "ipam_exhausted"];
    codes.contains(&code) && !recorded["refusals"].is_array()
}

fn policy(stored: &[StoredPolicy], hash: &str) -> Option<Policy> {
    let stored = stored.iter().find(|policy| policy.hash == hash)?;
    Policy::from_stored(&stored.body).ok()
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
            let json = detail.as_ref().and_then(|detail| detail.json());
            let detail = json.and_then(|json| serde_json::from_str(&json).ok());
            // A limit is recorded with one sentence instead.
            let refusals = detail.filter(Value::is_array);
            let refusals = refusals.map_or(Value::Null, with_present_names);
            json!({ "code": code, "refusals": refusals })
        }
    }
}

/// Refusals as recorded, with the field names of this version: 0.1 recorded a tenant as `owner`.
fn with_present_names(mut refusals: Value) -> Value {
    for refusal in refusals.as_array_mut().into_iter().flatten() {
        rename_field(refusal, "owner", "tenant");
        let fixes = refusal.get_mut("fixes").and_then(Value::as_array_mut);
        for fix in fixes.into_iter().flatten() {
            rename_field(fix, "owners", "tenants");
        }
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
