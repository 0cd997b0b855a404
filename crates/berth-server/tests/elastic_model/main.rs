//! Elastic instances under long random sequences, through the public interface of real servers:
//! agents grow, shrink, repeat, lose replies and live through outages while servers restart, the
//! policy changes and instances move. After every step an auditor with rules of its own reads
//! everything and says what is wrong.
//!
//! `BERTH_ELASTIC_SEED` and `BERTH_ELASTIC_STEPS` make a longer run of one's own.

#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

mod auditor;
#[path = "../common/mod.rs"]
mod common;
mod control;
mod guests;
mod model;
mod moves;
mod permits;
mod picture;
mod stage;

use model::Model;
use stage::Store;

/// Steps of a run in CI.
const STEPS: u64 = 220;

#[allow(clippy::disallowed_methods, reason = "a longer run is asked for from outside")]
fn asked(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|value| value.parse().unwrap())
}

async fn run(store: Store, servers: usize, seed: u64, steps: u64) {
    let seed = asked("BERTH_ELASTIC_SEED").unwrap_or(seed);
    let steps = asked("BERTH_ELASTIC_STEPS").unwrap_or(steps);
    let mut model = Model::start(store, servers, seed).await;
    for number in 0..steps {
        model.step(number).await;
    }
    model.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_happens_the_account_holds_first_seed() {
    run(Store::Sqlite, 1, 1, STEPS).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_happens_the_account_holds_second_seed() {
    run(Store::Sqlite, 1, 2, STEPS).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_happens_the_account_holds_third_seed() {
    run(Store::Sqlite, 1, 3, STEPS).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_happens_the_account_holds_with_two_servers_on_one_ledger() {
    run(Store::Postgres, 2, 4, STEPS / 2).await;
}
