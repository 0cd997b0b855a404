//! Updates the status of disruption budgets: healthy pods, required healthy pods, and allowed disruptions.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::{TableFollower, pause};
use crate::api::Api;
use crate::object::{self, Key, Object};
use crate::selector::LabelSelector;
use crate::store::{Store, TableId};

pub(super) async fn run(api: Arc<Api>) {
    let Some(mut pods) = TableFollower::new(&api, "", "pods") else { return };
    let Some(mut budgets) = TableFollower::new(&api, "policy", "poddisruptionbudgets") else {
        return;
    };
    loop {
        run_pass(&api, &mut pods, &mut budgets);
        pause().await;
    }
}

fn run_pass(api: &Api, pods: &mut TableFollower, budgets: &mut TableFollower) {
    let mut dirty: BTreeSet<Key> = BTreeSet::new();
    for event in budgets.take_changes() {
        if !event.gone {
            dirty.insert(Key::of(&event.object.value));
        }
    }
    let changes = pods.take_changes();
    let mut store = api.store();
    if store.len(budgets.id) == 0 {
        return;
    }
    for event in &changes {
        let namespace = object::namespace(&event.object.value);
        for (key, budget) in store.iter(budgets.id, Some(namespace)) {
            let selector = LabelSelector::from_object(&budget.value["spec"]["selector"]);
            let concerned = selector.is_some_and(|selector| {
                selector.matches(&event.object.value)
                    || event.before.as_ref().is_some_and(|before| selector.matches(&before.value))
            });
            if concerned {
                dirty.insert(key.clone());
            }
        }
    }
    for key in dirty {
        update_status(&mut store, budgets.id, pods.id, &key);
    }
}

fn update_status(store: &mut Store, budgets: TableId, pods: TableId, key: &Key) {
    let Some(budget) = store.get(budgets, key).cloned() else { return };
    let selector = LabelSelector::from_object(&budget.value["spec"]["selector"]);
    let matching: Vec<Arc<Object>> = match &selector {
        Some(selector) => store
            .iter(pods, Some(&key.namespace))
            .filter(|(_, pod)| selector.matches(&pod.value))
            .map(|(_, pod)| Arc::clone(pod))
            .collect(),
        None => Vec::new(),
    };
    let (expected, desired) = count_required(store, &budget.value["spec"], &matching);
    let disrupted = still_disrupted(&budget.value, &matching);
    let healthy = matching
        .iter()
        .filter(|pod| {
            !object::is_terminating(&pod.value)
                && !disrupted.contains_key(object::name(&pod.value))
                && object::condition(&pod.value, "Ready") == Some("True")
        })
        .count();
    let healthy = i64::try_from(healthy).unwrap_or(i64::MAX);
    let allowed = if expected > 0 { (healthy - desired).max(0) } else { 0 };
    let mut new = budget.value.clone();
    let status = &mut new["status"];
    status["currentHealthy"] = json!(healthy);
    status["desiredHealthy"] = json!(desired);
    status["expectedPods"] = json!(expected);
    status["disruptionsAllowed"] = json!(allowed);
    status["observedGeneration"] = budget.value["metadata"]["generation"].clone();
    if disrupted.is_empty() {
        object::remove(status, "disruptedPods");
    } else {
        status["disruptedPods"] = Value::Object(disrupted);
    }
    let (flag, reason) =
        if allowed > 0 { ("True", "SufficientPods") } else { ("False", "InsufficientPods") };
    let more = json!({ "reason": reason, "message": "" });
    object::set_condition(&mut new, "DisruptionAllowed", flag, &more);
    if new != budget.value {
        store.put(budgets, new);
    }
}

/// Pods whose eviction was granted and that are not yet terminating.
fn still_disrupted(budget: &Value, pods: &[Arc<Object>]) -> Map<String, Value> {
    let recorded = budget["status"]["disruptedPods"].as_object().cloned().unwrap_or_default();
    let live = |name: &str| {
        pods.iter()
            .any(|pod| object::name(&pod.value) == name && !object::is_terminating(&pod.value))
    };
    recorded.into_iter().filter(|(name, _)| live(name)).collect()
}

/// The expected number of pods, and how many of them must be healthy.
fn count_required(store: &Store, spec: &Value, pods: &[Arc<Object>]) -> (i64, i64) {
    let count = i64::try_from(pods.len()).unwrap_or(i64::MAX);
    if let Some(number) = spec["minAvailable"].as_i64() {
        return (count, number);
    }
    let scale = count_desired_replicas(store, pods);
    if let Some(percent) = percent(&spec["minAvailable"]) {
        return (scale, percent_of(scale, percent));
    }
    let unavailable = match (spec["maxUnavailable"].as_i64(), percent(&spec["maxUnavailable"])) {
        (Some(number), _) => number,
        (None, Some(percent)) => percent_of(scale, percent),
        (None, None) => scale,
    };
    (scale, (scale - unavailable).max(0))
}

fn percent(value: &Value) -> Option<i64> {
    value.as_str()?.strip_suffix('%')?.parse().ok()
}

/// A percentage of a number, rounded up.
fn percent_of(whole: i64, percent: i64) -> i64 {
    (whole * percent + 99) / 100
}

/// The sum of the desired replicas of the pods' controllers.
fn count_desired_replicas(store: &Store, pods: &[Arc<Object>]) -> i64 {
    let mut controllers: BTreeMap<String, i64> = BTreeMap::new();
    for pod in pods {
        let Some(uid) = object::controller_uid(&pod.value) else { continue };
        let Some(owner) = by_uid(store, uid) else { continue };
        let above = object::controller_uid(&owner.value).and_then(|uid| by_uid(store, uid));
        let top = match above {
            Some(above) if above.resource.scale.is_some() => above,
            _ => owner,
        };
        let replicas = top.value["spec"]["replicas"].as_i64().unwrap_or(0);
        controllers.insert(object::uid(&top.value).to_owned(), replicas);
    }
    controllers.values().sum()
}

fn by_uid<'a>(store: &'a Store, uid: &str) -> Option<&'a Arc<Object>> {
    let (id, key) = store.by_uid(uid)?;
    store.get(*id, key)
}
