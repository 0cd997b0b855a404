//! State of admission: recorded webhook calls, quotas, and failures that a test asked for.

use std::collections::BTreeMap;
use std::sync::Mutex;

use serde_json::Value;

use crate::failure::Failure;
use crate::object;
use crate::resource::Resource;
use crate::store::{Store, lock};

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
pub(crate) struct AdmissionState {
    pub(crate) calls: Mutex<Vec<AdmissionCall>>,
    /// How many pods a namespace may hold.
    pub(crate) quotas: Mutex<BTreeMap<String, usize>>,
    /// How many creations of pods are refused next.
    pub(crate) refusals: Mutex<usize>,
}

impl AdmissionState {
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
