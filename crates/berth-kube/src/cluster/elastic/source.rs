//! Virtual machines (`vm.neon.tech/v1`): what their pods are charged, and how far they may grow.
//!
//! The permit of a machine is stored in an annotation, so that every leader knows what was granted.
//! Nothing is decided here.

use std::sync::Arc;

use berth_engine::elastic::{Permit, Size};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use rustc_hash::FxHashMap;
use serde::Serialize;
use serde_json::Value;

use super::resizable::STAYS;
use crate::cluster::pod::{Key, Pod};
use crate::cluster::quantity;
use crate::cluster::resources::Resources;

/// The label of an autoscaled virtual machine.
const SCALES: &str = "autoscaling.neon.tech/enabled";
/// The label of a machine that may be migrated because of pressure.
const MIGRATES: &str = "autoscaling.neon.tech/auto-migration-enabled";
/// The annotation or label with the class of a machine.
const CLASS: &str = "berth.dev/elastic-class";
/// The annotation with its permit.
pub const PERMIT: &str = "berth.dev/permit";

/// The size of a virtual machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Vm {
    /// Its uid.
    pub uid: Arc<str>,
    /// The version of the object.
    pub version: Option<String>,
    /// The minimum.
    pub min: Size,
    /// The current size.
    pub used: Size,
    /// The maximum.
    pub max: Size,
    /// Whether an agent scales it.
    pub scales: bool,
    /// Whether it may be migrated because of pressure.
    pub migrates: bool,
    /// Its class in the policy.
    pub class: Option<String>,
    /// What it was granted, as a leader stored it.
    pub permit: Option<Permit>,
}

/// All virtual machines.
#[derive(Clone, Debug, Default)]
pub(in crate::cluster) struct Vms {
    all: FxHashMap<Key, Vm>,
}

impl Vms {
    /// Adds or updates one; `None` if it has no name.
    pub(super) fn put(&mut self, vm: &Value) -> Option<Key> {
        let text = |name: &str| vm.pointer(name).and_then(Value::as_str);
        let key = Key::new(text("/metadata/namespace")?, text("/metadata/name")?);
        let read = Vm::read(vm);
        if let (Some(known), Some(read)) = (self.all.get(&key), &read)
            && known.uid == read.uid
            && read.number() < known.number()
        {
            // A list or an answer was faster than the watch.
            return None;
        }
        match read {
            Some(read) => drop(self.all.insert(key.clone(), read)),
            None => {
                tracing::warn!(vm = %key, "invalid spec.guest of virtual machine");
                self.all.remove(&key);
            }
        }
        Some(key)
    }

    /// Removes one.
    pub(super) fn remove(&mut self, key: &Key) {
        self.all.remove(key);
    }

    /// The virtual machine of a pod.
    pub(super) fn of(&self, pod: &Pod) -> Option<&Vm> {
        let name = pod.vm.as_deref()?;
        self.all.get(&Key { namespace: pod.key.namespace.clone(), name: name.into() })
    }

    /// All machines.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&Key, &Vm)> {
        self.all.iter()
    }
}

/// The resources a pod is charged: what its virtual machine may be using, if it runs one; or what it
/// requests, with one container as large as it may be.
pub(in crate::cluster) fn charge(pod: &Pod, permit: Option<&Permit>) -> Resources {
    let mut requested = pod.requests.resources.clone();
    let Some(charge) = permit.map(Permit::charge) else { return requested };
    let (cpu, memory) = (i64::from(charge.cpu_milli), i64::from(charge.memory_mib) << 20);
    match &pod.elastic {
        Some(Ok(elastic)) if pod.vm.is_none() => {
            // While it shrinks, it counts with what it still has.
            let more = |new: i64, counted: i64| new.saturating_sub(counted).max(0);
            requested.cpu_milli += more(cpu, elastic.counted.cpu_milli);
            requested.memory += more(memory, round_up_to_mib(elastic.counted.memory));
        }
        _ => (requested.cpu_milli, requested.memory) = (cpu, memory),
    }
    requested
}

/// A container may request a part of a MiB more than its size says.
fn round_up_to_mib(bytes: i64) -> i64 {
    bytes.saturating_add((1 << 20) - 1) >> 20 << 20
}

impl Vm {
    /// Reads `spec.guest`: `cpus` and `memorySlots`, each with `min`, `use` and `max`, and
    /// `memorySlotSize`. A missing `use` defaults to `min`, a missing `max` to `use`.
    #[must_use]
    pub fn read(vm: &Value) -> Option<Self> {
        let guest = vm.pointer("/spec/guest")?;
        let slot =
            quantity_of(guest.get("memorySlotSize")?).and_then(|it| quantity::to_units(&it))?;
        let cpus = |name: &str| {
            let value = guest.get("cpus")?.get(name)?;
            quantity_of(value).and_then(|it| quantity::to_milli(&it))
        };
        let memory = |name: &str| {
            let slots = guest.get("memorySlots")?.get(name)?.as_i64()?;
            Some(slots.checked_mul(slot)?.div_euclid(1 << 20))
        };
        let size = |cpu: Option<i64>, memory: Option<i64>, or: Option<Size>| {
            let number = |it: Option<i64>| it.and_then(|it| u32::try_from(it).ok());
            let cpu = number(cpu).or(or.map(|it| it.cpu_milli))?;
            Some(Size::new(cpu, number(memory).or(or.map(|it| it.memory_mib))?))
        };
        let min = size(cpus("min"), memory("min"), None)?;
        let used = size(cpus("use"), memory("use"), Some(min))?;
        let max = size(cpus("max"), memory("max"), Some(used))?;
        let meta = vm.get("metadata");
        let text = |part: &str, name: &str| meta?.get(part)?.get(name)?.as_str();
        let either = |name: &str| text("labels", name).or_else(|| text("annotations", name));
        let own = |name: &str| meta.and_then(|it| it.get(name)).and_then(Value::as_str);
        Some(Self {
            uid: own("uid").unwrap_or_default().into(),
            version: own("resourceVersion").map(str::to_owned),
            min,
            used,
            max,
            scales: text("labels", SCALES) == Some("true"),
            migrates: text("labels", MIGRATES) == Some("true") && either(STAYS) != Some("true"),
            class: either(CLASS).map(str::to_owned),
            // What cannot be read counts as not known, which is safe.
            permit: text("annotations", PERMIT).and_then(|it| serde_json::from_str(it).ok()),
        })
    }

    /// The version as a number, if it is one.
    fn number(&self) -> Option<u64> {
        self.version.as_ref()?.parse().ok()
    }
}

/// A quantity, written as a string or a number.
fn quantity_of(value: &Value) -> Option<Quantity> {
    match value {
        Value::String(text) => Some(Quantity(text.clone())),
        Value::Number(number) => Some(Quantity(number.to_string())),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sizes(vm: &Value) -> Option<(Size, Size, Size)> {
        Vm::read(vm).map(|it| (it.min, it.used, it.max))
    }

    #[test]
    fn a_virtual_machine_is_read_and_missing_sizes_are_defaulted() {
        let vm = |guest: Value| serde_json::json!({"spec": {"guest": guest}});
        let full = sizes(&vm(serde_json::json!({
            "cpus": {"min": "250m", "use": 1, "max": "2"}, "memorySlotSize": "1Gi",
            "memorySlots": {"min": 1, "use": 2, "max": 8},
        })));
        let (min, used, max) = (Size::new(250, 1024), Size::new(1000, 2048), Size::new(2000, 8192));
        assert_eq!(full, Some((min, used, max)));
        let least = sizes(&vm(serde_json::json!({
            "cpus": {"min": 1}, "memorySlotSize": "512Mi", "memorySlots": {"min": 2},
        })));
        let one = Size::new(1000, 1024);
        assert_eq!(least, Some((one, one, one)));
        assert_eq!(sizes(&vm(serde_json::json!({"cpus": {"min": 1}}))), None);
    }

    #[test]
    fn an_older_version_of_a_machine_does_not_replace_a_newer_one() {
        let vm = |uid: &str, version: &str, cpus: u32| {
            serde_json::json!({
                "metadata": {
                    "name": "vm", "namespace": "shop", "uid": uid, "resourceVersion": version,
                },
                "spec": {"guest": {"cpus": {"min": cpus}, "memorySlotSize": "1Gi",
                    "memorySlots": {"min": 1}}},
            })
        };
        let mut vms = Vms::default();
        assert!(vms.put(&vm("u1", "9", 2)).is_some());
        assert_eq!(vms.put(&vm("u1", "8", 1)), None);
        assert!(vms.put(&vm("u2", "7", 3)).is_some(), "another machine of that name");
    }
}
