//! Deployments: a replica set for every template, and roll-outs.

use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use serde_json::{Value, json};

use super::pods::{controller_reference, is_finished, managed};
use super::{TableFollower, change, work};
use crate::api::{Api, User, Writer};
use crate::delete::DeleteOptions;
use crate::failure::Failure;
use crate::names;
use crate::object::{self, Key, Object};
use crate::store::{Store, TableId};
use crate::update::ObjectPart;

const HASH: &str = "pod-template-hash";
const REVISION: &str = "deployment.kubernetes.io/revision";

fn writer() -> Writer {
    Writer::new(User::controller("deployment-controller"))
}

pub(super) async fn run(api: Arc<Api>) {
    let Some(mut deployments) = TableFollower::new(&api, "apps", "deployments") else { return };
    let Some(mut sets) = TableFollower::new(&api, "apps", "replicasets") else { return };
    let Some(mut pods) = TableFollower::new(&api, "", "pods") else { return };
    let shared = Arc::clone(&api);
    let dirty = move |waiting: &mut BTreeSet<Key>| {
        for event in deployments.take_changes().iter().filter(|event| !event.gone) {
            waiting.insert(Key::of(&event.object.value));
        }
        let set_changes = sets.take_changes();
        let gone = pods.take_changes().into_iter().filter(|event| event.gone);
        let store = shared.store();
        let mut owner = |value: &Value| {
            let place = object::controller_uid(value).and_then(|uid| store.by_uid(uid));
            if let Some((id, key)) = place
                && *id == deployments.id
            {
                waiting.insert(key.clone());
            }
        };
        for event in set_changes {
            owner(&event.object.value);
        }
        for event in gone {
            let set = object::controller_uid(&event.object.value);
            let set = set.and_then(|uid| store.by_uid(uid));
            if let Some(set) = set.and_then(|(id, key)| store.get(*id, key)) {
                owner(&set.value);
            }
        }
    };
    work::run_work_queue(api, dirty, reconcile).await;
}

fn replicas(value: &Value) -> i64 {
    value["spec"]["replicas"].as_i64().unwrap_or(1)
}

fn available(set: &Object) -> i64 {
    set.value["status"]["availableReplicas"].as_i64().unwrap_or(0)
}

/// The template without the label of the revision.
fn plain_template(template: &Value) -> Value {
    let mut template = template.clone();
    object::remove(&mut template["metadata"]["labels"], HASH);
    object::remove(&mut template["metadata"], "creationTimestamp");
    template
}

/// A short hash of a template.
pub(super) fn template_hash(template: &Value) -> String {
    let mut hasher = DefaultHasher::new();
    template.to_string().hash(&mut hasher);
    names::suffix_for(hasher.finish())
}

/// The sets of a deployment: the one of its template, and the others, oldest first.
struct ReplicaSets {
    new: Option<Arc<Object>>,
    old: Vec<Arc<Object>>,
}

impl ReplicaSets {
    fn of(store: &Store, deployment: &Value) -> Self {
        let uid = object::uid(deployment);
        let template = plain_template(&deployment["spec"]["template"]);
        let mut all: Vec<Arc<Object>> = store
            .owned_by(uid)
            .filter(|one| one.resource.kind == "ReplicaSet")
            .filter(|one| object::controller_uid(&one.value) == Some(uid))
            .cloned()
            .collect();
        all.sort_by_key(|set| {
            (
                object::text(&set.value, "creationTimestamp").to_owned(),
                object::uid(&set.value).to_owned(),
            )
        });
        let same = |set: &Arc<Object>| plain_template(&set.value["spec"]["template"]) == template;
        let new = all.iter().position(same).map(|at| all.remove(at));
        Self { new, old: all }
    }

    fn all(&self) -> impl Iterator<Item = &Arc<Object>> {
        self.old.iter().chain(self.new.as_ref())
    }
}

async fn reconcile(api: Arc<Api>, key: Key) -> Result<(), Failure> {
    let deployments = api.table("apps", "deployments")?;
    let deployment = api.get(deployments, &key)?;
    if object::is_terminating(&deployment.value) {
        return Ok(());
    }
    let result = roll(&api, &deployment).await;
    write_status(&api, deployments, &key);
    result
}

async fn roll(api: &Api, deployment: &Object) -> Result<(), Failure> {
    let sets = ReplicaSets::of(&api.store(), &deployment.value);
    let recreate = deployment.value["spec"]["strategy"]["type"] == "Recreate";
    if deployment.value["spec"]["paused"] == true {
        return scale_only(api, deployment, &sets).await;
    }
    if recreate {
        for old in &sets.old {
            scale(api, old, 0).await?;
        }
        let store_has_old = {
            let store = api.store();
            let pods = sets.old.iter().flat_map(|old| managed(&store, object::uid(&old.value)));
            pods.into_iter().any(|pod| !is_finished(&pod.value))
        };
        if store_has_old {
            return Ok(());
        }
    }
    let new = match &sets.new {
        Some(new) => Arc::clone(new),
        None => make_set(api, deployment, &sets, recreate).await?,
    };
    let sets = ReplicaSets { new: Some(Arc::clone(&new)), old: sets.old };
    let wanted = if recreate {
        replicas(&deployment.value)
    } else {
        new_size(deployment, &sets, replicas(&new.value))
    };
    if wanted != replicas(&new.value) {
        return scale(api, &new, wanted).await;
    }
    if !recreate {
        shrink_old(api, deployment, &sets, &new).await?;
    }
    clean_up(api, deployment, &sets, &new).await
}

/// A paused deployment only follows its number of replicas.
async fn scale_only(api: &Api, deployment: &Object, sets: &ReplicaSets) -> Result<(), Failure> {
    let active: Vec<&Arc<Object>> = sets.all().filter(|set| replicas(&set.value) > 0).collect();
    let one = match active.as_slice() {
        [one] => Some(*one),
        _ => sets.new.as_ref(),
    };
    match one {
        Some(set) => scale(api, set, replicas(&deployment.value)).await,
        None => Ok(()),
    }
}

/// A number or a percentage of the replicas.
fn amount(value: &Value, whole: i64, round_up: bool) -> i64 {
    if let Some(number) = value.as_i64() {
        return number;
    }
    let percent = value.as_str().and_then(|text| text.strip_suffix('%')?.parse::<i64>().ok());
    let share = percent.unwrap_or(0) * whole;
    if round_up { (share + 99) / 100 } else { share / 100 }
}

/// The maximum surge and unavailability during a roll-out.
fn rolling_limits(deployment: &Value) -> (i64, i64) {
    let rolling = &deployment["spec"]["strategy"]["rollingUpdate"];
    let whole = replicas(deployment);
    let surge = amount(&rolling["maxSurge"], whole, true);
    let missing = amount(&rolling["maxUnavailable"], whole, false).min(whole);
    // If both were zero, the roll-out could not proceed.
    if surge == 0 && missing == 0 { (0, 1) } else { (surge, missing) }
}

/// The allowed size of the new set.
fn new_size(deployment: &Object, sets: &ReplicaSets, now: i64) -> i64 {
    let wanted = replicas(&deployment.value);
    if now >= wanted {
        return wanted;
    }
    let (surge, _) = rolling_limits(&deployment.value);
    let total: i64 = sets.all().map(|set| replicas(&set.value)).sum();
    now + (wanted + surge - total).clamp(0, wanted - now)
}

/// Scales down old sets: first pods that are unavailable anyway, then those that the new set has
/// replaced.
async fn shrink_old(
    api: &Api,
    deployment: &Object,
    sets: &ReplicaSets,
    new: &Object,
) -> Result<(), Failure> {
    let (_, missing) = rolling_limits(&deployment.value);
    let least = replicas(&deployment.value) - missing;
    let total: i64 = sets.all().map(|set| replicas(&set.value)).sum();
    let new_unavailable = (replicas(&new.value) - available(new)).max(0);
    let mut may_go = total - least - new_unavailable;
    if may_go <= 0 {
        return Ok(());
    }
    let mut sizes: Vec<i64> = sets.old.iter().map(|set| replicas(&set.value)).collect();
    for (set, size) in sets.old.iter().zip(&mut sizes) {
        let dead = (*size - available(set)).clamp(0, may_go);
        *size -= dead;
        may_go -= dead;
    }
    // A status may be older than the last change of the size.
    let alive: i64 = sets.all().map(|set| available(set).min(replicas(&set.value))).sum();
    let mut surplus = (alive - least).max(0);
    for size in &mut sizes {
        let taken = (*size).min(surplus);
        *size -= taken;
        surplus -= taken;
    }
    for (set, size) in sets.old.iter().zip(sizes) {
        scale(api, set, size).await?;
    }
    Ok(())
}

async fn scale(api: &Api, set: &Object, wanted: i64) -> Result<(), Failure> {
    if replicas(&set.value) == wanted {
        return Ok(());
    }
    let sets = api.table("apps", "replicasets")?;
    let (writer, key) = (writer(), set.key());
    let change = api.modify(&writer, sets, &key, ObjectPart::Main, |old| {
        let mut new = old.clone();
        new["spec"]["replicas"] = json!(wanted);
        Ok(new)
    });
    change.await.map(drop)
}

async fn make_set(
    api: &Api,
    deployment: &Object,
    sets: &ReplicaSets,
    full: bool,
) -> Result<Arc<Object>, Failure> {
    let table = api.table("apps", "replicasets")?;
    let value = &deployment.value;
    let template = plain_template(&value["spec"]["template"]);
    let hash = template_hash(&template);
    let mut labelled = template.clone();
    labelled["metadata"]["labels"][HASH] = json!(hash);
    let mut selector = value["spec"]["selector"].clone();
    selector["matchLabels"][HASH] = json!(hash);
    let size = if full { replicas(value) } else { new_size(deployment, sets, 0) };
    let newest = sets
        .old
        .iter()
        .filter_map(|set| object::annotation(&set.value, REVISION)?.parse::<u64>().ok());
    let revision = newest.max().unwrap_or(0) + 1;
    let mut annotations = value["metadata"]["annotations"].clone();
    annotations[REVISION] = json!(revision.to_string());
    let set = json!({
        "apiVersion": "apps/v1", "kind": "ReplicaSet",
        "metadata": {
            "name": format!("{}-{hash}", object::name(value)),
            "namespace": object::namespace(value),
            "labels": labelled["metadata"]["labels"],
            "annotations": annotations,
            "ownerReferences": [controller_reference(&deployment.resource, value)],
        },
        "spec": {
            "replicas": size, "selector": selector, "template": labelled,
            "minReadySeconds": value["spec"]["minReadySeconds"],
        },
    });
    let done = api.create(&writer(), table, Some(object::namespace(value)), set).await?;
    let deployments = api.table("apps", "deployments")?;
    change(&mut api.store(), deployments, &deployment.key(), |value| {
        value["metadata"]["annotations"][REVISION] = json!(revision.to_string());
    });
    Ok(done.object)
}

/// Removes old sets beyond the history limit.
async fn clean_up(
    api: &Api,
    deployment: &Object,
    sets: &ReplicaSets,
    new: &Object,
) -> Result<(), Failure> {
    let table = api.table("apps", "replicasets")?;
    if available(new) < replicas(&deployment.value) {
        return Ok(());
    }
    let kept = deployment.value["spec"]["revisionHistoryLimit"].as_u64().unwrap_or(10);
    let kept = usize::try_from(kept).unwrap_or(usize::MAX);
    let empty = |set: &&Arc<Object>| {
        replicas(&set.value) == 0 && set.value["status"]["replicas"].as_i64().unwrap_or(0) == 0
    };
    let idle: Vec<&Arc<Object>> = sets.old.iter().filter(empty).collect();
    for set in idle.iter().take(idle.len().saturating_sub(kept)) {
        api.delete(&writer(), table, &set.key(), &DeleteOptions::default()).await?;
    }
    Ok(())
}

fn write_status(api: &Api, deployments: TableId, key: &Key) {
    let mut store = api.store();
    let Some(deployment) = store.get(deployments, key).cloned() else { return };
    let sets = ReplicaSets::of(&store, &deployment.value);
    let sum = |field: &str| -> i64 {
        sets.all().map(|set| set.value["status"][field].as_i64().unwrap_or(0)).sum()
    };
    let updated =
        sets.new.as_ref().map_or(0, |new| new.value["status"]["replicas"].as_i64().unwrap_or(0));
    let (total, ready, live) = (sum("replicas"), sum("readyReplicas"), sum("availableReplicas"));
    let wanted = replicas(&deployment.value);
    let (_, missing) = rolling_limits(&deployment.value);
    change(&mut store, deployments, key, |value| {
        value["status"]["observedGeneration"] = value["metadata"]["generation"].clone();
        for (field, count) in [
            ("replicas", total),
            ("updatedReplicas", updated),
            ("readyReplicas", ready),
            ("availableReplicas", live),
            ("unavailableReplicas", (total.max(wanted) - live).max(0)),
        ] {
            if count == 0 {
                object::remove(&mut value["status"], field);
            } else {
                value["status"][field] = json!(count);
            }
        }
        let (flag, reason) = if live >= wanted - missing {
            ("True", "MinimumReplicasAvailable")
        } else {
            ("False", "MinimumReplicasUnavailable")
        };
        object::set_condition(value, "Available", flag, &json!({ "reason": reason }));
        let complete = updated == wanted && total == wanted && live == wanted;
        let reason = if complete { "NewReplicaSetAvailable" } else { "ReplicaSetUpdated" };
        object::set_condition(value, "Progressing", "True", &json!({ "reason": reason }));
    });
}
