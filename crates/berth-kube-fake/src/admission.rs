//! What is done to an object between its arrival and the store: built-in plugins, then webhooks.

mod builtin;
mod call;
mod webhook;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use serde_json::Value;

use crate::api::{Api, Writer, lock};
use crate::failure::Failure;
use crate::object;
use crate::resource::Resource;
use crate::store::Store;
use crate::{defaults, schema};

/// What a request wants to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    Create,
    Update,
    Delete,
}

impl Operation {
    fn word(self) -> &'static str {
        match self {
            Self::Create => "CREATE",
            Self::Update => "UPDATE",
            Self::Delete => "DELETE",
        }
    }
}

/// What admission is told of a request.
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

/// One call of a webhook, as it happened.
#[derive(Clone, Debug, PartialEq)]
pub struct AdmissionCall {
    /// The webhook's name.
    pub webhook: String,
    /// The `request` of the review that was sent.
    pub request: Value,
    /// The `response` that came; null if none did.
    pub response: Value,
    /// Why the call failed, if it did.
    pub error: Option<String>,
    /// 0 for the first round, 1 for the reinvocation.
    pub round: u32,
}

/// What is recorded and what is refused.
#[derive(Default)]
pub(crate) struct Admission {
    pub(crate) calls: Mutex<Vec<AdmissionCall>>,
    /// How many pods a namespace may hold.
    pub(crate) quotas: Mutex<BTreeMap<String, usize>>,
    /// How many creations of pods are refused next.
    pub(crate) refusals: Mutex<usize>,
}

impl Admission {
    /// The last gate, after all changes: a quota refuses what a webhook has already counted.
    pub(crate) fn check_quota(
        &self,
        store: &Store,
        resource: &Resource,
        value: &Value,
        dry_run: bool,
    ) -> Result<(), Failure> {
        if resource.kind != "Pod" || resource.custom {
            return Ok(());
        }
        let name = object::name(value);
        let mut refusals = lock(&self.refusals);
        if *refusals > 0 && !dry_run {
            *refusals -= 1;
            return Err(Failure::forbidden(resource, name, "exceeded quota: refused by the test"));
        }
        let namespace = object::namespace(value);
        let Some(limit) = lock(&self.quotas).get(namespace).copied() else { return Ok(()) };
        let Some(pods) = store.find("", "pods") else { return Ok(()) };
        let used = store
            .iter(pods, Some(namespace))
            .filter(|(_, pod)| {
                !matches!(pod.value["status"]["phase"].as_str(), Some("Failed" | "Succeeded"))
            })
            .count();
        if used < limit {
            return Ok(());
        }
        let why = format!(
            "exceeded quota: pods, requested: pods=1, used: pods={used}, limited: pods={limit}"
        );
        Err(Failure::forbidden(resource, name, why))
    }
}

impl Api {
    /// The object as it is after admission. Of a deletion there is none.
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
        let mut admitted = schema::normalise(&attributes.resource, admitted)?;
        defaults::apply(&attributes.resource, &mut admitted);
        if attributes.operation == Operation::Create && attributes.subresource.is_empty() {
            self.builtin(&attributes.resource, &mut admitted)?;
        }
        Ok(admitted)
    }
}

/// The real server's types always encode these two, empty or not, and patches meet them.
fn as_encoded(attributes: &Attributes, value: &mut Value) {
    if attributes.operation == Operation::Create && !attributes.resource.custom {
        defaults::absent(&mut value["metadata"], "creationTimestamp", Value::Null);
        if attributes.resource.kind == "Pod" {
            defaults::absent(value, "status", serde_json::json!({}));
        }
    }
}
