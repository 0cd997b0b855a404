//! Updates objects: PUT, PATCH and the subresources that write a part of the object.

use std::sync::Arc;

use serde_json::{Value, json};

use crate::admission::{Attributes, Operation};
use crate::api::{Api, WriteResult, Writer};
use crate::failure::{Cause, Failure};
use crate::object::{self, Key, Object};
use crate::resource::Resource;
use crate::store::TableId;
use crate::{defaults, schema, validate, view};

/// Attempts at a change that conflicts with other writers.
const TRIES: usize = 20;

/// The part of an object that a request may write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ObjectPart {
    /// Everything except the status, if there is a subresource for it.
    Main,
    Status,
    /// Only the resources of containers.
    Resize,
    /// The server's own change: every field is taken, nothing is checked.
    Whole,
}

impl ObjectPart {
    fn subresource(self) -> &'static str {
        match self {
            Self::Main | Self::Whole => "",
            Self::Status => "status",
            Self::Resize => "resize",
        }
    }
}

/// Fields that clients cannot change.
const FIXED: [&str; 7] = [
    "name",
    "namespace",
    "uid",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "generation",
];

fn copy(to: &mut Value, from: &Value, field: &str) {
    match from.get(field) {
        Some(value) => to[field] = value.clone(),
        None => object::remove(to, field),
    }
}

/// Rejects a change to another version or another object.
pub(crate) fn check_versions(
    resource: &Resource,
    old: &Value,
    new: &Value,
    unconditional: bool,
) -> Result<(), Failure> {
    let name = object::name(old);
    let wanted = object::uid(new);
    if !wanted.is_empty() && wanted != object::uid(old) {
        let why = format!(
            "Precondition failed: UID in precondition: {wanted}, UID in object meta: {}",
            object::uid(old)
        );
        return Err(Failure::conflict(resource, name, why));
    }
    match object::text(new, "resourceVersion") {
        "" if unconditional => Ok(()),
        "" => {
            let text = "must be specified for an update";
            let cause = Cause::invalid("metadata.resourceVersion", &json!(0), text);
            Err(Failure::invalid(resource, name, &[cause]))
        }
        version if version == object::text(old, "resourceVersion") => Ok(()),
        _ => Err(Failure::stale(resource, name)),
    }
}

/// The object after `part` of `new` was written over `old`.
fn combined(resource: &Resource, old: &Value, mut new: Value, part: ObjectPart) -> Value {
    for field in FIXED {
        copy(&mut new["metadata"], &old["metadata"], field);
    }
    copy(&mut new["metadata"], &old["metadata"], "resourceVersion");
    object::remove(&mut new["metadata"], "managedFields");
    let result = match part {
        ObjectPart::Whole => new,
        ObjectPart::Main => {
            if resource.status {
                copy(&mut new, old, "status");
            }
            new
        }
        ObjectPart::Status => {
            let mut result = old.clone();
            copy(&mut result, &new, "status");
            // For pods and nodes the real server also accepts labels and annotations here.
            if matches!(resource.kind.as_str(), "Pod" | "Node") && !resource.custom {
                copy(&mut result["metadata"], &new["metadata"], "labels");
                copy(&mut result["metadata"], &new["metadata"], "annotations");
            }
            result
        }
        ObjectPart::Resize => {
            let mut result = old.clone();
            for (at, container) in object::items(&new["spec"]["containers"]).enumerate() {
                if result["spec"]["containers"][at].is_object() {
                    copy(&mut result["spec"]["containers"][at], container, "resources");
                }
            }
            result
        }
    };
    count_generation(resource, old, result)
}

fn count_generation(resource: &Resource, old: &Value, mut new: Value) -> Value {
    object::tidy_metadata(&mut new);
    let content = |value: &Value| {
        let mut value = value.clone();
        object::remove(&mut value, "metadata");
        if resource.status {
            object::remove(&mut value, "status");
        }
        value
    };
    if resource.counted && content(old) != content(&new) {
        let generation = old["metadata"]["generation"].as_i64().unwrap_or(1) + 1;
        new["metadata"]["generation"] = json!(generation);
    }
    new
}

impl Api {
    /// Changes an object. `change` makes the new version from the current one, and is called again after
    /// a conflict.
    pub(crate) async fn modify(
        &self,
        writer: &Writer,
        id: TableId,
        key: &Key,
        part: ObjectPart,
        change: impl Fn(&Value) -> Result<Value, Failure>,
    ) -> Result<WriteResult, Failure> {
        let resource = self.resource(id);
        for _ in 0..TRIES {
            let old = self.get(id, key)?;
            let mut warnings = Vec::new();
            let new = change(&old.value)?;
            let attributes = Attributes {
                resource: Arc::clone(&resource),
                subresource: part.subresource().into(),
                operation: Operation::Update,
                namespace: key.namespace.to_string(),
                name: key.name.to_string(),
                options: json!({ "kind": "UpdateOptions", "apiVersion": "meta.k8s.io/v1" }),
            };
            let mut new = if part == ObjectPart::Whole {
                combined(&resource, &old.value, new, part)
            } else {
                check_versions(&resource, &old.value, &new, resource.unconditional)?;
                let new = schema::normalize(&resource, new, &self.options.further_pod_fields)?;
                combined(&resource, &old.value, new, part)
            };
            if part != ObjectPart::Whole {
                defaults::apply(&resource, &mut new);
                let admitted =
                    self.admit(writer, &attributes, new, Some(&old.value), &mut warnings);
                new = admitted.await?;
                if part != ObjectPart::Resize {
                    validate::update(&resource, &old.value, &new)?;
                }
            }
            if let Some(object) = self.store_changed(writer, id, &old, new)? {
                return Ok(WriteResult { code: 200, object, warnings });
            }
        }
        Err(Failure::stale(&resource, &key.name))
    }

    /// Stores a new version, unless the old one is outdated.
    fn store_changed(
        &self,
        writer: &Writer,
        id: TableId,
        old: &Object,
        new: Value,
    ) -> Result<Option<Arc<Object>>, Failure> {
        let mut store = self.store();
        let home = store.backing_table(id);
        let resource = Arc::clone(&store.table(id).resource);
        let stored_as = Arc::clone(&store.table(home).resource);
        let key = Key::of(&old.value);
        let current = store.get(home, &key);
        if current.is_none_or(|current| current.version != old.version) {
            return Ok(None);
        }
        if new == old.value {
            // Nothing changed: nothing is written, and watches are not notified.
            let same = current.map(|current| view::as_resource(&resource, current));
            return Ok(same);
        }
        if writer.dry_run {
            return Ok(Some(Arc::new(Object::new(resource, new, old.version))));
        }
        let finished = object::is_terminating(&new)
            && object::finalizers(&new).is_empty()
            && new["metadata"]["deletionGracePeriodSeconds"].as_i64().unwrap_or(0) == 0
            && resource.kind != "Namespace";
        let stored = store.put(home, view::stored(&resource, &stored_as, new));
        if finished {
            let last = store.remove(home, &key);
            return Ok(Some(last.unwrap_or(stored)));
        }
        Ok(Some(view::as_resource(&resource, &stored)))
    }

    /// Replaces an object, as a PUT does.
    pub(crate) async fn replace(
        &self,
        writer: &Writer,
        id: TableId,
        key: &Key,
        part: ObjectPart,
        mut value: Value,
    ) -> Result<WriteResult, Failure> {
        let resource = self.resource(id);
        schema::check_kind(&resource, &value)?;
        check_place(&resource, key, &mut value)?;
        if resource.upsert && part == ObjectPart::Main && self.get(id, key).is_err() {
            if !object::text(&value, "resourceVersion").is_empty() {
                return Err(Failure::not_found(&resource, &key.name));
            }
            let namespace = resource.namespaced.then_some(&*key.namespace);
            return self.create(writer, id, namespace, value).await;
        }
        self.modify(writer, id, key, part, |_| Ok(value.clone())).await
    }
}

/// Checks that name and namespace of the body are those of the path.
fn check_place(resource: &Resource, key: &Key, value: &mut Value) -> Result<(), Failure> {
    let name = object::name(value);
    if name != &*key.name {
        return Err(Failure::bad_request(format!(
            "the name of the object ({name}) does not match the name on the URL ({})",
            key.name
        )));
    }
    crate::create::set_namespace(resource, resource.namespaced.then_some(&*key.namespace), value)
}
