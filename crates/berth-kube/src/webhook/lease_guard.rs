//! Finds pods that the watch does not report, before the leases on their slots end.
//!
//! A connection may be lost without a packet that says so; then the watch is silent for minutes, and the slots
//! of new pods would be given again. A reservation whose pod has not appeared for a while is looked up by a
//! list. If the pod is there, its slot is made permanent, and the watch is started again. Nothing is released
//! here, and the cache is fed by the watch alone.

use std::sync::Arc;
use std::time::Duration;

use berth_control::workload::WorkloadKey;
use berth_engine::InstanceId;
use berth_ledger::ClaimState;
use hashbrown::{HashMap, HashSet};
use kube::{Api, Client};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::annotations;
use super::metrics::Metrics;
use super::pod_cache::{is_terminated, read_token};
use super::slot_reconciler::{ReconcileError, SlotReconciler, pods_of_revision};
use super::slot_store::SlotClaim;
use super::watched_pod::WatchedPod;

/// How long a watch may take to report a pod that a list has.
const WATCH_DELAY: Duration = Duration::from_millis(500);

/// See the module.
pub(super) struct LeaseGuard {
    pub(super) client: Client,
    pub(super) reconciler: Arc<SlotReconciler>,
    pub(super) metrics: Arc<Metrics>,
    /// Starts the watch of pods again.
    pub(super) restart: Arc<Notify>,
    /// How long a slot is reserved.
    pub(super) lease: Duration,
}

impl LeaseGuard {
    /// Looks for pods until stopped. A reservation is looked up after a quarter to half of its lease.
    pub(super) async fn run(self, stop: CancellationToken) {
        let mut before: HashMap<InstanceId, i64> = HashMap::new();
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(self.lease / 4) => {}
            }
            let waiting = self.waiting_claims();
            let now = waiting.iter().map(|claim| (claim.id, claim.fence)).collect();
            let mut due: HashMap<WorkloadKey, Vec<SlotClaim>> = HashMap::new();
            for claim in waiting {
                if before.get(&claim.id) == Some(&claim.fence) {
                    due.entry(claim.key.clone()).or_default().push(claim);
                }
            }
            before = now;
            for (key, claims) in due {
                if let Err(error) = self.look_up(&key, claims).await {
                    tracing::debug!(%error, workload = &*key.1, "failed to look up reserved pods");
                }
            }
        }
    }

    /// Reservations whose pods the watch has not reported.
    fn waiting_claims(&self) -> Vec<SlotClaim> {
        let mut claims = self.reconciler.slots.all_claims();
        claims.retain(|claim| claim.state == ClaimState::Held && !self.is_known(claim));
        claims
    }

    fn is_known(&self, claim: &SlotClaim) -> bool {
        self.reconciler.pods.by_id(claim.id).is_some()
    }

    async fn look_up(
        &self,
        key: &WorkloadKey,
        claims: Vec<SlotClaim>,
    ) -> Result<(), ReconcileError> {
        let api: Api<WatchedPod> = Api::namespaced(self.client.clone(), &key.0);
        let params = pods_of_revision(&key.1);
        let timed_out = |_| kube::Error::Service("no answer in time".into());
        let listed = tokio::time::timeout(self.lease / 4, api.list(&params)).await;
        let live: HashSet<InstanceId> = listed
            .map_err(timed_out)??
            .items
            .iter()
            .filter(|pod| !is_terminated(pod))
            .filter_map(|pod| {
                read_token(pod.metadata.annotations.as_ref()?.get(annotations::TOKEN)?)
            })
            .collect();
        let mut found = claims;
        found.retain(|claim| live.contains(&claim.id));
        for claim in &found {
            self.reconciler.slots.activate(claim).await?;
        }
        if found.is_empty() {
            return Ok(());
        }
        tokio::time::sleep(WATCH_DELAY).await;
        let unreported = found.iter().filter(|claim| !self.is_known(claim)).count();
        if unreported > 0 {
            self.metrics.silent_watches.inc();
            tracing::warn!(
                unreported,
                workload = &*key.1,
                "the watch of pods does not report existing pods; starting it again"
            );
            self.restart.notify_one();
        }
        Ok(())
    }
}
