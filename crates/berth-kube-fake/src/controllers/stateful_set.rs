//! Stateful sets: pods with ordinals, created and deleted in order.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};

use super::deployment::template_hash;
use super::pods::{from_template, is_finished, is_ready, managed, phase};
use super::{TableFollower, change, work};
use crate::api::{Api, User, Writer};
use crate::delete::DeleteOptions;
use crate::failure::Failure;
use crate::object::{self, Key, Object};
use crate::store::{TableId, lock};

const REVISION: &str = "controller-revision-hash";

/// Templates by revision, which the real controller stores as objects.
type RevisionTemplates = Arc<Mutex<HashMap<String, Value>>>;

fn writer() -> Writer {
    Writer::new(User::controller("statefulset-controller"))
}

pub(super) async fn run(api: Arc<Api>) {
    let Some(mut sets) = TableFollower::new(&api, "apps", "statefulsets") else { return };
    let Some(mut pods) = TableFollower::new(&api, "", "pods") else { return };
    let templates = RevisionTemplates::default();
    let shared = Arc::clone(&api);
    let dirty = move |waiting: &mut BTreeSet<Key>| {
        for event in sets.take_changes().iter().filter(|event| !event.gone) {
            waiting.insert(Key::of(&event.object.value));
        }
        let changes = pods.take_changes();
        let store = shared.store();
        for event in changes {
            let place =
                object::controller_uid(&event.object.value).and_then(|uid| store.by_uid(uid));
            if let Some((id, key)) = place
                && *id == sets.id
            {
                waiting.insert(key.clone());
            }
        }
    };
    work::run_work_queue(api, dirty, move |api, key| reconcile(api, key, Arc::clone(&templates)))
        .await;
}

/// The state of one set.
struct SetState {
    set: Arc<Object>,
    pods: BTreeMap<i64, Arc<Object>>,
    start: i64,
    wanted: i64,
    update: String,
    current: String,
}

impl SetState {
    fn of(api: &Api, set: Arc<Object>, templates: &RevisionTemplates) -> Self {
        let value = &set.value;
        let name = object::name(value);
        let template = value["spec"]["template"].clone();
        let update = format!("{name}-{}", template_hash(&template));
        lock(templates).insert(update.clone(), template);
        let current = value["status"]["currentRevision"].as_str().unwrap_or(&update).to_owned();
        let numbered = |pod: Arc<Object>| {
            let number = object::name(&pod.value).strip_prefix(name)?.strip_prefix('-')?;
            Some((number.parse().ok()?, pod))
        };
        let pods = managed(&api.store(), object::uid(value)).into_iter().filter_map(numbered);
        Self {
            pods: pods.collect(),
            start: value["spec"]["ordinals"]["start"].as_i64().unwrap_or(0),
            wanted: value["spec"]["replicas"].as_i64().unwrap_or(1),
            update,
            current,
            set,
        }
    }

    fn is_wanted(&self, number: i64) -> bool {
        (self.start..self.start + self.wanted).contains(&number)
    }

    fn partition(&self) -> i64 {
        let rolling = &self.set.value["spec"]["updateStrategy"]["rollingUpdate"];
        rolling["partition"].as_i64().unwrap_or(0)
    }
}

fn is_healthy(pod: &Value) -> bool {
    phase(pod) == "Running" && is_ready(pod) && !object::is_terminating(pod)
}

async fn reconcile(api: Arc<Api>, key: Key, templates: RevisionTemplates) -> Result<(), Failure> {
    let sets = api.table("apps", "statefulsets")?;
    let set = api.get(sets, &key)?;
    let mut result = Ok(());
    if !object::is_terminating(&set.value) {
        let state = SetState::of(&api, Arc::clone(&set), &templates);
        result = manage_pods(&api, &state, &templates).await;
    }
    let set = api.get(sets, &key)?;
    write_status(&api, sets, &SetState::of(&api, set, &templates));
    result
}

async fn manage_pods(
    api: &Api,
    state: &SetState,
    templates: &RevisionTemplates,
) -> Result<(), Failure> {
    let pods = api.table("", "pods")?;
    let parallel = state.set.value["spec"]["podManagementPolicy"] == "Parallel";
    for number in state.start..state.start + state.wanted {
        let Some(pod) = state.pods.get(&number) else {
            create_pod(api, state, templates, number).await?;
            if parallel {
                continue;
            }
            return Ok(());
        };
        if is_finished(&pod.value) && !object::is_terminating(&pod.value) {
            delete_pod(api, pods, pod).await?;
            return Ok(());
        }
        if !is_healthy(&pod.value) && !parallel {
            return Ok(());
        }
    }
    for (number, pod) in state.pods.iter().rev().filter(|(number, _)| !state.is_wanted(**number)) {
        let _ = number;
        if !object::is_terminating(&pod.value) {
            delete_pod(api, pods, pod).await?;
        }
        if !parallel {
            return Ok(());
        }
    }
    replace_old_pods(api, state, pods).await
}

/// Replaces pods of another revision, from the highest ordinal down, one at a time.
async fn replace_old_pods(api: &Api, state: &SetState, pods: TableId) -> Result<(), Failure> {
    if state.set.value["spec"]["updateStrategy"]["type"] != "RollingUpdate" {
        return Ok(());
    }
    let first = state.start + state.partition();
    for (_, pod) in state.pods.iter().rev().filter(|(number, _)| **number >= first) {
        let stale = object::label(&pod.value, REVISION) != Some(&state.update);
        if stale && !object::is_terminating(&pod.value) {
            return delete_pod(api, pods, pod).await;
        }
        if !is_healthy(&pod.value) {
            return Ok(());
        }
    }
    Ok(())
}

async fn delete_pod(api: &Api, pods: TableId, pod: &Object) -> Result<(), Failure> {
    let uid = Some(object::uid(&pod.value).to_owned());
    let options = DeleteOptions { uid, ..DeleteOptions::default() };
    match api.delete(&writer(), pods, &pod.key(), &options).await {
        Ok(_) | Err(Failure { code: 404, .. }) => Ok(()),
        Err(failure) => Err(failure),
    }
}

async fn create_pod(
    api: &Api,
    state: &SetState,
    templates: &RevisionTemplates,
    number: i64,
) -> Result<(), Failure> {
    let set = &state.set.value;
    let name = format!("{}-{number}", object::name(set));
    let old = number < state.start + state.partition();
    let revision = if old { &state.current } else { &state.update };
    let template = lock(templates).get(revision).cloned();
    let template = template.unwrap_or_else(|| set["spec"]["template"].clone());
    let mut pod = from_template(&state.set.resource, set, &template);
    pod["metadata"]["name"] = json!(name);
    let labels = &mut pod["metadata"]["labels"];
    labels[REVISION] = json!(revision);
    labels["statefulset.kubernetes.io/pod-name"] = json!(name);
    labels["apps.kubernetes.io/pod-index"] = json!(number.to_string());
    pod["spec"]["hostname"] = json!(name);
    if set["spec"]["serviceName"].is_string() {
        pod["spec"]["subdomain"] = set["spec"]["serviceName"].clone();
    }
    create_claims(api, set, number, &mut pod).await?;
    let namespace = object::namespace(set);
    api.create(&writer(), api.table("", "pods")?, Some(namespace), pod).await.map(drop)
}

/// Creates missing claims; they outlive their pods.
async fn create_claims(
    api: &Api,
    set: &Value,
    number: i64,
    pod: &mut Value,
) -> Result<(), Failure> {
    let table = api.table("", "persistentvolumeclaims")?;
    let namespace = object::namespace(set);
    for template in object::items(&set["spec"]["volumeClaimTemplates"]) {
        let volume = object::name(template);
        let name = format!("{volume}-{}-{number}", object::name(set));
        let mut volumes = pod["spec"]["volumes"].as_array().cloned().unwrap_or_default();
        volumes.retain(|one| one["name"] != volume);
        volumes.push(json!({ "name": volume, "persistentVolumeClaim": { "claimName": name } }));
        pod["spec"]["volumes"] = Value::Array(volumes);
        let claim = json!({
            "apiVersion": "v1", "kind": "PersistentVolumeClaim",
            "metadata": {
                "name": name, "namespace": namespace,
                "labels": set["spec"]["selector"]["matchLabels"],
            },
            "spec": template["spec"],
        });
        match api.create(&writer(), table, Some(namespace), claim).await {
            Ok(_) | Err(Failure { code: 409, .. }) => {}
            Err(failure) => return Err(failure),
        }
    }
    Ok(())
}

fn write_status(api: &Api, sets: TableId, state: &SetState) {
    let live: Vec<&Arc<Object>> = state.pods.values().collect();
    let of = |revision: &str| {
        live.iter().filter(|pod| object::label(&pod.value, REVISION) == Some(revision)).count()
    };
    let ready = live.iter().filter(|pod| is_healthy(&pod.value)).count();
    let updated = of(&state.update);
    let complete = state.partition() == 0
        && updated == live.len()
        && ready == live.len()
        && i64::try_from(live.len()).is_ok_and(|count| count == state.wanted);
    let current = if complete { &state.update } else { &state.current };
    change(&mut api.store(), sets, &state.set.key(), |set| {
        set["status"] = json!({
            "observedGeneration": set["metadata"]["generation"],
            "replicas": live.len(), "readyReplicas": ready, "availableReplicas": ready,
            "currentReplicas": of(current), "updatedReplicas": updated,
            "currentRevision": current, "updateRevision": state.update, "collisionCount": 0,
        });
    });
}
