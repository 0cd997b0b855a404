//! Everything goes wrong at once, and every pod is bound once all the same.

use std::time::Duration;

use berth_kube_fake::Faults;

use crate::support::{Replica, add_nodes, add_pod, check_books, eventually, start};

const NODES: usize = 40;
const PODS: usize = 600;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn errors_lost_answers_cut_watches_and_a_killed_leader_lose_no_pod_and_bind_none_twice() {
    let fake = start().await;
    let names: Vec<String> = (0..NODES).map(|index| format!("n{index}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    // Just enough: a place that is counted twice or lost is found out.
    add_nodes(&fake, &names, 3_000).await;
    let first = Replica::mortal(&fake, "first");
    add_pod(&fake, "p0", 200).await;
    eventually("one leads", || fake.bindings().len() == 1).await;
    let second = Replica::standing(&fake, "second").await;
    fake.set_faults(Faults {
        error_rate_permille: 50,
        lost_reply_permille: 20,
        drop_watches_every: Some(Duration::from_secs(2)),
        latency: Some(Duration::from_millis(2)),
        ..Faults::default()
    });
    let mut first = Some(first);
    for index in 1..PODS {
        add_pod(&fake, &format!("p{index}"), 200).await;
        if index == PODS / 3 {
            first.take().unwrap().shutdown_background();
        }
        if index % 150 == 0 {
            fake.compact();
        }
    }
    eventually("all are bound", || fake.bindings().len() >= PODS).await;
    check_books(&fake);
    assert_eq!(fake.bindings().len(), PODS);
    second.stop().await;
}
