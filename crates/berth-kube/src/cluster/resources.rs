//! Resources of pods and nodes: exact, in millicores, bytes and integers.
//!
//! The engine counts in MiB, Kubernetes in bytes, and a node that is filled to the last byte has to be
//! full then and not before. So whether a pod fits is decided here.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1 as core;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use serde::Serialize;

use super::quantity;

/// An amount of each resource. Resources that are not listed are zero.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize)]
pub struct Resources {
    /// Millicores.
    pub cpu_milli: i64,
    /// Bytes.
    pub memory: i64,
    /// Bytes of local ephemeral storage.
    pub storage: i64,
    /// Extended resources and huge pages, ordered by name.
    pub others: Vec<(Box<str>, i64)>,
}

/// Amounts as in an API object.
pub type ResourceList = BTreeMap<String, Quantity>;

impl Resources {
    /// Reads amounts. `pods` is not one of them; invalid quantities count as zero.
    #[must_use]
    pub fn read(stated: &ResourceList) -> Self {
        let mut read = Self::default();
        for (name, amount) in stated {
            match name.as_str() {
                "cpu" => read.cpu_milli = quantity::to_milli(amount).unwrap_or(0),
                "memory" => read.memory = quantity::to_units(amount).unwrap_or(0),
                "ephemeral-storage" => read.storage = quantity::to_units(amount).unwrap_or(0),
                "pods" => {}
                // The map is ordered by name.
                _ => read
                    .others
                    .push((name.as_str().into(), quantity::to_units(amount).unwrap_or(0))),
            }
        }
        read
    }

    /// The amount of an extended resource.
    #[must_use]
    pub fn extended(&self, name: &str) -> i64 {
        let index = self.others.binary_search_by(|(it, _)| (**it).cmp(name));
        index.ok().and_then(|index| self.others.get(index)).map_or(0, |it| it.1)
    }

    /// Adds another amount `times` times.
    pub fn add(&mut self, other: &Self, times: i64) {
        self.each(other, |mine, its| mine.saturating_add(its.saturating_mul(times)));
    }

    /// Raises each amount to at least the other's.
    pub fn raise_to(&mut self, other: &Self) {
        self.each(other, i64::max);
    }

    fn each(&mut self, other: &Self, change: impl Fn(i64, i64) -> i64) {
        self.cpu_milli = change(self.cpu_milli, other.cpu_milli);
        self.memory = change(self.memory, other.memory);
        self.storage = change(self.storage, other.storage);
        for (name, amount) in &other.others {
            match self.others.binary_search_by(|(it, _)| it.cmp(name)) {
                Ok(index) => self.others[index].1 = change(self.others[index].1, *amount),
                Err(index) => self.others.insert(index, (name.clone(), change(0, *amount))),
            }
        }
    }

    /// The first resource that does not fit: its name, what is free and what is requested. Resources
    /// that are not requested are not checked.
    #[must_use]
    pub fn first_shortage<'a>(
        &'a self,
        used: &Self,
        capacity: &Self,
    ) -> Option<(&'a str, i64, i64)> {
        let fits = |requested: i64, used: i64, capacity: i64| {
            requested <= 0 || used.checked_add(requested).is_some_and(|sum| sum <= capacity)
        };
        let named = [
            ("cpu", self.cpu_milli, used.cpu_milli, capacity.cpu_milli),
            ("memory", self.memory, used.memory, capacity.memory),
            ("ephemeral-storage", self.storage, used.storage, capacity.storage),
        ];
        for (name, requested, used, capacity) in named {
            if !fits(requested, used, capacity) {
                return Some((name, capacity - used, requested));
            }
        }
        for (name, requested) in &self.others {
            let (used, capacity) = (used.extended(name), capacity.extended(name));
            if !fits(*requested, used, capacity) {
                return Some((name, capacity - used, *requested));
            }
        }
        None
    }
}

impl Resources {
    /// Every resource that does not fit, as [`Self::first_shortage`] describes it.
    #[must_use]
    pub fn shortages<'a>(&'a self, used: &Self, capacity: &Self) -> Vec<Shortage<'a>> {
        let others = self.others.iter().map(|(name, requested)| {
            let name: &str = name;
            (name, *requested, used.extended(name), capacity.extended(name))
        });
        let named = [
            ("cpu", self.cpu_milli, used.cpu_milli, capacity.cpu_milli),
            ("memory", self.memory, used.memory, capacity.memory),
            ("ephemeral-storage", self.storage, used.storage, capacity.storage),
        ];
        let all = named.into_iter().chain(others);
        let short = all.filter(|(_, requested, used, capacity)| {
            *requested > 0 && used.checked_add(*requested).is_none_or(|sum| sum > *capacity)
        });
        let shortage = |(resource, requested, used, capacity): (&'a str, i64, i64, i64)| Shortage {
            resource,
            free: capacity - used,
            requested,
            capacity,
        };
        short.map(shortage).collect()
    }
}

/// A resource of which a node has less free than is requested.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shortage<'a> {
    /// Its name.
    pub resource: &'a str,
    /// What is free; negative on an overcommitted node.
    pub free: i64,
    /// What is requested.
    pub requested: i64,
    /// What the node has in all.
    pub capacity: i64,
}

impl Shortage<'_> {
    /// What is free and what is requested, in one unit, which is small enough to show the difference.
    #[must_use]
    pub fn amounts(&self) -> String {
        let (free, requested) = (self.free.max(0), self.requested);
        let (free, requested) = match kind_of(self.resource) {
            AmountKind::Cpu => quantity::format_cpus_alike(free, requested),
            AmountKind::Bytes => quantity::format_bytes_alike(free, requested),
            AmountKind::Count => (free.to_string(), requested.to_string()),
        };
        format!("{free} free of {requested} requested")
    }
}

enum AmountKind {
    Cpu,
    Bytes,
    Count,
}

fn kind_of(resource: &str) -> AmountKind {
    match resource {
        "cpu" => AmountKind::Cpu,
        "memory" | "ephemeral-storage" => AmountKind::Bytes,
        name if name.starts_with("hugepages-") => AmountKind::Bytes,
        _ => AmountKind::Count,
    }
}

/// An amount of a resource, formatted for people.
#[must_use]
pub fn format_amount(resource: &str, amount: i64) -> String {
    match kind_of(resource) {
        AmountKind::Cpu => quantity::format_cpus(amount),
        AmountKind::Bytes => quantity::format_bytes(amount),
        AmountKind::Count => amount.to_string(),
    }
}

/// What a pod requests.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct PodRequests {
    /// The total.
    pub resources: Resources,
    /// A container that declares neither a request nor a limit, and for which resource.
    pub undeclared: Option<(String, &'static str)>,
}

/// What a pod requests: containers and sidecars together, or the largest step of the initialization
/// if that is more, and its overhead. A missing request defaults to the limit.
#[must_use]
pub fn pod_requests(pod: &core::Pod) -> PodRequests {
    let Some(spec) = &pod.spec else { return PodRequests::default() };
    let mut undeclared = None;
    let mut running = Resources::default();
    for container in &spec.containers {
        let of = container_requests(container);
        if undeclared.is_none() {
            undeclared = undeclared_resource(container).map(|what| (container.name.clone(), what));
        }
        running.add(&with_status(pod, container, of), 1);
    }
    let (mut sidecars, mut largest) = (Resources::default(), Resources::default());
    for container in spec.init_containers.iter().flatten() {
        let of = container_requests(container);
        let mut step = sidecars.clone();
        if container.restart_policy.as_deref() == Some("Always") {
            let of = with_status(pod, container, of);
            running.add(&of, 1);
            sidecars.add(&of, 1);
            step = sidecars.clone();
        } else {
            step.add(&of, 1);
        }
        largest.raise_to(&step);
    }
    running.raise_to(&largest);
    if let Some(stated) = &spec.resources {
        running = apply_pod_requests(running, stated);
        let has = |name: &str| {
            let has =
                |it: &Option<ResourceList>| it.as_ref().is_some_and(|it| it.contains_key(name));
            has(&stated.requests) || has(&stated.limits)
        };
        undeclared = undeclared.filter(|(_, what)| !has(what));
    }
    running.add(&spec.overhead.as_ref().map(Resources::read).unwrap_or_default(), 1);
    PodRequests { resources: running, undeclared }
}

/// Requests for the pod as a whole replace the sum over its containers.
fn apply_pod_requests(mut sum: Resources, stated: &core::ResourceRequirements) -> Resources {
    let requests = requests_or_limits(stated.requests.as_ref(), stated.limits.as_ref());
    let read = Resources::read(&requests);
    if requests.contains_key("cpu") {
        sum.cpu_milli = read.cpu_milli;
    }
    if requests.contains_key("memory") {
        sum.memory = read.memory;
    }
    for (name, amount) in &read.others {
        let index = sum.others.binary_search_by(|(it, _)| it.cmp(name));
        match index {
            Ok(index) => sum.others[index].1 = *amount,
            Err(index) => sum.others.insert(index, (name.clone(), *amount)),
        }
    }
    sum
}

/// What a container requests; limits count where there is no request.
#[must_use]
pub fn container_requests(container: &core::Container) -> Resources {
    let Some(stated) = &container.resources else { return Resources::default() };
    Resources::read(&requests_or_limits(stated.requests.as_ref(), stated.limits.as_ref()))
}

/// What a container of a pod counts with: more than it requests while it is resized in place.
#[must_use]
pub fn current_requests(pod: &core::Pod, container: &core::Container) -> Resources {
    with_status(pod, container, container_requests(container))
}

/// Requests, and limits where there is no request.
fn requests_or_limits(
    requests: Option<&ResourceList>,
    limits: Option<&ResourceList>,
) -> ResourceList {
    let mut all = limits.cloned().unwrap_or_default();
    all.extend(requests.cloned().unwrap_or_default());
    all
}

fn undeclared_resource(container: &core::Container) -> Option<&'static str> {
    let stated = container.resources.as_ref();
    let has = |name: &str| {
        let has = |it: Option<&ResourceList>| it.is_some_and(|it| it.contains_key(name));
        has(stated.and_then(|it| it.requests.as_ref()))
            || has(stated.and_then(|it| it.limits.as_ref()))
    };
    ["cpu", "memory"].into_iter().find(|name| !has(name))
}

/// A container that is being resized in place may still use its old size; if the node can never
/// satisfy the resize, that is all it uses.
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
            of.raise_to(&Resources::read(allocated));
        }
        if let Some(requests) = status.resources.as_ref().and_then(|it| it.requests.as_ref()) {
            of.raise_to(&Resources::read(requests));
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
    fn init_containers_sidecars_and_overhead_are_counted_as_documented()
    -> Result<(), serde_json::Error> {
        let mut sidecar = container("proxy", "200m", "100Mi");
        sidecar["restartPolicy"] = "Always".into();
        let pod = pod(serde_json::json!({
            "containers": [container("a", "500m", "1Gi"), container("b", "250m", "512Mi")],
            "initContainers": [container("first", "100m", "4Gi"), sidecar, container("then", "2", "1Gi")],
            "overhead": {"cpu": "50m", "memory": "64Mi"},
        }))?;
        let requested = pod_requests(&pod);
        // CPU: the step `then` with the sidecar, 2200m; memory: the first step, 4 GiB.
        assert_eq!(requested.resources.cpu_milli, 2200 + 50);
        assert_eq!(requested.resources.memory, (4 << 30) + (64 << 20));
        assert_eq!(requested.undeclared, None);
        Ok(())
    }

    #[test]
    fn a_request_defaults_to_the_limit_and_neither_is_reported() -> Result<(), serde_json::Error> {
        let with = pod(serde_json::json!({"containers": [
            {"name": "a", "resources": {"limits": {"cpu": "1", "memory": "1Gi", "example.com/gpu": "2"}}},
        ]}))?;
        let found = pod_requests(&with);
        assert_eq!(
            (found.resources.cpu_milli, found.resources.extended("example.com/gpu")),
            (1000, 2)
        );
        assert_eq!(found.undeclared, None);
        let without = pod(serde_json::json!({"containers": [
            {"name": "a", "resources": {"requests": {"cpu": "1"}}},
        ]}))?;
        assert_eq!(pod_requests(&without).undeclared, Some(("a".to_owned(), "memory")));
        Ok(())
    }

    #[test]
    fn requests_of_the_whole_pod_replace_the_sum() -> Result<(), serde_json::Error> {
        let pod = pod(serde_json::json!({
            "containers": [{"name": "a"}, container("b", "3", "1Gi")],
            "resources": {"requests": {"cpu": "2"}, "limits": {"cpu": "4", "memory": "2Gi"}},
        }))?;
        let requested = pod_requests(&pod);
        assert_eq!((requested.resources.cpu_milli, requested.resources.memory), (2000, 2 << 30));
        assert_eq!(requested.undeclared, None);
        Ok(())
    }

    #[test]
    fn a_node_is_full_at_the_last_byte_and_not_before() {
        let capacity = Resources { cpu_milli: 1000, memory: 1_000_000_000, ..Default::default() };
        let half = Resources { cpu_milli: 500, memory: 500_000_000, ..Default::default() };
        assert_eq!(half.first_shortage(&half, &capacity), None);
        let mut more = half.clone();
        more.memory += 1;
        assert_eq!(
            half.first_shortage(&more, &capacity),
            Some(("memory", 499_999_999, 500_000_000))
        );
        let gpu = Resources { others: vec![("gpu".into(), 1)], ..Default::default() };
        assert_eq!(gpu.first_shortage(&half, &capacity), Some(("gpu", 0, 1)));
    }
}
