//! Scenarios of claims and volumes, each named after what is expected.

use k8s_openapi::api::core::v1 as core;
use k8s_openapi::apimachinery::pkg::apis::meta::v1 as meta;
use serde_json::{Value, json};

use super::Volumes;
use crate::cluster::node::Node;
use crate::cluster::outcome::VolumePlan;
use crate::cluster::pod::{Key, Pod};

mod binding;
mod claims;
mod limits;
mod provisioning;

fn read<T: serde::de::DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).expect("what a test writes can be read")
}

/// What is there too is replaced, objects inside objects likewise.
fn with(mut base: Value, more: &Value) -> Value {
    fn put(base: &mut Value, more: &Value) {
        match (base, more) {
            (Value::Object(base), Value::Object(more)) => {
                for (key, value) in more {
                    put(base.entry(key.clone()).or_insert(Value::Null), value);
                }
            }
            (base, more) => *base = more.clone(),
        }
    }
    put(&mut base, more);
    base
}

fn key(name: &str) -> Key {
    Key::new("prod", name)
}

fn node(name: &str, zone: &str) -> Node {
    Node::read(&read::<core::Node>(json!({"metadata": {"name": name, "labels": {
        "kubernetes.io/hostname": name, "topology.kubernetes.io/zone": zone}}})))
}

/// A pod, by name, with these claims. Its uid is its name.
fn pod(name: &str, claims: &[&str]) -> Pod {
    let volumes: Vec<Value> = claims
        .iter()
        .map(|claim| json!({"name": claim, "persistentVolumeClaim": {"claimName": claim}}))
        .collect();
    Pod::read(&read::<crate::cluster::observed_pod::ObservedPod>(json!({
        "metadata": {"name": name, "namespace": "prod", "uid": name},
        "spec": {"containers": [], "volumes": volumes}})))
}

fn bound_pod(name: &str, node: &str, claims: &[&str]) -> Pod {
    Pod { node: Some(node.into()), ..pod(name, claims) }
}

/// Volumes that tests fill in few words.
#[derive(Default)]
struct TestVolumes(Volumes);

impl TestVolumes {
    /// With a class `local` made by hand and a class `disk` made by `disk.csi`, both of which wait,
    /// and a class `now` that does not.
    fn new() -> Self {
        let mut world = Self::default();
        world.class("local", "kubernetes.io/no-provisioner", &json!({}));
        world.class("disk", "disk.csi", &json!({}));
        world.class("now", "disk.csi", &json!({"volumeBindingMode": "Immediate"}));
        world
    }

    fn class(&mut self, name: &str, provisioner: &str, more: &Value) {
        let base = json!({"metadata": {"name": name}, "provisioner": provisioner,
            "volumeBindingMode": "WaitForFirstConsumer"});
        self.0.put_class(&read(with(base, more)));
    }

    /// A claim of ten GiB.
    fn claim(&mut self, name: &str, class: &str, more: &Value) {
        let base = json!({
            "metadata": {"name": name, "namespace": "prod", "uid": format!("{name}-uid")},
            "spec": {"storageClassName": class, "accessModes": ["ReadWriteOnce"],
                "resources": {"requests": {"storage": "10Gi"}}},
            "status": {"phase": "Pending"}});
        self.0.put_claim(&read(with(base, more)));
    }

    fn bound_claim(&mut self, name: &str, class: &str, volume: &str) {
        let more = json!({
            "metadata": {"annotations": {"pv.kubernetes.io/bind-completed": "yes"}},
            "spec": {"volumeName": volume}, "status": {"phase": "Bound"}});
        self.claim(name, class, &more);
    }

    /// A free volume that any node can use.
    fn volume(&mut self, name: &str, class: &str, size: &str, more: &Value) {
        let base = json!({"metadata": {"name": name},
            "spec": {"storageClassName": class, "accessModes": ["ReadWriteOnce"],
                "capacity": {"storage": size}},
            "status": {"phase": "Available"}});
        self.0.put_volume(&read(with(base, more)));
    }

    /// A free volume of class `local` on a node.
    fn local(&mut self, name: &str, node: &str, size: &str) {
        self.volume(name, "local", size, &on("kubernetes.io/hostname", node));
    }

    /// The code of the refusal, if it is one.
    fn verdict(&self, pod: &Pod, node: &Node) -> Result<(), &'static str> {
        let prepared = self.0.prepare(pod).map_err(|it| it.code)?;
        let checked = self.0.check(&prepared, node).map_err(|it| it.code);
        assert_eq!(self.0.fits(&prepared, node), checked.is_ok(), "both must say the same");
        checked
    }

    /// The text of the refusal.
    fn text(&self, pod: &Pod, node: &Node) -> String {
        let checked = self.0.prepare(pod).and_then(|it| self.0.check(&it, node));
        checked.err().map(|it| it.to_string()).unwrap_or_default()
    }
}

fn on(label: &str, value: &str) -> Value {
    json!({"spec": {"nodeAffinity": {"required": {"nodeSelectorTerms": [
        {"matchExpressions": [{"key": label, "operator": "In", "values": [value]}]}]}}}})
}

fn binds(pairs: &[(&str, &str)]) -> VolumePlan {
    let bind = pairs.iter().map(|(claim, volume)| (key(claim), (*volume).to_owned())).collect();
    VolumePlan { bind, provision: Vec::new() }
}

fn makes(claims: &[&str]) -> VolumePlan {
    VolumePlan { bind: Vec::new(), provision: claims.iter().map(|it| key(it)).collect() }
}

fn owned_by(uid: &str) -> Value {
    let owner = meta::OwnerReference {
        api_version: "v1".to_owned(),
        kind: "Pod".to_owned(),
        name: "web-0".to_owned(),
        uid: uid.to_owned(),
        controller: Some(true),
        block_owner_deletion: None,
    };
    json!({"metadata": {"ownerReferences": [owner]}})
}
