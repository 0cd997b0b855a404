//! The protocol by which agents of autoscaled virtual machines request permits from the scheduler:
//! `POST /` on a port of its own, disabled unless it has an address. `docs/wire.md` describes it.
//!
//! Decides nothing: each request goes to the owner of the cluster state, and its reply back. A permit
//! takes room from others, so a listener that other hosts can reach needs tokens.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::{Request, State};
use axum::http::header::{AUTHORIZATION, CONTENT_TYPE, WWW_AUTHENTICATE};
use axum::http::{Method, StatusCode, Uri};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use axum::routing::post;
use berth_api::wire::WireRequest;
use berth_engine::elastic::{PermitRequest, Size};
use subtle::ConstantTimeEq as _;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use crate::cluster::elastic::permits::{AgentRequest, PermitError, PermitReply};
use crate::cluster::pod::Key;
use crate::http_server::{self, Limits};

/// The largest body that agents send.
const BODY_BYTES_MAX: usize = 1024;
/// Timeout of a request: agents give up after ten seconds.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// The size of a memory slot in MiB, in which versions before 4.0 count.
const SLOT_MIB: u32 = 1024;

/// The shortest token.
const TOKEN_BYTES_MIN: usize = 16;

/// Where the protocol is served, and who may use it.
#[derive(Debug)]
pub struct WireListener {
    /// Where agents connect.
    pub listener: TcpListener,
    /// The tokens that they present; absent: none is needed.
    pub tokens: Option<TokenFile>,
}

/// A file of tokens, one a line, that is read again for every request: a mounted Secret changes
/// while the scheduler runs.
#[derive(Clone, Debug)]
pub struct TokenFile(PathBuf);

impl TokenFile {
    /// A file that has tokens now.
    ///
    /// # Errors
    /// When it cannot be read, or has none.
    pub fn open(path: &Path) -> io::Result<Self> {
        let text = std::fs::read_to_string(path)?;
        if tokens_of(&text).next().is_none() {
            let why = format!("it has no token of at least {TOKEN_BYTES_MIN} characters");
            return Err(io::Error::new(io::ErrorKind::InvalidData, why));
        }
        Ok(Self(path.to_owned()))
    }

    async fn has(&self, token: &str) -> io::Result<bool> {
        let text = tokio::fs::read_to_string(&self.0).await?;
        // All are compared, so that the time tells nothing.
        let is_one = |known: &str| bool::from(known.as_bytes().ct_eq(token.as_bytes()));
        Ok(tokens_of(&text).filter(|known| is_one(known)).count() > 0)
    }
}

fn tokens_of(text: &str) -> impl Iterator<Item = &str> {
    text.lines().map(str::trim).filter(|token| token.len() >= TOKEN_BYTES_MIN)
}

/// A permit request of a virtual machine, with the channel for the reply.
#[derive(Debug)]
pub struct PermitCall {
    /// The pod of the virtual machine.
    pub pod: Key,
    /// What its agent asks.
    pub asked: AgentRequest,
    /// Where the reply goes; dropped without one: this replica must not decide now.
    pub reply: oneshot::Sender<Result<PermitReply, PermitError>>,
}

/// Serves until stopped. The receiver of `calls` decides.
pub async fn serve(wire: WireListener, calls: mpsc::Sender<PermitCall>, stop: CancellationToken) {
    let WireListener { listener, tokens } = wire;
    let router = Router::new()
        .route("/", post(handle_request))
        .fallback(async |uri: Uri| {
            (StatusCode::NOT_FOUND, format!("there is nothing at {}; use /\n", uri.path()))
        })
        .method_not_allowed_fallback(async |method: Method| {
            (StatusCode::BAD_REQUEST, format!("the method is {method}; accepted is POST\n"))
        })
        .layer(axum::middleware::from_fn_with_state(tokens.map(Arc::new), authenticate))
        .with_state(calls);
    http_server::serve_plain(listener, router, Limits::http1(REQUEST_TIMEOUT), stop).await;
}

/// Passes on requests with a valid token.
async fn authenticate(
    State(tokens): State<Option<Arc<TokenFile>>>,
    request: Request,
    next: Next,
) -> Response {
    let Some(tokens) = tokens else { return next.run(request).await };
    let header = request.headers().get(AUTHORIZATION).and_then(|value| value.to_str().ok());
    let (scheme, token) = header.and_then(|value| value.split_once(' ')).unwrap_or_default();
    let presented = if scheme.eq_ignore_ascii_case("bearer") { token.trim() } else { "" };
    match tokens.has(presented).await {
        Ok(true) => next.run(request).await,
        Ok(false) => {
            let message = "authentication required: send Authorization: Bearer TOKEN\n";
            let headers = [(CONTENT_TYPE, "text/plain"), (WWW_AUTHENTICATE, "Bearer")];
            (StatusCode::UNAUTHORIZED, headers, message).into_response()
        }
        Err(error) => {
            tracing::error!(%error, file = %tokens.0.display(), "failed to read wire tokens");
            let message = "the tokens of this port cannot be read; see the scheduler's log\n";
            let plain = [(CONTENT_TYPE, "text/plain")];
            (StatusCode::INTERNAL_SERVER_ERROR, plain, message).into_response()
        }
    }
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
    let request = PermitRequest {
        last_permit: read.last_permit,
        load_milli: read.load_milli(),
        ..PermitRequest::new(read.wanted)
    };
    // What one CPU and one MiB become in the amounts that the agent can count.
    let countable = read.in_slots(Size::new(1, 1));
    let asked = AgentRequest {
        unit_of_memory_mib: countable.memory_mib,
        unit_of_cpu_milli: countable.cpu_milli,
        whole_units: read.tells_unit(),
        ..AgentRequest::new(request, read.unit)
    };
    let (reply, answer) = oneshot::channel();
    let not_ready = || {
        let message = "this scheduler is not the leader, or has not listed the cluster yet; retry";
        (StatusCode::INTERNAL_SERVER_ERROR, message.to_owned())
    };
    let call = PermitCall { pod, asked, reply };
    calls.send(call).await.map_err(|_| not_ready())?;
    match answer.await.map_err(|_| not_ready())? {
        Ok(reply) => Ok(read.answer(reply.granted, reply.moving, reply.unit).to_string()),
        Err(error @ PermitError::Unknown(_)) => Err((StatusCode::NOT_FOUND, error.to_string())),
        Err(error @ PermitError::NotStored { .. }) => {
            Err((StatusCode::INTERNAL_SERVER_ERROR, error.to_string()))
        }
        Err(error) => Err(bad(error.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpStream;

    use super::*;

    const FIRST: &str = "first-token-of-the-agents";
    const SECOND: &str = "second-token-of-the-agents";

    /// The status of a request with this header.
    async fn status(at: std::net::SocketAddr, header: &str) -> u16 {
        let mut stream = TcpStream::connect(at).await.unwrap();
        let head = format!("POST / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n{header}");
        let request = format!("{head}content-length: 2\r\n\r\n{{}}");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer.split(' ').nth(1).unwrap().parse().unwrap()
    }

    #[tokio::test]
    async fn a_permit_is_answered_only_with_one_of_the_tokens_in_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("tokens");
        std::fs::write(&file, "short\n\n").unwrap();
        assert!(TokenFile::open(&file).is_err());
        std::fs::write(&file, format!("{FIRST}\n")).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let at = listener.local_addr().unwrap();
        let tokens = Some(TokenFile::open(&file).unwrap());
        let (calls, _received) = mpsc::channel(1);
        let stop = CancellationToken::new();
        let served = tokio::spawn(serve(WireListener { listener, tokens }, calls, stop.clone()));
        let bearer = |token: &str| format!("authorization: Bearer {token}\r\n");
        for header in [String::new(), bearer("short"), bearer(""), bearer(SECOND)] {
            assert_eq!(status(at, &header).await, 401, "{header}");
        }
        assert_eq!(status(at, &format!("authorization: Basic {FIRST}\r\n")).await, 401);
        // The request itself is none, which is found out only now.
        assert_eq!(status(at, &bearer(FIRST)).await, 400);
        std::fs::write(&file, format!("{FIRST}\n{SECOND}\n")).unwrap();
        assert_eq!(status(at, &bearer(SECOND)).await, 400);
        std::fs::remove_file(&file).unwrap();
        assert_eq!(status(at, &bearer(FIRST)).await, 500);
        stop.cancel();
        served.await.unwrap();
    }
}
