//! Errors as RFC 9457 problem documents.

use berth_engine::{Fix, Refusal};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::InstanceExplanation;

/// One field of a request that cannot be accepted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FieldError {
    /// Where it is: `instances[0].resources.memory_mib`.
    pub field: String,
    /// What was found there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
    /// What would be accepted.
    pub accepted: String,
}

/// Why a request failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Problem {
    /// Where the code is described.
    #[serde(rename = "type")]
    pub kind: String,
    /// The code in words.
    pub title: String,
    /// The HTTP status.
    pub status: u16,
    /// A stable code for programs.
    pub code: String,
    /// What happened this time.
    pub detail: String,
    /// What would help.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remedy: Option<String>,
    /// Fields that cannot be accepted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub fields: Vec<FieldError>,
    /// For a placement that found no room: the whole explanation, one for each class of instance.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub refusals: Vec<Refusal>,
    /// For a placement that found no room: names in the request that no node has, and which were
    /// probably meant. A tenant is told the one name that it almost wrote, if any.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hints: Vec<String>,
    /// For a placement that a quota or a pool refused: changes that were tried and found to work, to
    /// the request first, then to limits and pools.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub fixes: Vec<Fix>,
    /// For a placement that found no room and asked for a full explanation: the first nodes, each
    /// with every rule that it fails. `POST /v1/placements/explain` continues.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub explanation: Option<Box<InstanceExplanation>>,
    /// Whether the same request may succeed later without any change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry: Option<bool>,
    /// The request's own id in the server's logs and traces.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trace: Option<String>,
}
