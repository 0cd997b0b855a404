//! Typed identifiers and time. Time is always an argument: nothing in this crate reads a clock.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// A node's name. Ordering is by text, and the smallest id wins a tie.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema), schema(value_type = String))]
#[serde(from = "String", into = "String")]
pub struct NodeId(Arc<str>);

impl NodeId {
    /// Wraps a node name.
    #[must_use]
    pub fn new(name: &str) -> Self {
        Self(Arc::from(name))
    }

    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<String> for NodeId {
    fn from(name: String) -> Self {
        Self(Arc::from(name))
    }
}

impl From<&str> for NodeId {
    fn from(name: &str) -> Self {
        Self::new(name)
    }
}

impl From<NodeId> for String {
    fn from(id: NodeId) -> Self {
        id.as_str().to_owned()
    }
}

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// One virtual machine, for its whole life.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, Default,
)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(transparent)]
pub struct InstanceId(pub Uuid);

impl InstanceId {
    /// An id from its number; tests and simulations count up, servers pass a UUIDv7.
    #[must_use]
    pub const fn from_u128(number: u128) -> Self {
        Self(Uuid::from_u128(number))
    }
}

impl fmt::Display for InstanceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Whole seconds since the Unix epoch, handed in by the caller.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, Default,
)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(transparent)]
pub struct Timestamp(pub i64);

/// [`Timestamp`] under a name that schema derives leave alone: they take every type that is called
/// `Timestamp` for a date in text. Write `#[schema(value_type = UnixSeconds)]` on such a field.
#[cfg(feature = "schema")]
pub type UnixSeconds = Timestamp;

impl Timestamp {
    /// Seconds in a day.
    pub const DAY: i64 = 86_400;

    /// This moment moved by some seconds; saturates at the ends of time.
    #[must_use]
    pub const fn plus(self, seconds: i64) -> Self {
        Self(self.0.saturating_add(seconds))
    }
}
