//! The service of Berth. Here is its heart, the claim path: requests are planned on the fleet in
//! memory, claimed in the ledger, and planned again when others were faster.

mod housekeeping;
mod mirror;
mod placer;

pub use housekeeping::{Chores, Housekeeper};
pub use mirror::Mirror;
pub use placer::{Clock, PlaceAnswer, PlaceJob, PlaceRequest, Placer, PlacerOptions};
