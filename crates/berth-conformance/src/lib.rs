//! The ledger's acceptance scenarios, proven with real processes.
//!
//! A [`Stage`] is one database at one level of isolation. A [`Crew`] is a number of worker
//! processes on it that start together. What they did is read back from the database by
//! [`Books`], which shares no code with the ledger, and judged. The same scenarios also run
//! against [`naive`] claims, where the judge must find the well-known faults: a harness that
//! cannot see them proves nothing.

mod books;
mod crew;
mod hand;
mod judge;
pub mod naive;
mod protocol;
mod stage;
mod timing;
pub mod worker;

pub use books::{Books, ClaimBook, Counters, DIMENSIONS, NodeBook, TeamBook};
pub use crew::Crew;
pub use hand::Hand;
pub use judge::{Fault, Kind};
pub use protocol::{
    Ask, Claimant, Held, MoveAsk, Order, Outcome, Placed, PlannedAsk, Report, Settings, SoakAsk,
    SoakDone, Stood, Task,
};
pub use stage::{Engine, Stage};
pub use timing::{seconds_from_environment, stopwatch};
