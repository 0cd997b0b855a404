//! What the shapes were seen to do, as tables or as JSON.
//!
//! Only counts and times as they were measured: it never judges which shape is right.

use std::fmt;
use std::time::Duration;

use serde::Serialize;

use super::load::Tally;
use super::{Audit, CONTESTED_CAPACITY, CONTESTED_REQUESTS, Case, Level, Scene, Shape};

/// All runs against one database.
#[derive(Serialize)]
pub(super) struct Report {
    pub(super) database: String,
    pub(super) clients: u64,
    pub(super) nodes: u64,
    pub(super) rows: Vec<Row>,
}

/// One run.
#[derive(Serialize)]
pub(super) struct Row {
    scene: Scene,
    shape: Shape,
    level: Level,
    retries: bool,
    requests: u64,
    granted: u64,
    oversold: u64,
    refused: u64,
    failed: u64,
    aborts: u64,
    granted_per_s: u64,
    p50_us: u64,
    p99_us: u64,
    /// The slowest request; tells of clients that starve while others are served.
    max_us: u64,
}

impl Row {
    pub(super) fn new(
        scene: Scene,
        case: Case,
        requests: u64,
        tally: Tally,
        audit: &Audit,
    ) -> Self {
        let elapsed_us = microseconds(tally.elapsed).max(1);
        Self {
            scene,
            shape: case.shape,
            level: case.level,
            retries: case.retries,
            requests,
            granted: tally.granted,
            oversold: audit.oversold,
            refused: tally.refused,
            failed: tally.failed,
            aborts: tally.aborts,
            granted_per_s: tally.granted * 1_000_000 / elapsed_us,
            p50_us: percentile_us(&tally.latencies, 50),
            p99_us: percentile_us(&tally.latencies, 99),
            max_us: percentile_us(&tally.latencies, 100),
        }
    }
}

fn microseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

fn percentile_us(sorted: &[Duration], percent: usize) -> u64 {
    let place = (sorted.len() * percent / 100).min(sorted.len().saturating_sub(1));
    sorted.get(place).copied().map_or(0, microseconds)
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}, {} clients, every commit on disk", self.database, self.clients)?;
        for scene in [Scene::Contested, Scene::Hot, Scene::Spread] {
            match scene {
                Scene::Contested => writeln!(
                    f,
                    "\n{CONTESTED_REQUESTS} requests for {CONTESTED_CAPACITY} units on one node"
                )?,
                Scene::Hot => writeln!(f, "\nplenty of room on one node")?,
                Scene::Spread => writeln!(f, "\nplenty of room on {} nodes", self.nodes)?,
            }
            write_table(f, self.rows.iter().filter(|row| row.scene == scene))?;
        }
        Ok(())
    }
}

fn write_table<'a>(f: &mut fmt::Formatter<'_>, rows: impl Iterator<Item = &'a Row>) -> fmt::Result {
    writeln!(
        f,
        "  {:<19} {:<16} {:>7} {:>7} {:>8} {:>7} {:>7} {:>7} {:>9} {:>9} {:>9} {:>9}",
        "shape",
        "level",
        "retries",
        "granted",
        "oversold",
        "refused",
        "failed",
        "aborts",
        "granted/s",
        "p50 us",
        "p99 us",
        "max us",
    )?;
    for row in rows {
        writeln!(
            f,
            "  {:<19} {:<16} {:>7} {:>7} {:>8} {:>7} {:>7} {:>7} {:>9} {:>9} {:>9} {:>9}",
            shape_name(row.shape),
            level_name(row.level),
            if row.retries { "yes" } else { "no" },
            row.granted,
            row.oversold,
            row.refused,
            row.failed,
            row.aborts,
            row.granted_per_s,
            row.p50_us,
            row.p99_us,
            row.max_us,
        )?;
    }
    Ok(())
}

fn shape_name(shape: Shape) -> &'static str {
    match shape {
        Shape::GuardedUpdate => "guarded update",
        Shape::GuardedStatement => "guarded statement",
        Shape::LockedCounter => "locked counter",
        Shape::LockedSum => "locked sum",
        Shape::ConditionalInsert => "conditional insert",
    }
}

fn level_name(level: Level) -> &'static str {
    match level {
        Level::ReadCommitted => "read committed",
        Level::RepeatableRead => "repeatable read",
        Level::Serializable => "serializable",
        Level::Immediate => "begin immediate",
        Level::Deferred => "begin deferred",
    }
}
