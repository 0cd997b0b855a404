//! What a failed API request means for the change that it was to make.

use std::time::Duration;

/// Why a request failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ApiFailure {
    /// 404: the object does not exist.
    NotFound(String),
    /// 409: the object changed, or the change is not allowed. Nothing was changed.
    Conflict(String),
    /// 429: not now. Nothing was changed.
    RetryLater {
        /// How long to wait, if the server says.
        after: Option<Duration>,
        /// The server's message.
        reason: String,
    },
    /// 403: not allowed, or not yet: an API server that has just started forbids everything until it has read
    /// the roles. Nothing was changed.
    Forbidden(String),
    /// Any other 4xx. Nothing was changed.
    Rejected(String),
    /// 5xx, a broken connection, or no answer: the change may have been made or not.
    Unknown(String),
}

impl ApiFailure {
    /// Classifies an error of the client; the second value is its code for the metrics.
    pub(crate) fn classify(error: &kube::Error) -> (Self, String) {
        let kube::Error::Api(status) = error else {
            return (Self::Unknown(error.to_string()), "transport".to_owned());
        };
        let reason = format!("{} ({})", status.message, status.code);
        let failure = match status.code {
            404 => Self::NotFound(reason),
            409 => Self::Conflict(reason),
            429 => {
                let seconds = status.details.as_ref().map(|it| it.retry_after_seconds);
                let after = seconds.filter(|it| *it > 0).map(|it| Duration::from_secs(it.into()));
                Self::RetryLater { after, reason }
            }
            // In a namespace that is being deleted nothing can be created any more.
            403 if !is_namespace_terminating(status) => Self::Forbidden(reason),
            400..=499 => Self::Rejected(reason),
            _ => Self::Unknown(reason),
        };
        (failure, status.code.to_string())
    }

    /// No answer arrived in time.
    pub(crate) fn timed_out(timeout: Duration) -> Self {
        Self::Unknown(format!("no answer within {} s", timeout.as_secs()))
    }

    /// The server's message.
    pub(crate) fn reason(&self) -> &str {
        match self {
            Self::NotFound(reason)
            | Self::Conflict(reason)
            | Self::RetryLater { reason, .. }
            | Self::Forbidden(reason)
            | Self::Rejected(reason)
            | Self::Unknown(reason) => reason,
        }
    }

    /// Whether a retry may succeed.
    pub(crate) fn is_transient(&self) -> bool {
        matches!(self, Self::RetryLater { .. } | Self::Forbidden(_) | Self::Unknown(_))
    }
}

fn is_namespace_terminating(status: &kube::core::Status) -> bool {
    let causes = status.details.iter().flat_map(|it| &it.causes);
    causes.into_iter().any(|it| it.reason == "NamespaceTerminating")
}
