//! The server's API without a network: requests go straight to its router.

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::ConnectInfo;
use axum::http::Request;
use berth_conformance::stopwatch;
use berth_control::{ControlOptions, ControlPlane};
use berth_engine::Policy;
use berth_ledger::Backend;
use berth_server::{AppState, HttpLimits, router};
use serde_json::Value;
use tower::ServiceExt;

/// How long a background loop may take until its result shows.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Runs what needs a runtime. The ledger waits, so nothing else may run on one.
pub(crate) fn block_on<T>(future: impl Future<Output = T>) -> T {
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    runtime.worker_threads(2).enable_all().build().unwrap().block_on(future)
}

/// A server, and the token that requests carry.
pub(crate) struct Api {
    pub(crate) control: Arc<ControlPlane>,
    router: Router,
    token: Option<String>,
}

impl Api {
    /// Starts a server on a ledger. Without a token, callers on this machine need none.
    pub(crate) async fn start(backend: Backend, token: Option<String>) -> Self {
        let options = ControlOptions::new(backend, Policy::builtin("balanced").unwrap());
        let no_sign_in = token.is_none();
        // Starting waits for the database, which must not block the runtime.
        let started = tokio::task::spawn_blocking(move || AppState::start(options, no_sign_in));
        let state = started.await.unwrap().unwrap();
        let control = Arc::clone(&state.control);
        Self { control, router: router(state, HttpLimits::default()), token }
    }

    /// Sends a request and returns status and body.
    pub(crate) async fn send(&self, method: &str, path: &str, body: &Value) -> (u16, Value) {
        let mut request = Request::builder().method(method).uri(path).header("host", "localhost");
        if let Some(token) = &self.token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        let body = if body.is_null() { Vec::new() } else { serde_json::to_vec(body).unwrap() };
        let request = request.header("content-type", "application/json");
        let mut request = request.body(Body::from(body)).unwrap();
        let caller = SocketAddr::from(([127, 0, 0, 1], 1));
        request.extensions_mut().insert(ConnectInfo(caller));
        let response = self.router.clone().oneshot(request).await.unwrap();
        let status = response.status().as_u16();
        let bytes = to_bytes(response.into_body(), usize::MAX).await.unwrap();
        (status, serde_json::from_slice(&bytes).unwrap_or_default())
    }

    async fn expect(&self, method: &str, path: &str, body: Value) -> Value {
        let (status, answer) = self.send(method, path, &body).await;
        assert!((200..300).contains(&status), "{method} {path} {body}: {status} {answer:#}");
        answer
    }

    pub(crate) async fn get(&self, path: &str) -> Value {
        self.expect("GET", path, Value::Null).await
    }

    pub(crate) async fn post(&self, path: &str, body: Value) -> Value {
        self.expect("POST", path, body).await
    }

    pub(crate) async fn put(&self, path: &str, body: Value) -> Value {
        self.expect("PUT", path, body).await
    }

    /// Reads until what is read is as wanted.
    pub(crate) async fn until(&self, path: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        let began = stopwatch();
        loop {
            let found = self.get(path).await;
            if wanted(&found) {
                return found;
            }
            assert!(began.elapsed() < TIMEOUT, "{path} stays {found:#}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Stops the server and waits until its loops have let go of the ledger.
    pub(crate) async fn stop(self) {
        let Self { control, router, .. } = self;
        control.lifecycle.stop();
        let (began, left) = (stopwatch(), Arc::downgrade(&control));
        // The last handle closes connections, which waits.
        tokio::task::spawn_blocking(move || drop((router, control))).await.unwrap();
        while left.strong_count() > 0 {
            assert!(began.elapsed() < TIMEOUT, "the server does not stop");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}
