//! A caller: its role, what it is bound to, and from where it calls.

use std::net::IpAddr;
use std::sync::Arc;

use berth_api::Role;
use berth_engine::{Audience, NodeId};

/// What a caller is bound to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Nothing: it sees the whole fleet.
    Fleet,
    /// One node, for an agent.
    Node(NodeId),
    /// The tenants it may place for; at least one, the first is the default.
    Tenants(Vec<String>),
}

/// Who calls.
#[derive(Clone, Debug)]
pub struct Caller {
    /// What it may do.
    pub role: Role,
    /// How it is known in the audit log.
    pub name: Arc<str>,
    /// Its token, if it came with one.
    pub token: Option<Arc<str>>,
    /// What it is bound to.
    pub scope: Arc<Scope>,
    /// From where it calls.
    pub from: Option<IpAddr>,
}

impl Caller {
    /// A caller of this process itself.
    #[must_use]
    pub fn local(name: &str) -> Self {
        let (name, scope) = (Arc::from(name), Arc::new(Scope::Fleet));
        Self { role: Role::Admin, name, token: None, scope, from: None }
    }

    /// Who, for the audit log.
    #[must_use]
    pub fn actor(&self) -> String {
        match &self.token {
            Some(token) => format!("{} ({} {token})", self.name, self.role.name()),
            None => format!("{} ({})", self.name, self.role.name()),
        }
    }

    /// From where, for the audit log.
    #[must_use]
    pub fn origin(&self) -> String {
        self.from.map_or_else(|| "this process".to_owned(), |from| from.to_string())
    }

    /// The tenants it is bound to; absent: not bound to any.
    #[must_use]
    pub fn tenants(&self) -> Option<&[String]> {
        match &*self.scope {
            Scope::Tenants(tenants) => Some(tenants),
            Scope::Fleet | Scope::Node(_) => None,
        }
    }

    /// The node it is bound to.
    #[must_use]
    pub fn node(&self) -> Option<&NodeId> {
        match &*self.scope {
            Scope::Node(node) => Some(node),
            Scope::Fleet | Scope::Tenants(_) => None,
        }
    }

    /// Whether it may see what belongs to this tenant.
    #[must_use]
    pub fn sees(&self, tenant: &str) -> bool {
        self.tenants().is_none_or(|mine| mine.iter().any(|name| name == tenant))
    }

    /// Whether it is a tenant, from whom the fleet's inside is hidden.
    #[must_use]
    pub fn is_tenant(&self) -> bool {
        self.role == Role::Tenant
    }

    /// For whom an explanation about this tenant's request is written.
    #[must_use]
    pub fn audience<'a>(&self, tenant: &'a str) -> Audience<'a> {
        if self.is_tenant() { Audience::Tenant(tenant) } else { Audience::Operator }
    }
}

pub use berth_api::limits::is_name;
