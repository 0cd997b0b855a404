//! Admission: built-in plugins, then webhooks.

mod builtin;
mod call;
mod webhook;

use std::sync::Arc;

use serde_json::Value;

use crate::api::{Api, Writer};
use crate::failure::Failure;
use crate::resource::Resource;
use crate::{defaults, schema};

/// The operation of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    Create,
    Update,
    Delete,
}

impl Operation {
    fn name(self) -> &'static str {
        match self {
            Self::Create => "CREATE",
            Self::Update => "UPDATE",
            Self::Delete => "DELETE",
        }
    }
}

/// The attributes of a request for admission.
#[derive(Clone, Debug)]
pub(crate) struct Attributes {
    pub(crate) resource: Arc<Resource>,
    pub(crate) subresource: String,
    pub(crate) operation: Operation,
    pub(crate) namespace: String,
    /// Empty if the name is still to be generated.
    pub(crate) name: String,
    pub(crate) options: Value,
}

impl Api {
    /// The object after admission. For a deletion it is unchanged.
    pub(crate) async fn admit(
        &self,
        writer: &Writer,
        attributes: &Attributes,
        value: Value,
        old: Option<&Value>,
        warnings: &mut Vec<String>,
    ) -> Result<Value, Failure> {
        let mut value = value;
        if attributes.operation == Operation::Create && attributes.subresource.is_empty() {
            self.builtin(&attributes.resource, &mut value)?;
        }
        let hooks = self.matching_webhooks(attributes, &value, old);
        if hooks.is_empty() {
            return Ok(value);
        }
        as_encoded(attributes, &mut value);
        let admitted =
            self.call_webhooks(writer, attributes, &hooks, value.clone(), old, warnings).await?;
        if attributes.operation == Operation::Delete {
            return Ok(admitted);
        }
        let further = &self.options.further_pod_fields;
        let mut admitted = schema::normalize(&attributes.resource, admitted, further)?;
        defaults::apply(&attributes.resource, &mut admitted);
        if attributes.operation == Operation::Create && attributes.subresource.is_empty() {
            self.builtin(&attributes.resource, &mut admitted)?;
        }
        Ok(admitted)
    }
}

/// The real server always encodes these two, even if empty, and patches rely on that.
fn as_encoded(attributes: &Attributes, value: &mut Value) {
    if attributes.operation == Operation::Create && !attributes.resource.custom {
        defaults::absent(&mut value["metadata"], "creationTimestamp", Value::Null);
        if attributes.resource.kind == "Pod" {
            defaults::absent(value, "status", serde_json::json!({}));
        }
    }
}
