//! Removing a tenant: what is refused meanwhile, when it ends, and that nothing is left.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use berth_engine::affinity::Topology;
use berth_engine::{Amounts, Demand, GroupKind, InstanceId, NodeFacts, NodeId, Policy};

use super::{
    TestLedger, code, granted, group, key, new_database, on_every_database, release, request,
    server, volume,
};
use crate::backend::{Backend, Options};
use crate::ledger::Ledger;
use crate::model::{
    Adopt, Advance, Answer, Assumptions, ClaimRejection, EventBody, Expect, ForTenants,
    NodeVersion, Op, Outcome, Plan, PlannedClaim, Pool, Quota, RefusalReason, Scheduling,
    SchedulingFailure, SlotKey, StartTenantRemoval, Step, Text, UnmetDemand, Verdict, Workload,
};
use crate::schema::{Cell, TABLES};

fn start(tenant: &str, force: bool) -> Op {
    let [tenant, actor, origin] = [tenant, "ann", "10.0.0.9"].map(Text::from);
    Op::StartTenantRemoval(Box::new(StartTenantRemoval { tenant, force, actor, origin }))
}

fn end(tenant: &str, quarantine_s: i64) -> Op {
    Op::EndTenantRemoval { tenant: Text::from(tenant), quarantine_s }
}

fn workload(name: &str) -> Workload {
    let [tenant, name, body] = ["acme", name, "{}"].map(str::to_owned);
    Workload { tenant, name, revision: 1, replicas: 1, body }
}

fn demand() -> Op {
    let [tenant, code, spec] = ["acme", "no_capacity_memory", "{}"].map(str::to_owned);
    Op::Demand(UnmetDemand { tenant, code, spec, times: 1, first_at: 0, last_at: 0 })
}

fn failing() -> Op {
    let [tenant, workload, code, message] = ["acme", "web", "no_room", "no room"].map(Text::from);
    let failing = Some(SchedulingFailure { code, message, body: "{\"code\":\"no_room\"}".into() });
    Op::SetScheduling(Box::new(Scheduling { tenant, env: None, workload, failing }))
}

fn document(id: &str) -> Op {
    let put = Op::PutDocument {
        kind: Text::from("ticket"),
        id: Text::from(id),
        body: "{\"tenant\":\"acme\"}".to_owned(),
        expect: Expect::Absent,
    };
    Op::ForTenants(Box::new(ForTenants { tenants: vec![Text::from("acme")], op: put }))
}

fn own_pool() -> Pool {
    Pool { tenant: Some(Text::from("acme")), ..Pool::parse("acme-p", "10.0.0.0/24").unwrap() }
}

fn secrets(version: Option<&str>) -> Op {
    let (tenant, env) = (Some(Text::from("acme")), Text::from("prod"));
    Op::PutSecrets { tenant, env, version: version.map(Text::from) }
}

/// Everything that can be made for a tenant, apart from claims.
fn definitions() -> Vec<Op> {
    let mut own_group = group("acme-g", GroupKind::Apart, Topology::Node);
    own_group.tenant = Some("acme".to_owned());
    let mut own_volume = volume("acme-v", "n1");
    own_volume.tenant = Some("acme".to_owned());
    let quota = Quota { instances: Some(50), ..Quota::default() };
    vec![
        Op::PutGroup(own_group),
        Op::PutVolume(own_volume),
        Op::PutPool(own_pool()),
        Op::PutQuota { tenant: Text::from("acme"), quota },
        Op::PutWorkload { workload: workload("web"), expect: Expect::Absent },
        secrets(Some("v1")),
        failing(),
        demand(),
        document("t1"),
    ]
}

/// Instance 1 of acme, with something of each kind.
fn rich_claim(test: &TestLedger) -> PlannedClaim {
    let mut request = request(1);
    request.groups.push("acme-g".to_owned());
    request.volumes.push("acme-v".to_owned());
    request.workload = Some("web".to_owned());
    let mut planned = test.planned(request, "n1", "z", "r");
    planned.pools.push(Text::from("acme-p"));
    let [tenant, workload] = ["acme", "web"].map(Text::from);
    planned.slot = Some(SlotKey { tenant, workload, revision: 1, slot: 0 });
    planned
}

/// Rows that mention a tenant in any cell, but for the records of what happened.
fn mentions(rows: &[(usize, Vec<Cell>)], tenant: &str) -> Vec<String> {
    let records = ["event_segment", "audit", "receipt"];
    let names = |cell: &Cell| match cell {
        Cell::Text(text) => text.contains(tenant),
        Cell::Bytes(bytes) => String::from_utf8_lossy(bytes).contains(tenant),
        Cell::Null | Cell::Int(_) => false,
    };
    let rows = rows.iter().filter(|(table, _)| !records.contains(&TABLES[*table].table));
    let rows = rows.filter(|(_, cells)| cells.iter().any(names));
    rows.map(|(table, cells)| format!("{}: {cells:?}", TABLES[*table].table)).collect()
}

fn all_rows(tables: &mut dyn crate::database::Database) -> Vec<(usize, Vec<Cell>)> {
    let mut rows = Vec::new();
    let take = &mut |table, cells| {
        rows.push((table, cells));
        Ok(())
    };
    tables.dump(&|_| true, take).unwrap();
    rows
}

fn remove_definitions(test: &mut TestLedger) {
    let [tenant, name] = ["acme", "web"].map(Text::from);
    test.done(Op::RemoveWorkload { tenant, name, expect: Expect::Any });
    test.done(Op::RemoveGroup(Text::from("acme-g")));
    test.done(Op::RemoveVolume(Text::from("acme-v")));
    test.done(Op::RemovePool(Text::from("acme-p")));
    test.done(secrets(None));
    for (kind, id) in [("ticket", "t1"), ("scheduling", "acme\nweb")] {
        let (kind, id) = (Text::from(kind), Text::from(id));
        test.done(Op::RemoveDocument { kind, id, expect: Expect::Any });
    }
    while test.tables.forget_tenant("acme", 1).unwrap() > 0 {}
}

#[test]
fn a_removed_tenant_leaves_no_row_behind() {
    on_every_database(|test| {
        test.node("n1", "z", "r");
        definitions().into_iter().for_each(|op| test.done(op));
        let planned = rich_claim(test);
        granted(&test.commit(vec![planned]));
        // Another tenant whose name begins alike keeps everything.
        let mut other = request(2);
        other.tenant = "other".to_owned();
        let planned = test.planned(other, "n1", "z", "r");
        let plan = Plan::new("other-1", "other", vec![planned]);
        granted(&test.commit_plan(plan));
        let held = test.tables.tenant_holdings("acme").unwrap();
        let counts = [&held.workloads, &held.groups, &held.volumes, &held.pools, &held.secrets];
        assert_eq!((held.claims.len(), counts.map(Vec::len), held.has_quota), (1, [1; 5], true));
        assert_eq!((held.answers, held.demand, held.removal), (1, 1, None));

        test.done(start("acme", false));
        assert_eq!(test.tables.quotas().unwrap(), []);
        test.release(1).unwrap();
        remove_definitions(test);
        test.done(end("acme", 0));

        assert_eq!(mentions(&all_rows(&mut *test.tables), "acme"), [""; 0]);
        assert!(!mentions(&all_rows(&mut *test.tables), "other").is_empty());
        assert_eq!(test.tables.tenant_holdings("acme").unwrap(), Default::default());
        assert_eq!(test.tables.tenant_removals().unwrap(), []);
        let told = test.events().into_iter().filter_map(|event| match event.body {
            EventBody::TenantRemoving { tenant } => Some(format!("{tenant} goes")),
            EventBody::TenantRemoved { tenant } => Some(format!("{tenant} is gone")),
            _ => None,
        });
        assert_eq!(told.collect::<Vec<_>>(), ["acme goes", "acme is gone"]);
        test.assert_exact();
    });
}

#[test]
fn nothing_is_made_for_a_tenant_that_is_being_removed() {
    on_every_database(|test| {
        test.node("n1", "z", "r");
        test.done(start("acme", false));
        let removing = Answer::Outcome(Outcome::TenantRemoving(Text::from("acme")));
        for op in definitions() {
            assert_eq!(test.one(op.clone()), removing, "{op:?}");
        }
        let planned = test.planned(request(1), "n1", "z", "r");
        assert_eq!(code(&test.commit(vec![planned.clone()])), "tenant_removing");
        let plan = test.plan(vec![planned]);
        match test.one(Op::DryRun(plan, Assumptions::default())) {
            Answer::Plan(verdict) => assert_eq!(code(&verdict), "tenant_removing"),
            other => panic!("{other:?}"),
        }
        let found = Arc::new(request(7));
        let demand = Demand::new(&found, &test.policy);
        let (request_id, node) = (Text::from("adopt"), NodeId::new("n1"));
        let adopt = Op::Adopt(Adopt { request_id, request: found, node, demand });
        let refused = ClaimRejection::Refused(RefusalReason::TenantRemoving(Text::from("acme")));
        assert_eq!(test.claim_answer(adopt), Err(refused));
        assert_eq!(test.tables.tenant_holdings("acme").unwrap().claims, []);

        test.done(end("acme", 0));
        definitions().into_iter().for_each(|op| test.done(op));
        let planned = test.planned(request(1), "n1", "z", "r");
        granted(&test.commit(vec![planned]));
    });
}

#[test]
fn what_is_there_when_a_removal_begins_can_still_be_ended() {
    on_every_database(|test| {
        test.node("n1", "z", "r");
        definitions().into_iter().for_each(|op| test.done(op));
        let planned = rich_claim(test);
        let fence = granted(&test.commit(vec![planned])).claims[0].fence;
        test.done(start("acme", false));
        // A workload is told to end, an agent that was on its way takes its instance up.
        let changed = Workload { revision: 2, replicas: 0, ..workload("web") };
        test.done(Op::PutWorkload { workload: changed, expect: Expect::Revision(1) });
        for step in [Step::Bind, Step::Activate] {
            let advance = Advance { key: key(1), tenant: None, fence, step };
            test.claim_answer(Op::Advance(advance)).unwrap();
        }
        let recovered = Scheduling {
            tenant: Text::from("acme"),
            env: None,
            workload: Text::from("web"),
            failing: None,
        };
        test.done(Op::SetScheduling(Box::new(recovered)));
        test.done(secrets(None));
        // The quota's row is what marks the removal: it is not removed as a quota.
        let unchanged = Answer::Outcome(Outcome::Unchanged);
        assert_eq!(test.one(Op::RemoveQuota(Text::from("acme"))), unchanged);
        assert!(matches!(test.one(Op::ReconcileTenant(Text::from("acme"))), Answer::Drifts(_)));
        assert!(test.tables.tenant_holdings("acme").unwrap().removal.is_some());
    });
}

#[test]
fn a_removal_ends_only_when_nothing_is_held_and_its_quarantine_is_over() {
    on_every_database(|test| {
        test.node("n1", "z", "r");
        let unchanged = Answer::Outcome(Outcome::Unchanged);
        assert_eq!(test.one(end("acme", 0)), unchanged, "it is not being removed");
        definitions().into_iter().for_each(|op| test.done(op));
        let planned = rich_claim(test);
        granted(&test.commit(vec![planned]));
        test.done(start("acme", false));
        assert_eq!(test.one(start("acme", false)), unchanged);
        let since = test.tables.tenant_removals().unwrap()[0].1.since;
        test.done(start("acme", true));
        assert_eq!(test.one(start("acme", false)), unchanged, "force stays");
        let removal = test.tables.tenant_removals().unwrap().remove(0).1;
        assert_eq!((removal.since, removal.force), (since, true));
        let impossible = |answer: Answer, why: &str| match answer {
            Answer::Outcome(Outcome::Impossible(text)) => assert!(text.contains(why), "{text}"),
            other => panic!("{other:?}"),
        };
        impossible(test.one(end("acme", 0)), "still holds");
        test.release(1).unwrap();
        impossible(test.one(end("acme", 0)), "still holds");
        remove_definitions(test);
        impossible(test.one(end("acme", 3600)), "3600 seconds");
        assert!(!mentions(&all_rows(&mut *test.tables), "acme").is_empty());
        test.done(end("acme", 0));
        assert_eq!(test.one(end("acme", 0)), unchanged);
    });
}

/// Two servers that place for acme until they are refused or told to stop, while acme is removed.
/// Returns the rows that are left of it.
fn rows_left_after_a_race(backend: &Backend, is_guarded: bool) -> Vec<String> {
    let servers: Vec<Ledger> =
        (0..2).map(|_| Ledger::open(backend.clone(), Options::default()).unwrap()).collect();
    let ledger = Ledger::open(backend.clone(), Options::default()).unwrap();
    let facts = NodeFacts::new("n1", Amounts::new(1_000_000, 64_000_000).with_disk(1 << 30));
    ledger.administer(Op::put_node(facts)).unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let placers: Vec<_> = (1..)
        .zip(servers.clone())
        .map(|(number, server)| {
            let stop = Arc::clone(&stop);
            thread::spawn(move || place_until_refused(&server, number << 64, &stop))
        })
        .collect();
    while ledger.tenant_holdings("acme").unwrap().claims.len() < 20 {
        thread::yield_now();
    }
    if is_guarded {
        ledger.administer(start("acme", false)).unwrap();
    }
    // Once: whatever comes after it would stay.
    for (n, claim) in ledger.tenant_holdings("acme").unwrap().claims.iter().enumerate() {
        let release = release(&format!("release-{n}"), claim.key.instance.0.as_u128());
        ledger.release(release).unwrap().unwrap();
    }
    stop.store(!is_guarded, Ordering::Release);
    placers.into_iter().for_each(|placer| placer.join().unwrap());
    let acme = Text::from("acme");
    let held = ledger.tenant_holdings("acme").unwrap();
    assert_eq!(ledger.remove_tenant_resources(&acme, &held).unwrap(), []);
    if is_guarded {
        assert_eq!(ledger.administer(end("acme", 0)).unwrap(), Outcome::Done);
    }
    let mut tables = ledger.open_database().unwrap();
    mentions(&all_rows(&mut *tables), "acme")
}

fn place_until_refused(ledger: &Ledger, first: u128, stop: &AtomicBool) {
    let policy = Policy::builtin("balanced").unwrap();
    for instance in first.. {
        if stop.load(Ordering::Acquire) {
            return;
        }
        let mut request = request(1);
        request.id = InstanceId::from_u128(instance);
        let version = NodeVersion { constraint_gen: 1, ..NodeVersion::default() };
        let planned = PlannedClaim::new(Arc::new(request), &policy, NodeId::new("n1"), version);
        let plan = Plan::new(&format!("r-{instance}"), "acme", vec![planned]);
        match ledger.commit(plan).unwrap() {
            // The node is full until some are released.
            Verdict::Granted(_) | Verdict::Conflict(_) => {}
            Verdict::Refused(RefusalReason::TenantRemoving(_)) => return,
            other => panic!("{other:?}"),
        }
    }
}

fn databases(folder: &tempfile::TempDir, name: &str) -> Vec<Backend> {
    let postgres = new_database(&server());
    vec![Backend::Sqlite(folder.path().join(name)), Backend::Postgres(postgres)]
}

#[test]
fn placements_that_race_with_a_removal_leave_nothing_behind() {
    let (folder, _server) = (tempfile::tempdir().unwrap(), server());
    for backend in databases(&folder, "guarded.db") {
        assert_eq!(rows_left_after_a_race(&backend, true), [""; 0], "{backend:?}");
    }
}

#[test]
fn without_the_mark_of_the_removal_such_placements_would_stay() {
    let (folder, _server) = (tempfile::tempdir().unwrap(), server());
    for backend in databases(&folder, "unguarded.db") {
        assert!(!rows_left_after_a_race(&backend, false).is_empty(), "{backend:?}");
    }
}
