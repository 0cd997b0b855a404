//! Pod disruption budgets in preemption. Pure: no I/O, no clock.
//!
//! As in Kubernetes, preemption respects budgets where it can: a pod whose deletion violates one is a
//! victim only where there is no other. Evictions go through the API server, which enforces them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::api::policy::v1 as policy;
use serde::Serialize;

use super::pod::{Key, Pod};
use super::selector::Selector;

/// What budgets say about the deletion of a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BudgetVerdict<'a> {
    /// No budget selects it.
    NoBudget,
    /// This many such pods may be deleted, including this one.
    Allowed(i64),
    /// This budget allows no disruption now.
    Violated(&'a Key),
}

#[derive(Clone, Debug)]
struct Budget {
    key: Key,
    /// Which pods; absent: none. An empty one selects the whole namespace.
    selector: Option<Selector>,
    /// Disruptions allowed.
    allowed: i64,
    /// Terminating pods that `allowed` already accounts for.
    disrupted: BTreeSet<String>,
}

impl Budget {
    fn read(budget: &policy::PodDisruptionBudget) -> Self {
        let status = budget.status.as_ref();
        let selector = budget.spec.as_ref().and_then(|it| it.selector.as_ref());
        let disrupted = status.and_then(|it| it.disrupted_pods.as_ref()).into_iter().flatten();
        Self {
            key: Key::of(&budget.metadata),
            selector: selector.map(Selector::read),
            // Before its controller has processed it, a budget allows no disruption.
            allowed: status.and_then(|it| it.disruptions_allowed).map_or(0, i64::from),
            disrupted: disrupted.map(|(name, _)| name.clone()).collect(),
        }
    }

    /// Whether the deletion of this pod counts against the budget.
    fn counts(&self, pod: &Pod) -> bool {
        self.selector.as_ref().is_some_and(|it| it.matches(&pod.labels))
            && !self.disrupted.contains(&*pod.key.name)
    }
}

/// All budgets.
#[derive(Clone, Debug, Default)]
pub struct Budgets {
    /// By namespace, then by name.
    all: BTreeMap<Arc<str>, BTreeMap<Arc<str>, Budget>>,
}

/// A budget, as far as it matters.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct BudgetState {
    /// Disruptions allowed.
    pub allowed: i64,
    /// Terminating pods that `allowed` already accounts for.
    pub disrupted: BTreeSet<String>,
}

impl Budgets {
    /// All budgets, by namespace and name.
    #[must_use]
    pub fn state(&self) -> BTreeMap<String, BudgetState> {
        let all = self.all.values().flat_map(BTreeMap::values);
        let state = |it: &Budget| {
            let disrupted = it.disrupted.clone();
            (it.key.to_string(), BudgetState { allowed: it.allowed, disrupted })
        };
        all.map(state).collect()
    }

    /// Adds or updates a budget.
    pub fn put(&mut self, budget: &policy::PodDisruptionBudget) {
        let budget = Budget::read(budget);
        let namespace = self.all.entry(Arc::clone(&budget.key.namespace)).or_default();
        namespace.insert(Arc::clone(&budget.key.name), budget);
    }

    /// Deletes a budget.
    pub fn remove(&mut self, key: &Key) {
        let Some(namespace) = self.all.get_mut(&key.namespace) else { return };
        namespace.remove(&key.name);
        if namespace.is_empty() {
            self.all.remove(&key.namespace);
        }
    }

    /// Whether there are no budgets.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    fn of<'a>(&'a self, pod: &Pod) -> impl Iterator<Item = &'a Budget> {
        let namespace = self.all.get(&pod.key.namespace).into_iter();
        namespace.flat_map(BTreeMap::values).filter(move |it| it.counts(pod))
    }

    /// Whether one pod may be deleted on its own.
    #[must_use]
    pub fn allowed(&self, pod: &Pod) -> BudgetVerdict<'_> {
        match self.of(pod).min_by_key(|it| it.allowed) {
            None => BudgetVerdict::NoBudget,
            Some(it) if it.allowed <= 0 => BudgetVerdict::Violated(&it.key),
            Some(it) => BudgetVerdict::Allowed(it.allowed),
        }
    }

    /// Which of these pods violate a budget if they are deleted one after the other, and which do not:
    /// their positions, in order. Every deletion uses up the budgets that select the pod, whether it
    /// violates one or not, so the order decides which pods count as violations.
    #[must_use]
    pub fn split(&self, victims: &[Arc<Pod>]) -> (Vec<usize>, Vec<usize>) {
        let mut left: BTreeMap<&Key, i64> = BTreeMap::new();
        (0..victims.len()).partition(|index| {
            let mut breaks = false;
            for budget in victims.get(*index).into_iter().flat_map(|pod| self.of(pod)) {
                let left = left.entry(&budget.key).or_insert(budget.allowed);
                *left -= 1;
                breaks |= *left < 0;
            }
            breaks
        })
    }
}

#[cfg(test)]
mod tests {
    use crate::cluster::observed_pod::ObservedPod;
    use serde_json::{Value, json};

    use super::*;

    fn pod(namespace: &str, name: &str, labels: &Value) -> Arc<Pod> {
        let pod = json!({"metadata": {"namespace": namespace, "name": name, "labels": labels}});
        let pod: ObservedPod = serde_json::from_value(pod).expect("a pod");
        Arc::new(Pod::read(&pod))
    }

    fn web(name: &str) -> Arc<Pod> {
        pod("prod", name, &json!({"app": "web"}))
    }

    fn budget(name: &str, selector: &Value, status: &Value) -> policy::PodDisruptionBudget {
        let budget = json!({"metadata": {"namespace": "prod", "name": name},
            "spec": {"selector": selector}, "status": status});
        serde_json::from_value(budget).expect("a budget")
    }

    fn allows(count: i32) -> Value {
        json!({"disruptionsAllowed": count, "currentHealthy": 3, "desiredHealthy": 2, "expectedPods": 3})
    }

    fn of(all: &[policy::PodDisruptionBudget]) -> Budgets {
        let mut budgets = Budgets::default();
        all.iter().for_each(|it| budgets.put(it));
        budgets
    }

    #[test]
    fn victims_use_up_a_budget_in_order_and_the_rest_violate_it() {
        let apps = json!({"matchLabels": {"app": "web"}});
        let mut budgets = of(&[budget("web", &apps, &allows(1))]);
        let other = pod("prod", "db", &json!({"app": "db"}));
        let victims = [web("a"), other, web("b"), web("c")];
        assert_eq!(budgets.split(&victims), (vec![2, 3], vec![0, 1]));
        assert_eq!(budgets.split(&victims[2..]), (vec![1], vec![0]), "nothing is used up for good");
        budgets.put(&budget("web", &apps, &allows(2)));
        assert_eq!(budgets.split(&victims), (vec![3], vec![0, 1, 2]));
        budgets.remove(&Key::new("prod", "web"));
        assert!(budgets.is_empty());
        assert_eq!(budgets.split(&victims), (vec![], vec![0, 1, 2, 3]));
    }

    #[test]
    fn an_empty_selector_selects_the_namespace_and_an_absent_one_nothing() {
        let (bare, anti_affinity) =
            (pod("prod", "bare", &json!({})), pod("test", "bare", &json!({})));
        let victims = [web("a"), bare, anti_affinity];
        let all = of(&[budget("all", &json!({}), &allows(0))]);
        assert_eq!(all.split(&victims), (vec![0, 1], vec![2]));
        let none = of(&[budget("none", &Value::Null, &allows(0))]);
        assert_eq!(none.split(&victims), (vec![], vec![0, 1, 2]));
    }

    #[test]
    fn a_pod_that_is_already_disrupted_is_not_counted_again() {
        let mut status = allows(1);
        status["disruptedPods"] = json!({"a": "2026-01-01T00:00:00Z"});
        let budgets = of(&[budget("web", &json!({"matchLabels": {"app": "web"}}), &status)]);
        assert_eq!(budgets.split(&[web("a"), web("b"), web("c")]), (vec![2], vec![0, 1]));
        assert_eq!(budgets.allowed(&web("a")), BudgetVerdict::NoBudget);
        assert_eq!(budgets.allowed(&web("b")), BudgetVerdict::Allowed(1));
    }

    #[test]
    fn a_pod_of_two_budgets_needs_both() {
        let front = json!({"matchLabels": {"tier": "front"}});
        let apps = json!({"matchLabels": {"app": "web"}});
        let budgets = of(&[budget("front", &front, &allows(1)), budget("web", &apps, &allows(2))]);
        let both = |name: &str| pod("prod", name, &json!({"app": "web", "tier": "front"}));
        // The second violates one of them, and still counts against the other.
        let victims = [both("a"), both("b"), web("c")];
        assert_eq!(budgets.split(&victims), (vec![1, 2], vec![0]));
        assert_eq!(budgets.allowed(&both("a")), BudgetVerdict::Allowed(1));
    }

    #[test]
    fn a_budget_without_a_status_allows_no_disruption() {
        let budgets = of(&[budget("web", &json!({}), &Value::Null)]);
        assert_eq!(budgets.allowed(&web("a")), BudgetVerdict::Violated(&Key::new("prod", "web")));
        assert_eq!(budgets.split(&[web("a")]), (vec![0], vec![]));
    }
}
