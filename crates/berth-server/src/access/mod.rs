//! Access: tokens, what their holders may do, and the first token of a new ledger.

mod first_token;
mod permissions;
mod secret;
mod tokens;

use std::sync::Arc;

use berth_control::clock::DatabaseClock;
use berth_control::documents::DocumentFollower;

pub use first_token::{AccessError, store_token};
pub use permissions::{Access, Permissions, ROUTES};
pub use secret::Secret;
pub use tokens::{KIND as TOKEN_KIND, TokenEntry, TokenError, TokenRecord, Tokens};

/// Who may call, and what they may do.
#[derive(Default)]
pub struct AccessControl {
    /// Tokens of callers.
    pub tokens: Tokens,
    /// Which role may use which route.
    pub permissions: Permissions,
    /// Whether callers on this machine need no token.
    pub no_sign_in: bool,
    /// The clock that tokens expire by: the database's, which all servers share.
    pub clock: Arc<DatabaseClock>,
}

impl AccessControl {
    /// The caches that the control plane keeps current.
    #[must_use]
    pub fn followers(&self) -> Vec<Arc<dyn DocumentFollower>> {
        vec![Arc::clone(&self.tokens.documents) as _]
    }
}
