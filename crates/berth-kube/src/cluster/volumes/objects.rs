//! Claims, volumes, classes and capacities, reduced to what a decision looks at, so that an update
//! without effect is recognized.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::api::core::v1 as core;
use k8s_openapi::api::storage::v1 as storage;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1 as meta;
use rustc_hash::FxHashMap;

use crate::cluster::node::Node;
use crate::cluster::pod::Key;
use crate::cluster::quantity;
use crate::cluster::selector::{Labels, NodeSelector, Selector};

/// The annotation of a claim whose binding is complete.
const BIND_COMPLETED: &str = "pv.kubernetes.io/bind-completed";
/// The annotation of a claim whose volume is being provisioned for a node.
pub(super) const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";
/// The annotation for the class from before there was a field; it still takes precedence.
const CLASS: &str = "volume.beta.kubernetes.io/storage-class";
/// The provisioner of classes whose volumes are created by hand.
const NO_PROVISIONER: &str = "kubernetes.io/no-provisioner";

/// Labels of volumes for their location, with the current label on nodes.
const ZONES: [(&str, &str); 4] = [
    ("topology.kubernetes.io/zone", "topology.kubernetes.io/zone"),
    ("topology.kubernetes.io/region", "topology.kubernetes.io/region"),
    ("failure-domain.beta.kubernetes.io/zone", "topology.kubernetes.io/zone"),
    ("failure-domain.beta.kubernetes.io/region", "topology.kubernetes.io/region"),
];

/// Access modes, one bit each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(super) struct AccessModes(u8);

impl AccessModes {
    /// `ReadWriteOncePod`.
    pub(super) const ONE_POD: Self = Self(8);

    fn read(modes: Option<&Vec<String>>) -> Self {
        let bit = |mode: &String| match mode.as_str() {
            "ReadWriteOnce" => 1,
            "ReadOnlyMany" => 2,
            "ReadWriteMany" => 4,
            "ReadWriteOncePod" => 8,
            // An unknown mode matches no volume.
            _ => 16,
        };
        Self(modes.into_iter().flatten().fold(0, |bits, mode| bits | bit(mode)))
    }

    /// Whether all of the other's modes are among these.
    pub(super) fn include(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

/// A claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Claim {
    pub(super) key: Key,
    pub(super) uid: String,
    /// The pod that owns it, by uid.
    pub(super) pod: Option<String>,
    /// Absent: it requests a volume without one. The API server writes the default class into a claim
    /// that names none.
    pub(super) class: Option<Arc<str>>,
    /// The volume that it names, which it need not be bound to yet.
    pub(super) volume: Option<Arc<str>>,
    /// Whether it is bound to that volume.
    pub(super) bound: bool,
    pub(super) lost: bool,
    pub(super) deleting: bool,
    /// Bytes.
    pub(super) size: i64,
    pub(super) modes: AccessModes,
    pub(super) block: bool,
    pub(super) selector: Selector,
    pub(super) attributes: Option<String>,
    /// The node that its volume is being provisioned for.
    pub(super) selected: Option<Arc<str>>,
}

impl Claim {
    pub(super) fn read(claim: &core::PersistentVolumeClaim) -> Self {
        let empty = core::PersistentVolumeClaimSpec::default();
        let (spec, meta) = (claim.spec.as_ref().unwrap_or(&empty), &claim.metadata);
        let phase = claim.status.as_ref().and_then(|it| it.phase.as_deref());
        let annotation = |key: &str| meta.annotations.as_ref().and_then(|it| it.get(key));
        let volume = arc(spec.volume_name.as_ref());
        let requests = spec.resources.as_ref().and_then(|it| it.requests.as_ref());
        let owner = crate::cluster::pod::controller(meta);
        Self {
            key: Key::of(meta),
            uid: meta.uid.clone().unwrap_or_default(),
            pod: owner.filter(|(kind, ..)| kind == "Pod").map(|(.., uid)| uid),
            class: arc(annotation(CLASS).or(spec.storage_class_name.as_ref())),
            bound: volume.is_some()
                && (annotation(BIND_COMPLETED).is_some() || phase == Some("Bound")),
            volume,
            lost: phase == Some("Lost"),
            deleting: meta.deletion_timestamp.is_some(),
            size: size(requests),
            modes: AccessModes::read(spec.access_modes.as_ref()),
            block: spec.volume_mode.as_deref() == Some("Block"),
            selector: spec.selector.as_ref().map(Selector::read).unwrap_or_default(),
            attributes: text(spec.volume_attributes_class_name.as_ref()).cloned(),
            selected: arc(annotation(SELECTED_NODE)),
        }
    }
}

/// A volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Volume {
    pub(super) name: Arc<str>,
    pub(super) class: Option<Arc<str>>,
    /// Bytes.
    pub(super) size: i64,
    modes: AccessModes,
    block: bool,
    labels: Labels,
    attributes: Option<String>,
    affinity: NodeSelector,
    /// Its zone labels: the label, the current name of the label, and the values.
    zones: Vec<(&'static str, &'static str, Vec<String>)>,
    /// The claim that it is reserved for or bound to, with its uid if given.
    pub(super) claim: Option<(Key, Option<String>)>,
    /// The CSI driver that attaches it, and its volume handle.
    pub(super) csi: Option<(Arc<str>, Arc<str>)>,
    /// Whether any claim may get it, as far as its own state goes.
    pub(super) available: bool,
    deleting: bool,
    pub(super) pin: LabelPin,
}

impl Volume {
    pub(super) fn read(volume: &core::PersistentVolume) -> Self {
        let empty = core::PersistentVolumeSpec::default();
        let (spec, meta) = (volume.spec.as_ref().unwrap_or(&empty), &volume.metadata);
        let annotation = |key: &str| meta.annotations.as_ref().and_then(|it| it.get(key));
        let phase = volume.status.as_ref().and_then(|it| it.phase.as_deref());
        let required = spec.node_affinity.as_ref().and_then(|it| it.required.as_ref());
        let labels = meta.labels.clone().unwrap_or_default();
        let deleting = meta.deletion_timestamp.is_some();
        let claim = spec.claim_ref.as_ref().map(|it| {
            let name = |it: &Option<String>| it.clone().unwrap_or_default();
            let key = Key::new(&name(&it.namespace), &name(&it.name));
            (key, text(it.uid.as_ref()).cloned())
        });
        let csi = spec.csi.as_ref();
        Self {
            name: meta.name.as_deref().unwrap_or_default().into(),
            class: arc(annotation(CLASS).or(spec.storage_class_name.as_ref())),
            size: size(spec.capacity.as_ref()),
            modes: AccessModes::read(spec.access_modes.as_ref()),
            block: spec.volume_mode.as_deref() == Some("Block"),
            zones: zones(&labels),
            labels,
            attributes: text(spec.volume_attributes_class_name.as_ref()).cloned(),
            affinity: NodeSelector::read(required),
            // One that is not available yet will be updated, and binding it would conflict.
            available: claim.is_none()
                && !deleting
                && matches!(phase, None | Some("" | "Available")),
            claim,
            csi: csi.map(|it| (it.driver.as_str().into(), it.volume_handle.as_str().into())),
            deleting,
            pin: pin_of_terms(required),
        }
    }

    /// Whether it is reserved for or bound to this claim.
    pub(super) fn is_reserved_for(&self, claim: &Claim) -> bool {
        self.claim.as_ref().is_some_and(|(key, uid)| {
            *key == claim.key && uid.as_ref().is_none_or(|uid| *uid == claim.uid)
        })
    }

    /// Whether it satisfies a claim that it is reserved for.
    pub(super) fn satisfies_reserved(&self, claim: &Claim) -> bool {
        self.size >= claim.size
            && self.class == claim.class
            && self.block == claim.block
            && self.attributes == claim.attributes
            && !self.deleting
    }

    /// Whether it satisfies a claim that looks for a volume.
    pub(super) fn satisfies(&self, claim: &Claim) -> bool {
        self.satisfies_reserved(claim)
            && self.modes.include(claim.modes)
            && claim.selector.matches(&self.labels)
    }

    /// Whether its node affinity allows a node.
    pub(super) fn allows_node(&self, node: &Node) -> bool {
        self.affinity.matches(&node.name, &node.labels)
    }

    /// The first of its zone labels that does not match the node: the label and its values. A node
    /// without zone labels matches all, as in a cluster with a single zone.
    pub(super) fn zone_mismatch(&self, node: &Node) -> Option<(&'static str, &[String])> {
        if self.zones.is_empty() || !ZONES.iter().any(|(key, _)| node.labels.contains_key(*key)) {
            return None;
        }
        let differs = |(old, new, values): &&(&str, &str, Vec<String>)| {
            let found = node.labels.get(*old).or_else(|| node.labels.get(*new));
            found.is_none_or(|found| !values.contains(found))
        };
        self.zones.iter().find(differs).map(|(key, _, values)| (*key, values.as_slice()))
    }
}

fn zones(labels: &Labels) -> Vec<(&'static str, &'static str, Vec<String>)> {
    let found = ZONES.iter().filter_map(|(old, new)| {
        let values = labels.get(*old)?.split("__").map(str::to_owned).collect();
        Some((*old, *new, values))
    });
    found.collect()
}

/// A storage class.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Class {
    pub(super) name: Arc<str>,
    /// Its provisioner; absent: volumes are created by hand.
    pub(super) provisioner: Option<Arc<str>>,
    /// Whether its binding mode is `WaitForFirstConsumer`.
    pub(super) waits: bool,
    /// Where its volumes may be provisioned: alternatives; none: anywhere.
    topologies: Vec<Vec<(String, Vec<String>)>>,
}

impl Class {
    pub(super) fn read(class: &storage::StorageClass) -> Self {
        let terms = class.allowed_topologies.iter().flatten().map(|term| {
            let all = term.match_label_expressions.iter().flatten();
            all.map(|it| (it.key.clone(), it.values.clone())).collect()
        });
        let provisioner = Some(&class.provisioner).filter(|it| *it != NO_PROVISIONER);
        Self {
            name: class.metadata.name.as_deref().unwrap_or_default().into(),
            provisioner: arc(provisioner),
            waits: class.volume_binding_mode.as_deref() == Some("WaitForFirstConsumer"),
            topologies: terms.collect(),
        }
    }

    /// Whether volumes may be provisioned for a node. An empty term allows no node.
    pub(super) fn allows(&self, node: &Node) -> bool {
        let holds = |(key, values): &(String, Vec<String>)| {
            node.labels.get(key).is_some_and(|value| values.contains(value))
        };
        let matches = |term: &Vec<_>| !term.is_empty() && term.iter().all(holds);
        self.topologies.is_empty() || self.topologies.iter().any(matches)
    }
}

/// What a driver can still provision in a part of the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Capacity {
    pub(super) class: Arc<str>,
    /// The largest volume, in bytes; absent: none.
    pub(super) largest: Option<i64>,
    /// The nodes; absent: none.
    topology: Option<Selector>,
    pub(super) pin: LabelPin,
}

impl Capacity {
    pub(super) fn read(capacity: &storage::CSIStorageCapacity) -> Self {
        let largest = capacity.maximum_volume_size.as_ref().or(capacity.capacity.as_ref());
        Self {
            class: capacity.storage_class_name.as_str().into(),
            largest: largest.and_then(quantity::to_units),
            topology: capacity.node_topology.as_ref().map(Selector::read),
            pin: capacity.node_topology.as_ref().and_then(pin_of_labels),
        }
    }

    /// Whether it is the same as the other, or less.
    pub(super) fn is_at_most(&self, other: &Self) -> bool {
        self.largest <= other.largest
            && (&self.class, &self.topology) == (&other.class, &other.topology)
    }

    /// Whether it applies to a node.
    pub(super) fn applies_to(&self, node: &Node) -> bool {
        self.topology.as_ref().is_some_and(|it| it.matches(&node.labels))
    }
}

/// The attach limits of a node: drivers, and how many of their volumes it takes.
pub(super) fn limits(node: &storage::CSINode) -> Vec<(Arc<str>, i64)> {
    let limit = |it: &storage::CSINodeDriver| {
        let count = it.allocatable.as_ref()?.count?;
        Some((it.name.as_str().into(), i64::from(count)))
    };
    node.spec.drivers.iter().filter_map(limit).collect()
}

/// A label and the values of which a node must have one. Absent: there is no such simple condition.
pub(super) type LabelPin = Option<(String, Vec<String>)>;

/// The most selective requirement of a selector with one term. There may be further ones.
fn pin_of_terms(selector: Option<&core::NodeSelector>) -> LabelPin {
    let [term] = selector?.node_selector_terms.as_slice() else { return None };
    let listed = term.match_expressions.iter().flatten().filter(|it| it.operator == "In");
    let found = listed.map(|it| (&it.key, it.values.clone().unwrap_or_default()));
    // Several nodes share a zone, but rarely a host name.
    let (key, values) = found
        .min_by_key(|(key, values)| (values.len(), key.as_str() != "kubernetes.io/hostname"))?;
    Some((key.clone(), values))
}

fn pin_of_labels(selector: &meta::LabelSelector) -> LabelPin {
    let (key, value) = selector.match_labels.as_ref()?.first_key_value()?;
    Some((key.clone(), vec![value.clone()]))
}

/// Items indexed by the nodes that can use them, so that a node need not go through all of them:
/// thousands of local volumes belong to one node each.
#[derive(Clone, Debug)]
pub(super) struct LabelPinIndex<T> {
    anywhere: BTreeSet<T>,
    at: BTreeMap<String, FxHashMap<String, BTreeSet<T>>>,
}

impl<T> Default for LabelPinIndex<T> {
    fn default() -> Self {
        Self { anywhere: BTreeSet::new(), at: BTreeMap::new() }
    }
}

impl<T: Ord + Clone> LabelPinIndex<T> {
    pub(super) fn insert(&mut self, pin: &LabelPin, item: &T) {
        let Some((key, values)) = pin else {
            self.anywhere.insert(item.clone());
            return;
        };
        let at = self.at.entry(key.clone()).or_default();
        for value in values {
            at.entry(value.clone()).or_default().insert(item.clone());
        }
    }

    pub(super) fn remove(&mut self, pin: &LabelPin, item: &T) {
        let Some((key, values)) = pin else {
            self.anywhere.remove(item);
            return;
        };
        let Some(at) = self.at.get_mut(key) else { return };
        for value in values {
            if let Some(set) = at.get_mut(value) {
                set.remove(item);
                if set.is_empty() {
                    at.remove(value);
                }
            }
        }
        if at.is_empty() {
            self.at.remove(key);
        }
    }

    /// Sets that contain everything that a node with these labels can use, and some that it cannot.
    pub(super) fn candidates_for<'a>(
        &'a self,
        labels: &'a Labels,
    ) -> impl Iterator<Item = &'a BTreeSet<T>> {
        let at = self.at.iter().filter_map(|(key, at)| at.get(labels.get(key)?));
        std::iter::once(&self.anywhere).chain(at)
    }
}

fn text(text: Option<&String>) -> Option<&String> {
    text.filter(|it| !it.is_empty())
}

fn arc(it: Option<&String>) -> Option<Arc<str>> {
    text(it).map(|it| Arc::from(it.as_str()))
}

fn size(amounts: Option<&BTreeMap<String, Quantity>>) -> i64 {
    amounts.and_then(|it| it.get("storage")).and_then(quantity::to_units).unwrap_or(0)
}
