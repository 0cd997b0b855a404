//! Policies: stored by the hash of their content, one of them in force.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A policy as text. JSON bodies of this shape are accepted, and so is bare TOML with
/// `Content-Type: application/toml`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PolicyText {
    /// The policy in TOML.
    pub toml: String,
}

/// A policy as stored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct StoredPolicy {
    /// Its name.
    pub name: String,
    /// The hash of its content; its version and its ETag.
    pub hash: String,
    /// Whether it is in force.
    pub active: bool,
    /// When it was stored; absent for one that was only validated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stored_at: Option<Timestamp>,
    /// Its content.
    #[schema(value_type = Object)]
    pub body: serde_json::Value,
}

/// One key in which two policies differ.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PolicyChange {
    /// The key: `weights.pack`.
    pub key: String,
    /// Its value in the first; absent: not there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub from: Option<serde_json::Value>,
    /// Its value in the second; absent: not there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub to: Option<serde_json::Value>,
}

/// How two policies differ.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PolicyDiff {
    /// The first, by hash.
    pub from: String,
    /// The second, by hash.
    pub to: String,
    /// Key by key; empty when they are the same.
    pub changes: Vec<PolicyChange>,
}
