//! A whole server for tests: a control plane on a new SQLite file, its router on a free port, tokens of
//! every role, and requests over real connections.

#![allow(dead_code, reason = "every test binary uses some of it")]
#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

pub(crate) mod held_planner;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use berth_api::{NewToken, Role};
use berth_client::{Client, Connect};
use berth_control::{ControlOptions, ControlPlane};
use berth_engine::{Amounts, NodeFacts, NodeId, Policy, Timestamp};
use berth_ledger::{Answer, Backend, Expect, Op, Outcome, Text};
use berth_server::access::TOKEN_KIND;
use berth_server::{AppState, HttpLimits, TokenRecord, router};
use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use reqwest::{Method, StatusCode};
use serde_json::Value;
use tokio::task::JoinHandle;

/// The tenant that tokens of role tenant are bound to unless told otherwise.
pub(crate) const TENANT: &str = "acme";

/// The node that tokens of role agent are bound to unless told otherwise.
pub(crate) const NODE: &str = "n1";

/// How long tests wait for what happens in the background: far longer than it takes on a machine that
/// is busy with other tests, since a wait that succeeds ends at once.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(60);

/// Waits until a condition holds. Fails after [`TIMEOUT`], naming what was waited for.
pub(crate) async fn wait_until(what: &str, holds: impl AsyncFn() -> bool) {
    let began = tokio::time::Instant::now();
    while !holds().await {
        assert!(began.elapsed() < TIMEOUT, "still waiting after {TIMEOUT:?}: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// A running server. Dropped, it stops by itself; [`Server::stop`] waits until it has.
pub(crate) struct Server {
    /// The control plane behind the router.
    pub(crate) control: Arc<ControlPlane>,
    /// All that the router serves from.
    pub(crate) state: AppState,
    /// Where it listens: `http://127.0.0.1:…`.
    pub(crate) url: String,
    http: reqwest::Client,
    serving: JoinHandle<()>,
    folder: tempfile::TempDir,
}

/// What a server answered.
#[derive(Debug)]
pub(crate) struct Reply {
    /// The status.
    pub(crate) status: StatusCode,
    /// The headers.
    pub(crate) headers: HeaderMap,
    /// The body as it came.
    pub(crate) text: String,
}

impl Server {
    /// A server on a new ledger, to which everyone must sign in.
    pub(crate) async fn start() -> Self {
        Self::start_with(|_| {}).await
    }

    /// The same with options changed.
    pub(crate) async fn start_with(change: impl FnOnce(&mut ControlOptions)) -> Self {
        Self::start_as(false, HttpLimits::default(), change).await
    }

    /// The same with other limits of the HTTP layer.
    pub(crate) async fn start_limited(
        limits: HttpLimits,
        change: impl FnOnce(&mut ControlOptions),
    ) -> Self {
        Self::start_as(false, limits, change).await
    }

    /// A server to which callers on this machine need not sign in.
    pub(crate) async fn start_without_sign_in() -> Self {
        Self::start_as(true, HttpLimits::default(), |_| {}).await
    }

    async fn start_as(
        no_sign_in: bool,
        limits: HttpLimits,
        change: impl FnOnce(&mut ControlOptions),
    ) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let backend = Backend::Sqlite(folder.path().join("ledger.db"));
        let mut options = ControlOptions::new(backend, Policy::builtin("balanced").unwrap());
        change(&mut options);
        // It waits for the database, which only a thread for that may.
        let started = tokio::task::spawn_blocking(move || AppState::start(options, no_sign_in));
        let state = started.await.unwrap().unwrap();
        let control = Arc::clone(&state.control);
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let app = router(state.clone(), limits);
        let app = app.into_make_service_with_connect_info::<SocketAddr>();
        let stopping = control.lifecycle.stopping().clone();
        let serving = tokio::spawn(async move {
            let stopped = async move { stopping.cancelled().await };
            axum::serve(listener, app).with_graceful_shutdown(stopped).await.unwrap();
        });
        // As every client of Berth does; the first one sets it for the process.
        drop(Client::new(Connect { url: url.clone(), ..Connect::default() }).unwrap());
        let http = reqwest::Client::builder()
            .redirect(reqwest::redirect::Policy::none())
            .timeout(TIMEOUT)
            .build()
            .unwrap();
        Self { control, state, url, http, serving, folder }
    }

    /// Stops, and waits until everyone has been answered.
    pub(crate) async fn stop(mut self) {
        self.control.lifecycle.stop();
        tokio::time::timeout(TIMEOUT, &mut self.serving).await.unwrap().unwrap();
    }

    /// Waits until a background loop has made a whole pass that started after this call. The metric
    /// has the second in which the last pass ended, so the second increase belongs to a pass that
    /// started after the first.
    pub(crate) async fn wait_for_loop_pass(&self, name: &str) {
        let token = self.token(Role::Viewer).await;
        let line = format!("berth_loop_last_round_seconds{{loop=\"{name}\"}} ");
        let last = async || -> u64 {
            let metrics = self.get(&token, "/metrics").await.expect(200).text;
            let value = metrics.lines().find_map(|text| text.strip_prefix(&line));
            value.unwrap_or_else(|| panic!("no loop {name}")).trim().parse().unwrap()
        };
        for _ in 0..2 {
            let before = last().await;
            wait_until(&format!("a pass of {name}"), async || last().await > before).await;
        }
    }

    /// The file that the ledger is in.
    pub(crate) fn ledger_path(&self) -> std::path::PathBuf {
        self.folder.path().join("ledger.db")
    }

    /// A token's record and its secret, stored as the API would.
    pub(crate) async fn mint(&self, new: &NewToken) -> (TokenRecord, String) {
        let (record, secret) = TokenRecord::make(new, self.control.now()).unwrap();
        self.store(&record).await;
        (record, secret)
    }

    /// Stores a token as it is, also one that is expired or revoked.
    pub(crate) async fn store(&self, record: &TokenRecord) {
        let op = Op::PutDocument {
            kind: Text::from(TOKEN_KIND),
            id: Text::from(record.token.id.as_str()),
            body: serde_json::to_string(record).unwrap(),
            expect: Expect::Any,
        };
        let answer = self.control.submit(op).await.unwrap();
        assert!(matches!(answer, Answer::Outcome(Outcome::Done | Outcome::Unchanged)));
        let (tokens, ledger) =
            (Arc::clone(&self.state.access.tokens.documents), self.control.ledger.clone());
        let id = record.token.id.clone();
        tokio::task::spawn_blocking(move || tokens.refresh(&ledger, &id)).await.unwrap().unwrap();
    }

    /// The secret of a new token of this role: an agent's is for [`NODE`], a tenant's for
    /// [`TENANT`].
    pub(crate) async fn token(&self, role: Role) -> String {
        let mut new = new_token(role);
        new.node = (role == Role::Agent).then(|| NodeId::new(NODE));
        new.tenants = if role == Role::Tenant { vec![TENANT.to_owned()] } else { Vec::new() };
        self.mint(&new).await.1
    }

    /// The secret of a new token of a tenant.
    pub(crate) async fn tenant(&self, tenant: &str) -> String {
        let new = NewToken { tenants: vec![tenant.to_owned()], ..new_token(Role::Tenant) };
        self.mint(&new).await.1
    }

    /// The secret of a new token of a node's agent.
    pub(crate) async fn agent(&self, node: &str) -> String {
        let new = NewToken { node: Some(NodeId::new(node)), ..new_token(Role::Agent) };
        self.mint(&new).await.1
    }

    /// A typed client with this token.
    pub(crate) fn client(&self, token: &str) -> Client {
        let (url, token) = (self.url.clone(), Some(token.to_owned()));
        Client::new(Connect { url, token, ..Connect::default() }).unwrap()
    }

    /// Registers a node with 16 cores, 64 GiB of memory and 1 TiB of disk.
    pub(crate) async fn add_node(&self, id: &str) {
        let mut facts = NodeFacts::new(id, Amounts::new(16_000, 65_536).with_disk(1 << 20));
        facts.heartbeat_at = Timestamp(self.control.now().as_second());
        let answer = self.control.submit(Op::put_node(facts)).await.unwrap();
        assert_eq!(answer, Answer::Outcome(Outcome::Done));
        self.control.wait_for_read_your_writes().await;
    }

    /// Sends a request; a body goes as JSON.
    pub(crate) async fn send(
        &self,
        token: Option<&str>,
        method: &str,
        path: &str,
        body: Option<&Value>,
        headers: &[(&str, &str)],
    ) -> Reply {
        let response = self.respond(token, method, path, body, headers).await;
        let (status, headers) = (response.status(), response.headers().clone());
        Reply { status, headers, text: response.text().await.unwrap() }
    }

    /// Sends a request and leaves its answer unread: a stream has no end.
    pub(crate) async fn respond(
        &self,
        token: Option<&str>,
        method: &str,
        path: &str,
        body: Option<&Value>,
        headers: &[(&str, &str)],
    ) -> reqwest::Response {
        let method = Method::from_bytes(method.as_bytes()).unwrap();
        let mut request = self.http.request(method, format!("{}{path}", self.url));
        if let Some(token) = token {
            request = request.bearer_auth(token);
        }
        if let Some(body) = body {
            request = request.json(body);
        }
        let mut more = HeaderMap::new();
        for (name, value) in headers {
            let name = HeaderName::from_bytes(name.as_bytes()).unwrap();
            more.insert(name, HeaderValue::from_str(value).unwrap());
        }
        request.headers(more).send().await.unwrap()
    }

    /// Sends a body that need not be JSON as if it were.
    pub(crate) async fn send_text(
        &self,
        token: &str,
        method: &str,
        path: &str,
        body: &str,
    ) -> Reply {
        let method = Method::from_bytes(method.as_bytes()).unwrap();
        let request = self.http.request(method, format!("{}{path}", self.url)).bearer_auth(token);
        let request = request.header("content-type", "application/json").body(body.to_owned());
        let response = request.send().await.unwrap();
        let (status, headers) = (response.status(), response.headers().clone());
        Reply { status, headers, text: response.text().await.unwrap() }
    }

    /// Reads.
    pub(crate) async fn get(&self, token: &str, path: &str) -> Reply {
        self.send(Some(token), "GET", path, None, &[]).await
    }

    /// Stores.
    pub(crate) async fn put(&self, token: &str, path: &str, body: &Value) -> Reply {
        self.send(Some(token), "PUT", path, Some(body), &[]).await
    }

    /// Posts.
    pub(crate) async fn post(&self, token: &str, path: &str, body: &Value) -> Reply {
        self.send(Some(token), "POST", path, Some(body), &[]).await
    }

    /// Removes.
    pub(crate) async fn delete(&self, token: &str, path: &str) -> Reply {
        self.send(Some(token), "DELETE", path, None, &[]).await
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.control.lifecycle.stop();
    }
}

/// A token that is asked for: named after its role, bound to nothing, never ending.
pub(crate) fn new_token(role: Role) -> NewToken {
    let name = format!("test {}", role.name());
    NewToken { name, role, tenants: Vec::new(), node: None, expires_in_s: None }
}

impl Reply {
    /// The body as JSON.
    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|_| panic!("not JSON: {self:?}"))
    }

    /// The stable code of a problem.
    #[track_caller]
    pub(crate) fn code(&self) -> String {
        self.json()["code"].as_str().unwrap_or_default().to_owned()
    }

    /// The version of what was answered.
    pub(crate) fn etag(&self) -> Option<&str> {
        self.headers.get("etag")?.to_str().ok()
    }

    /// The same, if its status is this one.
    #[track_caller]
    pub(crate) fn expect(self, status: u16) -> Self {
        assert_eq!(self.status.as_u16(), status, "{}", self.text);
        self
    }

    /// The same, if it is a problem of this status and code.
    #[track_caller]
    pub(crate) fn problem(self, status: u16, code: &str) -> Self {
        let reply = self.expect(status);
        assert_eq!(reply.code(), code, "{}", reply.text);
        reply
    }

    /// The values of one field of a list's items.
    #[track_caller]
    pub(crate) fn each(&self, field: &str) -> Vec<Value> {
        let body = self.json();
        let items = body["items"].as_array().unwrap_or_else(|| panic!("not a list: {self:?}"));
        items.iter().map(|item| item[field].clone()).collect()
    }
}
