//! Watches pods, their controllers and nodes; feeds the pod cache and the stores, and queues what
//! changed. Broken watches are resumed.

use std::fmt::Debug;
use std::hash::Hash;
use std::sync::Arc;

use futures_util::{Stream, StreamExt as _};
use hashbrown::HashSet;
use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet, StatefulSet};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::PartialObjectMeta;
use kube::runtime::reflector::{self, Lookup, Store};
use kube::runtime::watcher::Event;
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Api, Client};
use serde::de::DeserializeOwned;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use super::metrics::Metrics;
use super::owners::Stores;
use super::slot_reconciler::SlotReconciler;

/// An object that changed, such as a workload with new settings.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct ChangedObject {
    pub(super) kind: &'static str,
    pub(super) namespace: String,
    pub(super) name: String,
}

/// Watched copies of everything but pods.
pub(super) struct Watched {
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
) -> Watched {
    let (changed, changes) = mpsc::unbounded_channel();
    let tell = move |kind: &'static str| {
        let changed = changed.clone();
        move |namespace: Option<&str>, name: &str| {
            let (namespace, name) = (namespace.unwrap_or_default().to_owned(), name.to_owned());
            // The receiver is gone when the webhook stops.
            let _ = changed.send(ChangedObject { kind, namespace, name });
        }
    };
    let config = watcher::Config::default;
    let deployments = watcher(Api::<Deployment>::all(client.clone()), config());
    let deployments = deployments.modify(|it| {
        it.metadata.managed_fields = None;
        it.status = None;
        if let Some(spec) = &mut it.spec {
            spec.template = Default::default();
        }
    });
    let sets = watcher(Api::<ReplicaSet>::all(client.clone()), config());
    let sets = sets.modify(|it| {
        it.metadata.managed_fields = None;
        it.status = None;
        if let Some(spec) = &mut it.spec {
            spec.template = None;
        }
    });
    let stateful = watcher(Api::<StatefulSet>::all(client.clone()), config());
    let stateful = stateful.modify(|it| {
        it.metadata.managed_fields = None;
        it.status = None;
        if let Some(spec) = &mut it.spec {
            spec.template = Default::default();
            spec.volume_claim_templates = None;
        }
    });
    let nodes = watcher(Api::<PartialObjectMeta<Node>>::all(client.clone()), config());
    let nodes = nodes.modify(|it| {
        it.metadata.managed_fields = None;
        it.metadata.annotations = None;
    });
    Watched {
        stores: Stores {
            deployments: watch_into_store(deployments, metrics, stop, tell("Deployment")),
            replica_sets: watch_into_store(sets, metrics, stop, tell("ReplicaSet")),
            stateful_sets: watch_into_store(stateful, metrics, stop, tell("StatefulSet")),
        },
        nodes: watch_into_store(nodes, metrics, stop, tell("Node")),
        changes,
    }
}

/// Keeps a store of what a watch reports, and notifies of changes.
fn watch_into_store<K>(
    stream: impl Stream<Item = watcher::Result<Event<K>>> + Send + 'static,
    metrics: &Arc<Metrics>,
    stop: &CancellationToken,
    tell: impl Fn(Option<&str>, &str) + Send + 'static,
) -> Store<K>
where
    K: Lookup + Clone + Debug + DeserializeOwned + Send + Sync + 'static,
    K::DynamicType: Eq + Hash + Clone + Default + Send + Sync,
{
    let (store, writer) = reflector::store();
    let stream = reflector::reflector(writer, stream.default_backoff());
    let (metrics, stop) = (Arc::clone(metrics), stop.clone());
    tokio::spawn(async move {
        let mut stream = std::pin::pin!(stream);
        loop {
            let event = tokio::select! {
                () = stop.cancelled() => return,
                event = stream.next() => event,
            };
            match event {
                Some(Ok(Event::Apply(it) | Event::InitApply(it) | Event::Delete(it))) => {
                    if let Some(name) = it.name() {
                        tell(it.namespace().as_deref(), &name);
                    }
                }
                Some(Ok(Event::Init | Event::InitDone)) => {}
                Some(Err(error)) => record_watch_error(&metrics, &error),
                None => return,
            }
        }
    });
    store
}

fn record_watch_error(metrics: &Metrics, error: &watcher::Error) {
    metrics.watch_errors.inc();
    tracing::debug!(%error, "restarting watch after error");
}

/// Watches pods until stopped. The sender is set when the first list is complete.
pub(super) async fn watch_pods(
    client: Client,
    reconciler: Arc<SlotReconciler>,
    metrics: Arc<Metrics>,
    listed: watch::Sender<bool>,
    stop: CancellationToken,
) {
    let stream = watcher(Api::<Pod>::all(client), watcher::Config::default());
    let mut stream = std::pin::pin!(stream.default_backoff());
    let mut fresh: HashSet<String> = HashSet::new();
    loop {
        let event = tokio::select! {
            () = stop.cancelled() => return,
            event = stream.next() => event,
        };
        match event {
            Some(Ok(Event::Init)) => fresh.clear(),
            Some(Ok(Event::InitApply(pod))) => {
                fresh.extend(pod.metadata.uid.clone());
                apply_pod(&reconciler, &pod, *listed.borrow());
            }
            Some(Ok(Event::InitDone)) => {
                for gone in reconciler.pods.keep_only(&fresh) {
                    reconciler.enqueue_gone(gone);
                }
                fresh.clear();
                listed.send_replace(true);
            }
            Some(Ok(Event::Apply(pod))) => apply_pod(&reconciler, &pod, *listed.borrow()),
            Some(Ok(Event::Delete(pod))) => {
                let uid = pod.metadata.uid.as_deref().unwrap_or_default();
                if let Some(gone) = reconciler.pods.remove(uid) {
                    reconciler.enqueue_gone(gone);
                }
            }
            Some(Err(error)) => record_watch_error(&metrics, &error),
            None => return,
        }
    }
}

/// Applies a pod. Before the first list is complete nothing is queued: the order matters then.
fn apply_pod(reconciler: &SlotReconciler, pod: &Pod, listed: bool) {
    if let Some(gone) = reconciler.pods.apply(pod) {
        reconciler.enqueue_gone(gone);
    } else if listed && let Some(uid) = pod.metadata.uid.as_deref() {
        reconciler.enqueue_pod(uid);
    }
}
