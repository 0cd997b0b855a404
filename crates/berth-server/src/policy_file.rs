//! A policy in a file next to the server: activated when it changes, like any other.
//!
//! What was last put in force from a file is a document of the ledger, written in the same commit. So
//! a policy that was activated by command since stays active, also across a restart, until the file
//! changes again; and of several servers with the same file the first one acts. A file that cannot
//! be used changes nothing.

use std::path::{Path, PathBuf};

use berth_engine::Policy;
use berth_ledger::{Answer, DocumentWrite, Expect, LedgerError, Op, Outcome, Text, WithDocuments};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use berth_control::ControlPlane;
use berth_control::caller::Caller;

/// The kind and the id of the document that records what was last activated from a file.
const KIND: &str = "policy_file";
const ID: &str = "last";

/// How often it is tried while other servers do the same.
const TRIES: u32 = 5;

/// Names that paths and queries mean something else by.
const RESERVED: [&str; 4] = ["active", "diff", "rollback", "validate"];

/// What names of policies are accepted.
pub(crate) const ACCEPTED_NAMES: &str =
    "1 to 200 characters, and not active, diff, rollback or validate";

/// Whether a policy may have this name.
pub(crate) fn is_policy_name(name: &str) -> bool {
    !RESERVED.contains(&name) && berth_control::caller::is_name(name)
}

/// A file that cannot be put in force.
#[derive(Debug, Error)]
pub enum PolicyFileError {
    /// It cannot be read.
    #[error("it cannot be read: {0}")]
    Unreadable(#[from] std::io::Error),
    /// It is no policy. The message names key, value and what would be accepted.
    #[error("{0}")]
    Invalid(#[from] berth_engine::PolicyError),
    /// Its name means something else.
    #[error("name is {0:?}; accepted is {ACCEPTED_NAMES}")]
    Name(String),
    /// The ledger did not take it.
    #[error("the ledger did not take it: {0}")]
    Ledger(String),
}

/// What became of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ApplyOutcome {
    /// It is in force since.
    Activated {
        /// Its name.
        name: String,
        /// The hash of its content.
        hash: String,
    },
    /// It was put in force before, by this server or another. What is in force now may be another
    /// policy, put in force by command since.
    Unchanged,
}

/// What is remembered of the last file that was put in force.
#[derive(Serialize, Deserialize)]
struct LastActivation {
    hash: String,
}

/// The file of a server.
#[derive(Debug)]
pub struct PolicyFile {
    path: PathBuf,
    /// What was read the last time.
    text: Option<String>,
}

impl PolicyFile {
    /// A file that was not looked at yet.
    #[must_use]
    pub const fn new(path: PathBuf) -> Self {
        Self { path, text: None }
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Reads the file, activates its policy if it changed, and logs the result. Unless asked
    /// for, a file that reads as it did before is not spoken of again.
    pub async fn check_file(&mut self, control: &ControlPlane, asked: bool) {
        let path = self.path.display().to_string();
        let text = tokio::fs::read_to_string(&self.path).await;
        if let Ok(text) = &text {
            let same = self.text.as_deref() == Some(text);
            if same && !asked {
                return;
            }
            self.text = Some(text.clone());
        }
        let applied = match text {
            Ok(text) => self.apply(control, &text).await,
            Err(error) => Err(PolicyFileError::Unreadable(error)),
        };
        match applied {
            Ok(ApplyOutcome::Activated { name, hash }) => {
                tracing::info!(path, name, hash, "activated policy from file");
            }
            Ok(ApplyOutcome::Unchanged) => {
                tracing::info!(path, "policy from file was activated before");
            }
            Err(error) => {
                // Looked at again the next time, whatever it was.
                self.text = None;
                tracing::error!(path, "policy.file rejected, keeping the active policy: {error}");
            }
        }
    }

    /// Puts a text in force, unless it was before.
    async fn apply(
        &self,
        control: &ControlPlane,
        text: &str,
    ) -> Result<ApplyOutcome, PolicyFileError> {
        let is_json = self.path.extension().is_some_and(|extension| extension == "json");
        let policy = if is_json { Policy::from_json(text) } else { Policy::from_toml(text) }?;
        if !is_policy_name(policy.name()) {
            return Err(PolicyFileError::Name(policy.name().to_owned()));
        }
        for _ in 0..TRIES {
            if let Some(applied) = self.activate(control, &policy).await? {
                return Ok(applied);
            }
        }
        Err(PolicyFileError::Ledger(
            "other servers keep activating policies from other files".to_owned(),
        ))
    }

    /// Puts a policy in force, unless it was before; absent: another server was faster, with this
    /// file or another.
    async fn activate(
        &self,
        control: &ControlPlane,
        policy: &Policy,
    ) -> Result<Option<ApplyOutcome>, PolicyFileError> {
        let (name, hash) = (policy.name().to_owned(), policy.hash().to_string());
        let unknown = |error: &dyn std::fmt::Display| PolicyFileError::Ledger(error.to_string());
        let read = control.read(|ledger| ledger.document(KIND, ID)).await;
        let last = read.map_err(|error| PolicyFileError::Ledger(error.detail().to_owned()))?;
        let known =
            last.as_ref().and_then(|it| serde_json::from_str::<LastActivation>(&it.body).ok());
        if known.is_some_and(|last| last.hash == hash) {
            return Ok(Some(ApplyOutcome::Unchanged));
        }
        let body = serde_json::to_string(&LastActivation { hash: hash.clone() });
        let expect = last.map_or(Expect::Absent, |last| Expect::Revision(last.rev));
        let document = DocumentWrite {
            kind: Text::from(KIND),
            id: Text::from(ID),
            body: body.map_err(|error| unknown(&error))?,
            expect,
        };
        let (stored, expect) = (policy.to_json(), None);
        let op =
            Op::ActivatePolicy { name: name.clone(), hash: hash.clone(), body: stored, expect };
        let op = Op::WithDocuments(Box::new(WithDocuments { op, documents: vec![document] }));
        let caller = Caller::local(&format!("policy.file {}", self.path.display()));
        let subject = format!("{name} {hash}");
        let answer = control.call(&caller, "policy.activate", subject, None, op).await;
        match answer.map_err(|error: LedgerError| unknown(&error))? {
            Answer::Outcome(Outcome::Done | Outcome::Unchanged) => {
                control.wait_for_read_your_writes().await;
                Ok(Some(ApplyOutcome::Activated { name, hash }))
            }
            Answer::Outcome(Outcome::Stale { .. }) => Ok(None),
            other => Err(unknown(&format!("{other:?}"))),
        }
    }
}
