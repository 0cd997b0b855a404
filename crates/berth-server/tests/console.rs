//! The console over HTTP: its files, their headers, and what its cookie may do.

#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

mod common;

use berth_api::Role;
use common::Server;
use serde_json::json;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_view_is_one_page_without_data_that_may_run_only_scripts_of_this_server() {
    let server = Server::start().await;
    let paths = ["/", "/ui/place", "/ui/nodes/n%2F1", "/ui/workloads/acme/web"];
    for path in paths {
        let page = server.send(None, "GET", path, None, &[]).await.expect(200);
        assert_eq!(page.headers["content-type"], "text/html; charset=utf-8", "{path}");
        let policy = page.headers["content-security-policy"].to_str().unwrap();
        assert!(policy.starts_with("default-src 'none'; script-src 'self'; style-src 'self';"));
        assert!(
            policy.contains("frame-ancestors 'none'") && !policy.contains("unsafe"),
            "{policy}"
        );
        assert!(page.text.contains("src=\"/console/app.js\""), "{}", page.text);
    }
    // Old links to a decision lead to its view, and nowhere else.
    let no_redirect = reqwest::redirect::Policy::none();
    let browser = reqwest::Client::builder().redirect(no_redirect).build().unwrap();
    for (path, view) in [
        ("/decisions/a1.2.3", "/ui/decisions/a1.2.3"),
        ("/decisions/%2F%2Fevil.example", "/ui/decisions/evil.example"),
    ] {
        let reply = browser.get(format!("{}{path}", server.url)).send().await.unwrap();
        assert_eq!(
            (reply.status().as_u16(), &reply.headers()["location"]),
            (308, &view.parse().unwrap())
        );
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_of_the_console_is_sent_once_and_then_only_confirmed() {
    let server = Server::start().await;
    for (path, kind) in [
        ("/console/app.js", "text/javascript; charset=utf-8"),
        ("/console/lib/store.js", "text/javascript; charset=utf-8"),
        ("/console/style.css", "text/css; charset=utf-8"),
        ("/console/icon.svg", "image/svg+xml"),
    ] {
        let file = server.send(None, "GET", path, None, &[]).await.expect(200);
        assert_eq!(file.headers["content-type"], kind);
        assert_eq!(file.headers["x-content-type-options"], "nosniff");
        let tag = file.headers["etag"].to_str().unwrap().to_owned();
        let again = [("if-none-match", tag.as_str())];
        let confirmed = server.send(None, "GET", path, None, &again).await.expect(304);
        assert!(confirmed.text.is_empty(), "{path}");
        assert_eq!(confirmed.headers["etag"], tag.as_str());
    }
    for path in ["/console/../Cargo.toml", "/console/none.js", "/console/lib/%2e%2e"] {
        let status = server.send(None, "GET", path, None, &[]).await.status.as_u16();
        assert_eq!(status, 404, "{path}");
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cookie_changes_something_only_for_the_console_of_this_server() {
    let server = Server::start().await;
    let operator = server.token(Role::Operator).await;
    let cookie = format!("berth_token={operator}");
    let own = server.url.as_str();
    let range = json!({"range": "1-9"});
    let with = async |headers: &[(&str, &str)]| {
        let mut all = vec![("cookie", cookie.as_str())];
        all.extend_from_slice(headers);
        server.send(None, "PUT", "/v1/pools/a", Some(&range), &all).await.status.as_u16()
    };
    let console = ("berth-console", "1");
    for headers in [
        &[][..],
        &[console],
        &[("origin", own)],
        &[("sec-fetch-site", "same-origin")],
        &[console, ("origin", "http://evil.example")],
        &[console, ("origin", "null")],
        &[console, ("sec-fetch-site", "cross-site")],
        &[console, ("sec-fetch-site", "same-site")],
        &[console, ("sec-fetch-site", "none")],
        &[console, ("sec-fetch-site", "cross-site"), ("origin", own)],
    ] {
        assert_eq!(with(headers).await, 401, "{headers:?}");
    }
    assert!(server.get(&operator, "/v1/pools").await.each("id").is_empty());
    assert_eq!(with(&[console, ("origin", own)]).await, 201);
    assert_eq!(with(&[console, ("sec-fetch-site", "same-origin"), ("origin", own)]).await, 200);
    // It may do what its role may do, and its changes are in the audit log under its name.
    let viewer = format!("berth_token={}", server.token(Role::Viewer).await);
    let headers = [("cookie", viewer.as_str()), console, ("origin", own)];
    let refused = server.send(None, "PUT", "/v1/pools/a", Some(&range), &headers).await;
    refused.problem(403, "not_allowed");
    let audit = server.get(&operator, "/v1/audit?action=pool.put").await.expect(200);
    assert!(audit.text.contains("test operator"), "{}", audit.text);
    server.stop().await;
}
