//! The same life of a ledger on SQLite and on PostgreSQL at every level of isolation, and what only
//! PostgreSQL has to prove. Each test has a database of its own on a server that they share.

mod availability;
mod claims;
mod copies;
mod cost;
mod decisions;
mod durability;
mod encrypted;
mod hints;
mod limits;
mod lists;
mod log;
mod moves;
mod preemption;
mod races;
mod service;
mod slots;
mod storage;
mod tenants;
mod tickets;
mod timeouts;
mod transitions;
mod views;
mod writers;

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use berth_engine::{
    Amounts, Group, GroupKind, InstanceId, InstanceRequest, NodeFacts, NodeId, Policy, Volume,
};
use berth_pgtemp::{Options, TempPostgres};

use crate::database::{Database, SnapshotItem};
use crate::drift::DriftedRows;
use crate::model::{
    Advance, Answer, Claim, ClaimKey, ClaimRejection, ClaimStatus, Event, NodeVersion, Op, Outcome,
    Plan, PlannedClaim, Release, Step, Text, Verdict,
};
use crate::postgres::testing::{Session, configure};
use crate::postgres::{Isolation, Postgres};
use crate::sqlite::Sqlite;
use crate::transaction::{Retries, RetryBudget, WriterChains, run};

/// One server for all tests that run at the same time; it goes with the last of them.
static SERVER: Mutex<Weak<TempPostgres>> = Mutex::new(Weak::new());

fn server() -> Arc<TempPostgres> {
    let mut shared = SERVER.lock().unwrap();
    shared.upgrade().unwrap_or_else(|| {
        let server = Arc::new(TempPostgres::start(Options::quick()).unwrap());
        *shared = Arc::downgrade(&server);
        server
    })
}

fn new_database(server: &TempPostgres) -> String {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    server.create_database(&format!("ledger_{number}")).unwrap()
}

fn open(url: &str, isolation: Isolation) -> Postgres {
    Postgres::open(url, isolation, None).unwrap()
}

/// A connection that knows nothing of the ledger.
fn raw(url: &str) -> Session {
    Session::connect(&configure(url, None).unwrap()).unwrap()
}

/// A ledger under test, and plain SQL on its database.
struct TestLedger {
    tables: Box<dyn Database>,
    chain: WriterChains,
    retries: Retries,
    run_sql: Box<dyn FnMut(&str) + Send>,
    policy: Policy,
    requests: u32,
}

impl TestLedger {
    fn new(tables: Box<dyn Database>, run_sql: Box<dyn FnMut(&str) + Send>) -> Self {
        Self {
            tables,
            chain: WriterChains::new(),
            retries: Retries::default(),
            run_sql,
            policy: Policy::builtin("balanced").unwrap(),
            requests: 0,
        }
    }

    fn postgres(url: &str, isolation: Isolation) -> Self {
        let mut run_sql = raw(url);
        let tables = Box::new(open(url, isolation));
        Self::new(tables, Box::new(move |sql| run_sql.script("hand", sql).unwrap()))
    }

    fn all(&mut self, ops: &[Op]) -> Vec<Answer> {
        let retry_budget = RetryBudget(Duration::from_secs(10));
        let tables = &mut *self.tables;
        run(tables, &mut self.chain, ops, retry_budget, &mut self.retries).unwrap().answers
    }

    fn one(&mut self, op: Op) -> Answer {
        self.all(&[op]).pop().unwrap()
    }

    fn done(&mut self, op: Op) {
        let answer = self.one(op);
        assert_eq!(answer, Answer::Outcome(Outcome::Done));
    }

    fn claim_answer(&mut self, op: Op) -> Result<ClaimStatus, ClaimRejection> {
        match self.one(op) {
            Answer::Claim(answer) => answer,
            other => panic!("{other:?}"),
        }
    }

    /// A node of 8 CPUs and 16 GiB in a zone and rack.
    fn node(&mut self, id: &str, zone: &str, rack: &str) {
        let mut facts = NodeFacts::new(id, Amounts::new(8000, 16_384).with_disk(100_000));
        facts.zone = Some(zone.to_owned());
        facts.rack = Some(rack.to_owned());
        facts.vmm_overhead_mib = 0;
        facts.extra.insert("gpu".to_owned(), 2);
        self.done(Op::put_node(facts));
    }

    fn planned(
        &self,
        request: InstanceRequest,
        node: &str,
        zone: &str,
        rack: &str,
    ) -> PlannedClaim {
        let node_version = NodeVersion {
            constraint_gen: 1,
            rules_gen: 0,
            fence: 0,
            zone: Some(Text::from(zone)),
            rack: Some(Text::from(rack)),
        };
        PlannedClaim::new(Arc::new(request), &self.policy, NodeId::new(node), node_version)
    }

    fn plan(&mut self, claims: Vec<PlannedClaim>) -> Plan {
        self.requests += 1;
        Plan::new(&format!("request-{}", self.requests), "acme", claims)
    }

    fn commit(&mut self, claims: Vec<PlannedClaim>) -> Verdict {
        let plan = self.plan(claims);
        self.commit_plan(plan)
    }

    fn commit_plan(&mut self, plan: Plan) -> Verdict {
        match self.one(Op::Commit(plan)) {
            Answer::Plan(verdict) => verdict,
            Answer::Repeated(grant) => Verdict::Granted(grant),
            other => panic!("{other:?}"),
        }
    }

    fn release(&mut self, instance: u128) -> Result<ClaimStatus, ClaimRejection> {
        self.requests += 1;
        let request_id = Text::from(format!("release-{}", self.requests));
        self.claim_answer(Op::Release(release(&request_id, instance)))
    }

    fn claim(&mut self, instance: u128) -> Option<Claim> {
        self.tables.claim(key(instance)).unwrap()
    }

    /// All events so far, which must be numbered without gaps.
    fn events(&mut self) -> Vec<Event> {
        let ends = self.tables.number_events().unwrap();
        let (mut events, mut cursor) = (Vec::new(), 0);
        while cursor < ends.next - 1 {
            let segments = self.tables.segments_after(cursor, 7).unwrap();
            assert!(!segments.is_empty(), "nothing after {cursor} of {ends:?}");
            for segment in segments {
                let found = segment.events().unwrap();
                assert_eq!(i64::try_from(found.len()).unwrap(), segment.count);
                let wanted = cursor + 1..ends.next;
                events.extend(found.into_iter().filter(|event| wanted.contains(&event.seq)));
            }
            cursor = events.last().unwrap().seq;
        }
        let numbers: Vec<i64> = events.iter().map(|event| event.seq).collect();
        assert_eq!(numbers, (1..ends.next).collect::<Vec<_>>());
        events
    }

    fn snapshot(&mut self) -> (i64, Vec<SnapshotItem>) {
        let mut items = Vec::new();
        let take = &mut |item| {
            items.push(item);
            Ok(())
        };
        (self.tables.snapshot(take).unwrap(), items)
    }

    /// Every counter is the sum of its claims.
    fn assert_exact(&mut self) {
        assert_eq!(self.tables.drifted().unwrap(), DriftedRows::default());
    }
}

/// Runs a test on SQLite, then on PostgreSQL at every level.
fn on_every_database(test: impl Fn(&mut TestLedger)) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ledger.db");
    let tables = Sqlite::open(&path).unwrap();
    let run_sql = rusqlite::Connection::open(&path).unwrap();
    test(&mut TestLedger::new(
        Box::new(tables),
        Box::new(move |sql| run_sql.execute_batch(sql).unwrap()),
    ));
    let server = server();
    for isolation in Isolation::ALL {
        test(&mut TestLedger::postgres(&new_database(&server), isolation));
    }
}

fn key(instance: u128) -> ClaimKey {
    ClaimKey::primary(InstanceId::from_u128(instance))
}

/// An instance of one CPU and 1 GiB.
fn request(instance: u128) -> InstanceRequest {
    InstanceRequest::new(InstanceId::from_u128(instance), "acme", Amounts::new(1000, 1024))
}

fn release(request_id: &str, instance: u128) -> Release {
    Release {
        request_id: Text::from(request_id),
        key: key(instance),
        tenant: None,
        fence: None,
        confirmed: true,
        reason: Text::from("test"),
    }
}

/// Has an instance run.
fn start(test: &mut TestLedger, instance: u128) {
    let fence = test.claim(instance).unwrap().fence;
    for step in [Step::Bind, Step::Activate] {
        let advance = Advance { key: key(instance), tenant: None, fence, step };
        test.claim_answer(Op::Advance(advance)).unwrap();
    }
}

fn group(id: &str, kind: GroupKind, topology: berth_engine::affinity::Topology) -> Group {
    Group {
        id: id.to_owned(),
        tenant: None,
        kind,
        strength: berth_engine::affinity::Strength::Hard,
        topology,
        max_per_domain: None,
    }
}

fn volume(id: &str, home: &str) -> Volume {
    Volume { id: id.to_owned(), tenant: None, home: NodeId::new(home), attached_to: None }
}

fn granted(verdict: &Verdict) -> &crate::model::Grant {
    match verdict {
        Verdict::Granted(grant) => grant,
        other => panic!("{other:?}"),
    }
}

/// The code of a verdict that granted nothing.
fn code(verdict: &Verdict) -> &'static str {
    match verdict {
        Verdict::Granted(_) => "granted",
        Verdict::Conflict(conflict) => conflict.guard.code(),
        Verdict::Refused(by) => by.code(),
    }
}
