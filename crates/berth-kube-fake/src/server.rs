//! The HTTP server: connections, authentication, permissions, faults, and the audit log.

mod answer;
mod discovery;
mod route;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::ServerConfig;
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

use crate::api::{Api, User};
use crate::failure::Failure;
use crate::options::AuditEntry;
use crate::rbac::{AccessRequest, Rule};
use crate::store::lock;
use crate::watch::ConnectionCut;
use answer::Answer;
use route::{RequestHead, RequestTarget};

/// Why the server did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// No port is available.
    #[error("no port is available on this machine")]
    Listen(#[from] std::io::Error),
    /// No certificate could be created.
    #[error("failed to create a certificate")]
    Certificate(#[from] rcgen::Error),
    /// The certificate is invalid.
    #[error("invalid certificate")]
    Tls(#[from] rustls::Error),
    /// The initial objects could not be created.
    #[error("failed to create the initial objects")]
    Populate(#[from] Failure),
}

/// The maximum length of a body.
const BODY_MAX: usize = 3 * 1024 * 1024;

/// How long a client waits for a delayed failure.
const LOST_RESPONSE_DELAY: Duration = Duration::from_millis(200);

/// A request with its body.
pub(crate) struct IncomingRequest {
    pub(crate) head: RequestHead,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
    pub(crate) user: User,
}

/// Accepts connections until the server stops.
pub(crate) async fn serve(api: Arc<Api>, listener: TcpListener, identity: Option<Identity>) {
    let stop = api.stop.clone();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = stop.cancelled() => return,
        };
        let Ok((stream, _)) = accepted else { continue };
        let _ = stream.set_nodelay(true);
        let api = Arc::clone(&api);
        let acceptor = identity.as_ref().map(|identity| identity.acceptor.clone());
        tokio::spawn(async move {
            match acceptor {
                None => serve_connection(api, stream).await,
                Some(acceptor) => {
                    if let Ok(stream) = acceptor.accept(stream).await {
                        serve_connection(api, stream).await;
                    }
                }
            }
        });
    }
}

async fn serve_connection<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
    api: Arc<Api>,
    stream: S,
) {
    let stop = api.stop.clone();
    let service = service_fn(move |request| {
        let api = Arc::clone(&api);
        async move { respond(&api, request).await }
    });
    let connection =
        hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service);
    tokio::select! {
        // Errors of a connection are the client's.
        _ = connection => {}
        () = stop.cancelled() => {}
    }
}

/// The effect of a fault on one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    None,
    /// Nothing is done, and it is not allowed.
    Forbid,
    /// Nothing is done.
    Refuse,
    /// Everything is done, and the client does not learn of it.
    LoseReply,
}

fn draw_fault(api: &Api, target: &RequestTarget) -> (Fault, Option<Duration>) {
    let faults = lock(&api.faults);
    let named = target.with_subresource();
    if faults.only.as_ref().is_some_and(|only| *only != named) {
        return (Fault::None, faults.latency);
    }
    let hit = |permille: u32| permille > 0 && fastrand::u32(..1000) < permille;
    let fault = if faults.forbid {
        Fault::Forbid
    } else if hit(faults.error_rate_permille) {
        Fault::Refuse
    } else if target.is_write() && hit(faults.lost_reply_permille) {
        Fault::LoseReply
    } else {
        Fault::None
    };
    (fault, faults.latency)
}

async fn respond(
    api: &Arc<Api>,
    request: Request<Incoming>,
) -> Result<Response<answer::Body>, ConnectionCut> {
    if lock(&api.faults).down {
        return Err(ConnectionCut);
    }
    let at = jiff::Timestamp::now();
    let (parts, body) = request.into_parts();
    let agent = header(&parts.headers, "user-agent").to_owned();
    let (user, rules) = match authenticate(api, &parts.headers) {
        Ok(signed_in) => signed_in,
        Err(failure) => return Ok(Answer::from(failure).into_response()),
    };
    let head = match route::read(api, &parts.method, &parts.uri) {
        Ok(head) => head,
        Err(failure) => return Ok(Answer::from(failure).into_response()),
    };
    let RequestHead { target: Some(target), .. } = &head else {
        return Ok(discovery::answer(api, parts.uri.path()).into_response());
    };
    let mut entry = AuditEntry {
        verb: target.verb.into(),
        resource: target.resource.qualified(),
        subresource: target.subresource.clone(),
        namespace: target.namespace.clone().unwrap_or_default(),
        name: target.name.clone(),
        user_agent: agent,
        code: 0,
        dry_run: head.dry_run,
        done: false,
        at,
    };
    let (fault, latency) = draw_fault(api, target);
    if let Some(latency) = latency {
        tokio::time::sleep(latency).await;
    }
    if let Err(failure) = authorize(&user, rules, target) {
        return finish(api, entry, Ok(Answer::from(failure)));
    }
    if fault == Fault::Forbid {
        let failure = Failure::forbidden(&target.resource, &target.name, "RBAC: role not found");
        return finish(api, entry, Ok(Answer::from(failure)));
    }
    if fault == Fault::Refuse {
        let outcome = random_server_error().await;
        return finish(api, entry, outcome);
    }
    let body = match Limited::new(body, BODY_MAX).collect().await {
        Ok(body) => body.to_bytes(),
        Err(_) => return finish(api, entry, Ok(Answer::from(Failure::too_large_body()))),
    };
    let incoming = IncomingRequest { headers: parts.headers, body, user, head: head.clone() };
    let answer = answer::handle_request(api, incoming).await.unwrap_or_else(Answer::from);
    entry.done = answer.code < 400;
    if fault == Fault::LoseReply {
        let outcome = lose_response().await;
        return finish(api, entry, outcome);
    }
    finish(api, entry, Ok(answer))
}

/// Records the request and sends the response, or cuts the connection.
fn finish(
    api: &Api,
    mut entry: AuditEntry,
    outcome: Result<Answer, ConnectionCut>,
) -> Result<Response<answer::Body>, ConnectionCut> {
    entry.code = outcome.as_ref().map_or(0, |answer| answer.code);
    if api.options.audit {
        lock(&api.audit).push(entry);
    }
    outcome.map(Answer::into_response)
}

/// A random server error.
async fn random_server_error() -> Result<Answer, ConnectionCut> {
    match fastrand::u32(..4) {
        0 => Ok(Answer::from(Failure::internal("etcdserver: request timed out"))),
        1 => Ok(Answer::from(Failure::unavailable())),
        2 => Ok(Answer::from(Failure::timeout())),
        _ => Err(ConnectionCut),
    }
}

/// A random way to lose a response.
async fn lose_response() -> Result<Answer, ConnectionCut> {
    match fastrand::u32(..3) {
        0 => Ok(Answer::from(Failure::internal("etcdserver: request timed out"))),
        1 => {
            tokio::time::sleep(LOST_RESPONSE_DELAY).await;
            Ok(Answer::from(Failure::timeout()))
        }
        _ => Err(ConnectionCut),
    }
}

pub(crate) fn header<'a>(headers: &'a HeaderMap, name: &str) -> &'a str {
    headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
}

/// The user of a request, and its permissions.
fn authenticate<'a>(
    api: &'a Api,
    headers: &HeaderMap,
) -> Result<(User, Option<&'a Vec<Rule>>), Failure> {
    let options = &api.options;
    let token = header(headers, "authorization").strip_prefix("Bearer ").unwrap_or_default();
    if let Some(account) = options.accounts.iter().find(|account| account.token == token) {
        return Ok((User::named(&account.user), account.rbac.as_ref()));
    }
    match &options.token {
        Some(wanted) if wanted != token => Err(Failure::unauthorized()),
        _ => Ok((User::named(&options.user), options.rbac.as_ref())),
    }
}

fn authorize(
    user: &User,
    rules: Option<&Vec<Rule>>,
    target: &RequestTarget,
) -> Result<(), Failure> {
    let Some(rules) = rules else { return Ok(()) };
    let namespace = target.namespace.as_deref().unwrap_or_default();
    let request = AccessRequest {
        verb: target.verb,
        group: &target.resource.group,
        resource: target.resource_path(),
        namespace,
        name: &target.name,
    };
    let is_allowed = |request: &AccessRequest<'_>| rules.iter().any(|rule| rule.allows(request));
    // Since Kubernetes 1.36 a further permission, in all namespaces, for who uses which devices.
    let is_claim = request.resource == "resourceclaims/status" && target.is_write();
    let binding = AccessRequest {
        resource: "resourceclaims/binding".to_owned(),
        namespace: "",
        name: "",
        ..request.clone()
    };
    let request = match (is_allowed(&request), is_claim && !is_allowed(&binding)) {
        (true, false) => return Ok(()),
        (true, true) => binding,
        (false, _) => request,
    };
    let place = if namespace.is_empty() {
        "at the cluster scope".to_owned()
    } else {
        format!("in the namespace {namespace:?}")
    };
    let why = format!(
        "User {:?} cannot {} resource {:?} in API group {:?} {place}",
        user.name, request.verb, request.resource, request.group
    );
    Err(Failure::forbidden(&target.resource, &target.name, why))
}

/// Finds a free port on this machine.
pub(crate) async fn listen() -> std::io::Result<(TcpListener, SocketAddr)> {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
    let address = listener.local_addr()?;
    Ok((listener, address))
}

/// The certificate of the server and its CA.
#[derive(Clone)]
pub(crate) struct Identity {
    pub(crate) ca_pem: String,
    pub(crate) acceptor: TlsAcceptor,
}

impl Identity {
    /// Creates a CA and a certificate for this machine.
    pub(crate) fn make() -> Result<Self, StartError> {
        let mut authority = CertificateParams::new(Vec::<String>::new())?;
        authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let authority = CertifiedIssuer::self_signed(authority, KeyPair::generate()?)?;
        let key = KeyPair::generate()?;
        let names = vec!["127.0.0.1".to_owned(), "localhost".to_owned(), "kubernetes".to_owned()];
        let certificate = CertificateParams::new(names)?.signed_by(&key, &authority)?;
        let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(vec![certificate.der().clone()], key)?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        let acceptor = TlsAcceptor::from(Arc::new(config));
        Ok(Self { ca_pem: authority.pem(), acceptor })
    }
}
