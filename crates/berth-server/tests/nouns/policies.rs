use berth_api::Role;
use serde_json::json;

use crate::common::Server;

const TIGHT: &str = "name = \"tight\"\n[filters]\ncpu = \"hard\"\n[scores]\nmemory-pack = 3\n";
const TIGHTER: &str = "name = \"tight\"\n[filters]\ncpu = \"hard\"\n[scores]\nmemory-pack = 4\n";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_policy_is_stored_found_and_compared() {
    let server = Server::start().await;
    let operator = server.token(Role::Operator).await;
    let first = server.post(&operator, "/v1/policies", &json!({"toml": TIGHT})).await.expect(201);
    let hash = first.json()["hash"].as_str().unwrap().to_owned();
    assert_eq!(first.etag(), Some(format!("\"{hash}\"").as_str()));
    assert_eq!(first.json()["active"], false);
    server.post(&operator, "/v1/policies", &json!({"toml": TIGHT})).await.expect(200);
    let client = server.client(&operator);
    let second: berth_api::StoredPolicy =
        client.post_text("/v1/policies", "application/toml", TIGHTER.to_owned()).await.unwrap();
    assert!(second.stored_at.is_some());

    for (which, expected) in [(hash.as_str(), &hash), (&hash[..6], &hash), ("tight", &second.hash)]
    {
        let found = server.get(&operator, &format!("/v1/policies/{which}")).await.expect(200);
        assert_eq!(found.json()["hash"], **expected, "{which}");
    }
    let built_in = server.get(&operator, "/v1/policies/pack").await.expect(200).json();
    assert!(built_in.get("stored_at").is_none());
    let active = server.get(&operator, "/v1/policies/active").await.expect(200).json();
    assert_eq!(active["name"], "balanced");
    let unknown = server.get(&operator, "/v1/policies/nothing").await.problem(404, "not_found");
    assert!(unknown.text.contains("spread"), "{}", unknown.text);
    let names = server.get(&operator, "/v1/policies").await.expect(200);
    let all = ["balanced", "neon", "pack", "spread", "tight", "tight", "triton"];
    assert_eq!(names.each("name"), all);
    let part = server.get(&operator, "/v1/policies?limit=5").await.expect(200).json();
    let next = berth_client::escape(part["next"].as_str().unwrap());
    let rest = server.get(&operator, &format!("/v1/policies?cursor={next}")).await.expect(200);
    assert_eq!(rest.each("name"), ["tight", "triton"]);

    let path = format!("/v1/policies/diff?from={hash}&to=tight");
    let diff = server.get(&operator, &path).await.expect(200).json();
    let changes = diff["changes"].as_array().unwrap();
    assert_eq!(changes.len(), 1, "{diff}");
    assert_eq!(changes[0]["key"], "scores.memory-pack");
    let same = server.get(&operator, "/v1/policies/diff?from=tight&to=tight").await.expect(200);
    assert_eq!(same.json()["changes"], json!([]));
    let half = server.get(&operator, "/v1/policies/diff?from=tight").await;
    assert_eq!(half.problem(400, "invalid_request").json()["fields"][0]["field"], "to");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_policy_that_is_wrong_is_refused_by_its_key() {
    let server = Server::start().await;
    let operator = server.token(Role::Operator).await;
    for (toml, named) in [
        ("name = \"x\"\n[scores]\nmemory-pack = 5000\n", "memory-pack"),
        ("name = \"x\"\n[scores]\nno-such = 1\n", "no-such"),
        ("name = ", "TOML"),
        ("name = \"active\"\n[scores]\nmemory-pack = 1\n", "name"),
    ] {
        for path in ["/v1/policies", "/v1/policies/validate"] {
            let reply = server.post(&operator, path, &json!({"toml": toml})).await;
            let reply = reply.problem(400, "invalid_request");
            assert!(reply.text.contains(named), "{named}: {}", reply.text);
        }
    }
    let valid = server.post(&operator, "/v1/policies/validate", &json!({"toml": TIGHT})).await;
    assert!(valid.expect(200).json().get("stored_at").is_none());
    let names = server.get(&operator, "/v1/policies").await.each("name");
    assert!(!names.contains(&json!("x")) && !names.contains(&json!("tight")), "{names:?}");
    // One look shows every error, with its line.
    let wrong = "name = 'x'\n[filters]\ncpu = 'firm'\n[scores]\nno-such = 1\n";
    let reply = server.post(&operator, "/v1/policies/validate", &json!({"toml": wrong})).await;
    let detail = reply.problem(400, "invalid_request").json()["detail"].to_string();
    assert!(detail.contains("line 3: ") && detail.contains("line 5: scores.no-such"), "{detail}");
    let kind = [("content-type", "text/plain")];
    let reply = server.send(Some(&operator), "POST", "/v1/policies", None, &kind).await;
    reply.problem(415, "unsupported_media_type");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_policy_is_put_in_force_and_taken_back() {
    let server = Server::start().await;
    let operator = server.token(Role::Operator).await;
    let post = |path: &'static str, etag: Option<String>| {
        let (server, operator) = (&server, &operator);
        async move {
            let headers: Vec<(&str, &str)> =
                etag.as_deref().map(|etag| ("if-match", etag)).into_iter().collect();
            server.send(Some(operator), "POST", path, None, &headers).await
        }
    };
    post("/v1/policies/rollback", None).await.problem(409, "no_policy_before");
    let balanced = server.get(&operator, "/v1/policies/active").await.expect(200);
    let balanced = balanced.etag().unwrap().to_owned();
    let pack = post("/v1/policies/pack/activate", Some(balanced.clone())).await.expect(200);
    let pack = pack.etag().unwrap().to_owned();
    let stale = post("/v1/policies/spread/activate", Some(balanced.clone())).await;
    let stale = stale.problem(412, "stale");
    assert!(stale.text.contains(pack.trim_matches('"')), "{}", stale.text);
    let active = server.get(&operator, "/v1/policies/active").await.expect(200);
    assert_eq!((active.etag(), &active.json()["active"]), (Some(pack.as_str()), &json!(true)));
    // What is in force is what plans and pages go by.
    assert_eq!(server.control.catalog.read().policy.as_ref().unwrap().name(), "pack");

    let back = post("/v1/policies/rollback", None).await.expect(200);
    assert_eq!((back.etag(), &back.json()["name"]), (Some(balanced.as_str()), &json!("balanced")));
    post("/v1/policies/rollback", Some(pack)).await.problem(412, "stale");
    post("/v1/policies/nothing/activate", None).await.problem(404, "not_found");
    let audit = server.get(&operator, "/v1/audit?limit=2").await.expect(200);
    assert_eq!(audit.each("action"), ["policy.rollback", "policy.activate"]);
    server.stop().await;
}
