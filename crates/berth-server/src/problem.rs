//! Errors as callers see them: a problem document with a stable code, what happened and what helps.

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use berth_api::limits::LimitExceeded;
use berth_api::{FieldError, Problem};
use berth_control::ControlError;
use berth_control::queue::TicketError;
use berth_engine::Refusal;
use berth_ledger::{ClaimRejection, LedgerError, invariant_ok};
use http::{HeaderValue, StatusCode, header};

/// An error on its way to the caller.
#[derive(Debug)]
pub struct ApiError {
    problem: Box<Problem>,
    retry_after_s: Option<u32>,
}

/// The result of a handler.
pub type ApiResult<T> = Result<T, ApiError>;

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
            hints: Vec::new(),
            fixes: Vec::new(),
            explanation: None,
            retry: None,
            trace: None,
        };
        Self { problem: Box::new(problem), retry_after_s: None }
    }

    /// What happened.
    #[must_use]
    pub fn detail(&self) -> &str {
        &self.problem.detail
    }

    /// A request that cannot be understood.
    #[must_use]
    pub fn invalid(detail: impl Into<String>) -> Self {
        ControlError::invalid(detail).into()
    }

    /// A field that cannot be accepted.
    #[must_use]
    pub fn field(field: &str, value: Option<String>, accepted: &str) -> Self {
        ControlError::field(field, value, accepted).into()
    }

    /// There is no such resource, or this caller may not see it.
    #[must_use]
    pub fn not_found(what: &str, name: &str) -> Self {
        ControlError::not_found(what, name).into()
    }

    /// The current state does not allow the change.
    #[must_use]
    pub fn conflict(code: &'static str, detail: impl Into<String>) -> Self {
        ControlError::conflict(code, detail).into()
    }

    /// The object changed since the caller read it.
    #[must_use]
    pub fn stale(current: Option<String>) -> Self {
        ControlError::stale(current).into()
    }

    /// The server cannot answer now.
    #[must_use]
    pub fn unavailable(code: &'static str, detail: impl Into<String>) -> Self {
        ControlError::unavailable(code, detail).into()
    }

    /// Whether the caller must change something.
    #[must_use]
    pub fn is_callers(&self) -> bool {
        (400..500).contains(&self.problem.status)
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
        let body = serde_json::to_vec(&self.problem);
        let body = invariant_ok!(body, "problem_is_json", status).unwrap_or_default();
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

impl From<LimitExceeded> for ApiError {
    fn from(error: LimitExceeded) -> Self {
        ControlError::from(error).into()
    }
}

impl From<ControlError> for ApiError {
    fn from(error: ControlError) -> Self {
        let retry_after_s = error.retry_after_s();
        Self { problem: Box::new(error.into_problem()), retry_after_s }
    }
}

impl From<LedgerError> for ApiError {
    fn from(error: LedgerError) -> Self {
        ControlError::from(error).into()
    }
}

impl From<ClaimRejection> for ApiError {
    fn from(rejected: ClaimRejection) -> Self {
        ControlError::from(rejected).into()
    }
}

impl From<TicketError> for ApiError {
    fn from(error: TicketError) -> Self {
        ControlError::from(error).into()
    }
}
