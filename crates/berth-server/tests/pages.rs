//! Pages over HTTP: what they must contain, and how a browser signs in. The console has tests in a browser.

#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

mod common;

use berth_api::Role;
use common::Server;
use reqwest::redirect::Policy as Redirects;

const POLICY: &str = "default-src 'none'; style-src 'self'; img-src 'self' data:; \
    form-action 'self'; base-uri 'none'; frame-ancestors 'none'";

/// A browser: it keeps no cookies by itself and follows nothing.
fn browser() -> reqwest::Client {
    reqwest::Client::builder().redirect(Redirects::none()).build().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn people_sign_in_with_a_token_and_out_again() {
    let server = Server::start().await;
    let browser = browser();
    let url = |path: &str| format!("{}{path}", server.url);
    let form = browser.get(url("/sign-in")).send().await.unwrap();
    assert!(form.text().await.unwrap().contains("name=\"token\""));

    let sign_in = |token: &str| {
        let kind = "application/x-www-form-urlencoded";
        let body = format!("token={token}");
        browser.post(url("/sign-in")).header("content-type", kind).body(body)
    };
    let wrong = sign_in("nonsense").send().await.unwrap();
    assert_eq!(wrong.status(), 403);
    assert!(!wrong.headers().contains_key("set-cookie"));
    assert!(wrong.text().await.unwrap().contains("This token is not valid"));

    let viewer = server.token(Role::Viewer).await;
    let elsewhere = sign_in(&viewer).header("sec-fetch-site", "cross-site").send().await.unwrap();
    assert_eq!(elsewhere.status(), 403);
    let right = sign_in(&viewer).send().await.unwrap();
    assert_eq!(
        (right.status().as_u16(), &right.headers()["location"]),
        (303, &"/".parse().unwrap())
    );
    let cookie = right.headers()["set-cookie"].to_str().unwrap().to_owned();
    assert!(cookie.ends_with("; HttpOnly; SameSite=Strict; Path=/"), "{cookie}");
    let pair = cookie.split(';').next().unwrap().to_owned();
    let whoami = browser.get(url("/v1/whoami")).header("cookie", &pair).send().await.unwrap();
    assert_eq!(whoami.status(), 200);
    let docs = browser.get(url("/docs")).header("cookie", &pair).send().await.unwrap();
    let text = docs.text().await.unwrap();
    assert!(text.contains("test viewer (viewer)") && text.contains("Sign out"), "{text}");
    let secure = sign_in(&viewer).header("x-forwarded-proto", "https").send().await.unwrap();
    assert!(secure.headers()["set-cookie"].to_str().unwrap().ends_with("; Secure"));

    let out = browser.post(url("/sign-out")).header("cookie", &pair).send().await.unwrap();
    assert_eq!(out.status(), 303);
    let cookie = out.headers()["set-cookie"].to_str().unwrap();
    assert!(cookie.starts_with("berth_token=;") && cookie.contains("Max-Age=0"), "{cookie}");

    // An agent has nothing to look at.
    let agent = server.token(Role::Agent).await;
    let right = sign_in(&agent).send().await.unwrap();
    assert_eq!(right.headers()["location"], "/docs");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_api_and_every_code_can_be_read_about_without_signing_in() {
    let server = Server::start().await;
    let get = |path: &'static str| server.send(None, "GET", path, None, &[]);
    let docs = get("/docs").await.expect(200);
    assert_eq!(docs.headers["content-security-policy"], POLICY);
    for part in [
        "/v1/placements",
        "curl -X POST -H &#34;Authorization: Bearer $BERTH_TOKEN&#34;",
        "href=\"#schema-PlaceRequest\"",
        "id=\"schema-PlaceRequest\"",
        "for admin, operator, tenant",
    ] {
        assert!(docs.text.contains(part), "{part} is missing");
    }
    let filter = get("/problems/no_capacity_memory").await.expect(200);
    assert!(filter.text.contains("Ask for less memory, release instances, or add a node."));
    let other = get("/problems/quota_exceeded").await.expect(200);
    assert!(other.text.contains("raise the quota"));
    let unknown = get("/problems/%3Cscript%3E").await.expect(404);
    assert!(!unknown.text.contains("<script"), "{}", unknown.text);
    server.stop().await;
}
