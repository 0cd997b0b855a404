//! API errors: the `Status` object, with the texts and details of the real server.
//!
//! Clients should read `reason` and `details`, never the message; all are imitated because all are checked.

use std::fmt;

use serde_json::{Value, json};

use crate::resource::Resource;

/// A rejected request: an HTTP code and a `Status` object.
#[derive(Clone, Debug, PartialEq)]
pub struct Failure {
    /// The HTTP status code.
    pub code: u16,
    /// The machine-readable reason, such as `NotFound`.
    pub reason: &'static str,
    /// The message for people.
    pub message: String,
    /// `details` of the status.
    pub details: Value,
    /// The token with which an expired list can be continued, without consistency.
    pub go_on: Option<String>,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}: {}", self.code, self.reason, self.message)
    }
}

impl std::error::Error for Failure {}

/// An invalid field.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Cause {
    reason: &'static str,
    field: String,
    message: String,
}

impl Cause {
    pub(crate) fn required(field: impl Into<String>, text: &str) -> Self {
        let message = if text.is_empty() {
            "Required value".into()
        } else {
            format!("Required value: {text}")
        };
        Self { reason: "FieldValueRequired", field: field.into(), message }
    }

    pub(crate) fn invalid(field: impl Into<String>, value: &Value, text: &str) -> Self {
        Self {
            reason: "FieldValueInvalid",
            field: field.into(),
            message: format!("Invalid value: {value}: {text}"),
        }
    }

    pub(crate) fn forbidden(field: impl Into<String>, text: &str) -> Self {
        let message = format!("Forbidden: {text}");
        Self { reason: "FieldValueForbidden", field: field.into(), message }
    }

    pub(crate) fn duplicate(field: impl Into<String>, value: &str) -> Self {
        let message = format!("Duplicate value: {value:?}");
        Self { reason: "FieldValueDuplicate", field: field.into(), message }
    }

    pub(crate) fn unsupported(field: impl Into<String>, value: &str, known: &[&str]) -> Self {
        let known: Vec<String> = known.iter().map(|word| format!("{word:?}")).collect();
        let message =
            format!("Unsupported value: {value:?}: supported values: {}", known.join(", "));
        Self { reason: "FieldValueNotSupported", field: field.into(), message }
    }
}

impl Failure {
    fn plain(code: u16, reason: &'static str, message: impl Into<String>) -> Self {
        Self { code, reason, message: message.into(), details: Value::Null, go_on: None }
    }

    fn about(resource: &Resource, name: &str) -> Value {
        let mut details = json!({ "kind": resource.plural });
        if !name.is_empty() {
            details["name"] = json!(name);
        }
        if !resource.group.is_empty() {
            details["group"] = json!(resource.group);
        }
        details
    }

    pub(crate) fn bad_request(message: impl Into<String>) -> Self {
        Self::plain(400, "BadRequest", message)
    }

    pub(crate) fn unauthorized() -> Self {
        Self::plain(401, "Unauthorized", "Unauthorized")
    }

    /// A path without a resource.
    pub(crate) fn no_such_path() -> Self {
        let message = "the server could not find the requested resource";
        Self { details: json!({}), ..Self::plain(404, "NotFound", message) }
    }

    pub(crate) fn not_found(resource: &Resource, name: &str) -> Self {
        let message = format!("{} {name:?} not found", resource.qualified());
        Self { details: Self::about(resource, name), ..Self::plain(404, "NotFound", message) }
    }

    pub(crate) fn forbidden(resource: &Resource, name: &str, why: impl fmt::Display) -> Self {
        let what = if name.is_empty() {
            format!("{} is forbidden: {why}", resource.qualified())
        } else {
            format!("{} {name:?} is forbidden: {why}", resource.qualified())
        };
        Self { details: Self::about(resource, name), ..Self::plain(403, "Forbidden", what) }
    }

    pub(crate) fn method_not_allowed() -> Self {
        let message = "the server does not allow this method on the requested resource";
        Self { details: json!({}), ..Self::plain(405, "MethodNotAllowed", message) }
    }

    pub(crate) fn already_exists(resource: &Resource, name: &str) -> Self {
        let message = format!("{} {name:?} already exists", resource.qualified());
        Self { details: Self::about(resource, name), ..Self::plain(409, "AlreadyExists", message) }
    }

    pub(crate) fn conflict(resource: &Resource, name: &str, why: impl fmt::Display) -> Self {
        Self::conflict_on(resource, "", name, why)
    }

    pub(crate) fn conflict_on(
        resource: &Resource,
        subresource: &str,
        name: &str,
        why: impl fmt::Display,
    ) -> Self {
        let mut details = Self::about(resource, name);
        let mut what = resource.qualified();
        if !subresource.is_empty() {
            details["kind"] = json!(format!("{}/{subresource}", resource.plural));
            what = format!("{}/{subresource}", resource.plural);
            if !resource.group.is_empty() {
                what = format!("{what}.{}", resource.group);
            }
        }
        let message = format!("Operation cannot be fulfilled on {what} {name:?}: {why}");
        Self { details, ..Self::plain(409, "Conflict", message) }
    }

    /// Another client wrote since the caller read.
    pub(crate) fn stale(resource: &Resource, name: &str) -> Self {
        let why = "the object has been modified; please apply your changes to the latest version \
                   and try again";
        Self::conflict(resource, name, why)
    }

    pub(crate) fn expired(message: impl Into<String>) -> Self {
        Self::plain(410, "Expired", message)
    }

    /// A watch or list from an expired version.
    pub(crate) fn too_old(requested: u64, oldest: u64) -> Self {
        Self::expired(format!("too old resource version: {requested} ({oldest})"))
    }

    pub(crate) fn too_large_version(requested: u64, current: u64) -> Self {
        let message =
            format!("Timeout: Too large resource version: {requested}, current: {current}");
        let details = json!({
            "causes": [{
                "reason": "ResourceVersionTooLarge",
                "message": "Too large resource version",
            }],
            "retryAfterSeconds": 1,
        });
        Self { details, ..Self::plain(504, "Timeout", message) }
    }

    pub(crate) fn unsupported_media_type(accepted: &str) -> Self {
        let message = format!(
            "the body of the request was in an unknown format - accepted media types include: \
             {accepted}"
        );
        Self::plain(415, "UnsupportedMediaType", message)
    }

    pub(crate) fn too_large_body() -> Self {
        let message = "the request is too large: the limit is 3145728 bytes";
        Self::plain(413, "RequestEntityTooLarge", message)
    }

    pub(crate) fn invalid(resource: &Resource, name: &str, causes: &[Cause]) -> Self {
        Self::invalid_kind(&resource.group, &resource.kind, name, causes)
    }

    pub(crate) fn invalid_kind(group: &str, kind: &str, name: &str, causes: &[Cause]) -> Self {
        let sentences: Vec<String> =
            causes.iter().map(|cause| format!("{}: {}", cause.field, cause.message)).collect();
        let text = match sentences.as_slice() {
            [one] => one.clone(),
            many => format!("[{}]", many.join(", ")),
        };
        let qualified = if group.is_empty() { kind.into() } else { format!("{kind}.{group}") };
        let message = format!("{qualified} {name:?} is invalid: {text}");
        let causes: Vec<Value> = causes
            .iter()
            .map(|cause| {
                json!({
                    "reason": cause.reason, "message": cause.message, "field": cause.field,
                })
            })
            .collect();
        let mut details = json!({ "name": name, "kind": kind, "causes": causes });
        if !group.is_empty() {
            details["group"] = json!(group);
        }
        Self { details, ..Self::plain(422, "Invalid", message) }
    }

    /// A JSON patch whose test failed, or that does not apply.
    pub(crate) fn patch_does_not_apply(message: impl Into<String>) -> Self {
        Self::plain(
            422,
            "Invalid",
            format!(
                "the server rejected our request due to an error in our request: {}",
                message.into()
            ),
        )
    }

    pub(crate) fn too_many_requests(message: &str, retry_after_s: u64, causes: Value) -> Self {
        let mut details = json!({});
        if retry_after_s > 0 {
            details["retryAfterSeconds"] = json!(retry_after_s);
        }
        if !causes.is_null() {
            details["causes"] = causes;
        }
        Self { details, ..Self::plain(429, "TooManyRequests", message) }
    }

    pub(crate) fn internal(message: impl fmt::Display) -> Self {
        let text = message.to_string();
        let details = json!({ "causes": [{ "message": text }] });
        let message = format!("Internal error occurred: {text}");
        Self { details, ..Self::plain(500, "InternalError", message) }
    }

    pub(crate) fn unavailable() -> Self {
        let message = "the server is currently unable to handle the request";
        Self { details: json!({}), ..Self::plain(503, "ServiceUnavailable", message) }
    }

    pub(crate) fn timeout() -> Self {
        let message = "Timeout: request did not complete within the allotted timeout";
        Self { details: json!({}), ..Self::plain(504, "Timeout", message) }
    }

    /// A rejection by a webhook, with its code.
    pub(crate) fn denied(code: u16, reason: &str, message: String) -> Self {
        let reason = match reason {
            "Forbidden" => "Forbidden",
            "Invalid" => "Invalid",
            "NotFound" => "NotFound",
            "Conflict" => "Conflict",
            "AlreadyExists" => "AlreadyExists",
            "TooManyRequests" => "TooManyRequests",
            "BadRequest" => "BadRequest",
            _ => "",
        };
        Self::plain(code, reason, message)
    }

    /// The seconds of the header `Retry-After`, if any.
    pub(crate) fn retry_after_s(&self) -> Option<u64> {
        self.details["retryAfterSeconds"].as_u64().filter(|seconds| *seconds > 0)
    }

    /// The `Status` object.
    #[must_use]
    pub fn status(&self) -> Value {
        let mut status = json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": self.message, "code": self.code,
        });
        if !self.reason.is_empty() {
            status["reason"] = json!(self.reason);
        }
        if !self.details.is_null() {
            status["details"] = self.details.clone();
        }
        if let Some(token) = &self.go_on {
            status["metadata"]["continue"] = json!(token);
        }
        status
    }
}

/// The `Status` object of a success without an object.
pub(crate) fn success(code: u16, details: Option<Value>) -> Value {
    let mut status = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success",
    });
    if code == 201 {
        status["code"] = json!(201);
    }
    if let Some(details) = details {
        status["details"] = details;
    }
    status
}
