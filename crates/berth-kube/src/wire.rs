//! The protocol by which agents of autoscaled virtual machines request permits from the scheduler:
//! `POST /` on a port of its own, disabled unless it has an address. `docs/wire.md` describes it.
//!
//! Decides nothing: each request goes to the owner of the cluster state, and its reply back.

use std::time::Duration;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::http::{Method, StatusCode, Uri};
use axum::response::{IntoResponse as _, Response};
use axum::routing::post;
use berth_api::wire::WireRequest;
use berth_engine::elastic::{PermitDecision, PermitRequest, Size};
use tokio::net::TcpListener;
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use crate::cluster::permits::PermitError;
use crate::cluster::pod::Key;
use crate::http_server::{self, Limits};

/// The largest body that agents send.
const BODY_BYTES_MAX: usize = 1024;
/// Timeout of a request: agents give up after ten seconds.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// The size of a memory slot in MiB, in which versions before 4.0 count.
const SLOT_MIB: u32 = 1024;

/// A permit request of a virtual machine, with the channel for the reply.
#[derive(Debug)]
pub struct PermitCall {
    /// The pod of the virtual machine.
    pub pod: Key,
    /// The requested size.
    pub request: PermitRequest,
    /// The compute unit of its agent, if it has one.
    pub unit: Option<Size>,
    /// Where the reply goes; dropped without one: this replica must not decide now.
    pub reply: oneshot::Sender<Result<PermitDecision, PermitError>>,
}

/// Serves until stopped. The receiver of `calls` decides.
pub async fn serve(
    listener: TcpListener,
    calls: mpsc::Sender<PermitCall>,
    stop: CancellationToken,
) {
    let router = Router::new()
        .route("/", post(handle_request))
        .fallback(async |uri: Uri| {
            (StatusCode::NOT_FOUND, format!("there is nothing at {}; use /\n", uri.path()))
        })
        .method_not_allowed_fallback(async |method: Method| {
            (StatusCode::BAD_REQUEST, format!("the method is {method}; accepted is POST\n"))
        })
        .with_state(calls);
    http_server::serve_plain(listener, router, Limits::http1(REQUEST_TIMEOUT), stop).await;
}

async fn handle_request(State(calls): State<mpsc::Sender<PermitCall>>, body: Body) -> Response {
    let timed_out =
        || Err((StatusCode::INTERNAL_SERVER_ERROR, "no decision in time; retry".to_owned()));
    let decision = tokio::time::timeout(REQUEST_TIMEOUT, request_permit(body, calls)).await;
    match decision.unwrap_or_else(|_| timed_out()) {
        Ok(body) => ([(CONTENT_TYPE, "application/json")], body).into_response(),
        Err((status, message)) => {
            (status, [(CONTENT_TYPE, "text/plain")], format!("{message}\n")).into_response()
        }
    }
}

async fn request_permit(
    body: Body,
    calls: mpsc::Sender<PermitCall>,
) -> Result<String, (StatusCode, String)> {
    let bad = |message: String| (StatusCode::BAD_REQUEST, message);
    let body = to_bytes(body, BODY_BYTES_MAX).await.map_err(|_| {
        bad(format!("the body cannot be read, or is longer than {BODY_BYTES_MAX} bytes"))
    })?;
    let read = WireRequest::read(&body, SLOT_MIB).map_err(bad)?;
    let pod = Key::new(&read.pod.namespace, &read.pod.name);
    let request =
        PermitRequest { last_permit: read.last_permit, ..PermitRequest::new(read.wanted) };
    let (reply, answer) = oneshot::channel();
    let not_ready = || {
        let message = "this scheduler is not the leader, or has not listed the cluster yet; retry";
        (StatusCode::INTERNAL_SERVER_ERROR, message.to_owned())
    };
    let call = PermitCall { pod, request, unit: read.unit, reply };
    calls.send(call).await.map_err(|_| not_ready())?;
    match answer.await.map_err(|_| not_ready())? {
        Ok(decided) => Ok(read.answer(decided.permit.granted, false).to_string()),
        Err(error @ PermitError::Unknown(_)) => Err((StatusCode::NOT_FOUND, error.to_string())),
        Err(error) => Err(bad(error.to_string())),
    }
}
