//! The one table of routes and roles. A route that is not in it is never served.
//!
//! Which node or tenants a caller sees is checked by the handlers.

use berth_api::Role;
use berth_ledger::invariant_ok;
use http::Method;
use rustc_hash::FxHashMap;

/// Who may use a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Anyone, signed in or not.
    Open,
    /// These roles.
    Roles(&'static [Role]),
}

use Role::{Admin, Agent, Operator, Tenant, Viewer};

const ADMIN: Access = Access::Roles(&[Admin]);
const RUN: Access = Access::Roles(&[Admin, Operator]);
const READ: Access = Access::Roles(&[Admin, Operator, Viewer]);
const READ_OWN: Access = Access::Roles(&[Admin, Operator, Viewer, Tenant]);
const PLACE: Access = Access::Roles(&[Admin, Operator, Tenant]);
const CLAIM: Access = Access::Roles(&[Admin, Operator, Tenant, Agent]);
const CLAIM_READ: Access = Access::Roles(&[Admin, Operator, Viewer, Tenant, Agent]);
const NODE: Access = Access::Roles(&[Admin, Operator, Agent]);
const NODE_READ: Access = Access::Roles(&[Admin, Operator, Viewer, Agent]);
const ALL: Access = Access::Roles(&Role::ALL);

/// Every route: method, path, who may use it.
pub const ROUTES: &[(&str, &str, Access)] = &[
    // The console has no data in it; it reads what its caller may read.
    ("GET", "/", Access::Open),
    ("GET", "/ui/{view}", Access::Open),
    ("GET", "/ui/{view}/{id}", Access::Open),
    ("GET", "/ui/{view}/{id}/{part}", Access::Open),
    ("GET", "/console/{path}", Access::Open),
    ("GET", "/console/{path}/{file}", Access::Open),
    ("GET", "/sign-in", Access::Open),
    ("POST", "/sign-in", Access::Open),
    ("POST", "/sign-out", Access::Open),
    ("GET", "/decisions/{id}", Access::Open),
    ("GET", "/docs", Access::Open),
    ("GET", "/style.css", Access::Open),
    ("GET", "/openapi.json", Access::Open),
    ("GET", "/problems/{code}", Access::Open),
    ("GET", "/healthz", Access::Open),
    ("GET", "/readyz", Access::Open),
    ("GET", "/metrics", READ),
    ("GET", "/v1/whoami", ALL),
    ("GET", "/v1/status", ALL),
    ("POST", "/v1/placements", PLACE),
    ("POST", "/v1/placements/explain", PLACE),
    ("POST", "/v1/placements/preemption", PLACE),
    ("POST", "/v1/placements/preemption/apply", PLACE),
    ("GET", "/v1/queue", READ_OWN),
    ("GET", "/v1/queue/{id}", READ_OWN),
    ("DELETE", "/v1/queue/{id}", PLACE),
    ("GET", "/v1/demand", READ),
    ("GET", "/v1/claims", READ_OWN),
    ("GET", "/v1/claims/{instance}", CLAIM_READ),
    ("POST", "/v1/claims/{instance}/renew", CLAIM),
    ("POST", "/v1/claims/{instance}/bind", CLAIM),
    ("POST", "/v1/claims/{instance}/activate", CLAIM),
    ("POST", "/v1/claims/{instance}/release", CLAIM),
    ("GET", "/v1/instances", READ_OWN),
    ("GET", "/v1/instances/{instance}", READ_OWN),
    ("GET", "/v1/instances/{instance}/explain", READ_OWN),
    ("POST", "/v1/instances/{instance}/permit", NODE),
    ("GET", "/v1/instances/{instance}/permit", CLAIM_READ),
    ("PUT", "/v1/instances/{instance}/bounds", PLACE),
    ("POST", "/v1/instances/{instance}/migrate", RUN),
    ("GET", "/v1/permits/key", ALL),
    ("GET", "/v1/pressure", READ),
    ("POST", "/v1/rebalance/plan", READ),
    ("POST", "/v1/rebalance/apply", RUN),
    ("GET", "/v1/migrations", READ),
    ("GET", "/v1/migrations/{id}", READ),
    ("POST", "/v1/migrations/{id}/cancel", RUN),
    ("POST", "/v1/nodes/{node}/migrations", NODE),
    ("GET", "/v1/nodes", READ),
    ("POST", "/v1/nodes/import", RUN),
    ("GET", "/v1/nodes/{node}", NODE_READ),
    ("PUT", "/v1/nodes/{node}", NODE),
    ("PATCH", "/v1/nodes/{node}", RUN),
    ("DELETE", "/v1/nodes/{node}", RUN),
    ("POST", "/v1/nodes/{node}/unset", RUN),
    ("POST", "/v1/nodes/{node}/heartbeat", NODE),
    ("POST", "/v1/nodes/{node}/cordon", RUN),
    ("POST", "/v1/nodes/{node}/uncordon", RUN),
    ("POST", "/v1/nodes/{node}/drain", RUN),
    ("GET", "/v1/nodes/{node}/drain", READ),
    ("POST", "/v1/nodes/{node}/drain/cancel", RUN),
    ("POST", "/v1/nodes/{node}/reclaim", NODE),
    ("POST", "/v1/nodes/{node}/volume-moves", NODE),
    ("GET", "/v1/drains", READ),
    ("GET", "/v1/nodes/{node}/assignments", NODE_READ),
    ("GET", "/v1/nodes/{node}/assignments/stream", NODE_READ),
    ("GET", "/v1/nodes/{node}/explain", READ),
    ("POST", "/v1/evacuations/check", READ),
    ("GET", "/v1/groups", READ_OWN),
    ("GET", "/v1/groups/{id}", READ_OWN),
    ("PUT", "/v1/groups/{id}", PLACE),
    ("DELETE", "/v1/groups/{id}", PLACE),
    ("GET", "/v1/volumes", READ_OWN),
    ("GET", "/v1/volumes/{id}", READ_OWN),
    ("PUT", "/v1/volumes/{id}", RUN),
    ("DELETE", "/v1/volumes/{id}", RUN),
    ("POST", "/v1/volumes/{id}/move", RUN),
    ("GET", "/v1/volumes/{id}/move", READ),
    ("POST", "/v1/volumes/{id}/move/cancel", RUN),
    ("GET", "/v1/attachments", READ_OWN),
    ("GET", "/v1/attachments/{id}", READ_OWN),
    ("PUT", "/v1/attachments/{id}", PLACE),
    ("DELETE", "/v1/attachments/{id}", PLACE),
    ("GET", "/v1/pools", READ),
    ("GET", "/v1/pools/{id}", READ),
    ("PUT", "/v1/pools/{id}", RUN),
    ("DELETE", "/v1/pools/{id}", RUN),
    ("GET", "/v1/quotas", READ_OWN),
    ("GET", "/v1/quotas/{tenant}", READ_OWN),
    ("PUT", "/v1/quotas/{tenant}", RUN),
    ("DELETE", "/v1/quotas/{tenant}", RUN),
    ("GET", "/v1/tenants/{tenant}", ADMIN),
    ("DELETE", "/v1/tenants/{tenant}", ADMIN),
    ("PUT", "/v1/environments/{env}/secrets", RUN),
    ("GET", "/v1/workloads", READ_OWN),
    ("GET", "/v1/workloads/{tenant}/{name}", READ_OWN),
    ("PUT", "/v1/workloads/{tenant}/{name}", PLACE),
    ("DELETE", "/v1/workloads/{tenant}/{name}", PLACE),
    ("POST", "/v1/workloads/{tenant}/{name}/check", PLACE),
    ("POST", "/v1/workloads/{tenant}/{name}/scale", PLACE),
    ("POST", "/v1/workloads/{tenant}/{name}/rollout", PLACE),
    ("GET", "/v1/workloads/{tenant}/{name}/revisions", READ_OWN),
    ("GET", "/v1/workloads/{tenant}/{name}/members", READ_OWN),
    ("GET", "/v1/environments", READ_OWN),
    ("GET", "/v1/environments/{env}", READ_OWN),
    ("GET", "/v1/policies", READ),
    ("POST", "/v1/policies", RUN),
    ("POST", "/v1/policies/validate", READ),
    ("GET", "/v1/policies/diff", READ),
    ("POST", "/v1/policies/diff", READ),
    ("POST", "/v1/policies/rollback", RUN),
    ("GET", "/v1/policies/{policy}", READ),
    ("POST", "/v1/policies/{policy}/activate", RUN),
    ("GET", "/v1/decisions", READ_OWN),
    ("GET", "/v1/decisions/{id}", READ_OWN),
    ("GET", "/v1/decisions/{id}/explain", READ_OWN),
    ("GET", "/v1/decisions/{id}/replay", READ),
    ("GET", "/v1/events", READ_OWN),
    ("GET", "/v1/events/stream", READ_OWN),
    ("GET", "/v1/tokens", ADMIN),
    ("POST", "/v1/tokens", ADMIN),
    ("DELETE", "/v1/tokens/{id}", ADMIN),
    ("GET", "/v1/audit", READ),
    ("GET", "/v1/state", ADMIN),
    ("GET", "/v1/debug/state", ADMIN),
];

/// The table, indexed for lookups.
pub struct Permissions(FxHashMap<&'static str, Vec<(Method, Access)>>);

impl Default for Permissions {
    fn default() -> Self {
        let mut table: FxHashMap<&'static str, Vec<(Method, Access)>> = FxHashMap::default();
        for (method, path, access) in ROUTES {
            let method = Method::from_bytes(method.as_bytes());
            let method = invariant_ok!(method, "route_method_is_valid", path).unwrap_or_default();
            table.entry(path).or_default().push((method, *access));
        }
        Self(table)
    }
}

impl Permissions {
    /// Who may use a route; absent when it is not in the table.
    #[must_use]
    pub fn of(&self, method: &Method, path: &str) -> Option<Access> {
        // A HEAD is a GET without its body.
        let method = if method == Method::HEAD { &Method::GET } else { method };
        let methods = self.0.get(path)?;
        methods.iter().find(|(known, _)| known == method).map(|(_, access)| *access)
    }

    /// The methods of a path, with commas between; empty when it is not in the table.
    #[must_use]
    pub fn methods(&self, path: &str) -> String {
        let methods = self.0.get(path).into_iter().flatten();
        let names: Vec<&str> = methods.map(|(method, _)| method.as_str()).collect();
        names.join(",")
    }
}
