//! Filters for volumes: whether a pod's claims can be used at all, and on a node.

use std::sync::Arc;

use berth_engine::InstanceId;

use super::objects::{AccessModes, Claim, Class, Volume};
use super::reservations::{Attachment, ClaimDecision, VolumeHandle, claim_keys};
use super::{VolumeRejection, Volumes};
use crate::cluster::node::Node;
use crate::cluster::pod::{Key, Pod};
use crate::cluster::quantity::format_bytes;

/// A pod's claims prepared for the filters. Valid until anything changes.
#[derive(Clone, Debug, Default)]
pub struct PreparedVolumes {
    /// Claims whose volumes are known.
    settled: Vec<(Key, Arc<Volume>, VolumeSource)>,
    /// Claims that get a volume where the pod goes, the smallest first.
    pending: Vec<PendingClaim>,
    /// Distinct volumes to attach to the node.
    attachments: Vec<Attachment>,
}

/// How a claim's volume is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum VolumeSource {
    /// It is bound.
    Bound,
    /// It was decided for a pod that is not bound yet.
    Planned,
}

#[derive(Clone, Debug)]
struct PendingClaim {
    claim: Arc<Claim>,
    class: Arc<Class>,
    /// The node that its volume is being provisioned for.
    only: Option<Arc<str>>,
    /// Where to begin among volumes ordered by size.
    from: (i64, Arc<str>),
}

/// How a claim gets its volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum VolumeChoice {
    /// By binding it to this one.
    Existing(Arc<str>),
    /// By provisioning.
    Provision,
}

impl PreparedVolumes {
    /// Whether there is nothing to check.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.settled.is_empty() && self.pending.is_empty() && self.attachments.is_empty()
    }

    /// What to do for unbound claims on a node that passed the check.
    pub(super) fn choices(&self, volumes: &Volumes, node: &Node) -> Vec<(Key, VolumeChoice)> {
        let decided = self.settled.iter().filter(|(.., how)| *how == VolumeSource::Planned);
        let existing = |volume: &Volume| VolumeChoice::Existing(Arc::clone(&volume.name));
        let mut all: Vec<_> = decided.map(|(key, it, _)| (key.clone(), existing(it))).collect();
        let mut chosen = Vec::new();
        for pending in &self.pending {
            let choice = match volumes.find(pending, node, &chosen) {
                Ok(Some(volume)) => {
                    chosen.push(volume);
                    existing(volume)
                }
                Ok(None) => VolumeChoice::Provision,
                Err(_) => continue,
            };
            all.push((pending.claim.key.clone(), choice));
        }
        all
    }
}

/// Why a node is rejected.
enum NodeRejection<'a> {
    Affinity(&'a Key, &'a Volume),
    Zone(&'a Key, &'a Volume, &'static str, &'a [String]),
    OtherNode(&'a Claim, &'a str),
    ReservedElsewhere(&'a Claim, &'a Volume),
    NoVolume(&'a PendingClaim),
    Topology(&'a PendingClaim),
    NoCapacity(&'a PendingClaim),
    AttachLimit { driver: &'a str, limit: i64, attached: i64, more: i64 },
}

impl Volumes {
    /// Checks what does not depend on nodes. A pod without claims always passes.
    ///
    /// # Errors
    /// Why no node is possible now.
    pub fn prepare(&self, pod: &Pod) -> Result<PreparedVolumes, VolumeRejection> {
        self.prepare_without(pod, &[])
    }

    /// The same as if some pods were gone.
    ///
    /// # Errors
    /// Why no node would be possible then.
    pub fn prepare_without(
        &self,
        pod: &Pod,
        deleted: &[InstanceId],
    ) -> Result<PreparedVolumes, VolumeRejection> {
        let mut prepared = PreparedVolumes::default();
        if pod.claims.is_empty() {
            return Ok(prepared);
        }
        let claims = claim_keys(pod);
        for key in &claims {
            self.prepare_claim(key, pod, deleted, &mut prepared)?;
        }
        prepared.pending.sort_by(|a, b| {
            (a.claim.size, &a.claim.key.name).cmp(&(b.claim.size, &b.claim.key.name))
        });
        prepared.attachments = self.attachments(&claims);
        Ok(prepared)
    }

    fn prepare_claim(
        &self,
        key: &Key,
        pod: &Pod,
        deleted: &[InstanceId],
        prepared: &mut PreparedVolumes,
    ) -> Result<(), VolumeRejection> {
        let claim = self.claims.get(key).ok_or_else(|| missing(key))?;
        check_usable(claim, pod)?;
        if claim.modes.include(AccessModes::ONE_POD)
            && let Some(other) = self.reservations.other_user(key, pod.id, deleted)
        {
            return Err(in_use(key, other));
        }
        if let Some(name) = claim.volume.as_ref().filter(|_| claim.bound) {
            let volume = self.volumes.get(name).ok_or_else(|| volume_missing(key, name))?;
            prepared.settled.push((key.clone(), Arc::clone(volume), VolumeSource::Bound));
            return Ok(());
        }
        let class = self.waiting_class(claim)?;
        let decision = self.reservations.decision(key);
        if let Some(ClaimDecision::Bind(name)) = decision
            && let Some(volume) = self.volumes.get(name)
        {
            prepared.settled.push((key.clone(), Arc::clone(volume), VolumeSource::Planned));
            return Ok(());
        }
        let decided = decision.and_then(|decision| match decision {
            ClaimDecision::Provision(node) => Some(node),
            ClaimDecision::Bind(_) => None,
        });
        prepared.pending.push(PendingClaim {
            only: claim.selected.as_ref().or(decided).cloned(),
            from: (claim.size, "".into()),
            claim: Arc::clone(claim),
            class: Arc::clone(class),
        });
        Ok(())
    }

    /// The class of an unbound claim, if it waits for the first consumer.
    fn waiting_class(&self, claim: &Claim) -> Result<&Arc<Class>, VolumeRejection> {
        let key = &claim.key;
        if let Some(volume) = &claim.volume {
            let text = format!("claim {key} names volume {volume} and is not bound to it yet");
            return Err(unbound(text));
        }
        let Some(name) = &claim.class else {
            return Err(unbound(format!("claim {key} has no storage class and is not bound")));
        };
        let Some(class) = self.classes.get(name) else {
            return Err(VolumeRejection {
                code: "volume_class_missing",
                text: format!("storage class {name} of claim {key} does not exist"),
                help: "create the storage class, or a new claim with an existing one",
            });
        };
        if !class.waits {
            let text = format!("claim {key} is not bound yet; its class {name} binds immediately");
            return Err(unbound(text));
        }
        Ok(class)
    }

    /// Checks whether a pod's volumes can be used on a node.
    ///
    /// # Errors
    /// The reason why not.
    pub fn check(&self, prepared: &PreparedVolumes, node: &Node) -> Result<(), VolumeRejection> {
        self.check_without(prepared, node, &[])
    }

    /// The same as if some pods were gone.
    ///
    /// # Errors
    /// The reason why not.
    pub fn check_without(
        &self,
        prepared: &PreparedVolumes,
        node: &Node,
        deleted: &[InstanceId],
    ) -> Result<(), VolumeRejection> {
        self.check_node(prepared, node, deleted)
            .map_err(|miss| self.describe_rejection(&miss, node))
    }

    /// Whether a pod's volumes can be used on a node, without a reason.
    #[must_use]
    pub fn fits(&self, prepared: &PreparedVolumes, node: &Node) -> bool {
        self.check_node(prepared, node, &[]).is_ok()
    }

    fn check_node<'a>(
        &'a self,
        prepared: &'a PreparedVolumes,
        node: &Node,
        deleted: &[InstanceId],
    ) -> Result<(), NodeRejection<'a>> {
        for (claim, volume, _) in &prepared.settled {
            if !volume.allows_node(node) {
                return Err(NodeRejection::Affinity(claim, volume));
            }
            if let Some((label, values)) = volume.zone_mismatch(node) {
                return Err(NodeRejection::Zone(claim, volume, label, values));
            }
        }
        let mut chosen = Vec::new();
        for (index, pending) in prepared.pending.iter().enumerate() {
            let found = self.find(pending, node, &chosen)?;
            // The last one need not be remembered.
            if let Some(volume) = found.filter(|_| index + 1 < prepared.pending.len()) {
                chosen.push(volume);
            }
        }
        self.check_attach_limits(prepared, node, deleted)
    }

    fn check_attach_limits<'a>(
        &'a self,
        prepared: &'a PreparedVolumes,
        node: &Node,
        deleted: &[InstanceId],
    ) -> Result<(), NodeRejection<'a>> {
        if prepared.attachments.is_empty() {
            return Ok(());
        }
        for (driver, limit) in self.limits.get(&node.name).into_iter().flatten() {
            let (attached, has) = self.reservations.attached(&node.name, driver, deleted);
            let new = |(by, handle): &&Attachment| by == driver && !has(handle);
            let more = prepared.attachments.iter().filter(new).count();
            let more = i64::try_from(more).unwrap_or(i64::MAX);
            if more > 0 && attached + more > *limit {
                return Err(NodeRejection::AttachLimit { driver, limit: *limit, attached, more });
            }
        }
        Ok(())
    }

    /// The volume for a claim on a node; `None`: provision one.
    fn find<'a>(
        &'a self,
        pending: &'a PendingClaim,
        node: &Node,
        chosen: &[&'a Volume],
    ) -> Result<Option<&'a Volume>, NodeRejection<'a>> {
        let claim = &*pending.claim;
        if let Some(only) = &pending.only {
            return if *only == node.name {
                self.check_provisioning(pending, node).map(|()| None)
            } else {
                Err(NodeRejection::OtherNode(claim, only))
            };
        }
        if let Some(volume) = self.nominated(claim) {
            let usable = volume.allows_node(node) && volume.zone_mismatch(node).is_none();
            return if usable {
                Ok(Some(volume))
            } else {
                Err(NodeRejection::ReservedElsewhere(claim, volume))
            };
        }
        let suits = |volume: &&Volume| {
            volume.satisfies(claim)
                && volume.allows_node(node)
                && volume.zone_mismatch(node).is_none()
                && !chosen.iter().any(|it| it.name == volume.name)
        };
        let free = self.free.get(&pending.class.name);
        let near = free.into_iter().flat_map(|free| free.candidates_for(&node.labels));
        let best = near.filter_map(|set| {
            let mut enough = set.range(&pending.from..).filter_map(|(_, name)| self.volume(name));
            enough.find(suits)
        });
        match best.min_by(|a, b| (a.size, &a.name).cmp(&(b.size, &b.name))) {
            Some(volume) => Ok(Some(volume)),
            None => self.check_provisioning(pending, node).map(|()| None),
        }
    }

    fn volume(&self, name: &str) -> Option<&Volume> {
        self.volumes.get(name).map(Arc::as_ref)
    }

    /// A volume that is reserved for this claim.
    fn nominated(&self, claim: &Claim) -> Option<&Volume> {
        let names = self.nominated.get(&claim.key)?.iter();
        let mut volumes = names.filter_map(|name| self.volume(name));
        volumes.find(|it| it.is_reserved_for(claim) && it.satisfies_reserved(claim))
    }

    /// Whether a volume can be provisioned for a claim on a node.
    fn check_provisioning<'a>(
        &self,
        pending: &'a PendingClaim,
        node: &Node,
    ) -> Result<(), NodeRejection<'a>> {
        let class = &pending.class;
        let Some(provisioner) = &class.provisioner else {
            return Err(NodeRejection::NoVolume(pending));
        };
        if !pending.claim.selector.0.is_empty() && pending.only.is_none() {
            return Err(NodeRejection::NoVolume(pending));
        }
        if !class.allows(node) {
            return Err(NodeRejection::Topology(pending));
        }
        if self.measured.contains(&**provisioner)
            && self.largest_provisionable(class, node) < Some(pending.claim.size)
        {
            return Err(NodeRejection::NoCapacity(pending));
        }
        Ok(())
    }

    /// The largest volume that can be provisioned for a node, as reported by the driver.
    fn largest_provisionable(&self, class: &Class, node: &Node) -> Option<i64> {
        let near = self.capacity_index.get(&class.name)?.candidates_for(&node.labels);
        let capacities = near.flatten().filter_map(|key| self.capacities.get(key));
        capacities.filter(|it| it.applies_to(node)).filter_map(|it| it.largest).max()
    }

    /// The distinct volumes that claims attach to their node.
    pub(super) fn attachments(&self, claims: &[Key]) -> Vec<Attachment> {
        let mut all: Vec<Attachment> = Vec::new();
        for found in claims.iter().filter_map(|claim| self.attachment(claim)) {
            if !all.contains(&found) {
                all.push(found);
            }
        }
        all
    }

    fn attachment(&self, key: &Key) -> Option<Attachment> {
        let claim = self.claims.get(key)?;
        let name = match self.reservations.decision(key) {
            _ if claim.bound => claim.volume.as_ref(),
            Some(ClaimDecision::Bind(name)) => Some(name),
            Some(ClaimDecision::Provision(_)) | None => None,
        };
        if let Some(volume) = name.and_then(|name| self.volumes.get(name)) {
            let (driver, handle) = volume.csi.clone()?;
            return Some((driver, VolumeHandle::Volume(handle)));
        }
        // It does not exist yet, or is not known yet: it will be one more.
        let class = self.classes.get(claim.class.as_ref()?)?;
        Some((class.provisioner.clone()?, VolumeHandle::Claim(key.clone())))
    }

    fn describe_rejection(&self, miss: &NodeRejection<'_>, node: &Node) -> VolumeRejection {
        let (code, text, help) = match miss {
            NodeRejection::Affinity(claim, volume) => (
                "volume_node_affinity",
                format!("claim {claim}: the node affinity of volume {} excludes it", volume.name),
                "make room on a node that the volume's node affinity allows",
            ),
            NodeRejection::Zone(claim, volume, label, values) => (
                "volume_zone",
                format!(
                    "claim {claim}: volume {} is in {label} {}",
                    volume.name,
                    values.join(" or ")
                ),
                "make room on a node in the volume's zone",
            ),
            NodeRejection::OtherNode(claim, only) => (
                "volume_other_node",
                format!("claim {}: its volume is being provisioned for node {only}", claim.key),
                "wait for the volume, or remove the claim's selected-node annotation",
            ),
            NodeRejection::ReservedElsewhere(claim, volume) => (
                "volume_node_affinity",
                format!("claim {}: volume {} is reserved for it elsewhere", claim.key, volume.name),
                "make room on a node that the volume's node affinity allows",
            ),
            NodeRejection::NoVolume(pending) => (
                "no_volume",
                self.describe_volumes(pending, node),
                "create a matching volume (class, size, access modes, labels) for a suitable node",
            ),
            NodeRejection::Topology(pending) => (
                "volume_topology",
                format!(
                    "claim {}: class {} provisions no volumes here",
                    pending.claim.key, pending.class.name
                ),
                "make room on a node that the class's allowedTopologies include, or extend them",
            ),
            NodeRejection::NoCapacity(pending) => (
                "no_volume_capacity",
                self.describe_capacity(pending, node),
                "free or add storage where the pod may run",
            ),
            NodeRejection::AttachLimit { driver, limit, attached, more } => (
                "volume_attach_limit",
                format!(
                    "{driver} has {attached} of {limit} volumes attached, {more} more requested"
                ),
                "add nodes, or move pods with volumes of that driver",
            ),
        };
        VolumeRejection { code, text, help }
    }

    fn describe_volumes(&self, pending: &PendingClaim, node: &Node) -> String {
        let (claim, class) = (&pending.claim, &pending.class.name);
        let free =
            self.free.get(class).into_iter().flat_map(|free| free.candidates_for(&node.labels));
        let volumes = free.flatten().filter_map(|(_, name)| self.volume(name));
        let largest = volumes.filter(|it| it.allows_node(node)).map(|it| it.size).max();
        let start = format!("claim {}: {} of class {class}", claim.key, format_bytes(claim.size));
        match largest {
            None => format!("{start}, no unclaimed volume here"),
            Some(size) if size < claim.size => {
                format!("{start}, the largest unclaimed volume here has {}", format_bytes(size))
            }
            Some(_) => {
                format!("{start}, no unclaimed volume here matches its mode, access and labels")
            }
        }
    }

    fn describe_capacity(&self, pending: &PendingClaim, node: &Node) -> String {
        let (claim, class) = (&pending.claim, &pending.class);
        let largest =
            self.largest_provisionable(class, node).map_or_else(|| "none".to_owned(), format_bytes);
        let (key, size) = (&claim.key, format_bytes(claim.size));
        format!(
            "claim {key}: {size} of class {}, the largest that can be provisioned here: {largest}",
            class.name
        )
    }
}

/// Whether this pod may use a claim.
fn check_usable(claim: &Claim, pod: &Pod) -> Result<(), VolumeRejection> {
    let key = &claim.key;
    if claim.deleting {
        return Err(VolumeRejection {
            code: "volume_claim_deleting",
            text: format!("claim {key} is being deleted"),
            help: "wait until it is deleted, then recreate it",
        });
    }
    if claim.lost {
        let volume = claim.volume.as_deref().unwrap_or("(unknown)");
        return Err(VolumeRejection {
            code: "volume_claim_lost",
            text: format!("claim {key} has lost its volume {volume}"),
            help: "restore the volume, or delete and recreate the claim",
        });
    }
    // The claim of an ephemeral volume of an earlier pod with the same name: the pod was recreated, and
    // the old claim is not deleted yet.
    let own_name = key.name.strip_prefix(&*pod.key.name).is_some_and(|it| it.starts_with('-'));
    if own_name && claim.pod.as_ref().is_some_and(|owner| **owner != *pod.uid) {
        return Err(VolumeRejection {
            code: "volume_claim_foreign",
            text: format!("claim {key} belongs to an earlier pod of this name"),
            help: "wait until it is deleted, or delete it",
        });
    }
    Ok(())
}

fn missing(key: &Key) -> VolumeRejection {
    VolumeRejection {
        code: "volume_claim_missing",
        text: format!("claim {key} does not exist"),
        help: "create the claim; claims of ephemeral volumes are created by their controller",
    }
}

fn volume_missing(key: &Key, volume: &str) -> VolumeRejection {
    VolumeRejection {
        code: "volume_missing",
        text: format!("claim {key} is bound to volume {volume}, which does not exist"),
        help: "restore the volume, or delete and recreate the claim",
    }
}

fn in_use(key: &Key, other: &Key) -> VolumeRejection {
    VolumeRejection {
        code: "volume_claim_in_use",
        text: format!("claim {key} is ReadWriteOncePod and in use by {other}"),
        help: "wait until that pod is deleted, or use another access mode",
    }
}

fn unbound(text: String) -> VolumeRejection {
    VolumeRejection {
        code: "volume_claim_unbound",
        text,
        help: "Kubernetes' volume controller binds it; see the events of the claim",
    }
}
