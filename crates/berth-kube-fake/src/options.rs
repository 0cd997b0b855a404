//! Options of the server.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use crate::rbac::Rule;

/// How the server behaves.
#[derive(Clone, Debug)]
pub struct Options {
    /// Requests per thousand that fail before anything is done.
    pub error_rate_permille: u32,
    /// Writes per thousand that are done although the client gets an error or no response.
    pub lost_reply_permille: u32,
    /// How often every watch is cut.
    pub drop_watches_every: Option<Duration>,
    /// The delay of every request.
    pub latency: Option<Duration>,
    /// How often a watch gets a bookmark, if it allows them.
    pub bookmark_every: Option<Duration>,
    /// Events kept per resource; older versions give 410.
    pub history: usize,
    /// Whether a watch from an expired version fails with HTTP code 410; else the response is 200 and the
    /// stream contains one error, as from servers with a watch cache.
    pub plain_gone: bool,
    /// Whether bound pods become ready, and terminating pods are deleted.
    pub kubelet: bool,
    /// How long the kubelet takes for either.
    pub kubelet_delay: Duration,
    /// Whether deployments, replica sets, stateful sets and the garbage collector run.
    pub controllers: bool,
    /// Whether disruption budgets are updated; without it no healthy pod with a budget can be evicted.
    pub budgets: bool,
    /// Whether claims are bound and volumes are provisioned.
    pub volume_binder: bool,
    /// Whether `resource.k8s.io/v1` is served, as since Kubernetes 1.34.
    pub devices: bool,
    /// Whether claims are created from templates, and released when their pods have ended.
    pub claim_controller: bool,
    /// The bearer token that requests need.
    pub token: Option<String>,
    /// The user of the token.
    pub user: String,
    /// Whether to serve HTTPS with a generated certificate.
    pub tls: bool,
    /// Whether all requests are recorded.
    pub audit: bool,
    /// Permissions of the user; `None`: everything.
    pub rbac: Option<Vec<Rule>>,
    /// Further users, each with a token, a name and permissions.
    pub accounts: Vec<Account>,
    /// Addresses of the services of webhooks: `namespace/name` to a local address.
    pub services: BTreeMap<String, SocketAddr>,
    /// Fields of a pod's spec that this server knows although the types it is built with do not, as an
    /// older or a newer version of Kubernetes does.
    pub further_pod_fields: Vec<String>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            error_rate_permille: 0,
            lost_reply_permille: 0,
            drop_watches_every: None,
            latency: None,
            bookmark_every: Some(Duration::from_secs(1)),
            history: 100_000,
            plain_gone: false,
            kubelet: false,
            kubelet_delay: Duration::from_millis(20),
            controllers: false,
            budgets: true,
            volume_binder: false,
            devices: true,
            claim_controller: false,
            token: None,
            user: "system:serviceaccount:berth:berth".into(),
            tls: false,
            audit: false,
            rbac: None,
            accounts: Vec::new(),
            services: BTreeMap::new(),
            further_pod_fields: Vec::new(),
        }
    }
}

/// An additional user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Account {
    /// The bearer token.
    pub token: String,
    /// Its name, such as `system:serviceaccount:berth:webhook`.
    pub user: String,
    /// Its permissions; `None`: everything.
    pub rbac: Option<Vec<Rule>>,
}

/// Faults; they can be changed while the server runs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// Requests per thousand that fail before anything is done.
    pub error_rate_permille: u32,
    /// Writes per thousand that are done without the client learning of it.
    pub lost_reply_permille: u32,
    /// How often every watch is cut.
    pub drop_watches_every: Option<Duration>,
    /// The delay of every request.
    pub latency: Option<Duration>,
    /// How much later than its commit a watch shows a change, at least, and at most twice that.
    pub watch_delay: Option<Duration>,
    /// The server is unreachable: connections are cut, including watches.
    pub down: bool,
    /// Requests are forbidden, as by an API server that has just started and not read the roles yet.
    pub forbid: bool,
    /// Only requests for this resource (`pods`, `pods/binding`) fail; `None`: all.
    pub only: Option<String>,
}

impl Options {
    pub(crate) fn faults(&self) -> Faults {
        Faults {
            error_rate_permille: self.error_rate_permille,
            lost_reply_permille: self.lost_reply_permille,
            drop_watches_every: self.drop_watches_every,
            latency: self.latency,
            watch_delay: None,
            down: false,
            forbid: false,
            only: None,
        }
    }
}

/// A recorded request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditEntry {
    /// `get`, `list`, `watch`, `create`, `update`, `patch`, `delete` or `deletecollection`.
    pub verb: String,
    /// The plural name, with the group after a dot unless it is the core group.
    pub resource: String,
    /// `status`, `binding` or the like; may be empty.
    pub subresource: String,
    /// May be empty.
    pub namespace: String,
    /// May be empty.
    pub name: String,
    /// The user agent.
    pub user_agent: String,
    /// The HTTP code; 0 if the connection was closed without an answer.
    pub code: u16,
    /// Whether it was a dry run.
    pub dry_run: bool,
    /// Whether the request was carried out, whatever the client was told.
    pub done: bool,
    /// When it arrived.
    pub at: jiff::Timestamp,
}
