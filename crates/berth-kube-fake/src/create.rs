//! Creates objects.

use std::sync::Arc;

use serde_json::{Value, json};

use crate::admission::{Attributes, Operation};
use crate::api::{Api, WriteResult, Writer};
use crate::failure::{Cause, Failure};
use crate::object::{self, Key, Object};
use crate::resource::Resource;
use crate::store::TableId;
use crate::{defaults, names, schema, validate, view};

/// Attempts at a generated name that is not taken.
const NAME_TRIES: usize = 8;

/// Sets the fields that only the server may set.
pub(crate) fn system_fields(mut value: Value) -> Value {
    for field in ["deletionTimestamp", "deletionGracePeriodSeconds", "selfLink", "managedFields"] {
        object::remove(&mut value["metadata"], field);
    }
    value["metadata"]["uid"] = json!(uuid::Uuid::now_v7().to_string());
    value["metadata"]["creationTimestamp"] = json!(object::now());
    value
}

/// Sets the namespace of the path, or rejects a different one.
pub(crate) fn set_namespace(
    resource: &Resource,
    namespace: Option<&str>,
    value: &mut Value,
) -> Result<(), Failure> {
    if !value["metadata"].is_object() {
        value["metadata"] = json!({});
    }
    let own = object::namespace(value).to_owned();
    if !resource.namespaced {
        if !own.is_empty() {
            let text = "the namespace of the provided object does not match the namespace sent on \
                        the request";
            return Err(Failure::bad_request(text));
        }
        return Ok(());
    }
    match namespace {
        Some(namespace) if own.is_empty() => value["metadata"]["namespace"] = json!(namespace),
        Some(namespace) if own != namespace => {
            return Err(Failure::bad_request(
                "the namespace of the provided object does not match the namespace sent on the \
                 request",
            ));
        }
        Some(_) => {}
        None => {
            return Err(Failure::bad_request("an empty namespace may not be set during creation"));
        }
    }
    Ok(())
}

impl Api {
    /// Creates the objects that every cluster has from the start.
    pub(crate) fn create_initial_objects(&self) -> Result<(), Failure> {
        let mut store = self.store();
        let namespaces = store.find("", "namespaces").ok_or_else(Failure::no_such_path)?;
        for name in ["default", "kube-node-lease", "kube-public", "kube-system"] {
            let mut value = system_fields(json!({
                "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": name },
            }));
            let resource = Arc::clone(&store.table(namespaces).resource);
            defaults::apply(&resource, &mut value);
            defaults::first_status(&resource, &mut value);
            store.put(namespaces, value);
        }
        let classes =
            store.find("scheduling.k8s.io", "priorityclasses").ok_or_else(Failure::no_such_path)?;
        for (name, priority) in
            [("system-cluster-critical", 2_000_000_000), ("system-node-critical", 2_000_001_000)]
        {
            let value = system_fields(json!({
                "apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass",
                "metadata": { "name": name }, "value": priority,
                "preemptionPolicy": "PreemptLowerPriority",
            }));
            store.put(classes, value);
        }
        Ok(())
    }

    /// Creates an object, as a POST to its collection does.
    pub(crate) async fn create(
        &self,
        writer: &Writer,
        id: TableId,
        namespace: Option<&str>,
        value: Value,
    ) -> Result<WriteResult, Failure> {
        let resource = self.resource(id);
        schema::check_kind(&resource, &value)?;
        let mut value = schema::normalize(&resource, value, &self.options.further_pod_fields)?;
        set_namespace(&resource, namespace, &mut value)?;
        if !object::text(&value, "resourceVersion").is_empty() {
            let text = "resourceVersion should not be set on objects to be created";
            return Err(Failure::bad_request(text));
        }
        self.check_namespace(&resource, &value)?;
        defaults::apply(&resource, &mut value);
        let attributes = Attributes {
            resource: Arc::clone(&resource),
            subresource: String::new(),
            operation: Operation::Create,
            namespace: object::namespace(&value).to_owned(),
            name: object::name(&value).to_owned(),
            options: json!({ "kind": "CreateOptions", "apiVersion": "meta.k8s.io/v1" }),
        };
        let mut warnings = Vec::new();
        let value = self.admit(writer, &attributes, value, None, &mut warnings).await?;
        let value = self.complete(&resource, value)?;
        let object = self.store_new(writer, id, &resource, value)?;
        Ok(WriteResult { code: 201, object, warnings })
    }

    fn complete(&self, resource: &Resource, value: Value) -> Result<Value, Failure> {
        let mut value = system_fields(value);
        let base = object::text(&value, "generateName").to_owned();
        if object::name(&value).is_empty() {
            if base.is_empty() {
                let text = "name or generateName is required";
                let cause = Cause::required("metadata.name", text);
                return Err(Failure::invalid(resource, "", &[cause]));
            }
            value["metadata"]["name"] = json!(names::generate(&base));
        }
        if resource.counted {
            value["metadata"]["generation"] = json!(1);
        } else {
            object::remove(&mut value["metadata"], "generation");
        }
        defaults::apply(resource, &mut value);
        defaults::first_status(resource, &mut value);
        self.protect(resource, &mut value);
        object::tidy_metadata(&mut value);
        Ok(value)
    }

    /// Adds the finalizers that protect claims and volumes in use.
    fn protect(&self, resource: &Resource, value: &mut Value) {
        if !self.options.volume_binder {
            return;
        }
        let finalizer = match resource.kind.as_str() {
            "PersistentVolumeClaim" => "kubernetes.io/pvc-protection",
            "PersistentVolume" => "kubernetes.io/pv-protection",
            _ => return,
        };
        let mut all = object::finalizers(value);
        if !all.iter().any(|one| one == finalizer) {
            all.push(finalizer.into());
        }
        value["metadata"]["finalizers"] = json!(all);
    }

    fn check_namespace(&self, resource: &Resource, value: &Value) -> Result<(), Failure> {
        if !resource.namespaced {
            return Ok(());
        }
        let name = object::namespace(value);
        let namespaces = self.table("", "namespaces")?;
        let namespace = self.get(namespaces, &Key::new("", name))?;
        if object::is_terminating(&namespace.value) {
            let why = format!(
                "unable to create new content in namespace {name} because it is being terminated"
            );
            let mut failure = Failure::forbidden(resource, object::name(value), why);
            failure.details["causes"] = json!([{
                "reason": "NamespaceTerminating",
                "message": format!("namespace {name} is being terminated"),
                "field": "metadata.namespace",
            }]);
            return Err(failure);
        }
        Ok(())
    }

    fn store_new(
        &self,
        writer: &Writer,
        id: TableId,
        resource: &Arc<Resource>,
        value: Value,
    ) -> Result<Arc<Object>, Failure> {
        let base = object::text(&value, "generateName").to_owned();
        let (home, stored_as) = {
            let store = self.store();
            let home = store.backing_table(id);
            (home, Arc::clone(&store.table(home).resource))
        };
        let mut value = view::stored(resource, &stored_as, value);
        for _ in 0..NAME_TRIES {
            validate::create(&stored_as, &value)?;
            let mut store = self.store();
            if store.get(home, &Key::of(&value)).is_some() {
                if base.is_empty() || !object::name(&value).starts_with(&base) {
                    return Err(Failure::already_exists(resource, object::name(&value)));
                }
                value["metadata"]["name"] = json!(names::generate(&base));
                continue;
            }
            self.admission.check_quota(&store, resource, &value, writer.dry_run)?;
            if writer.dry_run {
                let imagined = Arc::new(Object::new(stored_as, value, 0));
                return Ok(view::as_resource(resource, &imagined));
            }
            let new = store.put(home, value);
            if resource.kind == "CustomResourceDefinition"
                && let Some(defined) = crate::resource::defined_by(&new.value)
            {
                store.add_table(Arc::new(defined));
            }
            return Ok(view::as_resource(resource, &new));
        }
        Err(Failure::already_exists(resource, object::name(&value)))
    }
}
