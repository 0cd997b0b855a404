//! Brings misplaced pods to the kind of capacity that their slot is: by eviction, one at a time for
//! each workload, so that budgets are respected and the replacement is there before the next goes.
//!
//! Which pod is misplaced is said by the same code that judges Berth's own workloads. Only one
//! replica does this at a time, and a second one would do no harm: an eviction names the pod's uid.

use std::sync::Arc;

use berth_control::workload::WorkloadKey;
use berth_engine::workload::{
    CapacityRule, Cause, DesiredState, HostState, Member, MemberState, OnChange, Rolling, Step,
    WorkloadPlan, deletion_cost, reconcile, slot_class,
};
use berth_engine::{CapacityType, InstanceId};
use berth_ledger::ClaimState;
use hashbrown::{HashMap, HashSet};
use k8s_openapi::api::apps::v1::ReplicaSet;
use k8s_openapi::api::core::v1::{ObjectReference, Pod};
use k8s_openapi::api::policy::v1::Eviction;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{DeleteOptions, Preconditions};
use kube::api::{ListParams, ObjectMeta, Patch, PatchParams, PostParams};
use kube::runtime::reflector::ObjectRef;
use kube::{Api, Client};
use serde_json::json;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::desk::Seated;
use super::events::Events;
use super::keeper::Keeper;
use super::keys::{self, Asked};
use super::metrics::Metrics;
use super::owners::{Look, Owner, controller};
use super::roster::LivePod;
use super::settings::Rebuild;

/// How many looks lie between two at workloads that are gone.
const FORGET_EVERY: u64 = 30;

/// A misplaced pod goes before all others of its workload.
const GOES_FIRST: &str = "-1";

/// What is remembered of a workload whose pods are replaced.
#[derive(Default)]
struct Progress {
    /// Not before this moment.
    wait_until: Option<Instant>,
    /// Evictions that were refused in a row.
    refused: u32,
    /// The pods there were when the last was evicted.
    before: Option<HashSet<String>>,
    /// Its new pods do not come through us: until one does, evicting is of no use.
    bypassed: bool,
}

/// A pod, as events name it.
fn reference(pod: &LivePod) -> ObjectReference {
    ObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some("Pod".to_owned()),
        namespace: Some(pod.namespace.clone()),
        name: Some(pod.name.clone()),
        uid: Some(pod.uid.clone()),
        ..ObjectReference::default()
    }
}

/// Replaces misplaced pods.
pub(super) struct Rebuilder {
    pub(super) client: Client,
    pub(super) keeper: Arc<Keeper>,
    pub(super) events: Arc<Events>,
    pub(super) metrics: Arc<Metrics>,
    pub(super) settings: Rebuild,
    pub(super) wake: Arc<Notify>,
    progress: HashMap<WorkloadKey, Progress>,
    /// Seats without a pod, by their fence, as of the last time they were looked for.
    empty: HashMap<InstanceId, i64>,
}

/// A workload whose members are all there.
struct Whole {
    owner: Owner,
    rule: CapacityRule,
    replicas: u32,
    members: Vec<(Seated, Arc<LivePod>)>,
}

impl Whole {
    /// Whether a member is on the kind of capacity that its slot is not. One that chose its kind
    /// itself never is: another would choose the same.
    fn is_misplaced(&self, seated: &Seated, pod: &LivePod) -> bool {
        !pod.is_pinned() && self.class(seated.slot).is_some_and(|class| class != seated.class)
    }

    fn class(&self, slot: i64) -> Option<CapacityType> {
        slot_class(&self.rule, None, u32::try_from(slot).unwrap_or(u32::MAX))
    }

    /// What comes next, by the rules for workloads.
    fn outlook(&self) -> WorkloadPlan {
        let member = |(seated, pod): &(Seated, Arc<LivePod>)| {
            let misplaced = self.is_misplaced(seated, pod);
            let own = || self.class(seated.slot).unwrap_or(seated.class);
            Member {
                id: seated.id,
                revision: 1,
                slot: u32::try_from(seated.slot).unwrap_or(u32::MAX),
                fence: seated.fence,
                class: if misplaced { seated.class } else { own() },
                state: if pod.ready { MemberState::Ready } else { MemberState::Starting },
                host: HostState::Fine,
            }
        };
        let members: Vec<Member> = self.members.iter().map(member).collect();
        let desired = DesiredState {
            replicas: self.replicas,
            revision: 1,
            capacity: Some(&self.rule),
            pinned: None,
            rolling: &Rolling::default(),
            paused: false,
            single_writer: false,
        };
        reconcile(&desired, &members)
    }

    /// The pod that should go now, and the kind of capacity that should come in its place.
    fn victim(&self) -> Option<(&Seated, &Arc<LivePod>, CapacityType)> {
        let steps = self.outlook().steps;
        let (in_place_of, class) = steps.iter().find_map(|step| match step {
            Step::Create { cause: Cause::Rebuild, in_place_of, class, .. } => {
                Some((*in_place_of, *class))
            }
            Step::Create { .. } | Step::Release { .. } => None,
        })?;
        let is = |id: InstanceId| self.members.iter().find(|(seated, _)| seated.id == id);
        let found = match in_place_of {
            Some(id) => is(id),
            // A low seat is empty while all are there: the spot pod in the highest gives way.
            None => self
                .members
                .iter()
                .filter(|(seated, pod)| seated.class == CapacityType::Spot && !pod.is_pinned())
                .max_by_key(|(seated, _)| seated.slot),
        };
        let (seated, pod) = found?;
        // One that serves goes only while all others do. One that does not is missed by nobody.
        let others = self.members.iter().filter(|(it, _)| it.id != seated.id);
        let calm = others.filter(|(it, pod)| !self.is_misplaced(it, pod)).all(|(_, pod)| pod.ready);
        (calm || !pod.ready).then_some((seated, pod, class.unwrap_or_default()))
    }
}

impl Rebuilder {
    pub(super) fn new(
        client: Client,
        keeper: Arc<Keeper>,
        events: Arc<Events>,
        metrics: Arc<Metrics>,
        settings: Rebuild,
        wake: Arc<Notify>,
    ) -> Self {
        let (progress, empty) = (HashMap::new(), HashMap::new());
        Self { client, keeper, events, metrics, settings, wake, progress, empty }
    }

    /// Looks at workloads while we lead, until it is told to stop.
    pub(super) async fn run(mut self, mut leads: watch::Receiver<bool>, stop: CancellationToken) {
        let mut looks = 0_u64;
        loop {
            let we_lead = *leads.borrow_and_update();
            self.metrics.leads.set(i64::from(we_lead));
            self.count_seats();
            if we_lead {
                self.look().await;
                if looks.is_multiple_of(FORGET_EVERY) {
                    self.forget().await;
                    self.free_empty().await;
                }
                looks += 1;
            } else {
                self.progress.clear();
            }
            tokio::select! {
                () = stop.cancelled() => return,
                changed = leads.changed() => if changed.is_err() { return },
                () = self.wake.notified() => {}
                () = tokio::time::sleep(self.settings.every) => {}
            }
        }
    }

    fn count_seats(&self) {
        let (mut on_demand, mut spot) = (0, 0);
        for seated in self.keeper.desk.everyone() {
            match seated.class {
                CapacityType::OnDemand => on_demand += 1,
                CapacityType::Spot => spot += 1,
            }
        }
        self.metrics.seats(on_demand, spot);
    }

    async fn look(&mut self) {
        let workloads = self.keeper.desk.workloads();
        let known: HashSet<WorkloadKey> = workloads.iter().map(|(key, _)| key.clone()).collect();
        self.progress.retain(|key, _| known.contains(key));
        let mut misplaced = 0;
        for (key, _) in workloads {
            let Some(whole) = self.whole(&key).await else {
                self.price_old(&key).await;
                continue;
            };
            let wrong = whole.members.iter().filter(|(it, pod)| whole.is_misplaced(it, pod));
            misplaced += i64::try_from(wrong.count()).unwrap_or(0);
            self.price(&whole).await;
            if whole.rule.on_change == OnChange::Rebuild {
                self.replace_one(&key, &whole).await;
            }
        }
        self.metrics.misplaced.set(misplaced);
    }

    /// A workload with its rule as it is now, if all its members are there and none is coming or
    /// going.
    async fn whole(&self, key: &WorkloadKey) -> Option<Whole> {
        let seated = self.keeper.desk.members(key);
        let mut members = Vec::with_capacity(seated.len());
        for seated in seated {
            let pod = self.keeper.roster.named(seated.id);
            match pod.filter(|_| seated.state == ClaimState::Active) {
                Some(pod) => members.push((seated, pod)),
                None => return None,
            }
        }
        let (_, first) = members.first()?;
        let looked =
            self.keeper.owners.owner(&first.namespace, &first.metadata, Look::Watched).await;
        let owner = looked.ok().flatten().filter(|owner| owner.key == *key)?;
        let Asked::On { rule, .. } = owner.asked else { return None };
        let version = owner.version.as_deref();
        let rule = self.keeper.desk.define(key, rule, version).await.ok()?;
        let live = self.keeper.roster.of_controller(&owner.controller_uid);
        // Pods on nodes that are of neither kind are nobody's, and no reason to wait.
        let neither = live.iter().filter(|pod| self.keeper.is_of_neither_kind(pod)).count();
        let replicas = owner.replicas.and_then(|it| usize::try_from(it).ok());
        let wanted = replicas.map_or(members.len(), |it| it.saturating_sub(neither));
        let all = live.len() - neither == members.len() && wanted == members.len();
        if !all || self.rolls_out(first) {
            return None;
        }
        let replicas = u32::try_from(wanted).ok()?;
        Some(Whole { owner, rule, replicas, members })
    }

    /// The ReplicaSet of a pod, and the others of the same workload.
    fn siblings(&self, pod: &LivePod) -> Option<(Arc<ReplicaSet>, Vec<Arc<ReplicaSet>>)> {
        let own = controller(pod.metadata.owner_references.as_deref())?;
        let sets = &self.keeper.owners.stores().replica_sets;
        let set = sets.get(&ObjectRef::new(&own.name).within(&pod.namespace))?;
        let parent = controller(set.metadata.owner_references.as_deref())?;
        let others = sets.state_filter(|it| {
            it.metadata.uid != set.metadata.uid
                && controller(it.metadata.owner_references.as_deref())
                    .is_some_and(|other| other.uid == parent.uid)
        });
        Some((Arc::clone(&set), others))
    }

    /// Whether another revision of the same workload still has pods.
    fn rolls_out(&self, pod: &LivePod) -> bool {
        let Some((_, others)) = self.siblings(pod) else { return false };
        let has_pods = |uid: &String| !self.keeper.roster.of_controller(uid).is_empty();
        others.iter().filter_map(|it| it.metadata.uid.as_ref()).any(has_pods)
    }

    /// Whether a later revision of the same Deployment is taking over.
    fn is_old(&self, pod: &LivePod) -> bool {
        let revision = |set: &ReplicaSet| -> Option<u64> {
            let annotations = set.metadata.annotations.as_ref()?;
            annotations.get("deployment.kubernetes.io/revision")?.parse().ok()
        };
        let Some((own, others)) = self.siblings(pod) else { return false };
        let wanted = |set: &ReplicaSet| {
            set.spec.as_ref().and_then(|spec| spec.replicas).is_none_or(|it| it > 0)
        };
        others.iter().any(|it| wanted(it) && revision(it) > revision(&own))
    }

    /// Sees to it that misplaced pods that stay are the first to go, and others are not.
    async fn price(&self, whole: &Whole) {
        for (seated, pod) in &whole.members {
            let Some(cost) = pod.our_cost() else { continue };
            let lazy = whole.rule.on_change == OnChange::Lazy;
            let own = deletion_cost(seated.class).to_string();
            let wanted =
                if lazy && whole.is_misplaced(seated, pod) { GOES_FIRST } else { own.as_str() };
            if cost == wanted {
                continue;
            }
            self.set_cost(pod, wanted).await;
        }
    }

    /// Sees to it that on-demand pods of an old revision are the first to go: the new one begins with
    /// its own on-demand pods, and both together should be few.
    async fn price_old(&self, key: &WorkloadKey) {
        for seated in self.keeper.desk.members(key) {
            let Some(pod) = self.keeper.roster.named(seated.id) else { continue };
            if !self.is_old(&pod) {
                return;
            }
            let wanted = match seated.class {
                CapacityType::OnDemand => "0",
                CapacityType::Spot => "1",
            };
            if pod.our_cost().is_some_and(|cost| cost != wanted) {
                self.set_cost(&pod, wanted).await;
            }
        }
    }

    async fn set_cost(&self, pod: &LivePod, cost: &str) {
        let api: Api<Pod> = Api::namespaced(self.client.clone(), &pod.namespace);
        let patch = json!({ "metadata": {
            "uid": pod.uid,
            "annotations": { keys::DELETION_COST: cost },
        } });
        let patched = api.patch(&pod.name, &PatchParams::default(), &Patch::Merge(&patch)).await;
        if let Err(error) = patched {
            tracing::debug!(%error, pod = pod.name, "its deletion cost cannot be changed now");
        }
    }

    async fn replace_one(&mut self, key: &WorkloadKey, whole: &Whole) {
        let Some((seated, pod, class)) = whole.victim() else {
            self.progress.remove(key);
            return;
        };
        let progress = self.progress.entry(key.clone()).or_default();
        if progress.wait_until.is_some_and(|until| Instant::now() < until) {
            return;
        }
        // Evicting is of no use where new pods do not come through us.
        let is_new =
            |pod: &LivePod| progress.before.as_ref().is_some_and(|it| !it.contains(&pod.uid));
        let mut new = whole.members.iter().map(|(_, pod)| pod).filter(|pod| is_new(pod));
        let (came, bypassed) = new.by_ref().fold((false, false), |(came, bypassed), pod| {
            (came || pod.is_tagged(), bypassed || !pod.is_tagged())
        });
        if progress.bypassed && !came {
            return;
        }
        progress.bypassed = bypassed && !came;
        if progress.bypassed {
            let note = "new pods of this workload do not come through the webhook, so misplaced \
                        ones are left where they are until one does";
            let about = &whole.owner.object;
            self.events.warn(about, "RebuildIneffective", "Rebuilding", note.to_owned());
            return;
        }
        let outcome = evict(&self.client, pod).await;
        self.evicted(key, whole, (seated, pod, class), outcome);
    }

    fn evicted(
        &mut self,
        key: &WorkloadKey,
        whole: &Whole,
        (seated, pod, class): (&Seated, &Arc<LivePod>, CapacityType),
        outcome: Result<(), kube::Error>,
    ) {
        let progress = self.progress.entry(key.clone()).or_default();
        let back_off = self.settings.back_off * 2_u32.pow(progress.refused.min(5));
        match outcome {
            Ok(()) => {
                let before = whole.members.iter().map(|(_, pod)| pod.uid.clone()).collect();
                *progress = Progress { before: Some(before), ..Progress::default() };
                self.metrics.evicted("evicted");
                // Its successor may come before the watch tells of its end.
                self.keeper.roster.leaves(&pod.uid);
                self.keeper.look_at(&pod.uid);
                let (name, slot, class) = (&pod.name, seated.slot, class.name());
                let note = format!("evicted pod {name} of slot {slot}: {class} comes in its place");
                let about = (&whole.owner.object, Some(reference(pod)));
                self.events.tell(about, "RebuildingPod", "Rebuilding", note);
            }
            Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => {
                // It is gone, or another has its name.
            }
            Err(kube::Error::Api(status)) if status.code == 429 => {
                progress.refused += 1;
                progress.wait_until = Some(Instant::now() + back_off);
                self.metrics.evicted("budget");
                tracing::debug!(pod = pod.name, "a disruption budget keeps it for now");
            }
            Err(error) => {
                progress.refused += 1;
                progress.wait_until = Some(Instant::now() + back_off);
                self.metrics.evicted("failed");
                tracing::warn!(%error, pod = pod.name, "it cannot be evicted now");
            }
        }
    }

    /// Forgets workloads that are gone and have no members.
    async fn forget(&self) {
        for (key, _) in self.keeper.desk.workloads() {
            if self.keeper.desk.members(&key).is_empty()
                && self.is_gone(&key)
                && let Err(error) = self.keeper.desk.forget(&key).await
            {
                tracing::debug!(%error, "a workload that is gone cannot be forgotten now");
            }
        }
    }

    /// Frees seats that have had no pod for a while, which can only be if the ledger was away when
    /// the pod went. The API server is asked first.
    async fn free_empty(&mut self) {
        let is_empty = |seated: &Seated| {
            seated.state != ClaimState::Held && self.keeper.roster.named(seated.id).is_none()
        };
        let found: Vec<Seated> = self.keeper.desk.everyone().into_iter().filter(is_empty).collect();
        let mut twice: HashMap<String, Vec<Seated>> = HashMap::new();
        for seated in &found {
            if self.empty.get(&seated.id) == Some(&seated.fence) {
                twice.entry(seated.key.0.to_string()).or_default().push(seated.clone());
            }
        }
        self.empty = found.iter().map(|seated| (seated.id, seated.fence)).collect();
        for (namespace, seats) in twice {
            let freed = self.keeper.free_missing(&namespace, &ListParams::default(), seats).await;
            if let Err(error) = freed {
                tracing::debug!(%error, namespace, "empty seats cannot be freed now");
            }
        }
    }

    fn is_gone(&self, key: &WorkloadKey) -> bool {
        let (namespace, name) = (Some(&*key.0), &*key.1);
        let mut parts = name.split('/');
        let (kind, object) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
        let stores = self.keeper.owners.stores();
        let same = |metadata: &ObjectMeta| {
            metadata.namespace.as_deref() == namespace && metadata.name.as_deref() == Some(object)
        };
        match (kind, parts.next()) {
            ("StatefulSet", None) => stores.stateful_sets.find(|it| same(&it.metadata)).is_none(),
            ("ReplicaSet", None) => stores.replica_sets.find(|it| same(&it.metadata)).is_none(),
            ("Deployment", Some(revision)) => {
                let has = |metadata: &ObjectMeta| {
                    let hash = metadata.labels.as_ref().and_then(|it| it.get("pod-template-hash"));
                    metadata.namespace.as_deref() == namespace
                        && (hash.is_some_and(|it| it == revision)
                            || metadata.name.as_deref() == Some(revision))
                };
                stores.replica_sets.find(|it| has(&it.metadata)).is_none()
            }
            // Of other kinds nothing is watched; what is kept of them is small.
            _ => false,
        }
    }
}

/// Asks for an eviction of this very pod: one that has its name by now is another.
async fn evict(client: &Client, pod: &LivePod) -> Result<(), kube::Error> {
    let api: Api<Pod> = Api::namespaced(client.clone(), &pod.namespace);
    let (params, body) = (PostParams::default(), eviction(pod));
    let answer: Result<serde_json::Value, _> =
        api.create_subresource("eviction", &pod.name, &params, &body).await;
    answer.map(drop)
}

fn eviction(pod: &LivePod) -> Eviction {
    let preconditions =
        Some(Preconditions { uid: Some(pod.uid.clone()), ..Preconditions::default() });
    Eviction {
        delete_options: Some(DeleteOptions { preconditions, ..DeleteOptions::default() }),
        metadata: ObjectMeta {
            name: Some(pod.name.clone()),
            namespace: Some(pod.namespace.clone()),
            ..ObjectMeta::default()
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::webhook::roster::Roster;
    use crate::webhook::settings::NodeLabel;

    #[test]
    fn an_eviction_names_the_pod_and_its_uid_as_the_api_server_reads_them() {
        let pod = json!({
            "metadata": { "name": "web-1", "namespace": "shop", "uid": "u1" },
            "spec": { "containers": [] },
        });
        let roster = Roster::new(NodeLabel::default());
        roster.apply(&serde_json::from_value(pod).unwrap());
        let body = serde_json::to_value(eviction(&roster.get("u1").unwrap())).unwrap();
        let expected = json!({
            "apiVersion": "policy/v1", "kind": "Eviction",
            "metadata": { "name": "web-1", "namespace": "shop" },
            "deleteOptions": { "preconditions": { "uid": "u1" } },
        });
        assert_eq!(body, expected);
    }
}
