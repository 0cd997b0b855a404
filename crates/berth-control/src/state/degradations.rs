//! Workloads whose members cannot be placed: why, and since when.
//!
//! Kept as documents of the ledger, so that every server says the same and a restart forgets nothing.

use std::sync::Arc;

use berth_api::Degraded;
use berth_ledger::{Op, Scheduling, SchedulingFailure, Text, invariant_ok};

use crate::documents::{CacheableDocument, DocumentCache, Versioned};
use crate::workload::{Definition, WorkloadKey};

impl CacheableDocument for Degraded {
    const KIND: &'static str = Scheduling::KIND;

    fn decode(id: &str, body: &str) -> serde_json::Result<Option<Self>> {
        if key_of(id).is_some() { serde_json::from_str(body).map(Some) } else { Ok(None) }
    }
}

/// Workloads whose members cannot be placed, and why.
#[derive(Default)]
pub struct Degradations {
    /// The documents.
    pub documents: Arc<DocumentCache<Degraded>>,
}

impl Degradations {
    /// What is wrong with a workload.
    #[must_use]
    pub fn get(&self, key: &WorkloadKey) -> Option<Arc<Versioned<Degraded>>> {
        self.documents.get(&document_id(key))
    }

    /// How many workloads have something wrong.
    #[must_use]
    pub fn count(&self) -> usize {
        self.documents.read().documents.len()
    }

    /// Workloads that have something wrong.
    #[must_use]
    pub fn keys(&self) -> Vec<WorkloadKey> {
        self.documents.read().documents.keys().filter_map(|id| key_of(id)).collect()
    }
}

pub(super) fn document_id(key: &WorkloadKey) -> String {
    format!("{}\n{}", key.0, key.1)
}

pub(crate) fn key_of(id: &str) -> Option<WorkloadKey> {
    let (tenant, workload) = id.split_once('\n')?;
    Some((Text::from(tenant), Text::from(workload)))
}

/// The operation that says what is wrong with a workload, or that nothing is.
#[must_use]
pub(crate) fn set_degraded(
    key: &WorkloadKey,
    definition: Option<&Definition>,
    wrong: Option<&Degraded>,
) -> Op {
    let (tenant, workload) = key.clone();
    let env = definition.and_then(Definition::env).map(Text::from);
    let failing = wrong.map(|wrong| SchedulingFailure {
        code: Text::from(wrong.code.as_str()),
        message: Text::from(wrong.message.as_str()),
        body: invariant_ok!(serde_json::to_string(wrong), "degradation_is_json")
            .unwrap_or_default(),
    });
    Op::SetScheduling(Box::new(Scheduling { tenant, env, workload, failing }))
}
