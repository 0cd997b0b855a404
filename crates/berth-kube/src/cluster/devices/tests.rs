//! Claims and devices, each test named after what is expected.

use serde_json::{Value, json};

use super::{DeviceKind, Devices};
use crate::cluster::node::Node;
use crate::cluster::observed_pod::ObservedPod;
use crate::cluster::outcome::DevicePlan;
use crate::cluster::pod::{Key, Pod};

mod allocation;
mod lifecycle;
mod unsupported;

fn read<T: serde::de::DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).expect("what a test writes can be read")
}

fn node(name: &str) -> Node {
    Node::read(&read(json!({"metadata": {"name": name, "labels": {"rack": "r1"}}})))
}

fn key(name: &str) -> Key {
    Key::new("default", name)
}

/// A pod with these claims. Its uid is its name.
fn pod(name: &str, claims: &[&str]) -> Pod {
    let claims: Vec<Value> =
        claims.iter().map(|it| json!({"name": it, "resourceClaimName": it})).collect();
    Pod::read(&read::<ObservedPod>(json!({
        "metadata": {"name": name, "namespace": "default", "uid": name},
        "spec": {"containers": [], "resourceClaims": claims},
    })))
}

fn bound(pod: &Pod, node: &str) -> Pod {
    Pod { node: Some(node.into()), ..pod.clone() }
}

/// A request of one device of class `gpu`, and more.
fn request(name: &str, more: Value) -> Value {
    let mut exactly = json!({"deviceClassName": "gpu", "allocationMode": "ExactCount", "count": 1});
    for (key, value) in more.as_object().into_iter().flatten() {
        exactly[key] = value.clone();
    }
    json!({"name": name, "exactly": exactly})
}

fn cel(expression: &str) -> Value {
    json!([{"cel": {"expression": expression}}])
}

/// A device with an index, a model and a group.
fn gpu(name: &str, model: &str, group: i64) -> Value {
    json!({
        "name": name,
        "attributes": {"model": {"string": model}, "group": {"int": group}},
        "capacity": {"memory": {"value": "40Gi"}},
    })
}

/// Devices that tests fill in few words.
#[derive(Default)]
struct World {
    devices: Devices,
    version: u64,
}

impl World {
    /// With a class `gpu` of the driver `gpu.example.com`.
    fn new() -> Self {
        let mut world = Self::default();
        world.class("gpu", "device.driver == 'gpu.example.com'", &json!([]));
        world
    }

    fn put(&mut self, kind: DeviceKind, mut object: Value) -> u64 {
        self.version += 1;
        object["metadata"]["resourceVersion"] = json!(self.version.to_string());
        self.devices.put(kind, &object);
        self.version
    }

    fn class(&mut self, name: &str, selector: &str, config: &Value) {
        let spec = json!({"selectors": cel(selector), "config": config});
        self.put(DeviceKind::Class, json!({"metadata": {"name": name}, "spec": spec}));
    }

    /// A pool of one slice that a node has.
    fn slice(&mut self, node: &str, devices: Value) {
        self.slice_of(node, json!({"nodeName": node, "devices": devices}));
    }

    fn slice_of(&mut self, name: &str, more: Value) {
        let mut spec = json!({
            "driver": "gpu.example.com",
            "pool": {"name": name, "generation": 1, "resourceSliceCount": 1},
        });
        for (key, value) in more.as_object().into_iter().flatten() {
            spec[key] = value.clone();
        }
        self.put(DeviceKind::Slice, json!({"metadata": {"name": name}, "spec": spec}));
    }

    fn claim(&mut self, name: &str, requests: Value) {
        self.claim_of(name, json!({"requests": requests}), json!({}));
    }

    fn claim_of(&mut self, name: &str, devices: Value, status: Value) -> u64 {
        let metadata = json!({"name": name, "namespace": "default", "uid": format!("{name}-uid")});
        let claim = json!({"metadata": metadata, "spec": {"devices": devices}, "status": status});
        self.put(DeviceKind::Claim, claim)
    }

    /// The claim as the API server shows it with these devices of a node and these pods.
    fn allocated(&mut self, name: &str, node: &str, devices: &[&str], pods: &[&str]) -> u64 {
        let results: Vec<Value> = devices
            .iter()
            .map(|it| json!({"request": "r", "driver": "gpu.example.com", "pool": node, "device": it}))
            .collect();
        let field = json!({"key": "metadata.name", "operator": "In", "values": [node]});
        let selector = json!({"nodeSelectorTerms": [{"matchFields": [field]}]});
        let consumers: Vec<Value> =
            pods.iter().map(|it| json!({"resource": "pods", "name": it, "uid": it})).collect();
        let status = json!({
            "allocation": {"devices": {"results": results}, "nodeSelector": selector},
            "reservedFor": consumers,
        });
        self.claim_of(name, json!({"requests": [request("r", json!({}))]}), status)
    }

    fn reserve(&mut self, pod: &Pod, on: &str) -> Result<DevicePlan, String> {
        self.devices.try_reserve(pod, &node(on)).map_err(|why| why.text)
    }

    /// The devices that a pod gets on a node: by request.
    fn devices_for(&mut self, pod: &Pod, on: &str) -> Result<Vec<String>, String> {
        let plan = self.reserve(pod, on)?;
        let allocations = plan.claims.iter().filter_map(|it| it.allocation.as_ref());
        let results = allocations.filter_map(|it| it.devices.as_ref()?.results.as_ref()).flatten();
        Ok(results.map(|it| format!("{}={}", it.request, it.device)).collect())
    }

    /// Why a pod cannot have its devices on a node.
    fn refusal(&mut self, pod: &Pod, on: &str) -> String {
        match self.devices_for(pod, on) {
            Ok(found) => panic!("it got {found:?}"),
            Err(text) => text,
        }
    }
}
