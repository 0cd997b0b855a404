//! Resolves the workload of a pod: from the controller reference to the object with the settings, and
//! to the revision that has slots of its own.
//!
//! Follows references and never parses names. Reads the API server or the watched copies, and writes
//! nothing.

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

use super::annotations::{ObjectTags, SettingsReader, WorkloadSettings};

/// How slots are assigned to the pods of a workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SlotOrdering {
    /// The lowest free slot.
    Lowest,
    /// By the ordinal in the pod's name.
    Ordinal {
        /// The first ordinal.
        start: i64,
    },
}

/// The workload of a pod.
#[derive(Clone, Debug)]
pub(super) struct Owner {
    /// Namespace, and `KIND/NAME/REVISION`: what has slots of its own.
    pub(super) key: WorkloadKey,
    /// The object with the settings.
    pub(super) object: ObjectReference,
    /// Its resource version when it was read.
    pub(super) version: Option<String>,
    /// Its settings.
    pub(super) settings: WorkloadSettings,
    /// The desired number of pods of the revision, if known.
    pub(super) replicas: Option<i64>,
    /// How slots are assigned.
    pub(super) ordering: SlotOrdering,
    /// The uid of the pods' direct controller.
    pub(super) controller_uid: String,
}

/// Whether to read from the API server or from the watched copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReadMode {
    /// From the API server, with the watched copy as a fallback.
    Fresh,
    /// From the watched copy.
    Watched,
}

/// Watched copies.
#[derive(Clone)]
pub(super) struct Stores {
    pub(super) replica_sets: Store<ReplicaSet>,
    pub(super) deployments: Store<Deployment>,
    pub(super) stateful_sets: Store<StatefulSet>,
}

/// Labels of a pod with the revision of its controller.
pub(super) const POD_REVISION: [&str; 2] = ["pod-template-hash", "controller-revision-hash"];
/// The label of a StatefulSet's pod with its ordinal.
pub(super) const POD_INDEX: &str = "apps.kubernetes.io/pod-index";

/// How long a discovered kind is cached.
const KIND_TTL: Duration = Duration::from_secs(300);
/// How long a kind without a scale subresource, or an unknown one, is cached.
const NO_KIND_TTL: Duration = Duration::from_secs(30);
/// How long an object of an unwatched kind is cached, except for admissions.
const OBJECT_TTL: Duration = Duration::from_secs(5);

/// Namespace, kind and name.
type ObjectPath = (String, GroupVersionKind, String);

type Cached<K, V> = Mutex<HashMap<K, (Instant, V)>>;

/// Resolves owners.
pub(super) struct OwnerResolver {
    client: Client,
    settings: SettingsReader,
    stores: Stores,
    /// Timeout of a request.
    request_timeout: Duration,
    kinds: Cached<GroupVersionKind, Option<ApiResource>>,
    objects: Cached<ObjectPath, Option<(ObjectMeta, Option<i64>)>>,
}

/// The reference to the controller of an object.
pub(super) fn controller(owners: Option<&[OwnerReference]>) -> Option<&OwnerReference> {
    owners?.iter().find(|owner| owner.controller == Some(true))
}

/// Whether a workload `KIND/NAME/…` is, by its name, the direct controller of a pod, and none that may have
/// another one above it or whose pods have ordinals.
pub(super) fn is_direct_owner(pod: &ObjectMeta, workload: &str) -> bool {
    let Some(reference) = controller(pod.owner_references.as_deref()) else { return false };
    let watched = ["ReplicaSet", "StatefulSet"].contains(&reference.kind.as_str());
    let mut parts = workload.split('/');
    !watched && parts.next() == Some(&*reference.kind) && parts.next() == Some(&*reference.name)
}

fn kind_of(owner: &OwnerReference) -> GroupVersionKind {
    let (group, version) = owner.api_version.split_once('/').unwrap_or(("", &owner.api_version));
    GroupVersionKind::gvk(group, version, &owner.kind)
}

/// Controllers whose pods are not interchangeable replicas: they run once, or on every node.
fn is_not_replicated(kind: &GroupVersionKind) -> bool {
    let known = [("batch", "Job"), ("batch", "CronJob"), ("apps", "DaemonSet"), ("", "Node")];
    known.contains(&(kind.group.as_str(), kind.kind.as_str()))
}

fn get_label<'a>(metadata: &'a ObjectMeta, key: &str) -> Option<&'a str> {
    metadata.labels.as_ref()?.get(key).map(String::as_str).filter(|it| !it.is_empty())
}

/// A controller that was read.
struct FoundController {
    kind: GroupVersionKind,
    metadata: ObjectMeta,
    /// The desired number of pods of the revision.
    replicas: Option<i64>,
    /// The desired number of pods of all revisions.
    total: Option<i64>,
}

impl OwnerResolver {
    pub(super) fn new(
        client: Client,
        settings: SettingsReader,
        stores: Stores,
        request_timeout: Duration,
    ) -> Self {
        let (kinds, objects) = (Mutex::default(), Mutex::default());
        Self { client, settings, stores, request_timeout, kinds, objects }
    }

    pub(super) const fn settings(&self) -> &SettingsReader {
        &self.settings
    }

    pub(super) const fn stores(&self) -> &Stores {
        &self.stores
    }

    /// The workload of a pod; `None` if it is not a replica, or its controller is gone.
    pub(super) async fn resolve(
        &self,
        namespace: &str,
        pod: &ObjectMeta,
        mode: ReadMode,
    ) -> Result<Option<Owner>, kube::Error> {
        let Some(reference) = controller(pod.owner_references.as_deref()) else {
            return Ok(None);
        };
        let kind = kind_of(reference);
        if is_not_replicated(&kind) {
            return Ok(None);
        }
        match (kind.group.as_str(), kind.kind.as_str()) {
            ("apps", "ReplicaSet") => self.resolve_replica_set(namespace, reference, mode).await,
            ("apps", "StatefulSet") => self.resolve_stateful_set(namespace, reference, mode).await,
            _ => self.resolve_other(namespace, pod, reference, kind, mode).await,
        }
    }

    async fn resolve_replica_set(
        &self,
        namespace: &str,
        reference: &OwnerReference,
        mode: ReadMode,
    ) -> Result<Option<Owner>, kube::Error> {
        let watched = self.stores.replica_sets.clone();
        let set = self.read(namespace, &reference.name, mode, &watched).await?;
        let Some(set) = set.filter(|it| is_same_object(&it.metadata, reference)) else {
            return Ok(None);
        };
        let replicas = Some(i64::from(set.spec.replicas.unwrap_or(1)));
        let hash = get_label(&set.metadata, "pod-template-hash");
        let revision = hash.or(set.metadata.name.as_deref()).unwrap_or_default().to_owned();
        let parent = controller(set.metadata.owner_references.as_deref());
        let found = match parent.map(|parent| (parent, kind_of(parent))) {
            None => {
                let kind = kind_of(reference);
                let metadata = set.metadata;
                let found = FoundController { kind, metadata, replicas, total: replicas };
                return Ok(Some(self.build_owner(namespace, found, None, reference)));
            }
            Some((parent, kind))
                if (kind.group.as_str(), &*kind.kind) == ("apps", "Deployment") =>
            {
                let watched = self.stores.deployments.clone();
                let deployment = self.read(namespace, &parent.name, mode, &watched).await?;
                let deployment = deployment.filter(|it| is_same_object(&it.metadata, parent));
                deployment.map(|it| {
                    let total = Some(i64::from(it.spec.replicas.unwrap_or(1)));
                    FoundController { kind, metadata: it.metadata, replicas, total }
                })
            }
            Some((parent, kind)) => {
                let found = self.read_other(namespace, &kind, &parent.name, mode).await?;
                let found = found.filter(|(metadata, _)| is_same_object(metadata, parent));
                found.map(|(metadata, total)| FoundController { kind, metadata, replicas, total })
            }
        };
        Ok(found.map(|found| self.build_owner(namespace, found, Some(&revision), reference)))
    }

    async fn resolve_stateful_set(
        &self,
        namespace: &str,
        reference: &OwnerReference,
        mode: ReadMode,
    ) -> Result<Option<Owner>, kube::Error> {
        let watched = self.stores.stateful_sets.clone();
        let set = self.read(namespace, &reference.name, mode, &watched).await?;
        let Some(set) = set.filter(|it| is_same_object(&it.metadata, reference)) else {
            return Ok(None);
        };
        let replicas = Some(i64::from(set.spec.replicas.unwrap_or(1)));
        let start = set.spec.ordinals.as_ref().and_then(|it| it.start).unwrap_or(0);
        let (kind, metadata) = (kind_of(reference), set.metadata);
        let found = FoundController { kind, metadata, replicas, total: replicas };
        let mut owner = self.build_owner(namespace, found, None, reference);
        owner.ordering = SlotOrdering::Ordinal { start: i64::from(start) };
        Ok(Some(owner))
    }

    async fn resolve_other(
        &self,
        namespace: &str,
        pod: &ObjectMeta,
        reference: &OwnerReference,
        kind: GroupVersionKind,
        mode: ReadMode,
    ) -> Result<Option<Owner>, kube::Error> {
        let read = self.read_other(namespace, &kind, &reference.name, mode).await?;
        let Some((metadata, replicas)) =
            read.filter(|(metadata, _)| is_same_object(metadata, reference))
        else {
            return Ok(None);
        };
        let revision = POD_REVISION.into_iter().find_map(|key| get_label(pod, key));
        // The replica count is of all revisions together.
        let (total, replicas) = (replicas, replicas.filter(|_| revision.is_none()));
        let found = FoundController { kind, metadata, replicas, total };
        Ok(Some(self.build_owner(namespace, found, revision, reference)))
    }

    fn build_owner(
        &self,
        namespace: &str,
        found: FoundController,
        revision: Option<&str>,
        controller: &OwnerReference,
    ) -> Owner {
        let FoundController { kind, metadata, replicas, total } = found;
        let settings = self.settings.read(ObjectTags::of(&metadata)).for_replicas(total);
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
            settings,
            replicas,
            ordering: SlotOrdering::Lowest,
            controller_uid: controller.uid.clone(),
        }
    }

    /// Reads an object of a watched kind. If the API server does not answer, the watched copy is better
    /// than nothing.
    async fn read<K>(
        &self,
        namespace: &str,
        name: &str,
        mode: ReadMode,
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
        if mode == ReadMode::Watched {
            return Ok(watched());
        }
        let api: Api<K> = Api::namespaced(self.client.clone(), namespace);
        match self.within_timeout(api.get_opt(name)).await {
            Ok(found) => Ok(found),
            Err(error) => watched().map_or(Err(error), |found| Ok(Some(found))),
        }
    }

    async fn within_timeout<T>(
        &self,
        request: impl Future<Output = Result<T, kube::Error>>,
    ) -> Result<T, kube::Error> {
        let timed_out = |_| kube::Error::Service("the API server does not answer in time".into());
        tokio::time::timeout(self.request_timeout, request).await.map_err(timed_out)?
    }

    /// Reads the metadata and replica count of an object of an unwatched kind; `None` if the kind has no
    /// scale subresource or may not be read.
    async fn read_other(
        &self,
        namespace: &str,
        kind: &GroupVersionKind,
        name: &str,
        mode: ReadMode,
    ) -> Result<Option<(ObjectMeta, Option<i64>)>, kube::Error> {
        let cached = (namespace.to_owned(), kind.clone(), name.to_owned());
        if mode == ReadMode::Watched
            && let Some(found) = get_cached(&self.objects, &cached, |_| OBJECT_TTL)
        {
            return Ok(found);
        }
        let Some(resource) = self.find_scalable_kind(kind).await? else { return Ok(None) };
        let api: Api<DynamicObject> =
            Api::namespaced_with(self.client.clone(), namespace, &resource);
        let found = match self.within_timeout(api.get_metadata_opt(name)).await {
            Ok(found) => found.map(|it| it.metadata),
            Err(kube::Error::Api(status)) if status.code == 403 => {
                tracing::debug!(
                    kind = kind.kind,
                    "forbidden to read controller; ignoring its pods"
                );
                None
            }
            Err(error) => return Err(error),
        };
        let found = match found {
            None => None,
            Some(metadata) => {
                let on = matches!(
                    self.settings.read(ObjectTags::of(&metadata)),
                    WorkloadSettings::On { .. }
                );
                let scale = if on { api.get_scale(name).await.ok() } else { None };
                let replicas = scale.and_then(|it| it.spec?.replicas).map(i64::from);
                Some((metadata, replicas))
            }
        };
        cache_value(&self.objects, cached, found.clone());
        Ok(found)
    }

    /// Discovers a kind; `None` if it has no scale subresource.
    async fn find_scalable_kind(
        &self,
        kind: &GroupVersionKind,
    ) -> Result<Option<ApiResource>, kube::Error> {
        let age = |found: &Option<ApiResource>| {
            if found.is_some() { KIND_TTL } else { NO_KIND_TTL }
        };
        if let Some(found) = get_cached(&self.kinds, kind, age) {
            return Ok(found);
        }
        let response = kube::discovery::pinned_kind(&self.client, kind);
        let found = match self.within_timeout(response).await {
            Ok((resource, can)) => {
                let scale = can.subresources.iter().any(|(resource, _)| {
                    resource.plural.ends_with("/scale") || resource.plural == "scale"
                });
                scale.then_some(resource)
            }
            Err(kube::Error::Api(status)) if matches!(status.code, 403 | 404) => None,
            Err(kube::Error::Discovery(_)) => None,
            Err(error) => return Err(error),
        };
        cache_value(&self.kinds, kind.clone(), found.clone());
        Ok(found)
    }
}

fn is_same_object(found: &ObjectMeta, reference: &OwnerReference) -> bool {
    found.uid.as_deref() == Some(reference.uid.as_str())
}

fn get_cached<K: std::hash::Hash + Eq, V: Clone>(
    cache: &Cached<K, V>,
    key: &K,
    age: impl Fn(&V) -> Duration,
) -> Option<V> {
    let cache = cache.lock().unwrap_or_else(PoisonError::into_inner);
    let (at, found) = cache.get(key)?;
    (at.elapsed() < age(found)).then(|| found.clone())
}

fn cache_value<K: std::hash::Hash + Eq, V>(cache: &Cached<K, V>, key: K, value: V) {
    let mut cache = cache.lock().unwrap_or_else(PoisonError::into_inner);
    if cache.len() > 10_000 {
        cache.retain(|_, (at, _)| at.elapsed() < KIND_TTL);
    }
    cache.insert(key, (Instant::now(), value));
}
