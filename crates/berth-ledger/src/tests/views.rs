//! Plans that were made by an older view than the ledger's: each is a conflict, whatever it was that
//! changed, and is granted when it was made by the newer one.

use std::thread;
use std::time::Duration;

use super::{TestLedger, code, granted, new_database, on_every_database, raw, request, server};
use berth_engine::elastic::{Grants, PermitRequest, Size, WatermarkRule};
use berth_engine::{Amounts, Elastic, InstanceId, NodeId};

use crate::model::{
    Answer, EventBody, Expect, Op, Outcome, PermitBasis, PermitOperation, PlannedClaim, Text,
    Verdict, Workload,
};
use crate::postgres::Isolation;

/// A member of `web`, planned by this version of it.
fn member(test: &TestLedger, instance: u128, version: i64) -> PlannedClaim {
    let mut request = request(instance);
    request.workload = Some("web".to_owned());
    let planned = test.planned(request, "n1", "z", "r");
    PlannedClaim { workload_version: Some(version), ..planned }
}

/// An instance that is given these secrets of `prod`.
fn with_secrets(test: &TestLedger, instance: u128, version: &str) -> PlannedClaim {
    let mut request = request(instance);
    request.env = Some("prod".to_owned());
    request.needs_secrets = true;
    let planned = test.planned(request, "n1", "z", "r");
    PlannedClaim { secrets_version: Some(Text::from(version)), ..planned }
}

/// An instance planned by this policy.
fn by_policy(test: &TestLedger, instance: u128, hash: &str) -> PlannedClaim {
    let planned = test.planned(request(instance), "n1", "z", "r");
    PlannedClaim { policy: Some(Text::from(hash)), ..planned }
}

fn put_workload(version: i64) -> Op {
    put_named("web", version, Expect::Any)
}

fn put_named(name: &str, version: i64, expect: Expect) -> Op {
    let workload = Workload {
        tenant: "acme".to_owned(),
        name: name.to_owned(),
        revision: version,
        replicas: -1,
        body: format!("{{\"version\":{version}}}"),
    };
    Op::PutWorkload { workload, expect }
}

fn put_secrets(tenant: Option<&str>, version: Option<&str>) -> Op {
    let env = Text::from("prod");
    Op::PutSecrets { tenant: tenant.map(Text::from), env, version: version.map(Text::from) }
}

fn activate(hash: &str) -> Op {
    let (name, body) = (hash.to_owned(), "{}".to_owned());
    Op::ActivatePolicy { name, hash: hash.to_owned(), body, expect: None }
}

#[test]
fn a_member_planned_by_another_version_of_its_workload_is_planned_again() {
    on_every_database(|test| {
        test.node("n1", "z", "r");
        let claims = vec![member(test, 1, 0)];
        assert_eq!(code(&test.commit(claims)), "granted", "there is no workload of that name");
        test.done(put_workload(1));
        for (instance, version, expected) in
            [(2, 0, "workload_changed"), (2, 1, "granted"), (3, 2, "workload_changed")]
        {
            let claims = vec![member(test, instance, version)];
            assert_eq!(code(&test.commit(claims)), expected, "version {version}");
        }
        test.done(put_workload(2));
        let claims = vec![member(test, 3, 1)];
        let Verdict::Conflict(conflict) = test.commit(claims) else { panic!("granted") };
        let now =
            crate::model::Guard::WorkloadChanged { workload: Text::from("web"), now: Some(2) };
        assert_eq!(conflict.guard, now);
        let (tenant, name) = (Text::from("acme"), Text::from("web"));
        let expect = Expect::Any;
        test.done(Op::RemoveWorkload { tenant, name, expect });
        let claims = vec![member(test, 3, 2)];
        assert_eq!(code(&test.commit(claims)), "workload_changed", "it was removed");
        test.assert_exact();
    });
}

#[test]
fn a_claim_with_an_older_version_of_secrets_is_planned_again() {
    on_every_database(|test| {
        test.node("n1", "z", "r");
        let commit = |test: &mut TestLedger, instance, version: &str| {
            let claims = vec![with_secrets(test, instance, version)];
            code(&test.commit(claims))
        };
        assert_eq!(commit(test, 1, "s1"), "secrets_changed", "there are none");
        test.done(put_secrets(None, Some("s1")));
        assert_eq!(commit(test, 1, "s1"), "granted");
        test.done(put_secrets(None, Some("s2")));
        assert_eq!(commit(test, 2, "s1"), "secrets_changed");
        assert_eq!(commit(test, 2, "s2"), "granted");
        // A tenant's own come first.
        test.done(put_secrets(Some("acme"), Some("own")));
        assert_eq!(commit(test, 3, "s2"), "secrets_changed");
        assert_eq!(commit(test, 3, "own"), "granted");
        test.done(put_secrets(Some("acme"), None));
        assert_eq!(commit(test, 4, "own"), "secrets_changed");
        test.done(put_secrets(None, None));
        assert_eq!(commit(test, 4, "s2"), "secrets_changed");
        test.assert_exact();
    });
}

#[test]
fn a_claim_planned_by_another_policy_is_planned_again() {
    on_every_database(|test| {
        test.node("n1", "z", "r");
        let commit = |test: &mut TestLedger, instance, policy: &str| {
            let claims = vec![by_policy(test, instance, policy)];
            code(&test.commit(claims))
        };
        assert_eq!(commit(test, 1, ""), "granted", "none is in force");
        assert_eq!(commit(test, 2, "a"), "policy_changed");
        test.done(activate("a"));
        assert_eq!(commit(test, 2, ""), "policy_changed");
        assert_eq!(commit(test, 2, "a"), "granted");
        test.done(activate("b"));
        assert_eq!(commit(test, 3, "a"), "policy_changed");
        assert_eq!(commit(test, 3, "b"), "granted");
        test.assert_exact();
    });
}

#[test]
fn what_one_transaction_changes_its_later_plans_must_have_seen() {
    on_every_database(|test| {
        test.node("n1", "z", "r");
        test.done(activate("a"));
        test.done(put_workload(1));
        test.done(put_secrets(None, Some("s1")));
        let claims = [by_policy(test, 1, "a"), member(test, 2, 1), with_secrets(test, 3, "s1")];
        let plans: Vec<Op> =
            claims.into_iter().map(|claim| Op::Commit(test.plan(vec![claim]))).collect();
        let changes = [activate("b"), put_workload(2), put_secrets(None, None)];
        let ops: Vec<Op> = changes.into_iter().chain(plans).collect();
        let answers = test.all(&ops);
        let codes: Vec<&str> = answers
            .iter()
            .map(|answer| match answer {
                Answer::Plan(verdict) => code(verdict),
                Answer::Outcome(Outcome::Done) => "done",
                other => panic!("{other:?}"),
            })
            .collect();
        let expected =
            ["done", "done", "done", "policy_changed", "workload_changed", "secrets_changed"];
        assert_eq!(codes, expected);
    });
}

#[test]
fn a_change_waits_for_members_that_are_being_granted_and_they_do_not_wait_for_each_other() {
    let server = server();
    for isolation in Isolation::ALL {
        let url = new_database(&server);
        let mut test = TestLedger::postgres(&url, isolation);
        test.node("n1", "z", "r");
        test.done(put_workload(1));
        // A member that is being granted holds the row as this does.
        let mut holder = raw(&url);
        let hold = "BEGIN; SELECT 1 FROM workload WHERE name = 'web' FOR SHARE";
        holder.script("test", hold).unwrap();
        let claims = vec![member(&test, 1, 1)];
        granted(&test.commit(claims));
        let other = url.clone();
        let change = thread::spawn(move || {
            TestLedger::postgres(&other, isolation).done(put_workload(2));
        });
        thread::sleep(Duration::from_millis(200));
        assert!(!change.is_finished(), "{isolation}: it was changed under a member");
        holder.script("test", "COMMIT").unwrap();
        change.join().unwrap();
        let claims = vec![member(&test, 2, 1)];
        assert_eq!(code(&test.commit(claims)), "workload_changed");
    }
}

#[test]
fn a_workload_is_not_stored_for_the_first_time_under_a_member_that_is_being_granted() {
    let server = server();
    for isolation in Isolation::ALL {
        let url = new_database(&server);
        let mut test = TestLedger::postgres(&url, isolation);
        test.node("n1", "z", "r");
        // A member that is being granted has no row to lock, and its share of the writer lock.
        let mut holder = raw(&url);
        let lock = crate::postgres::WRITER_LOCK;
        let hold = format!("BEGIN; SELECT pg_advisory_xact_lock_shared({lock})");
        holder.script("test", &hold).unwrap();
        for (name, expect) in [("web", Expect::Any), ("db", Expect::Absent)] {
            let other = url.clone();
            let op = put_named(name, 1, expect);
            let change = thread::spawn(move || TestLedger::postgres(&other, isolation).done(op));
            thread::sleep(Duration::from_millis(200));
            assert!(!change.is_finished(), "{isolation}: {name} was stored under a member");
            holder.script("test", "COMMIT").unwrap();
            change.join().unwrap();
            holder.script("test", &hold).unwrap();
        }
        let claims = vec![member(&test, 1, 0)];
        assert_eq!(code(&test.commit(claims)), "workload_changed");
    }
}

#[test]
fn a_version_never_means_two_workloads_of_one_name() {
    on_every_database(|test| {
        test.node("n1", "z", "r");
        test.done(put_workload(1));
        test.done(put_workload(2));
        let (tenant, name, expect) = (Text::from("acme"), Text::from("web"), Expect::Any);
        test.done(Op::RemoveWorkload { tenant, name, expect });
        test.done(put_workload(1));
        for version in [1, 2] {
            let claims = vec![member(test, 1, version)];
            assert_eq!(code(&test.commit(claims)), "workload_changed", "version {version}");
        }
        let claims = vec![member(test, 1, 3)];
        assert_eq!(code(&test.commit(claims)), "granted");
        // In one transaction, too.
        let remove = |name: &str| Op::RemoveWorkload {
            tenant: Text::from("acme"),
            name: Text::from(name),
            expect: Expect::Any,
        };
        test.done(put_named("db", 7, Expect::Any));
        test.all(&[remove("db"), put_named("db", 1, Expect::Absent)]);
        let workloads = test.tables.workloads().unwrap();
        let found: Vec<(&str, i64)> =
            workloads.iter().map(|it| (it.name.as_str(), it.revision)).collect();
        assert_eq!(found, [("db", 8), ("web", 3)]);
    });
}

#[test]
fn a_generation_never_means_two_nodes_of_one_name() {
    on_every_database(|test| {
        test.node("n1", "z", "r");
        test.done(Op::RemoveNode { node: NodeId::new("n1"), expect: None });
        test.node("n1", "z", "r");
        let claims = vec![test.planned(request(1), "n1", "z", "r")];
        assert_eq!(code(&test.commit(claims)), "node_changed", "planned on the one before");
        let mut planned = test.planned(request(1), "n1", "z", "r");
        planned.node_version.constraint_gen = 2;
        assert_eq!(code(&test.commit(vec![planned])), "granted");
        let generations: Vec<Option<i64>> = test
            .events()
            .into_iter()
            .filter_map(|event| match event.body {
                EventBody::NodeChanged { constraint_gen, .. } => Some(Some(constraint_gen)),
                EventBody::NodeRemoved { constraint_gen, .. } => Some(constraint_gen),
                _ => None,
            })
            .collect();
        assert_eq!(generations, [Some(1), Some(1), Some(2)]);
    });
}

/// An elastic instance that runs on `n1`.
fn run_elastic(test: &mut TestLedger, instance: u128) {
    let mut request = request(instance);
    let amounts = |cpu_milli| Amounts { cpu_milli, memory_mib: 1024, ..Amounts::default() };
    request.elastic = Some(Elastic::new(amounts(100), amounts(4000)));
    let claims = vec![test.planned(request, "n1", "z", "r")];
    granted(&test.commit(claims));
    super::start(test, instance);
}

#[test]
fn a_permit_by_an_older_policy_or_older_facts_of_the_node_is_decided_again() {
    on_every_database(|test| {
        test.node("n1", "z", "r");
        run_elastic(test, 1);
        let ask = |test: &mut TestLedger, policy: &str, node: Option<(&str, i64)>| {
            let (policy, node) = (Text::from(policy), node.map(|(id, it)| (NodeId::new(id), it)));
            let asked = PermitOperation {
                instance: InstanceId::from_u128(1),
                tenant: None,
                node: None,
                fence: None,
                wish: PermitRequest::new(Size::new(1000, 1024)),
                unit: Size::new(100, 128),
                grants: Grants::Joint,
                whole_units: false,
                rigid_while_moving: false,
                watermark: WatermarkRule::default(),
                host_cpu_milli: None,
                basis: Some(PermitBasis { policy, node }),
            };
            match test.one(Op::Permit(asked)) {
                Answer::Permit(answer) => match *answer {
                    Ok(_) => "permitted",
                    Err(rejected) => rejected.code(),
                },
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(ask(test, "", Some(("n1", 1))), "permitted");
        assert_eq!(ask(test, "a", Some(("n1", 1))), "policy_changed");
        assert_eq!(ask(test, "", Some(("n1", 2))), "node_changed");
        assert_eq!(ask(test, "", Some(("n2", 1))), "node_changed");
        assert_eq!(ask(test, "", None), "node_changed");
        test.done(activate("a"));
        assert_eq!(ask(test, "", Some(("n1", 1))), "policy_changed");
        let (node, state) = (NodeId::new("n1"), berth_engine::NodeState::Cordoned);
        test.done(Op::SetNodeState { node, state, expect: None });
        assert_eq!(ask(test, "a", Some(("n1", 1))), "node_changed");
        assert_eq!(ask(test, "a", Some(("n1", 2))), "permitted");
        test.assert_exact();
    });
}
