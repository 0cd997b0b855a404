//! Members are stopped only while enough others run, however many servers stop them at once.

use std::sync::{Arc, Barrier};
use std::thread;

use super::{
    TestLedger, granted, key, new_database, on_every_database, release, request, server, start,
};
use crate::model::{
    AvailabilityGuard, ClaimRejection, ClaimState, Expect, Op, PlannedClaim, SlotKey, StopMember,
    Text, Workload,
};
use crate::postgres::Isolation;

const WORKLOAD: &str = "web";

fn put_workload(test: &mut TestLedger, version: i64) {
    let (tenant, name) = ("acme".to_owned(), WORKLOAD.to_owned());
    let body = format!("{{\"version\":{version}}}");
    let workload = Workload { tenant, name, revision: version, replicas: 3, body };
    test.done(Op::PutWorkload { workload, expect: Expect::Any });
}

/// Grants a member a slot. It does not run yet.
fn place(test: &mut TestLedger, instance: u128, slot: i64) {
    let mut request = request(instance);
    request.workload = Some(WORKLOAD.to_owned());
    request.resources = berth_engine::Amounts::new(1, 1);
    let (tenant, workload) = (Text::from("acme"), Text::from(WORKLOAD));
    let slot = Some(SlotKey { tenant, workload, revision: 1, slot });
    let planned = PlannedClaim { slot, ..test.planned(request, "n1", "z", "r") };
    granted(&test.commit(vec![planned]));
}

/// Stops a member if so many of these run.
fn stop(
    test: &mut TestLedger,
    instance: u128,
    (version, running, at_least): (i64, &[u128], usize),
) -> Result<ClaimState, &'static str> {
    test.requests += 1;
    let mut release = release(&format!("stop-{}-{}", instance, test.requests), instance);
    release.confirmed = false;
    let guard = Arc::new(AvailabilityGuard {
        tenant: Text::from("acme"),
        workload: Text::from(WORKLOAD),
        version,
        running: running.iter().map(|instance| key(*instance)).collect(),
        at_least,
    });
    let stopped = test.claim_answer(Op::StopMember(Box::new(StopMember { release, guard })));
    stopped.map(|status| status.state.unwrap()).map_err(|rejected| match rejected {
        ClaimRejection::Guard(guard) => guard.code(),
        other => panic!("{other:?}"),
    })
}

#[test]
fn a_member_is_stopped_only_while_enough_of_those_that_stay_run() {
    on_every_database(|test| {
        test.node("n1", "z", "r");
        put_workload(test, 1);
        for (instance, slot) in [(1, 0), (2, 1), (3, 2), (4, 3)] {
            place(test, instance, slot);
        }
        (1..=3).for_each(|instance| start(test, instance));
        assert_eq!(stop(test, 1, (2, &[2, 3], 2)), Err("workload_changed"));
        assert_eq!(stop(test, 1, (1, &[2, 3, 4], 3)), Err("too_few_running"), "4 does not run");
        assert_eq!(stop(test, 1, (1, &[2, 3], 2)), Ok(ClaimState::Releasing));
        assert_eq!(stop(test, 2, (1, &[1, 3], 2)), Err("too_few_running"), "1 is being stopped");
        assert_eq!(stop(test, 1, (1, &[2, 9], 2)), Ok(ClaimState::Releasing), "once more");
        test.release(3).unwrap();
        assert_eq!(stop(test, 2, (1, &[3], 1)), Err("too_few_running"), "3 is gone");
        assert_eq!(stop(test, 2, (1, &[], 0)), Ok(ClaimState::Releasing));
        put_workload(test, 2);
        assert_eq!(stop(test, 4, (1, &[], 0)), Err("workload_changed"));
        test.assert_exact();
    });
}

#[test]
fn two_members_in_one_slot_count_once() {
    on_every_database(|test| {
        test.node("n1", "z", "r");
        put_workload(test, 1);
        (1..=3).for_each(|instance| place(test, instance, i64::try_from(instance).unwrap()));
        (1..=3).for_each(|instance| start(test, instance));
        // A replacement takes over slot 3 from the one that runs there.
        let mut request = request(5);
        request.workload = Some(WORKLOAD.to_owned());
        let (tenant, workload) = (Text::from("acme"), Text::from(WORKLOAD));
        let slot = Some(SlotKey { tenant, workload, revision: 1, slot: 3 });
        let planned = test.planned(request, "n1", "z", "r");
        let takes_over = Some(key(3));
        granted(&test.commit(vec![PlannedClaim { slot, takes_over, ..planned }]));
        start(test, 5);
        assert_eq!(stop(test, 1, (1, &[3, 5], 2)), Err("too_few_running"));
        assert_eq!(stop(test, 3, (1, &[1, 2, 5], 3)), Ok(ClaimState::Releasing));
    });
}

#[test]
fn of_two_servers_that_each_stop_a_member_the_other_counts_on_one_succeeds() {
    let server = server();
    for isolation in Isolation::ALL {
        let url = new_database(&server);
        let mut test = TestLedger::postgres(&url, isolation);
        test.node("n1", "z", "r");
        put_workload(&mut test, 1);
        for round in 0..10 {
            let pair = [1 + 2 * round, 2 + 2 * round];
            for instance in pair {
                place(&mut test, instance, i64::try_from(instance).unwrap());
                start(&mut test, instance);
            }
            let together = Arc::new(Barrier::new(2));
            let stops = [pair, [pair[1], pair[0]]].map(|[stopped, counted_on]| {
                let (url, together) = (url.clone(), Arc::clone(&together));
                thread::spawn(move || {
                    let mut test = TestLedger::postgres(&url, isolation);
                    together.wait();
                    stop(&mut test, stopped, (1, &[counted_on], 1))
                })
            });
            let stopped = stops.map(|stop| stop.join().unwrap());
            let done = stopped.iter().filter(|it| **it == Ok(ClaimState::Releasing)).count();
            assert_eq!(done, 1, "{isolation}, round {round}: {stopped:?}");
            assert!(stopped.contains(&Err("too_few_running")), "{stopped:?}");
        }
    }
}
