//! Kinds that a cluster may not serve: virtual machines, their migrations, groups of pods, and devices.
//! They are found by discovery, which is repeated, and watched while they are served.

use berth_ledger::invariant_ok;
use std::fmt;
use std::time::Duration;

use kube::api::{ApiResource, DynamicObject};
use kube::{Api, Client};

use super::informers::Informers;
use super::messages::{Change, Message};
use crate::cluster::devices::DeviceKind;
use crate::cluster::pod_groups::GroupKind;
use crate::watch::WatchDelta;

/// Virtual machines.
pub(crate) const VMS: &str = "virtualmachines.vm.neon.tech";
/// Migrations of virtual machines.
pub(crate) const VM_MIGRATIONS: &str = "virtualmachinemigrations.vm.neon.tech";
/// Groups of pods, since Kubernetes 1.36.
pub(crate) const POD_GROUPS: &str = "podgroups.scheduling.k8s.io";
/// Workloads of Kubernetes 1.35, which contain groups; later ones are templates of PodGroups.
pub(crate) const WORKLOADS: &str = "workloads.scheduling.k8s.io";

/// Claims of devices, since Kubernetes 1.34 in this version.
pub(crate) const RESOURCE_CLAIMS: &str = "resourceclaims.resource.k8s.io";
/// Devices.
pub(crate) const RESOURCE_SLICES: &str = "resourceslices.resource.k8s.io";
/// Classes of devices.
pub(crate) const DEVICE_CLASSES: &str = "deviceclasses.resource.k8s.io";
/// Taints of devices.
pub(crate) const DEVICE_TAINT_RULES: &str = "devicetaintrules.resource.k8s.io";

/// How often to check whether a kind is served.
const DISCOVERY_INTERVAL: Duration = Duration::from_secs(60);
/// How often to try again when discovery failed.
const DISCOVERY_RETRY: Duration = Duration::from_secs(2);

/// Virtual machines as a kind.
pub(super) const VIRTUAL_MACHINES: OptionalKind =
    OptionalKind { name: VMS, group: "vm.neon.tech", plural: "virtualmachines", only: Some("v1") };

/// The kinds.
pub(super) const OPTIONAL_KINDS: [OptionalKind; 8] = [
    VIRTUAL_MACHINES,
    OptionalKind {
        name: VM_MIGRATIONS,
        group: "vm.neon.tech",
        plural: "virtualmachinemigrations",
        only: Some("v1"),
    },
    OptionalKind { name: POD_GROUPS, group: "scheduling.k8s.io", plural: "podgroups", only: None },
    OptionalKind {
        name: WORKLOADS,
        group: "scheduling.k8s.io",
        plural: "workloads",
        only: Some("v1alpha1"),
    },
    device_kind(RESOURCE_CLAIMS, "resourceclaims", Some("v1")),
    device_kind(RESOURCE_SLICES, "resourceslices", Some("v1")),
    device_kind(DEVICE_CLASSES, "deviceclasses", Some("v1")),
    device_kind(DEVICE_TAINT_RULES, "devicetaintrules", None),
];

const fn device_kind(
    name: &'static str,
    plural: &'static str,
    only: Option<&'static str>,
) -> OptionalKind {
    OptionalKind { name, group: "resource.k8s.io", plural, only }
}

/// Whether a cluster may not serve the kind.
pub(super) fn is_optional(kind: &str) -> bool {
    OPTIONAL_KINDS.iter().any(|it| it.name == kind)
}

/// What an optional kind is to the cluster state.
#[derive(Clone, Copy, Debug)]
enum Subject {
    Vm,
    Migration,
    Group(GroupKind),
    Device(DeviceKind),
}

/// A kind that may not be served.
#[derive(Clone, Copy, Debug)]
pub(super) struct OptionalKind {
    name: &'static str,
    group: &'static str,
    plural: &'static str,
    /// The only version that is understood; absent: any, the preferred one first.
    only: Option<&'static str>,
}

impl fmt::Display for OptionalKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

impl OptionalKind {
    /// The kind as the cluster serves it, if it does.
    ///
    /// # Errors
    /// When discovery fails, so that it is not known.
    pub(super) async fn discover(self, client: &Client) -> kube::Result<Option<ApiResource>> {
        let versions: Vec<String> = match self.only {
            Some(version) => vec![version.to_owned()],
            None => {
                let groups = client.list_api_groups().await?.groups;
                let found = groups.into_iter().find(|it| it.name == self.group);
                let preferred = |version: &str| match &found {
                    Some(it) => {
                        it.preferred_version.as_ref().is_some_and(|it| it.version == version)
                    }
                    None => false,
                };
                let versions = found.iter().flat_map(|it| &it.versions);
                let mut versions: Vec<String> = versions.map(|it| it.version.clone()).collect();
                versions.sort_by_key(|it| !preferred(it));
                versions
            }
        };
        for version in versions {
            let api_version = format!("{}/{version}", self.group);
            let resources = match client.list_api_group_resources(&api_version).await {
                Ok(list) => list.resources,
                Err(kube::Error::Api(status)) if status.code == 404 => continue,
                Err(error) => return Err(error),
            };
            if let Some(found) = resources.into_iter().find(|it| it.name == self.plural) {
                return Ok(Some(ApiResource {
                    group: self.group.to_owned(),
                    version,
                    api_version,
                    kind: found.kind,
                    plural: found.name,
                }));
            }
        }
        Ok(None)
    }

    /// The change that an object stands for.
    pub(super) fn change(self, object: &DynamicObject) -> Change {
        // What was deserialized can be serialized.
        let value = serde_json::to_value(object);
        let value = Box::new(invariant_ok!(value, "watched_object_is_json").unwrap_or_default());
        match self.subject() {
            Subject::Vm => Change::Vm(value),
            Subject::Migration => Change::Migration(value),
            Subject::Group(kind) => Change::Group(kind, value),
            Subject::Device(kind) => Change::Device(kind, value),
        }
    }

    fn subject(self) -> Subject {
        match self.name {
            VM_MIGRATIONS => Subject::Migration,
            POD_GROUPS => Subject::Group(GroupKind::PodGroup),
            WORKLOADS => Subject::Group(GroupKind::Workload),
            RESOURCE_CLAIMS => Subject::Device(DeviceKind::Claim),
            RESOURCE_SLICES => Subject::Device(DeviceKind::Slice),
            DEVICE_CLASSES => Subject::Device(DeviceKind::Class),
            DEVICE_TAINT_RULES => Subject::Device(DeviceKind::TaintRule),
            _ => Subject::Vm,
        }
    }

    fn message(self, delta: WatchDelta<DynamicObject>) -> Message {
        match delta {
            WatchDelta::Updated(object) => Message::Change(self.change(&object)),
            WatchDelta::Deleted(key, _) => Message::Change(match self.subject() {
                Subject::Vm => Change::VmDeleted(key),
                Subject::Migration => Change::MigrationDeleted(key),
                Subject::Group(kind) => Change::GroupDeleted(kind, key),
                Subject::Device(kind) => Change::DeviceDeleted(kind, key),
            }),
            WatchDelta::Synced => Message::Synced(self.name),
        }
    }
}

impl Informers {
    /// Watches a kind where it is served, and otherwise checks again periodically.
    pub(super) async fn run_optional_informer(self, kind: OptionalKind) {
        let mut synced = false;
        loop {
            let wait = match kind.discover(&self.client).await {
                Ok(Some(resource)) => {
                    let api = Api::<DynamicObject>::all_with(self.client.clone(), &resource);
                    self.report_served(kind, true).await;
                    self.run_informer(api, kind.name, |delta| kind.message(delta)).await;
                    self.report_served(kind, false).await;
                    synced = true;
                    DISCOVERY_INTERVAL
                }
                Ok(None) => {
                    if !synced && self.inbox.send(Message::Synced(kind.name)).await.is_err() {
                        return;
                    }
                    synced = true;
                    DISCOVERY_INTERVAL
                }
                Err(error) => {
                    let name = kind.name;
                    tracing::warn!(%error, "failed to discover whether {name} are served; retrying");
                    DISCOVERY_RETRY
                }
            };
            tokio::select! {
                () = self.stop.cancelled() => return,
                () = tokio::time::sleep(wait) => {}
            }
        }
    }

    /// Machines cannot be migrated where the cluster has no migrations.
    async fn report_served(&self, kind: OptionalKind, served: bool) {
        if kind.name == VM_MIGRATIONS {
            let message = Message::Change(Change::MigrationsServed(served));
            // The core has stopped if this fails.
            let _ = self.inbox.send(message).await;
        }
    }
}
