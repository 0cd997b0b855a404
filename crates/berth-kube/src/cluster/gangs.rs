//! Gangs: pods that are scheduled all together or not at all, and groups of Kubernetes, of which a minimum is.

use std::sync::Arc;

use berth_engine::Timestamp;

use super::Cluster;
use super::filters::FilterFailure;
use super::outcome::{GangOutcome, GroupPlan, Refusal, Reservation};
use super::pod::{GangRule, Key, Pod};
use super::pod_groups::{GroupPolicy, describe_gang};
use super::pod_store::PodEntry;
use super::scheduling::SchedulingFailure;

/// How many pods of a gang have to be scheduled together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Quorum {
    /// All, and at least so many.
    All(usize),
    /// At least so many; the others when they fit.
    AtLeast(usize),
}

impl Cluster {
    /// Reserves nodes for the pending pods of a gang: for all or none, or, of a group with a minimum,
    /// for at least as many.
    pub fn schedule_gang(&mut self, namespace: &str, name: &str, now: Timestamp) -> GangOutcome {
        let key = Key::new(namespace, name);
        // A member that ended was scheduled; it does not make the gang incomplete.
        let present = |it: &&PodEntry| it.pod.ended || !it.pod.deleting;
        let members: Vec<&PodEntry> = self.pods.gang(&key).filter(present).collect();
        let quorum = match self.quorum(&members) {
            Ok(quorum) => quorum,
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
        let (Quorum::All(size) | Quorum::AtLeast(size)) = quorum;
        if present < size {
            return GangOutcome::Incomplete { present, size };
        }
        // The largest first: small pods fit into what is left.
        let size =
            |it: &Pod| it.requests.resources.cpu_milli + (it.requests.resources.memory >> 20);
        waiting.sort_unstable_by(|a, b| (size(b), &a.key).cmp(&(size(a), &b.key)));
        self.schedule_members(&key, waiting, (quorum, placed), now)
    }

    /// How many pods have to be scheduled together, on which all members must agree.
    fn quorum<'a>(&self, members: &[&'a PodEntry]) -> Result<Quorum, (&'a Pod, FilterFailure)> {
        let rules = members.iter().filter_map(|it| Some((&*it.pod, &it.pod.gang.as_ref()?.rule)));
        let mut quorum = None;
        for (pod, rule) in rules {
            let found = self.quorum_of(pod, rule).map_err(|failure| (pod, failure))?;
            match quorum {
                Some(other) if other != found => {
                    return Err((pod, disagreement(pod, found, other)));
                }
                _ => quorum = Some(found),
            }
        }
        Ok(quorum.unwrap_or(Quorum::All(1)))
    }

    fn quorum_of(&self, pod: &Pod, rule: &GangRule) -> Result<Quorum, FilterFailure> {
        let failure = |code, text| Err(FilterFailure::new("gang", code, text));
        let group = match rule {
            GangRule::Size(Ok(size)) => return Ok(Quorum::All(*size)),
            GangRule::Size(Err(found)) => {
                let text = format!(
                    "{} is {found:?}; accepted: a number of pods, at least 1",
                    super::pod::GANG_SIZE
                );
                return failure("gang_size_invalid", text);
            }
            GangRule::Unknown(what) => {
                let text = format!(
                    "the pod belongs to {what}; accepted: one PodGroup, one group of a Workload, or the \
                     label {}",
                    super::pod::GANG
                );
                return failure("pod_group_unknown", text);
            }
            GangRule::Group(group) => group,
        };
        match self.groups.get(&pod.key.namespace, group).map(|it| &it.policy) {
            None => {
                let text = format!(
                    "{group} does not exist in namespace {}, or the cluster does not serve it; the pod is \
                     not scheduled without",
                    pod.key.namespace
                );
                failure("pod_group_missing", text)
            }
            Some(GroupPolicy::Unsupported(why)) => {
                failure("pod_group_unsupported", format!("{group}: {why}"))
            }
            Some(GroupPolicy::Basic) => Ok(Quorum::AtLeast(0)),
            Some(GroupPolicy::Gang { min_count }) => Ok(Quorum::AtLeast(*min_count)),
        }
    }

    fn schedule_members(
        &mut self,
        gang: &Key,
        waiting: Vec<Arc<Pod>>,
        (quorum, placed): (Quorum, usize),
        now: Timestamp,
    ) -> GangOutcome {
        let (changed, of) = (self.changed, waiting.len());
        let nominated = waiting.iter().filter_map(|it| self.pods.get(&it.uid));
        let nominated: Vec<_> = nominated
            .filter_map(|it| Some((Arc::clone(&it.pod.uid), it.nominated.clone()?)))
            .collect();
        let mut reserved: Vec<Reservation> = Vec::with_capacity(of);
        let refusal = self.reserve_members(waiting, quorum, &mut reserved, now).err();
        let done = reserved.len();
        let enough = match quorum {
            Quorum::All(_) => refusal.is_none(),
            Quorum::AtLeast(min) => placed + done >= min,
        };
        if let Some(refusal) = refusal.as_ref().filter(|_| !enough) {
            for reservation in &reserved {
                self.unreserve(&reservation.uid);
            }
            // A failed attempt leaves no trace.
            for (uid, node) in nominated {
                self.nominate(&uid, &node);
            }
            (self.changed, self.refused) = (changed, None);
            let refusal = refusal_of_gang((**refusal).clone(), gang, quorum, (done, of));
            return GangOutcome::Refused(Box::new(refusal));
        }
        match quorum {
            Quorum::All(_) => GangOutcome::Reserved(reserved),
            Quorum::AtLeast(min) => {
                let is_gang = placed < min;
                GangOutcome::Group(GroupPlan { members: reserved, is_gang, refusal })
            }
        }
    }

    /// Reserves nodes one pod at a time. A refused pod is retried after the others: it may have
    /// affinity to one of them.
    ///
    /// # Errors
    /// When a pod is refused. Of a group with a minimum, all others that fit are reserved then.
    fn reserve_members(
        &mut self,
        mut waiting: Vec<Arc<Pod>>,
        quorum: Quorum,
        reserved: &mut Vec<Reservation>,
        now: Timestamp,
    ) -> Result<(), Box<Refusal>> {
        let mut rejected: Option<Box<Refusal>> = None;
        while !waiting.is_empty() {
            let mut again = Vec::new();
            for pod in &waiting {
                let refusal = match self.choose_node(&pod.uid, now) {
                    Ok(index) => match self.reserve(&pod.uid, index) {
                        Some(reservation) => {
                            reserved.push(reservation);
                            continue;
                        }
                        // What was accepted a moment ago is not available.
                        None => self.build_refusal(&pod.uid, now),
                    },
                    Err(SchedulingFailure::NodesRejected) => {
                        again.push(Arc::clone(pod));
                        continue;
                    }
                    Err(SchedulingFailure::PodRejected(failure)) => {
                        self.refuse_pod(&pod.uid, &failure)
                    }
                };
                if matches!(quorum, Quorum::All(_)) {
                    return Err(Box::new(refusal));
                }
                rejected.get_or_insert_with(|| Box::new(refusal));
            }
            if let Some(first) = again.first().filter(|_| again.len() == waiting.len()) {
                return Err(Box::new(self.build_refusal(&first.uid, now)));
            }
            waiting = again;
        }
        rejected.map_or(Ok(()), Err)
    }

    /// The accounted pods of a gang that may be preempted only all together; absent: the pod may be
    /// preempted alone.
    pub(super) fn preemption_unit(&self, pod: &Pod) -> Option<Vec<Arc<Pod>>> {
        let is_unit = match &pod.gang.as_ref()?.rule {
            GangRule::Size(_) | GangRule::Unknown(_) => true,
            GangRule::Group(group) => {
                let group = self.groups.get(&pod.key.namespace, group);
                // Without the group's object nobody knows; then the pods stay together.
                group.is_none_or(|it| it.is_unit || it.policy != GroupPolicy::Basic)
            }
        };
        if !is_unit {
            return None;
        }
        let key = pod.gang_key()?;
        let members = self.pods.gang(&key).filter(|it| it.assigned.is_some() && !it.pod.deleting);
        Some(members.map(|it| Arc::clone(&it.pod)).collect())
    }
}

fn disagreement(pod: &Pod, found: Quorum, other: Quorum) -> FilterFailure {
    let gang = pod.gang.as_ref().map_or("", |it| &*it.name);
    let text = match (found, other) {
        (Quorum::All(found), Quorum::All(other)) => format!(
            "pods of {} disagree on {}: {found} and {other}",
            describe_gang(gang),
            super::pod::GANG_SIZE
        ),
        _ => format!("pods of {} disagree on how it is scheduled", describe_gang(gang)),
    };
    FilterFailure::new("gang", "gang_size_invalid", text)
}

fn refusal_of_gang(
    mut refusal: Refusal,
    gang: &Key,
    quorum: Quorum,
    (done, of): (usize, usize),
) -> Refusal {
    let line = std::mem::take(&mut refusal.line);
    let gang = describe_gang(&gang.name);
    let rule = match quorum {
        Quorum::All(_) => "is scheduled all together or not at all".to_owned(),
        Quorum::AtLeast(min) => format!("is scheduled at least {min} pods at once"),
    };
    let pod = &refusal.pod.name;
    refusal.line = format!("{gang} {rule}: {done} of {of} pods fit, then for {pod} {line}");
    refusal
}
