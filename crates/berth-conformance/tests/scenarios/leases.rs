//! Leases, fences and ends: scenarios 8, 9 and 12.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use berth_conformance::{
    Database, Fixture, Outcome, PlaceTask, Report, StepOutcome, StepTask, Task, WorkerPool,
    stopwatch,
};
use berth_engine::InstanceId;
use berth_ledger::GrantedClaim;

use crate::common::{
    WORKERS, assert_clean, assert_mirrors, assert_none, instance, outcomes, pool, program, round,
    step_outcome,
};

fn granted(fixture: &Fixture, outcome: &Outcome) -> GrantedClaim {
    match outcome.claims() {
        [claim] => claim.clone(),
        _ => panic!("{fixture}: {outcome:?}"),
    }
}

fn place_one(fixture: &Fixture, pool: &mut WorkerPool, ask: PlaceTask) -> Outcome {
    let mut found = outcomes(&round(fixture, pool, vec![Task::Place(vec![ask])]));
    assert_eq!(found.len(), 1, "{fixture}");
    found.remove(0)
}

fn order_one(fixture: &Fixture, pool: &mut WorkerPool, order: StepTask) -> StepOutcome {
    let mut found = step_outcome(&round(fixture, pool, vec![Task::Steps(vec![order])]));
    assert_eq!(found.len(), 1, "{fixture}");
    found.remove(0)
}

fn code(answer: &StepOutcome) -> &str {
    match answer {
        StepOutcome::Rejected { code, .. } => code,
        _ => "",
    }
}

pub(crate) fn a_killed_scheduler_gives_its_room_back(fixture: &Fixture) {
    fixture.put_node(Fixture::facts("only", 1_000_000, 1024, "r")).unwrap();
    let mut doomed = WorkerPool::start(program(), &fixture.settings(), 1).unwrap();
    let mut others = WorkerPool::start(program(), &fixture.settings(), 2).unwrap();
    let asked = stopwatch();
    let claim = granted(
        fixture,
        &place_one(fixture, &mut doomed, PlaceTask::one(instance(1, 1024)).leased(1)),
    );
    doomed.kill(0).unwrap();
    // The room is the dead scheduler's until its lease ends, and not a moment longer than a reap.
    let early = order_one(fixture, &mut others, StepTask::Reap);
    if asked.elapsed() < Duration::from_secs(1) {
        assert_eq!(early, StepOutcome::Count(0), "{fixture}");
    }
    std::thread::sleep(Duration::from_millis(1100).saturating_sub(asked.elapsed()));
    let bind = StepTask::Bind { instance: InstanceId::from_u128(1), fence: claim.fence };
    let late = order_one(fixture, &mut others, bind.clone());
    assert_eq!(code(&late), "lease_expired", "{fixture}: {late:?}");
    let reaped = order_one(fixture, &mut others, StepTask::Reap);
    assert_eq!(reaped, StepOutcome::Count(1), "{fixture}");
    assert_none(fixture, &fixture.violations().unwrap());
    let gone = order_one(fixture, &mut others, bind.clone());
    assert_eq!(code(&gone), "no_claim", "{fixture}: {gone:?}");
    // The same instance is placed again, and the old fence is worth nothing.
    let mut again = PlaceTask::one(instance(1, 1024));
    again.request_id = "again".to_owned();
    let newer = granted(fixture, &place_one(fixture, &mut others, again));
    assert!(newer.fence > claim.fence, "{fixture}: {newer:?} after {claim:?}");
    let stale = order_one(fixture, &mut others, bind);
    assert_eq!(code(&stale), "stale_fence", "{fixture}: {stale:?}");
    let bind = StepTask::Bind { instance: InstanceId::from_u128(1), fence: newer.fence };
    assert!(
        matches!(order_one(fixture, &mut others, bind), StepOutcome::Status { .. }),
        "{fixture}"
    );
    assert_mirrors(fixture, &mut others);
    assert_clean(fixture);
}

/// How far the workers' clocks are off.
const OFF_S: [i64; 3] = [-600, 0, 600];

/// Where faketime is, which gives a process another clock.
fn faketime() -> Option<&'static Path> {
    let known = ["/usr/bin/faketime", "/usr/local/bin/faketime"].map(Path::new);
    known.into_iter().find(|path| path.exists())
}

/// Workers whose clocks are ten minutes slow, right, and ten minutes fast.
///
/// Their planners' clock is always off. On PostgreSQL the whole process is put under `faketime`
/// too, where that is installed. On SQLite it must not be: the database runs inside the process and
/// its clock is the machine's, which all processes that can open the file share.
fn clocks(fixture: &Fixture) -> WorkerPool {
    let faketime = faketime().filter(|_| fixture.database != Database::Sqlite);
    if faketime.is_none() && fixture.database != Database::Sqlite {
        println!("{fixture}: faketime is not installed; only the planners' clocks are off");
    }
    let start = WorkerPool::start_with(OFF_S.len(), |number| {
        let (offset_s, mut settings) = (OFF_S[number], fixture.settings());
        let command = match faketime.filter(|_| offset_s != 0) {
            Some(faketime) => {
                let mut command = Command::new(faketime);
                // Waiting goes by the monotonic clock, which stays as it is.
                command.env("FAKETIME_DONT_FAKE_MONOTONIC", "1");
                command.args(["-f", &format!("{offset_s:+}s")]).arg(program());
                command
            }
            None => {
                settings.clock_offset_s = offset_s;
                Command::new(program())
            }
        };
        Ok((command, settings))
    });
    let mut pool = start.unwrap_or_else(|why| panic!("{fixture}: {why:#}"));
    let told = round(fixture, &mut pool, vec![Task::Clock; OFF_S.len()]);
    let clocks: Vec<i64> = told
        .iter()
        .map(|report| match report {
            Report::Clock(at) => *at,
            other => panic!("{fixture}: {other:?}"),
        })
        .collect();
    // A scenario about wrong clocks whose clocks are right would prove nothing.
    for (clock, off) in clocks.iter().zip(OFF_S) {
        assert!((clock - clocks[1] - off).abs() < 30, "{fixture}: clocks are at {clocks:?}");
    }
    pool
}

pub(crate) fn wrong_clocks_move_no_lease(fixture: &Fixture) {
    fixture.put_node(Fixture::facts("only", 1_000_000, 65_536, "r")).unwrap();
    let mut pool = clocks(fixture);
    let asks = (0..3).map(|worker| {
        let long = PlaceTask::one(instance(worker * 10 + 1, 64)).leased(60);
        let short = PlaceTask::one(instance(worker * 10 + 2, 64)).leased(1);
        Task::Place(vec![long, short])
    });
    let placed = outcomes(&round(fixture, &mut pool, asks.collect()));
    let claims: Vec<GrantedClaim> =
        placed.iter().map(|outcome| granted(fixture, outcome)).collect();
    // All leases end where the database's clock says, the caller.
    let ends: Vec<i64> = claims.iter().map(|claim| claim.lease_until.unwrap().0).collect();
    for pair in ends.chunks(2).collect::<Vec<_>>().windows(2) {
        let apart = (pair[0][0] - pair[1][0]).abs();
        assert!(apart < 30_000_000, "{fixture}: leases of 60 s end {apart} us apart");
    }
    // From the answers on: on a busy machine the last lease may begin long after it was asked for.
    std::thread::sleep(Duration::from_millis(1200));
    // Every clock finds the same three leases to have ended, and no other.
    let reaps = vec![Task::Steps(vec![StepTask::Reap]); 3];
    let counts =
        step_outcome(&round(fixture, &mut pool, reaps)).into_iter().map(|answer| match answer {
            StepOutcome::Count(count) => count,
            other => panic!("{fixture}: {other:?}"),
        });
    assert_eq!(counts.sum::<usize>(), 3, "{fixture}");
    let renewals = claims.iter().step_by(2).map(|claim| {
        let (instance, fence) = (claim.instance, claim.fence);
        let renew = StepTask::Renew { instance, fence, lease_s: 60 };
        Task::Steps(vec![renew, StepTask::Reap, StepTask::Bind { instance, fence }])
    });
    for answer in step_outcome(&round(fixture, &mut pool, renewals.collect())) {
        let fine = matches!(answer, StepOutcome::Status { .. } | StepOutcome::Count(0));
        assert!(fine, "{fixture}: {answer:?}");
    }
    assert_eq!(fixture.state().unwrap().claims.len(), 3, "{fixture}");
    assert_clean(fixture);
}

pub(crate) fn released_twice(fixture: &Fixture) {
    fixture.put_node(Fixture::facts("only", 1_000_000, 65_536, "r")).unwrap();
    let mut pool = pool(fixture);
    for number in 0..20u128 {
        // A second claim shows a counter that was taken off twice.
        let asks = vec![
            PlaceTask::one(instance(number * 10 + 1, 64)),
            PlaceTask::one(instance(number * 10 + 2, 64)),
        ];
        round(fixture, &mut pool, vec![Task::Place(asks)]);
        let tasks = (0..WORKERS).map(|worker| {
            // Half of them retry one request, the others have requests of their own.
            let request_id = if worker % 2 == 0 {
                format!("release-{number}")
            } else {
                format!("release-{number}-{worker}")
            };
            let instance = InstanceId::from_u128(number * 10 + 1);
            Task::Steps(vec![StepTask::Release { request_id, instance }])
        });
        let answers = step_outcome(&round(fixture, &mut pool, tasks.collect()));
        for answer in &answers {
            let gone = matches!(answer, StepOutcome::Status { state: None, .. });
            assert!(gone || code(answer) == "no_claim", "{fixture}: {answer:?}");
        }
        let retries: Vec<&StepOutcome> = answers.iter().step_by(2).collect();
        let same = retries.iter().all(|answer| *answer == retries[0]);
        assert!(same, "{fixture}: one request, different answers: {retries:?}");
        assert_none(fixture, &fixture.violations().unwrap());
        fixture.clear().unwrap();
    }
    assert_clean(fixture);
}

pub(crate) fn released_while_reaped(fixture: &Fixture) {
    fixture.put_node(Fixture::facts("only", 1_000_000, 65_536, "r")).unwrap();
    let mut pool = pool(fixture);
    for number in 0..20u128 {
        let asks = |at: u128| PlaceTask::one(instance(number * 100 + at, 64)).leased(0);
        let mut placed: Vec<PlaceTask> = (1..=10).map(asks).collect();
        placed.push(PlaceTask::one(instance(number * 100 + 99, 64)));
        // Bare plans: a planner that finds no room would reap by itself.
        let nodes = vec!["only".to_owned()];
        let plans = placed
            .into_iter()
            .map(|ask| berth_conformance::PlannedPlaceTask { ask, nodes: nodes.clone() });
        let granted = outcomes(&round(fixture, &mut pool, vec![Task::Commit(plans.collect())]));
        assert!(granted.iter().all(Outcome::is_granted), "{fixture}: {granted:?}");
        let tasks = (0..WORKERS).map(|worker| {
            if worker % 2 == 0 {
                return Task::Steps(vec![StepTask::Reap]);
            }
            let releases = (1..=10).map(|at| StepTask::Release {
                request_id: format!("release-{number}-{at}-{worker}"),
                instance: InstanceId::from_u128(number * 100 + at),
            });
            Task::Steps(releases.collect())
        });
        let answers = step_outcome(&round(fixture, &mut pool, tasks.collect()));
        let mut ended = 0;
        for answer in &answers {
            match answer {
                StepOutcome::Count(reaped) => ended += reaped,
                StepOutcome::Status { state: None, .. } => ended += 1,
                other => assert_eq!(code(other), "no_claim", "{fixture}: {other:?}"),
            }
        }
        assert_eq!(ended, 10, "{fixture}: each of ten claims ends once: {answers:?}");
        assert_eq!(fixture.state().unwrap().claims.len(), 1, "{fixture}");
        assert_none(fixture, &fixture.violations().unwrap());
        fixture.clear().unwrap();
    }
    assert_clean(fixture);
}
