//! Watches pods, their controllers and nodes; feeds the pod cache and the stores, and queues what
//! changed. Broken watches are resumed.

use std::fmt::Debug;
use std::hash::Hash;
use std::pin::pin;
use std::sync::Arc;

use futures_util::{Stream, StreamExt as _};
use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet, StatefulSet};
use k8s_openapi::api::core::v1::Node;
use kube::api::PartialObjectMeta;
use kube::core::Resource;
use kube::runtime::reflector::{self, Lookup, Store};
use kube::runtime::watcher::Event;
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Api, Client};
use serde::de::DeserializeOwned;
use tokio::sync::{Notify, mpsc, watch};
use tokio_util::sync::CancellationToken;

use super::metrics::Metrics;
use super::owners::Stores;
use super::slot_reconciler::SlotReconciler;
use super::watched_pod::WatchedPod;
use crate::watch::{ObjectIndex, WatchDelta, watch_events};

/// An object that changed, such as a workload with new settings.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct ChangedObject {
    pub(super) kind: &'static str,
    pub(super) namespace: String,
    pub(super) name: String,
}

/// Watched copies of everything but pods.
pub(super) struct WatchedStores {
    pub(super) stores: Stores,
    pub(super) nodes: Store<PartialObjectMeta<Node>>,
    /// Objects that may have changed.
    pub(super) changes: mpsc::UnboundedReceiver<ChangedObject>,
}

/// Watches controllers and nodes until stopped.
pub(super) fn watch_controllers(
    client: &Client,
    metrics: &Arc<Metrics>,
    stop: &CancellationToken,
) -> WatchedStores {
    let (changed, changes) = mpsc::unbounded_channel();
    let notify = move |kind: &'static str| {
        let changed = changed.clone();
        move |namespace: Option<&str>, name: &str| {
            let (namespace, name) = (namespace.unwrap_or_default().to_owned(), name.to_owned());
            // The receiver is gone when the webhook stops.
            let _ = changed.send(ChangedObject { kind, namespace, name });
        }
    };
    let deployments = watch_all::<Deployment>(client, stop).modify(|it| {
        it.metadata.managed_fields = None;
        it.status = None;
        it.spec.template = Default::default();
    });
    let sets = watch_all::<ReplicaSet>(client, stop).modify(|it| {
        it.metadata.managed_fields = None;
        it.status = None;
        it.spec.template = Default::default();
    });
    let stateful = watch_all::<StatefulSet>(client, stop).modify(|it| {
        it.metadata.managed_fields = None;
        it.status = None;
        it.spec.template = Default::default();
        it.spec.volume_claim_templates = None;
    });
    let nodes = watch_all::<PartialObjectMeta<Node>>(client, stop).modify(|it| {
        it.metadata.managed_fields = None;
        it.metadata.annotations = None;
    });
    WatchedStores {
        stores: Stores {
            deployments: watch_into_store(deployments, metrics, notify("Deployment")),
            replica_sets: watch_into_store(sets, metrics, notify("ReplicaSet")),
            stateful_sets: watch_into_store(stateful, metrics, notify("StatefulSet")),
        },
        nodes: watch_into_store(nodes, metrics, notify("Node")),
        changes,
    }
}

fn watch_all<K>(
    client: &Client,
    stop: &CancellationToken,
) -> impl Stream<Item = watcher::Result<Event<K>>> + Send + use<K>
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + 'static,
{
    watch_events(Api::all(client.clone()), watcher::Config::default(), stop.clone())
}

/// Keeps a store of what a watch reports, and notifies of changes.
fn watch_into_store<K>(
    stream: impl Stream<Item = watcher::Result<Event<K>>> + Send + 'static,
    metrics: &Arc<Metrics>,
    notify: impl Fn(Option<&str>, &str) + Send + 'static,
) -> Store<K>
where
    K: Lookup + Clone + Debug + DeserializeOwned + Send + Sync + 'static,
    K::DynamicType: Eq + Hash + Clone + Default + Send + Sync,
{
    let (store, writer) = reflector::store();
    let stream = reflector::reflector(writer, stream);
    let metrics = Arc::clone(metrics);
    tokio::spawn(async move {
        let mut stream = pin!(stream);
        while let Some(event) = stream.next().await {
            match event {
                Ok(Event::Apply(it) | Event::InitApply(it) | Event::Delete(it)) => {
                    if let Some(name) = it.name() {
                        notify(it.namespace().as_deref(), &name);
                    }
                }
                Ok(Event::Init | Event::InitDone) => {}
                Err(error) => record_watch_error(&metrics, &error),
            }
        }
    });
    store
}

fn record_watch_error(metrics: &Metrics, error: &watcher::Error) {
    metrics.watch_errors.inc();
    tracing::debug!(%error, "restarting watch after error");
}

/// Watches pods until stopped. The sender is set when the first list is complete. A notification starts the
/// watch again with a list.
pub(super) async fn watch_pods(
    client: Client,
    reconciler: Arc<SlotReconciler>,
    metrics: Arc<Metrics>,
    (listed, restart): (watch::Sender<bool>, Arc<Notify>),
    stop: CancellationToken,
) {
    let start = || Box::pin(watch_all::<WatchedPod>(&client, &stop));
    let (mut stream, mut index) = (start(), ObjectIndex::default());
    loop {
        let event = tokio::select! {
            () = restart.notified() => {
                stream = start();
                continue;
            }
            event = stream.next() => event,
        };
        let deltas = match event {
            Some(Ok(event)) => index.apply_event(event),
            Some(Err(error)) => {
                record_watch_error(&metrics, &error);
                continue;
            }
            None => return,
        };
        for delta in deltas {
            match delta {
                WatchDelta::Updated(pod) => apply_pod(&reconciler, &pod, *listed.borrow()),
                WatchDelta::Deleted(_, uid) => {
                    if let Some(gone) = reconciler.pods.remove(&uid) {
                        reconciler.enqueue_gone(gone);
                    }
                }
                WatchDelta::Synced => drop(listed.send_replace(true)),
            }
        }
    }
}

/// Applies a pod. Before the first list is complete nothing is queued: the order matters then.
fn apply_pod(reconciler: &SlotReconciler, pod: &WatchedPod, listed: bool) {
    if let Some(gone) = reconciler.pods.apply(pod) {
        reconciler.enqueue_gone(gone);
    } else if listed && let Some(uid) = pod.metadata.uid.as_deref() {
        reconciler.enqueue_pod(uid);
    }
}
