//! Errors as callers see them: a problem document with a stable code, what happened and what helps.

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use berth_api::{FieldError, Problem};
use berth_engine::Refusal;
use berth_engine::elastic::InvalidWish;
use berth_ledger::{ClaimRejection, LedgerError};
use http::{HeaderValue, StatusCode, header};

/// An error on its way to the caller.
#[derive(Debug)]
pub struct ApiError {
    problem: Box<Problem>,
    retry_after_s: Option<u32>,
}

/// What a handler answers.
pub type Answer<T> = Result<T, ApiError>;

impl ApiError {
    /// An error with a status, a stable code, its meaning and what happened.
    #[must_use]
    pub fn new(status: StatusCode, code: &str, title: &str, detail: impl Into<String>) -> Self {
        let problem = Problem {
            kind: format!("/problems/{code}"),
            title: title.to_owned(),
            status: status.as_u16(),
            code: code.to_owned(),
            detail: detail.into(),
            remedy: None,
            fields: Vec::new(),
            refusals: Vec::new(),
            retry: None,
            trace: None,
        };
        Self { problem: Box::new(problem), retry_after_s: None }
    }

    /// A request that cannot be understood.
    #[must_use]
    pub fn invalid(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "invalid_request", "the request is not valid", detail)
    }

    /// A field that cannot be accepted.
    #[must_use]
    pub fn field(field: &str, value: Option<String>, accepted: &str) -> Self {
        let detail = match &value {
            Some(value) => format!("{field} is {value}; accepted is {accepted}"),
            None => format!("{field} is missing; accepted is {accepted}"),
        };
        let (field, accepted) = (field.to_owned(), accepted.to_owned());
        let mut error = Self::invalid(detail);
        error.problem.fields.push(FieldError { field, value, accepted });
        error
    }

    /// Whether it is the caller who must change something.
    #[must_use]
    pub fn is_callers(&self) -> bool {
        (400..500).contains(&self.problem.status)
    }

    /// A size that an instance cannot have.
    #[must_use]
    pub fn invalid_size(invalid: &InvalidWish) -> Self {
        let (field, value, accepted) = match invalid {
            InvalidWish::OutsideBounds { field, value, min, max } => {
                (format!("resources.{field}"), *value, format!("{min} to {max}, its bounds"))
            }
            InvalidWish::NotWholeUnits { field, value, has, unit } => (
                format!("resources.{field}"),
                *value,
                format!(
                    "a multiple of {unit}, the compute unit last told, its bounds, or {has}, what it has"
                ),
            ),
            InvalidWish::ZeroUnit { field } => {
                (format!("compute_unit.{field}"), 0, "1 or more".to_owned())
            }
        };
        Self::field(&field, Some(value.to_string()), &accepted)
    }

    /// Nothing of that name, or nothing that this caller may see.
    #[must_use]
    pub fn not_found(what: &str, name: &str) -> Self {
        let detail = format!("there is no {what} {name:?}");
        Self::new(StatusCode::NOT_FOUND, "not_found", "there is no such thing", detail)
    }

    /// A change that the present state forbids.
    #[must_use]
    pub fn conflict(code: &str, detail: impl Into<String>) -> Self {
        Self::new(StatusCode::CONFLICT, code, "the present state forbids it", detail)
    }

    /// The thing changed since the caller read it.
    #[must_use]
    pub fn stale(current: Option<String>) -> Self {
        let detail = match current {
            Some(current) => format!("it is now version {current}; read it again"),
            None => "it is not there; read it again".to_owned(),
        };
        let title = "it changed since it was read";
        Self::new(StatusCode::PRECONDITION_FAILED, "stale", title, detail)
    }

    /// The server is not in a position to answer.
    #[must_use]
    pub fn unavailable(code: &str, detail: impl Into<String>) -> Self {
        let title = "the server cannot answer now";
        Self::new(StatusCode::SERVICE_UNAVAILABLE, code, title, detail).retry_after(1)
    }

    /// The same under another title.
    #[must_use]
    pub fn titled(mut self, title: &str) -> Self {
        title.clone_into(&mut self.problem.title);
        self
    }

    /// The same with what would help.
    #[must_use]
    pub fn remedy(mut self, remedy: impl Into<String>) -> Self {
        self.problem.remedy = Some(remedy.into());
        self
    }

    /// The same with explanations of a placement.
    #[must_use]
    pub fn refusals(mut self, refusals: Vec<Refusal>) -> Self {
        self.problem.refusals = refusals;
        self
    }

    /// The same, saying whether another try may succeed.
    #[must_use]
    pub fn retry(mut self, retry: bool) -> Self {
        self.problem.retry = Some(retry);
        self
    }

    /// The same, saying when another try may succeed.
    #[must_use]
    pub fn retry_after(mut self, seconds: u32) -> Self {
        self.retry_after_s = Some(seconds);
        self.problem.retry = Some(true);
        self
    }

    /// The same with a field that cannot be accepted.
    #[must_use]
    pub fn with_field(mut self, field: FieldError) -> Self {
        self.problem.fields.push(field);
        self
    }

    /// The document.
    #[must_use]
    pub fn problem(&self) -> &Problem {
        &self.problem
    }

    /// The document, taken out.
    #[must_use]
    pub fn into_problem(self) -> Problem {
        *self.problem
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.problem.status);
        let status = status.unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let body = serde_json::to_vec(&self.problem).unwrap_or_default();
        let mut response = Response::new(Body::from(body));
        *response.status_mut() = status;
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        if status == StatusCode::UNAUTHORIZED {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        if let Some(seconds) = self.retry_after_s {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        response
    }
}

impl From<LedgerError> for ApiError {
    fn from(error: LedgerError) -> Self {
        let detail = error.to_string();
        match error {
            LedgerError::Unreachable(_) => Self::unavailable("ledger_unreachable", detail),
            LedgerError::StorageFull(_) => Self::unavailable("storage_full", detail),
            LedgerError::Contention { .. } => Self::unavailable("contention", detail),
            LedgerError::Closed => Self::unavailable("stopping", detail),
            LedgerError::CursorTooOld { .. } => {
                Self::new(StatusCode::GONE, "cursor_too_old", "the log was cut", detail)
            }
            LedgerError::CursorInFuture { .. } | LedgerError::InvalidCursor { .. } => {
                Self::invalid(detail)
            }
            LedgerError::Corrupt(_)
            | LedgerError::Database(_)
            | LedgerError::NewerSchema { .. }
            | LedgerError::InvalidUrl { .. }
            | LedgerError::InvalidUrlSetting { .. } => {
                tracing::error!(%detail, "the ledger failed");
                let title = "the ledger failed; the server's log says more";
                Self::new(StatusCode::INTERNAL_SERVER_ERROR, "ledger_failed", title, detail)
            }
        }
    }
}

impl From<ClaimRejection> for ApiError {
    fn from(rejected: ClaimRejection) -> Self {
        let code = rejected.code();
        match rejected {
            // Another tenant's claim is as if it were not there.
            ClaimRejection::NoClaim(key) | ClaimRejection::NotOwner { key, .. } => {
                Self::not_found("claim", &key.instance.to_string())
            }
            ClaimRejection::StaleFence { presented, current, .. } if presented > current => {
                let detail = format!("fence {presented} is not this claim's, which is {current}");
                Self::conflict(code, detail).remedy("read the claim: its fence and its role")
            }
            ClaimRejection::StaleFence { presented, current, .. } => Self::conflict(
                code,
                format!("fence {presented} is no longer valid, a later holder has {current}"),
            )
            .remedy("stop what runs under the old fence and read the claim again"),
            ClaimRejection::LeaseExpired { expired_at, now, .. } => {
                let late_s = (now.0 - expired_at.0) / 1_000_000;
                Self::conflict(code, format!("its lease ended {late_s} s ago"))
                    .remedy("place the instance again, with a longer lease_s or earlier renewals")
            }
            ClaimRejection::WrongState { found, wanted, .. } => {
                Self::conflict(code, format!("it is {}; this step needs {wanted}", found.name()))
            }
            ClaimRejection::NotElastic(key) => {
                let detail =
                    format!("instance {} is not elastic: it stays as large as it is", key.instance);
                Self::conflict(code, detail).remedy("place it with `elastic`: its min and its max")
            }
            ClaimRejection::Moving(key) => {
                let detail =
                    format!("instance {} is being moved and stays as large as it is", key.instance);
                Self::conflict(code, detail).remedy("ask again when the migration is over")
            }
            ClaimRejection::Wish(invalid) => Self::invalid_size(&invalid),
            ClaimRejection::Guard(guard) => Self::conflict(code, guard_in_words(&guard)),
            ClaimRejection::Refused(by) => super::refused::refused(&by),
        }
    }
}

/// What stood against a step, in one sentence.
#[must_use]
pub fn guard_in_words(guard: &berth_ledger::Guard) -> String {
    use berth_ledger::Guard;
    match guard {
        Guard::UnknownNode(node) => format!("there is no node {node}"),
        Guard::Changed { now, .. } => format!("node {} changed meanwhile", now.node),
        Guard::RulesChanged { now, .. } => {
            format!("an instance with rules of its own came to node {} meanwhile", now.node)
        }
        Guard::NotSchedulable(now) => {
            format!("node {} is {} and takes no instances", now.node, now.state.name())
        }
        Guard::Room { now, lack } => format!("node {}: {}", now.node, lack.evidence),
        Guard::Class { node, lack } => format!("node {node}: {}", lack.evidence),
        Guard::UnknownGroup(group) => format!("there is no group {group}"),
        Guard::Group { group, members, limit, .. } => {
            format!("group {group} has {members} of at most {limit} members there")
        }
        Guard::UnknownVolume(volume) => format!("there is no volume {volume}"),
        Guard::VolumeHome { volume, home } => format!("volume {volume} lives on node {home}"),
        Guard::VolumeInUse { volume, .. } => format!("volume {volume} is in use"),
        Guard::AlreadyPlaced { key, .. } => format!("instance {} is already placed", key.instance),
        Guard::SlotTaken { slot, .. } => format!("slot {} is taken", slot.slot),
    }
}
