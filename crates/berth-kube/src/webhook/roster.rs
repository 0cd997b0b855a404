//! Which pods live now, as the watch tells it.
//!
//! A copy in memory that decides nothing. Every pod has one name at the desk for as long as it
//! lives: its token, or, when it has none or another pod had the token first, one made of its uid.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use berth_engine::{CapacityType, InstanceId};
use hashbrown::{HashMap, HashSet};
use k8s_openapi::api::core::v1::Pod;
use kube::api::ObjectMeta;
use serde_json::json;
use uuid::Uuid;

use super::affinity::{Leaves, leaves};
use super::keys;
use super::owners::controller;
use super::settings::NodeLabel;

/// A pod that lives.
#[derive(Clone, Debug)]
pub(super) struct LivePod {
    /// Its name at the desk.
    pub(super) id: InstanceId,
    pub(super) uid: String,
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) metadata: ObjectMeta,
    /// The node it is on, once it is on one.
    pub(super) node: Option<String>,
    pub(super) ready: bool,
    /// Which kind its spec leaves possible.
    pub(super) leaves: Leaves,
}

impl LivePod {
    fn annotation(&self, key: &str) -> Option<&str> {
        self.metadata.annotations.as_ref()?.get(key).map(String::as_str)
    }

    /// Whether it was admitted by us, under the name that it has at the desk.
    pub(super) fn is_tagged(&self) -> bool {
        self.annotation(keys::TOKEN).and_then(read_token) == Some(self.id)
    }

    /// The slot it was admitted into.
    pub(super) fn slot(&self) -> Option<i64> {
        self.annotation(keys::SLOT)?.parse().ok()
    }

    /// The workload that it was admitted for.
    pub(super) fn workload(&self) -> Option<&str> {
        self.annotation(keys::WORKLOAD)
    }

    /// Whether its template chose the kind of capacity.
    pub(super) fn is_pinned(&self) -> bool {
        let chose = self.annotation(keys::PINNED) == Some("true");
        chose || !self.is_tagged() && self.leaves != Leaves::Both
    }

    /// The kind it was admitted for.
    pub(super) fn told_class(&self) -> Option<CapacityType> {
        match self.metadata.labels.as_ref()?.get(keys::CAPACITY)?.as_str() {
            "on-demand" => Some(CapacityType::OnDemand),
            "spot" => Some(CapacityType::Spot),
            _ => None,
        }
    }

    /// Its deletion cost, if that is ours to change.
    pub(super) fn our_cost(&self) -> Option<&str> {
        self.annotation(keys::COST_IS_OURS)?;
        self.annotation(keys::DELETION_COST)
    }

    /// The uid of its controller.
    pub(super) fn controller_uid(&self) -> Option<&str> {
        controller(self.metadata.owner_references.as_deref()).map(|it| it.uid.as_str())
    }
}

/// What a token says.
pub(super) fn read_token(text: &str) -> Option<InstanceId> {
    Uuid::try_parse(text).ok().map(InstanceId)
}

/// A name made of a text, always the same.
pub(super) fn derived(what: &str, text: &str) -> InstanceId {
    let (high, low) = (fnv(what, text, 0x6265_7274_6801), fnv(what, text, 0x6265_7274_6802));
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&high.to_be_bytes());
    bytes[8..].copy_from_slice(&low.to_be_bytes());
    InstanceId(Uuid::new_v8(bytes))
}

/// A well mixed number of a text: FNV-1a, finished as SplitMix64 is.
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

/// Whether a pod is gone as far as its controller is concerned, which then makes another.
pub(super) fn is_gone(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    pod.metadata.deletion_timestamp.is_some() || matches!(phase, Some("Succeeded" | "Failed"))
}

#[derive(Default)]
struct Inner {
    pods: HashMap<String, Arc<LivePod>>,
    names: HashMap<InstanceId, String>,
    by_controller: HashMap<String, HashSet<String>>,
    /// Pods that are known to be on their way out before the watch says so.
    leaving: HashSet<String>,
}

/// Pods that live.
pub(super) struct Roster {
    label: NodeLabel,
    inner: Mutex<Inner>,
}

impl Roster {
    pub(super) fn new(label: NodeLabel) -> Self {
        Self { label, inner: Mutex::default() }
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes in a pod as it is now. Returns it as it was if it lives no more.
    pub(super) fn apply(&self, pod: &Pod) -> Option<Arc<LivePod>> {
        let uid = pod.metadata.uid.clone()?;
        if is_gone(pod) {
            return self.remove(&uid);
        }
        let mut inner = self.inner();
        let known = inner.pods.get(&uid).map(|pod| pod.id);
        let token = pod.metadata.annotations.as_ref().and_then(|map| map.get(keys::TOKEN));
        let token = token.and_then(|text| read_token(text));
        let unused = |id: &InstanceId| inner.names.get(id).is_none_or(|holder| *holder == uid);
        let id = known.or_else(|| token.filter(unused)).unwrap_or_else(|| derived("pod", &uid));
        let live = Arc::new(self.live(id, uid.clone(), pod));
        inner.names.insert(id, uid.clone());
        if let Some(controller) = live.controller_uid() {
            inner.by_controller.entry_ref(controller).or_default().insert(uid.clone());
        }
        inner.pods.insert(uid, live);
        None
    }

    fn live(&self, id: InstanceId, uid: String, pod: &Pod) -> LivePod {
        let spec = pod.spec.as_ref();
        let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_deref());
        let is_ready = |it: &k8s_openapi::api::core::v1::PodCondition| {
            it.type_ == "Ready" && it.status == "True"
        };
        let chosen = json!({
            "nodeSelector": spec.and_then(|spec| spec.node_selector.as_ref()),
            "affinity": spec.and_then(|spec| spec.affinity.as_ref()),
        });
        let mut metadata = pod.metadata.clone();
        metadata.managed_fields = None;
        LivePod {
            id,
            uid,
            namespace: metadata.namespace.clone().unwrap_or_default(),
            name: metadata.name.clone().unwrap_or_default(),
            metadata,
            node: spec.and_then(|spec| spec.node_name.clone()).filter(|it| !it.is_empty()),
            ready: conditions.is_some_and(|all| all.iter().any(is_ready)),
            leaves: leaves(&chosen, &self.label),
        }
    }

    /// A pod lives no more. Returns it as it was, once.
    pub(super) fn remove(&self, uid: &str) -> Option<Arc<LivePod>> {
        let mut inner = self.inner();
        inner.leaving.remove(uid);
        let pod = inner.pods.remove(uid)?;
        inner.names.remove(&pod.id);
        if let Some(controller) = pod.controller_uid()
            && let Some(pods) = inner.by_controller.get_mut(controller)
        {
            pods.remove(uid);
            if pods.is_empty() {
                inner.by_controller.remove(controller);
            }
        }
        Some(pod)
    }

    /// Keeps only these pods. Returns the others as they were.
    pub(super) fn keep_only(&self, uids: &HashSet<String>) -> Vec<Arc<LivePod>> {
        let others: Vec<String> =
            self.inner().pods.keys().filter(|uid| !uids.contains(*uid)).cloned().collect();
        others.iter().filter_map(|uid| self.remove(uid)).collect()
    }

    /// A pod is on its way out, whatever the watch still says of it.
    pub(super) fn leaves(&self, uid: &str) {
        let mut inner = self.inner();
        if inner.pods.contains_key(uid) {
            inner.leaving.insert(uid.to_owned());
        }
    }

    /// A pod that lives and stays.
    pub(super) fn get(&self, uid: &str) -> Option<Arc<LivePod>> {
        let inner = self.inner();
        inner.pods.get(uid).filter(|_| !inner.leaving.contains(uid)).cloned()
    }

    /// A pod that is known, also if it is on its way out.
    pub(super) fn known(&self, uid: &str) -> Option<Arc<LivePod>> {
        self.inner().pods.get(uid).cloned()
    }

    /// The pod that has a name at the desk, and stays.
    pub(super) fn named(&self, id: InstanceId) -> Option<Arc<LivePod>> {
        let uid = self.inner().names.get(&id).cloned()?;
        self.get(&uid)
    }

    /// Pods of a controller that live and stay.
    pub(super) fn of_controller(&self, uid: &str) -> Vec<Arc<LivePod>> {
        let inner = self.inner();
        let uids = inner.by_controller.get(uid).into_iter().flatten();
        let staying = uids.filter(|uid| !inner.leaving.contains(*uid));
        staying.filter_map(|uid| inner.pods.get(uid).cloned()).collect()
    }

    /// All that live and stay.
    pub(super) fn all(&self) -> Vec<Arc<LivePod>> {
        let inner = self.inner();
        let staying = inner.pods.iter().filter(|(uid, _)| !inner.leaving.contains(*uid));
        staying.map(|(_, pod)| Arc::clone(pod)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(uid: &str, token: Option<&str>) -> Pod {
        let annotations = token.map(|token| json!({ keys::TOKEN: token }));
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
    fn a_copied_token_names_the_first_pod_only_and_each_keeps_its_name() {
        let roster = Roster::new(NodeLabel::default());
        roster.apply(&pod("a", Some(TOKEN)));
        roster.apply(&pod("b", Some(TOKEN)));
        let (a, b) = (roster.get("a").unwrap(), roster.get("b").unwrap());
        assert_eq!(a.id, read_token(TOKEN).unwrap());
        assert!(a.is_tagged() && !b.is_tagged() && a.id != b.id);
        roster.remove("a");
        roster.apply(&pod("b", Some(TOKEN)));
        assert_eq!(roster.get("b").unwrap().id, b.id);
        assert!(roster.named(a.id).is_none());
    }

    #[test]
    fn a_pod_that_is_being_deleted_or_has_ended_lives_no_more() {
        let roster = Roster::new(NodeLabel::default());
        for (uid, phase) in [("a", "Failed"), ("b", "Succeeded")] {
            roster.apply(&pod(uid, None));
            let mut ended = pod(uid, None);
            ended.status = serde_json::from_value(json!({ "phase": phase })).unwrap();
            assert!(roster.apply(&ended).is_some(), "{phase}");
            assert!(roster.apply(&ended).is_none(), "told once");
        }
        roster.apply(&pod("c", None));
        let mut leaving = pod("c", None);
        leaving.metadata.deletion_timestamp =
            serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap();
        assert!(roster.apply(&leaving).is_some());
        assert!(roster.of_controller("rs").is_empty());
    }

    #[test]
    fn a_pod_that_was_evicted_is_gone_before_the_watch_says_so() {
        let roster = Roster::new(NodeLabel::default());
        roster.apply(&pod("a", None));
        roster.leaves("a");
        roster.apply(&pod("a", None));
        assert!(roster.get("a").is_none() && roster.known("a").is_some());
        assert!(roster.all().is_empty() && roster.of_controller("rs").is_empty());
    }

    #[test]
    fn names_made_of_texts_differ_and_repeat() {
        let mut seen = HashSet::new();
        for number in 0..10_000 {
            assert!(seen.insert(derived("pod", &number.to_string())));
        }
        assert_eq!(derived("pod", "x"), derived("pod", "x"));
        assert_ne!(derived("pod", "x"), derived("review", "x"));
    }
}
