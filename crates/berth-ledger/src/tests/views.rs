//! Plans that were made by an older view than the ledger's: each is a conflict, whatever it was that
//! changed, and is granted when it was made by the newer one.

use std::thread;
use std::time::Duration;

use super::{TestLedger, code, granted, new_database, on_every_database, raw, request, server};
use crate::model::{Answer, Op, Outcome, PlannedClaim, Text, Verdict, Workload};
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
    let workload = Workload {
        tenant: "acme".to_owned(),
        name: "web".to_owned(),
        revision: version,
        replicas: -1,
        body: format!("{{\"version\":{version}}}"),
    };
    Op::PutWorkload { workload, expect: crate::model::Expect::Any }
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
        let expect = crate::model::Expect::Any;
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
