//! A counter that somebody changed by hand: scenario 13.

use std::time::Duration;

use berth_conformance::{Order, Report, Stage, Stood, Task};
use berth_ledger::EventBody;

use crate::setting::{CREW, assert_clean, crew, instance};

const OFF: i64 = 777;

pub(crate) fn a_corrupted_counter_is_mended_once(stage: &Stage) {
    for node in ["a", "b"] {
        stage.put_node(Stage::facts(node, 1_000_000, 65_536, "r")).unwrap();
    }
    let mut crew = crew(stage);
    let tasks = (0..CREW).map(|worker| {
        if worker >= 5 {
            // Three reconcilers look all the while; only one may find it.
            return Task::Orders(vec![Order::Reconcile { times: 60 }]);
        }
        let space = worker as u64 + 1;
        Task::Churn { like: instance(0, 64), space, millis: 1500 }
    });
    crew.begin(tasks.collect()).unwrap();
    std::thread::sleep(Duration::from_millis(100));
    let sql = format!("UPDATE node_room SET used_memory = used_memory + {OFF} WHERE node = 'a'");
    stage.hand().run(&sql).unwrap();
    let reports = crew.reports().unwrap_or_else(|why| panic!("{stage}: {why:#}"));
    let mut drifts = Vec::new();
    let mut churned = 0;
    for report in reports {
        match report {
            Report::Churned(count) => churned += count,
            Report::Stood(answers) => {
                for answer in answers {
                    let Stood::Drifts(found) = answer else { panic!("{stage}: {answer:?}") };
                    drifts.extend(found);
                }
            }
            other => panic!("{stage}: {other:?}"),
        }
    }
    assert!(churned >= 5, "{stage}: hardly any load: {churned}");
    // The reconcilers may have been done before the hand came; then the test's own finds it.
    drifts.extend(stage.ledger().unwrap().reconcile().unwrap());
    let found: Vec<_> = drifts.iter().map(|d| (d.row.as_str(), d.amounts.clone())).collect();
    let wanted = [("memory".to_owned(), OFF)].into_iter().collect();
    assert_eq!(found, [("node a", wanted)], "{stage}");
    let told: Vec<_> = stage
        .events()
        .unwrap()
        .into_iter()
        .filter_map(|event| match event.body {
            EventBody::Drift { row, amounts } => Some((row, amounts)),
            _ => None,
        })
        .collect();
    assert_eq!(told.len(), 1, "{stage}: {told:?}");
    assert_eq!(told[0].1["memory"], OFF, "{stage}");
    assert_clean(stage);
}
