//! Moving volumes from one node to another. Agents copy the data and report their progress.
//!
//! A move is a document of the ledger, one per volume, which is only changed from the revision that
//! was read, so any server can continue it: copy while the volume is in use, stop the instance that
//! uses it, sync what changed since, then switch its home. Agents handle the data; the server only
//! knows where the volume lives and which instance may use it.
//!
//! A move is always requested for one volume, by name: no planner produces these steps, so they are
//! not part of a [`MovePlan`](super::plan::MovePlan).

mod driver;
mod record;
mod report;
mod start;

pub use record::view;
pub use report::report;
pub use start::{cancel, start};

pub use crate::state::volume_moves::{
    KIND, StoppedInstance, StoredMove, VolumeMoveRecord, VolumeMoves,
};
pub(crate) use driver::VolumeMoveDriver;
