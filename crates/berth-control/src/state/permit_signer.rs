//! The key that headroom is signed with: one for all servers of a ledger.
//!
//! Signed, so that whoever enforces sizes on a host can check that an agent may grow without asking
//! anybody: that is for when there is nobody to ask.

use aws_lc_rs::signature::{Ed25519KeyPair, KeyPair as _};
use berth_api::PermitKey;
use berth_ledger::{Expect, Ledger, Op, Text};

use crate::error::StartError;

/// Signs statements.
pub struct PermitSigner {
    pair: Ed25519KeyPair,
    key: PermitKey,
}

impl PermitSigner {
    /// Reads the ledger's key; the first server to come makes it.
    ///
    /// # Errors
    /// When the ledger cannot be used, or what it holds is no key.
    pub fn load(ledger: &Ledger) -> Result<Self, StartError> {
        const KIND: &str = "secret";
        const ID: &str = "permit-key";
        let wrong = |why: String| StartError::Stored(format!("the key of permits: {why}"));
        loop {
            if let Some(document) = ledger.document(KIND, ID)? {
                let seed: [u8; 32] = serde_json::from_str(&document.body)
                    .map_err(|error| wrong(error.to_string()))?;
                let pair = Ed25519KeyPair::from_seed_unchecked(&seed)
                    .map_err(|error| wrong(error.to_string()))?;
                let public = hex(pair.public_key().as_ref());
                let key = PermitKey { key: public.chars().take(16).collect(), public };
                return Ok(Self { pair, key });
            }
            let mut seed = [0_u8; 32];
            getrandom::fill(&mut seed).map_err(|error| wrong(error.to_string()))?;
            let body = serde_json::to_string(&seed).map_err(|error| wrong(error.to_string()))?;
            let (kind, id) = (Text::from(KIND), Text::from(ID));
            // Another server may be first; then its key is read.
            ledger.administer(Op::PutDocument { kind, id, body, expect: Expect::Absent })?;
        }
    }

    /// The signature of a statement, and the name of the key.
    #[must_use]
    pub fn sign(&self, statement: &str) -> (String, String) {
        (hex(self.pair.sign(statement.as_bytes()).as_ref()), self.key.key.clone())
    }

    /// The key, for whoever checks.
    #[must_use]
    pub const fn key(&self) -> &PermitKey {
        &self.key
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
