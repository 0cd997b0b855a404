//! What a test can ask of the imitation.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use crate::rbac::Rule;

/// How the server is to behave.
#[derive(Clone, Debug)]
pub struct Options {
    /// Of a thousand requests, how many fail before anything is done.
    pub error_rate_permille: u32,
    /// Of a thousand writes, how many are done although the caller is told that they failed, or
    /// is told nothing.
    pub lost_reply_permille: u32,
    /// How often every watch is cut off in the middle.
    pub drop_watches_every: Option<Duration>,
    /// How long every request waits before it is looked at.
    pub latency: Option<Duration>,
    /// How often a watch that allows it gets a bookmark.
    pub bookmark_every: Option<Duration>,
    /// How many events of each resource are kept; older versions give 410.
    pub history: usize,
    /// A watch from too old a version is refused with the HTTP code 410; else the answer is 200
    /// and the stream holds one error, which is what servers do whose watch cache is on.
    pub plain_gone: bool,
    /// Bound pods become ready, and terminating pods go away.
    pub kubelet: bool,
    /// How long the kubelet takes for either.
    pub kubelet_delay: Duration,
    /// Deployments, replica sets, stateful sets and the garbage collector do their work.
    pub controllers: bool,
    /// Disruption budgets are kept up to date; without it no healthy pod that has one is evicted.
    pub budgets: bool,
    /// Claims are bound to volumes, and volumes are provisioned.
    pub volume_binder: bool,
    /// The bearer token without which a request is refused.
    pub token: Option<String>,
    /// Who the bearer of the token is.
    pub user: String,
    /// HTTPS with a certificate of its own making.
    pub tls: bool,
    /// Every request is written down.
    pub audit: bool,
    /// What callers may do; `None`: everything.
    pub rbac: Option<Vec<Rule>>,
    /// Further callers, each with a token, a name and rights of its own.
    pub accounts: Vec<Account>,
    /// Where the webhooks' services are: `namespace/name` to an address on this machine.
    pub services: BTreeMap<String, SocketAddr>,
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
            token: None,
            user: "system:serviceaccount:berth:berth".into(),
            tls: false,
            audit: false,
            rbac: None,
            accounts: Vec::new(),
            services: BTreeMap::new(),
        }
    }
}

/// A caller besides the first one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Account {
    /// The bearer token.
    pub token: String,
    /// Who bears it, such as `system:serviceaccount:berth:webhook`.
    pub user: String,
    /// What it may do; `None`: everything.
    pub rbac: Option<Vec<Rule>>,
}

/// What goes wrong; can be changed while the server runs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// Of a thousand requests, how many fail before anything is done.
    pub error_rate_permille: u32,
    /// Of a thousand writes, how many are done without the caller learning of it.
    pub lost_reply_permille: u32,
    /// How often every watch is cut off.
    pub drop_watches_every: Option<Duration>,
    /// How long every request waits.
    pub latency: Option<Duration>,
    /// Nobody gets through: connections are cut, and so are watches that are under way.
    pub down: bool,
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
            down: false,
            only: None,
        }
    }
}

/// One request, as it was answered.
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
    /// What the caller calls itself.
    pub user_agent: String,
    /// The HTTP code; 0 if the connection was closed without an answer.
    pub code: u16,
    /// Nothing was to be kept.
    pub dry_run: bool,
    /// Whether the request was carried out, whatever the caller was told.
    pub done: bool,
    /// When it came.
    pub at: jiff::Timestamp,
}
