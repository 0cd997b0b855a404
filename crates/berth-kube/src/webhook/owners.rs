//! Whose pod it is: from the controller reference to the workload that carries the switch, and to
//! the revision that is counted by itself.
//!
//! References are followed, names are never cut apart. Reads the API server or the watched copies,
//! and writes nothing.

use std::sync::Mutex;
use std::sync::PoisonError;
use std::time::Duration;

use berth_control::workload::WorkloadKey;
use berth_ledger::Text;
use hashbrown::HashMap;
use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet, StatefulSet};
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::{DynamicObject, ObjectMeta};
use kube::core::{ApiResource, GroupVersionKind};
use kube::runtime::reflector::{ObjectRef, Store};
use kube::{Api, Client};
use tokio::time::Instant;

use super::keys::{Asked, Keys, Marks};

/// How pods of a workload get their seats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Numbering {
    /// The lowest that is free.
    Lowest,
    /// By the number in the pod's name, counted from this one.
    Ordinal {
        /// The first ordinal.
        start: i64,
    },
}

/// The workload of a pod.
#[derive(Clone, Debug)]
pub(super) struct Owner {
    /// Namespace, and `KIND/NAME/REVISION`: what has a table of slots of its own.
    pub(super) key: WorkloadKey,
    /// The object that carries the switch.
    pub(super) object: ObjectReference,
    /// The version of it that was read.
    pub(super) version: Option<String>,
    /// What it asks for.
    pub(super) asked: Asked,
    /// How many pods the revision should have, if that is known.
    pub(super) replicas: Option<i64>,
    /// How seats are given.
    pub(super) numbering: Numbering,
    /// The uid of the pods' own controller.
    pub(super) controller_uid: String,
}

/// Whether to ask the API server, or to take what was watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Look {
    /// Ask, and take what was watched only where that fails.
    Fresh,
    /// Take what was watched.
    Watched,
}

/// Watched copies.
#[derive(Clone)]
pub(super) struct Stores {
    pub(super) replica_sets: Store<ReplicaSet>,
    pub(super) deployments: Store<Deployment>,
    pub(super) stateful_sets: Store<StatefulSet>,
}

/// How long a kind that was looked up is remembered.
const KIND_FOR: Duration = Duration::from_secs(300);
/// How long a kind that has no scale, or is not there, is remembered.
const NO_KIND_FOR: Duration = Duration::from_secs(30);
/// How long an object of a kind that is not watched is remembered, except for admissions.
const OBJECT_FOR: Duration = Duration::from_secs(5);

/// Namespace, kind and name.
type Place = (String, GroupVersionKind, String);

type Cached<K, V> = Mutex<HashMap<K, (Instant, V)>>;

/// Finds owners.
pub(super) struct Owners {
    client: Client,
    keys: Keys,
    stores: Stores,
    /// How long the API server is waited for.
    ask_for: Duration,
    kinds: Cached<GroupVersionKind, Option<ApiResource>>,
    objects: Cached<Place, Option<(ObjectMeta, Option<i64>)>>,
}

/// The reference to whoever creates and deletes an object.
pub(super) fn controller(owners: Option<&[OwnerReference]>) -> Option<&OwnerReference> {
    owners?.iter().find(|owner| owner.controller == Some(true))
}

fn kind_of(owner: &OwnerReference) -> GroupVersionKind {
    let (group, version) = owner.api_version.split_once('/').unwrap_or(("", &owner.api_version));
    GroupVersionKind::gvk(group, version, &owner.kind)
}

/// Controllers whose pods are not replicas of each other: they run once, or on every node.
fn is_never_ours(kind: &GroupVersionKind) -> bool {
    let known = [("batch", "Job"), ("batch", "CronJob"), ("apps", "DaemonSet"), ("", "Node")];
    known.contains(&(kind.group.as_str(), kind.kind.as_str()))
}

fn label<'a>(metadata: &'a ObjectMeta, key: &str) -> Option<&'a str> {
    metadata.labels.as_ref()?.get(key).map(String::as_str).filter(|it| !it.is_empty())
}

/// What a controller that was found says.
struct Found {
    kind: GroupVersionKind,
    metadata: ObjectMeta,
    replicas: Option<i64>,
}

impl Owners {
    pub(super) fn new(client: Client, keys: Keys, stores: Stores, ask_for: Duration) -> Self {
        let (kinds, objects) = (Mutex::default(), Mutex::default());
        Self { client, keys, stores, ask_for, kinds, objects }
    }

    pub(super) const fn keys(&self) -> &Keys {
        &self.keys
    }

    pub(super) const fn stores(&self) -> &Stores {
        &self.stores
    }

    /// The workload of a pod; none when it is no replica of anything, or its controller is gone.
    pub(super) async fn owner(
        &self,
        namespace: &str,
        pod: &ObjectMeta,
        look: Look,
    ) -> Result<Option<Owner>, kube::Error> {
        let Some(reference) = controller(pod.owner_references.as_deref()) else {
            return Ok(None);
        };
        let kind = kind_of(reference);
        if is_never_ours(&kind) {
            return Ok(None);
        }
        match (kind.group.as_str(), kind.kind.as_str()) {
            ("apps", "ReplicaSet") => self.of_replica_set(namespace, reference, look).await,
            ("apps", "StatefulSet") => self.of_stateful_set(namespace, reference, look).await,
            _ => self.of_other(namespace, pod, reference, kind, look).await,
        }
    }

    async fn of_replica_set(
        &self,
        namespace: &str,
        reference: &OwnerReference,
        look: Look,
    ) -> Result<Option<Owner>, kube::Error> {
        let watched = self.stores.replica_sets.clone();
        let set = self.read(namespace, &reference.name, look, &watched).await?;
        let Some(set) = set.filter(|it| is(&it.metadata, reference)) else { return Ok(None) };
        let replicas = set.spec.as_ref().map(|spec| i64::from(spec.replicas.unwrap_or(1)));
        let hash = label(&set.metadata, "pod-template-hash");
        let revision = hash.or(set.metadata.name.as_deref()).unwrap_or_default().to_owned();
        let parent = controller(set.metadata.owner_references.as_deref());
        let found = match parent.map(|parent| (parent, kind_of(parent))) {
            None => {
                let kind = kind_of(reference);
                let found = Found { kind, metadata: set.metadata, replicas };
                return Ok(Some(self.found(namespace, found, None, reference)));
            }
            Some((parent, kind))
                if (kind.group.as_str(), &*kind.kind) == ("apps", "Deployment") =>
            {
                let watched = self.stores.deployments.clone();
                let deployment = self.read(namespace, &parent.name, look, &watched).await?;
                let metadata = deployment.map(|it| it.metadata).filter(|it| is(it, parent));
                metadata.map(|metadata| Found { kind, metadata, replicas })
            }
            Some((parent, kind)) => {
                let found = self.read_other(namespace, &kind, &parent.name, look).await?;
                let found = found.filter(|(metadata, _)| is(metadata, parent));
                found.map(|(metadata, _)| Found { kind, metadata, replicas })
            }
        };
        Ok(found.map(|found| self.found(namespace, found, Some(&revision), reference)))
    }

    async fn of_stateful_set(
        &self,
        namespace: &str,
        reference: &OwnerReference,
        look: Look,
    ) -> Result<Option<Owner>, kube::Error> {
        let watched = self.stores.stateful_sets.clone();
        let set = self.read(namespace, &reference.name, look, &watched).await?;
        let Some(set) = set.filter(|it| is(&it.metadata, reference)) else { return Ok(None) };
        let spec = set.spec.as_ref();
        let replicas = spec.map(|spec| i64::from(spec.replicas.unwrap_or(1)));
        let start = spec.and_then(|spec| spec.ordinals.as_ref()?.start).unwrap_or(0);
        let found = Found { kind: kind_of(reference), metadata: set.metadata, replicas };
        let mut owner = self.found(namespace, found, None, reference);
        owner.numbering = Numbering::Ordinal { start: i64::from(start) };
        Ok(Some(owner))
    }

    async fn of_other(
        &self,
        namespace: &str,
        pod: &ObjectMeta,
        reference: &OwnerReference,
        kind: GroupVersionKind,
        look: Look,
    ) -> Result<Option<Owner>, kube::Error> {
        let read = self.read_other(namespace, &kind, &reference.name, look).await?;
        let Some((metadata, replicas)) = read.filter(|(metadata, _)| is(metadata, reference))
        else {
            return Ok(None);
        };
        let revision = ["pod-template-hash", "controller-revision-hash"]
            .into_iter()
            .find_map(|key| label(pod, key));
        // How many there should be is of the whole, and says nothing of one revision.
        let replicas = replicas.filter(|_| revision.is_none());
        let found = Found { kind, metadata, replicas };
        Ok(Some(self.found(namespace, found, revision, reference)))
    }

    fn found(
        &self,
        namespace: &str,
        found: Found,
        revision: Option<&str>,
        controller: &OwnerReference,
    ) -> Owner {
        let Found { kind, metadata, replicas } = found;
        let asked = self.keys.asked(Marks::of(&metadata));
        let object = metadata.name.clone().unwrap_or_default();
        let name = match revision {
            Some(revision) => format!("{}/{object}/{revision}", kind.kind),
            None => format!("{}/{object}", kind.kind),
        };
        Owner {
            key: (Text::from(namespace), Text::from(name)),
            object: ObjectReference {
                api_version: Some(kind.api_version()),
                kind: Some(kind.kind),
                namespace: Some(namespace.to_owned()),
                name: Some(object),
                uid: metadata.uid,
                ..ObjectReference::default()
            },
            version: metadata.resource_version,
            asked,
            replicas,
            numbering: Numbering::Lowest,
            controller_uid: controller.uid.clone(),
        }
    }

    /// An object of a kind that is watched. When the API server is asked and does not answer, what
    /// was watched is better than nothing.
    async fn read<K>(
        &self,
        namespace: &str,
        name: &str,
        look: Look,
        watched: &Store<K>,
    ) -> Result<Option<K>, kube::Error>
    where
        K: kube::Resource<Scope = k8s_openapi::NamespaceResourceScope, DynamicType = ()>
            + Clone
            + std::fmt::Debug
            + serde::de::DeserializeOwned
            + 'static,
    {
        let watched = || {
            let reference = ObjectRef::new(name).within(namespace);
            watched.get(&reference).map(|it| K::clone(&it))
        };
        if look == Look::Watched {
            return Ok(watched());
        }
        let api: Api<K> = Api::namespaced(self.client.clone(), namespace);
        match tokio::time::timeout(self.ask_for, api.get_opt(name)).await {
            Ok(Ok(found)) => Ok(found),
            Ok(Err(error)) => watched().map_or(Err(error), |found| Ok(Some(found))),
            Err(_) => watched().map_or_else(
                || Err(kube::Error::Service("the API server does not answer in time".into())),
                |found| Ok(Some(found)),
            ),
        }
    }

    /// An object of a kind that is not watched, and how many replicas it says; none if the kind has
    /// no scale or we may not read it.
    async fn read_other(
        &self,
        namespace: &str,
        kind: &GroupVersionKind,
        name: &str,
        look: Look,
    ) -> Result<Option<(ObjectMeta, Option<i64>)>, kube::Error> {
        let cached = (namespace.to_owned(), kind.clone(), name.to_owned());
        if look == Look::Watched
            && let Some(found) = remembered(&self.objects, &cached, |_| OBJECT_FOR)
        {
            return Ok(found);
        }
        let Some(resource) = self.scalable(kind).await? else { return Ok(None) };
        let api: Api<DynamicObject> =
            Api::namespaced_with(self.client.clone(), namespace, &resource);
        let asked = tokio::time::timeout(self.ask_for, api.get_metadata_opt(name)).await;
        let timed_out = || kube::Error::Service("the API server does not answer in time".into());
        let found = match asked.map_err(|_| timed_out())? {
            Ok(found) => found.map(|it| it.metadata),
            Err(kube::Error::Api(status)) if status.code == 403 => {
                tracing::debug!(kind = kind.kind, "no right to read it: its pods are left alone");
                None
            }
            Err(error) => return Err(error),
        };
        let found = match found {
            None => None,
            Some(metadata) => {
                let on = matches!(self.keys.asked(Marks::of(&metadata)), Asked::On { .. });
                let scale = if on { api.get_scale(name).await.ok() } else { None };
                let replicas = scale.and_then(|it| it.spec?.replicas).map(i64::from);
                Some((metadata, replicas))
            }
        };
        remember(&self.objects, cached, found.clone());
        Ok(found)
    }

    /// How to ask for objects of a kind; none when it has no scale.
    async fn scalable(&self, kind: &GroupVersionKind) -> Result<Option<ApiResource>, kube::Error> {
        let age = |found: &Option<ApiResource>| {
            if found.is_some() { KIND_FOR } else { NO_KIND_FOR }
        };
        if let Some(found) = remembered(&self.kinds, kind, age) {
            return Ok(found);
        }
        let asked = kube::discovery::pinned_kind(&self.client, kind);
        let found = match tokio::time::timeout(self.ask_for, asked).await {
            Ok(Ok((resource, can))) => {
                let scale = can.subresources.iter().any(|(resource, _)| {
                    resource.plural.ends_with("/scale") || resource.plural == "scale"
                });
                scale.then_some(resource)
            }
            Ok(Err(kube::Error::Api(status))) if matches!(status.code, 403 | 404) => None,
            Ok(Err(kube::Error::Discovery(_))) => None,
            Ok(Err(error)) => return Err(error),
            Err(_) => {
                let why = "the API server does not answer in time";
                return Err(kube::Error::Service(why.into()));
            }
        };
        remember(&self.kinds, kind.clone(), found.clone());
        Ok(found)
    }
}

fn is(found: &ObjectMeta, reference: &OwnerReference) -> bool {
    found.uid.as_deref() == Some(reference.uid.as_str())
}

fn remembered<K: std::hash::Hash + Eq, V: Clone>(
    cache: &Cached<K, V>,
    key: &K,
    age: impl Fn(&V) -> Duration,
) -> Option<V> {
    let cache = cache.lock().unwrap_or_else(PoisonError::into_inner);
    let (at, found) = cache.get(key)?;
    (at.elapsed() < age(found)).then(|| found.clone())
}

fn remember<K: std::hash::Hash + Eq, V>(cache: &Cached<K, V>, key: K, value: V) {
    let mut cache = cache.lock().unwrap_or_else(PoisonError::into_inner);
    if cache.len() > 10_000 {
        cache.retain(|_, (at, _)| at.elapsed() < KIND_FOR);
    }
    cache.insert(key, (Instant::now(), value));
}
