//! A server that runs for long remembers what is there, and not all that ever was.

#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

use std::sync::Arc;
use std::time::Duration;

use berth_control::{PlaceAnswer, PlaceRequest, Placer, PlacerOptions};
use berth_engine::{Amounts, BatchMode, InstanceId, InstanceRequest, NodeFacts, Policy};
use berth_ledger::{Backend, ClaimKey, Op, Text};
use berth_pgtemp::TempPostgres;

fn place(placer: &Placer, id: u128) {
    let amounts = Amounts::new(100, 128).with_disk(1);
    let request = PlaceRequest {
        request_id: Text::from(format!("r{id}")),
        tenant: Text::from("acme"),
        instances: vec![Arc::new(InstanceRequest::new(InstanceId::from_u128(id), "acme", amounts))],
        mode: BatchMode::AllOrNothing,
        lease_s: 120,
        ..PlaceRequest::default()
    };
    let answer = placer.place(request);
    assert!(matches!(answer, PlaceAnswer::Granted(_)), "{answer:?}");
}

/// Waits until the placer remembers so many claims.
fn wait_for(placer: &Placer, claims: usize) {
    let mut remembered = 0;
    // A minute, for a machine that is busy with other tests.
    for _ in 0..3000 {
        remembered = placer.inspect(|replica| replica.remembered()).unwrap();
        if remembered == claims {
            return;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    panic!("{remembered} claims are remembered after a minute, {claims} are there");
}

fn forgets(backend: &Backend) {
    let mut options = PlacerOptions::new(Policy::builtin("balanced").unwrap());
    options.follow_every = Duration::from_millis(5);
    let [one, other] = [0, 1].map(|_| Placer::start(backend.clone(), &options).unwrap());
    let mut facts = NodeFacts::new("n1", Amounts::new(80_000, 81_920).with_disk(100_000));
    facts.heartbeat_at = (options.clock)();
    one.ledger().administer(Op::put_node(facts)).unwrap();
    wait_for(&other, 0);
    for id in 1..=20 {
        place(&one, id);
    }
    wait_for(&other, 20);
    for id in 1..=15 {
        // Some by the server that placed them, some by the other.
        let by = if id % 2 == 0 { &one } else { &other };
        let key = ClaimKey::primary(InstanceId::from_u128(id));
        assert!(by.ledger().force_release(key, "test").unwrap());
    }
    for placer in [&one, &other] {
        wait_for(placer, 5);
        let placed = placer.inspect(|mirror| {
            let fleet = mirror.engine().fleet();
            (1..=20).filter(|id| fleet.node_of(InstanceId::from_u128(*id)).is_some()).count()
        });
        assert_eq!(placed, Some(5));
    }
}

#[test]
fn claims_that_are_gone_are_forgotten_on_sqlite() {
    let folder = tempfile::tempdir().unwrap();
    forgets(&Backend::Sqlite(folder.path().join("ledger.db")));
}

#[test]
fn claims_that_are_gone_are_forgotten_on_postgres() {
    let server = TempPostgres::start(berth_pgtemp::Options::quick()).unwrap();
    forgets(&Backend::Postgres(server.url()));
}
