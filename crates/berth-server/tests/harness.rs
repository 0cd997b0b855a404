//! The server that other tests talk to starts, knows its callers, and stops.

mod common;

use berth_api::{Role, WhoAmI};
use common::{NODE, Server};

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
