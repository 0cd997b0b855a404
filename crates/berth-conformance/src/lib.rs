//! The ledger's acceptance scenarios, proven with real processes.
//!
//! A [`Fixture`] is one database at one level of isolation. A [`WorkerPool`] is a number of worker
//! processes on it that start together. What they did is read back from the database by
//! [`LedgerState`], which shares no code with the ledger, and checked. The same scenarios also run
//! against [`naive`] claims, where the invariants must find the well-known faults: a harness that
//! cannot see them proves nothing.

mod fixture;
mod invariants;
mod ledger_state;
pub mod naive;
mod protocol;
mod raw_sql;
mod timing;
pub mod worker;
mod worker_pool;

pub use fixture::{Database, Fixture};
pub use invariants::{Violation, ViolationKind};
pub use ledger_state::{ClaimRecord, Counters, DIMENSIONS, GroupRecord, LedgerState, NodeRecord};
pub use protocol::{
    Claimant, ModelClaim, MoveTask, Outcome, PlaceResult, PlaceTask, PlannedPlaceTask, Report,
    Settings, SoakReport, SoakTask, StepOutcome, StepTask, Task,
};
pub use raw_sql::RawSql;
pub use timing::{seconds_from_environment, stopwatch};
pub use worker_pool::WorkerPool;
