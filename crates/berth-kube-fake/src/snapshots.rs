//! States of tables that paged lists continue with.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use crate::object::Object;
use crate::store::TableId;

/// Paged lists that can be continued at the same time.
const SNAPSHOTS_MAX: usize = 64;

/// A table, or one namespace of it, at a version.
pub(crate) type SnapshotKey = (TableId, Option<String>, u64);

/// The states that paged lists continue with.
#[derive(Default)]
pub(crate) struct Snapshots {
    states: HashMap<SnapshotKey, Arc<Vec<Arc<Object>>>>,
    order: VecDeque<SnapshotKey>,
}

impl Snapshots {
    pub(crate) fn insert(&mut self, at: SnapshotKey, state: Arc<Vec<Arc<Object>>>) {
        if self.states.insert(at.clone(), state).is_none() {
            self.order.push_back(at);
        }
        while self.order.len() > SNAPSHOTS_MAX {
            if let Some(oldest) = self.order.pop_front() {
                self.states.remove(&oldest);
            }
        }
    }

    pub(crate) fn get(&self, at: &SnapshotKey) -> Option<&Arc<Vec<Arc<Object>>>> {
        self.states.get(at)
    }

    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }
}
