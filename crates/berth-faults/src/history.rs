//! What was acknowledged, and what may have happened, as the parent process recorded it.

use std::collections::BTreeMap;

use berth_engine::InstanceId;

use crate::fleet::node_name;
use crate::operation::{ClaimSpec, Message, Operation};

/// A claim as it must be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExpectedClaim {
    /// The node.
    pub node: String,
    /// Thousandths of a core.
    pub cpu_milli: i64,
    /// Mebibytes.
    pub memory_mib: i64,
    /// The number of its state.
    pub state: i64,
}

type Claims = BTreeMap<InstanceId, ExpectedClaim>;

/// Examples that a violation shows.
const EXAMPLES: usize = 3;

/// Every acknowledged request, and those that were sent and not answered.
#[derive(Clone, Debug, Default)]
pub struct History {
    claims: Claims,
    /// By round and thread: a thread has one request in progress at most.
    open: BTreeMap<(u32, u32), Operation>,
    /// Requests that were acknowledged.
    pub done: u64,
    /// Plans that were granted.
    pub plans: u64,
    /// What was refused, though there is room for everything.
    pub refused: Vec<String>,
    /// Errors by kind.
    pub failed: BTreeMap<String, u64>,
    /// The last error of each kind.
    pub last_failure: BTreeMap<String, String>,
    /// Acknowledged requests by thread, for those who wait until every thread gets on.
    pub done_by_thread: BTreeMap<u32, u64>,
}

impl History {
    /// Records a message of a load.
    pub fn record(&mut self, round: u32, message: Message) {
        match message {
            Message::Started { thread, operation } => {
                self.open.insert((round, thread), operation);
            }
            Message::Done { thread } => {
                if let Some(operation) = self.open.remove(&(round, thread)) {
                    self.done += 1;
                    *self.done_by_thread.entry(thread).or_default() += 1;
                    self.apply(&operation);
                }
            }
            Message::Refused { thread, why } => {
                self.open.remove(&(round, thread));
                self.refused.push(why);
            }
            Message::Failed { kind, why, .. } => {
                *self.failed.entry(kind.clone()).or_default() += 1;
                self.last_failure.insert(kind, why);
            }
        }
    }

    /// Claims that must be there.
    #[must_use]
    pub fn claims(&self) -> &BTreeMap<InstanceId, ExpectedClaim> {
        &self.claims
    }

    /// Requests that were sent and not answered.
    #[must_use]
    pub fn open(&self) -> Vec<Operation> {
        self.open.values().cloned().collect()
    }

    /// Records that a request was done: now, or before, which then changes nothing.
    pub fn apply(&mut self, operation: &Operation) {
        let ids = operation.instances();
        let before = part(&self.claims, &ids);
        apply(&mut self.claims, operation);
        let is_new = part(&self.claims, &ids) != before;
        self.plans += u64::from(is_new && matches!(operation, Operation::Commit { .. }));
    }

    /// Compares the history with the table, and closes what was open: a request without an
    /// answer was done whole or not at all, whichever the table shows.
    pub fn compare(&mut self, table: &BTreeMap<InstanceId, ExpectedClaim>) -> Vec<String> {
        let mut violations = Vec::new();
        for operation in std::mem::take(&mut self.open).into_values() {
            let ids = operation.instances();
            let (before, found) = (part(&self.claims, &ids), part(table, &ids));
            let mut after = before.clone();
            apply(&mut after, &operation);
            if found == after {
                self.apply(&operation);
            } else if found != before {
                violations.push(format!("half done: {operation:?}: found {found:?}"));
            }
        }
        let lost: Vec<_> = self.claims.iter().filter(|(id, _)| !table.contains_key(id)).collect();
        let other = |(id, expected_claim): &(&InstanceId, &ExpectedClaim)| {
            table.get(id).is_some_and(|found| found != *expected_claim)
        };
        let changed: Vec<_> = self.claims.iter().filter(other).collect();
        let stray: Vec<_> = table.iter().filter(|(id, _)| !self.claims.contains_key(id)).collect();
        for (what, claims) in [
            ("acknowledged and lost", lost),
            ("acknowledged and not so", changed),
            ("there though released or never asked for", stray),
        ] {
            if !claims.is_empty() {
                let some: Vec<_> = claims.iter().take(EXAMPLES).collect();
                violations.push(format!("{} claims {what}, such as {some:?}", claims.len()));
            }
        }
        violations
    }
}

fn part(claims: &Claims, ids: &[InstanceId]) -> Claims {
    ids.iter().filter_map(|id| Some((*id, claims.get(id)?.clone()))).collect()
}

fn expected_claim(spec: &ClaimSpec, state: i64) -> ExpectedClaim {
    ExpectedClaim {
        node: node_name(spec.node),
        cpu_milli: spec.cpu_milli.into(),
        memory_mib: spec.memory_mib.into(),
        state,
    }
}

fn apply(claims: &mut Claims, operation: &Operation) {
    match operation {
        Operation::Commit { claims: spec, .. } => {
            claims.extend(spec.iter().map(|spec| (spec.instance, expected_claim(spec, 0))));
        }
        Operation::Release { instance, .. } => drop(claims.remove(instance)),
        Operation::Move { to, .. } | Operation::Resize { to, .. } => {
            if let Some(claim) = claims.get_mut(&to.instance) {
                *claim = expected_claim(to, claim.state);
            }
        }
        Operation::Bind { instance, .. } => {
            if let Some(claim) = claims.get_mut(instance) {
                claim.state = 1;
            }
        }
    }
}

impl Operation {
    fn instances(&self) -> Vec<InstanceId> {
        match self {
            Self::Commit { claims, .. } => claims.iter().map(|spec| spec.instance).collect(),
            Self::Release { instance, .. } | Self::Bind { instance, .. } => vec![*instance],
            Self::Move { to, .. } | Self::Resize { to, .. } => vec![to.instance],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(number: u128) -> ClaimSpec {
        let instance = InstanceId::from_u128(number);
        ClaimSpec { instance, node: 1, cpu_milli: 100, memory_mib: 128 }
    }

    fn started(thread: u32, numbers: &[u128]) -> Message {
        let claims = numbers.iter().map(|number| spec(*number)).collect();
        Message::Started {
            thread,
            operation: Operation::Commit { request: "r".to_owned(), claims },
        }
    }

    #[test]
    fn what_was_not_answered_may_be_either_but_not_half() {
        let one = (spec(1).instance, expected_claim(&spec(1), 0));
        let two = (spec(2).instance, expected_claim(&spec(2), 0));
        for (table, violation) in
            [(vec![], None), (vec![one.clone(), two], None), (vec![one], Some("half done"))]
        {
            let mut history = History::default();
            history.record(0, started(0, &[1, 2]));
            let violations = history.compare(&table.into_iter().collect());
            let found = violations.first().map(|text| text.starts_with("half done"));
            assert_eq!(found, violation.map(|_| true), "{violations:?}");
        }
    }

    #[test]
    fn what_was_acknowledged_must_be_there() {
        let mut history = History::default();
        history.record(0, started(0, &[1]));
        history.record(0, Message::Done { thread: 0 });
        let violations = history.compare(&BTreeMap::new());
        assert!(violations[0].contains("acknowledged and lost"), "{violations:?}");
    }
}
