//! Pods that are resized in place: bounds in annotations, the size in the spec of one container.
//!
//! The size in the spec is the permit: the kubelet enforces it, and any leader reads it. Never guesses a
//! bound that is missing or invalid.

use berth_engine::elastic::Size;
use k8s_openapi::api::core::v1 as core;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use crate::cluster::quantity;
use crate::cluster::resources::{Resources, container_requests, current_requests};

/// The annotation with the minimum, such as `500m,1Gi`.
pub const MIN: &str = "berth.dev/elastic-min";
/// The annotation with the maximum.
pub const MAX: &str = "berth.dev/elastic-max";
/// The annotation with the wanted size, for pods without an agent.
pub const USE: &str = "berth.dev/elastic-use";
/// The annotation with the name of the container that is resized.
pub const CONTAINER: &str = "berth.dev/elastic-container";
/// The annotation or label that keeps a pod or machine from being moved because of pressure.
pub const STAYS: &str = "berth.dev/elastic-stays";

const ACCEPTED: &str = "CPU and memory of at least one MiB, such as 500m,1Gi";

/// A pod that can be resized in place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResizablePod {
    /// The container that is resized.
    pub container: String,
    /// The minimum.
    pub min: Size,
    /// The maximum.
    pub max: Size,
    /// The wanted size; absent: its agent says it.
    pub wanted: Option<Size>,
    /// What the container requests in the spec.
    pub size: Size,
    /// What it counts with: more than it requests while a resize is in progress.
    pub counted: Resources,
    /// How much its limits exceed its requests; absent: no limit.
    pub cpu_gap_milli: Option<i64>,
    /// The same of memory, in bytes.
    pub memory_gap: Option<i64>,
    /// Whether it is never evicted because of pressure.
    pub stays: bool,
}

/// A container and its resources after a resize.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resize {
    /// The container.
    pub container: String,
    /// What it requests.
    pub size: Size,
    /// Its CPU limit.
    pub cpu_limit_milli: Option<i64>,
    /// Its memory limit, in bytes.
    pub memory_limit: Option<i64>,
}

impl ResizablePod {
    /// Reads the annotations of a pod. `None`: it has none of them.
    #[must_use]
    pub fn read(pod: &core::Pod) -> Option<Result<Self, String>> {
        let annotations = pod.metadata.annotations.as_ref()?;
        let has = |name: &str| annotations.contains_key(name);
        (has(MIN) || has(MAX) || has(USE)).then(|| Self::try_read(pod))
    }

    fn try_read(pod: &core::Pod) -> Result<Self, String> {
        let annotation = |name: &str| pod.metadata.annotations.as_ref()?.get(name);
        let size = |name: &'static str| {
            annotation(name)
                .map(|text| {
                    parse_size(text)
                        .ok_or_else(|| format!("{name} is {text:?}; accepted is {ACCEPTED}"))
                })
                .transpose()
        };
        let needed = |name: &'static str| {
            size(name)?.ok_or_else(|| format!("{name} is missing; accepted is {ACCEPTED}"))
        };
        let (min, max, wanted) = (needed(MIN)?, needed(MAX)?, size(USE)?);
        if !max.covers(min) {
            return Err(format!("{MAX} is {max}; accepted is at least {MIN}, which is {min}"));
        }
        if let Some(wanted) = wanted.filter(|it| !it.covers(min) || !max.covers(*it)) {
            return Err(format!("{USE} is {wanted}; accepted is {min} to {max}"));
        }
        let containers = pod.spec.iter().flat_map(|it| &it.containers).collect::<Vec<_>>();
        let container = match annotation(CONTAINER) {
            Some(name) => containers.iter().find(|it| it.name == *name).ok_or_else(|| {
                let names = containers.iter().map(|it| it.name.as_str()).collect::<Vec<_>>();
                format!("{CONTAINER} is {name:?}; accepted are {}", names.join(", "))
            })?,
            None => containers.first().ok_or("the pod has no container")?,
        };
        let requests = container_requests(container);
        let limits = container.resources.as_ref().and_then(|it| it.limits.as_ref());
        let limits = limits.map(|it| (it, Resources::read(it)));
        let gap = |name: &str, of: fn(&Resources) -> i64| {
            let (stated, read) = limits.as_ref()?;
            stated.contains_key(name).then(|| of(read).saturating_sub(of(&requests)).max(0))
        };
        let stays = annotation(STAYS).is_some_and(|it| it == "true");
        Ok(Self {
            container: container.name.clone(),
            min,
            max,
            wanted,
            size: size_of(&requests),
            counted: current_requests(pod, container),
            cpu_gap_milli: gap("cpu", |it| it.cpu_milli),
            memory_gap: gap("memory", |it| it.memory),
            stays,
        })
    }

    /// The resize to a size. Limits keep their distance from the requests, so that the pod stays in its
    /// quality-of-service class.
    #[must_use]
    pub fn resize_to(&self, size: Size) -> Resize {
        let memory = i64::from(size.memory_mib) << 20;
        Resize {
            container: self.container.clone(),
            size,
            cpu_limit_milli: self.cpu_gap_milli.map(|it| it + i64::from(size.cpu_milli)),
            memory_limit: self.memory_gap.map(|it| it + memory),
        }
    }
}

/// CPU and memory of resources, memory rounded up to whole MiB.
fn size_of(resources: &Resources) -> Size {
    let amount = |it: i64| u32::try_from(it.max(0)).unwrap_or(u32::MAX);
    let mib = resources.memory.max(0).saturating_add((1 << 20) - 1) >> 20;
    Size::new(amount(resources.cpu_milli), amount(mib))
}

/// Parses CPU and memory, separated by a comma.
fn parse_size(text: &str) -> Option<Size> {
    let (cpu, memory) = text.split_once(',')?;
    let quantity = |text: &str| Quantity(text.trim().to_owned());
    let cpu = quantity::to_milli(&quantity(cpu))?;
    let memory = quantity::to_units(&quantity(memory))?;
    let size = size_of(&Resources { cpu_milli: cpu, memory, ..Resources::default() });
    (cpu > 0 && memory >= 1 << 20).then_some(size)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn read(annotations: &Value, resources: &Value) -> Option<Result<ResizablePod, String>> {
        let pod = json!({
            "metadata": {"name": "a", "annotations": annotations},
            "spec": {"containers": [{"name": "side"}, {"name": "main", "resources": resources}]},
        });
        ResizablePod::read(&serde_json::from_value(pod).unwrap())
    }

    #[test]
    fn bounds_are_read_and_limits_keep_their_distance() {
        let annotations = json!({MIN: "500m,1Gi", MAX: "4, 16Gi", CONTAINER: "main"});
        let resources = json!({
            "requests": {"cpu": "1", "memory": "2Gi"}, "limits": {"memory": "3Gi"},
        });
        let pod = read(&annotations, &resources).unwrap().unwrap();
        assert_eq!((pod.min, pod.max), (Size::new(500, 1024), Size::new(4000, 16_384)));
        assert_eq!((pod.size, pod.wanted), (Size::new(1000, 2048), None));
        let resize = pod.resize_to(Size::new(2000, 4096));
        assert_eq!((resize.cpu_limit_milli, resize.memory_limit), (None, Some(5 << 30)));
        assert_eq!(read(&json!({"other": "x"}), &resources), None);
    }

    #[test]
    fn what_is_invalid_is_named_with_what_is_accepted() {
        let cases = [
            (json!({MIN: "1,1Gi"}), "berth.dev/elastic-max is missing"),
            (json!({MIN: "much", MAX: "1,1Gi"}), "berth.dev/elastic-min is \"much\""),
            (json!({MIN: "0,1Gi", MAX: "1,1Gi"}), "berth.dev/elastic-min is \"0,1Gi\""),
            (json!({MIN: "2,1Gi", MAX: "1,1Gi"}), "accepted is at least berth.dev/elastic-min"),
            (json!({MIN: "1,1Gi", MAX: "2,2Gi", USE: "3,1Gi"}), "berth.dev/elastic-use is 3"),
            (json!({MIN: "1,1Gi", MAX: "2,2Gi", CONTAINER: "x"}), "accepted are side, main"),
        ];
        for (annotations, expected) in cases {
            let error = read(&annotations, &json!({})).unwrap().unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
    }
}
