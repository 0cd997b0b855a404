//! Every text, list and map of every request body has a limit in the OpenAPI document, and the
//! server keeps it.

use berth_api::Role;
use berth_server::openapi;
use serde_json::{Value, json};

use crate::common::Server;
use crate::sites::{Kind, Schemas, Site};

/// A route with a body.
struct Route {
    method: String,
    path: String,
    schema: Value,
}

/// Routes with a JSON body that has a schema. A list of nodes is limited by each of them, and by the
/// size of the import; see `facts_of_nodes_are_limited_in_every_way_in`.
fn routes(schemas: &Schemas) -> Vec<Route> {
    let mut found = Vec::new();
    for (path, item) in schemas.0["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap() {
            let schema = &operation["requestBody"]["content"]["application/json"]["schema"];
            if schema.is_null() || path == "/v1/nodes/import" {
                continue;
            }
            let parts = path.split('/').map(|part| match part {
                "{instance}" => "00000000-0000-4000-8000-000000000000",
                part if part.starts_with('{') => "x",
                part => part,
            });
            let path = parts.collect::<Vec<_>>().join("/");
            found.push(Route { method: method.to_uppercase(), path, schema: schema.clone() });
        }
    }
    found
}

fn schemas() -> Schemas {
    Schemas(serde_json::to_value(openapi()).unwrap())
}

#[test]
fn every_text_list_and_map_that_a_caller_sends_has_a_limit_in_the_document() {
    let schemas = schemas();
    let (mut without, mut count) = (Vec::new(), 0);
    for route in routes(&schemas) {
        for site in schemas.sites(&route.schema) {
            count += 1;
            if site.most.is_none() {
                without.push(format!("{} {} {:?}", route.method, route.path, site.path));
            }
        }
    }
    assert!(count > 150, "only {count} were found");
    assert!(without.is_empty(), "without a limit: {without:#?}");
}

#[test]
fn every_parameter_that_is_a_text_has_a_limit_in_the_document() {
    let document = serde_json::to_value(openapi()).unwrap();
    for (path, item) in document["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap() {
            for parameter in operation["parameters"].as_array().into_iter().flatten() {
                let schema = &parameter["schema"];
                let is_text = schema["type"].to_string().contains("string")
                    && schema["format"].is_null()
                    && schema["enum"].is_null();
                if is_text && parameter["in"] != "header" {
                    assert!(schema["maxLength"].is_u64(), "{method} {path}: {parameter}");
                }
            }
        }
    }
}

/// What is sent in the place of a part, and what it is called.
fn excesses(schemas: &Schemas, route: &Route, site: &Site) -> Vec<(&'static str, Value)> {
    let Some(most) = site.most else { return Vec::new() };
    let body = |make: &dyn Fn(&Value) -> Value| schemas.body(&route.schema, &site.path, make);
    match site.kind {
        Kind::Text => vec![
            ("a control character", body(&|_| json!("a\u{1b}[2Jb"))),
            ("a direction override", body(&|_| json!("a\u{202e}b"))),
            ("too many characters", body(&|_| json!("x".repeat(most + 1)))),
        ],
        Kind::List => {
            let count = u64::try_from(most + 1).unwrap();
            vec![("too many items", body(&|schema| Value::Array(schemas.items(schema, count))))]
        }
        Kind::Map => vec![("too many entries", body(&|schema| schemas.entries(schema, most + 1)))],
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_text_list_and_map_is_refused_beyond_its_limit() {
    let server = Server::start().await;
    let tokens = [server.token(Role::Admin).await, server.token(Role::Agent).await];
    let schemas = schemas();
    let (mut count, mut wrong) = (0, Vec::new());
    for route in routes(&schemas) {
        for site in schemas.sites(&route.schema) {
            for (what, body) in excesses(&schemas, &route, &site) {
                count += 1;
                let mut reply = None;
                for token in &tokens {
                    let (method, path) = (&route.method, &route.path);
                    let sent = server.send(Some(token), method, path, Some(&body), &[]).await;
                    let is_forbidden = sent.status.as_u16() == 403;
                    reply = Some(sent);
                    if !is_forbidden {
                        break;
                    }
                }
                let reply = reply.unwrap();
                let field = reply.json()["fields"][0]["field"].as_str().unwrap_or("").to_owned();
                if reply.status.as_u16() != 400 || !field.contains(site.field()) {
                    let path = format!("{} {} {:?}", route.method, route.path, site.path);
                    let text: String = reply.text.chars().take(300).collect();
                    wrong.push(format!("{path} with {what}: {} {text}", reply.status));
                }
            }
        }
    }
    assert!(count > 300, "only {count} were tried");
    assert!(wrong.is_empty(), "{} of {count}: {wrong:#?}", wrong.len());
    server.stop().await;
}
