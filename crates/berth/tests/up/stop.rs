//! Stopping: every caller that asked gets an answer, and what was answered stays.

use std::os::unix::net::UnixDatagram;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use berth_api::{Claim, Instance};
use berth_client::{Client, Connect};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::harness::{Home, Running, node, small, status};

/// Places until told to stop. Returns how many were granted, or what went wrong.
async fn keep_placing(
    client: Client,
    worker: usize,
    granted: Arc<AtomicUsize>,
    until: Arc<AtomicBool>,
) -> Result<usize, String> {
    let mut count = 0;
    while !until.load(Ordering::Relaxed) {
        let request = small(&format!("r-{worker}-{count}"));
        client.place(&request).await.map_err(|error| format!("{error:?}"))?;
        count += 1;
        granted.fetch_add(1, Ordering::Relaxed);
    }
    Ok(count)
}

/// A request of which the head and half of the body are sent.
async fn half_sent(server: &Running, number: usize) -> (TcpStream, String) {
    let body = serde_json::to_string(&small(&format!("half-{number}"))).unwrap();
    let (url, token, length) = (server.url(), server.token(), body.len());
    let at = url.trim_start_matches("http://");
    let mut stream = TcpStream::connect(at).await.unwrap();
    let head = format!(
        "POST /v1/placements HTTP/1.1\r\nhost: {at}\r\nauthorization: Bearer {token}\r\n\
         content-type: application/json\r\ncontent-length: {length}\r\n\r\n"
    );
    let (first, second) = body.split_at(length / 2);
    stream.write_all(format!("{head}{first}").as_bytes()).await.unwrap();
    (stream, second.to_owned())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_request_in_flight_is_answered_and_what_was_answered_is_kept() {
    let home = Home::new();
    let server = home.up(&["--set", "server.stop_delay=6s"]);
    let client = server.client();
    client.put_node(&node("node-1")).await.unwrap();
    let (granted, until) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
    let place = |worker| {
        let (granted, until) = (Arc::clone(&granted), Arc::clone(&until));
        tokio::spawn(keep_placing(client.clone(), worker, granted, until))
    };
    let workers: Vec<_> = (0..16).map(place).collect();
    while granted.load(Ordering::Relaxed) < 200 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let mut halves = Vec::new();
    for number in 0..10 {
        halves.push(half_sent(&server, number).await);
    }
    server.signal("-TERM");
    server.wait_for_log("stopping");
    // It goes on serving, and clients connect again all the time.
    let before = granted.load(Ordering::Relaxed);
    while granted.load(Ordering::Relaxed) < before + 20 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    until.store(true, Ordering::Relaxed);
    let mut answered = 0;
    for worker in workers {
        answered += worker.await.unwrap().unwrap();
    }
    // Then nobody new is taken, and what has begun is finished.
    let at = server.url().trim_start_matches("http://").to_owned();
    while TcpStream::connect(&at).await.is_ok() {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    for (mut stream, rest) in halves {
        stream.write_all(rest.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        assert!(
            answer.starts_with("HTTP/1.1 201") || answer.starts_with("HTTP/1.1 200"),
            "{answer}"
        );
        answered += 1;
    }
    let token = server.token();
    assert_eq!(server.wait().code(), Some(0));

    let again = home.up(&[]);
    let connect = Connect { url: again.url(), token: Some(token), ..Connect::default() };
    let client = Client::new(connect).unwrap();
    let instances: Vec<Instance> = client.all("/v1/instances", &[("limit", "1000")]).await.unwrap();
    let claims: Vec<Claim> = client.all("/v1/claims", &[("limit", "1000")]).await.unwrap();
    assert_eq!((instances.len(), claims.len()), (answered, answered));
    again.stop();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readiness_ends_first_then_streams_then_the_process() {
    let home = Home::new();
    let server = home.up(&["--set", "server.stop_delay=6s"]);
    let client = server.client();
    assert_eq!(client.get_text("/readyz").await.unwrap(), "ready\n");
    let mut events = client.events("/v1/events/stream", &[], None).await.unwrap();
    let ended = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&ended);
    let stream = tokio::spawn(async move {
        while let Ok(Some(_)) = events.next().await {}
        seen.store(true, Ordering::Relaxed);
    });
    server.signal("-TERM");
    server.wait_for_log("stopping");
    while status(&format!("{}/readyz", server.url())).await != 503 {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(!ended.load(Ordering::Relaxed));
    // It still serves.
    client.put_node(&node("node-1")).await.unwrap();
    stream.await.unwrap();
    assert_eq!(server.wait().code(), Some(0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_signal_does_not_wait() {
    let home = Home::new();
    let server = home.up(&["--set", "server.stop_delay=10m", "--set", "server.stop_grace=1h"]);
    server.signal("-TERM");
    server.wait_for_log("stopping");
    server.signal("-INT");
    // Far sooner than either of the two would let it.
    assert_eq!(server.wait().code(), Some(0));
}

#[test]
fn a_service_manager_is_told_how_it_goes() {
    let home = Home::new();
    let path = home.path().join("notify");
    let socket = UnixDatagram::bind(&path).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let told = || {
        let mut bytes = [0; 1024];
        let length = socket.recv(&mut bytes).unwrap();
        String::from_utf8_lossy(&bytes[..length]).into_owned()
    };
    let mut command = home.berth(&["up", "--listen", "127.0.0.1:0"]);
    command.env("NOTIFY_SOCKET", &path);
    let server = Running::start(command, home.path());
    assert_eq!(told().trim(), "READY=1");
    server.signal("-HUP");
    let reloading = told();
    assert!(
        reloading.contains("RELOADING=1") && reloading.contains("MONOTONIC_USEC="),
        "{reloading}"
    );
    assert_eq!(told().trim(), "READY=1");
    server.signal("-TERM");
    assert_eq!(told().trim(), "STOPPING=1");
    assert!(server.wait().success());
}

#[test]
fn the_watchdog_of_a_service_manager_gets_signs_of_life_until_the_server_is_frozen() {
    let home = Home::new();
    let path = home.path().join("notify");
    let socket = UnixDatagram::bind(&path).unwrap();
    let mut command = home.berth(&["up", "--listen", "127.0.0.1:0"]);
    command.env("NOTIFY_SOCKET", &path).env("WATCHDOG_USEC", "400000");
    let server = Running::start(command, home.path());
    let signs_within = |time: Duration| {
        let (mut bytes, began, mut signs) = ([0; 1024], Instant::now(), 0);
        while began.elapsed() < time {
            let left = time.saturating_sub(began.elapsed()).max(Duration::from_millis(1));
            socket.set_read_timeout(Some(left)).unwrap();
            let Ok(length) = socket.recv(&mut bytes) else { continue };
            signs += usize::from(bytes[..length].starts_with(b"WATCHDOG=1"));
        }
        signs
    };
    let signs = signs_within(Duration::from_secs(3));
    assert!(signs >= 5, "{signs} signs in 3 s");
    server.signal("-STOP");
    // What it said before.
    signs_within(Duration::from_millis(300));
    assert_eq!(signs_within(Duration::from_secs(1)), 0);
    server.signal("-CONT");
    assert!(signs_within(Duration::from_secs(3)) > 0);
    server.signal("-TERM");
    assert!(server.wait().success());
}
