//! The wire protocol itself: versions, codes, quantities, limits, sign-in, restarts. Its numbers are
//! in the worked examples.

use berth_api::Role;
use berth_engine::elastic::Size;
use berth_server::wire::WireSettings;
use serde_json::json;

use crate::common::{Reply, Server, TENANT};
use crate::scene::{NODE, Scene, Setup, Way, fine, resources, speak, whole};

const NEWEST: Way = Way::Wire(7, "joint");

/// A node of 10 with an elastic instance `vm` of 2.
async fn scene() -> (Scene, String) {
    let scene = Scene::new(Setup::new(NEWEST, whole(1)), whole(10)).await;
    let vm = scene.elastic("vm", whole(2)).await;
    (scene, vm)
}

/// The refusal, if it has this code and is plain text.
#[track_caller]
fn refused(reply: Reply, status: u16, says: &str) {
    let reply = reply.expect(status);
    assert_eq!(reply.headers["content-type"], "text/plain", "{}", reply.text);
    assert!(reply.text.contains(says), "{says:?}: {}", reply.text);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bodies_of_each_version_are_answered_in_its_own_words() {
    let (scene, vm) = scene().await;
    let reply = scene
        .wire(r#"{"protoVersion":5,"pod":{"name":"vm","namespace":"acme"},"resources":{"vCPUs":3,"mem":3},"lastPermit":null,"metrics":null}"#)
        .await
        .expect(200);
    assert_eq!(reply.headers["content-type"], "application/json");
    assert_eq!(reply.text, r#"{"permit":{"mem":3,"vCPUs":3}}"#);
    for (body, answer) in [
        (
            r#"{"protoVersion":6,"pod":{"name":"vm","namespace":"acme"},"computeUnit":{"vCPUs":"250m","mem":"1Gi"},"resources":{"vCPUs":"3250m","mem":"4Gi"},"lastPermit":{"vCPUs":3,"mem":"3Gi"},"metrics":{"loadAvg1M":1.5,"loadAvg5M":0.5,"memoryUsageBytes":123456789.0}}"#,
            json!({"vCPUs": "3250m", "mem": "4Gi"}),
        ),
        // Numbers, other spellings, what no version knows, and no metrics at all.
        (
            r#"{"protoVersion":7,"pod":{"name":"vm","namespace":"acme","uid":1},"computeUnit":{"vCPUs":0.25,"mem":1073741824},"resources":{"vCPUs":3.5,"mem":5368709120},"later":{"x":[]}}"#,
            json!({"vCPUs": "3500m", "mem": "5Gi"}),
        ),
        (
            r#"{"protoVersion":7,"pod":{"name":"vm","namespace":"acme"},"computeUnit":{"vCPUs":"0.25","mem":"1024Mi"},"resources":{"vCPUs":"4","mem":"1610612736"},"lastPermit":null,"metrics":{"loadAvg1M":2}}"#,
            json!({"vCPUs": 4, "mem": "1536Mi"}),
        ),
    ] {
        let reply = scene.wire(body).await.expect(200);
        assert_eq!(reply.json(), json!({"permit": answer}), "{body}");
    }
    assert_eq!(scene.reserved().await, Size::new(4000, 1536));
    let permit = scene.get(&format!("/v1/instances/{vm}/permit")).await;
    assert_eq!(permit["seq"], 4, "each request is the next");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_no_request_is_400() {
    let (scene, vm) = scene().await;
    let good = scene.wire_body(7, "vm", whole(3), None);
    for method in ["GET", "PUT", "DELETE", "PATCH"] {
        refused(scene.wire_as(None, method, "/", good.as_bytes()).await, 400, "accepted is POST");
    }
    refused(scene.wire_as(None, "POST", "/v1", good.as_bytes()).await, 404, "use /");
    for body in
        ["", "{", "[]", "null", "\"x\"", "{\"protoVersion\":\"7\"}", "{\"protoVersion\":-1}"]
    {
        refused(scene.wire(body).await, 400, "the body is not valid");
    }
    refused(scene.wire_as(None, "POST", "/", b"{\"\xff\":1}").await, 400, "the body is not valid");
    for version in [0, 8, 99] {
        let body = good.replace("\"protoVersion\":7", &format!("\"protoVersion\":{version}"));
        refused(scene.wire(&body).await, 400, &format!("protoVersion is {version}; accepted"));
    }
    refused(scene.wire(&good.replace("protoVersion", "x")).await, 400, "protoVersion is 0");
    for (from, to, says) in [
        ("\"computeUnit\"", "\"other\"", "computeUnit is missing"),
        ("\"vCPUs\":\"1000m\"", "\"vCPUs\":0", "computeUnit.vCPUs is 0"),
        ("\"mem\":\"1024Mi\"", "\"mem\":\"0\"", "computeUnit.mem is 0"),
        ("\"mem\":\"1024Mi\"", "\"mem\":1500000", "computeUnit.mem is 1500000; accepted are whole"),
        ("\"resources\"", "\"other\"", "resources is missing"),
        ("\"vCPUs\":\"3000m\"", "\"vCPUs\":0", "resources.vCPUs is 0"),
        ("\"vCPUs\":\"3000m\"", "\"vCPUs\":\"1u\"", "resources.vCPUs is \"1u\""),
        ("\"vCPUs\":\"3000m\"", "\"vCPUs\":true", "resources.vCPUs is true"),
        ("\"vCPUs\":\"3000m\"", "\"vCPUs\":-1", "resources.vCPUs is -1"),
        ("\"vCPUs\":\"3000m\",", "", "resources.vCPUs is missing"),
        ("\"mem\":\"3072Mi\"", "\"mem\":\"many\"", "resources.mem is \"many\""),
        ("\"mem\":\"3072Mi\"", "\"mem\":\"15Ei\"", "resources.mem is more than"),
        ("\"mem\":\"3072Mi\"", "\"mem\":\"0.5\"", "resources.mem is \"0.5\""),
        ("\"lastPermit\":null", "\"lastPermit\":{\"vCPUs\":1}", "lastPermit.mem is missing"),
        ("\"name\":\"vm\"", "\"name\":\"\"", "pod.name is missing"),
        ("\"mem\":\"3072Mi\"", "\"mem\":\"2000Gi\"", "its bounds"),
    ] {
        let body = good.replacen(from, to, 1);
        assert_ne!(body, good, "{from} is not there");
        refused(scene.wire(&body).await, 400, says);
    }
    let zero = scene.wire_body(5, "vm", whole(3), None).replace("\"mem\":3", "\"mem\":0");
    refused(scene.wire(&zero).await, 400, "resources.mem is 0");
    assert_eq!(scene.reserved().await, whole(2), "nothing of it changed anything");
    let seq = &scene.get(&format!("/v1/instances/{vm}/permit")).await["seq"];
    assert_eq!(seq, 0);
    scene.wire(&good).await.expect(200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_body_of_1024_bytes_is_read_and_one_more_is_400() {
    let (scene, _) = scene().await;
    let good = scene.wire_body(7, "vm", whole(3), None);
    let padded = |length: usize| {
        let room = length - good.len() - "\"x\":\"\",".len();
        good.replacen('{', &format!("{{\"x\":\"{}\",", "a".repeat(room)), 1)
    };
    assert_eq!((padded(1024).len(), padded(1025).len()), (1024, 1025));
    scene.wire(&padded(1024)).await.expect(200);
    refused(scene.wire(&padded(1025)).await, 400, "above 1024 bytes");
    refused(scene.wire(&padded(1 << 20)).await, 400, "above 1024 bytes");
    assert_eq!(scene.reserved().await, whole(3));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pod_is_an_instance_by_name_or_id_of_its_tenant() {
    let (scene, vm) = scene().await;
    let ask = async |name: &str| scene.wire(&scene.wire_body(7, name, whole(2), None)).await;
    ask("vm").await.expect(200);
    ask(&vm).await.expect(200);
    refused(ask("other").await, 404, "there is no instance \"other\" in namespace \"acme\"");
    refused(ask(&uuid::Uuid::now_v7().to_string()).await, 404, "there is no instance");
    let elsewhere = scene.wire_body(7, &vm, whole(2), None).replace(TENANT, "globex");
    refused(scene.wire(&elsewhere).await, 404, "there is no instance");
    let nowhere = scene.wire_body(7, "vm", whole(2), None).replace("namespace", "x");
    refused(scene.wire(&nowhere).await, 404, "there is no instance");

    scene.run(&json!({"name": "fixed", "resources": resources(whole(1))})).await;
    refused(ask("fixed").await, 400, "is not elastic");
    let elastic = json!({"min": resources(whole(1)), "max": resources(whole(2))});
    let spec = json!({"name": "new", "resources": resources(whole(1)), "elastic": elastic});
    scene.place(&spec).await.expect(201);
    refused(ask("new").await, 404, "there is no instance \"new\"");

    // Names need not be unique; ids are.
    let twins = [scene.elastic("twin", whole(1)).await, scene.elastic("twin", whole(1)).await];
    refused(ask("twin").await, 400, "2 instances run as \"twin\"");
    scene.wire(&scene.wire_body(7, &twins[1], whole(1), None)).await.expect(200);
    scene.stopped(&twins[0]).await;
    scene.wire(&scene.wire_body(7, "twin", whole(1), None)).await.expect(200);
    scene.stopped(&vm).await;
    refused(ask("vm").await, 404, "there is no instance \"vm\"");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_is_being_moved_is_told_and_must_stay_as_it_is() {
    for version in [5, 6, 7] {
        let scene = Scene::new(Setup::new(Way::Wire(version, "joint"), whole(1)), whole(10)).await;
        let vm = scene.elastic("vm", whole(2)).await;
        let ask = async |size| scene.wire(&scene.wire_body(version, "vm", whole(size), None)).await;
        assert!(ask(2).await.expect(200).json().get("migrate").is_none());
        scene.node("n2", whole(10), json!({})).await;
        let path = format!("/v1/instances/{vm}/migrate");
        let moving = scene.post(&path, &json!({"to": "n2"})).await.expect(200).json();
        let told = ask(2).await.expect(200).json();
        assert_eq!(told["migrate"], json!({}), "{told}");
        assert_eq!(scene.heard(version, &told["permit"]), whole(2));
        for size in [1, 3] {
            refused(ask(size).await, 400, "is being moved");
        }
        let cancel = format!("/v1/migrations/{}/cancel", moving["id"].as_str().unwrap());
        scene.post(&cancel, &json!({})).await.expect(200);
        // The target's agent has nothing of it, and says so.
        let report = json!({"id": moving["id"], "step": "dropped"});
        scene.post("/v1/nodes/n2/migrations", &report).await.expect(200);
        let told = ask(3).await.expect(200).json();
        assert_eq!((scene.heard(version, &told["permit"]), told.get("migrate")), (whole(3), None));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bytes_that_are_no_whole_mib_are_reserved_rounded_up_and_answered_as_asked() {
    let scene = Scene::new(Setup::new(NEWEST, fine(1)), fine(100)).await;
    let filler = scene.elastic("filler", fine(80)).await;
    scene.elastic("vm", fine(10)).await;
    let ask = async |bytes: u64| {
        let body = format!(
            r#"{{"protoVersion":7,"pod":{{"name":"vm","namespace":"acme"}},"computeUnit":{{"vCPUs":"1m","mem":"1Mi"}},"resources":{{"vCPUs":"10m","mem":{bytes}}}}}"#
        );
        scene.wire(&body).await.expect(200).json()["permit"]["mem"].clone()
    };
    let mib = 1_u64 << 20;
    assert_eq!(
        ask(15 * mib + 1).await,
        json!((15 * mib + 1).to_string()),
        "all of it, and no more"
    );
    assert_eq!(scene.reserved().await, Size::new(90, 96), "16 MiB hold it");
    // 4 MiB are left: less than was asked for, more than is used.
    assert_eq!(ask(30 * mib - 1).await, json!("20Mi"));
    assert_eq!(scene.reserved().await, Size::new(90, 100));
    // Nothing is left, and what is used is part of a MiB: that MiB is its own.
    assert_eq!(ask(16 * mib - 5).await, json!((16 * mib - 5).to_string()));
    assert_eq!(scene.ask(&filler, Size::new(80, 84)).await, Size::new(80, 84));
    assert_eq!(ask(17 * mib).await, json!("16Mi"), "at least what is used");
    assert_eq!(ask(16 * mib - 4).await, json!((16 * mib - 4).to_string()), "it was reserved");
    assert_eq!(scene.reserved().await, Size::new(90, 100));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn agents_sign_in_as_they_do_natively() {
    let scene = Scene::new(Setup::new(NEWEST, whole(1)).signed_in(), whole(10)).await;
    scene.elastic("vm", whole(2)).await;
    let body = scene.wire_body(7, "vm", whole(2), None);
    let ask = async |token: Option<&str>| scene.wire_as(token, "POST", "/", body.as_bytes()).await;
    let nobody = ask(None).await;
    assert_eq!(nobody.headers["www-authenticate"], "Bearer");
    refused(nobody, 401, "authentication required");
    refused(ask(Some("wrong")).await, 401, "authentication required");
    let server = &scene.server;
    refused(ask(Some(&server.tenant(TENANT).await)).await, 403, "role tenant");
    refused(ask(Some(&server.token(Role::Viewer).await)).await, 403, "role viewer");
    for token in [server.agent(NODE).await, scene.operator.clone(), server.token(Role::Admin).await]
    {
        ask(Some(&token)).await.expect(200);
    }
    let elsewhere = server.agent("n2").await;
    refused(ask(Some(&elsewhere)).await, 404, "there is no instance");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn where_nobody_signs_in_a_token_still_decides() {
    let (scene, _) = scene().await;
    let body = scene.wire_body(7, "vm", whole(2), None);
    let ask = async |token: Option<&str>| scene.wire_as(token, "POST", "/", body.as_bytes()).await;
    ask(None).await.expect(200);
    refused(ask(Some("wrong")).await, 401, "authentication required");
    refused(ask(Some(&scene.server.agent("n2").await)).await, 404, "there is no instance");
    refused(ask(Some(&scene.server.tenant(TENANT).await)).await, 403, "role tenant");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn that_the_api_trusts_this_machine_does_not_open_the_wire() {
    let server = Server::start_without_sign_in().await;
    server.send(None, "GET", "/v1/nodes", None, &[]).await.expect(200);
    for (sign_in, status) in [(true, 401), (false, 400)] {
        let url = speak(&server, WireSettings { sign_in, ..WireSettings::default() });
        let reply = reqwest::Client::new().post(format!("{url}/")).body("{").send().await.unwrap();
        assert_eq!(reply.status().as_u16(), status);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restart_needs_no_pause_and_loses_nothing() {
    let (scene, _) = scene().await;
    scene.filler(whole(5)).await;
    let ask = async |scene: &Scene, size, last: Option<Size>| {
        let body = scene.wire_body(7, "vm", whole(size), last);
        scene.heard(7, &scene.wire(&body).await.expect(200).json()["permit"])
    };
    assert_eq!(ask(&scene, 6, None).await, whole(5));
    let scene = scene.restarted().await;
    assert_eq!((scene.reserved().await, scene.buffer().await), (whole(10), Size::ZERO));
    // The very first request after it is answered from what is stored; the agent need not say more.
    assert_eq!(ask(&scene, 6, Some(whole(5))).await, whole(5));
    assert_eq!((scene.reserved().await, scene.pressure().await), (whole(10), whole(1)));
    assert_eq!(ask(&scene, 3, None).await, whole(3));
    let scene = scene.restarted().await;
    assert_eq!(ask(&scene, 4, Some(whole(3))).await, whole(4));
    assert_eq!(scene.reserved().await, whole(9));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_are_counted_by_their_code() {
    let (scene, vm) = scene().await;
    for name in ["vm", "vm", "nobody"] {
        scene.wire(&scene.wire_body(7, name, whole(2), None)).await;
    }
    scene.wire("{").await.expect(400);
    let metrics = scene.server.get(&scene.operator, "/metrics").await.expect(200).text;
    for (code, count) in [(200, 2), (404, 1), (400, 1)] {
        let line = format!("berth_wire_requests_total{{code=\"{code}\"}} {count}");
        assert!(metrics.contains(&line), "{line}");
    }
    // A request that changes nothing is no news, and yet the last that was answered.
    assert_eq!(scene.get(&format!("/v1/instances/{vm}/permit")).await["seq"], 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_ledger_that_does_not_answer_is_500_and_the_next_request_is_as_good() {
    let (scene, _) = scene().await;
    let body = scene.wire_body(7, "vm", whole(3), None);
    let other = rusqlite::Connection::open(scene.database()).unwrap();
    other.execute_batch("PRAGMA busy_timeout = 10000; BEGIN IMMEDIATE").unwrap();
    refused(scene.wire(&body).await, 500, "the outcome is unknown");
    other.execute_batch("ROLLBACK").unwrap();
    // What became of the first is known by now, and asking twice does no harm.
    scene.wire(&body).await.expect(200);
    assert_eq!(scene.reserved().await, whole(3));
}
