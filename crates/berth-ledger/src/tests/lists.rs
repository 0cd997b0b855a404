//! What can be looked up, and changes that expect to find what was looked up.

use berth_engine::{
    Amounts, FactLayer, InstanceId, NodeFacts, NodeId, NodeState, Timestamp, Volume,
};

use super::{TestLedger, code, granted, on_every_database, request, volume};
use crate::database::SnapshotItem;
use crate::model::{
    Advance, Answer, ClaimKey, EventBody, Expect, Op, Outcome, Plan, Pool, Quota, Resize, Step,
    TenantUse, Text, Workload,
};

fn stale(current: Option<i64>) -> Answer {
    Answer::Outcome(Outcome::Stale { current })
}

fn node_now(test: &mut TestLedger, id: &str) -> Option<(NodeFacts, i64)> {
    let found = test.tables.node(&NodeId::new(id)).unwrap();
    found.map(|(facts, node_version)| (facts, node_version.constraint_gen))
}

#[test]
fn a_node_changes_only_in_the_generation_that_was_expected() {
    on_every_database(|test| {
        let node = NodeId::new("n1");
        let put = |cpu: u32, expect| {
            let mut facts = NodeFacts::new("n1", Amounts::new(cpu, 1024));
            facts.heartbeat_at = Timestamp(i64::from(cpu));
            Op::PutNode { facts: Box::new(facts), layer: FactLayer::Reported, expect }
        };
        let state = |state, expect| Op::SetNodeState { node: NodeId::new("n1"), state, expect };
        assert_eq!(test.one(put(1000, Some(1))), stale(None));
        test.done(put(1000, Some(0)));
        assert_eq!(test.one(put(9000, Some(0))), stale(Some(1)));
        let (facts, generation) = node_now(test, "n1").unwrap();
        assert_eq!((facts.heartbeat_at, generation), (Timestamp(1000), 1));
        test.done(put(2000, Some(1)));
        test.done(state(NodeState::Cordoned, Some(2)));
        assert_eq!(test.one(state(NodeState::Active, Some(2))), stale(Some(3)));
        let remove = |expect| Op::RemoveNode { node: node.clone(), expect };
        assert_eq!(test.one(remove(Some(2))), stale(Some(3)));
        let (facts, generation) = node_now(test, "n1").unwrap();
        assert_eq!((facts.state, generation), (NodeState::Cordoned, 3));
        test.done(remove(Some(3)));
        assert_eq!(node_now(test, "n1"), None);
        assert_eq!(test.one(remove(Some(3))), stale(None));
        assert_eq!(test.one(remove(None)), Answer::Outcome(Outcome::Unchanged));
        assert_eq!(test.events().len(), 4);
    });
}

#[test]
fn a_workload_changes_only_in_the_revision_that_was_expected() {
    on_every_database(|test| {
        let put = |tenant: &str, revision, expect| {
            let (tenant, name) = (tenant.to_owned(), "web".to_owned());
            let workload = Workload { tenant, name, revision, replicas: 2, body: "{}".to_owned() };
            Op::PutWorkload { workload, expect }
        };
        assert_eq!(test.one(put("acme", 1, Expect::Revision(1))), stale(None));
        test.done(put("acme", 1, Expect::Absent));
        assert_eq!(test.one(put("acme", 2, Expect::Absent)), stale(Some(1)));
        test.done(put("acme", 7, Expect::Revision(1)));
        assert_eq!(test.one(put("acme", 8, Expect::Revision(1))), stale(Some(7)));
        test.done(put("Zeta", 1, Expect::Any));
        let stored = test.tables.workloads().unwrap();
        let told: Vec<(&str, i64)> =
            stored.iter().map(|workload| (workload.tenant.as_str(), workload.revision)).collect();
        assert_eq!(told, [("Zeta", 1), ("acme", 7)]);
    });
}

#[test]
fn pools_and_quotas_say_what_is_used_of_them() {
    on_every_database(|test| {
        test.node("n1", "z", "r");
        test.done(Op::PutPool(Pool::parse("p", "10.0.0.0/24").unwrap()));
        test.done(Op::PutPool(Pool::parse("P", "1-9").unwrap()));
        let quota = Quota { instances: Some(5), ..Quota::default() };
        test.done(Op::PutQuota { tenant: Text::from("acme"), quota });
        for instance in 1..=3 {
            let mut planned = test.planned(request(instance), "n1", "z", "r");
            planned.pools.push(Text::from("p"));
            granted(&test.commit(vec![planned]));
        }
        test.release(2).unwrap();
        let pools = test.tables.pools().unwrap();
        let used: Vec<(&str, i64)> = pools.iter().map(|(pool, used)| (&*pool.id, *used)).collect();
        assert_eq!(used, [("P", 0), ("p", 2)]);
        let quotas = test.tables.quotas().unwrap();
        assert_eq!((&*quotas[0].tenant, quotas[0].quota), ("acme", quota));
        let used = TenantUse { cpu_milli: 2000, memory_mib: 2048, disk_mib: 8192, instances: 2 };
        assert_eq!((quotas.len(), quotas[0].used), (1, used));
    });
}

#[test]
fn claims_are_read_page_by_page() {
    on_every_database(|test| {
        test.node("n1", "z", "r");
        for instance in [3, 1, u128::MAX, 2] {
            let planned = test.planned(request(instance), "n1", "z", "r");
            granted(&test.commit(vec![planned]));
        }
        let mut page = |after: Option<ClaimKey>| -> Vec<ClaimKey> {
            let found = test.tables.claims_page(after, 2).unwrap();
            found.into_iter().map(|claim| claim.key).collect()
        };
        let key = |n: u128| ClaimKey::primary(InstanceId::from_u128(n));
        assert_eq!(page(None), [key(1), key(2)]);
        assert_eq!(page(Some(key(2))), [key(3), key(u128::MAX)]);
        assert_eq!(page(Some(ClaimKey::target(InstanceId::from_u128(2)))).len(), 2);
        assert_eq!(page(Some(key(u128::MAX))), []);
    });
}

#[test]
fn a_volume_of_another_tenant_is_not_there() {
    on_every_database(|test| {
        test.node("n1", "z", "r");
        let owned = |tenant: &str| {
            Op::PutVolume(Volume { tenant: Some(tenant.to_owned()), ..volume("v", "n1") })
        };
        test.done(owned("other"));
        let mut asks = request(1);
        asks.volumes.push("v".to_owned());
        let planned = test.planned(asks.clone(), "n1", "z", "r");
        assert_eq!(code(&test.commit(vec![planned])), "unknown_volume");
        test.done(owned("acme"));
        let planned = test.planned(asks, "n1", "z", "r");
        granted(&test.commit(vec![planned]));
        let answer = test.one(owned("other"));
        assert!(matches!(answer, Answer::Outcome(Outcome::Impossible(_))), "{answer:?}");
        assert_eq!(test.one(owned("acme")), Answer::Outcome(Outcome::Unchanged));
        let (_, items) = test.snapshot();
        let volumes: Vec<Volume> = items
            .into_iter()
            .filter_map(|item| match item {
                SnapshotItem::Volume(volume) => Some(volume),
                _ => None,
            })
            .collect();
        let used_by = Some(InstanceId::from_u128(1));
        let expected =
            Volume { tenant: Some("acme".to_owned()), attached_to: used_by, ..volume("v", "n1") };
        assert_eq!(volumes, [expected]);
    });
}

#[test]
fn events_of_a_claims_life_name_its_owner_and_old_ones_are_read_without() {
    on_every_database(|test| {
        test.node("n1", "z", "r");
        let planned = test.planned(request(1), "n1", "z", "r");
        let mut plan = Plan::new("p", "acme", vec![planned]);
        plan.lease_s = 0;
        test.one(Op::Commit(plan));
        test.one(Op::Reap(NodeId::new("n1")));
        let planned = test.planned(request(2), "n1", "z", "r");
        let fence = granted(&test.commit(vec![planned])).claims[0].fence;
        let key = ClaimKey::primary(InstanceId::from_u128(2));
        let step = Advance { key, tenant: None, fence, step: Step::Bind };
        test.claim_answer(Op::Advance(step)).unwrap();
        let resize = Resize {
            request_id: Text::from("s"),
            key,
            tenant: None,
            fence: None,
            amounts: Amounts::new(500, 512),
            cpu_hard: false,
            host_cpu_milli: None,
        };
        test.claim_answer(Op::Resize(resize)).unwrap();
        let tenants: Vec<String> = test
            .events()
            .iter()
            .filter_map(|event| match &event.body {
                EventBody::State { tenant, .. }
                | EventBody::Resized { tenant, .. }
                | EventBody::LeaseExpired { tenant, .. } => Some(tenant.to_string()),
                _ => None,
            })
            .collect();
        assert_eq!(tenants, ["acme", "acme", "acme"]);
    });
    let old = r#"{"kind":"lease.expired","instance_id":"00000000-0000-0000-0000-000000000001",
        "node_id":"n","expired_at":1}"#;
    let read: EventBody = serde_json::from_str(old).unwrap();
    assert!(matches!(read, EventBody::LeaseExpired { tenant, .. } if tenant.is_empty()));
}
