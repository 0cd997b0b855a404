//! Replays of traces: what a policy makes of real arrivals, beside simple rules and a bound.
//!
//! A trace is a file of creations, deletions, resizes and lost nodes; a fleet is a file of nodes. Both
//! have the columns of public placement traces. Every policy is replayed by the engine itself, with
//! hard CPU and without overcommit or overhead, so that policies and rules fill the same capacity.
//! Nothing here decides whether an instance fits: the engine does, for the simple rules too. Each
//! placement is checked once more by plain sums.

mod bound;
mod chooser;
mod fleet;
mod outcome;
mod peers;
mod record;
mod replay;
mod sums;
mod trace;

pub use bound::{Bound, volume_bound};
pub use chooser::{Chooser, ChooserError, PEERS};
pub use fleet::{FleetNode, read_fleet};
pub use outcome::{Outcome, Sample};
pub use record::{Damage, ReadError};
pub use replay::{Options, ReplayError, replay};
pub use trace::{Action, Demand, Trace, TraceEvent, read_trace};
