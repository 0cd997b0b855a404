//! Those who are next get a place, or are told why not.

use std::sync::Arc;

use tokio::time::Instant;

use super::{Brain, Moment, Promise, Told};
use crate::cluster::PodState;
use crate::cluster::outcome::{GangOutcome, Outcome, Preemption, Refusal, Reservation};
use crate::cluster::pod::Key;
use crate::scheduler::messages::{Notice, Work};
use crate::scheduler::metrics::Attempt;
use crate::scheduler::queue::{Millis, Who};

/// The same refusal is told again after this long.
const AGAIN_MS: Millis = 5 * 60_000;
/// A refusal with other numbers is told again after this long.
const OTHER_NUMBERS_MS: Millis = 30_000;
/// How long a promise that another leader made is kept though it does not help.
const INHERITED_MS: Millis = 60_000;

impl Brain {
    /// Tries so many of those who are next. What is to be done is added to `work`.
    pub(crate) fn step(&mut self, now: Moment, most: usize, work: &mut Vec<Work>) {
        if !self.acts() {
            return;
        }
        self.empty_nodes(now, work);
        for _ in 0..most {
            let Some(who) = self.queue.take() else { return };
            let began = Instant::now();
            let attempt = match &who {
                Who::Pod(uid) => self.place_pod(uid, now, work),
                Who::Gang(gang) => self.place_gang(gang, now, work),
            };
            self.metrics.attempt(attempt, began.elapsed());
        }
    }

    fn place_pod(&mut self, uid: &Arc<str>, now: Moment, work: &mut Vec<Work>) -> Attempt {
        let who = Who::Pod(Arc::clone(uid));
        match self.cluster.place(uid, now.date) {
            Outcome::Reserved(reservation) => {
                self.keep_promise(&reservation, work);
                self.reserved(uid);
                work.push(Work::Bind(reservation));
                Attempt::Placed
            }
            Outcome::Preempt(preemption, refusal) => {
                self.tell(uid, &refusal, now, work);
                self.preempt(who, preemption, now, work);
                Attempt::Preempting
            }
            Outcome::Refused(refusal) => {
                self.tell(uid, &refusal, now, work);
                self.doubt_promise(uid, &refusal.pod, now, work);
                self.queue.refuse(&who, now.millis);
                Attempt::Refused
            }
            Outcome::NotPending => {
                self.queue.remove(&who);
                Attempt::NotPending
            }
        }
    }

    fn place_gang(&mut self, gang: &Key, now: Moment, work: &mut Vec<Work>) -> Attempt {
        let who = Who::Gang(gang.clone());
        match self.cluster.place_gang(&gang.namespace, &gang.name, now.date) {
            GangOutcome::Reserved(members) if members.is_empty() => {
                self.queue.remove(&who);
                Attempt::NotPending
            }
            GangOutcome::Reserved(members) => {
                for member in &members {
                    self.keep_promise(member, work);
                    self.reserved(&member.uid);
                }
                work.push(Work::BindGang { gang: gang.clone(), members });
                Attempt::Placed
            }
            GangOutcome::Incomplete { there, size } => {
                let (code, line) = ("gang_incomplete", incomplete(&gang.name, there, size));
                self.tell_gang(gang, code, &line, &line, now, work);
                self.queue.refuse(&who, now.millis);
                Attempt::Refused
            }
            GangOutcome::Refused(refusal) => {
                self.tell_gang(gang, &refusal.code, &refusal.line, &refusal.text(), now, work);
                self.queue.refuse(&who, now.millis);
                Attempt::Refused
            }
        }
    }

    fn reserved(&mut self, uid: &Arc<str>) {
        self.told.remove(uid);
        if let Some(known) = self.pods.get_mut(uid) {
            known.state = PodState::Reserved;
        }
    }

    /// A pod that has a place now needs no promise of another.
    fn keep_promise(&mut self, reservation: &Reservation, work: &mut Vec<Work>) {
        let uid = &reservation.uid;
        let nominated = self.cluster.pod(uid).and_then(|pod| pod.nominated.clone());
        let promised = self.promises.remove(uid).map(|promise| promise.node).or(nominated);
        if promised.is_some_and(|node| node != reservation.node) {
            let (pod, uid) = (reservation.pod.clone(), Arc::clone(uid));
            work.push(Work::Unnominate { pod, uid });
        }
    }

    fn preempt(
        &mut self,
        who: Who,
        preemption: Box<Preemption>,
        now: Moment,
        work: &mut Vec<Work>,
    ) {
        let uid = &preemption.uid;
        if let Some(node) = self.promises.get(uid).map(|promise| Arc::clone(&promise.node))
            && self.is_being_left(&node)
        {
            // Those who were told are on their way out, even if that has not been seen yet: nobody
            // else has to go.
            self.cluster.promise(uid, &node);
            self.queue.refuse(&who, now.millis);
            return;
        }
        let victims = preemption.victims.iter().map(|victim| Arc::clone(&victim.uid)).collect();
        for (pod, uid) in &preemption.unpromised {
            self.promises.remove(uid);
            work.push(Work::Unnominate { pod: pod.clone(), uid: Arc::clone(uid) });
        }
        let node = Arc::clone(&preemption.node);
        let promise = Promise { node, victims: Some(victims), until: now.millis };
        self.promises.insert(Arc::clone(uid), promise);
        // It stays out of line until they have been told.
        work.push(Work::Preempt(preemption));
    }

    /// Whether somebody is still on a node who was told to go, for whomever.
    fn is_being_left(&self, node: &Arc<str>) -> bool {
        let promises = self.promises.values().filter(|promise| promise.node == *node);
        let mut told = promises.flat_map(|promise| promise.victims.iter().flatten());
        told.any(|victim| self.pods.contains_key(victim))
    }

    /// A pod that was promised a node was refused: when nobody is leaving it any more, the promise
    /// only keeps others away.
    fn doubt_promise(&mut self, uid: &Arc<str>, pod: &Key, now: Moment, work: &mut Vec<Work>) {
        if !self.promises.contains_key(uid) {
            let Some(node) = self.cluster.pod(uid).and_then(|it| it.nominated.clone()) else {
                return;
            };
            let until = now.millis.saturating_add(INHERITED_MS);
            self.promises.insert(Arc::clone(uid), Promise { node, victims: None, until });
        }
        let Some(promise) = self.promises.get(uid) else { return };
        let leaving = |victims: &Vec<Arc<str>>| victims.iter().any(|it| self.pods.contains_key(it));
        if promise.until > now.millis || promise.victims.as_ref().is_some_and(leaving) {
            return;
        }
        self.promises.remove(uid);
        self.cluster.forget_promise(uid);
        work.push(Work::Unnominate { pod: pod.clone(), uid: Arc::clone(uid) });
    }

    fn tell(&mut self, uid: &Arc<str>, refusal: &Refusal, now: Moment, work: &mut Vec<Work>) {
        self.tell_pod(
            uid,
            &refusal.pod,
            (&refusal.code, &refusal.line),
            || refusal.text(),
            now,
            work,
        );
    }

    fn tell_gang(
        &mut self,
        gang: &Key,
        code: &str,
        line: &str,
        text: &str,
        now: Moment,
        work: &mut Vec<Work>,
    ) {
        let members = self.gangs.get(gang).into_iter().flat_map(|it| it.keys());
        // Some may have a place, and be about to be bound.
        let waits = |uid: &Arc<str>| {
            let known = self.pods.get(uid).filter(|it| it.state == PodState::Pending)?;
            Some((known.key.clone(), Arc::clone(uid)))
        };
        let mut members: Vec<(Key, Arc<str>)> = members.filter_map(waits).collect();
        members.sort();
        for (key, uid) in members {
            self.tell_pod(&uid, &key, (code, line), || text.to_owned(), now, work);
        }
    }

    /// Tells a pod why it has no place, unless it has just been told the same.
    pub(super) fn tell_pod(
        &mut self,
        uid: &Arc<str>,
        pod: &Key,
        (code, line): (&str, &str),
        text: impl FnOnce() -> String,
        now: Moment,
        work: &mut Vec<Work>,
    ) {
        let before = self.told.get(uid);
        let is_news = before.is_none_or(|told| {
            let waited = now.millis.saturating_sub(told.at);
            let patience = match (told.code == code, told.line == line) {
                (true, true) => AGAIN_MS,
                (true, false) => OTHER_NUMBERS_MS,
                (false, _) => 0,
            };
            waited >= patience
        });
        if !is_news {
            return;
        }
        let first = before.is_none();
        let told = Told { code: code.to_owned(), line: line.to_owned(), at: now.millis };
        self.told.insert(Arc::clone(uid), told);
        let version = self.pods.get(uid).and_then(|known| known.version);
        let (pod, uid) = (pod.clone(), Arc::clone(uid));
        work.push(Work::Tell(Notice { pod, uid, message: text(), version, first }));
    }
}

fn incomplete(gang: &str, there: usize, size: usize) -> String {
    let missing = size.saturating_sub(there);
    format!(
        "gang {gang} has {there} of {size} pods: it is placed when the other {missing} are there"
    )
}
