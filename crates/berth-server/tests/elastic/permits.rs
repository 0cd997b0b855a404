//! What holds for permits apart from the arithmetic: numbers of requests, restarts, units that change,
//! headroom, and who may ask.

use aws_lc_rs::signature::{ED25519, UnparsedPublicKey};
use berth_api::{Headroom, Role};
use berth_engine::elastic::{Limit, Size};
use serde_json::{Value, json};

use crate::common::TENANT;
use crate::scene::{NODE, Scene, Setup, WAYS, Way, fine, resources, whole};

/// The ways to grant; the unit is checked only natively.
const NATIVE: [Way; 2] = [Way::Native("joint"), Way::Native("per-resource")];

const JOINT: Way = Way::Native("joint");

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_repeated_or_late_request_gets_the_stored_answer_also_after_a_restart() {
    let scene = Scene::new(Setup::new(JOINT, whole(1)), whole(10)).await;
    scene.filler(whole(6)).await;
    let vm = scene.elastic("vm", whole(1)).await;
    let ask = |seq: u64, size: u32| json!({"seq": seq, "resources": whole(size)});
    let first = scene.permit(&vm, &ask(7, 5)).await;
    assert_eq!((first.permit, first.capacity_pressure, first.seq), (whole(4), whole(1), 7));
    assert!(!first.repeated);
    assert_eq!(first.limited_by, Some(Limit::Node));
    for (seq, size) in [(7, 5), (7, 2), (3, 1)] {
        let again = scene.permit(&vm, &ask(seq, size)).await;
        assert!(again.repeated, "{seq} for {size}");
        assert_eq!((again.permit, again.wanted, again.seq), (whole(4), whole(5), 7));
    }
    assert_eq!(scene.reserved().await, whole(10));

    let scene = scene.restarted().await;
    assert_eq!((scene.reserved().await, scene.buffer().await), (whole(10), Size::ZERO));
    assert_eq!((scene.denied(&vm).await, scene.pressure().await), (whole(1), whole(1)));
    let again = scene.permit(&vm, &ask(7, 2)).await;
    assert_eq!((again.permit, again.repeated), (whole(4), true), "as before the restart");
    assert_eq!(scene.permit(&vm, &ask(8, 2)).await.permit, whole(2));
    assert_eq!(scene.reserved().await, whole(8));
    let zero = scene.try_permit(&vm, &ask(0, 2)).await.problem(400, "invalid_request");
    assert!(zero.text.contains("seq is 0; accepted is 1 to"), "{}", zero.text);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_instance_grows_beyond_the_cores_of_its_host() {
    let scene = Scene::new(Setup::new(JOINT, whole(1)), whole(10)).await;
    // Each core is promised four times.
    scene.node(NODE, whole(10), json!({"ratios": {"cpu_permille": 4000}})).await;
    let vm = scene.elastic("vm", whole(1)).await;
    let ask = |cpu: u32| json!({"resources": Size::new(cpu * 1000, 1024)});
    let more = scene.permit(&vm, &ask(12)).await;
    assert_eq!((more.permit.cpu_milli, more.limited_by), (10_000, Some(Limit::Host)));
    assert_eq!(more.capacity_pressure, Size::ZERO, "no room elsewhere on the node would help");
    let all = scene.permit(&vm, &ask(10)).await;
    assert_eq!((all.permit.cpu_milli, all.limited_by), (10_000, None));
    let second = scene.elastic("second", whole(1)).await;
    assert_eq!(
        scene.permit(&second, &ask(8)).await.permit.cpu_milli,
        8000,
        "the sum may exceed it"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_is_checked_against_the_unit_that_was_told_last() {
    for way in NATIVE {
        let scene = Scene::new(Setup::new(way, whole(2)), whole(20)).await;
        let vm = scene.elastic("vm", whole(4)).await;
        let ask = |size: u32| json!({"resources": whole(size)});
        let told = scene.permit(&vm, &ask(6)).await;
        assert_eq!((told.permit, told.compute_unit), (whole(6), Some(whole(2))));
        let changed = Setup::new(way, whole(3));
        scene.activate(&changed.policy()).await;
        // The agent cannot know of the new unit: it is told with this answer.
        let told = scene.permit(&vm, &ask(8)).await;
        assert_eq!((told.permit, told.compute_unit), (whole(8), Some(whole(3))), "{way:?}");
        let odd = scene.try_permit(&vm, &ask(10)).await.problem(400, "invalid_request");
        assert!(odd.text.contains("resources.cpu_milli is 10000"), "{}", odd.text);
        assert!(odd.text.contains("a multiple of 3000"), "{}", odd.text);
        assert_eq!(scene.permit(&vm, &ask(9)).await.permit, whole(9), "{way:?}");
        // What it has is accepted even if it is off the unit.
        scene.activate(&Setup::new(way, whole(5)).policy()).await;
        scene.permit(&vm, &ask(9)).await;
        assert_eq!(scene.permit(&vm, &ask(9)).await.compute_unit, Some(whole(5)), "{way:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_unit_of_nothing_is_refused_where_it_is_said() {
    let scene = Scene::new(Setup::new(JOINT, whole(1)), whole(10)).await;
    let none = "compute_unit = { cpu_milli = 1000, memory_mib = 0 }";
    let base = scene.setup.policy();
    for (toml, key) in [
        (Setup::new(JOINT, Size::new(0, 1024)).policy(), "elastic.compute_unit.cpu_milli"),
        (format!("{base}[[elastic.nodes]]\n{none}\n"), "elastic.nodes[0].compute_unit.memory_mib"),
        (
            format!("{base}[elastic.classes.db]\n{none}\n"),
            "elastic.classes.db.compute_unit.memory_mib",
        ),
    ] {
        let refused = scene.post("/v1/policies", &json!({"toml": toml})).await;
        let refused = refused.problem(400, "invalid_request");
        let named = format!("{key} is 0; accepted is 1 to");
        assert!(refused.text.contains(&named), "{named}: {}", refused.text);
    }
    let spec = json!({"resources": resources(whole(1)), "elastic": {
        "min": resources(whole(1)), "max": resources(whole(2)),
        "compute_unit": {"cpu_milli": 0, "memory_mib": 1}}});
    let refused = scene.place(&spec).await.problem(400, "invalid_request");
    assert!(refused.text.contains("elastic.compute_unit.cpu_milli is 0"), "{}", refused.text);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_grows_while_the_node_is_over_full_and_all_grow_once_it_is_not() {
    for way in WAYS {
        let scene = Scene::new(Setup::new(way, whole(1)), whole(10)).await;
        let vms = [scene.elastic("a", whole(4)).await, scene.elastic("b", whole(4)).await];
        scene.found(whole(4)).await;
        assert_eq!(scene.reserved().await, whole(12), "{way:?}");
        for vm in &vms {
            assert_eq!(scene.ask(vm, whole(5)).await, whole(4), "{way:?}");
        }
        // Two less is full, and no longer over-full; one less than that leaves room for one.
        assert_eq!(scene.ask(&vms[0], whole(2)).await, whole(2), "{way:?}");
        assert_eq!(scene.ask(&vms[1], whole(5)).await, whole(4), "{way:?}");
        assert_eq!(scene.ask(&vms[0], whole(1)).await, whole(1), "{way:?}");
        assert_eq!(scene.ask(&vms[1], whole(6)).await, whole(5), "{way:?}");
        assert_eq!((scene.reserved().await, scene.pressure().await), (whole(10), whole(1)));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lopsided_node_grants_whole_units_of_both_or_each_as_far_as_it_goes() {
    for (grants, permit) in [("joint", whole(3)), ("per-resource", Size::new(5000, 3 * 1024))] {
        let total = Size::new(10_000, 6 * 1024);
        let scene = Scene::new(Setup::new(Way::Native(grants), whole(1)), total).await;
        scene.filler(whole(3)).await;
        let vm = scene.elastic("vm", whole(1)).await;
        assert_eq!(scene.ask(&vm, whole(5)).await, permit, "{grants}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn headroom_is_signed_charged_and_gone_once_its_end_was_heard() {
    let scene = Scene::new(Setup::new(JOINT, whole(1)), whole(20)).await;
    let vm = scene.elastic("vm", whole(2)).await;
    let asked = json!({"resources": whole(3), "headroom": whole(4)});
    let permit = scene.permit(&vm, &asked).await;
    assert_eq!((permit.permit, permit.charged), (whole(3), whole(7)));
    assert_eq!((scene.reserved().await, scene.buffer().await), (whole(7), whole(4)));
    let headroom = permit.headroom.clone().unwrap();
    assert_eq!(headroom.up_to, whole(7));
    let fence = permit.fence;
    let said = format!("berth-headroom-v1 {vm} n1 {fence} 1 7000 7168");
    assert_eq!(headroom.statement, said);
    verify(&scene, &headroom, &headroom.statement).await.unwrap();
    let forged = headroom.statement.replace(" 7000 ", " 9000 ");
    assert!(verify(&scene, &headroom, &forged).await.is_err(), "it says 7000, not 9000");

    // The key outlives the server, and so does what it promised.
    let scene = scene.restarted().await;
    verify(&scene, &headroom, &headroom.statement).await.unwrap();
    assert_eq!(scene.reserved().await, whole(7));
    // It grew into it unasked, says so, and needs no more.
    let grown = json!({"resources": whole(6), "last_permit": whole(6)});
    let permit = scene.permit(&vm, &grown).await;
    // The earlier answer counts until it is known that this one was heard.
    assert_eq!((permit.permit, permit.headroom, permit.charged), (whole(6), None, whole(7)));
    assert_eq!((scene.reserved().await, scene.buffer().await), (whole(7), whole(1)));
    let heard = json!({"resources": whole(6), "heard": permit.seq});
    assert_eq!(scene.permit(&vm, &heard).await.charged, whole(6));
    assert_eq!((scene.reserved().await, scene.buffer().await), (whole(6), Size::ZERO));
    // Unasked growth never takes a node above its watermark: 18 of 20.
    scene.filler(whole(10)).await;
    let asked = json!({"resources": whole(6), "headroom": whole(8)});
    let permit = scene.permit(&vm, &asked).await;
    assert_eq!(permit.headroom.map(|headroom| headroom.up_to), Some(whole(8)));
    assert_eq!(scene.reserved().await, whole(18));
}

async fn verify(scene: &Scene, headroom: &Headroom, statement: &str) -> Result<(), ()> {
    let key: Value = scene.get("/v1/permits/key").await;
    assert_eq!(key["key"], *headroom.key);
    let public = bytes(key["public"].as_str().unwrap());
    let key = UnparsedPublicKey::new(&ED25519, public);
    key.verify(statement.as_bytes(), &bytes(&headroom.signature)).map_err(drop)
}

fn bytes(hex: &str) -> Vec<u8> {
    let pairs = hex.as_bytes().chunks(2);
    pairs.map(|pair| u8::from_str_radix(str::from_utf8(pair).unwrap(), 16).unwrap()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_asks_for_its_own_node_and_a_tenant_not_at_all() {
    let scene = Scene::new(Setup::new(JOINT, fine(1)), fine(100)).await;
    let (server, vm) = (&scene.server, scene.elastic("vm", fine(10)).await);
    let path = format!("/v1/instances/{vm}/permit");
    let body = json!({"resources": fine(11)});
    let agent = server.agent("n1").await;
    assert_eq!(server.post(&agent, &path, &body).await.expect(200).json()["node"], "n1");
    let other = server.agent("n2").await;
    server.post(&other, &path, &body).await.problem(404, "not_found");
    server.get(&other, &path).await.problem(404, "not_found");
    let tenant = server.tenant(TENANT).await;
    server.post(&tenant, &path, &body).await.problem(403, "not_allowed");
    server.get(&tenant, &path).await.expect(200);
    let stranger = server.tenant("others").await;
    server.get(&stranger, &path).await.problem(404, "not_found");
    let viewer = server.token(Role::Viewer).await;
    server.post(&viewer, &path, &body).await.problem(403, "not_allowed");
    server.send(None, "POST", &path, Some(&body), &[]).await.problem(401, "not_signed_in");
    assert_eq!(scene.reserved().await, fine(11), "nobody else changed anything");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_be_asked_is_refused_with_what_would_do() {
    let scene = Scene::new(Setup::new(JOINT, fine(1)), fine(100)).await;
    let body = json!({"resources": fine(11)});
    let none = uuid::Uuid::now_v7().to_string();
    scene.try_permit(&none, &body).await.problem(404, "not_found");
    let fixed = scene.filler(fine(10)).await;
    scene.try_permit(&fixed, &body).await.problem(409, "not_elastic");
    let elastic = json!({"min": resources(fine(5)), "max": resources(fine(20))});
    let spec = json!({"resources": resources(fine(10)), "elastic": elastic});
    let held = scene.place(&spec).await.expect(201).json();
    let held = held["instances"][0]["instance"].as_str().unwrap().to_owned();
    scene.try_permit(&held, &body).await.problem(409, "wrong_state");
    let vm = scene.run(&spec).await;
    for size in [4, 21] {
        let outside = scene.try_permit(&vm, &json!({"resources": fine(size)})).await;
        let outside = outside.problem(400, "invalid_request");
        assert!(outside.text.contains("5 to 20"), "{}", outside.text);
    }
    let stale = json!({"resources": fine(11), "fence": 1_000_000});
    scene.try_permit(&vm, &stale).await.problem(409, "stale_fence");
    assert_eq!(scene.ask(&vm, fine(20)).await, fine(20));
}
