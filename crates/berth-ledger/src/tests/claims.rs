//! What becomes of plans and claims, the same on every database.

use berth_engine::affinity::Topology;
use berth_engine::{Amounts, Demand, GroupKind, InstanceId, NodeId, NodeState};

use super::{TestLedger, code, granted, group, key, on_every_database, release, request, volume};
use crate::model::{
    Adopt, Advance, Answer, Assumptions, ClaimState, Drift, Move, Op, Outcome, Plan, Pool, Quota,
    Resize, SlotKey, Step, Text, UnmetDemand, Verdict, Workload,
};

fn on_node(test: &TestLedger, instance: u128, node: &str) -> crate::model::PlannedClaim {
    test.planned(request(instance), node, "z", "r")
}

#[test]
fn a_plan_is_granted_whole_until_the_node_is_full() {
    on_every_database(|test| {
        test.node("n1", "z", "r");
        let claims = (1..=8).map(|instance| on_node(test, instance, "n1")).collect();
        let verdict = test.commit(claims);
        assert_eq!(granted(&verdict).claims.len(), 8);
        let claim = test.claim(8).unwrap();
        assert_eq!((claim.node.as_str(), claim.state), ("n1", ClaimState::Held));
        assert!(claim.lease_until.unwrap() > claim.created_at);
        // Memory: 16 of them fit; a plan of 9 more does not, and claims nothing.
        let claims = (9..=17).map(|instance| on_node(test, instance, "n1")).collect();
        let verdict = test.commit(claims);
        assert_eq!(code(&verdict), "no_capacity_memory", "{verdict:?}");
        assert!(test.claim(9).is_none());
        let claims = (9..=16).map(|instance| on_node(test, instance, "n1")).collect();
        granted(&test.commit(claims));
        test.assert_exact();
        assert_eq!(test.retries.guards, 0);
    });
}

#[test]
fn a_plan_on_old_knowledge_is_a_conflict() {
    on_every_database(|test| {
        test.node("n1", "z", "r");
        let cordon = |state| Op::SetNodeState { node: NodeId::new("n1"), state, expect: None };
        test.done(cordon(NodeState::Cordoned));
        let claims = vec![on_node(test, 1, "n1")];
        assert_eq!(code(&test.commit(claims)), "node_changed");
        test.done(cordon(NodeState::Active));
        let mut planned = on_node(test, 1, "n1");
        planned.node_version.constraint_gen = 3;
        granted(&test.commit(vec![planned]));
        let claims = vec![on_node(test, 2, "unknown")];
        assert_eq!(code(&test.commit(claims)), "unknown_node");
        let remove = Op::RemoveNode { node: NodeId::new("n1"), expect: None };
        let answer = test.one(remove.clone());
        assert!(matches!(answer, Answer::Outcome(Outcome::Impossible(_))), "{answer:?}");
        test.release(1).unwrap();
        test.done(remove);
        assert!(test.snapshot().1.is_empty());
    });
}

#[test]
fn a_request_id_gets_its_first_answer_again() {
    on_every_database(|test| {
        test.node("n1", "z", "r");
        let claims = vec![on_node(test, 1, "n1")];
        let plan = test.plan(claims);
        let first = test.commit_plan(plan.clone());
        assert_eq!(test.commit_plan(plan.clone()), first);
        let mut other = plan;
        other.claims = vec![on_node(test, 2, "n1")];
        other.body_hash = other.hash_of_body();
        assert_eq!(code(&test.commit_plan(other)), "request_id_reused");
        let gone = test.claim_answer(Op::Release(release("r", 1))).unwrap();
        assert_eq!(gone.state, None);
        assert_eq!(test.claim_answer(Op::Release(release("r", 1))), Ok(gone));
        let conflicts = test.claim_answer(Op::Release(release("other", 1))).unwrap_err();
        assert_eq!(conflicts.code(), "no_claim");
        test.assert_exact();
    });
}

#[test]
fn an_instance_is_placed_once() {
    on_every_database(|test| {
        test.node("n1", "z", "r");
        test.node("n2", "z", "r");
        let claims = vec![on_node(test, 1, "n1")];
        granted(&test.commit(claims));
        let claims = vec![on_node(test, 1, "n2")];
        assert_eq!(code(&test.commit(claims)), "already_placed");
        test.assert_exact();
    });
}

#[test]
fn members_of_a_group_stay_apart_or_together_and_may_leave_and_come_back() {
    on_every_database(|test| {
        for (node, rack) in [("n1", "a"), ("n2", "a"), ("n3", "b")] {
            test.node(node, "z", rack);
        }
        test.done(Op::PutGroup(group("apart", GroupKind::Apart, Topology::Rack)));
        test.done(Op::PutGroup(group("near", GroupKind::Together, Topology::Rack)));
        let member = |test: &TestLedger, instance, node: &str, rack: &str, group: &str| {
            let mut request = request(instance);
            request.groups.push(group.to_owned());
            vec![test.planned(request, node, "z", rack)]
        };
        for (instance, node, rack, group, expected) in [
            (1, "n1", "a", "apart", "granted"),
            (2, "n2", "a", "apart", "group_no_node"),
            (2, "n3", "b", "apart", "granted"),
            (3, "n3", "b", "near", "granted"),
            (4, "n1", "a", "near", "group_no_node"),
            (4, "n3", "b", "near", "granted"),
        ] {
            let claims = member(test, instance, node, rack, group);
            assert_eq!(code(&test.commit(claims)), expected, "{instance} on {node}");
        }
        test.assert_exact();
        let remove = |group: &str| Op::RemoveGroup(Text::from(group));
        assert!(matches!(test.one(remove("near")), Answer::Outcome(Outcome::Impossible(_))));
        for instance in 1..=4 {
            test.release(instance).unwrap();
        }
        // The group has no home any more, and a member that left may come back.
        let claims = member(test, 4, "n1", "a", "near");
        granted(&test.commit(claims));
        test.assert_exact();
        test.release(4).unwrap();
        test.done(remove("near"));
        test.done(remove("apart"));
    });
}

#[test]
fn a_quota_refuses_what_is_over_it() {
    on_every_database(|test| {
        test.node("n1", "z", "r");
        let claims = vec![on_node(test, 1, "n1")];
        granted(&test.commit(claims));
        let quota = Quota { instances: Some(2), ..Quota::default() };
        test.done(Op::PutQuota { tenant: Text::from("acme"), quota });
        let claims = vec![on_node(test, 2, "n1")];
        granted(&test.commit(claims));
        let claims = vec![on_node(test, 3, "n1")];
        assert_eq!(code(&test.commit(claims)), "quota_exceeded");
        test.release(1).unwrap();
        let claims = vec![on_node(test, 3, "n1")];
        granted(&test.commit(claims));
        test.assert_exact();
        test.done(Op::RemoveQuota(Text::from("acme")));
        let claims = vec![on_node(test, 4, "n1")];
        granted(&test.commit(claims));
    });
}

#[test]
fn values_are_given_out_once_and_rest_before_they_come_round() {
    on_every_database(|test| {
        test.node("n1", "z", "r");
        test.done(Op::PutPool(Pool::parse("small", "10.0.0.0/30").unwrap()));
        test.done(Op::PutPool(Pool::parse("large", "fd00:7::/64").unwrap()));
        let with_pools = |test: &TestLedger, instance, pools: &[&str]| {
            let mut planned = on_node(test, instance, "n1");
            planned.pools = pools.iter().map(|pool| Text::from(*pool)).collect();
            planned
        };
        let claims = (1..=2).map(|n| with_pools(test, n, &["small", "large"])).collect();
        let verdict = test.commit(claims);
        let values: Vec<String> = granted(&verdict)
            .claims
            .iter()
            .flat_map(|claim| claim.values.iter().map(|held| held.value.clone()))
            .collect();
        assert_eq!((values[0].as_str(), values[2].as_str()), ("10.0.0.1", "10.0.0.2"));
        assert!(values[1].starts_with("fd00:7::") && values[1] != values[3], "{values:?}");
        let claims = vec![with_pools(test, 3, &["small"])];
        assert_eq!(code(&test.commit(claims)), "ipam_exhausted");
        assert!(matches!(
            test.one(Op::RemovePool(Text::from("small"))),
            Answer::Outcome(Outcome::Impossible(_))
        ));
        test.release(1).unwrap();
        let claims = vec![with_pools(test, 3, &["small"])];
        assert_eq!(code(&test.commit(claims)), "ipam_exhausted", "it rests");
        (test.run_sql)("UPDATE pool_value SET released_at = 1 WHERE released_at IS NOT NULL");
        let claims = vec![with_pools(test, 3, &["small"])];
        let verdict = test.commit(claims);
        assert_eq!(granted(&verdict).claims[0].values[0].value, "10.0.0.1");
        let claims = vec![with_pools(test, 4, &["unknown"])];
        assert_eq!(code(&test.commit(claims)), "unknown_pool");
        let claims = vec![with_pools(test, 4, &["large"])];
        granted(&test.commit(claims));
        for instance in 2..=4 {
            test.release(instance).unwrap();
        }
        test.done(Op::RemovePool(Text::from("small")));
    });
}

#[test]
fn a_volume_and_a_slot_have_one_holder_and_classes_run_out() {
    on_every_database(|test| {
        test.node("n1", "z", "r");
        test.node("n2", "z", "r");
        test.done(Op::PutVolume(volume("v", "n1")));
        let slot = SlotKey {
            tenant: Text::from("acme"),
            workload: Text::from("web"),
            revision: 1,
            slot: 0,
        };
        let authorize = |test: &TestLedger, instance, node: &str| {
            let mut request = request(instance);
            request.volumes.push("v".to_owned());
            request.extra.insert("gpu".to_owned(), 2);
            vec![test.planned(request, node, "z", "r")]
        };
        let claims = authorize(test, 1, "n2");
        assert_eq!(code(&test.commit(claims)), "volume_locality_no_node");
        let claims = authorize(test, 1, "n1");
        granted(&test.commit(claims));
        let claims = authorize(test, 2, "n1");
        assert_ne!(code(&test.commit(claims)), "granted");
        test.release(1).unwrap();
        let mut claims = authorize(test, 2, "n1");
        claims[0].slot = Some(slot.clone());
        granted(&test.commit(claims));
        let mut planned = on_node(test, 3, "n2");
        planned.slot = Some(slot);
        assert_eq!(code(&test.commit(vec![planned.clone()])), "slot_taken");
        let workload = Workload {
            tenant: "acme".to_owned(),
            name: "web".to_owned(),
            revision: 1,
            replicas: 1,
            body: "{}".to_owned(),
        };
        test.done(Op::PutWorkload { workload, expect: crate::model::Expect::Absent });
        let remove = Op::RemoveWorkload {
            tenant: Text::from("acme"),
            name: Text::from("web"),
            expect: crate::model::Expect::Any,
        };
        assert!(matches!(test.one(remove.clone()), Answer::Outcome(Outcome::Impossible(_))));
        test.release(2).unwrap();
        granted(&test.commit(vec![planned]));
        test.release(3).unwrap();
        test.done(remove);
        test.done(Op::RemoveVolume(Text::from("v")));
        test.assert_exact();
    });
}

#[test]
fn a_claim_is_renewed_bound_resized_and_moved_with_its_address_and_group() {
    on_every_database(|test| {
        test.node("n1", "z", "a");
        test.node("n2", "z", "b");
        test.done(Op::PutPool(Pool::parse("p", "10.0.0.0/24").unwrap()));
        test.done(Op::PutGroup(group("g", GroupKind::Apart, Topology::Rack)));
        let mut request = request(1);
        request.groups.push("g".to_owned());
        let mut planned = test.planned(request.clone(), "n1", "z", "a");
        planned.pools.push(Text::from("p"));
        let verdict = test.commit(vec![planned]);
        let fence = granted(&verdict).claims[0].fence;
        let step = |fence, step| Op::Advance(Advance { key: key(1), tenant: None, fence, step });
        let renewed = test.claim_answer(step(fence, Step::Renew { lease_s: 500 })).unwrap();
        assert_eq!(renewed.state, Some(ClaimState::Held));
        let stale = test.claim_answer(step(fence - 1, Step::Bind)).unwrap_err();
        assert_eq!(stale.code(), "stale_fence");
        test.claim_answer(step(fence, Step::Bind)).unwrap();
        test.claim_answer(step(fence, Step::Activate)).unwrap();
        let resize = |id: &str, amounts| {
            let (request_id, cpu_hard) = (Text::from(id), true);
            Op::Resize(Resize {
                request_id,
                key: key(1),
                tenant: None,
                fence: None,
                amounts,
                cpu_hard,
                host_cpu_milli: Some(4000),
            })
        };
        test.claim_answer(resize("grow", Amounts::new(4000, 8192))).unwrap();
        let much = test.claim_answer(resize("much", Amounts::new(4000, 99_999))).unwrap_err();
        assert_eq!(much.code(), "no_capacity_memory");
        let wide = test.claim_answer(resize("wide", Amounts::new(4001, 8192))).unwrap_err();
        assert_eq!(wide.code(), "cpu_exceeds_host", "its host has four cores");
        request.resources = Amounts::new(4000, 8192);
        let to = test.planned(request, "n2", "z", "b");
        let to = Move {
            request_id: Text::from("move"),
            fence: Some(fence),
            to,
            restart: false,
            guard: None,
        };
        let moved = test.claim_answer(Op::Move(Box::new(to.clone()))).unwrap();
        assert_eq!((moved.node.as_str(), moved.state), ("n2", Some(ClaimState::Active)));
        assert!(moved.fence > fence);
        assert_eq!(test.claim_answer(Op::Move(Box::new(to))), Ok(moved));
        let holdings = test.claim(1).unwrap().holdings.unwrap();
        assert_eq!(holdings.values[0].value, "10.0.0.1");
        test.assert_exact();
        test.release(1).unwrap();
        test.done(Op::RemoveGroup(Text::from("g")));
        test.assert_exact();
    });
}

#[test]
fn a_dry_run_says_what_would_be_granted_under_other_limits_and_changes_nothing() {
    on_every_database(|test| {
        test.node("n1", "z", "r");
        test.done(Op::PutPool(Pool::parse("p", "7-7").unwrap()));
        let quota = |instances| Quota { instances: Some(instances), ..Quota::default() };
        let planned = |test: &TestLedger, number: u128| {
            let mut planned = on_node(test, number, "n1");
            planned.pools.push(Text::from("p"));
            planned
        };
        let tenant = Text::from(request(1).tenant.as_str());
        test.done(Op::PutQuota { tenant: tenant.clone(), quota: quota(1) });
        let wide = |range: &str| vec![Pool::parse("p", range).unwrap()];
        let raised = Assumptions { quota: Some(quota(3)), pools: Vec::new() };
        let wider = Assumptions { pools: wide("7-8"), ..raised.clone() };
        let cases = [
            (1, Assumptions::default(), Ok(1)),
            (2, Assumptions::default(), Err("quota_exceeded")),
            (2, raised, Err("pool_exhausted")),
            (2, wider.clone(), Ok(2)),
            (3, wider.clone(), Err("pool_exhausted")),
        ];
        // Twice, in one transaction, to see that nothing is left of a dry run.
        let mut ops = Vec::new();
        for (count, assumed, _) in cases.iter().chain(&cases) {
            let claims = (1..=*count).map(|number| planned(test, number)).collect();
            ops.push(Op::DryRun(Plan::new("try", &tenant, claims), assumed.clone()));
        }
        let answers = test.all(&ops);
        for (answer, (count, _, expected)) in answers.iter().zip(cases.iter().chain(&cases)) {
            let found = match answer {
                Answer::Plan(Verdict::Granted(grant)) => Ok(grant.claims.len()),
                Answer::Plan(Verdict::Refused(by)) => Err(by.code()),
                other => panic!("{other:?}"),
            };
            assert_eq!(found, *expected, "{count}");
        }
        let first = planned(test, 1);
        granted(&test.commit(vec![first]));
        let second = Plan::new("second", &tenant, vec![planned(test, 2)]);
        let Answer::Plan(verdict) = test.one(Op::DryRun(second, wider)) else { panic!("no plan") };
        assert_eq!(granted(&verdict).claims[0].values[0].value, "8", "one that is not taken");
        test.assert_exact();
    });
}

#[test]
fn reality_is_recorded_even_where_there_is_no_room() {
    on_every_database(|test| {
        test.node("n1", "z", "r");
        test.done(Op::PutGroup(group("g", GroupKind::Apart, Topology::Zone)));
        for instance in 1..=2 {
            let mut request = request(instance);
            request.resources = Amounts::new(8000, 16_000);
            request.groups.push("g".to_owned());
            let adopt = Adopt {
                request_id: Text::from(format!("adopt-{instance}")),
                demand: Demand::new(&request, &test.policy),
                request: std::sync::Arc::new(request),
                node: NodeId::new("n1"),
            };
            let found = test.claim_answer(Op::Adopt(adopt.clone())).unwrap();
            assert_eq!(found.state, Some(ClaimState::Active));
            assert_eq!(test.claim_answer(Op::Adopt(adopt)), Ok(found));
        }
        test.assert_exact();
    });
}

#[test]
fn an_expired_lease_is_reaped_and_a_renewed_one_is_not() {
    on_every_database(|test| {
        test.node("n1", "z", "r");
        let claims = vec![on_node(test, 1, "n1")];
        let mut plan = test.plan(claims);
        plan.lease_s = 0;
        granted(&test.commit_plan(plan));
        let claims = vec![on_node(test, 2, "n1")];
        granted(&test.commit(claims));
        assert_eq!(test.tables.expired_nodes().unwrap(), [NodeId::new("n1")]);
        let reaped = test.one(Op::Reap(NodeId::new("n1")));
        assert_eq!(reaped, Answer::Reaped(vec![InstanceId::from_u128(1)]));
        assert_eq!(test.tables.expired_nodes().unwrap(), []);
        assert!(test.claim(1).is_none() && test.claim(2).is_some());
        test.assert_exact();
    });
}

#[test]
fn a_counter_that_was_tampered_with_is_put_right_and_told_once() {
    on_every_database(|test| {
        test.node("n1", "z", "r");
        let claims = vec![on_node(test, 1, "n1")];
        granted(&test.commit(claims));
        (test.run_sql)("UPDATE node_room SET used_memory = used_memory + 7, used_cpu = 0");
        let drifted = test.tables.drifted().unwrap();
        assert_eq!(drifted.nodes, [NodeId::new("n1")].into());
        assert!(drifted.groups.is_empty() && drifted.tenants.is_empty());
        let answer = test.one(Op::ReconcileNode(NodeId::new("n1")));
        let Answer::Drifts(drifts) = answer else { panic!("{answer:?}") };
        let amounts = [("cpu".to_owned(), -1000), ("memory".to_owned(), 7)].into();
        assert_eq!(drifts, [Drift { row: "node n1".to_owned(), amounts }]);
        test.assert_exact();
    });
}

#[test]
fn many_operations_share_a_transaction_and_each_fails_for_itself() {
    on_every_database(|test| {
        test.node("n1", "z", "r");
        test.done(Op::PutPool(Pool::parse("p", "fd00::/64").unwrap()));
        let plans: Vec<Op> = (1..=20)
            .map(|instance| {
                let mut planned = on_node(test, instance, "n1");
                planned.pools.push(Text::from("p"));
                let claims = vec![planned];
                Op::Commit(test.plan(claims))
            })
            .collect();
        let answers = test.all(&plans);
        let is_granted = |answer: &&Answer| matches!(answer, Answer::Plan(Verdict::Granted(_)));
        assert_eq!(answers.iter().filter(is_granted).count(), 16);
        test.assert_exact();
        let ops: Vec<Op> = (1..=16).map(|n| Op::Release(release(&format!("out-{n}"), n))).collect();
        assert!(test.all(&ops).iter().all(|answer| matches!(answer, Answer::Claim(Ok(_)))));
        test.assert_exact();
    });
}

#[test]
fn what_operators_state_is_kept() {
    on_every_database(|test| {
        test.node("n1", "z", "r");
        test.done(Op::Heartbeats(vec![(NodeId::new("n1"), 77), (NodeId::new("nobody"), 78)]));
        assert_eq!(test.tables.heartbeats_since(70).unwrap(), [(NodeId::new("n1"), 77)]);
        let secrets = |version: Option<&str>| Op::PutSecrets {
            tenant: Some(Text::from("acme")),
            env: Text::from("prod"),
            version: version.map(Text::from),
        };
        test.done(secrets(Some("v1")));
        test.done(secrets(Some("v2")));
        for name in ["first", "second"] {
            let (hash, body) = (format!("hash-{name}"), "{}".to_owned());
            test.done(Op::ActivatePolicy { name: name.to_owned(), hash, body, expect: None });
        }
        let demand = UnmetDemand {
            tenant: "acme".to_owned(),
            code: "no_capacity_memory".to_owned(),
            spec: "{}".to_owned(),
            times: 2,
            first_at: 0,
            last_at: 0,
        };
        test.done(Op::Demand(demand.clone()));
        test.done(Op::Demand(demand));
        let stored = test.tables.demand().unwrap();
        assert_eq!((stored.len(), stored[0].times), (1, 4));
        let (_, items) = test.snapshot();
        let policies: Vec<&str> = items
            .iter()
            .filter_map(|item| match item {
                crate::database::SnapshotItem::Policy(name, _, _) => Some(name.as_str()),
                _ => None,
            })
            .collect();
        assert_eq!(policies, ["second"]);
        test.done(secrets(None));
        assert_eq!(test.tables.claims_of("acme", Some("web")).unwrap(), []);
    });
}
