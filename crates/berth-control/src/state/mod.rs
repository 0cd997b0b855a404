//! What reconcilers and handlers share in memory: typed caches of documents, and what agents reported
//! since it was last stored.
//!
//! State only: whatever acts on it is above the control plane.

pub mod crash_records;
pub mod degradations;
pub mod drains;
pub mod evacuations;
pub(crate) mod instance_ids;
pub mod migrations;
mod node_liveness;
mod permits;
mod refused_reports;
pub(crate) mod ticket_index;
pub(crate) mod ticket_order;
pub mod tickets;
pub mod volume_moves;

use std::sync::Arc;

use berth_ledger::{Expect, Ledger, Op, Text};

use crate::error::StartError;

pub use crash_records::CrashRecords;
pub use degradations::Degradations;
pub(crate) use node_liveness::NodeLiveness;
pub(crate) use permits::MAX_CACHED as PERMITS_CACHED;
pub use permits::{PermitSigner, Permits};
pub(crate) use refused_reports::MAX_PER_NODE as REFUSED_REPORTS_LOGGED;
pub use refused_reports::RefusedReports;
pub use tickets::{Queue, TicketPage, TicketRecord};

/// Records of everything that changes its node, or could.
#[derive(Default)]
pub struct MoveRecords {
    /// Nodes that are being emptied.
    pub drains: drains::Drains,
    /// Whether each node could be emptied.
    pub evacuations: evacuations::Evacuations,
    /// Volumes that move.
    pub volume_moves: volume_moves::VolumeMoves,
    /// Instances that move while they run.
    pub migrations: Arc<migrations::Migrations>,
}

/// The kind of document that a secret is stored as.
const SECRET_KIND: &str = "secret";

/// Reads a secret of the ledger; the first server makes it.
///
/// # Errors
/// When the ledger cannot be used, or what it holds is no secret.
pub(crate) fn load_secret(ledger: &Ledger, id: &str) -> Result<[u8; 32], StartError> {
    let invalid = |why: String| StartError::Stored(format!("secret {id}: {why}"));
    loop {
        if let Some(document) = ledger.document(SECRET_KIND, id)? {
            return serde_json::from_str(&document.body)
                .map_err(|error| invalid(error.to_string()));
        }
        let mut bytes = [0_u8; 32];
        getrandom::fill(&mut bytes).map_err(|error| invalid(error.to_string()))?;
        let body = serde_json::to_string(&bytes).map_err(|error| invalid(error.to_string()))?;
        let (kind, id) = (Text::from(SECRET_KIND), Text::from(id));
        // Another server may be first; then its secret is read.
        ledger.administer(Op::PutDocument { kind, id, body, expect: Expect::Absent })?;
    }
}
