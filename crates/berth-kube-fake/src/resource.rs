//! The resources that are served: names and properties.
//!
//! Built-in resources are fixed; a custom one exists while its definition does.

use std::fmt;
use std::sync::Arc;

use serde_json::Value;

/// Where the number of replicas is, for the subresource `scale`.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Scale {
    pub(crate) spec_replicas: String,
    pub(crate) status_replicas: String,
    /// For a custom resource: the field with the selector as a string. `None`: `.spec.selector`.
    pub(crate) selector: Option<String>,
}

/// A resource type.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Resource {
    pub(crate) group: String,
    pub(crate) version: String,
    pub(crate) plural: String,
    pub(crate) singular: String,
    pub(crate) kind: String,
    pub(crate) namespaced: bool,
    pub(crate) status: bool,
    pub(crate) scale: Option<Scale>,
    /// Further subresources: `binding`, `eviction`.
    pub(crate) others: &'static [&'static str],
    /// Whether a PUT may create it.
    pub(crate) upsert: bool,
    /// Whether a PUT may omit the resource version.
    pub(crate) unconditional: bool,
    /// Whether a deletion returns the object; else a `Status`.
    pub(crate) returns_deleted: bool,
    /// Whether changes of `spec` increase the generation.
    pub(crate) counted: bool,
    pub(crate) custom: bool,
    /// The resource whose objects this one shows in another shape.
    pub(crate) view_of: Option<&'static str>,
}

impl fmt::Display for Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.qualified())
    }
}

impl Resource {
    /// `pods`, `deployments.apps`.
    pub(crate) fn qualified(&self) -> String {
        if self.group.is_empty() {
            self.plural.clone()
        } else {
            format!("{}.{}", self.plural, self.group)
        }
    }

    /// `v1`, `apps/v1`.
    pub(crate) fn api_version(&self) -> String {
        if self.group.is_empty() {
            self.version.clone()
        } else {
            format!("{}/{}", self.group, self.version)
        }
    }

    /// Whether `word` names this resource, as with kubectl.
    pub(crate) fn has_name(&self, word: &str) -> bool {
        self.kind == word
            || self.plural == word
            || self.singular == word
            || self.qualified() == word
    }
}

const POD_SUBRESOURCES: &[&str] = &["binding", "eviction", "resize", "ephemeralcontainers"];

/// Properties of a built-in resource, as letters: `s` status, `r` replicas (scale), `u` a PUT may create,
/// `x` a PUT must name the version, `d` a deletion returns the object, `g` changes of `spec` increase the
/// generation, `c` cluster-scoped.
fn built_in(group: &str, plural: &str, kind: &str, letters: &str) -> Resource {
    let has = |letter: char| letters.contains(letter);
    Resource {
        group: group.into(),
        version: "v1".into(),
        plural: plural.into(),
        singular: kind.to_lowercase(),
        kind: kind.into(),
        namespaced: !has('c'),
        status: has('s'),
        scale: has('r').then(|| Scale {
            spec_replicas: ".spec.replicas".into(),
            status_replicas: ".status.replicas".into(),
            selector: None,
        }),
        others: if plural == "pods" { POD_SUBRESOURCES } else { &[] },
        upsert: has('u'),
        unconditional: !has('x'),
        returns_deleted: has('d'),
        counted: has('g'),
        custom: false,
        view_of: None,
    }
}

/// All built-in resources; those of `resource.k8s.io` if devices are served.
pub(crate) fn built_ins(devices: bool) -> Vec<Arc<Resource>> {
    const STORAGE: &str = "storage.k8s.io";
    let mut all = vec![
        built_in("", "pods", "Pod", "sd"),
        built_in("", "nodes", "Node", "sc"),
        built_in("", "namespaces", "Namespace", "sc"),
        built_in("", "events", "Event", "u"),
        built_in("", "persistentvolumes", "PersistentVolume", "scd"),
        built_in("", "persistentvolumeclaims", "PersistentVolumeClaim", "sd"),
        built_in("", "services", "Service", "sud"),
        built_in("", "configmaps", "ConfigMap", ""),
        built_in("", "secrets", "Secret", ""),
        built_in("", "serviceaccounts", "ServiceAccount", "d"),
        built_in("", "replicationcontrollers", "ReplicationController", "srg"),
        built_in("apps", "deployments", "Deployment", "srg"),
        built_in("apps", "replicasets", "ReplicaSet", "srg"),
        built_in("apps", "statefulsets", "StatefulSet", "srg"),
        built_in("apps", "daemonsets", "DaemonSet", "sg"),
        built_in("batch", "jobs", "Job", "sg"),
        built_in(STORAGE, "storageclasses", "StorageClass", "c"),
        built_in(STORAGE, "csinodes", "CSINode", "cx"),
        built_in(STORAGE, "csidrivers", "CSIDriver", "cx"),
        built_in(STORAGE, "csistoragecapacities", "CSIStorageCapacity", "x"),
        built_in(STORAGE, "volumeattachments", "VolumeAttachment", "csx"),
        built_in("policy", "poddisruptionbudgets", "PodDisruptionBudget", "sxg"),
        built_in("scheduling.k8s.io", "priorityclasses", "PriorityClass", "cg"),
        built_in("coordination.k8s.io", "leases", "Lease", "ux"),
        built_in(
            "admissionregistration.k8s.io",
            "mutatingwebhookconfigurations",
            "MutatingWebhookConfiguration",
            "cxg",
        ),
        built_in(
            "apiextensions.k8s.io",
            "customresourcedefinitions",
            "CustomResourceDefinition",
            "scxg",
        ),
    ];
    const DEVICES: &str = "resource.k8s.io";
    if devices {
        all.extend([
            built_in(DEVICES, "resourceclaims", "ResourceClaim", "sd"),
            built_in(DEVICES, "resourceclaimtemplates", "ResourceClaimTemplate", "d"),
            built_in(DEVICES, "resourceslices", "ResourceSlice", "cg"),
            built_in(DEVICES, "deviceclasses", "DeviceClass", "cg"),
            built_in(DEVICES, "devicetaintrules", "DeviceTaintRule", "csg"),
        ]);
    }
    // The same objects as the core group's events, under other field names.
    all.push(Resource {
        view_of: Some("events"),
        ..built_in("events.k8s.io", "events", "Event", "u")
    });
    all.into_iter().map(Arc::new).collect()
}

/// The resource of a `CustomResourceDefinition`: its stored version, if that is served.
/// Conversion between versions is not imitated.
pub(crate) fn defined_by(definition: &Value) -> Option<Resource> {
    let spec = &definition["spec"];
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let version = spec["versions"]
        .as_array()?
        .iter()
        .find(|version| version["served"] == true && version["storage"] == true)?;
    let below = &version["subresources"];
    let kind = text(&spec["names"]["kind"]);
    let singular = text(&spec["names"]["singular"]);
    Some(Resource {
        group: text(&spec["group"]),
        version: text(&version["name"]),
        plural: text(&spec["names"]["plural"]),
        singular: if singular.is_empty() { kind.to_lowercase() } else { singular },
        kind,
        namespaced: spec["scope"] == "Namespaced",
        status: below["status"].is_object(),
        scale: below["scale"].is_object().then(|| Scale {
            spec_replicas: text(&below["scale"]["specReplicasPath"]),
            status_replicas: text(&below["scale"]["statusReplicasPath"]),
            selector: Some(text(&below["scale"]["labelSelectorPath"])),
        }),
        others: &[],
        upsert: false,
        unconditional: false,
        returns_deleted: false,
        counted: true,
        custom: true,
        view_of: None,
    })
}
