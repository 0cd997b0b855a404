//! Virtual machines (`vm.neon.tech/v1`): what their pods are charged, and how far they may grow.

use berth_engine::elastic::{Permit, Size};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use rustc_hash::FxHashMap;
use serde_json::Value;

use super::pod::{Key, Pod};
use super::quantity;
use super::resources::Resources;

/// The label of an autoscaled virtual machine.
const SCALES: &str = "autoscaling.neon.tech/enabled";

/// The size of a virtual machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Vm {
    /// The minimum.
    pub min: Size,
    /// The current size.
    pub used: Size,
    /// The maximum.
    pub max: Size,
    /// Whether an agent scales it.
    pub scales: bool,
}

/// All virtual machines.
#[derive(Clone, Debug, Default)]
pub(super) struct Vms {
    all: FxHashMap<Key, Vm>,
}

impl Vms {
    /// Adds or updates one; `None` if it has no name.
    pub(super) fn put(&mut self, vm: &Value) -> Option<Key> {
        let text = |name: &str| vm.pointer(name).and_then(Value::as_str);
        let key = Key::new(text("/metadata/namespace")?, text("/metadata/name")?);
        match Vm::read(vm) {
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
}

/// The resources a pod is charged: what its virtual machine may be using, if it runs one.
pub(super) fn charge(pod: &Pod, permit: Option<&Permit>) -> Resources {
    let mut requested = pod.requests.resources.clone();
    if let Some(charge) = permit.map(Permit::charge) {
        requested.cpu_milli = i64::from(charge.cpu_milli);
        requested.memory = i64::from(charge.memory_mib) << 20;
    }
    requested
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
        let label = vm.pointer("/metadata/labels").and_then(|it| it.get(SCALES));
        let scales = label.and_then(Value::as_str) == Some("true");
        Some(Self { min, used, max, scales })
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

    #[test]
    fn a_virtual_machine_is_read_and_missing_sizes_are_defaulted() {
        let vm = |guest: Value| Vm::read(&serde_json::json!({"spec": {"guest": guest}}));
        let full = vm(serde_json::json!({
            "cpus": {"min": "250m", "use": 1, "max": "2"}, "memorySlotSize": "1Gi",
            "memorySlots": {"min": 1, "use": 2, "max": 8},
        }));
        let (min, used, max) = (Size::new(250, 1024), Size::new(1000, 2048), Size::new(2000, 8192));
        assert_eq!(full, Some(Vm { min, used, max, scales: false }));
        let least = vm(serde_json::json!({
            "cpus": {"min": 1}, "memorySlotSize": "512Mi", "memorySlots": {"min": 2},
        }));
        let one = Size::new(1000, 1024);
        assert_eq!(least, Some(Vm { min: one, used: one, max: one, scales: false }));
        assert_eq!(vm(serde_json::json!({"cpus": {"min": 1}})), None);
    }
}
