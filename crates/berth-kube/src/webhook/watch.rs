//! Watches: pods, their controllers, nodes. Feeds the roster and the stores, and tells whoever has
//! to look at something. Broken watches are taken up again, for ever.

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

use super::keeper::Keeper;
use super::metrics::Metrics;
use super::owners::Stores;

/// A workload that may have changed what it asks for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Changed {
    pub(super) kind: &'static str,
    pub(super) namespace: String,
    pub(super) name: String,
}

/// Watched copies of everything but pods.
pub(super) struct Watched {
    pub(super) stores: Stores,
    pub(super) nodes: Store<PartialObjectMeta<Node>>,
    /// Workloads that may have changed.
    pub(super) changes: mpsc::UnboundedReceiver<Changed>,
}

/// Watches controllers and nodes until it is told to stop.
pub(super) fn controllers(
    client: &Client,
    metrics: &Arc<Metrics>,
    stop: &CancellationToken,
) -> Watched {
    let (changed, changes) = mpsc::unbounded_channel();
    let tell = move |kind: &'static str| {
        let changed = changed.clone();
        move |namespace: Option<&str>, name: &str| {
            let (namespace, name) = (namespace.unwrap_or_default().to_owned(), name.to_owned());
            // Nobody listens any more when the webhook stops.
            let _ = changed.send(Changed { kind, namespace, name });
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
            deployments: kept(deployments, metrics, stop, tell("Deployment")),
            replica_sets: kept(sets, metrics, stop, tell("ReplicaSet")),
            stateful_sets: kept(stateful, metrics, stop, tell("StatefulSet")),
        },
        nodes: kept(nodes, metrics, stop, tell("Node")),
        changes,
    }
}

/// Keeps a copy of what a watch tells, and tells of what changed.
fn kept<K>(
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
                Some(Err(error)) => broke(&metrics, &error),
                None => return,
            }
        }
    });
    store
}

fn broke(metrics: &Metrics, error: &watcher::Error) {
    metrics.watch_errors.inc();
    tracing::debug!(%error, "a watch broke and is taken up again");
}

/// Watches pods until it is told to stop. The sender is told when the first list is complete.
pub(super) async fn pods(
    client: Client,
    keeper: Arc<Keeper>,
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
                take(&keeper, &pod, *listed.borrow());
            }
            Some(Ok(Event::InitDone)) => {
                for gone in keeper.roster.keep_only(&fresh) {
                    keeper.is_gone(gone);
                }
                fresh.clear();
                listed.send_replace(true);
            }
            Some(Ok(Event::Apply(pod))) => take(&keeper, &pod, *listed.borrow()),
            Some(Ok(Event::Delete(pod))) => {
                let uid = pod.metadata.uid.as_deref().unwrap_or_default();
                if let Some(gone) = keeper.roster.remove(uid) {
                    keeper.is_gone(gone);
                }
            }
            Some(Err(error)) => broke(&metrics, &error),
            None => return,
        }
    }
}

/// Takes in a pod. Before the first list is complete nobody looks: order matters then.
fn take(keeper: &Keeper, pod: &Pod, listed: bool) {
    if let Some(gone) = keeper.roster.apply(pod) {
        keeper.is_gone(gone);
    } else if listed && let Some(uid) = pod.metadata.uid.as_deref() {
        keeper.look_at(uid);
    }
}
