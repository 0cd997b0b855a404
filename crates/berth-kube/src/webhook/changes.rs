//! What a workload asks for may change while its pods run: the new rule is stated at the desk at
//! once, and pods that were not counted before are looked at. So are pods whose node was not known.

use std::sync::Arc;
use std::time::Duration;

use hashbrown::HashSet;
use kube::runtime::reflector::ObjectRef;
use tokio::sync::{Notify, mpsc};
use tokio_util::sync::CancellationToken;

use super::keeper::{KeepError, Keeper};
use super::keys::Asked;
use super::owners::{Look, controller};
use super::watch::Changed;

/// How long to wait before what failed is done again.
const AGAIN_AFTER: Duration = Duration::from_secs(1);

/// Most changes that are taken at once.
const AT_ONCE: usize = 1000;

/// Follows changes until it is told to stop.
pub(super) async fn follow(
    keeper: Arc<Keeper>,
    mut changes: mpsc::UnboundedReceiver<Changed>,
    wake: Arc<Notify>,
    stop: CancellationToken,
) {
    let mut failed: HashSet<Changed> = HashSet::new();
    let mut batch = Vec::new();
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            count = changes.recv_many(&mut batch, AT_ONCE) => if count == 0 { return },
            () = tokio::time::sleep(AGAIN_AFTER), if !failed.is_empty() => {}
        }
        failed.extend(batch.drain(..));
        let mut again = HashSet::new();
        let mut news = false;
        for changed in failed.drain() {
            match look(&keeper, &changed).await {
                Ok(stated) => news |= stated,
                Err(error) => {
                    tracing::debug!(%error, ?changed, "a change cannot be taken in yet");
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

/// States what a workload asks for now, for each of its revisions that has pods. Returns whether
/// anything was new.
async fn look(keeper: &Keeper, changed: &Changed) -> Result<bool, KeepError> {
    let mut news = false;
    if changed.kind == "Node" {
        keeper.node_is_known(&changed.name);
        return Ok(false);
    }
    for uid in controllers(keeper, changed) {
        let pods = keeper.roster.of_controller(&uid);
        let Some(first) = pods.first() else { continue };
        let owner = keeper.owners.owner(&first.namespace, &first.metadata, Look::Watched).await?;
        let Some(owner) = owner else { continue };
        let Asked::On { rule, .. } = owner.asked else { continue };
        if keeper.desk.rule(&owner.key) != Some(rule) {
            keeper.desk.define(&owner.key, rule, owner.version.as_deref()).await?;
            news = true;
        }
        // A pod may have been looked at before its controller was known.
        for pod in pods.iter().filter(|pod| keeper.desk.in_books(pod.id).is_none()) {
            keeper.look_at(&pod.uid);
        }
    }
    Ok(news)
}

/// The controllers of the pods of what changed.
fn controllers(keeper: &Keeper, changed: &Changed) -> Vec<String> {
    let stores = keeper.owners.stores();
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
