//! How a node's counters change, and which limits the guard in the database checks.

use super::rows::NodeRow;

/// What is added to each counter, and where the node ends up over its limit all the same.
pub(crate) struct Delta {
    pub(crate) cpu: i64,
    pub(crate) memory: i64,
    pub(crate) disk: i64,
    pub(crate) bandwidth: i64,
    pub(crate) instances: i64,
    pub(crate) capped: i64,
    pub(crate) over: OverLimit,
}

/// Where a node is over its limit after the work, as far as the work knows: because CPU is soft,
/// because a found instance was recorded, or because it was over before. The guard checks the others.
#[allow(clippy::struct_excessive_bools, reason = "one per counter")]
pub(crate) struct OverLimit {
    pub(crate) cpu: bool,
    pub(crate) memory: bool,
    pub(crate) disk: bool,
    pub(crate) bandwidth: bool,
    pub(crate) instances: bool,
}

/// The difference between two states of a node.
pub(crate) fn of(before: &NodeRow, now: &NodeRow) -> Delta {
    let (old, new, limits) = (&before.room.used, &now.room.used, &now.room.limits);
    Delta {
        cpu: new.cpu - old.cpu,
        memory: new.memory - old.memory,
        disk: new.disk - old.disk,
        bandwidth: new.bandwidth - old.bandwidth,
        instances: i64::from(new.instances) - i64::from(old.instances),
        capped: i64::from(new.capped) - i64::from(old.capped),
        over: OverLimit {
            cpu: new.cpu > limits.cpu,
            memory: now.room.memory_used() > limits.memory,
            disk: new.disk > limits.disk,
            bandwidth: new.bandwidth > limits.bandwidth,
            instances: new.instances > now.room.instance_limit,
        },
    }
}

/// Whether two states of a node differ in counters alone.
pub(crate) fn only_counters(before: &NodeRow, now: &NodeRow) -> bool {
    before.constraint_gen == now.constraint_gen
        && before.state == now.state
        && before.room.limits == now.room.limits
}
