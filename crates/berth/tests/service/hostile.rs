//! Clients that misbehave: slow ones, greedy ones, wrong ones, and very many.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use berth_api::engine::{Amounts, NodeFacts};
use berth_api::{CreatedToken, NewToken, Page, PlaceRequest, Role};
use berth_client::{Client, Connect};

use crate::harness::{Home, Running};

/// How long anything may take: debug builds on a busy machine are slow.
const PATIENCE: Duration = Duration::from_secs(60);

fn address(server: &Running) -> String {
    server.url().strip_prefix("http://").unwrap().to_owned()
}

/// Sends bytes as they are, and returns what comes back until the server closes.
fn send(server: &Running, bytes: &[u8]) -> String {
    let mut stream = TcpStream::connect(address(server)).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    // The server may hang up before it has read all of it.
    let _ = stream.write_all(bytes);
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    String::from_utf8_lossy(&answer).into_owned()
}

fn post(server: &Running, token: &str, path: &str, body: &str) -> String {
    let length = body.len();
    let text = format!(
        "POST {path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {token}\r\n\
         content-type: application/json\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{body}"
    );
    send(server, text.as_bytes())
}

/// A placement that an ordinary client makes: whatever others do, it is answered.
async fn place(server: &Running, token: &str) {
    let connect =
        Connect { url: server.url(), token: Some(token.to_owned()), ..Connect::default() };
    let client = Client::new(connect).unwrap();
    let request: PlaceRequest = serde_json::from_value(serde_json::json!({
        "tenant": "acme", "instances": [{"resources": {"memory_mib": 1}}]
    }))
    .unwrap();
    client.place(&request).await.unwrap();
}

async fn with_a_node(server: &Running) {
    let capacity = Amounts::new(1_000_000, 1_000_000).with_disk(100_000_000);
    server.client().put_node(&NodeFacts::new("n1", capacity)).await.unwrap();
}

#[tokio::test]
async fn wrong_requests_get_a_problem_that_names_what_is_wrong() {
    let home = Home::new();
    let server = home.up(&[]);
    let token = server.token();
    with_a_node(&server).await;
    for (body, status, expected) in [
        ("{", "400", "not JSON"),
        ("[]", "400", "invalid_request"),
        ("{\"instances\":[]}", "400", "tenant"),
        ("{\"tenant\":\"a\",\"instances\":[]}", "400", "1 to 1000"),
        ("{\"tenant\":\"a\",\"instances\":[{\"resources\":{}}]}", "400", "memory_mib"),
        ("{\"tenant\":\"a\",\"instancess\":[]}", "400", "instancess"),
        (
            "{\"tenant\":\"a\",\"instances\":[{\"resources\":{\"memory_mib\":-1}}]}",
            "400",
            "instances[0].resources.memory_mib",
        ),
    ] {
        let answer = post(&server, &token, "/v1/placements", body);
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{body}: {answer}");
        assert!(answer.contains("application/problem+json"), "{body}: {answer}");
        assert!(answer.contains(expected), "{body}: {answer}");
    }
    let none: Page<serde_json::Value> = server.client().get("/v1/claims", &[]).await.unwrap();
    assert_eq!(none.items, Vec::<serde_json::Value>::new(), "nothing is half done");
    server.stop();
}

#[tokio::test]
async fn a_body_that_is_too_large_is_refused_whether_it_says_so_or_not() {
    let home = Home::new();
    let server = home.up(&[]);
    let token = server.token();
    with_a_node(&server).await;
    let large = "x".repeat(3 << 20);
    let answer = post(&server, &token, "/v1/placements", &large);
    assert!(answer.starts_with("HTTP/1.1 413"), "{answer}");
    // Chunks say nothing of the whole; nor does a small body that grows when it is unpacked.
    let chunk = format!("{:x}\r\n{large}\r\n0\r\n\r\n", large.len());
    let head = format!(
        "POST /v1/placements HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {token}\r\n\
         content-type: application/json\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n"
    );
    let answer = send(&server, [head.as_bytes(), chunk.as_bytes()].concat().as_slice());
    assert!(answer.starts_with("HTTP/1.1 413"), "{answer}");
    place(&server, &token).await;
    server.stop();
}

#[tokio::test]
async fn a_token_of_another_tenant_sees_nothing_and_changes_nothing() {
    let home = Home::new();
    let server = home.up(&[]);
    with_a_node(&server).await;
    place(&server, &server.token()).await;
    let admin = server.client();
    let claims: Page<serde_json::Value> = admin.get("/v1/claims", &[]).await.unwrap();
    let instance = claims.items[0]["instance"].as_str().unwrap().to_owned();
    let new = NewToken {
        name: "other".to_owned(),
        role: Role::Tenant,
        tenants: vec!["other".to_owned()],
        node: None,
        expires_in_s: None,
    };
    let made: CreatedToken = admin.post("/v1/tokens", &new).await.unwrap();
    let release = format!("/v1/claims/{instance}/release");
    let answer = post(&server, &made.secret, &release, "{}");
    assert!(answer.starts_with("HTTP/1.1 404"), "{answer}");
    let body = "{\"tenant\":\"acme\",\"instances\":[{\"resources\":{\"memory_mib\":1}}]}";
    let answer = post(&server, &made.secret, "/v1/placements", body);
    assert!(answer.starts_with("HTTP/1.1 404"), "{answer}");
    let still: Page<serde_json::Value> = admin.get("/v1/claims", &[]).await.unwrap();
    assert_eq!(still.items.len(), 1);
    server.stop();
}

#[tokio::test]
async fn clients_that_send_a_byte_at_a_time_are_cut_off_and_hold_nobody_up() {
    let home = Home::new();
    let config = home.path().join("berth.toml");
    std::fs::write(&config, "[http]\nheader_timeout = \"1s\"\n").unwrap();
    let server = home.up(&["--config", config.to_str().unwrap()]);
    let token = server.token();
    with_a_node(&server).await;
    let mut slow: Vec<TcpStream> = (0..100)
        .map(|_| {
            let mut stream = TcpStream::connect(address(&server)).unwrap();
            stream.write_all(b"POST /v1/placements HTTP/1.1\r\nhost:").unwrap();
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            stream
        })
        .collect();
    place(&server, &token).await;
    for stream in &mut slow {
        let mut rest = Vec::new();
        // Closed, with or without a word: what counts is that it ends.
        let _ = stream.read_to_end(&mut rest);
        let text = String::from_utf8_lossy(&rest);
        assert!(text.is_empty() || text.starts_with("HTTP/1.1 408"), "{text}");
    }
    place(&server, &token).await;
    server.stop();
}

/// Streams that this process may open, in addition to those it has open already.
fn streams() -> usize {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    limit.map_or(10_000, |limit| usize::try_from(limit).unwrap()).saturating_sub(500).min(10_000)
}

#[tokio::test]
async fn ten_thousand_open_event_streams_hold_nobody_up() {
    let home = Home::new();
    let server = home.up(&[]);
    let token = server.token();
    with_a_node(&server).await;
    let wanted = streams();
    let request = format!(
        "GET /v1/events/stream HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {token}\r\n\r\n"
    );
    let mut open: Vec<TcpStream> = Vec::with_capacity(wanted);
    for number in 0..wanted {
        let mut stream = TcpStream::connect(address(&server)).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        open.push(stream);
        // Not faster than the server takes them.
        if number % 100 == 99 {
            read_until(open.last_mut().unwrap(), "text/event-stream");
        }
    }
    // A stream begins with what happens after it was opened: all must be.
    let began = Instant::now();
    let all = format!("berth_event_streams {wanted}\n");
    while !server.client().get_text("/metrics").await.unwrap().contains(&all) {
        assert!(began.elapsed() < PATIENCE, "{wanted} are open");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let began = Instant::now();
    place(&server, &token).await;
    for stream in [0, wanted / 2, wanted - 1] {
        read_until(&mut open[stream], "instance.allocated");
    }
    println!("{wanted} streams; an event came to all that were looked at in {:?}", began.elapsed());
    drop(open);
    server.stop();
}

fn read_until(stream: &mut TcpStream, text: &str) {
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let (mut seen, mut buffer) = (Vec::new(), [0; 4096]);
    while !String::from_utf8_lossy(&seen).contains(text) {
        let length = stream.read(&mut buffer).unwrap();
        assert!(length > 0, "it ended before {text:?}: {}", String::from_utf8_lossy(&seen));
        seen.extend_from_slice(&buffer[..length]);
    }
}
