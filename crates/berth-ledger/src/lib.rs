//! The truth of Berth: what is placed where, and what that leaves.
//!
//! A plan from the engine becomes claims in one guarded commit: all of it, or nothing, with the
//! numbers that stood against it. On SQLite, embedded, or on PostgreSQL, shared by any number of
//! servers; the rules are in one place (`work`) and the databases only lock, read and write rows.

mod drift;
mod error;
mod export;
mod inspect;
mod ledger;
mod lists;
mod model;
mod postgres;
mod receipts;
mod retention;
mod run;
mod sqlite;
mod stored;
mod tables;
mod values;
mod work;
mod writer;

pub use error::LedgerError;
pub use export::{Transfer, TransferError};
pub use ledger::{Backend, Ledger, Mark, Options};
pub use model::*;
pub use postgres::{InvalidIsolation, Isolation};
pub use receipts::{ChainFault, Decision, Verification};
pub use retention::Retention;
pub use run::{Committed, Retries};
pub use tables::SnapshotItem;
pub use writer::{Job, Observer, Reply, WriteStats};
