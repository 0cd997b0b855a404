//! The worst moment to lose a connection: the commit is done and its answer is lost. Then the
//! database stays away for longer than the writer waits, and no one asks until it is back.

#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

use std::sync::{Arc, mpsc};
use std::time::Duration;

use berth_control::{PlaceAnswer, PlaceRequest, Placer, PlacerOptions};
use berth_engine::{Amounts, BatchMode, InstanceId, InstanceRequest, Policy, Timestamp};
use berth_faults::{
    ClaimSpec, Fixture, History, Message, Operation, Proxy, Reply, finish, set_up, wait_until,
};
use berth_ledger::{ClaimKey, Ledger, Options, Text};
use berth_pgtemp::Options as ServerOptions;

/// Answers that must have been lost after their commit before a test ends, and tries for it.
const LOST: u32 = 3;
const TRIES: u32 = 30;

fn impatient() -> Options {
    Options { writers: 1, retry_budget: Duration::from_millis(100), ..Options::default() }
}

/// Does something whose commit is not answered, and mends the wire when there is an answer.
fn cut_during<T: Send>(proxy: &Proxy, act: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let (sender, receiver) = mpsc::channel();
        proxy.swallow_next_commit();
        scope.spawn(move || sender.send(act()).unwrap());
        assert!(wait_until(Duration::from_secs(60), || proxy.swallows()), "nothing was committed");
        // Enough for the server to have done it.
        std::thread::sleep(Duration::from_millis(60));
        proxy.cut();
        let answer = receiver.recv().unwrap();
        std::thread::sleep(Duration::from_millis(50));
        proxy.mend();
        answer
    })
}

fn count(fixture: &Fixture, request: &str) -> String {
    let sql = format!("SELECT count(*) FROM request WHERE request_id = '{request}'");
    fixture.rows(&sql).unwrap().remove(0).remove(0)
}

#[test]
fn a_writer_that_lost_an_answer_and_waited_no_longer_goes_on() {
    let fixture = Fixture::postgres(ServerOptions::default()).unwrap();
    let (proxy, backend) = Proxy::to_database(&fixture.url()).unwrap();
    let ledger = Ledger::open(backend, impatient()).unwrap();
    let nodes = set_up(&ledger).unwrap();
    let (mut history, mut lost) = (History::default(), 0);
    for number in 1..=TRIES {
        let operation = |part: u32| {
            let instance = InstanceId::from_u128(u128::from(number * 2 + part));
            let node = usize::try_from(number % 7).unwrap();
            let claims = vec![ClaimSpec { instance, node, cpu_milli: 100, memory_mib: 128 }];
            Operation::Commit { request: format!("{number}-{part}"), claims }
        };
        let (cut, next) = (operation(0), operation(1));
        history.record(1, Message::Started { thread: 0, operation: cut.clone() });
        let answer = cut_during(&proxy, || cut.perform(&ledger, &nodes));
        match answer {
            Reply::Failed { .. } => {
                lost += u32::from(count(&fixture, &format!("{number}-0")) == "1")
            }
            Reply::Done(_) => {}
            Reply::Refused(why) => panic!("{why}"),
        }
        for operation in [&cut, &next] {
            history.record(1, Message::Started { thread: 0, operation: operation.clone() });
            let answer = operation.perform(&ledger, &nodes);
            assert!(matches!(answer, Reply::Done(_)), "try {number}, {lost} lost: {answer:?}");
            history.record(1, Message::Done { thread: 0 });
        }
        if lost == LOST {
            break;
        }
    }
    assert_eq!(lost, LOST, "too few answers were lost after their commit");
    assert_eq!(finish(&fixture, &mut history).unwrap(), [""; 0]);
}

fn place(number: u128) -> PlaceRequest {
    let instance = InstanceId::from_u128(number);
    let request = InstanceRequest::new(instance, "acme", Amounts::new(100, 128));
    PlaceRequest {
        request_id: Text::from(format!("{number}")),
        tenant: Text::from("acme"),
        instances: vec![Arc::new(request)],
        mode: BatchMode::AllOrNothing,
        lease_s: 3600,
        pools: Vec::new(),
        ..PlaceRequest::default()
    }
}

/// Whether the placer's fleet has an instance where the ledger has it.
fn agree(placer: &Placer, instance: InstanceId) -> Result<(), String> {
    let stored = placer.ledger().claim(ClaimKey::primary(instance)).unwrap();
    let stored = stored.map(|claim| claim.node);
    let look = move |mirror: &mut berth_control::FleetReplica| {
        mirror.engine().fleet().node_of(instance).cloned()
    };
    let known = placer.inspect(look).unwrap();
    if known == stored { Ok(()) } else { Err(format!("ledger {stored:?}, fleet {known:?}")) }
}

#[test]
fn a_placer_that_lost_an_answer_knows_its_fleet_again() {
    let fixture = Fixture::postgres(ServerOptions::default()).unwrap();
    let (proxy, backend) = Proxy::to_database(&fixture.url()).unwrap();
    drop(set_up(&Ledger::open(fixture.backend(), Options::default()).unwrap()).unwrap());
    let mut options = PlacerOptions::new(Policy::builtin("balanced").unwrap());
    options.clock = Arc::new(|| Timestamp(2));
    options.ledger = impatient();
    let placer = Placer::start(backend, &options).unwrap();
    let mut lost = [0, 0];
    for number in 1..=u128::from(TRIES) {
        let answer = placer.place(place(number | 1 << 64));
        assert!(matches!(answer, PlaceAnswer::Granted(_)), "try {number}: {answer:?}");
        let answer = cut_during(&proxy, || placer.place(place(number)));
        let was_lost = match answer {
            PlaceAnswer::Granted(_) => false,
            PlaceAnswer::Unknown(_) => count(&fixture, &number.to_string()) == "1",
            other => panic!("{other:?}"),
        };
        // Some are sent again; the others must be learnt of all the same.
        let sends_again = lost[1] < lost[0];
        lost[usize::from(sends_again)] += u32::from(was_lost);
        if sends_again {
            let answer = placer.place(place(number));
            assert!(matches!(answer, PlaceAnswer::Granted(_)), "try {number}: {answer:?}");
        }
        let id = InstanceId::from_u128(number);
        let agreed = wait_until(Duration::from_secs(60), || agree(&placer, id).is_ok());
        assert!(agreed, "try {number}, lost {was_lost}: {:?}", agree(&placer, id));
        if lost == [2, 2] {
            break;
        }
    }
    assert_eq!(lost, [2, 2], "too few answers were lost after their commit");
}
