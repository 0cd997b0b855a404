//! Instances and volumes that change their node: what counts where, and what must not happen meanwhile.

use std::sync::Arc;

use berth_engine::Amounts;

use super::{TestLedger, code, granted, group, key, on_every_database, release, request, volume};
use crate::model::{
    Advance, Answer, AvailabilityGuard, ClaimKey, ClaimRejection, ClaimState, Expect, Hold, Move,
    Op, Outcome, PlannedClaim, Quota, RefusalReason, Release, Resize, SlotKey, Step, Switch, Text,
    Workload,
};

fn on_node(test: &TestLedger, instance: u128, node: &str) -> PlannedClaim {
    test.planned(request(instance), node, "z", "r")
}

/// Places an instance on the first node, and has it run.
fn run(test: &mut TestLedger, planned: PlannedClaim) -> i64 {
    let key = planned.key;
    granted(&test.commit(vec![planned]));
    let fence = test.tables.claim(key).unwrap().unwrap().fence;
    for step in [Step::Bind, Step::Activate] {
        test.claim_answer(Op::Advance(Advance { key, tenant: None, fence, step })).unwrap();
    }
    fence
}

fn two_nodes(test: &mut TestLedger) {
    test.node("n1", "z", "r");
    test.node("n2", "z", "r");
}

/// Instances and memory that the tenant's quota counts.
fn used(test: &mut TestLedger) -> (i64, i64) {
    let found = test.tables.quotas().unwrap();
    let quota = found.iter().find(|quota| &*quota.tenant == "acme").unwrap();
    (quota.used.instances, quota.used.memory_mib)
}

fn confirm(test: &mut TestLedger, key: ClaimKey) {
    test.requests += 1;
    let release = release(&format!("gone-{}", test.requests), 1);
    test.claim_answer(Op::Release(Release { key, ..release })).unwrap();
}

#[test]
fn an_instance_that_moves_counts_once_for_its_quota() {
    on_every_database(|test| {
        two_nodes(test);
        let memory = i64::from(request(1).resources.memory_mib);
        let quota = Quota { memory_mib: Some(2 * memory), ..Quota::default() };
        test.done(Op::PutQuota { tenant: Text::from("acme"), quota });
        let planned = on_node(test, 1, "n1");
        let fence = run(test, planned);
        let to = on_node(test, 1, "n2");
        test.claim_answer(Op::Hold(Box::new(Hold { to, fence }))).unwrap();
        assert_eq!(used(test), (1, memory), "a place is held");
        // What is left of the quota can be used meanwhile.
        let second = on_node(test, 2, "n1");
        granted(&test.commit(vec![second]));
        let third = on_node(test, 3, "n1");
        assert_eq!(code(&test.commit(vec![third])), "quota_exceeded");
        test.assert_exact();
        let to = berth_engine::NodeId::new("n2");
        let switch = Switch { instance: key(1).instance, to };
        test.claim_answer(Op::Switch(switch)).unwrap();
        assert_eq!(used(test), (2, 2 * memory), "it switched");
        test.assert_exact();
        confirm(test, ClaimKey::source(key(1).instance));
        assert_eq!(used(test), (2, 2 * memory), "the source is cleaned up");
        test.assert_exact();
        confirm(test, key(1));
        assert_eq!(used(test), (1, memory));
        test.assert_exact();
    });
}

#[test]
fn an_instance_found_in_two_places_counts_once_until_and_after_one_is_chosen() {
    on_every_database(|test| {
        two_nodes(test);
        test.done(Op::PutQuota { tenant: Text::from("acme"), quota: Quota::default() });
        let planned = on_node(test, 1, "n1");
        let fence = run(test, planned);
        let to = on_node(test, 1, "n2");
        test.claim_answer(Op::Hold(Box::new(Hold { to, fence }))).unwrap();
        (test.run_sql)("UPDATE claim SET state = 2, memory = memory + 1 WHERE role = 1");
        (test.run_sql)("UPDATE node_room SET used_memory = used_memory + 1 WHERE node = 'n2'");
        let to = on_node(test, 1, "n2");
        let request_id = Text::from("move");
        let to = Move { request_id, fence: Some(fence), to, restart: false, guard: None };
        test.claim_answer(Op::Move(Box::new(to))).unwrap();
        let memory = i64::from(request(1).resources.memory_mib);
        assert_eq!(used(test), (1, memory + 1), "it is as large as where it is now");
        test.assert_exact();
    });
}

fn mark(to: Option<&str>) -> Op {
    Op::MarkVolume { volume: Text::from("data"), moving_to: to.map(berth_engine::NodeId::new) }
}

#[test]
fn nobody_begins_to_use_a_volume_while_it_is_copied_for_the_last_time() {
    on_every_database(|test| {
        two_nodes(test);
        let unknown = test.one(mark(Some("n2")));
        assert!(matches!(unknown, Answer::Outcome(Outcome::Impossible(_))), "{unknown:?}");
        test.done(Op::PutVolume(volume("data", "n1")));
        let user = |test: &TestLedger, node: &str| {
            let mut request = request(1);
            request.volumes = vec!["data".to_owned()];
            test.planned(request, node, "z", "r")
        };
        test.done(mark(Some("n2")));
        assert_eq!(test.one(mark(Some("n2"))), Answer::Outcome(Outcome::Unchanged));
        let planned = user(test, "n1");
        assert_eq!(code(&test.commit(vec![planned.clone()])), "volume_moving");
        // It goes where it is copied to, and nowhere else.
        test.node("n3", "z", "r");
        let elsewhere = test.one(Op::PutVolume(volume("data", "n3")));
        assert!(matches!(elsewhere, Answer::Outcome(Outcome::Impossible(_))), "{elsewhere:?}");
        let same = test.one(Op::PutVolume(volume("data", "n1")));
        assert_eq!(same, Answer::Outcome(Outcome::Unchanged));

        // Called off, it is used where it is; in use, it cannot be marked.
        test.done(mark(None));
        granted(&test.commit(vec![planned]));
        let used = test.one(mark(Some("n2")));
        assert!(matches!(used, Answer::Outcome(Outcome::Impossible(_))), "{used:?}");
        test.release(1).unwrap();
        test.done(mark(Some("n2")));
        test.done(Op::PutVolume(volume("data", "n2")));
        let planned = user(test, "n2");
        granted(&test.commit(vec![planned]));
        test.assert_exact();
    });
}

fn restart(fence: i64, to: PlannedClaim) -> Op {
    let request_id = Text::from(format!("restart-{fence}-{}", to.node));
    Op::Move(Box::new(Move { request_id, fence: Some(fence), to, restart: true, guard: None }))
}

#[test]
fn a_restarted_instance_keeps_its_old_place_until_its_agent_confirms_the_stop() {
    on_every_database(|test| {
        two_nodes(test);
        test.node("n3", "z", "r");
        let apart =
            group("apart", berth_engine::GroupKind::Apart, berth_engine::affinity::Topology::Zone);
        test.done(Op::PutGroup(apart));
        let member = |test: &TestLedger, node: &str| {
            let mut request = request(1);
            request.groups = vec!["apart".to_owned()];
            request.extra.insert("gpu".to_owned(), 1);
            test.planned(request, node, "z", "r")
        };
        let planned = member(test, "n1");
        let fence = run(test, planned);
        let to = member(test, "n2");
        let moved = test.claim_answer(restart(fence, to)).unwrap();
        assert_eq!(moved.state, Some(ClaimState::Binding));
        let source = ClaimKey::source(key(1).instance);
        let left = test.tables.claim(source).unwrap().unwrap();
        assert_eq!((left.node.as_str(), left.state), ("n1", ClaimState::Releasing));
        assert_eq!(left.fence, fence, "the old agent confirms with what it knows");
        test.assert_exact();
        // It may still run there: it is not moved on before.
        let to = member(test, "n3");
        let again = test.claim_answer(restart(moved.fence, to.clone())).unwrap_err();
        assert_eq!(again.code(), "migrating");
        confirm(test, source);
        test.assert_exact();
        test.claim_answer(restart(moved.fence, to)).unwrap();
        test.assert_exact();
    });
}

#[test]
fn a_held_instance_leaves_nothing_behind() {
    on_every_database(|test| {
        two_nodes(test);
        let planned = on_node(test, 1, "n1");
        granted(&test.commit(vec![planned]));
        let fence = test.claim(1).unwrap().fence;
        let to = on_node(test, 1, "n2");
        test.claim_answer(restart(fence, to)).unwrap();
        assert_eq!(test.tables.claim(ClaimKey::source(key(1).instance)).unwrap(), None);
        test.assert_exact();
    });
}

#[test]
fn nothing_is_done_by_a_stored_request_that_cannot_be_read() {
    on_every_database(|test| {
        two_nodes(test);
        let planned = on_node(test, 1, "n1");
        let fence = run(test, planned);
        let before = test.claim(1).unwrap();
        (test.run_sql)("UPDATE claim SET spec = '{\"tenant\":'");
        let to = on_node(test, 1, "n2");
        let resize = Resize {
            request_id: Text::from("smaller"),
            key: key(1),
            tenant: None,
            fence: None,
            amounts: berth_engine::Amounts::new(1, 1),
            cpu_hard: true,
            host_cpu_milli: None,
        };
        for op in [restart(fence, to), Op::Resize(resize)] {
            match test.claim_answer(op).unwrap_err() {
                ClaimRejection::Refused(RefusalReason::Malformed(why)) => {
                    assert!(why.contains("cannot be read"), "{why}");
                }
                other => panic!("{other:?}"),
            }
        }
        let after = test.claim(1).unwrap();
        assert_eq!(
            (after.node, after.fence, after.amounts),
            (before.node, before.fence, before.amounts)
        );
        assert_eq!(test.tables.claim(ClaimKey::source(key(1).instance)).unwrap(), None);
        test.assert_exact();
    });
}

#[test]
fn a_member_is_moved_only_while_enough_others_run() {
    on_every_database(|test| {
        two_nodes(test);
        let (tenant, name) = ("acme".to_owned(), "web".to_owned());
        let body = "{}".to_owned();
        let workload = Workload { tenant, name, revision: 1, replicas: -1, body };
        test.done(Op::PutWorkload { workload, expect: Expect::Any });
        let member = |test: &TestLedger, instance: u128, node: &str| {
            let mut request = request(instance);
            request.workload = Some("web".to_owned());
            request.resources = Amounts::new(1, 1);
            let slot = i64::try_from(instance).unwrap();
            let (tenant, workload) = (Text::from("acme"), Text::from("web"));
            let slot = Some(SlotKey { tenant, workload, revision: 1, slot });
            let planned = test.planned(request, node, "z", "r");
            PlannedClaim { slot, workload_version: Some(1), ..planned }
        };
        let mut fences = Vec::new();
        for instance in 1..=3 {
            let planned = member(test, instance, "n1");
            fences.push(run(test, planned));
        }
        let relocate = |test: &mut TestLedger, instance: u128, others: [u128; 2]| {
            let fence = fences[usize::try_from(instance).unwrap() - 1];
            let to = member(test, instance, "n2");
            let guard = AvailabilityGuard {
                tenant: Text::from("acme"),
                workload: Text::from("web"),
                version: 1,
                running: others.map(key).to_vec(),
                at_least: 2,
            };
            test.requests += 1;
            let request_id = Text::from(format!("relocate-{}", test.requests));
            let (fence, guard) = (Some(fence), Some(Arc::new(guard)));
            test.claim_answer(Op::Move(Box::new(Move {
                request_id,
                fence,
                to,
                restart: true,
                guard,
            })))
        };
        relocate(test, 1, [2, 3]).unwrap();
        let refused = relocate(test, 2, [1, 3]).unwrap_err();
        assert_eq!(refused.code(), "too_few_running", "1 does not run yet");
        let fence = test.claim(1).unwrap().fence;
        let activate = Advance { key: key(1), tenant: None, fence, step: Step::Activate };
        test.claim_answer(Op::Advance(activate)).unwrap();
        relocate(test, 2, [1, 3]).unwrap();
        test.assert_exact();
    });
}
