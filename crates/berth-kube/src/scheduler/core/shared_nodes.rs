//! Nodes that another scheduler uses as well: recalls bindings that do not fit any more and were not sent yet, and
//! has bindings checked by the API server's state where the watch may be behind. See
//! `docs/decisions/0071-bindings-to-shared-nodes-are-checked.md`.

use std::sync::Arc;

use rustc_hash::FxHashSet;

use super::SchedulerCore;
use crate::cluster::PodState;
use crate::cluster::observed_pod::ObservedPod;
use crate::scheduler::messages::{NodeListing, RecalledBindings};
use crate::scheduler::queue::{Millis, Moment};

/// How long another scheduler counts as active after it was seen.
const ACTIVE_MS: Millis = 60_000;

/// What is known of other schedulers, and what was recalled because of them.
#[derive(Debug, Default)]
pub(super) struct SharedNodes {
    recalled: RecalledBindings,
    /// Pods whose bindings were recalled because of pods that the watch has not shown yet.
    outrun: FxHashSet<Arc<str>>,
    /// When another scheduler's pod appeared or was bound last.
    last_foreign: Option<Millis>,
    is_unchecked: bool,
}

impl SharedNodes {
    /// A pod is not being bound any more.
    pub(super) fn forget(&mut self, uid: &str) {
        self.recalled.take(uid);
        self.outrun.remove(uid);
    }

    /// Pods whose bindings are recalled.
    pub(super) fn recalled(&self) -> Vec<Arc<str>> {
        self.recalled.all()
    }

    /// How long ago another scheduler's pod appeared or was bound.
    pub(super) fn foreign_seen_ms_ago(&self, now: Moment) -> Option<Millis> {
        self.last_foreign.map(|at| now.millis.saturating_sub(at))
    }

    /// Whether a binding was recalled because of what the watch has not shown yet.
    pub(super) fn take_outrun(&mut self, uid: &str) -> bool {
        self.outrun.remove(uid)
    }
}

impl SchedulerCore {
    /// Lets it have bindings to nearly full nodes checked while another scheduler is active.
    pub(crate) const fn checking_shared_nodes(mut self, checks: bool) -> Self {
        self.shared_nodes.is_unchecked = !checks;
        self
    }

    /// Bindings that are not to be sent any more.
    pub(crate) fn recalled_bindings(&self) -> RecalledBindings {
        self.shared_nodes.recalled.clone()
    }

    /// Recalls bindings that do not fit any more. Their pods stay reserved until the executor answers.
    pub(super) fn recall_bindings(&mut self) {
        for uid in self.cluster.take_displaced() {
            self.shared_nodes.recalled.recall(uid);
        }
    }

    /// Adds or updates a pod, and notices whether another scheduler is active.
    pub(super) fn observe_pod(&mut self, observed: &ObservedPod, now: Moment) {
        self.put_pod(observed);
        let meta = &observed.pod.metadata;
        let Some(record) = meta.uid.as_deref().and_then(|uid| self.pods.get_mut(uid)) else {
            return;
        };
        let scheduler = observed.pod.spec.as_ref().and_then(|it| it.scheduler_name.as_deref());
        let is_theirs = scheduler.is_some_and(|it| it != self.scheduler) && !record.mirror;
        // What was there before the start says nothing, nor do changes of pods that run.
        if is_theirs
            && self.synced
            && matches!(record.state, PodState::Foreign | PodState::Bound)
            && record.noticed != Some(record.state)
        {
            self.shared_nodes.last_foreign = Some(now.millis);
        }
        record.noticed = Some(record.state);
    }

    /// Whether the binding of a pod that was just reserved has to be checked before it is sent.
    pub(super) fn is_contested(&self, uid: &str, now: Moment) -> bool {
        let last = self.shared_nodes.last_foreign.filter(|_| !self.shared_nodes.is_unchecked);
        last.is_some_and(|last| now.millis.saturating_sub(last) < ACTIVE_MS)
            && self.cluster.is_nearly_full_by(uid)
    }

    /// Checks a binding against the pods that the API server has on its node; recalls it if it does not fit.
    pub(super) fn check_binding(&mut self, listing: NodeListing) {
        let NodeListing { uid, pods, checked } = listing;
        let recalled = &self.shared_nodes.recalled;
        let fits = self.cluster.fits_beside(&uid, &pods, |uid| recalled.has(uid));
        self.metrics.record_node_check(if fits { "clear" } else { "recalled" });
        if !fits {
            recalled.recall(Arc::clone(&uid));
            self.shared_nodes.outrun.insert(uid);
        }
        // The executor may have stopped waiting.
        let _ = checked.send(());
    }
}
