//! Claims, classes, slices and taint rules, reduced to what a decision looks at.
//!
//! Read from untyped objects, so that fields that are unknown here are noticed: a claim or a class with
//! one is refused by the field's name, and a device with one is not used. Nothing is ignored silently.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use k8s_openapi::api::resource::v1 as resource;
use k8s_openapi::apimachinery::pkg::apis::meta::v1 as meta;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::cluster::node::Node;
use crate::cluster::pod::{Key, controller};
use crate::cluster::selector::NodeSelector;

/// A pool of devices: its driver and its name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct PoolId {
    pub(super) driver: Arc<str>,
    pub(super) pool: Arc<str>,
}

impl fmt::Display for PoolId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.driver, self.pool)
    }
}

/// A device: its pool and its name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct DeviceId {
    pub(super) pool: PoolId,
    pub(super) device: Arc<str>,
}

impl fmt::Display for DeviceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.pool, self.device)
    }
}

/// Where devices can be used.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Reach {
    Node(Arc<str>),
    Nodes(NodeSelector, Box<k8s_openapi::api::core::v1::NodeSelector>),
    AllNodes,
    /// Each device says it.
    PerDevice,
    /// In a way that is unknown.
    Nowhere,
}

impl Reach {
    fn read(
        name: Option<&String>,
        all: Option<bool>,
        selector: Option<&k8s_openapi::api::core::v1::NodeSelector>,
    ) -> Option<Self> {
        match (name.filter(|it| !it.is_empty()), all, selector) {
            (Some(name), ..) => Some(Self::Node(name.as_str().into())),
            (None, Some(true), _) => Some(Self::AllNodes),
            (None, _, Some(selector)) => {
                Some(Self::Nodes(NodeSelector::read(Some(selector)), Box::new(selector.clone())))
            }
            (None, _, None) => None,
        }
    }

    /// Whether devices can be used on a node, as far as the slice says it.
    pub(super) fn includes(&self, node: &Node) -> bool {
        match self {
            Self::Node(name) => *name == node.name,
            Self::Nodes(selector, _) => selector.matches(&node.name, &node.labels),
            Self::AllNodes | Self::PerDevice => true,
            Self::Nowhere => false,
        }
    }
}

/// How many devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Amount {
    Exactly(usize),
    All,
}

/// One way to satisfy a request.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Alternative {
    /// `request`, or `request/alternative`.
    pub(super) name: Arc<str>,
    pub(super) class: Arc<str>,
    pub(super) selectors: Vec<Arc<str>>,
    pub(super) amount: Amount,
    pub(super) tolerations: Vec<resource::DeviceToleration>,
}

/// A request: the first of its alternatives that is possible.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Request {
    pub(super) name: String,
    pub(super) alternatives: Vec<Alternative>,
}

/// A constraint on the devices of some requests; without requests, of all.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Constraint {
    pub(super) requests: Vec<String>,
    /// With its domain.
    pub(super) attribute: String,
    /// Whether all values are different; otherwise all are the same.
    pub(super) distinct: bool,
}

/// What a claim asks for.
#[derive(Clone, Debug, PartialEq, Default)]
pub(super) struct ClaimSpec {
    pub(super) requests: Vec<Request>,
    pub(super) constraints: Vec<Constraint>,
    pub(super) config: Vec<resource::DeviceClaimConfiguration>,
}

/// Devices that a claim has.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Allocation {
    pub(super) devices: Vec<DeviceId>,
    pub(super) nodes: NodeSelector,
    /// As it is written to the claim.
    pub(super) result: resource::AllocationResult,
}

impl Allocation {
    pub(super) fn new(result: resource::AllocationResult) -> Self {
        let results = result.devices.as_ref().and_then(|it| it.results.as_ref());
        // A device that is given with administrative access stays available to others.
        let used = results.into_iter().flatten().filter(|it| it.admin_access != Some(true));
        let devices = used.map(|it| device_id(&it.driver, &it.pool, &it.device)).collect();
        let nodes = NodeSelector::read(result.node_selector.as_ref());
        Self { devices, nodes, result }
    }
}

fn device_id(driver: &str, pool: &str, device: &str) -> DeviceId {
    let pool = PoolId { driver: driver.into(), pool: pool.into() };
    DeviceId { pool, device: device.into() }
}

/// A claim.
#[derive(Clone, Debug)]
pub(super) struct Claim {
    pub(super) key: Key,
    pub(super) uid: Arc<str>,
    pub(super) version: String,
    pub(super) deleting: bool,
    /// The uid of the pod that it was created for, if any.
    pub(super) owner: Option<String>,
    /// What it asks for; why that is not supported.
    pub(super) spec: Result<ClaimSpec, String>,
    pub(super) allocation: Option<Arc<Allocation>>,
    /// Uids of those that it is reserved for.
    pub(super) reserved_for: Vec<Arc<str>>,
    /// Whether something may be attached to it that is unknown here.
    pub(super) is_reserved_for_others: bool,
}

impl Claim {
    pub(super) fn read(object: &Value) -> Option<Self> {
        let meta = read_meta(object)?;
        let status: resource::ResourceClaimStatus = read_part(object, "status").0;
        let consumers = status.reserved_for.unwrap_or_default();
        let is_pod = |it: &resource::ResourceClaimConsumerReference| {
            it.resource == "pods" && it.api_group.as_deref().unwrap_or_default().is_empty()
        };
        Some(Self {
            key: Key::of(&meta),
            uid: meta.uid.as_deref().unwrap_or_default().into(),
            version: meta.resource_version.clone().unwrap_or_default(),
            deleting: meta.deletion_timestamp.is_some(),
            owner: controller(&meta).map(|(_, _, uid)| uid),
            spec: read_claim(object),
            allocation: status.allocation.map(|it| Arc::new(Allocation::new(it))),
            reserved_for: consumers.iter().map(|it| it.uid.as_str().into()).collect(),
            is_reserved_for_others: !consumers.iter().all(is_pod),
        })
    }
}

fn read_meta(object: &Value) -> Option<meta::ObjectMeta> {
    serde_json::from_value(object.get("metadata")?.clone()).ok()
}

/// A part of an object, and the paths of fields in it that are unknown.
fn read_part<T: DeserializeOwned + Default>(object: &Value, part: &str) -> (T, Vec<String>) {
    let mut unknown = Vec::new();
    let value = object.get(part).cloned().unwrap_or_else(|| Value::Object(Default::default()));
    let mut record = |path: serde_ignored::Path<'_>| {
        let path = path.to_string();
        let parts: Vec<&str> = path.split('.').filter(|it| *it != "?").collect();
        unknown.push(parts.join("."));
    };
    match serde_ignored::deserialize(value, &mut record) {
        Ok(read) => (read, unknown),
        // The API server has checked it; a form that is unknown here.
        Err(error) => (T::default(), vec![format!("({error})")]),
    }
}

fn read_claim(object: &Value) -> Result<ClaimSpec, String> {
    let (spec, unknown) = read_part::<resource::ResourceClaimSpec>(object, "spec");
    if let Some(field) = unknown.first() {
        return Err(format!("spec.{field} is not supported"));
    }
    let devices = spec.devices.unwrap_or_default();
    let requests = devices.requests.unwrap_or_default();
    let requests = requests.iter().map(read_request).collect::<Result<_, _>>()?;
    let constraints = devices.constraints.unwrap_or_default();
    let constraints = constraints.into_iter().map(read_constraint).collect::<Result<_, _>>()?;
    Ok(ClaimSpec { requests, constraints, config: devices.config.unwrap_or_default() })
}

fn read_request(request: &resource::DeviceRequest) -> Result<Request, String> {
    let name = &request.name;
    let alternatives = match (&request.exactly, &request.first_available) {
        (Some(it), _) => vec![read_alternative(exact_as_alternative(it), name.as_str().into())?],
        (None, Some(all)) if !all.is_empty() => all
            .iter()
            .map(|it| read_alternative(it.clone(), format!("{name}/{}", it.name).into()))
            .collect::<Result<_, _>>()?,
        _ => {
            return Err(format!(
                "request {name} is of an unknown kind; accepted: exactly, firstAvailable"
            ));
        }
    };
    if request.exactly.as_ref().is_some_and(|it| it.admin_access == Some(true)) {
        return Err(format!("adminAccess of request {name} is not supported"));
    }
    Ok(Request { name: name.clone(), alternatives })
}

/// Both kinds have the same fields, but for administrative access.
fn exact_as_alternative(it: &resource::ExactDeviceRequest) -> resource::DeviceSubRequest {
    resource::DeviceSubRequest {
        allocation_mode: it.allocation_mode.clone(),
        capacity: it.capacity.clone(),
        count: it.count,
        derived_attributes: it.derived_attributes.clone(),
        device_class_name: it.device_class_name.clone(),
        name: String::new(),
        selectors: it.selectors.clone(),
        tolerations: it.tolerations.clone(),
    }
}

fn read_alternative(it: resource::DeviceSubRequest, name: Arc<str>) -> Result<Alternative, String> {
    if it.capacity.is_some_and(|it| it.requests.is_some_and(|it| !it.is_empty())) {
        return Err(format!("capacity of request {name} (consumable capacity) is not supported"));
    }
    if it.derived_attributes.is_some_and(|it| !it.is_empty()) {
        return Err(format!("derivedAttributes of request {name} are not supported"));
    }
    let amount = match it.allocation_mode.as_deref() {
        None | Some("" | "ExactCount") => {
            let count = it.count.filter(|it| *it > 0).unwrap_or(1);
            Amount::Exactly(usize::try_from(count).unwrap_or(usize::MAX))
        }
        Some("All") => Amount::All,
        Some(mode) => {
            return Err(format!(
                "allocationMode of request {name} is {mode:?}; accepted: ExactCount, All"
            ));
        }
    };
    Ok(Alternative {
        class: it.device_class_name.as_str().into(),
        selectors: read_selectors(it.selectors.as_ref())
            .map_err(|at| format!("selector #{at} of request {name} is not in CEL"))?,
        amount,
        tolerations: it.tolerations.unwrap_or_default(),
        name,
    })
}

fn read_selectors(
    selectors: Option<&Vec<resource::DeviceSelector>>,
) -> Result<Vec<Arc<str>>, usize> {
    let selectors = selectors.into_iter().flatten().enumerate();
    let read = |(at, it): (usize, &resource::DeviceSelector)| {
        it.cel.as_ref().map(|it| Arc::from(it.expression.as_str())).ok_or(at)
    };
    selectors.map(read).collect()
}

fn read_constraint(it: resource::DeviceConstraint) -> Result<Constraint, String> {
    let requests = it.requests.unwrap_or_default();
    let (attribute, distinct) = match (it.match_attribute, it.distinct_attribute) {
        (Some(attribute), None) => (attribute, false),
        (None, Some(attribute)) => (attribute, true),
        _ => {
            return Err("a constraint is of an unknown kind; accepted: matchAttribute, \
                        distinctAttribute"
                .to_owned());
        }
    };
    Ok(Constraint { requests, attribute, distinct })
}

/// A device class.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct DeviceClass {
    pub(super) name: Arc<str>,
    /// Its selectors; why they are not supported.
    pub(super) selectors: Result<Vec<Arc<str>>, String>,
    pub(super) config: Vec<resource::DeviceClassConfiguration>,
    /// The extended resource that its devices provide as well.
    pub(super) extended_resource: Option<String>,
}

impl DeviceClass {
    pub(super) fn read(object: &Value) -> Option<Self> {
        let meta = read_meta(object)?;
        let (spec, unknown) = read_part::<resource::DeviceClassSpec>(object, "spec");
        let selectors = match unknown.first() {
            Some(field) => Err(format!("spec.{field} is not supported")),
            None => read_selectors(spec.selectors.as_ref())
                .map_err(|at| format!("selector #{at} is not in CEL")),
        };
        let name = meta.name.as_deref().unwrap_or_default().into();
        let extended_resource = spec.extended_resource_name.filter(|it| !it.is_empty());
        Some(Self { name, selectors, config: spec.config.unwrap_or_default(), extended_resource })
    }
}

/// A device in a slice.
#[derive(Clone, Debug)]
pub(super) struct Device {
    pub(super) id: DeviceId,
    /// Where it can be used, if each device of the slice says it.
    pub(super) reach: Option<Reach>,
    pub(super) device: resource::Device,
    /// What it has that is not supported here, so that it is not used.
    pub(super) unsupported: Option<String>,
}

impl Device {
    fn read(device: resource::Device, pool: &PoolId, is_per_device: bool) -> Self {
        let reach = is_per_device.then(|| {
            let selector = device.node_selector.as_ref();
            Reach::read(device.node_name.as_ref(), device.all_nodes, selector)
                .unwrap_or(Reach::Nowhere)
        });
        Self {
            id: DeviceId { pool: pool.clone(), device: device.name.as_str().into() },
            reach,
            unsupported: unsupported_field(&device).map(str::to_owned),
            device,
        }
    }

    /// Whether it can be used on a node of its slice.
    pub(super) fn reaches(&self, node: &Node) -> bool {
        self.reach.as_ref().is_none_or(|it| it.includes(node))
    }

    /// An attribute by its name with a domain.
    pub(super) fn attribute(&self, name: &str) -> Option<&resource::DeviceAttribute> {
        let attributes = self.device.attributes.as_ref()?;
        attributes.get(name).or_else(|| {
            let (domain, id) = name.split_once('/')?;
            attributes.get(id).filter(|_| *domain == *self.id.pool.driver)
        })
    }
}

/// A feature that a device needs and that is not supported.
fn unsupported_field(device: &resource::Device) -> Option<&'static str> {
    let list = |it: &Option<Vec<String>>| it.as_ref().is_some_and(|it| !it.is_empty());
    if device.consumes_counters.as_ref().is_some_and(|it| !it.is_empty()) {
        return Some("consumesCounters (partitionable devices)");
    }
    if device.allow_multiple_allocations == Some(true) {
        return Some("allowMultipleAllocations (consumable capacity)");
    }
    if list(&device.binding_conditions) || list(&device.binding_failure_conditions) {
        return Some("bindingConditions");
    }
    let allocatable = device.node_allocatable_resources.as_ref();
    allocatable.filter(|it| !it.is_empty()).map(|_| "nodeAllocatableResources")
}

/// A slice: a part of a pool.
#[derive(Clone, Debug)]
pub(super) struct Slice {
    pub(super) name: Arc<str>,
    pub(super) version: String,
    pub(super) pool: PoolId,
    pub(super) generation: i64,
    /// How many slices the pool has.
    pub(super) slices: i64,
    pub(super) reach: Reach,
    pub(super) devices: Vec<Device>,
}

impl Slice {
    pub(super) fn read(object: &Value) -> Option<Self> {
        let meta = read_meta(object)?;
        let (spec, unknown) = read_part::<resource::ResourceSliceSpec>(object, "spec");
        let (driver, pool) = (spec.driver.as_str().into(), spec.pool.name.as_str().into());
        let pool = PoolId { driver, pool };
        let is_per_device = spec.per_device_node_selection == Some(true);
        let reach =
            match Reach::read(spec.node_name.as_ref(), spec.all_nodes, spec.node_selector.as_ref())
            {
                Some(reach) => reach,
                None if is_per_device => Reach::PerDevice,
                None => Reach::Nowhere,
            };
        let mut whole = spec
            .skip_node_operations
            .filter(|it| !it.is_empty())
            .map(|_| "skipNodeOperations".to_owned());
        let mut by_device: Vec<(usize, String)> = Vec::new();
        for field in unknown {
            let of_device = field.strip_prefix("devices.").and_then(|it| it.split_once('.'));
            match of_device.and_then(|(at, field)| Some((at.parse().ok()?, field.to_owned()))) {
                Some(it) => by_device.push(it),
                None => whole = Some(field),
            }
        }
        let read = |device| Device::read(device, &pool, is_per_device);
        let mut devices: Vec<Device> =
            spec.devices.unwrap_or_default().into_iter().map(read).collect();
        for (at, field) in by_device {
            devices.get_mut(at).into_iter().for_each(|it| it.unsupported = Some(field.clone()));
        }
        if let Some(field) = whole {
            devices.iter_mut().for_each(|it| it.unsupported = Some(field.clone()));
        }
        Some(Self {
            name: meta.name.as_deref().unwrap_or_default().into(),
            version: meta.resource_version.unwrap_or_default(),
            generation: spec.pool.generation,
            slices: spec.pool.resource_slice_count,
            pool,
            reach,
            devices,
        })
    }

    /// A name that two of its devices have.
    pub(super) fn has_unique_names(&self, seen: &mut BTreeSet<Arc<str>>) -> bool {
        self.devices.iter().all(|it| seen.insert(Arc::clone(&it.id.device)))
    }
}

/// Taints devices from outside of their slices.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct TaintRule {
    driver: Option<String>,
    pool: Option<String>,
    device: Option<String>,
    pub(super) taint: resource::DeviceTaint,
}

impl TaintRule {
    pub(super) fn read(object: &Value) -> Option<Self> {
        let taint = object.pointer("/spec/taint")?.clone();
        // Without a selector it taints nothing; with an empty one, everything.
        object.pointer("/spec/deviceSelector").filter(|it| it.is_object())?;
        // Older versions select by further fields; without those it taints more devices than it should,
        // never fewer.
        let text = |field: &str| {
            let value = object.pointer(&format!("/spec/deviceSelector/{field}"))?;
            value.as_str().map(str::to_owned)
        };
        let (driver, pool, device) = (text("driver"), text("pool"), text("device"));
        Some(Self { driver, pool, device, taint: serde_json::from_value(taint).ok()? })
    }

    /// Whether it taints a device.
    pub(super) fn applies_to(&self, id: &DeviceId) -> bool {
        let is = |wanted: &Option<String>, found: &str| {
            wanted.as_ref().is_none_or(|wanted| wanted == found)
        };
        is(&self.driver, &id.pool.driver)
            && is(&self.pool, &id.pool.pool)
            && is(&self.device, &id.device)
    }
}

/// Whether a taint keeps a device from being allocated to a request.
pub(super) fn is_excluded(
    taint: &resource::DeviceTaint,
    tolerations: &[resource::DeviceToleration],
) -> bool {
    let tolerates = |it: &resource::DeviceToleration| {
        let is_any = |it: &Option<String>| it.as_deref().unwrap_or_default().is_empty();
        (is_any(&it.effect) || it.effect.as_ref() == Some(&taint.effect))
            && (is_any(&it.key) || it.key.as_ref() == Some(&taint.key))
            && match it.operator.as_deref() {
                None | Some("" | "Equal") => {
                    it.value.as_deref().unwrap_or_default()
                        == taint.value.as_deref().unwrap_or_default()
                }
                operator => operator == Some("Exists"),
            }
    };
    matches!(taint.effect.as_str(), "NoSchedule" | "NoExecute")
        && !tolerations.iter().any(tolerates)
}
