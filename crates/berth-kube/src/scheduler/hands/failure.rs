//! What a failed request to the API server says about what it was to do.

use std::time::Duration;

/// Why a request failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// 404: it is not there.
    Gone(String),
    /// 409: it is not what it was, or must not be so. Nothing was done.
    Conflict(String),
    /// 429: not now. Nothing was done.
    Later {
        /// How long to wait, where the server says.
        after: Option<Duration>,
        /// Why.
        why: String,
    },
    /// Another 4xx: it may not be done. Nothing was done.
    Refused(String),
    /// 5xx, a connection that broke, no answer: it may have been done or not.
    Unknown(String),
}

impl Failure {
    /// What an error of the client says, and its code for the metrics.
    pub(crate) fn read(error: &kube::Error) -> (Self, String) {
        let kube::Error::Api(status) = error else {
            return (Self::Unknown(error.to_string()), "transport".to_owned());
        };
        let why = format!("{} ({})", status.message, status.code);
        let failure = match status.code {
            404 => Self::Gone(why),
            409 => Self::Conflict(why),
            429 => {
                let seconds = status.details.as_ref().map(|it| it.retry_after_seconds);
                let after = seconds.filter(|it| *it > 0).map(|it| Duration::from_secs(it.into()));
                Self::Later { after, why }
            }
            400..=499 => Self::Refused(why),
            _ => Self::Unknown(why),
        };
        (failure, status.code.to_string())
    }

    /// No answer came in time.
    pub(crate) fn timed_out(patience: Duration) -> Self {
        Self::Unknown(format!("no answer within {} s", patience.as_secs()))
    }

    /// Why, in words.
    pub(crate) fn why(&self) -> &str {
        match self {
            Self::Gone(why)
            | Self::Conflict(why)
            | Self::Later { why, .. }
            | Self::Refused(why)
            | Self::Unknown(why) => why,
        }
    }

    /// Whether asking again may give another answer.
    pub(crate) fn may_pass(&self) -> bool {
        matches!(self, Self::Later { .. } | Self::Unknown(_))
    }
}
