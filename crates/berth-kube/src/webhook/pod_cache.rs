//! A cache of live pods, fed by the watch. It keeps the few fields and keys that are read: a cluster has many
//! more pods than slots.
//!
//! Decides nothing. Every pod has one id in the slot store for its lifetime: its token, or, if it has
//! none or another pod had the token first, an id derived from its uid.
//!
//! Not a `reflector` store of kube-rs as for controllers and nodes: that one has no other index than the
//! name, holds whole pods, and does not return the last state of a pod that is gone, which names its slot.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use berth_engine::{CapacityType, InstanceId};
use hashbrown::{HashMap, HashSet};
use kube::api::ObjectMeta;
use serde_json::json;
use uuid::Uuid;

use super::affinity::{AllowedCapacity, allowed_capacity};
use super::annotations;
use super::owners::{self, controller};
use super::settings::NodeLabel;
use super::watched_pod::WatchedPod;

/// Labels and annotations that are read, besides the switch under any prefix.
const READ_KEYS: [&str; 10] = [
    annotations::CAPACITY,
    annotations::COST_IS_MANAGED,
    annotations::DELETION_COST,
    annotations::PINNED,
    annotations::SLOT,
    annotations::TOKEN,
    annotations::WORKLOAD,
    owners::POD_INDEX,
    owners::POD_REVISION[0],
    owners::POD_REVISION[1],
];

/// A live pod.
#[derive(Clone, Debug)]
pub(super) struct LivePod {
    /// Its id in the slot store.
    pub(super) id: InstanceId,
    pub(super) uid: String,
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) metadata: ObjectMeta,
    /// Its node, once it is bound.
    pub(super) node: Option<String>,
    pub(super) ready: bool,
    /// The capacity types that its spec allows.
    pub(super) allowed: AllowedCapacity,
}

impl LivePod {
    fn annotation(&self, key: &str) -> Option<&str> {
        self.metadata.annotations.as_ref()?.get(key).map(String::as_str)
    }

    /// Whether it was admitted by the webhook, with the id that it has in the store.
    pub(super) fn is_tagged(&self) -> bool {
        self.annotation(annotations::TOKEN).and_then(read_token) == Some(self.id)
    }

    /// The slot of its admission.
    pub(super) fn slot(&self) -> Option<i64> {
        self.annotation(annotations::SLOT)?.parse().ok()
    }

    /// The workload of its admission.
    pub(super) fn workload(&self) -> Option<&str> {
        self.annotation(annotations::WORKLOAD)
    }

    /// Whether its template chose the capacity type.
    pub(super) fn is_pinned(&self) -> bool {
        let chose = self.annotation(annotations::PINNED) == Some("true");
        chose || !self.is_tagged() && self.allowed != AllowedCapacity::Both
    }

    /// The capacity type of its admission.
    pub(super) fn admitted_class(&self) -> Option<CapacityType> {
        match self.metadata.labels.as_ref()?.get(annotations::CAPACITY)?.as_str() {
            "on-demand" => Some(CapacityType::OnDemand),
            "spot" => Some(CapacityType::Spot),
            _ => None,
        }
    }

    /// Its deletion cost, if the webhook manages it.
    pub(super) fn managed_deletion_cost(&self) -> Option<&str> {
        self.annotation(annotations::COST_IS_MANAGED)?;
        self.annotation(annotations::DELETION_COST)
    }

    /// The uid of its controller.
    pub(super) fn controller_uid(&self) -> Option<&str> {
        controller(self.metadata.owner_references.as_deref()).map(|it| it.uid.as_str())
    }
}

/// Parses a token.
pub(super) fn read_token(text: &str) -> Option<InstanceId> {
    Uuid::try_parse(text).ok().map(InstanceId)
}

/// A deterministic id for a text.
pub(super) fn derive_id(what: &str, text: &str) -> InstanceId {
    let (high, low) = (fnv(what, text, 0x6265_7274_6801), fnv(what, text, 0x6265_7274_6802));
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&high.to_be_bytes());
    bytes[8..].copy_from_slice(&low.to_be_bytes());
    InstanceId(Uuid::new_v8(bytes))
}

/// A hash of a text: FNV-1a with the finalizer of SplitMix64.
fn fnv(what: &str, text: &str, seed: u64) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325 ^ seed;
    for byte in what.bytes().chain([0]).chain(text.bytes()) {
        hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    }
    let mut mixed = hash.wrapping_add(0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(seed | 1));
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

/// Whether a pod is gone as far as its controller is concerned, which then creates another.
pub(super) fn is_terminated(pod: &WatchedPod) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    pod.metadata.deletion_timestamp.is_some() || matches!(phase, Some("Succeeded" | "Failed"))
}

#[derive(Default)]
struct Inner {
    pods: HashMap<String, Arc<LivePod>>,
    by_id: HashMap<InstanceId, String>,
    by_controller: HashMap<String, HashSet<String>>,
    /// Pods that are known to be terminating before the watch reports it.
    leaving: HashSet<String>,
}

impl Inner {
    fn leave_controller(&mut self, controller: &str, uid: &str) {
        let Some(pods) = self.by_controller.get_mut(controller) else { return };
        pods.remove(uid);
        if pods.is_empty() {
            self.by_controller.remove(controller);
        }
    }
}

/// Live pods.
pub(super) struct PodCache {
    label: NodeLabel,
    inner: Mutex<Inner>,
}

impl PodCache {
    pub(super) fn new(label: NodeLabel) -> Self {
        Self { label, inner: Mutex::default() }
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds or updates a pod. Returns the previous state if it is gone now.
    pub(super) fn apply(&self, pod: &WatchedPod) -> Option<Arc<LivePod>> {
        let uid = pod.metadata.uid.clone()?;
        if is_terminated(pod) {
            return self.remove(&uid);
        }
        let mut inner = self.inner();
        let known = inner.pods.get(&uid).map(|pod| pod.id);
        let token = pod.metadata.annotations.as_ref().and_then(|map| map.get(annotations::TOKEN));
        let token = token.and_then(|text| read_token(text));
        let unused = |id: &InstanceId| inner.by_id.get(id).is_none_or(|holder| *holder == uid);
        let id = known.or_else(|| token.filter(unused)).unwrap_or_else(|| derive_id("pod", &uid));
        let live = Arc::new(self.read_pod(id, uid.clone(), pod));
        inner.by_id.insert(id, uid.clone());
        let before = inner.pods.get(&uid).and_then(|it| it.controller_uid().map(str::to_owned));
        if let Some(before) = before.filter(|before| live.controller_uid() != Some(before)) {
            inner.leave_controller(&before, &uid);
        }
        if let Some(controller) = live.controller_uid() {
            inner.by_controller.entry_ref(controller).or_default().insert(uid.clone());
        }
        inner.pods.insert(uid, live);
        None
    }

    fn read_pod(&self, id: InstanceId, uid: String, pod: &WatchedPod) -> LivePod {
        let spec = pod.spec.as_ref();
        let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
        let chosen = json!({
            "nodeSelector": spec.map(|spec| &spec.node_selector),
            "affinity": spec.map(|spec| &spec.affinity),
        });
        LivePod {
            id,
            uid,
            namespace: pod.metadata.namespace.clone().unwrap_or_default(),
            name: pod.metadata.name.clone().unwrap_or_default(),
            metadata: self.slim_metadata(&pod.metadata),
            node: spec.and_then(|spec| spec.node_name.clone()).filter(|it| !it.is_empty()),
            ready: conditions
                .is_some_and(|all| all.iter().any(|it| it.type_ == "Ready" && it.status == "True")),
            allowed: allowed_capacity(&chosen, &self.label),
        }
    }

    /// What is read of a pod's metadata: its age, its controller, and some labels and annotations.
    fn slim_metadata(&self, metadata: &ObjectMeta) -> ObjectMeta {
        let is_read = |key: &String| {
            READ_KEYS.contains(&key.as_str())
                || key.strip_suffix(annotations::SWITCH).is_some_and(|it| it.ends_with('/'))
        };
        let slim = |map: &Option<BTreeMap<String, String>>| {
            let read = map.iter().flatten().filter(|(key, _)| is_read(key));
            let read: BTreeMap<_, _> = read.map(|(key, it)| (key.clone(), it.clone())).collect();
            (!read.is_empty()).then_some(read)
        };
        ObjectMeta {
            annotations: slim(&metadata.annotations),
            creation_timestamp: metadata.creation_timestamp.clone(),
            labels: slim(&metadata.labels),
            owner_references: controller(metadata.owner_references.as_deref())
                .map(|controller| vec![controller.clone()]),
            ..ObjectMeta::default()
        }
    }

    /// Removes a pod. Returns its last state, once.
    pub(super) fn remove(&self, uid: &str) -> Option<Arc<LivePod>> {
        let mut inner = self.inner();
        inner.leaving.remove(uid);
        let pod = inner.pods.remove(uid)?;
        inner.by_id.remove(&pod.id);
        if let Some(controller) = pod.controller_uid() {
            inner.leave_controller(controller, uid);
        }
        Some(pod)
    }

    /// Marks a pod as terminating, whatever the watch still reports.
    pub(super) fn mark_leaving(&self, uid: &str) {
        let mut inner = self.inner();
        if inner.pods.contains_key(uid) {
            inner.leaving.insert(uid.to_owned());
        }
    }

    /// A pod that is live and not terminating.
    pub(super) fn get(&self, uid: &str) -> Option<Arc<LivePod>> {
        let inner = self.inner();
        inner.pods.get(uid).filter(|_| !inner.leaving.contains(uid)).cloned()
    }

    /// A pod that is known, even if it is terminating.
    pub(super) fn get_any(&self, uid: &str) -> Option<Arc<LivePod>> {
        self.inner().pods.get(uid).cloned()
    }

    /// The pod with an id, if it is not terminating.
    pub(super) fn by_id(&self, id: InstanceId) -> Option<Arc<LivePod>> {
        let uid = self.inner().by_id.get(&id).cloned()?;
        self.get(&uid)
    }

    /// Live pods of a controller that are not terminating.
    pub(super) fn of_controller(&self, uid: &str) -> Vec<Arc<LivePod>> {
        let inner = self.inner();
        let uids = inner.by_controller.get(uid).into_iter().flatten();
        let staying = uids.filter(|uid| !inner.leaving.contains(*uid));
        staying.filter_map(|uid| inner.pods.get(uid).cloned()).collect()
    }

    /// All live pods that are not terminating.
    pub(super) fn all(&self) -> Vec<Arc<LivePod>> {
        let inner = self.inner();
        let staying = inner.pods.iter().filter(|(uid, _)| !inner.leaving.contains(*uid));
        staying.map(|(_, pod)| Arc::clone(pod)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(uid: &str, token: Option<&str>) -> WatchedPod {
        let annotations = token.map(|token| json!({ annotations::TOKEN: token }));
        let metadata = json!({
            "name": uid, "namespace": "shop", "uid": uid, "annotations": annotations,
            "ownerReferences": [{
                "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web-1", "uid": "rs",
                "controller": true,
            }],
        });
        serde_json::from_value(json!({ "metadata": metadata, "spec": { "containers": [] } }))
            .unwrap()
    }

    const TOKEN: &str = "0190163d-8694-739b-aea5-966c26f8ad90";

    #[test]
    fn a_copied_token_identifies_the_first_pod_only() {
        let pods = PodCache::new(NodeLabel::default());
        pods.apply(&pod("a", Some(TOKEN)));
        pods.apply(&pod("b", Some(TOKEN)));
        let (a, b) = (pods.get("a").unwrap(), pods.get("b").unwrap());
        assert_eq!(a.id, read_token(TOKEN).unwrap());
        assert!(a.is_tagged() && !b.is_tagged() && a.id != b.id);
        pods.remove("a");
        pods.apply(&pod("b", Some(TOKEN)));
        assert_eq!(pods.get("b").unwrap().id, b.id);
        assert!(pods.by_id(a.id).is_none());
    }

    #[test]
    fn a_pod_that_is_terminating_or_has_ended_is_not_live() {
        let pods = PodCache::new(NodeLabel::default());
        for (uid, phase) in [("a", "Failed"), ("b", "Succeeded")] {
            pods.apply(&pod(uid, None));
            let mut ended = pod(uid, None);
            ended.status = serde_json::from_value(json!({ "phase": phase })).unwrap();
            assert!(pods.apply(&ended).is_some(), "{phase}");
            assert!(pods.apply(&ended).is_none(), "reported once");
        }
        pods.apply(&pod("c", None));
        let mut leaving = pod("c", None);
        leaving.metadata.deletion_timestamp =
            serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap();
        assert!(pods.apply(&leaving).is_some());
        assert!(pods.of_controller("rs").is_empty());
    }

    #[test]
    fn an_evicted_pod_is_gone_before_the_watch_reports_it() {
        let pods = PodCache::new(NodeLabel::default());
        pods.apply(&pod("a", None));
        pods.mark_leaving("a");
        pods.apply(&pod("a", None));
        assert!(pods.get("a").is_none() && pods.get_any("a").is_some());
        assert!(pods.all().is_empty() && pods.of_controller("rs").is_empty());
    }

    #[test]
    fn derived_ids_are_distinct_and_deterministic() {
        let mut seen = HashSet::new();
        for number in 0..10_000 {
            assert!(seen.insert(derive_id("pod", &number.to_string())));
        }
        assert_eq!(derive_id("pod", "x"), derive_id("pod", "x"));
        assert_ne!(derive_id("pod", "x"), derive_id("review", "x"));
    }
}
