//! The question of a decision, put to an engine again, and its answer compared.

use berth_api::InstanceExplanation;
use berth_engine::{
    Batch, BatchMode, Engine, InstanceId, InstanceRequest, PlaceError, Placement, Refusal,
    Timestamp,
};
use berth_ledger::{Decision, DecisionOutcome, LedgerError, PlacedInstance};
use rustc_hash::FxHashMap;
use serde_json::{Value, json};

/// What was asked, when, and what was recorded as the answer.
pub(super) struct Question {
    requests: Vec<InstanceRequest>,
    pub(super) now: Timestamp,
    /// The recorded answer as text.
    wanted: String,
    /// The same without the words of a refusal.
    decided: String,
    was_granted: bool,
    keeps_detail: bool,
    /// How many plans were under way, where it was counted.
    pub(super) in_flight: Option<usize>,
    /// Where instances were placed, in the order in which they were.
    placed: Vec<PlacedInstance>,
    /// In whose room the instance was placed.
    preempted: Vec<InstanceId>,
    /// The instance to explain, and which nodes of it to show, if any.
    range: Option<ExplanationRange>,
}

/// Which instance of a decision is explained, and on which nodes.
#[derive(Clone, Copy, Debug, Default)]
pub struct ExplanationRange {
    /// The instance; the first one that was placed or refused when absent.
    pub instance: Option<InstanceId>,
    /// The position of the first node.
    pub from: usize,
    /// How many nodes.
    pub limit: usize,
}

/// The choice of a node for one instance of a decision.
#[derive(Debug)]
pub(super) struct ExplainedInstance {
    pub(super) explanation: InstanceExplanation,
    /// Whether the node that was recorded won alone, too: a batch may have searched for another.
    pub(super) is_as_recorded: bool,
}

impl Question {
    /// The question of a decision, whose instances have these names.
    pub(super) fn of(
        decision: &Decision,
        names: &FxHashMap<InstanceId, String>,
        recorded: &Value,
        range: Option<ExplanationRange>,
    ) -> Result<Self, LedgerError> {
        let record = &decision.record;
        let mut requests = Vec::new();
        for (id, spec) in record.asked() {
            let request = spec.request();
            let mut request = request.map_err(|error| LedgerError::Corrupt(error.to_string()))?;
            request.id = id;
            request.name = names.get(&id).cloned().or_else(|| refused_name(recorded, id));
            requests.push(request);
        }
        let (was_granted, keeps_detail, placed) = match &record.outcome {
            DecisionOutcome::Granted(placed) => (true, true, placed.clone()),
            DecisionOutcome::Refused { detail, .. } => (false, detail.is_some(), Vec::new()),
        };
        let now = Timestamp(record.basis.now);
        let (wanted, decided) = (recorded.to_string(), decided(recorded).to_string());
        let in_flight = record.basis.in_flight.and_then(|count| usize::try_from(count).ok());
        Ok(Self {
            requests,
            now,
            wanted,
            decided,
            was_granted,
            keeps_detail,
            in_flight,
            placed,
            preempted: record.preempted.iter().map(|(victim, _)| *victim).collect(),
            range,
        })
    }

    /// Whether this is the recorded answer: byte for byte where something was placed; of a refusal
    /// every code, count and node. How a refusal is worded and what it proposes differs between
    /// versions.
    pub(super) fn is_answered_by(&self, derived: &Value) -> bool {
        let (derived, expected) = match self.was_granted {
            true => (derived.to_string(), &self.wanted),
            false => (decided(derived).to_string(), &self.decided),
        };
        derived == *expected
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

    /// Explains one instance on the fleet that the question was just answered on, with those that
    /// the decision had placed before it.
    pub(super) fn explain(&self, engine: &mut Engine) -> Option<ExplainedInstance> {
        let range = self.range?;
        let first = self.placed.first().map(|at| at.instance).or_else(|| self.first_refused());
        let id = range.instance.or(first).or_else(|| Some(self.requests.first()?.id))?;
        let request = self.requests.iter().find(|request| request.id == id)?;
        let place = self.placed.iter().position(|at| at.instance == id);
        let before = &self.placed[..place.unwrap_or(self.placed.len())];
        for at in before {
            let earlier = self.requests.iter().find(|request| request.id == at.instance)?;
            engine.fleet_mut().claim(earlier, &at.node).ok()?;
        }
        let page = engine.explain_page(request, self.now, range.from, range.limit);
        before.iter().rev().for_each(|at| drop(engine.fleet_mut().release(at.instance)));
        let page = page.ok()?;
        let won = page.winner.as_ref().map(|winner| (&winner.node, winner.total));
        let recorded = place.map(|place| &self.placed[place]).map(|at| (&at.node, at.score));
        let is_as_recorded = won == recorded;
        let explanation = InstanceExplanation { instance: id, name: request.name.clone(), page };
        Some(ExplainedInstance { explanation, is_as_recorded })
    }

    fn first_refused(&self) -> Option<InstanceId> {
        let recorded: Value = serde_json::from_str(&self.decided).ok()?;
        serde_json::from_value(recorded["refusals"][0]["instance"].clone()).ok()
    }

    fn one(&self, engine: &mut Engine, request: &InstanceRequest) -> Value {
        // Who makes room depends on who asks; that the request fits in their room does not.
        if let ([at], false) = (self.placed.as_slice(), self.preempted.is_empty()) {
            let node = &at.node;
            return match engine.place_preempting(request, node, &self.preempted, self.now) {
                Ok(placement) => placed(&[placement]),
                Err(error) => json!({ "placed": [], "error": error.to_string() }),
            };
        }
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
        let detail = if self.keeps_detail { json!(refusals) } else { Value::Null };
        json!({ "code": code, "refusals": detail })
    }
}

/// The name of an instance that was refused, which only its refusal has.
fn refused_name(recorded: &Value, id: InstanceId) -> Option<String> {
    let id = id.to_string();
    let mut refusals = recorded["refusals"].as_array().into_iter().flatten();
    let refusal = refusals.find(|refusal| refusal["instance"].as_str() == Some(&id))?;
    refusal["name"].as_str().map(str::to_owned)
}

/// What of an answer was decided, rather than worded or proposed.
fn decided(answer: &Value) -> Value {
    let mut answer = answer.clone();
    let refusals = answer.get_mut("refusals").and_then(Value::as_array_mut);
    for refusal in refusals.into_iter().flatten().filter_map(Value::as_object_mut) {
        let fields = ["instance", "tenant", "code", "filter", "nodes", "counts", "search"];
        refusal.retain(|field, _| field == "nearest" || fields.contains(&field.as_str()));
        let nearest = refusal.get_mut("nearest").and_then(Value::as_array_mut);
        for miss in nearest.into_iter().flatten().filter_map(Value::as_object_mut) {
            miss.retain(|field, _| field == "filter" || field == "node");
        }
    }
    answer
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
    fn a_refusal_is_compared_by_what_was_decided_and_not_by_its_words() {
        let refusal = |found: &str, node: &str, remedy: &str| {
            let evidence = json!({ "kind": "fact", "fact": "platform", "found": found });
            let nearest = json!([{ "filter": "platform", "node": node, "evidence": evidence }]);
            let refusal = json!({ "code": "platform_no_node", "nodes": 1, "nearest": nearest,
                "remedy": remedy, "fixes": [remedy] });
            decided(&json!({ "code": "platform_no_node", "refusals": [refusal] }))
        };
        let recorded = refusal("6.5 built at -9223372036854775808", "a", "update it");
        assert_eq!(recorded, refusal("none, taken as 6.5", "a", "update the platform"));
        assert_ne!(recorded, refusal("none, taken as 6.5", "b", "update the platform"));
    }

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
