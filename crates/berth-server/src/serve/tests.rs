//! Connections as clients see them.

use std::net::{Ipv4Addr, SocketAddr};

use axum::extract::ConnectInfo;
use axum::routing::{get, post};
use berth_control::supervision::{Problem, Supervisor, ThreadWork};
use bytes::Bytes;
use jiff::Timestamp;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::*;
use crate::http::CertifiedNode;

fn app() -> Router {
    let who = |ConnectInfo(peer): ConnectInfo<SocketAddr>, request: axum::extract::Request| async move {
        let node = request.extensions().get::<CertifiedNode>().map(|node| node.0.to_string());
        format!("{} {}", peer.ip(), node.unwrap_or_else(|| "nobody".to_owned()))
    };
    let slow = || async {
        tokio::time::sleep(Duration::from_millis(300)).await;
        "done"
    };
    Router::new()
        .route("/", get(who))
        .route("/slow", get(slow))
        .route("/big", get(|| async { "x".repeat(64 << 20) }))
        .route("/take", post(|body: Bytes| async move { body.len().to_string() }))
}

struct Running {
    at: SocketAddr,
    stop: Stop,
    task: tokio::task::JoinHandle<()>,
}

fn run(limits: ConnectionLimits, tls: Option<Arc<Tls>>) -> Running {
    let server = Server::bind(&[SocketAddr::from((Ipv4Addr::LOCALHOST, 0))]).unwrap();
    let at = server.addresses()[0];
    let stop = Stop::default();
    let limits = Arc::new(ArcSwap::from_pointee(limits));
    let server = server.with_limits(limits).with_tls(tls);
    let task = tokio::spawn(server.run(app(), stop.clone()));
    Running { at, stop, task }
}

async fn ask(stream: &mut TcpStream, path: &str) {
    let head = format!("GET {path} HTTP/1.1\r\nhost: x\r\n\r\n");
    stream.write_all(head.as_bytes()).await.unwrap();
}

/// Everything until the other side closes.
async fn rest(stream: &mut TcpStream) -> String {
    let mut text = Vec::new();
    let _ =
        tokio::time::timeout(Duration::from_secs(10), stream.read_to_end(&mut text)).await.unwrap();
    String::from_utf8_lossy(&text).into_owned()
}

#[tokio::test]
async fn a_request_in_flight_gets_its_answer_and_then_the_server_ends() {
    let running = run(ConnectionLimits::default(), None);
    let mut busy = TcpStream::connect(running.at).await.unwrap();
    let mut idle = TcpStream::connect(running.at).await.unwrap();
    ask(&mut busy, "/slow").await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    running.stop.draining.cancel();
    running.stop.closing.cancel();
    let answer = rest(&mut busy).await;
    assert!(answer.ends_with("done") && answer.contains("connection: close"), "{answer}");
    assert_eq!(rest(&mut idle).await, "");
    tokio::time::timeout(Duration::from_secs(5), running.task).await.unwrap().unwrap();
    assert!(TcpStream::connect(running.at).await.is_err());
}

#[tokio::test]
async fn while_it_drains_a_server_still_takes_requests_and_asks_to_connect_anew() {
    let running = run(ConnectionLimits::default(), None);
    let mut old = TcpStream::connect(running.at).await.unwrap();
    running.stop.draining.cancel();
    let mut new = TcpStream::connect(running.at).await.unwrap();
    for stream in [&mut old, &mut new] {
        ask(stream, "/").await;
        let answer = rest(stream).await;
        assert!(answer.contains("200 OK") && answer.ends_with("127.0.0.1 nobody"), "{answer}");
    }
}

#[tokio::test]
async fn listeners_that_stop_are_no_problem_and_one_that_is_dropped_is() {
    let supervisor = Arc::new(Supervisor::default());
    let monitor = || supervisor.monitor("listener", ThreadWork::RunsPasses, None);
    let local = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let start = || Server::bind(&[local, local]).unwrap().with_monitors(monitor);
    let stop = Stop::default();
    let task = tokio::spawn(start().run(app(), stop.clone()));
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert_eq!(supervisor.threads().get("listener"), Some(&true));
    stop.closing.cancel();
    tokio::time::timeout(Duration::from_secs(5), task).await.unwrap().unwrap();
    assert_eq!(supervisor.problems(), []);
    // Never served, so nobody can connect.
    drop(start());
    assert_eq!(supervisor.problems(), [Problem::Ended("listener"), Problem::Ended("listener")]);
}

#[tokio::test]
async fn what_does_not_end_in_time_is_cut() {
    let running = run(ConnectionLimits::default(), None);
    let mut stream = TcpStream::connect(running.at).await.unwrap();
    ask(&mut stream, "/big").await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    running.stop.closing.cancel();
    running.stop.cut.cancel();
    tokio::time::timeout(Duration::from_secs(5), running.task).await.unwrap().unwrap();
}

#[tokio::test]
async fn one_connection_too_many_is_turned_away_and_a_free_place_is_taken_again() {
    let limits = ConnectionLimits { max_connections: 1, ..ConnectionLimits::default() };
    let running = run(limits, None);
    let mut first = TcpStream::connect(running.at).await.unwrap();
    ask(&mut first, "/slow").await;
    tokio::time::sleep(Duration::from_millis(50)).await;
    let mut second = TcpStream::connect(running.at).await.unwrap();
    let answer = rest(&mut second).await;
    assert!(answer.contains("503") && answer.contains("too_many_connections"), "{answer}");
    drop(first);
    for _ in 0..50 {
        let mut third = TcpStream::connect(running.at).await.unwrap();
        let close = b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
        third.write_all(close).await.unwrap();
        if rest(&mut third).await.contains("200 OK") {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("the place was never free again");
}

#[test]
fn the_answer_to_one_too_many_is_as_long_as_it_says() {
    let text = std::str::from_utf8(connection::full()).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    assert!(head.contains(&format!("content-length: {}", body.len())), "{}", body.len());
    serde_json::from_str::<serde_json::Value>(body).unwrap();
}

#[tokio::test]
async fn slow_clients_are_cut_off() {
    let quick = Duration::from_millis(300);
    let limits = ConnectionLimits {
        header_timeout: quick,
        stall_timeout: quick,
        ..ConnectionLimits::default()
    };
    let running = run(limits, None);
    // One that says nothing, one that sends half a head, one that sends half a body.
    for beginning in
        ["", "GET / HT", "POST /take HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\nabc"]
    {
        let mut stream = TcpStream::connect(running.at).await.unwrap();
        stream.write_all(beginning.as_bytes()).await.unwrap();
        let answer = rest(&mut stream).await;
        assert!(!answer.contains("200 OK"), "{beginning:?}: {answer}");
    }
    // One that takes nothing of a large answer: it is gone before the answer is.
    let mut stream = TcpStream::connect(running.at).await.unwrap();
    ask(&mut stream, "/big").await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert!(rest(&mut stream).await.len() < 64 << 20);
}

#[tokio::test]
async fn a_body_that_comes_byte_by_byte_is_cut_off_and_a_large_one_is_not() {
    let quick = Duration::from_millis(500);
    let limits = ConnectionLimits { stall_timeout: quick, ..ConnectionLimits::default() };
    let running = run(limits, None);
    let mut trickle = TcpStream::connect(running.at).await.unwrap();
    let head = "POST /take HTTP/1.1\r\nhost: x\r\ncontent-length: 1000\r\n\r\n";
    trickle.write_all(head.as_bytes()).await.unwrap();
    // It never stalls, and would take more than a minute.
    let mut cut_off_after = None;
    for byte in 0..1000 {
        tokio::time::sleep(quick / 8).await;
        if trickle.write_all(b"x").await.is_err() {
            cut_off_after = Some(byte);
            break;
        }
    }
    assert!(cut_off_after.is_some(), "{}", rest(&mut trickle).await);

    // Waited for as long, and fast enough.
    let mut steady = TcpStream::connect(running.at).await.unwrap();
    let (part, parts) = (vec![b'x'; 8192], 40);
    let head = format!(
        "POST /take HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {}\r\n\r\n",
        part.len() * parts
    );
    steady.write_all(head.as_bytes()).await.unwrap();
    for _ in 0..parts {
        tokio::time::sleep(quick / 8).await;
        steady.write_all(&part).await.unwrap();
    }
    let answer = rest(&mut steady).await;
    assert!(answer.contains("200 OK") && answer.ends_with("327680"), "{answer}");
}

fn authority(folder: &std::path::Path) -> (Authority, Arc<Tls>) {
    let authority = Authority::in_data_dir(folder, now()).unwrap();
    authority.renew_server(&["localhost".to_owned(), "127.0.0.1".to_owned()], now()).unwrap();
    let files = TlsFiles {
        cert: authority.server(),
        key: authority.server(),
        client_ca: vec![authority.ca_cert()],
    };
    let tls = Arc::new(Tls::load(files).unwrap());
    (authority, tls)
}

fn now() -> Timestamp {
    berth_control::clock::now()
}

/// Asks over TLS, with a certificate or without, by a protocol.
async fn ask_encrypted(
    at: SocketAddr,
    authority: &Authority,
    identity: Option<&str>,
) -> std::io::Result<String> {
    let mut roots = rustls::RootCertStore::empty();
    let ca = std::fs::read(authority.ca_cert()).unwrap();
    roots.add(CertificateDer::from_pem_slice(&ca).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots);
    let config = match identity {
        None => builder.with_no_client_auth(),
        Some(pem) => {
            let chain = vec![CertificateDer::from_pem_slice(pem.as_bytes()).unwrap()];
            let key = PrivateKeyDer::from_pem_slice(pem.as_bytes()).unwrap();
            builder.with_client_auth_cert(chain, key).unwrap()
        }
    };
    let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
    let stream = TcpStream::connect(at).await?;
    let name = ServerName::try_from("localhost").unwrap();
    let mut stream = connector.connect(name, stream).await?;
    stream.write_all(b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await?;
    let mut text = String::new();
    stream.read_to_string(&mut text).await?;
    Ok(text)
}

#[tokio::test]
async fn an_agents_certificate_says_which_node_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let (authority, tls) = authority(folder.path());
    let running = run(ConnectionLimits::default(), Some(tls));
    let answer = ask_encrypted(running.at, &authority, None).await.unwrap();
    assert!(answer.ends_with("127.0.0.1 nobody"), "{answer}");
    let pem = authority.agent("node-7", 10, now()).unwrap();
    let answer = ask_encrypted(running.at, &authority, Some(&pem)).await.unwrap();
    assert!(answer.ends_with("127.0.0.1 node-7"), "{answer}");
    // Another authority of the same name vouches for nobody here.
    let elsewhere = tempfile::tempdir().unwrap();
    let other = Authority::in_data_dir(elsewhere.path(), now()).unwrap();
    let forged = other.agent("node-7", 10, now()).unwrap();
    assert!(ask_encrypted(running.at, &authority, Some(&forged)).await.is_err());
    // The server's own certificate is not one of an agent.
    let servers = std::fs::read_to_string(authority.server()).unwrap();
    assert!(ask_encrypted(running.at, &authority, Some(&servers)).await.is_err());
    // One that has ended signs nobody in.
    let long_ago = now().checked_sub(jiff::SignedDuration::from_hours(24 * 20)).unwrap();
    let ended = authority.agent("node-7", 10, long_ago).unwrap();
    assert!(ask_encrypted(running.at, &authority, Some(&ended)).await.is_err());
}

#[test]
fn the_own_certificate_is_kept_until_its_end_is_near_or_hosts_change() {
    let folder = tempfile::tempdir().unwrap();
    let (authority, tls) = authority(folder.path());
    let hosts = ["localhost".to_owned(), "127.0.0.1".to_owned()];
    assert!(!authority.renew_server(&hosts, now()).unwrap());
    assert!(!tls.reload().unwrap());
    let later = now().checked_add(jiff::SignedDuration::from_hours(24 * 61)).unwrap();
    assert!(authority.renew_server(&hosts, later).unwrap());
    assert!(authority.renew_server(&hosts[..1], later).unwrap());
    assert!(tls.reload().unwrap());
    assert!(!tls.reload().unwrap());
    std::fs::write(authority.server(), "nothing").unwrap();
    let error = tls.reload().unwrap_err().to_string();
    assert!(error.contains("holds no certificate in PEM"), "{error}");
}

#[test]
fn keys_are_for_their_owner_only() {
    use std::os::unix::fs::PermissionsExt as _;
    let folder = tempfile::tempdir().unwrap();
    let (authority, _) = authority(folder.path());
    for path in [authority.server(), folder.path().join("tls/ca.key")] {
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{}", path.display());
    }
}

#[test]
fn a_node_that_cannot_be_a_dns_name_gets_no_certificate() {
    let folder = tempfile::tempdir().unwrap();
    let (authority, _) = authority(folder.path());
    let error = authority.agent("rack 7/node", 10, now()).unwrap_err().to_string();
    assert!(error.contains("\"rack 7/node\"; accepted is an id that can be a DNS name"), "{error}");
    assert!(authority.agent("node", 0, now()).unwrap_err().to_string().contains("days is 0"));
}
