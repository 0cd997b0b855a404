//! Moving instances and volumes from one node to another.
//!
//! Planners look at the state of the fleet and say what should move and why; they do no I/O.
//! [`drain`] empties nodes, [`relief`] takes load off nodes above their watermark, [`rebalance`]
//! finds better places on request, and [`evacuation`] says whether nodes could be emptied. All of
//! them see instances as [`evacuee::Evacuee`]s, try placements in a [`sandbox`], and produce a
//! [`plan::MovePlan`]: an immutable list of steps with reasons.
//!
//! The [`executor`] carries plans out: it restarts an instance elsewhere, stops it, or starts a live
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
