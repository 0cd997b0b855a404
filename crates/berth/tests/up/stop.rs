//! Stopping: whoever asked gets an answer, and what was answered stays.

use std::os::unix::net::UnixDatagram;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use berth_api::{Claim, Instance};
use berth_client::{Client, ClientError, Connect};

use crate::harness::{Home, node, small};

/// Places until told to stop or until no new connection is possible. Returns request ids that were
/// granted, and failures that were no refused connection.
async fn keep_placing(
    client: Client,
    worker: usize,
    granted: Arc<AtomicUsize>,
) -> (usize, Vec<String>) {
    let (mut count, mut failures) = (0, Vec::new());
    loop {
        match client.place(&small(&format!("r-{worker}-{count}"))).await {
            Ok(_) => {
                count += 1;
                granted.fetch_add(1, Ordering::Relaxed);
            }
            Err(ClientError::Transport(error)) if error.is_connect() => return (count, failures),
            Err(error) => {
                failures.push(format!("{error:?}"));
                return (count, failures);
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_request_in_flight_is_answered_and_what_was_answered_is_kept() {
    let home = Home::new();
    let server = home.up(&["--set", "server.stop_delay=1s"]);
    let client = server.client();
    client.put_node(&node("node-1")).await.unwrap();
    let granted = Arc::new(AtomicUsize::new(0));
    let workers: Vec<_> = (0..16)
        .map(|worker| tokio::spawn(keep_placing(client.clone(), worker, Arc::clone(&granted))))
        .collect();
    while granted.load(Ordering::Relaxed) < 200 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    server.signal("-TERM");
    let mut answered = 0;
    for worker in workers {
        let (count, failures) = worker.await.unwrap();
        assert_eq!(failures, Vec::<String>::new());
        answered += count;
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
    let server = home.up(&["--set", "server.stop_delay=2s"]);
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
    tokio::time::sleep(Duration::from_millis(200)).await;
    let ready = reqwest::get(format!("{}/readyz", server.url())).await.unwrap();
    assert_eq!(ready.status(), 503);
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
    let began = Instant::now();
    server.signal("-INT");
    assert_eq!(server.wait().code(), Some(0));
    assert!(began.elapsed() < Duration::from_secs(30));
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
    let server = crate::harness::Running::start(command, home.path());
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
