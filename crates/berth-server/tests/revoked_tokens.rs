//! A revoked token stops working on every server, also on one that could not follow the log.

#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

mod common;

use std::time::Duration;

use berth_api::Role;
use berth_ledger::{Backend, Expect, Ledger, Op, Options, Retention, Text};
use berth_server::access::TOKEN_KIND;
use common::{Server, new_token};

/// How often the server under test looks at the log: long enough that all of what happens in between
/// is gone from the log when it looks.
const FOLLOW_EVERY: Duration = Duration::from_secs(3);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_token_revoked_while_the_log_was_cut_ends_when_the_replica_is_reloaded() {
    let one = Server::start().await;
    let (record, secret) = one.mint(&new_token(Role::Viewer)).await;
    let path = one.ledger_path();
    let also = path.clone();
    let two = Server::start_with(|options| {
        options.backend = Backend::Sqlite(path);
        options.placer.follow_every = FOLLOW_EVERY;
    })
    .await;
    two.get(&secret, "/v1/whoami").await.expect(200);

    // Revoked by another process, and the log is cut before this server looks at it.
    let revoke = move || {
        let ledger = Ledger::open(Backend::Sqlite(also), Options::default()).unwrap();
        let mut record = record;
        record.token.revoked_at = Some(record.token.created_at);
        let op = Op::PutDocument {
            kind: Text::from(TOKEN_KIND),
            id: Text::from(record.token.id.as_str()),
            body: serde_json::to_string(&record).unwrap(),
            expect: Expect::Any,
        };
        ledger.administer(op).unwrap();
        let pool = Op::PutDocument {
            kind: Text::from("note"),
            id: Text::from("later"),
            body: "{}".to_owned(),
            expect: Expect::Any,
        };
        ledger.administer(pool).unwrap();
        ledger.forget(&Retention { events: 0, ..Retention::default() }).unwrap();
        assert!(ledger.oldest_event().unwrap() > 1, "the log was cut");
    };
    tokio::task::spawn_blocking(revoke).await.unwrap();
    for _ in 0..1200 {
        if two.get(&secret, "/v1/whoami").await.status.as_u16() == 401 {
            two.stop().await;
            one.stop().await;
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("after a minute, the revoked token is still accepted");
}
