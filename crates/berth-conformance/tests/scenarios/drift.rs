//! A counter that somebody changed by hand: scenario 13.

use std::time::Duration;

use berth_conformance::{Fixture, Report, StepOutcome, StepTask, Task};
use berth_ledger::EventBody;

use crate::common::{WORKERS, assert_clean, instance, pool};

const OFF: i64 = 777;

pub(crate) fn a_corrupted_counter_is_mended_once(fixture: &Fixture) {
    for node in ["a", "b"] {
        fixture.put_node(Fixture::facts(node, 1_000_000, 65_536, "r")).unwrap();
    }
    let mut pool = pool(fixture);
    let tasks = (0..WORKERS).map(|worker| {
        if worker >= 5 {
            // Three reconcilers look all the while; only one may find it.
            return Task::Steps(vec![StepTask::Reconcile { times: 60 }]);
        }
        let space = worker as u64 + 1;
        Task::Churn { like: instance(0, 64), space, millis: 1500 }
    });
    pool.begin_round(tasks.collect()).unwrap();
    std::thread::sleep(Duration::from_millis(100));
    let sql = format!("UPDATE node_room SET used_memory = used_memory + {OFF} WHERE node = 'a'");
    fixture.sql_connection().run(&sql).unwrap();
    let wait_for_reports =
        pool.wait_for_reports().unwrap_or_else(|why| panic!("{fixture}: {why:#}"));
    let mut drifts = Vec::new();
    let mut churned = 0;
    for report in wait_for_reports {
        match report {
            Report::Churned(count) => churned += count,
            Report::StepOutcome(answers) => {
                for answer in answers {
                    let StepOutcome::Drifts(found) = answer else {
                        panic!("{fixture}: {answer:?}")
                    };
                    drifts.extend(found);
                }
            }
            other => panic!("{fixture}: {other:?}"),
        }
    }
    assert!(churned >= 5, "{fixture}: hardly any load: {churned}");
    // The reconcilers may have been done before the hand came; then the test's own finds it.
    drifts.extend(fixture.ledger().unwrap().reconcile().unwrap());
    let found: Vec<_> = drifts.iter().map(|d| (d.row.as_str(), d.amounts.clone())).collect();
    let wanted = [("memory".to_owned(), OFF)].into_iter().collect();
    assert_eq!(found, [("node a", wanted)], "{fixture}");
    let told: Vec<_> = fixture
        .events()
        .unwrap()
        .into_iter()
        .filter_map(|event| match event.body {
            EventBody::Drift { row, amounts } => Some((row, amounts)),
            _ => None,
        })
        .collect();
    assert_eq!(told.len(), 1, "{fixture}: {told:?}");
    assert_eq!(told[0].1["memory"], OFF, "{fixture}");
    assert_clean(fixture);
}
