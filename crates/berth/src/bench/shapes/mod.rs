//! `berth bench shapes`: which SQL a claim should be made of. Several shapes are run by many
//! clients at once, first against too little room, to see who sells too much, then against plenty,
//! to see who is fast.
//!
//! The shapes here are candidates, some of them known to be wrong. Nothing else may use them: the
//! ledger has its own statements.

mod load;
mod postgres;
mod report;
mod sqlite;

use std::time::Duration;

use anyhow::{bail, ensure};
use clap::{Args, ValueEnum};
use serde::Serialize;

use load::{Claimant, Load, Tally};
use report::{Report, Row};

/// Room on the one node of the contested run, and how many ask for one unit of it.
const CONTESTED_CAPACITY: i64 = 100;
const CONTESTED_REQUESTS: u64 = 320;

/// How long a contested transaction stays open before it commits, as one that writes more would.
const CONTESTED_PAUSE: Duration = Duration::from_millis(2);

/// More room than any run asks for.
const PLENTY: i64 = 1_000_000_000;

/// Options of `berth bench shapes`.
#[derive(Args)]
pub(crate) struct ShapesBench {
    /// The database to run against. A new one is made, and waits for the disk at each commit.
    #[arg(long, value_enum, default_value_t = Backend::Postgres)]
    backend: Backend,
    /// How many clients claim at once, each with a thread and a connection of its own.
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u64).range(1..=128))]
    clients: u64,
    /// Over how many nodes claims are spread where they do not meet on one.
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u64).range(1..=100_000))]
    nodes: u64,
    /// How many claims each speed run makes.
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    claims: u64,
    /// Print one JSON object instead of tables for people.
    #[arg(long)]
    json: bool,
}

/// The databases that a claim may be made in.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Backend {
    Sqlite,
    Postgres,
}

/// What a claim is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Shape {
    /// UPDATE a counter where it stays within the capacity, then INSERT the claim.
    GuardedUpdate,
    /// The same two in one statement.
    GuardedStatement,
    /// Read the counter and lock its row, check it here, then UPDATE it and INSERT the claim.
    LockedCounter,
    /// Lock the node's row without changing it, sum its claims, check here, INSERT the claim.
    LockedSum,
    /// INSERT the claim where the sum of all claims leaves room.
    ConditionalInsert,
}

impl Shape {
    /// Whether the shape keeps a counter beside the claims, which must then equal their sum.
    fn counts(self) -> bool {
        match self {
            Self::GuardedUpdate | Self::GuardedStatement | Self::LockedCounter => true,
            Self::LockedSum | Self::ConditionalInsert => false,
        }
    }
}

/// How transactions are kept apart: an isolation level, or in SQLite when the lock is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Level {
    ReadCommitted,
    RepeatableRead,
    Serializable,
    Immediate,
    Deferred,
}

/// One way to claim.
#[derive(Clone, Copy, Debug)]
struct Case {
    shape: Shape,
    level: Level,
    /// Whether a claim that the database turned away as a conflict is tried again.
    retries: bool,
}

/// Under what circumstances.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Scene {
    /// One node, less room than is asked for, slow transactions.
    Contested,
    /// One node with plenty of room.
    Hot,
    /// Many nodes with plenty of room.
    Spread,
}

/// What the tables say after a run.
struct Audit {
    claims: u64,
    /// Units claimed beyond the capacity of their nodes.
    oversold: u64,
    /// By how much counters differ from the sums of the claims.
    drift: u64,
}

/// A database that shapes can be tried in.
trait Database {
    fn version(&self) -> anyhow::Result<String>;
    fn cases(&self) -> Vec<Case>;
    /// Empties the tables and adds nodes.
    fn reset(&mut self, nodes: u64, capacity: i64) -> anyhow::Result<()>;
    fn connect(&self, case: Case, pause: Duration) -> anyhow::Result<Box<dyn Claimant>>;
    fn audit(&mut self) -> anyhow::Result<Audit>;
}

impl ShapesBench {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let mut database: Box<dyn Database> = match self.backend {
            Backend::Sqlite => Box::new(sqlite::Sqlite::new()?),
            Backend::Postgres => Box::new(postgres::Postgres::new()?),
        };
        let mut report = Report {
            database: database.version()?,
            clients: self.clients,
            nodes: self.nodes,
            rows: Vec::new(),
        };
        for scene in [Scene::Contested, Scene::Hot, Scene::Spread] {
            for case in database.cases() {
                report.rows.push(self.measure(database.as_mut(), scene, case)?);
            }
        }
        if self.json {
            println!("{}", serde_json::to_string(&report)?);
        } else {
            print!("{report}");
        }
        Ok(())
    }

    fn measure(
        &self,
        database: &mut dyn Database,
        scene: Scene,
        case: Case,
    ) -> anyhow::Result<Row> {
        let (nodes, capacity, requests, pause) = match scene {
            Scene::Contested => (1, CONTESTED_CAPACITY, CONTESTED_REQUESTS, CONTESTED_PAUSE),
            Scene::Hot => (1, PLENTY, self.claims, Duration::ZERO),
            Scene::Spread => (self.nodes, PLENTY, self.claims, Duration::ZERO),
        };
        database.reset(nodes, capacity)?;
        let claimants: anyhow::Result<Vec<_>> =
            (0..self.clients).map(|_| database.connect(case, pause)).collect();
        let tally = load::run(claimants?, &Load { requests, nodes, retries: case.retries })?;
        let audit = database.audit()?;
        check(case, requests, &tally, &audit)?;
        Ok(Row::new(scene, case, requests, tally, &audit))
    }
}

/// A run whose own books do not balance measured nothing. What it oversold is a result.
fn check(case: Case, requests: u64, tally: &Tally, audit: &Audit) -> anyhow::Result<()> {
    let answered = tally.granted + tally.refused + tally.failed;
    ensure!(answered == requests, "{case:?}: {answered} answers to {requests} requests");
    if audit.claims != tally.granted {
        bail!("{case:?}: {} claims recorded, {} granted", audit.claims, tally.granted);
    }
    ensure!(!case.shape.counts() || audit.drift == 0, "{case:?}: counters off by {}", audit.drift);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Grants all but every third try, which it turns away as a conflict.
    struct Moody(u64);

    impl Claimant for Moody {
        fn claim(&mut self, _: load::Claim) -> anyhow::Result<load::Answer> {
            self.0 += 1;
            let is_conflict = self.0.is_multiple_of(3);
            Ok(if is_conflict { load::Answer::Conflict } else { load::Answer::Granted })
        }
    }

    #[test]
    fn every_request_is_put_once_and_conflicts_are_tried_again_only_if_asked() {
        for (retries, granted, failed) in [(true, 300, 0), (false, 200, 100)] {
            let load = Load { requests: 300, nodes: 7, retries };
            let tally = load::run(vec![Box::new(Moody(0))], &load).unwrap();
            assert_eq!((tally.granted, tally.failed), (granted, failed));
            assert_eq!(tally.latencies.len(), 300);
            assert!(tally.aborts >= 100);
        }
    }

    #[test]
    fn books_that_do_not_balance_are_an_error() {
        let case =
            Case { shape: Shape::GuardedUpdate, level: Level::ReadCommitted, retries: false };
        let tally = Tally { granted: 3, refused: 1, ..Tally::default() };
        let audit = |claims, drift| Audit { claims, oversold: 0, drift };
        assert!(check(case, 4, &tally, &audit(3, 0)).is_ok());
        assert!(check(case, 5, &tally, &audit(3, 0)).is_err());
        assert!(check(case, 4, &tally, &audit(2, 0)).is_err());
        assert!(check(case, 4, &tally, &audit(3, 1)).is_err());
    }
}
