//! Eviction: a deletion that respects disruption budgets.

use serde_json::{Value, json};

use crate::api::{Api, Writer};
use crate::delete::{DeleteOptions, delete_in};
use crate::failure::{Failure, success};
use crate::object::{self, Key};
use crate::selector::LabelSelector;
use crate::store::{Store, TableId};

const VIOLATION: &str = "Cannot evict pod as it would violate the pod's disruption budget.";

/// The maximum number of disrupted pods that a budget remembers.
const DISRUPTED_MAX: usize = 2000;

impl Api {
    /// Handles `POST pods/NAME/eviction`.
    pub(crate) async fn evict(
        &self,
        writer: &Writer,
        key: &Key,
        body: &Value,
    ) -> Result<Value, Failure> {
        let name = object::name(body);
        if name != &*key.name {
            return Err(Failure::bad_request("name in URL does not match name in Eviction object"));
        }
        let mut options = DeleteOptions::read(&body["deleteOptions"])?;
        let pods = self.table("", "pods")?;
        let budgets = self.table("policy", "poddisruptionbudgets")?;
        let resource = self.resource(pods);
        let mut store = self.store();
        let pod = store.get(pods, key).cloned();
        let pod = pod.ok_or_else(|| Failure::not_found(&resource, &key.name))?;
        if !needs_no_budget(&pod.value) {
            let healthy = object::condition(&pod.value, "Ready") == Some("True");
            let budget = the_budget(&store, budgets, &pod.value)?;
            let spend = budget.map(|key| (is_spent(&store, budgets, &key, healthy), key));
            match spend {
                Some((true, budget)) => {
                    use_disruption(&mut store, budgets, &budget, &key.name, writer.dry_run)?;
                }
                // An unhealthy pod is evicted only as long as it stays unhealthy.
                Some((false, _)) => options.version = Some(pod.version.to_string()),
                None => {}
            }
        }
        delete_in(&mut store, pods, key, &options, writer.dry_run)?;
        Ok(success(201, None))
    }
}

/// Pods that do not run, or are terminating, need no budget.
fn needs_no_budget(pod: &Value) -> bool {
    object::is_terminating(pod)
        || matches!(pod["status"]["phase"].as_str(), Some("Succeeded" | "Failed" | "Pending"))
}

fn the_budget(store: &Store, budgets: TableId, pod: &Value) -> Result<Option<Key>, Failure> {
    let matching: Vec<Key> = store
        .iter(budgets, Some(object::namespace(pod)))
        .filter(|(_, budget)| {
            LabelSelector::from_object(&budget.value["spec"]["selector"])
                .is_some_and(|selector| selector.matches(pod))
        })
        .map(|(key, _)| key.clone())
        .collect();
    if matching.len() > 1 {
        return Err(Failure::internal(
            "This pod has more than one PodDisruptionBudget, which the eviction subresource does \
             not support.",
        ));
    }
    Ok(matching.into_iter().next())
}

/// Whether the eviction counts against the budget.
fn is_spent(store: &Store, budgets: TableId, budget: &Key, healthy: bool) -> bool {
    if healthy {
        return true;
    }
    let Some(budget) = store.get(budgets, budget) else { return false };
    if budget.value["spec"]["unhealthyPodEvictionPolicy"] == "AlwaysAllow" {
        return false;
    }
    let number = |field: &str| budget.value["status"][field].as_i64().unwrap_or(0);
    let enough =
        number("currentHealthy") >= number("desiredHealthy") && number("desiredHealthy") > 0;
    !enough
}

fn use_disruption(
    store: &mut Store,
    budgets: TableId,
    key: &Key,
    pod: &str,
    dry_run: bool,
) -> Result<(), Failure> {
    let Some(budget) = store.get(budgets, key) else { return Ok(()) };
    let resource = store.table(budgets).resource.clone();
    let name = &key.name;
    let cause = |text: String| json!([{ "reason": "DisruptionBudget", "message": text }]);
    let generation = |value: &Value| value.as_i64().unwrap_or(0);
    let status = &budget.value["status"];
    if generation(&status["observedGeneration"])
        < generation(&budget.value["metadata"]["generation"])
    {
        let text = format!("The disruption budget {name} is still being processed by the server.");
        return Err(Failure::too_many_requests(VIOLATION, 10, cause(text)));
    }
    let allowed = status["disruptionsAllowed"].as_i64().unwrap_or(0);
    if allowed < 0 {
        return Err(Failure::forbidden(&resource, name, "pdb disruptions allowed is negative"));
    }
    if status["disruptedPods"].as_object().is_some_and(|pods| pods.len() > DISRUPTED_MAX) {
        let why = "DisruptedPods map too big - too many evictions not confirmed by PDB controller";
        return Err(Failure::forbidden(&resource, name, why));
    }
    if allowed == 0 {
        let text = format!(
            "The disruption budget {name} needs {} healthy pods and has {} currently",
            status["desiredHealthy"], status["currentHealthy"]
        );
        return Err(Failure::too_many_requests(VIOLATION, 0, cause(text)));
    }
    if dry_run {
        return Ok(());
    }
    let mut new = budget.value.clone();
    new["status"]["disruptionsAllowed"] = json!(allowed - 1);
    new["status"]["disruptedPods"][pod] = json!(object::now());
    if allowed == 1 {
        let reason = json!({ "reason": "InsufficientPods", "message": "" });
        object::set_condition(&mut new, "DisruptionAllowed", "False", &reason);
    }
    store.put(budgets, new);
    Ok(())
}
