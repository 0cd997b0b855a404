//! The question of a decision, put to an engine again, and its answer compared.

use berth_engine::{
    Batch, BatchMode, Engine, InstanceId, InstanceRequest, PlaceError, Placement, Refusal,
    Timestamp,
};
use berth_ledger::{Decision, DecisionOutcome, LedgerError};
use rustc_hash::FxHashMap;
use serde_json::{Value, json};

/// What was asked, when, and what was recorded as the answer.
pub(super) struct Question {
    requests: Vec<InstanceRequest>,
    pub(super) now: Timestamp,
    /// The recorded answer as text.
    wanted: String,
    was_granted: bool,
    keeps_detail: bool,
    /// How many plans were under way, where it was counted.
    pub(super) in_flight: Option<usize>,
}

impl Question {
    /// The question of a decision, whose instances have these names.
    pub(super) fn of(
        decision: &Decision,
        names: &FxHashMap<InstanceId, String>,
        recorded: &Value,
    ) -> Result<Self, LedgerError> {
        let record = &decision.record;
        let mut requests = Vec::new();
        for (id, spec) in record.asked() {
            let request = spec.request();
            let mut request = request.map_err(|error| LedgerError::Corrupt(error.to_string()))?;
            request.id = id;
            request.name = names.get(&id).cloned();
            requests.push(request);
        }
        let (was_granted, keeps_detail) = match &record.outcome {
            DecisionOutcome::Granted(_) => (true, true),
            DecisionOutcome::Refused { detail, .. } => (false, detail.is_some()),
        };
        let now = Timestamp(record.basis.now);
        let wanted = recorded.to_string();
        let in_flight = record.basis.in_flight.and_then(|count| usize::try_from(count).ok());
        Ok(Self { requests, now, wanted, was_granted, keeps_detail, in_flight })
    }

    /// Whether this is, byte for byte, the recorded answer.
    pub(super) fn is_answered_by(&self, derived: &Value) -> bool {
        let derived = derived.to_string();
        derived == self.wanted
    }

    /// The engine's answers: one, or for several instances one for each way to ask, since the
    /// record does not say how many of them had to be placed.
    pub(super) fn put_to(&self, engine: &mut Engine) -> Vec<Value> {
        if let [one] = self.requests.as_slice() {
            return vec![self.one(engine, one)];
        }
        let modes = [
            BatchMode::AllOrNothing,
            BatchMode::BestEffort,
            BatchMode::AtLeast(self.requests.len()),
        ];
        let mut answers = Vec::new();
        for mode in modes {
            let answer = self.several(engine, mode);
            let found = self.is_answered_by(&answer);
            answers.push(answer);
            if found {
                break;
            }
        }
        answers
    }

    fn one(&self, engine: &mut Engine, request: &InstanceRequest) -> Value {
        // To explain a refusal costs far more than to find that there is no room.
        if self.was_granted && matches!(engine.try_place(request, self.now), Ok(None)) {
            return json!({ "placed": [] });
        }
        match engine.place(request, self.now) {
            Ok(placement) => placed(&[placement]),
            Err(PlaceError::Refused(refusal)) => self.refused(&[*refusal]),
            Err(PlaceError::Invalid(invalid)) => json!({ "invalid": invalid.to_string() }),
        }
    }

    fn several(&self, engine: &mut Engine, mode: BatchMode) -> Value {
        let batch = Batch::new(self.requests.clone()).with_mode(mode);
        match engine.place_batch(&batch, self.now) {
            Ok(outcome) if outcome.placements.is_empty() => {
                let refusals = outcome.refused.into_iter().map(|(_, refusal)| refusal);
                self.refused(&refusals.collect::<Vec<_>>())
            }
            Ok(outcome) => placed(&outcome.placements),
            Err(PlaceError::Refused(refusal)) => self.refused(&[*refusal]),
            Err(PlaceError::Invalid(invalid)) => json!({ "invalid": invalid.to_string() }),
        }
    }

    fn refused(&self, refusals: &[Refusal]) -> Value {
        let code = refusals.first().map_or("no_nodes_active", |refusal| &*refusal.code);
        let detail = if self.keeps_detail { without_advice(json!(refusals)) } else { Value::Null };
        json!({ "code": code, "refusals": detail })
    }
}

/// Refusals without what would help, which is advice and not the decision: a later version finds more
/// of it, and what is going already is not in the log.
pub(super) fn without_advice(mut refusals: Value) -> Value {
    for refusal in refusals.as_array_mut().into_iter().flatten().filter_map(Value::as_object_mut) {
        for advice in ["fixes", "waiting_may_help"] {
            refusal.remove(advice);
        }
    }
    refusals
}

fn placed(placements: &[Placement]) -> Value {
    let placed = placements
        .iter()
        .map(|at| json!({ "instance": at.instance, "node": at.node, "score": at.score }));
    json!({ "placed": placed.collect::<Vec<_>>() })
}

/// Where two values differ first, and what is there on either side.
pub(super) fn first_difference(a: &Value, b: &Value) -> Option<(String, String, String)> {
    let mut place = String::new();
    difference(a, b, &mut place).map(|(was, is)| {
        let place = if place.is_empty() { "the answer".to_owned() } else { place };
        (place, was, is)
    })
}

fn difference(a: &Value, b: &Value, place: &mut String) -> Option<(String, String)> {
    let length = place.len();
    match (a, b) {
        (Value::Object(a), Value::Object(b)) => {
            let keys: std::collections::BTreeSet<&String> = a.keys().chain(b.keys()).collect();
            for key in keys {
                place.push('/');
                place.push_str(key);
                let (a, b) = (a.get(key), b.get(key));
                let found = difference(a.unwrap_or(&Value::Null), b.unwrap_or(&Value::Null), place);
                if found.is_some() {
                    return found;
                }
                place.truncate(length);
            }
            None
        }
        (Value::Array(a), Value::Array(b)) => {
            for number in 0..a.len().max(b.len()) {
                place.push('/');
                place.push_str(&number.to_string());
                let (a, b) = (a.get(number), b.get(number));
                let found = difference(a.unwrap_or(&Value::Null), b.unwrap_or(&Value::Null), place);
                if found.is_some() {
                    return found;
                }
                place.truncate(length);
            }
            None
        }
        (a, b) if a == b => None,
        (a, b) => Some((a.to_string(), b.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_difference_is_named_by_its_place() {
        let a = json!({ "placed": [{ "node": "a", "score": 1 }] });
        let b = json!({ "placed": [{ "node": "b", "score": 1 }] });
        let told = first_difference(&a, &b);
        assert_eq!(told, Some(("/placed/0/node".into(), "\"a\"".into(), "\"b\"".into())));
        assert_eq!(first_difference(&a, &a), None);
        let longer = json!({ "placed": [{ "node": "a", "score": 1 }, 2] });
        let told = first_difference(&a, &longer);
        assert_eq!(told, Some(("/placed/1".into(), "null".into(), "2".into())));
    }
}
