//! A server that needs no sign-in of callers on this machine, and the browser on that machine: what
//! other sites make it send is refused.

#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

mod common;

use berth_api::Role;
use common::Server;
use serde_json::json;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_sign_in_a_foreign_host_reads_and_changes_nothing() {
    let server = Server::start_without_sign_in().await;
    let range = json!({"range": "1-9"});
    let foreign = [("host", "evil.example")];
    for path in ["/v1/nodes", "/v1/whoami", "/v1/state", "/v1/tokens"] {
        server.send(None, "GET", path, None, &foreign).await.problem(403, "foreign_host");
        server.send(None, "GET", path, None, &[]).await.expect(200);
    }
    let put = server.send(None, "PUT", "/v1/pools/a", Some(&range), &foreign).await;
    put.problem(403, "foreign_host");
    assert!(server.send(None, "GET", "/v1/pools", None, &[]).await.each("id").is_empty());
    // A token speaks for itself, whatever the host is called.
    let token = server.token(Role::Operator).await;
    server.send(Some(&token), "GET", "/v1/nodes", None, &foreign).await.expect(200);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_sign_in_another_origin_changes_nothing() {
    let server = Server::start_without_sign_in().await;
    let range = json!({"range": "1-9"});
    for headers in [
        [("origin", "http://evil.example")],
        [("origin", "http://localhost:1")],
        [("origin", "null")],
        [("sec-fetch-site", "cross-site")],
        [("sec-fetch-site", "same-site")],
    ] {
        let put = server.send(None, "PUT", "/v1/pools/a", Some(&range), &headers).await;
        put.problem(403, "cross_site");
        let cordon = server.send(None, "POST", "/v1/nodes/n1/cordon", None, &headers).await;
        cordon.problem(403, "cross_site");
    }
    assert!(server.send(None, "GET", "/v1/pools", None, &[]).await.each("id").is_empty());
    let own = [("origin", server.url.as_str()), ("sec-fetch-site", "same-origin")];
    server.send(None, "PUT", "/v1/pools/a", Some(&range), &own).await.expect(201);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sign_in_form_of_another_origin_sets_no_cookie() {
    let server = Server::start().await;
    let token = server.token(Role::Viewer).await;
    let post = async |path: &str, origin: Option<&str>| {
        let mut request = reqwest::Client::builder()
            .redirect(reqwest::redirect::Policy::none())
            .build()
            .unwrap()
            .post(format!("{}{path}", server.url))
            .header("content-type", "application/x-www-form-urlencoded")
            .body(format!("token={token}"));
        if let Some(origin) = origin {
            request = request.header("origin", origin);
        }
        request.send().await.unwrap()
    };
    for path in ["/sign-in", "/sign-out"] {
        for origin in ["http://evil.example", "null"] {
            let reply = post(path, Some(origin)).await;
            assert_eq!(reply.status(), 403, "{path} {origin}");
            assert!(!reply.headers().contains_key("set-cookie"), "{path} {origin}");
        }
        for origin in [None, Some(server.url.as_str())] {
            let reply = post(path, origin).await;
            assert_eq!(reply.status(), 303, "{path} {origin:?}");
            assert!(reply.headers().contains_key("set-cookie"), "{path} {origin:?}");
        }
    }
    server.stop().await;
}
