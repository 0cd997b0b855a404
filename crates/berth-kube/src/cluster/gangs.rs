//! Gangs: pods that are scheduled all together or not at all.

use std::sync::Arc;

use berth_engine::Timestamp;

use super::Cluster;
use super::filters::FilterFailure;
use super::outcome::{GangOutcome, Refusal, Reservation};
use super::pod::{Key, Pod};
use super::pod_store::PodEntry;
use super::scheduling::SchedulingFailure;

impl Cluster {
    /// Reserves nodes for all pending pods of a gang, or for none.
    pub fn schedule_gang(&mut self, namespace: &str, name: &str, now: Timestamp) -> GangOutcome {
        let key = Key::new(namespace, name);
        // A member that ended was scheduled; it does not make the gang incomplete.
        let present = |it: &&PodEntry| it.pod.ended || !it.pod.deleting;
        let members: Vec<&PodEntry> = self.pods.gang(&key).filter(present).collect();
        let size = match size(&members) {
            Ok(size) => size,
            Err((pod, failure)) => {
                let uid = Arc::clone(&pod.uid);
                return GangOutcome::Refused(Box::new(self.refuse_pod(&uid, &failure)));
            }
        };
        let placed =
            members.iter().filter(|it| it.assigned.is_some() || it.pod.node.is_some()).count();
        let scheduler = &self.settings.scheduler;
        let mut waiting: Vec<Arc<Pod>> = members
            .iter()
            .filter(|it| it.is_pending(scheduler))
            .map(|it| Arc::clone(&it.pod))
            .collect();
        let present = placed + waiting.len();
        if present < size {
            return GangOutcome::Incomplete { present, size };
        }
        // The largest first: small pods fit into what is left.
        let size =
            |it: &Pod| it.requests.resources.cpu_milli + (it.requests.resources.memory >> 20);
        waiting.sort_unstable_by(|a, b| (size(b), &a.key).cmp(&(size(a), &b.key)));
        self.schedule_members(&key, waiting, now)
    }

    fn schedule_members(
        &mut self,
        gang: &Key,
        waiting: Vec<Arc<Pod>>,
        now: Timestamp,
    ) -> GangOutcome {
        let (changed, of) = (self.changed, waiting.len());
        let nominated = waiting.iter().filter_map(|it| self.pods.get(&it.uid));
        let nominated: Vec<_> = nominated
            .filter_map(|it| Some((Arc::clone(&it.pod.uid), it.nominated.clone()?)))
            .collect();
        let mut reserved: Vec<Reservation> = Vec::with_capacity(of);
        let Err(refusal) = self.reserve_members(waiting, &mut reserved, now) else {
            return GangOutcome::Reserved(reserved);
        };
        for reservation in &reserved {
            self.unreserve(&reservation.uid);
        }
        // A failed attempt leaves no trace.
        for (uid, node) in nominated {
            self.nominate(&uid, &node);
        }
        (self.changed, self.refused) = (changed, None);
        GangOutcome::Refused(Box::new(for_gang(*refusal, gang, reserved.len(), of)))
    }

    /// Reserves nodes one pod at a time. A refused pod is retried after the others: it may have
    /// affinity to one of them.
    fn reserve_members(
        &mut self,
        mut waiting: Vec<Arc<Pod>>,
        reserved: &mut Vec<Reservation>,
        now: Timestamp,
    ) -> Result<(), Box<Refusal>> {
        while !waiting.is_empty() {
            let mut again = Vec::new();
            for pod in &waiting {
                match self.choose_node(&pod.uid, now) {
                    Ok(index) => match self.reserve(&pod.uid, index) {
                        Some(reservation) => reserved.push(reservation),
                        // What was accepted a moment ago is not available: none is placed.
                        None => return Err(Box::new(self.build_refusal(&pod.uid, now))),
                    },
                    Err(SchedulingFailure::NodesRejected) => again.push(Arc::clone(pod)),
                    Err(SchedulingFailure::PodRejected(failure)) => {
                        return Err(Box::new(self.refuse_pod(&pod.uid, &failure)));
                    }
                }
            }
            if let Some(first) = again.first().filter(|_| again.len() == waiting.len()) {
                return Err(Box::new(self.build_refusal(&first.uid, now)));
            }
            waiting = again;
        }
        Ok(())
    }
}

fn for_gang(mut refusal: Refusal, gang: &Key, done: usize, of: usize) -> Refusal {
    let line = std::mem::take(&mut refusal.line);
    refusal.line = format!(
        "gang {} is scheduled all together or not at all: {done} of {of} pods fit, then for {} {line}",
        gang.name, refusal.pod.name,
    );
    refusal
}

/// The size of a gang, on which all its pods must agree.
fn size<'a>(members: &[&'a PodEntry]) -> Result<usize, (&'a Pod, FilterFailure)> {
    let mut size = None;
    for entry in members {
        let Some(gang) = &entry.pod.gang else { continue };
        let wrong = |text: String| {
            Err((&*entry.pod, FilterFailure::new("gang", "gang_size_invalid", text)))
        };
        match (&gang.size, size) {
            (Err(found), _) => {
                return wrong(format!(
                    "{} is {found:?}; accepted: a number of pods, at least 1",
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
