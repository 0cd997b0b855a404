//! The protocol that agents of autoscaled virtual machines speak with their scheduler: `POST /` on a
//! port of its own, off unless it has an address. `docs/wire.md` says what of it is taken.
//!
//! Nothing is decided here: each request goes to whoever owns the cluster, and its answer back.

use std::convert::Infallible;
use std::time::Duration;

use berth_api::wire::WireRequest;
use berth_engine::elastic::{PermitDecision, PermitRequest, Size};
use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpListener;
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::cluster::permits::NoPermit;
use crate::cluster::pod::Key;

/// The largest body, as agents expect it.
const BODY_BYTES: usize = 1024;
/// How long an answer may take: agents give up after ten seconds.
const PATIENCE: Duration = Duration::from_secs(5);
/// MiB of a memory slot, in which versions before 4.0 count.
const SLOT_MIB: u32 = 1024;

/// A machine that wants to be of another size, and who waits for the answer.
#[derive(Debug)]
pub struct PermitAsked {
    /// Its pod.
    pub pod: Key,
    /// What it wants.
    pub wish: PermitRequest,
    /// Its agent's compute unit, if it has one.
    pub unit: Option<Size>,
    /// Where the answer goes; dropped: nobody here may decide now.
    pub answer: oneshot::Sender<Result<PermitDecision, NoPermit>>,
}

/// Serves until it is told to stop. Whoever receives `asked` decides.
pub async fn serve(
    listener: TcpListener,
    asked: mpsc::Sender<PermitAsked>,
    stop: CancellationToken,
) {
    let tracker = TaskTracker::new();
    loop {
        let accepted = tokio::select! {
            () = stop.cancelled() => break,
            accepted = listener.accept() => accepted,
        };
        let Ok((stream, _)) = accepted else {
            // Out of file descriptors, most likely: others will end.
            tokio::time::sleep(Duration::from_millis(50)).await;
            continue;
        };
        let (asked, stop) = (asked.clone(), stop.clone());
        tracker.spawn(async move {
            let answer = service_fn(move |request| answer(request, asked.clone()));
            let mut http = http1::Builder::new();
            http.timer(TokioTimer::new()).header_read_timeout(PATIENCE);
            let connection = http.serve_connection(TokioIo::new(stream), answer);
            tokio::select! {
                // What a client does to its own connection is its own affair.
                _ = connection => {}
                () = stop.cancelled() => {}
            }
        });
    }
    tracker.close();
    let _ = tokio::time::timeout(Duration::from_secs(1), tracker.wait()).await;
}

type Refused = (StatusCode, String);

async fn answer(
    request: Request<Incoming>,
    asked: mpsc::Sender<PermitAsked>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let done = tokio::time::timeout(PATIENCE, permit(request, asked)).await;
    let late = || Err((StatusCode::INTERNAL_SERVER_ERROR, "nobody answered in time".to_owned()));
    let (status, kind, body) = match done.unwrap_or_else(|_| late()) {
        Ok(body) => (StatusCode::OK, "application/json", body),
        Err((status, why)) => (status, "text/plain", format!("{why}\n")),
    };
    let mut response = Response::new(Full::new(Bytes::from(body)));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    Ok(response)
}

async fn permit(
    request: Request<Incoming>,
    asked: mpsc::Sender<PermitAsked>,
) -> Result<String, Refused> {
    let bad = |why: String| (StatusCode::BAD_REQUEST, why);
    if request.uri().path() != "/" {
        let path = request.uri().path();
        return Err((StatusCode::NOT_FOUND, format!("there is nothing at {path}; use /")));
    }
    if request.method() != Method::POST {
        return Err(bad(format!("the method is {}; accepted is POST", request.method())));
    }
    let body = Limited::new(request.into_body(), BODY_BYTES).collect().await;
    let body = body
        .map_err(|_| bad(format!("the body cannot be read, or is above {BODY_BYTES} bytes")))?
        .to_bytes();
    let read = WireRequest::read(&body, SLOT_MIB).map_err(bad)?;
    let pod = Key::new(&read.pod.namespace, &read.pod.name);
    let wish = PermitRequest { last_permit: read.last_permit, ..PermitRequest::new(read.wanted) };
    let (sender, receiver) = oneshot::channel();
    let busy = || {
        let why = "this scheduler does not lead, or has not read the cluster yet; ask again";
        (StatusCode::INTERNAL_SERVER_ERROR, why.to_owned())
    };
    let sent = PermitAsked { pod, wish, unit: read.unit, answer: sender };
    asked.send(sent).await.map_err(|_| busy())?;
    match receiver.await.map_err(|_| busy())? {
        Ok(decided) => Ok(read.answer(decided.permit.granted, false).to_string()),
        Err(why @ NoPermit::Unknown(_)) => Err((StatusCode::NOT_FOUND, why.to_string())),
        Err(why) => Err(bad(why.to_string())),
    }
}
