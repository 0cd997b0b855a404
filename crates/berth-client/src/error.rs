//! Errors of requests.

use berth_api::Problem;
use thiserror::Error;

use crate::ConnectionError;

/// A request that failed.
#[derive(Debug, Error)]
pub enum ClientError {
    /// The URL is invalid.
    #[error("{url:?}{} is not the URL of a server", in_parentheses(.configured_by))]
    Url {
        /// The given URL.
        url: String,
        /// What configured it.
        configured_by: Option<String>,
    },
    /// The token has invalid characters.
    #[error("the token has invalid characters; copy it again")]
    Token,
    /// A certificate cannot be read.
    #[error("cannot read a certificate: {0}; accepted is PEM")]
    Certificate(String),
    /// The HTTP client cannot be created.
    #[error("failed to create the HTTP client")]
    Setup(#[source] reqwest::Error),
    /// No server was reached, or it did not respond.
    #[error("cannot reach {url}{}: {cause}", in_parentheses(.configured_by))]
    Unreachable {
        /// The server's URL.
        url: String,
        /// What configured it.
        configured_by: Option<String>,
        /// Why.
        cause: ConnectionError,
    },
    /// The connection was lost in the middle of a response.
    #[error("the connection to the server was lost in the middle of a response")]
    Transport(#[source] reqwest::Error),
    /// The server returned a problem document.
    #[error("{}", .problem.detail)]
    Problem {
        /// The problem document.
        problem: Box<Problem>,
        /// Seconds after which a retry may succeed.
        retry_after: Option<u64>,
    },
    /// A server that is not Berth answered, or a proxy.
    #[error("{url} answered {status}, but not as Berth does: {}", brief(.text))]
    Status {
        /// The server's URL.
        url: String,
        /// The HTTP status.
        status: u16,
        /// The response body.
        text: String,
    },
    /// The response cannot be decoded.
    #[error("cannot decode the server's response; are client and server of the same version?")]
    Unreadable(#[source] serde_json::Error),
}

fn in_parentheses(configured_by: &Option<String>) -> String {
    configured_by.as_ref().map(|by| format!(" ({by})")).unwrap_or_default()
}

/// The beginning of a text, on one line.
fn brief(text: &str) -> String {
    const LONGEST: usize = 200;
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    match line.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line,
    }
}

impl ClientError {
    /// The stable code of a problem.
    #[must_use]
    pub fn code(&self) -> Option<&str> {
        match self {
            Self::Problem { problem, .. } => Some(&problem.code),
            _ => None,
        }
    }
}
