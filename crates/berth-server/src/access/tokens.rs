//! Tokens: stored in the ledger, known in memory, hashed in both.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, PoisonError, RwLock};

use berth_api::{NewToken, Role, Token};
use berth_control::caller::{Caller, Scope, is_name};
use berth_control::documents::{CacheableDocument, DocumentCache};
use berth_engine::NodeId;
use berth_ledger::{Expect, ForTenants, Ledger, LedgerError, Op, Text};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::Secret;
pub use berth_control::tenants::TOKEN_KIND as KIND;

/// A token as stored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenRecord {
    /// Everything but the secret.
    pub token: Token,
    /// The hash of the secret.
    pub hash: String,
}

/// A token that cannot be.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{field}: {problem}; accepted is {accepted}")]
pub struct TokenError {
    /// The field.
    pub field: &'static str,
    /// What is wrong.
    pub problem: String,
    /// What would do.
    pub accepted: &'static str,
}

/// A token as the server needs it for every request.
#[derive(Clone)]
pub struct TokenEntry {
    /// The token as stored.
    pub record: TokenRecord,
    name: Arc<str>,
    id: Arc<str>,
    scope: Arc<Scope>,
}

impl From<TokenRecord> for TokenEntry {
    fn from(record: TokenRecord) -> Self {
        let token = &record.token;
        let scope = match (&token.node, token.role) {
            (Some(node), Role::Agent) => Scope::Node(node.clone()),
            (_, Role::Tenant) => Scope::Tenants(token.tenants.clone()),
            _ => Scope::Fleet,
        };
        let (name, id) = (Arc::from(token.name.as_str()), Arc::from(token.id.as_str()));
        Self { name, id, scope: Arc::new(scope), record }
    }
}

impl CacheableDocument for TokenEntry {
    const KIND: &'static str = KIND;

    fn decode(_: &str, body: &str) -> serde_json::Result<Option<Self>> {
        serde_json::from_str::<TokenRecord>(body).map(|record| Some(record.into()))
    }
}

/// All tokens, by id.
#[derive(Default)]
pub struct Tokens {
    /// The stored tokens.
    pub documents: Arc<DocumentCache<TokenEntry>>,
    /// Tokens that only this process knows.
    local: RwLock<BTreeMap<String, TokenEntry>>,
}

impl Tokens {
    /// Reads all tokens there are.
    ///
    /// # Errors
    /// When the ledger cannot be read.
    pub fn load(ledger: &Ledger) -> Result<Self, LedgerError> {
        let tokens = Self::default();
        tokens.documents.refresh_all(ledger)?;
        Ok(tokens)
    }

    /// Records a token that this server just stored in this revision.
    pub fn put(&self, record: TokenRecord, revision: i64) {
        let id = record.token.id.clone();
        self.documents.put(&id, record.into(), revision);
    }

    /// Adds a token that is never stored and ends with this process.
    pub fn put_local(&self, record: TokenRecord) {
        let mut local = self.local.write().unwrap_or_else(PoisonError::into_inner);
        local.insert(record.token.id.clone(), record.into());
    }

    fn find_local(&self, id: &str) -> Option<TokenEntry> {
        self.local.read().unwrap_or_else(PoisonError::into_inner).get(id).cloned()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.documents.read().documents.is_empty()
    }

    /// All tokens, without secrets.
    #[must_use]
    pub fn list(&self) -> Vec<Token> {
        let tokens = &self.documents.read().documents;
        tokens.values().map(|known| known.value.record.token.clone()).collect()
    }

    /// One token with the hash of its secret.
    #[must_use]
    pub fn get(&self, id: &str) -> Option<TokenRecord> {
        let stored = self.documents.get(id).map(|known| known.value.record.clone());
        stored.or_else(|| self.find_local(id).map(|known| known.record))
    }

    /// The caller that presents this secret; absent when no valid token matches.
    #[must_use]
    pub fn caller(&self, text: &str, from: Option<IpAddr>, now: Timestamp) -> Option<Caller> {
        let secret = Secret::read(text)?;
        let (stored, local);
        let known = if let Some(found) = self.documents.get(&secret.id) {
            stored = found;
            &stored.value
        } else {
            local = self.find_local(&secret.id)?;
            &local
        };
        let token = &known.record.token;
        let ended = token.revoked_at.is_some() || token.expires_at.is_some_and(|end| end <= now);
        (secret.is(&known.record.hash) && !ended).then(|| Caller {
            role: token.role,
            name: Arc::clone(&known.name),
            token: Some(Arc::clone(&known.id)),
            scope: Arc::clone(&known.scope),
            from,
        })
    }
}

impl TokenRecord {
    /// The operation that stores it, unless one of its tenants is being removed.
    ///
    /// # Errors
    /// When it cannot be written as text.
    pub fn store_op(&self) -> serde_json::Result<Op> {
        let op = Op::PutDocument {
            kind: Text::from(KIND),
            id: Text::from(self.token.id.as_str()),
            body: serde_json::to_string(self)?,
            expect: Expect::Absent,
        };
        let tenants = self.token.tenants.iter().map(|tenant| Text::from(tenant.as_str())).collect();
        Ok(Op::ForTenants(Box::new(ForTenants { tenants, op })))
    }

    /// A new token, and the secret that is shown once.
    ///
    /// # Errors
    /// Names the field and what would be accepted.
    pub fn make(new: &NewToken, now: Timestamp) -> Result<(Self, String), TokenError> {
        check(new)?;
        let (secret, text) = Secret::make().map_err(|error| TokenError {
            field: "token",
            problem: format!("the system has no random numbers: {error}"),
            accepted: "a system that has",
        })?;
        let expires_at = match new.expires_in_s {
            Some(seconds) => Some(ends(now, seconds)?),
            None => None,
        };
        let token = Token {
            id: secret.id.clone(),
            name: new.name.clone(),
            role: new.role,
            tenants: new.tenants.clone(),
            node: new.node.clone(),
            created_at: now,
            expires_at,
            revoked_at: None,
        };
        Ok((Self { token, hash: secret.stored() }, text))
    }
}

/// The latest a token may end: a hundred years.
const LONGEST_S: u64 = 100 * 365 * 86_400;

fn ends(now: Timestamp, seconds: u64) -> Result<Timestamp, TokenError> {
    let wrong = || TokenError {
        field: "expires_in_s",
        problem: format!("{seconds} seconds is not possible"),
        accepted: "1 to 3153600000 (a hundred years)",
    };
    if seconds == 0 || seconds > LONGEST_S {
        return Err(wrong());
    }
    let seconds = i64::try_from(seconds).map_err(|_| wrong())?;
    now.checked_add(jiff::SignedDuration::from_secs(seconds)).map_err(|_| wrong())
}

fn check(new: &NewToken) -> Result<(), TokenError> {
    let wrong = |field, problem: &str, accepted| {
        Err(TokenError { field, problem: problem.to_owned(), accepted })
    };
    if new.name.trim().is_empty() || new.name.chars().count() > 100 {
        return wrong("name", "it is empty or too long", "1 to 100 characters");
    }
    if new.name.chars().any(char::is_control) {
        return wrong("name", "it has control characters", "printable characters");
    }
    match new.role {
        Role::Tenant if new.tenants.is_empty() => {
            wrong("tenants", "a token of role tenant names none", "at least one tenant")
        }
        Role::Tenant if new.tenants.iter().any(|name| !is_name(name)) => wrong(
            "tenants",
            "one of them is not a valid name",
            "1 to 200 characters without control characters",
        ),
        Role::Agent if !new.node.as_ref().is_some_and(|node: &NodeId| is_name(node.as_str())) => {
            wrong("node", "an agent has none", "the id of its node")
        }
        role if role != Role::Tenant && !new.tenants.is_empty() => {
            wrong("tenants", "only tokens of role tenant name tenants", "role tenant, or none")
        }
        role if role != Role::Agent && new.node.is_some() => {
            wrong("node", "only an agent is bound to a node", "role agent, or none")
        }
        _ => Ok(()),
    }
}
