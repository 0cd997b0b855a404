//! A database that answers late: decisions wait for their own commit, never for somebody's look at the
//! log.

#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

use std::sync::{Arc, mpsc};
use std::time::Duration;

use berth_control::{PlaceAnswer, PlaceJob, PlaceRequest, Placer, PlacerOptions};
use berth_engine::{Amounts, BatchMode, InstanceId, InstanceRequest, Policy, Timestamp};
use berth_faults::{Fixture, Proxy, set_up};
use berth_ledger::{Ledger, Options, Text};
use berth_pgtemp::Options as ServerOptions;

/// One way to the database: far longer than the period of the looks at the log.
const DELAY: Duration = Duration::from_millis(40);
const FOLLOW_EVERY: Duration = Duration::from_millis(1);

/// Requests that are sent at once.
const REQUESTS: u128 = 40;

/// After this long a request counts as forgotten.
const HANGS: Duration = Duration::from_secs(120);

struct SlowDatabase {
    placers: Vec<Placer>,
    proxy: Proxy,
    _fixture: Fixture,
}

impl SlowDatabase {
    fn with_servers(servers: usize) -> Self {
        let fixture = Fixture::postgres(ServerOptions::default()).unwrap();
        let (proxy, backend) = Proxy::to_database(&fixture.url()).unwrap();
        drop(set_up(&Ledger::open(fixture.backend(), Options::default()).unwrap()).unwrap());
        let mut options = PlacerOptions::new(Policy::builtin("balanced").unwrap());
        options.clock = Arc::new(|| Timestamp(2));
        options.follow_every = FOLLOW_EVERY;
        let start = |_| Placer::start(backend.clone(), &options).unwrap();
        let placers = (0..servers).map(start).collect();
        proxy.delay(DELAY);
        Self { placers, proxy, _fixture: fixture }
    }
}

fn place(number: u128, memory_mib: u32) -> PlaceRequest {
    let instance = InstanceId::from_u128(number);
    let request = InstanceRequest::new(instance, "acme", Amounts::new(100, memory_mib));
    PlaceRequest {
        request_id: Text::from(format!("{number}")),
        tenant: Text::from("acme"),
        instances: vec![Arc::new(request)],
        mode: BatchMode::AllOrNothing,
        lease_s: 3600,
        ..PlaceRequest::default()
    }
}

/// Sends all requests at once, to the servers in turn, and waits for their answers.
fn place_all(placers: &[Placer], requests: Vec<PlaceRequest>) -> Vec<PlaceAnswer> {
    let (sender, answers) = mpsc::channel();
    let count = requests.len();
    for (placer, request) in placers.iter().cycle().zip(requests) {
        let sender = sender.clone();
        let reply = Box::new(move |answer| drop(sender.send(answer)));
        placer.submit(PlaceJob { request, reply });
    }
    let next = |_| answers.recv_timeout(HANGS).unwrap();
    (0..count).map(next).collect()
}

#[test]
fn placements_are_answered_while_every_look_at_the_log_takes_longer_than_its_period() {
    let slow = SlowDatabase::with_servers(1);
    // Long enough for looks at the log to pile up, if they did.
    std::thread::sleep(DELAY * 25);
    let requests = (0..REQUESTS).map(|number| place(number, 128)).collect();
    for answer in place_all(&slow.placers, requests) {
        assert!(matches!(answer, PlaceAnswer::Granted(_)), "{answer:?}");
    }
    slow.proxy.delay(Duration::ZERO);
}

#[test]
fn refusals_are_answered_over_a_slow_database() {
    let slow = SlowDatabase::with_servers(1);
    let requests = (0..REQUESTS).map(|number| place(number, 1 << 30)).collect();
    for answer in place_all(&slow.placers, requests) {
        assert!(matches!(answer, PlaceAnswer::NoRoom(_)), "{answer:?}");
    }
    slow.proxy.delay(Duration::ZERO);
}

#[test]
fn two_servers_with_late_news_of_each_other_place_everything_once() {
    let slow = SlowDatabase::with_servers(2);
    let requests: Vec<PlaceRequest> = (0..REQUESTS).map(|number| place(number, 128)).collect();
    // Each request is sent to both.
    let twice = requests.iter().flat_map(|request| [request.clone(), request.clone()]).collect();
    let mut granted = std::collections::BTreeMap::new();
    for answer in place_all(&slow.placers, twice) {
        let PlaceAnswer::Granted(answer) = answer else { panic!("{answer:?}") };
        let claim = &answer.grant.claims[0];
        let fence = granted.entry(claim.instance).or_insert(claim.fence);
        assert_eq!(*fence, claim.fence, "the answer to a second sender is the first one's");
    }
    assert_eq!(granted.len(), requests.len());
    slow.proxy.delay(Duration::ZERO);
}
