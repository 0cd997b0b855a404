//! Tokens: stored in the ledger, known in memory, hashed in both.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, PoisonError, RwLock};

use berth_api::{NewToken, Role, Token};
use berth_engine::NodeId;
use berth_ledger::{Ledger, LedgerError};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::{Caller, Scope, Secret};

/// The kind of document that a token is stored as.
pub const KIND: &str = "token";

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

#[derive(Clone)]
struct Known {
    record: TokenRecord,
    name: Arc<str>,
    id: Arc<str>,
    scope: Arc<Scope>,
}

/// All tokens, by id.
#[derive(Default)]
pub struct Tokens(RwLock<BTreeMap<String, Known>>);

impl Tokens {
    /// Reads all tokens there are.
    ///
    /// # Errors
    /// When the ledger cannot be read.
    pub fn load(ledger: &Ledger) -> Result<Self, LedgerError> {
        let tokens = Self::default();
        let mut after: Option<String> = None;
        loop {
            let page = ledger.documents(KIND, after.as_deref(), 1000)?;
            let Some(last) = page.last() else { return Ok(tokens) };
            after = Some(last.id.to_string());
            for document in &page {
                tokens.learn(&document.body);
            }
        }
    }

    /// Reads one token anew: another server made or revoked it.
    pub fn reload(&self, ledger: &Ledger, id: &str) {
        match ledger.document(KIND, id) {
            Ok(Some(document)) => self.learn(&document.body),
            Ok(None) => drop(self.write().remove(id)),
            // What is known stays; the next change or restart tells.
            Err(error) => tracing::warn!(%error, token = id, "a token could not be read"),
        }
    }

    fn learn(&self, body: &str) {
        match serde_json::from_str::<TokenRecord>(body) {
            Ok(record) => self.put(record),
            Err(error) => tracing::error!(%error, "a stored token cannot be read"),
        }
    }

    /// Takes in a token that was just stored.
    pub fn put(&self, record: TokenRecord) {
        let token = &record.token;
        let scope = match (&token.node, token.role) {
            (Some(node), Role::Agent) => Scope::Node(node.clone()),
            (_, Role::Tenant) => Scope::Namespaces(token.namespaces.clone()),
            _ => Scope::Fleet,
        };
        let (name, id) = (Arc::from(token.name.as_str()), Arc::from(token.id.as_str()));
        let known = Known { name, id, scope: Arc::new(scope), record };
        self.write().insert(known.record.token.id.clone(), known);
    }

    fn write(&self) -> std::sync::RwLockWriteGuard<'_, BTreeMap<String, Known>> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }

    fn read(&self) -> std::sync::RwLockReadGuard<'_, BTreeMap<String, Known>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.read().is_empty()
    }

    /// All tokens, without secrets.
    #[must_use]
    pub fn list(&self) -> Vec<Token> {
        self.read().values().map(|known| known.record.token.clone()).collect()
    }

    /// One token as stored.
    #[must_use]
    pub fn get(&self, id: &str) -> Option<TokenRecord> {
        self.read().get(id).map(|known| known.record.clone())
    }

    /// Who presents this text; absent when no valid token says so.
    #[must_use]
    pub fn caller(&self, text: &str, from: Option<IpAddr>, now: Timestamp) -> Option<Caller> {
        let secret = Secret::read(text)?;
        let tokens = self.read();
        let known = tokens.get(&secret.id)?;
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
            namespaces: new.namespaces.clone(),
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
        Role::Tenant if new.namespaces.is_empty() => {
            wrong("namespaces", "a tenant has none", "at least one namespace")
        }
        Role::Tenant if new.namespaces.iter().any(|name| !is_name(name)) => wrong(
            "namespaces",
            "one cannot be a namespace",
            "1 to 200 characters without control characters",
        ),
        Role::Agent if !new.node.as_ref().is_some_and(|node: &NodeId| is_name(node.as_str())) => {
            wrong("node", "an agent has none", "the id of its node")
        }
        role if role != Role::Tenant && !new.namespaces.is_empty() => {
            wrong("namespaces", "only a tenant is bound to namespaces", "role tenant, or none")
        }
        role if role != Role::Agent && new.node.is_some() => {
            wrong("node", "only an agent is bound to a node", "role agent, or none")
        }
        _ => Ok(()),
    }
}

/// Whether a text can be the name of a tenant, a node or another thing.
#[must_use]
pub fn is_name(text: &str) -> bool {
    !text.is_empty() && text.len() <= 200 && !text.chars().any(char::is_control)
}
