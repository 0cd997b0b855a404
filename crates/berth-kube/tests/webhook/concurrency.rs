//! Many creations at once: however many replicas share the ledger, exactly as many pods are
//! on-demand as may be, and every slot is given once.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use berth_kube::webhook::Options;
use berth_ledger::Backend;
use berth_pgtemp::{Options as PgOptions, TempPostgres};
use serde_json::Value;
use tempfile::TempDir;

use crate::fixture::{
    Answer, Fixture, Running, free_port, options, post, review, review_id, shared,
};

/// What is wrong with slots that were assigned concurrently, if anything is.
fn fault(assigned: &[String], count: usize, max_on_demand: usize) -> Option<String> {
    let slots: BTreeSet<usize> =
        assigned.iter().map(|it| it.split(' ').next().unwrap().parse().unwrap()).collect();
    let on_demand = assigned.iter().filter(|it| it.ends_with("on-demand")).count();
    if assigned.len() != count {
        return Some(format!("{} answers for {count} pods", assigned.len()));
    }
    if slots != (0..count).collect() {
        return Some(format!("slots {slots:?}"));
    }
    (on_demand != max_on_demand).then(|| format!("{on_demand} on-demand"))
}

/// Sends reviews of so many pods at once, to one webhook after the other in turn.
async fn at_once(webhooks: &[&Running], pod: &Value, count: usize) -> Vec<String> {
    let calls = (0..count).map(|number| {
        let running = webhooks[number % webhooks.len()];
        async move {
            let call = review(&review_id(), pod);
            let path = "/mutate?timeout=5s";
            let (status, text) = post(&running.webhook, path, &call.to_string()).await;
            assert_eq!(status, 200);
            Answer::read(&text, &call["request"]).slot(pod)
        }
    });
    futures_util::future::join_all(calls).await
}

#[tokio::test(flavor = "multi_thread")]
async fn s13_two_replicas_over_one_ledger_give_every_slot_once() {
    let postgres = TempPostgres::start(PgOptions::quick()).unwrap();
    let url = postgres.create_database("webhook").unwrap();
    let mut fixture =
        Fixture::with(|_| {}, |options| options.ledger = Backend::Postgres(url.clone())).await;
    let folder = TempDir::new().unwrap();
    let other = Options { ledger: Backend::Postgres(url), ..options(&folder, free_port()) };
    let other = Running::start(&fixture.fake, other).await;
    for round in 0..25 {
        let owned = fixture.deployment(&format!("web{round}"), 10, &shared(3)).await;
        let first = fixture.running.as_ref().unwrap();
        let slots = at_once(&[first, &other], &owned.pod(), 10).await;
        assert_eq!(fault(&slots, 10, 3), None, "round {round}: {slots:?}");
    }
    // Many more than slots, in a workload that both have known for long.
    let owned = fixture.deployment("large", 80, &shared(17)).await;
    let first = fixture.running.as_ref().unwrap();
    let slots = at_once(&[first, &other], &owned.pod(), 80).await;
    assert_eq!(fault(&slots, 80, 17), None, "{slots:?}");
    other.stop().await;
    fixture.halt().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn s13_one_replica_gives_every_slot_once_however_many_ask_at_once() {
    let fixture = Fixture::new().await;
    let running = fixture.running.as_ref().unwrap();
    for round in 0..5 {
        let owned = fixture.deployment(&format!("web{round}"), 50, &shared(7)).await;
        let slots = at_once(&[running], &owned.pod(), 50).await;
        assert_eq!(fault(&slots, 50, 7), None, "round {round}");
    }
}

/// The mistake that this is all about: look how many there are, then take the next.
#[tokio::test(flavor = "multi_thread")]
async fn a_service_that_counts_first_and_assigns_later_would_be_noticed() {
    let count = Arc::new(AtomicU32::new(0));
    let calls = (0..10).map(|_| {
        let count = Arc::clone(&count);
        async move {
            let slot = count.load(Ordering::SeqCst);
            // The one that counts elsewhere than it takes waits for an answer in between.
            tokio::task::yield_now().await;
            count.fetch_add(1, Ordering::SeqCst);
            let kind = if slot < 3 { "on-demand" } else { "spot" };
            format!("{slot} {kind}")
        }
    });
    let slots = futures_util::future::join_all(calls).await;
    assert!(fault(&slots, 10, 3).is_some(), "{slots:?}");
}
