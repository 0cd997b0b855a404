//! Faults at bad moments, and what must hold after them.
//!
//! A load writes to a ledger and reports every request before it is sent and every answer when
//! it arrives. Something is killed, filled up or cut off meanwhile. Then [`mod@check`] compares what
//! was acknowledged with the tables, in its own SQL: it must share no code with the
//! ledger that it checks.

mod check;
mod disk;
mod fixture;
mod fleet;
mod history;
mod load;
mod operation;
mod pooler;
mod process;
mod proxy;
mod size;
mod wait;

pub use check::{check, finish};
pub use disk::{Ballast, NoDisk, SmallDisk};
pub use fixture::Fixture;
pub use fleet::{NODES, Nodes, set_up};
pub use history::{ExpectedClaim, History};
pub use load::Load;
pub use operation::{ClaimSpec, Message, Operation, Reply};
pub use pooler::Pooler;
pub use process::Worker;
pub use proxy::Proxy;
pub use size::{FirstDecision, Size, decide_first, fill};
pub use wait::{RecoveryTimes, Stopwatch, setting, wait_until};
