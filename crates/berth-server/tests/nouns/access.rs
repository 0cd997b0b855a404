//! Tokens, the audit log and the state.

use berth_api::Role;
use berth_control::ControlOptions;
use berth_engine::Policy;
use berth_ledger::{Backend, Ledger, Options};
use berth_server::AppState;
use serde_json::json;

use crate::common::{Server, new_token, wait_until};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_token_is_made_shown_once_and_revoked() {
    let server = Server::start().await;
    let (record, admin) = server.mint(&new_token(Role::Admin)).await;
    let new = json!({"name": "ci", "role": "tenant", "tenants": ["acme"]});
    let made = server.post(&admin, "/v1/tokens", &new).await.expect(201);
    assert_eq!(made.headers.get("cache-control").unwrap(), "no-store");
    let made = made.json();
    let (id, secret) = (made["id"].as_str().unwrap(), made["secret"].as_str().unwrap());
    assert_eq!(server.get(secret, "/v1/whoami").await.expect(200).json()["role"], "tenant");
    let listed = server.get(&admin, "/v1/tokens").await.expect(200);
    assert_eq!(listed.each("name").len(), 2);
    let hidden = secret.rsplit('_').next().unwrap();
    assert!(!listed.text.contains(hidden) && !listed.text.contains("hash"), "{}", listed.text);

    server.delete(&admin, &format!("/v1/tokens/{id}")).await.expect(204);
    server.get(secret, "/v1/whoami").await.problem(401, "not_signed_in");
    server.delete(&admin, &format!("/v1/tokens/{id}")).await.expect(204);
    server.delete(&admin, "/v1/tokens/0123456789abcdef").await.problem(404, "not_found");
    let listed = server.get(&admin, "/v1/tokens").await.expect(200);
    assert_eq!(listed.each("revoked_at").iter().filter(|at| at.is_string()).count(), 1);

    // An admin's last token stays; one that has ended is no help.
    let own = format!("/v1/tokens/{}", record.token.id);
    let (mut ended, _) = server.mint(&new_token(Role::Admin)).await;
    ended.token.expires_at = Some(server.control.now());
    server.store(&ended).await;
    server.delete(&admin, &own).await.problem(409, "last_admin");
    let second = server.token(Role::Admin).await;
    server.delete(&admin, &own).await.expect(204);
    server.get(&admin, "/v1/whoami").await.problem(401, "not_signed_in");
    let audit = server.get(&second, "/v1/audit?action=token.revoke").await.expect(200);
    assert_eq!(audit.each("subject").len(), 2);
    for (new, field) in [
        (json!({"name": "", "role": "viewer"}), "name"),
        (json!({"name": "x", "role": "tenant"}), "tenants"),
        (json!({"name": "x", "role": "agent"}), "node"),
        (json!({"name": "x", "role": "viewer", "expires_in_s": 0}), "expires_in_s"),
    ] {
        let reply = server.post(&second, "/v1/tokens", &new).await.problem(400, "invalid_request");
        assert_eq!(reply.json()["fields"][0]["field"], field);
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_token_revoked_on_one_server_ends_on_another() {
    let one = Server::start().await;
    let admin = one.token(Role::Admin).await;
    let path = one.ledger_path();
    let two = Server::start_with(|options: &mut ControlOptions| {
        options.backend = Backend::Sqlite(path);
    })
    .await;
    let new = json!({"name": "ci", "role": "viewer"});
    let made = one.post(&admin, "/v1/tokens", &new).await.expect(201).json();
    let secret = made["secret"].as_str().unwrap();
    for (wanted, what) in [(200, "known"), (401, "revoked")] {
        wait_until(&format!("the other server has the token as {what}"), async || {
            two.get(secret, "/v1/whoami").await.status.as_u16() == wanted
        })
        .await;
        let id = made["id"].as_str().unwrap();
        one.delete(&admin, &format!("/v1/tokens/{id}")).await.expect(204);
    }
    two.stop().await;
    one.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_audit_log_says_who_did_what_newest_first() {
    let server = Server::start().await;
    let operator = server.token(Role::Operator).await;
    for id in ["a", "b", "c"] {
        let range = json!({"range": "1-9"});
        server.put(&operator, &format!("/v1/pools/{id}"), &range).await.expect(201);
    }
    // What changed nothing is not in it.
    server.put(&operator, "/v1/pools/c", &json!({"range": "1-9"})).await.expect(200);
    server.delete(&operator, "/v1/pools/b").await.expect(204);
    let first = server.get(&operator, "/v1/audit?action=pool.put&limit=2").await.expect(200);
    assert_eq!(first.each("subject"), ["c", "b"]);
    let entry = first.json()["items"][0].clone();
    assert_eq!(entry["origin"], "127.0.0.1");
    assert!(entry["actor"].as_str().unwrap().starts_with("test operator (operator "), "{entry}");
    let next = first.json()["next"].as_str().unwrap().to_owned();
    let rest = server.get(&operator, &format!("/v1/audit?action=pool.put&cursor={next}")).await;
    assert_eq!(rest.expect(200).each("subject"), ["a"]);
    let of_b = server.get(&operator, "/v1/audit?subject=b").await.expect(200);
    assert_eq!(of_b.each("action"), ["pool.remove", "pool.put"]);
    let actor = berth_client::escape(entry["actor"].as_str().unwrap());
    let mine = server.get(&operator, &format!("/v1/audit?actor={actor}")).await.expect(200);
    assert_eq!(mine.each("action").len(), 4);
    assert!(server.get(&operator, "/v1/audit?actor=nobody").await.each("n").is_empty());
    server.get(&operator, "/v1/audit?cursor=x").await.problem(400, "invalid_request");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_state_of_one_server_can_be_another() {
    let server = Server::start().await;
    let admin = server.token(Role::Admin).await;
    for number in 0..300 {
        server.add_node(&format!("n{number}")).await;
    }
    server.put(&admin, "/v1/pools/ips", &json!({"range": "1-9"})).await.expect(201);
    let state = server.get(&admin, "/v1/state").await.expect(200);
    assert_eq!(state.headers.get("content-type").unwrap(), "application/x-ndjson");
    server.stop().await;

    let folder = tempfile::tempdir().unwrap();
    let backend = Backend::Sqlite(folder.path().join("copy.db"));
    let copy = Ledger::open(backend.clone(), Options::default()).unwrap();
    let transfer = copy.import(&mut state.text.as_bytes()).unwrap();
    assert_eq!(transfer.tables["pool"], 1);
    drop(copy);
    let options = ControlOptions::new(backend, Policy::builtin("balanced").unwrap());
    let state = AppState::start(options, false).unwrap();
    let control = &state.control;
    assert!(state.access.tokens.caller(&admin, None, control.now()).is_some());
    control.wait_for_read_your_writes().await;
    assert_eq!(control.catalog.read().nodes.len(), 300);
    control.lifecycle.stop();
}
