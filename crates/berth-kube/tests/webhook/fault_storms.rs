//! Two replicas over one ledger in a cluster where things go wrong: requests fail, answers are lost,
//! watches break, a replica stops. In the end every count is right.

use std::time::Duration;

use berth_kube::webhook::Options;
use berth_kube_fake::{Faults, samples};
use berth_ledger::Backend;
use berth_pgtemp::{Options as PgOptions, TempPostgres};
use serde_json::json;
use tempfile::TempDir;

use crate::cluster::{annotate, binder, count, pods, slots};
use crate::fixture::{Fixture, Running, eventually, free_port, options, shared};

/// How many of an app's pods are on each kind of node, all ready: on-demand and spot.
fn counts(fixture: &Fixture, app: &str) -> Option<(usize, usize)> {
    let found = slots(&fixture.fake, app);
    let settled = !found.contains(['!', '?']);
    settled.then(|| (found.matches(":O").count(), found.matches(":S").count()))
}

async fn settles(fixture: &Fixture, app: &str, expected: (usize, usize)) {
    let what = format!("{app} with {expected:?}");
    let waited = tokio::time::timeout(Duration::from_secs(90), async {
        while counts(fixture, app) != Some(expected) {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    });
    assert!(waited.await.is_ok(), "never came: {what}, but {}", slots(&fixture.fake, app));
}

#[tokio::test(flavor = "multi_thread")]
async fn two_replicas_are_right_in_the_end_whatever_goes_wrong() {
    let postgres = TempPostgres::start(PgOptions::quick()).unwrap();
    let url = postgres.create_database("webhook").unwrap();
    let alive = |fake: &mut berth_kube_fake::Options| {
        fake.controllers = true;
        fake.kubelet = true;
    };
    let quick = |options: &mut Options| {
        options.rebuild.every = Duration::from_millis(200);
        options.rebuild.backoff = Duration::from_millis(100);
        options.reserve_for = Duration::from_secs(3);
    };
    let first = |options: &mut Options| {
        quick(options);
        options.ledger = Backend::Postgres(url.clone());
    };
    let mut fixture = Fixture::with(alive, first).await;
    let folder = TempDir::new().unwrap();
    let mut other =
        Options { ledger: Backend::Postgres(url.clone()), ..options(&folder, free_port()) };
    quick(&mut other);
    let other = Running::start(&fixture.fake, other).await;
    let _binder = binder(&fixture.fake, "n-spot").await;
    fixture.fake.set_faults(Faults {
        error_rate_permille: 50,
        lost_reply_permille: 20,
        drop_watches_every: Some(Duration::from_millis(700)),
        ..Faults::default()
    });
    for (name, replicas, on_demand) in [("a", 8, 3), ("b", 5, 5), ("c", 6, 0)] {
        let mut deployment = samples::deployment("shop", name, replicas);
        deployment["metadata"]["annotations"] = shared(on_demand);
        fixture.fake.create(deployment).await.unwrap();
    }
    settles(&fixture, "a", (3, 5)).await;
    settles(&fixture, "b", (5, 0)).await;
    settles(&fixture, "c", (0, 6)).await;
    annotate(&fixture, "deployments", "a", count(5)).await;
    annotate(&fixture, "deployments", "b", count(2)).await;
    fixture.fake.scale("deployments", "shop", "c", 3).await.unwrap();
    fixture.fake.compact();
    settles(&fixture, "a", (5, 3)).await;
    settles(&fixture, "b", (2, 3)).await;
    settles(&fixture, "c", (0, 3)).await;
    // The replica that is called stops; the other has led or leads now, and nobody answers calls.
    fixture.halt().await;
    let lost = pods(&fixture.fake)[0]["metadata"]["name"].as_str().unwrap().to_owned();
    fixture.fake.delete("pods", "shop", &lost).await.unwrap();
    eventually("it is gone", || fixture.fake.get("pods", "shop", &lost).is_none()).await;
    fixture.resume().await;
    let template = json!({ "spec": { "template": { "metadata": { "labels": { "v": "2" } } } } });
    fixture.fake.merge("deployments", "shop", "b", template).await.unwrap();
    settles(&fixture, "a", (5, 3)).await;
    settles(&fixture, "b", (2, 3)).await;
    fixture.fake.clear_faults();
    other.stop().await;
    fixture.halt().await;
}
