//! Who has which volumes: claims that pods use, what was decided for claims that have no volume
//! yet, and what is attached to nodes.
//!
//! A decision stands until the API server shows that it was carried out, or until the last pod
//! that relies on it is released before it was bound. In between, other pods see it as if it were so.

use std::sync::Arc;

use berth_engine::InstanceId;
use rustc_hash::FxHashMap;

use super::facts::Volume;
use super::rules::Choice;
use super::{Volumes, Why};
use crate::cluster::node::Node;
use crate::cluster::outcome::VolumePlan;
use crate::cluster::pod::{Key, Pod};

/// Which volume is attached.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Handle {
    /// One that exists, by its driver's name for it.
    Volume(Arc<str>),
    /// One that is yet to be made, for this claim.
    Claim(Key),
}

/// A volume and who attaches it.
pub(super) type Attachment = (Arc<str>, Handle);

/// What is done for a claim that has no volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// It gets this volume.
    Bind(Arc<str>),
    /// One is made for this node.
    Make(Arc<str>),
}

#[derive(Clone, Debug)]
struct Decision {
    way: Way,
    /// Who relies on it.
    pods: Vec<InstanceId>,
}

/// What a pod uses.
#[derive(Clone, Debug)]
struct Use {
    pod: Key,
    node: Arc<str>,
    claims: Vec<Key>,
    attached: Vec<Attachment>,
}

/// What is attached to a node: by driver, the volumes and for whom.
type Attached = FxHashMap<Arc<str>, FxHashMap<Handle, Vec<InstanceId>>>;

/// Who has what.
#[derive(Clone, Debug, Default)]
pub(super) struct Holds {
    uses: FxHashMap<InstanceId, Use>,
    /// Who uses a claim.
    users: FxHashMap<Key, Vec<InstanceId>>,
    decided: FxHashMap<Key, Decision>,
    /// Volumes that are decided for a claim.
    taken: FxHashMap<Arc<str>, Key>,
    attached: FxHashMap<Arc<str>, Attached>,
    /// What was decided for the pod that was released last, if nothing was told since.
    last: Option<Released>,
}

/// What was decided for a pod that was released: on which node, and for which claims.
#[derive(Clone, Debug)]
struct Released {
    pod: InstanceId,
    node: Arc<str>,
    ways: Vec<(Key, Way)>,
}

impl Holds {
    /// The claim that a volume is decided for.
    pub(super) fn taker(&self, volume: &str) -> Option<&Key> {
        self.taken.get(volume)
    }

    /// Something was told: whoever is put back now looks again.
    pub(super) fn look_again(&mut self) {
        self.last = None;
    }

    /// What was decided for a claim.
    pub(super) fn way(&self, claim: &Key) -> Option<&Way> {
        self.decided.get(claim).map(|it| &it.way)
    }

    /// A pod that uses a claim, other than this one and those that are thought away.
    pub(super) fn other_user(
        &self,
        claim: &Key,
        pod: InstanceId,
        gone: &[InstanceId],
    ) -> Option<&Key> {
        let users = self.users.get(claim)?;
        let other = users.iter().find(|it| **it != pod && !gone.contains(it))?;
        self.uses.get(other).map(|it| &it.pod)
    }

    /// How many volumes of a driver are attached to a node, and whether one of them is this.
    pub(super) fn attached<'a>(
        &'a self,
        node: &str,
        driver: &str,
        gone: &'a [InstanceId],
    ) -> (i64, impl Fn(&Handle) -> bool + 'a) {
        let there = self.attached.get(node).and_then(|it| it.get(driver));
        let stays = move |pods: &Vec<InstanceId>| {
            gone.is_empty() || pods.iter().any(|pod| !gone.contains(pod))
        };
        let count = there.map_or(0, |it| match gone {
            [] => it.len(),
            _ => it.values().filter(|pods| stays(pods)).count(),
        });
        let has = move |handle: &Handle| there.and_then(|it| it.get(handle)).is_some_and(stays);
        (i64::try_from(count).unwrap_or(i64::MAX), has)
    }

    fn attach(&mut self, id: InstanceId, attachments: Vec<Attachment>) {
        let Some(used) = self.uses.get_mut(&id) else { return };
        let node = self.attached.entry(Arc::clone(&used.node)).or_default();
        for (driver, handle) in &attachments {
            let pods = node.entry(Arc::clone(driver)).or_default();
            pods.entry(handle.clone()).or_default().push(id);
        }
        used.attached = attachments;
    }

    fn detach(&mut self, id: InstanceId) {
        let Some(used) = self.uses.get_mut(&id) else { return };
        let Some(node) = self.attached.get_mut(&used.node) else { return };
        for (driver, handle) in used.attached.drain(..) {
            let Some(there) = node.get_mut(&driver) else { continue };
            let Some(pods) = there.get_mut(&handle) else { continue };
            pods.retain(|it| *it != id);
            if pods.is_empty() {
                there.remove(&handle);
            }
            if there.is_empty() {
                node.remove(&driver);
            }
        }
        if node.is_empty() {
            self.attached.remove(&used.node);
        }
    }
}

impl Volumes {
    /// Holds a pod's volumes on a node if they can be had there: chooses volumes that exist, or says
    /// for which claims one is to be made. Until the pod is released or the claims are seen bound,
    /// nobody else gets these volumes, and these claims are as good as bound.
    ///
    /// Several pods may rely on one claim; then each plan names it. Carrying out a plan twice must
    /// do what once does. A pod that is bound already uses what it uses: nothing is checked, and
    /// nothing is left to do.
    ///
    /// # Errors
    /// Why its volumes cannot be had there; then nothing is held.
    pub fn try_reserve(&mut self, pod: &Pod, node: &Node) -> Result<VolumePlan, Why> {
        if pod.claims.is_empty() {
            return Ok(VolumePlan::default());
        }
        if pod.node.is_some() {
            self.record(pod, &node.name);
            return Ok(VolumePlan::default());
        }
        if self.holds.uses.get(&pod.id).is_some_and(|it| it.node != node.name) {
            self.release(pod);
        }
        let usable = |it: &Volume| it.reaches(node) && it.apart(node).is_none();
        self.resume(pod, &node.name, usable);
        let prepared = self.prepare(pod)?;
        self.check(&prepared, node)?;
        let plan = self.decide(pod, node, prepared.choices(self, node));
        self.record(pod, &node.name);
        Ok(plan)
    }

    /// The same where the caller has just checked: what cannot be had is left out of the plan.
    pub fn reserve(&mut self, pod: &Pod, node: &Node) -> VolumePlan {
        self.try_reserve(pod, node).unwrap_or_else(|_| {
            self.record(pod, &node.name);
            VolumePlan::default()
        })
    }

    fn decide(&mut self, pod: &Pod, node: &Node, choices: Vec<(Key, Choice)>) -> VolumePlan {
        let mut plan = VolumePlan::default();
        for (claim, choice) in choices {
            let way = match choice {
                Choice::Existing(volume) => {
                    plan.bind.push((claim.clone(), volume.to_string()));
                    Way::Bind(volume)
                }
                Choice::Made => {
                    plan.provision.push(claim.clone());
                    Way::Make(Arc::clone(&node.name))
                }
            };
            self.rely(pod.id, claim, way);
        }
        plan
    }

    /// Notes that a pod relies on what is decided for a claim.
    fn rely(&mut self, pod: InstanceId, claim: Key, way: Way) {
        if self.holds.way(&claim).is_some_and(|old| *old != way) {
            self.undecide(&claim);
        }
        if let Way::Bind(volume) = &way {
            self.holds.taken.insert(Arc::clone(volume), claim.clone());
            self.list(volume);
        }
        let decision = Decision { way, pods: Vec::new() };
        let decision = self.holds.decided.entry(claim).or_insert(decision);
        if !decision.pods.contains(&pod) {
            decision.pods.push(pod);
        }
    }

    /// A pod that is put back where it just was gets what was decided for it there: the plan may be
    /// under way, and another choice would not be what is carried out.
    fn resume(&mut self, pod: &Pod, node: &str, usable: impl Fn(&Volume) -> bool) {
        let same = |it: &mut Released| it.pod == pod.id && *it.node == *node;
        let Some(released) = self.holds.last.take_if(same) else { return };
        for (claim, way) in released.ways {
            let free = match &way {
                Way::Make(_) => true,
                Way::Bind(name) => self.is_free_for(name, &claim, &usable),
            };
            if free && self.holds.way(&claim).is_none() {
                self.rely(pod.id, claim, way);
            }
        }
    }

    fn is_free_for(&self, volume: &str, claim: &Key, usable: &impl Fn(&Volume) -> bool) -> bool {
        let free = |it: &Volume| match &it.claim {
            Some((promised, _)) => promised == claim,
            None => it.available && !self.bound_to.contains_key(volume),
        };
        self.volumes.get(volume).is_some_and(|it| free(it) && usable(it))
            && self.holds.taker(volume).is_none()
    }

    /// Notes that a pod uses its claims on a node, whatever the rules say of it. A pod that was
    /// noted there keeps what was decided for it; elsewhere, it is released there first.
    pub fn record(&mut self, pod: &Pod, node: &str) {
        match self.holds.uses.get(&pod.id) {
            Some(used) if *used.node == *node => {}
            _ if pod.claims.is_empty() => return,
            Some(_) => {
                self.release(pod);
                self.note(pod, node);
            }
            None => self.note(pod, node),
        }
        self.reattach(pod.id);
    }

    fn note(&mut self, pod: &Pod, node: &str) {
        self.resume(pod, node, |_| true);
        let claims = claims(pod);
        for claim in &claims {
            self.holds.users.entry(claim.clone()).or_default().push(pod.id);
        }
        let (pod, id) = (pod.key.clone(), pod.id);
        let used = Use { pod, node: node.into(), claims, attached: Vec::new() };
        self.holds.uses.insert(id, used);
    }

    /// A pod has no place any more: what only it relied on is free again. It is no news here; the
    /// caller knows that a pod left.
    ///
    /// What was decided for a pod that is bound has been written to the API server, and outlives it.
    pub fn release(&mut self, pod: &Pod) {
        self.holds.detach(pod.id);
        let Some(used) = self.holds.uses.remove(&pod.id) else { return };
        let mut ways = Vec::new();
        for claim in &used.claims {
            if let Some(users) = self.holds.users.get_mut(claim) {
                users.retain(|it| *it != pod.id);
                if users.is_empty() {
                    self.holds.users.remove(claim);
                }
            }
            let Some(decision) = self.holds.decided.get_mut(claim) else { continue };
            if pod.node.is_some() || !decision.pods.contains(&pod.id) {
                continue;
            }
            ways.push((claim.clone(), decision.way.clone()));
            decision.pods.retain(|it| *it != pod.id);
            if decision.pods.is_empty() {
                self.undecide(claim);
                self.reattach_claim(claim);
            }
        }
        self.holds.last = Some(Released { pod: pod.id, node: used.node, ways });
    }

    /// Forgets what was decided for a claim.
    pub(super) fn undecide(&mut self, claim: &Key) {
        let Some(decision) = self.holds.decided.remove(claim) else { return };
        if let Way::Bind(volume) = decision.way {
            self.holds.taken.remove(&volume);
            self.list(&volume);
        }
    }

    fn reattach(&mut self, id: InstanceId) {
        self.holds.detach(id);
        let Some(used) = self.holds.uses.get(&id) else { return };
        let attachments = self.attachments(&used.claims);
        self.holds.attach(id, attachments);
    }

    /// A claim's volume may be another.
    pub(super) fn reattach_claim(&mut self, claim: &Key) {
        for id in self.holds.users.get(claim).cloned().unwrap_or_default() {
            self.reattach(id);
        }
    }

    /// A volume may be attached by another name.
    pub(super) fn reattach_volume(&mut self, volume: &str) {
        let claims = [self.bound_to.get(volume), self.holds.taker(volume)];
        for claim in claims.map(|it| it.cloned()).into_iter().flatten() {
            self.reattach_claim(&claim);
        }
    }

    /// Who attaches may be another.
    pub(super) fn reattach_all(&mut self) {
        let all: Vec<InstanceId> = self.holds.uses.keys().copied().collect();
        for id in all {
            self.reattach(id);
        }
    }
}

/// The claims of a pod, each once.
pub(super) fn claims(pod: &Pod) -> Vec<Key> {
    let key = |name: &String| Key {
        namespace: Arc::clone(&pod.key.namespace),
        name: Arc::from(name.as_str()),
    };
    let mut claims: Vec<Key> = pod.claims.iter().map(key).collect();
    claims.sort_unstable();
    claims.dedup();
    claims
}
