//! One HTTPS request to a webhook, which trusts only the bundle of its configuration.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper_util::rt::TokioIo;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use serde_json::Value;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::options::Options;

/// The maximum length of a response.
const ANSWER_MAX: usize = 3 * 1024 * 1024;

/// The address of a webhook.
struct Endpoint {
    /// The name that its certificate must be valid for.
    name: String,
    host: String,
    address: Option<SocketAddr>,
    path: String,
}

/// Sends a review and reads the response.
pub(super) async fn post(
    options: &Options,
    hook: &Value,
    review: &Value,
    timeout: Duration,
) -> Result<Value, String> {
    let path_and_timeout = |path: &str| {
        let sign = if path.contains('?') { '&' } else { '?' };
        format!("{path}{sign}timeout={}s", timeout.as_secs())
    };
    let endpoint = webhook_endpoint(options, &hook["clientConfig"])?;
    let uri = path_and_timeout(&endpoint.path);
    match tokio::time::timeout(timeout, send_review(&endpoint, &uri, hook, review)).await {
        Ok(result) => result,
        Err(_) => Err(format!(
            "failed to call webhook: Post \"https://{}{uri}\": context deadline exceeded",
            endpoint.name
        )),
    }
}

fn webhook_endpoint(options: &Options, client: &Value) -> Result<Endpoint, String> {
    if let Some(url) = client["url"].as_str() {
        let uri: http::Uri = url.parse().map_err(|error| format!("{url}: {error}"))?;
        let name = uri.host().unwrap_or_default().trim_matches(['[', ']']).to_owned();
        let host = format!("{name}:{}", uri.port_u16().unwrap_or(443));
        return Ok(Endpoint { name, host, address: None, path: uri.path().to_owned() });
    }
    let text = |field: &str| client["service"][field].as_str().unwrap_or_default();
    let key = format!("{}/{}", text("namespace"), text("name"));
    let address = options.services.get(&key).copied();
    let name = format!("{}.{}.svc", text("name"), text("namespace"));
    let path = if text("path").is_empty() { "/" } else { text("path") };
    if address.is_none() {
        return Err(format!("failed to call webhook: service {key:?} not found"));
    }
    Ok(Endpoint { host: name.clone(), name, address, path: path.to_owned() })
}

async fn send_review(
    endpoint: &Endpoint,
    uri: &str,
    hook: &Value,
    review: &Value,
) -> Result<Value, String> {
    let failed = |error: &dyn std::fmt::Display| {
        format!("failed to call webhook: Post \"https://{}{uri}\": {error}", endpoint.name)
    };
    let tcp = match endpoint.address {
        Some(address) => TcpStream::connect(address).await,
        None => TcpStream::connect(&endpoint.host).await,
    };
    let tcp = tcp.map_err(|error| failed(&error))?;
    let name = ServerName::try_from(endpoint.name.clone()).map_err(|error| failed(&error))?;
    let connector = TlsConnector::from(client_config(&hook["clientConfig"]["caBundle"])?);
    let tls = connector.connect(name, tcp).await.map_err(|error| failed(&error))?;
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(tls)).await.map_err(|e| failed(&e))?;
    let driver = tokio::spawn(connection);
    let request = http::Request::post(uri)
        .header("host", &endpoint.name)
        .header("content-type", "application/json")
        .header("accept", "application/json, */*")
        .header("user-agent", "kube-apiserver-admission")
        .body(Full::new(Bytes::from(review.to_string())))
        .map_err(|error| failed(&error))?;
    let response = sender.send_request(request).await.map_err(|error| failed(&error))?;
    let code = response.status();
    let body = Limited::new(response.into_body(), ANSWER_MAX).collect().await;
    driver.abort();
    let body = body.map_err(|error| failed(&error))?.to_bytes();
    if !code.is_success() {
        let text = String::from_utf8_lossy(&body);
        return Err(format!(
            "the server responded with the status code {} ({text})",
            code.as_u16()
        ));
    }
    serde_json::from_slice(&body).map_err(|error| failed(&error))
}

/// Trusts only the bundle of the configuration.
fn client_config(bundle: &Value) -> Result<Arc<ClientConfig>, String> {
    let pem: k8s_openapi::ByteString =
        serde_json::from_value(bundle.clone()).map_err(|error| format!("caBundle: {error}"))?;
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(&pem.0) {
        let certificate = certificate.map_err(|error| format!("caBundle: {error}"))?;
        roots.add(certificate).map_err(|error| format!("caBundle: {error}"))?;
    }
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?
        .with_root_certificates(roots)
        .with_no_client_auth();
    // The real server uses only this protocol, so that calls are spread over replicas.
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}
