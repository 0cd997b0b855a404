//! Where the time of day enters the control plane.

use jiff::Timestamp;

/// The time of this machine.
#[allow(clippy::disallowed_methods, reason = "the control plane is where time comes in")]
#[must_use]
pub fn now() -> Timestamp {
    Timestamp::now()
}

/// A moment of the ledger's clock, as callers read it.
#[must_use]
pub fn moment(at: berth_ledger::Micros) -> Timestamp {
    Timestamp::from_microsecond(at.0).unwrap_or(Timestamp::UNIX_EPOCH)
}
