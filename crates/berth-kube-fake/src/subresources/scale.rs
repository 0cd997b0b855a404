//! The scale subresource.

use serde_json::{Value, json};

use crate::api::{Api, WriteResult, Writer};
use crate::failure::{Cause, Failure};
use crate::object::{self, Key};
use crate::patch::Patch;
use crate::resource::{Resource, Scale};
use crate::store::TableId;
use crate::update::{ObjectPart, check_versions};

/// The value at a path such as `.spec.replicas`.
fn at<'a>(value: &'a Value, path: &str) -> &'a Value {
    path.split('.').filter(|step| !step.is_empty()).fold(value, |value, step| &value[step])
}

fn at_mut<'a>(value: &'a mut Value, path: &str) -> &'a mut Value {
    path.split('.').filter(|step| !step.is_empty()).fold(value, |value, step| &mut value[step])
}

/// A selector as text.
fn selector_text(selector: &Value) -> String {
    let mut parts = Vec::new();
    for (key, value) in selector["matchLabels"].as_object().into_iter().flatten() {
        parts.push(format!("{key}={}", value.as_str().unwrap_or_default()));
    }
    for term in object::items(&selector["matchExpressions"]) {
        let key = term["key"].as_str().unwrap_or_default();
        let values: Vec<&str> = object::items(&term["values"]).filter_map(Value::as_str).collect();
        parts.push(match term["operator"].as_str().unwrap_or_default() {
            "In" => format!("{key} in ({})", values.join(",")),
            "NotIn" => format!("{key} notin ({})", values.join(",")),
            "Exists" => key.to_owned(),
            _ => format!("!{key}"),
        });
    }
    parts.join(",")
}

fn plan(resource: &Resource) -> Result<&Scale, Failure> {
    resource.scale.as_ref().ok_or_else(Failure::no_such_path)
}

/// The scale of an object.
pub(crate) fn scale_of(resource: &Resource, value: &Value) -> Result<Value, Failure> {
    let plan = plan(resource)?;
    let mut scale = json!({
        "kind": "Scale", "apiVersion": "autoscaling/v1",
        "metadata": {
            "name": object::name(value), "namespace": object::namespace(value),
            "uid": object::uid(value),
            "resourceVersion": value["metadata"]["resourceVersion"],
            "creationTimestamp": value["metadata"]["creationTimestamp"],
        },
        "spec": { "replicas": at(value, &plan.spec_replicas).as_i64().unwrap_or(0) },
        "status": { "replicas": at(value, &plan.status_replicas).as_i64().unwrap_or(0) },
    });
    let selector = match &plan.selector {
        Some(path) if path.is_empty() => String::new(),
        Some(path) => at(value, path).as_str().unwrap_or_default().to_owned(),
        None => selector_text(&value["spec"]["selector"]),
    };
    if !selector.is_empty() {
        scale["status"]["selector"] = json!(selector);
    }
    Ok(scale)
}

impl Api {
    /// Writes the number of replicas, by PUT or PATCH of the scale. Returns the scale.
    pub(crate) async fn write_scale(
        &self,
        writer: &Writer,
        id: TableId,
        key: &Key,
        wanted: &ScaleChange,
    ) -> Result<(Value, WriteResult), Failure> {
        let resource = self.resource(id);
        let plan = plan(&resource)?.clone();
        let done = self
            .modify(writer, id, key, ObjectPart::Main, |old| {
                let current = scale_of(&resource, old)?;
                let new = match wanted {
                    ScaleChange::Put(scale) => scale.clone(),
                    ScaleChange::Patch(patch) => patch.apply(&current, true)?,
                };
                check_versions(&resource, old, &new, true)?;
                let replicas = new["spec"]["replicas"].as_i64().unwrap_or(0);
                if replicas < 0 {
                    let text = "must be greater than or equal to 0";
                    let cause = Cause::invalid("spec.replicas", &json!(replicas), text);
                    let name = &key.name;
                    return Err(Failure::invalid_kind("autoscaling", "Scale", name, &[cause]));
                }
                let mut changed = old.clone();
                *at_mut(&mut changed, &plan.spec_replicas) = json!(replicas);
                Ok(changed)
            })
            .await?;
        Ok((scale_of(&resource, &done.object.value)?, done))
    }
}

/// A change of a scale.
pub(crate) enum ScaleChange {
    Put(Value),
    Patch(Patch),
}
