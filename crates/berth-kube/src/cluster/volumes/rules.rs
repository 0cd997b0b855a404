//! Whether a pod's claims can be had at all, and on a node.

use std::sync::Arc;

use berth_engine::InstanceId;

use super::facts::{Claim, Class, Modes, Volume};
use super::holds::{Attachment, Handle, Way, claims};
use super::{Volumes, Why};
use crate::cluster::node::Node;
use crate::cluster::pod::{Key, Pod};
use crate::cluster::quantity::bytes;

/// What a pod's claims ask of nodes. It is of the moment: make it anew when anything changed.
#[derive(Clone, Debug, Default)]
pub struct Prepared {
    /// Claims whose volumes are known.
    settled: Vec<(Key, Arc<Volume>, Settled)>,
    /// Claims that get one where the pod goes, the smallest first.
    pending: Vec<Pending>,
    /// What is attached to the node, each once.
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
    /// Where its volume is being made.
    only: Option<Arc<str>>,
    /// Where to begin among volumes in order of size.
    from: (i64, Arc<str>),
}

/// How a claim gets its volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Choice {
    /// It gets this one.
    Existing(Arc<str>),
    /// One is made.
    Made,
}

impl Prepared {
    /// Whether every node will do.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.settled.is_empty() && self.pending.is_empty() && self.attachments.is_empty()
    }

    /// What to do for claims that are not bound, on a node that was checked.
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
                Ok(None) => Choice::Made,
                Err(_) => continue,
            };
            all.push((pending.claim.key.clone(), choice));
        }
        all
    }
}

/// Why a node will not do.
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
    /// What holds on all nodes. A pod without claims asks nothing.
    ///
    /// # Errors
    /// Why no node will do now.
    pub fn prepare(&self, pod: &Pod) -> Result<Prepared, Why> {
        self.prepare_without(pod, &[])
    }

    /// The same as if some pods were gone.
    ///
    /// # Errors
    /// Why no node would do then.
    pub fn prepare_without(&self, pod: &Pod, gone: &[InstanceId]) -> Result<Prepared, Why> {
        let mut prepared = Prepared::default();
        if pod.claims.is_empty() {
            return Ok(prepared);
        }
        let claims = claims(pod);
        for key in &claims {
            self.prepare_claim(key, pod, gone, &mut prepared)?;
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
        gone: &[InstanceId],
        prepared: &mut Prepared,
    ) -> Result<(), Why> {
        let claim = self.claims.get(key).ok_or_else(|| missing(key))?;
        usable(claim, pod)?;
        if claim.modes.include(Modes::ONE_POD)
            && let Some(other) = self.holds.other_user(key, pod.id, gone)
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
        if let Some(Way::Bind(name)) = way
            && let Some(volume) = self.volumes.get(name)
        {
            prepared.settled.push((key.clone(), Arc::clone(volume), Settled::Decided));
            return Ok(());
        }
        let decided = way.and_then(|way| match way {
            Way::Make(node) => Some(node),
            Way::Bind(_) => None,
        });
        prepared.pending.push(Pending {
            only: claim.selected.as_ref().or(decided).cloned(),
            from: (claim.size, "".into()),
            claim: Arc::clone(claim),
            class: Arc::clone(class),
        });
        Ok(())
    }

    /// The class of an unbound claim, if it is one that waits for a node.
    fn waiting_class(&self, claim: &Claim) -> Result<&Arc<Class>, Why> {
        let key = &claim.key;
        if let Some(volume) = &claim.volume {
            let text = format!("claim {key} names volume {volume} and is not bound to it yet");
            return Err(unbound(text));
        }
        let Some(name) = &claim.class else {
            return Err(unbound(format!("claim {key} has no class and is not bound to a volume")));
        };
        let Some(class) = self.classes.get(name) else {
            return Err(Why {
                code: "volume_class_missing",
                text: format!("claim {key} is of storage class {name}, which does not exist"),
                help: "create the storage class, or name one that exists in a new claim",
            });
        };
        if !class.waits {
            let text = format!("claim {key} is not bound yet; its class {name} binds immediately");
            return Err(unbound(text));
        }
        Ok(class)
    }

    /// Whether a node can have a pod's volumes, and why not.
    ///
    /// # Errors
    /// Why not.
    pub fn check(&self, prepared: &Prepared, node: &Node) -> Result<(), Why> {
        self.check_without(prepared, node, &[])
    }

    /// The same as if some pods were gone.
    ///
    /// # Errors
    /// Why not.
    pub fn check_without(
        &self,
        prepared: &Prepared,
        node: &Node,
        gone: &[InstanceId],
    ) -> Result<(), Why> {
        self.look(prepared, node, gone).map_err(|miss| self.tell(&miss, node))
    }

    /// Whether a node can have a pod's volumes, for those who do not ask why.
    #[must_use]
    pub fn fits(&self, prepared: &Prepared, node: &Node) -> bool {
        self.look(prepared, node, &[]).is_ok()
    }

    fn look<'a>(
        &'a self,
        prepared: &'a Prepared,
        node: &Node,
        gone: &[InstanceId],
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
        for (place, pending) in prepared.pending.iter().enumerate() {
            let found = self.find(pending, node, &chosen)?;
            // Nobody looks after the last; so one claim needs no list.
            if let Some(volume) = found.filter(|_| place + 1 < prepared.pending.len()) {
                chosen.push(volume);
            }
        }
        self.look_at_limits(prepared, node, gone)
    }

    fn look_at_limits<'a>(
        &'a self,
        prepared: &'a Prepared,
        node: &Node,
        gone: &[InstanceId],
    ) -> Result<(), Miss<'a>> {
        if prepared.attachments.is_empty() {
            return Ok(());
        }
        for (driver, limit) in self.limits.get(&node.name).into_iter().flatten() {
            let (attached, has) = self.holds.attached(&node.name, driver, gone);
            let new = |(by, handle): &&Attachment| by == driver && !has(handle);
            let more = prepared.attachments.iter().filter(new).count();
            let more = i64::try_from(more).unwrap_or(i64::MAX);
            if more > 0 && attached + more > *limit {
                return Err(Miss::TooMany { driver, limit: *limit, attached, more });
            }
        }
        Ok(())
    }

    /// The volume that a claim gets on a node; none: one is made.
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
        if let Some(volume) = self.promised(claim) {
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

    /// A volume that names this claim as the one it is for.
    fn promised(&self, claim: &Claim) -> Option<&Volume> {
        let names = self.promised.get(&claim.key)?.iter();
        let mut volumes = names.filter_map(|name| self.volume(name));
        volumes.find(|it| it.is_for(claim) && it.serves(claim))
    }

    /// Whether a volume may be made for a claim on a node.
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

    /// The largest volume that can be made for a node, by what the driver says.
    fn room(&self, class: &Class, node: &Node) -> Option<i64> {
        let near = self.rooms.get(&class.name)?.near(&node.labels);
        let capacities = near.flatten().filter_map(|key| self.capacities.get(key));
        capacities.filter(|it| it.covers(node)).filter_map(|it| it.largest).max()
    }

    /// What claims attach to the node that they are used on, each once.
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
            Some(Way::Bind(name)) => Some(name),
            Some(Way::Make(_)) | None => None,
        };
        if let Some(volume) = name.and_then(|name| self.volumes.get(name)) {
            let (driver, handle) = volume.csi.clone()?;
            return Some((driver, Handle::Volume(handle)));
        }
        // It is not there yet, or not seen yet: it will be one more.
        let class = self.classes.get(claim.class.as_ref()?)?;
        Some((class.provisioner.clone()?, Handle::Claim(key.clone())))
    }

    fn tell(&self, miss: &Miss<'_>, node: &Node) -> Why {
        let (code, text, help) = match miss {
            Miss::Affinity(claim, volume) => (
                "volume_node_affinity",
                format!("claim {claim}: volume {} is not for this node", volume.name),
                "free a node that the volume's node affinity names",
            ),
            Miss::Zone(claim, volume, label, values) => (
                "volume_zone",
                format!(
                    "claim {claim}: volume {} has {label} {}",
                    volume.name,
                    values.join(" or ")
                ),
                "free a node where the volume is",
            ),
            Miss::OtherNode(claim, only) => (
                "volume_other_node",
                format!("claim {}: its volume is being made for node {only}", claim.key),
                "wait for the volume, or remove the claim's selected-node annotation",
            ),
            Miss::Promised(claim, volume) => (
                "volume_node_affinity",
                format!("claim {}: volume {} is kept for it elsewhere", claim.key, volume.name),
                "free a node that the volume's node affinity names",
            ),
            Miss::NoVolume(pending) => (
                "no_volume",
                self.tell_volumes(pending, node),
                "create a volume of that class, size, access modes and labels for a node that fits",
            ),
            Miss::Topology(pending) => (
                "volume_topology",
                format!(
                    "claim {}: class {} makes no volumes here",
                    pending.claim.key, pending.class.name
                ),
                "free a node that the class's allowedTopologies name, or extend them",
            ),
            Miss::NoRoom(pending) => (
                "no_volume_capacity",
                self.tell_room(pending, node),
                "free storage where the pod may run, or add some",
            ),
            Miss::TooMany { driver, limit, attached, more } => (
                "volume_attach_limit",
                format!(
                    "{driver} has {attached} of {limit} volumes attached, {more} more are asked for"
                ),
                "add nodes, or move pods with volumes of that driver away",
            ),
        };
        Why { code, text, help }
    }

    fn tell_volumes(&self, pending: &Pending, node: &Node) -> String {
        let (claim, class) = (&pending.claim, &pending.class.name);
        let free = self.free.get(class).into_iter().flat_map(|free| free.near(&node.labels));
        let volumes = free.flatten().filter_map(|(_, name)| self.volume(name));
        let largest = volumes.filter(|it| it.reaches(node)).map(|it| it.size).max();
        let start = format!("claim {}: {} of class {class}", claim.key, bytes(claim.size));
        match largest {
            None => format!("{start}, no volume is free here"),
            Some(size) if size < claim.size => {
                format!("{start}, the largest that is free here has {}", bytes(size))
            }
            Some(_) => {
                format!("{start}, no other free volume here has its mode, access and labels")
            }
        }
    }

    fn tell_room(&self, pending: &Pending, node: &Node) -> String {
        let (claim, class) = (&pending.claim, &pending.class);
        let largest = self.room(class, node).map_or_else(|| "none".to_owned(), bytes);
        let (key, size) = (&claim.key, bytes(claim.size));
        format!(
            "claim {key}: {size} of class {}, the largest that can be made here: {largest}",
            class.name
        )
    }
}

/// Whether a claim is one that this pod may use.
fn usable(claim: &Claim, pod: &Pod) -> Result<(), Why> {
    let key = &claim.key;
    if claim.deleting {
        return Err(Why {
            code: "volume_claim_deleting",
            text: format!("claim {key} is being deleted"),
            help: "wait until it is gone and create it anew",
        });
    }
    if claim.lost {
        let volume = claim.volume.as_deref().unwrap_or("that it had");
        return Err(Why {
            code: "volume_claim_lost",
            text: format!("claim {key} has lost its volume {volume}"),
            help: "restore the volume, or delete the claim and create it anew",
        });
    }
    // A claim that another pod's own volume made, where this pod's own is to be: the pod was
    // created anew and its predecessor's claim is not gone yet.
    let own_name = key.name.strip_prefix(&*pod.key.name).is_some_and(|it| it.starts_with('-'));
    if own_name && claim.pod.as_ref().is_some_and(|owner| **owner != *pod.uid) {
        return Err(Why {
            code: "volume_claim_foreign",
            text: format!("claim {key} was made for another pod of this name"),
            help: "wait until it is gone, or delete it",
        });
    }
    Ok(())
}

fn missing(key: &Key) -> Why {
    Why {
        code: "volume_claim_missing",
        text: format!("claim {key} does not exist"),
        help: "create the claim; one for the pod alone is made by the ephemeral volume controller",
    }
}

fn volume_missing(key: &Key, volume: &str) -> Why {
    Why {
        code: "volume_missing",
        text: format!("claim {key} is bound to volume {volume}, which does not exist"),
        help: "restore the volume, or delete the claim and create it anew",
    }
}

fn in_use(key: &Key, other: &Key) -> Why {
    Why {
        code: "volume_claim_in_use",
        text: format!("claim {key} is for one pod (ReadWriteOncePod), and {other} uses it"),
        help: "wait until that pod is gone, or ask for another access mode",
    }
}

fn unbound(text: String) -> Why {
    Why {
        code: "volume_claim_unbound",
        text,
        help: "Kubernetes' volume controller binds it; see the events of the claim",
    }
}
