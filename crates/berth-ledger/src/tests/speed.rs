//! What a commit costs: round trips, counted, and time, measured when asked for.

use std::time::{Duration, Instant};

use berth_engine::GroupKind;
use berth_engine::affinity::Topology;
use berth_pgtemp::{Options, TempPostgres};

use super::{TestLedger, granted, group, new_database, open, raw, request, server};
use crate::model::{Audited, Op, Plan, PlannedClaim, Text};
use crate::postgres::{Isolation, Postgres};
use crate::transaction::{RetryBudget, run};

/// Commits plans in one transaction; returns how many round trips that took.
fn trips(test: &mut TestLedger, tables: &mut Postgres, plans: Vec<Plan>) -> u32 {
    op_trips(test, tables, &plans.into_iter().map(Op::Commit).collect::<Vec<Op>>())
}

/// The same for any operations that are plans.
fn op_trips(test: &mut TestLedger, tables: &mut Postgres, ops: &[Op]) -> u32 {
    let count = |tables: &Postgres| tables.round_trips();
    let before = count(tables);
    let retry_budget = RetryBudget(Duration::from_secs(10));
    let done = run(tables, &mut test.chain, ops, retry_budget, &mut test.retries).unwrap();
    for answer in done.answers {
        let crate::model::Answer::Plan(verdict) = answer else { panic!("{answer:?}") };
        granted(&verdict);
    }
    count(tables) - before
}

#[test]
fn a_commit_costs_two_round_trips_and_one_more_to_find_its_group() {
    let server = server();
    for isolation in Isolation::ALL {
        let url = new_database(&server);
        let mut test = TestLedger::postgres(&url, isolation);
        let mut tables = open(&url, isolation);
        test.node("n1", "z", "r");
        let mut grouped = group("g", GroupKind::Apart, Topology::Node);
        grouped.max_per_domain = Some(9);
        test.done(Op::PutGroup(grouped));
        let plan = |test: &mut TestLedger, instance: u128, groups: &[&str]| {
            let mut request = request(instance);
            request.groups = groups.iter().map(|&group| group.to_owned()).collect();
            let planned = test.planned(request, "n1", "z", "r");
            test.plan(vec![planned])
        };
        // Twice, so that the chain is begun and the statements are prepared.
        for round in 0..3 {
            let plain = vec![plan(&mut test, 10 * round + 1, &[])];
            let plain = trips(&mut test, &mut tables, plain);
            let member = vec![plan(&mut test, 10 * round + 2, &["g"])];
            let member = trips(&mut test, &mut tables, member);
            // Who did it is noted on the way.
            let op = Op::Commit(plan(&mut test, 10 * round + 3, &[]));
            let [actor, origin, action] = ["ann", "", "place"].map(Text::from);
            let subject = Text::default();
            let by = Audited { actor, origin, action, subject, request_id: None, op };
            let noted = op_trips(&mut test, &mut tables, &[Op::Audited(Box::new(by))]);
            if round == 2 {
                assert_eq!((plain, member, noted), (2, 3, 2), "{isolation}");
            }
        }
    }
}

#[test]
#[ignore = "measures; run with --release --ignored --nocapture"]
#[allow(clippy::disallowed_methods, reason = "a stopwatch")]
fn how_long_a_commit_takes() {
    const NODES: u128 = 1000;
    let durable = TempPostgres::start(Options::default()).unwrap();
    let quick = TempPostgres::start(Options::quick()).unwrap();
    for (name, server, isolation) in [
        ("durable", &durable, Isolation::ReadCommitted),
        ("durable", &durable, Isolation::Serializable),
        ("without waiting for the disk", &quick, Isolation::ReadCommitted),
    ] {
        let url = new_database(server);
        let mut test = TestLedger::postgres(&url, isolation);
        let mut tables = open(&url, isolation);
        for node in 0..NODES {
            test.node(&format!("n{node}"), "z", "r");
        }
        raw(&url).script("test", "VACUUM ANALYZE").unwrap();
        let mut instance = 0u128;
        for size in [1, 8, 32, 64, 256] {
            let mut times = Vec::new();
            for _ in 0..200 {
                let plans = (0..size)
                    .map(|_| {
                        instance += 1;
                        let mut request = request(instance * 0x1234_5678_9abc_def1);
                        request.resources = berth_engine::Amounts::new(1, 1);
                        let node = format!("n{}", instance * 7 % NODES);
                        let planned: PlannedClaim = test.planned(request, &node, "z", "r");
                        test.plan(vec![planned])
                    })
                    .collect();
                let start = Instant::now();
                trips(&mut test, &mut tables, plans);
                times.push(start.elapsed());
            }
            times.sort_unstable();
            let (half, most) = (times[100], times[197]);
            println!("{name}, {isolation}: {size:3} claims: p50 {half:?}, p99 {most:?}");
        }
    }
}
