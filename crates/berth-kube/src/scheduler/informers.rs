//! Informers: list and watch every kind that scheduling depends on.
//!
//! They only send changes to the core. A broken watch is resumed; one that is too old is replaced by a
//! new list, and objects that are missing from it are reported as deleted.

use std::fmt::Debug;
use std::pin::pin;
use std::sync::Arc;

use futures_util::StreamExt;
use kube::core::Resource;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client};
use serde::de::DeserializeOwned;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::messages::{Change, Message};
use super::metrics::Metrics;
use super::optional_kinds::{
    DEVICE_CLASSES, DEVICE_TAINT_RULES, OPTIONAL_KINDS, POD_GROUPS, RESOURCE_CLAIMS,
    RESOURCE_SLICES, VM_MIGRATIONS, VMS, WORKLOADS, is_optional,
};
use super::pruning::prune_pod;
use crate::cluster::pod::Key;
use crate::watch::{ObjectIndex, WatchDelta, watch_events};

/// The kinds that must be listed before anything is scheduled.
pub(crate) const KINDS: [&str; 18] = [
    "nodes",
    "pods",
    "namespaces",
    "poddisruptionbudgets",
    "persistentvolumeclaims",
    "persistentvolumes",
    "storageclasses",
    "csinodes",
    "csidrivers",
    "csistoragecapacities",
    VMS,
    VM_MIGRATIONS,
    POD_GROUPS,
    WORKLOADS,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    DEVICE_CLASSES,
    DEVICE_TAINT_RULES,
];

/// Seconds after which a quiet watch is replaced, to detect connections that died silently.
const WATCH_TIMEOUT_S: u32 = 240;

/// What all informers share.
#[derive(Clone)]
pub(crate) struct Informers {
    pub(crate) client: Client,
    pub(crate) inbox: mpsc::Sender<Message>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) stop: CancellationToken,
}

impl Informers {
    /// Starts the informers of all kinds.
    pub(crate) fn start(self) {
        let [nodes, pods, namespaces, budgets, claims, volumes, classes, csi_nodes, ..] = KINDS;
        let [_, _, _, _, _, _, _, _, csi_drivers, csi_capacities, ..] = KINDS;
        self.spawn_informer(nodes, Change::Node, |key, _| Change::NodeDeleted(key));
        self.spawn_pruning_informer(pods, prune_pod, Change::Pod, Change::PodDeleted);
        self.spawn_informer(namespaces, Change::Namespace, |key, _| Change::NamespaceDeleted(key));
        self.spawn_informer(budgets, Change::Budget, |key, _| Change::BudgetDeleted(key));
        self.spawn_informer(claims, Change::Claim, |key, _| Change::ClaimDeleted(key));
        self.spawn_informer(volumes, Change::Volume, |key, _| Change::VolumeDeleted(key));
        self.spawn_informer(classes, Change::Class, |key, _| Change::ClassDeleted(key));
        self.spawn_informer(csi_nodes, Change::CsiNode, |key, _| Change::CsiNodeDeleted(key));
        self.spawn_informer(csi_drivers, Change::CsiDriver, |key, _| Change::CsiDriverDeleted(key));
        self.spawn_informer(csi_capacities, Change::CsiCapacity, |key, _| {
            Change::CsiCapacityDeleted(key)
        });
        for kind in OPTIONAL_KINDS {
            tokio::spawn(self.clone().run_optional_informer(kind));
        }
    }

    fn spawn_informer<K>(
        &self,
        kind: &'static str,
        put: fn(Box<K>) -> Change,
        deleted: fn(Key, Arc<str>) -> Change,
    ) where
        K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + 'static,
    {
        let prune = |object: &mut K| object.meta_mut().managed_fields = None;
        self.spawn_pruning_informer(kind, prune, put, deleted);
    }

    fn spawn_pruning_informer<K>(
        &self,
        kind: &'static str,
        prune: fn(&mut K),
        put: fn(Box<K>) -> Change,
        deleted: fn(Key, Arc<str>) -> Change,
    ) where
        K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + 'static,
    {
        let api = Api::<K>::all(self.client.clone());
        let to_message = move |delta: WatchDelta<K>| match delta {
            WatchDelta::Updated(mut object) => {
                prune(&mut object);
                Message::Change(put(Box::new(object)))
            }
            WatchDelta::Deleted(key, uid) => Message::Change(deleted(key, uid)),
            WatchDelta::Synced => Message::Synced(kind),
        };
        let informers = self.clone();
        tokio::spawn(async move { informers.run_informer(api, kind, to_message).await });
    }

    /// Lists and watches one kind until stopped, or until its definition is deleted.
    pub(super) async fn run_informer<K>(
        &self,
        api: Api<K>,
        kind: &'static str,
        to_message: impl Fn(WatchDelta<K>) -> Message,
    ) where
        K: Resource + Clone + Debug + DeserializeOwned + Send + 'static,
    {
        let config = watcher::Config::default().timeout(WATCH_TIMEOUT_S);
        let prune = |object: &mut K| object.meta_mut().managed_fields = None;
        let mut events = pin!(watch_events(api, config, self.stop.clone()).modify(prune));
        let mut index = ObjectIndex::default();
        while let Some(event) = events.next().await {
            let (deltas, is_undefined) = match event {
                Ok(event) => (index.apply_event(event), false),
                Err(error) => {
                    self.record_watch_error(kind, &error);
                    if !is_optional(kind) || !is_not_found(&error) {
                        continue;
                    }
                    // All objects were deleted with their definition.
                    index.apply_event::<K>(watcher::Event::Init);
                    (index.apply_event(watcher::Event::InitDone), true)
                }
            };
            for delta in deltas {
                if self.inbox.send(to_message(delta)).await.is_err() {
                    return;
                }
            }
            if is_undefined {
                return;
            }
        }
    }

    pub(super) fn record_watch_error(&self, kind: &'static str, error: &watcher::Error) {
        self.metrics.record_watch_restart(kind);
        match error {
            watcher::Error::InitialListFailed(error) | watcher::Error::WatchStartFailed(error) => {
                tracing::warn!(kind, %error, "failed to list or watch; retrying");
            }
            error => tracing::debug!(kind, %error, "restarting watch after error"),
        }
    }
}

/// Whether the kind is not defined.
fn is_not_found(error: &watcher::Error) -> bool {
    let (watcher::Error::InitialListFailed(error) | watcher::Error::WatchStartFailed(error)) =
        error
    else {
        return false;
    };
    matches!(error, kube::Error::Api(status) if status.code == 404)
}
