//! Filters for volumes: whether a pod's claims can be used at all, and on a node.

use std::sync::Arc;

use berth_engine::InstanceId;

use super::objects::{Claim, Class, Modes, Volume};
use super::reservations::{Attachment, ClaimDecision, Handle, claims};
use super::{VolumeRejection, Volumes};
use crate::cluster::node::Node;
use crate::cluster::pod::{Key, Pod};
use crate::cluster::quantity::bytes;

/// A pod's claims prepared for the filters. Valid until anything changes.
#[derive(Clone, Debug, Default)]
pub struct PreparedVolumes {
    /// Claims whose volumes are known.
    settled: Vec<(Key, Arc<Volume>, Settled)>,
    /// Claims that get a volume where the pod goes, the smallest first.
    pending: Vec<Pending>,
    /// Distinct volumes to attach to the node.
    attachments: Vec<Attachment>,
}

/// How a claim's volume is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Settled {
    /// It is bound.
    Bound,
    /// It was decided for a pod that is not bound yet.
    Decided,
}

#[derive(Clone, Debug)]
struct Pending {
    claim: Arc<Claim>,
    class: Arc<Class>,
    /// The node that its volume is being provisioned for.
    only: Option<Arc<str>>,
    /// Where to begin among volumes ordered by size.
    from: (i64, Arc<str>),
}

/// How a claim gets its volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Choice {
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
    pub(super) fn choices(&self, volumes: &Volumes, node: &Node) -> Vec<(Key, Choice)> {
        let decided = self.settled.iter().filter(|(.., how)| *how == Settled::Decided);
        let existing = |volume: &Volume| Choice::Existing(Arc::clone(&volume.name));
        let mut all: Vec<_> = decided.map(|(key, it, _)| (key.clone(), existing(it))).collect();
        let mut chosen = Vec::new();
        for pending in &self.pending {
            let choice = match volumes.find(pending, node, &chosen) {
                Ok(Some(volume)) => {
                    chosen.push(volume);
                    existing(volume)
                }
                Ok(None) => Choice::Provision,
                Err(_) => continue,
            };
            all.push((pending.claim.key.clone(), choice));
        }
        all
    }
}

/// Why a node is rejected.
enum Miss<'a> {
    Affinity(&'a Key, &'a Volume),
    Zone(&'a Key, &'a Volume, &'static str, &'a [String]),
    OtherNode(&'a Claim, &'a str),
    Promised(&'a Claim, &'a Volume),
    NoVolume(&'a Pending),
    Topology(&'a Pending),
    NoRoom(&'a Pending),
    TooMany { driver: &'a str, limit: i64, attached: i64, more: i64 },
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
        let claims = claims(pod);
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
        usable(claim, pod)?;
        if claim.modes.include(Modes::ONE_POD)
            && let Some(other) = self.holds.other_user(key, pod.id, deleted)
        {
            return Err(in_use(key, other));
        }
        if let Some(name) = claim.volume.as_ref().filter(|_| claim.bound) {
            let volume = self.volumes.get(name).ok_or_else(|| volume_missing(key, name))?;
            prepared.settled.push((key.clone(), Arc::clone(volume), Settled::Bound));
            return Ok(());
        }
        let class = self.waiting_class(claim)?;
        let way = self.holds.way(key);
        if let Some(ClaimDecision::Bind(name)) = way
            && let Some(volume) = self.volumes.get(name)
        {
            prepared.settled.push((key.clone(), Arc::clone(volume), Settled::Decided));
            return Ok(());
        }
        let decided = way.and_then(|way| match way {
            ClaimDecision::Provision(node) => Some(node),
            ClaimDecision::Bind(_) => None,
        });
        prepared.pending.push(Pending {
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
        self.look(prepared, node, deleted).map_err(|miss| self.tell(&miss, node))
    }

    /// Whether a pod's volumes can be used on a node, without a reason.
    #[must_use]
    pub fn fits(&self, prepared: &PreparedVolumes, node: &Node) -> bool {
        self.look(prepared, node, &[]).is_ok()
    }

    fn look<'a>(
        &'a self,
        prepared: &'a PreparedVolumes,
        node: &Node,
        deleted: &[InstanceId],
    ) -> Result<(), Miss<'a>> {
        for (claim, volume, _) in &prepared.settled {
            if !volume.reaches(node) {
                return Err(Miss::Affinity(claim, volume));
            }
            if let Some((label, values)) = volume.apart(node) {
                return Err(Miss::Zone(claim, volume, label, values));
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
        self.look_at_limits(prepared, node, deleted)
    }

    fn look_at_limits<'a>(
        &'a self,
        prepared: &'a PreparedVolumes,
        node: &Node,
        deleted: &[InstanceId],
    ) -> Result<(), Miss<'a>> {
        if prepared.attachments.is_empty() {
            return Ok(());
        }
        for (driver, limit) in self.limits.get(&node.name).into_iter().flatten() {
            let (attached, has) = self.holds.attached(&node.name, driver, deleted);
            let new = |(by, handle): &&Attachment| by == driver && !has(handle);
            let more = prepared.attachments.iter().filter(new).count();
            let more = i64::try_from(more).unwrap_or(i64::MAX);
            if more > 0 && attached + more > *limit {
                return Err(Miss::TooMany { driver, limit: *limit, attached, more });
            }
        }
        Ok(())
    }

    /// The volume for a claim on a node; `None`: provision one.
    fn find<'a>(
        &'a self,
        pending: &'a Pending,
        node: &Node,
        chosen: &[&'a Volume],
    ) -> Result<Option<&'a Volume>, Miss<'a>> {
        let claim = &*pending.claim;
        if let Some(only) = &pending.only {
            return if *only == node.name {
                self.can_make(pending, node).map(|()| None)
            } else {
                Err(Miss::OtherNode(claim, only))
            };
        }
        if let Some(volume) = self.nominated(claim) {
            let usable = volume.reaches(node) && volume.apart(node).is_none();
            return if usable { Ok(Some(volume)) } else { Err(Miss::Promised(claim, volume)) };
        }
        let suits = |volume: &&Volume| {
            volume.suits(claim)
                && volume.reaches(node)
                && volume.apart(node).is_none()
                && !chosen.iter().any(|it| it.name == volume.name)
        };
        let free = self.free.get(&pending.class.name);
        let near = free.into_iter().flat_map(|free| free.near(&node.labels));
        let best = near.filter_map(|set| {
            let mut enough = set.range(&pending.from..).filter_map(|(_, name)| self.volume(name));
            enough.find(suits)
        });
        match best.min_by(|a, b| (a.size, &a.name).cmp(&(b.size, &b.name))) {
            Some(volume) => Ok(Some(volume)),
            None => self.can_make(pending, node).map(|()| None),
        }
    }

    fn volume(&self, name: &str) -> Option<&Volume> {
        self.volumes.get(name).map(Arc::as_ref)
    }

    /// A volume that is reserved for this claim.
    fn nominated(&self, claim: &Claim) -> Option<&Volume> {
        let names = self.nominated.get(&claim.key)?.iter();
        let mut volumes = names.filter_map(|name| self.volume(name));
        volumes.find(|it| it.is_for(claim) && it.serves(claim))
    }

    /// Whether a volume can be provisioned for a claim on a node.
    fn can_make<'a>(&self, pending: &'a Pending, node: &Node) -> Result<(), Miss<'a>> {
        let class = &pending.class;
        let Some(provisioner) = &class.provisioner else { return Err(Miss::NoVolume(pending)) };
        if !pending.claim.selector.0.is_empty() && pending.only.is_none() {
            return Err(Miss::NoVolume(pending));
        }
        if !class.allows(node) {
            return Err(Miss::Topology(pending));
        }
        if self.measured.contains(&**provisioner)
            && self.room(class, node) < Some(pending.claim.size)
        {
            return Err(Miss::NoRoom(pending));
        }
        Ok(())
    }

    /// The largest volume that can be provisioned for a node, as reported by the driver.
    fn room(&self, class: &Class, node: &Node) -> Option<i64> {
        let near = self.rooms.get(&class.name)?.near(&node.labels);
        let capacities = near.flatten().filter_map(|key| self.capacities.get(key));
        capacities.filter(|it| it.covers(node)).filter_map(|it| it.largest).max()
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
        let name = match self.holds.way(key) {
            _ if claim.bound => claim.volume.as_ref(),
            Some(ClaimDecision::Bind(name)) => Some(name),
            Some(ClaimDecision::Provision(_)) | None => None,
        };
        if let Some(volume) = name.and_then(|name| self.volumes.get(name)) {
            let (driver, handle) = volume.csi.clone()?;
            return Some((driver, Handle::Volume(handle)));
        }
        // It does not exist yet, or is not known yet: it will be one more.
        let class = self.classes.get(claim.class.as_ref()?)?;
        Some((class.provisioner.clone()?, Handle::Claim(key.clone())))
    }

    fn tell(&self, miss: &Miss<'_>, node: &Node) -> VolumeRejection {
        let (code, text, help) = match miss {
            Miss::Affinity(claim, volume) => (
                "volume_node_affinity",
                format!("claim {claim}: the node affinity of volume {} excludes it", volume.name),
                "make room on a node that the volume's node affinity allows",
            ),
            Miss::Zone(claim, volume, label, values) => (
                "volume_zone",
                format!(
                    "claim {claim}: volume {} is in {label} {}",
                    volume.name,
                    values.join(" or ")
                ),
                "make room on a node in the volume's zone",
            ),
            Miss::OtherNode(claim, only) => (
                "volume_other_node",
                format!("claim {}: its volume is being provisioned for node {only}", claim.key),
                "wait for the volume, or remove the claim's selected-node annotation",
            ),
            Miss::Promised(claim, volume) => (
                "volume_node_affinity",
                format!("claim {}: volume {} is reserved for it elsewhere", claim.key, volume.name),
                "make room on a node that the volume's node affinity allows",
            ),
            Miss::NoVolume(pending) => (
                "no_volume",
                self.tell_volumes(pending, node),
                "create a matching volume (class, size, access modes, labels) for a suitable node",
            ),
            Miss::Topology(pending) => (
                "volume_topology",
                format!(
                    "claim {}: class {} provisions no volumes here",
                    pending.claim.key, pending.class.name
                ),
                "make room on a node that the class's allowedTopologies include, or extend them",
            ),
            Miss::NoRoom(pending) => (
                "no_volume_capacity",
                self.tell_room(pending, node),
                "free or add storage where the pod may run",
            ),
            Miss::TooMany { driver, limit, attached, more } => (
                "volume_attach_limit",
                format!(
                    "{driver} has {attached} of {limit} volumes attached, {more} more requested"
                ),
                "add nodes, or move pods with volumes of that driver",
            ),
        };
        VolumeRejection { code, text, help }
    }

    fn tell_volumes(&self, pending: &Pending, node: &Node) -> String {
        let (claim, class) = (&pending.claim, &pending.class.name);
        let free = self.free.get(class).into_iter().flat_map(|free| free.near(&node.labels));
        let volumes = free.flatten().filter_map(|(_, name)| self.volume(name));
        let largest = volumes.filter(|it| it.reaches(node)).map(|it| it.size).max();
        let start = format!("claim {}: {} of class {class}", claim.key, bytes(claim.size));
        match largest {
            None => format!("{start}, no unclaimed volume here"),
            Some(size) if size < claim.size => {
                format!("{start}, the largest unclaimed volume here has {}", bytes(size))
            }
            Some(_) => {
                format!("{start}, no unclaimed volume here matches its mode, access and labels")
            }
        }
    }

    fn tell_room(&self, pending: &Pending, node: &Node) -> String {
        let (claim, class) = (&pending.claim, &pending.class);
        let largest = self.room(class, node).map_or_else(|| "none".to_owned(), bytes);
        let (key, size) = (&claim.key, bytes(claim.size));
        format!(
            "claim {key}: {size} of class {}, the largest that can be provisioned here: {largest}",
            class.name
        )
    }
}

/// Whether this pod may use a claim.
fn usable(claim: &Claim, pod: &Pod) -> Result<(), VolumeRejection> {
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
