//! A server ends leases that ran out and corrects counters by itself, and a deleted tenant leaves
//! nothing behind.

#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

use std::sync::Arc;
use std::time::Duration;

use berth_control::{MaintenanceConfig, MaintenanceWorker};
use berth_engine::affinity::{Strength, Topology};
use berth_engine::{
    Amounts, Group, GroupKind, InstanceId, InstanceRequest, NodeFacts, NodeId, Policy,
};
use berth_ledger::{
    Backend, ClaimKey, EventBody, Expect, Ledger, NodeVersion, Op, Options, Outcome, Plan,
    PlannedClaim, Pool, Quota, SlotKey, SnapshotItem, StartTenantRemoval, Text, Verdict, Workload,
};

fn ledger(folder: &tempfile::TempDir) -> Ledger {
    let backend = Backend::Sqlite(folder.path().join("ledger.db"));
    let ledger = Ledger::open(backend, Options::default()).unwrap();
    let facts = NodeFacts::new("n1", Amounts::new(8000, 8192).with_disk(100_000));
    ledger.administer(Op::put_node(facts)).unwrap();
    ledger
}

fn plan(id: u128, dress: impl FnOnce(&mut InstanceRequest, &mut PlannedClaim)) -> Plan {
    let amounts = Amounts::new(1000, 1024).with_disk(1);
    let mut request = InstanceRequest::new(InstanceId::from_u128(id), "acme", amounts);
    let policy = Policy::builtin("balanced").unwrap();
    let seen = NodeVersion { constraint_gen: 1, ..NodeVersion::default() };
    let node = NodeId::new("n1");
    let mut claim = PlannedClaim::new(Arc::new(request.clone()), &policy, node.clone(), seen);
    dress(&mut request, &mut claim);
    let dressed = PlannedClaim::new(Arc::new(request), &policy, node, claim.node_version.clone());
    let claim = PlannedClaim { pools: claim.pools, slot: claim.slot, ..dressed };
    Plan::new(&id.to_string(), "acme", vec![claim])
}

fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    // A minute, for a machine that is busy with other tests.
    for _ in 0..3000 {
        if done() {
            return;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    panic!("still waiting after a minute: {what}");
}

#[test]
fn a_lease_that_ran_out_is_ended_and_a_wrong_counter_corrected() {
    let folder = tempfile::tempdir().unwrap();
    let ledger = ledger(&folder);
    let mut unbound = plan(1, |_, _| {});
    unbound.lease_s = 0;
    assert!(matches!(ledger.commit(unbound).unwrap(), Verdict::Granted(_)));
    assert!(matches!(ledger.commit(plan(2, |_, _| {})).unwrap(), Verdict::Granted(_)));
    let hand = rusqlite::Connection::open(folder.path().join("ledger.db")).unwrap();
    hand.execute("UPDATE node_room SET used_memory = used_memory + 7", []).unwrap();
    let tick = Duration::from_millis(100);
    let maintenance = MaintenanceConfig {
        reap_every: tick,
        reconcile_every: tick,
        ..MaintenanceConfig::default()
    };
    let _worker = MaintenanceWorker::start(ledger.clone(), maintenance).unwrap();
    wait_until("the reaper", || {
        ledger.claim(ClaimKey::primary(InstanceId::from_u128(1))).unwrap().is_none()
    });
    wait_until("the reconciler", || ledger.stats().drifts == 1);
    let events = ledger.events_after(0, 100).unwrap().events;
    let drift = events.iter().find_map(|event| match &event.body {
        EventBody::Drift { row, amounts } => Some((row.clone(), amounts["memory"])),
        _ => None,
    });
    assert_eq!(drift, Some(("node n1".to_owned(), 7)));
    assert!(ledger.claim(ClaimKey::primary(InstanceId::from_u128(2))).unwrap().is_some());
}

#[test]
fn a_deleted_tenant_leaves_no_row_that_counts() {
    let folder = tempfile::tempdir().unwrap();
    let ledger = ledger(&folder);
    let group = Group {
        id: "g".to_owned(),
        tenant: Some("acme".to_owned()),
        kind: GroupKind::Together,
        strength: Strength::Hard,
        topology: Topology::Node,
        max_per_domain: None,
    };
    let (tenant, name) = ("acme".to_owned(), "web".to_owned());
    let workload = Workload { tenant, name, revision: 1, replicas: 2, body: "{}".to_owned() };
    let quota = Quota { instances: Some(9), ..Quota::default() };
    for op in [
        Op::PutGroup(group),
        Op::PutWorkload { workload, expect: Expect::Absent },
        Op::PutPool(Pool::parse("overlay", "fd00:7::/64").unwrap()),
        Op::PutQuota { tenant: Text::from("acme"), quota },
    ] {
        ledger.administer(op).unwrap();
    }
    for id in 1..=3 {
        let verdict = ledger.commit(plan(id, |request, claim| {
            request.groups = vec!["g".to_owned()];
            request.workload = Some("web".to_owned());
            claim.pools = vec![Text::from("overlay")];
            let (tenant, workload) = (Text::from("acme"), Text::from("web"));
            let slot = i64::try_from(id).unwrap();
            claim.slot = Some(SlotKey { tenant, workload, revision: 1, slot });
        }));
        assert!(matches!(verdict.unwrap(), Verdict::Granted(_)));
    }
    let [tenant, actor, origin] = ["acme", "ann", ""].map(Text::from);
    let start = StartTenantRemoval { tenant: tenant.clone(), force: true, actor, origin };
    ledger.administer(Op::StartTenantRemoval(Box::new(start))).unwrap();
    assert_eq!(ledger.delete_claims("acme", None, "tenant_removed").unwrap(), 3);
    let held = ledger.tenant_holdings("acme").unwrap();
    assert_eq!(ledger.remove_tenant_resources(&tenant, &held).unwrap(), []);
    let end = Op::EndTenantRemoval { tenant, quarantine_s: 0 };
    assert_eq!(ledger.administer(end).unwrap(), Outcome::Done);
    let hand = rusqlite::Connection::open(folder.path().join("ledger.db")).unwrap();
    let count = |sql: &str| hand.query_row(sql, [], |row| row.get::<_, i64>(0)).unwrap();
    for table in [
        "claim",
        "placement_group",
        "placement_group_domain",
        "placement_group_member",
        "slot",
        "tenant",
        "workload",
    ] {
        assert_eq!(count(&format!("SELECT count(*) FROM {table}")), 0, "{table}");
    }
    assert_eq!(count("SELECT count(*) FROM pool_value WHERE released_at IS NULL"), 0);
    assert_eq!(count("SELECT sum(used_memory + used_instances) FROM node_room"), 0);
    let mut left = 0;
    ledger
        .snapshot(|item| {
            left += u32::from(!matches!(item, SnapshotItem::Node(..) | SnapshotItem::Pool(_)));
            Ok(())
        })
        .unwrap();
    assert_eq!(left, 0);
}
