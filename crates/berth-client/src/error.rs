//! What can go wrong between a client and its server.

use berth_api::Problem;
use thiserror::Error;

/// A request that was not fulfilled.
#[derive(Debug, Error)]
pub enum ClientError {
    /// The URL is none.
    #[error("{url:?} is not a server's URL; give one like http://127.0.0.1:7070")]
    Url {
        /// What was given.
        url: String,
    },
    /// The token cannot be sent.
    #[error("the token has characters that no token has; copy it again")]
    Token,
    /// A certificate cannot be read.
    #[error("a certificate cannot be read: {0}; give it in PEM")]
    Certificate(String),
    /// The client cannot be set up.
    #[error("the client cannot be set up")]
    Setup(#[source] reqwest::Error),
    /// Nothing answers there.
    #[error("no server answers at {url}; is it up? Start one with: berth up")]
    Unreachable {
        /// The server's URL.
        url: String,
        /// Why.
        source: reqwest::Error,
    },
    /// The connection broke or took too long.
    #[error("the connection to the server failed")]
    Transport(#[source] reqwest::Error),
    /// The server says what is wrong.
    #[error("{}", .problem.detail)]
    Problem {
        /// What is wrong.
        problem: Box<Problem>,
        /// Seconds after which another try may succeed.
        retry_after: Option<u64>,
    },
    /// Something that is not Berth answered, or a proxy before it.
    #[error("the server answered {status} and no explanation: {text}")]
    Status {
        /// The HTTP status.
        status: u16,
        /// What it said.
        text: String,
    },
    /// The answer cannot be read.
    #[error("the server's answer cannot be read; are client and server of the same version?")]
    Unreadable(#[source] serde_json::Error),
}

impl ClientError {
    /// The stable code, where the server gave one.
    #[must_use]
    pub fn code(&self) -> Option<&str> {
        match self {
            Self::Problem { problem, .. } => Some(&problem.code),
            _ => None,
        }
    }
}
