//! Pages over HTTP: what they must contain, that names are only ever text, and who may see them.

#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

mod common;

use berth_api::Role;
use common::{Server, TENANT};
use reqwest::redirect::Policy as Redirects;
use serde_json::{Value, json};

const POLICY: &str = "default-src 'none'; style-src 'self'; img-src 'self' data:; \
    form-action 'self'; base-uri 'none'; frame-ancestors 'none'";

fn request(memory_mib: u32) -> Value {
    json!({
        "tenant": TENANT,
        "instances": [{ "resources": { "cpu_milli": 100, "memory_mib": memory_mib } }],
    })
}

/// A browser: it keeps no cookies by itself and follows nothing.
fn browser() -> reqwest::Client {
    reqwest::Client::builder().redirect(Redirects::none()).build().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_fleet_page_shows_nodes_use_and_decisions_and_escapes_names() {
    let server = Server::start().await;
    let operator = server.token(Role::Operator).await;
    for node in ["<script>alert(1)</script>", "n2", "n3"] {
        server.add_node(node).await;
    }
    server.post(&operator, "/v1/nodes/n3/cordon", &json!({})).await.expect(200);
    server.post(&operator, "/v1/placements", &request(1024)).await.expect(201);
    server.post(&operator, "/v1/placements", &request(999_999)).await.expect(409);
    let mut waits = request(999_999);
    waits["mode"] = json!("wait");
    server.post(&operator, "/v1/placements", &waits).await.expect(202);

    let page = server.get(&operator, "/").await.expect(200);
    assert_eq!(page.headers["content-security-policy"], POLICY);
    assert_eq!(page.headers["content-type"], "text/html; charset=utf-8");
    let text = &page.text;
    assert!(!text.contains("<script"), "{text}");
    assert!(text.contains("&#60;script&#62;alert(1)"), "{text}");
    for part in [
        "http-equiv=\"refresh\" content=\"5\"",
        "<b>3</b> nodes",
        "2 active",
        "1 cordoned",
        "<b>1</b> instance",
        "no_capacity_memory",
        "none of 3 nodes can take it",
        "ask for less memory, or add a node",
        "u0 cordoned",
        "Waiting <small>1</small>",
        "href=\"/decisions/",
    ] {
        assert!(text.contains(part), "{part} is missing in {text}");
    }
    assert!(!text.contains("style=") && !text.contains("onload"), "{text}");
    let style = server.send(None, "GET", "/style.css", None, &[]).await.expect(200);
    assert!(style.text.contains("prefers-color-scheme: dark"));
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_page_of_a_decision_says_what_was_asked_and_why_not() {
    let server = Server::start().await;
    let operator = server.token(Role::Operator).await;
    server.add_node("<b>bold</b>").await;
    server.post(&operator, "/v1/placements", &request(1024)).await.expect(201);
    server.post(&operator, "/v1/placements", &request(999_999)).await.expect(409);
    let ids = server.get(&operator, "/v1/decisions").await.each("id");
    let path = |place: usize| format!("/decisions/{}", ids[place].as_str().unwrap());
    let refused = server.get(&operator, &path(0)).await.expect(200);
    for part in [
        "Refused",
        "What was asked for",
        "976.56 GiB",
        "<th scope=\"row\">memory</th>",
        "<strong>&#60;b&#62;bold&#60;/b&#62;</strong>",
        "short by",
        "What would help",
        "add a node with at least",
        "/replay",
    ] {
        assert!(refused.text.contains(part), "{part} is missing in {}", refused.text);
    }
    assert!(!refused.text.contains("<b>bold"), "{}", refused.text);
    let granted = server.get(&operator, &path(1)).await.expect(200);
    assert!(granted.text.contains("Which node won"), "{}", granted.text);
    // A tenant sees its own, without what is not its business.
    let tenant = server.token(Role::Tenant).await;
    let seen = server.get(&tenant, &path(0)).await.expect(200);
    assert!(seen.text.contains("Refused"));
    assert!(!seen.text.contains("add a node with at least") && !seen.text.contains("/replay"));
    let other = server.tenant("other").await;
    let hidden = server.get(&other, &path(0)).await.expect(404);
    assert!(hidden.text.contains("there is no such thing"), "{}", hidden.text);
    server.stop().await;
}

/// What stands between two texts, the second after the first.
fn between<'a>(text: &'a str, start: &str, end: &str) -> &'a str {
    let (_, rest) = text.split_once(start).unwrap_or_else(|| panic!("{start} in {text}"));
    rest.split_once(end).unwrap_or_else(|| panic!("{end} after {start} in {text}")).0
}

/// The cells of a row that begins with this header.
fn cells<'a>(table: &'a str, header: &str) -> Vec<&'a str> {
    let row = between(table, &format!("<th scope=\"row\">{header}</th>"), "</tr>");
    row.split("<td class=\"number\">").skip(1).map(|cell| cell.trim_end_matches("</td>")).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_page_of_a_past_success_has_terms_runner_up_and_the_filters_that_were_passed() {
    let server = Server::start().await;
    let operator = server.token(Role::Operator).await;
    for node in ["n1", "n2", "n3"] {
        server.add_node(node).await;
    }
    server.post(&operator, "/v1/nodes/n3/cordon", &json!({})).await.expect(200);
    let placed = server.post(&operator, "/v1/placements", &request(1024)).await.expect(201).json();
    assert_eq!(placed["instances"][0]["node"], "n1", "{placed}");
    let ids = server.get(&operator, "/v1/decisions").await.each("id");
    let path = format!("/decisions/{}", ids[0].as_str().unwrap());
    let page = server.get(&operator, &format!("{path}?explain=true")).await.expect(200).text;

    let table = between(&page, "<table class=\"terms\">", "</table>");
    for node in ["n1", "n2"] {
        assert!(table.contains(&format!("<th scope=\"col\">{node}</th>")), "{table}");
    }
    // The same terms as the API has, for both.
    let explained = server.get(&operator, &format!("/v1{path}/explain")).await.expect(200).json();
    let terms = explained["explanation"]["winner"]["terms"].as_array();
    let terms = terms.unwrap_or_else(|| panic!("{explained}"));
    assert!(terms.len() > 3, "{terms:?}");
    let named = terms.iter().map(|term| term["scorer"].as_str().unwrap());
    for scorer in named.chain(["total"]) {
        let points = cells(table, scorer);
        assert_eq!(points.len(), 2, "{scorer} in {table}");
        assert!(points.iter().all(|it| it.chars().any(|c| c.is_ascii_digit())), "{points:?}");
    }
    assert!(page.contains("2 of 3 nodes could take it"), "{page}");
    let removed = between(&page, "<h3>Nodes that could not take it</h3>", "</ul>");
    assert!(removed.contains("<li>node-active: 1</li>"), "{removed}");
    let passed = between(&page, "<summary>Filters that it passed</summary>", "</details>");
    for filter in ["node-active", "memory", "disk", "traits"] {
        assert!(passed.contains(filter), "{filter} in {passed}");
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn people_sign_in_with_a_token_and_out_again() {
    let server = Server::start().await;
    let browser = browser();
    let url = |path: &str| format!("{}{path}", server.url);
    let home = browser.get(url("/")).send().await.unwrap();
    assert_eq!(
        (home.status().as_u16(), &home.headers()["location"]),
        (303, &"/sign-in".parse().unwrap())
    );
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
    let home = browser.get(url("/")).header("cookie", &pair).send().await.unwrap();
    assert_eq!(home.status(), 200);
    let text = home.text().await.unwrap();
    assert!(text.contains("test viewer (viewer)") && text.contains("Sign out"), "{text}");
    let secure = sign_in(&viewer).header("x-forwarded-proto", "https").send().await.unwrap();
    assert!(secure.headers()["set-cookie"].to_str().unwrap().ends_with("; Secure"));

    let out = browser.post(url("/sign-out")).header("cookie", &pair).send().await.unwrap();
    assert_eq!(out.status(), 303);
    let cookie = out.headers()["set-cookie"].to_str().unwrap();
    assert!(cookie.starts_with("berth_token=;") && cookie.contains("Max-Age=0"), "{cookie}");

    // A tenant has no fleet to look at, and is told so on a page.
    let tenant = server.token(Role::Tenant).await;
    let right = sign_in(&tenant).send().await.unwrap();
    assert_eq!(right.headers()["location"], "/docs");
    let refused = server.get(&tenant, "/").await.expect(403);
    assert!(refused.text.contains("this role may not do this"), "{}", refused.text);
    assert!(refused.text.starts_with("<!doctype html>"), "{}", refused.text);
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
