//! What was acknowledged, and what may have happened: the parent's side of the truth.

use std::collections::BTreeMap;

use berth_engine::InstanceId;

use crate::deed::{Deed, Message, Wanted};
use crate::fleet::node_name;

/// A claim as it must be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Known {
    /// The node.
    pub node: String,
    /// Thousandths of a core.
    pub cpu_milli: i64,
    /// Mebibytes.
    pub memory_mib: i64,
    /// The number of its state.
    pub state: i64,
}

type Claims = BTreeMap<InstanceId, Known>;

/// Examples that a complaint shows.
const EXAMPLES: usize = 3;

/// Every acknowledged request, and those that were sent and not answered.
#[derive(Clone, Debug, Default)]
pub struct Book {
    claims: Claims,
    /// By round and thread: a thread has one request under way at most.
    open: BTreeMap<(u32, u32), Deed>,
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

impl Book {
    /// Takes down a line of a load.
    pub fn note(&mut self, round: u32, message: Message) {
        match message {
            Message::Begun { thread, deed } => {
                self.open.insert((round, thread), deed);
            }
            Message::Done { thread } => {
                if let Some(deed) = self.open.remove(&(round, thread)) {
                    self.done += 1;
                    *self.done_by_thread.entry(thread).or_default() += 1;
                    self.apply(&deed);
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
    pub fn claims(&self) -> &BTreeMap<InstanceId, Known> {
        &self.claims
    }

    /// Requests that were sent and not answered.
    #[must_use]
    pub fn open(&self) -> Vec<Deed> {
        self.open.values().cloned().collect()
    }

    /// Takes down that a request was done: now, or before, which then changes nothing.
    pub fn apply(&mut self, deed: &Deed) {
        let ids = deed.instances();
        let before = part(&self.claims, &ids);
        apply(&mut self.claims, deed);
        let is_new = part(&self.claims, &ids) != before;
        self.plans += u64::from(is_new && matches!(deed, Deed::Commit { .. }));
    }

    /// Compares the book with what is in the table, and closes what was open: a request without an
    /// answer was done whole or not at all, whichever the table says.
    pub fn compare(&mut self, table: &BTreeMap<InstanceId, Known>) -> Vec<String> {
        let mut complaints = Vec::new();
        for deed in std::mem::take(&mut self.open).into_values() {
            let ids = deed.instances();
            let (before, found) = (part(&self.claims, &ids), part(table, &ids));
            let mut after = before.clone();
            apply(&mut after, &deed);
            if found == after {
                self.apply(&deed);
            } else if found != before {
                complaints.push(format!("half done: {deed:?}: found {found:?}"));
            }
        }
        let lost: Vec<_> = self.claims.iter().filter(|(id, _)| !table.contains_key(id)).collect();
        let other = |(id, known): &(&InstanceId, &Known)| {
            table.get(id).is_some_and(|found| found != *known)
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
                complaints.push(format!("{} claims {what}, such as {some:?}", claims.len()));
            }
        }
        complaints
    }
}

fn part(claims: &Claims, ids: &[InstanceId]) -> Claims {
    ids.iter().filter_map(|id| Some((*id, claims.get(id)?.clone()))).collect()
}

fn known(wanted: &Wanted, state: i64) -> Known {
    Known {
        node: node_name(wanted.node),
        cpu_milli: wanted.cpu_milli.into(),
        memory_mib: wanted.memory_mib.into(),
        state,
    }
}

fn apply(claims: &mut Claims, deed: &Deed) {
    match deed {
        Deed::Commit { claims: wanted, .. } => {
            claims.extend(wanted.iter().map(|wanted| (wanted.instance, known(wanted, 0))));
        }
        Deed::Release { instance, .. } => drop(claims.remove(instance)),
        Deed::Move { to, .. } | Deed::Resize { to, .. } => {
            if let Some(claim) = claims.get_mut(&to.instance) {
                *claim = known(to, claim.state);
            }
        }
        Deed::Bind { instance, .. } => {
            if let Some(claim) = claims.get_mut(instance) {
                claim.state = 1;
            }
        }
    }
}

impl Deed {
    fn instances(&self) -> Vec<InstanceId> {
        match self {
            Self::Commit { claims, .. } => claims.iter().map(|wanted| wanted.instance).collect(),
            Self::Release { instance, .. } | Self::Bind { instance, .. } => vec![*instance],
            Self::Move { to, .. } | Self::Resize { to, .. } => vec![to.instance],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(number: u128) -> Wanted {
        let instance = InstanceId::from_u128(number);
        Wanted { instance, node: 1, cpu_milli: 100, memory_mib: 128 }
    }

    fn begun(thread: u32, numbers: &[u128]) -> Message {
        let claims = numbers.iter().map(|number| wanted(*number)).collect();
        Message::Begun { thread, deed: Deed::Commit { request: "r".to_owned(), claims } }
    }

    #[test]
    fn what_was_not_answered_may_be_either_but_not_half() {
        let one = (wanted(1).instance, known(&wanted(1), 0));
        let two = (wanted(2).instance, known(&wanted(2), 0));
        for (table, complaint) in
            [(vec![], None), (vec![one.clone(), two], None), (vec![one], Some("half done"))]
        {
            let mut book = Book::default();
            book.note(0, begun(0, &[1, 2]));
            let complaints = book.compare(&table.into_iter().collect());
            let found = complaints.first().map(|text| text.starts_with("half done"));
            assert_eq!(found, complaint.map(|_| true), "{complaints:?}");
        }
    }

    #[test]
    fn what_was_acknowledged_must_be_there() {
        let mut book = Book::default();
        book.note(0, begun(0, &[1]));
        book.note(0, Message::Done { thread: 0 });
        let complaints = book.compare(&BTreeMap::new());
        assert!(complaints[0].contains("acknowledged and lost"), "{complaints:?}");
    }
}
