//! Why instances could not be moved, the last time it was tried; and when to try again.
//!
//! Kept in memory only: every server tries for itself, so every server can say why.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use berth_engine::{InstanceId, Refusal};
use jiff::Timestamp;

/// Seconds after which a move is tried again though nothing seems to have made room.
const AGAIN_AFTER_S: i64 = 10;

/// Most ways out that are named.
const WAYS_OUT: usize = 3;

/// A move that could not be made.
#[derive(Clone, Debug)]
pub(super) struct RefusedMove {
    /// The fence of the claim that was to move.
    pub(super) fence: i64,
    /// Why: a stable code.
    pub(super) code: String,
    /// In one sentence.
    pub(super) message: String,
    /// What would unblock it.
    pub(super) unblock: Vec<String>,
    /// When it was tried.
    pub(super) at: Timestamp,
    /// What had made room by then.
    pub(super) room: u64,
}

impl RefusedMove {
    /// Whether it is worth another try.
    pub(super) fn is_due(&self, room: u64, now: Timestamp) -> bool {
        let waited = now.as_second() - self.at.as_second();
        (self.room != room && waited >= 1) || !(0..AGAIN_AFTER_S).contains(&waited)
    }
}

/// What would unblock an instance that no node can take.
pub(super) fn ways_out(refusal: &Refusal) -> Vec<String> {
    let mut ways: Vec<String> =
        refusal.fixes.iter().take(WAYS_OUT).map(ToString::to_string).collect();
    if ways.is_empty() {
        ways.push(refusal.remedy.to_string());
    }
    ways
}

/// The last refusal of each instance that is to move.
#[derive(Default)]
pub(super) struct Refusals(Mutex<BTreeMap<InstanceId, Arc<RefusedMove>>>);

impl Refusals {
    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<InstanceId, Arc<RefusedMove>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Why a claim could not be moved; absent when it was not tried, or could.
    pub(super) fn get(&self, instance: InstanceId, fence: i64) -> Option<Arc<RefusedMove>> {
        self.lock().get(&instance).filter(|refused| refused.fence == fence).cloned()
    }

    pub(super) fn put(&self, instance: InstanceId, refused: RefusedMove) {
        self.lock().insert(instance, Arc::new(refused));
    }

    pub(super) fn remove(&self, instance: InstanceId) {
        self.lock().remove(&instance);
    }

    /// Forgets all but those that still are to move.
    pub(super) fn keep(&self, stays: impl Fn(InstanceId) -> bool) {
        self.lock().retain(|instance, _| stays(*instance));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_move_is_tried_again_when_room_was_made_or_time_has_passed() {
        let at = Timestamp::from_second(1000).unwrap();
        let (code, message, unblock) = (String::new(), String::new(), Vec::new());
        let refused = RefusedMove { fence: 1, code, message, unblock, at, room: 7 };
        let cases = [
            (0, 7, false),
            (0, 8, false),
            (1, 8, true),
            (9, 7, false),
            (10, 7, true),
            // A clock that went back says nothing.
            (-1, 7, true),
        ];
        for (later, room, due) in cases {
            let now = Timestamp::from_second(1000 + later).unwrap();
            assert_eq!(refused.is_due(room, now), due, "{later} s later, room {room}");
        }
    }
}
