//! Why a server was not reached, by servers that misbehave.

#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]
#![allow(clippy::disallowed_methods, reason = "real connections take real time")]

use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::time::Duration;

use berth_client::{Client, ClientError, Connect, ConnectionError};

/// The reason by which a request fails.
async fn reason(url: &str) -> ConnectionError {
    let timeout = Some(Duration::from_millis(500));
    let client = Client::new(Connect { url: url.to_owned(), timeout, ..Connect::default() });
    match client.unwrap().get::<serde_json::Value>("/v1/whoami", &[]).await {
        Err(ClientError::Unreachable { cause, .. }) => cause,
        other => panic!("{other:?}"),
    }
}

/// A server that answers the first bytes of one connection with these, or not at all.
fn server(answer: Option<&'static [u8]>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut request = [0; 4096];
        let _ = stream.read(&mut request);
        if let Some(answer) = answer {
            let _ = stream.write_all(answer);
        } else {
            std::thread::sleep(Duration::from_secs(30));
        }
    });
    address.to_string()
}

#[tokio::test]
async fn each_way_to_fail_has_its_own_reason() {
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    assert_eq!(reason(&format!("http://{closed}")).await, ConnectionError::Refused);

    let silent = reason(&format!("http://{}", server(None))).await;
    assert_eq!(silent, ConnectionError::ResponseTimeout(Duration::from_millis(500)));

    let gone = reason(&format!("http://{}", server(Some(b"")))).await;
    assert_eq!(gone, ConnectionError::Closed);

    // A TLS alert, as a server that expects TLS answers plain text.
    let alert: &[u8] = &[0x15, 0x03, 0x03, 0x00, 0x02, 0x02, 0x0a];
    let tls = reason(&format!("http://{}", server(Some(alert)))).await;
    assert_eq!(tls, ConnectionError::NotHttp);

    let plain: &[u8] = b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n";
    let plain = reason(&format!("https://{}", server(Some(plain)))).await;
    assert_eq!(plain, ConnectionError::NotTls);

    let host = reason("http://no-such-host.invalid").await;
    assert_eq!(host, ConnectionError::UnknownHost("no-such-host.invalid".to_owned()));
}
