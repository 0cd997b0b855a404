//! Applies changed settings of workloads: the new rule is stored at once, and pods without a slot are
//! queued. So are pods whose node was unknown.

use std::sync::Arc;
use std::time::Duration;

use hashbrown::HashSet;
use kube::runtime::reflector::ObjectRef;
use tokio::sync::{Notify, mpsc};
use tokio_util::sync::CancellationToken;

use super::annotations::WorkloadSettings;
use super::owners::{ReadMode, controller};
use super::slot_reconciler::{ReconcileError, SlotReconciler, is_slot_of};
use super::watch::ChangedObject;

/// The delay before a failed change is retried.
const RETRY_DELAY: Duration = Duration::from_secs(1);

/// Most changes handled at once.
const BATCH_MAX: usize = 1000;

/// Applies changes until stopped.
pub(super) async fn follow_changes(
    reconciler: Arc<SlotReconciler>,
    mut changes: mpsc::UnboundedReceiver<ChangedObject>,
    wake: Arc<Notify>,
    stop: CancellationToken,
) {
    let mut failed: HashSet<ChangedObject> = HashSet::new();
    let mut batch = Vec::new();
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            count = changes.recv_many(&mut batch, BATCH_MAX) => if count == 0 { return },
            () = tokio::time::sleep(RETRY_DELAY), if !failed.is_empty() => {}
        }
        failed.extend(batch.drain(..));
        let mut again = HashSet::new();
        let mut news = false;
        for changed in failed.drain() {
            match apply_change(&reconciler, &changed).await {
                Ok(stated) => news |= stated,
                Err(error) => {
                    tracing::debug!(%error, ?changed, "failed to apply change; retrying");
                    again.insert(changed);
                }
            }
        }
        failed = again;
        if news {
            wake.notify_one();
        }
    }
}

/// Stores the current rule of a workload for each of its revisions that has pods. Returns whether
/// anything changed.
async fn apply_change(
    reconciler: &SlotReconciler,
    changed: &ChangedObject,
) -> Result<bool, ReconcileError> {
    let mut news = false;
    if changed.kind == "Node" {
        reconciler.enqueue_pods_of_node(&changed.name);
        return Ok(false);
    }
    for uid in controllers(reconciler, changed) {
        let pods = reconciler.pods.of_controller(&uid);
        let Some(first) = pods.first() else { continue };
        let owner =
            reconciler.owners.resolve(&first.namespace, &first.metadata, ReadMode::Watched).await?;
        let Some(owner) = owner else { continue };
        // Its pods have slots of the workload that it belonged to before, or its first ordinal changed.
        for pod in &pods {
            let claim = reconciler.slots.cached_claim(pod.id);
            if claim.is_some_and(|claim| !is_slot_of(&owner, pod, &claim)) {
                reconciler.enqueue_pod(&pod.uid);
            }
        }
        let WorkloadSettings::On { rule, .. } = owner.settings else { continue };
        if reconciler.slots.rule(&owner.key) != Some(rule) {
            reconciler.slots.put_rule(&owner.key, rule, owner.version.as_deref()).await?;
            news = true;
        }
        // A pod may have been reconciled before its controller was known.
        for pod in pods.iter().filter(|pod| reconciler.slots.cached_claim(pod.id).is_none()) {
            reconciler.enqueue_pod(&pod.uid);
        }
    }
    Ok(news)
}

/// The direct controllers of the pods of a changed object.
fn controllers(reconciler: &SlotReconciler, changed: &ChangedObject) -> Vec<String> {
    let stores = reconciler.owners.stores();
    let uid = match changed.kind {
        "Deployment" => {
            let name = ObjectRef::new(&changed.name).within(&changed.namespace);
            let found = stores.deployments.get(&name).and_then(|it| it.metadata.uid.clone());
            let Some(deployment) = found else { return Vec::new() };
            let sets = stores.replica_sets.state_filter(|set| {
                controller(set.metadata.owner_references.as_deref())
                    .is_some_and(|owner| owner.uid == deployment)
            });
            return sets.iter().filter_map(|set| set.metadata.uid.clone()).collect();
        }
        "ReplicaSet" => {
            let name = ObjectRef::new(&changed.name).within(&changed.namespace);
            stores.replica_sets.get(&name).and_then(|it| it.metadata.uid.clone())
        }
        "StatefulSet" => {
            let name = ObjectRef::new(&changed.name).within(&changed.namespace);
            stores.stateful_sets.get(&name).and_then(|it| it.metadata.uid.clone())
        }
        _ => None,
    };
    uid.into_iter().collect()
}
