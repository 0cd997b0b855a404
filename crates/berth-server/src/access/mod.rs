//! Who calls, and what they may do.

mod caller;
mod secret;
mod tokens;

pub use caller::{Caller, Scope};
pub use secret::Secret;
pub use tokens::{KIND as TOKEN_KIND, TokenError, TokenRecord, Tokens, is_name};
