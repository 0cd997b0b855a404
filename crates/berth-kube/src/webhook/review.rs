//! AdmissionReview v1: requests and responses.
//!
//! Reads only what is needed, so that unusual pods are no error. Decides nothing.

use std::collections::BTreeMap;

use berth_ledger::invariant_ok;
use k8s_openapi::ByteString;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use thiserror::Error;

const API_VERSION: &str = "admission.k8s.io/v1";

/// kubectl shows warnings up to about this length.
const WARNING_CHARS: usize = 120;

/// A body that is not a review.
#[derive(Debug, Error)]
pub(super) enum InvalidReview {
    #[error("the body is not JSON: {0}")]
    Json(serde_json::Error),
    #[error("the body is not an AdmissionReview: {0}")]
    Shape(serde_json::Error),
    #[error("{field} is {found:?}; accepted is {accepted}")]
    Field { field: &'static str, found: String, accepted: &'static str },
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Envelope {
    #[serde(default)]
    api_version: String,
    #[serde(default)]
    kind: String,
    #[serde(default)]
    request: Option<AdmissionRequest>,
}

/// A request.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct AdmissionRequest {
    /// Identifies this call, not the pod.
    #[serde(default)]
    pub(super) uid: String,
    #[serde(default)]
    kind: Kind,
    #[serde(default)]
    sub_resource: Option<String>,
    #[serde(default)]
    pub(super) namespace: Option<String>,
    #[serde(default)]
    operation: String,
    /// The pod.
    #[serde(default)]
    pub(super) object: Value,
    #[serde(default)]
    dry_run: Option<bool>,
}

#[derive(Debug, Default, Deserialize)]
struct Kind {
    #[serde(default)]
    group: String,
    #[serde(default)]
    kind: String,
}

impl AdmissionRequest {
    /// Parses a review.
    pub(super) fn read(body: &[u8]) -> Result<Self, InvalidReview> {
        let value: Value = serde_json::from_slice(body).map_err(InvalidReview::Json)?;
        let envelope: Envelope = serde_json::from_value(value).map_err(InvalidReview::Shape)?;
        let field = |field, found: &str, accepted| {
            Err(InvalidReview::Field { field, found: found.to_owned(), accepted })
        };
        if envelope.kind != "AdmissionReview" {
            return field("kind", &envelope.kind, "AdmissionReview");
        }
        if envelope.api_version != API_VERSION {
            return field("apiVersion", &envelope.api_version, API_VERSION);
        }
        let Some(request) = envelope.request else {
            return field("request", "absent", "an admission request");
        };
        if request.uid.is_empty() {
            return field("request.uid", "", "the id of the call");
        }
        Ok(request)
    }

    /// Whether a pod is being created; everything else is ignored.
    pub(super) fn creates_a_pod(&self) -> bool {
        let pod = self.kind.group.is_empty() && self.kind.kind == "Pod";
        let workload = self.sub_resource.as_deref().unwrap_or_default().is_empty();
        pod && workload && self.operation == "CREATE" && self.object.is_object()
    }

    /// Whether nothing may be stored.
    pub(super) fn is_dry_run(&self) -> bool {
        self.dry_run == Some(true)
    }
}

/// A response.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct AdmissionResponse {
    /// Why the pod is rejected; absent: it is allowed.
    pub(super) rejection: Option<Rejection>,
    /// The changes, as a JSON patch.
    pub(super) patch: Vec<Op>,
    /// Shown to the client that creates the pod.
    pub(super) warnings: Vec<String>,
    /// Recorded in the API server's audit log.
    pub(super) audit: BTreeMap<&'static str, String>,
}

/// A rejection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Rejection {
    pub(super) code: u16,
    pub(super) reason: &'static str,
    pub(super) message: String,
}

/// An operation of a JSON patch. The webhook only adds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "op", rename_all = "lowercase")]
pub(super) enum Op {
    /// Adds a member, or replaces it.
    Add {
        /// The JSON pointer.
        path: String,
        /// The value.
        value: Value,
    },
}

impl AdmissionResponse {
    /// Allowed, unchanged.
    pub(super) fn unchanged() -> Self {
        Self::default()
    }

    /// Allowed, unchanged, with a warning.
    pub(super) fn with_warning(warning: &str) -> Self {
        Self { warnings: vec![truncate_warning(warning)], ..Self::default() }
    }

    /// Rejected.
    pub(super) fn rejected(code: u16, reason: &'static str, message: String) -> Self {
        Self { rejection: Some(Rejection { code, reason, message }), ..Self::default() }
    }

    /// The review to send back.
    pub(super) fn to_review(&self, uid: &str) -> Value {
        let mut response = json!({ "uid": uid, "allowed": self.rejection.is_none() });
        if let Some(refused) = &self.rejection {
            response["status"] = json!({
                "status": "Failure",
                "code": refused.code,
                "reason": refused.reason,
                "message": refused.message,
            });
        }
        if !self.patch.is_empty() && self.rejection.is_none() {
            let patch = serde_json::to_vec(&self.patch);
            let patch = invariant_ok!(patch, "admission_patch_is_json").unwrap_or_default();
            response["patchType"] = json!("JSONPatch");
            response["patch"] = json!(ByteString(patch));
        }
        if !self.warnings.is_empty() {
            response["warnings"] = json!(self.warnings);
        }
        if !self.audit.is_empty() {
            response["auditAnnotations"] = json!(self.audit);
        }
        json!({ "apiVersion": API_VERSION, "kind": "AdmissionReview", "response": response })
    }
}

/// A warning truncated to what is shown.
pub(super) fn truncate_warning(text: &str) -> String {
    if text.chars().count() <= WARNING_CHARS {
        return text.to_owned();
    }
    let mut cut: String = text.chars().take(WARNING_CHARS - 1).collect();
    cut.push('…');
    cut
}

/// A key escaped for a JSON pointer.
pub(super) fn escape_pointer(key: &str) -> String {
    key.replace('~', "~0").replace('/', "~1")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(body: &Value) -> Result<AdmissionRequest, String> {
        AdmissionRequest::read(body.to_string().as_bytes()).map_err(|error| error.to_string())
    }

    fn review() -> Value {
        json!({
            "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
            "request": {
                "uid": "u1", "operation": "CREATE", "namespace": "shop",
                "kind": { "group": "", "version": "v1", "kind": "Pod" },
                "object": { "metadata": { "generateName": "web-" } },
            },
        })
    }

    #[test]
    fn only_reviews_of_new_pods_are_handled() {
        let ours = |change: &dyn Fn(&mut Value)| {
            let mut review = review();
            change(&mut review);
            read(&review).unwrap().creates_a_pod()
        };
        assert!(ours(&|_| {}));
        assert!(!ours(&|it| it["request"]["operation"] = json!("UPDATE")));
        assert!(!ours(&|it| it["request"]["operation"] = json!("DELETE")));
        assert!(!ours(&|it| it["request"]["subResource"] = json!("status")));
        assert!(!ours(&|it| it["request"]["kind"]["kind"] = json!("Service")));
        assert!(!ours(&|it| it["request"]["kind"]["group"] = json!("metrics.k8s.io")));
        assert!(!ours(&|it| it["request"]["object"] = Value::Null));
        assert!(ours(&|it| it["request"]["subResource"] = json!("")));
    }

    #[test]
    fn an_invalid_review_is_reported_with_the_accepted_values() {
        let wrong = |change: &dyn Fn(&mut Value)| {
            let mut review = review();
            change(&mut review);
            read(&review).unwrap_err()
        };
        let beta = wrong(&|it| it["apiVersion"] = json!("admission.k8s.io/v1beta1"));
        assert_eq!(
            beta,
            "apiVersion is \"admission.k8s.io/v1beta1\"; accepted is admission.k8s.io/v1"
        );
        assert!(wrong(&|it| it["kind"] = json!("Pod")).starts_with("kind is \"Pod\""));
        assert!(wrong(&|it| it["request"] = Value::Null).starts_with("request is \"absent\""));
        assert!(wrong(&|it| it["request"]["uid"] = json!("")).starts_with("request.uid"));
        assert!(wrong(&|it| it["request"]["uid"] = json!(7)).contains("not an AdmissionReview"));
        assert!(
            AdmissionRequest::read(b"{")
                .unwrap_err()
                .to_string()
                .starts_with("the body is not JSON")
        );
        for odd in ["null", "[]", "7", "\"x\"", "{}"] {
            assert!(AdmissionRequest::read(odd.as_bytes()).is_err(), "{odd}");
        }
    }

    #[test]
    fn a_response_has_its_patch_in_base64_and_a_rejection_has_none() {
        let op = Op::Add { path: "/a~1b".to_owned(), value: json!(1) };
        let mut response = AdmissionResponse { patch: vec![op], ..AdmissionResponse::default() };
        let sent = response.to_review("u1")["response"].clone();
        assert_eq!(sent["uid"], "u1");
        assert_eq!(sent["allowed"], true);
        assert_eq!(sent["patchType"], "JSONPatch");
        let patch: ByteString = serde_json::from_value(sent["patch"].clone()).unwrap();
        let patch: Value = serde_json::from_slice(&patch.0).unwrap();
        assert_eq!(patch, json!([{ "op": "add", "path": "/a~1b", "value": 1 }]));

        let message = "no".to_owned();
        response.rejection = Some(Rejection { code: 422, reason: "Invalid", message });
        let sent = response.to_review("u1")["response"].clone();
        assert_eq!((&sent["allowed"], &sent["patch"]), (&json!(false), &Value::Null));
        assert_eq!(sent["status"]["message"], "no");
    }

    #[test]
    fn a_warning_is_cut_by_characters() {
        let long = "ä".repeat(300);
        assert_eq!(truncate_warning(&long).chars().count(), WARNING_CHARS);
        assert_eq!(truncate_warning("short"), "short");
    }
}
