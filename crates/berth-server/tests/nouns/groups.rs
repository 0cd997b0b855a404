use berth_api::Role;
use serde_json::json;

use crate::common::Server;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tenants_groups_are_its_own() {
    let server = Server::start().await;
    let operator = server.token(Role::Operator).await;
    let (acme, other) = (server.tenant("acme").await, server.tenant("zebra").await);
    let apart = json!({"kind": "apart", "strength": "hard", "topology": "rack"});

    let made = server.put(&acme, "/v1/groups/web", &apart).await.expect(201).json();
    assert_eq!(made["tenant"], "acme");
    server.put(&acme, "/v1/groups/web", &apart).await.expect(200);
    server.put(&operator, "/v1/groups/open", &apart).await.expect(201);
    server.put(&other, "/v1/groups/db", &apart).await.expect(201);

    let seen = server.get(&acme, "/v1/groups").await.expect(200);
    assert_eq!(seen.each("id"), ["open", "web"]);
    let all = server.get(&operator, "/v1/groups?limit=2").await.expect(200);
    assert_eq!(all.each("id"), ["db", "open"]);
    let next = all.json()["next"].as_str().unwrap().to_owned();
    let rest = server.get(&operator, &format!("/v1/groups?cursor={next}")).await.expect(200);
    assert_eq!(rest.each("id"), ["web"]);
    assert!(rest.json().get("next").is_none());

    // Another's is not there; its name is taken, and by whom is not said.
    server.get(&acme, "/v1/groups/db").await.problem(404, "not_found");
    server.delete(&acme, "/v1/groups/db").await.problem(404, "not_found");
    let taken = server.put(&acme, "/v1/groups/db", &apart).await.problem(409, "name_taken");
    assert!(!taken.text.contains("zebra"), "{}", taken.text);
    server.put(&acme, "/v1/groups/open", &apart).await.problem(409, "name_taken");
    server.delete(&acme, "/v1/groups/open").await.problem(403, "not_allowed");
    let stolen =
        json!({"tenant": "zebra", "kind": "apart", "strength": "hard", "topology": "node"});
    server.put(&acme, "/v1/groups/new", &stolen).await.problem(404, "not_found");

    server.delete(&acme, "/v1/groups/web").await.expect(204);
    server.get(&acme, "/v1/groups/web").await.expect(404);
    server.delete(&acme, "/v1/groups/web").await.expect(404);
    let audit = server.get(&operator, "/v1/audit?subject=web").await.expect(200);
    assert_eq!(audit.each("action"), ["group.remove", "group.put"]);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_group_that_cannot_be_is_named_by_its_field() {
    let server = Server::start().await;
    let operator = server.token(Role::Operator).await;
    let none =
        json!({"kind": "apart", "strength": "hard", "topology": "rack", "max_per_domain": 0});
    let reply = server.put(&operator, "/v1/groups/g", &none).await.problem(400, "invalid_request");
    assert_eq!(reply.json()["fields"][0]["field"], "max_per_domain");
    let typo = json!({"kind": "apart", "strenght": "hard", "topology": "rack"});
    let reply = server.put(&operator, "/v1/groups/g", &typo).await.problem(400, "invalid_request");
    assert!(reply.text.contains("strenght"), "{}", reply.text);
    let good = json!({"kind": "apart", "strength": "hard", "topology": "rack"});
    server.put(&operator, "/v1/groups/a%00b", &good).await.problem(400, "invalid_request");
    let owned = json!({"tenant": "acme", "kind": "apart", "strength": "hard", "topology": "rack"});
    server.put(&operator, "/v1/groups/g", &good).await.expect(201);
    server.put(&operator, "/v1/groups/g", &owned).await.problem(409, "impossible");
    let still = server.get(&operator, "/v1/groups/g").await.expect(200).json();
    assert!(still["tenant"].is_null());
    server.stop().await;
}
