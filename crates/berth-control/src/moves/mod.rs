//! Moving instances and volumes from one node to another.
//!
//! [`drain`] empties nodes, [`evacuation`] says whether that would work, [`rebalance`] and
//! [`relief`] find better places for what runs; [`migration`] moves an instance while it runs, and
//! [`volume`] moves a volume with whatever uses it.

pub mod drain;
pub mod evacuation;
pub mod migration;
pub mod rebalance;
pub mod relief;
pub mod volume;
