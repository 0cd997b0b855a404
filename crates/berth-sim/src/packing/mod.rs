//! Replays of traces: what a policy makes of real arrivals, beside simple rules and a bound.
//!
//! A trace is a file of creations, deletions, resizes and lost nodes, the event log of a server, or made
//! up; a fleet is a file of nodes. Files have the columns of public placement traces. Every policy is replayed by the engine itself, with
//! hard CPU and without overcommit or overhead, so that policies and rules fill the same capacity.
//! Nothing here decides whether an instance fits: the engine does, for the simple rules too. Each
//! placement is checked once more by plain sums.

mod bound;
mod chooser;
mod difference;
mod event_log;
mod fleet;
mod outcome;
mod peers;
mod record;
mod replay;
mod sums;
mod synthetic;
mod trace;
mod tune;

pub use bound::{Bound, volume_bound};
pub use chooser::{Chooser, ChooserError, PEERS};
pub use difference::{
    ChangedPlacement, PlacementDifference, TenantDifference, placement_difference,
};
pub use event_log::{LogTrace, is_event_log, read_event_log};
pub use fleet::{FleetNode, node_facts, read_fleet};
pub use outcome::{Outcome, Sample, placement_digest};
pub use record::{Damage, ReadError};
pub use replay::{Options, ReplayError, replay};
pub use synthetic::{Synthetic, SyntheticError, synthetic_fleet};
pub use trace::{Action, Demand, Trace, TraceEvent, read_trace};
pub use tune::{Comparison, Goal, GoalError, Measure, TuneError, TuneSource, Tuned, Verdict, tune};
