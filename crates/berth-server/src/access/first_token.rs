//! The first token of a new ledger, and tokens that are stored without a server.

use berth_api::{NewToken, Role};
use berth_control::Caller;
use berth_ledger::{Answer, Audited, Expect, Ledger, LedgerError, Op, Outcome, Text};
use thiserror::Error;

use super::{AccessControl, TokenError, TokenRecord};

/// A token could not be made or stored.
#[derive(Debug, Error)]
pub enum AccessError {
    /// The ledger cannot be used.
    #[error("the ledger cannot be used")]
    Ledger(#[from] LedgerError),
    /// The token cannot be made.
    #[error("the token cannot be made")]
    Token(#[from] TokenError),
    /// The token cannot be stored.
    #[error("the token cannot be stored: {0}")]
    Stored(String),
}

impl AccessControl {
    /// The first token of a new ledger; absent when there is one already.
    ///
    /// # Errors
    /// When it cannot be stored.
    pub fn first_token(&self, ledger: &Ledger) -> Result<Option<String>, AccessError> {
        if !self.tokens.is_empty() {
            return Ok(None);
        }
        // Of several servers that start at once on a new ledger, one makes it.
        let (kind, id) = (Text::from("secret"), Text::from("first-token"));
        let (body, expect) = ("{}".to_owned(), Expect::Absent);
        let mark = Op::PutDocument { kind, id, body, expect };
        if ledger.administer(mark)? != Outcome::Done {
            return Ok(None);
        }
        self.admin_token(ledger, "first admin").map(Some)
    }

    /// Makes and stores a token of an admin. Waits for the database.
    ///
    /// # Errors
    /// When it cannot be stored.
    pub fn admin_token(&self, ledger: &Ledger, name: &str) -> Result<String, AccessError> {
        let (name, role) = (name.to_owned(), Role::Admin);
        let new = NewToken { name, role, tenants: Vec::new(), node: None, expires_in_s: None };
        let (record, secret) = TokenRecord::make(&new, self.clock.now())?;
        store_token(ledger, &record, &Caller::local("berth up"))?;
        self.tokens.put(record, 1);
        Ok(secret)
    }
}

/// Stores a token, without a server: for the first one, and for operators who lost all of theirs.
///
/// # Errors
/// When the ledger cannot be written.
pub fn store_token(
    ledger: &Ledger,
    record: &TokenRecord,
    caller: &Caller,
) -> Result<(), AccessError> {
    let op = record.store_op().map_err(|error| AccessError::Stored(format!("a token: {error}")))?;
    let by = Audited {
        actor: Text::from(caller.actor()),
        origin: Text::from(caller.origin()),
        action: Text::from("token.create"),
        subject: Text::from(format!("{} ({})", record.token.name, record.token.role.name())),
        request_id: None,
        op,
    };
    match ledger.call(Op::Audited(Box::new(by)))? {
        Answer::Outcome(Outcome::Done) => Ok(()),
        other => Err(AccessError::Stored(format!("a token: {other:?}"))),
    }
}
