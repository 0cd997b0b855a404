//! The data model: what a caller states about nodes, instances, groups and volumes.
//!
//! Plain data with validation. Nothing here makes decisions or depends on how the fleet stores it.

mod amounts;
mod evidence;
mod evidence_text;
mod ids;
mod layers;
pub mod limits;
mod load;
mod node;
mod node_state;
mod place_facts;
mod request;
mod room;
#[cfg(feature = "schema")]
mod schema;
pub(crate) mod size;

pub use amounts::{Amounts, PPM, Ratios, Unit, charge_for_other, share_ppm};
pub use evidence::Evidence;
#[cfg(feature = "schema")]
pub use ids::UnixSeconds;
pub use ids::{InstanceId, NodeId, Timestamp};
pub use layers::{FactChange, FactLayer, FactValues, Layers, Override, values_of_patch};
pub use load::MeasuredLoad;
pub use node::{
    BootOutcome, CapacityType, CpuCapMode, InvalidNode, LinkState, Network, NodeFacts, OtherUsage,
    Platform, PlatformVersion, TraitValue, Watermarks,
};
pub use node_state::NodeState;
pub use request::{
    Elastic, Group, GroupKind, Hint, InstanceRequest, InvalidRequest, Locality, PlatformBounds,
    Volume,
};
pub(crate) use room::enough;
pub use room::{Demand, Lack, Limits, Room, Used, class_lack, exceeds_host};
