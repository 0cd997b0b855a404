//! A policy as it is sent: TOML, bare or in JSON.

use axum::body::Bytes;
use axum::extract::{FromRequest, Request};
use berth_api::limits::{Limited, Meter, table};
use berth_api::{FieldError, PolicyText};
use berth_engine::Policy;
use berth_engine::PolicyError;
use http::{StatusCode, header};

use crate::http::extract::{Json, unreadable};
use crate::policy_file::{ACCEPTED_NAMES, is_policy_name};
use crate::problem::{ApiError, ApiResult};
use crate::state::AppState;

/// A policy that was read and found valid.
pub(super) struct PolicyBody(pub(super) Policy);

impl FromRequest<AppState> for PolicyBody {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &AppState) -> Result<Self, ApiError> {
        let kind = request.headers().get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
        let kind = kind.unwrap_or("nothing").to_owned();
        let essence = kind.split(';').next().unwrap_or("").trim().to_ascii_lowercase();
        let text = match essence.as_str() {
            "application/toml" => {
                let bytes = Bytes::from_request(request, state).await.map_err(unreadable)?;
                String::from_utf8(bytes.to_vec()).map_err(|error| {
                    ApiError::invalid(format!("the body is not text in UTF-8: {error}"))
                })?
            }
            "application/json" => Json::<PolicyText>::from_request(request, state).await?.0.toml,
            _ => {
                let title = "unsupported media type";
                let detail = format!(
                    "Content-Type is {kind}; accepted are application/toml and application/json"
                );
                let status = StatusCode::UNSUPPORTED_MEDIA_TYPE;
                return Err(ApiError::new(status, "unsupported_media_type", title, detail));
            }
        };
        let checked = text.check(table::POLICY_TEXT, &mut Meter::default());
        checked.map_err(|error| error.inside("toml"))?;
        read(&text).map(Self)
    }
}

/// Reads a policy in TOML.
pub(super) fn read(text: &str) -> ApiResult<Policy> {
    let policy = Policy::from_toml(text).map_err(|first| {
        let problems = Policy::problems_in_toml(text);
        let lines: Vec<String> = problems.iter().map(ToString::to_string).collect();
        let detail = if lines.is_empty() { first.to_string() } else { lines.join("\n") };
        let fields = problems.into_iter().filter_map(|problem| field_error(problem.error));
        fields.fold(ApiError::invalid(detail), ApiError::with_field)
    })?;
    let name = policy.name();
    if !is_policy_name(name) {
        return Err(ApiError::field("name", Some(format!("{name:?}")), ACCEPTED_NAMES));
    }
    Ok(policy)
}

/// The field that an error is about; none if the text could not be read that far.
fn field_error(error: PolicyError) -> Option<FieldError> {
    match error {
        PolicyError::Syntax { .. } => None,
        PolicyError::OutOfRange { key, value, accepted }
        | PolicyError::UnknownName { key, value, accepted } => {
            Some(FieldError { field: key, value: Some(value), accepted })
        }
    }
}
