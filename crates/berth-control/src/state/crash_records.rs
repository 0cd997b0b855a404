//! How often members of workloads ended without a release.
//!
//! Every server counts what the log says. Kept as documents of the ledger, so that a restart forgets
//! nothing and a server that starts later waits as long as the others.

use std::sync::Arc;

use berth_ledger::{Expect, Op, Text, invariant_ok};

use super::degradations::{document_id, key_of};
use crate::documents::{CacheableDocument, DocumentCache};
use crate::workload::{CrashHistories, WorkloadKey};

/// The kind of document that they are stored as.
pub(crate) const KIND: &str = "crash_history";

impl CacheableDocument for CrashHistories {
    const KIND: &'static str = KIND;

    fn decode(id: &str, body: &str) -> serde_json::Result<Option<Self>> {
        if key_of(id).is_some() { serde_json::from_str(body).map(Some) } else { Ok(None) }
    }
}

/// How often members of workloads ended, as the ledger has it.
#[derive(Default)]
pub struct CrashRecords {
    /// The documents.
    pub documents: Arc<DocumentCache<CrashHistories>>,
}

impl CrashRecords {
    /// Workloads of which something is stored.
    pub(crate) fn keys(&self) -> Vec<WorkloadKey> {
        self.documents.read().documents.keys().filter_map(|id| key_of(id)).collect()
    }

    /// The operation that stores what is known of a workload, if it is not what is stored.
    pub(crate) fn store(&self, key: &WorkloadKey, known: Option<&CrashHistories>) -> Option<Op> {
        let id = document_id(key);
        let stored = self.documents.get(&id);
        if stored.as_deref().map(|stored| &stored.value) == known {
            return None;
        }
        let revision = stored.map(|stored| stored.revision);
        let expect = revision.map_or(Expect::Absent, Expect::Revision);
        let (kind, id) = (Text::from(KIND), Text::from(id));
        Some(match known {
            Some(known) => {
                let body = serde_json::to_string(known);
                let body = invariant_ok!(body, "crash_history_is_json").unwrap_or_default();
                Op::PutDocument { kind, id, body, expect }
            }
            None => Op::RemoveDocument { kind, id, expect },
        })
    }
}
