//! What agents said last of their instances and no event tells: who only says that all is well makes
//! no news, and its number and load are known to the server that it told.

use std::sync::{Mutex, MutexGuard, PoisonError};

use berth_engine::InstanceId;
use berth_engine::elastic::Permit;
use rustc_hash::FxHashMap;

/// Instances that are remembered; then all are forgotten, which costs nothing but freshness.
const MOST: usize = 1 << 20;

/// What was said last.
#[derive(Default)]
pub struct PermitCache(Mutex<FxHashMap<InstanceId, (i64, Permit)>>);

impl PermitCache {
    fn all(&self) -> MutexGuard<'_, FxHashMap<InstanceId, (i64, Permit)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes a permit as it was answered, under the fence of its claim.
    pub fn note(&self, instance: InstanceId, fence: i64, permit: Permit) {
        let mut all = self.all();
        if all.len() >= MOST {
            all.clear();
        }
        let known = all.entry(instance).or_insert((fence, permit));
        // Answers may overtake each other on their way here.
        if (known.0, known.1.seq) <= (fence, permit.seq) {
            *known = (fence, permit);
        }
    }

    /// A permit as the catalogue has it, or as it was answered here since.
    #[must_use]
    pub fn newest(&self, instance: InstanceId, fence: i64, permit: Permit) -> Permit {
        let heard = self.all().get(&instance).copied();
        match heard {
            Some((at, heard)) if at == fence && heard.seq > permit.seq => heard,
            Some(_) | None => permit,
        }
    }
}
