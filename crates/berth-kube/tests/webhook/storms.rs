//! Two replicas over one ledger in a cluster where things go wrong: requests fail, answers are lost,
//! watches break, a replica stops. In the end every count is right.

use std::time::Duration;

use berth_kube::webhook::Options;
use berth_kube_fake::{Faults, samples};
use berth_ledger::Backend;
use berth_pgtemp::{Options as PgOptions, TempPostgres};
use serde_json::json;
use tempfile::TempDir;

use crate::cluster::{annotate, binder, count, pods, seats};
use crate::stage::{Running, Stage, eventually, free_port, options, shared};

/// How many of an app's pods are on each kind of node, all ready: on-demand and spot.
fn counts(stage: &Stage, app: &str) -> Option<(usize, usize)> {
    let found = seats(&stage.fake, app);
    let settled = !found.contains(['!', '?']);
    settled.then(|| (found.matches(":O").count(), found.matches(":S").count()))
}

async fn settles(stage: &Stage, app: &str, expected: (usize, usize)) {
    let what = format!("{app} with {expected:?}");
    let waited = tokio::time::timeout(Duration::from_secs(90), async {
        while counts(stage, app) != Some(expected) {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    });
    assert!(waited.await.is_ok(), "never came: {what}, but {}", seats(&stage.fake, app));
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
        options.rebuild.back_off = Duration::from_millis(100);
        options.reserve_for = Duration::from_secs(3);
    };
    let first = |options: &mut Options| {
        quick(options);
        options.ledger = Backend::Postgres(url.clone());
    };
    let mut stage = Stage::with(alive, first).await;
    let folder = TempDir::new().unwrap();
    let mut other =
        Options { ledger: Backend::Postgres(url.clone()), ..options(&folder, free_port()) };
    quick(&mut other);
    let other = Running::start(&stage.fake, other).await;
    let _binder = binder(&stage.fake, "n-spot").await;
    stage.fake.set_faults(Faults {
        error_rate_permille: 50,
        lost_reply_permille: 20,
        drop_watches_every: Some(Duration::from_millis(700)),
        ..Faults::default()
    });
    for (name, replicas, on_demand) in [("a", 8, 3), ("b", 5, 5), ("c", 6, 0)] {
        let mut deployment = samples::deployment("shop", name, replicas);
        deployment["metadata"]["annotations"] = shared(on_demand);
        stage.fake.create(deployment).await.unwrap();
    }
    settles(&stage, "a", (3, 5)).await;
    settles(&stage, "b", (5, 0)).await;
    settles(&stage, "c", (0, 6)).await;
    annotate(&stage, "deployments", "a", count(5)).await;
    annotate(&stage, "deployments", "b", count(2)).await;
    stage.fake.scale("deployments", "shop", "c", 3).await.unwrap();
    stage.fake.compact();
    settles(&stage, "a", (5, 3)).await;
    settles(&stage, "b", (2, 3)).await;
    settles(&stage, "c", (0, 3)).await;
    // The replica that is called stops; the other has led or leads now, and nobody answers calls.
    stage.halt().await;
    let lost = pods(&stage.fake)[0]["metadata"]["name"].as_str().unwrap().to_owned();
    stage.fake.delete("pods", "shop", &lost).await.unwrap();
    eventually("it is gone", || stage.fake.get("pods", "shop", &lost).is_none()).await;
    stage.resume().await;
    let template = json!({ "spec": { "template": { "metadata": { "labels": { "v": "2" } } } } });
    stage.fake.merge("deployments", "shop", "b", template).await.unwrap();
    settles(&stage, "a", (5, 3)).await;
    settles(&stage, "b", (2, 3)).await;
    stage.fake.clear_faults();
    other.stop().await;
    stage.halt().await;
}
