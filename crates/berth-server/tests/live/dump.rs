//! The inside of a live server as a document: sound, loadable, and every tampering is caught.

use std::collections::BTreeSet;

use berth_api::{MigrationState, TicketState};
use berth_control::debug::{
    ClassDump, Dump, Invariant, PoolValueDump, SlotDump, StoredRecord, TicketDump, check, take,
};
use berth_engine::elastic::Size;
use berth_engine::{Amounts, InstanceId, InstanceRequest, NodeId, NodeState, Timestamp, Volume};
use berth_ledger::{ClaimKey, Expect, Job, Op, Release, Role as ClaimRole, SlotKey, Text};
use serde_json::json;

use crate::common::wait_until;
use crate::stage::{Stage, elastic};

const CLASSES: &str = "name = \"classes\"\n[scores]\nmemory-pack = 5\n\
    [elastic.migration]\nenabled = false\n[elastic.classes.db]\novercommit_permille = 1500\n";

/// A server with elastic instances, one that was denied, one with headroom, one found by its agent,
/// a group, a quota, and a migration under way.
async fn busy() -> Stage {
    let stage = Stage::new(&["n1"]).await;
    let (server, operator) = (&stage.server, &stage.operator);
    stage.activate(CLASSES).await;
    server.put(operator, "/v1/quotas/acme", &json!({"instances": 100})).await.expect(201);
    let apart = json!({"kind": "apart", "strength": "soft", "topology": "node"});
    server.put(operator, "/v1/groups/web", &apart).await.expect(201);

    let mut grouped = elastic((2000, 4096), (16_000, 65_536));
    grouped["groups"] = json!(["web"]);
    let (greedy, _) = stage.run(grouped).await;
    let mut oversold = elastic((1000, 2048), (2000, 4096));
    oversold["elastic"]["class"] = json!("db");
    stage.run(oversold).await;
    let (moving, _) = stage.run(elastic((1000, 1024), (2000, 4096))).await;
    let plain = json!({"resources": {"cpu_milli": 333, "memory_mib": 777, "disk_mib": 64}});
    stage.run(plain).await;
    let headroom = json!({
        "resources": {"cpu_milli": 1000, "memory_mib": 1024},
        "headroom": {"cpu_milli": 500, "memory_mib": 2048},
    });
    stage.ask_with(&moving, headroom).await;
    // More than the node has: denied in part, which is pressure.
    let denied = stage.ask(&greedy, 16_000, 65_536).await;
    assert!(denied["capacity_pressure"]["cpu_milli"].as_u64() > Some(0), "{denied}");

    stage.find("n1", (300, 600), (900, 900)).await;

    stage.add_node("n2").await;
    let path = format!("/v1/instances/{moving}/migrate");
    let migration = server.post(operator, &path, &json!({})).await.expect(200).json();
    let report = json!({"id": migration["id"], "step": "copying", "copied_permille": 250});
    server.post(operator, "/v1/nodes/n1/migrations", &report).await.expect(200);
    stage
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dump_of_a_live_server_is_sound_and_becomes_a_fleet_that_plans_as_the_server_does() {
    let stage = busy().await;
    stage.server.get(&stage.operator, "/v1/debug/state").await.expect(403);
    let dump = stage.dump().await;
    let checked = check(&dump);
    assert_eq!(checked.violations, []);
    assert_eq!((checked.nodes, checked.claims, checked.unsteady), (2, 6, 0), "{checked:?}");
    assert!(dump.cursors.replica >= dump.cursors.ledger && dump.cursors.ledger > 0);
    assert_eq!(dump.in_flight.migrations, 1);
    let [migration] = dump.migrations.as_slice() else { panic!("{:?}", dump.migrations) };
    assert_eq!(migration.record.state, MigrationState::Copying);
    let roles: Vec<ClaimRole> = dump.claims.iter().map(|claim| claim.role).collect();
    assert_eq!(roles.iter().filter(|role| **role == ClaimRole::MigrationTarget).count(), 1);
    let account = dump.nodes[0].account.unwrap();
    assert!(account.cpu.buffer > 0 && account.cpu.capacity_pressure > 0, "{account:?}");
    assert!(account.cpu.pressure_accounted_for > 0, "{account:?}");
    let text = serde_json::to_string(&dump).unwrap();
    assert!(!text.contains("token") && !text.contains("secret_hash"), "no secrets in a dump");
    assert_eq!(Dump::read(&text).unwrap(), dump);

    // The fleet of the dump is the fleet of the server: same use, same answers.
    let mut engine = dump.engine().unwrap();
    for node in &dump.nodes {
        assert_eq!(engine.fleet().used(&node.facts.id), Some(node.room.used));
    }
    for cpu in [250, 1000, 6000] {
        let asked = json!({"resources": {"cpu_milli": cpu, "memory_mib": 512, "disk_mib": 64}});
        let there = stage.would_go(&asked).await;
        let amounts = Amounts::new(cpu, 512).with_disk(64);
        let request = InstanceRequest::new(InstanceId::from_u128(7), "acme", amounts);
        let placed = engine.place(&request, Timestamp(dump.at.as_second())).unwrap();
        assert_eq!(placed.node.as_str(), there, "{cpu}");
    }
    let catalog = dump.catalog();
    assert_eq!((catalog.nodes.len(), catalog.claims.len()), (2, 6));
    assert!(catalog.nodes.values().zip(&dump.nodes).all(|(one, other)| one.room == other.room));

    // Another version is not guessed at.
    let newer = text.replacen("\"berth_dump\":1", "\"berth_dump\":2", 1);
    assert!(Dump::read(&newer).unwrap_err().to_string().contains("schema 2"));
    stage.server.stop().await;
}

/// Breaks a rule.
type Tamper = fn(&mut Dump);

/// At least one tampering for each rule about nodes, claims and counters.
fn tamperings() -> Vec<(Invariant, Tamper)> {
    use Invariant as I;
    fn permit(dump: &mut Dump) -> &mut berth_engine::elastic::Permit {
        dump.claims.iter_mut().find_map(|claim| claim.permit.as_mut()).unwrap()
    }
    fn account(dump: &mut Dump) -> &mut berth_engine::elastic::Account {
        dump.nodes[0].account.as_mut().unwrap()
    }
    vec![
        (I::PolicyReadable, |dump| dump.policy.as_mut().unwrap().hash.push('x')),
        (I::PolicyReadable, |dump| dump.policy.as_mut().unwrap().body = json!({"scores": 1})),
        (I::NodeUsed, |dump| dump.nodes[0].room.used.cpu += 1),
        (I::NodeUsed, |dump| dump.nodes[0].room.used.instances += 1),
        (I::CatalogueUsed, |dump| {
            dump.nodes[0].copies.catalogue.as_mut().unwrap().used.memory += 1;
        }),
        (I::CatalogueUsed, |dump| {
            dump.nodes[1].copies.catalogue.as_mut().unwrap().claims.disk -= 1
        }),
        (I::ReplicaUsed, |dump| dump.nodes[0].copies.replica.as_mut().unwrap().bandwidth += 1),
        (I::NodeClasses, |dump| {
            dump.nodes[0].classes.insert("gpu".to_owned(), ClassDump { limit: 1, used: 1 });
        }),
        (I::NodeLimits, |dump| dump.nodes[0].room.limits.memory += 1),
        (I::AccountFrame, |dump| account(dump).cpu.system += 1),
        (I::AccountFrame, |dump| account(dump).memory.total += 1),
        (I::AccountSums, |dump| account(dump).cpu.buffer += 1),
        (I::AccountSums, |dump| account(dump).memory.capacity_pressure += 1),
        (I::AccountSums, |dump| account(dump).cpu.pressure_accounted_for += 1),
        (I::Watermark, |dump| account(dump).memory.watermark += 1),
        (I::Watermark, |dump| dump.nodes[0].watermark.cpu_permille -= 1),
        // Of a node where nothing was found and nothing changed: those have their reasons.
        (I::ReservedWithin, |dump| {
            dump.nodes[1].account.as_mut().unwrap().cpu.reserved += 1_000_000;
        }),
        (I::OneClaimPerRole, |dump| {
            let mut twin = dump.claims[0].clone();
            twin.node = NodeId::new("n2");
            dump.claims.push(twin);
        }),
        (I::MigrationRecord, |dump| dump.migrations.clear()),
        (I::MigrationClaims, |dump| {
            dump.claims.retain(|claim| claim.role != ClaimRole::MigrationTarget);
        }),
        (I::KnownNode, |dump| dump.claims[0].node = NodeId::new("ghost")),
        (I::Fence, |dump| dump.claims[0].fence += 1_000_000),
        (I::PermitWithin, |dump| {
            permit(dump).granted.cpu_milli = permit(dump).wanted.cpu_milli + 1
        }),
        (I::PermitWithin, |dump| permit(dump).buffer = Size::new(1_000_000, 0)),
        (I::PermitWithin, |dump| permit(dump).pressure.memory_mib += 1_000_000),
        (I::Charge, |dump| {
            let elastic = dump.claims.iter_mut().find(|claim| claim.permit.is_some());
            elastic.unwrap().charged.memory_mib += 1;
        }),
        (I::VolumeAttached, |dump| {
            let primary = dump.claims.iter_mut().find(|claim| claim.role == ClaimRole::Primary);
            let ties = primary.unwrap().ties.get_or_insert_default();
            ties.volumes.push("v".into());
        }),
        (I::GroupCounts, |dump| dump.groups[0].members.values_mut().for_each(|it| *it += 1)),
        (I::GroupCounts, |dump| dump.groups[0].members.clear()),
        (I::QuotaUsed, |dump| dump.quotas[0].used.cpu_milli -= 1),
    ]
}

/// The same for what only one claim may have, and for records that are documents.
fn record_tamperings() -> Vec<(Invariant, Tamper)> {
    use Invariant as I;
    vec![
        (I::SlotTaken, |dump| give_slot(dump, 0)),
        (I::SlotHolder, |dump| take_slot(dump, 0)),
        (I::SlotHandover, |dump| {
            (0..2).for_each(|claim| give_slot(dump, claim));
            take_slot(dump, 0);
        }),
        (I::PoolValues, |dump| {
            let (pool, value, holder) = ("p".to_owned(), "7".to_owned(), dump.claims[0].key());
            dump.pool_values.as_mut().unwrap().push(PoolValueDump { pool, value, holder });
        }),
        (I::TicketRecord, |dump| {
            let (document, id, state) = ("t".to_owned(), "t".to_owned(), TicketState::Granted);
            let ticket = TicketDump { document, id, state, placed: None };
            dump.tickets.as_mut().unwrap().push(ticket);
        }),
        (I::DrainRecord, |dump| dump.nodes[0].facts.state = NodeState::Draining),
        (I::VolumeMoveRecord, |dump| {
            let at = dump.at;
            let record = json!({
                "from": "n1", "to": "n2", "state": "copying", "since": at, "changed_at": at,
            });
            let record = serde_json::from_value(record).unwrap();
            dump.volume_moves.push(StoredRecord { id: "v".to_owned(), revision: 1, record });
        }),
        (I::VolumeMark, |dump| {
            dump.volume_marks.insert("v".to_owned(), NodeId::new("n2"));
        }),
        (I::VolumeHolder, |dump| {
            let (id, home) = ("v".to_owned(), NodeId::new("n1"));
            let attached_to = Some(InstanceId::from_u128(7));
            dump.volumes.push(Volume { id, tenant: None, home, attached_to });
        }),
    ]
}

fn slot() -> SlotKey {
    SlotKey { tenant: "acme".into(), workload: "web".into(), revision: 1, slot: 0 }
}

/// Has a claim say that it has a slot.
fn give_slot(dump: &mut Dump, claim: usize) {
    dump.claims[claim].ties.get_or_insert_default().slot = Some(slot());
}

/// Adds the row of a slot, which says that a claim has it.
fn take_slot(dump: &mut Dump, claim: usize) {
    let holder = dump.claims[claim].key();
    dump.slots.as_mut().unwrap().push(SlotDump { slot: slot(), holder });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_rule_catches_a_dump_that_was_tampered_with() {
    let stage = busy().await;
    let dump = stage.dump().await;
    assert_eq!(check(&dump).violations, []);
    let mut caught = BTreeSet::new();
    let tamperings: Vec<_> = tamperings().into_iter().chain(record_tamperings()).collect();
    for (number, (invariant, tamper)) in tamperings.into_iter().enumerate() {
        let mut forged = dump.clone();
        tamper(&mut forged);
        assert_ne!(forged, dump, "tampering {number} changes nothing");
        let found = check(&forged).violations;
        let of_rule = found.iter().find(|violation| violation.invariant == invariant);
        let violation = of_rule.unwrap_or_else(|| panic!("{number} {invariant:?}: {found:?}"));
        assert_ne!(violation.found, violation.expected);
        caught.insert(invariant);
    }
    assert_eq!(caught, BTreeSet::from(Invariant::ALL), "a rule without a tampering");
    stage.server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_over_its_limit_by_configuration_or_by_what_was_found_is_told_with_its_reason() {
    let stage = Stage::new(&["n1"]).await;
    stage.activate(CLASSES).await;
    stage.run(elastic((4000, 4096), (8000, 8192))).await;
    let kept = "[[elastic.nodes]]\nsystem = { cpu_milli = 14000, memory_mib = 1024 }\n";
    stage.activate(&format!("{CLASSES}{kept}")).await;
    stage.account_is("n1", |account| account["cpu"]["system"] == 14_000).await;
    let noted = async || {
        let checked = check(&stage.dump().await);
        assert_eq!(checked.violations, []);
        checked.notes.join("\n")
    };
    let note = noted().await;
    assert!(note.contains("4000") && note.contains("2000") && note.contains("policy"), "{note}");

    stage.roll_back().await;
    stage.account_is("n1", |account| account["cpu"]["system"] == 0).await;
    assert_eq!(noted().await, "");
    // Found instances count with all they may have been promised, whether there is room or not.
    stage.find("n1", (2000, 4096), (14_000, 8192)).await;
    assert_eq!(stage.account("n1").await["cpu"]["buffer"], 12_000);
    let note = noted().await;
    assert!(note.contains("18000") && note.contains("found there"), "{note}");
    stage.server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dump_under_load_is_sound_and_says_which_nodes_changed_meanwhile() {
    let stage = std::sync::Arc::new(Stage::new(&["n1", "n2", "n3"]).await);
    stage.activate(CLASSES).await;
    let (idle, home) = stage.run(elastic((1000, 1024), (2000, 4096))).await;
    stage.server.post(&stage.operator, &format!("/v1/nodes/{home}/cordon"), &json!({})).await;
    let busy: Vec<_> = (0..4)
        .map(|_| {
            let stage = std::sync::Arc::clone(&stage);
            tokio::spawn(async move {
                for _ in 0..40 {
                    let (id, _) = stage.run(elastic((250, 1024), (4000, 8192))).await;
                    stage.ask(&id, 1000, 2048).await;
                    stage.ask(&id, 500, 1024).await;
                    let gone = json!({"confirmed": true});
                    let path = format!("/v1/claims/{id}/release");
                    stage.server.post(&stage.operator, &path, &gone).await.expect(200);
                }
            })
        })
        .collect();
    let mut unsteady = 0;
    while busy.iter().any(|it| !it.is_finished()) {
        let dump = stage.dump().await;
        let checked = check(&dump);
        assert_eq!(checked.violations, [], "{:?} {:?}", dump.cursors, dump.in_flight);
        unsteady += checked.unsteady;
        let quiet = dump.nodes.iter().find(|node| node.facts.id.as_str() == home).unwrap();
        assert!(quiet.copies.steady, "{idle} alone is there, and stays as it is");
    }
    for it in busy {
        it.await.unwrap();
    }
    println!("nodes that changed while they were looked at: {unsteady}");
    let checked = check(&stage.dump().await);
    assert_eq!((checked.violations.len(), checked.unsteady), (0, 0), "{checked:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dump_waits_until_what_is_stored_was_taken_in() {
    let stage = Stage::new(&["n1"]).await;
    let (id, _) = stage.run(elastic((1000, 1024), (2000, 4096))).await;
    let control = &stage.server.control;
    // The thread that tells the server of its own commits is held up, in the answer to a first one.
    let (is_held, held) = tokio::sync::oneshot::channel();
    let (let_go, until_let_go) = std::sync::mpsc::channel::<()>();
    let (kind, note, body) = (Text::from("note"), Text::from("a"), "{}".to_owned());
    let first = Job {
        op: Op::PutDocument { kind, id: note, body, expect: Expect::Any },
        reply: Box::new(move |_| {
            let _ = is_held.send(());
            let _ = until_let_go.recv();
        }),
    };
    control.ledger.submit([first]);
    held.await.unwrap();
    let key = ClaimKey::primary(InstanceId(id.parse().unwrap()));
    let release = Op::Release(Release {
        request_id: Text::from("gone"),
        key,
        tenant: None,
        fence: None,
        confirmed: true,
        reason: Text::from("deleted"),
    });
    control.ledger.submit([Job { op: release, reply: Box::new(|_| {}) }]);
    wait_until("the release is stored", async || {
        control.read(move |ledger| ledger.claim(key)).await.unwrap().is_none()
    })
    .await;
    let taken = tokio::spawn({
        let control = std::sync::Arc::clone(control);
        async move { take(&control).await.unwrap() }
    });
    tokio::time::sleep(std::time::Duration::from_millis(300)).await;
    assert!(!taken.is_finished(), "the server has not been told of what is in the rows");
    drop(let_go);
    let dump = taken.await.unwrap();
    assert_eq!((check(&dump).violations, dump.claims.len()), (Vec::new(), 0));
    stage.server.stop().await;
}
