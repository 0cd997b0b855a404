//! One object under two names: the events of `events.k8s.io` are the core group's events with other field
//! names, and every object can be shown as its metadata only.

use std::sync::{Arc, LazyLock};

use serde_json::{Value, json};

use crate::object::Object;
use crate::resource::Resource;

/// Field names in the core group and in `events.k8s.io`.
const NAMES: [(&str, &str); 7] = [
    ("involvedObject", "regarding"),
    ("message", "note"),
    ("reportingComponent", "reportingController"),
    ("source", "deprecatedSource"),
    ("firstTimestamp", "deprecatedFirstTimestamp"),
    ("lastTimestamp", "deprecatedLastTimestamp"),
    ("count", "deprecatedCount"),
];

fn renamed(mut value: Value, kind: &Resource, to_view: bool) -> Value {
    value["apiVersion"] = json!(kind.api_version());
    value["kind"] = json!(kind.kind);
    let Some(map) = value.as_object_mut() else { return value };
    for (core, newer) in NAMES {
        let (from, to) = if to_view { (core, newer) } else { (newer, core) };
        if let Some(field) = map.remove(from) {
            map.insert(to.to_owned(), field);
        }
    }
    value
}

/// A stored object in the shape of `resource`.
pub(crate) fn as_resource(resource: &Arc<Resource>, stored: &Arc<Object>) -> Arc<Object> {
    if resource.view_of.is_none() {
        return Arc::clone(stored);
    }
    let value = renamed(stored.value.clone(), resource, true);
    Arc::new(Object::new(Arc::clone(resource), value, stored.version))
}

/// An object in the shape of `resource`, as `home` stores it.
pub(crate) fn stored(resource: &Resource, home: &Resource, value: Value) -> Value {
    if resource.view_of.is_none() { value } else { renamed(value, home, false) }
}

/// The kind of an object that is shown as its metadata only.
static METADATA: LazyLock<Arc<Resource>> = LazyLock::new(|| {
    Arc::new(Resource {
        group: "meta.k8s.io".into(),
        version: "v1".into(),
        plural: String::new(),
        singular: String::new(),
        kind: "PartialObjectMetadata".into(),
        namespaced: true,
        status: false,
        scale: None,
        others: &[],
        upsert: false,
        unconditional: false,
        returns_deleted: true,
        counted: false,
        // In lists its items have a kind.
        custom: true,
        view_of: None,
    })
});

/// The kind of metadata only.
pub(crate) fn metadata_kind() -> &'static Arc<Resource> {
    &METADATA
}

/// An object reduced to its metadata.
pub(crate) fn metadata(object: &Object) -> Arc<Object> {
    let value = json!({ "metadata": object.value["metadata"] });
    Arc::new(Object::new(Arc::clone(&METADATA), value, object.version))
}
