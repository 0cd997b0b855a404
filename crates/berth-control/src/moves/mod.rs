//! Moving instances and volumes from one node to another.
//!
//! Planners look at the state of the fleet and say what should move and why; they do no I/O. They see
//! instances as `Evacuee`s and try placements in a `sandbox`. [`drain`] empties nodes and [`relief`]
//! takes load off nodes above their watermark: both produce a `MovePlan`, an immutable list of steps
//! with reasons. [`rebalance`] returns its plan to the caller, who may review it, so each of its steps
//! is checked again when it is started. [`evacuation`] only reports whether nodes could be emptied.
//!
//! The `executor` carries steps out: it restarts an instance elsewhere, stops it, or starts a live
//! [`migration`]. Progress is stored in the ledger (the claim itself, and the documents of drains,
//! migrations and [`volume`] moves), and every write is guarded by a fence or a revision. So any
//! server can resume what another one started, and several can work at once.

pub mod drain;
pub mod evacuation;
mod evacuee;
mod executor;
mod history;
pub mod migration;
mod plan;
pub mod rebalance;
mod records;
pub mod relief;
pub(crate) mod sandbox;
pub mod volume;
