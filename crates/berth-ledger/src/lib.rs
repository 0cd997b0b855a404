//! The source of truth of Berth: which instance is placed where, and what capacity is left.
//!
//! A plan from the engine becomes claims in one guarded commit: all of it, or nothing, with the
//! numbers that stood against it. On SQLite, embedded, or on PostgreSQL, shared by any number of
//! servers; the rules are in one place (`unit_of_work`) and the databases only lock, read and write rows.

mod backend;
mod commit_hints;
mod database;
mod drift;
mod encoding;
mod error;
mod export;
mod health;
pub mod invariants;
mod ledger;
mod lists;
mod maintenance;
mod model;
mod pool_search;
mod postgres;
mod readers;
mod receipts;
mod retention;
mod schema;
mod sqlite;
mod tenants;
#[cfg(test)]
mod tests;
mod transaction;
mod unit_of_work;
mod writer;

pub use backend::{Backend, Options};
pub use commit_hints::{HintCounts, HintListener};
pub use database::{DurabilityWarning, SnapshotItem};
pub use error::LedgerError;
pub use export::{Transfer, TransferError};
pub use ledger::{Ledger, ReadPlace, WriterPosition};
pub use model::*;
pub use postgres::{InvalidIsolation, Isolation};
pub use readers::{READERS_MAX, READS_MAX};
pub use receipts::{ChainFault, Decision, Verification};
pub use retention::Retention;
pub use sqlite::SQLITE_ROWS_MAX;
pub use tenants::KeptResource;
pub use transaction::{CommitRecord, Retries};
pub use writer::{
    Job, Observer, ProbeReply, Reply, UNDELIVERED_MAX, WAITING_MAX, WriteStats, WriterHooks,
};
