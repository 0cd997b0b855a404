//! Everything the rules look at, listed and then watched.
//!
//! Only tells the brain. A watch that breaks is taken up where it was; one that is too old is begun
//! anew by a list, and what vanished meanwhile is told as gone.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{ApiResource, DynamicObject, GroupVersionKind};
use kube::core::Resource;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client};
use serde::de::DeserializeOwned;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::known::{Known, Told};
use super::messages::{Change, Message};
use super::metrics::Metrics;
use crate::cluster::pod::Key;

/// The kind whose definition may be missing.
const VMS: &str = "virtualmachines.vm.neon.tech";

/// The kinds that are listed before anything is placed.
pub(crate) const KINDS: [&str; 11] = [
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
];

/// How often it is looked whether virtual machines are defined now.
const LOOK_FOR_VMS: Duration = Duration::from_secs(60);
/// Seconds after which a quiet watch is begun anew: a connection that died silently is found out then.
const WATCH_S: u32 = 240;

/// What all informers share.
#[derive(Clone)]
pub(crate) struct Informers {
    pub(crate) client: Client,
    pub(crate) brain: mpsc::Sender<Message>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) stop: CancellationToken,
}

impl Informers {
    /// Begins to tell the brain of everything.
    pub(crate) fn start(self) {
        let [nodes, pods, namespaces, budgets, claims, volumes, classes, csi_nodes, ..] = KINDS;
        let [.., csi_drivers, csi_capacities, _] = KINDS;
        self.all(nodes, Change::Node, |key, _| Change::NodeGone(key));
        self.all(pods, Change::Pod, Change::PodGone);
        self.all(namespaces, Change::Namespace, |key, _| Change::NamespaceGone(key));
        self.all(budgets, Change::Budget, |key, _| Change::BudgetGone(key));
        self.all(claims, Change::Claim, |key, _| Change::ClaimGone(key));
        self.all(volumes, Change::Volume, |key, _| Change::VolumeGone(key));
        self.all(classes, Change::Class, |key, _| Change::ClassGone(key));
        self.all(csi_nodes, Change::CsiNode, |key, _| Change::CsiNodeGone(key));
        self.all(csi_drivers, Change::CsiDriver, |key, _| Change::CsiDriverGone(key));
        self.all(csi_capacities, Change::CsiCapacity, |key, _| Change::CsiCapacityGone(key));
        tokio::spawn(self.machines());
    }

    fn all<K>(
        &self,
        kind: &'static str,
        put: fn(Box<K>) -> Change,
        gone: fn(Key, Arc<str>) -> Change,
    ) where
        K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + 'static,
    {
        let api = Api::<K>::all(self.client.clone());
        let told = move |told: Told<K>| match told {
            Told::Put(object) => Message::Change(put(Box::new(object))),
            Told::Gone(key, uid) => Message::Change(gone(key, uid)),
            Told::Listed => Message::Listed(kind),
        };
        let informers = self.clone();
        let meta: fn(&K) -> &ObjectMeta = K::meta;
        tokio::spawn(async move { informers.follow(api, kind, meta, told).await });
    }

    /// Lists and watches one kind until it is told to stop, or its definition has gone.
    async fn follow<K>(
        &self,
        api: Api<K>,
        kind: &'static str,
        meta: fn(&K) -> &ObjectMeta,
        told: impl Fn(Told<K>) -> Message,
    ) where
        K: Resource + Clone + Debug + DeserializeOwned + Send + 'static,
    {
        let config = watcher::Config::default().timeout(WATCH_S);
        let prune = |object: &mut K| object.meta_mut().managed_fields = None;
        let mut events = watcher(api, config).modify(prune).boxed();
        let (mut known, mut messages) = (Known::default(), Vec::new());
        let mut failures = 0;
        loop {
            let event = tokio::select! {
                () = self.stop.cancelled() => return,
                event = events.next() => event,
            };
            match event {
                Some(Ok(event)) => {
                    // That a list is begun says nothing of whether it will be answered.
                    failures = if matches!(event, watcher::Event::Init) { failures } else { 0 };
                    known.hear(event, meta, &mut |it| messages.push(told(it)));
                }
                Some(Err(error)) => {
                    failures += 1;
                    self.metrics.watch_restarted(kind);
                    tracing::debug!(kind, %error, "a watch broke and is begun anew");
                    if let watcher::Error::InitialListFailed(error)
                    | watcher::Error::WatchStartFailed(error) = &error
                    {
                        tracing::warn!(kind, %error, "it cannot be listed or watched now, and is tried again");
                        if kind == VMS && matches!(error, kube::Error::Api(it) if it.code == 404) {
                            // All of them went with their definition.
                            let none = [watcher::Event::Init, watcher::Event::InitDone];
                            for event in none {
                                known.hear(event, meta, &mut |it| messages.push(told(it)));
                            }
                            self.send(&mut messages).await;
                            return;
                        }
                    }
                }
                None => return,
            }
            if !self.send(&mut messages).await {
                return;
            }
            if failures > 0 {
                tokio::select! {
                    () = self.stop.cancelled() => return,
                    () = tokio::time::sleep(back_off(failures)) => {}
                }
            }
        }
    }

    /// Tells the brain. False: it has ended.
    async fn send(&self, messages: &mut Vec<Message>) -> bool {
        for message in messages.drain(..) {
            if self.brain.send(message).await.is_err() {
                return false;
            }
        }
        true
    }

    /// Virtual machines, where they are defined; looked for again now and then.
    async fn machines(self) {
        let kind = GroupVersionKind::gvk("vm.neon.tech", "v1", "VirtualMachine");
        let resource = ApiResource::from_gvk_with_plural(&kind, "virtualmachines");
        let mut listed = false;
        loop {
            let found = self.client.list_api_group_resources("vm.neon.tech/v1").await;
            let is_there = match &found {
                Ok(list) => Some(list.resources.iter().any(|it| it.name == resource.plural)),
                Err(kube::Error::Api(status)) if status.code == 404 => Some(false),
                // Whether there are any is not known.
                Err(error) => {
                    tracing::warn!(%error, "whether there are virtual machines cannot be found out");
                    None
                }
            };
            if is_there == Some(true) {
                let api = Api::<DynamicObject>::all_with(self.client.clone(), &resource);
                self.follow(api, VMS, |it| &it.metadata, machine).await;
                listed = true;
            } else if is_there == Some(false) && !listed {
                listed = true;
                if self.brain.send(Message::Listed(VMS)).await.is_err() {
                    return;
                }
            }
            let wait = if is_there.is_some() { LOOK_FOR_VMS } else { Duration::from_secs(2) };
            tokio::select! {
                () = self.stop.cancelled() => return,
                () = tokio::time::sleep(wait) => {}
            }
        }
    }
}

/// How long to wait after so many failures in a row.
fn back_off(failures: u32) -> Duration {
    let doubled = Duration::from_millis(50).saturating_mul(1 << failures.min(8));
    doubled.min(Duration::from_secs(5))
}

fn machine(told: Told<DynamicObject>) -> Message {
    match told {
        Told::Put(object) => {
            // An object that was read can be written.
            let value = serde_json::to_value(&object).unwrap_or_default();
            Message::Change(Change::Vm(Box::new(value)))
        }
        Told::Gone(key, _) => Message::Change(Change::VmGone(key)),
        Told::Listed => Message::Listed(VMS),
    }
}
