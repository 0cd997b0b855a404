//! Hard rules about others hold when two servers place at the same moment, neither knowing what
//! the other is about to do.

#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use berth_control::{PlaceAnswer, PlaceRequest, Placer, PlacerOptions};
use berth_engine::affinity::Rule;
use berth_engine::{
    Amounts, BatchMode, InstanceId, InstanceRequest, InvalidRequest, NodeFacts, NodeId, Policy,
    Timestamp,
};
use berth_ledger::{Backend, Ledger, Op, Options, SnapshotItem, Text};
use berth_pgtemp::TempPostgres;

const ROUNDS: u128 = 40;

fn options() -> PlacerOptions {
    let mut options = PlacerOptions::new(Policy::builtin("pack").unwrap());
    options.clock = Arc::new(|| Timestamp(0));
    options
}

fn request(id: u128, role: &str, rule: Option<&str>) -> PlaceRequest {
    let amounts = Amounts::new(100, 64).with_disk(1);
    let mut request = InstanceRequest::new(InstanceId::from_u128(id), "acme", amounts);
    request.tags.insert("role".to_owned(), role.to_owned());
    request.affinity.extend(rule.map(|rule| Rule::parse(rule).unwrap()));
    PlaceRequest {
        request_id: Text::from(id.to_string()),
        tenant: Text::from("acme"),
        instances: vec![Arc::new(request)],
        mode: BatchMode::AllOrNothing,
        lease_s: 120,
        pools: Vec::new(),
        ..PlaceRequest::default()
    }
}

/// Two racks of two nodes each.
fn add_nodes(ledger: &Ledger) {
    for number in 0..4 {
        let capacity = Amounts::new(100_000, 100_000).with_disk(100_000);
        let mut facts = NodeFacts::new(&format!("n{number}"), capacity);
        facts.zone = Some("z".to_owned());
        facts.rack = Some(format!("r{}", number / 2));
        ledger.administer(Op::put_node(facts)).unwrap();
    }
}

/// One side of a barrier for two threads. Fails when the other thread is gone, where
/// `std::sync::Barrier` would wait for it for ever.
struct Rendezvous {
    arrive: Sender<()>,
    other: Receiver<()>,
}

impl Rendezvous {
    fn pair() -> [Self; 2] {
        let ((to_first, first), (to_second, second)) = (channel(), channel());
        [Self { arrive: to_second, other: first }, Self { arrive: to_first, other: second }]
    }

    fn wait(&self) {
        let is_there = self.arrive.send(()).is_ok();
        assert!(is_there, "the other thread has stopped");
        let arrived = self.other.recv_timeout(Duration::from_secs(60));
        assert!(arrived.is_ok(), "the other thread has stopped, or did not arrive within 60 s");
    }
}

#[test]
#[should_panic(expected = "the other thread has stopped")]
fn a_rendezvous_with_a_thread_that_is_gone_fails() {
    let [first, second] = Rendezvous::pair();
    drop(second);
    first.wait();
}

/// One server places instances that keep away from databases, the other places databases.
fn race(backend: &Backend, rule: &'static str, domain: fn(&NodeId) -> String) {
    add_nodes(&Ledger::open(backend.clone(), Options::default()).unwrap());
    std::thread::scope(|scope| {
        for (server, rendezvous) in (0..2u128).zip(Rendezvous::pair()) {
            let backend = backend.clone();
            scope.spawn(move || {
                let placer = Placer::start(backend, &options()).unwrap();
                for round in 0..ROUNDS {
                    rendezvous.wait();
                    let id = 1 + round * 2 + server;
                    let answer = match server {
                        0 => placer.place(request(id, "web", Some(rule))),
                        _ => placer.place(request(id, "db", None)),
                    };
                    match answer {
                        PlaceAnswer::Granted(_) | PlaceAnswer::NoRoom(_) => {}
                        other => panic!("round {round} of server {server}: {other:?}"),
                    }
                }
            });
        }
    });
    let mut roles: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let ledger = Ledger::open(backend.clone(), Options::default()).unwrap();
    let take = |item: SnapshotItem| {
        if let SnapshotItem::Claim(claim) = item {
            let role = claim.request().unwrap().tags["role"].clone();
            roles.entry(domain(&claim.node)).or_default().push(role);
        }
        Ok(())
    };
    ledger.snapshot(take).unwrap();
    assert!(roles.len() > 1, "both kinds were placed: {roles:?}");
    for (domain, roles) in &roles {
        assert!(roles.iter().all(|role| *role == roles[0]), "{domain} holds {roles:?}");
    }
    assert_eq!(ledger.reconcile().unwrap(), []);
}

fn rack(node: &NodeId) -> String {
    if matches!(node.as_str(), "n0" | "n1") { "r0".to_owned() } else { "r1".to_owned() }
}

#[test]
fn two_servers_keep_a_hard_rule_per_node_and_per_rack_on_sqlite() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| Backend::Sqlite(folder.path().join(name));
    race(&path("node.db"), "role!=db", |node| node.to_string());
    race(&path("rack.db"), "role!=db@rack", rack);
}

#[test]
fn two_servers_keep_a_hard_rule_per_node_and_per_rack_on_postgres() {
    let server = TempPostgres::start(berth_pgtemp::Options::quick()).unwrap();
    let database = |name: &str| Backend::Postgres(server.create_database(name).unwrap());
    race(&database("node"), "role!=db", |node| node.to_string());
    race(&database("rack"), "role!=db@rack", rack);
}

/// A request whose instances have so many different regular expressions in hard rules.
fn with_regexes(id: u128, numbers: std::ops::Range<usize>) -> PlaceRequest {
    let mut request = request(id, "web", None);
    let rules: Vec<Rule> =
        numbers.map(|n| Rule::parse(&format!("role!=/^db{n}$/")).unwrap()).collect();
    let template = Arc::clone(&request.instances[0]);
    request.instances = rules
        .chunks(16)
        .zip(0..)
        .map(|(rules, place)| {
            let id = InstanceId::from_u128(id * 1000 + place);
            Arc::new(InstanceRequest { id, affinity: rules.to_vec(), ..(*template).clone() })
        })
        .collect();
    request
}

#[test]
fn a_tenant_has_no_more_different_hard_rules_than_every_request_can_be_matched_with() {
    let folder = tempfile::tempdir().unwrap();
    let placer =
        Placer::start(Backend::Sqlite(folder.path().join("rules.db")), &options()).unwrap();
    add_nodes(placer.ledger());
    let most = berth_engine::limits::table::TENANT_REGEXES;
    let granted = |request: PlaceRequest| match placer.place(request) {
        PlaceAnswer::Granted(_) => true,
        PlaceAnswer::Invalid(InvalidRequest::TooManyRules { most: limit, .. }) => {
            assert_eq!(limit, most);
            false
        }
        other => panic!("{other:?}"),
    };
    assert!(granted(with_regexes(1, 0..most)));
    assert!(!granted(with_regexes(2, most..most + 1)), "one more");
    assert!(granted(with_regexes(3, 0..most)), "none more");
    assert!(granted(request(4, "web", Some("role!=plain"))), "none with a regular expression");
    let other = with_regexes(5, most..most + 1);
    let instances = other.instances.iter().map(|instance| {
        Arc::new(InstanceRequest { tenant: "other".to_owned(), ..(**instance).clone() })
    });
    let instances = instances.collect();
    assert!(granted(PlaceRequest { tenant: Text::from("other"), instances, ..other }));
    // What was granted once is granted again, whatever came since.
    assert!(granted(with_regexes(1, 0..most)));
}
