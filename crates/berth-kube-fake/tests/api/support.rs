//! What the tests share.

use std::time::Duration;

use berth_kube_fake::{FakeApi, Options};
use http_body_util::{BodyExt, Full};
use hyper_util::rt::TokioIo;
use serde_json::Value;

/// How long a test waits for something that must come.
const PATIENCE: Duration = Duration::from_secs(60);

/// A client for the server.
pub(crate) fn client(fake: &FakeApi) -> kube::Client {
    let mut config = kube::Config::new(fake.url().parse().unwrap());
    // A refusal is what many tests are after.
    config.default_retry = false;
    kube::Client::try_from(config).unwrap()
}

pub(crate) async fn start() -> (FakeApi, kube::Client) {
    start_with(Options::default()).await
}

pub(crate) async fn start_with(options: Options) -> (FakeApi, kube::Client) {
    let fake = FakeApi::start(options).await.unwrap();
    let client = client(&fake);
    (fake, client)
}

/// Waits until something holds.
pub(crate) async fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let waited = tokio::time::timeout(PATIENCE, async {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    });
    assert!(waited.await.is_ok(), "never came: {what}");
}

/// The answer to one plain request.
pub(crate) struct Plain {
    pub(crate) code: u16,
    pub(crate) headers: http::HeaderMap,
    pub(crate) text: String,
}

impl Plain {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap()
    }

    pub(crate) fn lines(&self) -> Vec<Value> {
        self.text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }
}

/// Sends one plain request and reads the whole answer.
pub(crate) async fn plain(
    fake: &FakeApi,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &str,
) -> Plain {
    let address = fake.url().trim_start_matches("http://").to_owned();
    let stream = tokio::net::TcpStream::connect(&address).await.unwrap();
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    let mut request = http::Request::builder().method(method).uri(path).header("host", "fake");
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let request = request.body(Full::new(bytes::Bytes::from(body.to_owned()))).unwrap();
    let response = sender.send_request(request).await.unwrap();
    let code = response.status().as_u16();
    let headers = response.headers().clone();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    Plain { code, headers, text: String::from_utf8(body.to_vec()).unwrap() }
}

/// A GET.
pub(crate) async fn get(fake: &FakeApi, path: &str) -> Plain {
    plain(fake, "GET", path, &[], "").await
}

/// A POST of JSON.
pub(crate) async fn post(fake: &FakeApi, path: &str, body: &Value) -> Plain {
    plain(fake, "POST", path, &[("content-type", "application/json")], &body.to_string()).await
}

/// A PATCH of a kind.
pub(crate) async fn patch(fake: &FakeApi, path: &str, kind: &str, body: &Value) -> Plain {
    plain(fake, "PATCH", path, &[("content-type", kind)], &body.to_string()).await
}

/// The code of a client's error.
pub(crate) fn code(error: &kube::Error) -> u16 {
    match error {
        kube::Error::Api(status) => status.code,
        other => panic!("not an answer of the server: {other:?}"),
    }
}
