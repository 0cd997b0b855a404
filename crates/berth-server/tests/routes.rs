//! What every route promises: the table of permissions and the OpenAPI document say the same, and
//! each noun behaves as described, over real connections.

#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

mod common;
mod nouns;

use std::collections::BTreeSet;

use berth_api::{Role, WhoAmI};
use berth_server::{ROUTES, openapi};
use common::{NODE, Server};

fn described() -> BTreeSet<(String, String)> {
    let document = serde_json::to_value(openapi()).unwrap();
    let mut found = BTreeSet::new();
    for (path, item) in document["paths"].as_object().unwrap() {
        for method in item.as_object().unwrap().keys() {
            found.insert((method.to_uppercase(), path.clone()));
        }
    }
    found
}

#[test]
fn the_table_and_the_document_have_the_same_routes() {
    let described = described();
    let listed: BTreeSet<(String, String)> =
        ROUTES.iter().map(|(method, path, _)| ((*method).to_owned(), (*path).to_owned())).collect();
    assert_eq!(listed.len(), ROUTES.len(), "a route is in the table twice");
    let undescribed: Vec<_> = listed.difference(&described).collect();
    assert!(undescribed.is_empty(), "in the table and not served: {undescribed:?}");
    let unlisted: Vec<_> = described.difference(&listed).collect();
    assert!(unlisted.is_empty(), "served and not in the table of permissions: {unlisted:?}");
}

#[test]
fn every_route_says_what_it_does_and_takes() {
    let document = serde_json::to_value(openapi()).unwrap();
    for (method, path) in described() {
        let operation = &document["paths"][&path][method.to_lowercase()];
        assert!(operation["summary"].is_string(), "{method} {path} has no summary");
        assert!(operation["responses"]["default"].is_object(), "{method} {path} has no errors");
        let parameters = operation["parameters"].as_array().cloned().unwrap_or_default();
        let in_path: BTreeSet<&str> =
            path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}')).collect();
        let described: BTreeSet<&str> = parameters
            .iter()
            .filter(|parameter| parameter["in"] == "path")
            .filter_map(|parameter| parameter["name"].as_str())
            .collect();
        assert_eq!(described, in_path, "{method} {path}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_knows_who_calls_and_stops() {
    let server = Server::start().await;
    for role in Role::ALL {
        let token = server.token(role).await;
        let who: WhoAmI = server.client(&token).get("/v1/whoami", &[]).await.unwrap();
        assert_eq!(who.role, role);
    }
    let admin = server.token(Role::Admin).await;
    server.add_node(NODE).await;
    let node = server.get(&admin, "/v1/nodes/n1").await.expect(200);
    assert_eq!(node.etag(), Some("\"1\""));
    server.send(None, "GET", "/v1/nodes", None, &[]).await.problem(401, "not_signed_in");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_tells_its_version_database_and_readiness() {
    let server = Server::start().await;
    for role in Role::ALL {
        let token = server.token(role).await;
        let status = server.get(&token, "/v1/status").await.expect(200).json();
        assert_eq!(status["version"], env!("CARGO_PKG_VERSION"));
        assert_eq!((&status["database"], &status["ready"]), (&"sqlite".into(), &true.into()));
        assert!(status["schema"].as_i64() >= Some(5), "{status}");
    }
    server.send(None, "GET", "/v1/status", None, &[]).await.problem(401, "not_signed_in");
    // It still answers while it stops, and says so.
    let admin = server.token(Role::Admin).await;
    server.control.lifecycle.draining().cancel();
    let status = server.get(&admin, "/v1/status").await.expect(200).json();
    assert_eq!(
        (&status["ready"], &status["reason"]),
        (&false.into(), &"the server is stopping".into())
    );
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn events_are_listed_from_either_end() {
    let server = Server::start().await;
    let operator = server.token(Role::Operator).await;
    // More than is read at once.
    let node = |number: u32| {
        serde_json::json!({"id": format!("n{number}"), "capacity": {
        "cpu_milli": 8000, "memory_mib": 4096, "disk_mib": 10, "bandwidth_mbps": 0}})
    };
    let nodes: Vec<serde_json::Value> = (0..1500).map(node).collect();
    server.post(&operator, "/v1/nodes/import", &nodes.into()).await.expect(200);
    let numbers = async |query: &str| -> (Vec<i64>, Option<String>) {
        let path = format!("/v1/events?{query}");
        let page = server.get(&operator, &path).await.expect(200).json();
        let items = page["items"].as_array().unwrap();
        let next = page["next"].as_str().map(str::to_owned);
        (items.iter().map(|event| event["seq"].as_i64().unwrap()).collect(), next)
    };
    let all = async |query: &str, position: &str| {
        let (mut all, mut next) = numbers(query).await;
        while let Some(at) = next {
            let (page, more) = numbers(&format!("{query}&{position}={at}")).await;
            all.extend(page);
            next = more;
        }
        all
    };
    let oldest_first = all("limit=1000", "after").await;
    let mut newest_first = all("limit=333&order=newest", "before").await;
    assert!(newest_first.len() > 1500, "{}", newest_first.len());
    newest_first.reverse();
    assert_eq!(newest_first, oldest_first, "the same events, page by page, without a gap");
    let after = format!("limit=1000&order=newest&after={}", oldest_first[3]);
    let after = all(&after, "before").await;
    assert_eq!(after.last(), oldest_first.get(4));
    for query in ["order=newest&kinds=node", "kinds=node&limit=1000"] {
        let (mut nodes, _) = numbers(query).await;
        nodes.sort_unstable();
        assert!(!nodes.is_empty() && nodes.iter().all(|seq| oldest_first.contains(seq)));
    }
    let before = server.get(&operator, "/v1/events?before=5").await;
    before.problem(400, "invalid_request");
    server.get(&operator, "/v1/events?order=random").await.problem(400, "invalid_request");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_method_that_a_path_does_not_know_is_named() {
    let server = Server::start().await;
    let reply = server.send(None, "DELETE", "/v1/audit", None, &[]).await;
    let reply = reply.problem(405, "method_not_allowed");
    assert_eq!(reply.headers.get("allow").unwrap(), "GET");
    server.send(None, "GET", "/v1/nothing", None, &[]).await.problem(404, "not_found");
    let options = server.send(None, "OPTIONS", "/v1/nodes", None, &[]).await;
    options.problem(405, "method_not_allowed");
    server.stop().await;
}
