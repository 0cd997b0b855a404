//! What pods ask for and nodes have: exact, in thousandths of a core, bytes and whole things.
//!
//! The engine counts in MiB; Kubernetes in bytes, and whoever fills a node to the last byte expects
//! it to be full then and not before. So whether a pod fits is decided here.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1 as core;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use super::quantity;

/// An amount of each resource. Those that are not named are zero.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Resources {
    /// Thousandths of a core.
    pub cpu_milli: i64,
    /// Bytes.
    pub memory: i64,
    /// Bytes of local ephemeral storage.
    pub storage: i64,
    /// Extended resources and huge pages, by name, in order.
    pub others: Vec<(Box<str>, i64)>,
}

/// Amounts as they stand in an object.
pub type Stated = BTreeMap<String, Quantity>;

impl Resources {
    /// Reads amounts. `pods` is not one of them; what cannot be read counts as nothing.
    #[must_use]
    pub fn read(stated: &Stated) -> Self {
        let mut read = Self::default();
        for (name, amount) in stated {
            match name.as_str() {
                "cpu" => read.cpu_milli = quantity::milli(amount).unwrap_or(0),
                "memory" => read.memory = quantity::whole(amount).unwrap_or(0),
                "ephemeral-storage" => read.storage = quantity::whole(amount).unwrap_or(0),
                "pods" => {}
                // In the order of names, as the map has them.
                _ => read.others.push((name.as_str().into(), quantity::whole(amount).unwrap_or(0))),
            }
        }
        read
    }

    /// The amount of an extended resource.
    #[must_use]
    pub fn other(&self, name: &str) -> i64 {
        let place = self.others.binary_search_by(|(it, _)| (**it).cmp(name));
        place.ok().and_then(|place| self.others.get(place)).map_or(0, |it| it.1)
    }

    /// Adds so many times as much.
    pub fn add(&mut self, other: &Self, times: i64) {
        self.each(other, |mine, its| mine.saturating_add(its.saturating_mul(times)));
    }

    /// At least as much of everything.
    pub fn at_least(&mut self, other: &Self) {
        self.each(other, i64::max);
    }

    fn each(&mut self, other: &Self, change: impl Fn(i64, i64) -> i64) {
        self.cpu_milli = change(self.cpu_milli, other.cpu_milli);
        self.memory = change(self.memory, other.memory);
        self.storage = change(self.storage, other.storage);
        for (name, amount) in &other.others {
            match self.others.binary_search_by(|(it, _)| it.cmp(name)) {
                Ok(place) => self.others[place].1 = change(self.others[place].1, *amount),
                Err(place) => self.others.insert(place, (name.clone(), change(0, *amount))),
            }
        }
    }

    /// The first resource of which `used` and this together are more than there is: its name, what
    /// is free of it and what is asked for. What is not asked for is not looked at.
    #[must_use]
    pub fn lacking<'a>(&'a self, used: &Self, capacity: &Self) -> Option<(&'a str, i64, i64)> {
        let fits = |asked: i64, used: i64, capacity: i64| {
            asked <= 0 || used.checked_add(asked).is_some_and(|sum| sum <= capacity)
        };
        let named = [
            ("cpu", self.cpu_milli, used.cpu_milli, capacity.cpu_milli),
            ("memory", self.memory, used.memory, capacity.memory),
            ("ephemeral-storage", self.storage, used.storage, capacity.storage),
        ];
        for (name, asked, used, capacity) in named {
            if !fits(asked, used, capacity) {
                return Some((name, capacity - used, asked));
            }
        }
        for (name, asked) in &self.others {
            let (used, capacity) = (used.other(name), capacity.other(name));
            if !fits(*asked, used, capacity) {
                return Some((name, capacity - used, *asked));
            }
        }
        None
    }
}

/// An amount of a resource as people read it.
#[must_use]
pub fn shown(resource: &str, amount: i64) -> String {
    match resource {
        "cpu" => quantity::cpus(amount),
        "memory" | "ephemeral-storage" => quantity::bytes(amount),
        name if name.starts_with("hugepages-") => quantity::bytes(amount),
        _ => amount.to_string(),
    }
}

/// What a pod asks for, and what it left unsaid.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Asked {
    /// All of it.
    pub resources: Resources,
    /// A container that states neither a request nor a limit, and of what.
    pub unsaid: Option<(String, &'static str)>,
}

/// What a pod asks for: containers and sidecars together, or the largest step of its
/// initialisation if that is more, and its overhead. A missing request is the limit.
#[must_use]
pub fn asked(pod: &core::Pod) -> Asked {
    let Some(spec) = &pod.spec else { return Asked::default() };
    let mut unsaid = None;
    let mut running = Resources::default();
    for container in &spec.containers {
        let of = of_container(container);
        if unsaid.is_none() {
            unsaid = missing(container).map(|what| (container.name.clone(), what));
        }
        running.add(&with_status(pod, container, of), 1);
    }
    let (mut sidecars, mut largest) = (Resources::default(), Resources::default());
    for container in spec.init_containers.iter().flatten() {
        let of = of_container(container);
        let mut step = sidecars.clone();
        if container.restart_policy.as_deref() == Some("Always") {
            let of = with_status(pod, container, of);
            running.add(&of, 1);
            sidecars.add(&of, 1);
            step = sidecars.clone();
        } else {
            step.add(&of, 1);
        }
        largest.at_least(&step);
    }
    running.at_least(&largest);
    if let Some(stated) = &spec.resources {
        running = whole_pod(running, stated);
        let has = |name: &str| {
            let has = |it: &Option<Stated>| it.as_ref().is_some_and(|it| it.contains_key(name));
            has(&stated.requests) || has(&stated.limits)
        };
        unsaid = unsaid.filter(|(_, what)| !has(what));
    }
    running.add(&spec.overhead.as_ref().map(Resources::read).unwrap_or_default(), 1);
    Asked { resources: running, unsaid }
}

/// What is stated for the pod as a whole stands in place of the sum over containers.
fn whole_pod(mut sum: Resources, stated: &core::ResourceRequirements) -> Resources {
    let requests = either(stated.requests.as_ref(), stated.limits.as_ref());
    let read = Resources::read(&requests);
    if requests.contains_key("cpu") {
        sum.cpu_milli = read.cpu_milli;
    }
    if requests.contains_key("memory") {
        sum.memory = read.memory;
    }
    for (name, amount) in &read.others {
        let place = sum.others.binary_search_by(|(it, _)| it.cmp(name));
        match place {
            Ok(place) => sum.others[place].1 = *amount,
            Err(place) => sum.others.insert(place, (name.clone(), *amount)),
        }
    }
    sum
}

fn of_container(container: &core::Container) -> Resources {
    let Some(stated) = &container.resources else { return Resources::default() };
    Resources::read(&either(stated.requests.as_ref(), stated.limits.as_ref()))
}

/// Requests, and limits for what has no request.
fn either(requests: Option<&Stated>, limits: Option<&Stated>) -> Stated {
    let mut all = limits.cloned().unwrap_or_default();
    all.extend(requests.cloned().unwrap_or_default());
    all
}

fn missing(container: &core::Container) -> Option<&'static str> {
    let stated = container.resources.as_ref();
    let has = |name: &str| {
        let has = |it: Option<&Stated>| it.is_some_and(|it| it.contains_key(name));
        has(stated.and_then(|it| it.requests.as_ref()))
            || has(stated.and_then(|it| it.limits.as_ref()))
    };
    ["cpu", "memory"].into_iter().find(|name| !has(name))
}

/// A container that is being resized in place may still have what it had; if its node can never do
/// it, that is all it has.
fn with_status(pod: &core::Pod, container: &core::Container, mut of: Resources) -> Resources {
    let Some(status) = &pod.status else { return of };
    let never = status
        .conditions
        .iter()
        .flatten()
        .any(|it| it.type_ == "PodResizePending" && it.reason.as_deref() == Some("Infeasible"));
    let all = status.container_statuses.iter().chain(&status.init_container_statuses).flatten();
    for status in all.filter(|status| status.name == container.name) {
        if never && status.resources.is_some() {
            of = Resources::default();
        }
        if let Some(allocated) = &status.allocated_resources {
            of.at_least(&Resources::read(allocated));
        }
        if let Some(requests) = status.resources.as_ref().and_then(|it| it.requests.as_ref()) {
            of.at_least(&Resources::read(requests));
        }
    }
    of
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(spec: serde_json::Value) -> Result<core::Pod, serde_json::Error> {
        serde_json::from_value(serde_json::json!({ "spec": spec }))
    }

    fn container(name: &str, cpu: &str, memory: &str) -> serde_json::Value {
        serde_json::json!({"name": name, "resources": {"requests": {"cpu": cpu, "memory": memory}}})
    }

    #[test]
    fn initialisation_sidecars_and_overhead_are_counted_as_documented()
    -> Result<(), serde_json::Error> {
        let mut sidecar = container("proxy", "200m", "100Mi");
        sidecar["restartPolicy"] = "Always".into();
        let pod = pod(serde_json::json!({
            "containers": [container("a", "500m", "1Gi"), container("b", "250m", "512Mi")],
            "initContainers": [container("first", "100m", "4Gi"), sidecar, container("then", "2", "1Gi")],
            "overhead": {"cpu": "50m", "memory": "64Mi"},
        }))?;
        let asked = asked(&pod);
        // CPU: the step `then` beside the sidecar, 2200m; memory: the first step, 4 GiB.
        assert_eq!(asked.resources.cpu_milli, 2200 + 50);
        assert_eq!(asked.resources.memory, (4 << 30) + (64 << 20));
        assert_eq!(asked.unsaid, None);
        Ok(())
    }

    #[test]
    fn a_limit_stands_in_for_a_request_and_neither_is_noticed() -> Result<(), serde_json::Error> {
        let with = pod(serde_json::json!({"containers": [
            {"name": "a", "resources": {"limits": {"cpu": "1", "memory": "1Gi", "example.com/gpu": "2"}}},
        ]}))?;
        let found = asked(&with);
        assert_eq!(
            (found.resources.cpu_milli, found.resources.other("example.com/gpu")),
            (1000, 2)
        );
        assert_eq!(found.unsaid, None);
        let without = pod(serde_json::json!({"containers": [
            {"name": "a", "resources": {"requests": {"cpu": "1"}}},
        ]}))?;
        assert_eq!(asked(&without).unsaid, Some(("a".to_owned(), "memory")));
        Ok(())
    }

    #[test]
    fn amounts_for_the_whole_pod_stand_in_place_of_the_sum() -> Result<(), serde_json::Error> {
        let pod = pod(serde_json::json!({
            "containers": [{"name": "a"}, container("b", "3", "1Gi")],
            "resources": {"requests": {"cpu": "2"}, "limits": {"cpu": "4", "memory": "2Gi"}},
        }))?;
        let asked = asked(&pod);
        assert_eq!((asked.resources.cpu_milli, asked.resources.memory), (2000, 2 << 30));
        assert_eq!(asked.unsaid, None);
        Ok(())
    }

    #[test]
    fn a_node_is_full_at_the_last_byte_and_not_before() {
        let capacity = Resources { cpu_milli: 1000, memory: 1_000_000_000, ..Default::default() };
        let half = Resources { cpu_milli: 500, memory: 500_000_000, ..Default::default() };
        assert_eq!(half.lacking(&half, &capacity), None);
        let mut more = half.clone();
        more.memory += 1;
        assert_eq!(half.lacking(&more, &capacity), Some(("memory", 499_999_999, 500_000_000)));
        let gpu = Resources { others: vec![("gpu".into(), 1)], ..Default::default() };
        assert_eq!(gpu.lacking(&half, &capacity), Some(("gpu", 0, 1)));
    }
}
