//! Who may do what: tokens, and the log of who did what.

use berth_engine::NodeId;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// What a token may do.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, ToSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Everything, tokens included.
    Admin,
    /// Runs the fleet: everything but tokens and the state dump.
    Operator,
    /// Acts for one node.
    Agent,
    /// Places for, and sees, the tenants that its token names.
    Tenant,
    /// Sees everything, changes nothing.
    Viewer,
}

impl Role {
    /// All roles.
    pub const ALL: [Self; 5] =
        [Self::Admin, Self::Operator, Self::Agent, Self::Tenant, Self::Viewer];

    /// The role's name in data.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Admin => "admin",
            Self::Operator => "operator",
            Self::Agent => "agent",
            Self::Tenant => "tenant",
            Self::Viewer => "viewer",
        }
    }
}

/// A request to create a token.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewToken {
    /// What it is for; shown in lists and in the audit log.
    #[schema(min_length = 1)]
    pub name: String,
    /// What it may do.
    pub role: Role,
    /// For role `tenant`: the tenants it may place for; at least one, the first is the default.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[serde(alias = "namespaces")]
    pub tenants: Vec<String>,
    /// For an agent: its node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<NodeId>,
    /// Seconds until it expires; absent: never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1)]
    pub expires_in_s: Option<u64>,
}

/// A token, without its secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Token {
    /// Its id; the first part of the secret.
    pub id: String,
    /// What it is for.
    pub name: String,
    /// What it may do.
    pub role: Role,
    /// The tenants that a token of role `tenant` may place for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[serde(alias = "namespaces")]
    pub tenants: Vec<String>,
    /// An agent's node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<NodeId>,
    /// When it was created.
    pub created_at: Timestamp,
    /// When it expires.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Timestamp>,
    /// When it was revoked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revoked_at: Option<Timestamp>,
}

/// A token that was just created. Its secret cannot be read later.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = TokenMade)]
pub struct CreatedToken {
    /// The token.
    #[serde(flatten)]
    pub token: Token,
    /// What the caller presents: `Authorization: Bearer …`.
    pub secret: String,
}

/// The authenticated caller.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct WhoAmI {
    /// What it may do.
    pub role: Role,
    /// The token's name, or another description of the caller.
    pub name: String,
    /// The token's id, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<String>,
    /// The tenants that a token of role `tenant` may place for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[serde(alias = "namespaces")]
    pub tenants: Vec<String>,
    /// An agent's node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<NodeId>,
    /// The server's version.
    pub version: String,
}

/// The server that answered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ServerStatus {
    /// The server's version.
    pub version: String,
    /// The version of the database's schema.
    pub schema: i64,
    /// The database: `sqlite` or `postgres`.
    pub database: String,
    /// How long the database took to answer, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub database_ms: Option<u64>,
    /// The server's clock.
    pub time: Timestamp,
    /// Whether it takes requests.
    pub ready: bool,
    /// Why not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// What needs attention although the server is ready, such as a database that a failover could make
    /// lose acknowledged placements.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<ServerWarning>,
}

/// Something that needs attention, and what to do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ServerWarning {
    /// What is wrong.
    pub text: String,
    /// What to do.
    pub remedy: String,
}

/// One change: who, what, from where.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AuditEntry {
    /// Its number.
    pub n: i64,
    /// When.
    pub at: Timestamp,
    /// Who: a token's name and id.
    pub actor: String,
    /// From where: an address.
    pub origin: String,
    /// What was done: `place`, `node.cordon`, `token.create`, …
    pub action: String,
    /// To what.
    pub subject: String,
    /// The id of the request that made the change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_id: Option<String>,
}
