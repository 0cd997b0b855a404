//! A pod as the webhook watches it: the few fields that it reads. The others are skipped while parsing, so
//! that a list of many pods takes little memory.

use std::borrow::Cow;

use k8s_openapi::api::core::v1::{Pod, PodCondition};
use kube::api::ObjectMeta;
use kube::core::Resource;
use serde::Deserialize;
use serde_json::Value;

/// See the module.
#[derive(Clone, Debug, Default, Deserialize)]
pub(super) struct WatchedPod {
    #[serde(default)]
    pub(super) metadata: ObjectMeta,
    #[serde(default)]
    pub(super) spec: Option<WatchedPodSpec>,
    #[serde(default)]
    pub(super) status: Option<WatchedPodStatus>,
}

/// What decides where it may run.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct WatchedPodSpec {
    #[serde(default)]
    pub(super) node_name: Option<String>,
    #[serde(default)]
    pub(super) node_selector: Value,
    #[serde(default)]
    pub(super) affinity: Value,
}

/// What it is doing.
#[derive(Clone, Debug, Default, Deserialize)]
pub(super) struct WatchedPodStatus {
    #[serde(default)]
    pub(super) phase: Option<String>,
    #[serde(default)]
    pub(super) conditions: Option<Vec<PodCondition>>,
}

impl Resource for WatchedPod {
    type DynamicType = ();
    type Scope = k8s_openapi::NamespaceResourceScope;

    fn kind(dt: &()) -> Cow<'_, str> {
        <Pod as Resource>::kind(dt)
    }

    fn group(dt: &()) -> Cow<'_, str> {
        <Pod as Resource>::group(dt)
    }

    fn version(dt: &()) -> Cow<'_, str> {
        <Pod as Resource>::version(dt)
    }

    fn plural(dt: &()) -> Cow<'_, str> {
        <Pod as Resource>::plural(dt)
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}
