//! The four types of patches.

mod strategic;

use serde_json::{Value, json};

use crate::api::{Api, WriteResult, Writer};
use crate::failure::Failure;
use crate::json_patch;
use crate::object::Key;
use crate::store::TableId;
use crate::update::ObjectPart;

/// A patch, by its media type.
#[derive(Clone, Debug)]
pub(crate) enum Patch {
    Json(Value),
    Merge(Value),
    Strategic(Value),
    Apply(Value),
}

const JSON: &str = "application/json-patch+json";
const MERGE: &str = "application/merge-patch+json";
const STRATEGIC: &str = "application/strategic-merge-patch+json";
const APPLY: &str = "application/apply-patch+yaml";

impl Patch {
    /// Reads the body by its media type.
    pub(crate) fn read(media_type: &str, body: &[u8]) -> Result<Self, Failure> {
        let kind = media_type.split(';').next().unwrap_or_default().trim();
        let json = || {
            serde_json::from_slice(body)
                .map_err(|error| Failure::bad_request(format!("error decoding patch: {error}")))
        };
        match kind {
            JSON => Ok(Self::Json(json()?)),
            MERGE => Ok(Self::Merge(json()?)),
            STRATEGIC => Ok(Self::Strategic(json()?)),
            APPLY => {
                let text = std::str::from_utf8(body)
                    .map_err(|error| Failure::bad_request(error.to_string()))?;
                let value = serde_saphyr::from_str(text).map_err(|error| {
                    Failure::bad_request(format!("error decoding YAML: {error}"))
                })?;
                Ok(Self::Apply(value))
            }
            _ => Err(Failure::unsupported_media_type(&format!(
                "{JSON}, {MERGE}, {STRATEGIC}, {APPLY}"
            ))),
        }
    }

    /// The object with the patch applied.
    pub(crate) fn apply(&self, old: &Value, custom: bool) -> Result<Value, Failure> {
        match self {
            Self::Json(patch) => json_patch::apply(old, patch),
            Self::Merge(patch) => {
                let mut new = old.clone();
                merge(&mut new, patch);
                Ok(new)
            }
            Self::Strategic(_) if custom => {
                // Custom resources have no merge keys.
                Err(Failure::unsupported_media_type(&format!("{JSON}, {MERGE}, {APPLY}")))
            }
            Self::Strategic(patch) => strategic::merge(old, patch),
            Self::Apply(value) => {
                if custom {
                    let mut new = old.clone();
                    merge(&mut new, value);
                    Ok(new)
                } else {
                    strategic::merge(old, value)
                }
            }
        }
    }
}

/// RFC 7386: null removes, maps are merged, everything else is replaced.
fn merge(target: &mut Value, patch: &Value) {
    let Some(fields) = patch.as_object() else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = json!({});
    }
    for (key, field) in fields {
        if field.is_null() {
            crate::object::remove(target, key);
        } else {
            merge(&mut target[key.as_str()], field);
        }
    }
}

impl Api {
    /// Patches an object; an apply may create it.
    pub(crate) async fn patch(
        &self,
        writer: &Writer,
        id: TableId,
        key: &Key,
        part: ObjectPart,
        patch: &Patch,
    ) -> Result<WriteResult, Failure> {
        let resource = self.resource(id);
        if let Patch::Apply(value) = patch {
            if writer.field_manager.as_deref().is_none_or(str::is_empty) {
                let cause =
                    crate::failure::Cause::required("fieldManager", "is required for apply patch");
                return Err(Failure::invalid_kind("meta.k8s.io", "PatchOptions", "", &[cause]));
            }
            crate::schema::check_kind(&resource, value)?;
            if self.get(id, key).is_err() && part == ObjectPart::Main {
                let namespace = resource.namespaced.then_some(&*key.namespace);
                let mut value = value.clone();
                value["metadata"]["name"] = json!(&*key.name);
                return self.create(writer, id, namespace, value).await;
            }
        }
        self.modify(writer, id, key, part, |old| {
            let new = patch.apply(old, resource.custom)?;
            if crate::object::name(&new) != &*key.name {
                let text = "metadata.name: Invalid value: field is immutable";
                return Err(Failure::bad_request(text));
            }
            Ok(new)
        })
        .await
    }
}
