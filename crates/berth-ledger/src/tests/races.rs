//! Many writers at once, at every level of isolation: the sums stay exact and every answer is right.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::Duration;

use berth_engine::affinity::Topology;
use berth_engine::{GroupKind, NodeId};

use super::{TestLedger, code, group, new_database, open, raw, release, request, server};
use crate::database::SnapshotItem;
use crate::error::{Fault, LedgerError};
use crate::model::{Answer, Op, Outcome, Pool, Quota, SlotKey, Text};
use crate::postgres::Isolation;
use crate::transaction::{Retries, RetryBudget, WriterChains, run};

const WRITERS: u128 = 4;

/// Runs writers on one ledger at once, each with its number; returns what they returned.
fn race<T: Send + 'static>(
    url: &str,
    isolation: Isolation,
    act: impl Fn(&mut TestLedger, u128) -> T + Send + Sync + 'static,
) -> Vec<T> {
    let act = Arc::new(act);
    let start = Arc::new(Barrier::new(usize::try_from(WRITERS).unwrap()));
    let threads: Vec<_> = (0..WRITERS)
        .map(|writer| {
            let (url, act, start) = (url.to_owned(), Arc::clone(&act), Arc::clone(&start));
            thread::spawn(move || {
                let mut test = TestLedger::postgres(&url, isolation);
                test.requests = u32::try_from(writer).unwrap() * 100_000;
                start.wait();
                let done = act(&mut test, writer);
                assert_eq!(test.retries.guards, 0, "{:?}", test.retries);
                done
            })
        })
        .collect();
    threads.into_iter().map(|thread| thread.join().unwrap()).collect()
}

/// A ledger of its own for each level.
fn at_every_level(test: impl Fn(&str, Isolation)) {
    let server = server();
    for isolation in Isolation::ALL {
        test(&new_database(&server), isolation);
    }
}

#[test]
fn a_node_is_never_over_committed() {
    at_every_level(|url, isolation| {
        let mut test = TestLedger::postgres(url, isolation);
        test.node("n1", "z", "r");
        test.node("n2", "z", "r");
        let granted = race(url, isolation, |test, writer| {
            let mut granted = 0;
            for n in 0..12 {
                let instance = 1 + writer * 100 + n;
                let node = if n % 2 == 0 { "n1" } else { "n2" };
                let planned = test.planned(request(instance), node, "z", "r");
                granted += usize::from(code(&test.commit(vec![planned])) == "granted");
            }
            granted
        });
        assert_eq!(granted.iter().sum::<usize>(), 32, "{isolation}: {granted:?}");
        test.assert_exact();
    });
}

#[test]
fn members_meet_at_the_group_and_not_on_the_node() {
    at_every_level(|url, isolation| {
        let mut test = TestLedger::postgres(url, isolation);
        for node in ["n1", "n2", "n3"] {
            test.node(node, "z", node);
        }
        test.done(Op::PutGroup(group("apart", GroupKind::Apart, Topology::Node)));
        test.done(Op::PutGroup(group("near", GroupKind::Together, Topology::Node)));
        let homes = race(url, isolation, |test, writer| {
            let mut homes = Vec::new();
            for (n, node) in (1..).zip(["n1", "n2", "n3"]) {
                for (kind, group) in (0..).zip(["apart", "near"]) {
                    let mut request = request(writer * 100 + n * 10 + kind);
                    request.groups.push(group.to_owned());
                    let planned = test.planned(request, node, "z", node);
                    if code(&test.commit(vec![planned])) == "granted" {
                        homes.push((group, node));
                    }
                }
            }
            homes
        });
        let of = |group: &str| {
            let homes = homes.iter().flatten().filter(|(of, _)| *of == group);
            homes.map(|(_, node)| *node).collect::<Vec<_>>()
        };
        assert_eq!(of("apart").len(), 3, "{isolation}: {homes:?}");
        let near = of("near");
        assert_eq!(near.len(), 4, "{isolation}: {homes:?}");
        assert!(near.iter().all(|node| *node == near[0]), "{isolation}: {homes:?}");
        test.assert_exact();
    });
}

#[test]
fn one_slot_and_one_request_have_one_winner() {
    at_every_level(|url, isolation| {
        let mut test = TestLedger::postgres(url, isolation);
        test.node("n1", "z", "r");
        let answers = race(url, isolation, |test, writer| {
            let mut planned = test.planned(request(1 + writer), "n1", "z", "r");
            let (tenant, workload) = (Text::from("acme"), Text::from("web"));
            planned.slot = Some(SlotKey { tenant, workload, revision: 1, slot: 0 });
            let slot = code(&test.commit(vec![planned]));
            let planned = test.planned(request(50), "n1", "z", "r");
            let mut plan = test.plan(vec![planned]);
            plan.request_id = Text::from("the same");
            (slot, test.commit_plan(plan))
        });
        let slots: Vec<_> = answers.iter().filter(|(slot, _)| *slot == "granted").collect();
        assert_eq!(slots.len(), 1, "{isolation}");
        assert!(answers.iter().all(|(_, same)| *same == answers[0].1), "{isolation}: {answers:?}");
        test.assert_exact();
    });
}

#[test]
fn a_small_pool_gives_every_value_once() {
    at_every_level(|url, isolation| {
        let mut test = TestLedger::postgres(url, isolation);
        test.node("n1", "z", "r");
        test.done(Op::PutPool(Pool::parse("p", "1-10").unwrap()));
        let mut values: Vec<String> = race(url, isolation, |test, writer| {
            let mut values = Vec::new();
            for n in 0..4 {
                let mut planned = test.planned(request(1 + writer * 100 + n), "n1", "z", "r");
                planned.pools.push(Text::from("p"));
                if let crate::model::Verdict::Granted(grant) = test.commit(vec![planned]) {
                    values.push(grant.claims[0].values[0].value.clone());
                }
            }
            values
        })
        .concat();
        values.sort_by_key(|value| value.parse::<u32>().unwrap());
        let all: Vec<String> = (1..=10).map(|value: u32| value.to_string()).collect();
        assert_eq!(values, all, "{isolation}");
    });
}

#[test]
fn a_value_taken_and_given_back_in_one_transaction_rests() {
    at_every_level(|url, isolation| {
        let mut test = TestLedger::postgres(url, isolation);
        test.node("n1", "z", "r");
        test.done(Op::PutPool(Pool::parse("p", "1-1").unwrap()));
        let mut planned = test.planned(request(1), "n1", "z", "r");
        planned.pools.push(Text::from("p"));
        let plan = test.plan(vec![planned]);
        let answers = test.all(&[Op::Commit(plan), Op::Release(release("out", 1))]);
        assert!(matches!(answers[1], Answer::Claim(Ok(_))), "{isolation}: {answers:?}");
        assert_eq!(test.retries.guards, 0);
        let mut planned = test.planned(request(2), "n1", "z", "r");
        planned.pools.push(Text::from("p"));
        assert_eq!(code(&test.commit(vec![planned.clone()])), "pool_exhausted");
        (test.run_sql)("UPDATE pool_value SET released_at = 1");
        assert_eq!(code(&test.commit(vec![planned])), "granted");
        test.assert_exact();
    });
}

#[test]
fn a_quota_set_under_load_counts_every_claim() {
    at_every_level(|url, isolation| {
        let mut test = TestLedger::postgres(url, isolation);
        test.node("n1", "z", "r");
        race(url, isolation, |test, writer| {
            for n in 0..6 {
                let instance = 1 + writer * 100 + n;
                let planned = test.planned(request(instance), "n1", "z", "r");
                test.commit(vec![planned]);
                if n == writer {
                    let quota = Quota { instances: Some(12), ..Quota::default() };
                    test.one(Op::PutQuota { tenant: Text::from("acme"), quota });
                }
                if n == 5 {
                    test.release(instance).ok();
                }
            }
        });
        let held = test.tables.claims_of("acme", None).unwrap().len();
        assert!(held <= 12, "{isolation}: {held}");
        test.assert_exact();
    });
}

#[test]
fn a_group_that_is_removed_under_load_leaves_no_member_behind() {
    at_every_level(|url, isolation| {
        let mut test = TestLedger::postgres(url, isolation);
        for node in ["n0", "n1", "n2", "n3"] {
            test.node(node, "z", "r");
        }
        race(url, isolation, |test, writer| {
            for n in 0..10 {
                if writer == 0 {
                    test.one(Op::PutGroup(group("g", GroupKind::Apart, Topology::Node)));
                    test.one(Op::RemoveGroup(Text::from("g")));
                    continue;
                }
                let node = format!("n{writer}");
                let mut request = request(1 + writer * 100 + n);
                request.groups.push("g".to_owned());
                let instance = request.id.0.as_u128();
                let planned = test.planned(request, &node, "z", "r");
                if code(&test.commit(vec![planned])) == "granted" {
                    test.release(instance).unwrap();
                }
            }
        });
        test.one(Op::PutGroup(group("g", GroupKind::Apart, Topology::Node)));
        test.assert_exact();
        test.done(Op::RemoveGroup(Text::from("g")));
    });
}

#[test]
fn a_member_that_joins_while_its_group_is_being_removed_is_seen() {
    at_every_level(|url, isolation| {
        let mut test = TestLedger::postgres(url, isolation);
        test.done(Op::PutGroup(group("g", GroupKind::Apart, Topology::Node)));
        let mut member = raw(url);
        let join = "BEGIN; SELECT 1 FROM placement_group WHERE id = 'g' FOR SHARE; \
             INSERT INTO placement_group_member (placement_group, instance, role) VALUES ('g', '0123456789abcdef', 0)";
        member.script("test", join).unwrap();
        let remover = thread::spawn(move || test.one(Op::RemoveGroup(Text::from("g"))));
        // It waits for the group, and has taken its snapshot before, if it has one.
        let mut looker = raw(url);
        let waiting = "DO $$ BEGIN WHILE NOT EXISTS (SELECT 1 FROM pg_locks WHERE NOT granted \
             AND pid IN (SELECT pid FROM pg_stat_activity WHERE datname = current_database())) \
             LOOP PERFORM pg_sleep(0.01); END LOOP; END $$";
        looker.script("test", waiting).unwrap();
        member.script("test", "COMMIT").unwrap();
        let answer = remover.join().unwrap();
        assert!(
            matches!(answer, Answer::Outcome(Outcome::Impossible(_))),
            "{isolation}: {answer:?}"
        );
    });
}

#[test]
fn of_many_policies_one_is_in_force() {
    at_every_level(|url, isolation| {
        let mut test = TestLedger::postgres(url, isolation);
        race(url, isolation, |test, writer| {
            for n in 0..5 {
                let name = format!("policy-{writer}-{n}");
                let (hash, body) = (name.clone(), "{}".to_owned());
                test.done(Op::ActivatePolicy { name, hash, body, expect: None });
            }
        });
        let (_, items) = test.snapshot();
        let active = items.iter().filter(|item| matches!(item, SnapshotItem::Policy(..)));
        assert_eq!(active.count(), 1, "{isolation}");
    });
}

#[test]
fn snapshots_under_load_agree_with_their_cursor() {
    at_every_level(|url, isolation| {
        let mut test = TestLedger::postgres(url, isolation);
        test.node("n1", "z", "r");
        test.node("n2", "z", "r");
        race(url, isolation, |test, writer| {
            for n in 0..10 {
                if writer == 0 {
                    let (cursor, items) = test.snapshot();
                    let is_claim = |item: &&SnapshotItem| matches!(item, SnapshotItem::Claim(_));
                    let claims = items.iter().filter(is_claim).count();
                    let mut events = test.events();
                    events.retain(|event| event.seq <= cursor);
                    let is = |kind: &str| {
                        let with = |event: &&crate::model::Event| {
                            serde_json::to_string(&event.body).unwrap().contains(kind)
                        };
                        events.iter().filter(with).count()
                    };
                    assert_eq!(claims, is("instance.allocated") - is("instance.released"));
                    continue;
                }
                let instance = 1 + writer * 100 + n;
                let node = if writer == 1 { "n1" } else { "n2" };
                let planned = test.planned(request(instance), node, "z", "r");
                test.commit(vec![planned]);
                if n % 2 == 0 {
                    test.release(instance).unwrap();
                }
            }
        });
        test.assert_exact();
    });
}

#[test]
fn releases_moves_and_reaps_that_cross_leave_exact_counters() {
    at_every_level(|url, isolation| {
        let mut test = TestLedger::postgres(url, isolation);
        for node in ["n1", "n2"] {
            test.node(node, "z", "r");
        }
        race(url, isolation, |test, writer| {
            for n in 0..8 {
                let instance = 1 + (writer / 2) * 100 + n;
                let (from, to) = if writer % 2 == 0 { ("n1", "n2") } else { ("n2", "n1") };
                let planned = test.planned(request(instance), from, "z", "r");
                let mut plan = test.plan(vec![planned]);
                plan.lease_s = u32::from(n % 3 != 0) * 100;
                test.commit_plan(plan);
                let to = test.planned(request(instance), to, "z", "r");
                let request_id = Text::from(format!("move-{writer}-{n}"));
                let to =
                    crate::model::Move { request_id, fence: None, to, restart: false, guard: None };
                test.one(Op::Move(Box::new(to)));
                test.one(Op::Reap(NodeId::new("n1")));
                if n % 2 == 0 {
                    let id = format!("out-{writer}-{n}");
                    test.one(Op::Release(release(&id, instance)));
                }
                test.one(Op::Heartbeats(vec![(NodeId::new("n1"), 1), (NodeId::new("n2"), 2)]));
            }
        });
        test.assert_exact();
    });
}

#[test]
fn a_lost_connection_is_opened_again_and_the_answer_is_the_same() {
    at_every_level(|url, isolation| {
        let mut test = TestLedger::postgres(url, isolation);
        test.node("n1", "z", "r");
        let planned = test.planned(request(1), "n1", "z", "r");
        let plan = test.plan(vec![planned]);
        let first = test.commit_plan(plan.clone());
        let mut operator = raw(url);
        let kill = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
             WHERE datname = current_database() AND pid <> pg_backend_pid()";
        operator.script("test", kill).unwrap();
        assert_eq!(test.commit_plan(plan), first);
        assert_eq!(test.retries.lost, 1);
        operator.script("test", kill).unwrap();
        assert!(matches!(test.tables.clock(), Err(Fault::Disconnected(_))));
        assert!(test.tables.clock().is_ok(), "a read opens the connection again");
        test.assert_exact();
    });
}

#[test]
fn a_writer_that_loses_to_another_every_time_still_gets_its_turn() {
    at_every_level(|url, isolation| {
        let mut test = TestLedger::postgres(url, isolation);
        test.node("n1", "z", "r");
        let done = Arc::new(AtomicBool::new(false));
        let other = thread::spawn({
            let (done, mut other) = (Arc::clone(&done), raw(url));
            move || {
                let change =
                    "BEGIN; UPDATE node_room SET node = node; SELECT pg_sleep(0.005); COMMIT";
                while !done.load(Ordering::Relaxed) {
                    other.script("test", change).unwrap();
                }
            }
        });
        for number in 1..=3 {
            let planned = test.planned(request(number), "n1", "z", "r");
            assert_eq!(code(&test.commit(vec![planned])), "granted", "{isolation}");
        }
        done.store(true, Ordering::Relaxed);
        other.join().unwrap();
        test.assert_exact();
    });
}

#[test]
fn a_writer_that_is_kept_waiting_gives_up_and_leaves_nothing_locked() {
    let server = server();
    let url = new_database(&server);
    let mut test = TestLedger::postgres(&url, Isolation::Serializable);
    test.node("n1", "z", "r");
    let mut tables = open(&url, Isolation::Serializable);
    tables.script("SET lock_timeout = '20ms'");
    let mut authorize = raw(&url);
    authorize.script("test", "BEGIN; SELECT 1 FROM node_room FOR UPDATE").unwrap();
    let planned = test.planned(request(1), "n1", "z", "r");
    let plan = Op::Commit(test.plan(vec![planned]));
    let (mut chain, mut retries) = (WriterChains::new(), Retries::default());
    let retry_budget = RetryBudget(Duration::from_secs(1));
    let Err(error) = run(&mut tables, &mut chain, &[plan], retry_budget, &mut retries) else {
        panic!("it was granted");
    };
    assert!(matches!(error, LedgerError::Contention { .. }), "{error}");
    assert_eq!(retries.conflicts, 50);
    authorize.script("test", "COMMIT").unwrap();
    // The writer lock is free again, and the ledger works.
    let quota = Quota::default();
    let answer = test.one(Op::PutQuota { tenant: Text::from("acme"), quota });
    assert_eq!(answer, Answer::Outcome(Outcome::Done));
}
