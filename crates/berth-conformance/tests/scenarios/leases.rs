//! Leases, fences and ends: scenarios 8, 9 and 12.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use berth_conformance::{Ask, Crew, Engine, Order, Outcome, Report, Stage, Stood, Task, stopwatch};
use berth_engine::InstanceId;
use berth_ledger::GrantedClaim;

use crate::setting::{
    CREW, assert_clean, assert_mirrors, assert_none, crew, instance, outcomes, program, round,
    stood,
};

fn granted(stage: &Stage, outcome: &Outcome) -> GrantedClaim {
    match outcome.claims() {
        [claim] => claim.clone(),
        _ => panic!("{stage}: {outcome:?}"),
    }
}

fn place_one(stage: &Stage, crew: &mut Crew, ask: Ask) -> Outcome {
    let mut found = outcomes(&round(stage, crew, vec![Task::Place(vec![ask])]));
    assert_eq!(found.len(), 1, "{stage}");
    found.remove(0)
}

fn order_one(stage: &Stage, crew: &mut Crew, order: Order) -> Stood {
    let mut found = stood(&round(stage, crew, vec![Task::Orders(vec![order])]));
    assert_eq!(found.len(), 1, "{stage}");
    found.remove(0)
}

fn code(answer: &Stood) -> &str {
    match answer {
        Stood::Rejected { code, .. } => code,
        _ => "",
    }
}

pub(crate) fn a_killed_scheduler_gives_its_room_back(stage: &Stage) {
    stage.put_node(Stage::facts("only", 1_000_000, 1024, "r")).unwrap();
    let mut doomed = Crew::start(program(), &stage.settings(), 1).unwrap();
    let mut others = Crew::start(program(), &stage.settings(), 2).unwrap();
    let asked = stopwatch();
    let claim =
        granted(stage, &place_one(stage, &mut doomed, Ask::one(instance(1, 1024)).leased(1)));
    doomed.kill(0).unwrap();
    // The room is the dead scheduler's until its lease ends, and not a moment longer than a reap.
    let early = order_one(stage, &mut others, Order::Reap);
    if asked.elapsed() < Duration::from_secs(1) {
        assert_eq!(early, Stood::Count(0), "{stage}");
    }
    std::thread::sleep(Duration::from_millis(1100).saturating_sub(asked.elapsed()));
    let bind = Order::Bind { instance: InstanceId::from_u128(1), fence: claim.fence };
    let late = order_one(stage, &mut others, bind.clone());
    assert_eq!(code(&late), "lease_expired", "{stage}: {late:?}");
    let reaped = order_one(stage, &mut others, Order::Reap);
    assert_eq!(reaped, Stood::Count(1), "{stage}");
    assert_none(stage, &stage.faults().unwrap());
    let gone = order_one(stage, &mut others, bind.clone());
    assert_eq!(code(&gone), "no_claim", "{stage}: {gone:?}");
    // The same instance is placed anew, and the old fence is worth nothing.
    let mut again = Ask::one(instance(1, 1024));
    again.request_id = "again".to_owned();
    let newer = granted(stage, &place_one(stage, &mut others, again));
    assert!(newer.fence > claim.fence, "{stage}: {newer:?} after {claim:?}");
    let stale = order_one(stage, &mut others, bind);
    assert_eq!(code(&stale), "stale_fence", "{stage}: {stale:?}");
    let bind = Order::Bind { instance: InstanceId::from_u128(1), fence: newer.fence };
    assert!(matches!(order_one(stage, &mut others, bind), Stood::Stands { .. }), "{stage}");
    assert_mirrors(stage, &mut others);
    assert_clean(stage);
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
fn clocks(stage: &Stage) -> Crew {
    let faketime = faketime().filter(|_| stage.engine != Engine::Sqlite);
    if faketime.is_none() && stage.engine != Engine::Sqlite {
        println!("{stage}: faketime is not installed; only the planners' clocks are off");
    }
    let start = Crew::start_with(OFF_S.len(), |number| {
        let (offset_s, mut settings) = (OFF_S[number], stage.settings());
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
    let mut crew = start.unwrap_or_else(|why| panic!("{stage}: {why:#}"));
    let told = round(stage, &mut crew, vec![Task::Clock; OFF_S.len()]);
    let clocks: Vec<i64> = told
        .iter()
        .map(|report| match report {
            Report::Clock(at) => *at,
            other => panic!("{stage}: {other:?}"),
        })
        .collect();
    // A scenario about wrong clocks whose clocks are right would prove nothing.
    for (clock, off) in clocks.iter().zip(OFF_S) {
        assert!((clock - clocks[1] - off).abs() < 30, "{stage}: clocks are at {clocks:?}");
    }
    crew
}

pub(crate) fn wrong_clocks_move_no_lease(stage: &Stage) {
    stage.put_node(Stage::facts("only", 1_000_000, 65_536, "r")).unwrap();
    let mut crew = clocks(stage);
    let asks = (0..3).map(|worker| {
        let long = Ask::one(instance(worker * 10 + 1, 64)).leased(60);
        let short = Ask::one(instance(worker * 10 + 2, 64)).leased(1);
        Task::Place(vec![long, short])
    });
    let placed = outcomes(&round(stage, &mut crew, asks.collect()));
    let claims: Vec<GrantedClaim> = placed.iter().map(|outcome| granted(stage, outcome)).collect();
    // All leases end where the database's clock says, whoever asked.
    let ends: Vec<i64> = claims.iter().map(|claim| claim.lease_until.unwrap().0).collect();
    for pair in ends.chunks(2).collect::<Vec<_>>().windows(2) {
        let apart = (pair[0][0] - pair[1][0]).abs();
        assert!(apart < 30_000_000, "{stage}: leases of 60 s end {apart} us apart");
    }
    // From the answers on: on a busy machine the last lease may begin long after it was asked for.
    std::thread::sleep(Duration::from_millis(1200));
    // Every clock finds the same three leases to have ended, and no other.
    let reaps = vec![Task::Orders(vec![Order::Reap]); 3];
    let counts = stood(&round(stage, &mut crew, reaps)).into_iter().map(|answer| match answer {
        Stood::Count(count) => count,
        other => panic!("{stage}: {other:?}"),
    });
    assert_eq!(counts.sum::<usize>(), 3, "{stage}");
    let renewals = claims.iter().step_by(2).map(|claim| {
        let (instance, fence) = (claim.instance, claim.fence);
        let renew = Order::Renew { instance, fence, lease_s: 60 };
        Task::Orders(vec![renew, Order::Reap, Order::Bind { instance, fence }])
    });
    for answer in stood(&round(stage, &mut crew, renewals.collect())) {
        let fine = matches!(answer, Stood::Stands { .. } | Stood::Count(0));
        assert!(fine, "{stage}: {answer:?}");
    }
    assert_eq!(stage.books().unwrap().claims.len(), 3, "{stage}");
    assert_clean(stage);
}

pub(crate) fn released_twice(stage: &Stage) {
    stage.put_node(Stage::facts("only", 1_000_000, 65_536, "r")).unwrap();
    let mut crew = crew(stage);
    for number in 0..20u128 {
        // A second claim shows a counter that was taken off twice.
        let asks =
            vec![Ask::one(instance(number * 10 + 1, 64)), Ask::one(instance(number * 10 + 2, 64))];
        round(stage, &mut crew, vec![Task::Place(asks)]);
        let tasks = (0..CREW).map(|worker| {
            // Half of them retry one request, the others have requests of their own.
            let request_id = if worker % 2 == 0 {
                format!("release-{number}")
            } else {
                format!("release-{number}-{worker}")
            };
            let instance = InstanceId::from_u128(number * 10 + 1);
            Task::Orders(vec![Order::Release { request_id, instance }])
        });
        let answers = stood(&round(stage, &mut crew, tasks.collect()));
        for answer in &answers {
            let gone = matches!(answer, Stood::Stands { state: None, .. });
            assert!(gone || code(answer) == "no_claim", "{stage}: {answer:?}");
        }
        let retries: Vec<&Stood> = answers.iter().step_by(2).collect();
        let same = retries.iter().all(|answer| *answer == retries[0]);
        assert!(same, "{stage}: one request, different answers: {retries:?}");
        assert_none(stage, &stage.faults().unwrap());
        stage.clear().unwrap();
    }
    assert_clean(stage);
}

pub(crate) fn released_while_reaped(stage: &Stage) {
    stage.put_node(Stage::facts("only", 1_000_000, 65_536, "r")).unwrap();
    let mut crew = crew(stage);
    for number in 0..20u128 {
        let asks = |at: u128| Ask::one(instance(number * 100 + at, 64)).leased(0);
        let mut placed: Vec<Ask> = (1..=10).map(asks).collect();
        placed.push(Ask::one(instance(number * 100 + 99, 64)));
        // Bare plans: a planner that finds no room would reap by itself.
        let nodes = vec!["only".to_owned()];
        let plans = placed
            .into_iter()
            .map(|ask| berth_conformance::PlannedAsk { ask, nodes: nodes.clone() });
        let granted = outcomes(&round(stage, &mut crew, vec![Task::Commit(plans.collect())]));
        assert!(granted.iter().all(Outcome::is_granted), "{stage}: {granted:?}");
        let tasks = (0..CREW).map(|worker| {
            if worker % 2 == 0 {
                return Task::Orders(vec![Order::Reap]);
            }
            let releases = (1..=10).map(|at| Order::Release {
                request_id: format!("release-{number}-{at}-{worker}"),
                instance: InstanceId::from_u128(number * 100 + at),
            });
            Task::Orders(releases.collect())
        });
        let answers = stood(&round(stage, &mut crew, tasks.collect()));
        let mut ended = 0;
        for answer in &answers {
            match answer {
                Stood::Count(reaped) => ended += reaped,
                Stood::Stands { state: None, .. } => ended += 1,
                other => assert_eq!(code(other), "no_claim", "{stage}: {other:?}"),
            }
        }
        assert_eq!(ended, 10, "{stage}: each of ten claims ends once: {answers:?}");
        assert_eq!(stage.books().unwrap().claims.len(), 1, "{stage}");
        assert_none(stage, &stage.faults().unwrap());
        stage.clear().unwrap();
    }
    assert_clean(stage);
}
