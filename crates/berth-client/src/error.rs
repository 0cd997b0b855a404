//! Errors of requests.

use berth_api::Problem;
use thiserror::Error;

/// A request that failed.
#[derive(Debug, Error)]
pub enum ClientError {
    /// The URL is invalid.
    #[error("{url:?} is not the URL of a server; accepted is one such as http://127.0.0.1:7070")]
    Url {
        /// The given URL.
        url: String,
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
    /// No server answers.
    #[error("no server answers at {url}; is it up? Start one with: berth up")]
    Unreachable {
        /// The server's URL.
        url: String,
        /// The cause.
        source: reqwest::Error,
    },
    /// The connection was lost, or timed out.
    #[error("the connection to the server failed")]
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
    #[error("the server answered {status} without a problem document: {text}")]
    Status {
        /// The HTTP status.
        status: u16,
        /// The response body.
        text: String,
    },
    /// The response cannot be decoded.
    #[error("cannot decode the server's response; are client and server of the same version?")]
    Unreadable(#[source] serde_json::Error),
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
