//! Volumes: stands in until the rules of volumes are merged.

use super::node::Node;
use super::outcome::VolumePlan;
use super::pod::Pod;

/// All that is known of volumes.
#[derive(Clone, Debug, Default)]
pub struct Volumes;

/// A pod's volumes, made ready.
#[derive(Clone, Debug, Default)]
pub struct Prepared;

/// Why volumes keep a pod off.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Why {
    /// A stable code.
    pub code: &'static str,
    /// Why.
    pub text: String,
    /// What would help.
    pub help: &'static str,
}

impl Volumes {
    /// Whether anything since the last call may let a refused pod fit.
    pub fn take_news(&mut self) -> bool {
        false
    }

    /// What holds for all nodes.
    pub fn prepare(&self, _: &Pod) -> Result<Prepared, Why> {
        Ok(Prepared)
    }

    /// What one node says.
    pub fn check(&self, _: &Prepared, _: &Node) -> Result<(), Why> {
        Ok(())
    }

    /// Reserves.
    pub fn reserve(&mut self, _: &Pod, _: &Node) -> VolumePlan {
        VolumePlan::default()
    }

    /// Gives back.
    pub fn release(&mut self, _: &Pod) {}
}

/// Stands in.
#[allow(missing_docs)]
impl Volumes {
    pub fn put_claim(&mut self, _: &k8s_openapi::api::core::v1::PersistentVolumeClaim) {}
    pub fn remove_claim(&mut self, _: &super::pod::Key) {}
    pub fn put_volume(&mut self, _: &k8s_openapi::api::core::v1::PersistentVolume) {}
    pub fn remove_volume(&mut self, _: &str) {}
    pub fn put_class(&mut self, _: &k8s_openapi::api::storage::v1::StorageClass) {}
    pub fn remove_class(&mut self, _: &str) {}
    pub fn put_csi_node(&mut self, _: &k8s_openapi::api::storage::v1::CSINode) {}
    pub fn remove_csi_node(&mut self, _: &str) {}
    pub fn put_csi_driver(&mut self, _: &k8s_openapi::api::storage::v1::CSIDriver) {}
    pub fn remove_csi_driver(&mut self, _: &str) {}
    pub fn put_csi_capacity(&mut self, _: &k8s_openapi::api::storage::v1::CSIStorageCapacity) {}
    pub fn remove_csi_capacity(&mut self, _: &super::pod::Key) {}
}
