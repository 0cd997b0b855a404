//! Why instances could not be moved when it was last tried, and when to try again.
//!
//! Kept in memory only: every server tries, so every server knows why.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use berth_engine::InstanceId;
use jiff::Timestamp;

use crate::moves::executor::StepRefusal;

/// Seconds after which a move is retried even if no room was made.
const RETRY_AFTER_S: i64 = 10;

/// A move that could not be made.
#[derive(Clone, Debug)]
pub(super) struct RefusedMove {
    /// The fence of the claim that was to move.
    pub(super) fence: i64,
    /// Why.
    pub(super) refusal: StepRefusal,
    /// When it was tried.
    pub(super) at: Timestamp,
    /// How often room had been made by then.
    pub(super) room: u64,
}

impl RefusedMove {
    /// Whether to try again.
    pub(super) fn is_due(&self, room: u64, now: Timestamp) -> bool {
        let waited = now.as_second() - self.at.as_second();
        (self.room != room && waited >= 1) || !(0..RETRY_AFTER_S).contains(&waited)
    }
}

/// The last refusal of each instance that is to move.
#[derive(Default)]
pub(super) struct Refusals(Mutex<BTreeMap<InstanceId, Arc<RefusedMove>>>);

impl Refusals {
    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<InstanceId, Arc<RefusedMove>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Why a claim could not be moved; absent if it was not tried or was moved.
    pub(super) fn get(&self, instance: InstanceId, fence: i64) -> Option<Arc<RefusedMove>> {
        self.lock().get(&instance).filter(|refused| refused.fence == fence).cloned()
    }

    pub(super) fn put(&self, instance: InstanceId, refused: RefusedMove) {
        self.lock().insert(instance, Arc::new(refused));
    }

    pub(super) fn remove(&self, instance: InstanceId) {
        self.lock().remove(&instance);
    }

    /// Forgets all but some instances.
    pub(super) fn retain(&self, keep: impl Fn(InstanceId) -> bool) {
        self.lock().retain(|instance, _| keep(*instance));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_move_is_tried_again_when_room_was_made_or_time_has_passed() {
        let at = Timestamp::from_second(1000).unwrap();
        let (code, message, unblock) = (String::new(), String::new(), Vec::new());
        let refusal = StepRefusal { code, message, unblock };
        let refused = RefusedMove { fence: 1, refusal, at, room: 7 };
        let cases = [
            (0, 7, false),
            (0, 8, false),
            (1, 8, true),
            (9, 7, false),
            (10, 7, true),
            // The clock went back.
            (-1, 7, true),
        ];
        for (later, room, due) in cases {
            let now = Timestamp::from_second(1000 + later).unwrap();
            assert_eq!(refused.is_due(room, now), due, "{later} s later, room {room}");
        }
    }
}
