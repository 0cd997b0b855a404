//! What this server knows of permits: the last answers, and the key that headroom is signed with.

use std::sync::{Mutex, MutexGuard, PoisonError};

use aws_lc_rs::signature::{Ed25519KeyPair, KeyPair as _};
use berth_api::PermitKey;
use berth_engine::InstanceId;
use berth_engine::elastic::Permit;
use berth_ledger::Ledger;
use rustc_hash::FxHashMap;

use super::load_secret;
use crate::error::StartError;

/// The permits of elastic instances.
pub struct Permits {
    /// The last answers of this server.
    pub(crate) cache: PermitCache,
    /// Signs what agents may do without asking.
    pub signer: PermitSigner,
}

impl Permits {
    /// No answers yet, and the key of this ledger.
    ///
    /// # Errors
    /// When the ledger cannot be used, or what it holds is no key.
    pub(crate) fn load(ledger: &Ledger) -> Result<Self, StartError> {
        Ok(Self { cache: PermitCache::default(), signer: PermitSigner::load(ledger)? })
    }
}

/// Instances that are remembered; then all are forgotten, which costs nothing but freshness.
pub(crate) const MAX_CACHED: usize = 1 << 20;

/// The last answer for each instance. A request that changes nothing makes no event, so only the
/// server that answered it knows its sequence number and load.
#[derive(Default)]
pub(crate) struct PermitCache(Mutex<FxHashMap<InstanceId, (i64, Permit)>>);

impl PermitCache {
    fn lock(&self) -> MutexGuard<'_, FxHashMap<InstanceId, (i64, Permit)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records a permit as it was answered, under the fence of its claim.
    pub(crate) fn record(&self, instance: InstanceId, fence: i64, permit: Permit) {
        let mut permits = self.lock();
        if permits.len() >= MAX_CACHED {
            permits.clear();
        }
        let known = permits.entry(instance).or_insert((fence, permit));
        // Answers may overtake each other on their way here.
        if (known.0, known.1.seq) <= (fence, permit.seq) {
            *known = (fence, permit);
        }
    }

    /// A permit as the catalogue has it, or as it was answered here since.
    #[must_use]
    pub(crate) fn newest(&self, instance: InstanceId, fence: i64, permit: Permit) -> Permit {
        let cached = self.lock().get(&instance).copied();
        match cached {
            Some((at, cached)) if at == fence && cached.seq > permit.seq => cached,
            Some(_) | None => permit,
        }
    }
}

/// Signs headroom with the one key of all servers of a ledger, so that whatever enforces sizes on a
/// host can check that an agent may grow without asking: for when no server can be reached.
pub struct PermitSigner {
    pair: Ed25519KeyPair,
    key: PermitKey,
}

impl PermitSigner {
    /// Reads the ledger's key; the first server makes it.
    ///
    /// # Errors
    /// When the ledger cannot be used, or what it holds is no key.
    fn load(ledger: &Ledger) -> Result<Self, StartError> {
        let seed = load_secret(ledger, "permit-key")?;
        let pair = Ed25519KeyPair::from_seed_unchecked(&seed)
            .map_err(|error| StartError::Stored(format!("secret permit-key: {error}")))?;
        let public = hex(pair.public_key().as_ref());
        let key = PermitKey { key: public.chars().take(16).collect(), public };
        Ok(Self { pair, key })
    }

    /// The signature of a statement, and the name of the key.
    #[must_use]
    pub fn sign(&self, statement: &str) -> (String, String) {
        (hex(self.pair.sign(statement.as_bytes()).as_ref()), self.key.key.clone())
    }

    /// The public key, for those who check signatures.
    #[must_use]
    pub const fn key(&self) -> &PermitKey {
        &self.key
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
