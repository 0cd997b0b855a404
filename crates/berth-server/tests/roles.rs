//! Every route as every role and as nobody: who gets in, who is told so, and that a tenant or an
//! agent meets nothing but its own.

#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

mod common;

use berth_api::Role;
use berth_client::escape;
use berth_server::{Access, ROUTES};
use common::{NODE, Server, TENANT, new_token};
use serde_json::{Value, json};

/// What there is: two tenants with one of everything each, and two nodes.
struct World {
    server: Server,
    own: Owned,
    other: Owned,
}

/// Ids of what one tenant has. Its names are its own name.
struct Owned {
    tenant: &'static str,
    instance: String,
    fence: Value,
    decision: String,
    ticket: String,
}

impl World {
    /// The instance of the agent's own tenant is on its node; the other's is not.
    async fn start() -> Self {
        let server = Server::start().await;
        let operator = server.token(Role::Operator).await;
        server.add_node(NODE).await;
        server.add_node("n2").await;
        let own = owned(&server, &operator, TENANT, NODE).await;
        let other = owned(&server, &operator, "zebra", "n2").await;
        server.put(&operator, "/v1/pools/p", &json!({"range": "1-9"})).await.expect(201);
        Self { server, own, other }
    }

    /// A path with one tenant's things in it, of a node.
    fn path(&self, method: &str, path: &str, owned: &Owned, node: &str) -> String {
        // What is there is read and changed; what would go is something that is not there.
        let goes = method == "DELETE";
        let tenant = if goes { "missing" } else { owned.tenant };
        let query = if path.starts_with("/v1/attachments/") {
            format!("?tenant={}", owned.tenant)
        } else {
            String::new()
        };
        let id = match path {
            "/v1/queue/{id}" => owned.ticket.clone(),
            path if path.contains("/decisions/") => escape(&owned.decision),
            "/v1/pools/{id}" if !goes => "p".to_owned(),
            _ => tenant.to_owned(),
        };
        let node = if goes { "missing" } else { node };
        let of = if path == "/v1/tenants/{tenant}" { tenant } else { owned.tenant };
        path.replace("{id}", &id)
            .replace("{node}", node)
            .replace("{instance}", &owned.instance)
            .replace("{tenant}", of)
            .replace("{name}", tenant)
            .replace("{env}", "prod")
            .replace("{policy}", "active")
            .replace("{code}", "not_found")
            + &query
    }
}

fn shape() -> Value {
    json!({"cpu_milli": 100, "memory_mib": 128, "disk_mib": 128})
}

async fn owned(server: &Server, operator: &str, tenant: &'static str, node: &str) -> Owned {
    let volume = json!({"tenant": tenant, "home": node});
    server.put(operator, &format!("/v1/volumes/{tenant}"), &volume).await.expect(201);
    for (kind, name) in
        [("groups", tenant), ("attachments", tenant), ("workloads", &format!("{tenant}/{tenant}"))]
    {
        let path = format!("/v1/{kind}/{name}");
        let mut body = body("PUT", &format!("/v1/{kind}/"), Some(tenant)).unwrap();
        if kind == "workloads" {
            body.as_object_mut().unwrap().remove("tenant");
        }
        server.put(operator, &path, &body).await.expect(201);
    }
    let quota = json!({"instances": 9});
    server.put(operator, &format!("/v1/quotas/{tenant}"), &quota).await.expect(201);
    let request = json!({"tenant": tenant, "instances": [
        {"resources": shape(), "attachments": [tenant]}
    ]});
    let placed = server.post(operator, "/v1/placements", &request).await.expect(201).json();
    assert_eq!(placed["instances"][0]["node"], node);
    let waiting = json!({"tenant": tenant, "mode": "wait", "instances": [
        {"resources": {"cpu_milli": 100, "memory_mib": 1 << 30}}
    ]});
    let ticket = server.post(operator, "/v1/placements", &waiting).await.expect(202).json();
    Owned {
        tenant,
        instance: placed["instances"][0]["instance"].as_str().unwrap().to_owned(),
        fence: placed["instances"][0]["fence"].clone(),
        decision: placed["decision"].as_str().unwrap().to_owned(),
        ticket: ticket["id"].as_str().unwrap().to_owned(),
    }
}

/// A body that a route takes, if it takes one; what it states is a tenant's.
fn body(method: &str, path: &str, tenant: Option<&str>) -> Option<Value> {
    if !["POST", "PUT", "PATCH"].contains(&method) {
        return None;
    }
    let tenant = tenant.map_or(Value::Null, Value::from);
    let template = json!({"resources": shape()});
    let size = json!({"cpu_milli": 100, "memory_mib": 128});
    let noun = path.split('/').nth(2).unwrap_or_default();
    Some(match noun {
        "groups" => {
            json!({"tenant": tenant, "kind": "apart", "strength": "hard", "topology": "node"})
        }
        "attachments" => json!({"tenant": tenant, "volumes": [tenant]}),
        "volumes" => json!({"tenant": tenant, "home": NODE}),
        "workloads" if path.ends_with("/scale") => json!({"replicas": 1}),
        "workloads" if path.ends_with("/rollout") => json!({"action": "pause"}),
        "workloads" => json!({"replicas": 1, "template": template}),
        "claims" => json!({"fence": 1}),
        "instances" if path.ends_with("/permit") => json!({"resources": size}),
        "instances" if path.ends_with("/bounds") => json!({"min": size, "max": size}),
        "nodes" if path.ends_with("/migrations") => json!({"id": "m", "step": "copying"}),
        "placements" if path.ends_with("/apply") => {
            let request = json!({"tenant": tenant, "instances": [{"resources": shape()}]});
            json!({"request": request})
        }
        "placements" => {
            json!({"tenant": tenant, "dry_run": true, "instances": [{"resources": shape()}]})
        }
        "policies" if path.ends_with("/policies") || path.ends_with("/validate") => {
            json!({"toml": "name = \"x\"\n[scores]\nmemory-pack = 1\n"})
        }
        "pools" => json!({"range": "1-9"}),
        _ => json!({}),
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_route_admits_its_roles_and_nobody_else() {
    let world = World::start().await;
    let mut callers: Vec<(Option<Role>, Option<String>)> = vec![(None, None)];
    for role in Role::ALL {
        callers.push((Some(role), Some(world.server.token(role).await)));
    }
    for (method, path, access) in ROUTES {
        for (role, token) in &callers {
            let target = world.path(method, path, &world.own, NODE);
            let body = body(method, path, Some(TENANT));
            let token = token.as_deref();
            let response = world.server.respond(token, method, &target, body.as_ref(), &[]).await;
            let status = response.status().as_u16();
            let what = format!("{method} {target} as {role:?}: {status}");
            if status == 404 {
                let text = response.text().await.unwrap();
                assert!(!text.contains("nothing at this path"), "{what}: not served");
            }
            let may = match (access, role) {
                (Access::Open, _) => true,
                (Access::Roles(roles), Some(role)) => roles.contains(role),
                (Access::Roles(_), None) => false,
            };
            match (may, role) {
                // The form is open to all, and what is in this one is no token.
                (true, _) if (*method, *path) == ("POST", "/sign-in") => {
                    assert_eq!(status, 403, "{what}");
                }
                (true, _) => assert!(status != 401 && status != 403 && status < 500, "{what}"),
                (false, None) => assert_eq!(status, 401, "{what}"),
                (false, Some(_)) => assert_eq!(status, 403, "{what}"),
            }
        }
    }
    world.server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tenant_meets_nothing_of_another() {
    let world = World::start().await;
    let tenant = world.server.token(Role::Tenant).await;
    let other = &world.other;
    let is_for_tenants = |access: &Access| match access {
        Access::Open => false,
        Access::Roles(roles) => roles.contains(&Role::Tenant),
    };
    for (method, path, _) in ROUTES.iter().filter(|(_, _, access)| is_for_tenants(access)) {
        if !path.contains('{') {
            continue;
        }
        // This time what would go is there: it must stay.
        let target = world.path("GET", path, other, "n2");
        // A path that has the other's name in it means the other's thing by itself.
        let stated = if path.starts_with("/v1/groups/") { TENANT } else { other.tenant };
        let mut body = body(method, path, Some(stated));
        if path.starts_with("/v1/claims/") && body.is_some() {
            body = Some(json!({"fence": other.fence}));
        }
        let reply = world.server.send(Some(&tenant), method, &target, body.as_ref(), &[]).await;
        if (*method, *path) == ("PUT", "/v1/groups/{id}") {
            // Names of groups are shared, so this one cannot be as if it were free.
            let reply = reply.problem(409, "name_taken");
            assert!(reply.json().get("tenant").is_none(), "{}", reply.text);
            continue;
        }
        assert_eq!(reply.status.as_u16(), 404, "{method} {target}: {}", reply.text);
        assert!(!reply.text.contains("n2"), "{method} {target}: {}", reply.text);
    }
    for path in ["queue", "claims", "instances", "groups", "volumes", "attachments", "quotas"]
        .into_iter()
        .chain(["workloads", "events", "decisions"])
    {
        let list = world.server.get(&tenant, &format!("/v1/{path}")).await.expect(200);
        assert!(list.text.contains(TENANT), "{path} shows nothing of its own: {}", list.text);
        assert!(!list.text.contains("zebra"), "{path}: {}", list.text);
        assert!(!list.text.contains(&other.instance), "{path}: {}", list.text);
    }
    let stolen = body("POST", "/v1/placements", Some("zebra"));
    let reply = world.server.send(Some(&tenant), "POST", "/v1/placements", stolen.as_ref(), &[]);
    reply.await.problem(404, "not_found");
    // Everything of the other's is still there.
    let theirs = world.server.tenant("zebra").await;
    for path in ["groups/zebra", "volumes/zebra", "attachments/zebra", "workloads/zebra/zebra"] {
        world.server.get(&theirs, &format!("/v1/{path}")).await.expect(200);
    }
    let claim = format!("/v1/claims/{}", other.instance);
    assert_eq!(world.server.get(&theirs, &claim).await.expect(200).json()["state"], "held");
    world.server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_meets_no_node_but_its_own() {
    let world = World::start().await;
    let agent = world.server.token(Role::Agent).await;
    let operator = world.server.token(Role::Operator).await;
    let facts = world.server.get(&operator, "/v1/nodes/n2").await.expect(200).json();
    for (method, path, access) in ROUTES {
        let Access::Roles(roles) = access else { continue };
        if !roles.contains(&Role::Agent) || !path.contains('{') {
            continue;
        }
        let target = world.path("GET", path, &world.other, "n2");
        let body = match (*method, *path) {
            ("PUT", "/v1/nodes/{node}") => Some(facts["facts"].clone()),
            ("POST", "/v1/nodes/{node}/volume-moves") => {
                Some(json!({"volume": "zebra", "step": "copied"}))
            }
            (_, path) if path.starts_with("/v1/claims/") && *method != "GET" => {
                Some(json!({"fence": world.other.fence}))
            }
            (method, path) => body(method, path, None),
        };
        let reply = world.server.send(Some(&agent), method, &target, body.as_ref(), &[]).await;
        assert_eq!(reply.status.as_u16(), 404, "{method} {target}: {}", reply.text);
    }
    let own = format!("/v1/claims/{}/bind", world.own.instance);
    let fence = json!({"fence": world.own.fence});
    world.server.post(&agent, &own, &fence).await.expect(200);
    world.server.get(&agent, "/v1/nodes/n1/assignments").await.expect(200);
    world.server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_a_valid_token_counts() {
    let server = Server::start().await;
    let (record, admin) = server.mint(&new_token(Role::Admin)).await;
    let nobody = |token: String| {
        let server = &server;
        async move { server.get(&token, "/v1/whoami").await.problem(401, "not_signed_in") }
    };
    server.get(&admin, "/v1/whoami").await.expect(200);

    let (mut expired, secret) = server.mint(&new_token(Role::Admin)).await;
    expired.token.expires_at = Some(server.control.now());
    server.store(&expired).await;
    nobody(secret).await;
    let (mut revoked, secret) = server.mint(&new_token(Role::Admin)).await;
    revoked.token.revoked_at = Some(server.control.now());
    server.store(&revoked).await;
    nobody(secret).await;
    // The id of one and the secret of another, and what only looks like a token.
    let (_, second) = server.mint(&new_token(Role::Admin)).await;
    let secret = second.rsplit('_').next().unwrap();
    nobody(format!("berth_{}_{secret}", record.token.id)).await;
    nobody(admin[..admin.len() - 1].to_owned()).await;
    nobody("x".to_owned()).await;
    let basic = [("authorization", "Basic YWRtaW46YWRtaW4=")];
    server.send(None, "GET", "/v1/whoami", None, &basic).await.problem(401, "not_signed_in");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cookie_without_the_header_of_the_console_reads_and_changes_nothing() {
    let server = Server::start().await;
    let admin = server.token(Role::Admin).await;
    server.add_node(NODE).await;
    let cookie = format!("theme=dark; berth_token={admin}");
    let cookie = [("cookie", cookie.as_str())];
    server.send(None, "GET", "/v1/nodes", None, &cookie).await.expect(200);
    for (method, path, access) in ROUTES {
        if *method == "GET" || *access == Access::Open {
            continue;
        }
        let target = path.replace("{node}", NODE).replace(['{', '}'], "");
        let body = body(method, path, Some(TENANT));
        let reply = server.send(None, method, &target, body.as_ref(), &cookie).await;
        assert_eq!(reply.status.as_u16(), 401, "{method} {target}: {}", reply.text);
    }
    // A token that is presented decides, whatever cookie comes with it.
    server.send(Some("x"), "GET", "/v1/nodes", None, &cookie).await.expect(401);
    server.stop().await;
}
