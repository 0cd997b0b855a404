//! Secrets that all servers of a ledger share.

use berth_ledger::{Expect, Ledger, Op, Text};

use crate::error::StartError;

/// The kind of document that a secret is stored as.
const KIND: &str = "secret";

/// Reads a secret of the ledger; the first server makes it.
///
/// # Errors
/// When the ledger cannot be used, or what it holds is no secret.
pub(crate) fn load_secret(ledger: &Ledger, id: &str) -> Result<[u8; 32], StartError> {
    let invalid = |why: String| StartError::Stored(format!("secret {id}: {why}"));
    loop {
        if let Some(document) = ledger.document(KIND, id)? {
            return serde_json::from_str(&document.body)
                .map_err(|error| invalid(error.to_string()));
        }
        let mut bytes = [0_u8; 32];
        getrandom::fill(&mut bytes).map_err(|error| invalid(error.to_string()))?;
        let body = serde_json::to_string(&bytes).map_err(|error| invalid(error.to_string()))?;
        let (kind, id) = (Text::from(KIND), Text::from(id));
        // Another server may be first; then its secret is read.
        ledger.administer(Op::PutDocument { kind, id, body, expect: Expect::Absent })?;
    }
}
