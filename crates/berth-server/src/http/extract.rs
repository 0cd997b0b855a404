//! Reading requests: bodies, queries and paths, with errors that name the field.

use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::rejection::BytesRejection;
use axum::extract::{FromRequest, FromRequestParts, Request};
use berth_api::FieldError;
use berth_api::data_error::DataError;
use berth_api::limits::{Excess, LimitExceeded, Limited, Meter, table};
use http::request::Parts;
use http::{HeaderMap, StatusCode, header};
use serde::de::DeserializeOwned;

use crate::problem::ApiError;
use crate::state::AppState;
use berth_control::ControlPlane;
use berth_control::caller::Caller;

/// A JSON body.
pub(crate) struct Json<T>(pub T);

/// A JSON body that may be absent, which means its default.
pub(crate) struct OptionalJson<T>(pub T);

/// The query of a URL.
pub(crate) struct Query<T>(pub T);

/// The variable part of a path.
pub(crate) struct Path<T>(pub T);

/// A version that the caller expects, from `If-Match`; absent: any.
#[derive(Default)]
pub(crate) struct IfMatch(pub Option<String>);

impl<T: DeserializeOwned + Limited> FromRequest<AppState> for Json<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &AppState) -> Result<Self, ApiError> {
        must_be_json(request.headers())?;
        let bytes = Bytes::from_request(request, state).await.map_err(unreadable)?;
        read_limited(&bytes).map(Self)
    }
}

impl<T: DeserializeOwned + Default + Limited> FromRequest<AppState> for OptionalJson<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &AppState) -> Result<Self, ApiError> {
        let is_json = must_be_json(request.headers());
        let bytes = Bytes::from_request(request, state).await.map_err(unreadable)?;
        if bytes.is_empty() {
            return Ok(Self(T::default()));
        }
        is_json?;
        read_limited(&bytes).map(Self)
    }
}

/// Reads JSON, and refuses what exceeds a limit.
fn read_limited<T: DeserializeOwned + Limited>(bytes: &[u8]) -> Result<T, ApiError> {
    let value: T = read_json(bytes)?;
    value.check_limits()?;
    Ok(value)
}

/// Reads JSON. What is wrong is looked for only when something is.
pub(crate) fn read_json<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, ApiError> {
    serde_json::from_slice(bytes).map_err(|_| {
        let mut input = serde_json::Deserializer::from_slice(bytes);
        match serde_path_to_error::deserialize::<_, T>(&mut input) {
            Err(error) => wrong_json(&error),
            Ok(_) => ApiError::invalid("the body has trailing data; send one JSON value"),
        }
    })
}

fn wrong_json(error: &serde_path_to_error::Error<serde_json::Error>) -> ApiError {
    let (path, inner) = (error.path().to_string(), error.inner());
    if inner.is_syntax() || inner.is_eof() {
        return ApiError::invalid(format!("the body is not JSON: {inner}"))
            .remedy("send one JSON object with Content-Type: application/json");
    }
    let error = DataError::new("the body", &path, &inner.to_string());
    let problem = ApiError::invalid(error.to_string());
    let accepted = error.accepted().to_owned();
    let field = if error.field.is_empty() { "the body".to_owned() } else { error.field };
    problem.with_field(FieldError { field, value: error.value, accepted })
}

/// A query that does not have the expected form: its error is a path and a message of the library.
fn wrong_query(text: &str) -> ApiError {
    let text = text.strip_prefix("Failed to deserialize query string: ").unwrap_or(text);
    let is_path =
        |path: &str| path.chars().all(|c| c.is_ascii_alphanumeric() || "_.[]".contains(c));
    let parts = text.split_once(": ").filter(|(path, _)| is_path(path));
    let (path, message) = parts.unwrap_or((".", text));
    let error = DataError::new("the query", path, message);
    let accepted = error.accepted().to_owned();
    let problem = ApiError::invalid(format!("query: {error}"));
    let field = if error.field.is_empty() { "the query".to_owned() } else { error.field };
    problem.with_field(FieldError { field, value: error.value, accepted })
}

fn must_be_json(headers: &HeaderMap) -> Result<(), ApiError> {
    let kind = headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    let essence = kind.map(|kind| kind.split(';').next().unwrap_or("").trim());
    let is_json = essence.is_some_and(|kind| {
        kind.eq_ignore_ascii_case("application/json")
            || kind.eq_ignore_ascii_case("application/merge-patch+json")
    });
    if is_json {
        return Ok(());
    }
    let title = "unsupported media type";
    let found = kind.unwrap_or("nothing");
    let detail = format!("Content-Type is {found}; accepted is application/json");
    let status = StatusCode::UNSUPPORTED_MEDIA_TYPE;
    Err(ApiError::new(status, "unsupported_media_type", title, detail))
}

/// A body that could not be received.
pub(crate) fn unreadable(rejection: BytesRejection) -> ApiError {
    if rejection.status() == StatusCode::PAYLOAD_TOO_LARGE {
        return too_large();
    }
    ApiError::invalid(format!("the body could not be read: {}", rejection.body_text()))
}

/// The body is larger than the server takes.
pub(crate) fn too_large() -> ApiError {
    let detail = "the body is larger than this server accepts";
    let title = "the body is too large";
    ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "body_too_large", title, detail)
        .remedy("send it in parts, or have an operator raise http.body_limit")
}

impl<T: DeserializeOwned> FromRequestParts<AppState> for Query<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &AppState) -> Result<Self, ApiError> {
        check_query(&parts.uri)?;
        let query = axum::extract::Query::<T>::try_from_uri(&parts.uri);
        match query {
            Ok(query) => Ok(Self(query.0)),
            Err(rejection) => Err(wrong_query(&rejection.body_text())),
        }
    }
}

impl<T: DeserializeOwned + Send> FromRequestParts<AppState> for Path<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &AppState) -> Result<Self, ApiError> {
        check_path(parts, state).await?;
        let path = axum::extract::Path::<T>::from_request_parts(parts, state).await;
        match path {
            Ok(path) => Ok(Self(path.0)),
            Err(rejection) => Err(ApiError::invalid(format!("path: {}", rejection.body_text()))),
        }
    }
}

/// Refuses a query with a value that exceeds its limit.
fn check_query(uri: &http::Uri) -> Result<(), ApiError> {
    let Ok(pairs) = axum::extract::Query::<Vec<(String, String)>>::try_from_uri(uri) else {
        // What is wrong with it is said by the reader of the query.
        return Ok(());
    };
    for (name, value) in &pairs.0 {
        let checked = name.check(table::NAME, &mut Meter::default());
        let checked =
            checked.and_then(|()| value.check(table::query_value(name), &mut Meter::default()));
        checked.map_err(|error| error.inside(&name.chars().take(40).collect::<String>()))?;
    }
    Ok(())
}

/// Refuses a path with a name that exceeds its limit. Most paths are so short and plain that they
/// need not be taken apart for that.
async fn check_path(parts: &mut Parts, state: &AppState) -> Result<(), ApiError> {
    let path = parts.uri.path();
    let is_plain = |byte: u8| byte.is_ascii_graphic() && byte != b'%';
    if path.len() <= table::NAME.most() && path.bytes().all(is_plain) {
        return Ok(());
    }
    let names = axum::extract::RawPathParams::from_request_parts(parts, state).await;
    let Ok(names) = names else { return Ok(()) };
    for (name, value) in &names {
        // Names that are no longer accepted must still be found, to be removed.
        let mut meter = Meter { ignores_control: true, ..Meter::default() };
        let checked = value.check(table::NAME, &mut meter);
        let checked = checked.and_then(|()| match value.chars().find(|it| it.is_control()) {
            Some(found) => Err(LimitExceeded::new(Excess::Control(found))),
            None => Ok(()),
        });
        checked.map_err(|error| error.inside(name))?;
    }
    Ok(())
}

impl FromRequestParts<AppState> for IfMatch {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &AppState) -> Result<Self, ApiError> {
        let Some(value) = parts.headers.get(header::IF_MATCH) else { return Ok(Self(None)) };
        let text = value.to_str().unwrap_or("").trim();
        if text == "*" {
            return Ok(Self(None));
        }
        match text.strip_prefix('"').and_then(|text| text.strip_suffix('"')) {
            Some(version) => Ok(Self(Some(version.to_owned()))),
            None => Err(ApiError::field(
                "If-Match",
                Some(format!("{text:?}")),
                "an ETag in quotes as the server sent it, or *",
            )),
        }
    }
}

impl IfMatch {
    /// The expected version as a number.
    pub(crate) fn number(&self) -> Result<Option<i64>, ApiError> {
        let Some(text) = &self.0 else { return Ok(None) };
        text.parse().map(Some).map_err(|_| {
            ApiError::field("If-Match", Some(format!("{text:?}")), "an ETag as the server sent it")
        })
    }
}

impl FromRequestParts<AppState> for Caller {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &AppState) -> Result<Self, ApiError> {
        parts.extensions.get::<Self>().cloned().ok_or_else(super::auth::not_signed_in)
    }
}

/// What almost every handler needs: the control plane, and who calls.
pub(crate) struct RequestContext {
    /// The control plane.
    pub(crate) control: Arc<ControlPlane>,
    /// Who sends the request.
    pub(crate) caller: Caller,
}

impl FromRequestParts<AppState> for RequestContext {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &AppState) -> Result<Self, ApiError> {
        let caller = Caller::from_request_parts(parts, state).await?;
        Ok(Self { control: Arc::clone(&state.control), caller })
    }
}

#[cfg(test)]
mod tests {
    use super::wrong_query;

    #[test]
    fn a_wrong_query_is_described_without_words_of_the_library() {
        let prefix = "Failed to deserialize query string: ";
        let cases = [
            (
                "limit: invalid digit found in string",
                "query: limit is no whole number; accepted is 0 or more",
            ),
            (
                "unknown field `lmit`, expected `limit` or `after`",
                "query: lmit is unknown; did you mean limit? accepted are limit, after",
            ),
            ("missing field `tenant`", "query: tenant is missing"),
        ];
        for (text, expected) in cases {
            assert_eq!(wrong_query(&format!("{prefix}{text}")).problem().detail, expected);
        }
    }
}
