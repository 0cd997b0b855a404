//! Gangs: pods that get a place all together or not at all.

use std::sync::Arc;

use berth_engine::Timestamp;

use super::Cluster;
use super::outcome::{GangOutcome, Refusal, Reservation};
use super::place::NoPlace;
use super::pod::{Key, Pod};
use super::pods::PodEntry;
use super::rules::Failure;

impl Cluster {
    /// Reserves a node for every pod of a gang that has none, or for none of them.
    pub fn place_gang(&mut self, namespace: &str, name: &str, now: Timestamp) -> GangOutcome {
        let key = Key::new(namespace, name);
        let there = |it: &&PodEntry| it.pod.counts() && !it.pod.deleting;
        let members: Vec<&PodEntry> = self.pods.gang(&key).filter(there).collect();
        let size = match size(&members) {
            Ok(size) => size,
            Err((pod, failure)) => {
                let uid = Arc::clone(&pod.uid);
                return GangOutcome::Refused(Box::new(self.refuse_anywhere(&uid, &failure)));
            }
        };
        let placed = members.iter().filter(|it| it.at.is_some() || it.pod.node.is_some()).count();
        let scheduler = &self.settings.scheduler;
        let mut waiting: Vec<Arc<Pod>> = members
            .iter()
            .filter(|it| it.is_pending(scheduler))
            .map(|it| Arc::clone(&it.pod))
            .collect();
        let there = placed + waiting.len();
        if there < size {
            return GangOutcome::Incomplete { there, size };
        }
        // The largest first: small ones fit in what is left.
        let size = |it: &Pod| it.asked.resources.cpu_milli + (it.asked.resources.memory >> 20);
        waiting.sort_unstable_by(|a, b| (size(b), &a.key).cmp(&(size(a), &b.key)));
        self.place_all(&key, waiting, now)
    }

    fn place_all(&mut self, gang: &Key, waiting: Vec<Arc<Pod>>, now: Timestamp) -> GangOutcome {
        let (news, of) = (self.news, waiting.len());
        let promised = waiting.iter().filter_map(|it| self.pods.get(&it.uid));
        let promised: Vec<_> = promised
            .filter_map(|it| Some((Arc::clone(&it.pod.uid), it.promised.clone()?)))
            .collect();
        let mut reserved: Vec<Reservation> = Vec::with_capacity(of);
        let Err(refusal) = self.try_all(waiting, &mut reserved, now) else {
            return GangOutcome::Reserved(reserved);
        };
        for reservation in &reserved {
            self.give_up(&reservation.uid);
        }
        // What was only tried leaves no trace.
        for (uid, node) in promised {
            self.promise(&uid, &node);
        }
        (self.news, self.refused) = (news, None);
        GangOutcome::Refused(Box::new(for_gang(*refusal, gang, reserved.len(), of)))
    }

    /// Reserves a node for one after the other. Who is refused is tried again after the others:
    /// it may have to be beside one of them.
    fn try_all(
        &mut self,
        mut waiting: Vec<Arc<Pod>>,
        reserved: &mut Vec<Reservation>,
        now: Timestamp,
    ) -> Result<(), Box<Refusal>> {
        while !waiting.is_empty() {
            let mut again = Vec::new();
            for pod in &waiting {
                match self.choose(&pod.uid, now) {
                    Ok(place) => reserved.extend(self.reserve(&pod.uid, place)),
                    Err(NoPlace::Everywhere) => again.push(Arc::clone(pod)),
                    Err(NoPlace::Anywhere(failure)) => {
                        return Err(Box::new(self.refuse_anywhere(&pod.uid, &failure)));
                    }
                }
            }
            if let Some(first) = again.first().filter(|_| again.len() == waiting.len()) {
                return Err(Box::new(self.refuse(&first.uid, now)));
            }
            waiting = again;
        }
        Ok(())
    }
}

fn for_gang(mut refusal: Refusal, gang: &Key, done: usize, of: usize) -> Refusal {
    let line = std::mem::take(&mut refusal.line);
    refusal.line = format!(
        "gang {} is placed all together or not at all: {done} of {of} found a place, then for {} {line}",
        gang.name, refusal.pod.name,
    );
    refusal
}

/// How many pods the gang has, on which all of its pods must agree.
fn size<'a>(members: &[&'a PodEntry]) -> Result<usize, (&'a Pod, Failure)> {
    let mut size = None;
    for entry in members {
        let Some(gang) = &entry.pod.gang else { continue };
        let wrong = |text: String| {
            let (rule, code) = ("gang".into(), "gang_size_invalid");
            Err((&*entry.pod, Failure { rule, code, text, short: None }))
        };
        match (&gang.size, size) {
            (Err(found), _) => {
                return wrong(format!(
                    "{} is {found:?}; accepted is a number of pods from 1 on",
                    super::pod::GANG_SIZE
                ));
            }
            (Ok(this), Some(other)) if *this != other => {
                return wrong(format!(
                    "pods of gang {} disagree on {}: {this} and {other}",
                    gang.name,
                    super::pod::GANG_SIZE
                ));
            }
            (Ok(this), _) => size = Some(*this),
        }
    }
    Ok(size.unwrap_or(1))
}
