//! From an instance as callers describe it to the request that the engine places.
//!
//! These are two types with many fields in common. What callers write may change with the API: it has
//! counts, sets of volumes, and absence where a policy has the default. What is placed is stored, hashed
//! and replayed, and must be read for as long as there are logs. Only this file knows both.

use berth_api::InstanceSpec;
use berth_engine::{InstanceId, InstanceRequest, Policy};
use serde_json::{Map, Value};

/// What one instance of a spec asks for, but for its id and its sets of volumes.
#[must_use]
pub fn request_of(tenant: &str, spec: &InstanceSpec) -> InstanceRequest {
    InstanceRequest {
        id: InstanceId::default(),
        name: spec.name.clone(),
        tenant: tenant.to_owned(),
        env: spec.env.clone(),
        workload: spec.workload.clone(),
        resources: spec.resources.amounts(),
        extra: spec.extra.clone(),
        elastic: spec.elastic.clone(),
        tags: spec.tags.clone(),
        traits: spec.traits.clone(),
        networks: spec.networks.clone(),
        platform: spec.platform.clone().unwrap_or_default(),
        ratios: spec.ratios,
        capacity_type: spec.capacity_type,
        required_place: spec.required_place.clone(),
        preferred_places: spec.preferred_places.clone(),
        volumes: spec.volumes.clone(),
        needs_secrets: spec.needs_secrets,
        cpu_capped: spec.cpu_capped,
        exclude_virtual: spec.exclude_virtual,
        image: spec.image.clone(),
        image_mib: spec.image_mib.unwrap_or(0),
        groups: spec.groups.clone(),
        affinity: spec.affinity.clone(),
        locality: spec.locality.clone().unwrap_or_default(),
        priority: spec.priority.unwrap_or(0),
        excluded_nodes: Vec::new(),
    }
}

/// Gives an instance the policy's disk if its spec does not say how much it needs.
pub fn apply_default_disk(
    policy: Option<&Policy>,
    spec: &InstanceSpec,
    request: &mut InstanceRequest,
) {
    let default = policy.and_then(|policy| policy.defaults().disk_mib(&spec.tags));
    if let (None, Some(disk_mib)) = (spec.resources.disk_mib, default) {
        request.resources.disk_mib = disk_mib;
    }
}

/// Renames the tenant of something stored for callers. Stored documents say `owner`: servers of
/// version 0.1 read them while servers are upgraded one after the other.
pub fn show_tenant(stored: &mut Map<String, Value>) {
    if let Some(owner) = stored.remove("owner") {
        stored.insert("tenant".to_owned(), owner);
    }
}

/// A stored request as callers see it.
#[must_use]
pub fn shown_request(mut stored: Value) -> Value {
    if let Value::Object(fields) = &mut stored {
        show_tenant(fields);
    }
    stored
}

/// A stored request; null, and logged, if it cannot be read.
#[must_use]
pub fn read_stored_request(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| {
        tracing::error!(%error, "failed to decode a stored request");
        Value::Null
    })
}
