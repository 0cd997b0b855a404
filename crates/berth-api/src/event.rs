//! The change feed.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// One event of the change feed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Event {
    /// Its number: dense, from 1. A stream resumes after it.
    pub seq: i64,
    /// When.
    pub at: Timestamp,
    /// What kind: `instance.allocated`, `node.state`, …
    pub kind: String,
    /// What happened; its fields depend on the kind.
    #[schema(value_type = Object)]
    pub body: serde_json::Value,
}
