//! Faults at bad moments, and what must hold after them.
//!
//! A load writes to a ledger and tells of every request before it is sent and of every answer when
//! it has come. Something is killed, filled up or cut off meanwhile. Then [`check`] compares what
//! was acknowledged with what the tables say, in SQL of its own: it must share no code with the
//! ledger that it judges.

mod book;
mod check;
mod deed;
mod disk;
mod fleet;
mod load;
mod process;
mod proxy;
mod size;
mod stage;
mod wait;

pub use book::{Book, Known};
pub use check::{check, finish};
pub use deed::{Deed, Message, Reply, Wanted};
pub use disk::{Ballast, NoDisk, SmallDisk};
pub use fleet::{NODES, Nodes, set_up};
pub use load::Load;
pub use process::Worker;
pub use proxy::Proxy;
pub use size::{FirstDecision, Size, decide_first, fill};
pub use stage::Stage;
pub use wait::{Stopwatch, setting, wait_until};
