//! Deletes objects: preconditions, grace periods, finalizers, and dependents.

use std::sync::Arc;

use serde_json::{Value, json};

use crate::admission::{Attributes, Operation};
use crate::api::{Api, Writer};
use crate::failure::Failure;
use crate::object::{self, Key, Object};
use crate::resource::Resource;
use crate::store::{Store, TableId};

/// Delete options.
#[derive(Clone, Debug, Default)]
pub(crate) struct DeleteOptions {
    pub(crate) grace_s: Option<i64>,
    pub(crate) uid: Option<String>,
    pub(crate) version: Option<String>,
    pub(crate) propagation: Option<String>,
}

impl DeleteOptions {
    /// Reads the body of a DELETE, or the `deleteOptions` of an eviction.
    pub(crate) fn read(value: &Value) -> Result<Self, Failure> {
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let propagation = text(&value["propagationPolicy"]);
        let known = ["Background", "Foreground", "Orphan"];
        if let Some(policy) = &propagation
            && !known.contains(&policy.as_str())
        {
            let cause = crate::failure::Cause::unsupported("propagationPolicy", policy, &known);
            return Err(Failure::invalid_kind("meta.k8s.io", "DeleteOptions", "", &[cause]));
        }
        Ok(Self {
            grace_s: value["gracePeriodSeconds"].as_i64(),
            uid: text(&value["preconditions"]["uid"]),
            version: text(&value["preconditions"]["resourceVersion"]),
            propagation,
        })
    }

    fn check(&self, resource: &Resource, value: &Value) -> Result<(), Failure> {
        let name = object::name(value);
        if let Some(uid) = &self.uid
            && uid != object::uid(value)
        {
            let why = format!(
                "the UID in the precondition ({uid}) does not match the UID in record ({}). The \
                 object might have been deleted and then recreated",
                object::uid(value)
            );
            return Err(Failure::conflict(resource, name, why));
        }
        let current = object::text(value, "resourceVersion");
        if let Some(version) = &self.version
            && version != current
        {
            let why = format!(
                "the ResourceVersion in the precondition ({version}) does not match the \
                 ResourceVersion in record ({current}). The object might have been modified"
            );
            return Err(Failure::conflict(resource, name, why));
        }
        Ok(())
    }
}

/// The result of a deletion.
#[derive(Debug)]
pub(crate) enum DeleteOutcome {
    /// The object is gone.
    Gone(Arc<Object>),
    /// It waits for its grace period or its finalizers.
    Waiting(Arc<Object>),
}

impl DeleteOutcome {
    pub(crate) fn object(&self) -> &Arc<Object> {
        match self {
            Self::Gone(object) | Self::Waiting(object) => object,
        }
    }
}

/// The grace period of a pod. One that does not run needs none.
fn pod_grace_s(pod: &Value, asked: Option<i64>) -> i64 {
    let unbound = pod["spec"]["nodeName"].as_str().is_none_or(str::is_empty);
    let finished = matches!(pod["status"]["phase"].as_str(), Some("Failed" | "Succeeded"));
    if unbound || finished {
        return 0;
    }
    let own = pod["spec"]["terminationGracePeriodSeconds"].as_i64().unwrap_or(30);
    match asked.unwrap_or(own) {
        negative if negative < 0 => 1,
        grace => grace,
    }
}

impl Api {
    /// Deletes one object.
    pub(crate) async fn delete(
        &self,
        writer: &Writer,
        id: TableId,
        key: &Key,
        options: &DeleteOptions,
    ) -> Result<DeleteOutcome, Failure> {
        let resource = self.resource(id);
        let old = self.get(id, key)?;
        options.check(&resource, &old.value)?;
        let attributes = Attributes {
            resource: Arc::clone(&resource),
            subresource: String::new(),
            operation: Operation::Delete,
            namespace: key.namespace.to_string(),
            name: key.name.to_string(),
            options: json!({ "kind": "DeleteOptions", "apiVersion": "meta.k8s.io/v1" }),
        };
        self.admit(writer, &attributes, Value::Null, Some(&old.value), &mut Vec::new()).await?;
        let mut store = self.store();
        let home = store.backing_table(id);
        delete_in(&mut store, home, key, options, writer.dry_run)
    }
}

/// Deletes one object of a locked store.
pub(crate) fn delete_in(
    store: &mut Store,
    id: TableId,
    key: &Key,
    options: &DeleteOptions,
    dry_run: bool,
) -> Result<DeleteOutcome, Failure> {
    let resource = Arc::clone(&store.table(id).resource);
    let old =
        store.get(id, key).cloned().ok_or_else(|| Failure::not_found(&resource, &key.name))?;
    options.check(&resource, &old.value)?;
    let grace_s = if resource.kind == "Pod" { pod_grace_s(&old.value, options.grace_s) } else { 0 };
    let mut new = old.value.clone();
    if options.propagation.as_deref() == Some("Foreground") {
        add_finalizer(&mut new, "foregroundDeletion");
    }
    let is_namespace = resource.kind == "Namespace" && !resource.custom;
    let held = !object::finalizers(&new).is_empty() || is_namespace;
    if dry_run {
        let gone = grace_s == 0 && !held;
        return Ok(if gone { DeleteOutcome::Gone(old) } else { DeleteOutcome::Waiting(old) });
    }
    if grace_s == 0 && !held {
        orphan_dependents(store, &old.value, options);
        let last = store.remove(id, key).unwrap_or(old);
        if resource.kind == "CustomResourceDefinition" {
            stop_serving(store, &last.value);
        }
        return Ok(DeleteOutcome::Gone(last));
    }
    if object::is_terminating(&old.value) {
        let already_s = old.value["metadata"]["deletionGracePeriodSeconds"].as_i64().unwrap_or(0);
        if grace_s >= already_s {
            return Ok(DeleteOutcome::Waiting(old));
        }
    } else {
        let generation = new["metadata"]["generation"].as_i64();
        if let (true, Some(generation)) = (resource.counted, generation) {
            new["metadata"]["generation"] = json!(generation + 1);
        }
    }
    orphan_dependents(store, &old.value, options);
    new["metadata"]["deletionTimestamp"] = json!(object::after(grace_s));
    new["metadata"]["deletionGracePeriodSeconds"] = json!(grace_s);
    if is_namespace {
        new["status"]["phase"] = json!("Terminating");
    }
    Ok(DeleteOutcome::Waiting(store.put(id, new)))
}

fn add_finalizer(value: &mut Value, finalizer: &str) {
    let mut all = object::finalizers(value);
    if !all.iter().any(|one| one == finalizer) {
        all.push(finalizer.into());
    }
    value["metadata"]["finalizers"] = json!(all);
}

/// Removes the owner reference from dependents that are to be orphaned.
fn orphan_dependents(store: &mut Store, owner: &Value, options: &DeleteOptions) {
    if options.propagation.as_deref() != Some("Orphan") {
        return;
    }
    let uid = object::uid(owner).to_owned();
    for (id, key) in store.dependents(&uid) {
        let Some(dependant) = store.get(id, &key) else { continue };
        let mut value = dependant.value.clone();
        if let Some(owners) = value["metadata"]["ownerReferences"].as_array_mut() {
            owners.retain(|one| one["uid"] != uid.as_str());
        }
        object::tidy_metadata(&mut value);
        store.put(id, value);
    }
}

fn stop_serving(store: &mut Store, definition: &Value) {
    let group = definition["spec"]["group"].as_str().unwrap_or_default().to_owned();
    let plural = definition["spec"]["names"]["plural"].as_str().unwrap_or_default().to_owned();
    if let Some(id) = store.find(&group, &plural) {
        store.clear(id);
        store.stop_serving(id);
    }
}
